/* tools/selftest/host_attention.h: attention with dropout of its weights in plain
 * C, for which the CPU has no kernel.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "trial.h"

enum { HA_Q, HA_K, HA_V, HA_Y, HA_DY, HA_DQ, HA_DK, HA_DV, HA_VIEWS };

/* attention_dropout of device/kernels.h with views [A,B,rows,width] of the host and
 * no mask; with dy, if x[HA_DY].p is set, attention_dropout_dx, which reads y and
 * lse [A,B,L]. Computed in float64. */
ds_status host_attention_dropout(Trial *t, const dsi_philox *random, double p,
                                 const dsi_attention *c, const dsi_view *x, dsi_view lse);
