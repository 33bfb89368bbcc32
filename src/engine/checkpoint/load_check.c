/* engine/checkpoint/load_check.c: whether a checkpoint fits the engine: names,
 * shapes, elements, moments, averages. Nothing is changed here.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "nn/moe.h"

#include <stdio.h>

#define MOST_NAMES 4 /* in a message */

/* Names that only the model or only the checkpoint has. */
typedef struct Names {
    dsi_text text;
    int n;
} Names;

static void names_add(Names *to, const char *name)
{
    if (to->n < MOST_NAMES) dsi_text_add(&to->text, "%s%s", to->n ? ", " : "", name);
    to->n++;
}

/* Up to MOST_NAMES names, and how many more there are. */
static ds_status names_refuse(const dsi_loaded *l, const Names *missing, const Names *unknown)
{
    const Names *which = missing->n ? missing : unknown;
    char more[32] = "";
    if (which->n > MOST_NAMES) snprintf(more, sizeof more, " and %d more", which->n - MOST_NAMES);
    return dsi_fail(DS_EINVAL,
                    "%s has %s%s%s, which the model has%s: is it another model's? .not_strict "
                    "passes over such names",
                    dsi_load_file_path(l, l->model), missing->n ? "no " : "", which->text.s, more,
                    missing->n ? "" : " not");
}

/* ---- weights and buffers ------------------------------------------------------------------------------- */

/* The range of a tensor of the model that is in this rank's shard. */
static void rank_range(const ds_engine *e, const ds_tensor *x, int64_t *begin, int64_t *end)
{
    const dsi_flat *f = e->zero ? dsi_zero_flat(e->zero) : NULL;
    *begin = 0;
    *end = dsi_numel(x->shape);
    for (int k = 0; f && k < f->n; k++)
        if (f->param[k].x == x) {
            *begin = f->param[k].begin;
            *end = f->param[k].end;
        }
}

/* The shape in the checkpoint; false: it has no such tensor. */
static bool load_saved_shape(const dsi_loaded *l, const char *name, ds_dims *shape)
{
    const dsi_load_param *p = dsi_load_find_param(l, name);
    const ds_value *v = dsi_load_model_value(l, name);
    ds_tensor *x;
    if (p) {
        *shape = p->shape;
        return true;
    }
    if (!v || ds_value_read_tensor(v, "", &x) != DS_OK) return false;
    *shape = x->shape;
    return true;
}

/* The shape, and that each element of this rank's range is in some file. */
static ds_status check_tensor(const dsi_loaded *l, const ds_engine *e, const char *name,
                              const ds_tensor *x)
{
    const dsi_load_param *p = dsi_load_find_param(l, name);
    const ds_value *whole = dsi_load_model_value(l, name);
    int64_t begin, end;
    ds_dims shape;
    ds_tensor *saved;
    if (!load_saved_shape(l, name, &shape)) return ds_error_status();
    if (!dsi_same_shape(shape, x->shape))
        return dsi_fail(DS_EINVAL, "%s: %s is %s, but %s in the model",
                        dsi_load_file_path(l, l->model), name, dsi_shape_text(shape),
                        dsi_shape_text(x->shape));
    rank_range(e, x, &begin, &end);
    if (p && dsi_load_count(p, DSI_LOAD_WEIGHTS, begin, end) == end - begin) return DS_OK;
    if (whole && ds_value_read_tensor(whole, "", &saved) == DS_OK &&
        dsi_same_shape(saved->shape, x->shape))
        return DS_OK;
    return dsi_fail(DS_EFORMAT, "%s: some of the elements %lld to %lld of %s are in no file",
                    l->folder, (long long)begin, (long long)end, name);
}

/* A rank has only some of the experts: the total number is compared. */
static ds_status check_expert_counts(const dsi_loaded *l, const ds_engine *e)
{
    const ds_value *saved = ds_value_get(l->model, DSI_STATE_NUM_EXPERTS);
    for (int i = 0; i < ds_moe_layers(e->model) && i < ds_value_len(saved); i++) {
        int64_t n, all = dsi_moe_experts(ds_moe_layer(e->model, i)).all;
        if (ds_value_read_int(ds_value_at(saved, i), "", &n) != DS_OK) return ds_error_status();
        if (n != all)
            return dsi_fail(DS_EINVAL, "%s has %lld experts in layer %d, the model %lld",
                            dsi_load_file_path(l, l->model), (long long)n, i, (long long)all);
    }
    return DS_OK;
}

/* Names first: a wrong model is reported as such, not by its first shape. */
static ds_status check_model_state(const dsi_loaded *l, const ds_engine *e, bool strict)
{
    ds_state *state = ds_module_state(e->model);
    const ds_value *module = ds_value_get(l->model, DSI_STATE_MODULE);
    Names missing = {0}, unknown = {0};
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        const char *name = ds_state_name(state, i);
        if (dsi_state_first(state, i) < i) continue; /* tied: the first name is enough */
        if (!dsi_load_model_value(l, name) && !dsi_load_find_param(l, name))
            names_add(&missing, name);
        else
            status = check_tensor(l, e, name, ds_state_at(state, i));
    }
    for (int64_t i = 0; i < ds_value_len(module); i++) {
        const char *name = ds_value_text(ds_value_key_at(module, i));
        if (!name || !ds_state_get(state, name)) names_add(&unknown, name ? name : "(a number)");
    }
    if (status == DS_OK && strict && missing.n + unknown.n)
        status = names_refuse(l, &missing, &unknown);
    dsi_text_free(&missing.text);
    dsi_text_free(&unknown.text);
    ds_state_free(state);
    return status;
}

