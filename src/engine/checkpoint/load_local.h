/* engine/checkpoint/load_local.h: a checkpoint of which each host has a part:
 * Note [Node-local storage] in hosts.h.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "engine/engine.h"

/* The newest whole version of this rank's folders, or of the tag, with what this
 * host needs: *folder, to be freed. *folder NULL with DS_OK: no host has a
 * checkpoint of this library there, or all share one folder that is read only.
 * *nothing: hosts have only a part of a first save, which counts as no checkpoint
 * for if_any. Collective. */
ds_status dsi_load_find_local(ds_engine *e, const ds_load_opts *o, char **folder, bool *nothing);

/* Every file of the checkpoint to every host, for an engine with another layout
 * than the one that was saved, in which a rank reads shards of others. folder: of
 * dsi_load_find_local. Collective. */
ds_status dsi_load_all_files_local(ds_engine *e, const char *folder);
