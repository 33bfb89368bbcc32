/* nn/module_state.c: state dicts of modules: made, compared, loaded.
 *
 * Names are paths, "layers.0.weight". A tied parameter has several names in a
 * module's own state dict; any of them is enough in one that is loaded.
 * Experts of other ranks are known by their numbers and skipped.
 *
 * Invariants: a state dict that is made here has references to the module's
 * tensors, not copies. Loading compares everything before it writes, so a
 * refused state dict changes nothing.
 * SPDX-License-Identifier: MIT */
#include "base/text.h"
#include "tensor/tensor.h"
#include "tree.h"

#include <stdlib.h>
#include <string.h>

/* ---- state dicts ------------------------------------------------------------------------------------- */

/* A failure ends the walk, with the message. */
static bool module_add_entry(void *state, const char *path, const dsi_module_entry *p)
{
    return ds_state_set(state, path, p->x) == DS_OK;
}

/* Parameters and buffers in PyTorch's order; the caller frees it. */
ds_state *ds_module_state(const ds_module *m)
{
    ds_state *state = ds_state_new();
    dsi_module_walk(m, module_add_entry, state);
    return state;
}

/* Whether name is that of an expert that m's layer has on another rank:
 * "..list.7.weight". True also for the rank's own experts: callers look those
 * up first. */
static bool module_expert_is_remote(const ds_module *m, const char *name)
{
    char *end;
    size_t length = strcspn(name, ".");
    if (dsi_module_is_marked(m)) {
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

ds_tensor *dsi_module_state_find(const ds_state *mine, const ds_tensor *x, const ds_state *state)
{
    ds_tensor *found = NULL;
    for (int i = 0; !found && i < ds_state_len(mine); i++)
        if (ds_state_at(mine, i) == x) found = ds_state_get(state, ds_state_name(mine, i));
    return found;
}

#define NAMED 6 /* of each kind: another model's hundreds of names say no more */

static void state_add_rest(dsi_text *bad, int n, const char *kind)
{
    if (n > NAMED) dsi_text_add(bad, "; %d more %s", n - NAMED, kind);
}

/* All differences, in one message. Missing names first, then other shapes,
 * then names that the module lacks; at most NAMED of each, the rest as a
 * number. bad stays empty if all fits. */
static void state_compare(const ds_module *m, const ds_state *want, const ds_state *got,
                          dsi_text *bad)
{
    int missing = 0, other = 0, unknown = 0;
    for (int i = 0; i < ds_state_len(want); i++) {
        const char *name = ds_state_name(want, i);
        ds_tensor *w = ds_state_at(want, i);
        if (dsi_module_state_find(want, w, got) || missing++ >= NAMED) continue;
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
 * "fc1.weight" of the other; 0: no two names are so. The first pair of names
 * that is found decides. */
static size_t state_prefix(const ds_state *longer, const ds_state *shorter)
{
    for (int i = 0; i < ds_state_len(longer); i++) {
        const char *name = ds_state_name(longer, i);
        for (const char *dot = strchr(name, '.'); dot; dot = strchr(dot + 1, '.'))
            if (ds_state_get(shorter, dot + 1)) return (size_t)(dot + 1 - name);
    }
    return 0;
}

/* How many names begin with the first n characters of `with`. */
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

/* ---- load ---------------------------------------------------------------------------------------------- */

/* `mine` without what `state` lacks, and `state` without what m lacks -> *fits
 * each; the rest -> missing and unexpected, which may be NULL. */
static ds_status state_divide(const ds_module *m, const ds_state *mine, const ds_state *state,
                              ds_state *fits[2], ds_state *missing, ds_state *unexpected)
{
    ds_status status = DS_OK;
    for (int i = 0; i < ds_state_len(mine) && status == DS_OK; i++) {
        const char *name = ds_state_name(mine, i);
        bool has = dsi_module_state_find(mine, ds_state_at(mine, i), state);
        ds_state *to = has ? fits[0] : missing;
        if (to) status = ds_state_set(to, name, ds_state_at(mine, i));
    }
    for (int i = 0; i < ds_state_len(state) && status == DS_OK; i++) {
        const char *name = ds_state_name(state, i);
        bool own = ds_state_get(mine, name); /* asked first: see module_expert_is_remote */
        ds_state *to = own ? fits[1] : module_expert_is_remote(m, name) ? NULL : unexpected;
        if (to) status = ds_state_set(to, name, ds_state_at(state, i));
    }
    return status;
}

/* All or nothing: names and shapes are compared before the first copy. */
static ds_status state_copy(ds_module *m, const ds_state *mine, const ds_state *state)
{
    ds_status status = dsi_module_check_state(m, mine, state);
    for (int i = 0; i < ds_state_len(mine) && status == DS_OK; i++) {
        ds_tensor *x = ds_state_get(state, ds_state_name(mine, i));
        if (x) status = dsi_copy(ds_state_at(mine, i), x); /* NULL: tied to one that is there */
    }
    return status;
}

ds_status ds_module_load(ds_module *m, const ds_state *state)
{
    if (!dsi_live_all("module_load", m, state)) return dsi_null_argument("module_load");
    ds_state *mine = ds_module_state(m);
    ds_status status = state_copy(m, mine, state);
    ds_state_free(mine);
    return status;
}

ds_status ds_module_load_partial(ds_module *m, const ds_state *state, ds_state **missing,
                                 ds_state **unexpected)
{
    if (missing) *missing = ds_state_new();
    if (unexpected) *unexpected = ds_state_new();
    if (!dsi_live_all("module_load_partial", m, state))
        return dsi_null_argument("module_load_partial");
    ds_state *mine = ds_module_state(m), *fits[2] = {ds_state_new(), ds_state_new()};
    ds_status status = state_divide(m, mine, state, fits, missing ? *missing : NULL,
                                    unexpected ? *unexpected : NULL);
    if (status == DS_OK) status = state_copy(m, fits[0], fits[1]);
    ds_state_free(fits[0]);
    ds_state_free(fits[1]);
    ds_state_free(mine);
    return status;
}
