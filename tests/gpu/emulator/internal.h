/* tests/gpu/emulator/internal.h: what fibers.cpp, meetings.cpp and blocks.cpp
 * share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "cuda_on_cpu.h"

#include <stdlib.h>
#include <vector>

namespace cuda_on_cpu
{

enum { MOST = 1024 }; /* threads of a block */

/* A lane that exists and has not ended is ready, at the barrier, or has come to a
 * meeting. */
struct Warp {
    Fiber *lanes;
    unsigned n;
    unsigned ready, fresh; /* fresh: ready, and has not begun */
    unsigned at_barrier, met;
    unsigned done; /* have ended, or do not exist */
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
extern unsigned n_threads, left, waiting; /* threads; not ended; at the barrier */
extern std::vector<Copy> copies[MOST];
extern int groups[MOST];
extern bool copies_used, products_used; /* by the block */

void enter_fibers();  /* from the host; returns when all have ended */
void leave();         /* the running fiber waits, others continue */
Fiber *next_fiber();  /* the one that continues; NULL: all have ended */
void ended(Fiber *f); /* a fiber is done: whoever waited for it may go on */

/* Whether it is fresh, which it is no more. */
inline bool begins(Fiber *f)
{
    unsigned bit = 1u << f->lane;
    if (!(f->warp->fresh & bit)) return false;
    f->warp->fresh &= ~bit;
    return true;
}

/* ---- wgmma.cpp ---- */

void products_forget(); /* of the block before */
bool products_pending(const Fiber *f);
void products_written(size_t thread); /* shared memory, by a cp.async that has arrived */

} // namespace cuda_on_cpu
