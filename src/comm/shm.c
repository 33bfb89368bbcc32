/* comm/shm.c: collectives of processes of one host, through memory that they
 * share.
 *
 * Each rank has CELLS cells in that memory, and three counters. A collective is
 * cut into segments, each as large as a cell at most. Segments of a
 * communicator are numbered in the order in which its collectives start, which
 * is the same on all ranks; segment g uses cell g % CELLS of each rank. A rank
 * does three steps for each segment, and counts the segments for which it has
 * done them:
 *
 *                      write                     reduce                  read
 *     all_reduce       copy the slices of the    add this rank's slice   copy the sums of the others
 *                      others into its cell      of all, into its cell
 *     small ones       copy all of it            add all of all          -
 *     reduce_scatter   copy the others' pieces   add its piece of all    -
 *     reduce_to        copy all of it            root: add all           -
 *     all_gather,      copy its part, or the     -                       copy what is for this rank
 *     all_to_all,      others' pieces, or
 *     broadcast        nothing but on the root
 *     barrier          nothing                   -                       nothing
 *
 * A step starts when the ranks that it reads from have counted the step before,
 * and `write` when all ranks have read what was in the cell before. Sums are
 * taken in the order of ranks, by the function that threads use, so that the
 * bits are the same.
 *
 * Invariants:
 *  - A counter belongs to one rank, which alone writes it, after the memory that
 *    it stands for. Counters wrap around: they are compared by their difference.
 *  - A rank does each step in the order of segments, and a segment's steps in
 *    theirs: done[STEP_READ] <= done[STEP_REDUCE] <= done[STEP_WRITE]. So the
 *    rank that is furthest behind never waits for a later segment of another
 *    one, and no order of waits can deadlock.
 *  - Nothing here blocks but dsi_shm_open, within the collective's time limit, and
 *    dsi_shm_sleep. A rank that sleeps adds itself to `sleepers` of the rank it
 *    waits for before it looks at the counters again; that rank reads `sleepers`
 *    after it has counted. So no wake-up is lost.
 *  - The memory is a memfd, which has no name in any folder: it is gone with the
 *    last process that has it, however that ends.
 * SPDX-License-Identifier: MIT */
#include "shm.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "reduce.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CELLS 4
#define CELL  ((size_t)128 << 10) /* bytes of a cell's input; its sums take as much again */
#define SMALL 8192                /* bytes of all ranks together: each rank adds all of them */
#define LINE  64                  /* bytes; slices begin at multiples of it */

/* In this order; the head of this file says what each does. */
typedef enum segment_step { STEP_WRITE, STEP_REDUCE, STEP_READ, STEPS } segment_step;

/* The collective that a rank's part of a segment belongs to: compared before
 * the part is read. */
typedef struct label {
    uint64_t number;
    int64_t n;
    int what, dtype, op, root;
} label;

/* A rank's part of one segment, in shared memory. Only that rank writes it. */
typedef struct cell {
    _Alignas(LINE) label label;
    _Alignas(LINE) char input[CELL]; /* for other ranks, written in STEP_WRITE */
    char sums[CELL];                 /* of its slice, over all ranks, written in STEP_REDUCE */
} cell;

/* A rank's counters, in shared memory. */
typedef struct shm_rank {
    _Alignas(LINE) _Atomic uint32_t done[STEPS]; /* segments; modulo 2^32 */
    _Atomic uint32_t changes;                    /* of done, while a rank sleeps: a futex */
    _Atomic uint32_t sleepers;                   /* ranks that wait for this one */
    _Atomic bool departed;                       /* it is closing its world */
} shm_rank;

struct dsi_shm {
    int rank, size;
    void *memory; /* shared, mapped here: the token, ranks, cells */
    size_t bytes;
    shm_rank *ranks;            /* [size], in memory */
    cell *cells;                /* [size][CELLS], in memory */
    const void **in;            /* [size], owned: inputs of one sum */
    dsi_transfer *first, *last; /* borrowed; not finished, oldest first: linked by `next` */
    uint32_t segments;          /* of all transfers so far */
    uint32_t done[STEPS];       /* of this rank, as in ranks[rank] */
};

