/* autograd/graph.h: the inside of a node, for the files of this folder.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_AUTOGRAD_GRAPH_H
#define DSI_AUTOGRAD_GRAPH_H

#include "base/list.h"
#include "node.h"

#define NEAR      4 /* inputs, and saved tensors, that lie in the node itself */
#define MAX_SAVED 32

typedef struct dsi_edge { /* at most one of the two */
    dsi_node *node;       /* that made this input; counted */
    ds_tensor *leaf;      /* counted */
} dsi_edge;

struct dsi_node {
    dsi_grad_fn maker; /* first: all that a tensor knows of its node */
    int refs;
    const dsi_op *op;
    uint64_t seq;
    ds_tensor *dy; /* what has been given so far; counted */
    dsi_edge *in;
    ds_tensor **saved; /* counted */
    void *attr;
    void (*forget)(dsi_node *n); /* or NULL */
    dsi_node *next_dead;
    uint64_t visit; /* number of the backward pass that found it last */
    int n_in, n_saved;
    int given;   /* inputs that got their gradient in this pass */
    bool failed; /* a gradient could not be made */
    bool spent;  /* backward has passed: what was saved is gone */
    /* the rest is not zeroed */
    ds_tensor *near_saved[NEAR];
    dsi_edge near_in[NEAR];
    _Alignas(16) char near_attr[128];
};

void dsi_node_release_saved(dsi_node *n);
int dsi_node_wanted(const dsi_node *n); /* edges that want a gradient */

/* While a watch is set, ops record no nodes of their own: their results get the
 * one node `inside`, and inputs from outside are listed. The function of a
 * checkpoint runs under one. */
typedef struct dsi_watch {
    dsi_node *inside;
    DSI_LIST(ds_tensor *) /* counted; a tensor comes once for each use */
} dsi_watch;

void dsi_watch_set(dsi_watch *watch); /* of this thread; NULL: none */
bool dsi_watching(void);
dsi_node *dsi_node_new(const dsi_op *op, int n_in); /* without edges */
uint64_t dsi_node_next_seq(void);                   /* of the next node that this thread makes */

/* n's op has run again, with recording on, and made root and all below it since
 * `oldest`. Runs the backward of those nodes now, as a part of the running
 * pass; gradients for older nodes are accumulated in place of n's. The uses of
 * n's leaves, for their hooks, are counted by the new nodes from now on. */
ds_status dsi_backward_inside(dsi_node *n, dsi_node *root, ds_tensor *dy, uint64_t oldest);

/* Adds g to the leaf's gradient, which becomes g itself if nobody else holds it
 * or its memory. */
ds_status dsi_add_to_leaf(ds_tensor *leaf, ds_tensor *g);

#endif
