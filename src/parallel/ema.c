/* parallel/ema.c: the exponential moving average of a module's parameters.
 *
 * The rule is that of torch.optim.swa_utils.get_ema_multi_avg_fn in an
 * AveragedModel: the first update copies, so nothing of the first values stays,
 * and there is no warm-up of the decay.
 *
 * Invariants: while `swapped`, the averages are in the module and `trained` has
 * what is trained; no update may run. Averages are float32, [elements of this
 * rank's shard].
 *
 * An update is a step of gradient descent on |average - parameter|^2 / 2 with
 * the learning rate 1 - decay:
 *     average -= (1 - decay) (average - parameter)
 * so SGD's kernel does it: the average is what it updates, the parameter is the
 * gradient, counted -1 times, and the weight decay is 1. One pass over all
 * parameters, 16-bit ones as they are.
 * SPDX-License-Identifier: MIT */
#include "ema.h"

#include "base/mem.h"
#include "device/graph.h"
#include "tensor/tensor.h"

#include <string.h>

#define AT_ONCE ((int64_t)1 << 22) /* elements of masters that are joined at a time */

typedef struct Average {
    char *path;
    ds_tensor *p;       /* the parameter; counted, as all of these */
    ds_tensor *average; /* [elements of its shard]; NULL: this rank has none */
    ds_tensor *trained; /* what is trained, while the average is in its place; else NULL */
} Average;

struct dsi_ema {
    dsi_ema_shards shards;
    double decay;
    int64_t updates;
    bool swapped;
    int n;
    Average *at;     /* [n] */
    dsi_span *spans; /* [n]: those of one update */
};

/* ---- what is averaged -------------------------------------------------------------------------------- */

static ds_tensor *shard_of(const dsi_ema *e, int i)
{
    return e->shards.shard ? e->shards.shard(e->shards.arg, i) : e->at[i].p;
}

/* The shard of a parameter that has an average; NULL, with the message, if it is
 * not what it was. */
static ds_tensor *same_shard(const dsi_ema *e, int i)
{
    const Average *a = &e->at[i];
    ds_tensor *x = shard_of(e, i);
    if (x && dsi_numel(x->shape) == dsi_numel(a->average->shape) && dsi_is_contiguous(x)) return x;
    return dsi_refuse("ema: %s was %s, and is %s now", a->path, dsi_shape_text(a->average->shape),
                      x ? dsi_shape_text(x->shape) : "not there");
}

