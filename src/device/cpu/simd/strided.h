/* device/cpu/simd/strided.h: iterates over several views of one shape, line by
 * line.
 *
 * A kernel is written for dense lines only: `line(arg, n, p)` gets n elements
 * of each view, contiguous in memory. The iterator finds the lines. It sorts
 * the dimensions by the output's strides, drops those of size 1, and joins
 * neighbours that are contiguous in every view. So views that are dense in the
 * same order are one line, whatever their shape. A view whose inner stride is
 * not one element (broadcast, transposed, sliced) is copied through a small
 * buffer. PyTorch's TensorIterator does the same.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "isa.h"

#define STRIDED_VIEWS 5

typedef struct strided {
    int n_views; /* the last one is the output, whose strides order the dimensions */
    int n;       /* dimensions after joining, outermost first; at least 1 */
    int64_t d[DS_MAX_DIMS];
    int64_t s[STRIDED_VIEWS][DS_MAX_DIMS]; /* bytes */
    int64_t size[STRIDED_VIEWS];           /* bytes of an element */
    char *p[STRIDED_VIEWS];
} strided;

typedef void strided_line(const void *arg, int64_t n, void *const *p);

#define strided_plan KERNEL(dsi_strided_plan)
#define strided_run  KERNEL(dsi_strided_run)

/* Fills w for n_views views of one shape; strides of 0 are allowed in operands. */
void strided_plan(strided *w, int n_views, const dsi_view *const *views);

/* Calls `line` for all elements, on several threads if there are many. A line
 * may be cut anywhere, so `line` must compute an element from that element of
 * the operands alone. */
void strided_run(const strided *w, strided_line *line, const void *arg);

/* Plan and run of one kernel call: STRIDED_RUN(line, arg, &x, &y). */
#define STRIDED_RUN(line, arg, ...) \
    do { \
        const dsi_view *const views_[] = {__VA_ARGS__}; \
        strided plan_; \
        strided_plan(&plan_, (int)(sizeof views_ / sizeof *views_), views_); \
        strided_run(&plan_, line, arg); \
    } while (0)

/* Fetches `bytes` bytes from p on into the first cache, to read or to write
 * them. They may be outside of any memory. */
#define FETCH(p, bytes, to_write) \
    for (uintptr_t at_ = (uintptr_t)(p), end_ = at_ + (uintptr_t)(bytes); at_ < end_; at_ += 64) \
    __builtin_prefetch((const void *)at_, to_write)

/* Elements of a thread from which it pays: ten microseconds of work and more. */
#define PARALLEL_ELEMENTS 25000
/* Elements from which a sum is made of parts, on any number of threads: another
 * number here gives other bits. */
#define LONG 200000

/* Before a loop whose iterations are independent, although its output may be
 * its input: gcc then vectorises it without a check. clang has no such pragma
 * that stays silent for loops that call the C library; it checks at run
 * time. */
#if defined(__clang__)
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif
