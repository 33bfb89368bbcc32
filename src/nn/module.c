/* nn/module.c: the tree of modules: ownership, names, calls, traversal,
 * conversion.
 *
 * A module is one block of memory: this struct, then the user's.
 *
 * Invariants:
 *  - A parent owns its children, a module references to its parameters and buffers.
 *    Only a root can be freed, and not while `taken`: then an engine owns it.
 *  - Children and parameters of a module have different names without dots, so
 *    each path of a state dict is unique. Their order is that of creation.
 *  - A parameter's handle stays for good; its dtype and storage may change.
 *  - Every forward runs through ds_call_n, which names the module for messages and
 *    gives the call a scope. hooks and experts are borrowed from the caller that
 *    set them, and inherited by modules that are made later.
 * SPDX-License-Identifier: MIT */
#include "module.h"

#include "base/list.h"
#include "base/text.h"
#include "base/thread.h"
#include "tensor/tensor.h"

#include <deepspeed/autograd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Param {
    char *name;
    ds_tensor *x; /* counted */
    bool trained; /* a parameter; else a buffer */
} Param;

typedef struct Params {
    DSI_LIST(Param)
} Params;

struct ds_module {
    const ds_module_type *type;
    char *name;
    ds_module *parent;
    struct {
        DSI_LIST(ds_module *)
    } children;
    Params params;
    const dsi_call_hooks *hooks; /* borrowed, or NULL */
    const dsi_experts *experts;  /* the mark of this module or of one above it; borrowed, or NULL */
    bool eval;                   /* negated, so that a new module trains */
    bool taken;                  /* an engine frees it */
};

#define HEAD_BYTES ((sizeof(ds_module) + 63) / 64 * 64)

void *ds_self(ds_module *m) { return m ? (char *)m + HEAD_BYTES : NULL; }
ds_module *ds_module_of(void *self)
{
    return self ? (ds_module *)((char *)self - HEAD_BYTES) : NULL;
}
const char *ds_module_name(const ds_module *m) { return m ? m->name : NULL; }
const ds_module_type *ds_module_type_of(const ds_module *m) { return m ? m->type : NULL; }
int ds_module_children(const ds_module *m) { return m ? m->children.n : 0; }

ds_module *ds_module_child(const ds_module *m, int i)
{
    return m && i >= 0 && i < m->children.n ? m->children.at[i] : NULL;
}

/* ---- names ------------------------------------------------------------------------------------------- */

/* "net.fc1" into text, for messages: with the root's name. */
static void module_write_path(const void *module, char *text, size_t room)
{
    const ds_module *m = module;
    if (m->parent) {
        module_write_path(m->parent, text, room);
        size_t n = strlen(text);
        snprintf(text + n, room - n, ".%s", m->name);
    } else {
        snprintf(text, room, "%s", m->name);
    }
}

static void module_refuse_name(const ds_module *m, const char *name, const char *why)
{
    char path[256];
    module_write_path(m, path, sizeof path);
    dsi_fail(DS_EINVAL, "%s: \"%s\" cannot be a name here: %s", path, name, why);
}

/* A name becomes a part of state-dict keys, so it is not empty, has no dot, and
 * is there once. */
