/* optim/by_name.c: the "optimizer" block of a DeepSpeed configuration: type and
 * params -> an optimizer, by the list of list.h.
 *
 * As in DeepSpeed 0.19, its own names are known in any case of letters; all
 * others are classes of torch.optim and must match. "torch_adam": true chooses
 * torch's Adam or AdamW, with their parameters and defaults.
 * SPDX-License-Identifier: MIT */
#include "list.h"
#include "optim.h"

#include <jansson.h>
#include <string.h>
#include <strings.h>

/* ---- the list ------------------------------------------------------------------------------------------ */

#define ADDRESS(id) &dsi_optim_##id,
static const dsi_optim_entry *const optimizers[] = {DSI_OPTIMIZERS(ADDRESS) NULL};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers - 1 };

bool dsi_optim_zero_tested(const ds_optim *o)
{
    for (int i = 0; i < OPTIMIZERS; i++)
        if (optimizers[i]->type == o->type) return optimizers[i]->zero_tested;
    return false;
}

dsi_text dsi_optim_names(bool zero_tested)
{
    dsi_text names = {0};
    for (int i = 0; i < OPTIMIZERS; i++)
        if (!zero_tested || optimizers[i]->zero_tested)
            dsi_text_add(&names, "%s%s", names.n ? ", " : "", optimizers[i]->name);
    return names;
}

/* ---- types that are not offered ------------------------------------------------------------------------ */

typedef struct Unsupported {
    const char *name;
    bool deepspeed; /* in any case of letters; else torch.optim's */
    const char *why;
} Unsupported;

static const char one_bit[] = "it compresses what ranks exchange to one bit, which is not offered "
                              "here: use Adam or Lamb";
static const char mup[] = "it scales rates by the widths that package mup notes: use parameter "
                          "groups";

static const Unsupported unsupported[] = {
    {"OneBitAdam", true, one_bit}, {"ZeroOneAdam", true, one_bit}, {"OneBitLamb", true, one_bit},
    {"MuAdam", true, mup},         {"MuAdamW", true, mup},         {"MuSGD", true, mup},
    {"ASGD", .why = NULL}, /* NULL: torch.optim's, of which the list has others */
    {"Rprop", .why = NULL},        {"Adafactor", .why = NULL},     {"LBFGS", .why = NULL},
    {"SparseAdam", .why = NULL},
};
enum { UNSUPPORTED = sizeof unsupported / sizeof *unsupported };

static bool optim_is_called(const char *entry, bool deepspeed, const char *name)
{
    return !(deepspeed ? strcasecmp : strcmp)(entry, name);
}

/* The type whose class in DeepSpeed or torch has that name, as "FusedAdam"; or
 * NULL. */
static const char *optim_name_of_class(const char *class)
{
    static const char *const before[] = {"Fused", "DeepSpeedCPU", "CPU", "torch.optim."};
    for (size_t k = 0; k < sizeof before / sizeof *before; k++) {
        size_t n = strlen(before[k]);
        for (int i = 0; i < OPTIMIZERS && !strncasecmp(class, before[k], n); i++)
            if (!strcasecmp(optimizers[i]->name, class + n)) return optimizers[i]->name;
    }
    return NULL;
}

/* One message: why a known type is not offered, the name that was probably
 * meant, or all names. */
static void optim_refuse_name(const char *name)
{
    const char *names[OPTIMIZERS];
    for (int i = 0; i < OPTIMIZERS; i++) names[i] = optimizers[i]->name;
    const Unsupported *u = unsupported, *end = unsupported + UNSUPPORTED;
    while (u < end && !optim_is_called(u->name, u->deepspeed, name)) u++;
    const char *near = optim_name_of_class(name);
    if (!near) near = dsi_nearest(name, names, OPTIMIZERS);
    dsi_text all = dsi_optim_names(false);
    if (u < end && u->why)
        dsi_refuse("optimizer.type \"%s\": %s", name, u->why);
    else if (u < end)
        dsi_refuse("optimizer.type \"%s\": not offered here; expected one of %s", name, all.s);
    else if (near)
        dsi_refuse("optimizer.type \"%s\": there is no such optimizer; did you mean \"%s\"?", name,
                   near);
    else
        dsi_refuse("optimizer.type \"%s\": there is no such optimizer; expected one of %s", name,
                   all.s);
    dsi_text_free(&all);
}

/* ---- parameters ---------------------------------------------------------------------------------------- */

/* DeepSpeed's parameters that have no counterpart here. */
static bool optim_refuses_param(const char *name)
{
    static const char *const one_bit_params[] = {
        "freeze_step",        "var_freeze_step", "var_update_scaler", "local_step_scaler",
        "local_step_clipper", "cuda_aware",      "coeff_beta",        "factor_max",
        "comm_backend_name",  "factor_min",      "factor_threshold"};
    bool found = !strcmp(name, "max_grad_norm");
    if (found)
        dsi_refuse(
            "optimizer.params.max_grad_norm: DeepSpeed has \"gradient_clipping\", at the top "
            "of the file, for it");
    for (size_t i = 0; !found && i < sizeof one_bit_params / sizeof *one_bit_params; i++) {
        found = !strcmp(name, one_bit_params[i]);
        if (found)
            dsi_refuse("optimizer.params.%s is of the 1-bit optimizers, which are not offered here",
                       name);
    }
    return found;
}

/* The parameters that object may have. */
static const dsi_param *optim_params_of(const dsi_optim_entry *e, const json_t *object)
{
    if (!e->torch_adam[0] || !json_is_true(json_object_get(object, "torch_adam"))) return e->params;
    return e->torch_adam[!json_is_false(json_object_get(object, "adam_w_mode"))];
}

/* Fills params, a zeroed struct of e->params_size bytes, with the options of
 * the constructor; false with the message. 1-bit parameters are refused first:
 * "freeze_step" names a feature, and is not a misspelt parameter. */
static bool optim_read_params(const dsi_optim_entry *e, const char *text, void *params)
{
    json_t *object = text ? json_loads(text, 0, NULL) : NULL;
    const dsi_param *table = optim_params_of(e, object);
    const char *name;
    json_t *value;
    bool refused = false;
    json_object_foreach(object, name, value) { refused = refused || optim_refuses_param(name); }
    json_decref(object);
    dsi_params_from from = {.path = "optimizer.params", .type = e->name};
    if (refused || dsi_params_read(&from, text, table, params) != DS_OK) return false;
    if (e->check && !e->check("optimizer.params.", params)) return false;
    dsi_params_to_options(table, params);
    return true;
}

/* The model's parameters form one group; params_json may be NULL. The caller
 * frees the optimizer. */
ds_optim *ds_optim_by_name(ds_module *model, const char *type, const char *params_json)
{
    if (!model || !type) return dsi_null_operand("optim_by_name");
    const dsi_optim_entry *e = NULL;
    for (int i = 0; i < OPTIMIZERS && !e; i++)
        if (optim_is_called(optimizers[i]->name, optimizers[i]->deepspeed, type)) e = optimizers[i];
    if (!e) {
        optim_refuse_name(type);
        return NULL;
    }
    void *params = dsi_alloc(e->params_size);
    ds_optim *o = NULL;
    if (optim_read_params(e, params_json, params))
        o = e->make ? e->make(model, params)
                    : dsi_optim_from(model, e->type, e->params, params, e->params_size);
    dsi_free(params);
    return o;
}
