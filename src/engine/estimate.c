/* engine/estimate.c: the memory of a rank, from a configuration: Note
 * [Estimate] of parallel/estimate.h.
 *
 * With a model one forward and backward runs as the engine would run it, in its
 * dtype. Hooks note how much memory is in use whenever a gradient is complete,
 * and free that gradient.
 *
 * Invariants: afterwards the model (values, dtype, gradients), the thread's
 * generator and the device's peaks are what they were, also when the pass
 * fails.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "autograd/node.h"
#include "base/list.h"
#include "base/rng.h"
#include "parallel/estimate.h"

/* ---- from the configuration ------------------------------------------------------------------------------ */

/* The number of tensors that the optimizer keeps for each parameter; -1 with
 * the message. */
static int optimizer_count_moments(const dsi_config *c, bool *takes_halves)
{
    if (!c->optimizer.type) return 0;
    int n = 0;
    ds_scope *scope = ds_scope_open();
    ds_module *any = dsi_trial_model();
    ds_optim *optim = ds_optim_by_name(any, c->optimizer.type, c->optimizer.params);
    for (int i = 0; optim && i < DS_OPTIM_MOMENTS; i++) n += dsi_optim_uses(optim, 0, i);
    *takes_halves = optim && dsi_optim_takes_halves(optim);
    if (!optim) {
        dsi_config_fail_at(c, ds_error_status());
        n = -1;
    }
    ds_optim_free(optim);
    ds_module_free(any);
    ds_scope_close(scope);
    return n;
}

/* ---- a pass of the model ----------------------------------------------------------------------------------- */

typedef struct Pass {
    const dsi_flat *f;
    dsi_device *device;
    int64_t before; /* bytes */
    bool asked;     /* the current op has requested a gradient buffer */
    int64_t peak;   /* bytes, up to that request */
    struct {
        DSI_LIST(dsi_pass_event)
    } events;
} Pass;

typedef struct Leaf {
    Pass *pass;
    int i;
    bool placed;
} Leaf;

static int64_t pass_peak(const Pass *p)
{
    return (int64_t)dsi_cache_use(p->device).peak_live - p->before;
}

/* An op requests a buffer for a gradient. It gets none, but the memory in use
 * at the first request of an op is recorded. */
static ds_tensor *pass_note_request(void *arg, ds_tensor *x)
{
    (void)x;
    Leaf *l = arg;
    Pass *p = l->pass;
    l->placed = true;
    if (p->asked) return NULL;
    p->asked = true;
    p->peak = pass_peak(p);
    dsi_cache_restart_peaks(p->device);
    return NULL;
}

/* A gradient is complete: records the memory in use, and drops it. */
static void pass_note_complete(void *arg, ds_tensor *x)
{
    Leaf *l = arg;
    Pass *p = l->pass;
    dsi_pass_event e = {.i = l->i,
                        .placed = l->placed,
                        .before = p->asked ? p->peak : 0,
                        .peak = pass_peak(p),
                        .live = (int64_t)dsi_cache_use(p->device).live - p->before};
    p->asked = false;
    dsi_list_add(&p->events, e);
    ds_set_grad_of(x, NULL);
    dsi_cache_restart_peaks(p->device);
}

/* Runs forward and backward with hooks on every parameter that is trained. */
static ds_status pass_run(Pass *p, const ds_estimate_opts *q, ds_tensor *input)
{
    Leaf *leaf = dsi_alloc((size_t)p->f->n * sizeof *leaf);
    for (int i = 0; i < p->f->n; i++) {
        leaf[i] = (Leaf){.pass = p, .i = i};
        dsi_set_grad_ready_hook(p->f->param[i].x, pass_note_complete, &leaf[i]);
        dsi_set_grad_buffer_hook(p->f->param[i].x, pass_note_request);
    }
    ds_scope *scope = ds_scope_open();
    dsi_cache_restart_peaks(p->device);
    p->before = (int64_t)dsi_cache_use(p->device).live;
    ds_tensor *y = ds_call(q->model, input), *loss = NULL;
    if (y) loss = q->loss ? q->loss(y, q->target) : ds_mean(y);
    ds_status status = loss ? dsi_backward_scaled(loss, 1) : ds_error_status();
    ds_scope_close(scope);
    for (int i = 0; i < p->f->n; i++) dsi_set_grad_ready_hook(p->f->param[i].x, NULL, NULL);
    dsi_free(leaf);
    return status;
}

/* Values that a pass in 16 bits would round, and buffers that forward changes. */
static ds_state *pass_copy_values(ds_module *model)
{
    ds_state *now = ds_module_state(model), *copy = ds_state_new();
    for (int i = 0; now && i < ds_state_len(now); i++) {
        ds_tensor *x = ds_clone(ds_detach(ds_state_at(now, i)));
        if (!x || ds_state_set(copy, ds_state_name(now, i), x) != DS_OK) break;
    }
    ds_state_free(now);
    return copy;
}

/* The model's gradients, [f->n], some NULL: while the pass runs the model has
 * none. */
static ds_tensor **pass_take_gradients(const dsi_flat *f)
{
    ds_tensor **grad = dsi_alloc((size_t)f->n * sizeof *grad);
    for (int i = 0; i < f->n; i++) {
        grad[i] = dsi_ref(f->param[i].x->grad);
        ds_set_grad_of(f->param[i].x, NULL);
    }
    return grad;
}

