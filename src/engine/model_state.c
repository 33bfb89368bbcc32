/* engine/model_state.c: the model's state dict, complete on every rank, and the
 * way back to where the parameters are trained.
 *
 * Invariants: both calls are collective. Partitioned parameters and the experts
 * of other ranks are gathered one at a time and released. Loading writes ZeRO's
 * masters, not the low-precision copies, and publishes them at the end; it
 * changes nothing before the state has been checked on all ranks.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "comm/sync_status.h"

#include "nn/module.h"

#include <stdlib.h>
#include <string.h>

/* Every name of p in `names`, a tied one too, for `whole`. */
static ds_status state_set_param(ds_state *state, const ds_state *names, const ds_tensor *p,
                                 ds_tensor *whole)
{
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < ds_state_len(names); i++)
        if (ds_state_at(names, i) == p)
            status = ds_state_set(state, ds_state_name(names, i), whole);
    return status;
}

/* The model's names with whole parameters, but only the experts of this rank. */
static ds_state *state_of_rank(ds_engine *e, bool masters)
{
    ds_state *state = ds_module_state(e->model), *names = ds_module_state(e->model);
    ds_status status = DS_OK;
    for (int i = 0; e->zero && status == DS_OK && i < ds_module_params(e->model); i++) {
        ds_tensor *p = ds_module_param_at(e->model, i, NULL), *whole = dsi_zero_whole(e->zero, i);
        if (whole && !masters) whole = ds_cast(whole, p->dtype);
        status = whole ? state_set_param(state, names, p, whole) : ds_error_status();
    }
    ds_state_free(names);
    if (status == DS_OK) return state;
    ds_state_free(state);
    return NULL;
}

/* ---- experts of other ranks: Note [Experts] of nn/module.h --------------------------------------------- */

/* The name "..deepspeed_experts.N.rest" with another number. */
static void expert_write_name(dsi_text *to, const char *name, int number)
{
    static const char list[] = "deepspeed_experts.";
    const char *digits = strstr(name, list) + sizeof list - 1;
    to->n = 0;
    dsi_text_add(to, "%.*s%d%s", (int)(digits - name), name, number,
                 digits + strspn(digits, "0123456789"));
}

/* Entries [begin, end) of `own` are this rank's experts of one layer. Adds
 * those of all ranks to `whole`, in the order of their numbers. */
static ds_status state_add_layer(ds_state *whole, const ds_state *own, int begin, int end,
                                 const dsi_expert *first)
{
    const dsi_experts *of = first->of;
    int rank = dsi_comm_rank(of->expert), here = of->all / of->ep_size, n = end - begin;
    ds_tensor **all = calloc((size_t)n, sizeof(ds_tensor *));
    dsi_text name = {0};
    ds_status status = all ? DS_OK : dsi_fail(DS_ENOMEM, "engine_state: no memory");
    for (int i = 0; status == DS_OK && i < n; i++) {
        ds_tensor *x = ds_state_at(own, begin + i);
        all[i] = dsi_new(x, ds_shape(of->ep_size, dsi_numel(x->shape)));
        status = all[i] ? ds_all_gather(of->expert, all[i], x) : ds_error_status();
    }
    for (int i = 0; status == DS_OK && i < n * of->ep_size; i++) {
        int r = i / n, at = i % n;
        ds_tensor *x = ds_reshape(ds_select(all[at], 0, r), ds_state_at(own, begin + at)->shape);
        int number = first->number + at / (n / here) + (r - rank) * here;
        expert_write_name(&name, ds_state_name(own, begin + at), number);
        status = x ? ds_state_set(whole, name.s, x) : ds_error_status();
    }
    dsi_text_free(&name);
    free(all);
    return status;
}

