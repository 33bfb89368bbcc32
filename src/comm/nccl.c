/* comm/nccl.c: collectives of tensors on GPUs by NCCL: Note [NCCL] of nccl.h.
 *
 * The backend keeps: means of int16, and requests that want squares,
 * which the host adds up.
 *
 * Invariants:
 * - All ranks start the same collectives in the same order, so they are in that
 *   order on the streams of all ranks.
 * - An operation is in the list from its start until it is waited for and has
 *   ended on the GPU; then it is used again. It keeps a copy of the request for
 *   messages, since requests end earlier.
 * - A message is in `messages`, oldest first, from its start until the first
 *   wait for a message, and then in the list.
 * - Calls of NCCL that return ncclInProgress are waited for (nccl_wait_call),
 *   so that what follows on the stream is behind them.
 * - After a failure `comm` is NULL and `why` says why; nothing is queued any
 *   more, and what was queued has been aborted.
 * - NCCL works on the thread's current context, which the device's entries set:
 *   each call of NCCL follows one of them.
 * SPDX-License-Identifier: MIT */
#include "nccl.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/int.h"
#include "base/mem.h"
#include "base/trace.h"
#include "device/graph.h"

#include <stdio.h>
#include <unistd.h>

#define NAP_US      20
#define ENDED_S     2.0  /* a rank that has ended is missed only after this */
#define FINALIZE_S  10.0 /* then the communicator is aborted */
#define MESSAGE_ROW 512

typedef struct operation {
    struct operation *next;
    dsi_request like;
    dsi_nccl_composed composed;
    dsi_event done;
    bool waited, ended;
    bool recorded, captured; /* begun while the device did; captured: it is not in the list */
} operation;

/* The collectives of a step that a device has captured. */
typedef struct capture {
    struct capture *next;
    struct dsi_nccl *n; /* NULL: it has ended */
    dsi_graph *graph;
    dsi_request like; /* the first of them */
    int count;
    double sent; /* bytes */
    bool launched;
} capture;

typedef struct queue {
    dsi_stream stream;
    int users; /* Note [One stream] of nccl.h */
} queue;

typedef struct dsi_nccl {
    dsi_device_watch watch; /* first */
    ds_comm *c;
    dsi_device *device;
    const dsi_nccl_functions *f;
    ncclComm_t comm;            /* NULL: through the host, or after a failure */
    bool on, direct;            /* direct: the backend takes a GPU's memory */
    queue *queue;               /* counted */
    dsi_graph_voters *voters;   /* Note [Graph votes] of device/graph.h; NULL: not on */
    dsi_event ready;            /* the operands of the latest start */
    operation *oldest, *newest; /* queued, oldest first */
    operation *messages;        /* begun and not queued, oldest first */
    uint64_t *first_message;    /* [2 size]: NCCL's first to each rank, and from each */
    operation *unused;
    capture *captures; /* newest first */
    char *why;         /* NULL: nothing has failed */
} dsi_nccl;

/* ---- steps that a device captures ------------------------------------------------------------------------ */

/* Before the communicator ends. */
static void captures_cancel(dsi_nccl *n)
{
    for (capture *k = n->captures; k; k = k->next) {
        dsi_graph_cancel(k->graph);
        k->n = NULL;
    }
    n->captures = NULL;
}

/* ---- failure ------------------------------------------------------------------------------------------- */

/* Aborts NCCL's communicator, whose kernels then end, and the job. The request
 * is one of n, or NULL for its making. */
static ds_status nccl_fail(dsi_nccl *n, const dsi_request *r, const char *why)
{
    if (!n->why) {
        dsi_text text = {0};
        if (r)
            dsi_text_add(&text, "%s, number %llu on %s: %s", dsi_request_text(r),
                         (unsigned long long)r->number, ds_device_name(dsi_device_id(n->device)),
                         why);
        else
            dsi_text_add(&text, "NCCL of %d ranks on %s: %s", n->c->size,
                         ds_device_name(dsi_device_id(n->device)), why);
        n->why = text.s;
        captures_cancel(n);
        if (n->comm) n->f->abort(n->comm);
        n->comm = NULL;
        dsi_fail(DS_ECOMM, "%s", n->why);
        dsi_comm_abort(n->c, n->why);
        return DS_ECOMM;
    }
    return dsi_fail(DS_ECOMM, "%s", n->why);
}

