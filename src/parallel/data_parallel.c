/* parallel/data_parallel.c: torch.nn.DataParallel: one process, one batch,
 * several replicas. Note [Replicas]
 *
 *     call       map the parameters into each replica; scatter the inputs; run all forwards; gather the outputs
 *     backward   scatter dy; run all backwards; add the gradients in the order of replicas
 *
 * A call is one node of the caller's graph, with an edge to each input and each
 * parameter of the model.
 *
 * Invariants:
 * - The graphs of the replicas' outputs stay on their threads, in `graph`,
 *   until that node is freed or its backward has run.
 * - On GPUs each replica has one of its own; the model is on the first. Work of
 *   replicas begins after `ready`, which the model's stream reaches once all
 *   that they read is there, and all that was read of them.
 * - Replica 0 runs its backward inside of the node's, on the model's leaves:
 *   their gradients so far are put aside, and the sum over the replicas is
 *   accumulated afterwards as the node's.
 * SPDX-License-Identifier: MIT */
#include "autograd/node.h"
#include "base/mem.h"
#include "device/graph.h"
#include "packed.h"
#include "replica.h"

#include <deepspeed/parallel.h>

#include <string.h>

#define FETCH_BYTES ((int64_t)16 << 20) /* of gradients at a time, from each other GPU */

typedef struct Call {
    ds_data_parallel *dp; /* NULL: it was freed before the node */
    struct Call *before, *after;
    int n, chunks;
    int64_t chunk; /* rows of the inputs of each replica but the last */
    ds_dims shape[DSI_MAX_INPUTS];
    ds_dtype dtype[DSI_MAX_INPUTS];
    bool of_scalars; /* each replica gave one value */
    dsi_replica_graph *graph[DSI_MAX_REPLICAS];
    int64_t rows[DSI_MAX_REPLICAS]; /* of the outputs */
} Call;

struct ds_data_parallel {
    int replicas, slots;
    dsi_replica *replica[DSI_MAX_REPLICAS]; /* NULL: could not be made */
    ds_tensor *
        *buffer[DSI_MAX_REPLICAS]; /* [slots] copies for replica r; NULL: a parameter. Counted */
    bool *is_parameter;            /* [slots] */
    dsi_view *view;                /* [slots] of the model's tensors on its GPU */
    int64_t *at;                   /* [slots] their places in a block */
    ds_tensor **edge;              /* [DSI_MAX_INPUTS + slots] of a node: inputs, parameters */
    ds_tensor **aside, **first;    /* [slots] gradients: as they were; of replica 0. Counted */
    Call *calls;                   /* calls whose node exists */
    dsi_device *home;              /* of the model */
    dsi_event ready;               /* on its stream */
};

