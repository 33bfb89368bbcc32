/* engine/engine.c: forward, backward, step: the order of things.
 *
 * Note [One step, told once]
 *
 *   forward    inputs of the engine's dtype (or cast, if asked) -> the model's forward
 *   backward   the loss counts (loss scale / accumulation steps) times: the seed of the pass, no op of its own;
 *              gradients add up; at the boundary, buckets leave for the other ranks while the pass runs
 *   step       between boundaries: count. At the boundary:
 *                wait for the gradients, which are `scale` times too large
 *                inf or NaN in one of any rank's?  skip the update, and shrink the scale
 *                else clip by the global norm, update (unscaling and clipping are one factor in the
 *                optimizer's only pass), gather what other ranks updated,
 *                advance the schedule, average into the EMA
 *                grow or shrink the loss scale: after its use, never between a loss and its unscaling
 *                count, print, send to the monitor, forget the gradients
 *
 * The engine owns the parts and asks them; it does none of their work (build.c makes them). DeepSpeed
 * updates the scale before it unscales, runs an empty step at the start of fp16 and bf16, and does not scale
 * the loss at stage 0: none of these is done here (docs/engine.md).
 *
 * Any failure of a rank that has company ends the job on all of them: the others would wait for it.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "autograd/node.h"
#include "base/handle.h"
#include "base/mem.h"
#include "data/loader.h"
#include "nn/module.h"
#include "optim/optim.h"

#include <math.h>

/* ---- life ---------------------------------------------------------------------------------------------- */

/* After a failure: ends the other ranks too. Returns the status for the caller to pass on. */
static ds_status failed(const ds_engine *e)
{
    if (ds_comm_size(e->comm) > 1) dsi_comm_abort(e->comm, ds_error());
    return ds_error_status();
}

/* While it lives nobody else frees its parts, nor does another engine get them. */
static void take_parts(const ds_engine *e, bool taken)
{
    dsi_module_take(e->model, taken);
    dsi_loader_take(e->loader, taken);
    dsi_schedule_take(e->schedule, taken);
    if (e->optim) e->optim->taken = taken;
}

ds_engine *ds_initialize_with(ds_init init)
{
    ds_engine *e = dsi_alloc(sizeof *e);
    e->model = init.model;
    e->optim = init.optimizer;
    e->norm = NAN;
    dsi_scaler_static(&e->scaler, 1);
    if (dsi_engine_build(e, &init)) {
        take_parts(e, true);
        dsi_engine_announce_start(e);
        return e;
    }
    if (e->comm) failed(e);
    const char *was = dsi_handle_reason("ds_initialize, which was refused and frees what it took");
    ds_engine_free(e);
    dsi_handle_reason_end(was);
    return NULL;
}

void ds_engine_free(ds_engine *e)
{
    if (!e) return;
    dsi_engine_end_async_save(e);
    if (e->comm && ds_error() && ds_comm_size(e->comm) > 1) failed(e);
    if (e->config && e->config->comms_logger.enabled && !ds_error())
        ds_comm_log_summary(e->comm, false);
    const char *was = dsi_handle_reason("ds_engine_free");
    take_parts(e, false);
    ds_loader_free(e->loader);
    dsi_zero_free(e->zero);
    dsi_ema_free(e->ema);
    ds_schedule_free(e->schedule);
    ds_optim_free(e->optim);
    ds_module_free(e->model);
    ds_monitor_free(e->monitor);
    dsi_timers_free(e->timers);
    dsi_config_free(e->config);
    dsi_free(e->loaded);
    dsi_engine_leave(e);
    dsi_handle_reason_end(was);
    dsi_free(e);
}

/* ---- forward ------------------------------------------------------------------------------------------- */

/* x as the model takes it: x itself, or cast where the configuration allows it. */
static ds_tensor *input(const ds_engine *e, ds_tensor *x)
{
    if (!x || x->dtype > DS_BF16 || x->dtype == e->dtype) return x;
    if (e->config->fp16.enabled && e->config->fp16.auto_cast) return ds_cast(x, e->dtype);
    return dsi_refuse(
        "engine_forward: the input %s is %s, but the model is %s: cast it (ds_cast), take "
        "batches from ds_engine_loader%s",
        dsi_shape_text(x->shape), ds_dtype_name(x->dtype), ds_dtype_name(e->dtype),
        e->config->fp16.enabled ? ", or set \"fp16\": {\"auto_cast\": true}" : "");
}

