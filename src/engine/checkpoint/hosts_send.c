/* engine/checkpoint/hosts_send.c: files from hosts to hosts, as messages.
 *
 * In round k each rank starts the k-th message of everything that it sends and
 * receives, and then waits for them. A rank never waits before it has started
 * its messages of a round, so that all ranks finish round 0, then round 1, and
 * so on, whoever sends to whom.
 *
 * Invariants: both ends of a sending cut its files into the same messages: of
 * at most MESSAGE bytes, none of two files. A rank whose disk fails continues:
 * it sends zeros, or drops what it receives, and returns its failure at the
 * end; then the receiver's check sums are wrong, too.
 * SPDX-License-Identifier: MIT */
#include "hosts.h"

#include "base/crc.h"
#include "base/error.h"
#include "base/file.h"
#include "comm/comm.h"
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE ((int64_t)4 << 20)

void dsi_sendings_add(dsi_sendings *all, int from, int to, const dsi_manifest_file *f)
{
    for (int i = 0; i < all->n; i++)
        if (all->at[i].from == from && all->at[i].to == to) {
            dsi_list_add(&all->at[i], f);
            return;
        }
    dsi_list_add(all, (dsi_sending){.from = from, .to = to});
    dsi_list_add(&all->at[all->n - 1], f);
}

void dsi_sendings_free(dsi_sendings *all)
{
    for (int i = 0; i < all->n; i++) dsi_list_free(&all->at[i]);
    dsi_list_free(all);
}

/* One end of a sending. */
typedef struct End {
    const dsi_sending *all;
    const char *folder;
    bool sends, replace;
    int file;   /* the current one */
    int64_t at; /* bytes of it that are done */
    int64_t n;  /* and bytes of the message */
    int fd;     /* of the sender; -1: it could not be opened */
    dsi_file *out;
    uint32_t crc;
    char *message; /* [MESSAGE], or less for small files */
    dsi_request *request;
    ds_status status;
} End;

static void end_fail(End *e, const char *doing, const char *path)
{
    if (e->status == DS_OK)
        e->status = dsi_fail(DS_EIO, "%s %s: %s", doing, path,
                             errno ? strerror(errno) : "it became shorter");
}

static char *end_path(const End *e) { return dsi_path_in(e->folder, e->all->at[e->file]->name); }

static void end_open_file(End *e)
{
    char *path = end_path(e);
    e->crc = 0;
    if (e->sends) {
        e->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (e->fd < 0) end_fail(e, "read", path);
    } else {
        e->out = e->replace ? dsi_file_replace(path) : dsi_file_create(path);
        if (!e->out) e->status = ds_error_status();
    }
    dsi_free(path);
}

static void end_read(End *e)
{
    int64_t done = 0;
    errno = 0;
    while (e->fd >= 0 && done < e->n) {
        ssize_t got = pread(e->fd, e->message + done, (size_t)(e->n - done), e->at + done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += got;
    }
    if (done == e->n) return;
    char *path = end_path(e);
    end_fail(e, "read", path);
    memset(e->message + done, 0, (size_t)(e->n - done));
    dsi_free(path);
}

/* Starts the next message. */
static ds_status end_start(const dsi_hosts *h, End *e)
{
    if (e->file == e->all->n) return DS_OK;
    const dsi_manifest_file *f = e->all->at[e->file];
    if (!e->at) end_open_file(e);
    e->n = f->bytes - e->at < MESSAGE ? f->bytes - e->at : MESSAGE;
    if (!e->n) return DS_OK;
    if (e->sends) end_read(e);
    dsi_request r = {.comm = h->comm,
                     .what = e->sends ? DSI_SEND : DSI_RECV,
                     .dtype = DS_U8,
                     .in = e->message,
                     .out = e->message,
                     .n = e->n,
                     .root = e->sends ? e->all->to : e->all->from,
                     .purpose = "a file of a checkpoint"};
    e->request = dsi_request_start(&r);
    return e->request ? DS_OK : DS_ECOMM;
}

static void end_close_file(End *e)
{
    const dsi_manifest_file *f = e->all->at[e->file];
    if (e->sends && e->fd >= 0) close(e->fd);
    if (e->out && e->crc != f->crc && e->status == DS_OK)
        e->status = dsi_fail(DS_EFORMAT, "%s was damaged on its way from rank %d", f->name,
                             e->all->from);
    if (e->out && e->status != DS_OK)
        dsi_file_abandon(e->out);
    else if (e->out)
        e->status = dsi_file_commit(e->out);
    e->out = NULL;
    e->fd = -1;
    e->at = 0;
    e->file++;
}

/* Waits for the message that was started. */
static ds_status end_wait(End *e)
{
    if (e->file == e->all->n) return DS_OK;
    if (e->request && dsi_request_wait(e->request) != DS_OK) return e->request = NULL, DS_ECOMM;
    e->request = NULL;
    if (e->out) dsi_file_write(e->out, e->message, (size_t)e->n);
    if (e->out) e->crc = dsi_crc32(e->crc, e->message, (size_t)e->n);
    e->at += e->n;
    if (e->at == e->all->at[e->file]->bytes) end_close_file(e);
    return DS_OK;
}

typedef struct Ends {
    DSI_LIST(End)
} Ends;

static ds_status ends_run(const dsi_hosts *h, Ends *all)
{
    ds_status status = DS_OK;
    for (bool more = true; more && status == DS_OK;) {
        more = false;
        for (int i = 0; i < all->n && status == DS_OK; i++) status = end_start(h, &all->at[i]);
        for (int i = 0; i < all->n; i++) {
            if (end_wait(&all->at[i]) != DS_OK) status = DS_ECOMM;
            more |= all->at[i].file < all->at[i].all->n;
        }
    }
    return status;
}

static ds_status end_free(End *e)
{
    if (e->fd >= 0) close(e->fd);
    dsi_file_abandon(e->out);
    dsi_free(e->message);
    return e->status;
}

/* Of the longest message: new pages cost more than what a small model writes. */
static char *message_new(const dsi_sending *all)
{
    int64_t most = 1;
    for (int i = 0; i < all->n; i++)
        if (all->at[i]->bytes > most) most = all->at[i]->bytes;
    return dsi_alloc((size_t)(most < MESSAGE ? most : MESSAGE));
}

ds_status dsi_hosts_send(const dsi_hosts *h, const dsi_sendings *all, const char *folder,
                         bool replace)
{
    Ends ends = {0};
    for (int i = 0; i < all->n; i++)
        if (all->at[i].from == h->rank || all->at[i].to == h->rank)
            dsi_list_add(&ends, (End){.all = &all->at[i],
                                      .folder = folder,
                                      .sends = all->at[i].from == h->rank,
                                      .replace = replace,
                                      .fd = -1,
                                      .message = message_new(&all->at[i])});
    ds_status status = ends_run(h, &ends);
    for (int i = 0; i < ends.n; i++) {
        ds_status own = end_free(&ends.at[i]);
        if (status == DS_OK) status = own;
    }
    dsi_list_free(&ends);
    return status;
}
