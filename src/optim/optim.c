/* optim/optim.c: optimizers: their parameters, moments, step counts; the step; their state dict.
 *
 * An optimizer is a rule (optim.h) on a list of parameters. A step gathers the parameters that have a
 * gradient into spans and hands all of them to the rule's kernel at once. Moments are made when a
 * parameter is first updated; each parameter counts its own steps, as in PyTorch. A step that is
 * refused or finds no memory changes nothing.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "base/mem.h"
#include "base/text.h"

#include <string.h>

typedef struct Param {
    ds_tensor *p;   /* what is updated, counted; NULL: nothing here */
    ds_tensor *low; /* its 16-bit copy, counted, or NULL */
    char *path;
    ds_tensor *moment[DSI_MOMENTS]; /* counted; NULL before the first update */
    int64_t step;                   /* updates so far */
} Param;

struct ds_optim {
    dsi_optim_rule rule;
    int n;
    Param *params;   /* [n] */
    dsi_span *spans; /* [n]: those of one step */
    int *updated;    /* [n]: which parameters they are */
};

/* ---- checks of options --------------------------------------------------------------------------------- */

bool dsi_optim_not_negative(const char *optim, const char *option, double value)
{
    if (value >= 0) return true;
    dsi_fail(DS_EINVAL, "%s: %s is %g: expected 0 or more", optim, option, value);
    return false;
}

bool dsi_optim_is_beta(const char *optim, const char *option, double value)
{
    if (value >= 0 && value < 1) return true;
    dsi_fail(DS_EINVAL, "%s: %s is %g: expected 0 or more, and less than 1", optim, option, value);
    return false;
}

/* ---- life ------------------------------------------------------------------------------------------------ */

/* All on one device, of a floating dtype, row-major: what the kernels walk over. */
static bool check_param(const char *optim, const ds_tensor *p, const char *path,
                        const ds_tensor *first)
{
    if (p->device != first->device)
        dsi_refuse("%s: %s is on another device than the first parameter", optim, path);
    else if (p->dtype > DS_BF16)
        dsi_refuse("%s: %s is %s: expected a floating dtype", optim, path, ds_dtype_name(p->dtype));
    else if (!dsi_is_contiguous(p))
        dsi_refuse("%s: %s %s is not contiguous", optim, path, dsi_shape_text(p->shape));
    else
        return true;
    return false;
}

ds_optim *dsi_optim_new(ds_module *model, const dsi_optim_rule *rule)
{
    if (!model) return dsi_passed(rule->name);
    int n = ds_module_params(model);
    if (!n)
        return dsi_refuse("%s: the module %s has no parameters", rule->name, ds_module_name(model));
    ds_optim *o = dsi_alloc(sizeof *o);
    o->rule = *rule;
    o->params = dsi_alloc((size_t)n * sizeof *o->params);
    o->spans = dsi_alloc((size_t)n * sizeof *o->spans);
    o->updated = dsi_alloc((size_t)n * sizeof *o->updated);
    for (; o->n < n; o->n++) {
        const char *path;
        Param *x = &o->params[o->n];
        ds_tensor *p = ds_module_param_at(model, o->n, &path);
        if (!check_param(rule->name, p, path, ds_module_param_at(model, 0, NULL))) {
            ds_optim_free(o);
            return NULL;
        }
        x->p = dsi_ref(p);
        x->path = dsi_strdup(path);
    }
    return o;
}

void ds_optim_free(ds_optim *o)
{
    if (!o) return;
    for (int i = 0; i < o->n; i++) {
        dsi_unref(o->params[i].p);
        dsi_unref(o->params[i].low);
        dsi_free(o->params[i].path);
        for (int k = 0; k < DSI_MOMENTS; k++) dsi_unref(o->params[i].moment[k]);
    }
    dsi_free(o->params);
    dsi_free(o->spans);
    dsi_free(o->updated);
    dsi_free(o);
}

void ds_optim_zero_grad(ds_optim *o)
{
    for (int i = 0; o && i < o->n; i++)
        if (o->params[i].p) ds_set_grad_of(o->params[i].p, NULL);
}

double ds_optim_lr(const ds_optim *o) { return o ? o->rule.options.lr : 0; }

void ds_optim_set_lr(ds_optim *o, double lr)
{
    if (o) o->rule.options.lr = lr;
}

/* ---- parameters that stand for the model's ------------------------------------------------------------- */

int dsi_optim_params(const ds_optim *o) { return o ? o->n : 0; }
bool dsi_optim_needs_whole(const ds_optim *o) { return o && o->rule.needs_whole; }

static bool is_half(ds_dtype dtype) { return dtype == DS_F16 || dtype == DS_BF16; }

