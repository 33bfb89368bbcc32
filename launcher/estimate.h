/* launcher/estimate.h: deepspeed --estimate_memory.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_ESTIMATE_H
#define LAUNCHER_ESTIMATE_H

#include <deepspeed/engine.h>

/* Prints what a rank will need, as a table or as JSON; the status of the program. */
int estimate_memory(const ds_estimate_opts *opts, bool json);

#endif
