/* nn/module.h: what those who run a tree of modules need of it: hooks around its calls.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_NN_MODULE_H
#define DSI_NN_MODULE_H

#include <deepspeed/nn.h>

/* Around each call of a module: a hook that fails makes the call fail. after follows each before that did
 * not fail; y is NULL if the forward failed. Both run in the call's scope. Either may be NULL. */
typedef struct dsi_call_hooks {
    void *arg;
    ds_status (*before)(void *arg, ds_module *m);
    ds_status (*after)(void *arg, ds_module *m, ds_tensor *y);
} dsi_call_hooks;

/* root and all modules below it, also those made later; hooks are borrowed. NULL: none. */
void dsi_module_set_hooks(ds_module *root, const dsi_call_hooks *hooks);

/* Calls fn for each parameter that this thread makes from now on; its layer may still be going to write its
 * first values. If fn fails so does ds_module_param. NULL: no more. */
void dsi_on_param(ds_status (*fn)(void *arg, ds_tensor *x), void *arg);

#endif
