/* tests/gpu/emulator/ptx_machine/races.cpp: accesses to a byte of shared memory
 * by two threads, one of which writes, that nothing orders: no barrier of the
 * block, and between lanes of a warp no bar.warp.sync.
 * SPDX-License-Identifier: MIT */
#include "machine.h"

#include <set>

#include <stdio.h>

namespace ptx
{

static std::set<std::string> found; /* pairs of lines of a kernel */

long races() { return (long)found.size(); }

static void tell(const Warp &w, const Access &before, unsigned thread, const char *kinds)
{
    char text[600];
    const Instruction &i = w.kernel->code[w.now], &j = w.kernel->code[before.line];
    snprintf(text, sizeof text, "%s: race (%s) on shared memory: line %d: %s; line %d: %s",
             w.kernel->name.c_str(), kinds, j.line, j.text.c_str(), i.line, i.text.c_str());
    if (found.insert(text).second)
        fprintf(stderr, "ptx machine: %s (threads %u and %u)\n", text, before.thread, thread);
}

/* Whether nothing orders the access before this one. */
static bool collides(const Warp &w, const Access &a, unsigned thread)
{
    if (!a.epoch || a.epoch != w.block->epoch || a.thread == thread) return false;
    if (a.thread / LANES != w.number) return true;
    uint32_t theirs = w.synced[a.thread % LANES], mine = w.synced[thread % LANES];
    return a.when >= (theirs < mine ? theirs : mine);
}

/* writes: 0 no, 1 what is there, 2 another value */
void note(Warp &w, unsigned lane, unsigned address, unsigned bytes, int writes)
{
    Block &b = *w.block;
    if (b.seen.empty()) return;
    unsigned thread = w.number * LANES + lane;
    Access now = {b.epoch, b.when, w.now, (uint16_t)thread};
    for (Seen *s = &b.seen[address], *end = s + bytes; s < end; s++) {
        if (!writes) {
            if (collides(w, s->write, thread)) tell(w, s->write, thread, "read after write");
            if (s->read.epoch != b.epoch || s->read.thread / LANES == w.number)
                s->read = now;
            else
                s->read_beside = now;
            continue;
        }
        bool together = writes == 1 && s->write.line == w.now;
        if (!together && collides(w, s->write, thread))
            tell(w, s->write, thread, "write after write");
        if (collides(w, s->read, thread)) tell(w, s->read, thread, "write after read");
        if (collides(w, s->read_beside, thread))
            tell(w, s->read_beside, thread, "write after read");
        s->write = now;
    }
}

} // namespace ptx
