/* engine/param_state.c: gradient, float32 value and moments of one parameter:
 * deepspeed.utils.safe_get_full_grad and related functions.
 *
 * Invariants: all calls are collective. A call that is refused changes nothing, on
 * any rank.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "comm/sync_status.h"

#include <string.h>

typedef struct Part {
    const char *call; /* for messages */
    int index, part;
} Part;

static const char grad[] = "grad", fp32[] = "fp32";

/* "grad, fp32, exp_avg, exp_avg_sq" */
static void states_write(const ds_engine *e, int index, dsi_text *t)
{
    dsi_text_add(t, "%s, %s", grad, fp32);
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
        if (dsi_optim_uses(e->optim, e->optim->params[index].group, k))
            dsi_text_add(t, ", %s", e->optim->type->moment[k]);
}

static ds_status part_find(const ds_engine *e, const char *what, Part *p)
{
    p->part = !strcmp(what, grad) ? DSI_ZERO_GRAD : DSI_ZERO_MASTER;
    if (!strcmp(what, grad) || !strcmp(what, fp32)) return DS_OK;
    for (p->part = 0; p->part < DS_OPTIM_MOMENTS; p->part++)
        if (dsi_optim_uses(e->optim, e->optim->params[p->index].group, p->part) &&
            !strcmp(e->optim->type->moment[p->part], what))
            return DS_OK;
    dsi_text known = {0};
    states_write(e, p->index, &known);
    dsi_fail(DS_EINVAL, "%s: %s has no \"%s\": expected one of %s", p->call,
             ds_optim_name(e->optim), what, known.s);
    dsi_text_free(&known);
    return DS_EINVAL;
}

static ds_status part_check_time(const ds_engine *e, const Part *p)
{
    if (p->part == DSI_ZERO_GRAD && !(e->went_backward && e->went_last))
        return dsi_fail(DS_ESTATE,
                        "%s: there is no complete gradient: call it between the "
                        "ds_engine_backward that ends an update and its ds_engine_step",
                        p->call);
    const char *busy = e->went_backward && e->went_last ? dsi_zero_part_busy(e->zero, p->part)
                                                        : NULL;
    return busy ? dsi_fail(DS_ESTATE, "%s: %s", p->call, busy) : DS_OK;
}

static ds_status part_check(const ds_engine *e, const ds_tensor *param, const char *what, Part *p)
{
    if (!e->zero) return dsi_fail(DS_ESTATE, "%s: there is no optimizer", p->call);
    while (p->index < ds_module_params(e->model) &&
           ds_module_param_at(e->model, p->index, NULL) != param)
        p->index++;
    if (p->index == ds_module_params(e->model))
        return dsi_fail(DS_EINVAL, "%s: a tensor %s that is no parameter of the engine's model",
                        p->call, dsi_shape_text(param->shape));
    if (!dsi_zero_has_param(e->zero, p->index))
        return dsi_fail(DS_EINVAL, "%s: %s is not trained", p->call,
                        e->optim->params[p->index].path);
    ds_status status = part_find(e, what, p);
    return status == DS_OK ? part_check_time(e, p) : status;
}

/* A value has the shape that was read, or is 1-D with as many elements. */
static ds_status value_check(const ds_engine *e, const ds_tensor *param, const ds_tensor *value,
                             const Part *p, bool local)
{
    ds_dims want = local ? ds_shape(dsi_zero_part_size(e->zero, p->index)) : param->shape;
    if (value->dtype <= DS_BF16 && dsi_same_shape(value->shape, want)) {
        if (p->part != DSI_ZERO_MASTER || !dsi_ema_swapped(e->ema)) return DS_OK;
        return dsi_fail(DS_ESTATE,
                        "%s: the parameters are the averaged ones: ds_engine_swap_ema(engine) "
                        "exchanges them back",
                        p->call);
    }
    return dsi_fail(DS_EINVAL, "%s: the value is %s %s: expected floating-point numbers, %s",
                    p->call, ds_dtype_name(value->dtype), dsi_shape_text(value->shape),
                    dsi_shape_text(want));
}

static ds_tensor *part_get(ds_engine *e, ds_tensor *param, const char *what, bool local,
                           const char *call)
{
    if (!dsi_live(e, call) || !dsi_live(param, call) || !what) return dsi_null_operand(call);
    Part p = {.call = call};
    dsi_graph_forbid_call(call);
    if (ds_comm_sync_status(e->comm, part_check(e, param, what, &p)) != DS_OK) return NULL;
    bool was = ds_set_grad(false);
    ds_tensor *x = dsi_zero_part(e->zero, p.index, p.part, local);
    ds_set_grad(was);
    return x;
}

static ds_status part_set(ds_engine *e, ds_tensor *param, const char *what, ds_tensor *value,
                          bool local, const char *call)
{
    if (!dsi_live(e, call) || !dsi_live(param, call) || !what || !value)
        return dsi_null_argument(call);
    Part p = {.call = call};
    dsi_graph_forbid_call(call);
    ds_status status = part_check(e, param, what, &p);
    if (status == DS_OK) status = value_check(e, param, value, &p, local);
    status = ds_comm_sync_status(e->comm, status);
    if (status != DS_OK) return status;
    ds_scope *scope = ds_scope_open();
    bool was = ds_set_grad(false);
    status = dsi_zero_set_part(e->zero, p.index, p.part, value, local);
    ds_set_grad(was);
    ds_scope_close(scope);
    return status;
}

ds_tensor *ds_engine_get_full(ds_engine *e, ds_tensor *param, const char *what)
{
    return part_get(e, param, what, false, "engine_get_full");
}

ds_status ds_engine_set_full(ds_engine *e, ds_tensor *param, const char *what, ds_tensor *value)
{
    return part_set(e, param, what, value, false, "engine_set_full");
}

ds_tensor *ds_engine_get_local(ds_engine *e, ds_tensor *param, const char *what)
{
    return part_get(e, param, what, true, "engine_get_local");
}

ds_status ds_engine_set_local(ds_engine *e, ds_tensor *param, const char *what, ds_tensor *value)
{
    return part_set(e, param, what, value, true, "engine_set_local");
}
