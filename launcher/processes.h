/* launcher/processes.h: the processes that came from this one.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_PROCESSES_H
#define LAUNCHER_PROCESSES_H

#include <deepspeed/types.h>

/* From now on processes below this one whose parent dies become its children, so that none gets lost. */
void processes_adopt(void);

/* Sends the signal to all processes below `root`, not to itself. Returns how many there are. */
int processes_signal(int root, int signal);

/* Seconds between SIGTERM and SIGKILL: DS_GRACE, or 5; the second function is for who can still refuse it. */
double processes_grace(void);
ds_status processes_check_grace(void);

/* Ends all processes below this one, new ones too, and waits for them; at most about a second. */
void processes_end(void);

#endif
