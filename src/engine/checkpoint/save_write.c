/* engine/checkpoint/save_write.c: a rank's files to the disk, now or on a
 * thread while training continues.
 *
 * Invariants: the thread of an asynchronous save sends nothing to other ranks:
 * each writes its manifest (folder.h), or failed.RANK with the message, into
 * the shared folder, and rank 0's polls for them up to DS_SAVE_TIMEOUT. The thread
 * alone uses the job until `done` is set; `why` and `cpu` are written before
 * that. With node-local storage there is no shared folder: then the threads use
 * a communicator of their own (save_local.c).
 * SPDX-License-Identifier: MIT */
#include "save.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/value.h"
#include "folder.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void dsi_save_job_free(dsi_save_job *j)
{
    if (!j) return;
    dsi_save_files_free(&j->files);
    dsi_free(j->dir);
    dsi_free(j->tag);
    dsi_free(j->saving);
    dsi_folder_unlock(&j->locks);
    dsi_free(j);
}

/* ---- the files ----------------------------------------------------------------------------------------- */

/* The check sum is computed while the file is written, not by reading it
 * again. */
static ds_status file_write(const dsi_save_job *j, const dsi_save_file *f, dsi_manifest *list)
{
    char *path = dsi_path_in(j->saving, f->name);
    struct stat s;
    uint32_t crc;
    ds_status status = dsi_pth_write(f->value, path, &crc);
    if (status == DS_OK && stat(path, &s))
        status = dsi_fail(DS_EIO, "write %s: %s", path, strerror(errno));
    if (status == DS_OK) dsi_manifest_add(list, f->name, s.st_size, crc);
    dsi_free(path);
    return status;
}

/* The manifest of the rank comes after its files: its presence means that
 * they are on the disk. */
ds_status dsi_save_write(const dsi_save_job *j, dsi_manifest *own)
{
    *own = (dsi_manifest){.ranks = j->ranks, .step = j->step};
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < j->files.n; i++)
        status = file_write(j, &j->files.at[i], own);
    if (j->rank == 0 || j->hosts || status != DS_OK) return status;
    char *path = dsi_folder_rank_manifest(j->saving, j->rank);
    status = dsi_manifest_pass_on(own, path);
    dsi_free(path);
    return status;
}

/* A failure is a warning only: the new checkpoint is complete. */
void dsi_save_prune(const dsi_save_job *j, int64_t oldest, const dsi_folders *before)
{
    int errors = dsi_error_count();
    if (dsi_folder_prune(j->dir, oldest, j->tag, before) == DS_OK) return;
    dsi_log(DSI_WARNING, "an old checkpoint stays: %s", dsi_error_latest());
    dsi_error_forget(errors);
}

ds_status dsi_save_publish(const dsi_save_job *j, dsi_manifest *own)
{
    dsi_folders before = dsi_folder_list(j->dir, false);
    own->serial = before.n ? before.at[0].serial + 1 : 1;
    ds_status status = dsi_folder_merge_manifests(j->dir, j->tag, own);
    if (status == DS_OK) status = dsi_folder_publish(j->dir, j->tag, own, false);
    if (status == DS_OK && j->latest) status = dsi_folder_set_latest(j->dir, DSI_LATEST, j->tag);
    if (status == DS_OK && j->latest) dsi_progress_saved(j->progress, j->step);
    if (status == DS_OK && j->keep_last)
        dsi_save_prune(j, dsi_folder_oldest_to_keep(&before, j->keep_last, j->tag), &before);
    dsi_folders_free(&before);
    return status;
}

/* ---- asynchronous -------------------------------------------------------------------------------------------- */

struct dsi_async_save {
    dsi_save_job *job;
    pthread_t thread;
    bool joined;
    double limit;     /* seconds to wait for the other ranks */
    atomic_bool done; /* then: */
    char why[768];    /* its message if it failed; else "" */
    double cpu;       /* seconds that its thread has computed */
};

static char *failure_path(const dsi_save_job *j, int rank)
{
    return dsi_text_of("%s/failed.%d", j->saving, rank).s;
}

/* Tells rank 0 the reason. If even that cannot be written, rank 0 learns of the
 * failure by its time limit. */
