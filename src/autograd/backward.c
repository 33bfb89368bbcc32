/* autograd/backward.c: the backward pass.
 *
 * Collects the nodes below y, sorts them newest first, and runs each node's
 * backward, which accumulates gradients into its inputs. A node's saved tensors
 * are released as soon as it has run, so memory shrinks during the pass. Each
 * node's temporaries belong to a scope of their own.
 *
 * Invariants:
 * - Sequence numbers grow with time and a node is newer than its inputs, so
 *   newest first means: when a node runs, all that used its output have run,
 *   and its dy is complete.
 * - Before a node's backward runs, dy and the saved tensors that it reads are
 *   acquired (Note [Residency] of tensor/acquire.c); that may gather
 *   partitioned parameters, so all ranks run the same graphs in the same order.
 * - A leaf with a hook counts the edges to it that the pass has not reached
 *   (`uses`); the node that takes away the last one calls the hook. If no
 *   tensor of the thread has hooks, nothing is counted.
 * - Passes nest: a hook or a custom op may run a backward pass of its own.
 *   `running` is the innermost one.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "base/profile.h"
#include "base/trace.h"
#include "graph.h"

#include <stdlib.h>

typedef struct Nodes {
    DSI_LIST(dsi_node *)
} Nodes;

/* ---- leaves ------------------------------------------------------------------------------------------ */

ds_tensor *ds_grad(const ds_tensor *leaf)
{
    ds_tensor *g = dsi_live(leaf, "grad") ? leaf->grad : NULL;
    return g && dsi_make_own(g) ? g : NULL;
}

bool ds_requires_grad(const ds_tensor *x) { return x && (x->requires_grad || x->node); }

ds_status ds_set_grad_of(ds_tensor *leaf, ds_tensor *grad)
{
    if (!dsi_live(leaf, "set_grad_of")) return dsi_null_argument("set_grad_of");
    if (grad && !dsi_same_shape(leaf->shape, grad->shape))
        return dsi_fail(DS_EINVAL, "set_grad_of: a gradient of shape %s for a leaf of shape %s",
                        dsi_shape_text(grad->shape), dsi_shape_text(leaf->shape));
    if (grad && grad->device != leaf->device)
        return dsi_fail(DS_EINVAL, "set_grad_of: a gradient on %s for a leaf on %s",
                        ds_device_name(dsi_device_id(grad->device)),
                        ds_device_name(dsi_device_id(leaf->device)));
    dsi_hold(&leaf->grad, grad);
    return DS_OK;
}

ds_tensor *ds_require_grad(ds_tensor *leaf, bool on)
{
    if (!dsi_live(leaf, "require_grad")) return dsi_null_operand("require_grad");
    if (leaf->node)
        return dsi_refuse("require_grad: x %s is no leaf: an op made it",
                          dsi_shape_text(leaf->shape));
    if (on && leaf->dtype > DS_BF16)
        return dsi_refuse("require_grad: x is %s: only floating-point tensors have gradients",
                          ds_dtype_name(leaf->dtype));
    leaf->requires_grad = on;
    return leaf;
}

ds_tensor *ds_detach(ds_tensor *x)
{
    if (!dsi_live(x, "detach")) return dsi_null_operand("detach");
    bool deferred = x->storage && x->storage->deferred; /* which would hold x's graph */
    return !deferred || dsi_acquire(x) ? dsi_alias(x) : NULL;
}

/* ---- hooks of leaves ---------------------------------------------------------------------------------- */

void dsi_set_grad_ready_hook(ds_tensor *leaf, void (*fn)(void *arg, ds_tensor *leaf), void *arg)
{
    if (!leaf || (!fn && !leaf->hooks)) return;
    dsi_hooks *h = dsi_hooks_of(leaf);
    h->grad_ready = fn;
    h->grad_ready_arg = arg;
    h->grad_buffer = NULL;
}

void dsi_set_grad_buffer_hook(ds_tensor *leaf,
                              ds_tensor *(*grad_buffer)(void *arg, ds_tensor *leaf))
{
    if (leaf && leaf->hooks) leaf->hooks->grad_buffer = grad_buffer;
}

