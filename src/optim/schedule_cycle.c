/* optim/schedule_cycle.c: DeepSpeed's LRRangeTest and OneCycle (Smith, arXiv 1803.09820).
 *
 * With it the step, 0 after the first update, n = it + 1:
 *   LRRangeTest  min (1 + rate x), x = n / step_size, rounded down for a staircase
 *   OneCycle     first + second = S steps, then decay. In the cycle, s rises from 0 to 1 over the first
 *                part and falls back over the second, in stairs if asked:
 *                    lr = min + (max - min) s, beta1 = max_mom - (max_mom - min_mom) s
 *                then, k = it - S + 1:
 *                    lr = min / (1 + decay_lr_rate k / decay_step_size),
 *                    beta1 = max_mom (1 + decay_mom_rate k / decay_step_size), which may pass 1
 * Before the first update OneCycle sets min and, against its own direction, min_mom: beta1 then jumps
 * to nearly max_mom. beta2 becomes 0.99. Operations come in DeepSpeed's order, for the last bit.
 * SPDX-License-Identifier: MIT */
#include "schedule.h"

#include "base/log.h"

#include <math.h>

/* ---- LRRangeTest ------------------------------------------------------------------------------------- */

typedef struct Range {
    double *min; /* [groups] */
    int64_t step_size;
    double rate;
    bool staircase;
} Range;

static void range_apply(void *self, ds_optim *o, int64_t it)
{
    const Range *r = self;
    double x = (double)(it + 1) / (double)r->step_size;
    double more = 1 + r->rate * (r->staircase ? floor(x) : x);
    for (int g = 0; g < ds_optim_groups(o); g++) ds_optim_set_group_lr(o, g, r->min[g] * more);
}

static void range_free(void *self) { dsi_free(((Range *)self)->min); }

static ds_schedule *range_make(ds_optim *o, const char *name, const char *params_json)
{
    static const ds_schedule_type type = {"LRRangeTest", sizeof(Range), range_apply, range_free};
    int64_t last = -1;
    ds_schedule *s = ds_schedule_new(o, &type);
    Range *r = ds_schedule_self(s);
    *r = (Range){dsi_schedule_rates(o, 1e-3), 2000, 1, false};
    const dsi_param table[] = {
        {"lr_range_test_min_lr", DSI_PARAM_RATES, r->min, .range = DSI_NOT_NEGATIVE},
        {"lr_range_test_step_size", DSI_PARAM_INTEGER, &r->step_size, .range = DSI_POSITIVE},
        {"lr_range_test_step_rate", DSI_PARAM_NUMBER, &r->rate, .range = DSI_ANY},
        {"lr_range_test_staircase", DSI_PARAM_BOOL, &r->staircase, .range = DSI_ANY},
        {"last_batch_iteration", DSI_PARAM_INTEGER, &last, .range = DSI_FROM_MINUS_1},
    };
    s = dsi_schedule_read(s, o, name, params_json, table, 5);
    return s ? dsi_schedule_begin(s, last) : NULL;
}

/* ---- OneCycle ---------------------------------------------------------------------------------------- */

#define BETA2 0.99

typedef struct Cycle {
    double *min, *max;         /* [groups]: rates */
    double *min_mom, *max_mom; /* [groups]: beta1 */
    double first, second;      /* steps */
    int64_t stairs[2];         /* of the first and the second part; 0 or less: smooth */
    double decay_steps;        /* 0: no decay */
    double decay_lr, decay_mom;
    bool momentum; /* betas are cycled too */
} Cycle;

/* Which part step n of the cycle is in, and how high: 0 to 1. */
static double height(const Cycle *c, double n)
{
    double total = c->first + c->second, ratio = c->first / total;
    double x = 1. + n / total - floor(1 + n / total);
    bool rising = x <= ratio;
    double stairs = (double)c->stairs[!rising];
    if (stairs <= 0) return rising ? x / ratio : (x - 1) / (ratio - 1);
    double at = fmod(n, total); /* the step itself, so that rounding loses no stair */
    return floor(at <= c->first ? at * stairs / c->first : (total - at) * stairs / c->second) /
           stairs;
}

static void set_betas(const Cycle *c, ds_optim *o, int g, double beta1)
{
    if (c->momentum) ds_optim_set_group_betas(o, g, (double[]){beta1, BETA2});
}

