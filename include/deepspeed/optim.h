/* deepspeed/optim.h: optimizers, parameter groups, schedules, gradient clipping. An optimizer changes the
 * parameters of a module in place, in one fused pass over all of them; names, defaults and rules are
 * torch.optim's unless said. Moments have the parameter's dtype, float32 for 16-bit parameters. Where 0
 * means a default, a number that is as good as 0 is 1e-300.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPTIM_H
#define DEEPSPEED_OPTIM_H

#include <deepspeed/checkpoint.h>
#include <deepspeed/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_optim ds_optim;

typedef struct ds_sgd_opts {
    double lr;
    double momentum, dampening, weight_decay;
    bool nesterov; /* needs momentum and no dampening */
    bool maximize;
} ds_sgd_opts;

/* g += weight_decay p; v = momentum v + (1 - dampening) g (v = g at the first step); p -= lr v
 * (nesterov: p -= lr (g + momentum v)). */
#define ds_optim_sgd(model, ...) ds_optim_sgd_with(model, (ds_sgd_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_sgd_with(ds_module *model, ds_sgd_opts opts);

typedef struct ds_adam_opts {
    double lr;           /* 1e-3 is usual; 0 means 0 */
    double beta1, beta2; /* 0: 0.9, 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    bool amsgrad, maximize;
    bool no_bias_correction;
} ds_adam_opts;

/* m = b1 m + (1-b1) g, v = b2 v + (1-b2) g^2, p -= lr m^ / (sqrt(v^) + eps), ^ = bias-corrected (arXiv 1412.6980).
 * adam adds weight_decay p to g; adamw first does p -= lr weight_decay p (arXiv 1711.05101). */
#define ds_optim_adam(model, ...) ds_optim_adam_with(model, (ds_adam_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adam_with(ds_module *model, ds_adam_opts opts);
#define ds_optim_adamw(model, ...) ds_optim_adamw_with(model, (ds_adam_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adamw_with(ds_module *model, ds_adam_opts opts);

typedef struct ds_adagrad_opts {
    double lr, lr_decay, weight_decay, initial_accumulator_value;
    double eps; /* 0: 1e-10 */
    bool maximize;
} ds_adagrad_opts;

/* s += g^2; p -= lr / (1 + (t-1) lr_decay) g / (sqrt(s) + eps). */
#define ds_optim_adagrad(model, ...) \
    ds_optim_adagrad_with(model, (ds_adagrad_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adagrad_with(ds_module *model, ds_adagrad_opts opts);

typedef struct ds_rmsprop_opts {
    double lr;
    double alpha; /* 0: 0.99 */
    double eps;   /* 0: 1e-8 */
    double weight_decay, momentum;
    bool centered, maximize;
} ds_rmsprop_opts;

/* s = alpha s + (1-alpha) g^2; p -= lr g / (sqrt(s) + eps); centered: sqrt(s - mean(g)^2). */
#define ds_optim_rmsprop(model, ...) \
    ds_optim_rmsprop_with(model, (ds_rmsprop_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_rmsprop_with(ds_module *model, ds_rmsprop_opts opts);

typedef struct ds_adadelta_opts {
    double lr;  /* 1 is usual */
    double rho; /* 0: 0.9 */
    double eps; /* 0: 1e-6 */
    double weight_decay;
    bool maximize;
} ds_adadelta_opts;

/* v = rho v + (1-rho) g^2; d = sqrt(u + eps) / sqrt(v + eps) g; u = rho u + (1-rho) d^2; p -= lr d (arXiv 1212.5701). */
#define ds_optim_adadelta(model, ...) \
    ds_optim_adadelta_with(model, (ds_adadelta_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adadelta_with(ds_module *model, ds_adadelta_opts opts);

typedef struct ds_adam_variant_opts {
    double lr;           /* 2e-3 is usual; RAdam 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    double momentum_decay; /* NAdam; 0: 0.004 */
    bool decoupled;        /* NAdam, RAdam: weight decay as AdamW's */
    bool maximize;
} ds_adam_variant_opts;

/* Adam with the largest recent |g| for sqrt(v), with Nesterov's momentum, and with a rectified rate at the
 * beginning. In several passes over memory. */
#define ds_optim_adamax(model, ...) \
    ds_optim_adamax_with(model, (ds_adam_variant_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adamax_with(ds_module *model, ds_adam_variant_opts opts);
#define ds_optim_nadam(model, ...) \
    ds_optim_nadam_with(model, (ds_adam_variant_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_nadam_with(ds_module *model, ds_adam_variant_opts opts);
#define ds_optim_radam(model, ...) \
    ds_optim_radam_with(model, (ds_adam_variant_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_radam_with(ds_module *model, ds_adam_variant_opts opts);

typedef struct ds_lion_opts {
    double lr;
    double beta1, beta2; /* 0: 0.9, 0.99 */
    double weight_decay;
} ds_lion_opts;

/* p -= lr (sign(b1 m + (1-b1) g) + weight_decay p); m = b2 m + (1-b2) g (arXiv 2302.06675). sign(0) = 1 and
 * -1 for -0, as DeepSpeed's kernel has it. */
#define ds_optim_lion(model, ...) ds_optim_lion_with(model, (ds_lion_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_lion_with(ds_module *model, ds_lion_opts opts);

typedef struct ds_lamb_opts {
    double lr;
    double beta1, beta2; /* 0: 0.9, 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    double max_coeff, min_coeff; /* bounds of the trust ratio; 0: 10, 0.01 */
    bool no_bias_correction;
    bool eps_inside_sqrt;
} ds_lamb_opts;

/* u = m / (sqrt(v) + eps) + weight_decay p (or sqrt(v + eps)); p -= lr sqrt(1-b2^t) / (1-b1^t) clamp(|p| / |u|) u
 * per tensor; the ratio is 1 where a norm is 0. DeepSpeed's FusedLamb: arXiv 1904.00962 with the bias correction
 * outside of u. */
#define ds_optim_lamb(model, ...) ds_optim_lamb_with(model, (ds_lamb_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_lamb_with(ds_module *model, ds_lamb_opts opts);

/* One update of every parameter that has a gradient. */
DS_API ds_status ds_optim_step(ds_optim *o);
DS_API void ds_optim_zero_grad(ds_optim *o);
DS_API void ds_optim_free(ds_optim *o);
DS_API double ds_optim_lr(const ds_optim *o);        /* of group 0 */
DS_API void ds_optim_set_lr(ds_optim *o, double lr); /* of all groups */
DS_API const char *ds_optim_name(const ds_optim *o); /* "adamw" */

/* Moments and step counts as "momentum_buffer.conv1.weight", "step.conv1.weight", ...: a new state dict. */
DS_API ds_state *ds_optim_state(const ds_optim *o);
DS_API DS_MUST_CHECK ds_status ds_optim_load(ds_optim *o, const ds_state *state);

/* As torch.optim has it: {"state": {0: {"step": ..., "exp_avg": ...}, ...}, "param_groups": [{"lr": ..., "params": [0,
 * 1, ...]}]}, parameters numbered group by group. What is written there, torch.optim's load_state_dict takes. */
DS_API ds_value *ds_optim_state_dict(ds_optim *o);
/* Takes what ds_optim_state_dict or torch.optim's state_dict gave, hyper-parameters too. Groups must have as many
 * parameters as there; changes nothing if it refuses. */
DS_API DS_MUST_CHECK ds_status ds_optim_load_state_dict(ds_optim *o, const ds_value *state_dict);

/* An optimizer as in the "optimizer" block of a DeepSpeed configuration: type is "Adam", "AdamW", "Adagrad",
 * "Lamb", "Lion" in any case of letters, or torch.optim's "SGD", "RMSprop", "NAdam", ... as they stand; params
 * its JSON object, or NULL. Names, defaults and meanings are DeepSpeed's: "Adam" is AdamW unless adam_w_mode is
 * false. Errors name what is wrong: "optimizer.params.lr is -1: ...". */
DS_API ds_optim *ds_optim_by_name(ds_module *model, const char *type, const char *params);

/* ---- parameter groups: torch's param_groups --------------------------------------------------------- */

/* What may differ between groups: what schedules change, and weight decay. */
typedef struct ds_optim_values {
    double lr, weight_decay;
    double momentum; /* SGD, RMSprop */
    double betas[2]; /* Adam, AdamW, Lion, LAMB */
} ds_optim_values;

/* All parameters begin in group 0. A new group takes from it those for which pick says so (asked in the
 * order of ds_module_param_at), and begins with its values -> the new group's number, or -1. */
DS_API int ds_optim_add_group(ds_optim *o,
                              bool (*pick)(void *arg, const char *path, const ds_tensor *p),
                              void *arg);
/* The same with a list of parameters; refuses one that is not in group 0. */
DS_API int ds_optim_add_group_of(ds_optim *o, ds_tensor *const *params, int n);

/* split_params_into_different_moe_groups_for_optimizer: the parameters of experts (ds_nn_moe) leave groups that have
 * others too, for new ones with the same values, behind all. Their number. ds_initialize does it by itself. */
DS_API int ds_optim_split_experts(ds_optim *o, const ds_module *model);
DS_API int ds_optim_groups(const ds_optim *o);
DS_API int ds_optim_group_of(const ds_optim *o, const char *path); /* -1: no such parameter */

/* A group that there is not has zeros; setting it does nothing. */
DS_API double ds_optim_group_lr(const ds_optim *o, int group);
DS_API void ds_optim_set_group_lr(ds_optim *o, int group, double lr);
DS_API double ds_optim_group_weight_decay(const ds_optim *o, int group);
DS_API void ds_optim_set_group_weight_decay(ds_optim *o, int group, double weight_decay);
/* false: the optimizer has none */
DS_API bool ds_optim_group_betas(const ds_optim *o, int group, double betas[2]);
DS_API bool ds_optim_set_group_betas(ds_optim *o, int group, const double betas[2]);
DS_API bool ds_optim_group_momentum(const ds_optim *o, int group, double *momentum);
DS_API bool ds_optim_set_group_momentum(ds_optim *o, int group, double momentum);

/* ---- an optimizer of one's own ------------------------------------------------------------------------ */

#define DS_OPTIM_MOMENTS 3

/* What is known of one parameter at one step. */
typedef struct ds_optim_update {
    const char *path;
    ds_tensor *p;                        /* to be changed in place: ds_data_mut, ds_copy */
    ds_tensor *grad;                     /* of p's shape, row-major; for reading */
    ds_tensor *moment[DS_OPTIM_MOMENTS]; /* of p's shape, 0 at first; float32 if p is of 16 bits */
    int64_t step;                        /* 1 at the first update of this parameter */
    double grad_scale;                   /* .mixed: grad is to be multiplied by it; else 1 */
    ds_tensor *copy; /* .mixed: NULL, or of 16 bits, p's values to be copied there; else NULL */
} ds_optim_update;

/* An option that all groups share, as ds_optim_state_dict has it. */
typedef enum ds_option_kind {
    DS_OPTION_DOUBLE,
    DS_OPTION_BOOL,
    DS_OPTION_NONE, /* torch.optim's, of no meaning here: None */
    DS_OPTION_FALSE /* the same: False */
} ds_option_kind;

typedef struct ds_optim_option {
    const char *name; /* "eps" */
    ds_option_kind kind;
    size_t offset; /* of a double or bool in the type's struct */
} ds_optim_option;

typedef struct ds_optim_type {
    const char *name; /* in front of messages */
    size_t self_size; /* bytes of your struct, zeroed for you */
    /* names in the state dict, as PyTorch has them ("exp_avg"); NULL: not used */
    const char *moment[DS_OPTIM_MOMENTS];
    /* of one parameter, or of all that have a gradient, group by group; set one of the two. Nothing is
     * recorded for backward; temporaries end with the step. */
    ds_status (*step)(void *self, const ds_optim_values *v, const ds_optim_update *x);
    ds_status (*step_n)(void *self, const ds_optim_values *v, const ds_optim_update *x, int n);
    void (*free)(void *self); /* optional */
    /* optional: whether moment[i], which has a name, is needed with these values */
    bool (*uses)(const void *self, const ds_optim_values *v, int i);
    bool has_betas, has_momentum; /* for ds_optim_group_betas and _momentum */
    bool whole; /* elements of a parameter depend on each other: ranks may not update parts of it */
    bool mixed; /* step takes a 16-bit grad beside a float32 p, grad_scale, and copy; else it is
                 * spared them, at the price of passes of their own */
    /* optional: options beside ds_optim_values; the last one's name is NULL */
    const ds_optim_option *options;
    bool no_step; /* the state dict has no step, as torch.optim.SGD's */
    /* optional: a number of a parameter that follows from its step, which torch keeps all the same */
    const char *derived;
    double (*derive)(void *self, const ds_optim_values *v, int64_t step);
} ds_optim_type;

/* An optimizer of model's parameters, all with these values at first. The type stays yours. */
DS_API ds_optim *ds_optim_new(ds_module *model, const ds_optim_type *type, ds_optim_values values);
DS_API void *ds_optim_self(ds_optim *o);

/* ---- learning-rate schedules ------------------------------------------------------------------------ */

typedef struct ds_schedule ds_schedule;

/* A schedule of one's own: apply sets the values of step `it` with ds_optim_set_group_lr and its
 * neighbours; -1 is before the first ds_schedule_step. */
typedef struct ds_schedule_type {
    const char *name;
    size_t self_size; /* bytes of your struct, zeroed for you */
    void (*apply)(void *self, ds_optim *o, int64_t it);
    void (*free)(void *self); /* optional */
} ds_schedule_type;

/* o is borrowed, and type. Sets nothing yet: fill ds_schedule_self(s), then ds_schedule_set_last(s, -1). */
DS_API ds_schedule *ds_schedule_new(ds_optim *o, const ds_schedule_type *type);
DS_API void *ds_schedule_self(ds_schedule *s);

/* DeepSpeed's WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest, and torch's StepLR,
 * MultiStepLR, ExponentialLR, CosineAnnealingLR, ConstantLR, LinearLR, PolynomialLR. params_json: the
 * object "params" of the configuration as text, NULL for none. Sets the rate of the first update.
 * Refuses unknown names, of parameters too, with the nearest one. docs/schedules.md has the formulas. */
DS_API ds_schedule *ds_schedule_by_name(ds_optim *o, const char *type, const char *params_json);

/* After ds_optim_step: sets the values for the next update. */
DS_API void ds_schedule_step(ds_schedule *s);

/* How far it is: -1 at first, 0 after the first step. Setting it sets its values too: to go on where a
 * checkpoint was made. */
DS_API int64_t ds_schedule_last(const ds_schedule *s);
DS_API ds_status ds_schedule_set_last(ds_schedule *s, int64_t it);
/* {"last_batch_iteration": ...} as DeepSpeed's; of torch's schedules {"last_epoch": ..., "_last_lr": ...}. Either can
 * be loaded. */
DS_API ds_value *ds_schedule_state_dict(const ds_schedule *s);
DS_API ds_status ds_schedule_load_state_dict(ds_schedule *s, const ds_value *state_dict);
DS_API double ds_schedule_lr(const ds_schedule *s, int group); /* of the next update */
DS_API const char *ds_schedule_name(const ds_schedule *s);     /* of its type */
DS_API void ds_schedule_free(ds_schedule *s);

/* deepspeed.add_tuning_arguments: --lr_schedule TYPE and the options of the types, as a child parser for
 * glibc's argp; its input is a ds_tuning_arguments. Names are taken with underscores and hyphens. */
#define DS_TUNING_OPTIONS 24
typedef struct ds_tuning_arguments {
    const char *lr_schedule;              /* NULL: none was asked for */
    const char *given[DS_TUNING_OPTIONS]; /* texts of the others; NULL: the default */
} ds_tuning_arguments;

struct argp;
DS_API const struct argp *ds_add_tuning_arguments(void);
DS_API ds_schedule *ds_tuning_schedule(ds_optim *o, const ds_tuning_arguments *args);

/* ---- gradient norms ------------------------------------------------------------------------------------- */

/* The L2 norm of all gradients of m together. */
DS_API double ds_grad_norm(ds_module *m);

/* torch.nn.utils.clip_grad_norm_: scales all gradients by max_norm / (norm + 1e-6) if that is below 1;
 * returns the norm before. norm_type: 2, 1, or INFINITY for the largest absolute value. */
DS_API double ds_clip_grad_norm(ds_module *m, double max_norm, double norm_type);

#ifdef __cplusplus
}
#endif
#endif