void dsi_set_after_use_hook(ds_tensor *x, void (*fn)(void *arg, ds_tensor *x), void *arg)
{
    if (!x || (!fn && !x->hooks)) return;
    dsi_hooks *h = dsi_hooks_of(x);
    h->after_use = fn;
    h->after_use_arg = arg;
}

/* The hook's temporaries get a scope: many leaves complete in one pass. */
static void leaf_run_ready_hook(ds_tensor *leaf)
{
    if (!leaf->hooks || !leaf->hooks->grad_ready) return;
    ds_scope *scope = ds_scope_open();
    leaf->hooks->grad_ready(leaf->hooks->grad_ready_arg, leaf);
    ds_scope_close(scope);
}

/* Counts each edge from n to a leaf with hooks. */
static void node_count_uses(dsi_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i].leaf && n->in[i].leaf->hooks) n->in[i].leaf->hooks->uses++;
}

/* n's backward has run. had_grad is false if n does not reach the loss, so that
 * its dy was NULL and nothing was accumulated. */
static void node_end_uses(dsi_node *n, bool had_grad)
{
    for (int i = 0; i < n->n_in; i++) {
        ds_tensor *leaf = n->in[i].leaf;
        dsi_hooks *h = leaf ? leaf->hooks : NULL;
        if (!h || !h->uses) continue; /* a hook set while the pass runs has counted nothing */
        h->got_grad |= had_grad;
        if (--h->uses || !h->got_grad) continue;
        h->got_grad = false;
        leaf_run_ready_hook(leaf);
    }
}

/* The pass has failed before n: resets the counts of n's leaves. */
static void node_reset_uses(dsi_node *n)
{
    for (int i = 0; i < n->n_in; i++) {
        dsi_hooks *h = n->in[i].leaf ? n->in[i].leaf->hooks : NULL;
        if (!h || !h->uses) continue;
        h->uses--;
        h->got_grad = false;
    }
}

/* ---- the pass ---------------------------------------------------------------------------------------- */

