/* tensor/step_graph.c: ds_step_graph: a step that is launched as one graph.
 *
 * Steps of one kind (step_graph.h; most programs have one):
 *   run 1, 2   the step's function, while the device observes (device/graph.h)
 *   run 3      it is captured, and launched
 *   from 4 on  inputs are copied to those of the capture, unless its own work makes
 *              them (a loader's batch), hooks, launch, hooks
 *
 * A capture that does not hold at one step is kept, since a step that was run
 * by the function may have come between; at the second in a row it is dropped.
 *
 * Steps of several kinds never run at once: their captures share a transient
 * pool, the memory of what a step takes and gives back (device/pool.h).
 *
 * The ranks that a step's collectives have do the same with it, by vote (Note
 * [Graph votes] of device/graph.h): the least Turn that one of them proposes.
 * Its first run has no vote, as it is the function's on all of them; it
 * shows who votes from then on. A rank that is off says so in its next vote,
 * and then all are off, and no more votes are taken.
 *
 * Invariants: in[] and out are those of the capture, held as long as its work
 * may be launched; all other storage of the captured step is the graph's pool,
 * or the transient one, of which nothing is in use between runs. A run that
 * cannot be a replay is the function itself. `observed` counts runs of the
 * function, with inputs like `like` each, since the last capture was dropped:
 * so what is captured was observed, as small tables that a step makes for a
 * longer input.
 * SPDX-License-Identifier: MIT */
#include "step_graph.h"
#include "base/env.h"
#include "base/log.h"
#include "base/mem.h"
#include "device/graph.h"
#include "lazy.h"

#include <stdio.h>
#include <string.h>

enum { OBSERVED = 2, MOST_INPUTS = DSI_COPIES };
enum { MOST_DROPS = 3, LEAST_REPLAYS = 8 }; /* drops, and replays for each: fewer are no gain */

typedef struct Input {
    ds_dtype dtype;
    const dsi_device *device;
    ds_dims shape;
} Input;

/* The way a step is run; a vote takes the least. */
typedef enum Turn {
    TURN_OFF,     /* the function, as always from now on */
    TURN_CALL,    /* the function, observed if that is still to be done */
    TURN_CAPTURE, /* it is captured, and launched */
    TURN_REPLAY
} Turn;

/* The runs of one kind. */
typedef struct Recording {
    dsi_graph *graph;         /* NULL before the first run */
    dsi_graph_voters *voters; /* counted; NULL: this rank decides alone */
    int observed, failed, drops, n, n_like;
    int64_t replays;
    Input like[MOST_INPUTS];          /* of the runs that were observed, and of the capture */
    ds_tensor *in[MOST_INPUTS], *out; /* counted; out NULL: nothing is captured */
    const void *item; /* out's value after a launch, in the graph; NULL: not there */
} Recording;

