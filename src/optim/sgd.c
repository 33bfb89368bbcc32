/* optim/sgd.c: stochastic gradient descent: torch.optim.SGD.
 *
 *     g += weight_decay p
 *     m = momentum m + (1 - dampening) g, at the first step m = g
 *     p -= lr m, with nesterov lr (g + momentum m), without momentum lr g
 *
 * The momentum's buffer is moment 0 and is made only for a group that has a
 * momentum; the kernel computes the rule.
 * SPDX-License-Identifier: MIT */
#include "list.h"
#include "optim.h"

static ds_status sgd_step(void *self, const ds_optim_values *v, const ds_optim_update *x, int n)
{
    dsi_sgd c = *(const dsi_sgd *)self;
    c.lr = v->lr, c.momentum = v->momentum, c.weight_decay = v->weight_decay;
    return dsi_optim_run(&(dsi_optimizer){.rule = DSI_SGD, .sgd = c}, x, n);
}

/* By group: a group whose momentum is 0 has no buffer. */
static bool sgd_uses(const void *self, const ds_optim_values *v, int i)
{
    (void)self, (void)i;
    return v->momentum != 0;
}

static const ds_optim_option sgd_options[] = {
    {"dampening", DS_OPTION_DOUBLE, offsetof(dsi_sgd, dampening)},
    {"nesterov", DS_OPTION_BOOL, offsetof(dsi_sgd, nesterov)},
    {"maximize", DS_OPTION_BOOL, offsetof(dsi_sgd, maximize)},
    {"foreach", DS_OPTION_NONE, 0},
    {"differentiable", DS_OPTION_FALSE, 0},
    {"fused", DS_OPTION_NONE, 0},
    {0}};

static const ds_optim_type sgd_type = {.name = "sgd",
                                       .self_size = sizeof(dsi_sgd),
                                       .moment = {"momentum_buffer"},
                                       .step_n = sgd_step,
                                       .uses = sgd_uses,
                                       .has_momentum = true,
                                       .mixed = true,
                                       .options = sgd_options,
                                       .no_step = true};

static const dsi_param sgd_params[] = {
    DSI_LR(ds_sgd_opts, 1e-3),
    DSI_NUMBER(ds_sgd_opts, momentum, "factor of the last update", 0),
    DSI_PARAM("dampening", NUMBER, ANY, ds_sgd_opts, dampening, .value = {0},
              .help = "the gradient counts 1 - dampening"),
    DSI_WEIGHT_DECAY(ds_sgd_opts, 0),
    DSI_FLAG(ds_sgd_opts, nesterov, "look ahead by the momentum"),
    DSI_MAXIMIZE(ds_sgd_opts),
    DSI_TORCH_IGNORED,
    {0}};

/* torch.optim.SGD refuses the same. prefix: "sgd: " or the path of the
 * configuration, with which the message begins. */
static bool sgd_check(const char *prefix, const void *params)
{
    const ds_sgd_opts *o = params;
    if (!o->nesterov || (o->momentum != 0 && o->dampening == 0)) return true;
    return dsi_refuse("%snesterov needs a momentum and no dampening, but they are %g and %g",
                      prefix, o->momentum, o->dampening);
}

/* Options are put in place of their defaults before they are checked
 * together. */
ds_optim *ds_optim_sgd_with(ds_module *model, ds_sgd_opts o)
{
    if (!dsi_params_check("sgd", sgd_params, &o, sizeof o) || !sgd_check("sgd: ", &o)) return NULL;
    return dsi_optim_from(model, &sgd_type, sgd_params, &o, sizeof o);
}

const dsi_optim_entry dsi_optim_sgd = {.name = "SGD",
                                       .type = &sgd_type,
                                       .source = "torch.optim.SGD",
                                       .params = sgd_params,
                                       .params_size = sizeof(ds_sgd_opts),
                                       .check = sgd_check};
