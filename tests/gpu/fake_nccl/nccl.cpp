/* tests/gpu/fake_nccl/nccl.cpp: see nccl.h.
 * SPDX-License-Identifier: MIT */
#include "nccl.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* A send or a receive of a group; real addresses. */
struct Message {
    Message *next;
    bool sends;
    int peer;
    char *at;
    size_t bytes;
    long number; /* of its pair and direction, from 1; 0: not yet begun */
    bool done;
};

struct Call {
    struct ncclComm *comm;
    CUstream stream;
    NcclKind kind;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
    size_t n;
    char *in, *out; /* real addresses; NULL: this rank has none */
    size_t in_bytes;
    Message *messages; /* of a group */
    bool queued;       /* else it is kept by a graph */
    long recorded;     /* of those of its communicator that graphs kept, from 1; 0: of none */
    long number;       /* of the communicator's, from 1; 0: not yet begun */
    long meeting;      /* of its collectives, from 1 */
    enum { NEW, GIVEN, MET } state;
    double met;
    Call *next;
};

struct ncclComm {
    int rank, ranks, gpu;
    char name[64]; /* of the shared memory */
    NcclShared *shared;
    size_t bytes;
    long begun, meetings, kept_ever, messages[2][NCCL_MOST]; /* [receives][peer] */
    std::atomic<int> error;                                  /* an ncclResult_t */
    std::atomic<bool> aborted;
    std::atomic<int> queued, kept, refs; /* calls, those in graphs; and its owner */
    bool settled, finalizes;             /* its making has ended; its end has begun */
    Call *pending;                       /* called, and not queued */
    char why[128];
};

static double now()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- wishes ---- */

static long setting(const char *name, long otherwise)
{
    const char *value = getenv(name);
    return value ? atol(value) : otherwise;
}

static int must_fail(const char *function)
{
    const char *wish = getenv("FAKE_NCCL_FAIL"), *code = wish ? strchr(wish, '=') : NULL;
    size_t n = code ? (size_t)(code - wish) : 0;
    return code && strlen(function) == n && !strncmp(wish, function, n) ? atoi(code + 1) : 0;
}
#define NCCL_MAY_FAIL() \
    do { \
        int fails_with = must_fail(__func__); \
        if (fails_with) return (ncclResult_t)fails_with; \
    } while (0)

/* Whether NAME=rank:number[:value] names this operation; *value. */
static bool is_named(const char *name, const Call *c, int *value)
{
    const char *wish = getenv(name);
    int rank = -1;
    long number = 0;
    return wish && sscanf(wish, "%d:%ld:%d", &rank, &number, value) >= 2 && rank == c->comm->rank &&
           number == c->number;
}

/* ---- shared memory ---- */

static size_t shared_bytes(int ranks)
{
    size_t n = (size_t)ranks;
    return ((sizeof(NcclShared) + 4095) & ~(size_t)4095) + 2 * n * NCCL_HALF + n * n * NCCL_MAIL;
}

static char *half(const ncclComm *c, int rank, long number)
{
    size_t head = (sizeof(NcclShared) + 4095) & ~(size_t)4095;
    return (char *)c->shared + head + (size_t)(2 * rank + (number & 1)) * NCCL_HALF;
}

static char *mail(const ncclComm *c, int from, int to)
{
    return half(c, c->ranks, 0) + (size_t)(from * c->ranks + to) * NCCL_MAIL;
}

static ncclResult_t fail(ncclComm *c, ncclResult_t error, const char *why)
{
    snprintf(c->why, sizeof c->why, "%s", why);
    c->error = error;
    return error;
}

/* ---- an operation, as far as it comes: the emulator calls it with its lock ---- */

static bool all_at_least(const ncclComm *c, const std::atomic<long> *x, long number)
{
    for (int q = 0; q < c->ranks; q++)
        if (x[q] < number) return false;
    return true;
}

