/* autograd/node.c: nodes of the graph: record, save, accumulate, free.
 *
 * Invariants:
 * - An edge holds the node that made an input; or the input itself, if it is a
 *   leaf that collects a gradient; or nothing. Edge i is the op's operand i.
 * - A node holds the tensors that its backward needs, never the handle of its
 *   own output: that handle holds the node, and neither would be freed.
 * - A node's dy is the sum of what was accumulated so far. It is written in
 *   place only if no other handle or storage shares it.
 * - Nodes are freed from a work list, so deep graphs need no deep stack.
 * SPDX-License-Identifier: MIT */
#include "node.h"

#include "base/profile.h"
#include "base/thread.h"
#include "device/graph.h"
#include "graph.h"

#include <string.h>

static _Thread_local dsi_pool nodes = {sizeof(dsi_node), NULL, 0};
static _Thread_local bool end_registered;
static _Thread_local bool no_grad;      /* the mode, negated, so that a new thread records */
static _Thread_local ds_dtype autocast; /* DS_F32 on a new thread: off */
static _Thread_local uint64_t next_seq;
static _Thread_local dsi_watch *watch;

bool ds_set_grad(bool on)
{
    bool was = !no_grad;
    no_grad = !on;
    return was;
}

bool ds_grad_enabled(void) { return !no_grad; }

ds_dtype ds_set_autocast(ds_dtype dtype)
{
    ds_dtype was = autocast;
    if (dtype == DS_F32 || dtype == DS_F16 || dtype == DS_BF16)
        autocast = dtype;
    else
        dsi_fail(DS_EINVAL, "autocast: %s: expected float16 or bfloat16, or float32, which is off",
                 ds_dtype_name(dtype));
    return was;
}

ds_dtype ds_autocast(void) { return autocast; }

/* Whether gradients flow to x: it has a node, or is a leaf that collects one. */
static bool wants_grad(const ds_tensor *x) { return x && (x->node || x->requires_grad); }

bool dsi_wants_grad(ds_tensor *const *in, int n)
{
    if (no_grad) return false;
    for (int i = 0; i < n; i++)
        if (wants_grad(in[i])) return true;
    return false;
}

/* ---- record ------------------------------------------------------------------------------------------ */

static void nodes_clear_pool(void) { dsi_pool_clear(&nodes); }

dsi_node *dsi_node_new(const dsi_op *op, int n_in)
{
    if (!end_registered) {
        dsi_at_thread_end(DSI_END_HANDLES, nodes_clear_pool);
        end_registered = true;
    }
    dsi_node *node = dsi_pool_get(&nodes);
    memset(node, 0, offsetof(dsi_node, inline_saved));
    node->grad_fn.unref = dsi_node_unref;
    node->refs = 1;
    node->op = op;
    node->module = dsi_observed_module();
    node->seq = next_seq++;
    node->n_in = n_in;
    node->in = n_in <= N_INLINE ? node->inline_in : dsi_alloc((size_t)n_in * sizeof *node->in);
    node->saved = node->inline_saved;
    return node;
}

uint64_t dsi_node_next_seq(void) { return next_seq; }

void dsi_watch_set(dsi_watch *to) { watch = to; }
bool dsi_watching(void) { return watch != NULL; }

/* Instead of recording y's op: lists the inputs from outside of the watch. */
static void watch_add_inputs(ds_tensor *y, ds_tensor *const *in, int n)
{
    for (int i = 0; i < n; i++)
        if (wants_grad(in[i]) && in[i]->node != watch->inside) dsi_list_add(watch, dsi_ref(in[i]));
    y->node = dsi_node_ref(watch->inside);
}

dsi_node *dsi_record_n(const dsi_op *op, ds_tensor *y, ds_tensor **in, int n)
{
    if (!y || !dsi_wants_grad(in, n)) return NULL;
    if (watch) {
        watch_add_inputs(y, in, n);
        return NULL;
    }
    dsi_node *node = dsi_node_new(op, n);
    for (int i = 0; i < n; i++) {
        node->in[i].node = in[i] ? dsi_node_ref(in[i]->node) : NULL;
        node->in[i].leaf = wants_grad(in[i]) && !in[i]->node ? dsi_ref(in[i]) : NULL;
    }
    y->node = node;
    return node;
}

void dsi_save_for_backward(dsi_node *n, ds_tensor *x)
{
    if (!n) return;
    int count = n->n_saved;
    if (count >= N_INLINE && !(count & (count - 1))) { /* rare: memory for twice as many */
        ds_tensor **more = dsi_alloc((size_t)count * 2 * sizeof *more);
        memcpy(more, n->saved, (size_t)count * sizeof *more);
        if (n->saved != n->inline_saved) dsi_free(n->saved);
        n->saved = more;
    }
    /* the output itself is saved as a second handle: two counted references to
     * each other would never be freed */
    n->saved[n->n_saved++] = dsi_ref(x && x->node == n ? dsi_alias(x) : x);
}

