/* optim/replay.h: an optimizer's part of a step that is recorded as a graph
 * (device/graph.h).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "optim.h"

/* Around the step of one group, which updates the n parameters `updated`. Begin:
 * what changes from step to step is from now on taken from the device's memory.
 * End: if the rule did not take it from there, the step cannot be recorded. Both
 * do nothing unless a step is recorded. */
ds_status dsi_replay_begin(ds_optim *o, int group, const int *updated, int n);
ds_status dsi_replay_end(ds_optim *o, const int *updated, int n);