static void pass_return_gradients(const dsi_flat *f, ds_tensor **grad)
{
    for (int i = 0; i < f->n; i++) {
        ds_set_grad_of(f->param[i].x, grad[i]);
        dsi_unref(grad[i]);
    }
    dsi_free(grad);
}

/* Runs the pass in the engine's dtype, and restores what it changes. */
static ds_status pass_measure(Pass *p, const dsi_zero_opts *o, const ds_estimate_opts *q)
{
    ds_dtype was = ds_dtype_of(ds_module_param_at(q->model, 0, NULL));
    dsi_rng generator = *dsi_rng_default();
    ds_tensor **gradients = pass_take_gradients(p->f);
    ds_state *values = pass_copy_values(q->model);
    ds_status status = ds_error() ? ds_error_status() : ds_module_to(q->model, o->dtype);
    ds_tensor *x = q->input->dtype <= DS_BF16 ? ds_cast(q->input, o->dtype) : q->input;
    if (status == DS_OK) status = pass_run(p, q, x);
    if (ds_module_to(q->model, was) != DS_OK || ds_module_load(q->model, values) != DS_OK)
        status = ds_error_status();
    ds_state_free(values);
    pass_return_gradients(p->f, gradients);
    *dsi_rng_default() = generator;
    return status;
}

/* The batch was in memory before the pass, so that its bytes are added. */
static ds_status estimate_from_model(const dsi_zero_opts *o, const dsi_estimate_sizes *s,
                                     const ds_estimate_opts *q, dsi_estimate *e)
{
    dsi_flat_opts layout = dsi_zero_layout(o, 0, s->ranks);
    dsi_flat *f = dsi_flat_new(q->model, &layout);
    if (!f) return ds_error_status();
    Pass p = {.f = f, .device = f->param[0].x->device};
    dsi_cache_peaks peaks = dsi_cache_get_peaks(p.device);
    ds_scope *scope = ds_scope_open();
    ds_status status = pass_measure(&p, o, q);
    ds_scope_close(scope);
    dsi_cache_set_peaks(p.device, peaks);
    if (status == DS_OK) {
        *e = dsi_estimate_pass(o, s, f, p.events.at, p.events.n);
        ds_dtype dtype = q->input->dtype <= DS_BF16 ? o->dtype : q->input->dtype;
        int64_t bytes = dsi_numel(q->input->shape) * (int64_t)ds_dtype_size(dtype);
        e->passing += bytes; /* the batch itself was there before */
        e->peak += bytes;
    }
    dsi_list_free(&p.events);
    dsi_flat_free(f);
    return status;
}

/* ---- the estimate -------------------------------------------------------------------------------------------- */

static ds_status estimate_from_config(const dsi_config *c, const ds_estimate_opts *q,
                                      dsi_estimate *e)
{
    dsi_zero_opts o = dsi_engine_zero_opts(c);
    dsi_estimate_sizes s = {.ranks = c->world_size,
                            .accumulates = c->gradient_accumulation_steps > 1,
                            .params = q->params,
                            .largest = q->largest,
                            .activations = q->activations};
    s.moments = optimizer_count_moments(c, &s.takes_halves);
    if (s.moments < 0) return ds_error_status();
    if (q->model) return estimate_from_model(&o, &s, q, e);
    *e = dsi_estimate_sizes_only(&o, &s);
    return DS_OK;
}

/* Errors of the options. */
static ds_status estimate_check(const ds_estimate_opts *q)
{
    if (!q->model && q->params < 1)
        return dsi_fail(DS_EINVAL,
                        "estimate_memory: %lld parameters: expected .params of 1 or "
                        "more, or .model and .input",
                        (long long)q->params);
    if (q->model && !q->input)
        return dsi_fail(DS_EINVAL, "estimate_memory: a model without .input: expected a micro "
                                   "batch to run it on");
    if (q->target && !q->loss)
        return dsi_fail(DS_EINVAL, "estimate_memory: a target without .loss: expected the function "
                                   "that computes the loss from the output and the target");
    if (q->largest < 0 || q->largest > q->params || q->activations < 0)
        return dsi_fail(DS_EINVAL,
                        "estimate_memory: .largest is %lld and .activations %lld: expected 0 or "
                        "more, and no parameter larger than all %lld",
                        (long long)q->largest, (long long)q->activations, (long long)q->params);
    return DS_OK;
}

ds_status ds_estimate_memory_with(ds_memory_estimate *out, ds_estimate_opts q)
{
    if (!dsi_live(out, "estimate_memory")) return dsi_null_argument("estimate_memory");
    *out = (ds_memory_estimate){0};
    if (estimate_check(&q) != DS_OK) return ds_error_status();
    dsi_config *c = dsi_config_read(q.config, q.world_size ? q.world_size : 1);
    if (!c) return ds_error_status();
    dsi_estimate e = {0};
    ds_status status = estimate_from_config(c, &q, &e);
    if (status == DS_OK)
        *out = (ds_memory_estimate){.stage = (int)c->zero.stage,
                                    .dtype = dsi_engine_zero_opts(c).dtype,
                                    .parameters = e.parameters,
                                    .gradients = e.gradients,
                                    .optimizer = e.optimizer,
                                    .passing = e.passing,
                                    .gathered = e.gathered,
                                    .peak = e.peak,
                                    .file = e.file};
    dsi_config_free(c);
    return status;
}
