/* base/thread.h: what a thread leaves behind when it ends.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_BASE_THREAD_H
#define DSI_BASE_THREAD_H

/* Calls fn when this thread ends, after the functions added later than it. The main thread's memory
 * goes with the process: fn is not called at exit. Adding the same fn again does nothing. */
void dsi_at_thread_end(void (*fn)(void));

#endif
