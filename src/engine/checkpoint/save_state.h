/* engine/checkpoint/save_state.h: what the files that make a checkpoint's
 * values share (save_state.c, save_shard.c,
 * save_experts.c).
 *
 * Note [Shards] A group of a shard is what DeepSpeed calls a parameter group:
 * the parameters of one unit (flat.h) that share an optimizer's group, end to
 * end, without gaps; a rank's shard has those elements of it that the rank
 * owns. As a unit is cut into slices in the order of ranks, the shards of a
 * group, one after the other, are the whole group: so DeepSpeed's
 * zero_to_fp32.py puts parameters together, at every stage. It is how stages 1
 * and 2 are cut, and zero_stage in a shard says no more than that (1 or 2); the
 * stage of the run is in deepspeed_c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "save.h"

/* Parameters of the layout that are end to end in a file. */
typedef struct dsi_save_group {
    DSI_LIST(int)
    int values; /* group of the optimizer */
} dsi_save_group;

/* A rank's values while they are made. A failure is kept in status, and the
 * functions go on: nothing is written if status is not DS_OK. */
typedef struct dsi_save_maker {
    dsi_save_files *f;
    ds_engine *e;
    const ds_save_opts *o;
    const dsi_flat *flat; /* NULL: nothing is trained */
    ds_value *optimizer;  /* ds_optim_state_dict; NULL: there is none */
    struct {
        DSI_LIST(dsi_save_group)
    } groups;
    ds_status status;
} dsi_save_maker;

static inline void dsi_save_put(dsi_save_maker *m, ds_value *dict, const char *key, ds_value *item)
{
    if (ds_value_set(dict, key, item) != DS_OK) m->status = ds_error_status();
}

static inline void dsi_save_append(dsi_save_maker *m, ds_value *list, ds_value *item)
{
    if (ds_value_append(list, item) != DS_OK) m->status = ds_error_status();
}

static inline const char *dsi_save_param_path(const dsi_save_maker *m, int k)
{
    return dsi_flat_path(m->flat, m->e->model, k);
}

void dsi_save_groups_make(dsi_save_maker *m);
void dsi_save_groups_free(dsi_save_maker *m);
ds_value *dsi_save_shape(dsi_save_maker *m, ds_dims shape); /* a torch.Size */
ds_value *dsi_save_param_shapes(dsi_save_maker *m);
/* a group of the optimizer, without its parameters */
ds_value *dsi_save_group_values(dsi_save_maker *m, int group);
ds_value *dsi_save_shard(dsi_save_maker *m);
ds_value *dsi_save_config(dsi_save_maker *m); /* the user's */
/* A tensor of the model for a file; the optimizer's whole state; names of its
 * parameters in the order of their numbers; all averages. */
ds_value *dsi_save_model_tensor(dsi_save_maker *m, ds_tensor *x);
ds_value *dsi_save_optimizer(dsi_save_maker *m);
ds_value *dsi_save_param_names(dsi_save_maker *m);
ds_value *dsi_save_averages(dsi_save_maker *m);
/* whether its values are in the shards only */
bool dsi_save_is_partitioned(const dsi_save_maker *m, const ds_tensor *x);
void dsi_save_add_file(dsi_save_maker *m, ds_value *value, dsi_text name);

/* ---- experts: save_experts.c --------------------------------------------------------------------------- */

/* Note [Expert files] A model with experts (Note [Experts] of nn/module.h) has
 * these in files of their own, whatever ranks share them, each written by the
 * first rank that has it. State of the optimizer that is not cut into shards is
 * written by the ranks that have all experts between them, each for its own
 * parameters; what several have is read once. */
bool dsi_save_has_experts(const ds_engine *e);
bool dsi_save_in_expert(const ds_engine *e, const ds_tensor *x);
/* The number of ranks, from 0 on, that together have all parameters: the
 * largest ep_size, or 1. */
int dsi_save_writer_count(const ds_engine *e);
ds_value *dsi_save_num_experts(dsi_save_maker *m); /* of each layer */
void dsi_save_add_experts(dsi_save_maker *m);      /* adds the files that this rank writes */
