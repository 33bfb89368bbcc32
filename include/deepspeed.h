/* deepspeed.h: DeepSpeed's training system in C: the umbrella header.
 *
 * Four rules hold everywhere:
 *   1. Constructors return an object or NULL, actions return ds_status, getters return the value.
 *      A call that is given NULL returns NULL: one look at ds_error() after a loop is enough.
 *   2. The result of an op belongs to the current scope, which frees it. A module call and a turn
 *      of a loader's loop are scopes. ds_keep(x) lifts x out of its scope, until ds_drop(x).
 *   3. A call that is given an object to own takes it, even if it then fails: a parent takes its
 *      child, a loader its dataset, an engine its model.
 *   4. Zero selects the default of every option, and options are written as keywords: .padding = 2.
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
