/* tests/gpu/emulator/ptx_machine/run.cpp: a launch: blocks, their warps, and
 * whose turn it is.
 * SPDX-License-Identifier: MIT */
#include "machine.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

using cuda_on_cpu::draw;
using cuda_on_cpu::order;

namespace ptx
{

const char *arguments;

namespace
{

enum { IN_FLIGHT = 4, TURN = 64 }; /* in a seeded order: blocks; most instructions of a turn */
struct Grid {
    unsigned grid[3], block[3];
    size_t dynamic;
    bool races;
};

} // namespace

bool arrives_late()
{
    return order == cuda_on_cpu::FORWARD || (order == cuda_on_cpu::RANDOM && draw(2));
}

void fail(const Warp &w, int lane, const char *format, ...)
{
    char what[300];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    const Instruction &i = w.kernel->code[w.now];
    const unsigned *b = w.block->index;
    char place[40] = "";
    if (lane >= 0) snprintf(place, sizeof place, " lane %d", lane);
    fprintf(stderr, "ptx machine: %s: block (%u,%u,%u) warp %u%s: line %d: %s: %s\n",
            w.kernel->name.c_str(), b[0], b[1], b[2], w.number, place, i.line, i.text.c_str(),
            what);
    abort();
}

/* ---- a warp ---- */

/* The lanes at the smallest place of those that can go on. */
static unsigned choose(const Warp &w, uint32_t *at, uint32_t *until)
{
    unsigned ready = w.live & ~w.parked, mask = 0;
    *at = *until = UINT32_MAX;
    each(ready, [&](unsigned l) { *at = w.at[l] < *at ? w.at[l] : *at; });
    each(w.live, [&](unsigned l) {
        if (w.at[l] == *at)
            mask |= 1u << l;
        else if (w.at[l] > *at && w.at[l] < *until)
            *until = w.at[l];
    });
    return ready ? mask : 0;
}

static void place(Warp &w, unsigned mask, uint32_t at)
{
    each(mask, [&](unsigned l) { w.at[l] = at; });
}

/* Of the mask, the lanes that name the same companions as the first; *needed:
 * those. */
static unsigned company(Warp &w, const Instruction &i, unsigned mask, unsigned *needed)
{
    *needed = ALL;
    if (i.members == ALL_LANES && w.live != ALL) fail(w, -1, "without all lanes of the warp");
    if (i.members == ALL_LANES) return mask;
    const uint64_t *members = i.members < 0 ? w.kernel->constants[(size_t)~i.members].lane
                                            : w.row(i.members);
    unsigned first = (unsigned)__builtin_ctz(mask), group = 0;
    *needed = (unsigned)members[first];
    each(mask, [&](unsigned l) { group |= (unsigned)((unsigned)members[l] == *needed) << l; });
    if (group & ~*needed) fail(w, __builtin_ctz(group & ~*needed), "the mask leaves the lane out");
    return group;
}

/* Lanes come to an instruction of several; those whose companions are there go on. */
static void meet(Warp &w, const Instruction &i, unsigned mask, uint32_t at)
{
    unsigned needed, group = company(w, i, mask, &needed);
    if (needed & w.live & ~group) {
        w.parked |= group;
        return;
    }
    if (i.sums) check_sums(w, i);
    i.run(w, i, group);
    place(w, group, at + 1);
}

static void wait_whole(Warp &w)
{
    if (!w.live || w.at_barrier != w.live) return;
    uint32_t at = w.at[__builtin_ctz(w.live)];
    each(w.live, [&](unsigned l) {
        if (w.at[l] != at) fail(w, (int)l, "lanes of a warp wait at different barriers");
    });
    w.waits = true;
    w.block->waiting++;
}

/* Lanes come to the barrier of the block. */
static void wait(Warp &w, unsigned mask)
{
    w.parked |= mask;
    w.at_barrier |= mask;
    wait_whole(w);
}

static void end(Warp &w, unsigned mask)
{
    each(mask, [&](unsigned l) {
        if (!w.copies[l].empty()) fail(w, (int)l, "it ends before its cp.async was waited for");
    });
    if (!w.products.empty()) fail(w, -1, "it ends before its wgmma was waited for");
    w.live &= ~mask;
    w.at_barrier &= w.live;
    w.parked = w.at_barrier; /* who waited for these lanes may go on */
    if (!w.live) w.block->left--;
    wait_whole(w);
}

static unsigned allowed(Warp &w, const Instruction &i, unsigned mask)
{
    if (i.guard < 0) return mask;
    const uint64_t *p = w.row(i.guard);
    unsigned yes = 0;
    for (unsigned l = 0; l < LANES; l++) yes |= (unsigned)(p[l] & 1) << l;
    return mask & (i.guard_not ? ~yes : yes);
}

bool Warp::go(unsigned most)
{
    bool moved = false;
    while (most && live && !waits) {
        uint32_t from, until;
        unsigned mask = choose(*this, &from, &until);
        if (!mask) return moved;
        parked &= ~mask;
        moved = true;
        for (now = from; now < until && most; now++, most--) {
            const Instruction &i = kernel->code[now];
            unsigned which = allowed(*this, i, mask);
            if (i.control == STRAIGHT) {
                if (i.sums && which) check_sums(*this, i);
                if (which) i.run(*this, i, which);
                continue;
            }
            uint32_t at = now;
            place(*this, mask, at);
            place(*this, mask & ~which, at + 1);
            if (i.control == BRANCH)
                place(*this, which, (uint32_t)i.target);
            else if (i.control == EXIT)
                end(*this, which);
            else if (which && i.control == BARRIER)
                wait(*this, which);
            else if (which)
                meet(*this, i, which, at);
            mask = 0;
            most--;
            break;
        }
        if (mask) place(*this, mask, now);
    }
    return moved;
}

/* ---- a block ---- */

namespace
{

void start_warp(Warp *w, Block *b, const Kernel &k, const Grid &g, unsigned number,
                unsigned threads)
{
    Row garbage;
    for (auto &lane : garbage.lane) lane = GARBAGE;
    w->block = b, w->kernel = &k, w->number = number;
    w->live = threads - number * LANES >= LANES ? ALL : (1u << (threads - number * LANES)) - 1;
    w->parked = w->at_barrier = 0;
    w->waits = w->products_fenced = false;
    w->now = 0, w->products_committed = 0;
    w->rows.assign((size_t)k.rows, garbage);
    w->local.assign((size_t)k.local_bytes * LANES, (char)0xff);
    for (unsigned l = 0; l < LANES; l++) {
        unsigned thread = number * LANES + l;
        w->at[l] = 0, w->groups[l] = 0, w->fences[l] = 0, w->synced[l] = 0;
        w->row(TID_X)[l] = thread % g.block[0];
        w->row(TID_Y)[l] = thread / g.block[0] % g.block[1];
        w->row(TID_Z)[l] = thread / g.block[0] / g.block[1];
        for (int d = 0; d < 3; d++) {
            w->row(NTID_X + d)[l] = g.block[d];
            w->row(CTAID_X + d)[l] = b->index[d];
            w->row(NCTAID_X + d)[l] = g.grid[d];
        }
        w->row(LANEID)[l] = l;
    }
}

void start_block(Block *b, const Kernel &k, const Grid &g, unsigned number)
{
    unsigned threads = g.block[0] * g.block[1] * g.block[2], n = (threads + LANES - 1) / LANES;
    size_t end = k.dynamic_at ? k.dynamic_at + g.dynamic : k.shared_end;
    b->index[0] = number % g.grid[0];
    b->index[1] = number / g.grid[0] % g.grid[1];
    b->index[2] = number / g.grid[0] / g.grid[1];
    b->shared.assign(end, (char)0xff);
    b->is_variable.assign(end, 0);
    for (const Variable &v : k.shared) memset(&b->is_variable[v.at], 1, v.bytes);
    if (k.dynamic_at && g.dynamic) memset(&b->is_variable[k.dynamic_at], 1, g.dynamic);
    b->seen.assign(g.races ? end : 0, Seen());
    b->unfenced.assign(k.has_products ? end : 0, 0);
    b->seen_global = g.races ? number + 1 : 0;
    b->epoch = b->when = 1;
    b->left = n, b->waiting = 0;
    b->warps.resize(n);
    for (unsigned i = 0; i < n; i++) {
        if (!b->warps[i]) b->warps[i].reset(new Warp());
        start_warp(b->warps[i].get(), b, k, g, i, threads);
    }
}

/* All warps that have not ended wait at the barrier: they go on. */
bool open_barrier(Block *b)
{
    if (!b->left || b->waiting < b->left) return false;
    b->epoch++;
    b->waiting = 0;
    for (auto &w : b->warps) {
        if (!w->waits) continue;
        place(*w, w->live, w->at[__builtin_ctz(w->live)] + 1);
        w->waits = false;
        w->parked = w->at_barrier = 0;
    }
    return true;
}

void hangs(const Block &b)
{
    for (auto &w : b.warps) {
        if (!w->live || (w->waits && &w != &b.warps.back())) continue;
        w->now = w->at[__builtin_ctz(w->live)];
        fail(*w, __builtin_ctz(w->live), "its threads wait for ever");
    }
}

/* A turn of each warp; false: all have ended. */
bool round_of(Block *b)
{
    unsigned n = (unsigned)b->warps.size();
    bool moved = false, seeded = order == cuda_on_cpu::RANDOM;
    unsigned first = seeded ? draw(n) : 0;
    for (unsigned i = 0; i < n && b->left; i++) {
        unsigned at = order == cuda_on_cpu::BACKWARD ? n - 1 - i : (first + i) % n;
        if (seeded && draw(3) == 0) {
            moved = true; /* it has no turn */
            continue;
        }
        moved |= b->warps[at]->go(seeded ? 1 + draw(TURN) : UINT32_MAX);
        moved |= open_barrier(b);
    }
    if (b->left && !moved) hangs(*b);
    return b->left;
}

/* Which block is the i-th. */
std::vector<unsigned> block_order(unsigned n)
{
    std::vector<unsigned> blocks(n);
    for (unsigned i = 0; i < n; i++) blocks[i] = order == cuda_on_cpu::BACKWARD ? n - 1 - i : i;
    for (unsigned i = n; order == cuda_on_cpu::RANDOM && i > 1; i--)
        std::swap(blocks[i - 1], blocks[draw(i)]);
    return blocks;
}

void run(const Kernel &k, const Grid &g)
{
    static std::unique_ptr<Block> flight[IN_FLIGHT];
    unsigned n = g.grid[0] * g.grid[1] * g.grid[2], next = 0, live = 0;
    std::vector<unsigned> blocks = block_order(n);
    unsigned most = order == cuda_on_cpu::RANDOM ? IN_FLIGHT : 1;
    bool used[IN_FLIGHT] = {};
    while (next < n || live) {
        unsigned slot = most == 1 ? 0 : draw(most);
        if (!used[slot] && next == n) continue;
        if (!flight[slot]) flight[slot].reset(new Block());
        if (!used[slot])
            start_block(flight[slot].get(), k, g, blocks[next++]), used[slot] = true, live++;
        if (!round_of(flight[slot].get())) used[slot] = false, live--;
    }
}

} // namespace

} // namespace ptx

/* ---- as the driver calls it ---- */

extern "C" void *ptx_machine_load(const char *text, const char *kernel)
{
    return ptx::parse(text, kernel).release();
}

extern "C" void ptx_machine_free(void *kernel) { delete (ptx::Kernel *)kernel; }

extern "C" void ptx_machine_run(const void *kernel, const unsigned grid[3], const unsigned block[3],
                                size_t shared, const void *args)
{
    const char *races = getenv("FAKE_CUDA_RACES");
    const ptx::Kernel &k = *(const ptx::Kernel *)kernel;
    cuda_on_cpu::know_order();
    ptx::forget_places();
    ptx::forget_global();
    ptx::arguments = (const char *)args;
    long before = ptx::races();
    ptx::run(k, {{grid[0], grid[1], grid[2]},
                 {block[0], block[1], block[2]},
                 shared,
                 races && atoi(races)});
    if (ptx::races() > before && atoi(races) == 1) abort();
}
