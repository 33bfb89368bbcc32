/* optim/grad_scaler.c: loss scaling for float16 under autocast:
 * torch.amp.GradScaler.
 *
 * The scale is on the device of the gradients, as torch's is: kernel
 * step_result says whether a step is to be skipped, loss_scale updates the
 * scale. The host reads whether to step, or, in a step that is recorded
 * (device/graph.h), leaves it to the optimizer's kernel.
 *
 * Invariants: state is a dsi_loss_scale in device memory; before it is made,
 * and for a state on another device, scale and good are what it begins with.
 * uses[] are the optimizers whose gradients were unscaled since the last
 * update; an update, or a scale that is set, forgets them. Optimizers are
 * borrowed and compared by address, so one must live until the next update. A
 * replay does to uses[] what the calls that it stands for did. The engine has
 * its own rule (parallel/scaler.h), DeepSpeed's.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "device/graph.h"
#include "replay.h"

#include <float.h>
#include <math.h>

typedef struct scaler_use {
    const ds_optim *o;
    ds_tensor *result; /* a dsi_step_result on the device, counted */
    bool stepped;
} scaler_use;

typedef struct scaler_uses {
    int n;
    scaler_use *at;
} scaler_uses;

struct ds_grad_scaler {
    ds_grad_scaler_opts opts;
    double scale;     /* a float32 above 0 */
    double good;      /* updates in a row without a skipped step, torch's _growth_tracker */
    ds_tensor *state; /* counted; NULL before the first use */
    scaler_uses uses;
};

#define STATE_SIZE     ((int64_t)(sizeof(dsi_loss_scale) / sizeof(double)))
#define ELEMENT(field) ((int64_t)(offsetof(dsi_loss_scale, field) / sizeof(double)))

static void uses_clear(scaler_uses *u)
{
    for (int i = 0; i < u->n; i++) dsi_unref(u->at[i].result);
    dsi_free(u->at);
    *u = (scaler_uses){0};
}

/* ---- the handle ---------------------------------------------------------------------------------------- */

static const dsi_handle_kind scaler_kind = {"grad scaler", NULL, NULL, NULL};

static const dsi_param scaler_params[] = {
    DSI_PARAM("init_scale", NUMBER, POSITIVE, ds_grad_scaler_opts, init_scale, .value = {65536}),
    DSI_PARAM("growth_factor", NUMBER, POSITIVE, ds_grad_scaler_opts, growth_factor, .value = {2}),
    DSI_PARAM("backoff_factor", NUMBER, POSITIVE, ds_grad_scaler_opts, backoff_factor,
              .value = {0.5}),
    {0}};

/* Checks beside the table's. call: "grad_scaler_new", for messages. */
static ds_status scaler_check(const char *call, const ds_grad_scaler_opts *o)
{
    if (!(o->init_scale >= FLT_TRUE_MIN && o->init_scale <= FLT_MAX))
        return dsi_fail(DS_EINVAL, "%s: the scale is %g: expected a float32 above 0", call,
                        o->init_scale);
    if (!(o->growth_factor > 1))
        return dsi_fail(DS_EINVAL, "%s: growth_factor is %g: expected more than 1", call,
                        o->growth_factor);
    if (!(o->backoff_factor > 0 && o->backoff_factor < 1))
        return dsi_fail(DS_EINVAL, "%s: backoff_factor is %g: expected more than 0, less than 1",
                        call, o->backoff_factor);
    if (o->growth_interval < 1)
        return dsi_fail(DS_EINVAL, "%s: growth_interval is %lld: expected 1 or more", call,
                        (long long)o->growth_interval);
    return DS_OK;
}

ds_grad_scaler *ds_grad_scaler_new_with(ds_grad_scaler_opts opts)
{
    const char *call = "grad_scaler_new";
    if (!dsi_params_check(call, scaler_params, &opts, sizeof opts)) return NULL;
    if (!opts.growth_interval) opts.growth_interval = 2000;
    if (scaler_check(call, &opts) != DS_OK) return NULL;
    ds_grad_scaler *s = dsi_alloc(sizeof *s);
    dsi_handle_call(call);
    dsi_handle_made(s, &scaler_kind);
    *s = (ds_grad_scaler){.opts = opts, .scale = (float)opts.init_scale};
    return s;
}

