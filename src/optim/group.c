/* optim/group.c: parameter groups: which parameters are in them, and the values
 * that they have of their own.
 *
 * Invariants: each parameter is in exactly one group, 0 at first; numbers of
 * groups never change, and a new group is the last. Groups are made before or
 * after steps: moments belong to parameters and move with them.
 * SPDX-License-Identifier: MIT */
#include "optim.h"

#include "device/graph.h"
#include "nn/module.h"

#include <string.h>

/* ---- making -------------------------------------------------------------------------------------------- */

/* Moves the n parameters whose number is in `picked` into a new group with the
 * values of group `like`. Addresses of groups' values that callers have are
 * invalid afterwards. */
static int group_new(ds_optim *o, int like, const int *picked, int n)
{
    int group = o->n_groups++;
    o->groups = dsi_realloc(o->groups, (size_t)o->n_groups * sizeof *o->groups);
    o->groups[group] = o->groups[like];
    for (int i = 0; i < n; i++) o->params[picked[i]].group = group;
    return group;
}

static int group_refuse_null(const char *what)
{
    dsi_null_operand(what);
    return -1;
}

/* Only parameters of one group are offered to `pick`: a parameter is in exactly
 * one group. Returns the new group's number, or -1 with the message. */
int ds_optim_split_group(ds_optim *o, int group,
                         bool (*pick)(void *arg, const char *path, const ds_tensor *p), void *arg)
{
    if (!o || !pick) return group_refuse_null("optim_split_group");
    int *picked = dsi_alloc((size_t)o->n * sizeof *picked), n = 0;
    for (int i = 0; i < o->n; i++)
        if (o->params[i].group == group && pick(arg, o->params[i].path, o->params[i].of))
            picked[n++] = i;
    int made = n ? group_new(o, group, picked, n) : -1;
    if (!n) dsi_refuse("%s: none of group %d was picked for a new group", o->type->name, group);
    dsi_free(picked);
    return made;
}

int ds_optim_add_group(ds_optim *o, bool (*pick)(void *arg, const char *path, const ds_tensor *p),
                       void *arg)
{
    if (!o || !pick) return group_refuse_null("optim_add_group");
    return ds_optim_split_group(o, 0, pick, arg);
}

/* The number of p, in group 0 and not among the n picked; -1, with the message,
 * if it is not. */
static int group_find_param(const ds_optim *o, const ds_tensor *p, const int *picked, int n)
{
    int i = 0;
    bool twice = false;
    while (i < o->n && o->params[i].of != p) i++;
    for (int k = 0; k < n; k++) twice |= picked[k] == i;
    if (i == o->n)
        dsi_refuse("%s: element %d of the list is not a parameter of this optimizer", o->type->name,
                   n);
    else if (twice)
        dsi_refuse("%s: %s is in the list twice", o->type->name, o->params[i].path);
    else if (o->params[i].group)
        dsi_refuse("%s: %s is in group %d already", o->type->name, o->params[i].path,
                   o->params[i].group);
    else
        return i;
    return -1;
}

/* As ds_optim_add_group, by tensors. Nothing changes if one of them is not a
 * parameter, comes twice, or has a group already. */
int ds_optim_add_group_of(ds_optim *o, ds_tensor *const *params, int n)
{
    if (!o || !params) return group_refuse_null("optim_add_group_of");
    if (n < 1) dsi_refuse("%s: %d parameters for a new group", o->type->name, n);
    if (n < 1) return -1;
    int *picked = dsi_alloc((size_t)n * sizeof *picked), found = 0;
    while (found < n && (picked[found] = group_find_param(o, params[found], picked, found)) >= 0)
        found++;
    int group = found == n ? group_new(o, 0, picked, n) : -1;
    dsi_free(picked);
    return group;
}

/* DeepSpeed's split_params_into_different_moe_groups_for_optimizer: an expert's
 * gradient is averaged over other ranks than that of a shared parameter, so
 * experts have groups of their own. Returns how many groups were added. */
int ds_optim_split_experts(ds_optim *o, const ds_module *model)
{
    if (!o || !model) {
        dsi_null_operand("optim_split_experts");
        return 0;
    }
    int *picked = dsi_alloc((size_t)o->n * sizeof *picked), groups = o->n_groups;
    for (int g = 0; g < groups; g++) {
        int all = 0, experts = 0;
        for (int i = 0; i < o->n; i++) {
            if (o->params[i].group != g) continue;
            all++;
            if (dsi_module_expert_of(model, o->params[i].of).of) picked[experts++] = i;
        }
        if (experts && experts < all) group_new(o, g, picked, experts);
    }
    dsi_free(picked);
    return o->n_groups - groups;
}

/* ---- asking and setting -------------------------------------------------------------------------------- */

int ds_optim_groups(const ds_optim *o) { return o ? o->n_groups : 0; }

int ds_optim_group_of(const ds_optim *o, const char *path)
{
    for (int i = 0; o && path && i < o->n; i++)
        if (!strcmp(o->params[i].path, path)) return o->params[i].group;
    return -1;
}

/* NULL for a group that does not exist: getters then return 0 and setters do
 * nothing. */
static ds_optim_values *group_values(const ds_optim *o, int group)
{
    return o && group >= 0 && group < o->n_groups ? &o->groups[group] : NULL;
}

double ds_optim_group_lr(const ds_optim *o, int group)
{
    const ds_optim_values *v = group_values(o, group);
    return v ? v->lr : 0;
}

void ds_optim_set_group_lr(ds_optim *o, int group, double lr)
{
    ds_optim_values *v = group_values(o, group);
    dsi_graph_forbid_call("optim_set_group_lr");
    if (v) v->lr = lr;
}

double ds_optim_lr(const ds_optim *o) { return ds_optim_group_lr(o, 0); }

/* Of all groups, as a schedule without lists does. */
void ds_optim_set_lr(ds_optim *o, double lr)
{
    dsi_graph_forbid_call("optim_set_lr");
    for (int g = 0; g < ds_optim_groups(o); g++) o->groups[g].lr = lr;
}

double ds_optim_group_weight_decay(const ds_optim *o, int group)
{
    const ds_optim_values *v = group_values(o, group);
    return v ? v->weight_decay : 0;
}

void ds_optim_set_group_weight_decay(ds_optim *o, int group, double weight_decay)
{
    ds_optim_values *v = group_values(o, group);
    dsi_graph_forbid_call("optim_set_group_weight_decay");
    if (v) v->weight_decay = weight_decay;
}

bool ds_optim_group_betas(const ds_optim *o, int group, double betas[2])
{
    const ds_optim_values *v = group_values(o, group);
    if (!v || !o->type->has_betas) return false;
    memcpy(betas, v->betas, sizeof v->betas);
    return true;
}

bool ds_optim_set_group_betas(ds_optim *o, int group, const double betas[2])
{
    ds_optim_values *v = group_values(o, group);
    dsi_graph_forbid_call("optim_set_group_betas");
    if (!v || !o->type->has_betas) return false;
    memcpy(v->betas, betas, sizeof v->betas);
    return true;
}

bool ds_optim_group_momentum(const ds_optim *o, int group, double *momentum)
{
    const ds_optim_values *v = group_values(o, group);
    if (!v || !o->type->has_momentum) return false;
    *momentum = v->momentum;
    return true;
}

bool ds_optim_set_group_momentum(ds_optim *o, int group, double momentum)
{
    ds_optim_values *v = group_values(o, group);
    dsi_graph_forbid_call("optim_set_group_momentum");
    if (!v || !o->type->has_momentum) return false;
    v->momentum = momentum;
    return true;
}