static void collective_finish(const Call *k)
{
    const ncclComm *c = k->comm;
    const char *in[NCCL_MOST];
    size_t bytes = k->n * nccl_bytes(k->type);
    int first = getenv("FAKE_NCCL_ORDER") ? c->rank + 1 : 0;
    for (int q = 0; q < c->ranks; q++) in[q] = half(c, q, k->meeting);
    if (k->kind == NCCL_ALL_GATHER)
        for (int q = 0; q < c->ranks; q++) memcpy(k->out + (size_t)q * bytes, in[q], bytes);
    if (k->kind == NCCL_BROADCAST) memcpy(k->out, in[k->root], bytes);
    if (k->kind == NCCL_REDUCE_SCATTER)
        for (int q = 0; q < c->ranks; q++) in[q] += (size_t)c->rank * bytes;
    if (k->kind == NCCL_ALL_REDUCE) first = first ? 1 : 0; /* alike on all ranks */
    if (k->kind == NCCL_ALL_REDUCE || k->kind == NCCL_REDUCE_SCATTER ||
        (k->kind == NCCL_REDUCE && c->rank == k->root))
        nccl_sum(k->type, k->op, c->ranks, first, in, k->n, k->out);
}

static bool collective_agrees(const Call *k)
{
    const NcclCalled *called = &k->comm->shared->called[0][0];
    const NcclCalled *mine = &called[2 * k->comm->rank + (k->meeting & 1)];
    for (int q = 0; q < k->comm->ranks; q++)
        if (memcmp(&called[2 * q + (k->meeting & 1)], mine, sizeof *mine)) return false;
    return true;
}

static bool collective_advance(Call *k)
{
    ncclComm *c = k->comm;
    NcclShared *s = c->shared;
    if (k->state == Call::NEW) {
        if (!all_at_least(c, s->left, k->meeting - 2)) return false;
        if (k->in) memcpy(half(c, c->rank, k->meeting), k->in, k->in_bytes);
        NcclCalled *called = &s->called[c->rank][k->meeting & 1];
        memset(called, 0, sizeof *called);
        *called = (NcclCalled){k->kind, k->type, k->op, k->root, k->recorded, k->n};
        s->arrived[c->rank] = k->meeting;
        k->state = Call::GIVEN;
    }
    if (k->state == Call::GIVEN) {
        if (!all_at_least(c, s->arrived, k->meeting)) return false;
        if (!collective_agrees(k)) {
            fail(c, ncclInvalidUsage, "the ranks call different collectives");
            return false;
        }
        k->state = Call::MET;
        k->met = now();
    }
    if (now() - k->met < 1e-6 * (double)setting("FAKE_NCCL_DELAY", 0)) return false;
    collective_finish(k);
    s->left[c->rank] = k->meeting;
    return true;
}

static bool message_advance(ncclComm *c, Message *m)
{
    NcclShared *s = c->shared;
    int from = m->sends ? c->rank : m->peer, to = m->sends ? m->peer : c->rank;
    if (!m->number) m->number = ++c->messages[!m->sends][m->peer];
    if (m->sends ? s->received[from][to] < m->number - 1 : s->sent[from][to] < m->number)
        return false;
    char *box = mail(c, from, to);
    size_t bytes;
    if (m->sends) {
        memcpy(box, &m->bytes, sizeof m->bytes);
        memcpy(box + sizeof m->bytes, m->at, m->bytes);
        s->sent[from][to] = m->number;
        return true;
    }
    memcpy(&bytes, box, sizeof bytes);
    if (bytes != m->bytes) {
        fail(c, ncclInvalidUsage, "a message has another size than its receiver expects");
        return false;
    }
    memcpy(m->at, box + sizeof bytes, bytes);
    s->received[from][to] = m->number;
    return true;
}

