/* engine/step.c: ds_engine_step: the update at an accumulation boundary.
 *
 * Note [One step, told once]
 *
 *   forward    inputs of the engine's dtype (or cast, if the configuration says
 *              so) -> the model's forward
 *   backward   the loss counts (loss scale / accumulation steps) times: the seed
 *              of the pass, not an op; gradients add up; at the boundary, buckets
 *              are reduced over the ranks while the pass runs
 *   step       between boundaries: count. At the boundary, which with
 *              managed_gradient_accumulation: false is each step, in which
 *              gradients are reduced then:
 *                wait for the gradients, which are `scale` times too large
 *                inf or NaN in one of any rank's?  skip the update
 *                else clip by the global norm, update (unscaling and clipping
 *                are one factor in the optimizer's only pass), gather what other
 *                ranks updated, advance the schedule, average into the EMA
 *                grow or shrink the loss scale
 *                count, print, send to the monitor, reset the gradients
 *
 * DeepSpeed updates the scale before it unscales, runs an empty step at the
 * start of fp16 and bf16, and does not scale the loss at stage 0: none of these
 * is done here (docs/engine.md).
 *
 * Invariants: the loss scale changes only after the update that used it, never
 * between a loss and its unscaling. global_steps, global_samples and the
 * schedule change after the parameters have been updated on all ranks;
 * micro_steps changes in every call that succeeds or fails in the update. A
 * step that is refused changes nothing. ds_engine_step is collective at a
 * boundary; between boundaries it sends nothing. A failure of one rank ends the
 * job on all ranks, because the others would wait for it.
 * SPDX-License-Identifier: MIT */

#include "checkpoint/save.h"
#include "log_lines.h"
#include "tensor/tensor.h"

#include <math.h>

/* fp16 skips the step, bf16 if check_grad_overflow is set. float32 ends the
 * training; with "on_nan": "continue" it skips the step where DeepSpeed's norm
 * does, in stages 1 to 3. */
bool dsi_engine_checks_overflow(const dsi_config *c)
{
    if (c->fp16.enabled) return true;
    if (c->bf16.enabled) return c->bf16.check_grad_overflow;
    if (c->on_nan == DSI_NAN_CONTINUE) return c->zero.stage > 0 && c->zero.compute_grad_norm;
    return c->gradient_clipping > 0; /* the norm is there anyway */
}

/* float32: names the parameter whose gradient has inf or NaN, if it is this
 * rank's. */
static ds_status step_refuse_nan(const ds_engine *e, const dsi_zero_step_result *r)
{
    return dsi_fail(DS_ESTATE,
                    "engine_step: global step %lld: the gradient of %s has inf or NaN: nothing was "
                    "updated (to continue, set \"on_nan\": \"continue\")",
                    (long long)e->global_steps,
                    r->bad_param_path ? r->bad_param_path : "another rank");
}

ds_status dsi_engine_updated(ds_engine *e, const dsi_zero_step_result *r)
{
    const dsi_config *c = e->config;
    e->norm = r->overflow ? INFINITY : r->norm;
    e->applied = !r->overflow;
    if (r->overflow) {
        if (!c->fp16.enabled && !c->bf16.enabled && c->on_nan == DSI_NAN_ERROR)
            return step_refuse_nan(e, r);
        e->skipped_steps++;
        dsi_engine_log_overflow(e, r->bad_param_path);
    } else {
        dsi_phases_log_update(e->timers, (int)c->zero.stage, r->gather_s, r->gradients_s,
                              r->update_s);
        if (e->schedule) dsi_schedule_advance(e->schedule);
    }
    return dsi_scaler_update(&e->scaler, r->overflow);
}

/* Updates the parameters, or skips the update because of an overflow. */
static ds_status step_update(ds_engine *e)
{
    const dsi_config *c = e->config;
    dsi_zero_step_result r = {.norm = NAN};
    ds_status status = dsi_zero_step(e->zero, e->scaler.scale, c->gradient_clipping,
                                     dsi_engine_checks_overflow(c), c->zero.compute_grad_norm, &r);
    if (status == DS_OK) status = dsi_engine_updated(e, &r);
    return status == DS_OK && e->applied && e->ema ? dsi_ema_update(e->ema) : status;
}

/* Of all ranks. */
static int64_t step_samples(const ds_engine *e)
{
    if (e->ends != DSI_ENDS_STEP) return e->config->train_batch_size;
    return e->config->train_micro_batch_size_per_gpu * ds_comm_size(e->comm) * e->passes;
}

ds_status dsi_engine_end_step(ds_engine *e, bool boundary, ds_status status)
{
    if (boundary) {
        e->global_steps += status == DS_OK;
        e->global_samples += status == DS_OK ? step_samples(e) : 0;
        dsi_progress_step(e->progress, e->global_steps);
    }
    dsi_engine_flops_wait(e);
    dsi_phase_stop(e->timers, DSI_STEP);
    dsi_engine_poll_async_save(e);
    e->micro_steps++;
    e->accumulated = boundary ? 0 : e->accumulated + 1;
    e->passes = 0;
    /* what is exchanged here does not keep a graph from repeating the step: it
     * comes after each launch */
    dsi_device *recording = dsi_device_recording();
    bool noted = dsi_graph_note(recording, false);
    if (status == DS_OK) status = dsi_engine_log_step(e, boundary);
    dsi_graph_note(recording, noted);
    dsi_engine_log_memory(e, "after step");
    if (boundary) e->loss_sum = 0;
    return status == DS_OK ? DS_OK : dsi_engine_abort_ranks(e);
}

ds_status ds_engine_step(ds_engine *e)
{
    if (!dsi_live(e, "engine_step")) return dsi_null_argument("engine_step");
    if (ds_error()) return ds_error_status(); /* an incomplete gradient is not applied */
    if (!e->went_backward) {
        dsi_fail(DS_ESTATE,
                 "engine_step: there is no gradient: call ds_engine_backward(engine, loss) first");
        return dsi_engine_abort_ranks(e);
    }
    bool unmanaged = e->ends == DSI_ENDS_STEP,
         boundary = unmanaged || ds_engine_is_gradient_accumulation_boundary(e);
    if (boundary != e->went_last && !unmanaged) {
        dsi_fail(DS_ESTATE,
                 "engine_step: ds_engine_set_gradient_accumulation_boundary(engine, %s) came after "
                 "the backward: call it before",
                 boundary ? "true" : "false");
        return dsi_engine_abort_ranks(e);
    }
    e->went_backward = false;
    e->applied = false;
    if (dsi_graph_capturing(ds_module_param_at(e->model, 0, NULL)->device))
        return dsi_engine_capture_step(e, boundary) == DS_OK ? DS_OK : dsi_engine_abort_ranks(e);
    dsi_engine_log_memory(e, "before step");
    dsi_phase_start(e->timers, DSI_STEP);
    ds_status status = unmanaged ? dsi_zero_complete(e->zero) : DS_OK;
    if (status == DS_OK && boundary) status = step_update(e);
    return dsi_engine_end_step(e, boundary, status);
}

void ds_engine_zero_grad(ds_engine *e)
{
    if (!e || !e->zero) return;
    dsi_zero_zero_grad(e->zero);
    e->went_backward = false;
    e->passes = 0;
}
