/* parallel/same.h: whether all ranks have made the same model.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/comm.h>
#include <deepspeed/nn.h>

/* All ranks of comm call it. Refuses, on all of them and with the same message,
 * names, shapes, dtypes and what is trained where a rank has others than rank
 * 0; the experts that ranks share are left out. */
ds_status dsi_same_model(const ds_module *model, ds_comm *comm);
