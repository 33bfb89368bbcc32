/* ops/dropout.c: elements set to 0 at random; Srivastava et al., JMLR 15 (2014).
 *
 * y = keep ? x / (1 - p) : 0, dx likewise from dy. The mask is drawn on the host in row-major order, so
 * that ds_seed repeats it on every device.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include "base/rng.h"

static ds_tensor *masked(const ds_tensor *x, const ds_tensor *keep, double factor)
{
    ds_tensor *y = dsi_new_like(x);
    return dsi_result_if(dsi_run(y, mask_scale, factor, dsi_v(x), dsi_v(keep), dsi_v(y)), y);
}

static void dropout_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_accumulate_grad(n, 0, masked(dy, dsi_saved_tensor(n, 0), *(const double *)dsi_attr(n)));
}

const dsi_op dsi_op_dropout = {"dropout", dropout_backward, false};

/* bool of x's shape, each true with probability 1 - p */
static ds_tensor *draw(const ds_tensor *x, double p)
{
    ds_tensor *keep = dsi_new_on(dsi_device_get((ds_device){DS_CPU, 0}), DS_BOOL, x->shape);
    uint8_t *k = ds_data_mut(keep);
    dsi_rng *rng = dsi_rng_default();
    /* 32 random bits an element: p is exact to 2^-32 */
    uint64_t below = (uint64_t)((1 - p) * 0x1p32);
    for (int64_t i = 0, n = dsi_numel(x->shape); k && i < n; i++) k[i] = dsi_rng_u32(rng) < below;
    return k ? ds_to(keep, dsi_device_id(x->device), DS_BOOL) : NULL;
}

ds_tensor *ds_dropout(ds_tensor *x, double p, bool training)
{
    if (!x) return dsi_null_operand("dropout");
    if (!dsi_want_float("dropout", x)) return NULL;
    if (!(p >= 0 && p <= 1)) return dsi_refuse("dropout: p is %g: expected 0 to 1", p);
    if (!training || p == 0) return x;

    ds_tensor *keep = draw(x, p);
    double factor = p < 1 ? 1 / (1 - p) : 0;

    ds_tensor *y = keep ? masked(x, keep, factor) : NULL;

    dsi_node *n = dsi_record(&dsi_op_dropout, y, x);
    dsi_save_for_backward(n, keep), dsi_set_attr(n, &factor, sizeof factor);
    return y;
}
