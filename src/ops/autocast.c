/* ops/autocast.c: operands in the dtype that autocast gives an op.
 * SPDX-License-Identifier: MIT */
#include "op.h"

/* After a failure all are NULL, so that the op returns NULL with its message. */
void dsi_autocast_to(bool low, ds_tensor **const *x, int n)
{
    ds_dtype mode = ds_autocast(), to = low ? mode : DS_F32;
    if (mode == DS_F32) return;
    for (int i = 0; i < n; i++) {
        ds_tensor *t = *x[i];
        if (!t || !dsi_is_float(t) || t->dtype == DS_F64 || t->dtype == to) continue;
        if (!(*x[i] = ds_cast(t, to))) {
            for (int k = 0; k < n; k++) *x[k] = NULL;
            return;
        }
    }
}
