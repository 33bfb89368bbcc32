/* parallel/estimate.c: Note [Estimate] of estimate.h.
 * SPDX-License-Identifier: MIT */
#include "estimate.h"

#include "base/int.h"
#include "base/mem.h"

static int64_t layout_size(ds_dtype dtype) { return (int64_t)ds_dtype_size(dtype); }

/* ---- model state ----------------------------------------------------------------------------------------- */

/* Elements: of all parameters; of a rank's own buffers; of those that are
 * divided at stage 3, and the longest shard of one. */
typedef struct Elements {
    int64_t all, owned, divided, shard_size;
} Elements;

static ds_dtype gradient_dtype(const dsi_zero_opts *o, const dsi_estimate_sizes *s)
{
    return s->accumulates ? o->accum_dtype : o->dtype;
}

static bool partitions(const dsi_zero_opts *o, const dsi_estimate_sizes *s)
{
    return o->stage >= 2 && s->ranks > 1;
}

/* Of stage 3, this rank's shards in files: of one rank too. */
static bool shards_on_disk(const dsi_zero_opts *o)
{
    return o->stage == 3 && o->param_files.nvme_path;
}

/* The bytes of model state by the table in zero.h. */
static dsi_estimate estimate_state(const dsi_zero_opts *o, const dsi_estimate_sizes *s, Elements n)
{
    bool masters = o->dtype != DS_F32 || o->offload_optimizer || shards_on_disk(o);
    bool split = s->takes_halves && dsi_zero_splits(o);
    int64_t word = (int64_t)sizeof(float), master = split ? word / 2 : masters ? word : 0;
    dsi_estimate e = {.optimizer = n.owned * (s->moments * word + master)};
    if (o->files.nvme_path) {
        e.file = e.optimizer;
        e.optimizer = dsi_offload_needs(&o->files, n.owned, s->moments + 1);
    }
    e.parameters = (n.all - n.divided) * layout_size(o->dtype);
    if (n.divided && shards_on_disk(o)) {
        int64_t in_memory = dsi_min(n.owned, o->param_files.max_in_cpu);
        e.parameters += dsi_param_swap_needs(&o->param_files, n.owned, n.shard_size, o->dtype);
        e.file += (n.owned - in_memory) * layout_size(o->dtype);
    } else if (n.divided) {
        e.parameters += n.owned * layout_size(o->dtype);
    }
    e.gradients = (partitions(o, s) ? n.owned : n.all) * layout_size(gradient_dtype(o, s));
    return e;
}

/* Bytes of parameters that are gathered at a time. at_once: elements of the
 * largest. */
static int64_t gathered(const dsi_zero_opts *o, int64_t divided, int64_t at_once)
{
    int64_t whole = dsi_max(at_once, 1), ahead = o->prefetch_bucket / whole * whole;
    int64_t again = o->max_reuse_distance / 2; /* from the end of a forward there and back */
    int64_t n = dsi_min(dsi_max(ahead, again), o->max_live);
    return dsi_min(dsi_max(n, at_once), divided) * layout_size(o->dtype);
}

/* Copies of buckets in the dtype that is sent, if it is another one. `bucket`:
 * elements of the largest. */
static int64_t copies_sent(const dsi_zero_opts *o, const dsi_estimate_sizes *s, int64_t all,
                           int64_t bucket)
{
    ds_dtype dtype = partitions(o, s) ? o->dtype : gradient_dtype(o, s);
    if (s->ranks == 1 || dtype == o->comm_dtype) return 0;
    int64_t n = partitions(o, s) ? 2 * bucket : o->overlap_comm ? all : bucket;
    return dsi_min(n, all) * layout_size(o->comm_dtype);
}

static void estimate_total(dsi_estimate *e)
{
    e->peak = e->parameters + e->optimizer + e->gradients + e->passing + e->gathered;
}

/* ---- without a model --------------------------------------------------------------------------------------- */

dsi_estimate dsi_estimate_sizes_only(const dsi_zero_opts *o, const dsi_estimate_sizes *s)
{
    int64_t ranks = s->ranks, bucket = dsi_zero_layout(o, 0, s->ranks).bucket;
    int64_t largest = dsi_min(s->largest ? s->largest : bucket, s->params);
    Elements n = {.all = s->params, .owned = s->params};
    if (o->stage && ranks > 1) n.owned = (s->params + ranks - 1) / ranks;
    if (o->stage == 3 && (ranks > 1 || shards_on_disk(o))) n.divided = s->params;
    n.shard_size = (largest + ranks - 1) / ranks;
    dsi_estimate e = estimate_state(o, s, n);
    bucket = n.divided ? largest : dsi_max(bucket, largest); /* a divided parameter has its own */
    e.passing = s->activations + copies_sent(o, s, s->params, bucket);
    if (partitions(o, s)) e.passing += dsi_min(2 * bucket, s->params) * layout_size(o->dtype);
    if (ranks > 1) e.passing += largest * layout_size(o->dtype);
    if (n.divided) e.gathered = gathered(o, n.divided, largest);
    estimate_total(&e);
    return e;
}

