/* optim/schedule_warmup.c: DeepSpeed's WarmupLR, WarmupDecayLR, WarmupCosineLR.
 *
 * With it the step, 0 after the first update, and N = warmup_num_steps (1 counts as 2):
 *   g(it) = ln(it + 1) / ln(N) (log), or it / N (linear), for it < N
 *   WarmupLR        min + (max - min) g, then max
 *   WarmupDecayLR   min + (max - min) g, then min + (max - min) max(0, (T - it) / max(1, T - N))
 *   WarmupCosineLR  base (m + (1 - m) g), m = warmup_min_ratio, then, c = cos_min_ratio,
 *                   base (c + (1 - c) (1 + cos(pi min(1, (it - N + 1) / max(1, T - N)))) / 2)
 * Before the first update the rate is min (WarmupCosineLR: 0), and g(0) = 0: two updates have it. The
 * operations come in DeepSpeed's order, for the last bit.
 * SPDX-License-Identifier: MIT */
#include "schedule.h"

#include "base/log.h"

#include <math.h>

#define PI 3.14159265358979323846

typedef struct Warmup {
    double *min, *max;  /* [groups]: rates; WarmupCosineLR has base instead */
    double *base;       /* [groups] */
    double min_ratio;   /* of base */
    double end_ratio;   /* of base, at the end of the cosine */
    double total;       /* steps */
    int64_t steps;      /* of the warm-up */
    double inverse_log; /* 1 / ln(steps) */
    int linear;
} Warmup;

static const char *const warmup_types[] = {"log", "linear", NULL};

static void warmup_free(void *self)
{
    Warmup *w = self;
    dsi_free(w->min);
    dsi_free(w->max);
    dsi_free(w->base);
}

/* 0 to 1 during the warm-up. */
static double warmth(const Warmup *w, int64_t it)
{
    if (w->linear) return (double)it / (double)w->steps;
    return w->inverse_log * log((double)(it + 1));
}

static void set_between(const Warmup *w, ds_optim *o, int64_t it, double gamma)
{
    for (int g = 0; g < ds_optim_groups(o); g++)
        ds_optim_set_group_lr(o, g,
                              it < 0 ? w->min[g] : w->min[g] + (w->max[g] - w->min[g]) * gamma);
}

static void warmup_apply(void *self, ds_optim *o, int64_t it)
{
    const Warmup *w = self;
    set_between(w, o, it, it < w->steps ? warmth(w, it) : 1);
}

static void decay_apply(void *self, ds_optim *o, int64_t it)
{
    const Warmup *w = self;
    double left = (w->total - (double)it) / fmax(1, w->total - (double)w->steps);
    set_between(w, o, it, it < w->steps ? warmth(w, it) : fmax(0, left));
}

static double cosine_ratio(const Warmup *w, int64_t it)
{
    if (it < 0) return 0;
    if (it < w->steps) return w->min_ratio + warmth(w, it) * (1 - w->min_ratio);
    double done = (double)(it - w->steps + 1) / fmax(1, w->total - (double)w->steps);
    double ratio = (1 + cos(PI * fmin(1, done))) / 2;
    return fmax(0, w->end_ratio + (1 - w->end_ratio) * ratio);
}

static void cosine_apply(void *self, ds_optim *o, int64_t it)
{
    const Warmup *w = self;
    double ratio = cosine_ratio(w, it);
    for (int g = 0; g < ds_optim_groups(o); g++) ds_optim_set_group_lr(o, g, w->base[g] * ratio);
}

/* ---- constructors ------------------------------------------------------------------------------------ */

static ds_schedule *begin(ds_schedule *s, Warmup *w, int64_t last)
{
    if (w->steps < 2) w->steps = 2;
    w->inverse_log = 1 / log((double)w->steps);
    bool warns = dsi_log_on(DSI_REQUESTED); /* rank 0: the others would say the same */
    if (warns && w->total < (double)w->steps)
        dsi_log(DSI_WARNING, "total_num_steps %g is less than warmup_num_steps %lld", w->total,
                (long long)w->steps);
    return dsi_schedule_begin(s, last);
}

static ds_schedule *linear_make(ds_optim *o, const char *name, const char *params_json,
                                const ds_schedule_type *type, bool decays)
{
    int64_t last = -1;
    ds_schedule *s = ds_schedule_new(o, type);
    Warmup *w = ds_schedule_self(s);
    *w = (Warmup){.min = dsi_schedule_rates(o, 0),
                  .max = decays ? dsi_schedule_rates(o, 0.001) : dsi_schedule_base_rates(o),
                  .total = INFINITY,
                  .steps = 1000};
    const dsi_param table[] = {
        {"warmup_min_lr", DSI_PARAM_RATES, w->min, .range = DSI_NOT_NEGATIVE},
        {"warmup_max_lr", DSI_PARAM_RATES, w->max, .range = DSI_NOT_NEGATIVE, .nullable = !decays},
        {"warmup_num_steps", DSI_PARAM_INTEGER, &w->steps, .range = DSI_POSITIVE},
        {"warmup_type", DSI_PARAM_WORD, &w->linear, .words = warmup_types},
        {"last_batch_iteration", DSI_PARAM_INTEGER, &last, .range = DSI_FROM_MINUS_1},
        {"total_num_steps", DSI_PARAM_NUMBER, &w->total, .range = DSI_NOT_NEGATIVE,
         .required = true},
    };
    s = dsi_schedule_read(s, o, name, params_json, table, decays ? 6 : 5);
    return s ? begin(s, w, last) : NULL;
}

static ds_schedule *warmup_make(ds_optim *o, const char *name, const char *params_json)
{
    static const ds_schedule_type type = {"WarmupLR", sizeof(Warmup), warmup_apply, warmup_free};
    return linear_make(o, name, params_json, &type, false);
}

static ds_schedule *decay_make(ds_optim *o, const char *name, const char *params_json)
{
    static const ds_schedule_type type = {"WarmupDecayLR", sizeof(Warmup), decay_apply,
                                          warmup_free};
    return linear_make(o, name, params_json, &type, true);
}

static ds_schedule *cosine_make(ds_optim *o, const char *name, const char *params_json)
{
    static const ds_schedule_type type = {"WarmupCosineLR", sizeof(Warmup), cosine_apply,
                                          warmup_free};
    int64_t last = -1;
    ds_schedule *s = ds_schedule_new(o, &type);
    Warmup *w = ds_schedule_self(s);
    *w = (Warmup){.base = dsi_schedule_base_rates(o), .end_ratio = 1e-4, .steps = 1000};
    const dsi_param table[] = {
        {"total_num_steps", DSI_PARAM_NUMBER, &w->total, .range = DSI_NOT_NEGATIVE,
         .required = true},
        {"warmup_min_ratio", DSI_PARAM_NUMBER, &w->min_ratio, .range = DSI_ANY},
        {"warmup_num_steps", DSI_PARAM_INTEGER, &w->steps, .range = DSI_POSITIVE},
        {"cos_min_ratio", DSI_PARAM_NUMBER, &w->end_ratio, .range = DSI_ANY},
        {"warmup_type", DSI_PARAM_WORD, &w->linear, .words = warmup_types},
        {"last_batch_iteration", DSI_PARAM_INTEGER, &last, .range = DSI_FROM_MINUS_1},
    };
    s = dsi_schedule_read(s, o, name, params_json, table, 6);
    return s ? begin(s, w, last) : NULL;
}

const dsi_schedule_entry dsi_schedules_warmup[] = {
    {"WarmupLR", warmup_make}, {"WarmupDecayLR", decay_make}, {"WarmupCosineLR", cosine_make}, {0}};
