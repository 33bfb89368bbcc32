/* parallel/reduce_state.h: the state of one rank's buckets, for reduce.c and
 * reduce_record.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "reduce.h"
#include "tree.h"

typedef struct dsi_reduce_leaf {
    dsi_reduce *r;
    int i;
    bool holds;        /* its place in the bucket has a gradient */
    ds_tensor *mapped; /* one rank with a folder: where its gradient is kept; counted, or NULL */
    bool final;        /* one rank: the last pass has completed the gradient */
} dsi_reduce_leaf;

typedef struct dsi_reduce_bucket {
    ds_tensor *full; /* [n] of its unit; counted; NULL: not there */
    /* what is sent: full itself, or a copy; counted; NULL: nothing is on its
     * way */
    ds_tensor *wire;
    dsi_request *request; /* NULL: none */
    ds_tensor *pieces;    /* tree: [ranks][shard_size], on its way; counted */
    int missing;          /* parameters without a gradient of this pass */
    bool added;           /* partition: this rank's shard has a gradient of an earlier pass */
    bool direct;          /* partition: the sum is on its way to this rank's shard */
    bool counted;         /* `squares` are, or will be, those of the sum as it is kept */
    double squares;
} dsi_reduce_bucket;

struct dsi_reduce {
    const dsi_flat *f;
    ds_comm *comm;
    dsi_reduce_opts o;
    ds_redop op;
    double before, after;      /* factors around the sum */
    dsi_reduce_leaf *leaf;     /* [f->n] */
    dsi_reduce_bucket *bucket; /* [f->units] */
    ds_tensor *owned;          /* partition: [f->owned], counted */
    char *folder;              /* of files of the sums; NULL: they are in memory */
    dsi_tree *tree;            /* has what would be in owned; or NULL */
    bool local; /* tree: one rank, one pass: its gradients are the sum, in their place */
    bool open;  /* some pass came since the gradients were last forgotten */
    bool widen; /* gradients are being added up in o.accum, not in their own dtype */
    bool runs;  /* between begin and end: other backward passes are not ours */
    bool last;
    bool stays;       /* buckets keep their memory: a graph may have it */
    int next;         /* the first bucket that has not left in this pass */
    int arrived;      /* the first one that is still on its way */
    ds_status status; /* of hooks, which return nothing */
    double seconds;   /* of this pass: spent on buckets that leave and arrive */
};