static ds_tensor *model_tensor(const ds_data_parallel *dp, int slot)
{
    return ds_state_at(dp->replica[0]->tensors, slot);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static void find_param_slots(ds_data_parallel *dp)
{
    const ds_module *model = dp->replica[0]->module;
    for (int i = 0, k = 0; i < dp->slots; i++) {
        dp->is_parameter[i] = model_tensor(dp, i) == ds_module_param_at(model, k, NULL);
        k += dp->is_parameter[i];
    }
}

static bool is_at_home(const ds_data_parallel *dp, const ds_tensor *x, const char *what)
{
    if (x->device == dp->home) return true;
    return dsi_refuse(
        "data_parallel: the %s on %s: expected %s, where the module's first parameter "
        "is (ds_to)",
        what, ds_device_name(dsi_device_id(x->device)), ds_device_name(dsi_device_id(dp->home)));
}

/* Buffers may be on the CPU. */
static bool model_is_at_home(const ds_data_parallel *dp)
{
    for (int i = 0; i < dp->slots; i++) {
        const ds_tensor *x = model_tensor(dp, i);
        bool counts = dp->is_parameter[i] || x->device->type->kind != DS_CPU;
        if (counts && !is_at_home(dp, x, "module has a tensor")) return false;
    }
    return true;
}

static ds_data_parallel *data_parallel_alloc(dsi_replica *first, dsi_device *home, int replicas)
{
    ds_data_parallel *dp = dsi_alloc(sizeof *dp);
    dp->home = home;
    dp->replicas = replicas;
    dp->replica[0] = first;
    dp->slots = ds_state_len(first->tensors);
    size_t slots = (size_t)dp->slots;
    dp->is_parameter = dsi_alloc(slots);
    dp->view = dsi_alloc(slots * sizeof *dp->view);
    dp->at = dsi_alloc(slots * sizeof *dp->at);
    dp->edge = dsi_alloc((DSI_MAX_INPUTS + slots) * sizeof *dp->edge);
    dp->aside = dsi_alloc(slots * sizeof *dp->aside);
    dp->first = dsi_alloc(slots * sizeof *dp->first);
    find_param_slots(dp);
    return dp;
}

static bool make_replicas(ds_data_parallel *dp, ds_module *(*make)(void *arg), void *arg,
                          const int *device_ids)
{
    ds_device home = dp->replica[0]->device;
    if (dp->replicas > 1 && !model_is_at_home(dp)) return false;
    for (int r = 1; r < dp->replicas; r++) {
        dp->buffer[r] = dsi_alloc((size_t)dp->slots * sizeof **dp->buffer);
        dp->replica[r] = dsi_replica_new(r, dp->replica[0], dsi_replica_device(home, r, device_ids),
                                         make, arg);
        if (dp->replica[r]) continue;
        dsi_fail_in("data_parallel", ds_error_status());
        return false;
    }
    return true;
}

ds_data_parallel *ds_data_parallel_new(ds_module *module, int replicas,
                                       ds_module *(*make)(void *arg), void *arg)
{
    return ds_data_parallel_new_with(module, replicas, make, arg, (ds_data_parallel_opts){0});
}

ds_data_parallel *ds_data_parallel_new_with(ds_module *module, int replicas,
                                            ds_module *(*make)(void *arg), void *arg,
                                            ds_data_parallel_opts opts)
{
    if (!dsi_live(module, "data_parallel")) return dsi_null_operand("data_parallel");
    dsi_replica *first = dsi_replica_of(module);
    dsi_device *home = dsi_device_get(first->device);
    if (!home || !dsi_replicas_check(first->device, replicas, make != NULL, opts.device_ids)) {
        dsi_replica_free(first);
        return NULL;
    }
    ds_data_parallel *dp = data_parallel_alloc(first, home, replicas);
    if (make_replicas(dp, make, arg, opts.device_ids)) return dp;
    ds_data_parallel_free(dp);
    return NULL;
}

/* The model's stream comes to this point: replicas go on there. */
static ds_status home_record(ds_data_parallel *dp)
{
    ds_status status = dp->home->type->record(&dp->home->stream, &dp->ready);
    for (int r = 1; r < dp->replicas; r++)
        if (dp->replica[r]) dp->replica[r]->ready = &dp->ready;
    return status;
}

static void call_free_graphs(Call *c)
{
    for (int r = 0; r < c->chunks; r++) {
        dsi_replica_free_graph(c->dp->replica[r], c->graph[r]);
        c->graph[r] = NULL;
    }
}

void ds_data_parallel_free(ds_data_parallel *dp)
{
    if (!dp) return;
    for (Call *c = dp->calls; c; c = c->after) { /* their nodes free them */
        call_free_graphs(c);
        c->dp = NULL;
    }
    if (dp->replicas > 1 && dp->replica[1]) home_record(dp);
    for (int r = dp->replicas - 1; r >= 0; r--) {
        for (int i = 0; dp->buffer[r] && i < dp->slots; i++) dsi_unref(dp->buffer[r][i]);
        dsi_free(dp->buffer[r]);
        dsi_replica_free(dp->replica[r]);
    }
    if (dp->ready.handle) dp->home->type->free_event(dp->home, &dp->ready);
    dsi_free(dp->is_parameter);
    dsi_free(dp->view);
    dsi_free(dp->at);
    dsi_free(dp->edge);
    dsi_free(dp->aside);
    dsi_free(dp->first);
    dsi_free(dp);
}

ds_module *ds_data_parallel_module(const ds_data_parallel *dp)
{
    return dp ? dp->replica[0]->module : NULL;
}

/* ---- calls --------------------------------------------------------------------------------------------- */

/* Adds a call to dp's list; it belongs to the node of the call, or is freed at
 * once. */
static Call *call_new(ds_data_parallel *dp, ds_tensor **in, int n, int64_t chunk, int chunks)
{
    Call *c = dsi_alloc(sizeof *c);
    c->dp = dp;
    c->n = n;
    c->chunks = chunks;
    c->chunk = chunk;
    c->after = dp->calls;
    if (c->after) c->after->before = c;
    dp->calls = c;
    for (int j = 0; j < n; j++) {
        c->shape[j] = in[j]->shape;
        c->dtype[j] = in[j]->dtype;
    }
    for (int r = 0; r < chunks; r++) {
        c->graph[r] = dsi_alloc(sizeof *c->graph[r]);
        c->graph[r]->n = n;
    }
    return c;
}

static void call_free(Call *c)
{
    if (c->dp) {
        call_free_graphs(c);
        *(c->before ? &c->before->after : &c->dp->calls) = c->after;
        if (c->after) c->after->before = c->before;
    }
    dsi_free(c);
}

/* n rows of v, from row `from` on. */
static dsi_view view_rows(dsi_view v, int64_t from, int64_t n)
{
    v.p = (char *)v.p + from * v.s[0] * (int64_t)ds_dtype_size(v.dtype);
    v.d[0] = n;
    return v;
}

/* The rows of replica r in v, which has a row for each row of the outputs. If
 * each replica returned one value, a view of 0 dimensions. */
static dsi_view chunk_rows(const Call *c, dsi_view v, int r)
{
    int64_t from = 0;
    for (int k = 0; k < r; k++) from += c->rows[k];
    v = view_rows(v, from, c->rows[r]);
    if (c->of_scalars) v.n = 0;
    return v;
}

/* Runs `job` on all replicas at the same time; blocks until all are done. If
 * several fail, reports the first. */
static ds_status run_replicas(const Call *c, ds_status (*job)(dsi_replica *r))
{
    dsi_replica *const *replica = c->dp->replica;
    if (home_record(c->dp) != DS_OK) return ds_error_status();
    for (int r = 0; r < c->chunks; r++) replica[r]->graph = c->graph[r];
    for (int r = 0; r < c->chunks; r++) dsi_replica_start(replica[r], job);
    for (int r = 0; r < c->chunks; r++) dsi_replica_wait(replica[r]);
    for (int r = 0; r < c->chunks; r++)
        if (replica[r]->status != DS_OK)
            return dsi_fail(replica[r]->status, "data_parallel: replica %d: %s", r,
                            replica[r]->why);
    return DS_OK;
}

/* ---- before a forward: inputs, parameters, modes ---------------------------------------------------------- */

/* x's values -> *copy, allocated if it is NULL or has another dtype. */
static ds_status buffer_refresh(ds_tensor **copy, const ds_tensor *x)
{
    if (*copy && (*copy)->dtype != x->dtype) dsi_hold(copy, NULL);
    if (!*copy) {
        ds_scope *scope = ds_scope_open();
        *copy = dsi_ref(dsi_new(x, x->shape));
        ds_scope_close(scope);
    }
    return *copy ? dsi_copy(*copy, x) : ds_error_status();
}

/* Tensors that the model has on its GPU, in one block for all replicas, in the
 * current scope; NULL without a message: it is on the CPU. */
static ds_tensor *model_pack(const ds_data_parallel *dp)
{
    if (dp->home->type->kind == DS_CPU) return NULL;
    for (int i = 0; i < dp->slots; i++) {
        ds_tensor *x = model_tensor(dp, i);
        bool here = x->device == dp->home;
        if (here && !dsi_acquire(x)) return NULL;
        dp->view[i] = here ? dsi_v(x) : (dsi_view){.p = NULL};
    }
    int64_t bytes = dsi_packed_places(dp->slots, dp->view, dp->at);
    return dsi_packed_of(dp->home, dp->slots, dp->view, dp->at, bytes);
}

/* Parameters are the model's own memory, buffers a copy of it: each replica may
 * write to its own. On a GPU both are in the block. */
static ds_status replica_set_memory(const ds_data_parallel *dp, dsi_replica *r,
                                    const ds_tensor *block)
{
    r->packed = dsi_v(block);
    r->at = dp->at;
    for (int i = 0; i < dp->slots; i++) {
        ds_tensor *x = model_tensor(dp, i), **copy = &dp->buffer[r->number][i];
        r->trained[i] = x->requires_grad;
        if (block && dp->at[i] >= 0) {
            r->memory[i] = dp->view[i];
            continue;
        }
        if (!dp->is_parameter[i] && buffer_refresh(copy, x) != DS_OK) return ds_error_status();
        if (!dsi_acquire(x)) return ds_error_status();
        r->memory[i] = dsi_v(dp->is_parameter[i] ? x : *copy);
    }
    return DS_OK;
}

/* Sets the replica's rows of the inputs. Replica 0, on the caller's thread,
 * gets views, the others copy. */
static ds_status input_scatter(const Call *c, ds_tensor **in, dsi_replica *r)
{
    int64_t from = r->number * c->chunk, left = c->shape[0].d[0] - from;
    for (int j = 0; j < c->n; j++) {
        if (!dsi_acquire(in[j])) return ds_error_status();
        dsi_view v = view_rows(dsi_v(in[j]), from, left < c->chunk ? left : c->chunk);
        r->in[j] = v;
        r->collects[j] = r->recording && ds_requires_grad(in[j]);
        if (r->worker) continue;
        ds_dims shape = in[j]->shape;
        shape.d[0] = v.d[0];
        ds_scope *scope = ds_scope_open();
        c->graph[0]->x[j] = dsi_ref(dsi_view_of(in[j], shape, in[j]->stride, in[j]->offset));
        ds_scope_close(scope);
        if (!c->graph[0]->x[j]) return ds_error_status();
    }
    return DS_OK;
}

static ds_status replicas_prepare(const Call *c, ds_tensor **in)
{
    const ds_data_parallel *dp = c->dp;
    int threads = ds_threads();
    const ds_tensor *block = model_pack(dp);
    ds_status status = block || dp->home->type->kind == DS_CPU ? DS_OK : ds_error_status();
    for (int i = 0; i < c->chunks && status == DS_OK; i++) {
        dsi_replica *r = dp->replica[i];
        int share = threads / dp->replicas + (i < threads % dp->replicas);
        r->threads = share ? share : 1;
        r->recording = ds_grad_enabled(), r->autocast = ds_autocast();
        status = input_scatter(c, in, r);
        if (!r->worker || status != DS_OK) continue;
        r->seed = dsi_replica_new_seed(i);
        dsi_replica_set_mode(dp->replica[0]->module, r->module);
        status = replica_set_memory(dp, r, block);
    }
    return status;
}

/* ---- outputs ------------------------------------------------------------------------------------------- */

/* place, memory of `to` = v, memory of replica r. */
static ds_status replica_fetch(const ds_tensor *to, const dsi_replica *r, dsi_view v,
                               dsi_view place)
{
    return dsi_copy(dsi_borrow(to->device, place), dsi_replica_borrow(r->device, v));
}

static bool outputs_match(dsi_view a, dsi_view b)
{
    if (a.n != b.n || a.dtype != b.dtype) return false;
    for (int i = 1; i < a.n; i++)
        if (a.d[i] != b.d[i]) return false;
    return true;
}

/* Concatenates the outputs along dimension 0; single values become a vector, as
 * in torch.nn.DataParallel. NULL with the message. */
static ds_tensor *join_outputs(Call *c)
{
    dsi_replica *const *replica = c->dp->replica;
    dsi_view y0 = replica[0]->y;
    ds_dims shape = dsi_view_dims(y0);
    c->of_scalars = y0.n == 0;
    if (c->of_scalars) shape.n = 1;
    shape.d[0] = 0;
    for (int r = 0; r < c->chunks; r++) {
        dsi_view y = replica[r]->y;
        if (!outputs_match(y0, y))
            return dsi_refuse("data_parallel: replica 0 gave %s %s, replica %d %s %s: expected "
                              "the same except in dimension 0",
                              ds_dtype_name(y0.dtype), dsi_shape_text(dsi_view_dims(y0)), r,
                              ds_dtype_name(y.dtype), dsi_shape_text(dsi_view_dims(y)));
        c->rows[r] = c->of_scalars ? 1 : y.d[0];
        shape.d[0] += c->rows[r];
    }
    const ds_tensor *first = c->graph[0]->y;
    ds_tensor *y = dsi_is_channels_last(first) ? dsi_new_channels_last(first, shape)
                                               : dsi_new(first, shape);
    for (int r = 0; y && r < c->chunks; r++)
        if (replica_fetch(y, replica[r], replica[r]->y, chunk_rows(c, dsi_v(y), r)) != DS_OK)
            y = NULL;
    return y;
}

/* ---- backward ------------------------------------------------------------------------------------------ */

/* sum += v, of sum's shape, memory of a replica that is on its device. */
static ds_status sum_add(ds_tensor *sum, dsi_view v)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *g = dsi_to_dtype(dsi_borrow(sum->device, v), sum->dtype);
    bool added = g && dsi_run_op(sum, binary, DSI_ADD, 1.0, dsi_v(sum), dsi_v(g), dsi_v(sum));
    ds_scope_close(scope);
    return added ? DS_OK : ds_error_status();
}

