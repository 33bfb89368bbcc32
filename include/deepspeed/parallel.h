/* deepspeed/parallel.h: DataParallel; DistributedDataParallel; parameters that are divided among ranks (ZeRO stage 3).
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_PARALLEL_H
#define DEEPSPEED_PARALLEL_H

#include <deepspeed/comm.h>
#include <deepspeed/nn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- DistributedDataParallel --------------------------------------------------------------------------- */

typedef struct ds_ddp ds_ddp;

typedef struct ds_ddp_opts {
    ds_comm *comm;        /* NULL: ds_world() */
    int64_t bucket_bytes; /* gradients that travel together; 0: 25 MiB */
    bool no_broadcast_buffers;
} ds_ddp_opts;

/* torch.nn.parallel.DistributedDataParallel: every rank begins with the parameters and buffers of rank 0;
 * ds_ddp_backward leaves the mean of all ranks' gradients in ds_grad(p) of every parameter that requires one
 * (zeros, if no rank used it), sent in buckets while backward goes on. A plain ds_optim does the rest.
 * Of experts that ranks share (ds_nn_moe) the same goes for the ranks that have them.
 * Borrows the module. On one rank it does nothing at all. */
DS_API ds_ddp *ds_ddp_new(ds_module *module);
DS_API ds_ddp *ds_ddp_new_with(ds_module *module, ds_ddp_opts opts);
DS_API void ds_ddp_free(ds_ddp *d);
/* What was wrapped, borrowed; its state dict is that of one process. */
DS_API ds_module *ds_ddp_module(const ds_ddp *d);

/* ds_call of the module; in training with the buffers of rank 0. */
#define ds_ddp_call(d, ...) \
    ds_ddp_call_n(d, (ds_tensor *[]){__VA_ARGS__}, \
                  (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_ddp_call_n(ds_ddp *d, ds_tensor **in, int n);
DS_API ds_status ds_ddp_backward(ds_ddp *d, ds_tensor *loss);

/* no_sync(): while off, gradients only add up on each rank; the next backward with it on sends the sums.
 * Returns what it was. */
DS_API bool ds_ddp_set_sync(ds_ddp *d, bool on);

/* ---- DataParallel -------------------------------------------------------------------------------------- */

typedef struct ds_data_parallel ds_data_parallel;

/* torch.nn.DataParallel: one process with several replicas of the module, each on a thread of its own; the
 * first one is the module itself, on the caller's. A call cuts its inputs along dimension 0, the samples, as
 * torch.chunk does (a batch of few samples runs on fewer replicas), runs the parts at the same time, and
 * joins the outputs; values without dimensions become a vector. The backward of what is made of the result
 * runs all parts, and adds their gradients, in the order of replicas, to those of the module: the same bits at
 * every run. A plain ds_optim does the rest.
 *
 * make(arg) gives a module of the same structure; it is called once for each further replica, on its thread,
 * one after the other. What values these have is of no matter: their parameters become the module's own
 * memory, and their buffers begin each call as the module's. What the module, as the first replica, writes to
 * its buffers stays; what others write is lost. Modes and requires_grad are followed at each call.
 *
 * ds_threads() are divided among the replicas, each of which has at least one. Random numbers: the first
 * replica draws from the caller's generator; each other one from its own, seeded at each call from where the
 * caller's stands. Borrows the module; is freed before it. */
DS_API ds_data_parallel *ds_data_parallel_new(ds_module *module, int replicas,
                                              ds_module *(*make)(void *arg), void *arg);
DS_API void ds_data_parallel_free(ds_data_parallel *dp);
DS_API ds_module *ds_data_parallel_module(const ds_data_parallel *dp); /* borrowed */

#define ds_data_parallel_call(dp, ...) \
    ds_data_parallel_call_n(dp, (ds_tensor *[]){__VA_ARGS__}, \
                            (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_data_parallel_call_n(ds_data_parallel *dp, ds_tensor **in, int n);

/* ---- ZeRO stage 3 -------------------------------------------------------------------------------------- */

typedef struct ds_zero_init_opts {
    ds_comm *comm;  /* NULL: ds_world() */
    ds_dtype dtype; /* of the parameters: float32, float16, bfloat16 */
} ds_zero_init_opts;

/* deepspeed.zero.Init: parameters made by this thread between the two calls are divided among the ranks, with
 * rank 0's values, as soon as the next one is made: no rank ever has the whole model. All ranks make the
 * same. An engine takes them over: stage 3 as they are, the other stages make them whole again. */
DS_API ds_status ds_zero_init(void);
DS_API ds_status ds_zero_init_with(ds_zero_init_opts opts);
DS_API ds_status ds_zero_init_end(void);

/* deepspeed.zero.GatheredParameters(params, modifier_rank): between the two calls params[0..n-1] have their
 * values, whole. All ranks call both, in the same order with the same parameters; calls may nest. What
 * modifier_rank has written is kept, on all ranks; -1: nothing was written. Parameters that are not
 * divided pass. */
DS_API ds_status ds_gathered(ds_tensor **params, int n);
DS_API ds_status ds_gathered_end(ds_tensor **params, int n, int modifier_rank);

#ifdef __cplusplus
}
#endif
#endif
