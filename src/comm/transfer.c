/* comm/transfer.c: a collective as messages between processes.
 *
 * MPI's own collectives (collective_mpi.c) add in an order that they choose.
 * Here sums are taken in the order of ranks: processes get the same bits as
 * threads, 16-bit floats are rounded once, counts have no limit, and an error
 * names the rank that is missing. A rank sends as many bytes as the ring
 * algorithm does:
 *
 *     all_reduce      each rank sends slice q of x to rank q; rank q adds, and sends the sum to all:
 *                     2 (p-1)/p of x. A small x is sent to all at once: one round instead of two;
 *                     among many ranks in log2(p) messages, each with all that the sender has
 *     reduce_scatter  piece q to rank q, which adds: (p-1)/p of in
 *     all_gather      in to all: (p-1)/p of out;  all_to_all likewise
 *     broadcast       along a binomial tree;  barrier: an empty message to all;  send, recv: one message
 *
 * Reductions are done in segments of SEGMENT bytes, which bounds the memory for
 * what is received.
 *
 * Invariants:
 *  - A transfer is a sequence of phases. The messages of a phase are posted when
 *    all of the phase before are done. No function here blocks.
 *  - Each phase has its own tag (transfer_tag), since ranks reach the phases of
 *    several collectives in different orders.
 *  - `wrong` is set once and ends the transfer; the caller aborts the job.
 *  - The transfer owns `temp`; the largest one is left in *kept for the next
 *    transfer, as fresh pages cost as much as the sum that they are for.
 *
 * Note [Sizes]: a tag holds the message's place (which collective, phase and
 * message) in its low bits and its size in the rest, as far as there are bits.
 * So a message of another size than its receive never matches it: Open MPI 4.1
 * would copy all of it, past the end of the receiver's buffer. A rank that
 * waits long probes for a message with the right place and another size
 * (dsi_transfer_probe). This costs a message nothing.
 * SPDX-License-Identifier: MIT */
#include "transfer.h"

#include "base/clock.h"
#include "base/error.h"
#include "reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEGMENT (8 << 20) /* bytes that a rank receives and adds at a time, all ranks together */
#define SMALL   8192      /* bytes that all ranks may send to all */
#define LONGEST (1 << 30) /* bytes of one message */
#define MOST    (1 << 20) /* bytes of all ranks that each of many receives */

/* Places: four for each request number. A collective's phases have 0 to 2. The
 * last one of number 0 is the shutdown's, those of the others are messages'.
 * Messages of one tag keep their order. */
enum { NUMBERS = 8192, PLACES = 4 * NUMBERS, SHUTDOWN = 3 };

static int tag_place(const dsi_request *r, int phase)
{
    int number = (int)(r->number % NUMBERS), message = 1 + (int)(r->number % (NUMBERS - 1));
    if (r->shutdown) return SHUTDOWN;
    if (dsi_is_message(r)) return 4 * message + 3;
    /* what is received in one phase of a broadcast was sent in the other */
    /* rounds of transfer_gather_all: each is with another rank */
    return 4 * number + (r->what == DSI_BROADCAST || phase > 2 ? 0 : phase);
}

/* Sizes that are told apart are those that differ by no multiple of a number
 * below `sizes`, which is a power of two in both MPIs: not the next one below,
 * by which 8 and 524288 bytes, and all such pairs, would be the same. */
static int transfer_tag(const dsi_transfer *t, size_t bytes)
{
    int64_t sizes = ((int64_t)t->max_tag + 1) / PLACES, different = sizes > 64 ? sizes - 23 : sizes;
    int64_t size = (int64_t)(bytes % (uint64_t)different);
    return (int)(size * PLACES) + tag_place(t->r, t->phase);
}

static size_t transfer_bytes(const dsi_transfer *t, int64_t n)
{
    return (size_t)n * ds_dtype_size(t->r->dtype);
}

static const char *transfer_in_at(const dsi_transfer *t, int64_t i)
{
    return (const char *)t->r->in + transfer_bytes(t, i);
}

static char *transfer_out_at(const dsi_transfer *t, int64_t i)
{
    return (char *)t->r->out + transfer_bytes(t, i);
}

/* ---- messages ----------------------------------------------------------------------------------------- */

#define DISAGREES "calls another collective or another size"

/* Starts one message; its tag holds the size, so that a receive of another size
 * does not match. */
