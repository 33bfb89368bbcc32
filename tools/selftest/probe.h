/* tools/selftest/probe.h: instructions that kernels use by inline PTX.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/device.h"

/* Their names; NULL ends them. */
extern const char *const selftest_probes[];

/* Whether instruction k of a warp on d gives what the PTX manual says; else why
 * not. */
bool selftest_probe(dsi_device *d, int k, char *why, size_t room);
