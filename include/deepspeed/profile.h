/* deepspeed/profile.h: the time of a step, kernel by kernel, as
 * torch.profiler says it.
 *
 *     ds_profile_begin();
 *     train_one_step();
 *     ds_profile_end();
 *     ds_profile_print(stdout);
 *
 * DS_TRACE=run.json shows the same kernels over time (docs/monitoring.md).
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_PROFILE_H
#define DEEPSPEED_PROFILE_H

#include <deepspeed/types.h>

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts a new profile of this thread: of each kernel that it runs from now on,
 * in forward, backward and optimizers, and of the time that it waits for other
 * ranks. On a GPU the thread waits for each kernel, so that its time is known.
 * Forgets the thread's last profile. DS_ESTATE: one is running. */
DS_API ds_status ds_profile_begin(void);

/* Ends it. Its rows remain until the next ds_profile_begin of this thread.
 * DS_ESTATE: none is running. */
DS_API ds_status ds_profile_end(void);

typedef struct ds_profile_row {
    const char *name;   /* "matmul"; in a backward pass "linear_backward: matmul"; of
                           communication "wait: all_reduce" */
    const char *module; /* its path, "net.fc1"; "" outside of modules */
    int64_t calls;
    double seconds;
    double flops; /* of products, convolutions and attention; else 0 */
    double bytes; /* of operands and results, each once */
} ds_profile_row;

typedef struct ds_profile_opts {
    bool by_module; /* a row for each kernel of each module; default: of all modules */
    int rows;       /* of the table, the longest first; 0: 40 */
} ds_profile_opts;

/* The rows of this thread's last profile into row[0 .. most-1], the longest time
 * first; returns how many there are. Names are valid until the next
 * ds_profile_begin. */
DS_API int ds_profile_rows(ds_profile_row *row, int most, ds_profile_opts opts);

/* Seconds from begin to end, or until now. */
DS_API double ds_profile_seconds(void);

/* Prints a table: name, calls, time, its share of ds_profile_seconds, time of a
 * call, GF/s, and bytes; at the end what was outside of kernels.
 * ds_profile_print(stdout, .by_module = true). */
#define ds_profile_print(to, ...) ds_profile_print_with(to, (ds_profile_opts){__VA_ARGS__})
DS_API void ds_profile_print_with(FILE *to, ds_profile_opts opts);

#ifdef __cplusplus
}
#endif
#endif