static void transfer_post_bytes(dsi_transfer *t, bool receives, char *p, size_t bytes, int rank)
{
    int tag = transfer_tag(t, bytes);
    dsi_message m = {.rank = rank, .tag = tag, .receives = receives, .bytes = bytes};
    dsi_list_add(&t->messages, m);
    dsi_mpi_message *to = &t->messages.at[t->messages.n - 1].m;
    const char *wrong = receives ? t->mpi->receive(t->comm, p, bytes, rank, tag, to)
                                 : t->mpi->send(t->comm, p, bytes, rank, tag, to);
    if (!wrong) return;
    t->messages.n--;
    /* a receive finds at once that what has come already is too long for it */
    if (receives)
        dsi_text_add(&t->wrong, "rank %d, which " DISAGREES ": %s", rank, wrong);
    else
        dsi_text_add(&t->wrong, "to rank %d: %s", rank, wrong);
}

/* MPI counts bytes in an int: larger pieces are several messages, also of 0
 * bytes one. */
static void transfer_post(dsi_transfer *t, bool receives, char *p, int64_t n, int rank)
{
    size_t left = transfer_bytes(t, n);
    do {
        size_t bytes = left < LONGEST ? left : LONGEST;
        transfer_post_bytes(t, receives, p, bytes, rank);
        p += bytes;
        left -= bytes;
    } while (left && !t->wrong.n);
}

static void transfer_send(dsi_transfer *t, const char *p, int64_t n, int to)
{
    char *bytes;
    memcpy(&bytes, &p, sizeof p); /* which are only read */
    transfer_post(t, false, bytes, n, to);
}

static void transfer_receive(dsi_transfer *t, char *p, int64_t n, int from)
{
    transfer_post(t, true, p, n, from);
}

static void transfer_wrong_size(dsi_transfer *t, const dsi_message *m, size_t came)
{
    dsi_text_add(&t->wrong, "rank %d sent %zu bytes where %zu were expected: it " DISAGREES,
                 m->rank, came, m->bytes);
}

/* Tests all messages of the phase. True: all are done. */
static bool transfer_test_all(dsi_transfer *t)
{
    bool all = true;
    for (int i = 0; i < t->messages.n; i++) {
        dsi_message *m = &t->messages.at[i];
        size_t received;
        if (m->done) continue;
        const char *wrong = t->mpi->test(&m->m, &m->done, &received);
        if (wrong) {
            dsi_text_add(&t->wrong, "rank %d, which " DISAGREES ": %s", m->rank, wrong);
            return false;
        }
        if (!m->done) {
            all = false;
        } else if (m->receives && received != m->bytes) {
            transfer_wrong_size(t, m, received);
            return false;
        }
    }
    return all;
}

/* Whether a message with that tag has this collective's number, but is of a
 * phase in which no rank sends: then on its rank another collective has that
 * number. */
static bool tag_is_other_collective(const dsi_transfer *t, const dsi_message *m, int tag)
{
    int theirs = tag % PLACES, mine = m->tag % PLACES;
    bool one_phase = t->r->what != DSI_ALL_REDUCE || transfer_bytes(t, t->r->n) <= SMALL;
    return one_phase && theirs != mine && theirs / 4 == mine / 4 && theirs % 4 != 3 &&
           mine % 4 != 3;
}

bool dsi_transfer_is_shutdown(int tag) { return tag % PLACES == SHUTDOWN; }

void dsi_transfer_await_cause(dsi_transfer *t, int rank)
{
    if (!t->left) t->left = dsi_now();
    if (dsi_now() - t->left > DSI_SHUTDOWN_S + DSI_CAUSE_S)
        dsi_text_add(&t->wrong, "rank %d has left (ds_destroy_process_group) without it", rank);
}

void dsi_transfer_probe(dsi_transfer *t)
{
    for (int i = 0; i < t->messages.n && !t->wrong.n; i++) {
        dsi_message *m = &t->messages.at[i];
        size_t bytes, received;
        int tag;
        if (!m->receives || m->done || t->mpi->probe(t->comm, m->rank, &tag, &bytes)) continue;
        if (tag < 0 || tag == m->tag) continue;
        if (tag_is_other_collective(t, m, tag))
            dsi_text_add(&t->wrong, "rank %d " DISAGREES, m->rank);
        bool left = dsi_transfer_is_shutdown(tag) && !t->r->shutdown;
        if (tag % PLACES != m->tag % PLACES && !left) continue;
        /* what has come while we looked may be what is waited for, and then
         * this is the next one */
        bool missing = t->mpi->test(&m->m, &m->done, &received) || !m->done;
        if (missing && left)
            dsi_transfer_await_cause(t, m->rank);
        else if (!left && (missing || received != m->bytes))
            transfer_wrong_size(t, m, missing ? bytes : received);
    }
}

