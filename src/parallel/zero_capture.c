/* parallel/zero_capture.c: steps of ZeRO that a device captures
 * (device/graph.h): what is decided, is decided there.
 *
 * Invariants: a captured pass begins with the buckets and gradients that the
 * graph's record has, and ends when all its sums are in their place. On several
 * ranks it starts the collectives that a step without a graph starts, in the
 * same order, so ranks may differ in what they do: stage 3 begins each of these
 * micro steps with all parameters evicted and with the same trace.
 * SPDX-License-Identifier: MIT */
#include "zero_state.h"

#include "base/mem.h"
#include "norm.h"

const char *dsi_zero_why_no_graph(const dsi_zero *z)
{
    if (z->offload || z->staging) return "its state is in host memory or in files";
    if (z->comm && !dsi_zero_norm_is_queued(z))
        return "it exchanges gradients with other ranks through host memory (without NCCL)";
    return z->o.deterministic ? "gradients are added up in a fixed order (deterministic)" : NULL;
}

/* The gradients of a captured micro step: those that it adds to, which must be
 * where they were, and those that it leaves. */
typedef struct MicroGrads {
    dsi_zero *z;
    int n;
    bool last;
    uint64_t trace; /* of stage 3 */
    dsi_reduce_record *reduce_before, *reduce_after;
    struct {
        ds_tensor *before, *after; /* counted; NULL: none */
    } of[];
} MicroGrads;

static const void *grad_address(const ds_tensor *g)
{
    return g && g->storage ? g->storage->p : NULL;
}

static bool micro_grads_hold(void *arg)
{
    const MicroGrads *m = arg;
    for (int i = 0; i < m->n; i++)
        if (grad_address(ds_grad(m->z->flat->param[i].x)) != grad_address(m->of[i].before))
            return false;
    if (m->z->zero3 && !dsi_zero3_will_follow(m->z->zero3, m->trace)) return false;
    return dsi_reduce_is_as(m->z->reduce, m->reduce_before);
}

/* The last micro step's are of no use after the update. */
static ds_status micro_grads_set(void *arg)
{
    const MicroGrads *m = arg;
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && !m->last && i < m->n; i++)
        status = ds_set_grad_of(m->z->flat->param[i].x, m->of[i].after);
    if (!m->last) dsi_reduce_set_as(m->z->reduce, m->reduce_after);
    return status;
}

static void micro_grads_undo(void *arg)
{
    const MicroGrads *m = arg;
    for (int i = 0; i < m->n; i++) (void)ds_set_grad_of(m->z->flat->param[i].x, m->of[i].before);
    dsi_reduce_set_as(m->z->reduce, m->reduce_before);
}

static void micro_grads_release(void *arg)
{
    MicroGrads *m = arg;
    for (int i = 0; i < m->n; i++) dsi_unref(m->of[i].before), dsi_unref(m->of[i].after);
    dsi_reduce_record_free(m->reduce_before);
    dsi_reduce_record_free(m->reduce_after);
    dsi_free(m);
}

