/* device/cpu/optim/optim.c: one step of an optimizer over all parameters, in
 * one pass over memory.
 *
 * The rules are in optim.inc, for float and for double. 16-bit parameters,
 * gradients and low-precision copies are upcast, updated and rounded once, in
 * blocks that fit into the first cache; so memory is still read and written
 * once.
 *
 * A *span* is the memory of one parameter: p, its gradient g, its moments m, v,
 * vmax, and its low-precision copy or its rest. A *piece* is PIECE elements of
 * one span. All rules but LAMB are pointwise. LAMB needs |p| and |u| of a
 * parameter, so it makes two passes.
 *
 * Invariants: threads divide pieces, counted over all spans; LAMB adds the sums
 * of pieces in their order. So no result depends on the number of threads.
 * Denormals count as 0 during a pass.
 * SPDX-License-Identifier: MIT */
#include "device/cpu/cpu.h"
#include "device/cpu/simd/half.h"
#include "device/cpu/simd/vmath.h"
#include "device/cpu/table.h"
#include "device/spans.h"

#include <float.h>

#define PIECE 1024 /* elements */
/* Pieces of a thread, at least: 3 MB. Less is in the calling thread's own
 * cache, so other threads would be slower. */
#define GRAIN 256
#define BLOCK 512  /* elements of a 16-bit span at a time: p and g as floats, 4 KB */
#define STRIP 64   /* elements between two prefetches */
#define AHEAD 2048 /* bytes that are prefetched ahead */
/* From this number of elements on, low-precision copies are stored past the
 * caches, which would first read their lines, and drop them before the copies
 * are used. */
#define PAST_CACHES ((int64_t)1 << 24)

/* Prefetches the line `at` bytes behind p, which may be outside of its memory. */
#define PREFETCH(p, at) __builtin_prefetch((const void *)((uintptr_t)(p) + (at)))

/* The sums of the weights of moments that began at 0: 1 - beta^step. */
typedef struct AdamSum {
    int64_t step;
    double m, v;
} AdamSum;

/* pow() takes as long as a block of elements, so the sums of a step that most
 * parameters share are computed once. */
typedef struct AdamPass {
    const dsi_adam *c;
    AdamSum sum;
} AdamPass;

static AdamSum adam_sum(const dsi_adam *c, int64_t step)
{
    if (!c->bias_correction) return (AdamSum){step, 1, 1};
    return (AdamSum){step, 1 - pow(c->beta1, (double)step), 1 - pow(c->beta2, (double)step)};
}

#define COPYSIGN(x, s) _Generic((x), float : copysignf, double : copysign)(x, s)

#define T           float
#define NAMED(name) name##_f32
#include "optim.inc"
#define T           double
#define NAMED(name) name##_f64
#include "optim.inc"

typedef void Rule(const void *options, const dsi_span *x, int64_t begin, int64_t end);

typedef struct Pass {
    const void *options;
    int n;
    const dsi_span *x;
    Rule *f32, *f64;
    bool past_caches; /* where low-precision copies are stored */
} Pass;

static int64_t pieces(const dsi_span *x) { return (x->n + PIECE - 1) / PIECE; }

static bool goes_past_caches(int n, const dsi_span *x)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += x[i].low ? x[i].n : 0;
    return sum >= PAST_CACHES;
}

static int64_t all_pieces(int n, const dsi_span *x)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += pieces(&x[i]);
    return sum;
}

/* ---- 16 bits in blocks ------------------------------------------------------------------------------- */

typedef struct Block {
    float p[BLOCK], g[BLOCK];
} Block;

static bool needs_blocks(const dsi_span *x)
{
    return is_half(x->dtype) || is_half(x->g_dtype) || x->low;
}

/* A rule asks for what comes AHEAD of its p and g, which are in the block: here
 * for what comes ahead of where they are from. A tenth of Adam's time. */
static void prefetch_halves(const dsi_span *x, int64_t at, int64_t n)
{
    for (size_t line = 0; line < (size_t)n * sizeof *x->rest; line += 64) {
        PREFETCH((const uint16_t *)x->p + at, AHEAD + line);
        PREFETCH(x->rest + at, AHEAD + line);
        if (is_half(x->g_dtype)) PREFETCH((const uint16_t *)x->g + at, AHEAD + line);
    }
}

/* Elements at .. at + n - 1 of x as a float span: in place where they are
 * float, else converted into b. */
