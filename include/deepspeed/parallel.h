/* deepspeed/parallel.h: DistributedDataParallel; DataParallel; parameters that
 * are partitioned over ranks (ZeRO stage 3).
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
    ds_comm *comm;             /* borrowed; NULL: ds_world() */
    int64_t bucket_bytes;      /* of gradients that are reduced together; 0: 25 MiB */
    bool no_broadcast_buffers; /* broadcast_buffers=False */
} ds_ddp_opts;

/* torch.nn.parallel.DistributedDataParallel. Every rank starts with rank 0's
 * parameters and buffers. ds_ddp_backward leaves the mean of all ranks'
 * gradients in ds_grad(p) of each parameter that requires one (zeros if no rank
 * used it); buckets of gradients are reduced while backward continues. An
 * expert that ranks share (ds_nn_moe) is averaged over the ranks that have it.
 * Any ds_optim does the rest. A collective: all ranks call it. Borrows the
 * module, which must live longer. On one rank it changes nothing. Refuses
 * (NULL) a process group that was not made yet (ds_init_distributed). */
DS_API ds_ddp *ds_ddp_new(ds_module *module);
DS_API ds_ddp *ds_ddp_new_with(ds_module *module, ds_ddp_opts opts);
DS_API void ds_ddp_free(ds_ddp *d); /* NULL passes */

/* The module, borrowed; its state dict has no prefix "module.". */
DS_API ds_module *ds_ddp_module(const ds_ddp *d);

/* Calls the module with the inputs, as ds_call does; in training, first gives
 * all ranks the buffers of rank 0. All ranks call it. */
#define ds_ddp_call(d, ...) \
    ds_ddp_call_n(d, (ds_tensor *[]){__VA_ARGS__}, \
                  (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_ddp_call_n(ds_ddp *d, ds_tensor **in, int n);

/* ds_backward and the reduction of the gradients; all ranks call it, and it
 * waits for them. loss has one element. With NCCL, a step that calls it can be
 * a step graph (ds_step_graph_new), which is freed before d: zero_grad comes
 * before this call, and buffers on the host, as counts of batches, are then not
 * broadcast. */
DS_API ds_status ds_ddp_backward(ds_ddp *d, ds_tensor *loss);

/* no_sync(): while it is off, gradients add up on each rank alone; the next
 * backward with it on reduces the sums. Returns what it was. */
DS_API bool ds_ddp_set_sync(ds_ddp *d, bool on);

/* ---- DataParallel -------------------------------------------------------------------------------------- */

typedef struct ds_data_parallel ds_data_parallel;

typedef struct ds_data_parallel_opts {
    /* [replicas] numbers of GPUs, the module's first; NULL: the module's GPU
     * and those after it. Without GPUs: NULL */
    const int *device_ids;
} ds_data_parallel_opts;

/* torch.nn.DataParallel: one process with `replicas` of the module, 1 or more,
 * each on its own thread; the first is the module itself, on the caller's. A
 * call divides its inputs along dimension 0, the samples, as torch.chunk does
 * (a small batch runs on fewer replicas), runs the chunks at the same time, and
 * joins the outputs; outputs without dimensions become a vector. The backward
 * of the result runs all chunks and adds their gradients to the module's in the
 * order of replicas, so that each run gives the same bits. Any ds_optim does
 * the rest.
 *
 * A module on a GPU has each replica on a GPU of its own, and its inputs are on
 * the module's GPU. Each call copies inputs, parameters and buffers to the
 * other GPUs, and the outputs back; the backward copies their gradients. A step
 * with replicas cannot be a step graph.
 *
 * make(arg) returns a module of the same structure. It is called once for each
 * further replica, on its thread, one after the other; new tensors are then on
 * the replica's device. Its initial values do not matter: its parameters become
 * the module's memory (on a GPU, copies of it), and its buffers start each call
 * as copies of the module's. Changes of buffers by the first replica stay,
 * those by others are lost. Training mode and requires_grad are the module's at
 * each
 * call.
 *
 * ds_threads() is divided among the replicas; each has at least one thread. The
 * first replica draws random numbers from the caller's generator; each other
 * one from its own, which the caller's seeds at each call.
 *
 * Borrows the module, which must live longer. Refuses (NULL) a module whose
 * tensors are on several devices, more replicas than GPUs, and a replica with
 * another structure. */
DS_API ds_data_parallel *ds_data_parallel_new(ds_module *module, int replicas,
                                              ds_module *(*make)(void *arg), void *arg);
DS_API ds_data_parallel *ds_data_parallel_new_with(ds_module *module, int replicas,
                                                   ds_module *(*make)(void *arg), void *arg,
                                                   ds_data_parallel_opts opts);
DS_API void ds_data_parallel_free(ds_data_parallel *dp); /* NULL passes */

/* The module, borrowed. */
DS_API ds_module *ds_data_parallel_module(const ds_data_parallel *dp);

/* Calls the replicas. All inputs have the same first dimension. */
#define ds_data_parallel_call(dp, ...) \
    ds_data_parallel_call_n(dp, (ds_tensor *[]){__VA_ARGS__}, \
                            (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_data_parallel_call_n(ds_data_parallel *dp, ds_tensor **in, int n);

/* ---- ZeRO stage 3 -------------------------------------------------------------------------------------- */

typedef struct ds_zero_init_opts {
    ds_comm *comm;  /* borrowed; NULL: ds_world() */
    ds_dtype dtype; /* of the parameters: float32, float16, bfloat16 */
    /* config_dict_or_path: the configuration that ds_initialize will get. Its
     * bf16 or fp16 gives the dtype, its offload_param the place of the shards.
     * With another stage than 3 nothing is partitioned. NULL: none */
    const char *config;
    /* Where shards are kept until an engine takes them: "cpu": in the host's
     * memory, "nvme": in files of offload_param.nvme_path; NULL: as config
     * says, else on the parameters' device */
    const char *remote_device;
} ds_zero_init_opts;

/* deepspeed.zero.Init: a parameter that this thread makes between the two calls
 * is partitioned over the ranks, with rank 0's values, as soon as the next one
 * is made: no rank ever has the whole model. All ranks make the same
 * parameters. An engine of stage 3 takes the shards as they are; other stages
 * gather them. A second ds_zero_init before ds_zero_init_end fails
 * (DS_ESTATE). With one rank it does something only for a configuration with a
 * 16-bit dtype, for files, and for a GPU's parameters that the host keeps: each
 * parameter is converted, and moved there, before the next one is made, so that
 * a model may be larger than memory. */
DS_API ds_status ds_zero_init(void);
DS_API ds_status ds_zero_init_with(ds_zero_init_opts opts);
DS_API ds_status ds_zero_init_end(void);

/* deepspeed.zero.GatheredParameters(params, modifier_rank): between the two
 * calls params[0..n-1] are whole. Changes that modifier_rank has made to them
 * are kept, on all ranks; -1: there are none. Collectives: all ranks call
 * both, in the same order, with the same parameters; they wait for each other.
 * Calls may nest. Parameters that are not partitioned stay as they are. */
DS_API ds_status ds_gathered(ds_tensor **params, int n);
DS_API ds_status ds_gathered_end(ds_tensor **params, int n, int modifier_rank);

#ifdef __cplusplus
}
#endif
#endif
