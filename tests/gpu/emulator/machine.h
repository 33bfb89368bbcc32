/* tests/gpu/emulator/machine.h: threads of a block as fibers, and where they
 * meet.
 *
 * Blocks run one after another. A block's threads are fibers that change only
 * where CUDA threads meet: __syncthreads, warp operations, exit. The order of
 * blocks, warps and lanes is forward, backward or random
 * (CUDA_ON_CPU_ORDER=forward|backward|SEED), so that code that depends on it is
 * seen. Threads that wait without end are named.
 *
 * Invariants: one kernel runs at a time (the pretending driver holds its lock);
 * self is the running fiber, NULL on the host's stack; fiber i is lane i % 32
 * of warp i / 32, whose masks of lanes say what it does.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "orders.h"
#include "types.h"

#include <stdio.h>
#include <type_traits>

#define UNROLLED _Pragma("GCC unroll 8") /* the indices are constants then */

namespace cuda_on_cpu
{

enum Kind : uint8_t {
    SHFL_IDX,
    SHFL_UP,
    SHFL_DOWN,
    SHFL_XOR,
    BALLOT,
    MATCH,
    ADD,
    MIN,
    MAX,
    SYNCWARP,
    CALL
};

/* A lane's operands of an operation of its warp; the last lane to come computes
 * `out` for all. */
struct Meeting {
    Kind kind;
    unsigned mask;
    int width, arg;
    uint64_t in, out;
    void *p[4]; /* CALL: what f wants of each lane */
    void (*f)(void **const *p, unsigned mask);
    const char *name;
    int line;
};

struct alignas(64) Fiber {
    uint3 thread;
    /* private: */
    unsigned lane;
    struct Warp *warp;
    void *sp, *stack, *asan;
    Meeting m;
};

struct Block {
    uint3 index;
    void *dynamic;
    size_t dynamic_bytes;
};

struct Launch {
    dim3 grid, block;
    size_t dynamic_bytes;
    void (*thread)(const void *args);
    const void *args;
    const char *name;
};

extern Fiber *self;
extern Block block; /* that runs */
extern const Launch *launch;

/* A lane's part in an operation of its warp; returns its result. Only here is
 * self->m written, in code that no sanitizer instruments. */
uint64_t meet(Kind kind, unsigned mask, uint64_t in, int arg, int width, const char *name,
              int line);
void call(void (*f)(void **const *p, unsigned mask), const char *name, int line, const void *p0,
          const void *p1 = nullptr, const void *p2 = nullptr,
          const void *p3 = nullptr);      /* of the whole warp, once */
void barrier(int line);                   /* of the block */
[[noreturn]] void fail(const char *what); /* names the threads that wait */
/* the same for all threads of a block */
void *shared(const void *tag, size_t bytes, size_t aligned);
void run(const Launch &l); /* the whole grid */
/* c += a b, k after k: [16,step], [16,k] and [k,step], of which `columns`, a
 * multiple of 8, are
 * used. */
void add_products(float *c, const float *a, const float *b, int k, int columns, int step);
extern uint64_t threads_run;

/* Kernels register when the library is loaded: by name, with the size of their
 * one argument. */
struct Entry {
    const char *name;
    size_t bytes;
    void (*thread)(const void *args);
    Entry *next;
    Entry(const char *name_, size_t bytes_, void (*thread_)(const void *));
};
Entry *find(const char *name);

template <class T>
__attribute__((no_sanitize("address", "undefined"))) T
warp_op(Kind kind, unsigned mask, T v, int arg, int width, const char *name, int line)
{
    static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    u = meet(kind, mask, u, arg, width, name, line);
    memcpy(&v, &u, sizeof v);
    return v;
}

} // namespace cuda_on_cpu
