/* base/aio_ring.c: requests that the kernel runs: io_uring through liburing,
 * which is opened when it is first needed.
 *
 * If anything is missing when the ring is made (the library, or the permission
 * of a kernel or container), dsi_ring_new returns NULL and threads take over.
 * Later failures belong to their request.
 *
 * Invariants: one thread uses a ring. There are queue_depth slots; slot[i]
 * holds a request from its submission until its completion was reaped, `flying`
 * counts them, and its index is the request's user data. Only dsi_ring_progress
 * with `wait`, and dsi_ring_free, block.
 * SPDX-License-Identifier: MIT */
#include "aio_engine.h"

#include "error.h"
#include "library.h"
#include "mem.h"

#ifndef DSI_HAVE_URING

dsi_ring *dsi_ring_new(const dsi_aio_opts *o) { return (void)o, NULL; }
void dsi_ring_free(dsi_ring *g) { (void)g; }
bool dsi_ring_pin(dsi_ring *g, void *const *p, size_t bytes, int n)
{
    return (void)g, (void)p, (void)bytes, (void)n, false;
}
void dsi_ring_progress(dsi_ring *g, dsi_aio *a, bool wait) { (void)g, (void)a, (void)wait; }

#else

#include <liburing.h>

/* In the order of `names`. */
typedef struct Functions {
    int (*queue_init)(unsigned entries, struct io_uring *ring, unsigned flags);
    void (*queue_exit)(struct io_uring *ring);
    struct io_uring_sqe *(*get_sqe)(struct io_uring *ring);
    int (*submit_and_wait)(struct io_uring *ring, unsigned n);
    int (*register_buffers)(struct io_uring *ring, const struct iovec *p, unsigned n);
} Functions;

static const char *const names[] = {"io_uring_queue_init", "io_uring_queue_exit",
                                    "io_uring_get_sqe", "io_uring_submit_and_wait",
                                    "io_uring_register_buffers"};
static const char *const sonames[] = {"liburing.so.2", "liburing.so.1", NULL};

typedef struct Slot {
    dsi_aio_request r;
    bool used; /* it is on its way */
} Slot;

struct dsi_ring {
    Functions f;
    struct io_uring ring;
    int depth, flying;
    bool one_by_one, in_batches;
    Slot *slot; /* [depth] */
    struct iovec *pinned;
    int n_pinned;
};

dsi_ring *dsi_ring_new(const dsi_aio_opts *o)
{
    dsi_ring *g = dsi_alloc(sizeof *g);
    int before = dsi_error_count();
    bool open = dsi_library_open("aio", sonames, "liburing2", names, 5, &g->f);
    dsi_error_forget(before); /* threads do it */
    if (!open || g->f.queue_init((unsigned)o->queue_depth, &g->ring, 0) < 0) {
        dsi_free(g);
        return NULL;
    }
    g->depth = o->queue_depth;
    g->one_by_one = o->single_submit;
    g->in_batches = o->in_batches;
    g->slot = dsi_alloc((size_t)g->depth * sizeof *g->slot);
    return g;
}

void dsi_ring_free(dsi_ring *g)
{
    if (!g) return;
    g->f.queue_exit(&g->ring);
    dsi_free(g->slot);
    dsi_free(g->pinned);
    dsi_free(g);
}

bool dsi_ring_pin(dsi_ring *g, void *const *p, size_t bytes, int n)
{
    g->pinned = dsi_realloc(g->pinned, (size_t)n * sizeof *g->pinned);
    for (int i = 0; i < n; i++) g->pinned[i] = (struct iovec){p[i], bytes};
    g->n_pinned = g->f.register_buffers(&g->ring, g->pinned, (unsigned)n) ? 0 : n;
    return g->n_pinned > 0;
}

/* The index of the pinned memory that contains the request's; -1: none. */
static int ring_pinned_at(const dsi_ring *g, const dsi_aio_request *r)
{
    for (int i = 0; i < g->n_pinned; i++) {
        const char *p = g->pinned[i].iov_base;
        if (r->p >= p && r->p + r->bytes <= p + g->pinned[i].iov_len) return i;
    }
    return -1;
}

/* There is an entry for each slot. */
static void ring_submit(dsi_ring *g, Slot *s)
{
    struct io_uring_sqe *e = g->f.get_sqe(&g->ring);
    const dsi_aio_request *r = &s->r;
    int fd = r->op->file->fd, at = ring_pinned_at(g, r);
    unsigned n = (unsigned)r->bytes;
    uint64_t place = (uint64_t)r->at;
    if (at >= 0 && r->op->write)
        io_uring_prep_write_fixed(e, fd, r->p, n, place, at);
    else if (at >= 0)
        io_uring_prep_read_fixed(e, fd, r->p, n, place, at);
    else if (r->op->write)
        io_uring_prep_write(e, fd, r->p, n, place);
    else
        io_uring_prep_read(e, fd, r->p, n, place);
    io_uring_sqe_set_data(e, s);
    if (!s->used) g->flying++;
    s->used = true;
    if (g->one_by_one) g->f.submit_and_wait(&g->ring, 0);
}

static void ring_fill(dsi_ring *g, dsi_aio *a)
{
    if (g->in_batches && g->flying) return;
    for (int i = 0; i < g->depth; i++)
        if (!g->slot[i].used) {
            if (!dsi_aio_next(a, &g->slot[i].r)) return;
            ring_submit(g, &g->slot[i]);
        }
}

/* Takes the requests that have ended; returns whether there were any. */
static bool ring_reap(dsi_ring *g)
{
    struct io_uring_cqe *e;
    unsigned head, n = 0;
    io_uring_for_each_cqe(&g->ring, head, e)
    {
        Slot *s = io_uring_cqe_get_data(e);
        n++;
        if (dsi_aio_done(&s->r, e->res)) {
            ring_submit(g, s);
        } else {
            s->used = false;
            g->flying--;
        }
    }
    io_uring_cq_advance(&g->ring, n);
    return n > 0;
}

void dsi_ring_progress(dsi_ring *g, dsi_aio *a, bool wait)
{
    if (ring_reap(g)) wait = false;
    ring_fill(g, a);
    g->f.submit_and_wait(&g->ring, wait && g->flying);
    if (ring_reap(g)) ring_fill(g, a);
    g->f.submit_and_wait(&g->ring, 0);
}

#endif