void ds_grad_scaler_free(ds_grad_scaler *s)
{
    if (!dsi_live(s, "grad_scaler_free")) return;
    bool quarantined = dsi_handle_freed_by(s, "ds_grad_scaler_free");
    uses_clear(&s->uses);
    dsi_unref(s->state);
    if (!quarantined) dsi_free(s);
}

/* ---- the state ------------------------------------------------------------------------------------------ */

/* An element of the state, of the host's copy before there is one; NaN, with
 * the message, if it cannot be read. */
static double state_read(const ds_grad_scaler *s, int64_t element)
{
    if (!s->state) return element == ELEMENT(scale) ? s->scale : s->good;
    ds_scope *scope = ds_scope_open();
    double x = ds_item(dsi_element_of(s->state, element));
    ds_scope_close(scope);
    return x;
}

/* From scale and good, on its device. */
static ds_status state_write(const ds_grad_scaler *s)
{
    if (!s->state) return DS_OK;
    const dsi_loss_scale x = {s->scale, (float)(1 / s->scale), s->good, 0, 1};
    const double *values = &x.scale;
    ds_scope *scope = ds_scope_open();
    bool done = true;
    for (int64_t i = 0; i < STATE_SIZE && done; i++)
        done = dsi_fill(dsi_element_of(s->state, i), values[i]) != NULL;
    ds_scope_close(scope);
    return done ? DS_OK : ds_error_status();
}

/* The state on d. */
static bool state_on(ds_grad_scaler *s, dsi_device *d)
{
    if (s->state && s->state->device == d) return true;
    double scale = state_read(s, ELEMENT(scale)), good = state_read(s, ELEMENT(good));
    if (isnan(scale) || isnan(good)) return false;
    if (dsi_graph_capturing(d) &&
        dsi_graph_forbid(d, "its gradient scaler is new on this device") != DS_OK)
        return false;
    ds_scope *scope = ds_scope_open();
    ds_tensor *state = dsi_new_on(d, DS_F64, ds_shape(STATE_SIZE));
    if (state) {
        s->scale = scale, s->good = good;
        dsi_hold(&s->state, state);
    }
    bool done = state && state_write(s) == DS_OK;
    ds_scope_close(scope);
    return done;
}

static scaler_use *use_find(const ds_grad_scaler *s, const ds_optim *o)
{
    for (int i = 0; i < s->uses.n; i++)
        if (s->uses.at[i].o == o) return &s->uses.at[i];
    return NULL;
}

static void use_add(ds_grad_scaler *s, const ds_optim *o, ds_tensor *result)
{
    scaler_uses *u = &s->uses;
    u->at = dsi_realloc(u->at, (size_t)(u->n + 1) * sizeof *u->at);
    u->at[u->n++] = (scaler_use){.o = o, .result = dsi_ref(result)};
}

/* ---- replays -------------------------------------------------------------------------------------------- */

/* A call that was captured: unscale, with its result; step; update, whose uses
 * are kept until the launch. */
typedef struct scaler_replay {
    ds_grad_scaler *s;
    const ds_optim *o;
    ds_tensor *state, *result; /* counted */
    ds_grad_scaler_opts opts;
    scaler_uses uses;
} scaler_replay;

static bool replay_holds(void *arg)
{
    const scaler_replay *r = arg;
    const ds_grad_scaler_opts *a = &r->opts, *b = &r->s->opts;
    return r->s->state == r->state && a->growth_factor == b->growth_factor &&
           a->backoff_factor == b->backoff_factor && a->growth_interval == b->growth_interval;
}

static bool unscale_holds(void *arg)
{
    const scaler_replay *r = arg;
    return replay_holds(arg) && !use_find(r->s, r->o);
}

static void unscale_before(void *arg)
{
    const scaler_replay *r = arg;
    use_add(r->s, r->o, r->result);
}

