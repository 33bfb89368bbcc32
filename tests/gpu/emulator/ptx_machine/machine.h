/* tests/gpu/emulator/ptx_machine/machine.h: a machine that executes the PTX text
 * which the library hands to the driver, in place of the kernels' sources
 * compiled for the CPU (FAKE_CUDA_MACHINE=ptx). Source: PTX ISA manual.
 *
 * A warp is 32 lanes, whose registers are rows of 64 bits a lane. The lanes with
 * the smallest place in the code go on, as far as the place of other lanes; so
 * lanes that part meet again. Lanes wait at an instruction that is of several
 * lanes. Warps change at barriers, and in a seeded order between any two
 * instructions, of several blocks.
 *
 * Invariants: a register begins as NaN, shared memory too. An access outside of
 * an allocation, one that is not aligned, and what PTX leaves undefined ends the
 * program with one message: kernel, block, warp, lane, line.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../orders.h"

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx
{

enum : unsigned { LANES = 32, ALL = 0xffffffffu };
enum : uint64_t { GARBAGE = 0x7ff8dead7fc0deadu, PARAM_AT = 256, LOCAL_AT = 4096 };

struct alignas(64) Row {
    uint64_t lane[LANES];
};

/* Rows that every warp has. */
enum Special {
    TID_X,
    TID_Y,
    TID_Z,
    NTID_X,
    NTID_Y,
    NTID_Z,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    NCTAID_X,
    NCTAID_Y,
    NCTAID_Z,
    LANEID,
    CARRY,   /* of add.cc and the like */
    NOWHERE, /* `_` */
    SPECIALS
};

enum Space : uint8_t { GLOBAL, SHARED, LOCAL, PARAM };
enum Control : uint8_t { STRAIGHT, BRANCH, EXIT, MEETING, BARRIER };

struct Warp;
struct Instruction;
/* Executes it for the lanes of the mask. */
typedef void (*Do)(Warp &w, const Instruction &i, unsigned mask);

enum { ALL_LANES = -1 - INT32_MAX };
struct Instruction {
    Do run = nullptr;
    Control control = STRAIGHT;
    Space space = GLOBAL;
    uint8_t bytes = 0, count = 1; /* of an element; elements */
    bool is_signed = false, guard_not = false;
    bool sums = false;         /* it names a row that a wgmma adds to */
    int guard = -1;            /* row of its predicate */
    int members = ALL_LANES;   /* MEETING: row, or ~constant, of the lanes that come */
    int target = 0;            /* BRANCH */
    long long number = 0;      /* offset of an address, or what else it says */
    unsigned first = 0, n = 0; /* its rows in Kernel::pool: registers, or ~constant */
    int line = 0;
    std::string text;
};

struct Variable { /* of shared memory */
    unsigned at, bytes;
};

struct Kernel {
    std::string name;
    std::vector<Instruction> code;
    std::vector<int> pool;
    std::vector<Row> constants;
    std::vector<char> is_sum; /* by row: whether a wgmma adds to it */
    std::deque<std::vector<char>> globals;
    std::vector<Variable> shared;
    unsigned shared_end = 0, dynamic_at = 0, local_bytes = 0, param_bytes = 0;
    bool has_products = false;
    int rows = SPECIALS;
};

/* Null, with a message on stderr: it is not understood. */
std::unique_ptr<Kernel> parse(const char *text, const char *entry);

/* ---- decode.cpp ---- */

struct Statement; /* parse.h */
/* False: the opcode is not known. */
bool decode_numbers(const Statement &s, Instruction *i); /* arithmetic */
bool decode_lanes(const Statement &s, Instruction *i);   /* of several lanes */
bool decode_memory(const Statement &s, Instruction *i);

/* ---- what runs ---- */

struct Copy { /* a cp.async that has not been waited for */
    unsigned to;
    char bytes[16];
    const char *from; /* NULL: it has arrived */
    int size, group;
};

struct Product { /* a wgmma that has not been waited for */
    const Instruction *what;
    uint64_t a, b;
    bool adds; /* to the sums that are there */
    int group;
    bool done;
};

