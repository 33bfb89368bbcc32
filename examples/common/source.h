/* examples/common/source.h: the datasets of the CIFAR-10 programs, and options
 * for them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <argp.h>
#include <deepspeed.h>

typedef struct Source {
    const char *data, *url;
    int64_t samples; /* of the training set; 0: all */
    int64_t workers;
    bool no_shuffle, no_download, sample, sample_if_offline;
} Source;

/* The options as a child parser; its input is a Source, which it sets to the
 * defaults first. */
extern const struct argp source_argp;

/* The training set, which is opened first, is downloaded if necessary; the test
 * set is then there too. quiet prints only failures. */
ds_dataset *source_open(const Source *s, ds_split split, bool quiet);

/* The same for all ranks of ds_world(), which all call it. The first rank of
 * each machine downloads the data while the machine's other ranks wait. Only
 * rank 0 prints. */
ds_dataset *source_open_on_ranks(const Source *s, ds_split split, bool quiet);
