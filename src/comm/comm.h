/* comm/comm.h: what a communicator must be able to do, and collectives that do
 * not wait.
 *
 * A collective is a request: begun by all ranks in the same order, finished
 * when it is waited for, in any order. A backend is a const struct of
 * functions (dsi_comm_type) that take requests, so that checks, counting, time
 * limits and debugging are written once, in comm.c.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"
#include "device/device.h"

#include <deepspeed/comm.h>

typedef enum dsi_collective {
    DSI_ALL_REDUCE,
    DSI_REDUCE,
    DSI_REDUCE_SCATTER,
    DSI_ALL_GATHER,
    DSI_GATHER,
    DSI_SCATTER,
    DSI_ALL_TO_ALL,
    DSI_ALL_TO_ALL_ROWS,
    DSI_BROADCAST,
    DSI_BARRIER, /* no operands; dtype is float32 */
    DSI_SEND,    /* of two ranks only, who call one each */
    DSI_RECV,
    DSI_COLLECTIVES
} dsi_collective;

/* One rank's part in a collective. `in` and `out` have n elements, except the
 * operand that holds a piece for each rank, which has size times n. */
typedef struct dsi_request {
    ds_comm *comm;
    dsi_collective what;
    ds_dtype dtype;
    const void *in;
    void *out; /* may be `in`, or the place in it, or around it, of this rank's own piece */
    int64_t n; /* elements; ALL_TO_ALL_ROWS: 0 */
    ds_redop op;
    int root;            /* SEND, RECV: the other rank */
    double *squares;     /* see dsi_all_reduce_start; or NULL */
    const char *purpose; /* for messages; or NULL */
    int64_t *counts;     /* ALL_TO_ALL_ROWS: [size] elements to each rank, then [size] from each */
    bool blocking;       /* the caller waits right away */
    bool internal;       /* ours: neither counted nor compared */
    bool shutdown;       /* the barrier at the end, which no other barrier is taken for */
    dsi_device *device;  /* that has in and out; NULL: the host */

    uint64_t number;     /* of this communicator, from 0; SEND, RECV: from this rank to that */
    double begun, ended; /* dsi_now() */
    void *own;           /* the backend's */
    bool nccl;           /* carried by NCCL, not by the backend */
    bool alone;          /* of one rank's tensor on a GPU: a copy there, which the host queues */
    struct dsi_staged *staged; /* in and out are this copy's; NULL: the caller's */
    ds_message *message;       /* what the caller of isend or irecv has of it; or NULL */
    bool waited;               /* with status, by start already: see ds_comm_log_start */
    ds_status status;
    struct dsi_request *before, *after; /* begun and not yet waited for, oldest first */
} dsi_request;

/* Operands lie in host memory, row-major: those of another device are copied
 * there (comm/staged.c). */
typedef struct dsi_comm_type {
    const char *name;
    void (*close)(ds_comm *c);                         /* frees c->own */
    ds_comm *(*split)(ds_comm *c, int color, int key); /* color -1: NULL, no failure */
    ds_status (*start)(dsi_request *r);                /* on failure nothing was begun */
    ds_status (*wait)(dsi_request *r);                 /* leaves nothing behind in r->own */
    bool compares;                              /* notices by itself when ranks do not agree */
    void (*abort)(ds_comm *c, const char *why); /* ends the job on all other ranks */
    /* A failure of the job on another rank; or, if `ended`, a rank that has
     * left without r, which NCCL carries (NULL: the first). Does not wait. NULL:
     * other ranks do not outlive a failure. */
    ds_status (*failed)(ds_comm *c, bool ended, const dsi_request *r);
} dsi_comm_type;

struct ds_comm {
    const dsi_comm_type *type;
    int rank, size, local_rank, local_size;
    void *own;
    uint64_t begun;               /* requests so far */
    dsi_request *oldest, *newest; /* not yet waited for */
    bool patient;                 /* waits leave the processor to the rank's other thread at once */
    const char *disk;             /* the folder that a rank may be writing or reading while others
                                   * wait for it: DS_SAVE_TIMEOUT; NULL: none, DS_TIMEOUT */
    bool ordered;                 /* sums are taken in the order of ranks, by any backend */
    bool debug;                   /* DS_DEBUG=comm: harmless mistakes give a warning */
    bool compares;                /* and requests are compared first */
    uint64_t calls;               /* compared so far */
    uint64_t *messages;           /* [2 size]: begun to each rank, and from each; or NULL */
    uint64_t queued;              /* collectives begun that NCCL carries */
    double sent;                  /* bytes; see dsi_comm_volume */
    struct dsi_staged *staged;    /* blocks of host memory that no request uses */
    struct dsi_nccl *nccl;        /* NULL: no collective of tensors on a GPU yet */
    struct dsi_comm_log *log;     /* NULL: off */
};

/* Where NULL says that there is no company, not that ds_world() is meant. */
static inline int dsi_comm_rank(const ds_comm *c) { return c ? c->rank : 0; }
static inline int dsi_comm_size(const ds_comm *c) { return c ? c->size : 1; }

/* ---- collectives that do not wait: NULL with the message if they cannot begin ------------------------ */

/* The views are contiguous, lie on `device` (NULL: the host), and stay alive, and inputs unchanged, until
 * dsi_request_wait. squares, if not NULL: grow by the squares of the result's
 * elements (floats), of each on one rank only, before wait returns; summed over
 * the ranks they are those of all. All ranks want them, or none. all_reduce is
 * in place. */