/* `own`, with the experts of all ranks. */
static ds_state *state_with_all_experts(const ds_module *model, const ds_state *own)
{
    ds_state *in_model = ds_module_state(model), *whole = ds_state_new();
    ds_status status = DS_OK;
    bool was = ds_set_grad(false);
    int end = 0;
    for (int i = 0; status == DS_OK && i < ds_state_len(own); i = end) {
        dsi_expert e = dsi_module_expert_of(model, ds_state_at(in_model, i));
        bool shared = e.of && e.of->ep_size > 1;
        for (end = i + 1; shared && end < ds_state_len(own); end++) {
            dsi_expert other = dsi_module_expert_of(model, ds_state_at(in_model, end));
            if (!other.of || other.layer != e.layer) break;
        }
        status = shared ? state_add_layer(whole, own, i, end, &e)
                        : ds_state_set(whole, ds_state_name(own, i), ds_state_at(own, i));
    }
    ds_set_grad(was);
    ds_state_free(in_model);
    if (status == DS_OK) return whole;
    ds_state_free(whole);
    return NULL;
}

ds_state *ds_engine_state(ds_engine *e, bool masters)
{
    if (!dsi_live(e, "engine_state")) return dsi_null_operand("engine_state");
    ds_scope *scope = ds_scope_open();
    ds_state *own = state_of_rank(e, masters), *whole = own;
    if (own && ds_comm_size(e->comm) > 1) {
        whole = state_with_all_experts(e->model, own);
        ds_state_free(own);
    }
    ds_scope_close(scope);
    return whole;
}

/* ---- the way back -------------------------------------------------------------------------------------- */

/* Parameter k of the layout: loads the elements that this rank updates. */
static ds_status state_load_part(const ds_engine *e, const dsi_flat *f, int k, const ds_state *mine,
                                 const ds_state *state)
{
    ds_tensor *part = dsi_zero_shard(e->zero, f->param[k].index);
    ds_tensor *whole = dsi_module_state_find(mine, f->param[k].x, state);
    ds_status status = DS_OK;
    if (part) {
        ds_tensor *x = ds_contiguous(whole);
        status = x ? dsi_copy(part, dsi_flat_owned_in(f, k, x)) : ds_error_status();
    }
    ds_status gone = dsi_zero_release(e->zero, f->param[k].index, true);
    return status == DS_OK ? gone : status;
}

/* Parameters of the layout go to ZeRO's masters, all others to the model. */
static ds_status state_load_all(const ds_engine *e, const ds_state *mine, const ds_state *state)
{
    const dsi_flat *f = e->zero ? dsi_zero_flat(e->zero) : NULL;
    ds_status status = DS_OK;
    for (int k = 0; f && status == DS_OK && k < f->n; k++)
        status = state_load_part(e, f, k, mine, state);
    for (int i = 0; status == DS_OK && i < ds_state_len(mine); i++) {
        ds_tensor *x = ds_state_at(mine, i);
        bool apart = false;
        for (int k = 0; f && k < f->n; k++) apart = apart || f->param[k].x == x;
        if (!apart) status = dsi_copy(x, dsi_module_state_find(mine, x, state));
    }
    return status;
}

ds_status ds_engine_load_state(ds_engine *e, const ds_state *state)
{
    if (!dsi_live(e, "engine_load_state")) return dsi_null_argument("engine_load_state");
    ds_scope *scope = ds_scope_open();
    ds_state *mine = ds_module_state(e->model);
    ds_status status = !state ? dsi_null_argument("engine_load_state")
                       : dsi_ema_swapped(e->ema)
                           ? dsi_fail(DS_ESTATE, "engine_load_state: the parameters are the "
                                                 "averaged ones: ds_engine_swap_ema(engine) "
                                                 "exchanges them back")
                           : dsi_module_check_state(e->model, mine, state);
    status = ds_comm_sync_status(e->comm, status);
    if (status == DS_OK) status = ds_comm_sync_status(e->comm, state_load_all(e, mine, state));
    if (status == DS_OK && e->zero) status = dsi_zero_publish(e->zero);
    ds_state_free(mine);
    ds_scope_close(scope);
    return status;
}
