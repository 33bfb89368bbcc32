/* autograd/recompute.c: activation checkpoints: a part of the network whose
 * activations are not saved, but computed again by backward.
 *
 * Chen et al., arXiv 1604.06174; torch.utils.checkpoint with
 * use_reentrant=False.
 *
 * Note [Checkpoints] In forward the function runs under a watch (graph.h): its
 * ops record nothing, but tensors from outside (its inputs, the parameters that
 * it uses) are listed. They become the edges of one node, which saves the
 * inputs and the state of the random-number generator. In backward that node
 * runs the function again, now recording. The new nodes have edges to the
 * same nodes and leaves as the function without a checkpoint would have. Their
 * backward runs at once, as a part of the running pass, and accumulates
 * gradients in the same order as without a checkpoint. So sums have the same
 * bits, and gradients in pooled form stay so.
 *
 * A leaf that the function uses is an edge of the node, so its hook waits for
 * the checkpoint, and then for its last use inside. A nested checkpoint is
 * ignored in the first run, and is a node in the second.
 *
 * Note [More outputs] ds_checkpoint_output names a further output of the
 * function, for example the loss of a layer inside. It gets an output node,
 * whose only input is the checkpoint's node. The output node is newer than the
 * checkpoint's node and older than all nodes that use the output. So its
 * backward runs after its own gradient is complete and before the checkpoint's,
 * and stores the gradient in the checkpoint's Segment. The second run must name
 * the same tensors in the same order; then one join node passes the gradients
 * of all outputs that were used. The result itself is left out if it was not
 * used.
 *
 * Invariants:
 * - A Segment is the attribute of the checkpoint's node; its `output_grads` are
 *   counted and freed with the node's saved tensors.
 * - `recomputing` is true and `named` set only while a function runs on this
 *   thread. Both are restored afterwards, so checkpoints nest.
 * - The second run leaves the generator as it found it, and has the autocast of
 *   the first.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "graph.h"

/* The gradient of a named output. */
typedef struct OutputGrad {
    int output;
    ds_tensor *dy; /* counted */
} OutputGrad;

/* In the order of naming, counted. */
typedef struct Outputs {
    DSI_LIST(ds_tensor *)
} Outputs;

typedef struct Segment {
    ds_checkpoint_fn *fn;
    void *arg;
    ds_dims shape; /* of the result */
    ds_dtype dtype;
    dsi_rng rng; /* the generator before the first run */
    ds_dtype autocast;
    int n_outputs;
    struct {
        DSI_LIST(OutputGrad)
    } output_grads;
    bool no_dy; /* the result was not used: it has no gradient */
} Segment;

static _Thread_local ds_checkpoint_opts config;
static _Thread_local bool configured;
static _Thread_local bool recomputing;
static _Thread_local Outputs *named; /* of the innermost function that runs; NULL: none */

bool ds_recomputing(void) { return recomputing; }

ds_tensor *ds_checkpoint_output(ds_tensor *x)
{
    if (!dsi_live(x, "checkpoint_output")) return dsi_null_operand("checkpoint_output");
    if (named) dsi_list_add(named, dsi_ref(x));
    return x;
}

static void outputs_free(Outputs *o)
{
    for (int i = 0; i < o->n; i++) dsi_unref(o->at[i]);
    dsi_list_free(o);
}

/* Runs fn and collects the outputs that it names in `o`. An outer checkpoint
 * gets them too. */
static ds_tensor *run_with_outputs(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n,
                                   Outputs *o)
{
    Outputs *outer = named;
    named = o;
    ds_tensor *y = fn(arg, in, n);
    named = outer;
    for (int i = 0; outer && i < o->n; i++) dsi_list_add(outer, dsi_ref(o->at[i]));
    return y;
}

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

static double profile_start(void) { return config.profile ? dsi_now() : 0; }

static void profile_end(const char *what, double start)
{
    if (config.profile)
        dsi_log(DSI_REQUESTED, "time (ms) | %s: %.2f", what, 1e3 * (dsi_now() - start));
}

/* ---- backward ------------------------------------------------------------------------------------------ */

/* Runs the function again, recording, with the generator of the first run. The
 * result belongs to the current scope; NULL with the message, also if shape,
 * dtype or number of outputs differ from the first run. */
