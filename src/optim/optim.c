/* optim/optim.c: optimizers: their parameters, moments and step counts, and the
 * step.
 *
 * An optimizer is a type (ds_optim_type) on a list of parameters. A step
 * collects the parameters that have a gradient and passes those of a group to
 * the type.
 *
 * Invariants:
 *  - params[i] is the model's i-th parameter, in the order of ds_module_param_at,
 *    for good; `group` says which values it has. The optimizer owns references to
 *    its tensors; the type is borrowed.
 *  - Steps update `p`: the model's tensor `of`, until ZeRO replaces it by a float32
 *    master or a shard of one, or by NULL where this rank has no shard; or its halves
 *    `low` and `rest`, where there is a rest.
 *  - Moments are made at a parameter's first update, by `keeper` if there is one.
 *    Each parameter counts its own steps, as in PyTorch.
 *  - updates[] and updated[] are valid during one step only.
 *  - A step that is refused or finds no memory changes nothing; if a group's rule
 *    fails, the groups before it are updated.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "device/graph.h"
#include "list.h"
#include "replay.h"

#include <stdio.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------------------ */

/* All on one device, of a floating dtype, row-major: what the kernels walk
 * over. */
static bool param_check(const char *optim, const ds_tensor *p, const char *path,
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

/* For messages about the handle. */
static void optim_describe(const void *p, char *text, size_t room)
{
    const ds_optim *o = p;
    snprintf(text, room, "%s", o->type->name);
}

static const dsi_handle_kind optim_kind = {
    "optimizer", optim_describe, "an optimizer that was handed to ds_initialize belongs to it",
    NULL};

/* All parameters are in group 0, with `values`. Nothing is allocated for
 * moments before the first step, so an engine can still replace the parameters
 * by masters. The model is not kept; its parameters are counted, so they
 * outlive a module that is freed first. self is zeroed, of type->self_size
 * bytes, for the caller to fill. NULL, with a message that begins with the
 * type's name. */
ds_optim *ds_optim_new(ds_module *model, const ds_optim_type *type, ds_optim_values values)
{
    if (!model || !type) return dsi_null_operand(type && type->name ? type->name : "optim_new");
    if (!type->name) return dsi_refuse("optim_new: the type has no name");
    if (!type->step && !type->step_n) return dsi_refuse("%s: the type has no step", type->name);
    int n = ds_module_params(model);
    if (!n)
        return dsi_refuse("%s: the module %s has no parameters", type->name, ds_module_name(model));
    ds_optim *o = dsi_alloc(sizeof *o);
    dsi_handle_call(type->name);
    dsi_handle_made(o, &optim_kind);
    o->type = type;
    o->self = dsi_alloc(type->self_size ? type->self_size : 1);
    o->params = dsi_alloc((size_t)n * sizeof *o->params);
    o->updates = dsi_alloc((size_t)n * sizeof *o->updates);
    o->updated = dsi_alloc((size_t)n * sizeof *o->updated);
    o->groups = dsi_alloc(sizeof *o->groups);
    o->groups[0] = values;
    o->n_groups = 1;
    for (; o->n < n; o->n++) {
        const char *path;
        dsi_optim_param *x = &o->params[o->n];
        ds_tensor *p = ds_module_param_at(model, o->n, &path);
        if (!param_check(type->name, p, path, ds_module_param_at(model, 0, NULL))) {
            ds_optim_free(o);
            return NULL;
        }
        x->of = dsi_ref(p);
        x->p = dsi_ref(p);
        x->path = dsi_strdup(path);
    }
    return o;
}

/* Number i of the option that the table calls `name`; 0: there is none. */
static double option_number(const dsi_param *table, const char *name, const void *opts, int i)
{
    const dsi_param *p = dsi_params_find(table, name);
    return p ? ((const double *)((const char *)opts + p->offset))[i] : 0;
}

/* A row whose offset is at or beyond `size` belongs to configurations alone
 * and is not in opts. A row NOT holds the opposite of the option in self. */
ds_optim *dsi_optim_from(ds_module *model, const ds_optim_type *type, const dsi_param *table,
                         void *opts, size_t size)
{
    if (!dsi_params_check(type->name, table, opts, size)) return NULL;
    const ds_optim_values v = {
        .lr = option_number(table, "lr", opts, 0),
        .weight_decay = option_number(table, "weight_decay", opts, 0),
        .momentum = option_number(table, "momentum", opts, 0),
        .betas = {option_number(table, "betas", opts, 0), option_number(table, "betas", opts, 1)}};
    ds_optim *o = ds_optim_new(model, type, v);
    for (const ds_optim_option *to = type->options; o && to && to->name; to++) {
        const dsi_param *p = dsi_params_find(table, to->name);
        if (!p || p->offset >= size) continue;
        const void *from = (const char *)opts + p->offset;
        if (to->kind == DS_OPTION_DOUBLE)
            *(double *)((char *)o->self + to->offset) = *(const double *)from;
        else if (to->kind == DS_OPTION_BOOL)
            *(bool *)((char *)o->self + to->offset) = *(const bool *)from !=
                                                      (p->kind == DSI_PARAM_NOT);
    }
    return o;
}

/* They are zero again at the next update, so the steps count from 1 again. */
static void drop_moments(dsi_optim_param *x)
{
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++) dsi_unref(x->moment[k]), x->moment[k] = NULL;
    x->step = 0;
    x->lags = false;
}

