/* launcher/local_host.h: the devices, names and addresses of this machine.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* The default number of ranks: LOCAL_SIZE if that is set (as DeepSpeed on
 * CPUs), else the number of NVIDIA GPUs, else 1; -1 with ds_error if LOCAL_SIZE
 * is wrong. *known: it is the number of devices, not a default. */
int local_host_devices(bool *known);

/* Does CUDA_VISIBLE_DEVICES hide all GPUs? It is empty or -1 then. */
bool local_host_gpus_hidden(void);

/* Is it a name or an address of this machine? user@ is ignored. May wait for
 * the name service. */
bool local_host_is(const char *host);
/* The first IPv4 address that is neither loopback nor a bridge's, else
 * 127.0.0.1; to be freed with dsi_free. */
char *local_host_address(void);

char *local_host_program(void); /* path of this program (dsi_free) */
