/* base/work.h: threads inside a kernel: they spin, then sleep.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdint.h>

/* Runs body(arg, begin, end) over parts of 0 .. n-1 on this thread and its
 * helpers (ds_set_threads), and returns when all are done. A part has at least
 * `grain` items: choose it worth 10 us or more, so that a helper pays. Parts
 * differ from call to call, so a sum that must not depend on it stays
 * inside one item. Never fails: what helpers cannot be had for runs here. */
void dsi_parallel(int64_t n, int64_t grain, void (*body)(void *arg, int64_t begin, int64_t end),
                  void *arg);

/* From now on a job of this thread has at most n parts, so that the other
 * processors are free for what runs beside it; 0: as many as there are threads.
 * Returns what it was. The threads stay. */
int dsi_limit_threads(int n);
