/* comm/comm.c: this thread's world, and what all backends share: the life of a
 * request.
 *
 * The only list of backends is the one in launch.c; here a communicator is a
 * rank, a size and a table of functions.
 *
 * Invariants:
 *  - A request is in its communicator's list, oldest first, from
 *    dsi_request_start to dsi_request_wait, which frees it and its counts. Its
 *    operands belong to the caller and stay alive until then.
 *  - Collectives are numbered in the order in which a rank starts them, which is
 *    the same on all ranks; messages by sender and receiver. Backends match
 *    requests by these numbers.
 *  - dsi_request_start does not block, but with a log (ds_comm_log_start) and with
 *    DS_DEBUG=comm on a backend that does not compare by itself.
 *  - ds_comm_free waits for the requests that are left; after a failure it aborts
 *    the job instead, since other ranks may never start them.
 *  - world and self_world belong to this thread and are freed when it ends.
 * SPDX-License-Identifier: MIT */
#include "nccl.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/handle.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/profile.h"
#include "base/thread.h"
#include "base/trace.h"
#include "device/graph.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- this thread's world -------------------------------------------------------------------------- */

static _Thread_local ds_comm *world;      /* of a launcher or of ds_run_ranks */
static _Thread_local ds_comm *self_world; /* what ds_world gives without either */

static void world_end(void)
{
    dsi_set_world(NULL);
    ds_comm_free(self_world);
    self_world = NULL;
}

/* Takes c, and frees the world that was there. NULL: alone again. Log lines
 * carry the rank from now on. */
void dsi_set_world(ds_comm *c)
{
    ds_comm *was = world;
    world = c;
    ds_comm_free(was);
    dsi_log_set_rank(ds_comm_rank(c));
    if (c) dsi_at_thread_end(DSI_END_HANDLES, world_end);
}

bool ds_is_distributed(void) { return world != NULL; }

/* Made at the first use: a program without a launcher is a world of one
 * rank. */
ds_comm *ds_world(void)
{
    if (world) return world;
    if (!self_world) {
        self_world = dsi_comm_new(&dsi_comm_self, 0, 1, NULL);
        dsi_at_thread_end(DSI_END_HANDLES, world_end);
    }
    return self_world;
}

/* ---- communicators -------------------------------------------------------------------------------- */

static void comm_describe(const void *p, char *text, size_t room)
{
    const ds_comm *c = p;
    snprintf(text, room, "of %d rank%s", c->size, c->size == 1 ? "" : "s");
}

static const dsi_handle_kind comm_kind = {"communicator", comm_describe, NULL, NULL};

/* own belongs to the communicator, and type->close frees it. */
ds_comm *dsi_comm_new(const dsi_comm_type *type, int rank, int size, void *own)
{
    ds_comm *c = dsi_alloc(sizeof *c);
    dsi_handle_made(c, &comm_kind);
    *c = (ds_comm){.type = type, .rank = rank, .size = size, .own = own};
    c->local_rank = rank;
    c->local_size = size;
    static const char *const checks[] = {"comm", NULL};
    int check = size > 1 ? dsi_env_word_or("DS_DEBUG", checks, -1, "nothing is compared") : -1;
    c->debug = check == 0;
    c->compares = c->debug && !type->compares;
    return c;
}

/* Its operands are there until it has ended, whoever has forgotten it: the
 * other rank may not have. */
static void request_end(dsi_request *r)
{
    if (r->comm->debug && r->message)
        dsi_log(DSI_WARNING, "%s, number %llu, was never waited for (ds_message_wait): it is now",
                dsi_request_text(r), (unsigned long long)r->number);
    if (r->message)
        ds_message_wait(r->message);
    else
        dsi_request_wait(r);
}

void ds_comm_free(ds_comm *c)
{
    if (!dsi_live(c, "comm_free")) return;
    /* A request that was never waited for: if this rank has failed, the others
     * may never start theirs. */
    if (c->oldest && ds_error()) c->type->abort(c, ds_error());
    while (c->oldest) request_end(c->oldest);
    dsi_nccl_free(c);
    c->type->close(c);
    dsi_staged_free(c);
    dsi_comm_log_free(c->log);
    dsi_free(c->messages);
    if (!dsi_handle_freed_by(c, "ds_comm_free")) dsi_free(c);
}

/* Collective: all ranks of c call it, as MPI_Comm_split. Any negative color
 * means that this rank is in no part: NULL, which is no failure. */
ds_comm *ds_comm_split(ds_comm *c, int color, int key)
{
    if (!c) c = ds_world();
    if (!dsi_live(c, "comm_split")) return NULL;
    ds_comm *part = c->type->split(c, color < 0 ? -1 : color, key);
    if (part) part->ordered = c->ordered;
    return part;
}

