/* engine/checkpoint/load.c: ds_engine_load: which checkpoint, and the order of
 * things among ranks.
 *
 * Note [One load, told once]
 *
 *   each     may this engine load now?                             sync
 *   rank 0   names a folder: the tag's; else latest's; else the newest
 *   each     verifies its files of the manifest                    sync
 *            (without a tag the next newest folder is tried)
 *   each     reads the chunks of its shard, and no other files
 *   each     checks names, shapes, elements, moments               sync
 *   each     applies weights, moments, averages, schedule, scale,
 *            counters, position in the data, random numbers        sync
 *
 * With "checkpoint": {"load_universal": true} the folder is the tag's or that
 * of latest_universal, and no other is tried. A job that was started again has
 * saved since: if `latest` is newer, it continues there.
 *
 * With "checkpoint": {"use_node_local_storage": true} a folder is first looked
 * for among those of all hosts (load_local.c), which also verifies its files.
 *
 * A folder without a manifest is DeepSpeed's, unless it has files that only
 * this library writes: then it was not copied completely.
 *
 * Invariants: "sync" is ds_comm_sync_status: all ranks go on or none. Nothing
 * of the engine changes before the sync after the checks. The call is
 * collective.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/log.h"
#include "comm/sync_status.h"
#include "folder.h"
#include "load_local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static ds_status load_fail_in(ds_status status) { return dsi_fail_in("engine_load", status); }

/* Errors of the call itself, before anything is read. */
static ds_status load_check(const ds_engine *e, const ds_load_opts *o)
{
    if (ds_error()) return ds_error_status();
    if (!o->dir || !*o->dir)
        return dsi_fail(DS_EINVAL, "engine_load: there is no folder to load from");
    if (e->went_backward || e->accumulated)
        return dsi_fail(
            DS_ESTATE,
            "engine_load: between the micro steps of an update: load before training, or at the "
            "end of a step that updates");
    if (dsi_ema_swapped(e->ema))
        return dsi_fail(
            DS_ESTATE,
            "engine_load: the parameters are the averaged ones: ds_engine_swap_ema(engine) "
            "exchanges them back");
    return DS_OK;
}

/* ---- which checkpoint -------------------------------------------------------------------------------------- */

/* Rank 0's folder (NULL: none, with a message) on all ranks, and whether it is
 * complete. */
static ds_status load_try_folder(const ds_engine *e, const char *mine, char **folder)
{
    bool first = ds_comm_rank(e->comm) == 0;
    ds_status status = ds_comm_sync_status(
        e->comm, load_fail_in(first && !mine ? ds_error_status() : DS_OK));
    *folder = NULL;
    if (status == DS_OK) status = dsi_broadcast_text(e->comm, mine, folder);
    if (status != DS_OK) return status;
    return ds_comm_sync_status(e->comm, load_fail_in(dsi_load_verify(*folder, ds_comm_rank(e->comm),
                                                                     ds_comm_size(e->comm))));
}

/* Tags to try, on rank 0: what `latest` names, then the others, newest first. */
typedef struct Candidates {
    DSI_LIST(char *)
} Candidates;

static void candidates_list(Candidates *c, const ds_load_opts *o, char *why, size_t room)
{
    const char *dir = o->dir;
    dsi_folders all = dsi_folder_list(dir, false);
    int before = dsi_error_count();
    char *latest = dsi_folder_latest(dir, DSI_LATEST);
    if (!latest && all.n) snprintf(why, room, "engine_load: %s", dsi_error_latest());
    if (latest) dsi_list_add(c, latest);
    for (int i = 0; i < all.n; i++)
        if (!latest || strcmp(latest, all.at[i].tag) != 0)
            dsi_list_add(c, dsi_strdup(all.at[i].tag));
    dsi_error_forget(before);
    if (!c->n && !o->if_any)
        dsi_fail(DS_EIO,
                 "engine_load: %s has no checkpoint: there is no %s/latest, and no folder that "
                 "ds_engine_save wrote: if a folder there is a checkpoint, give its name as the "
                 "tag",
                 dir, dir);
    dsi_folders_free(&all);
}

/* The newest complete checkpoint; a warning says what is wrong with newer ones.
 * DS_OK and *folder NULL: there is none, and rank 0's options allow that. */
