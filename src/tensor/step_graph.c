/* tensor/step_graph.c: ds_step_graph: a step that is launched as one graph.
 *
 *   run 1, 2   the step's function, while the device observes (device/graph.h)
 *   run 3      it is captured, and launched
 *   from 4 on  inputs are copied to those of the capture, hooks, launch, hooks
 *
 * Invariants: in[] and out are those of the capture, held as long as its work
 * may be launched; all other storage of the captured step is the graph's pool.
 * A run that cannot be a replay is the function itself. `observed` counts runs
 * of the function since the last capture that did not hold any more.
 * SPDX-License-Identifier: MIT */
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/graph.h"
#include "tensor.h"

#include <stdio.h>
#include <string.h>

enum { OBSERVED = 2, MOST_INPUTS = 16 };

struct ds_step_graph {
    ds_step_fn *step;
    void *self;
    dsi_graph *graph; /* of the device of the first run; NULL: none */
    int observed, n;
    ds_tensor *in[MOST_INPUTS], *out; /* counted */
    bool begun, running, off, told;
    char why[320];
};

static const dsi_handle_kind step_graph_kind = {"step graph", NULL, NULL, NULL};

ds_step_graph *ds_step_graph_new(ds_step_fn *step, void *self)
{
    if (!step) return dsi_null_operand("step_graph_new");
    ds_step_graph *g = dsi_alloc(sizeof *g);
    dsi_handle_call("step_graph_new");
    dsi_handle_made(g, &step_graph_kind);
    g->step = step;
    g->self = self;
    return g;
}

/* The capture is not valid any more, or ends. */
static void capture_drop(ds_step_graph *g)
{
    if (g->graph) dsi_graph_reset(g->graph);
    for (int i = 0; i < g->n; i++) dsi_unref(g->in[i]);
    dsi_unref(g->out);
    g->out = NULL;
    g->n = g->observed = 0;
}

void ds_step_graph_free(ds_step_graph *g)
{
    if (!dsi_live(g, "step_graph_free")) return;
    if (g->running) {
        dsi_fail(DS_ESTATE, "step_graph_free: its step runs");
        return;
    }
    bool quarantined = dsi_handle_freed_by(g, "ds_step_graph_free");
    capture_drop(g);
    dsi_graph_free(g->graph);
    if (!quarantined) dsi_free(g);
}

bool ds_step_graph_replays(const ds_step_graph *g) { return g && g->out; }

const char *ds_step_graph_why_not(const ds_step_graph *g) { return g && g->off ? g->why : NULL; }

/* ---- why not -------------------------------------------------------------------------------------------- */

static void turn_off(ds_step_graph *g, const char *why)
{
    g->off = true;
    snprintf(g->why, sizeof g->why, "%s", why);
}

/* One line, once, if there could have been a graph. */
static void tell(ds_step_graph *g, const char *what, const char *why)
{
    if (!g->told) dsi_log(DSI_WARNING, "step_graph: %s: %s", what, why);
    g->told = true;
}