void dsi_set_attr(dsi_node *n, const void *attr, size_t bytes)
{
    if (!n) return;
    n->attr = bytes <= sizeof n->inline_attr ? (void *)n->inline_attr : dsi_alloc(bytes);
    memcpy(n->attr, attr, bytes);
}

void dsi_set_free_attr(dsi_node *n, void (*free_attr)(dsi_node *n))
{
    if (n) n->free_attr = free_attr;
}

ds_tensor *dsi_saved_tensor(dsi_node *n, int i) { return i < n->n_saved ? n->saved[i] : NULL; }
int dsi_saved_tensors(const dsi_node *n) { return n->n_saved; }
ds_tensor *dsi_second_dy(dsi_node *n) { return n->second_dy; }
const void *dsi_attr(dsi_node *n) { return n->attr; }
bool dsi_needs_input_grad(const dsi_node *n, int i)
{
    return i < n->n_in && (n->in[i].node || n->in[i].leaf);
}

int dsi_node_wanted(const dsi_node *n)
{
    int count = 0;
    for (int i = 0; i < n->n_in; i++) count += dsi_needs_input_grad(n, i);
    return count;
}

/* ---- accumulate -------------------------------------------------------------------------------------------- */

/* sum = a + b; sum may be a. If sum is NULL, returns the error of its
 * allocation. */
static ds_status grad_sum(ds_tensor *sum, const ds_tensor *a, const ds_tensor *b)
{
    if (!sum || !dsi_acquire(a, b)) return ds_error_status();
    return dsi_run_op(sum, binary, DSI_ADD, 1.0, dsi_v(a), dsi_v(b), dsi_v(sum))
               ? DS_OK
               : ds_error_status();
}

/* The tensor that becomes a leaf's first gradient: g itself if it is in the
 * leaf's gradient buffer; if it is row-major or has a dense leaf's strides, g
 * itself if it has no other holder, or a sharer of its memory (Note [Shared
 * gradients] of tensor/shared.c); else a copy. NULL with the message. */
static ds_tensor *grad_as_own(ds_tensor *g, const ds_tensor *leaf)
{
    if (leaf->hooks && leaf->hooks->grad_in_buffer == g) return g;
    if (!dsi_acquire(g)) return NULL;
    if (g->dtype == leaf->dtype &&
        (dsi_is_contiguous(g) || (dsi_same_layout(g, leaf) && dsi_is_dense(g)))) {
        if (g->refs == 1 && g->storage->refs == 1) return g;
        ds_tensor *sharer = leaf->hooks || g->storage == leaf->storage ? NULL : dsi_alias(g);
        if (sharer && dsi_share(sharer)) return sharer;
    }
    ds_tensor *copy = dsi_new(leaf, leaf->shape);
    return dsi_copy(copy, g) == DS_OK ? copy : NULL;
}

/* A replayed step would add to the gradient that was there when it was
 * recorded. */
static ds_status grad_forbid_old(const ds_tensor *leaf)
{
    const ds_tensor *old = leaf->grad;
    if (!dsi_graph_recording(leaf->device) || dsi_graph_accumulates(leaf->device) ||
        (old->storage && dsi_graph_allocated(leaf->device, old->storage->p)))
        return DS_OK;
    return dsi_graph_forbid(leaf->device,
                            "it adds to gradients of an earlier step (it lacks zero_grad)");
}

ds_status dsi_add_to_leaf(ds_tensor *leaf, ds_tensor *g)
{
    if (!dsi_same_shape(leaf->shape, g->shape))
        return dsi_fail(DS_EINVAL, "backward: a gradient of shape %s for a leaf of shape %s",
                        dsi_shape_text(g->shape), dsi_shape_text(leaf->shape));
    if (!leaf->grad) {
        leaf->grad = dsi_ref(grad_as_own(g, leaf));
        return leaf->grad ? DS_OK : ds_error_status();
    }
    if (grad_forbid_old(leaf) != DS_OK) return ds_error_status();
    if (g->dtype != leaf->dtype) {
        ds_tensor *cast = dsi_new(leaf, leaf->shape);
        if (dsi_copy(cast, g) != DS_OK) return ds_error_status();
        g = cast;
    }
    if (!dsi_acquire_to_write(leaf->grad)) return ds_error_status();
    return grad_sum(leaf->grad, leaf->grad, g);
}

/* Whether x may be written in place: no other holder, no other handle on its
 * memory. */
static bool grad_is_own(const ds_tensor *x)
{
    return x && x->refs == 1 && !x->pooled[0] && x->storage && x->storage->refs == 1 &&
           dsi_is_contiguous(x);
}

/* to->dy += g, in new memory if the old sum has other holders. */
static ds_status node_sum(dsi_node *to, const ds_tensor *g)
{
    bool acquired = dsi_acquire(to->dy, g);
    if (acquired && grad_is_own(to->dy) && to->dy->dtype == g->dtype)
        return grad_sum(to->dy, to->dy, g);
    ds_tensor *sum = acquired ? dsi_new_like(to->dy) : NULL;
    if (grad_sum(sum, to->dy, g) != DS_OK) return ds_error_status();
    dsi_hold(&to->dy, sum);
    return DS_OK;
}