static const ds_comm *comm_or_world_const(const ds_comm *c) { return c ? c : ds_world(); }

/* c NULL: the world's. A freed handle gives rank 0 of 1, with the message. */
int ds_comm_rank(const ds_comm *c)
{
    return !c || dsi_live(c, "comm_rank") ? comm_or_world_const(c)->rank : 0;
}
int ds_comm_size(const ds_comm *c)
{
    return !c || dsi_live(c, "comm_size") ? comm_or_world_const(c)->size : 1;
}
int ds_comm_local_rank(const ds_comm *c) { return comm_or_world_const(c)->local_rank; }
int ds_comm_local_size(const ds_comm *c) { return comm_or_world_const(c)->local_size; }
const char *ds_comm_backend(const ds_comm *c) { return comm_or_world_const(c)->type->name; }

void dsi_comm_abort(ds_comm *c, const char *why)
{
    if (!c) c = ds_world();
    c->type->abort(c, why);
}

#define DEFAULT_TIMEOUT_S 1800.0
static const dsi_env timeout_seconds = {"DS_TIMEOUT", "seconds, from 0.001 to 1e9", .least = 1e-3,
                                        .most = 1e9},
                     timeout_minutes = {"DEEPSPEED_TIMEOUT", "minutes, from 0.001 to 1e7",
                                        .least = 1e-3, .most = 1e7};
static const dsi_env save_seconds = {"DS_SAVE_TIMEOUT", "seconds, from 0.001 to 1e9", .least = 1e-3,
                                     .most = 1e9};

/* DS_TIMEOUT in seconds comes before DEEPSPEED_TIMEOUT in minutes; a value that
 * is none gives a warning and the default here. ds_init_distributed refuses it,
 * by the function below. */
double dsi_comm_timeout(void)
{
    double minutes = dsi_env_number_or(&timeout_minutes, DEFAULT_TIMEOUT_S / 60);
    return dsi_env_number_or(&timeout_seconds, 60 * minutes);
}

/* A short DS_TIMEOUT finds a rank that hangs; a disk may be slower than that. */
double dsi_comm_save_timeout(void)
{
    double least = dsi_comm_timeout();
    return dsi_env_number_or(&save_seconds, least > DEFAULT_TIMEOUT_S ? least : DEFAULT_TIMEOUT_S);
}

double dsi_comm_time_limit(const ds_comm *c)
{
    return c->disk ? dsi_comm_save_timeout() : dsi_comm_timeout();
}

dsi_text dsi_comm_disk_text(const ds_comm *c, const char *ranks, double waited)
{
    return dsi_text_of(
        "%s: rank%s did not come to the end of writing or reading there within %.3g s "
        "(DS_SAVE_TIMEOUT): the disk of its host is slow, full or gone (see df, and the kernel's "
        "log), DS_SAVE_TIMEOUT is too short for it, or, after an asynchronous save, it did not "
        "call ds_engine_free",
        c->disk, *ranks ? ranks : " unknown", waited);
}

ds_status dsi_comm_check_timeout(void)
{
    static const dsi_env *const all[] = {&timeout_seconds, &timeout_minutes, &save_seconds};
    ds_status status = DS_OK;
    double ignored;
    for (int i = 0; i < 3 && status == DS_OK; i++) status = dsi_env_number(all[i], &ignored);
    return status;
}

/* ---- requests ------------------------------------------------------------------------------------- */

static const char *const names[DSI_COLLECTIVES] = {[DSI_ALL_REDUCE] = "all_reduce",
                                                   [DSI_REDUCE] = "reduce_to",
                                                   [DSI_REDUCE_SCATTER] = "reduce_scatter",
                                                   [DSI_ALL_GATHER] = "all_gather",
                                                   [DSI_GATHER] = "gather_to",
                                                   [DSI_SCATTER] = "scatter_from",
                                                   [DSI_ALL_TO_ALL] = "all_to_all",
                                                   [DSI_ALL_TO_ALL_ROWS] = "all_to_all_rows",
                                                   [DSI_BROADCAST] = "broadcast",
                                                   [DSI_BARRIER] = "barrier",
                                                   [DSI_SEND] = "send",
                                                   [DSI_RECV] = "recv"};

const char *dsi_collective_name(dsi_collective what) { return names[what]; }

static bool collective_has_root(dsi_collective what)
{
    return what == DSI_REDUCE || what == DSI_GATHER || what == DSI_SCATTER || what == DSI_BROADCAST;
}

