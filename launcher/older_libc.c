/* launcher/older_libc.c: what glibc before 2.34 and musl lack.
 * SPDX-License-Identifier: MIT */
#include "older_libc.h"

#include <asm/unistd.h>
#include <stddef.h>

#ifndef DS_HAVE_SIGABBREV_NP
const char *sigabbrev_np(int number)
{
#define NAME(signal) [SIG##signal] = #signal
    static const char *const names[] = {
        NAME(HUP),  NAME(INT),    NAME(QUIT), NAME(ILL),  NAME(TRAP),   NAME(ABRT), NAME(BUS),
        NAME(FPE),  NAME(KILL),   NAME(USR1), NAME(SEGV), NAME(USR2),   NAME(PIPE), NAME(ALRM),
        NAME(TERM), NAME(STKFLT), NAME(CHLD), NAME(CONT), NAME(STOP),   NAME(TSTP), NAME(TTIN),
        NAME(TTOU), NAME(URG),    NAME(XCPU), NAME(XFSZ), NAME(VTALRM), NAME(PROF), NAME(WINCH),
        NAME(POLL), NAME(PWR),    NAME(SYS)};
    return number > 0 && (size_t)number < sizeof names / sizeof *names ? names[number] : NULL;
}
#endif

#ifndef DS_HAVE_CLOSEFROM
void closefrom(int first)
{
#ifdef __NR_close_range /* Linux 5.9 */
    if (!syscall(__NR_close_range, (unsigned)first, ~0U, 0U)) return;
#endif
    for (long i = first, n = sysconf(_SC_OPEN_MAX); i < n; i++) close((int)i);
}
#endif
