/* ops/dropout.c: elements set to 0 at random; Srivastava et al., JMLR 15
 * (2014).
 *
 * y = keep ? x / (1 - p) : 0, dx likewise from dy.
 *
 * A device with the fusion `dropout` draws keep itself, by a counter-based
 * generator whose seed is one draw of the host's, so that ds_seed repeats it
 * and recomputation (autograd/recompute.c), which restores the host's
 * generator, gets the same mask. For all others the host draws keep in
 * row-major order: PyTorch's numbers on the CPU.
 *
 * Invariants: the mask is saved, not the seed, so a backward never draws. A
 * call that is not in training, or with p 0, returns x itself and draws
 * nothing. A factor of 0 (p = 1) avoids 1 / 0.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include "base/mem.h"
#include "base/rng.h"
#include "device/graph.h"

#include <string.h>

/* y = keep ? factor x : 0. Without the fusion, where() selects, so an inf that
 * is dropped becomes 0; a product with 0 would make NaN. */
static bool dropout_mask(const ds_tensor *x, const ds_tensor *keep, double factor, ds_tensor *y)
{
    if (!y) return false;
    if (dsi_fusion(y->device, mask_scale))
        return dsi_run_fusion(y, mask_scale, factor, dsi_v(x), dsi_v(keep), dsi_v(y));
    ds_tensor *zero = dsi_number_beside(y, 0);
    return zero && dsi_run(y, affine, factor, 0.0, dsi_v(x), dsi_v(y)) &&
           dsi_run(y, where, dsi_v(keep), dsi_v(y), dsi_v_expand(zero, y->shape), dsi_v(y));
}

/* Saved: keep, bool of x's shape. Attribute: the factor 1 / (1 - p). */
static void dropout_backward(dsi_node *n, ds_tensor *dy)
{
    ds_tensor *dx = dsi_new_like(dy);
    bool done = dropout_mask(dy, dsi_saved_tensor(n, 0), *(const double *)dsi_attr(n), dx);
    dsi_accumulate_grad(n, 0, dsi_result_if(done, dx));
}

const dsi_op dsi_op_dropout = {.name = "dropout", .backward = dropout_backward};

/* bool of x's shape on x's device, each true with probability 1 - p */
static ds_tensor *dropout_draw(const ds_tensor *x, double p)
{
    ds_tensor *keep = dsi_new_host(DS_BOOL, x->shape);
    uint8_t *k = ds_data_mut(keep);
    dsi_rng *rng = dsi_rng_default();
    /* 32 random bits an element: p is exact to 2^-32 */
    uint64_t below = (uint64_t)((1 - p) * 0x1p32);
    for (int64_t i = 0, n = dsi_numel(x->shape); k && i < n; i++) k[i] = dsi_rng_u32(rng) < below;
    return k ? dsi_beside(keep, x, DS_BOOL) : NULL;
}

/* A step that is recorded draws its seed on the host at each replay. */
static void seed_draw(void *arg) { **(uint64_t **)arg = dsi_rng_u64(dsi_rng_default()); }
static void seed_release(void *arg) { dsi_free(arg); }

/* The seed of one call, drawn now; *random says where it is. While a step is
 * being recorded the seed is in a slot of the graph, which the hook fills
 * before each replay; it owns the copy of the slot's address. A part that is
 * computed again draws its first run's seeds, which have their slots. */
bool dsi_seed_take(dsi_device *d, dsi_philox *random)
{
    static const dsi_graph_hook hook = {.before = seed_draw, .release = seed_release};
    *random = (dsi_philox){.seed = dsi_rng_u64(dsi_rng_default())};
    if (!dsi_graph_recording(d)) return true;
    if (ds_recomputing() && dsi_graph_find_seed(d, random->seed, &random->fresh_seed)) return true;
    if (ds_recomputing() &&
        dsi_graph_forbid(d, "it computes a part with random numbers again, whose first run was in "
                            "another step") != DS_OK)
        return false;
    uint64_t *host = NULL;
    if (dsi_graph_capturing(d)) {
        random->fresh_seed = dsi_graph_slot(d, sizeof *host, &host);
        if (!host) return false;
        *host = random->seed;
        dsi_graph_add_hook(d, &hook, memcpy(dsi_alloc(sizeof host), &host, sizeof host));
    }
    dsi_graph_add_seed(d, random->seed, random->fresh_seed);
    return true;
}

/* y, and the mask that it was made with; NULL, with the message */
static ds_tensor *dropout_keep(const ds_tensor *x, double p, double factor, ds_tensor *y)
{
    if (!y || !dsi_fusion(y->device, dropout)) {
        ds_tensor *keep = dropout_draw(x, p);
        return keep && dropout_mask(x, keep, factor, y) ? keep : NULL;
    }
    ds_tensor *keep = dsi_new_dtype(x, DS_BOOL, x->shape);
    dsi_philox random;
    bool done = keep && dsi_seed_take(y->device, &random) &&
                dsi_run_fusion(y, dropout, &random, p, factor, dsi_v(x), dsi_v(y), dsi_v(keep));
    return dsi_result_if(done, keep);
}

/* Each element is 0 with probability p, else x / (1 - p); backward applies the
 * same mask. */
ds_tensor *ds_dropout(ds_tensor *x, double p, bool training)
{
    if (!dsi_live(x, "dropout")) return dsi_null_operand("dropout");
    if (!dsi_want_float("dropout", x)) return NULL;
    if (!(p >= 0 && p <= 1)) return dsi_refuse("dropout: p is %g: expected 0 to 1", p);
    if (!training || p == 0) return x;
    if (!dsi_acquire(x)) return NULL;
    double factor = p < 1 ? 1 / (1 - p) : 0;

    ds_tensor *y = dsi_new_like(x);

    ds_tensor *keep = dropout_keep(x, p, factor, y);
    if (!keep) return NULL;

    dsi_node *n = dsi_record(&dsi_op_dropout, y, x);
    dsi_save_for_backward(n, keep), dsi_set_attr(n, &factor, sizeof factor);
    return y;
}

/* One draw for each plane, which broadcasts over its elements. x is multiplied
 * by a tensor [N,C,1,...] of 0 and 1 / (1 - p), so the backward is that of
 * ds_mul. */
ds_tensor *ds_dropout2d(ds_tensor *x, double p, bool training)
{
    if (!dsi_live(x, "dropout2d")) return dsi_null_operand("dropout2d");
    if (!dsi_want_float("dropout2d", x)) return NULL;
    if (x->shape.n < 3)
        return dsi_refuse("dropout2d: x is %s: expected [N,C,...]", dsi_shape_text(x->shape));
    if (!(p >= 0 && p <= 1)) return dsi_refuse("dropout2d: p is %g: expected 0 to 1", p);
    if (!training || p == 0) return x;
    ds_dims planes = {.n = x->shape.n, .d = {x->shape.d[0], x->shape.d[1]}};
    for (int i = 2; i < planes.n; i++) planes.d[i] = 1;
    ds_tensor *ones = dsi_fill(dsi_new(x, planes), 1);
    return ones ? ds_mul(x, ds_dropout(ones, p, true)) : NULL;
}