static ds_tensor *checkpoint_rerun(dsi_node *n, Segment *s, Outputs *outputs)
{
    dsi_rng *rng = dsi_rng_default(), now = *rng;
    bool outer = recomputing;
    *rng = s->rng;
    recomputing = true;
    bool was = ds_set_grad(true);
    ds_dtype cast = ds_set_autocast(s->autocast);
    ds_tensor *y = run_with_outputs(s->fn, s->arg, n->saved, n->n_saved, outputs);
    ds_set_grad(was), ds_set_autocast(cast);
    recomputing = outer;
    *rng = now;
    if (!dsi_live(y, "checkpoint")) return dsi_null_operand("checkpoint");
    if (!dsi_same_shape(y->shape, s->shape) || y->dtype != s->dtype)
        return dsi_refuse("checkpoint: the function gave %s %s when it ran again, %s %s before: "
                          "expected the same",
                          ds_dtype_name(y->dtype), dsi_shape_text(y->shape),
                          ds_dtype_name(s->dtype), dsi_shape_text(s->shape));
    if (outputs->n != s->n_outputs)
        return dsi_refuse("checkpoint: the function named %d outputs when it ran again, %d before: "
                          "expected the same",
                          outputs->n, s->n_outputs);
    if (!y->node)
        return dsi_refuse("checkpoint: what the function gave when it ran again has no graph: "
                          "expected one, as before");
    return y;
}

static void join_backward(dsi_node *n, ds_tensor *dy)
{
    (void)dy;
    for (int i = 0; i < n->n_in; i++) dsi_accumulate_grad(n, i, ((ds_tensor **)n->attr)[i]);
}

static const dsi_op dsi_op_join = {"outputs of a checkpoint", join_backward, .takes_pooled = true};

/* A join node over all outputs that have a gradient, counted; NULL with the
 * message. Its attribute borrows the gradients. */
static dsi_node *join_outputs_of(const Segment *s, ds_tensor *y, const Outputs *outputs,
                                 ds_tensor *dy)
{
    struct {
        DSI_LIST(ds_tensor *)
    } roots = {0}, gradients = {0};
    if (!s->no_dy) {
        dsi_list_add(&roots, y);
        dsi_list_add(&gradients, dy);
    }
    for (int i = 0; i < s->output_grads.n; i++) {
        dsi_list_add(&roots, outputs->at[s->output_grads.at[i].output]);
        dsi_list_add(&gradients, s->output_grads.at[i].dy);
    }
    bool was = ds_set_grad(true), same = true;
    dsi_node *node = dsi_record_n(&dsi_op_join, dsi_alias(y), roots.at, roots.n);
    ds_set_grad(was);
    for (int i = 0; i < roots.n; i++)
        same = same && roots.at[i]->node &&
               dsi_same_shape(roots.at[i]->shape, gradients.at[i]->shape);
    if (same)
        dsi_set_attr(node, gradients.at, (size_t)gradients.n * sizeof *gradients.at);
    else
        dsi_refuse("checkpoint: the function named another output when it ran again: expected the "
                   "same");
    dsi_list_free(&roots);
    dsi_list_free(&gradients);
    return same ? dsi_node_ref(node) : NULL;
}

/* The node from which the second run's backward begins; counted. NULL with the
 * message. */
static dsi_node *checkpoint_rerun_root(dsi_node *n, ds_tensor *dy)
{
    Segment *s = n->attr;
    Outputs outputs = {0};
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = checkpoint_rerun(n, s, &outputs);
    dsi_node *root = !y                  ? NULL
                     : s->output_grads.n ? join_outputs_of(s, y, &outputs, dy)
                                         : dsi_node_ref(y->node);
    outputs_free(&outputs);
    ds_scope_close(scope); /* releases tensors that no node saved */
    return root;
}

static void checkpoint_backward(dsi_node *n, ds_tensor *dy)
{
    double start = profile_start();
    uint64_t oldest = dsi_node_next_seq();
    dsi_node *root = checkpoint_rerun_root(n, dy);
    if (!root || dsi_backward_inside(n, root, dy, oldest) != DS_OK) n->failed = true;
    dsi_node_unref(root);
    profile_end("backward", start);
}

