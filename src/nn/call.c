/* nn/call.c: calls of modules, and hooks around them.
 *
 * Invariants: every forward runs through ds_call_n, which names the module for
 * messages and gives the call a scope. Around a forward come the hooks of those
 * who run the tree (dsi_call_hooks: parameters are gathered), within them
 * forward hooks.
 * SPDX-License-Identifier: MIT */
#include "base/profile.h"
#include "tensor/tensor.h"
#include "tree.h"

#include <deepspeed/autograd.h>

#include <string.h>

/* ---- forward hooks ----------------------------------------------------------------------------------- */

static int forward_hook_add(ds_module *m, dsi_forward_hook hook)
{
    if (!dsi_live(m, "register_forward_hook") || (!hook.before && !hook.after)) {
        dsi_null_operand("register_forward_hook");
        return -1;
    }
    dsi_list_add(&m->forward_hooks, hook);
    return m->forward_hooks.n - 1;
}

int ds_register_forward_pre_hook(ds_module *m, ds_forward_pre_hook *hook, void *arg)
{
    return forward_hook_add(m, (dsi_forward_hook){.before = hook, .arg = arg});
}

int ds_register_forward_hook(ds_module *m, ds_forward_hook *hook, void *arg)
{
    return forward_hook_add(m, (dsi_forward_hook){.after = hook, .arg = arg});
}

void ds_remove_forward_hook(ds_module *m, int handle)
{
    if (!dsi_live(m, "remove_forward_hook")) return;
    if (handle >= 0 && handle < m->forward_hooks.n)
        m->forward_hooks.at[handle] = (dsi_forward_hook){0};
    else
        dsi_fail(DS_EINVAL, "remove_forward_hook: %s has no hook %d", m->name, handle);
}

/* ---- call -------------------------------------------------------------------------------------------- */

static ds_tensor *module_forward(ds_module *m, ds_tensor **in, int n)
{
    const ds_module_type *type = &m->type;
    if (type->forward_n) return type->forward_n(ds_self(m), in, n);
    if (!type->forward) return dsi_refuse("%s has no forward", type->name);
    if (n != 1) return dsi_refuse("%s takes one tensor: it was given %d", type->name, n);
    return type->forward(ds_self(m), in[0]);
}

/* Each hook sees what the one before it left. A hook may remove hooks, or add
 * some that run from the next call on. */
static ds_tensor *module_forward_with_hooks(ds_module *m, ds_tensor **in, int n)
{
    int hooks = m->forward_hooks.n;
    ds_tensor **x = dsi_alloc((size_t)(n ? n : 1) * sizeof *x), *y = NULL;
    ds_status status = DS_OK;
    memcpy(x, in, (size_t)n * sizeof *x);
    for (int i = 0; i < hooks && status == DS_OK; i++) {
        dsi_forward_hook h = m->forward_hooks.at[i];
        if (h.before) status = h.before(h.arg, m, x, n);
        for (int k = 0; k < n; k++)
            if (!x[k]) status = dsi_null_argument("forward_pre_hook");
        if (status != DS_OK && !ds_error())
            dsi_fail(status, "a forward_pre_hook failed and did not say why");
    }
    if (status == DS_OK) y = module_forward(m, x, n);
    for (int i = 0; i < hooks && y; i++) {
        dsi_forward_hook h = m->forward_hooks.at[i];
        if (h.after) y = h.after(h.arg, m, x, n, y);
        if (!y && !ds_error()) dsi_fail(DS_EINVAL, "a forward_hook returned NULL");
    }
    dsi_free(x);
    return y;
}

static ds_tensor *module_run(ds_module *m, ds_tensor **in, int n)
{
    return m->forward_hooks.n ? module_forward_with_hooks(m, in, n) : module_forward(m, in, n);
}

/* `after` runs also if the forward failed: it releases what `before`
 * gathered. */
static ds_tensor *module_hooked_run(ds_module *m, ds_tensor **in, int n)
{
    const dsi_call_hooks *h = m->hooks;
    if (h->before && h->before(h->arg, m) != DS_OK) return NULL;
    ds_tensor *y = module_run(m, in, n);
    if (h->after && h->after(h->arg, m, y) != DS_OK) return NULL;
    return y;
}

/* in: n tensors, borrowed. The result belongs to the caller's scope; all other
 * tensors of the forward end with the call's own, except those that the graph
 * has saved. NULL, with a message that begins with the module's path, if any
 * of it failed. */
ds_tensor *ds_call_n(ds_module *m, ds_tensor **in, int n)
{
    if (!dsi_live(m, "call")) return dsi_null_operand("call");
    for (int i = 0; i < n; i++)
        if (!in[i]) return dsi_null_operand(m->name);
    dsi_error_context here = {dsi_module_write_path, m};
    const dsi_error_context *was = dsi_error_context_enter(&here);
    ds_scope *scope = ds_scope_open();
    dsi_place before = dsi_observe_module();
    ds_tensor *y = m->hooks ? module_hooked_run(m, in, n) : module_run(m, in, n);
    dsi_observe_end(before);
    if (!y && !ds_error()) dsi_fail(DS_EINVAL, "forward returned NULL");
    y = dsi_scope_return(scope, dsi_ref(y));
    dsi_error_context_leave(was);
    return y;
}

static ds_tensor *module_call(void *module, ds_tensor **in, int n)
{
    return ds_call_n(module, in, n);
}

/* The backward runs the module again, with its hooks, in place of keeping the
 * forward's tensors. */
ds_tensor *ds_checkpoint_call_n(ds_module *m, ds_tensor **in, int n)
{
    return m ? ds_checkpoint(module_call, m, in, n) : dsi_null_operand("checkpoint_call");
}

void dsi_module_set_hooks(ds_module *root, const dsi_call_hooks *hooks)
{
    if (!root) return;
    root->hooks = hooks;
    for (int i = 0; i < root->children.n; i++) dsi_module_set_hooks(root->children.at[i], hooks);
}

bool dsi_module_has_hooks(const ds_module *m) { return m->hooks || m->forward_hooks.n; }

void ds_module_train(ds_module *m, bool training)
{
    if (!m) return;
    m->eval = !training;
    for (int i = 0; i < m->children.n; i++) ds_module_train(m->children.at[i], training);
}

bool ds_module_training(const ds_module *m) { return m && !m->eval; }
