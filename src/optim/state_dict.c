/* optim/state_dict.c: an optimizer's state as torch.optim's state_dict() has
 * it.
 *
 * PyTorch numbers parameters group by group, and names nothing: what is loaded
 * belongs to a parameter by its place. A group's options are its
 * ds_optim_values and the type's, of which there is one here for all groups. To
 * load, the state is first given names, as ds_optim_load wants it, which checks
 * it whole.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "device/graph.h"
#include "optim.h"
#include "replay.h"

#include <inttypes.h>
#include <string.h>

/* ---- save ---------------------------------------------------------------------------------------------- */

/* A float32 tensor without dimensions, as torch stores a step. */
static ds_value *scalar(double x)
{
    ds_scope *scope = ds_scope_open();
    ds_value *v = ds_value_tensor(ds_scalar(DS_F32, x));
    ds_scope_close(scope);
    return v;
}

/* {"step": ..., "exp_avg": ...}. number is the parameter's place among all
 * groups. A parameter whose row would be empty, as SGD's without a momentum,
 * gets none. */
static ds_status add_state(const ds_optim *o, const dsi_optim_param *x, ds_value *state,
                           int64_t number)
{
    ds_value *row = ds_value_dict();
    const ds_optim_type *type = o->type;
    ds_status status = DS_OK;
    if (!type->no_step) status = ds_value_set(row, "step", scalar((double)x->step));
    if (status == DS_OK && type->derived)
        status = ds_value_set(row, type->derived,
                              scalar(type->derive(o->self, &o->groups[x->group], x->step)));
    bool some = !type->no_step;
    for (int k = 0; status == DS_OK && k < DS_OPTIM_MOMENTS; k++) {
        if (!x->moment[k]) continue;
        status = ds_value_set(row, type->moment[k], ds_value_tensor(x->moment[k]));
        some = true;
    }
    if (status == DS_OK && some) return ds_value_set_int(state, number, row);
    ds_value_free(row);
    return status;
}

/* Options that torch has and that do not exist here are written with torch's
 * default, so that torch.optim.load_state_dict accepts the group. */
static void add_options(const ds_optim *o, ds_value *group)
{
    for (const ds_optim_option *of = o->type->options; of && of->name; of++) {
        const char *at = (const char *)o->self + of->offset;
        ds_value *v = of->kind == DS_OPTION_DOUBLE
                          ? ds_value_float(*(const double *)(const void *)at)
                      : of->kind == DS_OPTION_BOOL ? ds_value_bool(*(const bool *)(const void *)at)
                      : of->kind == DS_OPTION_NONE ? ds_value_none()
                                                   : ds_value_bool(false);
        ds_value_set(group, of->name, v);
    }
}

/* {"lr": ..., "betas": (...), ..., "params": [first, ...]} -> the number behind
 * the last. */
static int64_t add_group(const ds_optim *o, int g, ds_value *groups, int64_t first)
{
    const ds_optim_values *v = &o->groups[g];
    ds_value *group = ds_value_dict(), *params = ds_value_list();
    ds_value_set(group, "lr", ds_value_float(v->lr));
    if (o->type->has_momentum) ds_value_set(group, "momentum", ds_value_float(v->momentum));
    if (o->type->has_betas) {
        ds_value *betas = ds_value_tuple();
        ds_value_append(betas, ds_value_float(v->betas[0]));
        ds_value_append(betas, ds_value_float(v->betas[1]));
        ds_value_set(group, "betas", betas);
    }
    ds_value_set(group, "weight_decay", ds_value_float(v->weight_decay));
    if (!strcmp(o->type->name, "muon")) ds_value_set(group, "use_muon", ds_value_bool(v->use_muon));
    add_options(o, group);
    for (int i = 0; i < o->n; i++)
        if (o->params[i].group == g) ds_value_append(params, ds_value_int(first++));
    ds_value_set(group, "params", params);
    ds_value_append(groups, group);
    return first;
}

/* A new value that shares the moments' memory. A parameter without a step has
 * no row, as in torch. */
