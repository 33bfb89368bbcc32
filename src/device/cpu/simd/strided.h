/* device/cpu/simd/strided.h: walks over several views of one shape, line by line.
 *
 * A kernel is written for dense lines only: `line(arg, n, p)` gets n elements of each view, one after the
 * other in memory. The walk finds the lines: dimensions are ordered as they lie in the output, those of
 * size 1 dropped, and neighbours that run on in every view joined, so that views which are dense in
 * the same order are one line, whatever their shape. A view whose inner stride is not one element
 * (broadcast, transposed, sliced) is staged through a small buffer.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DEVICE_CPU_SIMD_STRIDED_H
#define DSI_DEVICE_CPU_SIMD_STRIDED_H

#include "isa.h"

#define WALK_VIEWS 4

typedef struct walk {
    int n_views; /* the last one is the output, by which dimensions are ordered */
    int n;       /* dimensions left, outermost first; at least 1 */
    int64_t d[DS_MAX_DIMS];
    int64_t s[WALK_VIEWS][DS_MAX_DIMS]; /* bytes */
    int64_t size[WALK_VIEWS];           /* bytes of an element */
    char *p[WALK_VIEWS];
} walk;

typedef void walk_line(const void *arg, int64_t n, void *const *p);

#define walk_plan KERNEL(dsi_walk_plan)
#define walk_run  KERNEL(dsi_walk_run)

void walk_plan(walk *w, int n_views, const dsi_view *const *views);

/* Runs line over all of w; large ones on several threads. A line may be cut anywhere, so line must
 * compute an element from its operands alone. */
void walk_run(const walk *w, walk_line *line, const void *arg);

/* Plan and run of one kernel call: WALK(line, arg, &x, &y). */
#define WALK(line, arg, ...) \
    do { \
        const dsi_view *const views_[] = {__VA_ARGS__}; \
        walk walk_; \
        walk_plan(&walk_, (int)(sizeof views_ / sizeof *views_), views_); \
        walk_run(&walk_, line, arg); \
    } while (0)

/* So many elements are worth a helper thread: tens of microseconds. */
#define PARALLEL_ELEMENTS 100000

/* A loop whose iterations do not depend on each other, though its output may be its input. (clang asks
 * at run time, and warns of a loop that calls the C library.) */
#if defined(__clang__)
#define INDEPENDENT
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