ds_tensor *ds_engine_forward_n(ds_engine *e, ds_tensor **in, int n)
{
    if (!e) return dsi_null_operand("engine_forward");
    ds_tensor *cast[DS_MAX_OP_INPUTS];
    if (n > DS_MAX_OP_INPUTS)
        return dsi_refuse("engine_forward: %d inputs: expected at most %d", n, DS_MAX_OP_INPUTS);
    for (int i = 0; i < n; i++)
        if (!(cast[i] = input(e, in[i]))) return dsi_null_operand("engine_forward");
    dsi_engine_announce_memory(e, "before forward");
    if (ds_module_training(e->model)) dsi_throughput_start(&e->throughput);
    dsi_phase_start(e->timers, DSI_FWD);
    ds_tensor *y = ds_call_n(e->model, cast, n);
    dsi_phase_stop(e->timers, DSI_FWD);
    dsi_engine_announce_memory(e, "after forward");
    return y;
}

void ds_engine_train(ds_engine *e, bool training)
{
    if (e) ds_module_train(e->model, training);
}

void ds_engine_eval(ds_engine *e) { ds_engine_train(e, false); }

/* ---- backward ------------------------------------------------------------------------------------------ */

static ds_status check_backward(const ds_engine *e, const ds_tensor *loss)
{
    if (!e->zero)
        return dsi_fail(DS_ESTATE,
                        "engine_backward: there is no optimizer: name one in the configuration "
                        "(\"optimizer\"), or give .optimizer to ds_initialize");
    if (e->went_backward && (e->went_last || e->ends == DSI_ENDS_COUNTED))
        return dsi_fail(DS_ESTATE,
                        "engine_backward: called twice: call ds_engine_step(engine) after each "
                        "backward (for two losses, add them)");
    if (dsi_ema_swapped(e->ema))
        return dsi_fail(DS_ESTATE, "engine_backward: the parameters are the averaged ones: "
                                   "ds_engine_swap_ema(engine) exchanges them back");
    if (dsi_numel(loss->shape) != 1)
        return dsi_fail(DS_EINVAL,
                        "engine_backward: the loss is %s: expected one element (use ds_mean or "
                        "ds_sum)",
                        dsi_shape_text(loss->shape));
    return DS_OK;
}

/* The loss as a number where somebody looks at it; a loss that is none ends the training, if asked. */
static ds_status look_at(ds_engine *e, const ds_tensor *loss)
{
    bool must_be_finite = !e->config->fp16.enabled && e->config->on_nan == DSI_NAN_ERROR;
    if (!must_be_finite && !dsi_engine_watched(e)) return DS_OK;
    double value = ds_item(loss);
    if (isfinite(value) || !must_be_finite) {
        e->loss_sum += value / (double)e->config->gradient_accumulation_steps;
        return DS_OK;
    }
    return dsi_fail(DS_ESTATE,
                    "engine_backward: global step %lld: the loss is %g: training stops here "
                    "(a lower learning rate may help; \"on_nan\": \"continue\" goes on)",
                    (long long)e->global_steps, value);
}

ds_status ds_engine_backward(ds_engine *e, ds_tensor *loss)
{
    if (!e || !loss) return dsi_null_operand("engine_backward"), DS_EINVAL;
    if (check_backward(e, loss) != DS_OK || look_at(e, loss) != DS_OK) return failed(e);
    bool last = ds_engine_is_gradient_accumulation_boundary(e);
    double factor = e->scaler.scale / (double)e->config->gradient_accumulation_steps;
    if (e->config->gradient_sum) factor *= ds_comm_size(e->comm); /* what is taken is the mean */
    dsi_engine_announce_memory(e, "before backward");
    dsi_phase_start(e->timers, DSI_BWD);
    ds_status status = dsi_zero_backward(e->zero, loss, factor, last);
    dsi_phase_stop(e->timers, DSI_BWD);
    dsi_phase_split_backward(e->timers, dsi_zero_reducing(e->zero));
    dsi_engine_announce_memory(e, "after backward");
    e->went_backward = status == DS_OK;
    e->went_last = last;
    return status == DS_OK ? DS_OK : failed(e);
}

