/* examples/common/source.c: the datasets of the CIFAR-10 programs, and options
 * for them.
 * SPDX-License-Identifier: MIT */
#include "source.h"

#include "args.h"

#include <string.h>

enum { DATA = 512, DATA_URL, NO_DOWNLOAD, SAMPLE, SAMPLE_IF_OFFLINE, SAMPLES, NO_SHUFFLE, WORKERS };

static const struct argp_option options[] = {
    {"data", DATA, "DIR", 0, "folder of CIFAR-10; downloaded to it if missing (./data)", 0},
    {"data-url", DATA_URL, "URL", 0, "a mirror of cifar-10-binary.tar.gz, or a file:// URL", 0},
    {"no-download", NO_DOWNLOAD, 0, 0, "never download", 0},
    {"sample", SAMPLE, 0, 0, "train and test on the small built-in sample of CIFAR-10", 0},
    {"sample-if-offline", SAMPLE_IF_OFFLINE, 0, 0,
     "the same, if the full set is missing and cannot be downloaded", 0},
    {"samples", SAMPLES, "N", 0, "use the first N training images (all)", 0},
    {"no-shuffle", NO_SHUFFLE, 0, 0, "use the images in file order in every epoch", 0},
    {"workers", WORKERS, "N", 0, "threads that load batches ahead (0: none)", 0},
    {0}};

static const ArgsField fields[] = {ARGS_TEXT(DATA, Source, data),
                                   ARGS_TEXT(DATA_URL, Source, url),
                                   ARGS_FLAG(NO_DOWNLOAD, Source, no_download),
                                   ARGS_FLAG(SAMPLE, Source, sample),
                                   ARGS_FLAG(SAMPLE_IF_OFFLINE, Source, sample_if_offline),
                                   ARGS_WHOLE(SAMPLES, Source, samples, 1, INT64_MAX),
                                   ARGS_FLAG(NO_SHUFFLE, Source, no_shuffle),
                                   ARGS_WHOLE(WORKERS, Source, workers, 0, 256),
                                   {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Source *s = state->input;
    if (key != ARGP_KEY_INIT) return args_store(state, options, fields, key, arg, s);
    *s = (Source){.data = "./data"};
    return 0;
}

const struct argp source_argp = {options, parse, NULL, NULL, NULL, NULL, NULL};

ds_dataset *source_open(const Source *s, ds_split split, bool quiet)
{
    bool train = split == DS_TRAIN;
    ds_dataset *d = ds_cifar10_with(s->data, split,
                                    (ds_cifar10_opts){.url = s->url,
                                                      .download = !s->no_download && train,
                                                      .sample = s->sample,
                                                      .fallback_sample = s->sample_if_offline,
                                                      .quiet = quiet || !train});
    if (!d && ds_error_status() == DS_EIO && !strncmp(ds_error(), "download: ", 10))
        ds_fail(DS_EIO, "%s; --data DIR takes a set that is there, --sample the built-in small one",
                ds_error());
    return d && train && s->samples ? ds_subset(d, 0, s->samples) : d;
}

ds_dataset *source_open_on_ranks(const Source *s, ds_split split, bool quiet)
{
    ds_comm *world = ds_world();
    bool first = ds_comm_local_rank(world) == 0;
    ds_dataset *d = NULL;
    for (int turn = 0; turn < 2; turn++) {
        if (first == !turn) d = source_open(s, split, quiet || ds_comm_rank(world) != 0);
        if (ds_comm_sync_status(world, ds_error_status()) == DS_OK) continue;
        ds_dataset_free(d);
        return NULL;
    }
    return d;
}