ds_value *ds_optim_state_dict(ds_optim *o)
{
    if (!o) return dsi_null_operand("optim_state_dict");
    if (dsi_replay_read_skips(o) != DS_OK) return NULL;
    ds_value *dict = ds_value_dict(), *state = ds_value_dict(), *groups = ds_value_list();
    ds_value_set(dict, "state", state);
    ds_value_set(dict, "param_groups", groups);
    ds_status status = DS_OK;
    int64_t number = 0;
    for (int g = 0; g < o->n_groups; g++) {
        int64_t at = number;
        number = add_group(o, g, groups, number);
        for (int i = 0; i < o->n && status == DS_OK; i++) {
            if (o->params[i].group != g) continue;
            if (o->params[i].step) status = add_state(o, &o->params[i], state, at);
            at++;
        }
    }
    if (status == DS_OK) return dict;
    ds_value_free(dict);
    return NULL;
}

/* ---- load: options --------------------------------------------------------------------------------------- */

#define state_dict_refuse(...) dsi_fail(DS_EINVAL, "optim_load_state_dict: " __VA_ARGS__)

/* A number at path of the group, if it is there; one that is NaN is refused. */
static ds_status read_value(const ds_value *group, const char *path, double *to)
{
    double x;
    if (!ds_value_find(group, path)) return DS_OK;
    ds_status status = ds_value_read_float(group, path, &x);
    if (status != DS_OK) return status;
    if (!(x >= 0)) return state_dict_refuse("param_groups: %s is %g: expected 0 or more", path, x);
    *to = x;
    return DS_OK;
}

/* The type's options, into self; of the groups after the first, they must be
 * the same. */
static ds_status read_options(const ds_optim *o, char *self, const ds_value *group, bool first)
{
    for (const ds_optim_option *of = o->type->options; of && of->name; of++) {
        void *at = self + of->offset;
        double x = 0;
        bool b = false, number = of->kind == DS_OPTION_DOUBLE;
        if ((!number && of->kind != DS_OPTION_BOOL) || !ds_value_get(group, of->name)) continue;
        ds_status status = number ? read_value(group, of->name, &x)
                                  : ds_value_read_bool(group, of->name, &b);
        if (status != DS_OK) return status;
        bool same = number ? x == *(double *)at : b == *(bool *)at;
        if (!first && !same)
            return state_dict_refuse("groups differ in %s, of which %s has one for all groups",
                                     of->name, o->type->name);
        if (number)
            *(double *)at = x;
        else
            *(bool *)at = b;
    }
    return DS_OK;
}

/* Missing keys keep the optimizer's values: DeepSpeed and older versions of
 * torch write fewer. */
static ds_status read_group(const ds_optim *o, char *self, ds_optim_values *v,
                            const ds_value *group, bool first)
{
    ds_status status = read_value(group, "lr", &v->lr);
    if (status == DS_OK) status = read_value(group, "weight_decay", &v->weight_decay);
    if (status == DS_OK && o->type->has_momentum)
        status = read_value(group, "momentum", &v->momentum);
    if (status == DS_OK && o->type->has_betas) {
        status = read_value(group, "betas/0", &v->betas[0]);
        if (status == DS_OK) status = read_value(group, "betas/1", &v->betas[1]);
    }
    return status == DS_OK ? read_options(o, self, group, first) : status;
}

/* ---- load: state ------------------------------------------------------------------------------------------- */

static bool is_moment(const ds_optim *o, const char *kind)
{
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
        if (o->type->moment[k] && !strcmp(kind, o->type->moment[k])) return true;
    return false;
}

/* The row of one parameter; SGD's, which has no step, is that of a parameter
 * that was updated. */
