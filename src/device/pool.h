/* device/pool.h: a transient pool beside the one that a device uses (device.h).
 *
 * Blocks that are taken and given back while both are used come from the
 * transient pool, and are there for others that use it at another time. Small
 * blocks, and those of a size of which one stayed in use, are persistent: they
 * come from the device's current pool itself.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

/* Transient blocks come from `transient`, borrowed, until the next
 * dsi_pool_use. A pool must be in use (dsi_pool_use). */
void dsi_pool_use_transient(dsi_device *d, dsi_block_pool *transient);

/* Sizes of blocks that were taken since dsi_pool_use and are in use are
 * persistent from now on. */
void dsi_pool_note_persistent(dsi_block_pool *pool);

/* Unused blocks of transient sizes now belong to `transient`, and are taken
 * last there. */
void dsi_pool_move_transient(dsi_block_pool *pool, dsi_block_pool *transient);

void dsi_pool_trim(dsi_block_pool *pool); /* frees blocks that were moved to it and never taken */
int dsi_pool_blocks_in_use(const dsi_block_pool *pool);
