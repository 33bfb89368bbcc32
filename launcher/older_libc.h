/* launcher/older_libc.h: what glibc before 2.34 and musl lack; cmake/launcher.cmake
 * looks for each.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <elf.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#ifndef EM_LOONGARCH
#define EM_LOONGARCH 258
#endif

#ifndef DS_HAVE_SIGABBREV_NP /* glibc 2.32 */
/* "KILL" for 9; NULL if there is no such signal. */
const char *sigabbrev_np(int number);
#endif

#ifndef DS_HAVE_CLOSEFROM /* glibc 2.34 */
/* Closes all files from the descriptor `first` on. */
void closefrom(int first);
#endif
