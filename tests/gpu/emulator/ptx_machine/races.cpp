/* tests/gpu/emulator/ptx_machine/races.cpp: accesses to a byte of shared memory
 * by two threads, one of which writes, that nothing orders: no barrier of the
 * block, and between lanes of a warp no bar.warp.sync; and accesses of two blocks
 * of a launch to a byte of global memory. Atomics do not count.
 * SPDX-License-Identifier: MIT */
#include "machine.h"

#include <set>
#include <unordered_map>

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

/* ---- global memory ---- */

namespace
{

enum { PAGE = 4096 };
struct SeenGlobal {          /* of a byte: from 1; 0: none */
    uint32_t writer, reader; /* blocks */
    uint32_t write, read;    /* where in the code */
};
std::unordered_map<uint64_t, std::vector<SeenGlobal>> pages; /* of a launch */

void tell_global(const Warp &w, uint32_t before, const char *kinds)
{
    char text[600];
    const Instruction &i = w.kernel->code[w.now], &j = w.kernel->code[before];
    snprintf(text, sizeof text,
             "%s: race (%s) of blocks on global memory: line %d: %s; line %d: %s",
             w.kernel->name.c_str(), kinds, j.line, j.text.c_str(), i.line, i.text.c_str());
    if (found.insert(text).second) fprintf(stderr, "ptx machine: %s\n", text);
}

} // namespace

void forget_global() { pages.clear(); }

void note_global(Warp &w, uint64_t address, unsigned bytes, int writes)
{
    const Block &b = *w.block;
    if (b.seen_global == 0) return;
    std::vector<SeenGlobal> &page = pages[address / PAGE];
    if (page.empty()) page.resize(PAGE);
    for (SeenGlobal *s = &page[address % PAGE], *end = s + bytes; s < end; s++) {
        bool written = s->writer && s->writer != b.seen_global;
        if (!writes) {
            if (written) tell_global(w, s->write, "read after write");
            s->reader = b.seen_global, s->read = w.now;
            continue;
        }
        if (written && (writes == 2 || s->write != w.now))
            tell_global(w, s->write, "write after write");
        if (s->reader && s->reader != b.seen_global) tell_global(w, s->read, "write after read");
        s->writer = b.seen_global, s->write = w.now;
    }
}

} // namespace ptx
