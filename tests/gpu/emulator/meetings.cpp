/* tests/gpu/emulator/meetings.cpp: where threads wait for each other: warp
 * operations, barriers, and cp.async.
 * SPDX-License-Identifier: MIT */
#include "internal.h"

namespace cuda_on_cpu
{

unsigned waiting;

enum { AT_BARRIER = 1, AT_MEETING };
static int waits_where(const Fiber *f)
{
    return f->warp->at_barrier >> f->lane & 1 ? AT_BARRIER
           : f->warp->met >> f->lane & 1      ? AT_MEETING
                                              : 0;
}

void fail(const char *what)
{
    fprintf(stderr, "cuda_on_cpu: %s: block (%u,%u,%u): %s\n", launch->name, block.index.x,
            block.index.y, block.index.z, what);
    int shown = 0;
    for (unsigned i = 0; i < n_threads && shown < 12; i++) {
        Fiber *f = &fibers[i];
        int where = waits_where(f), before = i ? waits_where(f - 1) : 0;
        if (!where || (where == before && fibers[i - 1].m.line == f->m.line)) continue;
        shown++;
        fprintf(stderr, "  thread (%u,%u,%u)%s waits in %s, line %d", f->thread.x, f->thread.y,
                f->thread.z, "", where == AT_BARRIER ? "__syncthreads" : f->m.name, f->m.line);
        if (where == AT_MEETING) fprintf(stderr, ", mask %08x", f->m.mask);
        fprintf(stderr, "\n");
    }
    abort();
}

/* Which lane a lane of a shuffle reads, itself where there is none. */
static unsigned source(const Meeting &m, unsigned lane)
{
    unsigned width = (unsigned)m.width, arg = (unsigned)m.arg, base = lane & ~(width - 1);
    unsigned at = m.kind == SHFL_IDX    ? base | (arg & (width - 1))
                  : m.kind == SHFL_UP   ? lane - arg
                  : m.kind == SHFL_DOWN ? lane + arg
                                        : lane ^ arg;
    return at - base < width ? at : lane;
}

static void shuffle(Fiber *l, unsigned n, unsigned came)
{
    for (unsigned i = 0; i < n; i++) {
        if (!(came >> i & 1)) continue;
        unsigned from = source(l[i].m, i);
        l[i].m.out = from < n && came >> from & 1
                         ? l[from].m.in
                         : 0x7fc0dead7fc0deadu; /* of a lane that is not there: undefined */
    }
}

static void call_once(Fiber *l, unsigned came)
{
    void **p[32];
    if (~came) fail("an operation of a whole warp without all of its lanes");
    for (unsigned i = 0; i < 32; i++) p[i] = l[i].m.p;
    l[0].m.f(p, came);
}

/* What a value adds to what all lanes get. */
static uint64_t together(Kind kind, uint64_t all, uint64_t v, unsigned lane)
{
    switch (kind) {
    case BALLOT:
        return v ? all | 1u << lane : all;
    case ADD:
        return (uint32_t)(all + v);
    case MIN:
        return v < all ? v : all;
    default:
        return v > all ? v : all;
    }
}

static void compute(Warp *w, unsigned came)
{
    Fiber *l = w->lanes;
    Kind kind = l[__builtin_ctz(came)].m.kind;
    if (kind == SYNCWARP) return;
    if (kind == CALL) return call_once(l, came);
    if (kind <= SHFL_XOR) return shuffle(l, w->n, came);
    uint64_t all = kind == MIN ? 0xffffffffu : 0;
    for (unsigned i = 0; i < w->n && kind != MATCH; i++)
        if (came >> i & 1) all = together(kind, all, l[i].m.in, i);
    for (unsigned i = 0; i < w->n; i++) {
        if (!(came >> i & 1)) continue;
        l[i].m.out = all;
        for (unsigned j = 0; j < w->n && kind == MATCH; j++)
            if (came >> j & 1 && l[j].m.in == l[i].m.in) l[i].m.out |= 1u << j;
    }
}

static bool differs(const Meeting &a, const Meeting &b)
{
    return a.mask != b.mask || a.kind != b.kind || a.line != b.line;
}

/* Is the meeting of this mask complete? Lanes that have ended do not count. */
static bool complete(Warp *w, unsigned mask, unsigned *came)
{
    unsigned expected = mask & ~w->done;
    if (!expected || (w->met & expected) != expected) return false;
    const Meeting &first = w->lanes[__builtin_ctz(expected)].m;
    if (first.mask != mask) return false;
    for (unsigned i = 0; i < w->n && w->differ; i++)
        if (expected >> i & 1 && differs(w->lanes[i].m, first)) return false;
    *came = expected;
    return true;
}

static void finish(Warp *w, unsigned came)
{
    compute(w, came);
    w->met &= ~came;
    w->ready |= came;
    if (!w->met) w->differ = false;
}

static void meet(Fiber *f)
{
    unsigned came;
    Warp *w = f->warp;
    if (!(f->m.mask >> f->lane & 1)) fail("a lane calls a warp operation whose mask leaves it out");
    w->ready &= ~(1u << f->lane);
    if (w->met && differs(f->m, w->lanes[__builtin_ctz(w->met)].m)) w->differ = true;
    w->met |= 1u << f->lane;
    if (complete(w, f->m.mask, &came))
        finish(w, came);
    else
        leave();
}

uint64_t meet(Kind kind, unsigned mask, uint64_t in, int arg, int width, const char *name, int line)
{
    Fiber *f = self;
    Meeting &m = f->m;
    m.kind = kind, m.mask = mask, m.arg = arg, m.width = width, m.name = name, m.line = line,
    m.in = in;
    meet(f);
    return m.out;
}
void call(void (*g)(void **const *p, unsigned mask), const char *name, int line, const void *p0,
          const void *p1, const void *p2, const void *p3)
{
    Fiber *f = self;
    Meeting &m = f->m;
    m.kind = CALL, m.mask = 0xffffffffu, m.arg = 0, m.width = 32, m.name = name, m.line = line,
    m.f = g;
    m.p[0] = (void *)p0, m.p[1] = (void *)p1, m.p[2] = (void *)p2, m.p[3] = (void *)p3;
    meet(f);
}

/* Of the threads that wait: where the first one does, and whether another one
 * does elsewhere. */
static int barrier_line;
static bool barrier_differs;

static void open_barrier()
{
    if (barrier_differs) fail("threads of a block wait at different barriers");
    for (unsigned i = 0; i < (n_threads + 31) / 32; i++) {
        warps[i].ready |= warps[i].at_barrier;
        warps[i].at_barrier = 0;
    }
    waiting = 0;
}

void barrier(int line)
{
    Fiber *f = self;
    f->warp->ready &= ~(1u << f->lane);
    f->warp->at_barrier |= 1u << f->lane;
    f->m.line = line;
    barrier_differs = waiting && (barrier_differs || line != barrier_line);
    barrier_line = line;
    if (++waiting == left)
        open_barrier();
    else
        leave();
}

void ended(Fiber *f)
{
    Warp *w = f->warp;
    unsigned came;
    left--;
    w->ready &= ~(1u << f->lane);
    w->done |= 1u << f->lane;
    if (!copies[f - fibers].empty()) fail("a thread ends before its cp.async arrived");
    if (products_pending(f)) fail("a thread ends before its wgmma has");
    for (unsigned i = 0; w->met && i < w->n; i++)
        if (w->met >> i & 1 && complete(w, w->lanes[i].m.mask, &came)) finish(w, came);
    if (left && waiting == left) open_barrier();
}

} // namespace cuda_on_cpu

