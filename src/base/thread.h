/* base/thread.h: memory of a thread; what it leaves behind when it ends; how it
 * spins.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <pthread.h>
#include <stddef.h>

/* The order in which memory of a thread ends: handles before the devices whose
 * memory they use. */
typedef enum dsi_end { DSI_END_SCOPES, DSI_END_HANDLES, DSI_END_DEVICES, DSI_END_MEMORY } dsi_end;

/* Calls fn when this thread ends, in the order of `when`. The main thread's
 * memory is freed with the process: fn is not called at exit. Adding the same
 * fn again does nothing. */
void dsi_at_thread_end(dsi_end when, void (*fn)(void));

/* Returns *slot, a _Thread_local; sets it to new zeroed bytes at the first
 * call, which are freed with the thread. Use it for variables of more than some
 * words: a shared library that is opened by a running program has little memory
 * for variables of threads. */
void *dsi_thread_memory(void **slot, size_t bytes);

/* pthread_create of a thread that takes no signals: those are for the program's
 * own threads. Signals of its own mistakes (SIGSEGV) are not blocked: then the
 * system would end the program without its handler. Returns 0, or the error. */
int dsi_thread_create(pthread_t *thread, void *(*run)(void *arg), void *arg);

int dsi_processors(void); /* that this process may run on */

/* A pause between two reads of a thread that spins: leaves time to the other
 * thread of its core, and saves power. */
static inline void dsi_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