static ds_status load_find_newest(const ds_engine *e, const ds_load_opts *o, char **folder)
{
    bool first = ds_comm_rank(e->comm) == 0;
    char why[1024] = "";
    Candidates c = {0};
    int before = dsi_error_count();
    if (first) candidates_list(&c, o, why, sizeof why);
    int64_t n = c.n;
    ds_status status = dsi_broadcast_count(e->comm, &n);
    if (status == DS_OK && n == 0)
        status = ds_comm_sync_status(e->comm, first && !o->if_any ? ds_error_status() : DS_OK);
    for (int64_t i = 0; status == DS_OK && i < n; i++) {
        char *mine = first && c.at ? dsi_folder_find(o->dir, c.at[i]) : NULL;
        dsi_free(*folder);
        status = load_try_folder(e, mine, folder);
        dsi_free(mine);
        if (status == DS_OK || status == DS_ECOMM) break;
        if (!*why) snprintf(why, sizeof why, "%s", dsi_error_latest());
        dsi_error_forget(before);
        status = i + 1 < n ? DS_OK : dsi_fail(status, "%s", why); /* of the first one */
    }
    if (status == DS_OK && *why && first) /* printed too, as the log may be off */
        fprintf(stderr, "deepspeed: %s: %s is loaded instead\n", why, *folder);
    for (int i = 0; i < c.n; i++) dsi_free(c.at[i]);
    dsi_list_free(&c);
    return status;
}

/* checkpoint.load_universal: the folder of the tag, or of latest_universal; to
 * be freed. */
static char *load_name_universal(const ds_load_opts *o)
{
    char *tag = o->tag ? dsi_strdup(o->tag) : dsi_folder_latest(o->dir, DSI_LATEST_UNIVERSAL);
    char *folder = tag ? dsi_folder_find(o->dir, tag) : NULL;
    dsi_free(tag);
    if (!folder || dsi_load_is_universal(folder)) return folder;
    dsi_refuse("%s is no universal checkpoint (it has no folder \"" DSI_FOLDER_UNIVERSAL
               "\"), and \"checkpoint\": {\"load_universal\": true} is set: convert it with "
               "ds_to_universal, or leave the key out: this library loads every checkpoint on any "
               "number of ranks",
               folder);
    dsi_free(folder);
    return NULL;
}

static ds_status load_find_universal(const ds_engine *e, const ds_load_opts *o, char **folder)
{
    char *mine = ds_comm_rank(e->comm) == 0 ? load_name_universal(o) : NULL;
    ds_status status = load_try_folder(e, mine, folder);
    dsi_free(mine);
    return status;
}

/* Whether the launcher or Slurm has started this job again. */
static bool job_was_restarted(void)
{
    const char *launcher = getenv("TORCHELASTIC_RESTART_COUNT"),
               *slurm = getenv("SLURM_RESTART_COUNT");
    return (launcher && strtol(launcher, NULL, 10) > 0) || (slurm && strtol(slurm, NULL, 10) > 0);
}

/* Whether DIR/latest was written after DIR/latest_universal. */
static bool latest_is_newer(const char *dir)
{
    struct stat latest, universal;
    char *a = dsi_path_in(dir, DSI_LATEST), *b = dsi_path_in(dir, DSI_LATEST_UNIVERSAL);
    bool newer = stat(a, &latest) == 0 &&
                 (stat(b, &universal) != 0 || latest.st_mtim.tv_sec > universal.st_mtim.tv_sec ||
                  (latest.st_mtim.tv_sec == universal.st_mtim.tv_sec &&
                   latest.st_mtim.tv_nsec > universal.st_mtim.tv_nsec));
    dsi_free(a);
    dsi_free(b);
    return newer;
}

/* checkpoint.load_universal is for the first start: after a restart the work
 * since then counts. Rank 0 decides for all. */
static ds_status load_wants_universal(const ds_engine *e, const ds_load_opts *o, bool *universal)
{
    int64_t wants = e->config->checkpoint.load_universal;
    if (wants && !o->tag && job_was_restarted() && latest_is_newer(o->dir)) wants = 0;
    ds_status status = dsi_broadcast_count(e->comm, &wants);
    *universal = wants != 0;
    return status;
}

/* With a tag only that folder is tried: the program asked for it. */
static ds_status load_find_folder(ds_engine *e, const ds_load_opts *o, char **folder, bool *local)
{
    bool universal, nothing = false;
    ds_status status = load_wants_universal(e, o, &universal);
    if (status == DS_OK && e->config->checkpoint.use_node_local_storage)
        status = dsi_load_find_local(e, o, folder, &nothing);
    *local = *folder != NULL;
    if (status != DS_OK || *folder || nothing) return status;
    if (universal) return load_find_universal(e, o, folder);
    if (!o->tag) return load_find_newest(e, o, folder);
    char *mine = ds_comm_rank(e->comm) == 0 ? dsi_folder_find(o->dir, o->tag) : NULL;
    status = load_try_folder(e, mine, folder);
    dsi_free(mine);
    return status;
}

/* ---- client_state ----------------------------------------------------------------------- */

/* Whether a key of the model file is not client_state. */
static bool key_is_engines(const char *key)
{
    static const char *const names[] = {DSI_STATE_MODEL_KEYS};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], key)) return true;
    return false;
}