/* A part of a transfer: n elements, of each piece where there are pieces, from
 * element `at` on. */
typedef struct segment {
    dsi_transfer *t;
    const dsi_request *r;
    uint32_t number;
    int64_t at, n;
} segment;

static cell *cell_of(const dsi_shm *s, int rank, uint32_t number)
{
    return &s->cells[(size_t)rank * CELLS + number % CELLS];
}

/* ---- how a collective is cut ---------------------------------------------------------------------------- */

static bool request_has_pieces(const dsi_request *r)
{
    return r->what == DSI_REDUCE_SCATTER || r->what == DSI_ALL_TO_ALL;
}

static int64_t request_bytes(const dsi_request *r, int64_t n)
{
    return n * (int64_t)ds_dtype_size(r->dtype);
}

/* Whether each rank adds up all of it. */
static bool request_is_small(const dsi_request *r)
{
    return request_bytes(r, r->n) * r->comm->size <= SMALL;
}

/* Elements of each segment except the last: a multiple of LINE elements, if a
 * cell is that large. */
static int64_t request_each(const dsi_request *r)
{
    int64_t most = (int64_t)CELL / (int64_t)ds_dtype_size(r->dtype);
    if (request_has_pieces(r)) most /= r->comm->size;
    return most > LINE ? most / LINE * LINE : most;
}

static segment segment_of(dsi_transfer *t, uint32_t number)
{
    int64_t each = request_each(t->r), at = (int64_t)(number - t->first_segment) * each;
    int64_t left = t->r->n - at;
    return (segment){t, t->r, number, at, left < each ? left : each};
}

/* First element, of a segment of n, of the slice that rank q adds. */
static int64_t slice_at(int64_t n, int q, int size)
{
    return q == size ? n : n * q / size / LINE * LINE;
}

bool dsi_shm_takes(const dsi_request *r)
{
    switch (r->what) {
    case DSI_ALL_REDUCE:
    case DSI_REDUCE:
    case DSI_REDUCE_SCATTER:
    case DSI_ALL_GATHER:
    case DSI_ALL_TO_ALL:
    case DSI_BROADCAST:
        return true;
    case DSI_BARRIER:
        return !r->shutdown; /* for which a rank that failed waits only a moment */
    default:
        return false;
    }
}

/* ---- what a rank waits for ------------------------------------------------------------------------------- */

static bool counted(const dsi_shm *s, int rank, segment_step k, uint32_t segments)
{
    uint32_t done = atomic_load_explicit(&s->ranks[rank].done[k], memory_order_acquire);
    return (int32_t)(done - segments) >= 0;
}

/* The first rank that has not done step k of that many segments; -1: all have. */
static int first_behind(const dsi_shm *s, segment_step k, uint32_t segments)
{
    for (int q = 0; q < s->size; q++)
        if (!counted(s, q, k, segments)) return q;
    return -1;
}

/* The progress of other ranks that a step waits for. */
typedef struct dependency {
    segment_step step; /* of them */
    uint32_t segments; /* that must be counted */
    int rank;          /* of that rank only; -1: of all */
} dependency;

/* That of step k of g. False: none. */
static bool step_dependency(const dsi_shm *s, segment_step k, const segment *g, dependency *d)
{
    const dsi_request *r = g->r;
    bool reduces = r->what == DSI_ALL_REDUCE || r->what == DSI_REDUCE_SCATTER ||
                   (r->what == DSI_REDUCE && s->rank == r->root);
    *d = (dependency){STEP_WRITE, g->number + 1, -1};
    if (k == STEP_WRITE) {
        *d = (dependency){STEP_READ, g->number + 1 - CELLS, -1};
        return true;
    }
    if (k == STEP_REDUCE) return reduces;
    if (r->what == DSI_ALL_REDUCE) {
        d->step = STEP_REDUCE;
        return !request_is_small(r);
    }
    if (r->what == DSI_BROADCAST) d->rank = r->root;
    return r->what != DSI_REDUCE && r->what != DSI_REDUCE_SCATTER;
}