/* Overwritten by the thread's next call. */
const char *dsi_request_text(const dsi_request *r)
{
    enum { ROOM = 192 };
    static _Thread_local void *memory;
    char *text = dsi_thread_memory(&memory, ROOM);
    static const char *const ops[] = {[DS_REDUCE_AVG] = "avg",
                                      [DS_REDUCE_SUM] = "sum",
                                      [DS_REDUCE_MAX] = "max",
                                      [DS_REDUCE_MIN] = "min"};
    char detail[32] = "";
    if (dsi_collective_reduces(r->what)) snprintf(detail, sizeof detail, "(%s)", ops[r->op]);
    if (r->what == DSI_BARRIER) return names[r->what];
    int n = snprintf(text, ROOM, "%s%s of %lld %s", names[r->what], detail, (long long)r->n,
                     ds_dtype_name(r->dtype));
    const char *at = r->what == DSI_SEND            ? "to rank"
                     : r->what == DSI_RECV          ? "from rank"
                     : collective_has_root(r->what) ? "at root"
                                                    : NULL;
    if (at) snprintf(text + n, ROOM - (size_t)n, " %s %d", at, r->root);
    if (r->purpose) snprintf(text + n, ROOM - (size_t)n, " (%s)", r->purpose);
    return text;
}

/* A message to itself would wait for ever, so it is refused. */
static ds_status request_check_peer(const dsi_request *r)
{
    const char *name = names[r->what];
    int size = r->comm->size;
    if (size == 1)
        return dsi_fail(DS_EINVAL, "%s: this communicator has one rank: there is no other one",
                        name);
    if (r->root < 0 || r->root >= size)
        return dsi_fail(DS_EINVAL, "%s: there is no rank %d: ranks are 0 to %d", name, r->root,
                        size - 1);
    if (r->root == r->comm->rank)
        return dsi_fail(DS_EINVAL, "%s: rank %d is this one: use ds_copy", name, r->root);
    return DS_OK;
}

/* Checks on which backends rely: roots exist, and operations are defined for
 * the dtype. Runs before anything is sent, so a mistake that all ranks make
 * ends on all of them alike. */
static ds_status request_check(const dsi_request *r)
{
    const char *name = names[r->what];
    if (dsi_is_message(r)) return request_check_peer(r);
    if (collective_has_root(r->what) && (r->root < 0 || r->root >= r->comm->size))
        return dsi_fail(DS_EINVAL, "%s: root is %d, but ranks are 0 to %d", name, r->root,
                        r->comm->size - 1);
    if (!dsi_collective_reduces(r->what)) return DS_OK;
    bool real = dsi_dtype_is_float(r->dtype);
    if ((int)r->op < 0 || r->op > DS_REDUCE_MIN)
        return dsi_fail(DS_EINVAL, "%s: there is no operation %d", name, (int)r->op);
    if (r->op == DS_REDUCE_AVG && !real)
        return dsi_fail(DS_EINVAL, "%s: an average of %s is not defined; sum, or cast to float32",
                        name, ds_dtype_name(r->dtype));
    if (r->op == DS_REDUCE_SUM && r->dtype == DS_BOOL)
        return dsi_fail(DS_EINVAL,
                        "%s: a sum of bool is not defined; max is \"any\", min is \"all\"", name);
    return DS_OK;
}

/* Alike on the two ranks that it is between, whatever carries it. */
static uint64_t message_next_number(const dsi_request *r)
{
    ds_comm *c = r->comm;
    if (!c->messages) c->messages = dsi_alloc(2 * (size_t)c->size * sizeof *c->messages);
    return c->messages[(r->what == DSI_RECV) * c->size + r->root]++;
}

/* A replay does not come here. */
static ds_status request_forbid_graph(const dsi_request *r, bool on_gpu)
{
    dsi_device *d = on_gpu ? r->device : dsi_device_recording();
    if (!d || r->internal) return DS_OK;
    return dsi_graph_forbid(d, on_gpu ? "it exchanges tensors with other ranks through host memory "
                                        "(without NCCL)"
                                      : "it exchanges tensors of the host with other ranks");
}

/* Counts of rows have the whole of this rank's. */
static ds_status request_copy(const dsi_request *r)
{
    int64_t n = r->what == DSI_ALL_TO_ALL_ROWS ? r->counts[0] : r->n;
    size_t bytes = (size_t)n * ds_dtype_size(r->dtype);
    dsi_stream *s = &r->device->stream;
    if (!bytes || !r->in || r->in == r->out) return DS_OK;
    return r->device->type->copy(s, r->out, r->device, r->in, bytes);
}