/* Frees an optimizer and its moments, not the model; refused while an engine
 * owns it. */
void ds_optim_free(ds_optim *o)
{
    if (!dsi_live(o, "optim_free")) return;
    if (o->taken) {
        dsi_fail(DS_ESTATE, "optim_free: %s belongs to an engine, which frees it", o->type->name);
        return;
    }
    bool quarantined = dsi_handle_freed_by(o, "ds_optim_free");
    if (o->type->free) o->type->free(o->self);
    for (int i = 0; i < o->n; i++) {
        dsi_unref(o->params[i].of);
        dsi_unref(o->params[i].p);
        dsi_unref(o->params[i].low);
        dsi_unref(o->params[i].rest);
        dsi_free(o->params[i].path);
        drop_moments(&o->params[i]);
    }
    dsi_replay_free_skips(o);
    dsi_free(o->self);
    dsi_free(o->params);
    dsi_free(o->groups);
    dsi_free(o->updates);
    dsi_free(o->updated);
    if (!quarantined) dsi_free(o);
}

void *ds_optim_self(ds_optim *o) { return o ? o->self : NULL; }
const char *ds_optim_name(const ds_optim *o) { return o ? o->type->name : NULL; }

/* The gradients are dropped, not filled with zeros (set_to_none): a parameter
 * without one is left out of the next step. Both tensors, the model's and the
 * one that is updated, may have one. */
void ds_optim_zero_grad(ds_optim *o)
{
    for (int i = 0; o && i < o->n; i++) {
        ds_set_grad_of(o->params[i].of, NULL);
        if (o->params[i].p) ds_set_grad_of(o->params[i].p, NULL);
    }
}

/* ---- parameters that stand for the model's ------------------------------------------------------------- */

int dsi_optim_params(const ds_optim *o) { return o ? o->n : 0; }
bool dsi_optim_needs_whole(const ds_optim *o) { return o && o->type->whole; }

bool dsi_optim_group_needs_whole(const ds_optim *o, int group)
{
    return dsi_optim_needs_whole(o) &&
           (o->type != dsi_optim_muon.type || o->groups[group].use_muon);
}

static bool is_half(ds_dtype dtype) { return dtype == DS_F16 || dtype == DS_BF16; }

/* All checks precede the first change. Old moments are dropped: they are those
 * of another tensor. */
