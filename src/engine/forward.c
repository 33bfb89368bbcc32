/* engine/forward.c: ds_engine_forward, and the model's mode. With ZeRO stage 3
 * forward is collective: hooks around each module gather its parameters
 * (parallel/zero3.c).
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "log_lines.h"

/* x, or x cast to the dtype of the model if fp16.auto_cast is set. */
static ds_tensor *forward_input(const ds_engine *e, ds_tensor *x)
{
    if (!x || x->dtype > DS_BF16 || x->dtype == e->dtype) return x;
    if (e->config->fp16.enabled && e->config->fp16.auto_cast) return ds_cast(x, e->dtype);
    return dsi_refuse(
        "engine_forward: the input %s is %s, but the model is %s: cast it (ds_cast), take "
        "batches from ds_engine_loader%s",
        dsi_shape_text(x->shape), ds_dtype_name(x->dtype), ds_dtype_name(e->dtype),
        e->config->fp16.enabled ? ", or set \"fp16\": {\"auto_cast\": true}" : "");
}

/* Under the configuration's autocast; without one, under the caller's. */
static ds_tensor *forward_call(ds_engine *e, ds_tensor **in, int n)
{
    int dtype = e->config->torch_autocast.dtype;
    if (!e->config->torch_autocast.enabled) return ds_call_n(e->model, in, n);
    ds_dtype was = ds_set_autocast(dtype == DSI_CONFIG_NO_DTYPE ? DS_BF16 : (ds_dtype)dtype);
    ds_tensor *y = ds_call_n(e->model, in, n);
    ds_set_autocast(was);
    return y;
}

/* Inputs are checked before the timers start. */
ds_tensor *ds_engine_forward_n(ds_engine *e, ds_tensor **in, int n)
{
    if (!dsi_live(e, "engine_forward")) return dsi_null_operand("engine_forward");
    ds_tensor *cast[DS_MAX_OP_INPUTS];
    if (n > DS_MAX_OP_INPUTS)
        return dsi_refuse("engine_forward: %d inputs: expected at most %d", n, DS_MAX_OP_INPUTS);
    for (int i = 0; i < n; i++)
        if (!(cast[i] = forward_input(e, in[i]))) return dsi_null_operand("engine_forward");
    dsi_engine_log_memory(e, "before forward");
    if (ds_module_training(e->model)) dsi_throughput_start(&e->throughput);
    bool profiled = dsi_engine_flops_begin(e);
    dsi_phase_start(e->timers, DSI_FWD);
    ds_tensor *y = forward_call(e, cast, n);
    dsi_phase_stop(e->timers, DSI_FWD);
    if (profiled) dsi_engine_flops_end(e);
    dsi_engine_log_memory(e, "after forward");
    return y;
}

void ds_engine_train(ds_engine *e, bool training)
{
    if (e) ds_module_train(e->model, training);
}

void ds_engine_eval(ds_engine *e) { ds_engine_train(e, false); }
