/* deepspeed/optim.h: optimizers, parameter groups, schedules, gradient
 * clipping, loss scaling.
 *
 * An optimizer changes the parameters of a module in place, by default in one
 * pass over all of them. Names, defaults and rules are torch.optim's unless
 * said.
 *
 *     ds_optim *adam = ds_optim_adam(net, 1e-3, .weight_decay = 0.01);
 *     ds_backward(loss), ds_optim_step(adam), ds_optim_zero_grad(adam);
 *
 * Each constructor ds_optim_NAME(model, lr, .option = value, ...):
 *  - model: whose parameters are updated, all in group 0 at first; borrowed, and
 *    must live as long as the optimizer. NULL gives NULL.
 *  - lr: the learning rate, 0 or more. All numbers are 0 or more, betas less
 *    than 1. An option that is 0 or not named has the default that its comment
 *    says, else 0; DS_ZERO requests 0 (types.h).
 *  - result: a new optimizer, which ds_optim_free frees; NULL with a message if
 *    an option is out of range or the module has no parameters.
 *
 * In formulas p is a parameter, g its gradient (maximize: -g), t the number of
 * the step of this parameter, from 1. weight_decay p is added to g first, where
 * the formula does not say something else. Moments have the parameter's dtype,
 * float32 for parameters of 16 bits; they are made at the first update.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_OPTIM_H
#define DEEPSPEED_OPTIM_H

#include <deepspeed/checkpoint.h>
#include <deepspeed/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_optim ds_optim;

/* ---- constructors: torch.optim and DeepSpeed --------------------------------------------------------- */

typedef struct ds_sgd_opts {
    double lr;
    double momentum;  /* factor of the last update */
    double dampening; /* the gradient counts 1 - dampening; of any sign */
    double weight_decay;
    bool nesterov; /* needs momentum and no dampening */
    bool maximize;
} ds_sgd_opts;

/* torch.optim.SGD: g += weight_decay p; v = momentum v + (1 - dampening) g (v =
 * g at the first step); p -= lr v (nesterov: p -= lr (g + momentum v)). */
#define ds_optim_sgd(model, ...) ds_optim_sgd_with(model, (ds_sgd_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_sgd_with(ds_module *model, ds_sgd_opts opts);

typedef struct ds_adam_opts {
    double lr;           /* 1e-3 is usual */
    double beta1, beta2; /* 0: 0.9, 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay; /* 0: none, for adamw too, where torch.optim's default is 0.01 */
    bool amsgrad;        /* divide by the largest v so far */
    bool maximize;
    bool no_bias_correction; /* m^ = m, v^ = v */
} ds_adam_opts;

/* torch.optim.Adam and AdamW, DeepSpeed's FusedAdam: m = b1 m + (1-b1) g,
 * v = b2 v + (1-b2) g^2, p -= lr m^ / (sqrt(v^) + eps), where m^ = m / (1-b1^t)
 * and v^ = v / (1-b2^t) (arXiv 1412.6980). adam adds weight_decay p to g; adamw
 * first does p -= lr weight_decay p (arXiv 1711.05101). */
#define ds_optim_adam(model, ...) ds_optim_adam_with(model, (ds_adam_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adam_with(ds_module *model, ds_adam_opts opts);
#define ds_optim_adamw(model, ...) ds_optim_adamw_with(model, (ds_adam_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adamw_with(ds_module *model, ds_adam_opts opts);

typedef struct ds_adagrad_opts {
    double lr, lr_decay, weight_decay;
    double initial_accumulator_value; /* of s */
    double eps;                       /* 0: 1e-10 */
    bool maximize;
} ds_adagrad_opts;

/* torch.optim.Adagrad: s += g^2; p -= lr / (1 + (t-1) lr_decay) g / (sqrt(s) +
 * eps). */
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

/* torch.optim.RMSprop: s = alpha s + (1-alpha) g^2; u = g / (sqrt(s) + eps),
 * centered: sqrt(s - mean(g)^2); p -= lr u, or with a momentum v = momentum v +
 * u, p -= lr v. */
