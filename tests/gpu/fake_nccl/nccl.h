/* tests/gpu/fake_nccl/nccl.h: libnccl.so.2 without GPUs: what src/comm calls of
 * NCCL, for threads and processes on the emulator's GPUs, strict where the real
 * one is or hangs. Ranks meet in shared memory.
 *
 *     FAKE_NCCL_VERSION=21805          what ncclGetVersion says
 *     FAKE_NCCL_FAIL=ncclSend=2        what fails, and with which ncclResult_t
 *     FAKE_NCCL_DELAY=1000             microseconds that a collective takes longer
 *     FAKE_NCCL_ORDER=ring             sums begin with the rank after the one that has the result
 *     FAKE_NCCL_HANG=1:3               rank 1 never comes to its operation number 3, from 1
 *     FAKE_NCCL_DIE=1:3                there the process of rank 1 is killed
 *     FAKE_NCCL_ERROR=1:3:6            there rank 1 gets an asynchronous error, 6
 *     FAKE_NCCL_LOST=1                 rank 1 never comes to the making of a communicator
 *
 * Collectives are called with ncclConfig_t.blocking 0: each returns
 * ncclInProgress and is queued on its stream only when ncclCommGetAsyncError is
 * called. Ranks whose collectives differ get ncclInvalidUsage, also if one is
 * launched by a graph and another is not, or by one of another capture; and so
 * does a rank whose communicators use several streams. A communicator that ends
 * before its graphs ends the process.
 *
 * Invariants: a rank's operations have numbers from 1, alike on all ranks. The
 * input of rank q to collective k is in its half k % 2 of the shared memory from
 * arrived[q] >= k until left[p] >= k for all p. A message from p to q is in their
 * mail box from sent[p][q] > received[p][q] on.
 * SPDX-License-Identifier: MIT */
#pragma once

extern "C" {
#include "comm/nccl_api.h"
#include "gpu/emulator/fake.h"
}

#include <atomic>

#define NCCL_SHOWN extern "C" __attribute__((__visibility__("default")))

enum { NCCL_MOST = 16 };                                                      /* ranks */
static const size_t NCCL_HALF = (size_t)1 << 26, NCCL_MAIL = (size_t)1 << 24; /* bytes */

/* A rank's call, for the comparison. */
struct NcclCalled {
    int kind, type, op, root;
    long recorded; /* its number among those that graphs have kept, from 1; 0: not of a graph */
    size_t n;
};

struct NcclShared {
    std::atomic<int> joined, gone;
    std::atomic<int> gpu[NCCL_MOST]; /* 1 + its number */
    std::atomic<long> arrived[NCCL_MOST], left[NCCL_MOST];
    std::atomic<long> sent[NCCL_MOST][NCCL_MOST], received[NCCL_MOST][NCCL_MOST];
    NcclCalled called[NCCL_MOST][2];
};

enum NcclKind {
    NCCL_ALL_REDUCE,
    NCCL_REDUCE,
    NCCL_REDUCE_SCATTER,
    NCCL_ALL_GATHER,
    NCCL_BROADCAST,
    NCCL_GROUP
};

/* sums.cpp: out[i] = the ranks' in[r][i], op; ranks from `first` on, around. */
void nccl_sum(ncclDataType_t type, ncclRedOp_t op, int ranks, int first, const char *const *in,
              size_t n, char *out);
size_t nccl_bytes(ncclDataType_t type);
