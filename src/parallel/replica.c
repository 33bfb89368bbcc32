/* parallel/replica.c: one replica of DataParallel, as seen from its own thread.
 * Note [Replicas]
 * SPDX-License-Identifier: MIT */
#include "replica.h"

#include "packed.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/trace.h"
#include "base/work.h"

#include <deepspeed/autograd.h>

#include <stdio.h>
#include <string.h>

static void replica_graph_free(dsi_replica_graph *s)
{
    while (s) {
        dsi_replica_graph *next = s->next;
        for (int j = 0; j < s->n; j++) dsi_unref(s->x[j]);
        dsi_unref(s->y);
        dsi_free(s);
        s = next;
    }
}

/* ---- jobs ---------------------------------------------------------------------------------------------- */

/* Whether x is already a handle on the memory of v, with its dtype and strides. */
static bool tensor_matches_view(const ds_tensor *x, const dsi_view *v)
{
    if (!x->storage || !x->storage->borrowed || x->storage->p != v->p || x->dtype != v->dtype)
        return false;
    return !memcmp(x->stride, v->s, (size_t)v->n * sizeof *v->s);
}

ds_tensor *dsi_replica_borrow(ds_device device, dsi_view v)
{
    dsi_device *d = dsi_device_get(device);
    return d ? dsi_borrow(d, v) : NULL;
}

/* Copies the model's block to this replica's GPU. */
static ds_status block_fetch(dsi_replica *r)
{
    dsi_device *d = dsi_device_get(r->device);
    ds_tensor *from = d ? dsi_replica_borrow(r->home, r->packed) : NULL;
    if (!from) return ds_error_status();
    if (!r->params_block || !dsi_same_shape(r->params_block->shape, from->shape))
        dsi_hold(&r->params_block, dsi_new_on(d, DS_U8, from->shape));
    return r->params_block ? dsi_copy(r->params_block, from) : ds_error_status();
}

/* Gives the module's parameters and buffers the caller's present values: as
 * handles on its memory, or copied to this replica's GPU. A model on a GPU may
 * have buffers on the CPU (num_batches_tracked). */
static ds_status replica_set_parameters(dsi_replica *r)
{
    ds_status status = r->packed.p ? block_fetch(r) : DS_OK;
    for (int i = 0; i < ds_state_len(r->tensors) && status == DS_OK; i++) {
        ds_tensor *x = ds_state_at(r->tensors, i);
        x->requires_grad = r->trained[i];
        if (r->packed.p && r->at[i] >= 0)
            dsi_packed_bind(x, r->params_block, r->at[i], r->memory[i]);
        else if (!tensor_matches_view(x, &r->memory[i]))
            dsi_tensor_set_data(x, dsi_borrow(x->device, r->memory[i]));
    }
    return status;
}

/* v's values in memory of this thread; laid out as v is, if v is dense. */
static ds_tensor *view_copy(const dsi_replica *r, dsi_view v)
{
    dsi_device *d = dsi_device_get(r->device);
    ds_tensor *from = dsi_replica_borrow(r->home, v);
    ds_tensor *x = d && from ? dsi_new_on(d, v.dtype, from->shape) : NULL;
    if (!x) return NULL;
    if (dsi_is_dense(from)) memcpy(x->stride, from->stride, sizeof x->stride);
    return dsi_copy(x, from) == DS_OK ? x : NULL;
}

ds_status dsi_replica_forward(dsi_replica *r)
{
    dsi_replica_graph *s = r->graph;
    if (r->worker) {
        dsi_rng_seed(dsi_rng_default(), r->seed);
        if (replica_set_parameters(r) != DS_OK) return ds_error_status();
    }
    for (int j = 0; j < s->n; j++) {
        if (!s->x[j]) s->x[j] = dsi_ref(view_copy(r, r->in[j]));
        if (!s->x[j]) return ds_error_status();
        s->x[j]->requires_grad = r->collects[j];
    }
    s->y = dsi_ref(ds_call_n(r->module, s->x, s->n));
    if (!s->y || !dsi_acquire(s->y)) return ds_error_status();
    r->y = dsi_v(s->y);
    r->y_has_graph = ds_requires_grad(s->y);
    return DS_OK;
}

/* It is read alone, so it may be a shared one (tensor/shared.c). */
static dsi_view grad_of(const ds_tensor *x) { return dsi_v(x->grad); }

