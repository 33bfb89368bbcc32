/* examples/common/source.h: where the CIFAR-10 programs take their images from: options, data sets.
 * SPDX-License-Identifier: MIT */
#ifndef EXAMPLES_SOURCE_H
#define EXAMPLES_SOURCE_H

#include <argp.h>
#include <deepspeed.h>

typedef struct Source {
    const char *data, *url;
    int64_t samples; /* of the training set; 0: all */
    int64_t workers;
    bool no_shuffle, no_download, sample, sample_if_offline;
} Source;

/* The options as a child parser; its input is a Source, which it sets to the defaults first. */
extern const struct argp source_argp;

/* The training set comes first and is fetched if need be; the test set is then where it is. quiet: says
 * nothing but failures. */
ds_dataset *source_open(const Source *s, ds_split split, bool quiet);

/* The same for all ranks of ds_world(), which all call it: the first of each machine fetches the data while
 * its others wait, and find them there. Only rank 0 says something. */
ds_dataset *source_open_on_ranks(const Source *s, ds_split split, bool quiet);

#endif
