/* tensor/state.c: state dicts: an ordered list of (name, tensor).
 *
 * Looked up by walking: models here have tens to hundreds of entries, and order matters more.
 * SPDX-License-Identifier: MIT */
#include "base/list.h"
#include "tensor.h"

#include <string.h>

typedef struct Entry {
    char *name;
    ds_tensor *x; /* counted */
} Entry;

struct ds_state {
    DSI_LIST(Entry)
};

ds_state *ds_state_new(void) { return dsi_alloc(sizeof(ds_state)); }

void ds_state_free(ds_state *state)
{
    if (!state) return;
    for (int i = 0; i < state->n; i++) {
        dsi_free(state->at[i].name);
        dsi_unref(state->at[i].x);
    }
    dsi_list_free(state);
    dsi_free(state);
}

static Entry *find(const ds_state *state, const char *name)
{
    for (int i = 0; state && name && i < state->n; i++)
        if (!strcmp(state->at[i].name, name)) return &state->at[i];
    return NULL;
}

ds_status ds_state_set(ds_state *state, const char *name, ds_tensor *x)
{
    if (!state || !x) return dsi_passed("state_set"), DS_EINVAL;
    if (!name || !*name) return dsi_fail(DS_EINVAL, "state_set: the name is empty");
    Entry *e = find(state, name);
    dsi_ref(x);
    if (e) {
        dsi_unref(e->x);
        e->x = x;
    } else {
        dsi_list_add(state, (Entry){dsi_strdup(name), x});
    }
    return DS_OK;
}

ds_tensor *ds_state_get(const ds_state *state, const char *name)
{
    Entry *e = find(state, name);
    return e ? e->x : NULL;
}

int ds_state_len(const ds_state *state) { return state ? state->n : 0; }

const char *ds_state_name(const ds_state *state, int i)
{
    return state && i >= 0 && i < state->n ? state->at[i].name : NULL;
}

ds_tensor *ds_state_at(const ds_state *state, int i)
{
    return state && i >= 0 && i < state->n ? state->at[i].x : NULL;
}
