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
    bool differ;   /* those that met, in mask, kind or line; false if none has */
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
void ended(Fiber *f); /* a fiber is done: whoever waited for it may go on */

/* Each of n things once; a shuffled order is that of a permutation by a random odd step and start. */
struct Sequence {
    unsigned n, at, step;
    Sequence(unsigned n_ = 0);
    unsigned next()
    {
        unsigned now = at;
        at += step;
        if (at >= n) at -= n;
        return now;
    }
};

/* Whose turn it is: lanes of a warp as long as one can go on, then the next
 * warp's. Restarts a round of all warps until all threads have ended. */
struct Turn {
    unsigned warp, lanes_left; /* how many of the round have had theirs; of the pass have not */
    Sequence warps, lanes;
    Warp *w;
    bool moved, again; /* something in the round; in the pass */
};
extern Turn turn;
Fiber *next_in_pass(); /* of another pass of the warp, or of another warp */

/* The one that continues; NULL: all have ended. */
inline Fiber *next_fiber()
{
    Warp *w = turn.w;
    for (; turn.lanes_left && w->ready;) {
        unsigned lane = turn.lanes.next();
        turn.lanes_left--;
        if (!(w->ready >> lane & 1)) continue;
        turn.again = true;
        return &w->lanes[lane];
    }
    return next_in_pass();
}

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