/* ---- with a pass of a model -------------------------------------------------------------------------------- */

typedef struct Buckets {
    const dsi_flat *f;
    int64_t size;  /* bytes of an element */
    int *missing;  /* [units]: parameters that have not come yet */
    int next;      /* the first that has not left */
    int arrived;   /* the first that has not been freed */
    int64_t bytes; /* of those that are there */
} Buckets;

/* As reduce.c: before unit k is opened at most one other is left, that on its
 * way. */
static void estimate_open_bucket(Buckets *b, int k)
{
    for (; b->arrived < b->next - (k == b->next); b->arrived++)
        b->bytes -= b->f->unit[b->arrived].n * b->size;
    if (b->missing[k] == b->f->unit[k].count) b->bytes += b->f->unit[k].n * b->size;
}

static void fill_bucket(Buckets *b, int k)
{
    b->missing[k]--;
    while (b->next < b->f->units && b->missing[b->next] == 0) b->next++;
}

/* Bytes of the event's gradient that its bucket has, in place of memory of its
 * own. */
static int64_t in_bucket(const dsi_estimate_sizes *s, const dsi_flat *f, const dsi_pass_event *e,
                         int64_t size)
{
    bool becomes_it = dsi_flat_fills_unit(f, e->i); /* the gradient, its bucket */
    return s->ranks > 1 && e->placed && !becomes_it ? f->param[e->i].n * size : 0;
}

/* The most that activations, gradients and buckets take at a moment of the
 * pass. */
static int64_t peak_with_buckets(const dsi_zero_opts *o, const dsi_estimate_sizes *s,
                                 const dsi_flat *f, const dsi_pass_event *e, int n)
{
    Buckets b = {.f = f, .size = layout_size(o->dtype)};
    int64_t worst = 0;
    b.missing = dsi_alloc((size_t)f->units * sizeof *b.missing);
    for (int k = 0; k < f->units; k++) b.missing[k] = f->unit[k].count;
    for (int j = 0; j < n; j++) {
        int k = f->param[e[j].i].unit;
        int64_t held = in_bucket(s, f, &e[j], b.size);
        worst = dsi_max(worst, (held ? e[j].before : dsi_max(e[j].before, e[j].peak)) + b.bytes);
        estimate_open_bucket(&b, k);
        if (held) worst = dsi_max(worst, e[j].peak - held + b.bytes);
        bool becomes_it = dsi_flat_fills_unit(f, e[j].i);
        int64_t copied = becomes_it ? b.bytes - f->unit[k].n * b.size : b.bytes;
        worst = dsi_max(worst, e[j].live - held + copied);
        fill_bucket(&b, k);
    }
    dsi_free(b.missing);
    return worst;
}

/* The same without temporary buckets: gradients are made during the pass (one
 * rank, one pass), or exist all the time. Above what the model state counts. */
static int64_t peak_with_gradients(const dsi_estimate *state, const dsi_zero_opts *o,
                                   const dsi_estimate_sizes *s, const dsi_flat *f,
                                   const dsi_pass_event *e, int n)
{
    int64_t worst = 0, made = 0, counted = s->ranks == 1 && !s->accumulates ? state->gradients : 0;
    for (int j = 0; j < n; j++) {
        int64_t held = s->accumulates ? 0 : in_bucket(s, f, &e[j], layout_size(o->dtype));
        worst = dsi_max(worst, dsi_max(e[j].before, e[j].peak - held) + made);
        if (counted) made += f->param[e[j].i].n * layout_size(o->dtype);
    }
    return dsi_max(worst - counted, 0);
}

dsi_estimate dsi_estimate_pass(const dsi_zero_opts *o, const dsi_estimate_sizes *s,
                               const dsi_flat *f, const dsi_pass_event *e, int n)
{
    Elements elements = {.owned = f->owned};
    int64_t largest = 0, bucket = 0;
    for (int i = 0; i < f->n; i++) {
        const dsi_flat_param *p = &f->param[i];
        elements.all += p->n;
        bucket = dsi_max(bucket, f->unit[p->unit].n);
        if (!f->unit[p->unit].solo) continue;
        elements.divided += p->n;
        largest = dsi_max(largest, p->n);
        elements.shard_size = dsi_max(elements.shard_size, f->unit[p->unit].shard_size);
    }
    dsi_estimate result = estimate_state(o, s, elements);
    result.passing = partitions(o, s) ? peak_with_buckets(o, s, f, e, n)
                                      : peak_with_gradients(&result, o, s, f, e, n);
    result.passing += copies_sent(o, s, elements.all, bucket);
    if (elements.divided) result.gathered = gathered(o, elements.divided, largest);
    estimate_total(&result);
    return result;
}
