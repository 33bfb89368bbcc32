/* device/observe.h: kernels of a thread that is observed (base/profile.h).
 *
 * Note [Observed kernels] While a thread is observed, its devices have other
 * tables of kernels, whose entries note name, time and sizes around the
 * device's own. A thread that is not observed calls its device's kernels
 * directly.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

/* Sets d->kernels and d->fusions: the device's own tables, or those that
 * observe. Called when d opens, and when a profile begins or ends. */
void dsi_observe_device(dsi_device *d);
void dsi_observe_free(dsi_device *d); /* what that made */
