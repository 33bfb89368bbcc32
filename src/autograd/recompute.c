/* autograd/recompute.c: checkpoints: a part of the network that backward runs again instead of remembering.
 *
 * Chen et al., arXiv 1604.06174; torch.utils.checkpoint with use_reentrant=False.
 *
 * Note [Checkpoints]
 * The function runs once in forward under a watch: its ops record nothing, but what comes from outside (its
 * inputs, the parameters it uses) is noted, and becomes the edges of one node, which saves the inputs and
 * where the random-number generator stood. In backward that node runs the function again, now recording. The
 * new nodes hang on the very nodes and leaves that the function used: so they are passed at once, as a part
 * of the running pass, and hand their gradients on in the order that there would be without a checkpoint. The
 * sums have the same bits, and gradients in pooled form go through.
 *
 * Because a watched leaf is an edge, its hook waits for the checkpoint, and then for the last of its uses in
 * there. Checkpoints inside of one are nothing while it is watched, and nodes of their own when it runs again.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "graph.h"

#include <string.h>

typedef struct Segment {
    ds_checkpoint_fn *fn;
    void *arg;
    ds_dims shape; /* of the result */
    ds_dtype dtype;
    dsi_rng rng; /* before it ran */
} Segment;

static _Thread_local ds_checkpoint_opts config;
static _Thread_local bool configured;
static _Thread_local bool again;

bool ds_recomputing(void) { return again; }

/* ---- as deepspeed.checkpointing.configure -------------------------------------------------------------- */

ds_status ds_checkpoint_configure(ds_checkpoint_opts o)
{
    if (o.number_checkpoints < 0)
        return dsi_fail(DS_EINVAL,
                        "checkpoint_configure: number_checkpoints is %d: expected at least 0",
                        o.number_checkpoints);
    if (o.contiguous_memory_optimization && !o.partition_activations)
        return dsi_fail(DS_EINVAL, "checkpoint_configure: contiguous_memory_optimization is for "
                                   "partitioned activations: set partition_activations too");
    if (o.contiguous_memory_optimization && !o.number_checkpoints)
        return dsi_fail(DS_EINVAL, "checkpoint_configure: contiguous_memory_optimization needs "
                                   "number_checkpoints");
    if (o.partition_activations)
        dsi_log_once(DSI_WARNING,
                     "activation_checkpointing: partition_activations divides activations among "
                     "model-parallel ranks: there are none, so each rank keeps its own");
    config = o;
    configured = true;
    return DS_OK;
}

bool ds_checkpoint_is_configured(void) { return configured; }

static double start_clock(void) { return config.profile ? dsi_now() : 0; }

static void stop_clock(const char *what, double start)
{
    if (config.profile) dsi_log(DSI_ASKED, "time (ms) | %s: %.2f", what, 1e3 * (dsi_now() - start));
}

/* ---- backward ------------------------------------------------------------------------------------------ */

/* The result of the second run, which belongs to the current scope; the generator stays where it is. */
static ds_tensor *run_again(dsi_node *n, Segment *s)
{
    dsi_rng *rng = dsi_rng_default(), now = *rng;
    bool outer = again;
    *rng = s->rng;
    again = true;
    bool was = ds_set_grad(true);
    ds_tensor *y = s->fn(s->arg, n->saved, n->n_saved);
    ds_set_grad(was);
    again = outer;
    *rng = now;
    if (!y) return dsi_passed("checkpoint");
    if (!dsi_same_shape(y->shape, s->shape) || y->dtype != s->dtype)
        return dsi_refuse("checkpoint: the function gave %s %s when it ran again, %s %s before: "
                          "expected the same",
                          ds_dtype_name(y->dtype), dsi_shape_text(y->shape),
                          ds_dtype_name(s->dtype), dsi_shape_text(s->shape));
    if (!y->node)
        return dsi_refuse("checkpoint: what the function gave when it ran again has no graph: "
                          "expected one, as before");
    return y;
}

static void checkpoint_backward(dsi_node *n, ds_tensor *dy)
{
    double start = start_clock();
    uint64_t oldest = dsi_node_next_seq();
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = run_again(n, n->attr);
    dsi_node *root = y ? dsi_node_ref(y->node) : NULL;
    ds_scope_close(scope); /* what nobody saved goes */
    if (!root || dsi_backward_inside(n, root, dy, oldest) != DS_OK) n->failed = true;
    dsi_node_unref(root);
    stop_clock("backward", start);
}

static const dsi_op dsi_op_checkpoint = {"checkpoint", checkpoint_backward, .takes_pooled = true};

/* ---- forward ------------------------------------------------------------------------------------------- */

static void inside_backward(dsi_node *n, ds_tensor *dy)
{
    (void)dy;
    dsi_fail(DS_ESTATE,
             "backward: it comes to a tensor that was made inside of a checkpoint, which "
             "records nothing: return that tensor from the function, or ds_detach it");
    n->failed = true;
}

static const dsi_op dsi_op_inside = {"inside of a checkpoint", inside_backward,
                                     .takes_pooled = true};

static ds_tensor *run_watched(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n,
                              dsi_watch *watch)
{
    ds_scope *scope = ds_scope_open();
    dsi_watch_set(watch);
    ds_tensor *y = fn(arg, in, n);
    dsi_watch_set(NULL);
    return dsi_scope_return(scope, dsi_ref(y));
}

static void record(const Segment *s, ds_tensor *y, ds_tensor **in, int n, const dsi_watch *outside)
{
    dsi_node_unref(y->node);
    y->node = NULL;
    dsi_node *node = dsi_record_n(&dsi_op_checkpoint, y, outside->at, outside->n);
    for (int i = 0; i < n; i++) dsi_save(node, in[i]);
    dsi_set_attr(node, s, sizeof *s);
}

ds_tensor *ds_checkpoint(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n)
{
    if (!fn) return dsi_refuse("checkpoint: the function is NULL");
    if (n < 0 || n > MAX_SAVED)
        return dsi_refuse("checkpoint: %d inputs: expected at most %d", n, MAX_SAVED);
    for (int i = 0; i < n; i++)
        if (!in[i]) return dsi_passed("checkpoint");
    if (!ds_grad_enabled() || dsi_watching()) return fn(arg, in, n);

    double start = start_clock();
    Segment s = {.fn = fn, .arg = arg, .rng = *dsi_rng_default()};
    dsi_watch watch = {.inside = dsi_node_new(&dsi_op_inside, 0)};
    ds_tensor *y = run_watched(fn, arg, in, n, &watch);
    if (!y) dsi_passed("checkpoint");
    if (y && y->node == watch.inside) {
        s.shape = y->shape, s.dtype = y->dtype;
        record(&s, y, in, n, &watch);
    }
    for (int i = 0; i < watch.n; i++) dsi_unref(watch.at[i]);
    dsi_list_free(&watch);
    dsi_node_unref(watch.inside);
    stop_clock("forward", start);
    return y;
}