void dsi_transfer_missing(const dsi_transfer *t, dsi_text *ranks)
{
    dsi_text list = {0};
    int n = 0, last = -1; /* several messages of one rank follow each other */
    for (int i = 0; i < t->messages.n; i++) {
        const dsi_message *m = &t->messages.at[i];
        if (!m->receives || m->done || m->rank == last) continue;
        dsi_text_add(&list, "%s%d", n++ ? ", " : " ", m->rank);
        last = m->rank;
    }
    if (n) dsi_text_add(ranks, "%s%s", n > 1 ? "s" : "", list.s);
    dsi_text_free(&list);
}

/* ---- sums --------------------------------------------------------------------------------------------- */

/* Room for n elements of each rank; NULL with t->wrong. */
static char *transfer_buffer(dsi_transfer *t, int64_t n)
{
    size_t bytes = transfer_bytes(t, n) * (size_t)t->r->comm->size;
    if (t->temp.bytes >= bytes && t->temp.p) return t->temp.p;
    if (!t->temp.p && t->kept->bytes >= bytes) {
        t->temp = *t->kept;
        *t->kept = (dsi_buffer){0};
        return t->temp.p;
    }
    free(t->temp.p);
    t->temp = (dsi_buffer){malloc(bytes ? bytes : 1), bytes};
    if (!t->temp.p) dsi_text_add(&t->wrong, "no memory for %zu bytes to receive", bytes);
    return t->temp.p;
}

/* out = the sum of `own` and of temp, n elements of each rank. sole: no other
 * rank computes this sum, so its squares are counted here. */
static void transfer_reduce(dsi_transfer *t, const char *own, int64_t n, char *out, bool sole)
{
    const dsi_request *r = t->r;
    const ds_comm *c = r->comm;
    const void **in = dsi_alloc((size_t)c->size * sizeof *in);
    void *to = out;
    for (int q = 0; q < c->size; q++)
        in[q] = q == c->rank ? own : (char *)t->temp.p + transfer_bytes(t, q * n);
    dsi_reduce_ranks(r->dtype, r->op, c->size, in, n, 1, &to, sole ? r->squares : NULL);
    dsi_free(in);
}

/* Elements of a segment of n elements, of which this rank receives `share`
 * ranks' worth each. */
static int64_t transfer_segment(const dsi_transfer *t, int64_t n, int64_t ranks)
{
    int64_t most = SEGMENT / (int64_t)ds_dtype_size(t->r->dtype) / ranks;
    if (most < 1) most = 1;
    return n - t->at < most ? n - t->at : most;
}