static ds_status shard_release(const dsi_ema *e, int i, bool changed)
{
    return e->shards.release ? e->shards.release(e->shards.arg, i, changed) : DS_OK;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static bool average_start(dsi_ema *e, int i)
{
    Average *a = &e->at[i];
    ds_tensor *x = shard_of(e, i);
    if (!x) return true;
    if (!dsi_is_contiguous(x))
        return dsi_invalid("ema: %s %s is not contiguous", a->path, dsi_shape_text(x->shape));
    ds_dtype dtype = x->dtype == DS_F64 ? DS_F64 : DS_F32;
    a->average = dsi_ref(dsi_new_dtype(x, dtype, x->shape));
    return a->average && dsi_copy(a->average, x) == DS_OK && shard_release(e, i, false) == DS_OK;
}

dsi_ema *dsi_ema_new(ds_module *model, double decay, const dsi_ema_shards *shards)
{
    if (!dsi_live(model, "ema")) return dsi_null_operand("ema");
    if (!(decay >= 0 && decay <= 1))
        return dsi_refuse("ema: decay is %g: expected 0 to 1, usually 0.999", decay);
    int n = ds_module_params(model);
    dsi_ema *e = dsi_alloc(sizeof *e);
    *e = (dsi_ema){.shards = shards ? *shards : (dsi_ema_shards){0},
                   .decay = decay == 0 ? 0.999 : decay,
                   .at = dsi_alloc((size_t)n * sizeof *e->at + 1),
                   .spans = dsi_alloc((size_t)n * sizeof *e->spans + 1)};
    ds_scope *scope = ds_scope_open();
    bool good = true;
    while (good && e->n < n) {
        const char *path;
        Average *a = &e->at[e->n];
        a->p = dsi_ref(ds_module_param_at(model, e->n, &path));
        a->path = dsi_strdup(path);
        good = average_start(e, e->n++);
    }
    ds_scope_close(scope);
    if (good) return e;
    dsi_ema_free(e);
    return NULL;
}

void dsi_ema_free(dsi_ema *e)
{
    if (!e) return;
    for (int i = 0; i < e->n; i++) {
        dsi_free(e->at[i].path);
        dsi_unref(e->at[i].p);
        dsi_unref(e->at[i].average);
        dsi_unref(e->at[i].trained);
    }
    dsi_free(e->at);
    dsi_free(e->spans);
    dsi_free(e);
}

/* ---- the update -------------------------------------------------------------------------------------- */

/* An update in a step that the device captures: its launches count it, and the
 * addresses of the spans must stay. */
typedef struct Replay {
    dsi_ema *ema;
    const dsi_step_result *result; /* NULL: every step updates */
    int n;
    dsi_span span[];
} Replay;

static bool replay_holds(void *arg)
{
    const Replay *r = arg;
    const dsi_ema *e = r->ema;
    int k = 0;
    if (e->swapped || !e->updates) return false;
    for (int i = 0; i < e->n; i++) {
        const ds_tensor *average = e->at[i].average, *x = average ? shard_of(e, i) : NULL;
        if (!average) continue;
        /* a lazy one is read where the graph has joined it */
        if (!x || (!x->storage && !e->shards.release) || dsi_v(average).p != r->span[k].p ||
            (x->storage && dsi_v(x).p != r->span[k].g))
            return false;
        k++;
    }
    return k == r->n;
}

static ds_status replay_after(void *arg)
{
    const Replay *r = arg;
    if (!r->result || r->result->skip == 0) r->ema->updates++;
    return DS_OK;
}

/* The launches of a captured step will count the update. */
static void update_note(dsi_ema *e, dsi_device *d, int n)
{
    static const dsi_graph_hook hook = {
        .holds = replay_holds, .after = replay_after, .release = dsi_free};
    Replay *r = dsi_alloc(sizeof *r + (size_t)n * sizeof *r->span);
    *r = (Replay){.ema = e, .result = dsi_graph_decided(d).host, .n = n};
    memcpy(r->span, e->spans, (size_t)n * sizeof *r->span);
    dsi_graph_add_hook(d, &hook, r);
    e->updates--;
}

/* Shards that are read and updated at a time. */
typedef struct Batch {
    int span, spans, param; /* the first span, how many; the first parameter */
    int64_t elements;
    ds_tensor *any; /* one of the averages */
} Batch;

/* The end of the batch, which has the parameters up to `end`. */
static ds_status batch_update(dsi_ema *e, Batch *b, int end)
{
    dsi_optimizer rule = {.rule = DSI_SGD, .sgd = {.lr = 1 - e->decay, .weight_decay = 1}};
    dsi_graph_decision decided = dsi_graph_decided(b->any->device);
    ds_status status = DS_OK;
    if (decided.device) rule.skip = &decided.device->skip;
    if (e->updates && b->spans && !dsi_run(b->any, optimizer, &rule, b->spans, e->spans + b->span))
        return ds_error_status();
    for (; status == DS_OK && b->param < end; b->param++)
        status = shard_release(e, b->param, false);
    b->span += b->spans, b->spans = 0, b->elements = 0;
    return status;
}

/* One kernel call over the spans of all parameters, or, where shards are joined
 * for it, of AT_ONCE elements. */
ds_status dsi_ema_update(dsi_ema *e)
{
    if (!dsi_live(e, "ema_update")) return dsi_null_argument("ema_update");
    if (e->swapped)
        return dsi_fail(DS_ESTATE, "ema_update: the averages are in the place of the parameters: "
                                   "swap them back before the next step");
    Batch b = {0};
    for (int i = 0; i < e->n; i++) {
        ds_tensor *average = e->at[i].average, *x = average ? same_shard(e, i) : NULL;
        if (!average) continue;
        if (!x || !dsi_acquire(average, x)) return ds_error_status();
        if (!e->updates && dsi_copy(average, x) != DS_OK) return ds_error_status();
        b.any = average;
        b.elements += dsi_numel(x->shape);
        e->spans[b.span + b.spans++] = (dsi_span){.dtype = average->dtype,
                                                  .p = dsi_v(average).p,
                                                  .g = dsi_v(x).p,
                                                  .n = dsi_numel(x->shape),
                                                  .step = 1,
                                                  .g_dtype = x->dtype,
                                                  .g_scale = -1};
        if (e->shards.release && b.elements >= AT_ONCE && batch_update(e, &b, i + 1) != DS_OK)
            return ds_error_status();
    }
    if (b.any && batch_update(e, &b, e->n) != DS_OK) return ds_error_status();
    if (e->updates && b.any && dsi_graph_capturing(b.any->device))
        update_note(e, b.any->device, b.span);
    e->updates++;
    return DS_OK;
}

/* ---- swap --------------------------------------------------------------------- */

/* Copies of what is trained, all of them before anything is changed. */
static ds_status keep_trained(dsi_ema *e)
{
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < e->n; i++) {
        Average *a = &e->at[i];
        ds_tensor *x = a->average ? same_shard(e, i) : NULL;
        if (a->average && x) a->trained = dsi_ref(dsi_new_like(x));
        if (a->average) status = a->trained ? dsi_copy(a->trained, x) : ds_error_status();
        if (a->average && status == DS_OK) status = shard_release(e, i, false);
    }
    ds_scope_close(scope);
    return status;
}

/* Averages, or what was trained, into the shards and to the module. */
static ds_status average_put(dsi_ema *e, bool averages)
{
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < e->n; i++) {
        const Average *a = &e->at[i];
        if (!a->average) continue;
        ds_tensor *x = same_shard(e, i);
        status = x ? dsi_copy(x, averages ? a->average : a->trained) : ds_error_status();
        if (status == DS_OK) status = shard_release(e, i, true);
    }
    return status == DS_OK && e->shards.publish ? e->shards.publish(e->shards.arg) : status;
}

ds_status dsi_ema_swap(dsi_ema *e)
{
    if (!dsi_live(e, "ema_swap")) return dsi_null_argument("ema_swap");
    bool in = !e->swapped;
    ds_status status = in ? keep_trained(e) : DS_OK;
    if (status == DS_OK) {
        status = average_put(e, in);
        if (status == DS_OK)
            e->swapped = in;
        else if (in)
            average_put(e, false);
    }
    for (int i = 0; !e->swapped && i < e->n; i++) dsi_hold(&e->at[i].trained, NULL);
    return status;
}

bool dsi_ema_swapped(const dsi_ema *e) { return e && e->swapped; }

/* ---- checkpoints ------------------------------------------------------------------------------------------- */

ds_tensor *dsi_ema_average(const dsi_ema *e, int i) { return i < e->n ? e->at[i].average : NULL; }
int64_t dsi_ema_updates(const dsi_ema *e) { return e->updates; }
double dsi_ema_decay(const dsi_ema *e) { return e->decay; }
void dsi_ema_set_updates(dsi_ema *e, int64_t updates) { e->updates = updates; }
