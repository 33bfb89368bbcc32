/* device/cpu/simd/slots.h: working memory for each thread of a job. A call of a
 * job's body takes a free slot, which selects its memory, and releases it at its
 * end: there are more calls than threads, but no more at a time.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

/* Bits of the slots that are in use; starts as 0. ds_threads() is at most 64. */
typedef _Atomic uint64_t Slots;

static inline int slot_take(Slots *o)
{
    uint64_t taken = atomic_load_explicit(o, memory_order_relaxed), bit;
    do bit = ~taken & (taken + 1); /* the lowest zero */
    while (!atomic_compare_exchange_weak_explicit(o, &taken, taken | bit, memory_order_acquire,
                                                  memory_order_relaxed));
    return __builtin_ctzll(bit);
}

static inline void slot_release(Slots *o, int slot)
{
    atomic_fetch_and_explicit(o, ~((uint64_t)1 << slot), memory_order_release);
}
