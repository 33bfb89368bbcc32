/* device/cuda/ptx.c: the PTX of every family, ptx/FAMILY.ptx, as bytes of the
 * library. scripts/make_ptx makes these files.
 *
 * An assembler directive reads them when this file is compiled, so no C source
 * is generated. PTX is text, and the driver reads up to a 0 byte, which is
 * added. It is machine code of no GPU: the driver compiles it for the one that
 * is there, also for GPUs that are newer than this library.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

#define EMBED(name, capability) \
    __asm__(".section .rodata\n" \
            ".hidden dsi_cuda_ptx_" #name "\n" \
            ".global dsi_cuda_ptx_" #name "\n" \
            "dsi_cuda_ptx_" #name ":\n" \
            ".incbin \"" DSI_CUDA_PTX "/" #name ".ptx\"\n" \
            ".byte 0\n" \
            ".previous\n"); \
    extern const char dsi_cuda_ptx_##name[];
DSI_CUDA_FAMILIES(EMBED)

#define ENTRY(name, capability) dsi_cuda_ptx_##name,
const char *const dsi_cuda_ptx[DSI_CUDA_N_FAMILIES] = {DSI_CUDA_FAMILIES(ENTRY)};
