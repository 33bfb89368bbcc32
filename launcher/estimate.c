/* launcher/estimate.c: deepspeed --estimate_memory: the memory that a rank will
 * need.
 * SPDX-License-Identifier: MIT */
#include "estimate.h"

#include "args.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct estimate_line {
    const char *title, *key, *note; /* of at most 56 columns; NULL: none */
    int64_t bytes;
} estimate_line;

static void estimate_print_table(const ds_estimate_opts *o, const ds_memory_estimate *m,
                                 const estimate_line *line, int n)
{
    printf("%lld parameters, %d rank%s, %s, ZeRO stage %d\nbytes of each rank\n",
           (long long)o->params, o->world_size, o->world_size == 1 ? "" : "s",
           ds_dtype_name(m->dtype), m->stage);
    for (int i = 0; i < n; i++) {
        printf("  %-12s %16lld %10.1f MB\n", line[i].title, (long long)line[i].bytes,
               1e-6 * (double)line[i].bytes);
        if (line[i].note) printf("    %s\n", line[i].note);
    }
}

static void estimate_print_json(const ds_estimate_opts *o, const ds_memory_estimate *m,
                                const estimate_line *line, int n)
{
    printf("{\"params\": %lld, \"world_size\": %d, \"stage\": %d, \"dtype\": \"%s\"",
           (long long)o->params, o->world_size, m->stage, ds_dtype_name(m->dtype));
    for (int i = 0; i < n; i++) printf(", \"%s\": %lld", line[i].key, (long long)line[i].bytes);
    printf("}\n");
}

int estimate_memory(const ds_estimate_opts *opts, bool json)
{
    ds_memory_estimate m;
    if (ds_estimate_memory_with(&m, *opts) != DS_OK) {
        fprintf(stderr, "%s\n", ds_error());
        return STATUS_WRONG;
    }
    const estimate_line line[] = {
        {"parameters", "parameters", NULL, m.parameters},
        {"gradients", "gradients", NULL, m.gradients},
        {"optimizer", "optimizer", "moments, and what master weights add", m.optimizer},
        {"model state", "model_state", NULL, m.parameters + m.gradients + m.optimizer},
        {"passing", "passing", "activations, a new gradient, buckets that are reduced", m.passing},
        {"gathered", "gathered", "parameters of other ranks", m.gathered},
        {"peak", "peak", NULL, m.peak},
        {"file", "file", "on disk (offload to nvme); optimizer is its part in memory", m.file}};
    int n = (int)(sizeof line / sizeof *line) - !m.file; /* the last line only with files */
    (json ? estimate_print_json : estimate_print_table)(opts, &m, line, n);
    return EXIT_SUCCESS;
}
