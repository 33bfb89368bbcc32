/* base/thread.h: memory of a thread; what it leaves behind when it ends; how it
 * spins.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <pthread.h>
#include <stddef.h>

/* What ends first: handles before the devices that they lie on. */
typedef enum dsi_end { DSI_END_SCOPES, DSI_END_HANDLES, DSI_END_DEVICES, DSI_END_MEMORY } dsi_end;

/* Calls fn when this thread ends, in the order of `when`. The main thread's
 * memory goes with the process: fn is not called at exit. Adding the same fn
 * again does nothing. */
void dsi_at_thread_end(dsi_end when, void (*fn)(void));

/* *slot, a _Thread_local; at first new zeroed bytes, which go with the thread.
 * For what is more than some words: a shared library that is opened by a
 * running program has little room for variables of threads. */
void *dsi_thread_memory(void **slot, size_t bytes);

/* pthread_create of a thread that takes no signals: those are for the program's
 * own threads. Signals of its own mistakes (SIGSEGV) are not blocked: then the
 * system would end the program without its handler. Returns 0, or the error. */
int dsi_thread_create(pthread_t *thread, void *(*run)(void *arg), void *arg);

int dsi_processors(void); /* that this process may run on */

/* What a thread that spins does between two looks: its core's other thread, and
 * its power, are spared. */
static inline void dsi_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
