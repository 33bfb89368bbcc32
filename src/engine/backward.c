/* engine/backward.c: ds_engine_backward: gradients of the scaled loss.
 *
 * Invariants: between ds_engine_backward and ds_engine_step went_backward is
 * set, and went_last says whether that backward reduced the gradients over the
 * ranks. Without ds_engine_set_gradient_accumulation_boundary every backward
 * needs its step; with managed_gradient_accumulation: false many may have one,
 * and none is the last one. At a boundary the call is collective: all ranks
 * call it.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "log_lines.h"
#include "monitor_scalars.h"
#include "tensor/tensor.h"

#include <math.h>

/* Errors in the order of calls, and a loss with more than one element. */
static ds_status backward_check_order(const ds_engine *e, const ds_tensor *loss)
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

bool dsi_engine_ends_on_nan(const ds_engine *e)
{
    return !e->config->fp16.enabled && e->config->on_nan == DSI_NAN_ERROR;
}

bool dsi_engine_needs_loss(const ds_engine *e)
{
    return dsi_engine_ends_on_nan(e) || dsi_engine_is_monitored(e);
}

ds_status dsi_engine_take_loss(ds_engine *e, double value, bool whole)
{
    if (isfinite(value) || !dsi_engine_ends_on_nan(e)) {
        e->loss_sum += value / (whole ? 1 : (double)e->config->gradient_accumulation_steps);
        return DS_OK;
    }
    return dsi_fail(DS_ESTATE,
                    "engine_backward: global step %lld: the loss is %g: training stops here "
                    "(a lower learning rate may help; to continue, set \"on_nan\": \"continue\")",
                    (long long)e->global_steps, value);
}

/* Queues a copy of the loss: the step waits for the norm before it updates, and
 * has it then. false: it must be read now. */
static bool loss_queue(ds_engine *e, const ds_tensor *loss, bool whole)
{
    dsi_late_loss *late = &e->late_loss;
    dsi_device *d = loss->device;
    const dsi_device_type *type = d->type;
    bool waits = e->config->gradient_clipping > 0 || dsi_engine_checks_overflow(e->config);
    if (!waits || !type->queue_out || (late->device && late->device != d)) return false;
    if (!late->device) {
        late->pinned = type->alloc_host(d, sizeof(double));
        if (!late->pinned) return false;
        late->device = d;
    }
    bool was = dsi_graph_note(d, false);
    late->dtype = loss->dtype;
    late->whole = whole;
    late->pending = dsi_acquire(loss) &&
                    type->queue_out(&d->stream, late->pinned, dsi_v(loss).p,
                                    ds_dtype_size(loss->dtype)) == DS_OK &&
                    type->record(&d->stream, &late->done) == DS_OK;
    dsi_graph_note(d, was);
    return late->pending;
}

/* Reads the loss if on_nan or a monitor needs its value; late: may leave that
 * to the step. One that is captured reads it after its launch. */
static ds_status read_loss(ds_engine *e, const ds_tensor *loss, bool late, bool whole)
{
    if (!dsi_engine_needs_loss(e) || dsi_graph_capturing(loss->device)) return DS_OK;
    if (late && loss_queue(e, loss, whole)) return DS_OK;
    bool was = dsi_graph_note(loss->device, false);
    double value = ds_item(loss);
    dsi_graph_note(loss->device, was);
    return dsi_engine_take_loss(e, value, whole);
}

/* A rank without gradients of its own has not waited for its GPU. */
ds_status dsi_engine_late_loss(void *engine)
{
    ds_engine *e = engine;
    dsi_late_loss *late = &e->late_loss;
    dsi_device *d = late->device;
    bool there = false;
    if (!late->pending) return DS_OK;
    late->pending = false;
    ds_status status = d->type->reached(&d->stream, &late->done, &there);
    bool was = dsi_graph_note(d, false);
    if (status == DS_OK && !there) status = d->type->sync(&d->stream);
    dsi_graph_note(d, was);
    if (status != DS_OK) return status;
    return dsi_engine_take_loss(e, dsi_element(late->pinned, late->dtype, 0), late->whole);
}

void dsi_engine_late_loss_free(ds_engine *e)
{
    dsi_late_loss *late = &e->late_loss;
    if (!late->device) return;
    late->device->type->free_event(late->device, &late->done);
    late->device->type->free_host(late->device, late->pinned);
}

/* By which the loss counts in the backward pass. */
double dsi_engine_loss_factor(const ds_engine *e, bool whole)
{
    double factor = e->scaler.scale;
    if (!whole) factor /= (double)e->config->gradient_accumulation_steps;
    return e->config->gradient_sum ? factor * ds_comm_size(e->comm) : factor; /* it is averaged */
}

ds_status ds_engine_backward_with(ds_engine *e, ds_tensor *loss, ds_backward_opts opts)
{
    bool whole = opts.no_scale_wrt_gas;
    if (!dsi_live_all("engine_backward", e, loss)) return dsi_null_argument("engine_backward");
    /* a GPU's value is there after a wait: the pass is queued before */
    bool now = loss->device->type->immediate;
    if (backward_check_order(e, loss) != DS_OK || dsi_engine_record_backward(e, loss) != DS_OK ||
        (now && read_loss(e, loss, false, whole) != DS_OK))
        return dsi_engine_abort_ranks(e);
    bool last = ds_engine_is_gradient_accumulation_boundary(e);
    dsi_engine_log_memory(e, "before backward");
    dsi_phase_start(e->timers, DSI_BWD);
    ds_status status = dsi_graph_capturing(loss->device)
                           ? dsi_engine_capture_backward(e, loss, last, whole)
                           : dsi_zero_backward(e->zero, loss, dsi_engine_loss_factor(e, whole),
                                               last);
    dsi_engine_flops_wait(e);
    dsi_phase_stop(e->timers, DSI_BWD);
    dsi_phase_split_backward(e->timers, dsi_zero_reducing(e->zero));
    dsi_engine_log_memory(e, "after backward");
    if (status == DS_OK && !now) status = read_loss(e, loss, last, whole);
    e->went_backward = status == DS_OK;
    e->passes++;
    e->went_last = last;
    return status == DS_OK ? DS_OK : dsi_engine_abort_ranks(e);
}

ds_status ds_engine_backward(ds_engine *e, ds_tensor *loss)
{
    return ds_engine_backward_with(e, loss, (ds_backward_opts){0});
}