static dsi_span begin_block(const dsi_span *x, int64_t at, int64_t n, Block *b)
{
    dsi_span f = *x;
    f.dtype = f.g_dtype = DS_F32;
    f.n = n;
    f.p = b->p, f.g = b->g;
    if (x->rest) prefetch_halves(x, at, n);
    if (x->rest)
        halves_join((const uint16_t *)x->p + at, x->rest + at, b->p, n);
    else if (is_half(x->dtype))
        half_to_floats(x->dtype, (const uint16_t *)x->p + at, b->p, n);
    else
        f.p = (float *)x->p + at;
    if (is_half(x->g_dtype))
        half_to_floats(x->g_dtype, (const uint16_t *)x->g + at, b->g, n);
    else
        f.g = (const float *)x->g + at;
    if (x->m) f.m = (float *)x->m + at;
    if (x->v) f.v = (float *)x->v + at;
    if (x->vmax) f.vmax = (float *)x->vmax + at;
    return f;
}

/* Copies n elements; whole lines are stored past the caches. */
static void store_past_caches(const uint16_t *from, uint16_t *to, int64_t n)
{
#ifdef __SSE2__
    enum { LINE = 32 };
    int64_t first = (int64_t)(-(uintptr_t)to / sizeof *to % LINE), i = first < n ? first : n;
    memcpy(to, from, (size_t)i * sizeof *to);
    for (; i + LINE <= n; i += LINE)
        UNROLL for (int j = 0; j < LINE; j += 8)
            _mm_stream_si128((void *)(to + i + j), _mm_loadu_si128((const void *)(from + i + j)));
    memcpy(to + i, from + i, (size_t)(n - i) * sizeof *to);
#else
    memcpy(to, from, (size_t)n * sizeof *to);
#endif
}

/* Ends stores past the caches: other threads see them before what is stored
 * next. */