ds_status dsi_optim_set_param(ds_optim *o, int i, ds_tensor *p, ds_tensor *low)
{
    if (!o) return dsi_passed("optim_set_param"), DS_EINVAL;
    if (i < 0 || i >= o->n)
        return dsi_fail(DS_EINVAL, "%s: there is no parameter %d of %d", o->rule.name, i, o->n);
    Param *x = &o->params[i];
    if (p && !check_param(o->rule.name, p, x->path, p)) return ds_error_status();
    if (low && (!p || p->dtype != DS_F32 || !is_half(low->dtype) || !dsi_is_contiguous(low) ||
                dsi_numel(low->shape) != dsi_numel(p->shape)))
        return dsi_fail(DS_EINVAL,
                        "%s: the copy of %s is to be of 16 bits, as large as a float32 %s",
                        o->rule.name, x->path, "parameter");
    dsi_ref(p), dsi_ref(low);
    dsi_unref(x->p), dsi_unref(x->low);
    x->p = p, x->low = low, x->step = 0;
    for (int k = 0; k < DSI_MOMENTS; k++) dsi_unref(x->moment[k]), x->moment[k] = NULL;
    return DS_OK;
}

/* ---- the step ---------------------------------------------------------------------------------------------- */

/* Moments that the rule uses and x has not yet. */
static ds_status make_moments(const dsi_optim_rule *rule, Param *x)
{
    ds_dtype dtype = x->p->dtype == DS_F64 ? DS_F64 : DS_F32;
    for (int k = 0; k < DSI_MOMENTS; k++) {
        if (!rule->moment[k] || x->moment[k] || !x->p) continue;
        ds_tensor *t = dsi_new_dtype(x->p, dtype, x->p->shape);
        if (!dsi_run(t, fill, rule->initial[k], dsi_v(t))) return ds_error_status();
        x->moment[k] = dsi_ref(t);
    }
    return DS_OK;
}

/* The gradient as the kernel reads it: row-major, of the parameter's dtype, or of 16 bits. */
static ds_tensor *dense_grad(const ds_optim *o, const Param *x)
{
    ds_tensor *g = ds_grad(x->p);
    if (g->dtype != x->p->dtype && !(x->p->dtype == DS_F32 && is_half(g->dtype)))
        return dsi_refuse("%s: the gradient of %s is %s, but the parameter %s", o->rule.name,
                          x->path, ds_dtype_name(g->dtype), ds_dtype_name(x->p->dtype));
    if (dsi_make_dense(g) != DS_OK) return NULL;
    return dsi_is_contiguous(g) ? g : ds_contiguous(ds_detach(g));
}

static void *memory(const ds_tensor *x) { return x ? dsi_v(x).p : NULL; }

/* Fills o->spans with the parameters that have a gradient -> their number, or -1. */
static int gather(ds_optim *o, double g_scale)
{
    int n = 0;
    for (int i = 0; i < o->n; i++) {
        Param *x = &o->params[i];
        if (!ds_grad(x->p)) continue;
        ds_tensor *g = dense_grad(o, x);
        if (!g || make_moments(&o->rule, x) != DS_OK) return -1;
        o->updated[n] = i;
        o->spans[n++] = (dsi_span){.dtype = x->p->dtype,
                                   .p = memory(x->p),
                                   .g = memory(g),
                                   .m = memory(x->moment[0]),
                                   .v = memory(x->moment[1]),
                                   .vmax = memory(x->moment[2]),
                                   .n = dsi_numel(x->p->shape),
                                   .step = x->step + 1,
                                   .g_dtype = g->dtype,
                                   .g_scale = g_scale,
                                   .low = memory(x->low),
                                   .low_dtype = x->low ? x->low->dtype : DS_F32};
    }
    return n;
}

ds_status ds_optim_step(ds_optim *o) { return dsi_optim_step_scaled(o, 1); }

ds_status dsi_optim_step_scaled(ds_optim *o, double g_scale)
{
    if (!o) return dsi_passed("optim_step"), DS_EINVAL;
    ds_scope *scope = ds_scope_open(); /* of row-major copies of gradients */
    int n = gather(o, g_scale);
    ds_status status = n < 0 ? ds_error_status() : DS_OK;
    if (n > 0) status = o->rule.run(o->params[o->updated[0]].p, &o->rule.options, n, o->spans);
    for (int i = 0; status == DS_OK && i < n; i++) o->params[o->updated[i]].step++;
    ds_scope_close(scope);
    return status;
}

/* ---- state dict --------------------------------------------------------------------------------------------- */

static ds_status add_entry(ds_state *state, const char *kind, const char *path, ds_tensor *x)
{
    dsi_text name = {0};
    dsi_text_add(&name, "%s.%s", kind, path);
    ds_status status = x ? ds_state_set(state, name.s, x) : ds_error_status();
    dsi_text_free(&name);
    return status;
}

