/* examples/common/training.h: what cifar10_ddp and cifar10_dataparallel share: options, the turns of the loop,
 * the files that are saved on the way and loaded to go on, the test. What a step is, each program says itself.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_TRAINING_H
#define EXAMPLES_TRAINING_H

#include "classify.h"
#include "source.h"

#include <argp.h>
#include <stdio.h>

typedef struct Training {
    /* the options */
    Source source;
    const char *trace, *folder, *load;
    int64_t epochs, batch_size, threads, max_steps, log_interval, save_step_interval;
    int64_t seed;
    double lr, momentum;
    bool no_eval, quiet;

    /* the program's; training_free frees them */
    ds_loader *train, *test;
    ds_module *net;
    ds_optim *sgd;
    bool first; /* the rank that prints and saves */

    FILE *trace_file;
    int64_t step, epoch; /* done */
} Training;

/* What is a program's own in its options. */
typedef struct TrainingUsage {
    const char *about, *batch_size, *threads; /* help: of the program, of two options */
    /* options of its own, and their parser, whose input is the Training */
    const struct argp_option *more;
    error_t (*parse)(int key, char *arg, struct argp_state *state);
} TrainingUsage;

/* Numbers from here on are free for the keys of a program's own options. */
enum { TRAINING_OWN_KEYS = 1024 };

/* Reads the command line; a mistake in it ends the program. */
void training_options(Training *t, const TrainingUsage *usage, int argc, char **argv);

/* Forward, backward, update; the loss. */
typedef double training_step(void *program, const ds_batch *b);

/* Whether the first step that --save-step-interval saves can be written: asked before the data is fetched.
 * Only the rank that saves looks. */
ds_status training_check_save(const Training *t);
/* Goes on from what --load names: weights, and of a cifar_net_step_K.pth the optimizer and the epoch too. */
void training_load(Training *t);
/* All epochs: prints, traces and saves what the options say. Failures stand in ds_error(). */
void training_run(Training *t, training_step *step, void *program);
void training_test(const Training *t);

/* Prints the failure, if there is one, after the program's name, and frees everything: the exit status. */
int training_end(Training *t, const char *program);

#endif
