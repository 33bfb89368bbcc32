/* examples/common/training.h: shared by cifar10_ddp and cifar10_dataparallel:
 * options, the training loop, files saved while training and loaded to resume,
 * the test. Each program defines its step.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "best.h"
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
    Best best; /* --patience */
    double lr, momentum;
    bool no_eval, quiet;

    /* made by the program; training_end frees them */
    ds_loader *train, *test;
    ds_module *net;
    ds_optim *sgd;
    bool first; /* the rank that prints and saves */

    FILE *trace_file;
    int64_t step, epoch; /* done */
} Training;

/* The options in which the programs differ. */
typedef struct TrainingUsage {
    const char *about, *batch_size, *threads; /* help of the program, and of two options */
    /* additional options, and their parser, whose input is the Training */
    const struct argp_option *more;
    error_t (*parse)(int key, char *arg, struct argp_state *state);
} TrainingUsage;

/* Keys of additional options begin at this number. */
enum { TRAINING_OWN_KEYS = 1024 };

/* Reads the command line; a mistake in it ends the program. */
void training_options(Training *t, const TrainingUsage *usage, int argc, char **argv);

/* Forward, backward, update; returns the loss. */
typedef double training_step(void *program, const ds_batch *b);

/* Checks, before the data is downloaded, that options go together, that --load
 * is there, and, on the rank that saves, that the first file of
 * --save-step-interval can be written. */
ds_status training_check(const Training *t);
/* Loads the file of --load: weights, and from a cifar_net_step_K.pth also
 * optimizer and
 * epoch. */
void training_load(Training *t);
/* Runs all epochs; prints, traces and saves as the options say. A failure sets
 * ds_error(). */
void training_run(Training *t, training_step *step, void *program);
void training_test(const Training *t);

/* Prints the program's name and the failure, if there is one, and frees
 * everything. Returns the exit status. */
int training_end(Training *t, const char *program);