static ds_status nccl_fail_result(dsi_nccl *n, const dsi_request *r, ncclResult_t result)
{
    char why[MESSAGE_ROW];
    const char *detail = n->comm ? n->f->last_error(n->comm) : NULL;
    bool details = detail && *detail;
    snprintf(why, sizeof why, "NCCL says: %s (%s)%s%.300s", n->f->error_text(result),
             dsi_nccl_result_name(result), details ? ": " : "", details ? detail : "");
    return nccl_fail(n, r, why);
}

static ds_status nccl_fail_timeout(dsi_nccl *n, const dsi_request *r, double waited)
{
    char why[MESSAGE_ROW];
    snprintf(why, sizeof why, "stuck for %.3g s (DS_TIMEOUT) in NCCL, on this rank or another one",
             waited);
    return nccl_fail(n, r, why);
}

/* Whether another rank has failed, or, if `ended`, has left without r. */
static ds_status nccl_check_others(dsi_nccl *n, const dsi_request *r, bool ended)
{
    ds_comm *c = n->c;
    int before = dsi_error_count();
    if (!c->type->failed || c->type->failed(c, ended, r) == DS_OK) return DS_OK;
    char why[MESSAGE_ROW];
    snprintf(why, sizeof why, "%.500s", dsi_error_latest());
    dsi_error_forget(before);
    return nccl_fail(n, r, why);
}

/* ---- waiting on the host ------------------------------------------------------------------------------- */

/* Waits until a call of NCCL, which returned `result` and may continue in the
 * background, has ended. */
static ds_status nccl_wait_call(dsi_nccl *n, const dsi_request *r, ncclResult_t result)
{
    double begun = dsi_now(), limit = dsi_comm_timeout();
    while (result == ncclInProgress) {
        ncclResult_t asked = n->f->async_error(n->comm, &result);
        if (asked != ncclSuccess) result = asked;
        double waited = dsi_now() - begun;
        if (result != ncclInProgress) break;
        if (waited > limit) return nccl_fail_timeout(n, r, waited);
        if (nccl_check_others(n, r, waited > ENDED_S) != DS_OK) return DS_ECOMM;
        usleep(NAP_US);
    }
    return result == ncclSuccess ? DS_OK : nccl_fail_result(n, r, result);
}

static bool operation_ended(dsi_nccl *n, operation *o)
{
    if (!o->ended && n->device->type->reached(&n->queue->stream, &o->done, &o->ended) != DS_OK)
        o->ended = false; /* the wait that comes says what is wrong */
    return o->ended;
}

/* The oldest operation that has not ended on the GPU, or NULL. Those before it
 * that were waited for are unused from now on. */
static operation *operation_pending(dsi_nccl *n)
{
    while (n->oldest && n->oldest->waited && operation_ended(n, n->oldest)) {
        operation *o = n->oldest;
        n->oldest = o->next;
        if (!n->oldest) n->newest = NULL;
        o->next = n->unused;
        n->unused = o;
    }
    operation *o = n->oldest;
    while (o && operation_ended(n, o)) o = o->next;
    return o;
}

/* The device's watch: see Note [NCCL]. */
static ds_status nccl_check(dsi_device_watch *watch, double waited)
{
    dsi_nccl *n = (dsi_nccl *)watch;
    if (n->why) return dsi_fail(DS_ECOMM, "%s", n->why);
    const operation *o = operation_pending(n);
    if (!o) return DS_OK;
    ncclResult_t error = ncclSuccess, asked = n->f->async_error(n->comm, &error);
    if (asked != ncclSuccess) error = asked;
    if (error != ncclSuccess && error != ncclInProgress)
        return nccl_fail_result(n, &o->like, error);
    if (waited > dsi_comm_timeout()) return nccl_fail_timeout(n, &o->like, waited);
    return nccl_check_others(n, &o->like, waited > ENDED_S);
}