/* The values of the model file under keys that are not the engine's; values
 * are shared with it by reference counts. */
static ds_value *load_client_state(const dsi_loaded *l)
{
    ds_value *v = ds_value_dict();
    for (int64_t i = 0; i < ds_value_len(l->model); i++) {
        const char *key = ds_value_text(ds_value_key_at(l->model, i));
        if (key && !key_is_engines(key) &&
            ds_value_set(v, key, dsi_value_ref(ds_value_at(l->model, i))) != DS_OK) {
            ds_value_free(v);
            return NULL;
        }
    }
    return v;
}

/* ---- the load ------------------------------------------------------------------------------------------ */

/* Reads and checks; all ranks sync. */
static ds_status load_read(ds_engine *e, const ds_load_opts *o, const char *folder, dsi_loaded *l)
{
    bool optimizer = e->zero && !o->module_only && !o->no_optimizer;
    const dsi_load_reader reader = {.rank = ds_comm_rank(e->comm),
                                    .ranks = ds_comm_size(e->comm),
                                    .optimizer = optimizer,
                                    .engine = e};
    ds_status status = dsi_load_files(l, folder, &reader);
    if (status == DS_OK) status = dsi_load_check(l, e, o);
    return ds_comm_sync_status(e->comm, load_fail_in(status));
}

/* Folders of hosts: what a host reads may be of another save, if another job
 * replaced the checkpoint after it was chosen. */
static ds_status load_check_steps(ds_engine *e, const dsi_loaded *l)
{
    int64_t step = -1;
    const ds_value *at = ds_value_find(l->model, DSI_STATE_GLOBAL_STEPS);
    if (ds_value_kind_of(at) == DS_VALUE_INT && ds_value_read_int(at, "", &step) != DS_OK)
        step = -1;
    int64_t ends[] = {step, -step};
    ds_status status = dsi_sync_max(e->comm, ends, 2);
    if (status != DS_OK || ends[0] == -ends[1]) return status;
    return dsi_fail(DS_ESTATE,
                    "engine_load: %s is of step %lld on this host, and ranks have read steps %lld "
                    "to %lld: another job has replaced it meanwhile; load again",
                    l->folder, (long long)step, (long long)-ends[1], (long long)ends[0]);
}

/* Reads, checks, applies. All ranks sync before the engine changes. local: the
 * hosts have sent each other what is read in the layout that was saved; in
 * another one a file may be missing. */
static ds_status load_from_folder(ds_engine *e, const ds_load_opts *o, const char *folder,
                                  bool local)
{
    dsi_loaded l = {0};
    ds_scope *scope = ds_scope_open();
    int before = dsi_error_count();
    ds_status status = load_read(e, o, folder, &l);
    if (local && status != DS_OK && status != DS_ECOMM) {
        dsi_error_forget(before);
        dsi_loaded_free(&l);
        l = (dsi_loaded){0};
        status = dsi_load_all_files_local(e, folder);
        if (status == DS_OK) status = load_read(e, o, folder, &l);
    }
    if (local && status == DS_OK) status = load_check_steps(e, &l);
    if (status == DS_OK)
        status = ds_comm_sync_status(e->comm, load_fail_in(dsi_load_apply(&l, e, o)));
    if (status == DS_OK && o->client_state) {
        *o->client_state = load_client_state(&l);
        if (!*o->client_state) status = ds_error_status();
    }
    ds_scope_close(scope);
    dsi_loaded_free(&l);
    return status;
}

ds_status ds_engine_load_with(ds_engine *e, ds_load_opts o)
{
    if (!e) return dsi_null_argument("engine_load");
    char *folder = NULL;
    bool local = false;
    if (o.client_state) *o.client_state = NULL;
    ds_status status = ds_engine_save_wait(e);
    if (status == DS_OK) status = ds_comm_sync_status(e->comm, load_check(e, &o));
    e->comm->disk = o.dir; /* ranks wait for one that reads */
    if (status == DS_OK) status = load_find_folder(e, &o, &folder, &local);
    if (folder && status == DS_OK) {
        dsi_log(DSI_INFO, "[Torch] Loading checkpoint from %s...", folder);
        status = load_from_folder(e, &o, folder, local);
    }
    e->comm->disk = NULL;
    if (status != DS_OK) {
        dsi_free(folder);
        return status;
    }
    if (folder) dsi_log(DSI_INFO, "[Torch] Loaded checkpoint from %s.", folder);
    dsi_progress_ready(e->progress, e->global_steps);
    dsi_free(e->loaded);
    e->loaded = folder;
    return DS_OK;
}

const char *ds_engine_loaded(const ds_engine *e) { return e ? e->loaded : NULL; }
