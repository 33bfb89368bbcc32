/* examples/common/training.h: what cifar10_ddp and cifar10_dataparallel share: options, the turns of the loop,
 * the files that are saved on the way, the test. What a step is, each program says itself.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_TRAINING_H
#define EXAMPLES_TRAINING_H

#include "classify.h"
#include "source.h"

#include <stdio.h>

typedef struct Training {
    /* the options */
    Source source;
    const char *trace, *folder;
    int64_t epochs, batch_size, threads, max_steps, log_interval, save_step_interval;
    double lr, momentum;
    uint64_t seed;
    bool no_eval, quiet;

    /* the program's; training_free frees them */
    ds_loader *train, *test;
    ds_module *net;
    ds_optim *sgd;
    bool first; /* the rank that prints and saves */

    FILE *trace_file;
    int64_t step;
} Training;

/* The options as a child parser; its input is a Training, whose options it sets to the defaults first. The
 * program adds the options whose meaning is its own: --batch-size and --threads. */
extern const struct argp training_argp;

/* Forward, backward, update; the loss. */
typedef double training_step(void *program, const ds_batch *b);

/* All epochs: prints, traces and saves what the options say. Failures stand in ds_error(). */
void training_run(Training *t, training_step *step, void *program);
void training_test(const Training *t);

/* Prints the failure, if there is one, after the program's name, and frees everything: the exit status. */
int training_end(Training *t, const char *program);

#endif
