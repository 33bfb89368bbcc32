/* nn/moe.h: internals of a layer of experts.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "gate.h"
#include "module.h"

/* The gate of a layer that ds_nn_moe made, for tests that choose in its place;
 * NULL of other modules. */
dsi_gate *dsi_moe_gate(ds_module *moe);
dsi_experts dsi_moe_experts(const ds_module *moe);