/* Until o has ended on the GPU. */
static ds_status operation_finish(dsi_nccl *n, operation *o)
{
    ds_status status = DS_OK;
    for (double begun = dsi_now(); status == DS_OK && !operation_ended(n, o); usleep(NAP_US))
        status = nccl_check(&n->watch, dsi_now() - begun);
    return status;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

/* The root's number for the communicator that is to be made, on all ranks. */
static ds_status share_id(dsi_nccl *n, ncclUniqueId *id)
{
    struct {
        ncclResult_t result;
        ncclUniqueId id;
    } root = {0};
    ds_comm *c = n->c;
    if (!c->rank) root.result = n->f->get_id(&root.id);
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(c, DSI_BROADCAST, DS_U8, &root, &root, (int64_t)sizeof root),
                       .internal = true});
    *id = root.id;
    if (status != DS_OK || root.result == ncclSuccess) return status;
    return nccl_fail_result(n, NULL, root.result);
}

/* That of another communicator of the device, or a new one. */
static bool queue_join(dsi_nccl *n)
{
    queue *q = NULL;
    for (dsi_device_watch *w = n->device->watches; w && !q; w = w->next)
        if (w->check == nccl_check) q = ((dsi_nccl *)w)->queue;
    if (!q) q = dsi_alloc(sizeof *q);
    bool open = q->users || n->device->type->stream_open(n->device, &q->stream) == DS_OK;
    q->users += open;
    n->queue = open ? q : NULL;
    if (!open) dsi_free(q);
    return open;
}

static void queue_leave(dsi_nccl *n)
{
    if (!n->queue || --n->queue->users) return;
    n->device->type->stream_close(&n->queue->stream);
    dsi_free(n->queue);
}

static ds_status communicator_make(dsi_nccl *n)
{
    ncclUniqueId id;
    ncclConfig_t config = dsi_nccl_config();
    if (share_id(n, &id) != DS_OK || !queue_join(n)) return ds_error_status();
    ncclResult_t result = n->f->init(&n->comm, n->c->size, id, n->c->rank, &config);
    if (!n->comm) return nccl_fail_result(n, NULL, result);
    return nccl_wait_call(n, NULL, result);
}

/* Collective: what each two ranks have begun so far, on either side, is not
 * NCCL's. */
static ds_status messages_count(dsi_nccl *n)
{
    ds_comm *c = n->c;
    int size = c->size;
    int64_t *mine = dsi_alloc(4 * (size_t)size * sizeof *mine), *theirs = mine + 2 * size;
    n->first_message = dsi_alloc(2 * (size_t)size * sizeof *n->first_message);
    for (int q = 0; c->messages && q < size; q++) {
        mine[2 * q] = (int64_t)c->messages[q];
        mine[2 * q + 1] = (int64_t)c->messages[size + q];
    }
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(c, DSI_ALL_TO_ALL, DS_I64, mine, theirs, 2), .internal = true});
    for (int q = 0; q < size; q++) {
        int64_t to = dsi_max(mine[2 * q], theirs[2 * q + 1]);
        int64_t from = dsi_max(mine[2 * q + 1], theirs[2 * q]);
        n->first_message[q] = (uint64_t)to;
        n->first_message[size + q] = (uint64_t)from;
    }
    dsi_free(mine);
    return status;
}