/* The other ranks, the next one first, so that not all send to the same. */
#define EACH_OTHER(q, c) \
    for (int q##_k = 1, q = ((c)->rank + 1) % (c)->size; q##_k < (c)->size; \
         q##_k++, q = (q + 1) % (c)->size)

/* ---- phases: each posts its messages; true: the transfer is complete ------------------------------------- */

/* Sums elements [q n, (q + 1) n) on rank q (reduce_scatter) or all n elements
 * on the root or on all ranks. Phase 0 sends this segment to the ranks that sum
 * it, phase 1 adds it up `here`; then the next segment follows. */
static bool transfer_reduce_to(dsi_transfer *t, bool here)
{
    const ds_comm *c = t->r->comm;
    bool scatters = t->r->what == DSI_REDUCE_SCATTER;
    int64_t n = transfer_segment(t, t->r->n, c->size), stride = scatters ? t->r->n : 0;
    if (t->phase == 0) {
        char *room = here ? transfer_buffer(t, n) : NULL;
        EACH_OTHER(q, c)
        {
            if (t->r->what != DSI_REDUCE || q == t->r->root)
                transfer_send(t, transfer_in_at(t, q * stride + t->at), n, q);
            if (room) transfer_receive(t, room + transfer_bytes(t, q * n), n, q);
        }
        t->phase = 1;
        return false;
    }
    if (here)
        transfer_reduce(t, transfer_in_at(t, c->rank * stride + t->at), n,
                        transfer_out_at(t, t->at), scatters || c->rank == 0);
    t->at += n;
    t->phase = 0;
    return t->at >= t->r->n;
}

/* Round k: the data of 2^k ranks, this one first, are sent to the rank that is
 * 2^k before it. Then each rank has all, and adds them in the order of
 * ranks. */
static bool transfer_gather_all(dsi_transfer *t)
{
    const dsi_request *r = t->r;
    int rank = r->comm->rank, size = r->comm->size, have = 1 << t->phase;
    char *room = transfer_buffer(t, r->n);
    if (!room) return true;
    if (t->phase == 0) memcpy(room, r->in, transfer_bytes(t, r->n));
    if (have < size) {
        int64_t n = (have < size - have ? have : size - have) * r->n;
        transfer_send(t, room, n, (rank - have + size) % size);
        transfer_receive(t, room + transfer_bytes(t, have * r->n), n, (rank + have) % size);
        t->phase++;
        return false;
    }
    const void **in = dsi_alloc((size_t)size * sizeof *in);
    void *out = r->out;
    for (int q = 0; q < size; q++)
        in[q] = room + transfer_bytes(t, (q - rank + size) % size * r->n);
    dsi_reduce_ranks(r->dtype, r->op, size, in, r->n, 1, &out, rank ? NULL : r->squares);
    dsi_free(in);
    return true;
}

/* Small ones are sent to all and added up everywhere: one phase. Large ones are
 * scattered, summed in shares and gathered: each element crosses the network
 * twice. */
static bool transfer_all_reduce(dsi_transfer *t)
{
    const ds_comm *c = t->r->comm;
    size_t bytes = transfer_bytes(t, t->r->n);
    if (bytes <= SMALL && c->size <= DSI_FEW_RANKS) return transfer_reduce_to(t, true);
    if (bytes <= SMALL && bytes * (size_t)c->size <= MOST) return transfer_gather_all(t);
    int64_t n = transfer_segment(t, t->r->n, 1), mine = n * c->rank / c->size,
            mine_n = n * (c->rank + 1) / c->size - mine;
    if (t->phase == 0) {
        char *room = transfer_buffer(t, mine_n);
        EACH_OTHER(q, c)
        {
            int64_t slice = n * q / c->size;
            transfer_send(t, transfer_in_at(t, t->at + slice), n * (q + 1) / c->size - slice, q);
            if (room) transfer_receive(t, room + transfer_bytes(t, q * mine_n), mine_n, q);
        }
    } else if (t->phase == 1) {
        transfer_reduce(t, transfer_in_at(t, t->at + mine), mine_n,
                        transfer_out_at(t, t->at + mine), true);
        EACH_OTHER(q, c)
        {
            int64_t slice = n * q / c->size;
            transfer_send(t, transfer_out_at(t, t->at + mine), mine_n, q);
            transfer_receive(t, transfer_out_at(t, t->at + slice), n * (q + 1) / c->size - slice,
                             q);
        }
    } else {
        t->at += n;
        t->phase = 0;
        return t->at >= t->r->n;
    }
    t->phase++;
    return false;
}

/* This rank's own part. On a GPU it is only queued, as what follows there is. */
static void transfer_move(dsi_transfer *t, char *to, const char *from, size_t bytes)
{
    dsi_device *d = t->r->device;
    if (!bytes || to == from) return;
    if (!t->gpu)
        memmove(to, from, bytes);
    else if (d->type->copy(&d->stream, to, d, from, bytes) != DS_OK)
        dsi_text_add(&t->wrong, "%s", dsi_error_latest());
}

/* One phase: sends to each rank, receives from each, and copies this rank's own
 * part. */
static bool transfer_exchange(dsi_transfer *t)
{
    const dsi_request *r = t->r;
    const ds_comm *c = r->comm;
    bool root = c->rank == r->root, gathers = r->what == DSI_GATHER,
         scatters = r->what == DSI_SCATTER;
    bool all = !gathers && !scatters, pieces = r->what == DSI_ALL_TO_ALL || scatters;
    if (t->phase++) return true;
    EACH_OTHER(q, c)
    {
        if (all || (gathers ? q == r->root : root))
            transfer_send(t, transfer_in_at(t, pieces ? q * r->n : 0), r->n, q);
        if (all || (scatters ? q == r->root : root))
            transfer_receive(t, transfer_out_at(t, scatters ? 0 : q * r->n), r->n, q);
    }
    if (all || root)
        transfer_move(t, transfer_out_at(t, scatters ? 0 : c->rank * r->n),
                      transfer_in_at(t, pieces ? c->rank * r->n : 0), transfer_bytes(t, r->n));
    return false;
}

/* counts [2][size]: elements to each rank, then from each. */
static bool transfer_exchange_rows(dsi_transfer *t)
{
    const dsi_request *r = t->r;
    const ds_comm *c = r->comm;
    const int64_t *sent = r->counts, *received = sent + c->size;
    int64_t from = 0, to = 0;
    if (t->phase++) return true;
    for (int q = 0; q < c->size; from += sent[q], to += received[q], q++) {
        if (q == c->rank) {
            transfer_move(t, transfer_out_at(t, to), transfer_in_at(t, from),
                          transfer_bytes(t, sent[q]));
        } else {
            transfer_send(t, transfer_in_at(t, from), sent[q], q);
            transfer_receive(t, transfer_out_at(t, to), received[q], q);
        }
    }
    return false;
}

/* A binomial tree over the ranks counted from the root: k has it from k without
 * its lowest bit, and gives it to k + b for each b below that bit. */
static bool transfer_broadcast(dsi_transfer *t)
{
    const dsi_request *r = t->r;
    int size = r->comm->size, k = (r->comm->rank - r->root + size) % size, lowest = k & -k;
    if (t->phase == 0 && k)
        transfer_receive(t, transfer_out_at(t, 0), r->n, (k - lowest + r->root) % size);
    for (int b = 1; t->phase == 1 && b < size && (!k || b < lowest); b *= 2)
        if (k + b < size) transfer_send(t, transfer_out_at(t, 0), r->n, (k + b + r->root) % size);
    return t->phase++ == 2;
}

/* A message of no bytes to and from each other rank. */
static bool transfer_barrier(dsi_transfer *t)
{
    if (t->phase++) return true;
    EACH_OTHER(q, t->r->comm)
    {
        transfer_send(t, NULL, 0, q);
        transfer_receive(t, NULL, 0, q);
    }
    return false;
}

/* With DS_DEBUG=comm a description precedes the message and is compared;
 * collectives are compared in debug.c. */
static bool transfer_message(dsi_transfer *t)
{
    const dsi_request *r = t->r;
    bool receives = r->what == DSI_RECV;
    if (t->phase++) return true;
    if (!receives)
        snprintf(t->said, sizeof t->said, "%lld %s", (long long)r->n, ds_dtype_name(r->dtype));
    if (r->comm->compares) transfer_post_bytes(t, receives, t->said, sizeof t->said, r->root);
    if (!t->wrong.n && receives) transfer_receive(t, transfer_out_at(t, 0), r->n, r->root);
    if (!t->wrong.n && !receives) transfer_send(t, transfer_in_at(t, 0), r->n, r->root);
    return false;
}

/* Both are received at once, for the next receive from that rank may be posted
 * before they come. So what was said explains what is wrong with the rest. */
static void transfer_compare_message(dsi_transfer *t)
{
    const dsi_request *r = t->r;
    char wanted[sizeof t->said];
    if (r->what != DSI_RECV || !r->comm->compares || !t->messages.n) return;
    dsi_message *first = &t->messages.at[0];
    size_t received;
    if (!first->done && t->mpi->test(&first->m, &first->done, &received)) return;
    if (!first->done) return;
    snprintf(wanted, sizeof wanted, "%lld %s", (long long)r->n, ds_dtype_name(r->dtype));
    if (!strcmp(wanted, t->said)) return;
    dsi_text_free(&t->wrong);
    dsi_text_add(&t->wrong, "ranks do not agree: rank %d sends %.63s", r->root, t->said);
}

static bool transfer_next_phase(dsi_transfer *t)
{
    switch (t->r->what) {
    case DSI_ALL_REDUCE:
        return transfer_all_reduce(t);
    case DSI_REDUCE:
        return transfer_reduce_to(t, t->r->comm->rank == t->r->root);
    case DSI_REDUCE_SCATTER:
        return transfer_reduce_to(t, true);
    case DSI_ALL_TO_ALL_ROWS:
        return transfer_exchange_rows(t);
    case DSI_BROADCAST:
        return transfer_broadcast(t);
    case DSI_BARRIER:
        return transfer_barrier(t);
    case DSI_SEND:
    case DSI_RECV:
        return transfer_message(t);
    default:
        return transfer_exchange(t);
    }
}

bool dsi_transfer_advance(dsi_transfer *t)
{
    bool some = false;
    while (!t->finished) {
        bool done = transfer_test_all(t);
        transfer_compare_message(t);
        if (done && !t->wrong.n) {
            t->messages.n = 0;
            t->finished = transfer_next_phase(t);
            transfer_compare_message(t);
        }
        if (t->wrong.n)
            t->finished = true;
        else if (t->finished)
            dsi_request_done(t->r);
        if (!done) break;
        some = true;
    }
    return some;
}

void dsi_transfer_free(dsi_transfer *t)
{
    if (t->temp.bytes > t->kept->bytes) {
        dsi_buffer was = *t->kept;
        *t->kept = t->temp;
        t->temp = was;
    }
    free(t->temp.p);
    dsi_list_free(&t->messages);
    dsi_text_free(&t->wrong);
    dsi_free(t);
}
