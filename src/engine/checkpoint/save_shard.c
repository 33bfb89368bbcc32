/* engine/checkpoint/save_shard.c: a rank's shard of the optimizer's state, as
 * DeepSpeed names it: Note [Shards].
 * SPDX-License-Identifier: MIT */
#include "save_state.h"

#include "checkpoint/value.h"

#include <string.h>

typedef dsi_save_maker Maker;

/* ---- groups: Note [Shards] ----------------------------------------------------------------------------- */

/* Like DeepSpeed: stages 1 to 3, bf16 in any stage; and a layout that is
 * partitioned for another reason. */
bool dsi_save_is_sharded(const ds_engine *e)
{
    if (!e->zero) return false;
    return e->config->zero.stage > 0 || e->config->bf16.enabled ||
           dsi_zero_flat(e->zero)->partition;
}

/* Parameters of one unit are in one group if their optimizer's group is the
 * same. */
static void groups_add_param(Maker *m, int from, int k)
{
    int values = m->e->optim->params[m->flat->param[k].index].group, g = from;
    while (g < m->groups.n && m->groups.at[g].values != values) g++;
    if (g == m->groups.n) dsi_list_add(&m->groups, (dsi_save_group){.values = values});
    dsi_list_add(&m->groups.at[g], k);
}

/* Unit by unit; if nothing is partitioned, all parameters in the model's order,
 * like DeepSpeed. */
void dsi_save_groups_make(Maker *m)
{
    const dsi_flat *f = m->flat;
    for (int k = f->n - 1; !f->partition && k >= 0; k--) groups_add_param(m, 0, k);
    for (int u = 0; f->partition && u < f->units; u++) {
        int from = m->groups.n;
        for (int k = f->unit[u].first; k < f->unit[u].first + f->unit[u].count; k++)
            groups_add_param(m, from, k);
    }
}

void dsi_save_groups_free(Maker *m)
{
    for (int g = 0; g < m->groups.n; g++) dsi_list_free(&m->groups.at[g]);
    dsi_list_free(&m->groups);
}

/* A tuple of the class torch.Size. */
ds_value *dsi_save_shape(Maker *m, ds_dims shape)
{
    ds_value *v = ds_value_tuple();
    v->class_name = "Size";
    for (int i = 0; i < shape.n; i++) dsi_save_append(m, v, ds_value_int(shape.d[i]));
    return v;
}

/* From it zero_to_fp32.py finds the parameters in the groups' flat tensors. */
ds_value *dsi_save_param_shapes(Maker *m)
{
    ds_value *all = ds_value_list();
    for (int g = 0; g < m->groups.n; g++) {
        ds_value *group = ds_value_dict();
        for (int i = 0; i < m->groups.at[g].n; i++) {
            int k = m->groups.at[g].at[i];
            dsi_save_put(m, group, dsi_save_param_path(m, k),
                         dsi_save_shape(m, m->flat->param[k].x->shape));
        }
        dsi_save_append(m, all, group);
    }
    return all;
}

/* DeepSpeed's flat tensors have an even number of elements; the last may be
 * none of a parameter. It has no place in masters, but in moments, and
 * DeepSpeed restores these on one rank. */
static int64_t group_padding(const Maker *m, const dsi_save_group *g)
{
    int64_t n = 0;
    for (int i = 0; i < g->n; i++)
        n += m->flat->param[g->at[i]].end - m->flat->param[g->at[i]].begin;
    return ds_comm_size(m->e->comm) == 1 ? n % 2 : 0;
}

/* This rank's elements of a group, end to end: masters, moments or averages,
 * and zeros for the padding. */
static ds_value *group_tensor(Maker *m, const dsi_save_group *g,
                              ds_tensor *(*of)(const Maker *m, int k, int which), int which,
                              int64_t padding)
{
    dsi_save_tensor *s = dsi_save_tensor_new(&m->f->tensors);
    int64_t n = 0;
    for (int i = 0; i < g->n; i++) {
        const dsi_flat_param *p = &m->flat->param[g->at[i]];
        ds_tensor *x = p->begin < p->end ? of(m, g->at[i], which) : NULL;
        n += p->end - p->begin;
        if (!x)
            dsi_save_tensor_add_zeros(s, (size_t)(p->end - p->begin) * sizeof(float));
        else if (dsi_save_tensor_add(s, x, p->index) != DS_OK)
            m->status = ds_error_status();
    }
    if (padding) dsi_save_tensor_add_zeros(s, (size_t)padding * sizeof(float));
    return dsi_save_tensor_value(s, DS_F32, ds_shape(n + padding));
}

