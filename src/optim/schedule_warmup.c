/* optim/schedule_warmup.c: DeepSpeed's WarmupLR, WarmupDecayLR, WarmupCosineLR.
 *
 * With it the step, 0 after the first update, and N = warmup_num_steps (1
 * counts as 2):
 *   g(it) = ln(it + 1) / ln(N) (log), or it / N (linear), for it < N
 *   WarmupLR        min + (max - min) g, then max
 *   WarmupDecayLR   min + (max - min) g, then min + (max - min) max(0, (T - it) / max(1, T - N))
 *   WarmupCosineLR  base (m + (1 - m) g), m = warmup_min_ratio, then, c = cos_min_ratio,
 *                   base (c + (1 - c) (1 + cos(pi min(1, (it - N + 1) / max(1, T - N)))) / 2)
 * Before the first update the rate is min (WarmupCosineLR: 0), and g(0) = 0:
 * two updates have it. The operations come in DeepSpeed's order, for the last
 * bit.
 * SPDX-License-Identifier: MIT */
#include "schedule.h"

#include "base/log.h"

#include <math.h>

typedef struct Warmup {
    double *min, *max;  /* [groups]: rates; WarmupCosineLR has base instead */
    double *base;       /* [groups] */
    double min_ratio;   /* of base */
    double end_ratio;   /* of base, at the end of the cosine */
    double total;       /* steps */
    int64_t steps;      /* of the warm-up */
    int64_t last;       /* last_batch_iteration */
    double inverse_log; /* 1 / ln(steps) */
    int linear;         /* index into warmup_types */
} Warmup;

static const char *const warmup_types[] = {"log", "linear", NULL};

static void warmup_free(void *self)
{
    Warmup *w = self;
    dsi_free(w->min);
    dsi_free(w->max);
    dsi_free(w->base);
}

/* 0 to 1 during the warm-up. it: 0 .. steps - 1. inverse_log is computed once,
 * as DeepSpeed does, and a product with it differs from a quotient in the last
 * bit. */
static double warmup_progress(const Warmup *w, int64_t it)
{
    if (w->linear) return (double)it / (double)w->steps;
    return w->inverse_log * log((double)(it + 1));
}

/* it -1 is before the first update: the rate is min, for any gamma. */
static void warmup_set_lr(const Warmup *w, ds_optim *o, int64_t it, double gamma)
{
    for (int g = 0; g < ds_optim_groups(o); g++)
        ds_optim_set_group_lr(o, g,
                              it < 0 ? w->min[g] : w->min[g] + (w->max[g] - w->min[g]) * gamma);
}

static void warmup_apply(void *self, ds_optim *o, int64_t it)
{
    const Warmup *w = self;
    warmup_set_lr(w, o, it, it < w->steps ? warmup_progress(w, it) : 1);
}

/* The rate falls linearly from max at step `steps` to min at step `total`. */
static void decay_apply(void *self, ds_optim *o, int64_t it)
{
    const Warmup *w = self;
    double left = (w->total - (double)it) / fmax(1, w->total - (double)w->steps);
    warmup_set_lr(w, o, it, it < w->steps ? warmup_progress(w, it) : fmax(0, left));
}

static double cosine_ratio(const Warmup *w, int64_t it)
{
    if (it < 0) return 0;
    if (it < w->steps) return w->min_ratio + warmup_progress(w, it) * (1 - w->min_ratio);
    double done = (double)(it - w->steps + 1) / fmax(1, w->total - (double)w->steps);
    double ratio = (1 + cos(DSI_PI * fmin(1, done))) / 2;
    return fmax(0, w->end_ratio + (1 - w->end_ratio) * ratio);
}

static void cosine_apply(void *self, ds_optim *o, int64_t it)
{
    const Warmup *w = self;
    double ratio = cosine_ratio(w, it);
    for (int g = 0; g < ds_optim_groups(o); g++) ds_optim_set_group_lr(o, g, w->base[g] * ratio);
}

/* ---- entries ----------------------------------------------------------------------------------------- */

