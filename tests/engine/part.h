/* tests/engine/part.h: what a rank loaded beside the whole tensors that it should
 * have its parts of.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "parallel/flat.h"

#include <deepspeed.h>

#include <string.h>

/* The own elements of x are those of the whole tensor of that name. */
static inline bool is_part(const ds_state *want, const char *name, const dsi_flat_param *p,
                           const ds_tensor *x)
{
    const ds_tensor *w = ds_state_get(want, name);
    size_t bytes = (size_t)(p->end - p->begin) * sizeof(float);
    return w && x &&
           !memcmp((const float *)ds_data((ds_tensor *)w) + p->begin, ds_data((ds_tensor *)x),
                   bytes);
}
