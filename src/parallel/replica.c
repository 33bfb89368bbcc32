/* parallel/replica.c: one replica of DataParallel, as seen from its own thread.
 * Note [Replicas]
 * SPDX-License-Identifier: MIT */
#include "replica.h"

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

/* Points the module's parameters and buffers to the caller's present memory. */
static void replica_map_memory(dsi_replica *r)
{
    for (int i = 0; i < ds_state_len(r->tensors); i++) {
        ds_tensor *x = ds_state_at(r->tensors, i);
        x->requires_grad = r->trained[i];
        if (!tensor_matches_view(x, &r->memory[i]))
            dsi_tensor_set_data(x, dsi_borrow(x->device, r->memory[i]));
    }
}

/* v's values in memory of this thread; laid out as v is, if v is dense. */
static ds_tensor *view_copy(dsi_device *d, dsi_view v)
{
    ds_tensor *x = dsi_new_on(d, v.dtype, dsi_view_dims(v));
    if (!x) return NULL;
    int64_t row_major[DS_MAX_DIMS];
    memcpy(row_major, x->stride, sizeof row_major);
    memcpy(x->stride, v.s, sizeof x->stride);
    if (!dsi_is_dense(x)) memcpy(x->stride, row_major, sizeof row_major);
    return dsi_run(x, copy, v, dsi_v(x)) ? x : NULL;
}

ds_status dsi_replica_forward(dsi_replica *r)
{
    dsi_replica_graph *s = r->graph;
    if (r->worker) {
        dsi_rng_seed(dsi_rng_default(), r->seed);
        replica_map_memory(r);
    }
    for (int j = 0; j < s->n; j++) {
        if (!s->x[j]) s->x[j] = dsi_ref(view_copy(dsi_device_current(), r->in[j]));
        if (!s->x[j]) return ds_error_status();
        s->x[j]->requires_grad = r->collects[j];
    }
    s->y = dsi_ref(ds_call_n(r->module, s->x, s->n));
    if (!s->y || !dsi_acquire(s->y)) return ds_error_status();
    r->y = dsi_v(s->y);
    r->y_has_graph = ds_requires_grad(s->y);
    return DS_OK;
}

static dsi_view grad_of(const ds_tensor *x) { return dsi_v(ds_grad(x)); }

ds_status dsi_replica_backward(dsi_replica *r)
{
    dsi_replica_graph *s = r->graph;
    int slots = ds_state_len(r->tensors);
    for (int i = 0; i < slots; i++) ds_set_grad_of(ds_state_at(r->tensors, i), NULL);
    ds_tensor *dy = view_copy(s->y->device, r->dy);
    ds_status status = dy ? DS_OK : ds_error_status();
    if (dy && ds_requires_grad(s->y)) status = ds_backward_from(s->y, dy);
    dsi_hold(&s->y, NULL);
    for (int i = 0; i < slots; i++) r->grad[i] = grad_of(ds_state_at(r->tensors, i));
    for (int j = 0; j < s->n; j++) r->dx[j] = grad_of(s->x[j]);
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

/* Thread-local modes of the caller do not reach the worker: they are set for
 * each job. */
static void replica_run_on_worker(void *replica)
{
    dsi_replica *r = replica;
    ds_error_clear();
    ds_set_threads(r->threads);
    ds_set_grad(r->recording);
    replica_graph_free(r->released);
    r->released = NULL;
    replica_run_job(r);
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
    return r;
}

dsi_replica *dsi_replica_of(ds_module *module)
{
    ds_state *tensors = ds_module_state(module);
    dsi_replica *r = replica_alloc(0, ds_state_len(tensors));
    r->module = module;
    r->tensors = tensors;
    return r;
}

typedef struct Recipe {
    dsi_replica *r;
    const dsi_replica *like;
    ds_device device;
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
    r->status = ds_set_device(a->device);
    if (r->status == DS_OK) r->module = a->make(a->arg);
    r->tensors = ds_module_state(r->module);
    if (!r->module && !ds_error()) dsi_fail(DS_EINVAL, "make gave no module");
    r->status = ds_error_status();
    if (r->status == DS_OK) r->status = view_compare(r->tensors, a->like->tensors);
    if (r->status != DS_OK) snprintf(r->why, sizeof r->why, "%s", ds_error());
    ds_scope_close(scope);
}

dsi_replica *dsi_replica_new(int number, const dsi_replica *like, ds_module *(*make)(void *arg),
                             void *arg)
{
    dsi_device *d = dsi_device_current();
    dsi_worker *worker = d ? dsi_worker_new() : NULL;
    if (!worker) return NULL;
    dsi_replica *r = replica_alloc(number, ds_state_len(like->tensors));
    r->worker = worker;
    Recipe recipe = {r, like, dsi_device_id(d), make, arg};
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
    replica_graph_free(r->released);
    ds_state_free(r->tensors);
    ds_module_free(r->module);
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
    dsi_free(r);
}