static int64_t warmup_begin(void *self, const ds_optim *o)
{
    Warmup *w = self;
    (void)o;
    if (w->steps < 2) w->steps = 2;
    w->inverse_log = 1 / log((double)w->steps);
    return w->last;
}

/* A total below the warm-up is allowed, as in DeepSpeed: the rate then falls at
 * once after it. */
static int64_t decay_begin(void *self, const ds_optim *o)
{
    Warmup *w = self;
    int64_t last = warmup_begin(self, o);
    bool warns = dsi_log_on(DSI_REQUESTED); /* on rank 0 alone */
    if (warns && w->total < (double)w->steps)
        dsi_log(DSI_WARNING, "total_num_steps %g is less than warmup_num_steps %lld", w->total,
                (long long)w->steps);
    return last;
}

static int64_t cosine_begin(void *self, const ds_optim *o)
{
    ((Warmup *)self)->base = dsi_schedule_base_lr(o);
    return decay_begin(self, o);
}

#define PARAM(key, k, r, member, ...) DSI_PARAM(key, k, r, Warmup, member, __VA_ARGS__)
#define MIN_LR \
    PARAM("warmup_min_lr", GROUPS, NOT_NEGATIVE, min, .value = {0}, \
          .help = "first rate of the warm-up")
#define STEPS \
    PARAM("warmup_num_steps", STRICT_INTEGER, POSITIVE, steps, .value = {1000}, \
          .help = "N, updates of the warm-up; 1 counts as 2")
#define TYPE \
    PARAM("warmup_type", CHOICE, ANY, linear, .choices = warmup_types, \
          .help = "how the rate rises: log or linear")
#define LAST \
    PARAM("last_batch_iteration", STRICT_INTEGER, FROM_MINUS_1, last, .value = {-1}, \
          .help = "last update done")
#define TOTAL \
    PARAM("total_num_steps", NUMBER, NOT_NEGATIVE, total, .required = true, \
          .help = "T, all updates")

static const dsi_param warmup_params[] = {
    MIN_LR,
    PARAM("warmup_max_lr", GROUPS, NOT_NEGATIVE, max, .otherwise = "the optimizer's rates",
          .nullable = true, .help = "last rate of the warm-up"),
    STEPS,
    TYPE,
    LAST,
    {0}};
static const dsi_param decay_params[] = {MIN_LR,
                                         PARAM("warmup_max_lr", GROUPS, NOT_NEGATIVE, max,
                                               .value = {0.001},
                                               .help = "last rate of the warm-up"),
                                         STEPS,
                                         TYPE,
                                         LAST,
                                         TOTAL,
                                         {0}};
static const dsi_param cosine_params[] = {TOTAL,
                                          PARAM("warmup_min_ratio", NUMBER, ANY, min_ratio,
                                                .value = {0}, .help = "m, of the rate, at first"),
                                          STEPS,
                                          PARAM("cos_min_ratio", NUMBER, ANY, end_ratio,
                                                .value = {1e-4},
                                                .help = "c, of the rate, at the end"),
                                          TYPE,
                                          LAST,
                                          {0}};

const dsi_schedule_entry dsi_schedule_warmup_lr = {
    .type = {"WarmupLR", sizeof(Warmup), warmup_apply, warmup_free},
    .params = warmup_params,
    .formula = "min + (max - min) g while it < N, then max; g = ln(it + 1) / ln(N) for `log`, it / "
               "N for `linear`",
    .begin = warmup_begin};
const dsi_schedule_entry dsi_schedule_warmup_decay_lr = {
    .type = {"WarmupDecayLR", sizeof(Warmup), decay_apply, warmup_free},
    .params = decay_params,
    .formula = "WarmupLR's while it < N, then min + (max - min) max(0, (T - it) / max(1, T - N))",
    .begin = decay_begin};
const dsi_schedule_entry dsi_schedule_warmup_cosine_lr = {
    .type = {"WarmupCosineLR", sizeof(Warmup), cosine_apply, warmup_free},
    .params = cosine_params,
    .formula = "b (m + (1 - m) g) while it < N, then b (c + (1 - c) (1 + cos(pi min(1, (it - N + "
               "1) / max(1, T - N)))) / 2)",
    .begin = cosine_begin};