static void unscale_undo(void *arg)
{
    const scaler_replay *r = arg;
    if (use_find(r->s, r->o)) dsi_unref(r->s->uses.at[--r->s->uses.n].result);
}

static void step_before(void *arg)
{
    const scaler_replay *r = arg;
    use_find(r->s, r->o)->stepped = true;
}

static void step_undo(void *arg)
{
    const scaler_replay *r = arg;
    use_find(r->s, r->o)->stepped = false;
}

static void update_before(void *arg)
{
    scaler_replay *r = arg;
    r->uses = r->s->uses;
    r->s->uses = (scaler_uses){0};
}

static ds_status update_after(void *arg)
{
    uses_clear(&((scaler_replay *)arg)->uses);
    return DS_OK;
}

static void update_undo(void *arg)
{
    scaler_replay *r = arg;
    uses_clear(&r->s->uses);
    r->s->uses = r->uses;
    r->uses = (scaler_uses){0};
}

static void replay_release(void *arg)
{
    scaler_replay *r = arg;
    uses_clear(&r->uses);
    dsi_unref(r->state);
    dsi_unref(r->result);
    dsi_free(r);
}

static const dsi_graph_hook unscale_hook = {.holds = unscale_holds,
                                            .before = unscale_before,
                                            .release = replay_release,
                                            .undo = unscale_undo},
                            step_hook = {.holds = replay_holds,
                                         .before = step_before,
                                         .release = replay_release,
                                         .undo = step_undo},
                            update_hook = {.holds = replay_holds,
                                           .before = update_before,
                                           .after = update_after,
                                           .release = replay_release,
                                           .undo = update_undo};

/* The host's part of a call: now, and at each replay if it is captured. */
static void scaler_did(ds_grad_scaler *s, const dsi_graph_hook *hook, const ds_optim *o,
                       ds_tensor *result)
{
    dsi_device *d = s->state->device;
    scaler_replay now = {.s = s, .o = o, .result = result}, *r = &now;
    if (dsi_graph_capturing(d)) {
        r = dsi_alloc(sizeof *r);
        *r = (scaler_replay){s, o, dsi_ref(s->state), dsi_ref(result), s->opts, {0}};
        dsi_graph_add_hook(d, hook, r);
    }
    hook->before(r);
    if (r == &now && hook->after) (void)hook->after(r);
}

/* ---- a step --------------------------------------------------------------------------------------------- */

/* The copy is the op's own, which an update does not change. */
ds_tensor *ds_grad_scaler_scale(ds_grad_scaler *s, ds_tensor *loss)
{
    if (!loss || !dsi_live(s, "grad_scaler_scale")) return dsi_null_operand("grad_scaler_scale");
    if (s->opts.disabled) return loss;
    if (!state_on(s, loss->device)) return NULL;
    return ds_mul(loss, dsi_to_dtype(dsi_element_of(s->state, ELEMENT(scale)), DS_F32));
}

/* The gradients of o's parameters, dense -> their number; -1, with the message,
 * if one is refused. g: [o->n], the tensors are borrowed. */
static int scaler_grads(const ds_optim *o, ds_tensor **g)
{
    int n = 0;
    for (int i = 0; i < o->n; i++) {
        ds_tensor *grad = o->params[i].p ? o->params[i].p->grad : NULL;
        if (!grad) continue;
        if (grad->dtype != DS_F32 && grad->dtype != DS_F64) {
            dsi_refuse("grad_scaler_unscale: the gradient of %s is %s: expected weights in float32 "
                       "(ds_set_autocast), or the engine's fp16",
                       o->params[i].path, ds_dtype_name(grad->dtype));
            return -1;
        }
        if (!dsi_acquire(grad)) return -1;
        g[n++] = grad;
    }
    if (n) return n;
    dsi_fail(DS_ESTATE, "grad_scaler_unscale: no parameter of %s has a gradient: call ds_backward",
             o->type->name);
    return -1;
}

/* Whether the largest element is finite is whether all are. Others are divided
 * too, as in torch: a step with them is skipped. */