ds_status dsi_optim_set_param(ds_optim *o, int i, ds_tensor *p, ds_tensor *low)
{
    if (!dsi_live(o, "optim_set_param")) return dsi_null_argument("optim_set_param");
    const char *name = o->type->name;
    if (i < 0 || i >= o->n)
        return dsi_fail(DS_EINVAL, "%s: there is no parameter %d of %d", name, i, o->n);
    dsi_optim_param *x = &o->params[i];
    if (p && !param_check(name, p, x->path, p)) return ds_error_status();
    if (low && (!p || p->dtype != DS_F32 || !is_half(low->dtype) || !dsi_is_contiguous(low) ||
                dsi_numel(low->shape) != dsi_numel(p->shape)))
        return dsi_fail(DS_EINVAL,
                        "%s: the copy of %s %s %s does not fit: expected 16 bits and row-major "
                        "order beside a float32 parameter of as many elements",
                        name, x->path, ds_dtype_name(low->dtype), dsi_shape_text(low->shape));
    dsi_ref(p), dsi_ref(low);
    dsi_unref(x->p), dsi_unref(x->low), dsi_unref(x->rest);
    x->p = p, x->low = low, x->rest = NULL;
    drop_moments(x);
    return DS_OK;
}

bool dsi_optim_takes_halves(const ds_optim *o)
{
#define IS_TYPE(name) || o->type == dsi_optim_##name.type
    bool listed = false DSI_OPTIMIZERS(IS_TYPE);
#undef IS_TYPE
    return listed && o->type->mixed && o->type != dsi_optim_muon.type;
}

void dsi_optim_set_rest(ds_optim *o, int i, ds_tensor *rest) { dsi_hold(&o->params[i].rest, rest); }

ds_status dsi_optim_round(ds_tensor *low, ds_tensor *p)
{
    bool unties = low && p && low->dtype == DS_BF16 && p->dtype == DS_F32;
    if (unties && !(dsi_acquire_to_write(p) &&
                    dsi_run(p, halves_split, dsi_v(p), (dsi_view){0}, (dsi_view){0})))
        return ds_error_status();
    return dsi_copy(low, p);
}

/* ---- the step ---------------------------------------------------------------------------------------------- */

bool dsi_optim_uses(const ds_optim *o, int group, int i)
{
    if (!o->type->moment[i]) return false;
    return !o->type->uses || o->type->uses(o->self, &o->groups[group], i);
}

/* Moments are float32 for 16-bit parameters and float64 for float64, like
 * PyTorch's for masters. Those that exist stay. */
ds_status dsi_optim_make_moments(const ds_optim *o, dsi_optim_param *x)
{
    ds_dtype dtype = x->p->dtype == DS_F64 ? DS_F64 : DS_F32;
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++) {
        if (x->moment[k] || !dsi_optim_uses(o, x->group, k)) continue;
        if (o->keeper) {
            x->moment[k] = dsi_ref(o->keeper(o->keeper_arg, (int)(x - o->params), k));
            if (!x->moment[k]) return ds_error_status();
            continue;
        }
        ds_tensor *t = dsi_new_dtype(x->p, dtype, x->p->shape);
        if (!dsi_fill(t, 0)) return ds_error_status();
        x->moment[k] = dsi_ref(t);
    }
    return DS_OK;
}

/* A capture would fill new moments with zeros at each replay. */
ds_status dsi_optim_skip(ds_optim *o)
{
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; i < o->n && status == DS_OK; i++) {
        dsi_optim_param *x = &o->params[i];
        if (x->p && x->p->grad && dsi_graph_recording(x->p->device))
            status = dsi_optim_make_moments(o, x);
    }
    ds_scope_close(scope);
    return status;
}

/* The gradient row-major, of the parameter's dtype, or of 16 bits beside
 * float32. */
static ds_tensor *param_dense_grad(const ds_optim *o, const dsi_optim_param *x)
{
    /* kernels may read a shared one (tensor/shared.c) */
    ds_tensor *g = o->type->mixed ? x->p->grad : ds_grad(x->p);
    if (!g) return NULL;
    if (g->dtype != x->p->dtype && !(x->p->dtype == DS_F32 && is_half(g->dtype)))
        return dsi_refuse("%s: the gradient of %s is %s, but the parameter %s", o->type->name,
                          x->path, ds_dtype_name(g->dtype), ds_dtype_name(x->p->dtype));
    if (!dsi_acquire(g)) return NULL;
    return dsi_is_contiguous(g) ? g : ds_contiguous(ds_detach(g));
}

