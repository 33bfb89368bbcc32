/* optim/schedule.h: what the families of schedules share with schedule.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/mem.h"
#include "list.h"

#define DSI_PI 3.14159265358979323846

/* New: the groups' learning rates. [groups], which the schedule frees with
 * dsi_free. */
double *dsi_schedule_base_lr(const ds_optim *o);
