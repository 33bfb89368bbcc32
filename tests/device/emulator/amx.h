/* tests/device/emulator/amx.h: the matrix unit (AMX) on processors without it,
 * for the products of bfloat16 in src/device/cpu.
 *
 * There its instructions raise SIGILL. The handler of that signal decodes one,
 * does what Intel's manual says, on eight tiles of the thread, and continues
 * after it. It takes about 2 us. Programs that link this emulate if
 * DS_TEST_AMX=emulated; then the library finds the unit wherever it finds
 * AVX512_BF16, which its kernels use beside it.
 *
 * An error, in the manual #UD or #GP, is here one line on stderr, and SIGILL:
 * the program ends, or cmocka's test fails.
 *
 * Not emulated: instructions for other types than bfloat16, a start row other
 * than 0 (the state of a load that a page fault has interrupted).
 *
 * Source: Intel, 64 and IA-32 Architectures Software Developer's Manual, volume
 * 2: LDTILECFG, STTILECFG, TILERELEASE, TILEZERO, TILELOADD, TILESTORED,
 * TDPBF16PS, and "Intel AMX Instruction Exception Classes".
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

/* Emulates from now on, in all threads. */
void amx_emulate(void);

/* Whether the processor has AVX-512, by which products are computed. */
bool amx_can_emulate(void);
