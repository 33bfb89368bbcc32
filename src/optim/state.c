/* optim/state.c: the state dict of an optimizer: moments and step counts by the
 * names of parameters.
 *
 * Names are "<moment>.<path>" and "step.<path>". They say nothing about groups
 * or their values, which the program sets.
 *
 * Invariants: entries share the moments' memory, except steps, which are
 * copies. Loading checks all entries and makes all moments before it writes
 * the first one; so a refused state changes no moment's value.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "base/text.h"
#include "replay.h"

#include <string.h>

ds_status dsi_optim_state_add(ds_state *state, const char *kind, const char *path, ds_tensor *x)
{
    dsi_text name = dsi_text_of("%s.%s", kind, path);
    ds_status status = x ? ds_state_set(state, name.s, x) : ds_error_status();
    dsi_text_free(&name);
    return status;
}

/* A parameter that was never updated has no entries. */
ds_state *ds_optim_state(const ds_optim *o)
{
    if (!o) return dsi_null_operand("optim_state");
    if (dsi_replay_read_skips(o) != DS_OK) return NULL;
    ds_state *state = ds_state_new();
    ds_scope *scope = ds_scope_open();
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < o->n; i++) {
        const dsi_optim_param *x = &o->params[i];
        if (!x->step) continue;
        for (int k = 0; status == DS_OK && k < DS_OPTIM_MOMENTS; k++)
            if (x->moment[k])
                status = dsi_optim_state_add(state, o->type->moment[k], x->path, x->moment[k]);
        if (status == DS_OK)
            status = dsi_optim_state_add(state, "step", x->path,
                                         ds_from_data(DS_I64, (ds_dims){0}, &x->step));
    }
    ds_scope_close(scope);
    if (status == DS_OK) return state;
    ds_state_free(state);
    return NULL;
}

/* "exp_avg.fc1.weight" -> the parameter, and its moment, or DS_OPTIM_MOMENTS
 * for its step; NULL: unknown. */
static dsi_optim_param *state_find_entry(const ds_optim *o, const char *name, int *moment)
{
    const char *dot = strchr(name, '.');
    dsi_optim_param *x = NULL;
    for (int i = 0; dot && !x && i < o->n; i++)
        if (!strcmp(o->params[i].path, dot + 1)) x = &o->params[i];
    if (!x) return NULL;
    size_t length = (size_t)(dot - name);
    for (*moment = 0; *moment <= DS_OPTIM_MOMENTS; ++*moment) {
        bool last = *moment == DS_OPTIM_MOMENTS;
        const char *kind = last ? "step" : o->type->moment[*moment];
        if (kind && strlen(kind) == length && !strncmp(kind, name, length))
            return last || x->moment[*moment] || dsi_optim_uses(o, x->group, *moment) ? x : NULL;
    }
    return NULL;
}

/* An entry must name a moment that this rule uses, of a parameter that is
 * updated here, in its shape; a step count is not negative. */
static ds_status state_check_entry(const ds_optim *o, const char *name, const ds_tensor *t)
{
    int moment;
    const dsi_optim_param *x = state_find_entry(o, name, &moment);
    if (!x) return dsi_fail(DS_EINVAL, "optim_load: %s has no %s", o->type->name, name);
    if (!x->p) return dsi_fail(DS_EINVAL, "optim_load: no part of %s is updated here", x->path);
    ds_dims shape = moment < DS_OPTIM_MOMENTS ? x->p->shape : (ds_dims){0};
    if (!dsi_same_shape(t->shape, shape))
        return dsi_fail(DS_EINVAL, "optim_load: %s is %s: expected %s", name,
                        dsi_shape_text(t->shape), dsi_shape_text(shape));
    if (moment == DS_OPTIM_MOMENTS && !(ds_item(t) >= 0))
        return dsi_fail(DS_EINVAL, "optim_load: %s is %g: expected 0 or more", name, ds_item(t));
    return DS_OK;
}

/* A parameter has all of its entries in the state, or none. A moment without
 * its step would be corrected for a wrong bias later. */
static ds_status check_whole(const ds_optim *o, const ds_state *state)
{
    for (int i = 0; i < o->n; i++) {
        int found = 0, wanted = 0;
        dsi_text missing = {0};
        for (int k = 0; k <= DS_OPTIM_MOMENTS; k++) {
            if (k < DS_OPTIM_MOMENTS && !dsi_optim_uses(o, o->params[i].group, k)) continue;
            const char *kind = k < DS_OPTIM_MOMENTS ? o->type->moment[k] : "step";
            dsi_text name = dsi_text_of("%s.%s", kind, o->params[i].path);
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

/* Parameters that the state does not name lose their moments and count. They
 * begin again, as new ones do. */
ds_status ds_optim_load(ds_optim *o, const ds_state *state)
{
    if (!o || !state) return dsi_null_argument("optim_load");
    if (dsi_replay_read_skips(o) != DS_OK) return ds_error_status();
    for (int i = 0; i < ds_state_len(state); i++) {
        ds_status status = state_check_entry(o, ds_state_name(state, i), ds_state_at(state, i));
        if (status != DS_OK) return status;
    }
    ds_status status = check_whole(o, state);
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < o->n; i++)
        if (o->params[i].p) status = dsi_optim_make_moments(o, &o->params[i]);
    ds_scope_close(scope);
    if (status != DS_OK) return status;

    for (int i = 0; i < o->n; i++) {
        dsi_optim_param *x = &o->params[i];
        x->step = 0;
        for (int k = 0; k < DS_OPTIM_MOMENTS && status == DS_OK; k++)
            if (x->moment[k] && !dsi_fill(x->moment[k], 0)) status = ds_error_status();
    }
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        int moment = 0;
        ds_tensor *t = ds_state_at(state, i);
        dsi_optim_param *x = state_find_entry(o, ds_state_name(state, i), &moment);
        if (moment == DS_OPTIM_MOMENTS)
            x->step = (int64_t)ds_item(t);
        else
            status = dsi_copy(x->moment[moment], t);
    }
    return status;
}
