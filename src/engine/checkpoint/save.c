/* engine/checkpoint/save.c: ds_engine_save: the order of things among ranks.
 *
 * Note [One save, told once]
 *
 *   all      checkpoint.overhead_limit: is it too early?            agreed
 *   all      wait for the asynchronous save before; its failure is this call's
 *   each     can this state be saved?                              sync
 *   all      one folder and one tag: rank 0's
 *   rank 0   removes what killed saves left, makes .saving-TAG     sync
 *   each     makes its values (async: copies them)                 sync
 *   each     writes its files and its manifest                     sync
 *   rank 0   manifest, name, latest, removes old checkpoints       sync
 *
 * "sync" is ds_comm_sync_status: a failure of one rank is from there on a failure
 * of all. With "checkpoint": {"async": true} the last two lines run on a
 * thread, without a sync: rank 0's thread waits for the manifests of the
 * others. With "checkpoint": {"use_node_local_storage": true} the first rank of
 * each host does what rank 0 does, and what follows the values is in
 * save_local.c.
 *
 * Invariants: all ranks call ds_engine_save, which is collective. Checkpoints
 * that exist do not change until the new one has its name (folder.h): a
 * failure, or the end of the program at any point, leaves them as they were.
 * Between the micro steps of an update the gradients are partial sums in
 * buffers that differ by stage: a save there is refused. (DeepSpeed saves
 * without them.)
 * SPDX-License-Identifier: MIT */
#include "save.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/nccl.h"
#include "comm/sync_status.h"
#include "folder.h"

/* ---- the asynchronous save --------------------------------------------------------------------------- */

/* A failure is printed in the step after it happened; the next save returns
 * it. */
void dsi_engine_poll_async_save(ds_engine *e)
{
    const char *why = e->async_save && !e->async_save_logged ? dsi_async_save_error(e->async_save)
                                                             : NULL;
    if (!why) return;
    bool all = e->hosts != NULL; /* have the same message */
    if (!all || ds_comm_rank(e->comm) == 0) dsi_log(DSI_ERROR, "%s", why);
    e->async_save_logged = true;
}

/* The ranks wait for each other's disks here: the program's end has DS_TIMEOUT. One
 * that has failed is waited for by none. */
void dsi_engine_end_async_save(ds_engine *e)
{
    if (!e->async_save) return;
    dsi_async_save_wait(e->async_save);
    dsi_engine_poll_async_save(e);
    if (!ds_error()) dsi_sync_disk(e->comm, dsi_async_save_folder(e->async_save), DS_OK);
    dsi_async_save_free(e->async_save);
    e->async_save = NULL;
}

ds_status ds_engine_save_wait(ds_engine *e)
{
    if (!e) return dsi_null_argument("engine_save_wait");
    if (!e->async_save) return DS_OK;
    double cpu;
    dsi_async_save_wait(e->async_save);
    if (dsi_async_save_ended(e->async_save, &cpu)) e->save_took_cpu += cpu;
    const char *why = dsi_async_save_error(e->async_save);
    ds_status status = why ? dsi_fail(DS_EIO, "%s", why) : DS_OK;
    status = dsi_sync_disk(e->comm, dsi_async_save_folder(e->async_save), status);
    dsi_async_save_free(e->async_save);
    e->async_save = NULL;
    e->async_save_logged = false;
    return status;
}

/* ---- the same on all ranks --------------------------------------------------------------------------- */

static ds_status save_fail_in(ds_status status) { return dsi_fail_in("engine_save", status); }

/* Whether this state can be saved: between updates only. */
static ds_status save_check(const ds_engine *e, const ds_save_opts *o)
{
    int64_t steps = e->config->gradient_accumulation_steps;
    if (ds_error()) return ds_error_status();
    if (!o->dir || !*o->dir)
        return dsi_fail(DS_EINVAL, "engine_save: there is no folder to save to");
    if (e->went_backward)
        return dsi_fail(
            DS_ESTATE,
            "engine_save: between ds_engine_backward and ds_engine_step: save after the step");
    if (e->accumulated)
        return dsi_fail(
            DS_ESTATE,
            "engine_save: micro step %lld of %lld of an update: partial gradients "
            "are not saved: save when ds_engine_is_gradient_accumulation_boundary was true for "
            "the last step",
            (long long)e->accumulated, (long long)steps);
    if (dsi_ema_swapped(e->ema))
        return dsi_fail(
            DS_ESTATE,
            "engine_save: the parameters are the averaged ones: ds_engine_swap_ema(engine) "
            "exchanges them back");
    if (o->client_state && ds_value_kind_of(o->client_state) != DS_VALUE_DICT)
        return dsi_fail(DS_EINVAL, "engine_save: client_state is no dict, but %s",
                        ds_value_class(o->client_state));
    return DS_OK;
}

/* Rank 0's tag, on all ranks. checkpoint.tag_validation says what happens if
 * the ranks gave different ones. */