static void failure_write(const dsi_save_job *j)
{
    char why[512], *path = failure_path(j, j->rank);
    snprintf(why, sizeof why, "%s", ds_error());
    dsi_file *f = dsi_file_replace(path);
    dsi_file_write(f, why, strlen(why));
    (void)dsi_file_commit(f);
    dsi_fail(DS_EIO, "%s", why);
    dsi_free(path);
}

/* Whether rank r has ended, and how. */
static bool rank_has_ended(const dsi_save_job *j, int r, ds_status *status)
{
    char *list = dsi_folder_rank_manifest(j->saving, r), *why = failure_path(j, r);
    bool good = dsi_file_exists(list), bad = !good && dsi_file_exists(why);
    if (bad) {
        char *text = dsi_file_read_regular(why, NULL);
        *status = dsi_fail(DS_EIO, "%s (rank %d)", text ? text : "it failed", r);
        dsi_free(text);
    }
    dsi_free(list);
    dsi_free(why);
    return good || bad;
}

/* Polls every 1 to 50 ms, in total at most DS_SAVE_TIMEOUT seconds. */
static ds_status async_save_wait_for_ranks(const dsi_async_save *b)
{
    const dsi_save_job *j = b->job;
    double end = dsi_now() + b->limit;
    ds_status status = DS_OK;
    for (int r = 1; status == DS_OK && r < j->ranks; r++) {
        for (long ms = 1; !rank_has_ended(j, r, &status); ms = ms < 50 ? 2 * ms : ms) {
            if (dsi_now() > end)
                return dsi_fail(DS_EIO,
                                "rank %d has not written its part of %s in %.3g s "
                                "(DS_SAVE_TIMEOUT): is the disk slow or full?",
                                r, j->saving, b->limit);
            nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
        }
    }
    return status;
}

static ds_status async_save_shared(const dsi_async_save *b)
{
    const dsi_save_job *j = b->job;
    dsi_manifest own;
    ds_status status = dsi_save_write(j, &own);
    if (j->rank == 0) {
        if (status == DS_OK) status = async_save_wait_for_ranks(b);
        if (status == DS_OK) status = dsi_save_publish(j, &own);
        if (status != DS_OK) dsi_folder_abandon(j->dir, j->tag);
    } else if (status != DS_OK) {
        failure_write(j);
    }
    dsi_manifest_free(&own);
    return status;
}

/* The thread. Its failure is kept in why, for the engine's thread to report. */
static void *async_save_run(void *arg)
{
    dsi_async_save *b = arg;
    dsi_save_job *j = b->job;
    ds_status status = j->hosts ? dsi_save_local(j) : async_save_shared(b);
    if (status != DS_OK)
        snprintf(b->why, sizeof b->why, "engine_save: %s, saved asynchronously: %s", j->tag,
                 ds_error());
    ds_error_clear();
    dsi_folder_unlock(&j->locks); /* other jobs may load until the next save */
    b->cpu = dsi_thread_time();
    atomic_store(&b->done, true);
    return NULL;
}

dsi_async_save *dsi_async_save_start(dsi_save_job *j)
{
    dsi_async_save *b = dsi_alloc(sizeof *b);
    b->job = j;
    b->limit = dsi_comm_save_timeout();
    b->joined = pthread_create(&b->thread, NULL, async_save_run, b) != 0;
    if (b->joined) async_save_run(b); /* no thread could be made: save now */
    return b;
}

bool dsi_async_save_ended(const dsi_async_save *b, double *cpu)
{
    bool ended = atomic_load(&b->done);
    *cpu = ended ? b->cpu : 0;
    return ended;
}

const char *dsi_async_save_error(const dsi_async_save *b)
{
    return atomic_load(&b->done) && b->why[0] ? b->why : NULL;
}

const char *dsi_async_save_folder(const dsi_async_save *b) { return b->job->saving; }

void dsi_async_save_wait(dsi_async_save *b)
{
    if (!b->joined) pthread_join(b->thread, NULL);
    b->joined = true;
}

void dsi_async_save_free(dsi_async_save *b)
{
    dsi_async_save_wait(b);
    dsi_save_job_free(b->job);
    dsi_free(b);
}
