/* engine/checkpoint/save_experts.c: experts in files of their own: Note [Expert files].
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

int dsi_save_writers(const ds_engine *e)
{
    int most = 1;
    for (int i = 0; i < ds_moe_layers(e->model); i++) {
        int n = dsi_moe_experts(ds_moe_layer(e->model, i)).ep_size;
        if (n > most) most = n;
    }
    return most;
}

ds_value *dsi_save_num_experts(Maker *m)
{
    ds_value *all = ds_value_list();
    for (int i = 0; i < ds_moe_layers(m->e->model); i++)
        dsi_state_append(m, all, ds_value_int(dsi_moe_experts(ds_moe_layer(m->e->model, i)).all));
    return all;
}

/* Whether this rank is the first one that has the experts. */
static bool writes(const Maker *m, const dsi_experts *of)
{
    return of->ep_size == 1 ? ds_comm_rank(m->e->comm) == 0 : dsi_comm_rank(of->data) == 0;
}

static bool is_left_out(const Maker *m, const ds_tensor *x)
{
    bool trained = false;
    for (int k = 0; m->flat && k < m->flat->n; k++) trained |= m->flat->param[k].x == x;
    return dsi_save_divided(m, x) || (m->o->exclude_frozen && m->flat && !trained);
}

/* The tensors of one expert stand one after the other in the state dict. */
static void add_experts(Maker *m)
{
    ds_state *state = ds_module_state(m->e->model);
    ds_value *one = NULL;
    dsi_expert last = {0};
    for (int i = 0; i <= ds_state_len(state); i++) {
        ds_tensor *x = i < ds_state_len(state) ? ds_state_at(state, i) : NULL;
        dsi_expert e = dsi_module_expert_of(m->e->model, x);
        if (one && (!e.of || e.layer != last.layer || e.number != last.number)) {
            dsi_save_add_file(m, one, "layer_%d_expert_%d_mp_rank_00_model_states.pt", last.layer,
                              last.number);
            one = NULL;
        }
        if (!e.of || !writes(m, e.of) || is_left_out(m, x)) continue;
        if (!one) one = ds_value_dict();
        dsi_state_put(m, one, ds_state_name(state, i), dsi_save_tensor(m, x));
        last = e;
    }
    ds_state_free(state);
}

/* As the model file has it where there are no experts. */
static ds_value *optimizer_file(Maker *m)
{
    ds_value *v = ds_value_dict(), *own = ds_value_dict(), *names = ds_value_dict(),
             *ema = ds_value_dict();
    dsi_state_put(m, v, "optimizer", dsi_save_optimizer(m));
    dsi_state_put(m, v, "param_shapes", dsi_save_param_shapes(m));
    dsi_state_put(m, names, "params", dsi_save_names(m));
    if (m->e->ema) dsi_state_put(m, ema, "averages", dsi_save_averages(m));
    dsi_state_put(m, own, "optimizer", names);
    dsi_state_put(m, own, "ema", ema);
    dsi_state_put(m, v, DSI_OWN_KEY, own);
    return v;
}

void dsi_save_experts(Maker *m)
{
    int rank = ds_comm_rank(m->e->comm);
    if (!dsi_save_has_experts(m->e)) return;
    add_experts(m);
    if (m->e->zero && !dsi_save_sharded(m->e) && rank < dsi_save_writers(m->e))
        dsi_save_add_file(m, optimizer_file(m), "expp_rank_%d_mp_rank_00_optim_states.pt", rank);
}