/* to->dy is the whole gradient so far. */
static ds_status node_settle(dsi_node *to)
{
    ds_tensor *second = to->second_dy;
    to->second_dy = NULL;
    ds_status status = second ? node_sum(to, second) : DS_OK;
    dsi_unref(second);
    return status;
}

static ds_status node_add_grad(dsi_node *to, ds_tensor *g)
{
    if (!to->dy) {
        to->dy = dsi_ref(g);
        return DS_OK;
    }
    if (node_settle(to) != DS_OK) return ds_error_status();
    bool two = !to->spent && to->op->takes_two && to->op->takes_two(to, to->dy, g);
    if (!two) return node_sum(to, g);
    to->second_dy = dsi_ref(g);
    return DS_OK;
}

void dsi_accumulate_grad(dsi_node *n, int i, ds_tensor *g)
{
    if (!dsi_needs_input_grad(n, i)) return;
    dsi_edge *e = &n->in[i];
    if (!g || (e->node ? node_add_grad(e->node, g) : dsi_add_to_leaf(e->leaf, g)) != DS_OK)
        n->failed = true;
    else
        n->grads_added++;
    if (e->leaf && e->leaf->hooks) e->leaf->hooks->grad_in_buffer = NULL;
}

void dsi_accumulate_in_other(dsi_node *from, dsi_node *n, ds_tensor *g)
{
    from->failed = !g || node_add_grad(n, g) != DS_OK;
    from->grads_added = dsi_node_wanted(from);
}

/* A leaf's buffer is used only for the first gradient of a pass: later ones are
 * added to it. */
ds_tensor *dsi_new_grad(dsi_node *n, int i, const ds_tensor *like, ds_dims shape)
{
    ds_tensor *leaf = n->in[i].leaf;
    dsi_hooks *h = leaf && !leaf->grad ? leaf->hooks : NULL;
    ds_tensor *place = h && h->grad_buffer ? h->grad_buffer(h->grad_ready_arg, leaf) : NULL;
    if (!place) return dsi_new(like, shape);
    if (!dsi_acquire_to_write(place)) return NULL;
    return h->grad_in_buffer = place;
}

ds_tensor *dsi_grad_buffer(dsi_node *n, int i, const ds_tensor *like, ds_dims shape)
{
    dsi_edge *e = &n->in[i];
    ds_tensor **sum = e->node ? &e->node->dy : &e->leaf->grad;
    n->grads_added++;
    if (e->node && node_settle(e->node) != DS_OK) return NULL;
    if (!e->node && *sum) { /* whoever holds ds_grad(leaf) sees the sum */
        bool good = grad_forbid_old(e->leaf) == DS_OK && dsi_acquire_to_write(*sum);
        return good ? *sum : NULL;
    }
    if (grad_is_own(*sum)) return *sum;
    ds_tensor *buffer = dsi_new(like, shape);
    bool done = *sum ? dsi_copy(buffer, *sum) == DS_OK : dsi_fill(buffer, 0) != NULL;
    if (!done) return NULL;
    dsi_unref(*sum);
    return *sum = dsi_ref(buffer);
}

/* ---- life -------------------------------------------------------------------------------------------- */

dsi_node *dsi_node_ref(dsi_node *n)
{
    if (n) n->refs++;
    return n;
}

void dsi_node_release_saved(dsi_node *n)
{
    if (n->free_attr && !n->spent) n->free_attr(n);
    for (int i = 0; i < n->n_saved; i++) dsi_unref(n->saved[i]);
    if (n->saved != n->inline_saved) dsi_free(n->saved);
    n->saved = n->inline_saved;
    n->n_saved = 0;
}

static void node_free(dsi_node *n)
{
    dsi_node_release_saved(n);
    for (int i = 0; i < n->n_in; i++) {
        dsi_node_unref(n->in[i].node);
        dsi_unref(n->in[i].leaf);
    }
    if (n->in != n->inline_in) dsi_free(n->in);
    if (n->attr != (void *)n->inline_attr) dsi_free(n->attr);
    dsi_unref(n->dy);
    dsi_unref(n->second_dy);
    dsi_pool_put(&nodes, n);
}

/* A graph of a million nodes is freed by a work list: freeing one node only
 * adds to it. */
void dsi_node_unref(dsi_node *n)
{
    static _Thread_local dsi_node *dead_nodes;
    static _Thread_local bool freeing;
    if (!n || --n->refs > 0) return;
    n->next_dead = dead_nodes;
    dead_nodes = n;
    if (freeing) return;
    freeing = true;
    while (dead_nodes) {
        dsi_node *d = dead_nodes;
        dead_nodes = d->next_dead;
        node_free(d);
    }
    freeing = false;
}