static bool group_advance(Call *k)
{
    bool all = true;
    for (Message *m = k->messages; m; m = m->next) {
        if (!m->done) m->done = message_advance(k->comm, m);
        all = all && m->done;
    }
    if (!all) return false;
    if (k->state == Call::NEW) k->met = now();
    k->state = Call::MET;
    return now() - k->met >= 1e-6 * (double)setting("FAKE_NCCL_DELAY", 0);
}

static void call_free(Call *k)
{
    while (k->messages) {
        Message *m = k->messages;
        k->messages = m->next;
        delete m;
    }
    delete k;
}

static void call_count(const Call *k, int change)
{
    (k->queued ? k->comm->queued : k->comm->kept) += change;
}

/* When its owner and all that it queued have gone. */
static void comm_drop(ncclComm *c)
{
    if (--c->refs) return;
    munmap(c->shared, c->bytes);
    if (c->pending) call_free(c->pending);
    delete c;
}

static void call_release(void *arg)
{
    Call *k = (Call *)arg;
    ncclComm *c = k->comm;
    call_count(k, -1);
    call_free(k);
    comm_drop(c);
}

/* Of one that has not begun. */
static void *call_copy(void *arg, bool queued)
{
    Call *k = new Call(*(Call *)arg);
    for (Message **m = &k->messages; *m; m = &(*m)->next) *m = new Message(**m);
    k->queued = queued;
    if (!k->recorded && !queued) k->recorded = ++k->comm->kept_ever;
    k->comm->refs++;
    call_count(k, 1);
    return k;
}

static bool call_advance(void *arg)
{
    Call *k = (Call *)arg;
    ncclComm *c = k->comm;
    int error = 0;
    if (!k->number) {
        k->number = ++c->begun;
        if (k->kind != NCCL_GROUP) k->meeting = ++c->meetings;
    }
    if (!c->aborted) {
        if (is_named("FAKE_NCCL_DIE", k, &error)) kill(getpid(), SIGKILL);
        if (is_named("FAKE_NCCL_ERROR", k, &error) && !c->error)
            fail(c, (ncclResult_t)error, "an error of the fake");
        if (c->error || is_named("FAKE_NCCL_HANG", k, &error)) return false;
        if (!(k->kind == NCCL_GROUP ? group_advance(k) : collective_advance(k))) return false;
    }
    call_release(k);
    return true;
}

static const fake_call call_type = {call_advance, call_copy, call_release};

/* ---- calls ---- */

static thread_local Message *grouped, **grouped_end;
static thread_local ncclComm *grouped_comm;
static thread_local CUstream grouped_stream;
static thread_local int depth;

/* Of this rank's communicators: how many there are, and the stream that the
 * latest call was queued on. */
static thread_local int communicators;
static thread_local CUstream stream_of_all;

/* Real addresses of what this rank gives and gets; the call waits to be
 * queued. */
static ncclResult_t call_new(ncclComm *c, CUstream stream, Call k, const void *in, size_t in_bytes,
                             void *out, size_t out_bytes)
{
    if (!c || c->aborted || !c->settled || c->pending || depth)
        return c ? fail(c, ncclInvalidUsage, "the communicator is not ready") : ncclInvalidArgument;
    if (fake_cuda_now() != c->gpu)
        return fail(c, ncclInvalidUsage, "the thread's context is that of another GPU");
    if (communicators > 1 && stream_of_all && stream_of_all != stream)
        return fail(c, ncclInvalidUsage, "calls of two communicators have no order: two streams");
    stream_of_all = stream;
    k.comm = c;
    k.stream = stream;
    k.in_bytes = in_bytes;
    if (in_bytes) k.in = fake_cuda_real((CUdeviceptr)(uintptr_t)in, in_bytes);
    if (out_bytes) k.out = fake_cuda_real((CUdeviceptr)(uintptr_t)out, out_bytes);
    if ((in_bytes && !k.in) || (out_bytes && !k.out) || in_bytes > NCCL_HALF)
        return fail(c, ncclInvalidArgument, "an operand is not memory of the communicator's GPU");
    k.queued = true;
    c->pending = new Call(k);
    return ncclInProgress;
}