/* The sum over the replicas of a parameter's gradients, in their order; that of
 * replica 0 becomes it. 16 bits are added in float32 and rounded once. Zeros,
 * as in PyTorch, if the call did not use the parameter. */
static ds_tensor *sum_over_replicas(const Call *c, int slot)
{
    const ds_data_parallel *dp = c->dp;
    const ds_tensor *p = model_tensor(dp, slot);
    ds_dtype dtype = p->dtype == DS_F16 || p->dtype == DS_BF16 ? DS_F32 : p->dtype;
    ds_tensor *sum = dsi_scope_add(dp->first[slot]);
    dp->first[slot] = NULL;
    sum = sum ? dsi_to_dtype(sum, dtype) : dsi_fill(dsi_new_dtype(p, dtype, p->shape), 0);
    if (!sum || !dsi_acquire_to_write(sum)) return NULL;
    for (int r = 1; sum && r < c->chunks; r++) {
        dsi_view g = dp->replica[r]->grad[slot];
        if (g.p && sum_add(sum, g) != DS_OK) return NULL;
    }
    return dsi_to_dtype(sum, p->dtype);
}

/* The gradient of input j from its rows; zeros where a replica has none. */
static ds_tensor *join_dx(const Call *c, int j)
{
    ds_tensor *dx = dsi_new_on(c->graph[0]->x[j]->device, c->dtype[j], c->shape[j]);
    for (int r = 0; dx && r < c->chunks; r++) {
        int64_t from = r * c->chunk, left = c->shape[j].d[0] - from;
        dsi_view rows = view_rows(dsi_v(dx), from, left < c->chunk ? left : c->chunk);
        const dsi_replica *replica = c->dp->replica[r];
        if (replica->dx[j].p ? replica_fetch(dx, replica, replica->dx[j], rows) != DS_OK
                             : !dsi_run(dx, fill, 0, rows))
            dx = NULL;
    }
    return dx;
}

