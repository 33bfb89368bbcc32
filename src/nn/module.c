/* nn/module.c: the tree of modules: ownership, names, traversal, conversion.
 *
 * A module is one block of memory: this struct, then the user's.
 *
 * Invariants:
 *  - A parent owns its children, a module references to its parameters and buffers.
 *    Only a root can be freed, and not while `taken`: then an engine owns it.
 *  - Children and parameters of a module have different names without dots, so
 *    each path of a state dict is unique. Their order is that of creation.
 *  - A parameter's handle stays for good; its dtype and storage may change.
 *  - A module has a copy of its type, so that the caller's may be a temporary.
 *  - A tied tensor is an entry of several modules; the one that made it lists it
 *    as a parameter, the others as tied, so that it is trained once.
 *  - hooks and experts are borrowed from the caller that set them, and inherited by
 *    modules that are made later.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "base/thread.h"
#include "tensor/tensor.h"
#include "tree.h"

#include <deepspeed/autograd.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES ((sizeof(ds_module) + 63) / 64 * 64)

/* The user's struct begins at a multiple of 64 bytes behind the module's own,
 * so both directions are a subtraction and neither stores a pointer. */
void *ds_self(ds_module *m) { return m ? (char *)m + HEAD_BYTES : NULL; }
ds_module *ds_module_of(void *self)
{
    return self ? (ds_module *)((char *)self - HEAD_BYTES) : NULL;
}
const char *ds_module_name(const ds_module *m) { return m ? m->name : NULL; }
const ds_module_type *ds_module_type_of(const ds_module *m) { return m ? &m->type : NULL; }
int ds_module_children(const ds_module *m) { return m ? m->children.n : 0; }

ds_module *ds_module_child(const ds_module *m, int i)
{
    return m && i >= 0 && i < m->children.n ? m->children.at[i] : NULL;
}

/* ---- by path ------------------------------------------------------------------------------------------ */

/* The child whose name is the first n characters of name; or NULL. */
static ds_module *module_find_child(const ds_module *m, const char *name, size_t n)
{
    for (int i = 0; i < m->children.n; i++)
        if (!strncmp(m->children.at[i]->name, name, n) && !m->children.at[i]->name[n])
            return m->children.at[i];
    return NULL;
}

/* "conv1, bn1" */
static void *module_refuse_path(const ds_module *m, const char *what, const char *path)
{
    dsi_text names = {0};
    for (int i = 0; i < m->children.n; i++)
        dsi_text_add(&names, "%s%s", i ? ", " : "", m->children.at[i]->name);
    for (int i = 0; i < m->entries.n; i++)
        dsi_text_add(&names, "%s%s", names.n ? ", " : "", m->entries.at[i].name);
    dsi_refuse("%s: %s (%s) has no \"%s\": %s%s", what, *m->name ? m->name : "root", m->type.name,
               path, names.n ? "expected one of: " : "it has neither children nor parameters",
               names.n ? names.s : "");
    dsi_text_free(&names);
    return NULL;
}

/* path "layers.0.mlp", from m; "" is m itself. The result is borrowed. */
ds_module *ds_submodule(const ds_module *m, const char *path)
{
    if (!dsi_live_all("submodule", m, path)) return dsi_null_operand("submodule");
    for (size_t n; *path; path += n + (path[n] == '.')) {
        n = strcspn(path, ".");
        ds_module *child = module_find_child(m, path, n);
        if (!child) return module_refuse_path(m, "submodule", path);
        m = child;
    }
    return (ds_module *)m;
}

/* Of a parameter, buffer or tied tensor; the result is borrowed, and valid as
 * long as the module. */
ds_tensor *ds_parameter(const ds_module *m, const char *path)
{
    if (!dsi_live_all("parameter", m, path)) return dsi_null_operand("parameter");
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        ds_module *child = module_find_child(m, path, (size_t)(dot - path));
        if (!child) return module_refuse_path(m, "parameter", path);
        m = child;
    }
    for (int i = 0; i < m->entries.n; i++)
        if (!strcmp(m->entries.at[i].name, path)) return m->entries.at[i].x;
    return module_refuse_path(m, "parameter", path);
}

