/* autograd/node.h: the graph: a node for each op that was recorded, with the
 * tensors that its backward needs.
 *
 * An op records in this order: dsi_record, dsi_save_for_backward for each
 * tensor that its backward reads (saved tensor i is the i-th), dsi_set_attr for
 * its options. All take the NULL node of an op that is not recorded.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

#include <deepspeed/autograd.h>

#define DSI_MASKED_SAVED 3

/* An op as the backward pass sees it. Nodes point to it: there is no enum and
 * no switch over ops. */
typedef struct dsi_op {
    const char *name;
    /* Calls dsi_accumulate_grad(n, i, gradient of input i) for each i with
     * dsi_needs_input_grad(n, i). dy has the output's shape. */
    void (*backward)(dsi_node *n, ds_tensor *dy);
    bool takes_pooled; /* backward handles a dy in pooled form; else dy is made dense first */
    /* Before backward runs, the saved tensors that it reads are acquired: saved
     * tensor i if an input of the mask saved_for[i] (bit j: input j) wants a
     * gradient; mask 0: always. */
    unsigned saved_for[DSI_MASKED_SAVED];
    /* NULL: never. Whether backward reads a gradient as two summands, with dy =
     * a, in place of dy = a + b: then b is dsi_second_dy. */
    bool (*takes_two)(dsi_node *n, const ds_tensor *a, const ds_tensor *b);
    bool acquires; /* none is acquired: backward calls ops, or acquires them itself */
} dsi_op;

/* Records that op made y from n inputs (a NULL input counts, and never needs a
 * gradient). NULL when no gradient is wanted: recording is off, y is NULL, or
 * no input requires one. The graph holds handles of leaves among the inputs,
 * and nodes of the others. */
dsi_node *dsi_record_n(const dsi_op *op, ds_tensor *y, ds_tensor **in, int n);
#define dsi_record(op, y, ...) \
    dsi_record_n(op, y, (ds_tensor *[]){__VA_ARGS__}, \
                 (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))

/* For backward. A NULL node (nothing is recorded) is ignored. x may be NULL.
 * Saving y, the node's own output, saves a second handle on its storage. */
void dsi_save_for_backward(dsi_node *n, ds_tensor *x);
void dsi_set_attr(dsi_node *n, const void *attr, size_t bytes); /* a copy */
ds_tensor *dsi_saved_tensor(dsi_node *n, int i);                /* borrowed */
int dsi_saved_tensors(const dsi_node *n);                       /* their number */
const void *dsi_attr(dsi_node *n);
ds_tensor *dsi_second_dy(dsi_node *n); /* borrowed, acquired; NULL: dy is the whole gradient */

/* free_attr runs once, when n's saved tensors are released: after its backward,
 * or when n is freed without one. For memory that the attribute points to. */
void dsi_set_free_attr(dsi_node *n, void (*free_attr)(dsi_node *n));

bool dsi_needs_input_grad(const dsi_node *n, int i);
/* Adds g to the gradient of input i. A NULL g (an op that failed) fails the
 * backward pass. */
void dsi_accumulate_grad(dsi_node *n, int i, ds_tensor *g);

/* Whether n is to run in this pass. Then, in place of all of its own gradients,
 * a newer node of the same inputs may add g to n's: NULL fails the pass. */
bool dsi_node_waits(const dsi_node *n);
void dsi_accumulate_in_other(dsi_node *from, dsi_node *n, ds_tensor *g);

/* The sum of the gradients of input i so far, of this shape, zeros at first,
 * row-major or as a leaf's gradient is laid out: for an op that adds to a part
 * of it. So the gradients of n slices cost as much memory as one tensor, not as
 * n. Counts as accumulated. NULL, with the message, if there is no memory:
 * then, and if adding fails, call dsi_accumulate_grad with NULL. */
ds_tensor *dsi_grad_buffer(dsi_node *n, int i, const ds_tensor *like, ds_dims shape);

/* For an op that writes the whole gradient of input i, which has this shape:
 * row-major memory for it, of like's dtype and on its device: new, or where a
 * leaf wants its first gradient of a pass (dsi_set_grad_buffer_hook). The next
 * call for input i must be dsi_accumulate_grad with it. */
ds_tensor *dsi_new_grad(dsi_node *n, int i, const ds_tensor *like, ds_dims shape);

dsi_node *dsi_node_ref(dsi_node *n);
void dsi_node_unref(dsi_node *n); /* frees without recursion */

/* Backward with d loss / d loss = factor in place of 1, so that a scaled loss
 * costs no op. */
ds_status dsi_backward_scaled(ds_tensor *loss, double factor);

/* fn runs once in each backward pass that gives leaf a gradient, when that
 * gradient is complete. fn may take it away (ds_set_grad_of). A pass that fails
 * runs no hook for incomplete leaves. NULL removes the hook. */
void dsi_set_grad_ready_hook(ds_tensor *leaf, void (*fn)(void *arg, ds_tensor *leaf), void *arg);

/* grad_buffer, called with the arg of the ready hook, returns the memory for
 * the first gradient of a pass, so that it need not be copied there: row-major,
 * of the leaf's shape and dtype; or NULL. Only ops that call dsi_new_grad use
 * it. The leaf must have a ready hook. */
void dsi_set_grad_buffer_hook(ds_tensor *leaf,
                              ds_tensor *(*grad_buffer)(void *arg, ds_tensor *leaf));

/* fn runs after the backward of each node that saved x itself: its owner may
 * evict x. */
void dsi_set_after_use_hook(ds_tensor *x, void (*fn)(void *arg, ds_tensor *x), void *arg);

/* Whether an op on these inputs would record: grad mode on and one of them
 * wants a gradient. */
bool dsi_wants_grad(ds_tensor *const *in, int n);
