/* optim/list.h: all optimizers and all schedules that a configuration can name.
 *
 * The name of each and all that is said about it (its parameters, defaults,
 * moments, source) is an entry: a constant in the file that computes it. These
 * two lists are the only ones: names in configurations and messages, --help of
 * ds_add_tuning_arguments, docs/optimizers.md and docs/schedules.md come from
 * them (tests/optim/list.c compares the documents).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "params.h"

#include <deepspeed/optim.h>

/* In the order of messages and documents. */
#define DSI_OPTIMIZERS(X) \
    X(adam) \
    X(adamw) \
    X(adagrad) \
    X(lamb) \
    X(lion) \
    X(muon) \
    X(sgd) \
    X(rmsprop) \
    X(adadelta) \
    X(adamax) \
    X(nadam) \
    X(radam)

#define DSI_SCHEDULES(X) \
    X(warmup_lr) \
    X(warmup_decay_lr) \
    X(warmup_cosine_lr) \
    X(one_cycle) \
    X(lr_range_test) \
    X(step_lr) \
    X(multi_step_lr) \
    X(exponential_lr) \
    X(cosine_annealing_lr) \
    X(constant_lr) \
    X(linear_lr) \
    X(polynomial_lr)

/* The name of an optimizer, and how a configuration makes one. */
typedef struct dsi_optim_entry {
    const char *name;          /* "AdamW" */
    const ds_optim_type *type; /* for the names of its moments */
    const char *source;        /* the class whose rule and parameters it has */
    bool deepspeed;            /* DeepSpeed's name: in any case of letters; else torch.optim's */
    bool zero_tested;          /* no "zero_allow_untested_optimizer" is needed */
    const dsi_param *params;   /* of a struct that begins with the constructor's options */
    /* The parameters with "torch_adam": true, [0] without, [1] with
     * "adam_w_mode"; or NULL. */
    const dsi_param *torch_adam[2];
    size_t params_size; /* bytes of that struct */
    /* Rules between parameters; optional. prefix begins the message:
     * "sgd: ". */
    bool (*check)(const char *prefix, const void *params);
    /* optional: what dsi_optim_from with `params` does not do */
    ds_optim *(*make)(ds_module *model, const void *params);
} dsi_optim_entry;

/* The name of a schedule, and how a configuration makes one. */
typedef struct dsi_schedule_entry {
    ds_schedule_type type;   /* .name: "WarmupLR" */
    bool torch;              /* torch.optim.lr_scheduler's; else DeepSpeed's */
    const dsi_param *params; /* of the type's struct, whose GROUPS its free frees */
    const char *formula;     /* for docs */
    /* Completes *self when its parameters have been read -> the number of the
     * last step done, -1: none. */
    int64_t (*begin)(void *self, const ds_optim *o);
} dsi_schedule_entry;

/* Rows of parameters that several have; opts: the struct that they are of. */
#define DSI_NUMBER(opts, member, what, ...) \
    DSI_PARAM(#member, NUMBER, NOT_NEGATIVE, opts, member, .help = what, .value = {__VA_ARGS__})
#define DSI_FLAG(opts, member, what) DSI_PARAM(#member, BOOL, ANY, opts, member, .help = what)
#define DSI_LR(opts, rate) \
    DSI_PARAM("lr", NUMBER, NOT_NEGATIVE, opts, lr, .exact = true, .value = {rate}, \
              .help = "learning rate")
#define DSI_BETAS(opts, ...) \
    DSI_PARAM("betas", PAIR, BETA, opts, beta1, .value = {__VA_ARGS__}, \
              .help = "decay of the moments")
#define DSI_EPS(opts, value)          DSI_NUMBER(opts, eps, "added to the root of the second moment", value)
#define DSI_WEIGHT_DECAY(opts, value) DSI_NUMBER(opts, weight_decay, "L2 penalty", value)
#define DSI_MAXIMIZE(opts)            DSI_FLAG(opts, maximize, "ascend the gradient")
#define DSI_IGNORED(key) \
    { \
        .name = key, .kind = DSI_PARAM_IGNORED \
    }
/* How torch computes the same. */
#define DSI_TORCH_IGNORED \
    DSI_IGNORED("foreach"), DSI_IGNORED("fused"), DSI_IGNORED("capturable"), \
        DSI_IGNORED("differentiable")
/* beta1 and beta2 of options are read as one pair. */
#define DSI_ASSERT_BETAS(opts) \
    _Static_assert(offsetof(opts, beta2) == offsetof(opts, beta1) + sizeof(double), "a pair")

#define DSI_DECLARE_OPTIMIZER(id) extern const dsi_optim_entry dsi_optim_##id;
#define DSI_DECLARE_SCHEDULE(id)  extern const dsi_schedule_entry dsi_schedule_##id;
DSI_OPTIMIZERS(DSI_DECLARE_OPTIMIZER)
DSI_SCHEDULES(DSI_DECLARE_SCHEDULE)

/* Entry i of the list; NULL: there are no more. */
const dsi_schedule_entry *dsi_schedule_entry_at(int i);

/* Whether DeepSpeed lets ZeRO use this optimizer unasked; one of the user's:
 * no. */
bool dsi_optim_zero_tested(const ds_optim *o);
/* "Adam, AdamW, ...": the names of those, or of all, to be freed by
 * dsi_text_free. */
dsi_text dsi_optim_names(bool zero_tested);
