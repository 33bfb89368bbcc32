/* autograd/graph.h: the struct of a node, for the files of this folder.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "node.h"

#define N_INLINE  4 /* inputs, and saved tensors, that fit into the node itself */
#define MAX_SAVED 32

typedef struct dsi_edge { /* of one input; at most one of the two is set */
    dsi_node *node;       /* of the op that made this input; counted */
    ds_tensor *leaf;      /* counted */
} dsi_edge;

struct dsi_node {
    dsi_grad_fn grad_fn; /* first: the part that tensor.h knows */
    int refs;
    const dsi_op *op;
    uint64_t seq;
    ds_tensor *dy;        /* gradient of the output: the sum so far; counted */
    ds_tensor *second_dy; /* NULL, or to be added to it (takes_two of dsi_op); counted */
    dsi_edge *in;
    ds_tensor **saved; /* counted */
    void *attr;
    void (*free_attr)(dsi_node *n); /* or NULL */
    const char *module; /* that ran the op, if the thread was observed (base/profile.h) */
    dsi_node *next_dead;
    uint64_t visit; /* number of the backward pass that found it last */
    int n_in, n_saved;
    int grads_added; /* inputs whose gradient was accumulated in this pass */
    bool failed;     /* an input's gradient could not be computed */
    bool spent;      /* backward has run: saved tensors are released */
    /* the rest is not zeroed */
    ds_tensor *inline_saved[N_INLINE];
    dsi_edge inline_in[N_INLINE];
    _Alignas(16) char inline_attr[128];
};

/* Drops saved tensors, and frees the attribute's memory (dsi_set_free_attr). */
void dsi_node_release_saved(dsi_node *n);
int dsi_node_wanted(const dsi_node *n); /* edges that want a gradient */

/* While a watch is set, ops record no nodes: their results all get the node
 * `inside`, and inputs that were made before are added to the list. The
 * function of a checkpoint runs under a watch. */
typedef struct dsi_watch {
    dsi_node *inside;
    DSI_LIST(ds_tensor *) /* counted; one entry for each use */
} dsi_watch;

void dsi_watch_set(dsi_watch *watch); /* for this thread; NULL: ends watching */
bool dsi_watching(void);
dsi_node *dsi_node_new(const dsi_op *op, int n_in); /* without edges */
uint64_t dsi_node_next_seq(void);                   /* of the next node that this thread makes */

/* For a checkpoint's node n, whose function has run again and recorded `root`
 * and the nodes below it, all with seq >= `oldest`. Runs their backward now, as
 * a part of the running pass, starting with dy, root's gradient. They
 * accumulate into n's inputs in n's place, and their edges replace n's in
 * counting the uses of leaves. */
ds_status dsi_backward_inside(dsi_node *n, dsi_node *root, ds_tensor *dy, uint64_t oldest);

/* Adds g to the leaf's gradient, which becomes g itself if g has no other
 * holder and its memory no other handle. Converts to the leaf's dtype. */
ds_status dsi_add_to_leaf(ds_tensor *leaf, ds_tensor *g);
