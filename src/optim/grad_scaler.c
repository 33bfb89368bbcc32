/* optim/grad_scaler.c: loss scaling for float16 under autocast:
 * torch.amp.GradScaler.
 *
 * Invariants: scale is a float32 above 0, as torch's tensor is. uses[] are the
 * optimizers whose gradients were unscaled since the last update; an update, or
 * a scale that is set, forgets them. Optimizers are borrowed and compared by
 * address, so one must live until the next update. The engine has its own rule
 * (parallel/scaler.h), DeepSpeed's.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include <float.h>
#include <math.h>

typedef struct scaler_use {
    const ds_optim *o;
    bool found_inf, stepped;
} scaler_use;

struct ds_grad_scaler {
    ds_grad_scaler_opts opts;
    float scale;
    int64_t good; /* updates in a row without a skipped step, torch's _growth_tracker */
    int n_uses;
    scaler_use *uses;
};

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
    dsi_free(s->uses);
    if (!quarantined) dsi_free(s);
}

/* ---- a step --------------------------------------------------------------------------------------------- */

static void scaler_forget(ds_grad_scaler *s)
{
    dsi_free(s->uses);
    s->uses = NULL;
    s->n_uses = 0;
}

static scaler_use *scaler_find(const ds_grad_scaler *s, const ds_optim *o)
{
    for (int i = 0; i < s->n_uses; i++)
        if (s->uses[i].o == o) return &s->uses[i];
    return NULL;
}

ds_tensor *ds_grad_scaler_scale(const ds_grad_scaler *s, ds_tensor *loss)
{
    if (!loss || !dsi_live(s, "grad_scaler_scale")) return dsi_null_operand("grad_scaler_scale");
    if (s->opts.disabled) return loss;
    return ds_mul(loss, ds_scalar(DS_F32, (double)s->scale));
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

/* The largest element says whether all are finite. Others are divided too, as
 * in torch: a step with them is skipped. */
static ds_status scaler_unscale(ds_grad_scaler *s, const ds_optim *o)
{
    ds_tensor **g = dsi_alloc((size_t)o->n * sizeof *g);
    int n = scaler_grads(o, g);
    double largest = 0;
    bool done = n >= 0 && dsi_grads_norm(n, g, INFINITY, &largest) == DS_OK &&
                dsi_grads_scale(n, g, (double)(float)(1 / (double)s->scale));
    dsi_free(g);
    if (!done) return ds_error_status();
    s->uses = dsi_realloc(s->uses, (size_t)(s->n_uses + 1) * sizeof *s->uses);
    s->uses[s->n_uses++] = (scaler_use){.o = o, .found_inf = !isfinite(largest)};
    return DS_OK;
}

ds_status ds_grad_scaler_unscale(ds_grad_scaler *s, ds_optim *o)
{
    const char *call = "grad_scaler_unscale";
    if (!dsi_live(s, call) || !dsi_live(o, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return DS_OK;
    if (o->taken)
        return dsi_fail(DS_ESTATE, "%s: %s belongs to an engine, which scales its loss (\"fp16\")",
                        call, o->type->name);
    const scaler_use *use = scaler_find(s, o);
    if (use)
        return dsi_fail(DS_ESTATE, "%s: %s %s since the last ds_grad_scaler_update", call,
                        o->type->name, use->stepped ? "has stepped" : "was unscaled already");
    return scaler_unscale(s, o);
}

ds_status ds_grad_scaler_step(ds_grad_scaler *s, ds_optim *o)
{
    const char *call = "grad_scaler_step";
    if (!dsi_live(s, call) || !dsi_live(o, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return ds_optim_step(o);
    scaler_use *use = scaler_find(s, o);
    if (use && use->stepped)
        return dsi_fail(DS_ESTATE, "%s: %s has stepped since the last ds_grad_scaler_update", call,
                        o->type->name);
    if (!use) {
        ds_status status = ds_grad_scaler_unscale(s, o);
        if (status != DS_OK) return status;
        use = scaler_find(s, o);
    }
    ds_status status = use->found_inf ? DS_OK : ds_optim_step(o);
    use->stepped = status == DS_OK;
    return status;
}

/* The rule of torch's _amp_update_scale_. */
ds_status ds_grad_scaler_update(ds_grad_scaler *s)
{
    bool found_inf = false;
    if (!dsi_live(s, "grad_scaler_update")) return dsi_null_argument("grad_scaler_update");
    if (s->opts.disabled) return DS_OK;
    if (!s->n_uses)
        return dsi_fail(DS_ESTATE, "grad_scaler_update: there was no ds_grad_scaler_step since the "
                                   "last one");
    for (int i = 0; i < s->n_uses; i++) found_inf = found_inf || s->uses[i].found_inf;
    scaler_forget(s);
    if (found_inf) {
        float less = (float)((double)s->scale * s->opts.backoff_factor);
        s->scale = less > 0 ? less : s->scale;
        s->good = 0;
    } else if (++s->good >= s->opts.growth_interval) {
        double more = (double)s->scale * s->opts.growth_factor;
        if (more <= (double)FLT_MAX) s->scale = (float)more;
        s->good = 0;
    }
    return DS_OK;
}

double ds_grad_scaler_get_scale(const ds_grad_scaler *s)
{
    return s && !s->opts.disabled ? (double)s->scale : 1;
}

ds_status ds_grad_scaler_set_scale(ds_grad_scaler *s, double scale)
{
    const char *call = "grad_scaler_set_scale";
    if (!dsi_live(s, call)) return dsi_null_argument(call);
    if (s->opts.disabled) return DS_OK;
    ds_grad_scaler_opts opts = s->opts;
    opts.init_scale = scale;
    if (scaler_check(call, &opts) != DS_OK) return ds_error_status();
    s->scale = (float)scale;
    scaler_forget(s);
    return DS_OK;
}

/* ---- state dicts ---------------------------------------------------------------------------------------- */

ds_value *ds_grad_scaler_state_dict(const ds_grad_scaler *s)
{
    if (!dsi_live(s, "grad_scaler_state_dict")) return dsi_null_operand("grad_scaler_state_dict");
    ds_value *dict = ds_value_dict();
    if (s->opts.disabled) return dict;
    ds_value_set(dict, "scale", ds_value_float((double)s->scale));
    ds_value_set(dict, "growth_factor", ds_value_float(s->opts.growth_factor));
    ds_value_set(dict, "backoff_factor", ds_value_float(s->opts.backoff_factor));
    ds_value_set(dict, "growth_interval", ds_value_int(s->opts.growth_interval));
    ds_value_set(dict, "_growth_tracker", ds_value_int(s->good));
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
    s->scale = (float)opts.init_scale;
    s->good = good;
    scaler_forget(s);
    return DS_OK;
}
