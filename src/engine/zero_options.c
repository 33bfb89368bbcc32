/* engine/zero_options.c: the options of ZeRO, of its files on disk and of
 * precision, from the configuration. ds_estimate_memory needs them too.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

/* Without overlap_events a batch of requests ends before the next one
 * begins. */
static dsi_aio_opts zero_aio_opts(const dsi_config *c)
{
    return (dsi_aio_opts){.block_size = c->aio.block_size,
                          .queue_depth = (int)c->aio.queue_depth,
                          .threads = (int)c->aio.intra_op_parallelism,
                          .single_submit = c->aio.single_submit,
                          .in_batches = !c->aio.overlap_events};
}

/* Optimizer state on disk; nvme_path is NULL if it is in memory. */
static dsi_offload_opts zero_offload_opts(const dsi_config *c)
{
    /* Elements of a block. Larger ones do not make a disk faster; smaller ones
     * than a page of a file take a page. */
    const int64_t most = 1 << 20, least = DSI_AIO_ALIGN / 4, given = c->zero.sub_group_size;
    bool files = c->zero.offload_optimizer.device == DSI_OFFLOAD_NVME;
    return (dsi_offload_opts){
        .nvme_path = files ? c->zero.offload_optimizer.nvme_path : NULL,
        .buffer_count = (int)c->zero.offload_optimizer.buffer_count,
        .buffer_size = given > most             ? most
                       : given && given < least ? least
                                                : given,
        .pin_memory = c->zero.offload_optimizer.pin_memory,
        .pipeline_read = c->zero.offload_optimizer.pipeline_read,
        .pipeline_write = c->zero.offload_optimizer.pipeline_write,
        .fast_init = c->zero.offload_optimizer.fast_init,
        .in_memory = 1 - c->zero.offload_optimizer.ratio,
        .aio = zero_aio_opts(c),
    };
}

/* Parameters on disk; nvme_path is NULL if they are in memory. */
static dsi_param_swap_opts zero_param_swap_opts(const dsi_config *c)
{
    bool files = c->zero.offload_param.device == DSI_OFFLOAD_NVME;
    return (dsi_param_swap_opts){
        .nvme_path = files ? c->zero.offload_param.nvme_path : NULL,
        .buffer_count = (int)c->zero.offload_param.buffer_count,
        .buffer_size = c->zero.offload_param.buffer_size,
        .max_in_cpu = c->zero.offload_param.max_in_cpu,
        .pin_memory = c->zero.offload_param.pin_memory,
        .aio = zero_aio_opts(c),
    };
}

/* Both pipeline keys ask for an overlap, and nothing has to be known of all
 * gradients before the first update. */
static bool zero_overlap_update(const dsi_config *c)
{
    return c->zero.offload_optimizer.pipeline_read && c->zero.offload_optimizer.pipeline_write &&
           c->gradient_clipping == 0 && !dsi_engine_checks_overflow(c);
}

dsi_zero_opts dsi_engine_zero_opts(const dsi_config *c)
{
    ds_dtype dtype = c->fp16.enabled ? DS_F16 : c->bf16.enabled ? DS_BF16 : DS_F32;
    int accum = c->data_types.grad_accum_dtype, comm = c->communication_data_type;
    return (dsi_zero_opts){
        .stage = (int)c->zero.stage,
        .dtype = dtype,
        .accum_dtype = accum == DSI_CONFIG_NO_DTYPE ? dtype : (ds_dtype)accum,
        .comm_dtype = comm == DSI_CONFIG_NO_DTYPE ? dtype : (ds_dtype)comm,
        .prescale = c->prescale_gradients,
        .predivide = c->gradient_predivide_factor,
        .overlap_comm = c->zero.overlap_comm,
        .reduce_scatter = c->zero.reduce_scatter,
        .reduce_bucket = c->zero.reduce_bucket_size,
        .allgather_bucket = c->zero.allgather_bucket_size,
        .prefetch_bucket = c->zero.prefetch_bucket_size,
        .persistence_threshold = c->zero.param_persistence_threshold,
        .model_persistence_threshold = c->zero.model_persistence_threshold,
        .max_live = c->zero.max_live_parameters,
        .max_reuse_distance = c->zero.max_reuse_distance,
        .deterministic = c->zero.deterministic,
        .offload_optimizer = c->zero.offload_optimizer.device != DSI_OFFLOAD_NONE,
        .files = zero_offload_opts(c),
        .param_files = zero_param_swap_opts(c),
        .overlap_update = zero_overlap_update(c),
    };
}