/* Collective; see Note [NCCL]. */
static ds_status nccl_join(ds_comm *c, dsi_device *device)
{
    dsi_nccl *n = dsi_alloc(sizeof *n);
    dsi_text why = {0};
    *n = (dsi_nccl){.watch = {.check = nccl_check}, .c = c, .device = device};
    c->nccl = n;
    n->f = &dsi_nccl_open()->f;
    ds_status status = dsi_nccl_agree(c, device, &n->on, &n->direct, &why);
    if (status == DS_OK && n->on) status = messages_count(n);
    if (status == DS_OK && n->on) status = communicator_make(n);
    if (status == DS_OK) dsi_nccl_say(c, n->on, n->direct, why.s);
    dsi_text_free(&why);
    if (!n->on) return status;
    n->voters = dsi_nccl_voters_new(c);
    n->watch.next = device->watches;
    device->watches = &n->watch;
    return dsi_comm_all_or_none(c, status);
}

static void operations_free(dsi_nccl *n, operation *o)
{
    while (o) {
        operation *next = o->next;
        n->device->type->free_event(n->device, &o->done);
        dsi_free(o);
        o = next;
    }
}

/* Whether the communicator has ended by itself: all that was queued is done,
 * and NCCL is through. */
static bool nccl_finalize(dsi_nccl *n)
{
    double begun = dsi_now();
    if (ds_error()) return false; /* others may never come */
    if (n->newest && operation_finish(n, n->newest) != DS_OK) return false;
    ncclResult_t result = n->f->finalize(n->comm);
    while (result == ncclInProgress && dsi_now() - begun < FINALIZE_S) {
        usleep(NAP_US);
        if (n->f->async_error(n->comm, &result) != ncclSuccess) return false;
    }
    return result == ncclSuccess;
}

void dsi_nccl_free(ds_comm *c)
{
    dsi_nccl *n = c->nccl;
    if (!n) return;
    dsi_device_watch **at = &n->device->watches;
    captures_cancel(n);
    bool ended = n->comm && nccl_finalize(n);
    if (n->comm) (ended ? n->f->destroy : n->f->abort)(n->comm);
    while (*at && *at != &n->watch) at = &(*at)->next;
    if (*at) *at = n->watch.next;
    operations_free(n, n->oldest), operations_free(n, n->unused), operations_free(n, n->messages);
    if (n->on) n->device->type->free_event(n->device, &n->ready);
    queue_leave(n);
    if (n->voters) dsi_graph_voters_end(n->device, n->voters);
    dsi_free(n->first_message), dsi_free(n->why), dsi_free(n);
    c->nccl = NULL;
}

/* ---- what NCCL carries --------------------------------------------------------------------------------- */

/* By properties that all ranks' requests share. */
static bool request_fits(const dsi_request *r)
{
    int of = r->comm->size * (r->what == DSI_RECV) + r->root;
    if (dsi_is_message(r)) return r->number >= r->comm->nccl->first_message[of];
    if (r->squares) return false;
    return !dsi_collective_reduces(r->what) || r->dtype != DS_I16 || r->op != DS_REDUCE_AVG;
}

bool dsi_comm_is_queued(const ds_comm *c, const dsi_device *d)
{
    return c && c->nccl && c->nccl->on && c->nccl->device == d;
}

bool dsi_comm_takes_gpus(const ds_comm *c) { return c->nccl && c->nccl->direct; }

bool dsi_comm_is_direct(const dsi_request *r)
{
    const dsi_nccl *n = r->comm->nccl;
    return n && n->direct && r->device && r->device->type == n->device->type &&
           r->what != DSI_BARRIER && !dsi_collective_reduces(r->what);
}

ds_status dsi_nccl_carries(const dsi_request *r, bool *out)
{
    ds_comm *c = r->comm;
    *out = false;
    if (c->size == 1 || !r->device->type->stream_open) return DS_OK;
    if (!c->nccl && dsi_is_message(r)) return DS_OK;
    if (!c->nccl && nccl_join(c, r->device) != DS_OK) return ds_error_status();
    dsi_nccl *n = c->nccl;
    *out = n->on && request_fits(r);
    if (!*out || n->device == r->device) return DS_OK;
    char why[MESSAGE_ROW];
    snprintf(
        why, sizeof why,
        "its tensor is on %s, but this rank's NCCL communicator is on another GPU: use one GPU "
        "a rank, or DS_NCCL=off",
        ds_device_name(dsi_device_id(r->device)));
    return nccl_fail(n, r, why);
}