static void cycle_apply(void *self, ds_optim *o, int64_t it)
{
    const Cycle *c = self;
    double total = c->first + c->second, after = (double)it - total + 1;
    bool in_cycle = (double)it < total;
    double up = in_cycle ? height(c, (double)(it + 1)) : 0;
    double decay = in_cycle || c->decay_steps == 0 ? 0 : after / c->decay_steps;
    for (int g = 0; g < ds_optim_groups(o); g++) {
        double lr = c->min[g], mom = c->max_mom[g];
        if (it < 0) {
            mom = c->min_mom[g];
        } else if (in_cycle) {
            lr += (c->max[g] - c->min[g]) * up;
            mom -= (c->max_mom[g] - c->min_mom[g]) * up;
        } else {
            lr /= 1 + c->decay_lr * decay;
            mom *= 1 + c->decay_mom * decay;
        }
        ds_optim_set_group_lr(o, g, lr);
        set_betas(c, o, g, mom);
    }
}

static void cycle_free(void *self)
{
    Cycle *c = self;
    dsi_free(c->min);
    dsi_free(c->max);
    dsi_free(c->min_mom);
    dsi_free(c->max_mom);
}

static ds_schedule *cycle_begin(ds_schedule *s, ds_optim *o, Cycle *c, int64_t last, double second,
                                int64_t second_stairs)
{
    double betas[2];
    c->second = isnan(second) ? c->first : second;
    c->stairs[1] = second_stairs == INT64_MIN ? c->stairs[0] : second_stairs;
    if (c->momentum && !ds_optim_group_betas(o, 0, betas)) {
        if (dsi_log_on(DSI_REQUESTED)) /* rank 0: the others would say the same */
            dsi_log(DSI_WARNING, "cycle_momentum is off: the optimizer has no betas");
        c->momentum = false;
    }
    return dsi_schedule_begin(s, last);
}

static ds_schedule *cycle_make(ds_optim *o, const char *name, const char *params_json)
{
    static const ds_schedule_type type = {"OneCycle", sizeof(Cycle), cycle_apply, cycle_free};
    double second = NAN;
    int64_t last = -1, second_stairs = INT64_MIN;
    ds_schedule *s = ds_schedule_new(o, &type);
    Cycle *c = ds_schedule_self(s);
    *c = (Cycle){.min = dsi_schedule_rates(o, 0),
                 .max = dsi_schedule_rates(o, 0),
                 .min_mom = dsi_schedule_rates(o, 0.8),
                 .max_mom = dsi_schedule_rates(o, 0.9),
                 .first = 2000,
                 .momentum = true};
    const dsi_param table[] = {
        {"cycle_min_lr", DSI_PARAM_RATES, c->min, .range = DSI_NOT_NEGATIVE, .required = true},
        {"cycle_max_lr", DSI_PARAM_RATES, c->max, .range = DSI_NOT_NEGATIVE, .required = true},
        {"decay_lr_rate", DSI_PARAM_NUMBER, &c->decay_lr, .range = DSI_NOT_NEGATIVE},
        {"cycle_first_step_size", DSI_PARAM_NUMBER, &c->first, .range = DSI_POSITIVE},
        {"cycle_second_step_size", DSI_PARAM_NUMBER, &second, .range = DSI_NOT_NEGATIVE,
         .nullable = true},
        {"cycle_first_stair_count", DSI_PARAM_WHOLE, &c->stairs[0], .range = DSI_ANY},
        {"cycle_second_stair_count", DSI_PARAM_WHOLE, &second_stairs, .range = DSI_ANY,
         .nullable = true},
        {"decay_step_size", DSI_PARAM_NUMBER, &c->decay_steps, .range = DSI_NOT_NEGATIVE},
        {"cycle_momentum", DSI_PARAM_BOOL, &c->momentum, .range = DSI_ANY},
        {"cycle_min_mom", DSI_PARAM_RATES, c->min_mom, .range = DSI_BETA},
        {"cycle_max_mom", DSI_PARAM_RATES, c->max_mom, .range = DSI_BETA},
        {"decay_mom_rate", DSI_PARAM_NUMBER, &c->decay_mom, .range = DSI_ANY},
        {"last_batch_iteration", DSI_PARAM_INTEGER, &last, .range = DSI_FROM_MINUS_1},
    };
    s = dsi_schedule_read(s, o, name, params_json, table, (int)(sizeof table / sizeof *table));
    return s ? cycle_begin(s, o, c, last, second, second_stairs) : NULL;
}

const dsi_schedule_entry dsi_schedules_cycle[] = {
    {"LRRangeTest", range_make}, {"OneCycle", cycle_make}, {0}};
