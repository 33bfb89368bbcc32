/* launcher/gpus.h: the NVIDIA GPUs of this machine, as the kernel's files have
 * them: without the driver's library, which would open a context.
 *
 * root: a folder in front of /dev and /sys, for tests; else "".
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

/* /dev/nvidia0, /dev/nvidia1, ...: right in containers too. */
int gpus_count(const char *root);

/* node[i]: the NUMA node of GPU gpu[i], for i below n. false: not known, because
 * the machine does not say it, a container shows a part of the GPUs, or GPUs of
 * several models may be numbered by speed (CUDA_DEVICE_ORDER). */
bool gpus_numa_nodes(const char *root, const int *gpu, int n, int *node);