/* ---- operations ----------------------------------------------------------------------------------------- */

static operation *operation_new(dsi_nccl *n, const dsi_request *r)
{
    (void)operation_pending(n); /* what has ended is unused */
    operation *o = n->unused;
    if (o)
        n->unused = o->next;
    else
        o = dsi_alloc(sizeof *o);
    o->next = NULL;
    o->like = *r;
    o->waited = o->ended = o->recorded = o->captured = false;
    return o;
}

static void operation_append(dsi_nccl *n, operation *o)
{
    *(n->newest ? &n->newest->next : &n->oldest) = o;
    n->newest = o;
}

/* ---- a captured step's hook --------------------------------------------------------------------------- */

static bool capture_holds(void *arg) { return ((const capture *)arg)->n != NULL; }

/* One operation stands for all that the launch has queued. */
static ds_status capture_queued(void *arg)
{
    capture *k = arg;
    dsi_nccl *n = k->n;
    operation *o = operation_new(n, &k->like);
    o->waited = true;
    if (k->launched) { /* else they were counted as they were captured */
        o->like.number = n->c->queued;
        n->c->queued += (uint64_t)k->count;
        n->c->sent += k->sent;
    } else {
        k->sent = n->c->sent - k->sent;
    }
    k->launched = true;
    operation_append(n, o);
    dsi_step_collectives_queued(n->device, k->count);
    return n->device->type->record(&n->device->stream, &o->done);
}

static void capture_release(void *arg)
{
    capture *k = arg;
    capture **at = k->n ? &k->n->captures : NULL;
    while (at && *at != k) at = &(*at)->next;
    if (at) *at = k->next;
    dsi_free(k);
}

