/* engine/checkpoint/load_local.c: brings the newest whole version to all hosts:
 * Note [Node-local storage] in hosts.h.
 *
 * Loads of several jobs share the folders (folder_lock.c): what one of them brings
 * is what another one would. A load waits for one that recovers versions. Where a job
 * saves for longer than WAIT_S, a load continues without a lock and changes nothing:
 * it takes the newest version of which each host has what it needs. A save fails then.
 *
 * Invariants: DIR/TAG of a host is made with its manifest, and its files get
 * their names when they are whole: a load that is killed has lost nothing. A
 * version is only replaced by one that is whole. All hosts have the lock, or none.
 * SPDX-License-Identifier: MIT */
#include "load_local.h"

#include "base/clock.h"
#include "base/file.h"
#include "comm/comm.h"
#include "comm/sync_status.h"
#include "load.h"
#include "versions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WAIT_S   1.0
#define AGAIN_MS 10

/* ---- the lock of all folders ---------------------------------------------------------------------------- */

/* Each host's first rank waits for it: for a save up to WAIT_S, else up to
 * DS_SAVE_TIMEOUT. *locked, the same on all ranks: all have it, or their file system
 * has none; else no host has it. */
static ds_status local_lock(const dsi_hosts *h, bool exclusive, int *lock, bool *locked)
{
    double start = dsi_now(), limit = dsi_comm_save_timeout();
    bool missing = true, late = false;
    ds_status status = DS_OK;
    *lock = -1;
    while (status == DS_OK && missing && !late) {
        bool taken = false;
        if (dsi_hosts_is_first(h)) status = dsi_folder_try_lock(h->dir, exclusive, lock, &taken);
        double waited = h->rank == 0 ? dsi_now() - start : 0;
        int64_t words[] = {taken, taken && dsi_folder_is_saved_to(h->dir), waited > WAIT_S,
                           waited > limit};
        status = ds_comm_sync_status(h->comm, status);
        if (status == DS_OK) status = dsi_sync_max(h->comm, words, 4);
        missing = words[0], late = (words[1] && words[2]) || words[3];
        if (status != DS_OK || missing) dsi_folder_close_lock(lock);
        if (missing) nanosleep(&(struct timespec){.tv_nsec = AGAIN_MS * 1000000}, NULL);
    }
    *locked = status == DS_OK && !missing;
    return status;
}

/* ---- one version on all hosts ---------------------------------------------------------------------------- */

/* A host that has come back gets a `latest`, too. */
static ds_status latest_complete(const dsi_hosts *h, const dsi_known_version *v)
{
    char *path = dsi_path_in(h->dir, DSI_LATEST);
    ds_status status = DS_OK;
    if (v->latest && dsi_hosts_is_first(h) && !dsi_file_exists(path))
        status = dsi_folder_set_latest(h->dir, DSI_LATEST, v->tag);
    dsi_free(path);
    return dsi_hosts_sync(h, status);
}

/* The lock that a load asks for; locked: it may change the folders. */
typedef struct Wanted {
    const char *tag; /* of rank 0, the only one that is tried; "": all */
    bool all_files, locked;
    bool if_any; /* rank 0's: a part of a first save counts as nothing */
} Wanted;

/* DS_OK with *whole false: it is not, and the failure says what is missing. */
static ds_status version_try(const dsi_hosts *h, const dsi_known_version *known, const Wanted *w,
                             bool *whole, char *why, size_t room)
{
    dsi_version v;
    ds_status status = dsi_version_look(h, known, &v);
    *whole = status == DS_OK && v.missing < 0;
    if (status == DS_OK && !*whole && !*why)
        snprintf(why, room,
                 "engine_load: %s/%s is not whole: %s, written by %lld ranks, is on none of these "
                 "%d hosts, or is damaged",
                 h->dir, known->tag, v.list.at[v.missing].name, (long long)v.list.ranks, h->n);
    if (*whole && w->locked) status = dsi_version_complete(h, known->tag, w->all_files, &v);
    if (*whole && w->locked && status == DS_OK) status = latest_complete(h, known);
    if (*whole && !w->locked) status = dsi_version_is_complete(h, &v, w->all_files, whole);
    if (status == DS_OK && !*whole && !*why)
        snprintf(why, room,
                 "engine_load: another job is saving to %s or recovering it, and %s needs files of "
                 "other hosts: load it when that job has ended",
                 h->dir, known->tag);
    dsi_version_free(&v);
    return status;
}

/* ---- the newest ------------------------------------------------------------------------------------------ */

/* Whether a host has a `latest`, which is written when a checkpoint is complete on
 * all, or rank 0 wants a checkpoint in any case. */
static ds_status must_be_whole(const dsi_hosts *h, const Wanted *w, int64_t *must)
{
    char *path = dsi_path_in(h->dir, DSI_LATEST);
    *must = dsi_file_exists(path) || !w->locked || *w->tag || (h->rank == 0 && !w->if_any);
    dsi_free(path);
    return dsi_sync_max(h->comm, must, 1);
}