/* The gradients in one block, which the caller fetches. */
static ds_status grads_pack(dsi_replica *r, int slots)
{
    int64_t bytes = dsi_packed_places(slots, r->grad, r->grad_at);
    r->packed_grads = (dsi_view){.p = NULL};
    if (!bytes) return DS_OK;
    dsi_device *d = dsi_device_get(r->device);
    dsi_hold(&r->grads_block, dsi_packed_of(d, slots, r->grad, r->grad_at, bytes));
    if (!r->grads_block) return ds_error_status();
    r->packed_grads = dsi_v(r->grads_block);
    return DS_OK;
}

ds_status dsi_replica_backward(dsi_replica *r)
{
    dsi_replica_graph *s = r->graph;
    int slots = ds_state_len(r->tensors);
    for (int i = 0; i < slots; i++) ds_set_grad_of(ds_state_at(r->tensors, i), NULL);
    ds_tensor *dy = view_copy(r, r->dy);
    ds_status status = dy ? DS_OK : ds_error_status();
    if (dy && ds_requires_grad(s->y)) status = ds_backward_from(s->y, dy);
    dsi_hold(&s->y, NULL);
    for (int i = 0; i < slots; i++) r->grad[i] = grad_of(ds_state_at(r->tensors, i));
    for (int j = 0; j < s->n; j++) r->dx[j] = grad_of(s->x[j]);
    if (status == DS_OK && r->worker && r->device.kind != DS_CPU) status = grads_pack(r, slots);
    return status;
}

/* ---- a job, in its surroundings ------------------------------------------------------------------------ */

static void replica_run_job(dsi_replica *r)
{
    dsi_trace_begin("replica");
    ds_scope *scope = ds_scope_open();
    r->status = r->job(r);
    if (r->status != DS_OK) snprintf(r->why, sizeof r->why, "%s", ds_error());
    ds_scope_close(scope);
    dsi_trace_end();
}

/* This thread's stream on `which` waits until the caller's is `ready`. */
static ds_status stream_wait_ready(const dsi_replica *r, ds_device which)
{
    dsi_device *d = dsi_device_get(which);
    if (!d) return ds_error_status();
    return r->ready ? d->type->wait(&d->stream, r->ready) : DS_OK;
}

/* The stream that reads the caller's memory, and that which may use again what
 * the caller has read. */
static void streams_begin(dsi_replica *r)
{
    r->status = stream_wait_ready(r, r->device);
    if (r->status == DS_OK) r->status = stream_wait_ready(r, r->home);
    if (r->status != DS_OK) snprintf(r->why, sizeof r->why, "%s", ds_error());
}

/* Waits for the replica's GPU, so that the caller may read what it made, and
 * release what it read. The GPU's faults are failures of the job. */
static void stream_end(dsi_replica *r)
{
    dsi_device *d = dsi_device_get(r->device);
    ds_status status = d ? dsi_device_check(d) : ds_error_status();
    if (r->status != DS_OK || status == DS_OK) return;
    r->status = status;
    snprintf(r->why, sizeof r->why, "%s", ds_error());
}

/* Thread-local modes of the caller do not reach the worker: they are set for
 * each job. */
static void replica_run_on_worker(void *replica)
{
    dsi_replica *r = replica;
    ds_error_clear();
    ds_set_threads(r->threads);
    ds_set_grad(r->recording), ds_set_autocast(r->autocast);
    streams_begin(r);
    replica_graph_free(r->released);
    r->released = NULL;
    if (r->status != DS_OK) return;
    replica_run_job(r);
    stream_end(r);
}

static void replica_run_on_caller(dsi_replica *r)
{
    int was = dsi_limit_threads(r->threads);
    replica_run_job(r);
    dsi_limit_threads(was);
}

void dsi_replica_start(dsi_replica *r, ds_status (*job)(dsi_replica *r))
{
    r->job = job;
    if (!r->worker) return;
    if (dsi_worker_has_thread(r->worker)) {
        dsi_worker_start(r->worker, replica_run_on_worker, r);
    } else {
        r->status = DS_ESTATE;
        snprintf(r->why, sizeof r->why,
                 "its thread did not come along into this fork of the process: make a new "
                 "ds_data_parallel here");
    }
}

void dsi_replica_wait(dsi_replica *r)
{
    if (!r->worker)
        replica_run_on_caller(r);
    else if (dsi_worker_has_thread(r->worker))
        dsi_worker_wait(r->worker);
}