static void module_check_name(const ds_module *m, const char *name)
{
    if (!*name || strchr(name, '.')) {
        module_refuse_name(m, name, "expected one word without a dot");
        return;
    }
    for (int i = 0; i < m->children.n; i++)
        if (!strcmp(m->children.at[i]->name, name))
            module_refuse_name(m, name, "a child has it already");
    for (int i = 0; i < m->params.n; i++)
        if (!strcmp(m->params.at[i].name, name))
            module_refuse_name(m, name, "a parameter or buffer has it already");
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void module_describe(const void *p, char *text, size_t room)
{
    const ds_module *m = p;
    snprintf(text, room, "%s (%s)", m->name, m->type->name);
}

static const dsi_handle_kind module_kind = {
    "module", module_describe, "a module that was handed to ds_initialize belongs to it", NULL};

ds_module *ds_module_new(ds_module *parent, const char *name, const ds_module_type *type)
{
    static const ds_module_type none = {.name = "Module"};
    if (!type) dsi_null_operand("module_new");
    ds_module *m = dsi_alloc(HEAD_BYTES + (type ? type->self_size : 0));
    m->type = type ? type : &none;
    m->name = dsi_strdup(name ? name : "");
    dsi_handle_call("module_new");
    dsi_handle_made(m, &module_kind);
    if (!parent) return m;
    module_check_name(parent, m->name);
    m->parent = parent;
    m->eval = parent->eval;
    m->hooks = parent->hooks;
    m->experts = parent->experts;
    dsi_list_add(&parent->children, m);
    return m;
}

static void module_free_tree(ds_module *m)
{
    bool quarantined = dsi_handle_freed(m);
    if (m->type->free) m->type->free(ds_self(m));
    for (int i = 0; i < m->children.n; i++) module_free_tree(m->children.at[i]);
    dsi_list_free(&m->children);
    for (int i = 0; i < m->params.n; i++) {
        dsi_free(m->params.at[i].name);
        dsi_unref(m->params.at[i].x);
    }
    dsi_list_free(&m->params);
    dsi_free(m->name);
    if (!quarantined) dsi_free(m);
}

void ds_module_free(ds_module *m)
{
    if (!dsi_live(m, "module_free")) return;
    if (!m->parent && !m->taken) {
        const char *was = dsi_handle_reason("ds_module_free");
        module_free_tree(m);
        dsi_handle_reason_end(was);
        return;
    }
    char path[256];
    module_write_path(m, path, sizeof path);
    dsi_fail(DS_ESTATE, "module_free: %s belongs to %s, which frees it", path,
             m->parent ? m->parent->name : "an engine");
}

bool dsi_module_take(ds_module *m, bool taken)
{
    bool was = m && m->taken;
    if (m) m->taken = taken;
    return was;
}

/* Whether only its scope holds init: then it is the parameter, and its
 * memory belongs to this one handle. A second handle would hold a converted or
 * partitioned parameter's old memory with its scope. */
static bool tensor_is_fresh(const ds_tensor *init)
{
    return init->refs == 1 && init->storage && init->storage->refs == 1 && !init->node &&
           !init->requires_grad && !init->grad;
}

/* init's values as a leaf of m: if it is not fresh a handle of its own, so that
 * init's graph and flags stay
 * away. */
static ds_tensor *module_add_tensor(ds_module *m, const char *name, ds_tensor *init, bool trained)
{
    if (!dsi_live_all("module_param", m, init)) return dsi_null_operand("module_param");
    module_check_name(m, name);
    ds_tensor *x = NULL;
    if (dsi_is_contiguous(init)) {
        x = tensor_is_fresh(init) ? init : dsi_alias(init);
    } else {
        x = dsi_new(init, init->shape);
        if (dsi_copy(x, init) != DS_OK) return NULL;
    }
    if (trained && !ds_require_grad(x, true)) return NULL;
    dsi_list_add(&m->params, (Param){dsi_strdup(name), dsi_ref(x), trained});
    return x;
}

static _Thread_local struct {
    ds_status (*fn)(void *arg, ds_tensor *x);
    void *arg;
} on_param;

void dsi_on_param(ds_status (*fn)(void *arg, ds_tensor *x), void *arg)
{
    on_param.fn = fn;
    on_param.arg = arg;
}

ds_tensor *ds_module_param(ds_module *m, const char *name, ds_tensor *init)
{
    ds_tensor *x = module_add_tensor(m, name, init, true);
    bool shared = m && m->experts && m->experts->ep_size > 1; /* other ranks make other ones */
    if (x && on_param.fn && !shared && on_param.fn(on_param.arg, x) != DS_OK) return NULL;
    return x;
}

ds_tensor *ds_module_buffer(ds_module *m, const char *name, ds_tensor *init)
{
    return module_add_tensor(m, name, init, false);
}

/* ---- call -------------------------------------------------------------------------------------------- */

static ds_tensor *module_forward(ds_module *m, ds_tensor **in, int n)
{
    const ds_module_type *type = m->type;
    if (type->forward_n) return type->forward_n(ds_self(m), in, n);
    if (!type->forward) return dsi_refuse("%s has no forward", type->name);
    if (n != 1) return dsi_refuse("%s takes one tensor: it was given %d", type->name, n);
    return type->forward(ds_self(m), in[0]);
}

static ds_tensor *module_hooked_forward(ds_module *m, ds_tensor **in, int n)
{
    const dsi_call_hooks *h = m->hooks;
    if (h->before && h->before(h->arg, m) != DS_OK) return NULL;
    ds_tensor *y = module_forward(m, in, n);
    if (h->after && h->after(h->arg, m, y) != DS_OK) return NULL;
    return y;
}

ds_tensor *ds_call_n(ds_module *m, ds_tensor **in, int n)
{
    if (!dsi_live(m, "call")) return dsi_null_operand("call");
    for (int i = 0; i < n; i++)
        if (!in[i]) return dsi_null_operand(m->name);
    dsi_error_context here = {module_write_path, m};
    const dsi_error_context *was = dsi_error_context_enter(&here);
    ds_scope *scope = ds_scope_open();
    ds_tensor *y = m->hooks ? module_hooked_forward(m, in, n) : module_forward(m, in, n);
    if (!y) dsi_null_operand("forward");
    y = dsi_scope_return(scope, dsi_ref(y));
    dsi_error_context_leave(was);
    return y;
}

static ds_tensor *module_call(void *module, ds_tensor **in, int n)
{
    return ds_call_n(module, in, n);
}

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

void ds_module_train(ds_module *m, bool training)
{
    if (!m) return;
    m->eval = !training;
    for (int i = 0; i < m->children.n; i++) ds_module_train(m->children.at[i], training);
}

bool ds_module_training(const ds_module *m) { return m && !m->eval; }

/* ---- walk -------------------------------------------------------------------------------------------- */

typedef bool Visit(void *arg, const char *path, const Param *p);

/* Calls visit for each parameter and buffer of m and below, in PyTorch's order:
 * a module's own parameters, its buffers, its children. Stops when visit
 * returns false. */
static bool module_walk(const ds_module *m, dsi_text *path, Visit *visit, void *arg)
{
    size_t length = path->n;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < m->params.n; i++) {
            if (m->params.at[i].trained != (pass == 0)) continue;
            dsi_text_add(path, "%s", m->params.at[i].name);
            bool more = visit(arg, path->s, &m->params.at[i]);
            path->s[path->n = length] = 0;
            if (!more) return false;
        }
    for (int i = 0; i < m->children.n; i++) {
        dsi_text_add(path, "%s.", m->children.at[i]->name);
        bool more = module_walk(m->children.at[i], path, visit, arg);
        path->s[path->n = length] = 0;
        if (!more) return false;
    }
    return true;
}

