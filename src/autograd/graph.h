/* autograd/graph.h: the inside of a node, for the files of this folder.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_AUTOGRAD_GRAPH_H
#define DSI_AUTOGRAD_GRAPH_H

#include "node.h"

#define NEAR      4 /* inputs, and saved tensors, that lie in the node itself */
#define MAX_SAVED 32

typedef struct dsi_edge { /* at most one of the two */
    dsi_node *node;       /* that made this input; counted */
    ds_tensor *leaf;      /* counted */
} dsi_edge;

struct dsi_node {
    dsi_maker maker; /* first: all that a tensor knows of its node */
    int refs;
    const dsi_op *op;
    uint64_t seq;
    ds_tensor *dy; /* what has been given so far; counted */
    dsi_edge *in;
    ds_tensor **saved; /* counted */
    void *attr;
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

/* Adds g to the leaf's gradient, which becomes g itself if nobody else holds it or its memory. */
ds_status dsi_add_to_leaf(ds_tensor *leaf, ds_tensor *g);

#endif