/* ---- step ---------------------------------------------------------------------------------------------- */

/* What an inf or NaN among the gradients means: fp16 skips the step, bf16 if it checks; in float32 it ends
 * the training. */
static bool checks_overflow(const dsi_config *c)
{
    if (c->fp16.enabled) return true;
    if (c->bf16.enabled) return c->bf16.check_grad_overflow;
    return c->on_nan == DSI_NAN_ERROR && c->gradient_clipping > 0; /* the norm is there anyway */
}

static ds_status refuse_nan(const ds_engine *e, const dsi_zero_step_result *r)
{
    return dsi_fail(DS_ESTATE,
                    "engine_step: global step %lld: the gradient of %s has inf or NaN: nothing was "
                    "updated (\"on_nan\": \"continue\" goes on)",
                    (long long)e->global_steps, r->bad ? r->bad : "another rank");
}

/* The update at an accumulation boundary, or its omission. */
static ds_status update(ds_engine *e)
{
    const dsi_config *c = e->config;
    double scale = e->scaler.scale;
    dsi_zero_step_result r = {.norm = NAN};
    ds_status status = dsi_zero_step(e->zero, scale, c->gradient_clipping, checks_overflow(c),
                                     c->zero.compute_grad_norm, &r);
    if (status != DS_OK) return status;
    e->norm = r.overflow ? INFINITY : r.norm;
    e->applied = !r.overflow;
    if (r.overflow) {
        if (!c->fp16.enabled && !c->bf16.enabled) return refuse_nan(e, &r);
        e->skipped_steps++;
        dsi_engine_announce_overflow(e, r.bad);
    } else {
        dsi_phases_log_update(e->timers, (int)c->zero.stage, r.gather_s, r.gradients_s, r.update_s);
        if (e->schedule) ds_schedule_step(e->schedule);
        if (e->ema) status = dsi_ema_update(e->ema);
    }
    if (status == DS_OK) status = dsi_scaler_update(&e->scaler, r.overflow);
    return status;
}

ds_status ds_engine_step(ds_engine *e)
{
    if (!e) return dsi_null_operand("engine_step"), DS_EINVAL;
    if (ds_error()) return ds_error_status(); /* of this turn: half a gradient is not applied */
    if (!e->went_backward) {
        dsi_fail(DS_ESTATE,
                 "engine_step: there is no gradient: call ds_engine_backward(engine, loss) first");
        return failed(e);
    }
    bool boundary = ds_engine_is_gradient_accumulation_boundary(e);
    if (boundary != e->went_last) {
        dsi_fail(DS_ESTATE,
                 "engine_step: ds_engine_set_gradient_accumulation_boundary(engine, %s) came after "
                 "the backward: it goes before it",
                 boundary ? "true" : "false");
        return failed(e);
    }
    e->went_backward = false;
    e->applied = false;
    ds_status status = DS_OK;
    dsi_engine_announce_memory(e, "before step");
    dsi_phase_start(e->timers, DSI_STEP);
    if (boundary) {
        status = update(e);
        e->global_steps += status == DS_OK;
        e->global_samples += status == DS_OK ? e->config->train_batch_size : 0;
    }
    dsi_phase_stop(e->timers, DSI_STEP);
    dsi_engine_poll_async_save(e);
    e->micro_steps++;
    e->accumulated = boundary ? 0 : e->accumulated + 1;
    if (status == DS_OK) status = dsi_engine_announce_step(e, boundary);
    dsi_engine_announce_memory(e, "after step");
    if (boundary) e->loss_sum = 0;
    return status == DS_OK ? DS_OK : failed(e);
}

void ds_engine_zero_grad(ds_engine *e)
{
    if (e && e->zero) dsi_zero_zero_grad(e->zero);
}
