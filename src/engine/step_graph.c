/* engine/step_graph.c: steps of an engine as graphs of a device
 * (device/graph.h).
 *
 * A captured step reads nothing on the host: the loss, the norm, what is
 * clipped and whether the update is skipped stay on the device, in a
 * dsi_step_result, which the launch copies out. A hook then does what the
 * engine does on the host in any step: counters, schedule, loss scale, log
 * lines, monitor. The loss scale is in a slot.
 *
 * Invariants: micro steps are of four kinds, since a first one makes gradients
 * and others add to them, and a last one updates. captured is set from a
 * captured backward to its step, and read in that capture alone; it belongs to
 * the graph.
 * SPDX-License-Identifier: MIT */
#include "tensor/step_graph.h"
#include "engine.h"
#include "tensor/tensor.h"

#include <math.h>

typedef struct Scales {
    double factor; /* of the loss in the backward pass */
    double unscale;
} Scales;

typedef struct dsi_captured {
    ds_engine *e;
    ds_tensor *loss; /* of the capture, counted */
    dsi_device *d;
    bool boundary, whole;          /* whole: the loss is not divided by the accumulation steps */
    const Scales *slot;            /* on the device */
    Scales *scales;                /* its values */
    const dsi_step_result *result; /* after a launch */
} Captured;

/* ---- backward ---------------------------------------------------------------------------------------- */

static const char *why_no_graph(const ds_engine *e)
{
    if (e->timers)
        return e->config->flops_profiler.enabled
                   ? "parts of it are timed (flops_profiler, which turns wall_clock_breakdown on)"
                   : "parts of it are timed (wall_clock_breakdown)";
    if (e->ends == DSI_ENDS_STEP) return "its step reduces (managed_gradient_accumulation)";
    if (e->config->memory_breakdown) return "its memory is printed (memory_breakdown)";
    return dsi_zero_why_no_graph(e->zero);
}

ds_status dsi_engine_record_backward(const ds_engine *e, const ds_tensor *loss)
{
    if (!dsi_graph_recording(loss->device)) return DS_OK;
    const char *why = why_no_graph(e);
    if (why) return dsi_graph_forbid(loss->device, why);
    dsi_graph_accumulate(loss->device);
    return DS_OK;
}

static void scales_write(const Captured *c)
{
    *c->scales = (Scales){dsi_engine_loss_factor(c->e, c->whole), 1 / c->e->scaler.scale};
}

static void captured_before(void *arg)
{
    const Captured *c = arg;
    dsi_throughput_start(&c->e->throughput);
    scales_write(c);
}

/* The part of the step that is the host's. Nothing was updated if the loss is
 * not finite, or a label or index was bad. */
static ds_status captured_after(void *arg)
{
    const Captured *c = arg;
    ds_engine *e = c->e;
    const dsi_step_result *r = c->result;
    dsi_zero_step_result update = {.norm = r->norm};
    ds_status status = r->fault != 0 ? dsi_device_check(c->d) : DS_OK;
    if (status == DS_OK && dsi_engine_needs_loss(e))
        status = dsi_engine_take_loss(e, r->loss, c->whole);
    update.overflow = c->boundary && status == DS_OK && dsi_engine_checks_overflow(e->config) &&
                      !isfinite(r->norm);
    e->applied = false;
    if (c->boundary) {
        ds_status ended = dsi_zero_capture_end(e->zero, update.overflow, &update.bad_param_path);
        if (status == DS_OK) status = ended;
        if (status == DS_OK) status = dsi_engine_updated(e, &update);
    }
    return dsi_engine_end_step(e, c->boundary, status);
}

static void captured_undo(void *arg)
{
    ds_engine *e = ((const Captured *)arg)->e;
    e->captured = NULL;
    e->went_backward = false;
}

static void captured_release(void *arg)
{
    Captured *c = arg;
    dsi_unref(c->loss);
    dsi_free(c);
}

/* Its part before a launch; the part after it is a hook of its own, behind
 * those of the optimizer. */
ds_status dsi_engine_capture_backward(ds_engine *e, ds_tensor *loss, bool last, bool whole)
{
    static const dsi_graph_hook hook = {
        .before = captured_before, .release = captured_release, .undo = captured_undo};
    Captured *c = dsi_alloc(sizeof *c);
    *c = (Captured){.e = e,
                    .loss = dsi_ref(ds_detach(loss)),
                    .d = loss->device,
                    .boundary = last,
                    .whole = whole};
    dsi_graph_add_hook(c->d, &hook, c);
    c->slot = dsi_graph_slot(c->d, sizeof *c->slot, &c->scales);
    if (!c->loss || !c->slot) return ds_error_status();
    scales_write(c);
    e->captured = c;
    return dsi_zero_capture_backward(e->zero, loss, &c->slot->factor, last);
}

/* ---- step -------------------------------------------------------------------------------------------- */

static void nothing_to_release(void *arg) { (void)arg; }

ds_status dsi_engine_capture_step(ds_engine *e, bool boundary)
{
    static const dsi_graph_hook hook = {.after = captured_after, .release = nothing_to_release};
    Captured *c = e->captured;
    const dsi_config *config = e->config;
    DSI_ASSERT(config && c);
    dsi_zero_capture z = {.update = boundary,
                          .want_norm = config->zero.compute_grad_norm,
                          .unscale = &c->slot->unscale,
                          .loss = c->loss};
    z.limits.finite_loss = dsi_engine_ends_on_nan(e);
    if (boundary) {
        z.limits.max_norm = config->gradient_clipping;
        z.limits.finite_norm = dsi_engine_checks_overflow(e->config);
    }
    e->captured = NULL;
    z.decision.device = dsi_graph_result(c->d, sizeof *c->result, &c->result);
    z.decision.host = c->result;
    ds_status status = z.decision.device ? dsi_zero_capture_step(e->zero, &z) : ds_error_status();
    if (status == DS_OK && boundary && e->ema) status = dsi_ema_update(e->ema);
    dsi_graph_add_hook(c->d, &hook, c);
    return status;
}

/* ---- kinds ------------------------------------------------------------------------------------------- */

/* Below 0 are steps that begin in another state than those that were recorded,
 * or are refused. The first update of averages copies the parameters. */
static int step_kind(void *arg)
{
    const ds_engine *e = arg;
    if (!dsi_live(e, "step_graph_run") || !e->zero || e->went_backward) return -1;
    if (!ds_module_training(e->model) || dsi_ema_swapped(e->ema)) return -1;
    if (e->ema && !dsi_ema_updates(e->ema)) return -1;
    return (e->accumulated > 0) + 2 * ds_engine_is_gradient_accumulation_boundary(e);
}

ds_step_graph *ds_engine_step_graph_new(ds_engine *e, ds_step_fn *step, void *self)
{
    if (!dsi_live(e, "engine_step_graph_new")) return dsi_null_operand("engine_step_graph_new");
    ds_step_graph *g = ds_step_graph_new(step, self);
    if (g) dsi_step_graph_set_kinds(g, step_kind, e);
    return g;
}
