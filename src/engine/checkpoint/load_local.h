/* engine/checkpoint/load_local.h: a checkpoint of which each host has a part:
 * Note [Node-local storage] in hosts.h.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "engine/engine.h"

/* The newest whole version of this rank's folders, or of the tag, with what this
 * host needs: *folder, to be freed. *folder NULL with DS_OK: no host has a
 * checkpoint of this library there, or all share one folder that is read only.
 * Collective. */
ds_status dsi_load_find_local(ds_engine *e, const ds_load_opts *o, char **folder);
