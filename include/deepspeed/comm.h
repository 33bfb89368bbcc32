/* deepspeed/comm.h: ranks, groups of ranks, and what they do together.
 *
 * A rank is a thread: the only one of its process under mpirun, one of several
 * in ds_run_ranks. Every rank of a communicator calls the same collectives in
 * the same order with the same dtypes and sizes; DS_DEBUG=comm compares them
 * and says who called what. A collective that waits longer than DS_TIMEOUT
 * seconds (1800) ends with a message that names it.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_COMM_H
#define DEEPSPEED_COMM_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_comm ds_comm;

/* ---- worlds and groups ---------------------------------------------------------------------------- */

/* Makes this thread's world as the launcher's environment says (mpirun, srun,
 * deepspeed), or of one rank without a launcher. Does nothing if there is one
 * already. */
DS_API ds_status ds_init_distributed(void);

/* This thread's world, borrowed; of one rank, if neither ds_init_distributed
 * nor ds_run_ranks made one. */
DS_API ds_comm *ds_world(void);
DS_API bool ds_is_distributed(void); /* whether one of them did */

/* Waits for the other ranks and leaves; communicators split from the world must
 * have been freed. A process of several that ends without it ends the job. */
DS_API void ds_destroy_process_group(void);

/* c NULL is ds_world(). "local": among the ranks of this machine. */
DS_API int ds_comm_rank(const ds_comm *c);
DS_API int ds_comm_size(const ds_comm *c);
DS_API int ds_comm_local_rank(const ds_comm *c);
DS_API int ds_comm_local_size(const ds_comm *c);
DS_API const char *ds_comm_backend(const ds_comm *c); /* "self", "thread", "mpi" */

/* A collective: the ranks that give the same color become a communicator, in
 * the order of key, then of rank. color < 0: none, NULL without a failure. */
DS_API ds_comm *ds_comm_split(ds_comm *c, int color, int key);
DS_API void ds_comm_free(ds_comm *c);

/* Runs body(arg) as n ranks, each a thread with its own ds_world() of n, on the
 * caller's current device until it sets another one. If one
 * returns a failure or ends while others wait for it, their collectives fail
 * with DS_ECOMM and its message; the caller gets the status and the message of
 * the first that failed. */
DS_API ds_status ds_run_ranks(int n, ds_status (*body)(void *arg), void *arg);

/* ---- collectives: c NULL is ds_world() --------------------------------------------------------------- */

/* x, out and in are on the CPU, or on one GPU of this rank: these go by NCCL if
 * all ranks have it, else through pinned host memory (docs/communication.md).
 * By NCCL, a call may return before the GPU has done it: what reads the tensor
 * waits. */

/* Sums of float16 and bfloat16 are taken in float32 and rounded once. Between
 * threads they are taken in the order of ranks, so that every rank and every
 * run gets the same bits; under MPI in MPI's order. SUM and AVG refuse bool,
 * AVG refuses integers. The sum and the mean have the numbers of DS_SUM and
 * DS_MEAN (ds_reduction), which compilers let pass for them. */
typedef enum ds_redop { DS_REDUCE_AVG = 0, DS_REDUCE_SUM, DS_REDUCE_MAX, DS_REDUCE_MIN } ds_redop;

/* x = sum over ranks of x */
DS_API ds_status ds_all_reduce(ds_comm *c, ds_tensor *x, ds_redop op);
/* on root: x = sum over ranks of x; elsewhere x stays */
DS_API ds_status ds_reduce_to(ds_comm *c, ds_tensor *x, ds_redop op, int root);
/* out = piece `rank` of the sum over ranks of in, which has size() pieces of
 * out's elements */
DS_API ds_status ds_reduce_scatter(ds_comm *c, ds_tensor *out, ds_tensor *in, ds_redop op);
/* out, of size() pieces: piece r = in of rank r */
DS_API ds_status ds_all_gather(ds_comm *c, ds_tensor *out, ds_tensor *in);
/* the same on root; elsewhere out is not looked at and may be NULL */
DS_API ds_status ds_gather_to(ds_comm *c, ds_tensor *out, ds_tensor *in, int root);
/* out = piece `rank` of root's in; elsewhere in may be NULL */
DS_API ds_status ds_scatter_from(ds_comm *c, ds_tensor *out, ds_tensor *in, int root);
/* piece r of out = piece `rank` of in of rank r; as many elements in out as in
 * in */
DS_API ds_status ds_all_to_all(ds_comm *c, ds_tensor *out, ds_tensor *in);
/* The same with pieces of unequal size: in_rows[r] rows (of dimension 0) go to
 * rank r, out_rows[r] come from it; what rank a sends to b is what b expects
 * from a. */
DS_API ds_status ds_all_to_all_rows(ds_comm *c, ds_tensor *out, const int64_t *out_rows,
                                    ds_tensor *in, const int64_t *in_rows);
/* x = x of root */
DS_API ds_status ds_broadcast(ds_comm *c, ds_tensor *x, int root);
/* returns when all ranks have called it */
DS_API ds_status ds_barrier(ds_comm *c);

/* A failure of one rank becomes a failure of all, so that none waits for it and
 * one rank prints it (ds_error_is_collective). A barrier, for work that can
 * fail on one rank alone, as files do. mine: this rank's status, with its
 * message set if it is a failure. Returns DS_OK if all ranks gave DS_OK; else,
 * on all ranks, the status of the first rank that failed, with its message. */
DS_API ds_status ds_comm_sync_status(ds_comm *c, ds_status mine);

/* ---- messages of two ranks --------------------------------------------------------------------------- */

/* Rank `to` calls recv, `from` calls send, with tensors of the same dtype and
 * number of elements; those between two ranks are taken in their order. send
 * may wait until it is received: two ranks that send to each other begin with
 * ds_isend or ds_irecv. Refuses a rank that is this one. */
DS_API ds_status ds_send(ds_comm *c, ds_tensor *x, int to);
DS_API ds_status ds_recv(ds_comm *c, ds_tensor *x, int from);

/* Begin to send or receive x, and return without waiting. Until
 * ds_message_wait, the sender must not change x, and the receiver must not read
 * it. NULL with the message if it cannot begin. ds_message_wait frees the
 * ds_message, also if it fails. One that was not waited for is waited for and
 * freed when its communicator ends (ds_comm_free, ds_destroy_process_group);
 * DS_DEBUG=comm names it. */
typedef struct ds_message ds_message;
DS_API ds_message *ds_isend(ds_comm *c, ds_tensor *x, int to);
DS_API ds_message *ds_irecv(ds_comm *c, ds_tensor *x, int from);
DS_API ds_status ds_message_wait(ds_message *m);

/* Notes the time of each collective of c from now on, as DeepSpeed's
 * comms_logger: of those whose names are in ops (DeepSpeed's: "all_reduce",
 * "all_gather_into_tensor", "send", ...; NULL: all). verbose: prints a line for
 * each, on rank 0. Each collective is then waited for at once, so nothing
 * overlaps. Refuses unknown names. */
DS_API ds_status ds_comm_log_start(ds_comm *c, bool verbose, const char *const *ops, int n_ops);
/* Prints DeepSpeed's table of them on rank 0. show_straggler (then all ranks
 * must call it): also how long ranks waited for the slowest. */
DS_API ds_status ds_comm_log_summary(ds_comm *c, bool show_straggler);

#ifdef __cplusplus
}
#endif
#endif