/* The first rank that this one waits for before step k of g; -1: none. */
static int step_waits_for(const dsi_shm *s, segment_step k, const segment *g)
{
    dependency d;
    if (!step_dependency(s, k, g, &d)) return -1;
    if (d.rank < 0) return first_behind(s, d.step, d.segments);
    return counted(s, d.rank, d.step, d.segments) ? -1 : d.rank;
}

/* The segment of which step k is next; false: all transfers are past it. */
static bool next_segment(const dsi_shm *s, segment_step k, segment *g)
{
    uint32_t number = s->done[k];
    if (number == (k == STEP_WRITE ? s->segments : s->done[k - 1])) return false;
    dsi_transfer *t = s->first;
    while (number - t->first_segment >= t->segments) t = t->next;
    *g = segment_of(t, number);
    return true;
}

/* ---- the steps ------------------------------------------------------------------------------------------ */

static char *bytes_at(const dsi_request *r, const void *p, int64_t i)
{
    char *bytes;
    memcpy(&bytes, &p, sizeof p); /* inputs are only read */
    return bytes + request_bytes(r, i);
}

static void elements_copy(const dsi_request *r, void *to, const void *from, int64_t n)
{
    if (n && to != from) memmove(to, from, (size_t)request_bytes(r, n));
}

static label label_of(const dsi_request *r)
{
    return (label){r->number, r->n, (int)r->what, (int)r->dtype, (int)r->op, r->root};
}

static void cell_write(dsi_shm *s, const segment *g)
{
    const dsi_request *r = g->r;
    cell *mine = cell_of(s, s->rank, g->number);
    char *to = mine->input;
    mine->label = label_of(r);
    bool all = r->what == DSI_ALL_GATHER || (r->what == DSI_BROADCAST && s->rank == r->root) ||
               (r->what == DSI_REDUCE && s->rank != r->root) ||
               (r->what == DSI_ALL_REDUCE && request_is_small(r));
    if (all) {
        elements_copy(r, to, bytes_at(r, r->in, g->at), g->n);
    } else if (r->what == DSI_ALL_REDUCE) {
        int64_t own = slice_at(g->n, s->rank, s->size), end = slice_at(g->n, s->rank + 1, s->size);
        elements_copy(r, to, bytes_at(r, r->in, g->at), own);
        elements_copy(r, to + request_bytes(r, end), bytes_at(r, r->in, g->at + end), g->n - end);
    } else if (request_has_pieces(r)) {
        for (int q = 0; q < s->size; q++)
            if (q != s->rank)
                elements_copy(r, to + request_bytes(r, q * g->n),
                              bytes_at(r, r->in, q * r->n + g->at), g->n);
    }
}

/* The sum of n elements, `in_cell` on in the others' cells and at `own` in this
 * rank's operand, to `outs` places. sole: no other rank adds these. */
static void add_up(dsi_shm *s, const segment *g, int64_t in_cell, const char *own, int64_t n,
                   int outs, void *const *out, bool sole)
{
    const dsi_request *r = g->r;
    for (int q = 0; q < s->size; q++)
        s->in[q] = q == s->rank ? own : cell_of(s, q, g->number)->input + request_bytes(r, in_cell);
    dsi_reduce_ranks(r->dtype, r->op, s->size, s->in, n, outs, out, sole ? r->squares : NULL);
}