/* A parameter that was never updated has no entries. */
ds_state *ds_optim_state(const ds_optim *o)
{
    if (!o) return dsi_passed("optim_state");
    ds_state *state = ds_state_new();
    ds_scope *scope = ds_scope_open();
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < o->n; i++) {
        const Param *x = &o->params[i];
        if (!x->step) continue;
        for (int k = 0; status == DS_OK && k < DSI_MOMENTS; k++)
            if (x->moment[k]) status = add_entry(state, o->rule.moment[k], x->path, x->moment[k]);
        if (status == DS_OK)
            status = add_entry(state, "step", x->path,
                               ds_from_data(DS_I64, (ds_dims){0}, &x->step));
    }
    ds_scope_close(scope);
    if (status == DS_OK) return state;
    ds_state_free(state);
    return NULL;
}

/* "exp_avg.fc1.weight" -> the parameter, and its moment, or DSI_MOMENTS for its step; NULL: unknown. */
static Param *find_entry(const ds_optim *o, const char *name, int *moment)
{
    const char *dot = strchr(name, '.');
    if (!dot) return NULL;
    size_t length = (size_t)(dot - name);
    for (*moment = 0; *moment <= DSI_MOMENTS; ++*moment) {
        const char *kind = *moment < DSI_MOMENTS ? o->rule.moment[*moment] : "step";
        if (kind && strlen(kind) == length && !strncmp(kind, name, length)) break;
    }
    if (*moment > DSI_MOMENTS) return NULL;
    for (int i = 0; i < o->n; i++)
        if (!strcmp(o->params[i].path, dot + 1)) return &o->params[i];
    return NULL;
}

static ds_status check_entry(const ds_optim *o, const char *name, const ds_tensor *t)
{
    int moment;
    const Param *x = find_entry(o, name, &moment);
    if (!x) return dsi_fail(DS_EINVAL, "optim_load: %s has no %s", o->rule.name, name);
    if (!x->p) return dsi_fail(DS_EINVAL, "optim_load: no part of %s is updated here", x->path);
    ds_dims shape = moment < DSI_MOMENTS ? x->p->shape : (ds_dims){0};
    if (!dsi_same_shape(t->shape, shape))
        return dsi_fail(DS_EINVAL, "optim_load: %s is %s: expected %s", name,
                        dsi_shape_text(t->shape), dsi_shape_text(shape));
    if (moment == DSI_MOMENTS && !(ds_item(t) >= 0))
        return dsi_fail(DS_EINVAL, "optim_load: %s is %g: expected 0 or more", name, ds_item(t));
    return DS_OK;
}

/* A parameter has all of its entries in the state, or none. */
static ds_status check_whole(const ds_optim *o, const ds_state *state)
{
    for (int i = 0; i < o->n; i++) {
        int found = 0, wanted = 0;
        dsi_text missing = {0};
        for (int k = 0; k <= DSI_MOMENTS; k++) {
            const char *kind = k < DSI_MOMENTS ? o->rule.moment[k] : "step";
            if (!kind) continue;
            dsi_text name = {0};
            dsi_text_add(&name, "%s.%s", kind, o->params[i].path);
            wanted++;
            if (ds_state_get(state, name.s))
                found++;
            else
                dsi_text_add(&missing, "%s%s", missing.n ? ", " : "", name.s);
            dsi_text_free(&name);
        }
        if (found && found < wanted)
            dsi_fail(DS_EINVAL, "optim_load: the state has no %s", missing.s);
        dsi_text_free(&missing);
        if (found && found < wanted) return DS_EINVAL;
    }
    return DS_OK;
}

/* Parameters that the state does not name begin anew. */
ds_status ds_optim_load(ds_optim *o, const ds_state *state)
{
    if (!o || !state) return dsi_passed("optim_load"), DS_EINVAL;
    for (int i = 0; i < ds_state_len(state); i++) {
        ds_status status = check_entry(o, ds_state_name(state, i), ds_state_at(state, i));
        if (status != DS_OK) return status;
    }
    ds_status status = check_whole(o, state);
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < o->n; i++)
        status = make_moments(&o->rule, &o->params[i]);
    ds_scope_close(scope);
    if (status != DS_OK) return status;

    for (int i = 0; i < o->n; i++) {
        Param *x = &o->params[i];
        x->step = 0;
        for (int k = 0; k < DSI_MOMENTS && status == DS_OK; k++)
            if (x->moment[k] &&
                !dsi_run(x->moment[k], fill, o->rule.initial[k], dsi_v(x->moment[k])))
                status = ds_error_status();
    }
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        int moment = 0;
        ds_tensor *t = ds_state_at(state, i);
        Param *x = find_entry(o, ds_state_name(state, i), &moment);
        if (moment == DSI_MOMENTS)
            x->step = (int64_t)ds_item(t);
        else
            status = dsi_copy(x->moment[moment], t);
    }
    return status;
}