static void module_walk_from(const ds_module *m, Visit *visit, void *arg)
{
    dsi_text path = {0};
    if (m) module_walk(m, &path, visit, arg);
    dsi_text_free(&path);
}

/* Parameters are counted and found without making their paths: every step asks
 * for them. */
int ds_module_params(const ds_module *m)
{
    int n = 0;
    if (!m) return 0;
    for (int i = 0; i < m->params.n; i++) n += m->params.at[i].trained;
    for (int i = 0; i < m->children.n; i++) n += ds_module_params(m->children.at[i]);
    return n;
}

static const Param *module_find_param(const ds_module *m, int *i)
{
    for (int k = 0; k < m->params.n; k++)
        if (m->params.at[k].trained && (*i)-- == 0) return &m->params.at[k];
    for (int k = 0; k < m->children.n; k++) {
        const Param *p = module_find_param(m->children.at[k], i);
        if (p) return p;
    }
    return NULL;
}

typedef struct Wanted {
    const ds_tensor *x;
    const char *path;
} Wanted;

static bool param_note_path(void *arg, const char *path, const Param *p)
{
    enum { ROOM = 512 };
    static _Thread_local void *text;
    Wanted *wanted = arg;
    if (p->x != wanted->x) return true;
    snprintf(dsi_thread_memory(&text, ROOM), ROOM, "%s", path);
    wanted->path = text;
    return false;
}

ds_tensor *ds_module_param_at(const ds_module *m, int i, const char **path)
{
    const Param *p = m && i >= 0 ? module_find_param(m, &i) : NULL;
    if (path) {
        Wanted wanted = {p ? p->x : NULL, NULL};
        if (p) module_walk_from(m, param_note_path, &wanted);
        *path = wanted.path;
    }
    return p ? p->x : NULL;
}

void ds_module_zero_grad(ds_module *m)
{
    if (!m) return;
    for (int i = 0; i < m->params.n; i++) ds_set_grad_of(m->params.at[i].x, NULL);
    for (int i = 0; i < m->children.n; i++) ds_module_zero_grad(m->children.at[i]);
}

/* ---- experts: Note [Experts] -------------------------------------------------------------------------- */

void dsi_module_set_experts(ds_module *m, const dsi_experts *e)
{
    if (m) m->experts = e;
}