static Call call_of(NcclKind kind, size_t n, ncclDataType_t type, ncclRedOp_t op, int root)
{
    Call k = {};
    k.kind = kind;
    k.type = type;
    k.op = op;
    k.root = root;
    k.n = n;
    return k;
}

NCCL_SHOWN ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    size_t bytes = n * nccl_bytes(type);
    return call_new(comm, stream, call_of(NCCL_ALL_REDUCE, n, type, op, 0), in, bytes, out, bytes);
}

NCCL_SHOWN ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t type,
                                   ncclRedOp_t op, int root, ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    size_t bytes = n * nccl_bytes(type);
    return call_new(comm, stream, call_of(NCCL_REDUCE, n, type, op, root), in, bytes, out,
                    comm->rank == root ? bytes : 0);
}

NCCL_SHOWN ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t type,
                                          ncclRedOp_t op, ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    size_t bytes = n * nccl_bytes(type);
    return call_new(comm, stream, call_of(NCCL_REDUCE_SCATTER, n, type, op, 0), in,
                    bytes * (size_t)comm->ranks, out, bytes);
}

NCCL_SHOWN ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t type,
                                      ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    size_t bytes = n * nccl_bytes(type);
    return call_new(comm, stream, call_of(NCCL_ALL_GATHER, n, type, ncclSum, 0), in, bytes, out,
                    bytes * (size_t)comm->ranks);
}

NCCL_SHOWN ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t type,
                                      int root, ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    size_t bytes = n * nccl_bytes(type);
    return call_new(comm, stream, call_of(NCCL_BROADCAST, n, type, ncclSum, root), in,
                    comm->rank == root ? bytes : 0, out, bytes);
}

/* Only in groups, of one communicator and stream: all that src/comm calls. */
static ncclResult_t group_add(ncclComm *c, CUstream stream, bool sends, const void *at,
                              size_t bytes, int peer)
{
    char *real = fake_cuda_real((CUdeviceptr)(uintptr_t)at, bytes);
    if (!depth || (grouped_comm && (grouped_comm != c || grouped_stream != stream)))
        return fail(c, ncclInvalidUsage, "not in a group, or in that of another communicator");
    if (!real || !bytes || bytes + sizeof bytes > NCCL_MAIL || peer < 0 || peer >= c->ranks)
        return fail(c, ncclInvalidArgument, "an operand is not memory of the communicator's GPU");
    grouped_comm = c;
    grouped_stream = stream;
    Message *m = new Message{NULL, sends, peer, real, bytes, 0, false};
    *grouped_end = m;
    grouped_end = &m->next;
    return ncclSuccess;
}

NCCL_SHOWN ncclResult_t ncclSend(const void *in, size_t n, ncclDataType_t type, int to,
                                 ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    return group_add(comm, stream, true, in, n * nccl_bytes(type), to);
}

NCCL_SHOWN ncclResult_t ncclRecv(void *out, size_t n, ncclDataType_t type, int from,
                                 ncclComm_t comm, ncclStream stream)
{
    NCCL_MAY_FAIL();
    return group_add(comm, stream, false, out, n * nccl_bytes(type), from);
}

NCCL_SHOWN ncclResult_t ncclGroupStart(void)
{
    NCCL_MAY_FAIL();
    if (depth++) return ncclSuccess;
    grouped = NULL;
    grouped_end = &grouped;
    grouped_comm = NULL;
    return ncclSuccess;
}

NCCL_SHOWN ncclResult_t ncclGroupEnd(void)
{
    if (!depth || --depth) return depth ? ncclSuccess : ncclInvalidUsage;
    if (!grouped_comm) return ncclSuccess;
    Call k = call_of(NCCL_GROUP, 0, ncclInt8, ncclSum, 0);
    k.messages = grouped;
    return call_new(grouped_comm, grouped_stream, k, NULL, 0, NULL, 0);
}

