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

static void compute(Warp *w, unsigned mask, unsigned came)
{
    Fiber *l = w->lanes;
    Kind kind = l[__builtin_ctz(came)].m.kind;
    uint64_t all = 0;
    void **p[32] = {};
    switch (kind) {
    case BALLOT:
        for (unsigned i = 0; i < w->n; i++)
            if (came >> i & 1 && l[i].m.in) all |= 1u << i;
        break;
    case ADD:
    case MIN:
    case MAX:
        all = kind == MIN ? 0xffffffffu : 0;
        for (unsigned i = 0; i < w->n; i++) {
            if (!(came >> i & 1)) continue;
            uint64_t v = l[i].m.in;
            all = kind == ADD   ? (uint32_t)(all + v)
                  : kind == MIN ? (v < all ? v : all)
                                : (v > all ? v : all);
        }
        break;
    case CALL:
        for (unsigned i = 0; i < 32; i++) {
            if (!(came >> i & 1)) fail("an operation of a whole warp without all of its lanes");
            p[i] = l[i].m.p;
        }
        l[0].m.f(p, mask);
        return;
    case SYNCWARP:
        return;
    default:
        break;
    }
    for (unsigned i = 0; i < w->n; i++) {
        if (!(came >> i & 1)) continue;
        Meeting &m = l[i].m;
        unsigned base = i & ~(unsigned)(m.width - 1), end = base + (unsigned)m.width - 1, from = i;
        m.out = all;
        if (kind == MATCH) {
            m.out = 0;
            for (unsigned j = 0; j < w->n; j++)
                if (came >> j & 1 && l[j].m.in == m.in) m.out |= 1u << j;
        }
        if (kind > SHFL_XOR) continue;
        int64_t at = kind == SHFL_IDX
                         ? (int64_t)(base | ((unsigned)m.arg & (unsigned)(m.width - 1)))
                     : kind == SHFL_UP   ? (int64_t)i - m.arg
                     : kind == SHFL_DOWN ? (int64_t)i + m.arg
                                         : (int64_t)(i ^ (unsigned)m.arg);
        if (at >= (int64_t)base && at <= (int64_t)end) from = (unsigned)at;
        m.out = from < w->n && came >> from & 1
                    ? l[from].m.in
                    : 0x7fc0dead7fc0deadu; /* of a lane that is not there: undefined */
    }
}

/* Is the meeting of this mask complete? Lanes that have ended do not count. */
static bool complete(Warp *w, unsigned mask, unsigned *came)
{
    unsigned expected = mask & ~w->done;
    if (!expected || (w->met & expected) != expected) return false;
    const Meeting &first = w->lanes[__builtin_ctz(expected)].m;
    for (unsigned i = 0; i < w->n; i++) {
        const Meeting &m = w->lanes[i].m;
        if (!(expected >> i & 1)) continue;
        if (m.mask != mask || m.kind != first.kind || m.line != first.line) return false;
    }
    *came = expected;
    return true;
}

static void finish(Warp *w, unsigned mask, unsigned came)
{
    compute(w, mask, came);
    w->met &= ~came;
    w->ready |= came;
}

static void meet(Fiber *f)
{
    unsigned came;
    if (!(f->m.mask >> f->lane & 1)) fail("a lane calls a warp operation whose mask leaves it out");
    f->warp->ready &= ~(1u << f->lane);
    f->warp->met |= 1u << f->lane;
    if (complete(f->warp, f->m.mask, &came))
        finish(f->warp, f->m.mask, came);
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
        if (w->met >> i & 1 && complete(w, w->lanes[i].m.mask, &came))
            finish(w, w->lanes[i].m.mask, came);
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
