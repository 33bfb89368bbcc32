/* engine/monitor_scalars.h: numbers of a step, for TensorBoard, CSV files and
 * the program's sinks.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/engine.h>

/* Whether a monitor wants losses and norms; the same on all ranks. */
bool dsi_engine_is_monitored(const ds_engine *e);

/* Sends the scalars of an update, if a monitor wants them. Collective: the loss
 * is averaged over the ranks; rank 0 writes. A sink that fails is closed with a warning. */
ds_status dsi_engine_send_scalars(ds_engine *e);
