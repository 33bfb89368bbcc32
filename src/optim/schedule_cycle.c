/* optim/schedule_cycle.c: DeepSpeed's LRRangeTest and OneCycle (Smith, arXiv
 * 1803.09820).
 *
 * With it the step, 0 after the first update, n = it + 1:
 *   LRRangeTest  min (1 + rate x), x = n / step_size, rounded down for a staircase
 *   OneCycle     first + second = S steps, then decay. In the cycle, s rises from 0 to 1 over the first
 *                part and falls back over the second, in stairs if asked:
 *                    lr = min + (max - min) s, beta1 = max_mom - (max_mom - min_mom) s
 *                then, k = it - S + 1:
 *                    lr = min / (1 + decay_lr_rate k / decay_step_size),
 *                    beta1 = max_mom (1 + decay_mom_rate k / decay_step_size), which may pass 1
 * Before the first update OneCycle sets min and, against its own direction,
 * min_mom: beta1 then jumps to nearly max_mom. beta2 becomes 0.99. Operations
 * come in DeepSpeed's order, for the last bit.
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
    int64_t last; /* last_batch_iteration */
} Range;

/* The rate has no upper end: the run that makes the test ends it. */
static void range_apply(void *self, ds_optim *o, int64_t it)
{
    const Range *r = self;
    double x = (double)(it + 1) / (double)r->step_size;
    double more = 1 + r->rate * (r->staircase ? floor(x) : x);
    for (int g = 0; g < ds_optim_groups(o); g++) ds_optim_set_group_lr(o, g, r->min[g] * more);
}

static void range_free(void *self) { dsi_free(((Range *)self)->min); }

/* -> the last update that was done, -1: none. */
static int64_t range_begin(void *self, const ds_optim *o)
{
    (void)o;
    return ((const Range *)self)->last;
}

#define LAST(type) \
    DSI_PARAM("last_batch_iteration", STRICT_INTEGER, FROM_MINUS_1, type, last, .value = {-1}, \
              .help = "last update done")

static const dsi_param range_params[] = {
    DSI_PARAM("lr_range_test_min_lr", GROUPS, NOT_NEGATIVE, Range, min, .value = {1e-3},
              .help = "first rate of the range test"),
    DSI_PARAM("lr_range_test_step_size", STRICT_INTEGER, POSITIVE, Range, step_size,
              .value = {2000}, .help = "updates of a step"),
    DSI_PARAM("lr_range_test_step_rate", NUMBER, ANY, Range, rate, .value = {1},
              .help = "growth of a step, in first rates"),
    DSI_PARAM("lr_range_test_staircase", BOOL, ANY, Range, staircase, .value = {0},
              .help = "rise once a step, not at each update"),
    LAST(Range),
    {0}};

const dsi_schedule_entry dsi_schedule_lr_range_test = {
    .type = {"LRRangeTest", sizeof(Range), range_apply, range_free},
    .params = range_params,
    .formula = "min (1 + rate (it + 1) / size), the quotient rounded down for a staircase",
    .begin = range_begin};

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
    int64_t last;  /* last_batch_iteration */
} Cycle;

/* Which part step n of the cycle is in, and how high: 0 to 1. */
static double cycle_height(const Cycle *c, double n)
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

/* Before the first step rates and momentum are at their minimum; in the cycle
 * they move against each other; after it both decay with the number of decay
 * steps. */
static void cycle_apply(void *self, ds_optim *o, int64_t it)
{
    const Cycle *c = self;
    double total = c->first + c->second, after = (double)it - total + 1;
    bool in_cycle = (double)it < total;
    double up = in_cycle ? cycle_height(c, (double)(it + 1)) : 0;
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
        if (c->momentum) ds_optim_set_group_betas(o, g, (double[]){mom, BETA2});
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

#define AS_FIRST INT64_MIN /* of the second stair count */

/* Parameters that were left out follow from the first half of the cycle.
 * Without betas there is no momentum to cycle: a warning, as in DeepSpeed. Of
 * Muon it cycles neither the momentum nor the betas. */
static int64_t cycle_begin(void *self, const ds_optim *o)
{
    Cycle *c = self;
    double betas[2], own;
    if (isnan(c->second)) c->second = c->first;
    if (c->stairs[1] == AS_FIRST) c->stairs[1] = c->stairs[0];
    if (c->momentum &&
        (!ds_optim_group_betas(o, 0, betas) || ds_optim_group_momentum(o, 0, &own))) {
        if (dsi_log_on(DSI_REQUESTED)) /* on rank 0 alone */
            dsi_log(DSI_WARNING, "cycle_momentum is off: optimizer %s has no betas for it",
                    ds_optim_name(o));
        c->momentum = false;
    }
    return c->last;
}

#define PARAM(key, k, r, member, ...) DSI_PARAM(key, k, r, Cycle, member, __VA_ARGS__)
static const dsi_param cycle_params[] = {
    PARAM("cycle_min_lr", GROUPS, NOT_NEGATIVE, min, .required = true,
          .help = "lowest rate of the cycle"),
    PARAM("cycle_max_lr", GROUPS, NOT_NEGATIVE, max, .required = true, .help = "highest rate"),
    PARAM("decay_lr_rate", NUMBER, NOT_NEGATIVE, decay_lr, .value = {0},
          .help = "decay of the rate"),
    PARAM("cycle_first_step_size", NUMBER, POSITIVE, first, .value = {2000}, .help = "updates up"),
    PARAM("cycle_second_step_size", NUMBER, NOT_NEGATIVE, second, .value = {NAN},
          .help = "updates down", .otherwise = "as up", .nullable = true),
    PARAM("cycle_first_stair_count", INTEGER, ANY, stairs[0], .value = {0},
          .help = "equal stairs up, in place of a slope; 0: a slope"),
    PARAM("cycle_second_stair_count", INTEGER, ANY, stairs[1], .value = {(double)AS_FIRST},
          .help = "stairs down", .otherwise = "as up", .nullable = true),
    PARAM("decay_step_size", NUMBER, NOT_NEGATIVE, decay_steps, .value = {0},
          .help = "updates of a decay after the cycle; 0: no decay"),
    PARAM("cycle_momentum", BOOL, ANY, momentum, .value = {true}, .help = "cycle beta1 too"),
    PARAM("cycle_min_mom", GROUPS, BETA, min_mom, .value = {0.8}, .help = "lowest beta1"),
    PARAM("cycle_max_mom", GROUPS, BETA, max_mom, .value = {0.9}, .help = "highest beta1"),
    PARAM("decay_mom_rate", NUMBER, ANY, decay_mom, .value = {0},
          .help = "growth of beta1 after the cycle"),
    LAST(Cycle),
    {0}};

const dsi_schedule_entry dsi_schedule_one_cycle = {
    .type = {"OneCycle", sizeof(Cycle), cycle_apply, cycle_free},
    .params = cycle_params,
    .formula = "min + (max - min) s in the cycle, s from 0 to 1 and back; then min / (1 + "
               "decay_lr_rate k), k = (it - S + 1) / decay_step_size",
    .begin = cycle_begin};