/* Around replica 0's backward, whose leaves are the model's. */
static void grads_set_aside(const ds_data_parallel *dp)
{
    for (int i = 0; i < dp->slots; i++) dp->aside[i] = dsi_ref(model_tensor(dp, i)->grad);
}

static void grads_restore(const ds_data_parallel *dp)
{
    for (int i = 0; i < dp->slots; i++) {
        ds_tensor *x = model_tensor(dp, i);
        dp->first[i] = dsi_ref(x->grad);
        ds_set_grad_of(x, dp->aside[i]);
        dsi_hold(&dp->aside[i], NULL);
    }
}

/* The end of the slots from `first` on whose gradients come here together. */
static int slots_end(const ds_data_parallel *dp, int first)
{
    int64_t bytes = 0;
    for (int i = first; i < dp->slots; i++) {
        const ds_tensor *x = model_tensor(dp, i);
        bytes += ds_numel(x) * (int64_t)ds_dtype_size(x->dtype);
        if (i > first && bytes > FETCH_BYTES) return i;
    }
    return dp->slots;
}

static ds_status slots_accumulate_grads(dsi_node *n, const Call *c, int first, int end)
{
    const ds_data_parallel *dp = c->dp;
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int r = 1; status == DS_OK && r < c->chunks; r++)
        status = dsi_replica_fetch_grads(dp->replica[r], dp->home, first, end);
    for (int i = first; status == DS_OK && i < end; i++)
        if (dsi_needs_input_grad(n, c->n + i))
            dsi_accumulate_grad(n, c->n + i, sum_over_replicas(c, i));
    ds_scope_close(scope);
    return status;
}