static void segment_reduce(dsi_shm *s, const segment *g)
{
    const dsi_request *r = g->r;
    void *out[2] = {r->out ? bytes_at(r, r->out, g->at) : NULL};
    if (r->what == DSI_REDUCE_SCATTER) {
        add_up(s, g, s->rank * g->n, bytes_at(r, r->in, s->rank * r->n + g->at), g->n, 1, out,
               true);
    } else if (r->what == DSI_ALL_REDUCE && !request_is_small(r)) {
        int64_t at = slice_at(g->n, s->rank, s->size);
        int64_t n = slice_at(g->n, s->rank + 1, s->size) - at;
        out[0] = bytes_at(r, r->out, g->at + at);
        out[1] = cell_of(s, s->rank, g->number)->sums;
        add_up(s, g, at, bytes_at(r, r->in, g->at + at), n, 2, out, true);
    } else if (r->what == DSI_ALL_REDUCE || (r->what == DSI_REDUCE && s->rank == r->root)) {
        add_up(s, g, 0, bytes_at(r, r->in, g->at), g->n, 1, out, s->rank == 0);
    }
}

static void segment_read_from(dsi_shm *s, const segment *g, int q)
{
    const dsi_request *r = g->r;
    const cell *c = cell_of(s, q, g->number);
    if (r->what == DSI_ALL_REDUCE) {
        int64_t at = slice_at(g->n, q, s->size), n = slice_at(g->n, q + 1, s->size) - at;
        elements_copy(r, bytes_at(r, r->out, g->at + at), c->sums, n);
    } else if (r->what == DSI_BROADCAST) {
        if (q == r->root) elements_copy(r, bytes_at(r, r->out, g->at), c->input, g->n);
    } else {
        int64_t from = r->what == DSI_ALL_TO_ALL ? s->rank * g->n : 0;
        elements_copy(r, bytes_at(r, r->out, q * r->n + g->at), c->input + request_bytes(r, from),
                      g->n);
    }
}

/* This rank's own part has not gone through the memory. */
static void segment_read_own(const dsi_shm *s, const segment *g)
{
    const dsi_request *r = g->r;
    if (r->what != DSI_ALL_GATHER && r->what != DSI_ALL_TO_ALL) return;
    int64_t from = r->what == DSI_ALL_TO_ALL ? s->rank * r->n : 0;
    elements_copy(r, bytes_at(r, r->out, s->rank * r->n + g->at), bytes_at(r, r->in, from + g->at),
                  g->n);
}

static void segment_read(dsi_shm *s, const segment *g)
{
    const dsi_request *r = g->r;
    dependency d;
    if (r->what == DSI_BARRIER || !step_dependency(s, STEP_READ, g, &d)) return;
    segment_read_own(s, g);
    for (int k = 1, q = (s->rank + 1) % s->size; k < s->size; k++, q = (q + 1) % s->size)
        segment_read_from(s, g, q);
}

/* ---- progress ------------------------------------------------------------------------------------------- */