static bool grads_unscale(ds_grad_scaler *s, const ds_optim *o, int n, ds_tensor **g)
{
    static const dsi_step_limits finite = {.finite_norm = true};
    if (n < 0 || !state_on(s, g[0]->device)) return false;
    ds_tensor *result = dsi_grads_result(n, g, INFINITY, &finite,
                                         dsi_element_of(s->state, ELEMENT(one)));
    ds_tensor *skip = dsi_element_of(result, DSI_RESULT(skip)),
              *skips = dsi_element_of(s->state, ELEMENT(skips));
    bool done = skip && skips &&
                dsi_run_op(skips, binary, DSI_ADD, 1.0, dsi_v(skips), dsi_v(skip), dsi_v(skips)) &&
                dsi_grads_scale(n, g, dsi_element_of(s->state, ELEMENT(inverse)));
    if (done) scaler_did(s, &unscale_hook, o, result);
    return done;
}

static ds_status scaler_unscale(ds_grad_scaler *s, const ds_optim *o)
{
    ds_tensor **g = dsi_alloc((size_t)o->n * sizeof *g);
    ds_scope *scope = ds_scope_open();
    bool done = grads_unscale(s, o, scaler_grads(o, g), g);
    ds_scope_close(scope);
    dsi_free(g);
    return done ? DS_OK : ds_error_status();
}

