/* optim/replay.c: see replay.h.
 *
 * The learning rate of a group, its momentum (or beta1) and the steps since the
 * capture are in a slot of the graph. All else that the kernel was given by
 * value, and every address, must be what it was: else the capture does not
 * hold, and the step is recorded
 * again.
 *
 * Where the host does not learn whether a launch was skipped (a gradient
 * scaler), the device counts skips, and subtracts them from the slot's steps.
 * The host counts all launches, and reads the skips when it needs a count.
 *
 * Invariants: a Replay stands for one group with parameters in one captured
 * step, and counts their steps at each replay. It holds the gradients that the
 * captured step writes, and makes them the parameters' again if another step
 * has replaced them.
 * SPDX-License-Identifier: MIT */
#include "replay.h"

#include "device/graph.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

typedef struct Param {
    int i;           /* of the optimizer's */
    int64_t begun;   /* steps when it was captured */
    int64_t before;  /* steps before this run */
    ds_tensor *grad; /* counted */
    void *p, *low, *rest, *moment[DS_OPTIM_MOMENTS];
} Param;

/* Steps that the device has skipped. */
typedef struct dsi_skips {
    ds_tensor *count; /* int64 [] on the device, counted */
    int64_t seen;     /* of these, those that step counts are without */
    int64_t unread;   /* the recording whose launches may have skipped more; 0: none */
} dsi_skips;

typedef struct Replay {
    ds_optim *o;
    int group, n;
    int64_t counted; /* the recording, if the device counts skips; else 0 */
    ds_optim_values values;
    double momentum; /* when it was captured */
    void *self;      /* a copy */
    dsi_step_scalars *host;
    const dsi_step_result *result; /* after a launch; NULL: every step updates */
    Param param[];
} Replay;

/* Of the storage: a captured kernel has addresses, not handles. */
static void *address(const ds_tensor *x) { return x && x->storage ? x->storage->p : NULL; }

/* Updates since the capture, replayed or not: the same for all parameters. */
static int64_t steps_since(const Replay *r)
{
    return r->o->params[r->param[0].i].step - r->param[0].begun;
}

/* Every parameter must also have made as many steps as the first one, because
 * the slot has a single count for the group. */
static bool param_holds(const Replay *r, const Param *x)
{
    const dsi_optim_param *now = &r->o->params[x->i];
    bool same = now->group == r->group && now->step - x->begun == steps_since(r) &&
                address(now->p) == x->p && address(now->low) == x->low &&
                address(now->rest) == x->rest;
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
        same = same && address(now->moment[k]) == x->moment[k];
    return same;
}

/* Momentum, or beta1; 0 for rules without. */
static double momentum_of(const ds_optim *o, int group)
{
    const ds_optim_values *v = &o->groups[group];
    return o->type->has_momentum ? v->momentum : o->type->has_betas ? v->betas[0] : 0;
}

/* False: the step is recorded again. Options in self are compared as bytes. A
 * momentum that becomes 0, or no longer is, changes what the kernel reads. */
static bool replay_holds(void *arg)
{
    const Replay *r = arg;
    const ds_optim *o = r->o;
    if (r->group >= o->n_groups) return false;
    const ds_optim_values *now = &o->groups[r->group], *then = &r->values; /* lr may change */
    if (now->weight_decay != then->weight_decay || now->betas[1] != then->betas[1] ||
        (momentum_of(o, r->group) == 0) != (r->momentum == 0))
        return false;
    if (memcmp(o->self, r->self, o->type->self_size) != 0) return false;
    for (int i = 0; i < r->n; i++)
        if (!param_holds(r, &r->param[i])) return false;
    return true;
}

/* The numbers that the kernel adds to the step of the capture. A rule without
 * `step` in its state only asks whether this is the first: then slots do not
 * change, and are not copied again. */
static int64_t steps_now(const Replay *r)
{
    int64_t steps = steps_since(r) + 1;
    if (r->counted) return steps + r->o->skips->seen;
    return r->o->type->no_step && steps > 1 ? 1 : steps;
}