static void call_accumulate_grads(dsi_node *n, const Call *c)
{
    ds_status status = DS_OK;
    for (int j = 0; j < c->n; j++)
        if (dsi_needs_input_grad(n, j)) dsi_accumulate_grad(n, j, join_dx(c, j));
    for (int i = 0, end; status == DS_OK && i < c->dp->slots; i = end) {
        end = slots_end(c->dp, i);
        status = slots_accumulate_grads(n, c, i, end);
    }
}

/* Blocks until all replicas have run their backward. */
static void data_parallel_backward(dsi_node *n, ds_tensor *dy)
{
    const Call *c = *(Call *const *)dsi_attr(n);
    ds_data_parallel *dp = c->dp;
    if (!dp) {
        dsi_fail(DS_ESTATE, "data_parallel: it was freed before the backward of what it gave");
        return;
    }
    dsi_view v = dsi_v(dy);
    for (int r = 0; r < c->chunks; r++) dp->replica[r]->dy = chunk_rows(c, v, r);
    grads_set_aside(dp);
    ds_status status = run_replicas(c, dsi_replica_backward);
    grads_restore(dp);
    if (status == DS_OK) call_accumulate_grads(n, c);
    for (int i = 0; i < dp->slots; i++) dsi_hold(&dp->first[i], NULL); /* of frozen parameters */
}

