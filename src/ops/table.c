/* ops/table.c: the list of ops as an array.
 * SPDX-License-Identifier: MIT */
#include "table.h"

#define ROW(name) &dsi_op_##name,

const dsi_op *const dsi_ops[] = {DSI_OPS(ROW) NULL};
