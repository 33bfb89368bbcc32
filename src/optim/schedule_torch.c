/* optim/schedule_torch.c: the schedules of torch.optim.lr_scheduler that a
 * configuration can name; the entries at the end have their formulas.
 *
 * PyTorch computes a rate from that of the epoch before. So do these, or the
 * last bits would differ. An epoch is an update here, as in DeepSpeed.
 *
 * Invariants: `lr` are the rates of epoch `at`, -1: of none yet. A later epoch
 * is computed from there, an earlier one from the base rates again, so that
 * apply depends on the number of the step alone.
 * SPDX-License-Identifier: MIT */
#include "schedule.h"

#include <math.h>
#include <string.h>

typedef struct Torch {
    /* The rate of epoch e from that of e - 1; of epoch 0 from the base rate. */
    double (*next)(const struct Torch *t, double base, double lr, int64_t e);
    int groups;
    double *base, *lr; /* [groups]: the optimizer's rates, and those of epoch `at` */
    int64_t at;
    double gamma;
    int64_t step_size, total; /* epochs: total_iters, T_max */
    dsi_int_list milestones;
    double eta_min, factor, start, end, power;
} Torch;

/* StepLR: times gamma at each multiple of step_size. */
static double step_next(const Torch *t, double base, double lr, int64_t e)
{
    (void)base;
    return e > 0 && e % t->step_size == 0 ? lr * t->gamma : lr;
}

/* MultiStepLR: a milestone that is listed n times multiplies by gamma^n. */
static double multi_step_next(const Torch *t, double base, double lr, int64_t e)
{
    int passed = 0;
    (void)base;
    for (int i = 0; i < t->milestones.n; i++) passed += t->milestones.at[i] == e;
    return passed ? lr * pow(t->gamma, passed) : lr;
}

/* ExponentialLR: base gamma^e, one factor at a time. */
static double exponential_next(const Torch *t, double base, double lr, int64_t e)
{
    (void)base;
    return e > 0 ? lr * t->gamma : lr;
}

/* torch's recurrence: the ratio of two neighbouring points of the cosine, which
 * has no value at its lowest point. */
static double cosine_next(const Torch *t, double base, double lr, int64_t e)
{
    double T = (double)t->total;
    if (e == 0) return lr;
    if ((e - 1 - t->total) % (2 * t->total) == 0) /* from the lowest point there is no ratio */
        return lr + (base - t->eta_min) * (1 - cos(DSI_PI / T)) / 2;
    return (1 + cos(DSI_PI * (double)e / T)) / (1 + cos(DSI_PI * (double)(e - 1) / T)) *
               (lr - t->eta_min) +
           t->eta_min;
}

/* ConstantLR: base factor until epoch total, base from there on. The factor is
 * divided out again, so the last bit may differ from base's, as in torch. */
static double constant_next(const Torch *t, double base, double lr, int64_t e)
{
    (void)base;
    if (e == 0) return lr * t->factor;
    return e == t->total ? lr * (1 / t->factor) : lr;
}

/* LinearLR: base (start + (end - start) e / total), then base end; the step is
 * the ratio of two neighbouring points. */
static double linear_next(const Torch *t, double base, double lr, int64_t e)
{
    double rise = t->end - t->start;
    (void)base;
    if (e == 0) return lr * t->start;
    if (e > t->total) return lr;
    return lr * (1 + rise / ((double)t->total * t->start + (double)(e - 1) * rise));
}

/* PolynomialLR: base (1 - e / total)^power; 0 from epoch total on. */
static double polynomial_next(const Torch *t, double base, double lr, int64_t e)
{
    double total = (double)t->total;
    (void)base;
    if (e == 0 || e > t->total) return lr;
    return lr * pow((1 - (double)e / total) / (1 - (double)(e - 1) / total), t->power);
}

/* Goes forward from epoch `at`, or again from the base rates: as many
 * multiplications in the same order as torch, so the same bits. */
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

/* The lists are the schedule's own; milestones may be absent. */
static void torch_free(void *self)
{
    Torch *t = self;
    dsi_free(t->base);
    dsi_free(t->lr);
    dsi_free(t->milestones.at);
}

