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

#include "base/mem.h"
#include "base/thread.h"
#include "graph.h"

#include <string.h>

static _Thread_local dsi_pool nodes = {sizeof(dsi_node), NULL, 0};
static _Thread_local bool watched;
static _Thread_local bool no_grad; /* the mode, negated, so that a new thread records */
static _Thread_local uint64_t next_seq;
static _Thread_local dsi_watch *watch;

bool ds_set_grad(bool on)
{
    bool was = !no_grad;
    no_grad = !on;
    return was;
}

bool ds_grad_enabled(void) { return !no_grad; }

static bool wants_grad(const ds_tensor *x) { return x && (x->node || x->requires_grad); }

bool dsi_wants_grad(ds_tensor *const *in, int n)
{
    if (no_grad) return false;
    for (int i = 0; i < n; i++)
        if (wants_grad(in[i])) return true;
    return false;
}

/* ---- record ------------------------------------------------------------------------------------------ */

static void clear_pool(void) { dsi_pool_clear(&nodes); }

dsi_node *dsi_node_new(const dsi_op *op, int n_in)
{
    if (!watched) {
        dsi_at_thread_end(DSI_END_HANDLES, clear_pool);
        watched = true;
    }
    dsi_node *node = dsi_pool_get(&nodes);
    memset(node, 0, offsetof(dsi_node, near_saved));
    node->maker.unref = dsi_node_unref;
    node->refs = 1;
    node->op = op;
    node->seq = next_seq++;
    node->n_in = n_in;
    node->in = n_in <= NEAR ? node->near_in : dsi_alloc((size_t)n_in * sizeof *node->in);
    node->saved = node->near_saved;
    return node;
}

uint64_t dsi_node_next_seq(void) { return next_seq; }

void dsi_watch_set(dsi_watch *to) { watch = to; }
bool dsi_watching(void) { return watch != NULL; }

static void watch_note(ds_tensor *y, ds_tensor *const *in, int n)
{
    for (int i = 0; i < n; i++)
        if (wants_grad(in[i]) && in[i]->node != watch->inside) dsi_list_add(watch, dsi_ref(in[i]));
    y->node = dsi_node_ref(watch->inside);
}

