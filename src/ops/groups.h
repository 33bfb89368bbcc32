/* ops/groups.h: products of rows with the matrix of their group, as of a
 * layer's experts that drop no token. The groups are known to the device alone.
 *
 * Contract: a call that returns NULL or false has set the message.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

/* Rows sorted by group; int64, on the device, without gradients. */
typedef struct dsi_groups {
    ds_tensor *begin; /* [groups + 1]: the first row of each; the last: of all */
    ds_tensor *row;   /* [S,k]: where each choice is; those of a group in their order */
} dsi_groups;

/* id int64 [S,k], 0 to groups - 1: each is a row. */
bool dsi_group_rows(ds_tensor *id, int64_t groups, dsi_groups *out);

/* x [R,in], of which rows begin[g] .. begin[g + 1] - 1 are of group g; w: one
 * matrix [out,in] a group -> [R,out] = x w[g]^T. The gradient of a matrix whose
 * group has no rows is 0. */
ds_tensor *dsi_grouped_linear(ds_tensor *x, ds_tensor *begin, ds_tensor *const *w, int64_t groups);