static void stores_end(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* Rounds an updated block to where it belongs: p, or its halves, and the
 * low-precision copy. */
static void end_block(const dsi_span *x, int64_t at, const dsi_span *f, bool past_caches)
{
    if (x->rest)
        halves_split(f->p, (uint16_t *)x->p + at, x->rest + at, f->n);
    else if (is_half(x->dtype))
        floats_to_half(x->dtype, f->p, (uint16_t *)x->p + at, f->n);
    if (!x->low) return;
    if (x->low_dtype == DS_BF16) floats_untie(f->p, f->n);
    uint16_t low[BLOCK], *to = (uint16_t *)x->low + at;
    floats_to_half(x->low_dtype, f->p, past_caches ? low : to, f->n);
    if (past_caches) store_past_caches(low, to, f->n);
}

/* ---- the pass ------------------------------------------------------------------------------------------ */

/* Elements begin .. end - 1 of one span, by the rule for its dtypes. */
static void apply(const Pass *pass, const dsi_span *x, int64_t begin, int64_t end)
{
    Block b;
    if (x->dtype == DS_F64)
        pass->f64(pass->options, x, begin, end);
    else if (!needs_blocks(x))
        pass->f32(pass->options, x, begin, end);
    else
        for (int64_t i = begin; i < end; i += BLOCK) {
            dsi_span f = begin_block(x, i, end - i < BLOCK ? end - i : BLOCK, &b);
            pass->f32(pass->options, &f, 0, f.n);
            end_block(x, i, &f, pass->past_caches);
        }
}

/* Pieces begin .. end - 1, counted over all spans. A moment without new
 * gradients decays to the smallest denormal and, rounded to nearest, stays
 * there, where arithmetic is slow: so denormals count as 0. */
static void run_pieces(void *arg, int64_t begin, int64_t end)
{
    const Pass *pass = arg;
    unsigned was = denormals_off();
    int64_t first = 0;
    for (int i = 0; i < pass->n && first < end; i++) {
        const dsi_span *x = &pass->x[i];
        int64_t count = pieces(x), from = begin > first ? begin - first : 0;
        int64_t to = end - first < count ? end - first : count;
        if (from < to) apply(pass, x, from * PIECE, to * PIECE < x->n ? to * PIECE : x->n);
        first += count;
    }
    if (pass->past_caches) stores_end();
    denormals_on(was);
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

typedef struct Lamb {
    const dsi_lamb *c;
    int n;
    const dsi_span *x;
    double *sums;  /* [pieces][2]: of p^2, of u^2 */
    double *rates; /* [n]: lr, corrected, times the trust ratio; NULL in the first half */
} Lamb;

/* Elements begin .. end - 1 of parameter i: one piece; `sums` in the first
 * half. */
static void lamb_elements(const Lamb *l, int i, const dsi_span *x, int64_t begin, int64_t end,
                          double *sums)
{
    bool f64 = x->dtype == DS_F64;
    if (sums)
        (f64 ? lamb_moments_f64 : lamb_moments_f32)(l->c, x, begin, end, sums);
    else
        (f64 ? lamb_apply_f64 : lamb_apply_f32)(l->c, x, begin, end, l->rates[i]);
}

static void lamb_piece(const Lamb *l, int i, int64_t begin, int64_t end, double *sums)
{
    const dsi_span *x = &l->x[i];
    Block b;
    if (!needs_blocks(x)) {
        lamb_elements(l, i, x, begin, end, sums);
        return;
    }
    for (int64_t at = begin; at < end; at += BLOCK) {
        dsi_span f = begin_block(x, at, end - at < BLOCK ? end - at : BLOCK, &b);
        lamb_elements(l, i, &f, 0, f.n, sums);
        if (!sums) end_block(x, at, &f, false);
    }
}

static void lamb_pieces(void *arg, int64_t begin, int64_t end)
{
    const Lamb *l = arg;
    int64_t first = 0;
    for (int i = 0; i < l->n && first < end; i++) {
        int64_t count = pieces(&l->x[i]);
        for (int64_t q = begin > first ? begin : first; q < end && q < first + count; q++) {
            int64_t at = (q - first) * PIECE;
            int64_t to = at + PIECE < l->x[i].n ? at + PIECE : l->x[i].n;
            lamb_piece(l, i, at, to, l->rates ? NULL : l->sums + 2 * q);
        }
        first += count;
    }
}

/* |p| / |u| within its bounds; 1 where there is none. */
static double trust(const dsi_lamb *c, double p2, double u2)
{
    if (!(p2 > 0) || !(u2 > 0)) return 1;
    double ratio = sqrt(p2) / sqrt(u2);
    return ratio > c->max_coeff ? c->max_coeff : ratio < c->min_coeff ? c->min_coeff : ratio;
}

/* The bias correction of both moments, as in DeepSpeed's kernel: outside of u,
 * and of eps. */
static double lamb_rate(const dsi_lamb *c, int64_t step)
{
    if (!c->bias_correction) return c->lr;
    double t = (double)step;
    return c->lr * sqrt(1 - pow(c->beta2, t)) / (1 - pow(c->beta1, t));
}

/* LAMB: the first pass updates the moments and sums p^2 and u^2 of each piece;
 * then the trust ratio of each parameter is computed; the second pass applies
 * it. */
static ds_status optim_lamb(dsi_stream *s, const dsi_lamb *c, int n, const dsi_span *x)
{
    int64_t count = all_pieces(n, x);
    double *memory = dsi_scratch(s, (size_t)(2 * count + n) * sizeof *memory);
    if (!memory) return DS_ENOMEM;

    Lamb l = {c, n, x, memory, NULL};
    for (int64_t i = 0; i < 2 * count; i++) memory[i] = 0;
    dsi_parallel(count, GRAIN, lamb_pieces, &l);

    double *rates = memory + 2 * count;
    const double *sums = memory;
    for (int i = 0; i < n; i++) {
        double p2 = 0, u2 = 0;
        for (int64_t q = 0; q < pieces(&x[i]); q++, sums += 2) p2 += sums[0], u2 += sums[1];
        rates[i] = lamb_rate(c, x[i].step) * trust(c, p2, u2);
    }
    l.rates = rates;
    dsi_parallel(count, GRAIN, lamb_pieces, &l);
    dsi_scratch_release(s, memory);
    return DS_OK;
}

/* ---- the entry ----------------------------------------------------------------------------------------- */

/* Any rule but LAMB, which needs two passes. */
static ds_status optim_pass(const dsi_optimizer *c, int n, const dsi_span *x)
{
    static const struct {
        Rule *f32, *f64;
    } rules[DSI_N_RULES] = {
        [DSI_SGD] = {sgd_f32, sgd_f64},
        [DSI_ADAM] = {adam_f32, adam_f64},
        [DSI_ADAGRAD] = {adagrad_f32, adagrad_f64},
        [DSI_RMSPROP] = {rmsprop_f32, rmsprop_f64},
        [DSI_ADADELTA] = {adadelta_f32, adadelta_f64},
        [DSI_LION] = {lion_f32, lion_f64},
    };
    AdamPass adam;
    Pass pass = {&c->sgd, n, x, rules[c->rule].f32, rules[c->rule].f64, goes_past_caches(n, x)};
    if (c->rule == DSI_ADAM) {
        adam = (AdamPass){&c->adam, adam_sum(&c->adam, x[0].step)};
        pass.options = &adam;
    }
    dsi_parallel(all_pieces(n, x), GRAIN, run_pieces, &pass);
    return DS_OK;
}

static ds_status optim_run(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x)
{
    return c->rule == DSI_LAMB ? optim_lamb(s, &c->lamb, n, x) : optim_pass(c, n, x);
}

static void set_momentum(dsi_optimizer *c, double momentum)
{
    switch (c->rule) {
    case DSI_SGD:
        c->sgd.momentum = momentum;
        break;
    case DSI_RMSPROP:
        c->rmsprop.momentum = momentum;
        break;
    case DSI_ADAM:
        c->adam.beta1 = momentum;
        break;
    case DSI_LION:
        c->lion.beta1 = momentum;
        break;
    case DSI_LAMB:
        c->lamb.beta1 = momentum;
        break;
    default:
        break; /* the others have none */
    }
}

/* Runs a recorded step: values in c->scalars replace those that are given by
 * value. */
static ds_status optim_run_recorded(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x)
{
    const dsi_step_scalars *now = c->scalars;
    dsi_optimizer options = *c;
    dsi_span *spans = dsi_scratch(s, (size_t)n * sizeof *spans);
    if (!spans) return DS_ENOMEM;
    if (now) options.sgd.lr = now->lr; /* the first field of every rule's options */
    if (now) set_momentum(&options, now->momentum);
    for (int i = 0; i < n; i++) {
        spans[i] = x[i];
        if (c->g_factor) spans[i].g_scale *= *c->g_factor;
        if (now) spans[i].step += now->steps;
    }
    ds_status status = optim_run(s, &options, n, spans);
    dsi_scratch_release(s, spans);
    return status;
}

ds_status KERNEL(optimizer)(dsi_stream *s, const dsi_optimizer *c, int n, const dsi_span *x)
{
    ds_status status = dsi_spans_check("cpu", c->rule, n, x);
    if (status != DS_OK || n == 0 || s->device->fault.op || (c->skip && *c->skip != 0))
        return status;
    return c->scalars || c->g_factor ? optim_run_recorded(s, c, n, x) : optim_run(s, c, n, x);
}

static double scalar_value(const dsi_view *v)
{
    if (!v->p) return NAN;
    switch (v->dtype) {
    case DS_F32:
        return *(const float *)v->p;
    case DS_F16:
        return dsi_f16_to_f32(*(const uint16_t *)v->p);
    case DS_BF16:
        return dsi_bf16_to_f32(*(const uint16_t *)v->p);
    default:
        return *(const double *)v->p;
    }
}

ds_status KERNEL(step_result)(dsi_stream *s, const dsi_step_limits *c, dsi_view unscale,
                              dsi_view loss, dsi_view norm, dsi_view result)
{
    if (loss.p && loss.dtype > DS_BF16) return no_dtype("step_result", loss.dtype);
    dsi_step_result r = {.g_factor = *(const double *)unscale.p, .loss = scalar_value(&loss)};
    r.norm = scalar_value(&norm) * r.g_factor;
    double clip = c->max_norm / (r.norm + 1e-6);
    if (c->max_norm > 0 && !(clip >= 1)) r.g_factor *= clip;
    r.fault = (double)s->device->fault.op;
    r.skip = r.fault != 0 || (c->finite_loss && !isfinite(r.loss)) ||
             (c->finite_norm && !isfinite(r.norm));
    memcpy(result.p, &r, sizeof r);
    return DS_OK;
}

/* torch's _amp_update_scale_, whose scale may become 0. */
ds_status KERNEL(loss_scale)(dsi_stream *s, const dsi_scale_rule *c, dsi_view x)
{
    dsi_loss_scale *l = x.p;
    bool skipped = l->skips != 0, grows = !skipped && l->good + 1 >= (double)c->interval;
    l->skips = 0;
    if (s->device->fault.op) return DS_OK;
    double next = (float)(l->scale * (skipped ? c->backoff : grows ? c->growth : 1));
    if (next > 0 && next <= (double)FLT_MAX) l->scale = next;
    l->inverse = (float)(1 / l->scale);
    l->good = skipped || grows ? 0 : l->good + 1;
    return DS_OK;
}