/* For types that are not .mixed: of p's dtype and scaled. */
static ds_tensor *param_plain_grad(const ds_tensor *p, ds_tensor *g, double g_scale)
{
    g = ds_cast(g, p->dtype);
    if (!g || g_scale == 1) return g;
    ds_tensor *y = dsi_new(g, g->shape);
    return dsi_run(y, affine, g_scale, 0.0, dsi_v(g), dsi_v(y)) ? y : NULL;
}

static bool acquire_update(const dsi_optim_param *x)
{
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
        if (!dsi_acquire_to_write(x->moment[k])) return false;
    if (x->rest) return dsi_acquire_to_write(x->low) && dsi_acquire_to_write(x->rest);
    return dsi_acquire_to_write(x->p) && dsi_acquire_to_write(x->low);
}

/* Appends the parameters of a group that have a gradient to the n updates ->
 * their number, or -1. */
static int updates_gather(ds_optim *o, int group, double g_scale, int n)
{
    for (int i = 0; i < o->n; i++) {
        dsi_optim_param *x = &o->params[i];
        if (x->group != group || !x->p || !x->p->grad) continue;
        ds_tensor *g = param_dense_grad(o, x);
        if (g && !o->type->mixed) g = param_plain_grad(x->p, g, g_scale);
        if (!g || dsi_optim_make_moments(o, x) != DS_OK) return -1;
        if (!acquire_update(x)) return -1;
        o->updated[n] = i;
        ds_optim_update *u = &o->updates[n++];
        *u = (ds_optim_update){.path = x->path, .p = x->p, .grad = g, .step = x->step + 1};
        memcpy(u->moment, x->moment, sizeof u->moment);
        u->grad_scale = o->type->mixed ? g_scale : 1;
        u->copy = o->type->mixed ? x->low : NULL;
        if (x->rest) u->p = x->low, u->copy = x->rest;
    }
    return n;
}

/* After an update: counts the step, and writes the low-precision copy for types
 * that are not .mixed. */
static ds_status update_count(ds_optim *o, int n)
{
    dsi_optim_param *x = &o->params[o->updated[n]];
    x->step++;
    if (!x->low || o->type->mixed) return DS_OK;
    return dsi_optim_round(ds_reshape(x->low, x->p->shape), x->p);
}

/* Updates begin .. end - 1, all of one group. */
static ds_status group_update(ds_optim *o, int group, int begin, int end)
{
    const ds_optim_type *type = o->type;
    const ds_optim_values *v = &o->groups[group];
    ds_status status = DS_OK;
    if (type->step_n) {
        if (begin < end) status = type->step_n(o->self, v, o->updates + begin, end - begin);
        for (int i = begin; status == DS_OK && i < end; i++) status = update_count(o, i);
        return status;
    }
    for (int i = begin; status == DS_OK && i < end; i++) {
        status = type->step(o->self, v, &o->updates[i]);
        if (status == DS_OK) status = update_count(o, i);
    }
    return status;
}

static ds_status group_step(ds_optim *o, int group, int begin, int end)
{
    const int *updated = o->updated + begin;
    ds_status status = dsi_replay_begin(o, group, updated, end - begin);
    if (status == DS_OK) status = group_update(o, group, begin, end);
    if (status != DS_OK && !ds_error())
        dsi_fail(status, "%s: its step failed and did not say why", o->type->name);
    ds_status ended = dsi_replay_end(o, updated, end - begin);
    return status == DS_OK ? ended : status;
}

/* Gradients that a bad label or index has spoilt must not be used: nothing is
 * updated, no step is counted. */