static int newest_first(const void *a, const void *b)
{
    uint64_t x = (*(dsi_node *const *)a)->seq, y = (*(dsi_node *const *)b)->seq;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The state of one backward pass. */
typedef struct Pass {
    uint64_t visit; /* number of the pass; marks the nodes that it has found */
    bool hooked;    /* uses of leaves are counted */
} Pass;

static _Thread_local Pass running;

bool dsi_node_waits(const dsi_node *n) { return !n->spent && n->visit == running.visit; }

/* Adds root and all nodes below it that this pass has not found before, each
 * counted, newest first. Breadth first; sorts only if that order differs. */
static void nodes_collect(Nodes *nodes, dsi_node *root)
{
    bool sorted = true;
    root->visit = running.visit;
    dsi_list_add(nodes, dsi_node_ref(root));
    for (int k = 0; k < nodes->n; k++) { /* the list is its own queue */
        dsi_node *n = nodes->at[k];
        n->grads_added = 0;
        n->failed = false;
        if (k && n->seq > nodes->at[k - 1]->seq) sorted = false;
        for (int i = 0; i < n->n_in; i++) {
            dsi_node *in = n->in[i].node;
            if (!in || in->visit == running.visit) continue;
            in->visit = running.visit;
            dsi_list_add(nodes, dsi_node_ref(in));
        }
    }
    if (!sorted) qsort(nodes->at, (size_t)nodes->n, sizeof *nodes->at, newest_first);
}

static void node_run_after_use_hooks(const dsi_node *n)
{
    for (int i = 0; i < n->n_saved; i++) {
        ds_tensor *x = n->saved[i];
        if (x && x->hooks && x->hooks->after_use) x->hooks->after_use(x->hooks->after_use_arg, x);
    }
}

/* Acquires dy and those saved tensors of n that its backward reads (Note
 * [Residency] of tensor/acquire.c): those that a wanted gradient needs
 * (saved_for), so that no other parameter is gathered. If one cannot be
 * materialized, the pass ends before any kernel of the node has run. */
static bool node_acquire_operands(const dsi_node *n, const ds_tensor *dy)
{
    const dsi_op *op = n->op;
    const ds_tensor *few[MAX_SAVED], **read = few;
    int count = 0;
    if (!(op->takes_pooled ? dsi_acquire_pooled(dy) : dsi_acquire(dy))) return false;
    if (n->second_dy && !dsi_acquire(n->second_dy)) return false;
    if (n->n_saved > MAX_SAVED) read = dsi_alloc((size_t)n->n_saved * sizeof *read);
    for (int i = 0; !op->acquires && i < n->n_saved; i++) {
        unsigned inputs = i < DSI_MASKED_SAVED ? op->saved_for[i] : 0;
        bool reads = !inputs;
        for (int j = 0; inputs >> j; j++) reads |= (inputs >> j & 1) && dsi_needs_input_grad(n, j);
        if (reads) read[count++] = n->saved[i];
    }
    bool done = dsi_acquire_n(read, count);
    if (read != few) dsi_free(read);
    return done;
}

/* Runs n's backward in a scope, then frees what it saved. May block in a
 * collective (acquire). An op that neither accumulates all wanted gradients nor
 * sets a message is an error of the op, reported by count. */
static ds_status node_run_backward(dsi_node *n)
{
    if (!n->dy) return DS_OK; /* its output does not reach the loss */
    if (n->spent)
        return dsi_fail(DS_ESTATE,
                        "backward: %s was passed before and its saved tensors are freed: "
                        "compute the loss again",
                        n->op->name);
    ds_tensor *dy = n->dy;
    n->dy = NULL;
    ds_scope *scope = ds_scope_open();
    dsi_place before = dsi_observe_backward(n->module, n->op->name);
    if (node_acquire_operands(n, dy))
        n->op->backward(n, dy);
    else
        n->failed = true;
    dsi_observe_end(before);
    ds_scope_close(scope);
    dsi_unref(dy);
    dsi_hold(&n->second_dy, NULL);
    if (running.hooked) node_run_after_use_hooks(n);
    dsi_node_release_saved(n);
    n->spent = true;
    if (!n->failed && n->grads_added == dsi_node_wanted(n)) return DS_OK;
    if (ds_error_status() != DS_OK) return ds_error_status();
    return dsi_fail(DS_ESTATE, "backward: %s gave %d of %d gradients", n->op->name, n->grads_added,
                    dsi_node_wanted(n));
}

/* Runs the backward of each node, in order. The first has its dy, and the uses
 * of leaves are counted. Frees the list. After a failure the other nodes drop
 * their gradients. */
static ds_status run_nodes(Nodes *nodes)
{
    ds_status status = DS_OK;
    int k = 0;
    for (; k < nodes->n; k++) {
        bool has_grad = nodes->at[k]->dy != NULL;
        if ((status = node_run_backward(nodes->at[k])) != DS_OK) break;
        if (running.hooked) node_end_uses(nodes->at[k], has_grad);
    }
    for (; running.hooked && k < nodes->n; k++) node_reset_uses(nodes->at[k]);
    for (k = 0; k < nodes->n; k++) { /* only after a failure is a dy left */
        dsi_hold(&nodes->at[k]->dy, NULL);
        dsi_hold(&nodes->at[k]->second_dy, NULL);
        dsi_node_unref(nodes->at[k]);
    }
    dsi_list_free(nodes);
    return status;
}

/* A pass from root with gradient dy. Ops that run in it record nothing, and
 * take operands as they are. */
static ds_status graph_run(dsi_node *root, ds_tensor *dy)
{
    static _Thread_local uint64_t n_passes;
    Nodes nodes = {0};
    Pass outer = running; /* a hook or a custom op may run a nested pass */
    bool was = ds_set_grad(false);
    ds_dtype cast = ds_set_autocast(DS_F32);
    running = (Pass){++n_passes, dsi_hooked_tensors() > 0};
    nodes_collect(&nodes, root);
    for (int i = 0; running.hooked && i < nodes.n; i++) node_count_uses(nodes.at[i]);
    root->dy = dsi_ref(dy);
    ds_status status = run_nodes(&nodes);
    ds_set_grad(was), ds_set_autocast(cast);
    running = outer;
    return status;
}

/* Releases n's edges to leaves: the nodes of the second run have edges to the
 * same leaves and count their uses. */
static void node_hand_over_leaves(dsi_node *n)
{
    if (running.hooked) node_end_uses(n, false);
    for (int i = 0; i < n->n_in; i++) dsi_hold(&n->in[i].leaf, NULL);
}

ds_status dsi_backward_inside(dsi_node *n, dsi_node *root, ds_tensor *dy, uint64_t oldest)
{
    Nodes nodes = {0};
    nodes_collect(&nodes, root);
    if (nodes.at[nodes.n - 1]->seq < oldest) {
        for (int k = 0; k < nodes.n; k++) dsi_node_unref(nodes.at[k]);
        dsi_list_free(&nodes);
        return dsi_fail(DS_ESTATE,
                        "%s: the function used a tensor when it ran again that it did not use "
                        "before: expected the same",
                        n->op->name);
    }
    for (int i = 0; running.hooked && i < nodes.n; i++) node_count_uses(nodes.at[i]);
    node_hand_over_leaves(n);
    root->dy = dsi_ref(dy);
    ds_status status = run_nodes(&nodes);
    n->grads_added = dsi_node_wanted(n);
    return status;
}

/* dy NULL: its allocation has failed. */
static ds_status backward_start(ds_tensor *y, ds_tensor *dy)
{
    if (!dy) return ds_error_status();
    if (y->node) return graph_run(y->node, dy);
    if (!y->requires_grad)
        return dsi_fail(
            DS_ESTATE,
            "backward: x %s has no graph: nothing it was computed from requires a gradient, "
            "or ds_set_grad(false) was in force",
            dsi_shape_text(y->shape));
    ds_status status = dsi_add_to_leaf(y, dsi_alias(dy)); /* a leaf is its own result */
    if (status == DS_OK) leaf_run_ready_hook(y);
    return status;
}

ds_status dsi_backward_scaled(ds_tensor *loss, double factor)
{
    if (!dsi_live(loss, "backward")) return dsi_null_argument("backward");
    if (dsi_numel(loss->shape) != 1)
        return dsi_fail(DS_EINVAL,
                        "backward: the loss is %s: expected one element (use ds_mean, ds_sum, or "
                        "ds_backward_from)",
                        dsi_shape_text(loss->shape));
    ds_scope *scope = ds_scope_open();
    dsi_trace_begin("backward");
    ds_tensor *seed = dsi_fill(dsi_new(loss, loss->shape), factor);
    ds_status status = seed ? backward_start(loss, seed) : ds_error_status();
    dsi_trace_end();
    ds_scope_close(scope);
    return status;
}

ds_status ds_backward(ds_tensor *loss) { return dsi_backward_scaled(loss, 1.0); }

ds_status ds_backward_from(ds_tensor *y, ds_tensor *dy)
{
    if (!dsi_live(y, "backward_from") || !dsi_live(dy, "backward_from"))
        return dsi_null_argument("backward_from");
    if (!dsi_same_shape(y->shape, dy->shape) || y->dtype != dy->dtype || y->device != dy->device)
        return dsi_fail(DS_EINVAL,
                        "backward_from: dy is %s %s on %s, y is %s %s on %s: expected the same",
                        ds_dtype_name(dy->dtype), dsi_shape_text(dy->shape),
                        ds_device_name(dsi_device_id(dy->device)), ds_dtype_name(y->dtype),
                        dsi_shape_text(y->shape), ds_device_name(dsi_device_id(y->device)));
    ds_scope *scope = ds_scope_open();
    ds_status status = backward_start(y, dy);
    ds_scope_close(scope);
    return status;
}