static const dsi_op dsi_op_checkpoint = {"checkpoint", checkpoint_backward, .takes_pooled = true,
                                         .acquires = true};

static void checkpoint_free_attr(dsi_node *n)
{
    Segment *s = n->attr;
    for (int i = 0; i < s->output_grads.n; i++) dsi_unref(s->output_grads.at[i].dy);
    dsi_list_free(&s->output_grads);
}

/* Backward of an output node: stores dy in the checkpoint's Segment. */
static void output_backward(dsi_node *n, ds_tensor *dy)
{
    dsi_node *checkpoint = n->in[0].node;
    Segment *s = checkpoint->attr;
    if (!checkpoint->dy) {
        s->no_dy = true;
        dsi_accumulate_grad(n, 0, dy); /* any gradient, so that the checkpoint's backward runs */
    } else
        n->grads_added++;
    if (checkpoint->spent) return; /* its own backward reports that */
    const OutputGrad given = {*(const int *)n->attr, dsi_ref(dy)};
    dsi_list_add(&s->output_grads, given);
}

static const dsi_op dsi_op_output = {.name = "output of a checkpoint", .backward = output_backward};

/* ---- forward ------------------------------------------------------------------------------------------- */

/* A gradient reached a tensor that the checkpoint did not return. */
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

/* The first run: y moves to the caller's scope, all else is released. */
static ds_tensor *run_watched(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n,
                              dsi_watch *watch, Outputs *outputs)
{
    ds_scope *scope = ds_scope_open();
    dsi_watch_set(watch);
    ds_tensor *y = run_with_outputs(fn, arg, in, n, outputs);
    dsi_watch_set(NULL);
    return dsi_scope_return(scope, dsi_ref(y));
}

static void checkpoint_record(const Segment *s, ds_tensor *y, ds_tensor **in, int n,
                              const dsi_watch *outside)
{
    dsi_node_unref(y->node);
    y->node = NULL;
    dsi_node *node = dsi_record_n(&dsi_op_checkpoint, y, outside->at, outside->n);
    for (int i = 0; i < n; i++) dsi_save_for_backward(node, in[i]);
    dsi_set_attr(node, s, sizeof *s);
    dsi_set_free_attr(node, checkpoint_free_attr);
}

/* Gives each named output an output node above y's, in place of the node
 * `inside`. */
static void checkpoint_record_outputs(ds_tensor *y, const Outputs *outputs, const dsi_node *inside)
{
    for (int i = 0; i < outputs->n; i++) {
        ds_tensor *x = outputs->at[i];
        if (x == y || x->node != inside) continue;
        dsi_node_unref(x->node);
        x->node = NULL;
        dsi_set_attr(dsi_record(&dsi_op_output, x, y), &i, sizeof i);
    }
}

ds_tensor *ds_checkpoint(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n)
{
    if (!fn) return dsi_refuse("checkpoint: the function is NULL");
    if (n < 0 || n > MAX_SAVED)
        return dsi_refuse("checkpoint: %d inputs: expected at most %d", n, MAX_SAVED);
    for (int i = 0; i < n; i++)
        if (!in[i]) return dsi_null_operand("checkpoint");
    if (!ds_grad_enabled() || dsi_watching()) return fn(arg, in, n);

    double start = profile_start();
    Segment s = {.fn = fn, .arg = arg, .rng = *dsi_rng_default(), .autocast = ds_autocast()};
    dsi_watch watch = {.inside = dsi_node_new(&dsi_op_inside, 0)};
    Outputs outputs = {0};
    ds_tensor *y = run_watched(fn, arg, in, n, &watch, &outputs);
    if (!y) dsi_null_operand("checkpoint");
    if (y && y->node == watch.inside) {
        s.shape = y->shape, s.dtype = y->dtype;
        s.n_outputs = outputs.n;
        checkpoint_record(&s, y, in, n, &watch);
        checkpoint_record_outputs(y, &outputs, watch.inside);
    }
    outputs_free(&outputs);
    for (int i = 0; i < watch.n; i++) dsi_unref(watch.at[i]);
    dsi_list_free(&watch);
    dsi_node_unref(watch.inside);
    profile_end("forward", start);
    return y;
}
