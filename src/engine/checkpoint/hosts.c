/* engine/checkpoint/hosts.c: which ranks share a folder, by files that they
 * make and look for; texts of all ranks.
 * SPDX-License-Identifier: MIT */
#include "hosts.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "comm/comm.h"
#include "comm/sync_status.h"
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ---- ranks of a host --------------------------------------------------------------------------------- */

int dsi_hosts_size(const dsi_hosts *h, int host)
{
    int n = 0;
    for (int r = 0; r < h->ranks; r++) n += h->host[r] == host;
    return n;
}

int dsi_hosts_rank(const dsi_hosts *h, int host, int i)
{
    int size = dsi_hosts_size(h, host), r = 0;
    for (int k = size > 0 ? i % size : 0; h->host[r] != host || k--; r++) continue;
    return r;
}

int dsi_hosts_place(const dsi_hosts *h, int rank)
{
    int i = 0;
    for (int r = 0; r < rank; r++) i += h->host[r] == h->host[rank];
    return i;
}

bool dsi_hosts_is_first(const dsi_hosts *h) { return dsi_hosts_place(h, h->rank) == 0; }

ds_status dsi_hosts_gather(const dsi_hosts *h, const char *mine, dsi_texts *all)
{
    size_t bytes = strlen(mine);
    int64_t stride = (int64_t)bytes + 1;
    *all = (dsi_texts){0};
    if (dsi_sync_max(h->comm, &stride, 1) != DS_OK) return ds_error_status();
    char *padded = dsi_alloc((size_t)stride);
    memcpy(padded, mine, bytes + 1);
    *all = (dsi_texts){dsi_alloc((size_t)stride * (size_t)h->ranks), (size_t)stride};
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(h->comm, DSI_ALL_GATHER, DS_U8, padded, all->p, stride)});
    dsi_free(padded);
    if (status == DS_OK) return DS_OK;
    dsi_free(all->p);
    all->p = NULL;
    return status;
}

/* ---- which ranks see each other ---------------------------------------------------------------------- */

static char *probe_path(const char *dir, int64_t token, int rank)
{
    dsi_text name = dsi_text_of(DSI_PROBE "%llx-%d", (unsigned long long)token, rank);
    char *path = dsi_path_in(dir, name.s);
    dsi_text_free(&name);
    return path;
}

static ds_status probe_make(const dsi_hosts *h, int64_t token)
{
    if (dsi_mkdirs(h->dir) != DS_OK) return ds_error_status();
    char *path = probe_path(h->dir, token, h->rank);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    ds_status status = fd >= 0 ? DS_OK : dsi_fail(DS_EIO, "write %s: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    dsi_free(path);
    return status;
}

/* The lowest rank whose file is here: at most this rank, which has made its
 * file. */
static ds_status probe_look(const dsi_hosts *h, int64_t token, int64_t *lowest)
{
    for (int r = 0; r <= h->rank; r++) {
        char *path = probe_path(h->dir, token, r);
        bool here = dsi_file_exists(path);
        dsi_free(path);
        *lowest = r;
        if (here) return DS_OK;
    }
    return dsi_fail(DS_EIO, "%s: a file that was just made there is missing", h->dir);
}

static void probe_remove(const dsi_hosts *h, int64_t token)
{
    char *path = probe_path(h->dir, token, h->rank);
    (void)unlink(path);
    dsi_free(path);
}

static ds_status hosts_gather_number(const dsi_hosts *h, int64_t mine, int64_t *all)
{
    return dsi_request_run(
        &(dsi_request){DSI_NUMBERS(h->comm, DSI_ALL_GATHER, DS_I64, &mine, all, 1)});
}

/* Hosts are numbered by their lowest ranks, of which lowest[r] is rank r's. */
static void hosts_number(dsi_hosts *h, const int64_t *lowest)
{
    for (int r = 0; r < h->ranks; r++) h->host[r] = lowest[r] == r ? h->n++ : h->host[lowest[r]];
}

/* Between two syncs: files are looked for when all have been made, and removed
 * when all have looked. */
static ds_status hosts_find(dsi_hosts *h, int64_t token, ds_status made)
{
    int64_t lowest = 0, *all = dsi_alloc((size_t)h->ranks * sizeof *all);
    ds_status status = ds_comm_sync_status(h->comm, made);
    if (status == DS_OK) status = ds_comm_sync_status(h->comm, probe_look(h, token, &lowest));
    if (status == DS_OK) status = hosts_gather_number(h, lowest, all);
    if (made == DS_OK) probe_remove(h, token);
    if (status == DS_OK) hosts_number(h, all);
    dsi_free(all);
    return status;
}

/* Not all of them, or none, can write to their folders: *none. */
static ds_status hosts_probe(dsi_hosts *h, bool to_load, bool *none)
{
    int before = dsi_error_count();
    int64_t token = (int64_t)(dsi_wall_time() * 1e6) ^ (int64_t)getpid() << 32;
    if (dsi_broadcast_count(h->comm, &token) != DS_OK) return ds_error_status();
    ds_status made = probe_make(h, token);
    int64_t written = made == DS_OK;
    if (dsi_sync_max(h->comm, &written, 1) != DS_OK) return ds_error_status();
    *none = to_load && !written;
    if (*none) dsi_error_forget(before);
    return *none ? DS_OK : hosts_find(h, token, made);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

/* A communicator of its own: a thread uses it while training uses the other. */
static dsi_hosts *hosts_new(ds_comm *comm, const char *dir)
{
    ds_comm *own = ds_comm_split(comm, 0, ds_comm_rank(comm));
    if (!own) return NULL;
    own->patient = true;
    dsi_hosts *h = dsi_alloc(sizeof *h);
    *h = (dsi_hosts){.dir = dsi_strdup(dir),
                     .comm = own,
                     .rank = ds_comm_rank(own),
                     .ranks = ds_comm_size(own),
                     .host = dsi_alloc((size_t)ds_comm_size(own) * sizeof *h->host)};
    own->disk = h->dir;
    return h;
}

ds_status dsi_hosts_sync(const dsi_hosts *h, ds_status status)
{
    return ds_comm_sync_status(h->comm, dsi_fail_in(h->caller, status));
}

void dsi_hosts_free(dsi_hosts *h)
{
    if (!h) return;
    ds_comm_free(h->comm);
    dsi_free(h->dir);
    dsi_free(h->host);
    dsi_free(h);
}

ds_status dsi_hosts_open(dsi_hosts **out, ds_comm *comm, const char *dir, bool to_load)
{
    *out = NULL;
    int64_t exists = dsi_is_folder(dir);
    bool none = false;
    if (to_load && dsi_sync_max(comm, &exists, 1) != DS_OK) return ds_error_status();
    if (to_load && !exists) return DS_OK;
    dsi_hosts *h = hosts_new(comm, dir);
    if (!h) return ds_error_status();
    ds_status status = hosts_probe(h, to_load, &none);
    if (status != DS_OK || none) {
        dsi_hosts_free(h);
        return status;
    }
    if (h->n == 1 && h->rank == 0)
        dsi_log_once(DSI_WARNING,
                     "checkpoint.use_node_local_storage: all ranks share the folder %s: there is "
                     "no other host to copy files to",
                     dir);
    *out = h;
    return DS_OK;
}