static ds_status save_sync_tag(const ds_engine *e, const char *mine, char **tag)
{
    bool same;
    ds_status status = dsi_sync_same_text(e->comm, mine, &same);
    if (status == DS_OK && !same && e->config->checkpoint.tag_validation == DSI_TAG_FAIL)
        return dsi_fail(
            DS_EINVAL,
            "engine_save: the tag is \"%.80s\" on rank %d and not the same on all ranks "
            "(checkpoint.tag_validation is FAIL)",
            mine, ds_comm_rank(e->comm));
    if (status == DS_OK) status = dsi_broadcast_text(e->comm, mine, tag);
    if (status == DS_OK && !same && e->config->checkpoint.tag_validation == DSI_TAG_WARN &&
        !ds_comm_rank(e->comm))
        dsi_log(
            DSI_WARNING,
            "[rank=0] The checkpoint tag name '%s' is not consistent across all ranks: it is taken "
            "for all",
            *tag);
    return status;
}

/* The folder must be the same text on all ranks that share it; the tag may differ
 * by tag_validation. */
static ds_status save_sync_place(const ds_engine *e, const ds_save_opts *o, char **tag)
{
    bool same;
    dsi_text own = {0};
    ds_status status = dsi_sync_same_text(e->comm, o->dir, &same);
    if (status == DS_OK && !same && !e->config->checkpoint.use_node_local_storage)
        return dsi_fail(DS_EINVAL,
                        "engine_save: the folder is %s on rank %d and not the same on all ranks",
                        o->dir, ds_comm_rank(e->comm));
    dsi_text_add(&own, "global_step%lld", (long long)e->global_steps);
    if (status == DS_OK) status = save_sync_tag(e, o->tag ? o->tag : own.s, tag);
    dsi_text_free(&own);
    return status;
}

/* ---- the save ------------------------------------------------------------------------------------------ */

static dsi_save_job *save_job_new(const ds_engine *e, const ds_save_opts *o, char *tag)
{
    dsi_save_job *j = dsi_alloc(sizeof *j);
    *j = (dsi_save_job){.dir = dsi_strdup(o->dir),
                        .tag = tag,
                        .saving = dsi_folder_saving(o->dir, tag),
                        .rank = ds_comm_rank(e->comm),
                        .ranks = ds_comm_size(e->comm),
                        .hosts = e->hosts,
                        .step = e->global_steps,
                        .keep_last = e->config->checkpoint.keep_last,
                        .latest = !o->no_latest,
                        .locks = DSI_UNLOCKED,
                        .progress = e->progress};
    return j;
}

/* On the first rank of a folder. With node-local storage, what a load has left is
 * removed once. */
static ds_status save_begin(dsi_save_job *j)
{
    ds_status status = dsi_folder_begin(j->dir, j->tag, j->hosts != NULL, &j->locks);
    if (status != DS_OK || !j->hosts || j->hosts->swept) return status;
    j->hosts->swept = true;
    return dsi_folder_sweep_checkpoints(j->dir);
}

/* Whether the save's own thread writes. With node-local storage it also sends
 * files, and has not the context of the GPU whose memory MPI may be moving. */
static bool save_is_async(const ds_engine *e)
{
    bool async = e->config->checkpoint.async,
         alone = e->config->checkpoint.use_node_local_storage && dsi_comm_takes_gpus(e->comm);
    if (async && alone && !ds_comm_rank(e->comm))
        dsi_log_once(DSI_WARNING,
                     "engine_save: training waits for saves, in spite of checkpoint.async: with "
                     "DS_MPI_CUDA=on and use_node_local_storage one thread alone calls MPI");
    return async && !alone;
}

/* Makes this rank's values, and copies them for an asynchronous save. */
static ds_status save_make_values(dsi_save_job *j, ds_engine *e, const ds_save_opts *o)
{
    if (!dsi_file_exists(j->saving))
        return dsi_fail(DS_EIO,
                        "engine_save: rank 0 made %s, and this rank does not see it: the folder "
                        "must be on a file system that all ranks share, or use "
                        "\"checkpoint\": {\"use_node_local_storage\": true}",
                        j->saving);
    ds_status status = dsi_save_files_make(&j->files, e, o);
    if (status == DS_OK && save_is_async(e))
        status = dsi_save_tensors_copy(&j->files.tensors, &e->copy_buffer);
    return status;
}

/* Rank 0 publishes after all ranks have written. */
static ds_status save_write_and_publish(const dsi_save_job *j, ds_comm *comm)
{
    if (j->hosts) return dsi_save_local(j);
    dsi_manifest own;
    ds_status status = dsi_sync_disk(comm, j->saving, save_fail_in(dsi_save_write(j, &own)));
    if (status == DS_OK)
        status = dsi_sync_disk(comm, j->saving,
                               save_fail_in(j->rank == 0 ? dsi_save_publish(j, &own) : DS_OK));
    dsi_manifest_free(&own);
    return status;
}