/* No version is whole. Of a first save that was killed between its renames hosts may
 * have a part: then there is nothing to load. */
static ds_status none_is_whole(const dsi_hosts *h, const Wanted *w, const char *why, bool *nothing)
{
    int64_t must;
    ds_status status = must_be_whole(h, w, &must);
    if (status == DS_OK && must) status = dsi_fail(DS_EFORMAT, "%s", why);
    *nothing = status == DS_OK;
    if (*nothing && h->rank == 0) /* also where the log is off */
        fprintf(stderr, "deepspeed: %s: its save was killed, and there is no other\n", why);
    return dsi_hosts_sync(h, status);
}

static ds_status versions_try(const dsi_hosts *h, const Wanted *w, char **folder, bool *nothing)
{
    dsi_known_versions all;
    char why[768] = "";
    bool whole = false;
    ds_status status = dsi_versions_list(h, &all);
    for (int i = 0; i < all.n && status == DS_OK && !whole; i++) {
        if (*w->tag && strcmp(w->tag, all.at[i].tag) != 0) continue;
        status = version_try(h, &all.at[i], w, &whole, why, sizeof why);
        if (status == DS_OK && whole) *folder = dsi_path_in(h->dir, all.at[i].tag);
    }
    dsi_versions_free(&all);
    if (status == DS_OK && *why && !whole) return none_is_whole(h, w, why, nothing);
    if (status == DS_OK && *why && h->rank == 0) /* also where the log is off */
        fprintf(stderr, "deepspeed: %s: %s is loaded instead\n", why, *folder);
    return status;
}

/* Before a save. */
static ds_status local_recover(dsi_hosts *h)
{
    int lock = -1;
    bool locked;
    ds_status status = local_lock(h, true, &lock, &locked);
    if (status == DS_OK && !locked)
        status = dsi_hosts_sync(
            h, dsi_fail(DS_ESTATE,
                        "another job is saving to %s, or has been loading from it for longer than "
                        "DS_SAVE_TIMEOUT seconds: give each job a folder of its own",
                        h->dir));
    if (status == DS_OK) status = dsi_versions_recover(h);
    dsi_folder_close_lock(&lock);
    return status;
}

/* Files that are there may be the folders of another job's save, which has the lock: then
 * there is nothing to recover. */
static ds_status local_recover_to_load(dsi_hosts *h)
{
    int lock = -1;
    bool locked;
    dsi_known_versions all;
    ds_status status = dsi_versions_list(h, &all);
    bool old = dsi_versions_have_old(&all);
    dsi_versions_free(&all);
    if (status != DS_OK || !old) return status;
    status = local_lock(h, true, &lock, &locked);
    if (status == DS_OK && locked) status = dsi_versions_recover(h);
    dsi_folder_close_lock(&lock);
    return status;
}

ds_status dsi_engine_open_hosts(ds_engine *e, const char *dir, bool to_load)
{
    int64_t other = !e->hosts || strcmp(e->hosts->dir, dir) != 0;
    ds_status status = dsi_sync_max(e->comm, &other, 1);
    if (status == DS_OK && other) {
        dsi_hosts_free(e->hosts);
        e->hosts = NULL;
        status = dsi_hosts_open(&e->hosts, e->comm, dir, to_load);
    }
    if (status != DS_OK || !e->hosts) return status;
    e->hosts->caller = to_load ? "engine_load" : "engine_save";
    if (e->hosts->recovered) return DS_OK;
    return to_load ? local_recover_to_load(e->hosts) : local_recover(e->hosts);
}

static ds_status local_find(const dsi_hosts *h, const char *tag, Wanted w, char **folder,
                            bool *nothing)
{
    int lock = -1;
    char *same = NULL; /* ranks may have been given different tags */
    ds_status status = dsi_broadcast_text(h->comm, tag ? tag : "", &same);
    if (status == DS_OK) status = local_lock(h, false, &lock, &w.locked);
    w.tag = same;
    if (status == DS_OK) status = versions_try(h, &w, folder, nothing);
    dsi_folder_close_lock(&lock);
    dsi_free(same);
    return status;
}

ds_status dsi_load_find_local(ds_engine *e, const ds_load_opts *o, char **folder, bool *nothing)
{
    Wanted w = {.if_any = o->if_any};
    ds_status status = dsi_fail_in("engine_load", dsi_engine_open_hosts(e, o->dir, true));
    return status == DS_OK && e->hosts ? local_find(e->hosts, o->tag, w, folder, nothing) : status;
}

ds_status dsi_load_all_files_local(ds_engine *e, const char *folder)
{
    char *again = NULL;
    bool nothing = false;
    ds_status status = local_find(e->hosts, strrchr(folder, '/') + 1, (Wanted){.all_files = true},
                                  &again, &nothing);
    dsi_free(again);
    return status;
}
