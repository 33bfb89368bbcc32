/* autograd/custom.c: ds_apply: custom ops, as torch.autograd.Function; and
 * hooks of gradients.
 *
 * The user's two functions run with recording off. To the graph all custom ops
 * are one op, whose attribute says which.
 *
 * Invariants: ctx lives during one call of forward or backward. In forward it
 * holds the saved tensors, which the node takes over; in backward it reads the
 * node's. Saved tensors are not acquired before the user's backward: the ops
 * that it calls acquire what they read.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

typedef struct Attr {
    const ds_op *op;
    int n;
    /* of the inputs, to check the gradients that the user's backward returns */
    ds_dims shape[DS_MAX_OP_INPUTS];
    dsi_device *device[DS_MAX_OP_INPUTS];
} Attr;

struct ds_ctx {
    dsi_node *node; /* in backward */
    ds_tensor *saved[MAX_SAVED];
    int n_saved;
    ds_tensor **in; /* in forward */
    int n;
};

void ds_ctx_save(ds_ctx *ctx, ds_tensor *x)
{
    if (ctx->node) {
        dsi_fail(DS_ESTATE, "ctx_save: only forward may save");
        return;
    }
    if (ctx->n_saved == MAX_SAVED) {
        dsi_fail(DS_EINVAL, "ctx_save: more than %d tensors", MAX_SAVED);
        return;
    }
    ctx->saved[ctx->n_saved++] = dsi_ref(x);
}

ds_tensor *ds_ctx_saved(ds_ctx *ctx, int i)
{
    int n = ctx->node ? dsi_saved_tensors(ctx->node) : ctx->n_saved;
    if (i < 0 || i >= n)
        return dsi_refuse("ctx_saved: there is no tensor %d: forward saved %d", i, n);
    return ctx->node ? dsi_saved_tensor(ctx->node, i) : ctx->saved[i];
}

bool ds_ctx_needs(ds_ctx *ctx, int i)
{
    if (ctx->node) return i >= 0 && dsi_needs_input_grad(ctx->node, i);
    return i >= 0 && i < ctx->n && ds_requires_grad(ctx->in[i]);
}

/* Checks the shape and device of each gradient; a wrong or missing one fails
 * the pass (dsi_accumulate_grad with NULL). */
static void custom_backward(dsi_node *n, ds_tensor *dy)
{
    const Attr *a = dsi_attr(n);
    ds_ctx ctx = {.node = n};
    ds_tensor *g[DS_MAX_OP_INPUTS] = {NULL};
    a->op->backward(&ctx, dy, g);
    for (int i = 0; i < a->n; i++) {
        if (!dsi_needs_input_grad(n, i)) continue;
        if (!g[i]) {
            if (!ds_error())
                dsi_fail(DS_EINVAL, "%s: its backward gave no gradient for input %d", a->op->name,
                         i);
        } else if (!dsi_same_shape(g[i]->shape, a->shape[i])) {
            dsi_fail(DS_EINVAL,
                     "%s: its backward gave a gradient of shape %s for input %d of shape %s",
                     a->op->name, dsi_shape_text(g[i]->shape), i, dsi_shape_text(a->shape[i]));
            g[i] = NULL;
        } else if (g[i]->device != a->device[i]) {
            dsi_fail(DS_EINVAL, "%s: its backward gave a gradient on %s for input %d on %s",
                     a->op->name, ds_device_name(dsi_device_id(g[i]->device)), i,
                     ds_device_name(dsi_device_id(a->device[i])));
            g[i] = NULL;
        }
        dsi_accumulate_grad(n, i, g[i]);
    }
}

static const dsi_op dsi_op_custom = {"custom", custom_backward, .acquires = true};

/* Runs the user's forward in a scope for its temporaries; y moves to the
 * caller's. */
static ds_tensor *custom_forward(const ds_op *op, ds_ctx *ctx)
{
    bool was = ds_set_grad(false);
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = op->forward(ctx, ctx->in, ctx->n);
    for (int i = 0; y && i < ctx->n; i++)
        if (y == ctx->in[i]) y = dsi_alias(y); /* its own input: a new handle, to carry the node */
    y = dsi_scope_return(scope, dsi_ref(y));
    ds_set_grad(was);
    return y;
}

ds_tensor *ds_apply(const ds_op *op, ds_tensor **in, int n)
{
    if (!op || !op->forward || !op->backward)
        return dsi_refuse("apply: an op needs a forward and a backward");
    if (n < 0 || n > DS_MAX_OP_INPUTS)
        return dsi_refuse("%s: %d inputs: expected at most %d", op->name, n, DS_MAX_OP_INPUTS);
    for (int i = 0; i < n; i++)
        if (!in[i]) return dsi_null_operand(op->name);
    ds_ctx ctx = {.in = in, .n = n};
    ds_tensor *y = custom_forward(op, &ctx);
    if (!y && !ds_error()) dsi_fail(DS_EINVAL, "%s: its forward returned NULL", op->name);
    dsi_node *node = dsi_record_n(&dsi_op_custom, y, in, n);
    if (node) {
        Attr a = {.op = op, .n = n};
        for (int i = 0; i < n; i++) a.shape[i] = in[i]->shape, a.device[i] = in[i]->device;
        dsi_set_attr(node, &a, sizeof a);
    }
    for (int i = 0; i < ctx.n_saved; i++) {
        dsi_save_for_backward(node, ctx.saved[i]);
        dsi_unref(ctx.saved[i]);
    }
    return y;
}

/* ---- hooks ------------------------------------------------------------------------------------------- */

typedef struct Hook {
    ds_grad_hook_fn *fn;
    void *arg; /* borrowed */
} Hook;

static void grad_hook_backward(dsi_node *n, ds_tensor *dy)
{
    const Hook *h = dsi_attr(n);
    ds_tensor *g = h->fn(h->arg, dy);
    if (!g && !ds_error()) g = dy;
    if (g &&
        (!dsi_same_shape(g->shape, dy->shape) || g->dtype != dy->dtype || g->device != dy->device))
        g = dsi_refuse("grad_hook: the hook returned %s %s on %s for a gradient %s %s on %s",
                       ds_dtype_name(g->dtype), dsi_shape_text(g->shape),
                       ds_device_name(dsi_device_id(g->device)), ds_dtype_name(dy->dtype),
                       dsi_shape_text(dy->shape), ds_device_name(dsi_device_id(dy->device)));
    dsi_accumulate_grad(n, 0, g ? dsi_alias(g) : NULL);
}

static const dsi_op dsi_op_grad_hook = {.name = "grad_hook", .backward = grad_hook_backward};

ds_tensor *ds_grad_hook(ds_tensor *x, ds_grad_hook_fn *fn, void *arg)
{
    if (!fn || !dsi_live(x, "grad_hook")) return dsi_null_operand("grad_hook");
    if (!dsi_acquire(x)) return NULL;
    ds_tensor *y = dsi_alias(x);
    dsi_set_attr(dsi_record(&dsi_op_grad_hook, y, x), &(Hook){fn, arg}, sizeof(Hook));
    return y;
}
