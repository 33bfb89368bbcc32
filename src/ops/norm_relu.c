/* ops/norm_relu.c: batch norm, the addition behind it, and the ReLU behind both
 * in one pass, as residual networks call them:
 *
 *     ds_relu(ds_batch_norm(x, ..))
 *     ds_relu(ds_add(ds_batch_norm(x, ..), r))
 *
 * The first two ops are deferred (Note [Deferred ops] of tensor/deferred.c), if
 * gradients are recorded: then x stays for backward anyway, and waiting takes
 * no memory. ReLU computes all of it by a fusion, in the same bits. Without an
 * addition its node is one of batch_norm itself, which backward computes the
 * sign of y again in place of reading a gradient behind ReLU. If another op
 * reads y, too, batch norm has one backward, of the sum of both gradients.
 *
 * Invariants: what depends on the channel alone (factor, term) are copies, so
 * that an optimizer may update weight and bias before the result is read.
 * SPDX-License-Identifier: MIT */
#include "autograd/graph.h"
#include "op.h"

enum { MEAN, RSTD, FACTOR, TERM, WEIGHT, BIAS };

/* y = batch_norm(x) without a ReLU, since another op reads it */
static bool norm_compute(const dsi_deferred *d, dsi_view y)
{
    ds_tensor *x = d->source[0];
    dsi_view to = dsi_v_channels(x);
    to.p = y.p;
    return dsi_run(x, batch_norm, dsi_v_channels(x), dsi_v(d->operand[MEAN]),
                   dsi_v(d->operand[FACTOR]), dsi_v(NULL), dsi_v(d->operand[TERM]), to);
}

static bool sum_compute(const dsi_deferred *d, dsi_view y)
{
    ds_tensor *a = d->source[0], *b = d->source[1];
    return dsi_run_op(a, binary, DSI_ADD, 1.0, dsi_v(a), dsi_v(b), y);
}

bool dsi_may_defer_norm(ds_tensor *x, ds_tensor *weight, ds_tensor *bias)
{
    return dsi_fusion(x->device, batch_norm_relu) && dsi_may_defer(x, NULL) &&
           dsi_wants_grad((ds_tensor *[]){x, weight, bias}, 3);
}

bool dsi_defer_norm(ds_tensor *y, ds_tensor *x, const dsi_norm_values *v, ds_tensor *weight,
                    ds_tensor *bias)
{
    return dsi_defer(y, (dsi_deferred){norm_compute,
                                       {x},
                                       {[MEAN] = v->mean,
                                        [RSTD] = v->rstd,
                                        [FACTOR] = v->factor,
                                        [TERM] = v->term,
                                        [WEIGHT] = weight,
                                        [BIAS] = bias}});
}

/* Of two deferred operands the second is computed. */
bool dsi_defer_sum(ds_tensor *a, ds_tensor *b, ds_tensor **y)
{
    if (!dsi_deferred_by(a, norm_compute)) {
        ds_tensor *t = a;
        a = b, b = t;
    }
    if (!dsi_deferred_by(a, norm_compute) || a->device != b->device || a->dtype != b->dtype ||
        !dsi_same_layout(a, b) || !dsi_may_defer(a, b))
        return false;
    *y = dsi_acquire(b) ? dsi_new_like(a) : NULL;
    if (*y) DSI_ASSERT(dsi_defer(*y, (dsi_deferred){.compute = sum_compute, .source = {a, b}}));
    return true;
}

/* Whether the ReLU's node can be a batch norm in the place of y's node: that is
 * the one of this batch norm, which alone saved its rstd, with the same
 * operands trained; and not as the first run of a part that is computed again,
 * which lists y. */
static bool node_can_be_norm(const ds_tensor *y, const dsi_deferred *norm)
{
    ds_tensor *const operand[] = {norm->source[0], norm->operand[WEIGHT], norm->operand[BIAS]};
    if (dsi_watching() || !y->node || dsi_saved_tensor(y->node, 2) != norm->operand[RSTD])
        return false;
    for (int i = 0; i < 3; i++)
        if (dsi_needs_input_grad(y->node, i) != dsi_wants_grad(&operand[i], 1)) return false;
    return true;
}

/* The signs are those of y, which is computed again. */
ds_tensor *dsi_relu_of_norm_dx(ds_tensor *dy, ds_tensor *x, const dsi_norm_values *v)
{
    ds_tensor *y = dsi_new_like(x), *dx = dsi_new_like(x);
    if (!y || !dx) return NULL;
    dsi_view to = dsi_v_channels(y);
    bool done = dsi_run(x, batch_norm, dsi_v_channels(x), dsi_v(v->mean), dsi_v(v->factor),
                        dsi_v(NULL), dsi_v(v->term), to) &&
                dsi_run_op(dx, unary_dx, DSI_RELU, 0.0, dsi_v(dy), dsi_v(y), dsi_v(dx));
    return dsi_result_if(done, dx);
}

bool dsi_relu_of_norm(ds_tensor *x, ds_tensor **result)
{
    const dsi_deferred *sum = dsi_deferred_by(x, sum_compute),
                       *d = dsi_deferred_by(sum ? sum->source[0] : x, norm_compute);
    if (!d) return false;
    ds_tensor *source = d->source[0], *add = sum ? sum->source[1] : NULL;
    ds_tensor *const *operand = d->operand, *y = dsi_new_like(x);
    dsi_norm_values v = {operand[MEAN], operand[RSTD], operand[FACTOR], operand[TERM]};

    *result = NULL;
    if (!y || !dsi_acquire(source, add)) return true;
    dsi_view to = dsi_v_channels(y), added = {.p = NULL};
    if (add) added = dsi_v_channels(add);
    if (!dsi_run_fusion(y, batch_norm_relu, dsi_v_channels(source), dsi_v(v.mean), dsi_v(v.factor),
                        dsi_v(v.term), added, to))
        return true;

    if (!sum && node_can_be_norm(x, d))
        dsi_record_batch_norm(y, source, &v, operand[WEIGHT], operand[BIAS], true, x->node);
    else
        dsi_save_for_backward(dsi_record(&dsi_op_relu, y, x), y);
    *result = y;
    return true;
}
