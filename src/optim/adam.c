/* optim/adam.c: Adam and AdamW: torch.optim's, and DeepSpeed's FusedAdam and
 * CPUAdam, which are AdamW.
 *
 * Kingma and Ba, arXiv:1412.6980; decoupled decay: Loshchilov and Hutter,
 * arXiv:1711.05101; amsgrad: Reddi et al., ICLR 2018. Values of a group (rate,
 * betas, decay) are copied into the kernel's options at each step, so self
 * holds only the options that all groups share.
 * SPDX-License-Identifier: MIT */
#include "list.h"
#include "optim.h"

/* m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2; p -= lr m^ /
 * (sqrt(v^) + eps), with the moments divided by 1 - beta^t. Decoupled: p is
 * decayed directly (AdamW), else weight_decay p is added to g. */
static ds_status adam_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_adam c = *(const dsi_adam *)self;
    c.lr = v->lr, c.beta1 = v->betas[0], c.beta2 = v->betas[1], c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_ADAM, .adam = c}, x, n);
}

/* The third moment, the largest v so far, is only amsgrad's. */
static bool adam_uses(const void *self, const ds_optim_values *v, int i)
{
    (void)v;
    return i < 2 || ((const dsi_adam *)self)->amsgrad;
}

static const ds_optim_option adam_options[] = {
    {"eps", DS_OPTION_DOUBLE, offsetof(dsi_adam, eps)},
    {"amsgrad", DS_OPTION_BOOL, offsetof(dsi_adam, amsgrad)},
    {"maximize", DS_OPTION_BOOL, offsetof(dsi_adam, maximize)},
    {"bias_correction", DS_OPTION_BOOL, offsetof(dsi_adam, bias_correction)}, /* DeepSpeed's */
    {"decoupled_weight_decay", DS_OPTION_BOOL, offsetof(dsi_adam, decoupled)},
    {"foreach", DS_OPTION_NONE, 0},
    {"capturable", DS_OPTION_FALSE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {"fused", DS_OPTION_NONE, 0},
    {0}};

#define ADAM_TYPE(called) \
    { \
        .name = called, .self_size = sizeof(dsi_adam), \
        .moment = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .step_n = adam_step, \
        .uses = adam_uses, .has_betas = true, .mixed = true, .options = adam_options \
    }
static const ds_optim_type adam_type = ADAM_TYPE("adam"), adamw_type = ADAM_TYPE("adamw");

/* The options, and what configurations alone have. */
typedef struct AdamParams {
    ds_adam_opts o;
    bool adam_w_mode, torch_adam, decoupled_weight_decay, fp32_optimizer_states;
} AdamParams;

DSI_ASSERT_BETAS(ds_adam_opts);
#define ADAM_NUMBERS(decay) \
    DSI_LR(ds_adam_opts, 1e-3), DSI_BETAS(ds_adam_opts, 0.9, 0.999), DSI_EPS(ds_adam_opts, 1e-8), \
        DSI_WEIGHT_DECAY(ds_adam_opts, decay)
#define FLAG(member, default_, what) \
    { \
        .name = #member, .kind = DSI_PARAM_BOOL, .offset = offsetof(AdamParams, member), \
        .value = {default_}, .help = what \
    }
#define AMSGRAD DSI_FLAG(ds_adam_opts, amsgrad, "divide by the largest second moment so far")
#define MODES(adamw, torch) \
    FLAG(adam_w_mode, adamw, "AdamW's weight decay; AdamW takes no notice of it"), \
        FLAG(torch_adam, torch, "torch's class, parameters and defaults")

static const dsi_param adam_params[] = {
    ADAM_NUMBERS(0),
    DSI_PARAM("bias_correction", NOT, ANY, ds_adam_opts, no_bias_correction, .value = {true},
              .help = "divide the moments by 1 - beta^t"),
    DSI_PARAM("amsgrad", BOOL, ANY, ds_adam_opts, amsgrad, .value = {false},
              .help = "refused: DeepSpeed's classes do not have it, torch's do"),
    MODES(true, false),
    FLAG(fp32_optimizer_states, true, "false is refused: moments are float32"),
    DSI_IGNORED("set_grad_none"),
    {0}};
static const dsi_param torch_adamw_params[] = {ADAM_NUMBERS(0.01),         AMSGRAD,
                                               DSI_MAXIMIZE(ds_adam_opts), MODES(true, true),
                                               DSI_TORCH_IGNORED,          {0}};
static const dsi_param torch_adam_params[] = {
    ADAM_NUMBERS(0),
    AMSGRAD,
    DSI_MAXIMIZE(ds_adam_opts),
    MODES(false, true),
    FLAG(decoupled_weight_decay, false, "AdamW's weight decay"),
    DSI_TORCH_IGNORED,
    {0}};

/* DeepSpeed's classes lack amsgrad and have a switch for the moments' dtype;
 * with "torch_adam" torch's options count. */
static bool adam_check(const char *prefix, const void *params)
{
    const AdamParams *p = params;
    if (p->o.amsgrad && !p->torch_adam)
        return dsi_refuse("%samsgrad: DeepSpeed's class does not have it; torch's does: "
                          "\"torch_adam\": true",
                          prefix);
    if (!p->torch_adam && !p->fp32_optimizer_states)
        return dsi_refuse("%sfp32_optimizer_states is false: moments are float32 here", prefix);
    return true;
}

/* decoupled: AdamW's weight decay. It is no public option: ds_optim_adam and
 * ds_optim_adamw differ in it alone. */
static ds_optim *adam_new(const ds_optim_type *type, ds_module *model, ds_adam_opts o,
                          bool decoupled)
{
    if (!dsi_params_check(type->name, adam_params, &o, sizeof o)) return NULL;
    ds_optim_values v = {o.lr, o.weight_decay, .betas = {o.beta1, o.beta2}};
    ds_optim *o_new = ds_optim_new(model, type, v);
    if (o_new)
        *(dsi_adam *)o_new->self = (dsi_adam){.eps = o.eps,
                                              .decoupled = decoupled,
                                              .amsgrad = o.amsgrad,
                                              .maximize = o.maximize,
                                              .bias_correction = !o.no_bias_correction};
    return o_new;
}

/* weight_decay p is added to the gradient (torch.optim.Adam). */
ds_optim *ds_optim_adam_with(ds_module *model, ds_adam_opts opts)
{
    return adam_new(&adam_type, model, opts, false);
}

/* p is decayed directly, by lr weight_decay p (torch.optim.AdamW). */
ds_optim *ds_optim_adamw_with(ds_module *model, ds_adam_opts opts)
{
    return adam_new(&adamw_type, model, opts, true);
}

/* As in DeepSpeed, "Adam" is AdamW unless "adam_w_mode" is false. */
static ds_optim *adam_make(ds_module *model, const void *params)
{
    const AdamParams *p = params;
    bool decoupled = p->adam_w_mode || p->decoupled_weight_decay;
    return decoupled ? ds_optim_adamw_with(model, p->o) : ds_optim_adam_with(model, p->o);
}

static ds_optim *adamw_make(ds_module *model, const void *params)
{
    return ds_optim_adamw_with(model, ((const AdamParams *)params)->o);
}

#define ADAM_ENTRY(called, kind, without_mode) \
    { \
        .name = called, .type = &kind##_type, .source = "deepspeed.ops.adam.FusedAdam", \
        .deepspeed = true, .zero_tested = true, .params = adam_params, \
        .torch_adam = {without_mode, torch_adamw_params}, .params_size = sizeof(AdamParams), \
        .check = adam_check, .make = kind##_make \
    }
const dsi_optim_entry dsi_optim_adam = ADAM_ENTRY("Adam", adam, torch_adam_params);
const dsi_optim_entry dsi_optim_adamw = ADAM_ENTRY("AdamW", adamw, torch_adamw_params);