static ds_status check_faults(const ds_optim *o)
{
    const dsi_device *seen = NULL;
    for (int i = 0; i < o->n; i++) {
        dsi_device *d = o->params[i].p ? o->params[i].p->device : NULL;
        if (d && d != seen && dsi_device_check_faults(d) != DS_OK) return ds_error_status();
        if (d) seen = d;
    }
    return DS_OK;
}

ds_status ds_optim_step(ds_optim *o)
{
    if (dsi_live(o, "optim_step") && o->taken)
        return dsi_fail(DS_ESTATE, "optim_step: %s belongs to an engine: call ds_engine_step",
                        o->type->name);
    return dsi_optim_step_scaled(o, 1);
}

/* g_scale unscales and clips inside of the kernel's one pass over memory; types
 * that are not .mixed get a scaled copy of the gradient. Updates are made in
 * the order of groups and of parameters. */
ds_status dsi_optim_step_scaled(ds_optim *o, double g_scale)
{
    if (!dsi_live(o, "optim_step")) return dsi_null_argument("optim_step");
    if (check_faults(o) != DS_OK) return ds_error_status();
    if (!dsi_graph_capturing(dsi_device_recording()) && dsi_replay_read_skips(o) != DS_OK)
        return ds_error_status();
    ds_scope *scope = ds_scope_open(); /* of copies of gradients, and of what a type makes */
    bool was = ds_set_grad(false);
    int n = 0;
    for (int g = 0; n >= 0 && g < o->n_groups; g++) n = updates_gather(o, g, g_scale, n);
    ds_status status = n < 0 ? ds_error_status() : DS_OK;
    for (int g = 0, begin = 0, end; status == DS_OK && g < o->n_groups; g++, begin = end) {
        for (end = begin; end < n && o->params[o->updated[end]].group == g;) end++;
        status = group_step(o, g, begin, end);
    }
    ds_set_grad(was);
    ds_scope_close(scope);
    return status;
}

/* ---- a step in pieces ------------------------------------------------------------------------------------ */

void dsi_optim_keep(ds_optim *o, ds_tensor *(*keeper)(void *arg, int i, int k), void *arg)
{
    o->keeper = keeper;
    o->keeper_arg = arg;
}

/* As many elements of row-major x, from `begin` on, as `like` has, with its
 * shape. */
static ds_tensor *chunk_view(const ds_tensor *x, int64_t begin, const ds_tensor *like)
{
    int64_t stride[DS_MAX_DIMS];
    dsi_row_major(like->shape, stride);
    return dsi_view_of(x, like->shape, stride, x->offset + begin);
}

/* One update of the elements that a piece has; false with the message. The
 * gradient is the whole parameter's: the piece says where its part begins. */
static bool chunk_update(ds_optim *o, const dsi_optim_piece *x, double g_scale, ds_optim_update *u)
{
    const dsi_optim_param *of = &o->params[x->i];
    ds_tensor *g = x->grad ? x->grad : param_dense_grad(o, of);
    if (g && !x->grad) g = chunk_view(g, x->begin, x->p);
    if (g && !o->type->mixed) g = param_plain_grad(x->p, g, g_scale);
    if (!g) return false;
    int64_t step = x->grad ? x->step : of->step;
    *u = (ds_optim_update){.path = of->path, .p = x->p, .grad = g, .step = step + 1};
    memcpy(u->moment, x->moment, sizeof u->moment);
    u->grad_scale = o->type->mixed ? g_scale : 1;
    bool low = o->type->mixed && of->low && !x->grad;
    u->copy = low ? chunk_view(of->low, x->begin, x->p) : NULL;
    return true;
}

/* As group_step, for pieces in memory: steps are not counted here, since a
 * parameter may have several pieces. */