/* ---- communicators ---- */

NCCL_SHOWN ncclResult_t ncclGetVersion(int *version)
{
    *version = (int)setting("FAKE_NCCL_VERSION", 21805);
    return ncclSuccess;
}

NCCL_SHOWN ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static std::atomic<int> made;
    NCCL_MAY_FAIL();
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "/fake_nccl_%d_%d", (int)getpid(), made++);
    return ncclSuccess;
}

NCCL_SHOWN ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id,
                                               int rank, ncclConfig_t *config)
{
    NCCL_MAY_FAIL();
    if (ranks > NCCL_MOST || config->magic != NCCL_CONFIG_MAGIC || config->blocking)
        return ncclInvalidArgument;
    ncclComm *c = new ncclComm();
    c->refs = 1;
    c->rank = rank;
    c->ranks = ranks;
    c->gpu = fake_cuda_now();
    snprintf(c->name, sizeof c->name, "%.60s", id.internal);
    c->bytes = shared_bytes(ranks);
    int fd = shm_open(c->name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)c->bytes)) abort();
    c->shared = (NcclShared *)mmap(NULL, c->bytes, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (c->shared == MAP_FAILED) abort();
    close(fd);
    *comm = c;
    if (setting("FAKE_NCCL_LOST", -1) == rank) return ncclInProgress;
    c->shared->gpu[rank] = c->gpu + 1;
    c->shared->joined++;
    return ncclInProgress;
}

/* The last step of its making; ncclInProgress: not all ranks have come. */
static ncclResult_t comm_settle(ncclComm *c)
{
    if (c->shared->joined < c->ranks) return ncclInProgress;
    shm_unlink(c->name); /* the memory stays until the last one has gone */
    for (int p = 0; p < c->ranks; p++)
        for (int q = 0; q < p; q++)
            if (c->shared->gpu[p] == c->shared->gpu[q])
                return fail(c, ncclInvalidUsage, "Duplicate GPU detected");
    c->settled = true;
    communicators++;
    return ncclSuccess;
}

NCCL_SHOWN ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    NCCL_MAY_FAIL();
    *error = (ncclResult_t)comm->error.load();
    if (*error) return ncclSuccess;
    if (!comm->settled) *error = comm_settle(comm);
    if (comm->finalizes && comm->kept) *error = ncclInProgress; /* until the graphs are gone */
    Call *k = comm->pending;
    comm->pending = NULL;
    if (!k) return ncclSuccess;
    comm->queued++;
    comm->refs++;
    return fake_cuda_submit_call(k->stream, &call_type, k)
               ? fail(comm, ncclUnhandledCudaError, "its stream")
               : ncclSuccess;
}

NCCL_SHOWN const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError   ? "remote process exited or there was a network error"
           : result == ncclSystemError ? "unhandled system error"
                                       : "an error of the fake NCCL";
}

NCCL_SHOWN const char *ncclGetLastError(ncclComm_t comm) { return comm ? comm->why : ""; }

NCCL_SHOWN ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    NCCL_MAY_FAIL();
    comm->finalizes = true;
    return comm->queued ? ncclInvalidUsage : comm->kept ? ncclInProgress : ncclSuccess;
}

/* c ends. NCCL would wait for ever for its graphs. */
static void graphs_refuse(const ncclComm *c)
{
    if (c->settled && !--communicators) stream_of_all = NULL;
    if (!c->kept) return;
    fprintf(stderr, "fake NCCL: a communicator ends that graphs still use\n");
    abort();
}

NCCL_SHOWN ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (comm->queued) return ncclInvalidUsage;
    graphs_refuse(comm);
    comm_drop(comm);
    return ncclSuccess;
}

/* What is queued ends as it is. */
NCCL_SHOWN ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->aborted = true;
    graphs_refuse(comm);
    shm_unlink(comm->name);
    comm_drop(comm);
    return ncclSuccess;
}