bool dsi_module_in_expert(const ds_module *m) { return m && m->experts; }

const ds_module *dsi_module_root(const ds_module *m)
{
    while (m && m->parent) m = m->parent;
    return m;
}

/* Whether m is the marked one, and not below it. */
static bool module_is_marked(const ds_module *m)
{
    return m->experts && (!m->parent || m->parent->experts != m->experts);
}

/* Whether x is m's or of one below; `layer` counts the marked ones on the way. */
static bool module_find_expert(const ds_module *m, const ds_tensor *x, int *layer,
                               dsi_expert *found)
{
    int mine = *layer;
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i].x == x) return true;
    for (int i = 0; i < m->children.n; i++) {
        if (!module_find_expert(m->children.at[i], x, layer, found)) continue;
        if (module_is_marked(m)) *found = (dsi_expert){mine, m->experts->first + i, m->experts};
        return true;
    }
    *layer += module_is_marked(m);
    return false;
}

dsi_expert dsi_module_expert_of(const ds_module *root, const ds_tensor *x)
{
    dsi_expert found = {0};
    int layer = 0;
    if (root && x) module_find_expert(root, x, &layer, &found);
    return found;
}

/* ---- another dtype ----------------------------------------------------------------------------------- */

/* x's values as dtype -> x, whose handle stays. */
static ds_status tensor_convert(ds_tensor *x, ds_dtype dtype)
{
    if (!x || x->dtype == dtype || x->dtype > DS_BF16) return DS_OK;
    ds_tensor *y = dsi_new_dtype(x, dtype, x->shape);
    if (dsi_copy(y, x) != DS_OK) return ds_error_status();
    dsi_tensor_set_data(x, y);
    return DS_OK;
}

/* Tensor by tensor, so that memory never holds the module twice. */
ds_status ds_module_to(ds_module *m, ds_dtype dtype)
{
    if (!dsi_live(m, "module_to")) return dsi_null_argument("module_to");
    if ((unsigned)dtype > DS_BF16)
        return dsi_fail(DS_EINVAL, "module_to: %s: expected a floating-point dtype",
                        ds_dtype_name(dtype));
    for (int i = 0; i < m->params.n; i++) {
        ds_tensor *x = m->params.at[i].x;
        ds_scope *scope = ds_scope_open();
        ds_status status = tensor_convert(x, dtype);
        if (status == DS_OK) status = tensor_convert(x->grad, dtype);
        ds_scope_close(scope);
        if (status != DS_OK) return status;
    }
    for (int i = 0; i < m->children.n; i++)
        if (ds_module_to(m->children.at[i], dtype) != DS_OK) return ds_error_status();
    return DS_OK;
}

/* ---- state dicts ------------------------------------------------------------------------------------- */

static bool module_add_entry(void *state, const char *path, const Param *p)
{
    return ds_state_set(state, path, p->x) == DS_OK;
}

ds_state *ds_module_state(const ds_module *m)
{
    ds_state *state = ds_state_new();
    module_walk_from(m, module_add_entry, state);
    return state;
}

/* Whether name is that of an expert that m's layer has on another rank:
 * "..list.7.weight". */
static bool module_expert_is_remote(const ds_module *m, const char *name)
{
    char *end;
    size_t length = strcspn(name, ".");
    if (module_is_marked(m)) {
        long number = strtol(name, &end, 10);
        return end > name && *end == '.' && number >= 0 && number < m->experts->all;
    }
    for (int i = 0; i < m->children.n; i++) {
        const ds_module *child = m->children.at[i];
        if (!strncmp(child->name, name, length) && !child->name[length] && name[length])
            return module_expert_is_remote(child, name + length + 1);
    }
    return false;
}

#define NAMED 6 /* of each kind: another model's hundreds of names say no more */

static void state_add_rest(dsi_text *bad, int n, const char *kind)
{
    if (n > NAMED) dsi_text_add(bad, "; %d more %s", n - NAMED, kind);
}