static void wake_sleepers(shm_rank *me)
{
    atomic_fetch_add(&me->changes, 1);
    syscall(SYS_futex, &me->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void count(dsi_shm *s, segment_step k)
{
    shm_rank *me = &s->ranks[s->rank];
    atomic_store(&me->done[k], ++s->done[k]);
    if (atomic_load(&me->sleepers)) wake_sleepers(me);
}

/* Before the first segment is read: do all ranks that it is read from call the
 * same? With the message in t->wrong if not. */
static bool ranks_agree(dsi_shm *s, const segment *g)
{
    const dsi_request *r = g->r;
    label mine = label_of(r);
    for (int q = 0; q < s->size; q++) {
        if (q == s->rank || (r->what == DSI_BROADCAST && q != r->root)) continue;
        label theirs = cell_of(s, q, g->number)->label;
        if (!memcmp(&mine, &theirs, sizeof mine)) continue;
        dsi_request call = {.comm = r->comm,
                            .what = (dsi_collective)theirs.what,
                            .n = theirs.n,
                            .dtype = (ds_dtype)theirs.dtype,
                            .op = (ds_redop)theirs.op,
                            .root = theirs.root};
        dsi_text_add(&g->t->wrong, "rank %d calls another collective or another size: %s", q,
                     dsi_request_text(&call));
        return false;
    }
    return true;
}

/* Does step k of the segment that is next, if the others are ready for it. */
static bool advance_step(dsi_shm *s, segment_step k)
{
    segment g;
    if (!next_segment(s, k, &g) || step_waits_for(s, k, &g) >= 0) return false;
    dependency d;
    bool reads = k != STEP_WRITE && step_dependency(s, k, &g, &d) && d.step == STEP_WRITE;
    if (reads && g.number == g.t->first_segment && !ranks_agree(s, &g)) return false;
    if (k == STEP_WRITE) cell_write(s, &g);
    if (k == STEP_REDUCE) segment_reduce(s, &g);
    if (k == STEP_READ) segment_read(s, &g);
    count(s, k);
    return true;
}

static void remove_finished(dsi_shm *s)
{
    while (s->first) {
        dsi_transfer *t = s->first;
        if ((int32_t)(s->done[STEP_READ] - (t->first_segment + t->segments)) < 0) return;
        s->first = t->next;
        if (!s->first) s->last = NULL;
        t->finished = true;
        dsi_request_done(t->r);
    }
}

void dsi_shm_add(dsi_transfer *t)
{
    dsi_shm *s = t->shm;
    int64_t each = request_each(t->r), n = (t->r->n + each - 1) / each;
    t->first_segment = s->segments;
    t->segments = n > 0 ? (uint32_t)n : 1;
    s->segments += t->segments;
    *(s->last ? &s->last->next : &s->first) = t;
    s->last = t;
}

bool dsi_shm_advance(dsi_transfer *t)
{
    dsi_shm *s = t->shm;
    bool any = false, some = true;
    for (int i = 0; s->first && !s->first->wrong.n && some && i < CELLS; i++) {
        some = false;
        for (int k = STEP_READ; k >= STEP_WRITE; k--) some |= advance_step(s, (segment_step)k);
        remove_finished(s);
        any |= some;
    }
    return any;
}

/* The rank that the oldest step waits for; -1: none. */
static int waits_for(const dsi_shm *s)
{
    segment g;
    for (int k = STEP_READ; k >= STEP_WRITE; k--) {
        int q = next_segment(s, (segment_step)k, &g) ? step_waits_for(s, (segment_step)k, &g) : -1;
        if (q >= 0) return q;
    }
    return -1;
}

/* ---- waiting -------------------------------------------------------------------------------------------- */

bool dsi_shm_may_sleep(dsi_shm *s, dsi_shm_nap *nap)
{
    int q = waits_for(s);
    if (q < 0) return false;
    shm_rank *other = &s->ranks[q];
    atomic_fetch_add(&other->sleepers, 1);
    *nap = (dsi_shm_nap){q, atomic_load(&other->changes)};
    if (waits_for(s) == q) return true;
    atomic_fetch_sub(&other->sleepers, 1);
    return false;
}

void dsi_shm_sleep(dsi_shm *s, const dsi_shm_nap *nap, double seconds)
{
    shm_rank *other = &s->ranks[nap->rank];
    const struct timespec limit = {0, (long)(seconds * 1e9)};
    syscall(SYS_futex, &other->changes, FUTEX_WAIT, nap->changes, &limit, NULL, 0);
    atomic_fetch_sub(&other->sleepers, 1);
}

void dsi_shm_missing(const dsi_transfer *t, dsi_text *ranks)
{
    const dsi_shm *s = t->shm;
    dsi_text list = {0};
    int n = 0;
    for (int q = 0; q < s->size; q++)
        if (!counted(s, q, STEP_WRITE, t->first_segment + 1))
            dsi_text_add(&list, "%s%d", n++ ? ", " : " ", q);
    if (n) dsi_text_add(ranks, "%s%s", n > 1 ? "s" : "", list.s);
    dsi_text_free(&list);
}

void dsi_shm_leave(dsi_shm *s)
{
    if (s) atomic_store(&s->ranks[s->rank].departed, true);
}

void dsi_shm_probe(dsi_transfer *t)
{
    const dsi_shm *s = t->shm;
    for (int q = 0; q < s->size && !t->wrong.n; q++)
        if (atomic_load(&s->ranks[q].departed) && !counted(s, q, STEP_WRITE, t->first_segment + 1))
            dsi_transfer_await_cause(t, q);
}

/* ---- the memory ----------------------------------------------------------------------------------------- */

/* Rank 0's message to the others: the process and descriptor by which they open
 * its memfd, and the token that it contains, as they may be in another PID
 * namespace, where that number is another process. */
typedef struct shm_handshake {
    int64_t pid, fd; /* fd -1: it could not make one */
    uint64_t token[2];
} shm_handshake;

static size_t ranks_bytes(int size)
{
    return ((size_t)size * sizeof(shm_rank) + sizeof(cell) - 1) / sizeof(cell) * sizeof(cell);
}

static size_t shm_bytes(int size)
{
    return sizeof(cell) + ranks_bytes(size) + (size_t)size * CELLS * sizeof(cell);
}

/* Maps fd, and closes nothing. NULL: not possible. The first cell of the memory
 * holds the token. */
static dsi_shm *shm_map(const ds_comm *c, int fd, const uint64_t token[2], bool first)
{
    size_t bytes = shm_bytes(c->size);
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return NULL;
    if (first) memcpy(p, token, 2 * sizeof *token);
    if (memcmp(p, token, 2 * sizeof *token)) {
        munmap(p, bytes);
        return NULL;
    }
    dsi_shm *s = dsi_alloc(sizeof *s);
    char *ranks = p + sizeof(cell);
    *s = (dsi_shm){.rank = c->rank, .size = c->size, .bytes = bytes, .memory = p};
    s->ranks = (void *)ranks;
    s->cells = (void *)(ranks + ranks_bytes(c->size));
    s->in = dsi_alloc((size_t)c->size * sizeof *s->in);
    return s;
}

/* Rank 0: makes the memory; writes its fd to *h. */
static dsi_shm *shm_make(const ds_comm *c, shm_handshake *h)
{
    *h = (shm_handshake){getpid(), -1, {0}};
    int fd = memfd_create("deepspeed-ranks", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    dsi_shm *s = NULL;
    if (getrandom(h->token, sizeof h->token, GRND_NONBLOCK) == (ssize_t)sizeof h->token &&
        ftruncate(fd, (off_t)shm_bytes(c->size)) == 0)
        s = shm_map(c, fd, h->token, true);
    if (s)
        h->fd = fd;
    else
        close(fd);
    return s;
}

/* Another rank: opens rank 0's. */
static dsi_shm *shm_join(const ds_comm *c, const shm_handshake *h)
{
    char path[64];
    struct stat is;
    if (h->fd < 0) return NULL;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)h->pid, (long long)h->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    dsi_shm *s = NULL;
    if (fstat(fd, &is) == 0 && S_ISREG(is.st_mode) && is.st_size == (off_t)shm_bytes(c->size))
        s = shm_map(c, fd, h->token, false);
    close(fd);
    return s;
}

void dsi_shm_close(dsi_shm *s)
{
    if (!s) return;
    munmap(s->memory, s->bytes);
    dsi_free(s->in);
    dsi_free(s);
}

dsi_shm *dsi_shm_open(ds_comm *c, bool wanted)
{
    shm_handshake h = {.fd = -1};
    dsi_shm *s = c->rank == 0 && wanted ? shm_make(c, &h) : NULL;
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(c, DSI_BROADCAST, DS_U8, &h, &h, sizeof h), .internal = true});
    if (c->rank != 0 && wanted && status == DS_OK) s = shm_join(c, &h);
    int32_t all = s != NULL;
    if (status == DS_OK)
        status = dsi_request_run(
            &(dsi_request){DSI_NUMBERS(c, DSI_ALL_REDUCE, DS_I32, &all, &all, 1),
                           .op = DS_REDUCE_MIN, .internal = true});
    if (c->rank == 0 && h.fd >= 0) close((int)h.fd);
    if (status == DS_OK && all) return s;
    dsi_shm_close(s);
    return NULL;
}