/* The next launch may skip the step of these parameters. */
static void replay_unread(const Replay *r)
{
    r->o->skips->unread = r->counted;
    for (int i = 0; i < r->n; i++) r->o->params[r->param[i].i].lags = true;
}

/* The host's part of the step: counts it, and gives each parameter the gradient
 * that the launch writes. */
static void replay_before(void *arg)
{
    Replay *r = arg;
    if (r->counted) {
        /* launches of one recording skip the same parameters */
        if (r->o->skips->unread != r->counted) (void)dsi_replay_read_skips(r->o);
        replay_unread(r);
    }
    r->host->lr = r->o->groups[r->group].lr;
    r->host->momentum = momentum_of(r->o, r->group);
    r->host->steps = steps_now(r);
    for (int i = 0; i < r->n; i++) {
        dsi_optim_param *x = &r->o->params[r->param[i].i];
        r->param[i].before = x->step++;
        if (x->p->grad != r->param[i].grad) ds_set_grad_of(x->p, r->param[i].grad);
    }
}

/* A step that the device has skipped is not counted. */
static ds_status replay_after(void *arg)
{
    const Replay *r = arg;
    if (!r->result || r->result->skip == 0) return DS_OK;
    for (int i = 0; i < r->n; i++) r->o->params[r->param[i].i].step--;
    return DS_OK;
}

static void replay_undo(void *arg)
{
    const Replay *r = arg;
    for (int i = 0; i < r->n; i++) r->o->params[r->param[i].i].step = r->param[i].before;
}

static void replay_release(void *arg)
{
    Replay *r = arg;
    for (int i = 0; i < r->n; i++) dsi_unref(r->param[i].grad);
    dsi_free(r->self);
    dsi_free(r);
}

static Replay *replay_new(ds_optim *o, int group, const int *updated, int n)
{
    Replay *r = dsi_alloc(sizeof *r + (size_t)n * sizeof *r->param);
    *r = (Replay){.o = o, .group = group, .n = n, .values = o->groups[group]};
    r->self = dsi_alloc(o->type->self_size ? o->type->self_size : 1);
    memcpy(r->self, o->self, o->type->self_size);
    for (int i = 0; i < n; i++) {
        const dsi_optim_param *x = &o->params[updated[i]];
        r->param[i] = (Param){.i = updated[i],
                              .begun = x->step + 1, /* this step is not counted yet */
                              .before = x->step,
                              .grad = dsi_ref(x->p->grad),
                              .p = address(x->p),
                              .low = address(x->low),
                              .rest = address(x->rest)};
        for (int k = 0; k < DS_OPTIM_MOMENTS; k++) r->param[i].moment[k] = address(x->moment[k]);
    }
    return r;
}

/* Those in the slot at x, with steps without the skipped ones. */
static const dsi_step_scalars *scalars_counted(const dsi_step_scalars *x, const ds_tensor *count)
{
    enum { COPIED = offsetof(dsi_step_scalars, steps) / sizeof(double) };
    ds_tensor *y = dsi_new_dtype(count, DS_F64, ds_shape(sizeof *x / sizeof(double)));
    if (!y) return NULL;
    dsi_view from = {.p = (void *)x, .dtype = DS_F64, .n = 1, .d = {COPIED}, .s = {1}}, to = from,
             steps = {.p = (void *)&x->steps, .dtype = DS_I64}, own = steps;
    dsi_step_scalars *at = dsi_v(y).p;
    to.p = at, own.p = &at->steps;
    return dsi_run(y, copy, from, to) &&
                   dsi_run_op(y, binary, DSI_ADD, -1.0, steps, dsi_v(count), own)
               ? at
               : NULL;
}