/* At the first run: whether this device has graphs, and the user wants them. */
static ds_status choose(ds_step_graph *g, dsi_device *d)
{
    static const char *const words[] = {"on", "off", NULL};
    int off = 0;
    g->begun = true;
    ds_status status = dsi_env_word("DS_GRAPHS", words, &off);
    if (status != DS_OK) return status;
    if (!off) g->graph = dsi_graph_new(d);
    if (off)
        turn_off(g, "DS_GRAPHS is off");
    else if (!g->graph)
        turn_off(g, "this device has no graphs");
    return DS_OK;
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

/* The function in a scope; its result without a graph, in the caller's. */
static ds_tensor *call(ds_step_graph *g, ds_tensor *const *in, int n)
{
    ds_scope *scope = ds_scope_open();
    g->running = true;
    ds_tensor *out = g->step(g->self, in, n);
    g->running = false;
    if (out && (ds_error() || !dsi_acquire(out))) out = NULL;
    return dsi_scope_return(scope, out ? dsi_ref(dsi_alias(out)) : NULL);
}

static ds_tensor *observe(ds_step_graph *g, ds_tensor *const *in, int n)
{
    if (dsi_graph_begin(g->graph, false) != DS_OK) return NULL;
    ds_tensor *out = call(g, in, n);
    const char *why = dsi_graph_why_not(g->graph);
    if (out && why) {
        turn_off(g, why);
        tell(g, "each step is launched kernel by kernel", why);
    }
    g->observed++;
    return dsi_graph_end(g->graph, false) == DS_OK ? out : NULL;
}

/* Tensors of the capture's own, with the values of in. */
static bool inputs_make(ds_step_graph *g, ds_tensor *const *in, int n)
{
    ds_scope *scope = ds_scope_open();
    bool good = true;
    for (int i = 0; good && i < n; i++) {
        ds_tensor *own = dsi_acquire(in[i]) ? dsi_new_like(in[i]) : NULL;
        good = own && dsi_copy(own, in[i]) == DS_OK;
        if (good) g->in[g->n++] = dsi_ref(own);
    }
    ds_scope_close(scope);
    return good;
}

static ds_tensor *capture(ds_step_graph *g, ds_tensor *const *in, int n)
{
    if (!inputs_make(g, in, n) || dsi_graph_begin(g->graph, true) != DS_OK) {
        capture_drop(g);
        return NULL;
    }
    ds_tensor *out = call(g, g->in, g->n);
    ds_status status = dsi_graph_end(g->graph, out != NULL);
    if (out && status == DS_OK) status = dsi_graph_launch(g->graph);
    if (!out || status != DS_OK) {
        capture_drop(g);
        return NULL;
    }
    g->out = dsi_ref(out);
    return out;
}

/* NULL: in can be copied to the inputs of the capture; else why not. */
static const char *inputs_differ(const ds_step_graph *g, ds_tensor *const *in, int n)
{
    static _Thread_local char text[200];
    if (n != g->n) return "another number of inputs than it was recorded with";
    for (int i = 0; i < n; i++) {
        const ds_tensor *a = in[i], *b = g->in[i];
        if (a->dtype == b->dtype && a->device == b->device && dsi_same_shape(a->shape, b->shape))
            continue;
        snprintf(text, sizeof text, "input %d is %s %s, and the recorded one %s %s", i,
                 ds_dtype_name(a->dtype), dsi_shape_text(a->shape), ds_dtype_name(b->dtype),
                 dsi_shape_text(b->shape));
        return text;
    }
    return NULL;
}

static ds_tensor *replay(ds_step_graph *g, ds_tensor *const *in, int n)
{
    for (int i = 0; i < n; i++)
        if (in[i] != g->in[i] && dsi_copy(g->in[i], in[i]) != DS_OK) return NULL;
    return dsi_graph_replay(g->graph) == DS_OK ? dsi_alias(g->out) : NULL;
}

ds_tensor *ds_step_graph_run(ds_step_graph *g, ds_tensor *const *in, int n)
{
    if (!dsi_live(g, "step_graph_run")) return dsi_null_operand("step_graph_run");
    if (n < 0 || n > MOST_INPUTS)
        return dsi_refuse("step_graph_run: %d inputs, expected at most %d", n, MOST_INPUTS);
    for (int i = 0; i < n; i++)
        if (!dsi_live(in[i], "step_graph_run")) return dsi_null_operand("step_graph_run");
    if (g->running) return dsi_refuse("step_graph_run: called by its own step");
    if (ds_error()) return NULL;
    dsi_device *d = n ? in[0]->device : dsi_device_current();
    if (!d || (!g->begun && choose(g, d) != DS_OK)) return NULL;
    if (g->off) return call(g, in, n);
    const char *differ = g->out ? inputs_differ(g, in, n) : NULL;
    if (differ) {
        tell(g, "this step is launched kernel by kernel, and others like it", differ);
        return call(g, in, n);
    }
    if (g->out && dsi_graph_holds(g->graph)) return replay(g, in, n);
    if (g->out) capture_drop(g);
    return g->observed < OBSERVED ? observe(g, in, n) : capture(g, in, n);
}