static ds_tensor *param_master(const Maker *m, int k, int which)
{
    (void)which;
    return dsi_zero_shard(m->e->zero, m->flat->param[k].index);
}

static ds_tensor *param_moment(const Maker *m, int k, int which)
{
    return m->e->optim->params[m->flat->param[k].index].moment[which];
}

static ds_tensor *param_average(const Maker *m, int k, int which)
{
    (void)which;
    return dsi_ema_average(m->e->ema, m->flat->param[k].index);
}

/* ---- the optimizer ------------------------------------------------------------------------------------- */

/* A group of the optimizer in torch.optim's form, without its parameters. */
ds_value *dsi_save_group_values(Maker *m, int group)
{
    const ds_value *from = ds_value_at(ds_value_get(m->optimizer, DSI_STATE_PARAM_GROUPS), group);
    ds_value *v = ds_value_dict();
    for (int64_t i = 0; i < ds_value_len(from); i++) {
        const char *key = ds_value_text(ds_value_key_at(from, i));
        if (strcmp(key, "params") != 0)
            dsi_save_put(m, v, key, dsi_value_ref(ds_value_at(from, i)));
    }
    return v;
}

static int64_t param_step(const Maker *m, int k)
{
    return m->e->optim->params[m->flat->param[k].index].step;
}

/* Whether a parameter of the group was updated: torch.optim has no moments
 * before. */
static bool group_has_moment(const Maker *m, const dsi_save_group *g, int which)
{
    for (int i = 0; i < g->n; i++)
        if (dsi_optim_uses(m->e->optim, g->values, which) && param_step(m, g->at[i])) return true;
    return false;
}

/* {"state": {g: {"step", "exp_avg", ...}}, "param_groups": [...]}: a group is
 * one parameter to
 * torch.optim. */
static ds_value *shard_base_state(Maker *m)
{
    ds_value *v = ds_value_dict(), *state = ds_value_dict(), *groups = ds_value_list();
    for (int g = 0; g < m->groups.n; g++) {
        const dsi_save_group *group = &m->groups.at[g];
        ds_value *one = ds_value_dict(), *values = dsi_save_group_values(m, group->values),
                 *params = ds_value_list();
        int64_t step = 0;
        for (int i = 0; i < group->n; i++)
            step = param_step(m, group->at[i]) > step ? param_step(m, group->at[i]) : step;
        dsi_save_put(m, one, DSI_STATE_STEP, ds_value_int(step));
        for (int i = 0; i < DS_OPTIM_MOMENTS; i++)
            if (group_has_moment(m, group, i))
                dsi_save_put(m, one, m->e->optim->type->moment[i],
                             group_tensor(m, group, param_moment, i, group_padding(m, group)));
        if (ds_value_set_int(state, g, one) != DS_OK) m->status = ds_error_status();
        dsi_save_append(m, params, ds_value_int(g));
        dsi_save_put(m, values, DSI_STATE_PARAMS, params);
        dsi_save_append(m, groups, values);
    }
    dsi_save_put(m, v, DSI_STATE_STATE, state);
    dsi_save_put(m, v, DSI_STATE_PARAM_GROUPS, groups);
    return v;
}

/* ---- a shard ------------------------------------------------------------------------------------------- */

/* Which elements of which parameters a group of this shard has, in their order. */
static ds_value *group_describe(Maker *m, const dsi_save_group *g)
{
    ds_value *all = ds_value_list();
    for (int i = 0; i < g->n; i++) {
        const dsi_flat_param *p = &m->flat->param[g->at[i]];
        ds_value *one = ds_value_dict();
        dsi_save_put(m, one, "name", ds_value_string(dsi_save_param_path(m, g->at[i])));
        dsi_save_put(m, one, "shape", dsi_save_shape(m, p->x->shape));
        dsi_save_put(m, one, "begin", ds_value_int(p->begin));
        dsi_save_put(m, one, "end", ds_value_int(p->end));
        dsi_save_put(m, one, DSI_STATE_STEP, ds_value_int(param_step(m, g->at[i])));
        dsi_save_append(m, all, one);
    }
    return all;
}