dsi_request *dsi_all_reduce_start(ds_comm *c, dsi_device *device, dsi_view x, ds_redop op,
                                  double *squares);
dsi_request *dsi_reduce_scatter_start(ds_comm *c, dsi_device *device, dsi_view in, dsi_view out,
                                      ds_redop op, double *squares);
/* purpose: static, for messages, or NULL. */
dsi_request *dsi_all_gather_start(ds_comm *c, dsi_device *device, dsi_view in, dsi_view out,
                                  const char *purpose);
dsi_request *dsi_all_to_all_start(ds_comm *c, dsi_device *device, dsi_view in, dsi_view out);
dsi_request *dsi_broadcast_start(ds_comm *c, dsi_device *device, dsi_view x, int root);

/* Frees r in any case. NULL passes on the failure that there is. */
ds_status dsi_request_wait(dsi_request *r);

/* One rank failed: the job ends on all ranks, with this message first. A
 * thread's other ranks fail in their next collective; an MPI process does not
 * return. A rank that is alone returns. */
void dsi_comm_abort(ds_comm *c, const char *why);
/* A failure of one rank is one of all of c; NULL: there are no others. */
static inline ds_status dsi_comm_all_or_none(ds_comm *c, ds_status status)
{
    if (status != DS_OK && c) dsi_comm_abort(c, ds_error());
    return status;
}

/* Whether collectives of tensors on d are queued on a stream (nccl.h): the host
 * waits for none. Alike on all ranks. */
bool dsi_comm_is_queued(const ds_comm *c, const dsi_device *d);

/* ---- operands of other devices: comm/staged.c ---------------------------------------------------------- */

/* Puts copies in host memory in the place of r's operands, after the work that
 * is queued on r->device. On failure r is as it was. */
ds_status dsi_staged_open(dsi_request *r);
/* Copies what r has received to r->device, if `arrived`; in and out are again
 * the caller's. */
ds_status dsi_staged_close(dsi_request *r, bool arrived);
void dsi_staged_free(ds_comm *c);

/* ---- counting: comm/log.c ----------------------------------------------------------------------------- */

/* Bytes that this rank has sent by the ring algorithms' formulas, in p ranks:
 * all_reduce 2 (p-1)/p of x, all_gather (p-1)/p of out, reduce_scatter and
 * all_to_all (p-1)/p of in, broadcast and reduce (p-1)/p of x, send all of
 * it. */
double dsi_comm_volume(const ds_comm *c);

bool dsi_launched_by_mpi(void); /* mpirun, srun, also of one rank */
void dsi_comm_log_free(struct dsi_comm_log *log);
void dsi_comm_log_add(dsi_request *r);      /* r has ended */
bool dsi_comm_agrees(const dsi_request *r); /* comm/debug.c; false with the message */

/* comm/names.c: DeepSpeed's name of each; whether an operation is called op, by
 * that name or another one. */
extern const char *const dsi_comm_names[DSI_COLLECTIVES];
bool dsi_comm_is_called(dsi_collective what, const char *op);
/* Whether comms_logger can be asked for the operation of that name; if not, why
 * is added to. */
bool dsi_comm_log_knows(const char *op, dsi_text *why);

/* ---- for backends ------------------------------------------------------------------------------------- */

extern const dsi_comm_type dsi_comm_self, dsi_comm_thread, dsi_comm_mpi;

/* The world of this process under the launcher of "openmpi" or "mpich"; NULL
 * with the message. */
ds_comm *dsi_mpi_world(const char *library);

ds_comm *dsi_comm_new(const dsi_comm_type *type, int rank, int size, void *own);
void dsi_set_world(ds_comm *c); /* this thread's, taken; NULL: none */

/* A backend calls this, on any thread, when the data of r has arrived, before
 * wait returns. */
void dsi_request_done(dsi_request *r);

/* Begins, or does, the collective that `r` describes; the front's checks are
 * the caller's. */
dsi_request *dsi_request_start(const dsi_request *r);

/* Begins the collective and waits for it. Members of a dsi_request for `count`
 * numbers in the host's memory: from and to may be the same. */
ds_status dsi_request_run(const dsi_request *r);
#define DSI_NUMBERS(c, collective, type, from, to, count) \
    .comm = (c), .what = (collective), .dtype = (type), .in = (from), .out = (to), .n = (count), \
    .blocking = true

static inline bool dsi_dtype_is_float(ds_dtype dtype) { return dtype <= DS_BF16; }
const char *dsi_collective_name(dsi_collective what); /* "all_reduce" */
static inline bool dsi_collective_reduces(dsi_collective what)
{
    return what == DSI_ALL_REDUCE || what == DSI_REDUCE || what == DSI_REDUCE_SCATTER;
}
static inline bool dsi_is_message(const dsi_request *r)
{
    return r->what == DSI_SEND || r->what == DSI_RECV;
}
/* "all_reduce(sum) of 4096 float32" in a thread-local buffer: for messages */
const char *dsi_request_text(const dsi_request *r);
/* Seconds; with a warning if the variable has none. */
double dsi_comm_timeout(void);                /* DS_TIMEOUT */
double dsi_comm_save_timeout(void);           /* DS_SAVE_TIMEOUT */
double dsi_comm_time_limit(const ds_comm *c); /* of a wait for c's ranks: one of the two */
ds_status dsi_comm_check_timeout(void);       /* an error of these variables */
/* Why the job ends if ranks ("s 1, 3"; "": not known) have not come to c->disk in time. */
dsi_text dsi_comm_disk_text(const ds_comm *c, const char *ranks, double waited);
