/* device/cpu/find_amx.c: whether the processor has the matrix unit, AMX. Alone
 * in a file, so that tests can put an emulated one in its place.
 * SPDX-License-Identifier: MIT */
#include "cpu.h"
#include "simd/amx.h"

#if defined(__x86_64__) && defined(DSI_KNOWS_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__) && defined(DSI_KNOWS_AMX) && defined(SYS_arch_prctl)
/* The unit with bfloat16, its tiles saved by the system, and the system's leave
 * to use them, which it gives to a process that asks (Linux 5.16,
 * Documentation/arch/x86/xstate.rst). */
bool dsi_cpu_find_amx(void)
{
    enum { OSXSAVE = 1 << 27, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    enum { TILE_DATA = 18, STATES = 0x60000, ARCH_REQ_XCOMP_PERM = 0x1023 };
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE))
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & STATES) != STATES) return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}
#else
bool dsi_cpu_find_amx(void) { return false; }
#endif