dsi_node *dsi_record_n(const dsi_op *op, ds_tensor *y, ds_tensor **in, int n)
{
    if (!y || !dsi_wants_grad(in, n)) return NULL;
    if (watch) {
        watch_note(y, in, n);
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
    if (n->n_saved == NEAR) { /* rare: more than the struct has room for */
        ds_tensor **more = dsi_alloc(MAX_SAVED * sizeof *more);
        memcpy(more, n->saved, sizeof n->near_saved);
        n->saved = more;
    }
    DSI_ASSERT(n->n_saved < MAX_SAVED);
    /* its own output: as a second handle, or each would hold the other for ever */
    n->saved[n->n_saved++] = dsi_ref(x && x->node == n ? dsi_alias(x) : x);
}

void dsi_set_attr(dsi_node *n, const void *attr, size_t bytes)
{
    if (!n) return;
    n->attr = bytes <= sizeof n->near_attr ? (void *)n->near_attr : dsi_alloc(bytes);
    memcpy(n->attr, attr, bytes);
}

void dsi_set_free_attr(dsi_node *n, void (*forget)(dsi_node *n))
{
    if (n) n->forget = forget;
}

ds_tensor *dsi_saved_tensor(dsi_node *n, int i) { return i < n->n_saved ? n->saved[i] : NULL; }
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

/* ---- give -------------------------------------------------------------------------------------------- */

/* sum = a + b; sum may be a. NULL sum: the failure that made it so. */
static ds_status add_gradients(ds_tensor *sum, const ds_tensor *a, const ds_tensor *b)
{
    if (!sum || !dsi_acquire(a, b)) return ds_error_status();
    return dsi_run_op(sum, binary, DSI_ADD, 1.0, dsi_v(a), dsi_v(b), dsi_v(sum))
               ? DS_OK
               : ds_error_status();
}

/* A fresh tensor that nobody else will look at can become the sum itself, and
 * so does one that lies where the leaf wants it; others are copied. */
static ds_tensor *as_own(ds_tensor *g, const ds_tensor *leaf)
{
    if (leaf->hooks && leaf->hooks->placed == g) return g;
    if (!dsi_acquire(g)) return NULL;
    bool fresh = g->refs == 1 && g->storage->refs == 1 && dsi_is_contiguous(g) &&
                 g->dtype == leaf->dtype;
    if (fresh) return g;
    ds_tensor *copy = dsi_new(leaf, leaf->shape);
    return dsi_copy(copy, g) == DS_OK ? copy : NULL;
}

ds_status dsi_add_to_leaf(ds_tensor *leaf, ds_tensor *g)
{
    if (!dsi_same_shape(leaf->shape, g->shape))
        return dsi_fail(DS_EINVAL, "backward: a gradient of shape %s for a leaf of shape %s",
                        dsi_shape_text(g->shape), dsi_shape_text(leaf->shape));
    if (!leaf->grad) {
        leaf->grad = dsi_ref(as_own(g, leaf));
        return leaf->grad ? DS_OK : ds_error_status();
    }
    if (g->dtype != leaf->dtype) {
        ds_tensor *cast = dsi_new(leaf, leaf->shape);
        if (dsi_copy(cast, g) != DS_OK) return ds_error_status();
        g = cast;
    }
    return add_gradients(leaf->grad, leaf->grad, g);
}

static ds_status add_to_node(dsi_node *to, ds_tensor *g)
{
    if (!to->dy) {
        to->dy = dsi_ref(g);
        return DS_OK;
    }
    ds_tensor *sum = dsi_acquire(to->dy, g) ? dsi_new_like(to->dy) : NULL;
    if (add_gradients(sum, to->dy, g) != DS_OK) return ds_error_status();
    dsi_unref(to->dy);
    to->dy = dsi_ref(sum);
    return DS_OK;
}

void dsi_accumulate_grad(dsi_node *n, int i, ds_tensor *g)
{
    if (!dsi_needs_input_grad(n, i)) return;
    dsi_edge *e = &n->in[i];
    if (!g || (e->node ? add_to_node(e->node, g) : dsi_add_to_leaf(e->leaf, g)) != DS_OK)
        n->failed = true;
    else
        n->given++;
    if (e->leaf && e->leaf->hooks) e->leaf->hooks->placed = NULL;
}

ds_tensor *dsi_new_grad(dsi_node *n, int i, const ds_tensor *like, ds_dims shape)
{
    ds_tensor *leaf = n->in[i].leaf;
    dsi_hooks *h = leaf && !leaf->grad ? leaf->hooks : NULL;
    ds_tensor *place = h && h->place ? h->place(h->ready_arg, leaf) : NULL;
    if (!place) return dsi_new(like, shape);
    return h->placed = place;
}

/* Whether x can be written to: nobody else has it or its memory. */
static bool is_own(const ds_tensor *x)
{
    return x && x->refs == 1 && !x->pooled[0] && x->storage && x->storage->refs == 1 &&
           dsi_is_contiguous(x);
}

ds_tensor *dsi_grad_buffer(dsi_node *n, int i, const ds_tensor *like, ds_dims shape)
{
    dsi_edge *e = &n->in[i];
    ds_tensor **sum = e->node ? &e->node->dy : &e->leaf->grad;
    n->given++;
    if (is_own(*sum)) return *sum;
    ds_tensor *room = dsi_new(like, shape);
    bool done = *sum ? dsi_copy(room, *sum) == DS_OK : dsi_fill(room, 0) != NULL;
    if (!done) return NULL;
    dsi_unref(*sum);
    return *sum = dsi_ref(room);
}

/* ---- life -------------------------------------------------------------------------------------------- */

dsi_node *dsi_node_ref(dsi_node *n)
{
    if (n) n->refs++;
    return n;
}

void dsi_node_release_saved(dsi_node *n)
{
    if (n->forget && !n->spent) n->forget(n);
    for (int i = 0; i < n->n_saved; i++) dsi_unref(n->saved[i]);
    if (n->saved != n->near_saved) dsi_free(n->saved);
    n->saved = n->near_saved;
    n->n_saved = 0;
}

static void free_node(dsi_node *n)
{
    dsi_node_release_saved(n);
    for (int i = 0; i < n->n_in; i++) {
        dsi_node_unref(n->in[i].node);
        dsi_unref(n->in[i].leaf);
    }
    if (n->in != n->near_in) dsi_free(n->in);
    if (n->attr != (void *)n->near_attr) dsi_free(n->attr);
    dsi_unref(n->dy);
    dsi_pool_put(&nodes, n);
}

/* A graph of a million nodes is freed by a work list: freeing one node only
 * adds to it. */
void dsi_node_unref(dsi_node *n)
{
    static _Thread_local dsi_node *dead;
    static _Thread_local bool busy;
    if (!n || --n->refs > 0) return;
    n->next_dead = dead;
    dead = n;
    if (busy) return;
    busy = true;
    while (dead) {
        dsi_node *d = dead;
        dead = d->next_dead;
        free_node(d);
    }
    busy = false;
}
