/* tensor/state.c: state dicts: an ordered map from names to tensors.
 *
 * Invariants: a state dict holds one count of each tensor, never a copy of its
 * values. Names are unique; their order is that of the first ds_state_set, and
 * a tensor that replaces another one takes its place.
 * SPDX-License-Identifier: MIT */
#include "base/map.h"
#include "base/mem.h"
#include "base/text.h"
#include "tensor.h"

#include <string.h>

struct ds_state {
    dsi_map map; /* values: ds_tensor */
};

static const dsi_handle_kind state_kind = {"state dict", .maker = "state_new"};

ds_state *ds_state_new(void)
{
    ds_state *state = dsi_alloc(sizeof *state);
    dsi_handle_made(state, &state_kind);
    return state;
}

void ds_state_free(ds_state *state)
{
    if (!dsi_live(state, "state_free")) return;
    bool quarantined = dsi_handle_freed_by(state, "ds_state_free");
    for (int i = 0; i < state->map.n; i++) dsi_unref(state->map.at[i].value);
    dsi_map_free(&state->map);
    if (!quarantined) dsi_free(state);
}

ds_status ds_state_set(ds_state *state, const char *name, ds_tensor *x)
{
    if (!dsi_live_all("state_set", state, x)) return dsi_null_argument("state_set");
    if (!name || !*name) return dsi_fail(DS_EINVAL, "state_set: the name is empty");
    dsi_unref(dsi_map_set(&state->map, name, dsi_ref(x)));
    return DS_OK;
}

ds_tensor *ds_state_get(const ds_state *state, const char *name)
{
    return dsi_live(state, "state_get") && name ? dsi_map_get(&state->map, name) : NULL;
}

int ds_state_len(const ds_state *state) { return dsi_live(state, "state_len") ? state->map.n : 0; }

const char *ds_state_name(const ds_state *state, int i)
{
    return i >= 0 && i < ds_state_len(state) ? state->map.at[i].name : NULL;
}

ds_tensor *ds_state_at(const ds_state *state, int i)
{
    return i >= 0 && i < ds_state_len(state) ? state->map.at[i].value : NULL;
}

/* ---- prefixes ---------------------------------------------------------------------------------------- */

/* Builds a second map first, so that a failure leaves `state` as it was. */
ds_status ds_state_strip_prefix(ds_state *state, const char *prefix)
{
    if (!dsi_live_all("state_strip_prefix", state, prefix))
        return dsi_null_argument("state_strip_prefix");
    size_t n = strlen(prefix);
    dsi_map to = {0};
    for (int i = 0; i < state->map.n; i++) {
        const char *name = state->map.at[i].name,
                   *rest = strncmp(name, prefix, n) ? name : name + n;
        if (*rest && !dsi_map_set(&to, rest, state->map.at[i].value)) continue;
        dsi_map_free(&to);
        return *rest ? dsi_fail(DS_EINVAL,
                                "state_strip_prefix: without \"%s\" two tensors are called %s",
                                prefix, rest)
                     : dsi_fail(DS_EINVAL,
                                "state_strip_prefix: \"%s\" is the whole name of a tensor", prefix);
    }
    dsi_map_free(&state->map);
    state->map = to;
    return DS_OK;
}

ds_status ds_state_add_prefix(ds_state *state, const char *prefix)
{
    if (!dsi_live_all("state_add_prefix", state, prefix))
        return dsi_null_argument("state_add_prefix");
    dsi_map to = {0};
    for (int i = 0; i < state->map.n; i++) {
        dsi_text name = dsi_text_of("%s%s", prefix, state->map.at[i].name);
        dsi_map_set(&to, name.s, state->map.at[i].value);
        dsi_text_free(&name);
    }
    dsi_map_free(&state->map);
    state->map = to;
    return DS_OK;
}

int dsi_state_first(const ds_state *state, int i)
{
    int k = 0;
    while (ds_state_at(state, k) != ds_state_at(state, i)) k++;
    return k;
}