/* DeepSpeed's: where a parameter's elements are in the group's tensor. */
static ds_value *group_slice_mapping(Maker *m, const dsi_save_group *g)
{
    ds_value *all = ds_value_dict();
    int64_t at = 0;
    for (int i = 0; i < g->n; i++) {
        const dsi_flat_param *p = &m->flat->param[g->at[i]];
        int64_t n = p->end - p->begin;
        if (!n) continue;
        ds_value *one = ds_value_dict();
        dsi_save_put(m, one, "numel", ds_value_int(n));
        dsi_save_put(m, one, "start", ds_value_int(at));
        dsi_save_put(m, all, dsi_save_param_path(m, g->at[i]), one);
        at += n;
    }
    return all;
}

/* Keys are DeepSpeed's (BF16_Optimizer and DeepSpeedZeroOptimizer); there are
 * no gaps between parameters. */
ds_value *dsi_save_shard(Maker *m)
{
    const ds_engine *e = m->e;
    ds_value *v = ds_value_dict(), *s = ds_value_dict(), *own = ds_value_dict(),
             *parts = ds_value_list(), *paddings = ds_value_list(), *counts = ds_value_list(),
             *slices = ds_value_list(), *alignments = ds_value_list(), *groups = ds_value_list(),
             *averages = ds_value_list();
    for (int g = 0; g < m->groups.n; g++) {
        const dsi_save_group *group = &m->groups.at[g];
        ds_value *none = ds_value_list();
        for (int i = 0; i < group->n; i++) dsi_save_append(m, none, ds_value_int(0));
        dsi_save_append(m, parts, group_tensor(m, group, param_master, 0, 0));
        dsi_save_append(m, paddings, ds_value_int(group_padding(m, group)));
        dsi_save_append(m, alignments, none);
        const dsi_flat_unit *unit = &m->flat->unit[m->flat->param[group->at[0]].unit];
        dsi_save_append(m, counts, ds_value_int(m->flat->partition ? unit->ranks : 1));
        dsi_save_append(m, slices, group_slice_mapping(m, group));
        dsi_save_append(m, groups, group_describe(m, group));
        if (e->ema) dsi_save_append(m, averages, group_tensor(m, group, param_average, 0, 0));
    }
    dsi_save_put(m, s, DSI_STATE_DYNAMIC_LOSS_SCALE, ds_value_bool(e->scaler.dynamic));
    dsi_save_put(m, s, DSI_STATE_OVERFLOW, ds_value_bool(false));
    dsi_save_put(m, s, DSI_STATE_CLIP_GRAD, ds_value_float(e->config->gradient_clipping));
    dsi_save_put(m, s, DSI_STATE_BASE_STATE, shard_base_state(m));
    dsi_save_put(m, s, DSI_STATE_FP32_PARTITION, parts);
    dsi_save_put(m, s, DSI_STATE_ZERO_STAGE, ds_value_int(e->config->zero.stage == 1 ? 1 : 2));
    dsi_save_put(m, s, DSI_STATE_GROUP_PADDINGS, paddings);
    dsi_save_put(m, s, DSI_STATE_ALIGNMENT_PADDINGS, alignments);
    dsi_save_put(m, s, DSI_STATE_PARTITION_COUNT, counts);
    dsi_save_put(m, s, DSI_STATE_DS_VERSION, ds_value_string(DSI_DS_VERSION));
    dsi_save_put(m, s, DSI_STATE_SLICE_MAPPINGS, slices);
    dsi_save_put(m, own, DSI_STATE_FORMAT, ds_value_int(DSI_FORMAT));
    dsi_save_put(m, own, DSI_STATE_GROUPS, groups);
    dsi_save_put(m, own, DSI_STATE_AVERAGES, averages);
    dsi_save_put(m, v, DSI_STATE_OPTIMIZER_STATE_DICT, s);
    dsi_save_put(m, v, DSI_STATE_DS_CONFIG, dsi_save_config(m));
    dsi_save_put(m, v, DSI_STATE_DS_VERSION, ds_value_string(DSI_DS_VERSION));
    dsi_save_put(m, v, DSI_STATE_OWN, own);
    return v;
}
