/* launcher/processes.h: the descendants of this process.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* Makes this process a subreaper: descendants whose parent dies become its
 * children, so that none escapes. */
void processes_adopt(void);

/* Sends the signal to all descendants of `root`; returns their number. */
int processes_signal(int root, int signal);

/* Seconds between SIGTERM and SIGKILL: DS_GRACE, or 5. processes_check_grace
 * fails with a message if the variable is wrong. */
double processes_grace(void);
ds_status processes_check_grace(void);

/* Kills all descendants, new ones too, and waits for them: about a second at
 * most. */
void processes_end(void);
