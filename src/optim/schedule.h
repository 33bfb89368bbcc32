/* optim/schedule.h: what the families of schedules share: making one by its name, rates of groups.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_OPTIM_SCHEDULE_H
#define DSI_OPTIM_SCHEDULE_H

#include "base/mem.h"
#include "params.h"

#include <deepspeed/optim.h>

/* A schedule that configurations know by name. */
typedef struct dsi_schedule_entry {
    const char *name; /* "WarmupLR" */
    ds_schedule *(*make)(ds_optim *o, const char *name, const char *params_json);
} dsi_schedule_entry;

extern const dsi_schedule_entry dsi_schedules_warmup[], dsi_schedules_cycle[],
    dsi_schedules_torch[]; /* each ends with {0} */

/* Reads the table into the self of s, which this frees, with NULL, if it is refused. */
ds_schedule *dsi_schedule_read(ds_schedule *s, ds_optim *o, const char *name,
                               const char *params_json, const dsi_param *table, int n);
/* The end of each constructor: last_batch_iteration -1 sets the first rates; another one, which a
 * resuming program gives, leaves the optimizer's as they are. */
ds_schedule *dsi_schedule_begin(ds_schedule *s, int64_t last);

/* New: one number a group, all `value`, or the groups' learning rates. */
double *dsi_schedule_rates(const ds_optim *o, double value);
double *dsi_schedule_base_rates(const ds_optim *o);

#endif
