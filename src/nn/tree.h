/* nn/tree.h: what a module is, for the files that keep the tree (module.c),
 * call it (call.c), and read and write its state dicts (module_state.c).
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "module.h"

/* A tied tensor is a parameter of another module too, which trains it. */
typedef enum dsi_entry_kind { DSI_PARAM, DSI_BUFFER, DSI_TIED } dsi_entry_kind;

typedef struct dsi_module_entry {
    char *name;
    ds_tensor *x; /* counted */
    dsi_entry_kind kind;
} dsi_module_entry;

/* A forward hook: one of the two functions, or none if it was removed. */
typedef struct dsi_forward_hook {
    ds_forward_pre_hook *before;
    ds_forward_hook *after;
    void *arg;
} dsi_forward_hook;

struct ds_module {
    ds_module_type type;
    char *name;
    ds_module *parent;
    struct {
        DSI_LIST(ds_module *)
    } children;
    struct {
        DSI_LIST(dsi_module_entry)
    } entries; /* parameters and buffers, in the order in which they were made */
    struct {
        DSI_LIST(dsi_forward_hook)
    } forward_hooks;             /* number i is the hook's handle */
    const dsi_call_hooks *hooks; /* borrowed, or NULL */
    const dsi_experts *experts;  /* the mark of this module or of one above it; borrowed, or NULL */
    bool eval;                   /* negated, so that a new module trains */
    bool taken;                  /* an engine frees it */
};

/* The path with the root's name, "net.fc1", for messages; module: a ds_module. */
void dsi_module_write_path(const void *module, char *text, size_t room);

/* Calls visit for each parameter and buffer of m and below, in PyTorch's order:
 * a module's own parameters, its buffers, its children. Stops when visit
 * returns false. */
typedef bool dsi_entry_visit(void *arg, const char *path, const dsi_module_entry *e);
void dsi_module_walk(const ds_module *m, dsi_entry_visit *visit, void *arg);

/* Whether m has a mark itself, and not only through a module above it: then its
 * children are experts. */
bool dsi_module_is_marked(const ds_module *m);