/* ---- the optimizer ------------------------------------------------------------------------------------- */

/* Whether all elements of this rank's range are in some file. */
static bool param_has_range(const dsi_load_param *p, const char *kind, const dsi_flat_param *f)
{
    return dsi_load_count(p, kind, f->begin, f->end) == f->end - f->begin;
}

/* Moments of a parameter must be complete once it was updated (step > 0). */
static ds_status check_moments(const dsi_loaded *l, const ds_engine *e, const dsi_flat_param *f,
                               const char *name)
{
    const ds_optim *o = e->optim;
    const dsi_load_param *p = dsi_load_find_param(l, name);
    const char *saved = NULL;
    for (int i = 0; p && p->step && i < DS_OPTIM_MOMENTS; i++) {
        if (!dsi_optim_uses(o, o->params[f->index].group, i)) continue;
        if (param_has_range(p, o->type->moment[i], f)) continue;
        if (ds_value_find(l->own, DSI_STATE_OPTIMIZER "/name"))
            (void)ds_value_read_string(l->own, DSI_STATE_OPTIMIZER "/name", &saved);
        return dsi_fail(DS_EINVAL,
                        "%s has no %s of %s (elements %lld to %lld), which %s needs%s%s: "
                        ".no_optimizer loads the "
                        "weights without",
                        l->folder, o->type->moment[i], name, (long long)f->begin, (long long)f->end,
                        ds_optim_name(o), saved ? ": it was saved with " : "", saved ? saved : "");
    }
    return DS_OK;
}

/* Whether both sides have averages. */
static bool both_have_averages(const dsi_loaded *l, const ds_engine *e)
{
    return e->ema && ds_value_kind_of(ds_value_get(l->own, DSI_STATE_EMA)) == DS_VALUE_DICT;
}

/* Averages of a parameter must be complete, or absent. */
static ds_status check_average(const dsi_loaded *l, const dsi_flat_param *f, const char *name)
{
    const dsi_load_param *p = dsi_load_find_param(l, name);
    if (!p || param_has_range(p, DSI_LOAD_AVERAGE, f)) return DS_OK;
    return dsi_fail(DS_EFORMAT, "%s: some of the averages of %s are in no file", l->folder, name);
}

static ds_status check_optimizer_state(const dsi_loaded *l, const ds_engine *e, bool strict)
{
    bool averages = both_have_averages(l, e);
    const dsi_flat *f = dsi_zero_flat(e->zero);
    ds_status status = DS_OK;
    if (!l->has_optimizer)
        return dsi_fail(DS_EINVAL,
                        "%s has no state of an optimizer: .no_optimizer loads the weights without",
                        dsi_load_file_path(l, l->model));
    for (int k = 0; status == DS_OK && k < f->n; k++) {
        const char *name = dsi_flat_path(f, e->model, k);
        if (strict && !dsi_load_find_param(l, name))
            return dsi_fail(
                DS_EINVAL,
                "%s has no state of the optimizer for %s: .no_optimizer loads the weights without, "
                ".not_strict what there is",
                l->folder, name);
        status = check_moments(l, e, &f->param[k], name);
        if (status == DS_OK && averages) status = check_average(l, &f->param[k], name);
    }
    return status;
}

/* ---- the shard of a rank ---------------------------------------------------------------------------------- */

bool dsi_load_is_complete(const dsi_loaded *l, const ds_engine *e, bool optimizer)
{
    const dsi_flat *f = e->zero ? dsi_zero_flat(e->zero) : NULL;
    bool averages = optimizer && both_have_averages(l, e);
    for (int k = 0; f && k < f->n; k++) {
        const dsi_load_param *p = dsi_load_find_param(l, dsi_flat_path(f, e->model, k));
        if (!p || !param_has_range(p, DSI_LOAD_WEIGHTS, &f->param[k])) return false;
        if (averages && !param_has_range(p, DSI_LOAD_AVERAGE, &f->param[k])) return false;
        for (int i = 0; optimizer && p->step && i < DS_OPTIM_MOMENTS; i++)
            if (dsi_optim_uses(e->optim, e->optim->params[f->param[k].index].group, i) &&
                !param_has_range(p, e->optim->type->moment[i], &f->param[k]))
                return false;
    }
    return f != NULL;
}

ds_status dsi_load_check(const dsi_loaded *l, const ds_engine *e, const ds_load_opts *o)
{
    if (check_expert_counts(l, e) != DS_OK) return ds_error_status();
    ds_status status = check_model_state(l, e, !o->not_strict);
    bool optimizer = e->zero && !o->module_only && !o->no_optimizer;
    return status == DS_OK && optimizer ? check_optimizer_state(l, e, !o->not_strict) : status;
}