struct Block;
struct Warp {
    Block *block;
    const Kernel *kernel;
    unsigned number, live, parked, at_barrier; /* masks of lanes */
    bool waits;                                /* at the barrier of the block */
    uint32_t at[LANES];
    uint32_t now; /* of the instruction that runs */
    std::vector<Row> rows;
    std::vector<char> local; /* local_bytes of each lane */
    std::vector<Copy> copies[LANES];
    int groups[LANES], products_committed;
    uint32_t fences[LANES]; /* fence.proxy.async so far */
    std::vector<Product> products;
    bool products_fenced;
    uint32_t synced[LANES]; /* when the lane was last at a bar.warp.sync */

    uint64_t *row(int i) { return rows[(size_t)i].lane; }
    const uint64_t *in(const Instruction &i, unsigned k)
    {
        int r = kernel->pool[i.first + k];
        return r < 0 ? kernel->constants[(size_t)~r].lane : rows[(size_t)r].lane;
    }
    uint64_t *out(const Instruction &i, unsigned k)
    {
        return rows[(size_t)kernel->pool[i.first + k]].lane;
    }
    bool go(unsigned most); /* some instructions; whether there was one */
};

struct Access { /* to a byte of shared memory, since the barrier */
    uint32_t epoch, when, line;
    uint16_t thread;
};
struct Seen {                        /* of a byte */
    Access write, read, read_beside; /* read_beside: by another warp than read */
};

struct Block {
    unsigned index[3];
    std::vector<char> shared; /* from address 0 */
    std::vector<char> is_variable;
    std::vector<Seen> seen; /* empty: races are not looked for */
    std::vector<uint64_t>
        unfenced;         /* of a kernel with wgmma: who wrote a byte, before which fence */
    uint32_t seen_global; /* the block's number, from 1; 0: races are not looked for */
    uint32_t epoch, when; /* barriers; bar.warp.sync; so far, from 1 */
    std::vector<std::unique_ptr<Warp>> warps;
    unsigned left, waiting; /* warps that have not ended; at the barrier */
};

extern const char *arguments; /* of the launch */
bool arrives_late();          /* what is asynchronous: as late as it may, or at once */
[[noreturn]] void fail(const Warp &w, int lane, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- reach.cpp ---- */

/* Where bytes of a space are, for a lane; fails. */
char *reach(Warp &w, const Instruction &i, unsigned lane, uint64_t address, unsigned bytes);
char *reach_shared(Warp &w, int lane, uint64_t address, unsigned bytes, unsigned aligned);
char *reach_global(Warp &w, int lane, uint64_t address, unsigned bytes, unsigned aligned);
void forget_places(); /* of global memory that were reached */
void wrote_shared(Warp &w, unsigned lane, unsigned address, unsigned bytes);

/* ---- races.cpp ---- */

/* writes: 0 no, 1 what is there, 2 another value */
void note(Warp &w, unsigned lane, unsigned address, unsigned bytes, int writes);
void note_global(Warp &w, uint64_t address, unsigned bytes, int writes);
void forget_global(); /* of the launch before */
long races();         /* found so far */

/* ---- products.cpp: wgmma ---- */

Do product_of(const Statement &s, Instruction *i);
/* The instruction touches no register of a product that is under way. */
void check_sums(Warp &w, const Instruction &i);

template <class T> static inline T get(uint64_t v)
{
    T x;
    memcpy(&x, &v, sizeof x);
    return x;
}
template <class T> static inline uint64_t put(T x)
{
    uint64_t v = 0;
    memcpy(&v, &x, sizeof x);
    return v;
}
/* d[l] = f(l) for the lanes of the mask */
template <class F> static inline void each(unsigned mask, F f)
{
    if (mask == ALL)
        for (unsigned l = 0; l < LANES; l++) f(l);
    else
        for (; mask; mask &= mask - 1) f((unsigned)__builtin_ctz(mask));
}

} // namespace ptx
