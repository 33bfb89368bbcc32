/* tests/gpu/emulator/blocks.cpp: the blocks of a grid, in the chosen order; the
 * threads of a block; shared memory, filled with NaN.
 * SPDX-License-Identifier: MIT */
#include "internal.h"

namespace cuda_on_cpu
{

const Launch *launch;
uint64_t threads_run;
Fiber fibers[MOST];
Warp warps[MOST / 32];
Block block;
unsigned n_threads, left;
std::vector<Copy> copies[MOST];
int groups[MOST];
bool copies_used, products_used;
Turn turn;
Order order = FORWARD;

struct Piece {
    const void *tag;
    void *memory, *p;
};
static std::vector<Piece> pieces; /* of the block's shared memory */
static uint64_t seed;
static bool order_known;
static Entry *entries;

Entry::Entry(const char *name_, size_t bytes_, void (*thread_)(const void *))
    : name(name_), bytes(bytes_), thread(thread_), next(entries)
{
    entries = this;
}

Entry *find(const char *name)
{
    Entry *e = entries;
    while (e && strcmp(e->name, name)) e = e->next;
    return e;
}

/* ---- orders ---- */

void set_order(Order o, uint64_t s) { order = o, seed = s * 2 + 1, order_known = true; }
void know_order()
{
    if (order_known) return;
    order_known = true;
    const char *e = getenv("CUDA_ON_CPU_ORDER");
    if (!e) return;
    if (!strcmp(e, "forward"))
        order = FORWARD;
    else if (!strcmp(e, "backward"))
        order = BACKWARD;
    else
        order = RANDOM, seed = strtoull(e, nullptr, 10) * 2 + 1;
}
unsigned draw(unsigned n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((seed >> 33) * n >> 31);
}
static bool coprime(unsigned a, unsigned b)
{
    while (b) {
        unsigned t = a % b;
        a = b, b = t;
    }
    return a == 1;
}
Sequence::Sequence(unsigned n_) : n(n_), at(0), step(1)
{
    if (order == FORWARD || !n) return;
    at = step = n - 1;
    if (order == BACKWARD) return;
    at = draw(n);
    do step = draw(n) | 1;
    while (n & (n - 1) && !coprime(step, n));
}

/* ---- blocks ---- */

static void *take(size_t bytes)
{
    void *p;
    if (posix_memalign(&p, 128, bytes)) abort(); /* exact, so that AddressSanitizer sees overruns */
    memset(p, 0xff, bytes);                      /* NaN: nothing is zero by chance */
    return p;
}
static void give(void *p) { free(p); }

/* At a multiple of `aligned` that is none of its double: the assembler promises
 * no more. */
void *shared(const void *tag, size_t bytes, size_t aligned)
{
    for (auto &s : pieces)
        if (s.tag == tag) return s.p;
    char *memory = (char *)take(aligned + bytes);
    pieces.push_back({tag, memory, memory + aligned});
    return memory + aligned;
}

static void next_warp()
{
    unsigned n_warps = (n_threads + 31) / 32;
    if (!turn.w || turn.warp == n_warps) {
        if (turn.w && !turn.moved) fail("its threads wait for ever");
        turn.moved = false;
        turn.warps = Sequence(n_warps);
        turn.warp = 0;
    }
    turn.warp++;
    turn.w = &warps[turn.warps.next()];
}

Fiber *next_in_pass()
{
    Warp *w = turn.w;
    turn.moved |= turn.again;
    bool overtaken = w && order == RANDOM && draw(4) == 0; /* another warp may */
    if (!left) return nullptr;
    bool stays = w && turn.again && w->ready && !overtaken;
    while (!stays) {
        next_warp();
        stays = turn.w->ready;
    }
    turn.again = false;
    turn.lanes = Sequence(turn.w->n);
    turn.lanes_left = turn.w->n;
    return next_fiber();
}

/* Which thread each fiber is. */
static void number_threads(const dim3 &b)
{
    static dim3 before(0, 0, 0);
    unsigned i = 0;
    if (b.x == before.x && b.y == before.y && b.z == before.z) return;
    before = b;
    for (unsigned z = 0; z < b.z; z++)
        for (unsigned y = 0; y < b.y; y++)
            for (unsigned x = 0; x < b.x; x++, i++) {
                fibers[i].thread = {x, y, z};
                fibers[i].lane = i % 32;
                fibers[i].warp = &warps[i / 32];
            }
}

static void run_block()
{
    const dim3 &b = launch->block;
    n_threads = left = b.x * b.y * b.z;
    waiting = 0;
    if (copies_used) memset(groups, 0, sizeof groups);
    if (products_used) products_forget();
    copies_used = products_used = false;
    for (unsigned at = 0; at < n_threads; at += 32) {
        unsigned n = n_threads - at < 32 ? n_threads - at : 32, all = ~0u >> (32 - n);
        warps[at / 32] = {fibers + at, n, all, all, 0, 0, ~all, false};
    }
    block.dynamic = launch->dynamic_bytes ? take(launch->dynamic_bytes) : nullptr;
    block.dynamic_bytes = launch->dynamic_bytes;
    turn = Turn();
    enter_fibers();
    if (launch->dynamic_bytes) give(block.dynamic);
    for (auto &s : pieces) give(s.memory);
    pieces.clear();
    threads_run += n_threads;
}

void run(const Launch &l)
{
    know_order();
    const dim3 &g = l.grid, &b = l.block;
    launch = &l;
    uint64_t n = (uint64_t)b.x * b.y * b.z, blocks = (uint64_t)g.x * g.y * g.z;
    /* what the driver refuses */
    if (!n || n > 1024 || b.z > 64 || !blocks || g.y > 65535 || g.z > 65535 || g.x > 0x7fffffffu ||
        l.dynamic_bytes > 227 << 10) {
        fprintf(stderr,
                "cuda_on_cpu: %s: a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads with %zu "
                "bytes: refused\n",
                l.name, g.x, g.y, g.z, b.x, b.y, b.z, l.dynamic_bytes);
        abort();
    }
    number_threads(b);
    Sequence bs((unsigned)blocks);
    for (uint64_t i = 0; i < blocks; i++) {
        unsigned at = bs.next();
        block.index = {at % g.x, at / g.x % g.y, at / g.x / g.y};
        run_block();
    }
    launch = nullptr;
}

} // namespace cuda_on_cpu