/* Notes that the step which the device captures has r too. */
static void capture_add(dsi_nccl *n, const dsi_request *r)
{
    static const dsi_graph_hook hook = {
        .holds = capture_holds, .queued = capture_queued, .release = capture_release};
    capture *k = n->captures;
    if (!k || k->launched || k->graph != n->device->recording) {
        k = dsi_alloc(sizeof *k);
        *k = (capture){.next = n->captures,
                       .n = n,
                       .graph = n->device->recording,
                       .like = *r,
                       .sent = n->c->sent};
        k->like.purpose = "the first of a recorded step";
        n->captures = k;
        dsi_graph_add_hook(n->device, &hook, k);
    }
    k->count++;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

static ds_status message_start(dsi_nccl *n, dsi_request *r)
{
    if (n->why) return dsi_fail(DS_ECOMM, "%s", n->why);
    ds_status status = dsi_graph_forbid(n->device, "it sends messages (ds_send, ds_recv)");
    if (status != DS_OK) return status;
    operation *o = operation_new(n, r), **end = &n->messages;
    while (*end) end = &(*end)->next;
    *end = r->own = o;
    return DS_OK;
}

/* NCCL's stream continues when the device's stream has come to this point. */
static ds_status stream_follow(dsi_nccl *n)
{
    const dsi_device_type *type = n->device->type;
    ds_status status = type->record(&n->device->stream, &n->ready);
    return status == DS_OK ? type->wait(&n->queue->stream, &n->ready) : status;
}

/* Queues all messages that were begun, as one group; the message of a failure
 * names the first one. In any case they are appended to the list of
 * operations. */
static ds_status messages_queue(dsi_nccl *n)
{
    operation *first = n->messages;
    ds_status status = n->why ? dsi_fail(DS_ECOMM, "%s", n->why) : DS_OK;
    if (!first) return status;
    n->messages = NULL;
    if (status == DS_OK) status = stream_follow(n);
    if (status == DS_OK) {
        ncclResult_t result = n->f->group_begin();
        for (operation *o = first; result == ncclSuccess && o; o = o->next)
            result = dsi_nccl_call(n->f, n->comm, n->queue->stream.handle, &o->like);
        ncclResult_t ended = n->f->group_end();
        status = nccl_wait_call(n, &first->like, result == ncclSuccess ? ended : result);
    }
    for (operation *o = first, *next; o; o = next) {
        next = o->next;
        o->next = NULL;
        operation_append(n, o);
        if (status == DS_OK) status = n->device->type->record(&n->queue->stream, &o->done);
    }
    return status;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

ds_status dsi_nccl_start(dsi_request *r)
{
    dsi_nccl *n = r->comm->nccl;
    dsi_device *d = n->device;
    if (dsi_is_message(r)) return message_start(n, r);
    r->number = n->c->queued++;
    if (n->why) return dsi_fail(DS_ECOMM, "%s", n->why);
    dsi_step_collectives_add(d, n->voters);
    bool timed_or_compared = r->comm->log || r->comm->debug, captured = dsi_graph_capturing(d);
    ds_status status = timed_or_compared
                           ? dsi_graph_forbid(d, "its collectives are timed or compared "
                                                 "(comms_logger, DS_DEBUG=comm)")
                           : DS_OK;
    dsi_nccl_composed composed = {.memory = NULL};
    bool is_composed = dsi_nccl_is_composed(r);
    if (status == DS_OK && is_composed) status = dsi_nccl_composed_begin(r, &composed);
    if (status == DS_OK) status = stream_follow(n);
    if (status == DS_OK)
        status = nccl_wait_call(n, r,
                                dsi_nccl_call(n->f, n->comm, n->queue->stream.handle,
                                              is_composed ? &composed.request : r));
    if (status != DS_OK) {
        (void)dsi_nccl_composed_end(r, &composed, false);
        return status;
    }
    operation *o = operation_new(n, r);
    o->composed = composed;
    o->recorded = dsi_graph_recording(d);
    o->captured = captured;
    r->own = o;
    if (captured) {
        capture_add(n, r);
    } else {
        operation_append(n, o);
        dsi_step_collectives_queued(d, 1);
    }
    return d->type->record(&n->queue->stream, &o->done);
}

ds_status dsi_nccl_queue(dsi_nccl *n) { return n && n->messages ? messages_queue(n) : DS_OK; }

/* Makes the device's stream wait for o. A captured operation is in no stream
 * after the capture: then there is no wait. An operation that was begun before
 * a capture is not part of it, so waiting for it cannot be recorded. */
static ds_status operation_await(dsi_nccl *n, operation *o)
{
    dsi_device *d = n->device;
    ds_status status = n->why ? dsi_fail(DS_ECOMM, "%s", n->why) : DS_OK;
    if (status == DS_OK && !o->recorded)
        status = dsi_graph_forbid(d, "it waits for a collective that an earlier step began");
    if (status != DS_OK || (o->captured && !dsi_graph_capturing(d))) return status;
    return d->type->wait(&d->stream, &o->done);
}

/* With a log or a trace the host waits too, so that times are the
 * collective's. */
ds_status dsi_nccl_wait(dsi_request *r)
{
    dsi_nccl *n = r->comm->nccl;
    operation *o = r->own;
    ds_status status = dsi_is_message(r) ? messages_queue(n) : DS_OK;
    if (status == DS_OK) status = operation_await(n, o);
    bool finish = !o->captured && (r->comm->log || dsi_trace_on());
    if (dsi_nccl_composed_end(r, &o->composed, status == DS_OK) != DS_OK)
        status = ds_error_status();
    if (status == DS_OK && finish) status = operation_finish(n, o);
    o->waited = true;
    if (o->captured) {
        o->next = n->unused;
        n->unused = o;
    }
    dsi_request_done(r);
    return status;
}
