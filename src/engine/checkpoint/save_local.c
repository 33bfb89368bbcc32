/* engine/checkpoint/save_local.c: a save to a folder of each host: Note
 * [Node-local storage] in hosts.h.
 *
 * Invariants: the functions run on the rank's own thread, or on that of an
 * asynchronous save, which then alone uses the hosts' communicator. Each step
 * that can fail on one rank ends with a sync, so that all ranks go on or none.
 * SPDX-License-Identifier: MIT */
#include "save.h"

#include "base/log.h"
#include "comm/sync_status.h"

#include <string.h>

/* The files of each rank: lists[r] is its manifest. */
static ds_status local_gather_lists(const dsi_hosts *h, const dsi_manifest *own,
                                    dsi_manifest *lists)
{
    dsi_texts all;
    dsi_text mine = dsi_manifest_text(own);
    ds_status status = dsi_hosts_gather(h, mine.s, &all);
    dsi_text_free(&mine);
    for (int r = 0; r < h->ranks && status == DS_OK; r++) {
        const char *text = all.p + (size_t)r * all.stride;
        status = dsi_manifest_parse(&lists[r], text, strlen(text), "the list of a rank's files");
    }
    dsi_free(all.p);
    return status;
}

/* Each rank's files to one rank of the next host. */
static ds_status local_copy(const dsi_save_job *j, const dsi_manifest *lists)
{
    const dsi_hosts *h = j->hosts;
    dsi_sendings all = {0};
    for (int r = 0; r < h->ranks && h->n > 1; r++) {
        int to = dsi_hosts_rank(h, (h->host[r] + 1) % h->n, dsi_hosts_place(h, r));
        for (int i = 0; (r == h->rank || to == h->rank) && i < lists[r].n; i++)
            dsi_sendings_add(&all, r, to, &lists[r].at[i]);
    }
    ds_status status = dsi_hosts_send(h, &all, j->saving, false);
    dsi_sendings_free(&all);
    return status;
}

/* The newest serial of this host: of .old-TAG, too, which recovery may have kept. */
static int64_t local_newest(const dsi_save_job *j, const dsi_folders *before)
{
    int64_t serial = before->n ? before->at[0].serial : 0;
    if (!dsi_hosts_is_first(j->hosts)) return serial;
    dsi_folders old = dsi_folder_list(j->dir, true);
    if (old.n && old.at[0].serial > serial) serial = old.at[0].serial;
    dsi_folders_free(&old);
    return serial;
}

/* By the first rank of each host, with a serial that is new on all. */
static ds_status local_publish(const dsi_save_job *j, const dsi_manifest *lists,
                               const dsi_folders *before)
{
    dsi_manifest whole = {.serial = local_newest(j, before), .ranks = j->ranks, .step = j->step};
    ds_status status = dsi_sync_max(j->hosts->comm, &whole.serial, 1);
    if (status != DS_OK || !dsi_hosts_is_first(j->hosts)) return status;
    whole.serial++;
    for (int r = 0; r < j->ranks; r++)
        for (int i = 0; i < lists[r].n; i++)
            dsi_manifest_add(&whole, lists[r].at[i].name, lists[r].at[i].bytes, lists[r].at[i].crc);
    status = dsi_folder_publish(j->dir, j->tag, &whole, true);
    dsi_manifest_free(&whole);
    return status;
}

/* All hosts have published. */
static ds_status local_end(const dsi_save_job *j)
{
    ds_status status = DS_OK;
    if (!dsi_hosts_is_first(j->hosts)) return DS_OK;
    status = dsi_folder_end_all_old(j->dir);
    if (status == DS_OK && j->latest) status = dsi_folder_set_latest(j->dir, DSI_LATEST, j->tag);
    return status;
}

/* The hosts remove the same checkpoints: those that each of them would. */
static ds_status local_prune(const dsi_save_job *j, const dsi_folders *before)
{
    bool first = dsi_hosts_is_first(j->hosts);
    int64_t newer = first ? -dsi_folder_oldest_to_keep(before, j->keep_last, j->tag) : -INT64_MAX;
    if (!j->keep_last) return DS_OK;
    ds_status status = dsi_sync_max(j->hosts->comm, &newer, 1);
    if (status == DS_OK && first) dsi_save_prune(j, -newer, before);
    return status;
}

/* The order of Note [Node-local storage], from the lists on. */
static ds_status local_commit(const dsi_save_job *j, const dsi_manifest *own)
{
    const dsi_hosts *h = j->hosts;
    dsi_manifest *lists = dsi_alloc((size_t)h->ranks * sizeof *lists);
    dsi_folders before = {0};
    if (dsi_hosts_is_first(h)) before = dsi_folder_list(j->dir, false);
    ds_status status = dsi_hosts_sync(h, local_gather_lists(h, own, lists));
    if (status == DS_OK) status = dsi_hosts_sync(h, local_copy(j, lists));
    if (status == DS_OK) status = dsi_hosts_sync(h, local_publish(j, lists, &before));
    if (status == DS_OK) status = dsi_hosts_sync(h, local_end(j));
    if (status == DS_OK && j->latest && h->rank == 0) dsi_progress_saved(j->progress, j->step);
    if (status == DS_OK) status = local_prune(j, &before);
    for (int r = 0; r < h->ranks; r++) dsi_manifest_free(&lists[r]);
    dsi_free(lists);
    dsi_folders_free(&before);
    return status;
}

/* After a failure some hosts may have renamed: the next call recovers. */
ds_status dsi_save_local(const dsi_save_job *j)
{
    dsi_hosts *h = j->hosts;
    dsi_manifest own;
    h->comm->disk = j->saving;
    ds_status status = dsi_hosts_sync(h, dsi_save_write(j, &own));
    if (status == DS_OK) status = local_commit(j, &own);
    h->comm->disk = h->dir;
    dsi_manifest_free(&own);
    if (status == DS_OK) return DS_OK;
    h->recovered = false;
    if (dsi_hosts_is_first(h)) dsi_folder_abandon(j->dir, j->tag);
    return status;
}