void dsi_replica_free_graph(dsi_replica *r, dsi_replica_graph *graph)
{
    if (!graph) return;
    if (!r->worker) {
        replica_graph_free(graph);
        return;
    }
    graph->next = r->released;
    r->released = graph;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static dsi_replica *replica_alloc(int number, int slots)
{
    dsi_replica *r = dsi_alloc(sizeof *r);
    r->number = number;
    r->threads = 1;
    r->recording = true;
    r->memory = dsi_alloc((size_t)slots * sizeof *r->memory);
    r->grad = dsi_alloc((size_t)slots * sizeof *r->grad);
    r->trained = dsi_alloc((size_t)slots);
    r->grad_at = dsi_alloc((size_t)slots * sizeof *r->grad_at);
    return r;
}

dsi_replica *dsi_replica_of(ds_module *module)
{
    ds_state *tensors = ds_module_state(module);
    dsi_replica *r = replica_alloc(0, ds_state_len(tensors));
    r->home = ds_state_len(tensors) ? ds_device_of(ds_state_at(tensors, 0)) : ds_current_device();
    r->device = r->home;
    r->module = module;
    r->tensors = tensors;
    return r;
}

typedef struct Recipe {
    dsi_replica *r;
    const dsi_replica *like;
    ds_module *(*make)(void *arg);
    void *arg;
} Recipe;

/* Both state dicts list parameters and buffers in the same order. */
static ds_status view_compare(const ds_state *mine, const ds_state *model)
{
    int n = ds_state_len(mine), wanted = ds_state_len(model);
    for (int i = 0; i < n && i < wanted; i++) {
        ds_dims is = ds_shape_of(ds_state_at(mine, i)), want = ds_shape_of(ds_state_at(model, i));
        if (strcmp(ds_state_name(mine, i), ds_state_name(model, i)) != 0 ||
            !dsi_same_shape(is, want))
            return dsi_fail(DS_EINVAL, "make gave %s %s where the module has %s %s",
                            ds_state_name(mine, i), dsi_shape_text(is), ds_state_name(model, i),
                            dsi_shape_text(want));
    }
    if (n == wanted) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "make gave a module of %d parameters and buffers: expected %d, as the "
                    "module has",
                    n, wanted);
}

/* On the new thread: calls `make`, and checks that names and shapes equal the
 * model's. */
static void replica_make_module(void *recipe)
{
    Recipe *a = recipe;
    dsi_replica *r = a->r;
    char name[32];
    snprintf(name, sizeof name, "replica %d", r->number);
    dsi_trace_name_thread(name);
    dsi_log_set_rank(r->number); /* only replica 0 logs */
    ds_scope *scope = ds_scope_open();
    r->status = ds_set_device(r->device);
    if (r->status == DS_OK) r->module = a->make(a->arg);
    r->tensors = ds_module_state(r->module);
    if (!r->module && !ds_error()) dsi_fail(DS_EINVAL, "make gave no module");
    r->status = ds_error_status();
    if (r->status == DS_OK) r->status = view_compare(r->tensors, a->like->tensors);
    if (r->status != DS_OK) snprintf(r->why, sizeof r->why, "%s", ds_error());
    ds_scope_close(scope);
}

dsi_replica *dsi_replica_new(int number, const dsi_replica *like, ds_device device,
                             ds_module *(*make)(void *arg), void *arg)
{
    dsi_worker *worker = dsi_worker_new();
    if (!worker) return NULL;
    dsi_replica *r = replica_alloc(number, ds_state_len(like->tensors));
    r->worker = worker;
    r->device = device;
    r->home = like->device;
    Recipe recipe = {r, like, make, arg};
    dsi_worker_start(worker, replica_make_module, &recipe);
    dsi_worker_wait(worker);
    if (r->status == DS_OK) return r;
    dsi_fail(r->status, "replica %d: %s", number, r->why);
    dsi_replica_free(r);
    return NULL;
}

static void replica_free_module(void *replica)
{
    dsi_replica *r = replica;
    streams_begin(r);
    replica_graph_free(r->released);
    ds_state_free(r->tensors);
    ds_module_free(r->module);
    dsi_unref(r->params_block);
    dsi_unref(r->grads_block);
}

void dsi_replica_free(dsi_replica *r)
{
    if (!r) return;
    if (!r->worker) {
        ds_state_free(r->tensors);
    } else if (dsi_worker_has_thread(r->worker)) {
        dsi_worker_start(r->worker, replica_free_module, r);
        dsi_worker_wait(r->worker);
    }
    dsi_worker_free(r->worker);
    dsi_free(r->memory);
    dsi_free(r->grad);
    dsi_free(r->trained);
    dsi_free(r->grad_at);
    dsi_free(r);
}
