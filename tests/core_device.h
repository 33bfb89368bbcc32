/* tests/core_device.h: a device that has the core of the contract (kernels.h)
 * and no more: the CPU's kernels behind a device type of its own.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/device.h"

/* From now on this thread's cuda:0 is that device. It is not immediate: a fault
 * is reported at the next synchronisation, and not before. fusions: what it has
 * besides the core, or NULL. */
void core_device(const dsi_fusions *fusions);

/* A dropout for it, by base/philox.h; float32, contiguous. */
extern const dsi_fusions core_device_dropout;

/* How often the host looked at its fault flag. */
int core_device_checks(void);