#define ds_optim_rmsprop(model, ...) \
    ds_optim_rmsprop_with(model, (ds_rmsprop_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_rmsprop_with(ds_module *model, ds_rmsprop_opts opts);

typedef struct ds_adadelta_opts {
    double lr;  /* 1 is usual */
    double rho; /* 0: 0.9; at most 1 */
    double eps; /* 0: 1e-6 */
    double weight_decay;
    bool maximize;
} ds_adadelta_opts;

/* torch.optim.Adadelta (arXiv 1212.5701): v = rho v + (1-rho) g^2;
 * d = sqrt(u + eps) / sqrt(v + eps) g; u = rho u + (1-rho) d^2; p -= lr d. */
#define ds_optim_adadelta(model, ...) \
    ds_optim_adadelta_with(model, (ds_adadelta_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_adadelta_with(ds_module *model, ds_adadelta_opts opts);

typedef struct ds_adam_variant_opts {
    double lr;           /* 2e-3 is usual; RAdam 1e-3 */
    double beta1, beta2; /* 0: 0.9, 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    double momentum_decay; /* NAdam; 0: 0.004 */
    bool decoupled;        /* weight decay as AdamW's; adamax refuses it */
    bool maximize;
} ds_adam_variant_opts;

/* torch.optim.Adamax: Adam with the largest recent |g| for sqrt(v); NAdam: with
 * Nesterov's momentum; RAdam (arXiv 1908.03265): with a rectified rate in the
 * first steps. Made of ops: several passes over memory. */
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
    double beta1, beta2; /* 0: 0.9, 0.99, the paper's; in configurations DeepSpeed's 0.999 */
    double weight_decay;
} ds_lion_opts;

/* DeepSpeed's FusedLion (arXiv 2302.06675): p -= lr (sign(b1 m + (1-b1) g) +
 * weight_decay p); m = b2 m + (1-b2) g. sign(0) is 1, and -1 for -0, as in
 * DeepSpeed's kernel. */
#define ds_optim_lion(model, ...) ds_optim_lion_with(model, (ds_lion_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_lion_with(ds_module *model, ds_lion_opts opts);

typedef struct ds_lamb_opts {
    double lr;
    double beta1, beta2; /* 0: 0.9, 0.999 */
    double eps;          /* 0: 1e-8 */
    double weight_decay;
    double max_coeff, min_coeff; /* bounds of the trust ratio; 0: 10, 0.01 */
    bool no_bias_correction;
    bool eps_inside_sqrt; /* sqrt(v + eps) */
} ds_lamb_opts;

/* DeepSpeed's FusedLamb, which is arXiv 1904.00962 with the bias correction
 * outside of u: u = m / (sqrt(v) + eps) + weight_decay p; p -= lr sqrt(1-b2^t)
 * / (1-b1^t) clamp(|p| / |u|) u for each tensor; the ratio is 1 where a norm is
 * 0. */
#define ds_optim_lamb(model, ...) ds_optim_lamb_with(model, (ds_lamb_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_lamb_with(ds_module *model, ds_lamb_opts opts);

typedef enum ds_muon_adjust {
    DS_MUON_ORIGINAL = 0,    /* max(1, A / B)^0.5 of a matrix [A,B] */
    DS_MUON_MATCH_RMS_ADAMW, /* 0.2 max(A, B)^0.5 */
    DS_MUON_UNCLAMPED        /* torch's "spectral_unclamped": (A / B)^0.5 */
} ds_muon_adjust;

typedef struct ds_muon_opts {
    double lr;           /* of matrices; 0.02 is usual */
    double adam_lr;      /* of the others; 0: lr */
    double momentum;     /* 0: 0.95 */
    double beta1, beta2; /* of AdamW; 0: 0.9, 0.95 */
    double eps;          /* of AdamW; 0: 1e-10 */
    double weight_decay; /* decoupled, of both */
    /* DeepSpeed's ns_method "standard" in place of "gram": it multiplies the
     * matrix in every iteration, not its Gram matrix: slower, fewer
     * roundings. */
    bool ns_standard;
    bool no_nesterov;
    int ns_steps; /* iterations; 0: 5 */
    /* torch's name: each iteration brings a singular value s to k[0] s + k[1]
     * s^3
     * + k[2] s^5; {0}: {3.4445, -4.7750, 2.0315} */
    double ns_coefficients[3];
    ds_muon_adjust adjust_lr; /* what lr is multiplied by */
} ds_muon_opts;

/* DeepSpeed's MuonWithAuxAdam, torch.optim.Muon beside AdamW: m = lerp(m, g, 1
 * - momentum), p -= lr adjust orthogonal(lerp(g, m, momentum)), where
 * orthogonal brings all singular values near 1 by Newton-Schulz iterations in
 * float32. Group 0: parameters of two and more dimensions without "embed" and
 * "lm_head" in their names, as in DeepSpeed; a filter of 4 dimensions is a
 * matrix of its first and the rest; of others the last two dimensions are.
 * Group 1: the others, by AdamW. Source: kellerjordan.github.io/posts/muon,
 * DeepSpeed's
 * runtime/zero/muon. */
#define ds_optim_muon(model, ...) ds_optim_muon_with(model, (ds_muon_opts){.lr = __VA_ARGS__})
DS_API ds_optim *ds_optim_muon_with(ds_module *model, ds_muon_opts opts);

/* An optimizer as in the "optimizer" block of a DeepSpeed configuration. type:
 * a name of docs/optimizers.md: DeepSpeed's in any case of letters ("Adam"),
 * torch.optim's exactly ("SGD"). params: a JSON object as text, or NULL for the
 * defaults. Names, defaults and meanings are DeepSpeed's: "Adam" is AdamW
 * unless adam_w_mode is false. NULL with a message that names the parameter and
 * what was expected: "optimizer.params.lr is -1: ...". */
DS_API ds_optim *ds_optim_by_name(ds_module *model, const char *type, const char *params);

/* ---- using one ----------------------------------------------------------------------------------------- */

/* One update of every parameter that has a gradient. A step that is refused (a
 * gradient of another dtype; DS_ESTATE: the optimizer belongs to an engine,
 * whose ds_engine_step does that) or finds no memory changes nothing; if a
 * group's rule fails, the groups before it are updated. */
DS_API ds_status ds_optim_step(ds_optim *o);
DS_API void ds_optim_zero_grad(ds_optim *o);         /* of the model: no parameter has a gradient */
DS_API void ds_optim_free(ds_optim *o);              /* refused while an engine owns it */
DS_API double ds_optim_lr(const ds_optim *o);        /* of group 0 */
DS_API void ds_optim_set_lr(ds_optim *o, double lr); /* of all groups */
DS_API const char *ds_optim_name(const ds_optim *o); /* "adamw"; borrowed */

/* Moments and step counts as "momentum_buffer.conv1.weight",
 * "step.conv1.weight", ...: a new state dict, whose tensors share memory with
 * the optimizer. A parameter that was never updated has no entries. */
DS_API ds_state *ds_optim_state(const ds_optim *o);
/* Takes the values of such a state dict; refuses unknown names and other
 * shapes, and then changes nothing. */
DS_API DS_MUST_CHECK ds_status ds_optim_load(ds_optim *o, const ds_state *state);

/* As torch.optim has it: {"state": {0: {"step": ..., "exp_avg": ...}, ...},
 * "param_groups": [{"lr": ..., "params": [0, 1, ...]}]}, parameters numbered
 * group by group; torch.optim's load_state_dict takes it. New, to be freed by
 * ds_value_free; its tensors share memory with the optimizer. */
DS_API ds_value *ds_optim_state_dict(ds_optim *o);
/* Takes what ds_optim_state_dict or torch.optim's state_dict returned,
 * hyper-parameters too. Groups must have the same numbers of parameters.
 * Changes nothing if it refuses. */
DS_API DS_MUST_CHECK ds_status ds_optim_load_state_dict(ds_optim *o, const ds_value *state_dict);

/* ---- parameter groups: torch's param_groups --------------------------------------------------------- */

/* Values that may differ between groups: those that schedules change, and
 * weight decay. */
typedef struct ds_optim_values {
    double lr, weight_decay;
    double momentum; /* SGD, RMSprop, Muon */
    double betas[2]; /* Adam, AdamW, Lion, LAMB, Muon's AdamW */
    bool use_muon;   /* Muon: the group is updated by it, else by AdamW */
} ds_optim_values;

/* torch's add_param_group. All parameters are in group 0 at first. A new group
 * takes from it those for which pick(arg, path, p) is true, asked in the order
 * of ds_module_param_at, and has group 0's values. Returns the new group's
 * number; -1 with a message if pick chose none. */
DS_API int ds_optim_add_group(ds_optim *o,
                              bool (*pick)(void *arg, const char *path, const ds_tensor *p),
                              void *arg);
/* The same with those of another group, whose values the new one has. */
DS_API int ds_optim_split_group(ds_optim *o, int group,
                                bool (*pick)(void *arg, const char *path, const ds_tensor *p),
                                void *arg);
/* ds_optim_add_group with a list of n parameters, all of which must be in group
 * 0. */
DS_API int ds_optim_add_group_of(ds_optim *o, ds_tensor *const *params, int n);

/* split_params_into_different_moe_groups_for_optimizer: in each group that has
 * parameters of experts (ds_nn_moe) and others, the experts' move to a new
 * group with the same values. Returns how many groups were added. ds_initialize
 * calls it. */
DS_API int ds_optim_split_experts(ds_optim *o, const ds_module *model);
DS_API int ds_optim_groups(const ds_optim *o);                     /* at least 1 */
DS_API int ds_optim_group_of(const ds_optim *o, const char *path); /* -1: no such parameter */

/* The values of a group, 0 .. ds_optim_groups(o) - 1. Of any other number they
 * are 0, and setting them does nothing. */
DS_API double ds_optim_group_lr(const ds_optim *o, int group);
DS_API void ds_optim_set_group_lr(ds_optim *o, int group, double lr);
DS_API double ds_optim_group_weight_decay(const ds_optim *o, int group);
DS_API void ds_optim_set_group_weight_decay(ds_optim *o, int group, double weight_decay);
/* These return false, and do nothing, if the optimizer has no such value. */
DS_API bool ds_optim_group_betas(const ds_optim *o, int group, double betas[2]);
DS_API bool ds_optim_set_group_betas(ds_optim *o, int group, const double betas[2]);
DS_API bool ds_optim_group_momentum(const ds_optim *o, int group, double *momentum);
DS_API bool ds_optim_set_group_momentum(ds_optim *o, int group, double momentum);

/* ---- custom optimizers --------------------------------------------------------------------------------- */

#define DS_OPTIM_MOMENTS 3

/* One parameter at one step; everything is borrowed. */
typedef struct ds_optim_update {
    const char *path;
    ds_tensor *p;                        /* changed in place: ds_data_mut, ds_copy */
    ds_tensor *grad;                     /* of p's shape, row-major; for reading */
    ds_tensor *moment[DS_OPTIM_MOMENTS]; /* of p's shape, 0 at first; float32 if p is of 16 bits */
    int64_t step;                        /* 1 at the first update of this parameter */
    double grad_scale;                   /* .mixed: multiply grad by it; else 1 */
    ds_tensor *copy; /* .mixed: NULL, or of 16 bits: the new p is copied there; else NULL */
} ds_optim_update;

/* An option that all groups share, as ds_optim_state_dict has it. */
typedef enum ds_option_kind {
    DS_OPTION_DOUBLE,
    DS_OPTION_BOOL,
    DS_OPTION_NONE, /* torch.optim's, without effect here: None */
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
    /* Updates one parameter, or n: all of a group that have a gradient. Set one
     * of the two. Nothing is recorded for backward; temporaries end with the
     * step. */
    ds_status (*step)(void *self, const ds_optim_values *v, const ds_optim_update *x);
    ds_status (*step_n)(void *self, const ds_optim_values *v, const ds_optim_update *x, int n);
    void (*free)(void *self); /* optional */
    /* optional: whether moment[i], which has a name, is needed with these
     * values */
    bool (*uses)(const void *self, const ds_optim_values *v, int i);
    bool has_betas, has_momentum; /* for ds_optim_group_betas and _momentum */
    bool whole; /* elements of a parameter depend on each other: ZeRO updates it on one rank */
    bool mixed; /* step itself handles a 16-bit grad of a float32 p, grad_scale and
                 * copy; else further passes do */
    /* optional: options beside ds_optim_values; the last has the name NULL */
    const ds_optim_option *options;
    bool no_step; /* the state dict has no step, as torch.optim.SGD's */
    /* optional: a number per parameter that follows from its step but that
     * torch saves */
    const char *derived;
    double (*derive)(void *self, const ds_optim_values *v, int64_t step);
} ds_optim_type;

/* An optimizer of model's parameters, all with these values at first. type is
 * borrowed and must live as long as the optimizer. NULL with a message for a
 * type without a name or a step, and for a module without parameters. */
DS_API ds_optim *ds_optim_new(ds_module *model, const ds_optim_type *type, ds_optim_values values);
DS_API void *ds_optim_self(ds_optim *o); /* your struct */

/* ---- learning-rate schedules ------------------------------------------------------------------------ */

typedef struct ds_schedule ds_schedule;

/* A custom schedule: apply sets the values of step `it` with
 * ds_optim_set_group_lr and the like; -1 is before the first ds_schedule_step.
 * It must depend on `it` alone, so that a resumed training has the same
 * values. */
typedef struct ds_schedule_type {
    const char *name;
    size_t self_size; /* bytes of your struct, zeroed for you */
    void (*apply)(void *self, ds_optim *o, int64_t it);
    void (*free)(void *self); /* optional: frees what your struct points to */
} ds_schedule_type;

/* o and type are borrowed and must live as long as the schedule. Sets nothing
 * yet: fill ds_schedule_self(s), then call ds_schedule_set_last(s, -1). */
DS_API ds_schedule *ds_schedule_new(ds_optim *o, const ds_schedule_type *type);
DS_API void *ds_schedule_self(ds_schedule *s); /* your struct */

/* A schedule as in the "scheduler" block of a DeepSpeed configuration: sets the
 * rate of the first update. type: a name of docs/schedules.md, which has the
 * formulas: DeepSpeed's ("WarmupLR") or torch.optim.lr_scheduler's ("StepLR").
 * params_json: the object "params" as text, NULL for none. NULL with a message
 * for unknown names, of parameters too, which suggests the nearest one, and for
 * values out of range. */
DS_API ds_schedule *ds_schedule_by_name(ds_optim *o, const char *type, const char *params_json);

/* After ds_optim_step: sets the values for the next update. DS_ESTATE: it
 * belongs to an engine, whose ds_engine_step does that. */
DS_API void ds_schedule_step(ds_schedule *s);

/* The number of the last step: -1 at first, 0 after the first ds_schedule_step.
 * Setting it, -1 to 2^40, sets its values too, to go on from a checkpoint. */
DS_API int64_t ds_schedule_last(const ds_schedule *s);
DS_API ds_status ds_schedule_set_last(ds_schedule *s, int64_t it);
/* {"last_batch_iteration": ...} as DeepSpeed has it; of torch's schedules
 * {"last_epoch": ..., "_last_lr": ...}. Either form can be loaded. */
DS_API ds_value *ds_schedule_state_dict(const ds_schedule *s);
DS_API ds_status ds_schedule_load_state_dict(ds_schedule *s, const ds_value *state_dict);
DS_API double ds_schedule_lr(const ds_schedule *s, int group); /* of the next update */
DS_API const char *ds_schedule_name(const ds_schedule *s);     /* of its type */
DS_API void ds_schedule_free(ds_schedule *s);                  /* refused while an engine owns it */

/* deepspeed.add_tuning_arguments: --lr_schedule TYPE, and an option for each
 * parameter of DeepSpeed's types, with underscores or hyphens: a child parser
 * for glibc's argp, whose input is a ds_tuning_arguments. */
#define DS_TUNING_OPTIONS 24
typedef struct ds_tuning_arguments {
    const char *lr_schedule;              /* NULL: the option was not given */
    const char *given[DS_TUNING_OPTIONS]; /* the other options' values; NULL: the default */
} ds_tuning_arguments;

struct argp;
DS_API const struct argp *ds_add_tuning_arguments(void);
/* The schedule that the options choose; NULL with a message without
 * --lr_schedule and for values that ds_schedule_by_name refuses. */
DS_API ds_schedule *ds_tuning_schedule(ds_optim *o, const ds_tuning_arguments *args);

/* ---- gradient norms ------------------------------------------------------------------------------------- */

/* The L2 norm of all gradients of m together; 0 without gradients, NaN with a
 * message if one cannot be read. */
DS_API double ds_grad_norm(ds_module *m);

/* torch.nn.utils.clip_grad_norm_: multiplies all gradients by max_norm / (norm
 * + 1e-6) if that is less than 1, or NaN. max_norm: 0 or more. norm_type: 2, 1,
 * or INFINITY for the largest absolute value. Returns the norm before, float64
 * [] on the gradients' device, for which ds_item waits; NULL with a message if
 * an argument is refused. */
DS_API ds_tensor *ds_clip_grad_norm(ds_module *m, double max_norm, double norm_type);

/* torch.nn.utils.clip_grad_value_: each element of all gradients between
 * -clip_value and clip_value; NaN stays. clip_value: 0 or more. */
DS_API ds_status ds_clip_grad_value(ds_module *m, double clip_value);

/* ---- loss scaling -------------------------------------------------------------------------------------- */

/* torch.amp.GradScaler, for float16 under ds_set_autocast: the loss is
 * multiplied by a scale, so that small gradients are not 0 in float16, and
 * gradients are divided by it. A step with an infinite or NaN gradient is
 * skipped, and the scale shrinks.
 *
 *     ds_backward(ds_grad_scaler_scale(scaler, loss));
 *     ds_grad_scaler_unscale(scaler, adam);     only to clip or read gradients
 *     ds_clip_grad_norm(net, 1, 2);
 *     ds_grad_scaler_step(scaler, adam);        in place of ds_optim_step
 *     ds_grad_scaler_update(scaler);
 *
 * Gradients must be float32 or float64, so weights too. An engine scales its
 * loss itself ("fp16"). */
typedef struct ds_grad_scaler ds_grad_scaler;

typedef struct ds_grad_scaler_opts {
    double init_scale;       /* 0: 65536 */
    double growth_factor;    /* more than 1; 0: 2 */
    double backoff_factor;   /* between 0 and 1; 0: 0.5 */
    int64_t growth_interval; /* updates in a row without a skipped step until it grows; 0: 2000 */
    bool disabled;           /* steps are ds_optim_step, all else does nothing */
} ds_grad_scaler_opts;

/* ds_grad_scaler_new(init_scale, .option = value, ...): new, to be freed by
 * ds_grad_scaler_free. NULL with a message for an option out of range. */
#define ds_grad_scaler_new(...) \
    ds_grad_scaler_new_with((ds_grad_scaler_opts){.init_scale = __VA_ARGS__})
DS_API ds_grad_scaler *ds_grad_scaler_new_with(ds_grad_scaler_opts opts);
DS_API void ds_grad_scaler_free(ds_grad_scaler *s);

/* loss times the scale, with a gradient. The loss should be float32, as those
 * under autocast are: the scale itself, 65536, is infinite in float16. */
DS_API ds_tensor *ds_grad_scaler_scale(ds_grad_scaler *s, ds_tensor *loss);
/* torch's unscale_: divides the gradients of o's parameters by the scale, in
 * place, once between two updates. DS_ESTATE if that was done, or none of them
 * has a gradient; DS_EINVAL if one is 16-bit: nothing has changed. */
DS_API ds_status ds_grad_scaler_unscale(ds_grad_scaler *s, ds_optim *o);
/* Unscales, if that was not done; then ds_optim_step, unless a gradient is
 * infinite or NaN: DS_OK too, with nothing changed. The host waits for the
 * device, but not in a step that is a graph (ds_step_graph_run), where the
 * device decides. DS_ESTATE for a second step without an update between. */
DS_API ds_status ds_grad_scaler_step(ds_grad_scaler *s, ds_optim *o);
/* After the steps of all optimizers: if one was skipped, the scale is
 * multiplied by backoff_factor, else after growth_interval such updates by
 * growth_factor. DS_ESTATE if there was no step and no unscale. */
DS_API ds_status ds_grad_scaler_update(ds_grad_scaler *s);
/* The scale of the next loss, a float32, for which the host waits; 1 if
 * disabled, NaN with a message if it cannot be read. A step was skipped if the
 * update made it less. */
DS_API double ds_grad_scaler_get_scale(const ds_grad_scaler *s);
/* torch's update(new_scale), a finite number above 0. */
DS_API ds_status ds_grad_scaler_set_scale(ds_grad_scaler *s, double scale);

/* {"scale", "growth_factor", "backoff_factor", "growth_interval",
 * "_growth_tracker"} as torch has it, to be freed by ds_value_free; empty if
 * disabled. Loading refuses an empty one, and then changes nothing; a disabled
 * scaler takes any. */
DS_API ds_value *ds_grad_scaler_state_dict(const ds_grad_scaler *s);
DS_API DS_MUST_CHECK ds_status ds_grad_scaler_load_state_dict(ds_grad_scaler *s,
                                                              const ds_value *state_dict);

#ifdef __cplusplus
}
#endif
#endif