/* next: the recurrence of this schedule. No step is done: -1. */
static int64_t torch_begin(Torch *t, const ds_optim *o,
                           double (*next)(const Torch *t, double base, double lr, int64_t e))
{
    t->next = next;
    t->groups = ds_optim_groups(o);
    t->base = dsi_schedule_base_lr(o);
    t->lr = dsi_schedule_base_lr(o);
    t->at = -1;
    return -1;
}

/* ---- entries ----------------------------------------------------------------------------------------- */

#define PARAM(key, k, r, member, ...) DSI_PARAM(key, k, r, Torch, member, __VA_ARGS__)
#define GAMMA \
    PARAM("gamma", NUMBER, NOT_NEGATIVE, gamma, .value = {0.1}, .help = "factor of a decay")
#define TOTAL(what) PARAM("total_iters", INTEGER, NOT_NEGATIVE, total, .value = {5}, .help = what)

#define ENTRY(id, called, next_rate, how) \
    static int64_t id##_begin(void *self, const ds_optim *o) \
    { \
        return torch_begin(self, o, next_rate); \
    } \
    const dsi_schedule_entry dsi_schedule_##id = { \
        .type = {called, sizeof(Torch), torch_apply, torch_free}, \
        .torch = true, \
        .params = id##_params, \
        .formula = how, \
        .begin = id##_begin};

static const dsi_param step_lr_params[] = {PARAM("step_size", INTEGER, POSITIVE, step_size,
                                                 .required = true,
                                                 .help = "epochs between two decays"),
                                           GAMMA,
                                           {0}};
ENTRY(step_lr, "StepLR", step_next, "b gamma^floor(e / step_size)")

static const dsi_param multi_step_lr_params[] = {PARAM("milestones", INTEGERS, NOT_NEGATIVE,
                                                       milestones, .required = true,
                                                       .help = "epochs of the decays"),
                                                 GAMMA,
                                                 {0}};
ENTRY(multi_step_lr, "MultiStepLR", multi_step_next, "b gamma^(milestones up to e)")

static const dsi_param exponential_lr_params[] = {
    PARAM("gamma", NUMBER, NOT_NEGATIVE, gamma, .required = true, .help = "factor of each epoch"),
    {0}};
ENTRY(exponential_lr, "ExponentialLR", exponential_next, "b gamma^e")

static const dsi_param cosine_annealing_lr_params[] = {
    PARAM("T_max", INTEGER, POSITIVE, total, .required = true, .help = "epochs of half a period"),
    PARAM("eta_min", NUMBER, NOT_NEGATIVE, eta_min, .value = {0}, .help = "lowest rate"),
    {0}};
ENTRY(cosine_annealing_lr, "CosineAnnealingLR", cosine_next,
      "eta_min + (b - eta_min) (1 + cos(pi e / T_max)) / 2")

static const dsi_param constant_lr_params[] = {
    PARAM("factor", NUMBER, FACTOR, factor, .value = {1.0 / 3}, .help = "of the rate, at first",
          .otherwise = "1/3"),
    TOTAL("epochs with it"),
    {0}};
ENTRY(constant_lr, "ConstantLR", constant_next, "b factor while e < total_iters, then b")

static const dsi_param linear_lr_params[] = {
    PARAM("start_factor", NUMBER, FACTOR, start, .value = {1.0 / 3},
          .help = "of the rate, at first", .otherwise = "1/3"),
    PARAM("end_factor", NUMBER, FRACTION, end, .value = {1}, .help = "of the rate, at the end"),
    TOTAL("epochs from the one to the other"),
    {0}};
ENTRY(linear_lr, "LinearLR", linear_next,
      "b (start_factor + (end_factor - start_factor) min(e, total_iters) / total_iters)")

static const dsi_param polynomial_lr_params[] = {
    TOTAL("epochs until the rate is 0"),
    PARAM("power", NUMBER, NOT_NEGATIVE, power, .value = {1}, .help = "degree of the polynomial"),
    {0}};
ENTRY(polynomial_lr, "PolynomialLR", polynomial_next,
      "b (1 - min(e, total_iters) / total_iters)^power")
