/* engine/checkpoint/save_experts.c: experts, each in its own file: Note
 * [Expert files].
 *
 *     layer_L_expert_E_mp_rank_00_model_states.pt    {name: tensor}, parameters and buffers
 *     expp_rank_R_mp_rank_00_optim_states.pt         where there are no shards: optimizer, param_shapes;
 *                                                    deepspeed_c: optimizer/params (names), ema/averages
 *
 * SPDX-License-Identifier: MIT */
#include "save_state.h"

#include "checkpoint/value.h"
#include "nn/moe.h"

typedef dsi_save_maker Maker;

bool dsi_save_has_experts(const ds_engine *e) { return ds_moe_layers(e->model) > 0; }

bool dsi_save_in_expert(const ds_engine *e, const ds_tensor *x)
{
    return dsi_module_expert_of(e->model, x).of != NULL;
}

int dsi_save_writer_count(const ds_engine *e)
{
    int most = 1;
    for (int i = 0; i < ds_moe_layers(e->model); i++) {
        int n = dsi_moe_experts(ds_moe_layer(e->model, i)).ep_size;
        if (n > most) most = n;
    }
    return most;
}

/* DeepSpeed's list of the number of experts of each layer. */
ds_value *dsi_save_num_experts(Maker *m)
{
    ds_value *all = ds_value_list();
    for (int i = 0; i < ds_moe_layers(m->e->model); i++)
        dsi_save_append(m, all, ds_value_int(dsi_moe_experts(ds_moe_layer(m->e->model, i)).all));
    return all;
}

/* Whether this rank is the first one that has the experts. */
static bool rank_writes_experts(const Maker *m, const dsi_experts *of)
{
    return of->ep_size == 1 ? ds_comm_rank(m->e->comm) == 0 : dsi_comm_rank(of->data) == 0;
}

/* Partitioned parameters are in the shards; frozen ones are left out on
 * request. */
static bool expert_is_left_out(const Maker *m, const ds_tensor *x)
{
    bool trained = false;
    for (int k = 0; m->flat && k < m->flat->n; k++) trained |= m->flat->param[k].x == x;
    return dsi_save_is_partitioned(m, x) || (m->o->exclude_frozen && m->flat && !trained);
}

/* The tensors of one expert are adjacent in the state dict. */
static void experts_add_files(Maker *m)
{
    ds_state *state = ds_module_state(m->e->model);
    ds_value *one = NULL;
    dsi_expert last = {0};
    for (int i = 0; i <= ds_state_len(state); i++) {
        ds_tensor *x = i < ds_state_len(state) ? ds_state_at(state, i) : NULL;
        dsi_expert e = dsi_module_expert_of(m->e->model, x);
        if (one && (!e.of || e.layer != last.layer || e.number != last.number)) {
            dsi_save_add_file(
                m, one,
                dsi_text_of(DSI_FILE_EXPERT, (long long)last.layer, (long long)last.number));
            one = NULL;
        }
        if (!e.of || !rank_writes_experts(m, e.of) || expert_is_left_out(m, x)) continue;
        if (!one) one = ds_value_dict();
        dsi_save_put(m, one, ds_state_name(state, i), dsi_save_model_tensor(m, x));
        last = e;
    }
    ds_state_free(state);
}

/* The same as in the model file of a model without experts. */
static ds_value *expert_optimizer_value(Maker *m)
{
    ds_value *v = ds_value_dict(), *own = ds_value_dict(), *names = ds_value_dict(),
             *ema = ds_value_dict();
    dsi_save_put(m, v, DSI_STATE_OPTIMIZER, dsi_save_optimizer(m));
    dsi_save_put(m, v, DSI_STATE_PARAM_SHAPES, dsi_save_param_shapes(m));
    dsi_save_put(m, names, DSI_STATE_PARAMS, dsi_save_param_names(m));
    if (m->e->ema) dsi_save_put(m, ema, DSI_STATE_AVERAGES, dsi_save_averages(m));
    dsi_save_put(m, own, DSI_STATE_OPTIMIZER, names);
    dsi_save_put(m, own, DSI_STATE_EMA, ema);
    dsi_save_put(m, v, DSI_STATE_OWN, own);
    return v;
}

/* Adds the files of experts that this rank writes. */
void dsi_save_add_experts(Maker *m)
{
    int rank = ds_comm_rank(m->e->comm);
    if (!dsi_save_has_experts(m->e)) return;
    experts_add_files(m);
    if (m->e->zero && !dsi_save_is_sharded(m->e) && rank < dsi_save_writer_count(m->e))
        dsi_save_add_file(m, expert_optimizer_value(m),
                          dsi_text_of(DSI_FILE_EXPERT_OPTIM, (long long)rank));
}