/* ---- names ------------------------------------------------------------------------------------------- */

/* From the root on; a path that is too long is cut at the end of text. */
void dsi_module_write_path(const void *module, char *text, size_t room)
{
    const ds_module *m = module;
    if (m->parent) {
        dsi_module_write_path(m->parent, text, room);
        size_t n = strlen(text);
        snprintf(text + n, room - n, ".%s", m->name);
    } else {
        snprintf(text, room, "%s", m->name);
    }
}

static void module_refuse_name(const ds_module *m, const char *name, const char *why)
{
    char path[256];
    dsi_module_write_path(m, path, sizeof path);
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
    for (int i = 0; i < m->entries.n; i++)
        if (!strcmp(m->entries.at[i].name, name))
            module_refuse_name(m, name, "a parameter or buffer has it already");
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void module_describe(const void *p, char *text, size_t room)
{
    const ds_module *m = p;
    snprintf(text, room, "%s (%s)", m->name, m->type.name);
}

static const dsi_handle_kind module_kind = {
    "module", module_describe, "a module that was handed to ds_initialize belongs to it", NULL};

/* A copy of name; without one the number among parent's children, as in a
 * Sequential. */
static char *module_new_name(const ds_module *parent, const char *name)
{
    char number[16] = "";
    if (parent) snprintf(number, sizeof number, "%d", parent->children.n);
    return dsi_strdup(name ? name : number);
}

ds_module *ds_module_new(ds_module *parent, const char *name, const ds_module_type *type)
{
    static const ds_module_type none = {.name = "Module"};
    if (!type) dsi_null_operand("module_new");
    ds_module *m = dsi_alloc(HEAD_BYTES + (type ? type->self_size : 0));
    m->type = type ? *type : none;
    m->name = module_new_name(parent, name);
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

/* The type's free runs before the children are freed, so it may still use
 * them. A quarantined module's memory is kept, so that a later use of the
 * handle is found. */
static void module_free_tree(ds_module *m)
{
    bool quarantined = dsi_handle_freed(m);
    if (m->type.free) m->type.free(ds_self(m));
    for (int i = 0; i < m->children.n; i++) module_free_tree(m->children.at[i]);
    dsi_list_free(&m->children);
    for (int i = 0; i < m->entries.n; i++) {
        dsi_free(m->entries.at[i].name);
        dsi_unref(m->entries.at[i].x);
    }
    dsi_list_free(&m->entries);
    dsi_list_free(&m->forward_hooks);
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
    dsi_module_write_path(m, path, sizeof path);
    dsi_fail(DS_ESTATE, "module_free: %s belongs to %s, which frees it", path,
             m->parent ? m->parent->name : "an engine");
}

void dsi_module_remove(ds_module *m)
{
    ds_module *parent = m->parent;
    int i = 0;
    while (parent->children.at[i] != m) i++;
    parent->children.n--;
    for (; i < parent->children.n; i++) parent->children.at[i] = parent->children.at[i + 1];
    module_free_tree(m);
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
static ds_tensor *module_add_tensor(ds_module *m, const char *name, ds_tensor *init,
                                    dsi_entry_kind kind)
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
    if (kind == DSI_PARAM && !ds_require_grad(x, true)) return NULL;
    dsi_list_add(&m->entries, (dsi_module_entry){dsi_strdup(name), dsi_ref(x), kind});
    return x;
}

static _Thread_local struct {
    ds_status (*fn)(void *arg, ds_tensor *x);
    void *arg;
} on_param;

/* Of this thread alone: a model that another thread makes is not
 * partitioned. */
void dsi_on_param(ds_status (*fn)(void *arg, ds_tensor *x), void *arg)
{
    on_param.fn = fn;
    on_param.arg = arg;
}

ds_tensor *ds_module_param(ds_module *m, const char *name, ds_tensor *init)
{
    ds_tensor *x = module_add_tensor(m, name, init, DSI_PARAM);
    bool shared = m && m->experts && m->experts->ep_size > 1; /* other ranks make other ones */
    if (x && on_param.fn && !shared && on_param.fn(on_param.arg, x) != DS_OK) return NULL;
    return x;
}

ds_tensor *ds_module_buffer(ds_module *m, const char *name, ds_tensor *init)
{
    return module_add_tensor(m, name, init, DSI_BUFFER);
}

ds_tensor *ds_module_tie(ds_module *m, const char *name, ds_tensor *param)
{
    if (!dsi_live_all("module_tie", m, param)) return dsi_null_operand("module_tie");
    if (param->node)
        return dsi_refuse("module_tie: %s is the result of an op: expected a parameter of a module",
                          name);
    module_check_name(m, name);
    dsi_list_add(&m->entries, (dsi_module_entry){dsi_strdup(name), dsi_ref(param), DSI_TIED});
    return param;
}

/* ---- walk -------------------------------------------------------------------------------------------- */

static bool module_walk(const ds_module *m, dsi_text *path, dsi_entry_visit *visit, void *arg)
{
    size_t length = path->n;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < m->entries.n; i++) {
            if ((m->entries.at[i].kind == DSI_BUFFER) != (pass == 1)) continue;
            dsi_text_add(path, "%s", m->entries.at[i].name);
            bool more = visit(arg, path->s, &m->entries.at[i]);
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

void dsi_module_walk(const ds_module *m, dsi_entry_visit *visit, void *arg)
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
    for (int i = 0; i < m->entries.n; i++) n += m->entries.at[i].kind == DSI_PARAM;
    for (int i = 0; i < m->children.n; i++) n += ds_module_params(m->children.at[i]);
    return n;
}

static const dsi_module_entry *module_find_param(const ds_module *m, int *i)
{
    for (int k = 0; k < m->entries.n; k++)
        if (m->entries.at[k].kind == DSI_PARAM && (*i)-- == 0) return &m->entries.at[k];
    for (int k = 0; k < m->children.n; k++) {
        const dsi_module_entry *p = module_find_param(m->children.at[k], i);
        if (p) return p;
    }
    return NULL;
}

typedef struct Wanted {
    const ds_tensor *x;
    const char *path;
} Wanted;

static bool param_note_path(void *arg, const char *path, const dsi_module_entry *p)
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
    const dsi_module_entry *p = m && i >= 0 ? module_find_param(m, &i) : NULL;
    if (path) {
        Wanted wanted = {p ? p->x : NULL, NULL};
        if (p) dsi_module_walk(m, param_note_path, &wanted);
        *path = wanted.path;
    }
    return p ? p->x : NULL;
}

void ds_module_zero_grad(ds_module *m)
{
    if (!m) return;
    for (int i = 0; i < m->entries.n; i++) ds_set_grad_of(m->entries.at[i].x, NULL);
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

/* Modules inherit the mark, so one has it itself if its parent has another. */
bool dsi_module_is_marked(const ds_module *m)
{
    return m->experts && (!m->parent || m->parent->experts != m->experts);
}

/* Whether x is m's or of one below; `layer` counts the marked ones on the way. */
static bool module_find_expert(const ds_module *m, const ds_tensor *x, int *layer,
                               dsi_expert *found)
{
    int mine = *layer;
    for (int i = 0; i < m->entries.n; i++)
        if (m->entries.at[i].x == x) return true;
    for (int i = 0; i < m->children.n; i++) {
        if (!module_find_expert(m->children.at[i], x, layer, found)) continue;
        if (dsi_module_is_marked(m)) *found = (dsi_expert){mine, m->experts->first + i, m->experts};
        return true;
    }
    *layer += dsi_module_is_marked(m);
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
    for (int i = 0; i < m->entries.n; i++) {
        ds_tensor *x = m->entries.at[i].x;
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