static ds_status group_step_chunks(ds_optim *o, int group, const dsi_optim_piece *x, int n,
                                   double g_scale)
{
    const ds_optim_type *type = o->type;
    ds_optim_update *u = dsi_alloc((size_t)n * sizeof *u);
    ds_status status = DS_OK;
    int count = 0;
    for (int i = 0; status == DS_OK && i < n; i++) {
        if (o->params[x[i].i].group != group) continue;
        if (!chunk_update(o, &x[i], g_scale, &u[count++])) status = ds_error_status();
    }
    if (type->step_n && status == DS_OK && count)
        status = type->step_n(o->self, &o->groups[group], u, count);
    for (int i = 0; !type->step_n && status == DS_OK && i < count; i++)
        status = type->step(o->self, &o->groups[group], &u[i]);
    dsi_free(u);
    for (int i = 0; !type->mixed && status == DS_OK && i < n; i++) {
        ds_tensor *low = o->params[x[i].i].low;
        if (!low || x[i].grad || o->params[x[i].i].group != group) continue;
        status = dsi_optim_round(chunk_view(low, x[i].begin, x[i].p), x[i].p);
    }
    return status;
}

/* All pieces of one call are updated with the same step number; dsi_optim_count
 * advances it. */
ds_status dsi_optim_step_pieces(ds_optim *o, const dsi_optim_piece *x, int n, double g_scale)
{
    if (check_faults(o) != DS_OK) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    bool was = ds_set_grad(false);
    ds_status status = DS_OK;
    for (int g = 0; status == DS_OK && g < o->n_groups; g++)
        status = group_step_chunks(o, g, x, n, g_scale);
    ds_set_grad(was);
    ds_scope_close(scope);
    return status;
}

/* Also makes the moments that are missing, so that a parameter without a piece
 * on this rank has them for a checkpoint. */
ds_status dsi_optim_count(ds_optim *o, int i)
{
    o->params[i].step++;
    return dsi_optim_make_moments(o, &o->params[i]);
}

ds_tensor *dsi_optim_moment_update(ds_tensor *moment, double beta, ds_tensor *x)
{
    ds_tensor *y = ds_add_scaled(ds_scale(moment, beta), x, 1 - beta);
    return y && ds_copy(moment, y) == DS_OK ? moment : NULL;
}

static void *tensor_memory(const ds_tensor *x) { return x ? dsi_v(x).p : NULL; }

/* Addresses for the kernel; the tensors must be present and stay so until it
 * has run. */
dsi_span *dsi_optim_spans(const ds_optim_update *x, int n)
{
    dsi_span *spans = dsi_alloc((size_t)n * sizeof *spans);
    for (int i = 0; i < n; i++) {
        bool split = x[i].copy && x[i].copy->dtype == DS_I16;
        spans[i] = (dsi_span){.dtype = x[i].p->dtype,
                              .p = tensor_memory(x[i].p),
                              .g = tensor_memory(x[i].grad),
                              .m = tensor_memory(x[i].moment[0]),
                              .v = tensor_memory(x[i].moment[1]),
                              .vmax = tensor_memory(x[i].moment[2]),
                              .n = dsi_numel(x[i].p->shape),
                              .step = x[i].step,
                              .g_dtype = x[i].grad->dtype,
                              .g_scale = x[i].grad_scale,
                              .low = split ? NULL : tensor_memory(x[i].copy),
                              .low_dtype = x[i].copy && !split ? x[i].copy->dtype : DS_F32,
                              .rest = split ? tensor_memory(x[i].copy) : NULL};
    }
    return spans;
}

ds_status dsi_optim_run(const dsi_optimizer *c, const ds_optim_update *x, int n)
{
    dsi_span *spans = dsi_optim_spans(x, n);
    dsi_optimizer rule = *c;
    dsi_device *d = x[0].p->device;
    const dsi_step_result *decided = dsi_graph_decided(d).device;
    if (dsi_graph_recording(d)) rule.scalars = dsi_graph_use_scalars(d);
    if (decided) rule.g_factor = &decided->g_factor, rule.skip = &decided->skip;
    bool ran = dsi_run_named(x[0].p, dsi_rule_name(c->rule), kernels, optimizer, &rule, n, spans);
    dsi_free(spans);
    return ran ? DS_OK : ds_error_status();
}