static const dsi_op dsi_op_data_parallel = {.name = "data_parallel",
                                            .backward = data_parallel_backward};

static void call_free_attr(dsi_node *n) { call_free(*(Call *const *)dsi_attr(n)); }

/* ---- forward ------------------------------------------------------------------------------------------- */

static bool check_inputs(ds_tensor **in, int n)
{
    if (n < 1 || n > DSI_MAX_INPUTS)
        return dsi_refuse("data_parallel: %d inputs: expected 1 to %d", n, DSI_MAX_INPUTS);
    for (int j = 0; j < n; j++) {
        if (!in[j]) return dsi_null_operand("data_parallel");
        if (!in[j]->shape.n || in[j]->shape.d[0] != in[0]->shape.d[0])
            return dsi_refuse("data_parallel: input %d is %s, input 0 %s: expected as many "
                              "samples in dimension 0",
                              j, dsi_shape_text(in[j]->shape), dsi_shape_text(in[0]->shape));
    }
    return true;
}

/* The node of the call; without one, nothing is kept for a backward. */
static void call_record(Call *c, ds_tensor **in, ds_tensor *y)
{
    ds_data_parallel *dp = c->dp;
    bool has_graph = false;
    for (int r = 0; r < c->chunks; r++) has_graph |= dp->replica[r]->y_has_graph;
    memcpy(dp->edge, in, (size_t)c->n * sizeof *in);
    for (int i = 0; i < dp->slots; i++)
        dp->edge[c->n + i] = dp->is_parameter[i] ? model_tensor(dp, i) : NULL;
    dsi_node *node = has_graph && y
                         ? dsi_record_n(&dsi_op_data_parallel, y, dp->edge, c->n + dp->slots)
                         : NULL;
    if (!node) {
        call_free(c);
        return;
    }
    dsi_set_attr(node, &c, sizeof(Call *));
    dsi_set_free_attr(node, call_free_attr);
}

/* Chunks as torch.chunk: a batch may need fewer replicas than there are, and
 * one chunk is a plain call of the model. */
ds_tensor *ds_data_parallel_call_n(ds_data_parallel *dp, ds_tensor **in, int n)
{
    if (!dsi_live(dp, "data_parallel_call")) return dsi_null_operand("data_parallel_call");
    if (!check_inputs(in, n)) return NULL;
    int64_t samples = in[0]->shape.d[0];
    int64_t chunk = (samples + dp->replicas - 1) / dp->replicas; /* torch.chunk */
    if (chunk == samples) return ds_call_n(dp->replica[0]->module, in, n);
    for (int j = 0; j < n; j++)
        if (!is_at_home(dp, in[j], "input is")) return NULL;
    if (dsi_graph_forbid(dp->home, "it runs replicas (ds_data_parallel)") != DS_OK) return NULL;
    Call *c = call_new(dp, in, n, chunk, (int)((samples + chunk - 1) / chunk));
    ds_scope *scope = ds_scope_open(); /* of the parameters' block */
    ds_status status = replicas_prepare(c, in);
    if (status == DS_OK) status = run_replicas(c, dsi_replica_forward);
    ds_scope_close(scope);
    ds_tensor *y = status == DS_OK ? join_outputs(c) : NULL;
    call_record(c, in, y);
    return y;
}
