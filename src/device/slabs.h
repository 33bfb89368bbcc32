/* device/slabs.h: small blocks of a device, cut from slabs: a driver takes
 * longer to give a block than a kernel to fill it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

/* The slabs of a device's cache; NULL: none so far. */
typedef struct dsi_slab dsi_slab;

/* At least bytes, 256-byte aligned; fixed: by alloc_fixed of the device, else
 * by alloc. NULL: the block is no small one, or there is no memory for a slab,
 * so ask the device for the block itself. */
void *dsi_slab_cut(dsi_device *d, dsi_slab **slabs, bool fixed, size_t bytes);

/* Takes back what was cut; false: p is no piece of a slab. A slab is returned
 * to the device with its last piece. */
bool dsi_slab_join(dsi_device *d, dsi_slab **slabs, void *p, size_t bytes);