/* All differences, in one message. */
static void state_compare(const ds_module *m, const ds_state *want, const ds_state *got,
                          dsi_text *bad)
{
    int missing = 0, other = 0, unknown = 0;
    for (int i = 0; i < ds_state_len(want); i++) {
        const char *name = ds_state_name(want, i);
        ds_tensor *w = ds_state_at(want, i), *g = ds_state_get(got, name);
        if (g || missing++ >= NAMED) continue;
        dsi_text_add(bad, "%smissing %s %s", bad->n ? "; " : "", name, dsi_shape_text(w->shape));
    }
    state_add_rest(bad, missing, "missing");
    for (int i = 0; i < ds_state_len(want); i++) {
        const char *name = ds_state_name(want, i);
        ds_tensor *w = ds_state_at(want, i), *g = ds_state_get(got, name);
        if (!g || dsi_same_shape(w->shape, g->shape) || other++ >= NAMED) continue;
        dsi_text_add(bad, "%s%s is %s, expected %s", bad->n ? "; " : "", name,
                     dsi_shape_text(g->shape), dsi_shape_text(w->shape));
    }
    state_add_rest(bad, other, "of other shapes");
    for (int i = 0; i < ds_state_len(got); i++) {
        const char *name = ds_state_name(got, i);
        if (ds_state_get(want, name) || module_expert_is_remote(m, name) || unknown++ >= NAMED)
            continue;
        dsi_text_add(bad, "%sunknown %s", bad->n ? "; " : "", name);
    }
    state_add_rest(bad, unknown, "unknown");
}

/* The length of "module.", where "module.fc1.weight" is a name of one and
 * "fc1.weight" of the other; 0: no two names are
 * so. */
static size_t state_prefix(const ds_state *longer, const ds_state *shorter)
{
    for (int i = 0; i < ds_state_len(longer); i++) {
        const char *name = ds_state_name(longer, i);
        for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
            if (ds_state_get(shorter, dot + 1)) return (size_t)(dot + 1 - name);
    }
    return 0;
}

static int state_count_prefix(const ds_state *state, const char *with, size_t n)
{
    int count = 0;
    for (int i = 0; i < ds_state_len(state); i++)
        count += !strncmp(ds_state_name(state, i), with, n);
    return count;
}

/* The prefix that all names of `longer` have and none of `shorter`; its length,
 * or 0. */
static size_t state_common_prefix(const ds_state *longer, const ds_state *shorter)
{
    size_t n = state_prefix(longer, shorter);
    const char *name = ds_state_name(longer, 0);
    bool all = n && state_count_prefix(longer, name, n) == ds_state_len(longer);
    return all && !state_count_prefix(shorter, name, n) ? n : 0;
}

/* Why no name fits, and which call helps; false: it is not that. */
static bool state_explain_prefix(const ds_module *m, const ds_state *want, const ds_state *got)
{
    size_t more = state_common_prefix(got, want), less = more ? 0 : state_common_prefix(want, got);
    const char *name = ds_state_name(more ? got : want, 0);
    if (more)
        dsi_fail(DS_EINVAL,
                 "%s: the state dict does not fit: all its names begin with \"%.*s\"%s, those of "
                 "the module do "
                 "not: ds_state_strip_prefix(state, \"%.*s\") takes it off",
                 m->name, (int)more, name,
                 strncmp(name, "module.", 7)
                     ? ""
                     : ", as DistributedDataParallel and DataParallel save them",
                 (int)more, name);
    if (less)
        dsi_fail(DS_EINVAL,
                 "%s: the state dict does not fit: all names of the module begin with \"%.*s\", "
                 "those of the "
                 "state dict do not: ds_state_add_prefix(state, \"%.*s\") puts it there",
                 m->name, (int)less, name, (int)less, name);
    return more || less;
}

ds_status dsi_module_check_state(const ds_module *m, const ds_state *mine, const ds_state *state)
{
    dsi_text bad = {0};
    state_compare(m, mine, state, &bad);
    ds_status status = DS_OK;
    if (bad.n && state_explain_prefix(m, mine, state))
        status = DS_EINVAL;
    else if (bad.n)
        status = dsi_fail(DS_EINVAL, "%s: the state dict does not fit: %s", m->name, bad.s);
    dsi_text_free(&bad);
    return status;
}

ds_status ds_module_load(ds_module *m, const ds_state *state)
{
    if (!dsi_live_all("module_load", m, state)) return dsi_null_argument("module_load");
    ds_state *mine = ds_module_state(m);
    ds_status status = dsi_module_check_state(m, mine, state);
    for (int i = 0; i < ds_state_len(mine) && status == DS_OK; i++)
        status = dsi_copy(ds_state_at(mine, i), ds_state_get(state, ds_state_name(mine, i)));
    ds_state_free(mine);
    return status;
}
