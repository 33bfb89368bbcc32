/* nn/module.h: what those who run a tree of modules need of it: hooks around
 * its calls; which parts of it are
 * experts.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/nn.h>

/* Around each call of a module: a hook that fails makes the call fail. after
 * follows each before that did not fail; y is NULL if the forward failed. Both
 * run in the call's scope. Either may be NULL. */
typedef struct dsi_call_hooks {
    void *arg;
    ds_status (*before)(void *arg, ds_module *m);
    ds_status (*after)(void *arg, ds_module *m, ds_tensor *y);
} dsi_call_hooks;

/* root and all modules below it, also those made later; hooks are borrowed.
 * NULL: none. */
void dsi_module_set_hooks(ds_module *root, const dsi_call_hooks *hooks);

/* Whether hooks of any kind run around a call of m. */
bool dsi_module_has_hooks(const ds_module *m);

/* linear.c, sequential.c, activation.c: what m's forward is. Parameters of a
 * Linear: weight, then bias if it has one. Pointwise: each element of the
 * output depends on that of the input alone, except for a mask of dropout; no
 * parameters. */
bool dsi_module_is_linear(const ds_module *m);
bool dsi_module_is_sequential(const ds_module *m);
bool dsi_module_is_pointwise(const ds_module *m);

/* Whether an engine has m, so that other code may not free it. Returns
 * whether it had before. */
bool dsi_module_take(ds_module *m, bool taken);
/* Takes m, which has a parent, out of its tree, and frees it. */
void dsi_module_remove(ds_module *m);

/* Calls fn for each parameter that this thread makes from now on, except those
 * of experts that ranks share. The layer may write the parameter's first values
 * after the call. If fn fails, ds_module_param fails. NULL: no more calls. */
void dsi_on_param(ds_status (*fn)(void *arg, ds_tensor *x), void *arg);

/* ds_module_print, with what `note` writes about a module, without a newline,
 * before its options. */
typedef void dsi_module_note(void *arg, ds_module *m, FILE *to);
void dsi_module_print_notes(ds_module *m, dsi_module_note *note, void *arg, FILE *to);

/* A bool as Python prints it, for `describe`. */
static inline const char *dsi_python_bool(bool x) { return x ? "True" : "False"; }

/* ---- experts ------------------------------------------------------------------------------------------- */

/* Note [Experts] The children of a module that has this mark are experts
 * `first` .. of a layer's `all`: those that this rank has. Ranks r, r +
 * ep_size, r + 2 ep_size .. have the same ones: they are its data group, in
 * which an expert's gradients are reduced and its optimizer state is divided.
 * ep_size ranks in a row have all experts between them: its expert group, in
 * which tokens are exchanged. With ep_size 1 every rank has all experts, and
 * they are parameters like any other. The names of children are the numbers of
 * experts in the layer, so that a parameter has the same name however many
 * ranks share them. */
typedef struct dsi_experts {
    int first, all, ep_size;
    struct ds_comm *expert, *data; /* NULL: ep_size is 1 */
} dsi_experts;

/* m and all that is made below it later; e is borrowed. */
void dsi_module_set_experts(ds_module *m, const dsi_experts *e);

typedef struct dsi_expert {
    int layer;             /* the how-manieth marked module of the tree */
    int number;            /* of the expert in its layer: 0 .. of->all - 1 */
    const dsi_experts *of; /* NULL: x belongs to no expert */
} dsi_expert;

/* Of which expert below root the parameter or buffer x is. */
dsi_expert dsi_module_expert_of(const ds_module *root, const ds_tensor *x);
/* Whether x is a parameter of m or of a module below it. */
bool dsi_module_has_param(const ds_module *m, const ds_tensor *x);
bool dsi_module_in_expert(const ds_module *m);
const ds_module *dsi_module_root(const ds_module *m);

/* Whether a state dict fits m, whose own is `mine`: names, except those of
 * experts of other ranks, and shapes. */
ds_status dsi_module_check_state(const ds_module *m, const ds_state *mine, const ds_state *state);

/* The tensor that `state` has under one of x's names in `mine`: a tied
 * parameter has several. NULL: none. */
ds_tensor *dsi_module_state_find(const ds_state *mine, const ds_tensor *x, const ds_state *state);