ds_status ds_grad_scaler_unscale(ds_grad_scaler *s, ds_optim *o)
{
    const char *call = "grad_scaler_unscale";
    if (!dsi_live(s, call) || !dsi_live(o, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return DS_OK;
    if (o->taken)
        return dsi_fail(DS_ESTATE, "%s: %s belongs to an engine, which scales its loss (\"fp16\")",
                        call, o->type->name);
    const scaler_use *use = use_find(s, o);
    if (use)
        return dsi_fail(DS_ESTATE, "%s: %s %s since the last ds_grad_scaler_update", call,
                        o->type->name, use->stepped ? "has stepped" : "was unscaled already");
    return scaler_unscale(s, o);
}

/* The host waits for the decision, but in a capture, which leaves it on the
 * device. */
static ds_status scaler_step(ds_grad_scaler *s, ds_optim *o, ds_tensor *result)
{
    dsi_device *d = result->device;
    if (dsi_graph_recording(d) && !dsi_graph_allocated(d, dsi_v(result).p) &&
        dsi_graph_forbid(d, "gradients were unscaled before it (ds_grad_scaler_unscale)") != DS_OK)
        return ds_error_status();
    if (dsi_graph_capturing(d)) {
        ds_status status = dsi_replay_step(o, result);
        if (status == DS_OK) scaler_did(s, &step_hook, o, NULL);
        return status;
    }
    ds_scope *scope = ds_scope_open();
    bool noted = dsi_graph_note(d, false);
    double skip = ds_item(dsi_element_of(result, DSI_RESULT(skip)));
    ds_status status = isnan(skip) ? ds_error_status() : DS_OK;
    if (status == DS_OK) status = dsi_replay_prepare(o, d);
    if (status == DS_OK && skip != 0) status = dsi_optim_skip(o);
    dsi_graph_note(d, noted);
    ds_scope_close(scope);
    if (status == DS_OK && skip == 0) status = ds_optim_step(o);
    if (status == DS_OK) scaler_did(s, &step_hook, o, NULL);
    return status;
}

ds_status ds_grad_scaler_step(ds_grad_scaler *s, ds_optim *o)
{
    const char *call = "grad_scaler_step";
    if (!dsi_live(s, call) || !dsi_live(o, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return ds_optim_step(o);
    const scaler_use *use = use_find(s, o);
    if (use && use->stepped)
        return dsi_fail(DS_ESTATE, "%s: %s has stepped since the last ds_grad_scaler_update", call,
                        o->type->name);
    ds_status status = use ? DS_OK : ds_grad_scaler_unscale(s, o);
    return status == DS_OK ? scaler_step(s, o, use_find(s, o)->result) : status;
}

ds_status ds_grad_scaler_update(ds_grad_scaler *s)
{
    if (!dsi_live(s, "grad_scaler_update")) return dsi_null_argument("grad_scaler_update");
    if (s->opts.disabled) return DS_OK;
    if (!s->uses.n)
        return dsi_fail(DS_ESTATE, "grad_scaler_update: there was no ds_grad_scaler_step since the "
                                   "last one");
    const dsi_scale_rule rule = {s->opts.growth_factor, s->opts.backoff_factor,
                                 s->opts.growth_interval};
    if (!dsi_run(s->state, loss_scale, &rule, dsi_v(s->state))) return ds_error_status();
    scaler_did(s, &update_hook, NULL, NULL);
    return DS_OK;
}

double ds_grad_scaler_get_scale(const ds_grad_scaler *s)
{
    return s && !s->opts.disabled ? state_read(s, ELEMENT(scale)) : 1;
}

static ds_status scaler_set(ds_grad_scaler *s, const char *call, double scale)
{
    dsi_graph_forbid_call(call);
    if (ds_error()) return ds_error_status();
    s->scale = (float)scale;
    uses_clear(&s->uses);
    return state_write(s);
}

ds_status ds_grad_scaler_set_scale(ds_grad_scaler *s, double scale)
{
    const char *call = "grad_scaler_set_scale";
    if (!dsi_live(s, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return DS_OK;
    ds_grad_scaler_opts opts = s->opts;
    opts.init_scale = scale;
    if (scaler_check(call, &opts) != DS_OK) return ds_error_status();
    s->good = state_read(s, ELEMENT(good));
    if (isnan(s->good)) return ds_error_status();
    return scaler_set(s, call, scale);
}

/* ---- state dicts ---------------------------------------------------------------------------------------- */

ds_value *ds_grad_scaler_state_dict(const ds_grad_scaler *s)
{
    if (!dsi_live(s, "grad_scaler_state_dict")) return dsi_null_operand("grad_scaler_state_dict");
    ds_value *dict = ds_value_dict();
    if (s->opts.disabled) return dict;
    double scale = state_read(s, ELEMENT(scale)), good = state_read(s, ELEMENT(good));
    if (isnan(scale) || isnan(good)) {
        ds_value_free(dict);
        return NULL;
    }
    ds_value_set(dict, "scale", ds_value_float(scale));
    ds_value_set(dict, "growth_factor", ds_value_float(s->opts.growth_factor));
    ds_value_set(dict, "backoff_factor", ds_value_float(s->opts.backoff_factor));
    ds_value_set(dict, "growth_interval", ds_value_int(s->opts.growth_interval));
    ds_value_set(dict, "_growth_tracker", ds_value_int((int64_t)good));
    return dict;
}

ds_status ds_grad_scaler_load_state_dict(ds_grad_scaler *s, const ds_value *state_dict)
{
    const char *call = "grad_scaler_load_state_dict";
    ds_grad_scaler_opts opts = {0};
    int64_t good = 0;
    if (!state_dict || !dsi_live(s, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return DS_OK;
    if (!ds_value_len(state_dict))
        return dsi_fail(DS_EINVAL, "%s: the state dict is empty, as that of a disabled scaler is",
                        call);
    ds_status status = ds_value_read_float(state_dict, "scale", &opts.init_scale);
    if (status == DS_OK)
        status = ds_value_read_float(state_dict, "growth_factor", &opts.growth_factor);
    if (status == DS_OK)
        status = ds_value_read_float(state_dict, "backoff_factor", &opts.backoff_factor);
    if (status == DS_OK)
        status = ds_value_read_int(state_dict, "growth_interval", &opts.growth_interval);
    if (status == DS_OK) status = ds_value_read_int(state_dict, "_growth_tracker", &good);
    if (status == DS_OK) status = scaler_check(call, &opts);
    if (status == DS_OK && good < 0)
        status = dsi_fail(DS_EINVAL, "%s: _growth_tracker is %lld: expected 0 or more", call,
                          (long long)good);
    if (status != DS_OK) return status;
    s->opts = opts;
    s->good = (double)good;
    return scaler_set(s, call, opts.init_scale);
}