ds_status dsi_replay_begin(ds_optim *o, int group, const int *updated, int n)
{
    static const dsi_graph_hook hook = {.holds = replay_holds,
                                        .before = replay_before,
                                        .after = replay_after,
                                        .release = replay_release,
                                        .undo = replay_undo};
    static const char before[] = "a schedule is stepped before its optimizer (ds_schedule_step)";
    dsi_device *d = n ? o->params[updated[0]].p->device : NULL;
    if (!dsi_graph_recording(d)) return DS_OK;
    if (o->scheduled == d->recordings && dsi_graph_forbid(d, before) != DS_OK)
        return ds_error_status();
    o->scalar_uses = dsi_graph_scalar_uses(d);
    if (!dsi_graph_capturing(d)) return DS_OK;
    dsi_step_scalars *host = NULL;
    const dsi_step_scalars *scalars = dsi_graph_slot(d, sizeof *host, &host);
    if (!scalars) return ds_error_status();
    *host = (dsi_step_scalars){.lr = o->groups[group].lr, .momentum = momentum_of(o, group)};
    Replay *r = replay_new(o, group, updated, n);
    r->momentum = host->momentum;
    r->host = host;
    r->result = dsi_graph_decided(d).host;
    if (dsi_graph_decided(d).device && !r->result) {
        r->counted = d->recordings;
        host->steps = o->skips->seen;
        replay_unread(r);
        scalars = scalars_counted(scalars, o->skips->count);
    }
    dsi_graph_add_hook(d, &hook, r);
    dsi_graph_set_scalars(d, scalars);
    return scalars ? DS_OK : ds_error_status();
}

ds_status dsi_replay_end(ds_optim *o, const int *updated, int n)
{
    dsi_device *d = n ? o->params[updated[0]].p->device : NULL;
    if (!dsi_graph_recording(d)) return DS_OK;
    dsi_graph_set_scalars(d, NULL);
    if (dsi_graph_scalar_uses(d) > o->scalar_uses) return DS_OK;
    return dsi_graph_forbid(d,
                            "its optimizer is made of ops, which take the learning rate by value");
}

/* ---- skipped steps -------------------------------------------------------------------------------------- */

ds_status dsi_replay_prepare(ds_optim *o, dsi_device *d)
{
    if (!dsi_graph_recording(d)) return DS_OK;
    if (o->skips) return dsi_replay_read_skips(o);
    ds_tensor *count = dsi_new_on(d, DS_I64, (ds_dims){0});
    if (!dsi_fill(count, 0)) return ds_error_status();
    o->skips = dsi_alloc(sizeof *o->skips);
    o->skips->count = dsi_ref(count);
    return DS_OK;
}

ds_status dsi_replay_step(ds_optim *o, ds_tensor *result)
{
    dsi_device *d = result->device;
    if (!o->skips) return dsi_graph_forbid(d, "its gradient scaler has another optimizer");
    ds_scope *scope = ds_scope_open();
    ds_tensor *count = o->skips->count,
              *skip = dsi_to_dtype(dsi_element_of(result, DSI_RESULT(skip)), DS_I64);
    dsi_graph_decide(d, (dsi_graph_decision){.device = dsi_v(result).p});
    ds_status status = skip ? ds_optim_step(o) : ds_error_status();
    dsi_graph_decide(d, (dsi_graph_decision){0});
    if (status == DS_OK &&
        !dsi_run_op(count, binary, DSI_ADD, 1.0, dsi_v(count), dsi_v(skip), dsi_v(count)))
        status = ds_error_status();
    ds_scope_close(scope);
    return status;
}

ds_status dsi_replay_read_skips(const ds_optim *o)
{
    dsi_skips *k = o->skips;
    if (!k || !k->unread) return DS_OK;
    bool noted = dsi_graph_note(k->count->device, false);
    double count = ds_item(k->count);
    dsi_graph_note(k->count->device, noted);
    if (isnan(count)) return ds_error_status();
    for (int i = 0; i < o->n; i++) {
        if (o->params[i].lags) o->params[i].step -= (int64_t)count - k->seen;
        o->params[i].lags = false;
    }
    k->seen = (int64_t)count;
    k->unread = 0;
    return DS_OK;
}

void dsi_replay_free_skips(ds_optim *o)
{
    if (o->skips) dsi_unref(o->skips->count);
    dsi_free(o->skips);
}
