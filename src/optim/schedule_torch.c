/* optim/schedule_torch.c: the schedules of torch.optim.lr_scheduler that a configuration can name.
 *
 * PyTorch computes a rate from the one before; these do too, so that the last bits agree: to come to
 * epoch e, the rates of all epochs up to it are computed, from the last one that was asked for. An epoch
 * is an update here, as in DeepSpeed. b is the group's first rate:
 *   StepLR             b gamma^floor(e / step_size)
 *   MultiStepLR        b gamma^(number of milestones <= e)
 *   ExponentialLR      b gamma^e
 *   CosineAnnealingLR  eta_min + (b - eta_min) (1 + cos(pi e / T_max)) / 2
 *   ConstantLR         b factor for e < total_iters, then b
 *   LinearLR           b (start + (end - start) min(e, total_iters) / total_iters)
 *   PolynomialLR       b (1 - min(e, total_iters) / total_iters)^power
 * SPDX-License-Identifier: MIT */
#include "schedule.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

typedef struct Torch {
    /* The rate of epoch e from that of e - 1; of epoch 0 from the base rate. */
    double (*next)(const struct Torch *t, double base, double lr, int64_t e);
    int groups;
    double *base, *lr; /* [groups]: the first rates, and those of epoch `at` */
    int64_t at;        /* -1: no epoch yet */
    double gamma;
    int64_t step_size, total; /* epochs: total_iters, T_max */
    dsi_wholes milestones;
    double eta_min, factor, start, end, power;
} Torch;

static double step_next(const Torch *t, double base, double lr, int64_t e)
{
    (void)base;
    return e > 0 && e % t->step_size == 0 ? lr * t->gamma : lr;
}

static double multi_step_next(const Torch *t, double base, double lr, int64_t e)
{
    int here = 0;
    (void)base;
    for (int i = 0; i < t->milestones.n; i++) here += t->milestones.at[i] == e;
    return here ? lr * pow(t->gamma, here) : lr;
}

static double exponential_next(const Torch *t, double base, double lr, int64_t e)
{
    (void)base;
    return e > 0 ? lr * t->gamma : lr;
}

static double cosine_next(const Torch *t, double base, double lr, int64_t e)
{
    double T = (double)t->total;
    if (e == 0) return lr;
    if ((e - 1 - t->total) % (2 * t->total) == 0) /* from the lowest point there is no ratio */
        return lr + (base - t->eta_min) * (1 - cos(PI / T)) / 2;
    return (1 + cos(PI * (double)e / T)) / (1 + cos(PI * (double)(e - 1) / T)) * (lr - t->eta_min) +
           t->eta_min;
}

static double constant_next(const Torch *t, double base, double lr, int64_t e)
{
    (void)base;
    if (e == 0) return lr * t->factor;
    return e == t->total ? lr * (1 / t->factor) : lr;
}

static double linear_next(const Torch *t, double base, double lr, int64_t e)
{
    double rise = t->end - t->start;
    (void)base;
    if (e == 0) return lr * t->start;
    if (e > t->total) return lr;
    return lr * (1 + rise / ((double)t->total * t->start + (double)(e - 1) * rise));
}

static double polynomial_next(const Torch *t, double base, double lr, int64_t e)
{
    double total = (double)t->total;
    (void)base;
    if (e == 0 || e > t->total) return lr;
    return lr * pow((1 - (double)e / total) / (1 - (double)(e - 1) / total), t->power);
}

static void torch_apply(void *self, ds_optim *o, int64_t it)
{
    Torch *t = self;
    int64_t e = it + 1;
    if (e < t->at) t->at = -1;
    if (t->at == -1) memcpy(t->lr, t->base, (size_t)t->groups * sizeof *t->lr);
    for (; t->at < e; t->at++)
        for (int g = 0; g < t->groups; g++) t->lr[g] = t->next(t, t->base[g], t->lr[g], t->at + 1);
    for (int g = 0; g < t->groups; g++) ds_optim_set_group_lr(o, g, t->lr[g]);
}