struct ds_step_graph {
    ds_step_fn *step;
    void *self;
    int (*kind)(void *arg); /* NULL: all steps are of kind 0 */
    void *kind_arg;
    Recording of[DSI_STEP_KINDS];
    dsi_device *device;             /* of the transient pool */
    dsi_block_pool *transient_pool; /* NULL: one kind, or a capture left something in it */
    bool begun, running, told;
    bool off, said;                   /* said: all ranks are off */
    dsi_step_collectives collectives; /* of the latest run */
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

void dsi_step_graph_set_kinds(ds_step_graph *g, int (*kind)(void *arg), void *arg)
{
    g->kind = kind;
    g->kind_arg = arg;
}

/* The capture is not valid any more, or ends. */
static void capture_drop(Recording *r)
{
    if (r->graph) dsi_graph_reset(r->graph);
    for (int i = 0; i < r->n; i++) dsi_unref(r->in[i]);
    dsi_unref(r->out);
    r->out = NULL;
    r->item = NULL;
    r->n = r->observed = r->failed = 0;
}

void ds_step_graph_free(ds_step_graph *g)
{
    if (!dsi_live(g, "step_graph_free")) return;
    if (g->running) {
        dsi_fail(DS_ESTATE, "step_graph_free: its step runs");
        return;
    }
    bool quarantined = dsi_handle_freed_by(g, "ds_step_graph_free");
    for (int k = 0; k < DSI_STEP_KINDS; k++) {
        capture_drop(&g->of[k]);
        dsi_graph_free(g->of[k].graph);
        dsi_graph_voters_unref(g->of[k].voters);
    }
    dsi_pool_free(g->transient_pool);
    if (!quarantined) dsi_free(g);
}

static int kind_now(const ds_step_graph *g) { return g->kind ? g->kind(g->kind_arg) : 0; }

bool ds_step_graph_replays(const ds_step_graph *g)
{
    int kind = g ? kind_now(g) : -1;
    return kind >= 0 && g->of[kind].out;
}

const char *ds_step_graph_why_not(const ds_step_graph *g) { return g && g->off ? g->why : NULL; }

/* ---- why not -------------------------------------------------------------------------------------------- */

static void turn_off(ds_step_graph *g, const char *why)
{
    g->off = true;
    snprintf(g->why, sizeof g->why, "%s", why);
}

/* One line, once, if there could have been a graph; rank 0's, as the others
 * mostly have the same reason. */
static void tell(ds_step_graph *g, const char *what, const char *why)
{
    if (!g->told && !dsi_log_rank()) dsi_log(DSI_WARNING, "step_graph: %s: %s", what, why);
    g->told = true;
}

/* At the first run: whether this device has graphs, and the user wants them. */
static ds_status choose(ds_step_graph *g, const dsi_device *d)
{
    static const char *const words[] = {"on", "off", NULL};
    int off = 0;
    g->begun = true;
    ds_status status = dsi_env_word("DS_GRAPHS", words, &off);
    if (status != DS_OK) return status;
    if (off)
        turn_off(g, "DS_GRAPHS is off");
    else if (!d->type->capture_begin)
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

static ds_tensor *observe(ds_step_graph *g, Recording *r, ds_tensor *const *in, int n)
{
    if (dsi_graph_begin(r->graph, false) != DS_OK) return NULL;
    ds_tensor *out = call(g, in, n);
    const char *why = dsi_graph_why_not(r->graph);
    if (!why && g->collectives.separate_groups)
        why = "it exchanges tensors in several groups of ranks, and in none of all ranks";
    if (out && why) {
        turn_off(g, why);
        tell(g, "each step is launched kernel by kernel", why);
    }
    r->observed++;
    return dsi_graph_end(r->graph, false) == DS_OK ? out : NULL;
}

/* Of r->in = in, those that the captured work writes itself, or the others. */
static bool inputs_copy(const Recording *r, ds_tensor *const *in, const bool *recorded, bool those)
{
    ds_tensor *from[MOST_INPUTS];
    for (int i = 0; i < r->n; i++) from[i] = recorded[i] == those ? in[i] : r->in[i];
    return dsi_copy_all(r->n, r->in, from) == DS_OK;
}

/* Tensors of the capture's own; those that it does not write itself get the
 * values of in. */
static bool inputs_make(Recording *r, ds_tensor *const *in, int n, bool *recorded)
{
    ds_scope *scope = ds_scope_open();
    bool good = true;
    for (int i = 0; good && i < n; i++) {
        ds_tensor *own = dsi_new_like(in[i]);
        good = own != NULL;
        if (good) r->in[r->n++] = dsi_ref(own);
    }
    if (good) dsi_copies_recorded(n, r->in, in, recorded);
    good = good && inputs_copy(r, in, recorded, false);
    ds_scope_close(scope);
    return good;
}

/* The host waits for each launch: then it reads the only element of out too. */
static bool item_capture(Recording *r, const ds_tensor *out)
{
    dsi_device *d = out->device;
    void *host = NULL;
    if (!dsi_graph_has_results(d) || dsi_numel(out->shape) != 1) return true;
    void *p = dsi_graph_result(d, ds_dtype_size(out->dtype), &host);
    ds_scope *scope = ds_scope_open();
    bool done = p && dsi_copy(dsi_borrow(d, (dsi_view){.p = p, .dtype = out->dtype}), out) == DS_OK;
    ds_scope_close(scope);
    r->item = host;
    return done;
}

/* The step's result for its caller. */
static ds_tensor *result(const Recording *r)
{
    ds_tensor *y = dsi_alias(r->out);
    if (r->item) dsi_set_item(y, dsi_element(r->item, y->dtype, 0));
    return y;
}

/* A capture left something in the transient pool that the runs before it did
 * not: replays of the others would write to it. */
static void captures_part(ds_step_graph *g)
{
    for (int k = 0; k < DSI_STEP_KINDS; k++) {
        capture_drop(&g->of[k]);
        if (g->of[k].graph) dsi_graph_part(g->of[k].graph);
    }
    dsi_pool_free(g->transient_pool);
    g->transient_pool = NULL;
}

static ds_tensor *capture(ds_step_graph *g, Recording *r, ds_tensor *const *in, int n)
{
    bool recorded[MOST_INPUTS];
    if (!inputs_make(r, in, n, recorded) || dsi_graph_begin(r->graph, true) != DS_OK) {
        capture_drop(r);
        return NULL;
    }
    ds_tensor *out = inputs_copy(r, in, recorded, true) ? call(g, r->in, r->n) : NULL;
    if (out && !item_capture(r, out)) out = NULL;
    ds_status status = dsi_graph_end(r->graph, out != NULL);
    if (out && status == DS_OK) status = dsi_graph_launch(r->graph);
    if (!out || status != DS_OK) {
        capture_drop(r);
        if (dsi_graph_collides(r->graph)) captures_part(g);
        return NULL;
    }
    r->out = dsi_ref(out);
    ds_tensor *y = result(r);
    if (dsi_graph_collides(r->graph)) captures_part(g);
    return y;
}

/* NULL: in can be copied to the inputs of the capture; else why not. */
static const char *inputs_differ(const Recording *r, ds_tensor *const *in, int n)
{
    static _Thread_local char text[200];
    if (n != r->n_like) return "another number of inputs than it was recorded with";
    for (int i = 0; i < n; i++) {
        const ds_tensor *a = in[i];
        const Input *b = &r->like[i];
        if (a->dtype == b->dtype && a->device == b->device && dsi_same_shape(a->shape, b->shape))
            continue;
        snprintf(text, sizeof text, "input %d is %s %s, and the recorded one %s %s", i,
                 ds_dtype_name(a->dtype), dsi_shape_text(a->shape), ds_dtype_name(b->dtype),
                 dsi_shape_text(b->shape));
        return text;
    }
    return NULL;
}

static void inputs_note(Recording *r, ds_tensor *const *in, int n)
{
    for (int i = 0; i < n; i++) r->like[i] = (Input){in[i]->dtype, in[i]->device, in[i]->shape};
    r->n_like = n;
    r->observed = 0;
}

static ds_tensor *replay(Recording *r, ds_tensor *const *in, int n)
{
    dsi_graph_feed(r->graph);
    ds_status status = dsi_copy_all(n, r->in, in);
    dsi_graph_fed(r->graph);
    if (status != DS_OK) return NULL;
    r->failed = 0;
    r->replays++;
    return dsi_graph_replay(r->graph) == DS_OK ? result(r) : NULL;
}

/* The capture does not hold at this step; it is dropped if it did not at the
 * one before either. */
static void capture_failed(ds_step_graph *g, Recording *r)
{
    if (!r->failed++) return;
    capture_drop(r);
    if (++r->drops <= MOST_DROPS || r->replays > (int64_t)LEAST_REPLAYS * r->drops) return;
    const char *why = "a value of its optimizer that is neither learning rate nor momentum "
                      "changes at each step, or a tensor moves";
    turn_off(g, why);
    tell(g, "each step is launched kernel by kernel", why);
}

/* A lazy input is written to a tensor of the step's own: materialized, it could
 * give values to others of its owner, which the step would then read unseen. */
static ds_tensor *observe_own(ds_step_graph *g, Recording *r, ds_tensor *const *in, int n)
{
    ds_tensor *own[MOST_INPUTS], *out = NULL;
    ds_scope *scope = ds_scope_open();
    bool good = true;
    for (int i = 0; good && i < n; i++) {
        own[i] = in[i]->storage ? in[i] : dsi_new_like(in[i]);
        good = own[i] != NULL;
    }
    if (good && dsi_copy_all(n, own, in) == DS_OK) out = observe(g, r, own, n);
    return dsi_scope_return(scope, out ? dsi_ref(out) : NULL);
}

/* ---- turns ---------------------------------------------------------------------------------------------- */

/* By this rank alone. */
static Turn turn_choose(ds_step_graph *g, Recording *r, ds_tensor *const *in, int n)
{
    if (g->off) return TURN_OFF;
    const char *differ = r->out ? inputs_differ(r, in, n) : NULL;
    if (differ) {
        tell(g, "this step is launched kernel by kernel, and others like it", differ);
        return TURN_CALL;
    }
    if (r->out && dsi_graph_holds(r->graph)) return TURN_REPLAY;
    if (r->out) capture_failed(g, r);
    if (g->off) return TURN_OFF;
    if (r->out) return TURN_CALL;
    if (inputs_differ(r, in, n)) inputs_note(r, in, n);
    return r->observed == OBSERVED ? TURN_CAPTURE : TURN_CALL;
}

/* A rank is off. `mine` and `most` are this rank's turn, and the most of all. */
static void all_off(ds_step_graph *g, Turn mine, Turn most)
{
    const char *what = "each step is launched kernel by kernel";
    g->said = true;
    for (int k = 0; k < DSI_STEP_KINDS; k++) capture_drop(&g->of[k]);
    if (mine != TURN_OFF) {
        turn_off(g, "on another rank it cannot be recorded, as a line of that rank says");
        tell(g, what, g->why);
    } else if (most != TURN_OFF && dsi_log_rank()) { /* rank 0 has told why it is off */
        dsi_log(DSI_WARNING, "step_graph: %s, on all ranks: %s", what, g->why);
    }
}

/* Sets *turn to that of all ranks: the least, but TURN_CALL where some propose
 * to capture and others to replay, and these drop their capture. false: the
 * vote has failed. */
static bool turn_vote(ds_step_graph *g, Recording *r, Turn *turn)
{
    Turn mine = *turn;
    if (!r->voters || !r->voters->comm) return true;
    int64_t x[] = {mine, -(int64_t)mine};
    if (r->voters->reduce_min(r->voters, x, 2) != DS_OK) return false;
    Turn most = (Turn)-x[1];
    *turn = (Turn)x[0];
    if (*turn == TURN_OFF) all_off(g, mine, most);
    if (*turn == most || *turn != TURN_CAPTURE) return true;
    if (mine == TURN_REPLAY) capture_drop(r);
    *turn = TURN_CALL;
    return true;
}

/* Whether a replay of this step holds on all ranks that its hooks ask. */
static bool turn_ask(ds_step_graph *g, Recording *r, Turn *turn)
{
    if (*turn != TURN_REPLAY || !dsi_graph_asks(r->graph)) return true;
    *turn = dsi_graph_agrees(r->graph) ? TURN_REPLAY : TURN_CALL;
    if (ds_error() || !turn_vote(g, r, turn)) return false;
    if (*turn == TURN_CALL) capture_failed(g, r);
    return true;
}

static ds_tensor *run_turn(ds_step_graph *g, Recording *r, Turn turn, ds_tensor *const *in, int n)
{
    if (turn == TURN_REPLAY) return replay(r, in, n);
    if (turn == TURN_CAPTURE) return capture(g, r, in, n);
    if (g->off || r->out || r->observed == OBSERVED) return call(g, in, n);
    return observe_own(g, r, in, n);
}

/* The step has shown which ranks it has collectives with. */
static void voters_note(Recording *r, dsi_graph_voters *v)
{
    const dsi_graph_voters *was = r->voters;
    if (!v || (was && was->comm && was->size >= v->size)) return;
    dsi_graph_voters_unref(r->voters);
    r->voters = dsi_graph_voters_ref(v);
}

/* Other ranks wait for collectives of a launch that has failed here. */
static ds_tensor *run_kind(ds_step_graph *g, Recording *r, dsi_device *d, ds_tensor *const *in,
                           int n)
{
    Turn turn = turn_choose(g, r, in, n);
    if (!turn_vote(g, r, &turn) || !turn_ask(g, r, &turn)) return NULL;
    dsi_step_collectives *outer = d->collectives;
    g->collectives = (dsi_step_collectives){NULL};
    d->collectives = &g->collectives;
    ds_tensor *out = run_turn(g, r, turn, in, n);
    d->collectives = outer;
    voters_note(r, g->collectives.largest);
    if (!out && r->voters && r->voters->comm && turn >= TURN_CAPTURE && !g->collectives.queued)
        r->voters->abort(r->voters);
    return out;
}

static dsi_graph *graph_make(ds_step_graph *g, dsi_device *d)
{
    if (g->kind && !g->device) {
        g->device = d;
        g->transient_pool = dsi_pool_new(d);
    }
    return dsi_graph_new(d, d == g->device ? g->transient_pool : NULL);
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
    int kind = kind_now(g);
    if (g->said || kind < 0) return call(g, in, n);
    Recording *r = &g->of[kind];
    if (!r->graph && !g->off) r->graph = graph_make(g, d);
    return run_kind(g, r, d, in, n);
}