/* ---- cp.async ---------------------------------------------------------------------------------------------- */

using namespace cuda_on_cpu;
/* calls, so that AddressSanitizer sees them */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void *(*volatile fill)(void *, int, size_t) = memset;
static void copy_16(void *to, const void *from, int bytes)
{
    if (bytes) copy(to, from, (size_t)bytes);
    fill((char *)to + bytes, 0, (size_t)(16 - bytes));
}
static bool copied[MOST]; /* since the thread waited last */
void cp_async16(void *to, const void *from, int bytes)
{
    if (bytes < 0 || bytes > 16) fail("cp.async: a size that is not 0 to 16");
    if (((uintptr_t)to | (uintptr_t)from) % 16)
        fail("cp.async: an address that is no multiple of 16");
    size_t i = (size_t)(self - fibers);
    bool at_once = order == BACKWARD ||
                   (order == RANDOM && draw(2)); /* it may arrive any time until it is waited for */
    if (at_once)
        copy_16(to, from, bytes), copied[i] = true;
    else
        copies[i].push_back({to, from, bytes, groups[i]});
}
void cp_async_commit() { groups[self - fibers]++, copies_used = true; }
void cp_async_wait(int groups_left)
{
    size_t i = (size_t)(self - fibers), kept = 0;
    for (auto &c : copies[i])
        if (c.group < groups[i] - groups_left)
            copy_16(c.to, c.from, c.bytes), copied[i] = true;
        else
            copies[i][kept++] = c;
    copies[i].resize(kept);
    if (copied[i]) products_written(i);
    copied[i] = false;
}
