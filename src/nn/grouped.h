/* nn/grouped.h: modules of one kind, each on rows of its own, computed together
 * by the products of groups (ops/groups.h): the host need not know how many
 * rows each has.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/nn.h>

/* Whether all children of m are alike: Linear, a module that treats each
 * element alone, or a Sequential of these; without hooks, their parameters in
 * memory. */
bool dsi_children_can_group(const ds_module *m);

/* Such children on rows [R,in], of which begin[i] .. begin[i + 1] - 1 are child
 * i's; begin int64 [children + 1] -> [R,out]; NULL with the message. */
ds_tensor *dsi_children_grouped(const ds_module *m, ds_tensor *rows, ds_tensor *begin);
