/* tests/gpu/emulator/internal.h: what fibers.cpp, meetings.cpp and blocks.cpp
 * share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "cuda_on_cpu.h"

#include <stdlib.h>
#include <vector>

namespace cuda_on_cpu
{

enum State : uint8_t { NEW, READY, AT_BARRIER, AT_MEETING, DONE };
enum { MOST = 1024 }; /* threads of a block */

struct Warp {
    Fiber *lanes;
    unsigned n, left;
    unsigned met, done; /* lanes at a meeting; lanes that have ended, or do not exist */
};

/* A cp.async that has not arrived. */
struct Copy {
    void *to;
    const void *from;
    int bytes, group;
};

/* The block that runs. */
extern Fiber fibers[MOST];
extern Warp warps[MOST / 32];
extern Block block;
extern unsigned n_threads, left, waiting; /* threads; not ended; at the barrier */
extern std::vector<Copy> copies[MOST];
extern int groups[MOST];
extern Order order;

unsigned draw(unsigned n); /* a random number below n */
void enter_fibers();       /* from the host; returns when all have ended */
void leave();              /* the running fiber waits, others continue */
Fiber *next_fiber();       /* the one that continues; NULL: all have ended */
void ended(Fiber *f);      /* a fiber is done: whoever waited for it may go on */

/* ---- wgmma.cpp ---- */

void products_forget(unsigned n); /* of a new block's n threads */
bool products_pending(const Fiber *f);
void products_written(size_t thread); /* shared memory, by a cp.async that has arrived */

} // namespace cuda_on_cpu
