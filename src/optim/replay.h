/* optim/replay.h: an optimizer's part of a step that is recorded as a graph
 * (device/graph.h).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "optim.h"

/* Around the step of one group, which updates the n parameters `updated`.
 * Begin: what changes from step to step is from now on taken from the device's
 * memory. End: if the rule did not take it from there, the step cannot be
 * recorded. Both do nothing unless a step is recorded. */
ds_status dsi_replay_begin(ds_optim *o, int group, const int *updated, int n);
ds_status dsi_replay_end(ds_optim *o, const int *updated, int n);

/* ---- steps that the device skips, and whose host does not wait for that ------ */

/* In a step that d records: what a capture needs. */
ds_status dsi_replay_prepare(ds_optim *o, dsi_device *d);
/* ds_optim_step in a capture, skipped where result, a dsi_step_result, says so. */
ds_status dsi_replay_step(ds_optim *o, ds_tensor *result);
/* Step counts are without those that replays have skipped. Waits, if there were
 * replays; before each use of counts. */
ds_status dsi_replay_read_skips(const ds_optim *o);
void dsi_replay_free_skips(ds_optim *o);
