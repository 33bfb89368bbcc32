/* launcher/estimate.h: deepspeed --estimate_memory.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/engine.h>

/* Prints the memory that each rank will need, as a table or as JSON; returns
 * the exit status. */
int estimate_memory(const ds_estimate_opts *opts, bool json);