/* DS_DEBUG=comm compares the calls of all ranks first, by a collective of its
 * own that is not compared. */
static ds_status request_begin(dsi_request *r)
{
    ds_comm *c = r->comm;
    if (request_check(r) != DS_OK) return DS_EINVAL;
    bool on_gpu = r->device && r->device->type->kind != DS_CPU;
    bool compares = c->compares || (c->debug && on_gpu); /* NCCL compares nothing */
    if (compares && !r->internal && !dsi_is_message(r) && !dsi_comm_agrees(r)) return DS_ECOMM;
    if (dsi_is_message(r)) r->number = message_next_number(r);
    if (on_gpu && dsi_nccl_carries(r, &r->nccl) != DS_OK) return ds_error_status();
    r->begun = dsi_now();
    if (dsi_trace_on()) dsi_trace_async_begin(dsi_request_text(r), (uint64_t)(uintptr_t)r);
    if (r->nccl) return dsi_nccl_start(r);
    r->alone = on_gpu && c->size == 1 && !r->squares;
    if (r->alone) return request_copy(r);
    if (request_forbid_graph(r, on_gpu) != DS_OK) return ds_error_status();
    if (!dsi_is_message(r)) r->number = c->begun++;
    /* whoever reads or writes the GPU's memory then is not on its stream */
    bool direct = on_gpu && dsi_comm_is_direct(r);
    if (direct && r->device->type->sync(&r->device->stream) != DS_OK) return ds_error_status();
    if (on_gpu && !direct && dsi_staged_open(r) != DS_OK) return ds_error_status();
    ds_status status = c->type->start(r);
    if (status != DS_OK && r->staged) (void)dsi_staged_close(r, false);
    return status;
}

/* On any thread: it ends the request's entry in the trace, and writes the time,
 * which the rank's own thread reads after wait has returned. */
void dsi_request_done(dsi_request *r)
{
    /* a shutdown has not begun as others do */
    if (dsi_trace_on() && !r->shutdown)
        dsi_trace_async_end(dsi_request_text(r), (uint64_t)(uintptr_t)r);
    r->ended = dsi_now();
}

/* Blocks. Only what succeeded is logged: other times mean nothing. */
static ds_status request_wait_and_log(dsi_request *r)
{
    r->waited = true;
    double begun = dsi_now();
    dsi_trace_begin("wait for others");
    ds_status status = dsi_is_message(r) && !r->nccl ? dsi_nccl_queue(r->comm->nccl) : DS_OK;
    ds_status ended = DS_OK;
    if (r->alone)
        dsi_request_done(r);
    else
        ended = r->nccl ? dsi_nccl_wait(r) : r->comm->type->wait(r);
    if (ended != DS_OK) status = ended;
    dsi_trace_end();
    if (r->staged && dsi_staged_close(r, status == DS_OK) != DS_OK) status = ds_error_status();
    dsi_profile_add(dsi_collective_name(r->what), true, dsi_now() - begun, 0,
                    (double)r->n * (double)ds_dtype_size(r->dtype));
    if (status == DS_OK && !r->internal) dsi_comm_log_add(r);
    return status;
}

/* Copies *like. The request is appended to the list even if a log has waited
 * for it already: dsi_request_wait then only returns its status. */
dsi_request *dsi_request_start(const dsi_request *like)
{
    ds_comm *c = like->comm;
    dsi_request *r = dsi_alloc(sizeof *r);
    *r = *like;
    if (request_begin(r) != DS_OK) {
        dsi_free(r->counts);
        dsi_free(r);
        return NULL;
    }
    r->before = c->newest;
    *(c->newest ? &c->newest->after : &c->oldest) = r;
    c->newest = r;
    /* its time is then its own; but two ranks that send to each other before
     * they receive may do so */
    if (c->log && !r->internal && (r->blocking || !dsi_is_message(r)))
        r->status = request_wait_and_log(r);
    return r;
}

/* Requests are waited for in any order, so the list is doubly linked. */
ds_status dsi_request_wait(dsi_request *r)
{
    if (!r) return dsi_null_argument("request_wait");
    ds_comm *c = r->comm;
    ds_status status = r->waited ? r->status : request_wait_and_log(r);
    *(r->before ? &r->before->after : &c->oldest) = r->after;
    *(r->after ? &r->after->before : &c->newest) = r->before;
    dsi_free(r->counts);
    dsi_free(r);
    return status;
}

ds_status dsi_request_run(const dsi_request *like)
{
    dsi_request *r = dsi_request_start(like);
    return r ? dsi_request_wait(r) : ds_error_status();
}
