/* deepspeed.h: DeepSpeed's training system in C: the umbrella header.
 *
 * Four rules carry the whole interface:
 *   1. What makes a thing returns it or NULL; what does a thing returns ds_status; what asks returns
 *      the value. NULL in, NULL out: one look at ds_error() after a loop is enough.
 *   2. What an op returns belongs to the current scope and nobody frees it. A module call and a turn
 *      of a loader's loop are scopes. ds_keep(x) lifts x out of its scope, until ds_drop(x).
 *   3. What is handed in is taken: a child by its parent, a data set by its loader, a model by its
 *      engine, even when the taker refuses.
 *   4. Zero is the default of every option, and options are written as keywords: .padding = 2.
 *
 * A tensor belongs to the thread that made it. Nothing here calls exit or
 * prints, unless it says so.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_H
#define DEEPSPEED_H

#include <deepspeed/autograd.h>
#include <deepspeed/checkpoint.h>
#include <deepspeed/comm.h>
#include <deepspeed/config.h>
#include <deepspeed/data.h>
#include <deepspeed/engine.h>
#include <deepspeed/models.h>
#include <deepspeed/monitor.h>
#include <deepspeed/nn.h>
#include <deepspeed/ops.h>
#include <deepspeed/ops_math.h>
#include <deepspeed/optim.h>
#include <deepspeed/parallel.h>
#include <deepspeed/profile.h>
#include <deepspeed/tensor.h>
#include <deepspeed/text.h>
#include <deepspeed/types.h>

#endif
