/* engine/flops_report.h: what a forward of a model costs, module by module, and
 * DeepSpeed's report of it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

#include <deepspeed/nn.h>

/* Of a module with all modules below it. */
typedef struct dsi_flops_row {
    ds_module *module; /* borrowed */
    int depth;         /* of the root: 0 */
    int64_t params;    /* elements of its parameters that this rank trains, experts too */
    double macs, flops, seconds;
} dsi_flops_row;

typedef struct dsi_flops {
    dsi_flops_row *row; /* in the order of ds_module_print; the root's is the first */
    int rows;
    int64_t shared;  /* of its params: those of no expert */
    int64_t experts; /* of all ranks' experts; 0: there are none */
} dsi_flops;

/* The costs that this thread has counted (base/profile.h) of `model`. Free it with
 * dsi_flops_free. */
dsi_flops *dsi_flops_of(ds_module *model);
void dsi_flops_free(dsi_flops *f); /* NULL: nothing */

/* The part that an engine adds. */
typedef struct dsi_flops_step {
    int world_size;
    int64_t micro_batch;
    bool moe;
    double forward, backward, step; /* seconds */
    double backward_factor;         /* forwards that a backward costs */
} dsi_flops_step;

typedef struct dsi_flops_format {
    int64_t step;               /* that the title names */
    int64_t depths;             /* of the aggregated part; -1: all but the innermost */
    int64_t top;                /* types of modules at each */
    bool detailed;              /* with the tree */
    const dsi_flops_step *more; /* NULL: no engine */
} dsi_flops_format;

void dsi_flops_write(const dsi_flops *f, const dsi_flops_format *how, dsi_text *to);
