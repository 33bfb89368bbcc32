/* comm/nccl.h: collectives of tensors on GPUs by NCCL, beside a communicator
 * whose backend carries what is on the host.
 *
 * Note [NCCL]: the first collective of tensors on GPUs asks all ranks of its
 * communicator, by the backend, whether they have NCCL and a GPU each. If so,
 * they make a communicator of NCCL's, and from then on such collectives are
 * queued on a stream of its own: start makes that stream wait for the device's
 * stream, wait makes the device's stream wait for the collective. The host
 * waits for nothing. If not, they go through pinned host memory (staged.c).
 *
 * Note [One stream]: all communicators of a device queue on one stream, so that
 * collectives run in the order in which they were started, which is the same on
 * all ranks, also as branches of a graph. On streams of their own one rank
 * could run a collective of one communicator first and another rank that of
 * another, and NCCL's kernels wait for each other: its documentation wants an
 * order.
 *
 * While the host waits for the device (dsi_device_watch), it looks for NCCL's
 * asynchronous errors, for other ranks' failures and at the time limit. Each of
 * them aborts NCCL's communicator, which ends its kernels, and then the job.
 *
 * Messages of two ranks (ds_send) are kept until one of them is waited for, and
 * then queued as one group: ranks that send to each other do not wait for each
 * other. A message cannot ask all ranks: messages begun before all have made
 * their first collective of tensors on GPUs stay with the backend, on both
 * ranks
 * (`first_message`).
 *
 * Without NCCL, a backend that takes a GPU's memory (MPI, if it is CUDA-aware
 * on all ranks) gets it as it is, for what is only moved; what is added up is
 * copied to pinned host memory.
 *
 * A step that a device captures (device/graph.h) has its collectives too:
 * NCCL's stream joins the capture. All ranks of a collective capture it, and
 * replay what they have captured together, or none of them does (Note
 * [Graph votes] there). NCCL ends no communicator while a graph has its
 * collectives: such graphs are cancelled before.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "comm.h"
#include "device/graph.h"
#include "nccl_api.h"

/* ---- nccl_open.c -------------------------------------------------------------------------------------- */

typedef struct dsi_nccl_library {
    dsi_nccl_functions f;
    int version;   /* 22105 is 2.21.5; 0: there is none */
    bool off;      /* DS_NCCL=off */
    bool required; /* DS_NCCL names it, so that it must be there */
    char why[512]; /* there is none, or it is off */
} dsi_nccl_library;

/* Opened once a process, as DS_NCCL says. */
DSI_SHARED const dsi_nccl_library *dsi_nccl_open(void);

/* Collective, on the host: whether all ranks of c can use NCCL, each on a GPU
 * of its own. If not: *on is false, *why says it in one line, alike on all
 * ranks, and *direct whether the backends of all take a GPU's memory. Fails on
 * all ranks where DS_NCCL names a library that one of them cannot open. */
ds_status dsi_nccl_agree(ds_comm *c, const dsi_device *device, bool *on, bool *direct,
                         dsi_text *why);

/* One line on rank 0 of the world about what carries what; why_not: not NCCL.
 * Groups use the same. */
void dsi_nccl_say(const ds_comm *c, bool on, bool direct, const char *why_not);

/* Note [Graph votes] of device/graph.h: c's ranks, with one user, c. */
dsi_graph_voters *dsi_nccl_voters_new(ds_comm *c);

const char *dsi_nccl_result_name(ncclResult_t result); /* "ncclSystemError" */

/* ---- nccl_calls.c ------------------------------------------------------------------------------------- */

/* The options of a communicator: its calls may return before they are done. */
ncclConfig_t dsi_nccl_config(void);

/* Queues r on the stream, which the thread's context must have. */
ncclResult_t dsi_nccl_call(const dsi_nccl_functions *f, ncclComm_t comm, ncclStream stream,
                           const dsi_request *r);

/* ---- nccl_composed.c: reductions of another collective and kernels of the device ---------------------- */

typedef struct dsi_nccl_composed {
    dsi_request request; /* the collective that NCCL does in place of the caller's */
    void *memory;        /* of the device, owned: operands of `request`; NULL: none */
    size_t bytes;        /* of memory */
    size_t index_at;     /* byte of memory where the kernel writes which rank has the maximum */
} dsi_nccl_composed;

/* Whether r is such a reduction. */
bool dsi_nccl_is_composed(const dsi_request *r);
/* Each begin is followed by an end, which frees the memory, also if it failed.
 * arrived: NCCL has done c->request; then `end` writes the result to r->out. */
ds_status dsi_nccl_composed_begin(const dsi_request *r, dsi_nccl_composed *c);
ds_status dsi_nccl_composed_end(const dsi_request *r, dsi_nccl_composed *c, bool arrived);

/* ---- nccl.c ------------------------------------------------------------------------------------------- */

/* Whether NCCL will carry r, whose operands are on r->device. The first call on
 * a communicator is a collective. A failure: all ranks have failed. */
ds_status dsi_nccl_carries(const dsi_request *r, bool *out);

/* Whether the backend gets r's operands as they are, on r->device: alike on all
 * ranks, but of a message, which is the same either way. */
bool dsi_comm_is_direct(const dsi_request *r);
/* Whether it does for others: one thread alone then calls the backend, that of
 * the GPU. */
bool dsi_comm_takes_gpus(const ds_comm *c);

/* As the entries of dsi_comm_type. The number of a collective is that among
 * those that NCCL carries. */
ds_status dsi_nccl_start(dsi_request *r);
ds_status dsi_nccl_wait(dsi_request *r);
/* Queues the messages that were begun: before the host waits for one of its
 * own, whose sender may wait for them. n NULL: there are none. */
ds_status dsi_nccl_queue(struct dsi_nccl *n);
void dsi_nccl_free(ds_comm *c); /* before the backend closes; waits for what was begun */
