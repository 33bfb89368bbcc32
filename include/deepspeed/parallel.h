/* deepspeed/parallel.h: parameters that are divided among ranks (ZeRO stage 3).
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_PARALLEL_H
#define DEEPSPEED_PARALLEL_H

#include <deepspeed/comm.h>
#include <deepspeed/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* deepspeed.zero.GatheredParameters(params, modifier_rank): between the two calls params[0..n-1] have their
 * values, whole. All ranks call both, in the same order with the same parameters; calls may nest. What
 * modifier_rank has written is kept, on all ranks; -1: nothing was written. Parameters that are not
 * divided pass. */
DS_API ds_status ds_gathered(ds_tensor **params, int n);
DS_API ds_status ds_gathered_end(ds_tensor **params, int n, int modifier_rank);

#ifdef __cplusplus
}
#endif
#endif