static ds_status name_row(const ds_optim *o, const dsi_optim_param *x, const ds_value *row,
                          ds_state *named)
{
    int64_t step = 0;
    int moments = 0;
    ds_status status = DS_OK;
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(row); i++) {
        const char *kind = ds_value_text(ds_value_key_at(row, i));
        const ds_value *item = ds_value_at(row, i);
        ds_tensor *moment = NULL;
        if (!kind || ds_value_kind_of(item) == DS_VALUE_NONE) continue;
        if (!strcmp(kind, "step")) {
            status = ds_value_read_int(row, "step", &step);
        } else if (is_moment(o, kind)) {
            status = ds_value_read_tensor(item, "", &moment);
            if (status == DS_OK) status = dsi_optim_state_add(named, kind, x->path, moment);
            moments++;
        } else if (!o->type->derived || strcmp(kind, o->type->derived) != 0) {
            return state_dict_refuse("%s has no %.60s, which the state of %s has", o->type->name,
                                     kind, x->path);
        }
    }
    if (o->type->no_step && moments) step = step ? step : 1;
    if (status != DS_OK || (!step && !moments)) return status;
    return dsi_optim_state_add(named, "step", x->path, ds_from_data(DS_I64, (ds_dims){0}, &step));
}

/* The state of group g, whose parameters the file numbers as it does. */
static ds_status name_group(const ds_optim *o, int g, const ds_value *state, const ds_value *params,
                            ds_state *named)
{
    int64_t k = 0, n = 0;
    for (int i = 0; i < o->n; i++) n += o->params[i].group == g;
    if (ds_value_len(params) != n)
        return state_dict_refuse("group %d has %" PRId64 " parameters there, %" PRId64 " here", g,
                                 ds_value_len(params), n);
    ds_status status = DS_OK;
    for (int i = 0; i < o->n && status == DS_OK; i++) {
        if (o->params[i].group != g) continue;
        int64_t number = 0;
        status = ds_value_read_int(ds_value_at(params, k++), "", &number);
        const ds_value *row = status == DS_OK ? ds_value_get_int(state, number) : NULL;
        if (row) status = name_row(o, &o->params[i], row, named);
    }
    return status;
}

/* ---- load ---------------------------------------------------------------------------------------------------- */

/* Names the rows first and then loads them: ds_optim_load checks all before it
 * changes a moment. */
static ds_status state_dict_read(ds_optim *o, const ds_value *state, const ds_value *groups)
{
    ds_status status = DS_OK;
    ds_state *named = ds_state_new();
    ds_scope *scope = ds_scope_open();
    for (int g = 0; g < o->n_groups && status == DS_OK; g++) {
        const ds_value *group = ds_value_at(groups, g);
        status = read_group(o, o->self, &o->groups[g], group, g == 0);
        if (status == DS_OK) status = name_group(o, g, state, ds_value_get(group, "params"), named);
    }
    if (status == DS_OK) status = ds_optim_load(o, named);
    ds_scope_close(scope);
    ds_state_free(named);
    return status;
}

/* Values and options are restored if anything is refused, so a failed load
 * leaves the optimizer as it was. */
ds_status ds_optim_load_state_dict(ds_optim *o, const ds_value *state_dict)
{
    if (!o || !state_dict) return dsi_null_argument("optim_load_state_dict");
    const ds_value *state = ds_value_get(state_dict, "state"),
                   *groups = ds_value_get(state_dict, "param_groups");
    dsi_graph_forbid_call("optim_load_state_dict");
    if (ds_value_kind_of(state) != DS_VALUE_DICT || ds_value_kind_of(groups) != DS_VALUE_LIST)
        return state_dict_refuse(
            "no state dict of an optimizer: it wants \"state\" and \"param_groups\"");
    if (ds_value_len(groups) != o->n_groups)
        return state_dict_refuse("%" PRId64 " groups there, %d here", ds_value_len(groups),
                                 o->n_groups);

    size_t self_bytes = o->type->self_size, group_bytes = (size_t)o->n_groups * sizeof *o->groups;
    void *self = dsi_alloc(self_bytes), *values = dsi_alloc(group_bytes);
    memcpy(self, o->self, self_bytes);
    memcpy(values, o->groups, group_bytes);
    ds_status status = state_dict_read(o, state, groups);
    if (status != DS_OK) {
        memcpy(o->self, self, self_bytes);
        memcpy(o->groups, values, group_bytes);
    }
    dsi_free(self);
    dsi_free(values);
    return status;
}