static void torch_free(void *self)
{
    Torch *t = self;
    dsi_free(t->base);
    dsi_free(t->lr);
    dsi_free(t->milestones.at);
}

/* ---- by name ----------------------------------------------------------------------------------------- */

#define PARAMS 3 /* at most, of one schedule */

/* Where a parameter lies in Torch. */
typedef struct Row {
    dsi_param param;
    size_t offset;
} Row;

typedef struct Kind {
    ds_schedule_type type;
    double (*next)(const Torch *t, double base, double lr, int64_t e);
    int n;
    Row rows[PARAMS];
} Kind;

#define ROW(key, k, field, r, needed) \
    { \
        {.name = key, .kind = DSI_PARAM_##k, .range = r, .required = needed}, \
            offsetof(Torch, field) \
    }
#define TYPE(name) \
    { \
        name, sizeof(Torch), torch_apply, torch_free \
    }

static const Kind kinds[] = {
    {TYPE("StepLR"),
     step_next,
     2,
     {ROW("step_size", WHOLE, step_size, DSI_POSITIVE, true),
      ROW("gamma", NUMBER, gamma, DSI_NOT_NEGATIVE, false)}},
    {TYPE("MultiStepLR"),
     multi_step_next,
     2,
     {ROW("milestones", WHOLES, milestones, DSI_NOT_NEGATIVE, true),
      ROW("gamma", NUMBER, gamma, DSI_NOT_NEGATIVE, false)}},
    {TYPE("ExponentialLR"),
     exponential_next,
     1,
     {ROW("gamma", NUMBER, gamma, DSI_NOT_NEGATIVE, true)}},
    {TYPE("CosineAnnealingLR"),
     cosine_next,
     2,
     {ROW("T_max", WHOLE, total, DSI_POSITIVE, true),
      ROW("eta_min", NUMBER, eta_min, DSI_NOT_NEGATIVE, false)}},
    {TYPE("ConstantLR"),
     constant_next,
     2,
     {ROW("factor", NUMBER, factor, DSI_FACTOR, false),
      ROW("total_iters", WHOLE, total, DSI_NOT_NEGATIVE, false)}},
    {TYPE("LinearLR"),
     linear_next,
     3,
     {ROW("start_factor", NUMBER, start, DSI_FACTOR, false),
      ROW("end_factor", NUMBER, end, DSI_UNIT, false),
      ROW("total_iters", WHOLE, total, DSI_NOT_NEGATIVE, false)}},
    {TYPE("PolynomialLR"),
     polynomial_next,
     2,
     {ROW("total_iters", WHOLE, total, DSI_NOT_NEGATIVE, false),
      ROW("power", NUMBER, power, DSI_NOT_NEGATIVE, false)}},
};

static ds_schedule *make(ds_optim *o, const char *name, const char *params_json)
{
    const Kind *kind = kinds;
    while (strcmp(kind->type.name, name) != 0) kind++;
    ds_schedule *s = ds_schedule_new(o, &kind->type);
    Torch *t = ds_schedule_self(s);
    *t = (Torch){.next = kind->next,
                 .groups = ds_optim_groups(o),
                 .base = dsi_schedule_base_rates(o),
                 .lr = dsi_schedule_rates(o, 0),
                 .at = -1,
                 .gamma = 0.1,
                 .total = 5,
                 .factor = 1.0 / 3,
                 .start = 1.0 / 3,
                 .end = 1,
                 .power = 1};
    dsi_param table[PARAMS];
    for (int i = 0; i < kind->n; i++) {
        table[i] = kind->rows[i].param;
        table[i].to = (char *)t + kind->rows[i].offset;
    }
    s = dsi_schedule_read(s, o, name, params_json, table, kind->n);
    return s ? dsi_schedule_begin(s, -1) : NULL;
}

const dsi_schedule_entry dsi_schedules_torch[] = {
    {"StepLR", make},        {"MultiStepLR", make},
    {"ExponentialLR", make}, {"CosineAnnealingLR", make},
    {"ConstantLR", make},    {"LinearLR", make},
    {"PolynomialLR", make},  {0}};
