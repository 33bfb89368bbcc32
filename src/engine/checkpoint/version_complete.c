/* engine/checkpoint/version_complete.c: what each host needs of a version: Note
 * [Node-local storage] in hosts.h.
 *
 * Invariants: DIR/TAG of a host is made with its manifest, and its files get
 * their names when they are whole: a load that is killed has lost nothing. An
 * earlier DIR/TAG becomes .old-TAG.
 * SPDX-License-Identifier: MIT */
#include "versions.h"

#include "comm/sync_status.h"
#include "folder.h"

#include <stdlib.h>
#include <string.h>

/* ---- which files a host needs --------------------------------------------------------------------------- */

/* The rank that wrote a file that is for that rank alone; -1: all ranks read
 * it. */
static long file_rank(const char *name)
{
    static const char *const fronts[] = {"rank_", "zero_pp_rank_", "bf16_zero_pp_rank_"};
    for (size_t i = 0; i < sizeof fronts / sizeof *fronts; i++)
        if (!strncmp(name, fronts[i], strlen(fronts[i])))
            return strtol(name + strlen(fronts[i]), NULL, 10);
    return -1;
}

static bool file_is_shard(const char *name) { return strstr(name, "_optim_states.pt") != NULL; }

/* Whether each rank reads the shard of its own number. */
static bool shards_are_by_rank(const dsi_manifest *m, int ranks)
{
    int64_t shards = 0;
    for (int i = 0; i < m->n; i++)
        shards += file_rank(m->at[i].name) >= 0 && file_is_shard(m->at[i].name);
    return m->ranks == ranks && (shards == ranks || !shards);
}

/* A host's own ranks, and those of the host before, whose copies it has. Other
 * files than shards are read in place of those that a rank has not. */
static bool host_needs(const dsi_hosts *h, int host, const char *name, bool by_rank)
{
    long rank = file_rank(name);
    if (!by_rank || rank < 0 || rank >= h->ranks || (rank == 0 && !file_is_shard(name)))
        return true;
    return h->host[rank] == host || (h->host[rank] + 1) % h->n == host;
}

/* Each file from the next host that has it; all_files: each one to every host. */
static void sendings_plan(const dsi_hosts *h, const dsi_version *v, bool all_files,
                          dsi_sendings *all)
{
    bool by_rank = !all_files && shards_are_by_rank(&v->list, h->ranks);
    for (int i = 0; i < v->list.n; i++)
        for (int host = 0; host < h->n; host++) {
            int from = host;
            if (dsi_version_has(v, host, i) || !host_needs(h, host, v->list.at[i].name, by_rank))
                continue;
            while (!dsi_version_has(v, from, i)) from = (from + 1) % h->n;
            dsi_sendings_add(all, dsi_hosts_rank(h, from, i), dsi_hosts_rank(h, host, i),
                             &v->list.at[i]);
        }
}

/* ---- one version on all hosts ---------------------------------------------------------------------------- */

/* Without the lock: whether each host has what it needs. */
ds_status dsi_version_is_complete(const dsi_hosts *h, const dsi_version *v, bool all_files,
                                  bool *complete)
{
    dsi_sendings all = {0};
    sendings_plan(h, v, all_files, &all);
    int64_t lacks = all.n > 0 || !v->folder || v->is_old;
    dsi_sendings_free(&all);
    ds_status status = dsi_sync_max(h->comm, &lacks, 1);
    *complete = status == DS_OK && !lacks;
    return status;
}

ds_status dsi_version_complete(const dsi_hosts *h, const char *tag, bool all_files,
                               const dsi_version *v)
{
    dsi_sendings all = {0};
    char *folder = dsi_path_in(h->dir, tag);
    bool make = !v->folder && dsi_hosts_is_first(h);
    ds_status status = dsi_hosts_sync(h, make ? dsi_folder_make(h->dir, tag, &v->list) : DS_OK);
    if (status == DS_OK) {
        sendings_plan(h, v, all_files, &all);
        status = dsi_hosts_sync(h, dsi_hosts_send(h, &all, folder, true));
    }
    dsi_sendings_free(&all);
    dsi_free(folder);
    return status;
}