/* From the folder on; takes j. */
static ds_status save_run(ds_engine *e, const ds_save_opts *o, dsi_save_job *j)
{
    ds_scope *scope = ds_scope_open();
    bool first = j->hosts ? dsi_hosts_is_first(j->hosts) : j->rank == 0;
    e->comm->disk = j->dir;
    ds_status status = save_fail_in(first ? save_begin(j) : DS_OK);
    bool begun = first && status == DS_OK; /* else .saving-TAG may be another job's */
    status = ds_comm_sync_status(e->comm, status);
    if (status == DS_OK)
        status = ds_comm_sync_status(e->comm, save_fail_in(save_make_values(j, e, o)));
    e->comm->disk = NULL;
    if (status == DS_OK && save_is_async(e)) {
        e->async_save = dsi_async_save_start(j);
        j = NULL;
    } else if (status == DS_OK) {
        status = save_write_and_publish(j, e->comm);
    }
    if (status != DS_OK && begun) dsi_folder_abandon(j->dir, j->tag);
    dsi_save_job_free(j);
    ds_scope_close(scope);
    return status;
}

/* Whether this rank wants the save that overhead_limit may leave out. Of the one
 * before, the call's time is at most that share of the time between the two, and
 * the processor time of the call and of its thread at most that share of this
 * thread's. Rank 0's thread ends last: it waits for the others' files. */
static bool save_is_wanted(ds_engine *e, const ds_save_opts *o)
{
    double limit = e->config->checkpoint.overhead_limit, cpu = 0;
    const dsi_async_save *before = e->async_save; /* NULL: its time is in save_took_cpu */
    if (!limit || o->required || ds_error()) return true;
    if (before && dsi_async_save_error(before)) return true; /* and returns it */
    if (ds_comm_rank(e->comm)) return false;
    double now = dsi_now();
    if (now < e->save_not_before || (before && !dsi_async_save_ended(before, &cpu))) return false;
    /* no processor time passes more quickly than this: to ask for it costs a
     * microsecond, in a step of perhaps forty */
    double missing = e->save_ended_cpu + (e->save_took_cpu + cpu) / limit - dsi_thread_time();
    double stalled = e->save_ended + e->save_took / limit - now;
    if (stalled > missing) missing = stalled;
    e->save_not_before = now + missing;
    return missing <= 0;
}

/* *out, the same on all ranks: this save is left out. */
static ds_status save_is_left_out(ds_engine *e, const ds_save_opts *o, bool *out)
{
    int64_t wanted = save_is_wanted(e, o);
    ds_status status = DS_OK;
    if (e->config->checkpoint.overhead_limit > 0) status = dsi_sync_max(e->comm, &wanted, 1);
    *out = status == DS_OK && !wanted;
    if (o->left_out) *o->left_out = *out;
    return status;
}

ds_status ds_engine_save_with(ds_engine *e, ds_save_opts o)
{
    if (!e) return dsi_null_argument("engine_save");
    char *tag = NULL;
    bool left_out;
    ds_status status = save_is_left_out(e, &o, &left_out);
    if (status != DS_OK || left_out) return status;
    double begun = dsi_now(), begun_cpu = dsi_thread_time();
    status = ds_engine_save_wait(e);
    if (status == DS_OK) status = ds_comm_sync_status(e->comm, save_check(e, &o));
    if (status == DS_OK) status = save_sync_place(e, &o, &tag);
    if (status == DS_OK && e->config->checkpoint.use_node_local_storage)
        status = save_fail_in(dsi_engine_open_hosts(e, o.dir, false));
    if (status != DS_OK) {
        dsi_free(tag);
        return status;
    }
    dsi_log(DSI_INFO, "Saving model checkpoint: %s/%s", o.dir, tag);
    status = save_run(e, &o, save_job_new(e, &o, tag));
    e->save_ended = dsi_now();
    e->save_ended_cpu = dsi_thread_time();
    e->save_took = e->save_ended - begun;
    e->save_took_cpu = e->save_ended_cpu - begun_cpu;
    if (status == DS_OK && !e->async_save) dsi_log(DSI_INFO, "zero checkpoint saved %s", o.dir);
    return status;
}

/* ---- the model for inference --------------------------------------------------------------------------- */

ds_status ds_engine_save_16bit_model(ds_engine *e, const char *dir, const char *name)
{
    if (!e || !dir) return dsi_null_argument("engine_save_16bit_model");
    if (!name) name = "pytorch_model.bin";
    if (e->config->zero.stage == 3 && !e->config->zero.gather_16bit_weights_on_model_save)
        return dsi_fail(DS_ESTATE,
                        "engine_save_16bit_model: did not save the model %s/%s because "
                        "zero_optimization.stage3_gather_16bit_weights_on_model_save is false",
                        dir, name);
    ds_state *state = ds_engine_state(e, false);
    if (!state) return ds_error_status();
    char *path = dsi_path_in(dir, name);
    ds_status status = DS_OK;
    if (ds_comm_rank(e->comm) == 0 && (status = dsi_mkdirs(dir)) == DS_OK)
        status = ds_save(state, path);
    dsi_free(path);
    ds_state_free(state);
    return dsi_sync_disk(e->comm, dir, status);
}