ds_status dsi_zero_capture_backward(dsi_zero *z, ds_tensor *loss, const double *factor, bool last)
{
    static const dsi_graph_hook hook = {.holds = micro_grads_hold,
                                        .after = micro_grads_set,
                                        .release = micro_grads_release,
                                        .undo = micro_grads_undo};
    const dsi_flat *f = z->flat;
    dsi_view v = {.p = (void *)factor, .dtype = DS_F64};
    MicroGrads *m = dsi_alloc(sizeof *m + (size_t)f->n * sizeof *m->of);
    m->z = z, m->n = f->n, m->last = last;
    m->reduce_before = dsi_reduce_record_new(z->reduce);
    for (int i = 0; i < f->n; i++) m->of[i].before = dsi_ref(ds_grad(f->param[i].x));
    dsi_graph_add_hook(loss->device, &hook, m);
    ds_scope *scope = ds_scope_open();
    ds_tensor *seed = dsi_new(loss, loss->shape);
    ds_status status = dsi_copy(seed, dsi_borrow(loss->device, v));
    if (status == DS_OK && z->reduce) status = dsi_reduce_begin(z->reduce, last);
    if (z->zero3) dsi_zero3_set_backward(z->zero3, true);
    if (status == DS_OK) status = ds_backward_from(loss, seed);
    if (z->zero3) dsi_zero3_set_backward(z->zero3, false);
    if (z->zero3) m->trace = dsi_zero3_followed(z->zero3);
    if (status == DS_OK && z->reduce) status = dsi_reduce_end(z->reduce);
    if (status == DS_OK && z->reduce) status = dsi_reduce_wait(z->reduce); /* within the capture */
    ds_scope_close(scope);
    for (int i = 0; i < f->n; i++) m->of[i].after = dsi_ref(ds_grad(f->param[i].x));
    m->reduce_after = dsi_reduce_record_new(z->reduce);
    return status;
}

/* The norm of the gradients of all ranks into device memory at p. */
static bool norm_capture(const dsi_zero *z, void *p)
{
    const ds_tensor *x = z->flat->param[0].x;
    const dsi_view norm = {.p = p, .dtype = DS_F64};
    double none;
    int n = dsi_zero_norm_lines(z, &none);
    if (z->comm)
        return dsi_norm_total(dsi_norm_queue(z->comm, z->norm_sums, n, z->grad_views), z->norm_sums,
                              norm) == DS_OK;
    if (n <= 0) return n == 0 && dsi_run(x, fill, 0.0, norm);
    return dsi_run(x, norm, 2, n, z->grad_views, norm);
}

static ds_status capture_decide(const dsi_zero *z, const dsi_zero_capture *c)
{
    const ds_tensor *x = z->flat->param[0].x;
    bool wanted = c->update && (c->want_norm || c->limits.finite_norm || c->limits.max_norm > 0);
    void *norm = wanted ? dsi_cache_alloc(x->device, sizeof(double)) : NULL;
    bool done = (!wanted || (norm && norm_capture(z, norm))) && dsi_acquire(c->loss) &&
                dsi_run(x, step_result, &c->limits,
                        (dsi_view){.p = (void *)c->unscale, .dtype = DS_F64}, dsi_v(c->loss),
                        (dsi_view){.p = norm, .dtype = DS_F64},
                        (dsi_view){.p = (void *)c->decision.device,
                                   .dtype = DS_F64,
                                   .n = 1,
                                   .d = {sizeof(dsi_step_result) / sizeof(double)},
                                   .s = {1}});
    if (norm) dsi_cache_free(x->device, norm, sizeof(double));
    return done ? DS_OK : ds_error_status();
}

ds_status dsi_zero_capture_step(dsi_zero *z, const dsi_zero_capture *c)
{
    dsi_zero_step_result ignored;
    double from = 0;
    ds_scope *scope = ds_scope_open();
    ds_status status = c->update ? dsi_zero_hand_over(z) : DS_OK;
    if (status == DS_OK && z->zero3) status = dsi_zero3_wait_gathers(z->zero3);
    if (status == DS_OK) status = capture_decide(z, c);
    if (status == DS_OK && c->update) {
        dsi_graph_decide(z->flat->param[0].x->device, c->decision);
        status = dsi_zero_update(z, 1, &from, &ignored);
    }
    ds_scope_close(scope);
    return status;
}

ds_status dsi_zero_capture_end(dsi_zero *z, bool overflow, const char **bad_param_path)
{
    dsi_zero_step_result r = {0};
    ds_scope *scope = ds_scope_open();
    ds_status status = overflow ? dsi_zero_skip(z, &r) : DS_OK;
    dsi_zero_zero_grad(z);
    ds_scope_close(scope);
    *bad_param_path = r.bad_param_path;
    return status;
}
