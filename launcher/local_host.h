/* launcher/local_host.h: this machine: its devices, its names and addresses.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_LOCAL_HOST_H
#define LAUNCHER_LOCAL_HOST_H

#include <deepspeed/types.h>

/* How many ranks run here unless told: LOCAL_SIZE if it is set (as DeepSpeed on CPUs), else the NVIDIA GPUs that
 * there are, else 1; -1 with the message if it is wrong. *known: whether more than that cannot be. */
int local_host_devices(bool *known);

/* Whether CUDA_VISIBLE_DEVICES hides all of them: it is empty or -1. */
bool local_host_gpus_hidden(void);

/* whether this is a name or an address of this machine; user@ is no part of it */
bool local_host_is(const char *host);
/* The first address that is neither of the loopback nor of a bridge, or 127.0.0.1; to be freed (dsi_free). */
char *local_host_address(void);

char *local_host_program(void); /* the path of this program; to be freed with dsi_free */

#endif
