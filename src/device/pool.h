/* device/pool.h: a common pool beside the one that a device uses (device.h).
 *
 * Blocks that are taken and given back while both are used come from the common
 * one, and are there for others that use it at another time. Small blocks, and
 * those of a size of which one stayed in use, come from the pool itself.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

/* From common, and not from the pool that d uses, until the next dsi_pool_use. */
void dsi_pool_share(dsi_device *d, dsi_block_pool *common);

/* Notes the sizes of blocks that were taken since dsi_pool_use and are in use. */
void dsi_pool_note(dsi_block_pool *pool);

/* Unused blocks of sizes that would come from the common pool become its own, and
 * are taken last. */
void dsi_pool_lend(dsi_block_pool *pool, dsi_block_pool *common);

void dsi_pool_trim(dsi_block_pool *pool);       /* frees blocks that were lent and never taken */
int dsi_pool_taken(const dsi_block_pool *pool); /* blocks in use */
