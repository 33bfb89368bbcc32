/* config/table.h: the keys of ds_config.json, in DeepSpeed's order, a row each.
 * The parser, its messages, docs/config.md and the resolved configuration come
 * from this table. Groups of keys without a counterpart here follow in
 * table_inactive.h.
 *
 * Names, types, defaults and ranges are DeepSpeed 0.19.8's
 * (deepspeed/runtime/config.py, zero/config.py, precision_config.py, ...).
 *
 *   SUPPORTED(path, type, default, field, help)   sets a field of dsi_config
 *   EXTENSION(...)                                likewise; DeepSpeed lacks it
 *   ALIAS(path, of), DEPRECATED(path, of)         other names of a key; the
 *                                                 second with a warning
 *   GROUP(path, null, help)           an object; "auto" in it is the default
 *   GROUP_NO_AUTO(path, null, help)   an object; "auto" in it is an error
 *
 * Keys that never act have no type and no range:
 *
 *   IGNORED(path, default, reason)       any value; another one than the default
 *                                        is named in a warning
 *   UNSUPPORTED(path, default, reason)   the default, or null; anything else is
 *                                        an error, as training would differ
 *   UNSUPPORTED_ABOVE(path, default, n, reason)   numbers up to n too ask for
 *                                        nothing
 *   IGNORED_GROUP(path, null, reason)    an object with any keys, named in a
 *                                        warning if its "enabled" is true or
 *                                        if it has keys but no "enabled"
 *   REMOVED(path, reason)                an error, as in DeepSpeed 0.19.8
 *
 * Their defaults stay in the table because files that spell out all defaults
 * are common and deserve no warning, because DeepSpeed prints them in its
 * configuration lines, and because tests/reference/config compares them.
 *
 * "null" of a group: NULL_NO refuses it, NULL_EMPTY takes it as {}, and
 * NULL_FIRST makes it the default.
 * SPDX-License-Identifier: MIT */

/* ---- batch ---- */
SUPPORTED("train_batch_size", INT_FROM(1), "null", train_batch_size,
          "samples of an optimizer step, over all ranks and micro steps")
SUPPORTED("train_micro_batch_size_per_gpu", INT_FROM(1), "null", train_micro_batch_size_per_gpu,
          "samples of a forward, on one rank")
SUPPORTED("gradient_accumulation_steps", INT_FROM(1), "null", gradient_accumulation_steps,
          "forwards of an optimizer step")
SUPPORTED("managed_gradient_accumulation", BOOL, "true", managed_gradient_accumulation,
          "false: every step updates with the backwards since the last one")
SUPPORTED("dataloader_drop_last", BOOL, "false", dataloader_drop_last, "drop the short last batch")

/* ---- what is printed ---- */
SUPPORTED("steps_per_print", INT_FROM(0), "null", steps_per_print,
          "optimizer steps between two lines of progress; null or 0: no lines")
SUPPORTED("wall_clock_breakdown", BOOL, "false", wall_clock_breakdown,
          "time of forward, backward, step")
SUPPORTED("memory_breakdown", BOOL, "false", memory_breakdown,
          "memory around forward, backward, step")
IGNORED("dump_state", "false", "attributes of DeepSpeed's Python engine")
IGNORED("log_level", "null", "DS_LOG=debug, info, warning or error chooses what is printed")

/* ---- gradients ---- */
SUPPORTED("gradient_clipping", NUMBER_FROM(0), "1.0", gradient_clipping,
          "largest L2 norm of all gradients; 0: off")
SUPPORTED("prescale_gradients", BOOL, "false", prescale_gradients,
          "divide by the number of ranks before the sum instead of after it")
SUPPORTED("gradient_predivide_factor", NUMBER_ABOVE(0), "1.0", gradient_predivide_factor,
          "divide by f before the sum and by ranks / f after it")
SUPPORTED("gradient_allreduce_op", ANY_CASE(reductions), "\"mean\"", gradient_sum,
          "mean or sum over the ranks; sum not with stage 3")
SUPPORTED("communication_data_type", ANY_CASE(comm_dtypes), "null", communication_data_type,
          "type in which gradients travel; null: the model's")
IGNORED("seq_parallel_communication_data_type", "\"fp32\"", "sequence parallel only")
ALIAS("seq_parallel_comm_data_type", "seq_parallel_communication_data_type")
IGNORED("disable_allgather", "false", "DeepSpeed reads it and does not use it")
EXTENSION("on_nan", WORD(on_nan), "\"error\"", on_nan,
          "what a loss that is not a number does in float32 and bfloat16: error or continue")

/* ---- optimizer and schedule ---- */
GROUP_NO_AUTO("optimizer", NULL_NO, "the optimizer, if the program makes none")
SUPPORTED("optimizer.type", TEXT, "null", optimizer.type,
          "its name: docs/optimizers.md has the list")
SUPPORTED("optimizer.params", OBJECT, "null", optimizer.params, "its options")
IGNORED("optimizer.legacy_fusion", "false", "a CUDA kernel of DeepSpeed's")
GROUP_NO_AUTO("scheduler", NULL_NO, "the learning rate schedule, if the program makes none")
SUPPORTED("scheduler.type", TEXT, "null", scheduler.type,
          "its name: docs/schedules.md has the list")
SUPPORTED("scheduler.params", OBJECT, "null", scheduler.params, "its options")
SUPPORTED("zero_allow_untested_optimizer", BOOL, "false", zero_allow_untested_optimizer,
          "let optimizers that DeepSpeed did not test run with ZeRO")
IGNORED("zero_force_ds_cpu_optimizer", "true", "offloaded state is updated by the CPU in any case")

/* ---- 16 bits ---- */
GROUP("fp16", NULL_NO, "half precision with float32 master weights")
SUPPORTED("fp16.enabled", BOOL, "false", fp16.enabled, "weights and activations in float16")
SUPPORTED("fp16.auto_cast", BOOL, "false", fp16.auto_cast,
          "cast floating inputs of forward to float16")
SUPPORTED("fp16.loss_scale", NUMBER_FROM(0), "0.0", fp16.loss_scale, "0: dynamic; else the scale")
SUPPORTED("fp16.initial_scale_power", INT_IN(0, 126), "16", fp16.initial_scale_power,
          "first scale is 2 to the power of this")
SUPPORTED("fp16.loss_scale_window", INT, "1000", fp16.loss_scale_window,
          "good steps before the scale doubles; at least 1 if the scale is dynamic")
SUPPORTED("fp16.hysteresis", INT, "2", fp16.hysteresis, "overflows before the scale halves")
SUPPORTED("fp16.consecutive_hysteresis", BOOL, "false", fp16.consecutive_hysteresis,
          "a good step refills the hysteresis")
SUPPORTED("fp16.min_loss_scale", INT, "1", fp16.min_loss_scale,
          "the least scale; at least 1 if the scale is dynamic")
UNSUPPORTED("fp16.fp16_master_weights_and_grads", "false", "master weights are float32")
GROUP("bf16", NULL_EMPTY, "bfloat16 with float32 master weights")
SUPPORTED("bf16.enabled", BOOL, "false", bf16.enabled, "weights and activations in bfloat16")
IGNORED("bf16.immediate_grad_update", "false", "when gradients are added up, not how")
SUPPORTED("bf16.check_grad_overflow", BOOL, "true", bf16.check_grad_overflow,
          "skip a step whose gradients are infinite or not numbers")
UNSUPPORTED("bf16.bf16_master_weights_and_grads", "false", "master weights are float32")
UNSUPPORTED("bf16.bf16_optimizer_states", "false", "moments are float32")
DEPRECATED("bfloat16", "bf16")
GROUP("torch_autocast", NULL_NO, "types chosen op by op (ds_set_autocast)")
SUPPORTED("torch_autocast.enabled", BOOL, "false", torch_autocast.enabled,
          "forwards under autocast: products in 16 bits, weights and gradients in float32")
SUPPORTED("torch_autocast.dtype", WORD(dtypes), "null", torch_autocast.dtype,
          "bfloat16; float16 beside fp16, which scales the loss; null: bfloat16")
IGNORED("torch_autocast.lower_precision_safe_modules", "null",
        "gradients travel in communication_data_type")
GROUP_NO_AUTO("data_types", NULL_NO, "types of what the engine keeps")
SUPPORTED("data_types.grad_accum_dtype", WORD(dtypes), "null", data_types.grad_accum_dtype,
          "type in which gradients add up: float32 or the model's; null: the model's")
UNSUPPORTED("data_types.param_dtype", "null", "fp16 or bf16 decide the type of parameters")
UNSUPPORTED("data_types.buffer_dtype", "null", "buffers have the type of the parameters")
IGNORED("data_types.keep_in_fp32_modules", "\"auto\"", "names of transformers' modules")
REMOVED("amp", "NVIDIA's apex; use fp16 or bf16")

/* ---- ZeRO ---- */
GROUP("zero_optimization", NULL_NO, "state that is partitioned among ranks")
SUPPORTED("zero_optimization.stage", INT_IN(0, 3), "0", zero.stage,
          "0: nothing; 1: optimizer states; 2: gradients too; 3: parameters too")
IGNORED("zero_optimization.contiguous_gradients", "true",
        "gradients of a bucket lie side by side in any case")
SUPPORTED("zero_optimization.reduce_scatter", BOOL, "true", zero.reduce_scatter,
          "a rank gets its part of a sum only")
SUPPORTED("zero_optimization.reduce_bucket_size", INT_FROM(1), "500000000", zero.reduce_bucket_size,
          "elements that are reduced together")
IGNORED("zero_optimization.use_multi_rank_bucket_allreduce", "true",
        "how one bucket with parts of several ranks travels")
IGNORED("zero_optimization.allgather_partitions", "true",
        "parts are gathered by all_gather in any case")
SUPPORTED("zero_optimization.allgather_bucket_size", INT_FROM(0), "500000000",
          zero.allgather_bucket_size, "elements that are gathered together")
SUPPORTED("zero_optimization.overlap_comm", BOOL, "null", zero.overlap_comm,
          "reduce while backward runs; null: true in stage 3, else false")
SUPPORTED("zero_optimization.compute_grad_norm", BOOL, "true", zero.compute_grad_norm,
          "the norm of all gradients, though nothing needs it; false only in stages 1 and 2")
IGNORED("zero_optimization.load_from_fp32_weights", "true",
        "checkpoints are restored from their float32 masters")
IGNORED("zero_optimization.elastic_checkpoint", "false", "gone from DeepSpeed's stage 3")
GROUP("zero_optimization.offload_param", NULL_FIRST,
      "stage 3: where parameters wait; null: nowhere")
SUPPORTED("zero_optimization.offload_param.device", WORD(devices), "\"none\"",
          zero.offload_param.device,
          "cpu: the host's memory, where a model on the CPU has them anyway; nvme: a file a rank")
SUPPORTED("zero_optimization.offload_param.nvme_path", TEXT, "null", zero.offload_param.nvme_path,
          "nvme: a folder that is there")
SUPPORTED("zero_optimization.offload_param.buffer_count", COUNT_FROM(0), "5",
          zero.offload_param.buffer_count, "nvme: slices in memory at a time")
SUPPORTED("zero_optimization.offload_param.buffer_size", INT_FROM(0), "100000000",
          zero.offload_param.buffer_size, "nvme: elements of a slice, at most")
SUPPORTED("zero_optimization.offload_param.max_in_cpu", INT_FROM(0), "1000000000",
          zero.offload_param.max_in_cpu, "nvme: elements of a rank that stay in memory")
SUPPORTED("zero_optimization.offload_param.pin_memory", BOOL, "true", zero.offload_param.pin_memory,
          "nvme: the kernel keeps the buffers in its tables")
GROUP("zero_optimization.offload_optimizer", NULL_FIRST,
      "where masters and moments lie, and the step runs; null: with the parameters")
SUPPORTED("zero_optimization.offload_optimizer.device", WORD(devices), "\"none\"",
          zero.offload_optimizer.device, "none, cpu (host memory), nvme (a file a rank)")
SUPPORTED("zero_optimization.offload_optimizer.nvme_path", TEXT, "null",
          zero.offload_optimizer.nvme_path, "nvme: a folder that is there")
SUPPORTED("zero_optimization.offload_optimizer.buffer_count", COUNT_FROM(0), "4",
          zero.offload_optimizer.buffer_count,
          "nvme: blocks of masters and moments in memory during a step")
SUPPORTED("zero_optimization.offload_optimizer.pin_memory", BOOL, "true",
          zero.offload_optimizer.pin_memory, "nvme: the kernel keeps those blocks in its tables")
SUPPORTED("zero_optimization.offload_optimizer.pipeline_read", BOOL, "false",
          zero.offload_optimizer.pipeline_read, "nvme: read the next blocks while one is updated")
SUPPORTED("zero_optimization.offload_optimizer.pipeline_write", BOOL, "false",
          zero.offload_optimizer.pipeline_write,
          "nvme: go on while a block is being written; with `pipeline_read`, parameters on nvme, "
          "and neither clipping nor an overflow check, updates begin during backward")
SUPPORTED("zero_optimization.offload_optimizer.fast_init", BOOL, "false",
          zero.offload_optimizer.fast_init, "nvme: do not write the zeros of moments at first")
SUPPORTED("zero_optimization.offload_optimizer.ratio", NUMBER_IN(0, 1), "1.0",
          zero.offload_optimizer.ratio,
          "nvme: share that is in the file, below 1 in stage 3 only; cpu: it is the same memory")
IGNORED("zero_optimization.offload_optimizer.super_offload", "false", "Grace Hopper machines")
IGNORED("zero_optimization.offload_optimizer.cpuadam_cores_perc", "0.8", "only with super_offload")
UNSUPPORTED("zero_optimization.zenflow", "null", "delayed updates are another algorithm")
EXTENSION("zero_optimization.deterministic", BOOL, "false", zero.deterministic,
          "the same bits on 1, 2, 4, 8 .. ranks, for the same train_batch_size and micro batch")
SUPPORTED("zero_optimization.sub_group_size", INT_FROM(0), "1000000000", zero.sub_group_size,
          "offload_optimizer to nvme: elements of a block, at most; and at most 2^20")
DEPRECATED("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer")
DEPRECATED("zero_optimization.cpu_offload_param", "zero_optimization.offload_param")
IGNORED("zero_optimization.cpu_offload_use_pin_memory", "null",
        "old; DeepSpeed warns and does not use it")
SUPPORTED("zero_optimization.prefetch_bucket_size", INT_FROM(0), "50000000",
          zero.prefetch_bucket_size, "stage 3: elements gathered ahead of their use")
ALIAS("zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size")
SUPPORTED("zero_optimization.param_persistence_threshold", INT_FROM(0), "100000",
          zero.param_persistence_threshold, "stage 3: parameters up to this size stay whole")
ALIAS("zero_optimization.stage3_param_persistence_threshold",
      "zero_optimization.param_persistence_threshold")
SUPPORTED("zero_optimization.model_persistence_threshold", INT_FROM(0), "9223372036854775807",
          zero.model_persistence_threshold, "stage 3: up to this sum of elements")
ALIAS("zero_optimization.stage3_model_persistence_threshold",
      "zero_optimization.model_persistence_threshold")
SUPPORTED("zero_optimization.max_live_parameters", INT_FROM(0), "1000000000",
          zero.max_live_parameters, "stage 3: elements gathered at a time")
ALIAS("zero_optimization.stage3_max_live_parameters", "zero_optimization.max_live_parameters")
SUPPORTED("zero_optimization.max_reuse_distance", INT_FROM(0), "1000000000",
          zero.max_reuse_distance,
          "stage 3: keep a parameter that is used again within this number of elements")
ALIAS("zero_optimization.stage3_max_reuse_distance", "zero_optimization.max_reuse_distance")
SUPPORTED("zero_optimization.gather_16bit_weights_on_model_save", BOOL, "false",
          zero.gather_16bit_weights_on_model_save,
          "stage 3: ds_engine_save_16bit_model puts the model together; else it refuses")
ALIAS("zero_optimization.stage3_gather_16bit_weights_on_model_save",
      "zero_optimization.gather_16bit_weights_on_model_save")
DEPRECATED("zero_optimization.stage3_gather_fp16_weights_on_model_save",
           "zero_optimization.gather_16bit_weights_on_model_save")
IGNORED("zero_optimization.module_granularity_threshold", "0",
        "stage 3: hooks of small modules cost nothing here")
ALIAS("zero_optimization.stage3_module_granularity_threshold",
      "zero_optimization.module_granularity_threshold")
IGNORED("zero_optimization.use_all_reduce_for_fetch_params", "false",
        "stage 3: another way to gather")
ALIAS("zero_optimization.stage3_use_all_reduce_for_fetch_params",
      "zero_optimization.use_all_reduce_for_fetch_params")
IGNORED("zero_optimization.allgather_sequential", "false", "stage 3: another way to gather")
ALIAS("zero_optimization.stage3_allgather_sequential", "zero_optimization.allgather_sequential")
IGNORED("zero_optimization.ignore_unused_parameters", "true",
        "a parameter without a gradient is no error")
IGNORED("zero_optimization.round_robin_gradients", "false",
        "every rank has a slice of each bucket in any case")
UNSUPPORTED("zero_optimization.legacy_stage1", "false", "gone from DeepSpeed")
IGNORED("zero_optimization.parameter_alignment", "false", "parts are aligned in any case")
IGNORED("zero_optimization.zero_hpz_partition_size", "1", "ZeRO++: how weights travel")
IGNORED("zero_optimization.zero_quantized_weights", "false", "ZeRO++: weights travel exactly")
IGNORED("zero_optimization.zero_quantized_nontrainable_weights", "false",
        "ZeRO++: weights travel exactly")
IGNORED("zero_optimization.zero_quantized_gradients", "false", "ZeRO++: gradients travel exactly")
REMOVED("zero_optimization.zeropp_loco_param", "error feedback for ZeRO++")
REMOVED("zero_optimization.mics_shard_size", "MiCS groups")
REMOVED("zero_optimization.mics_hierarchical_params_gather", "MiCS groups")
IGNORED("zero_optimization.memory_efficient_linear", "true",
        "linear layers never keep the gathered weight")
IGNORED("zero_optimization.pipeline_loading_checkpoint", "false", "order of loading")
IGNORED("zero_optimization.override_module_apply", "true", "Python's Module.apply")
IGNORED("zero_optimization.log_trace_cache_warnings", "false", "DeepSpeed's prefetch trace")
IGNORED("zero_optimization.enable_sanity_checks", "false", "DeepSpeed's own checks")
IGNORED("zero_optimization.save_muon_momentum_buffer_in_memory", "false",
        "Muon's momentum is kept where the other moments are")
IGNORED_GROUP("zero_optimization.leaf_module", NULL_EMPTY, "modules gathered as a whole")
IGNORED("allgather_size", "500000000",
        "allgather_bucket_size of the old form \"zero_optimization\": true")

/* ---- monitors ---- */
GROUP("tensorboard", NULL_NO, "event files for TensorBoard")
SUPPORTED("tensorboard.enabled", BOOL, "false", tensorboard.enabled, "write them")
SUPPORTED("tensorboard.output_path", TEXT, "\"\"", tensorboard.output_path, "folder")
SUPPORTED("tensorboard.job_name", TEXT, "\"DeepSpeedJobName\"", tensorboard.job_name,
          "folder in the folder")
GROUP("csv_monitor", NULL_NO, "a CSV file for each tag")
SUPPORTED("csv_monitor.enabled", BOOL, "false", csv_monitor.enabled, "write them")
SUPPORTED("csv_monitor.output_path", TEXT, "\"\"", csv_monitor.output_path, "folder")
SUPPORTED("csv_monitor.job_name", TEXT, "\"DeepSpeedJobName\"", csv_monitor.job_name,
          "folder in the folder")
IGNORED_GROUP("wandb", NULL_NO, "a service on the network: a sink of the program can send there")
UNSUPPORTED("wandb.enabled", "false",
            "a service on the network; tensorboard and csv_monitor write files")
IGNORED_GROUP("comet", NULL_NO, "a service on the network: a sink of the program can send there")
UNSUPPORTED("comet.enabled", "false",
            "a service on the network; tensorboard and csv_monitor write files")

/* ---- timers, profilers ---- */
GROUP("comms_logger", NULL_NO, "a table of what ranks sent")
SUPPORTED("comms_logger.enabled", BOOL, "false", comms_logger.enabled,
          "time each collective, and print the table at the end; nothing overlaps then. (DeepSpeed "
          "does if the group is there at all)")
SUPPORTED("comms_logger.verbose", BOOL, "false", comms_logger.verbose, "a line for each collective")
SUPPORTED("comms_logger.prof_all", BOOL, "true", comms_logger.prof_all,
          "all collectives, not only those of prof_ops")
SUPPORTED("comms_logger.prof_ops", LIST, "[]", comms_logger.prof_ops,
          "only these: all_reduce, send, ...")
IGNORED("comms_logger.debug", "false", "name of the caller in each line")
GROUP_NO_AUTO("timers", NULL_NO, "clocks of the engine")
GROUP("timers.throughput", NULL_NO, "samples per second")
SUPPORTED("timers.throughput.enabled", BOOL, "true", throughput.enabled, "measure them")
IGNORED("timers.throughput.synchronized", "true", "the host waits for each update in any case")
GROUP("flops_profiler", NULL_NO, "a report of time and operations, module by module")
SUPPORTED("flops_profiler.enabled", BOOL, "false", flops_profiler.enabled,
          "print the report of one step; turns wall_clock_breakdown on, as in DeepSpeed")
SUPPORTED("flops_profiler.recompute_fwd_factor", NUMBER_FROM(0), "0.0",
          flops_profiler.recompute_fwd_factor,
          "forwards that the backward pass computes again: 1.0 if all of it is")
SUPPORTED("flops_profiler.profile_step", INT_FROM(0), "1", flops_profiler.profile_step,
          "updates before the one that is reported")
SUPPORTED("flops_profiler.module_depth", INT_FROM(-1), "-1", flops_profiler.module_depth,
          "depths of the aggregated part; -1: all but the innermost")
SUPPORTED("flops_profiler.top_modules", INT_FROM(0), "1", flops_profiler.top_modules,
          "types of modules that each depth names")
SUPPORTED("flops_profiler.detailed", BOOL, "true", flops_profiler.detailed,
          "the tree of all modules too")
SUPPORTED("flops_profiler.output_file", TEXT, "null", flops_profiler.output_file,
          "write the report there; null: to stdout")

/* ---- memory, files ---- */
GROUP_NO_AUTO("activation_checkpointing", NULL_NO,
              "ds_checkpoint: activations computed a second time")
IGNORED("activation_checkpointing.partition_activations", "false", "model parallel only")
IGNORED("activation_checkpointing.contiguous_memory_optimization", "false",
        "storage is taken from a cache in any case")
IGNORED("activation_checkpointing.cpu_checkpointing", "false", "kept inputs stay on their device")
IGNORED("activation_checkpointing.number_checkpoints", "null",
        "only with contiguous_memory_optimization")
IGNORED("activation_checkpointing.synchronize_checkpoint_boundary", "false",
        "nothing here needs the wait")
SUPPORTED("activation_checkpointing.profile", BOOL, "false", activation_checkpointing.profile,
          "a line with the time of each forward and backward of a checkpoint")
GROUP_NO_AUTO("checkpoint", NULL_NO, "files of the engine's state")
SUPPORTED(
    "checkpoint.tag_validation", ANY_CASE(validations), "\"WARN\"", checkpoint.tag_validation,
    "when ranks save under different tags: rank 0's counts, with a warning or not, or all refuse")
EXTENSION("checkpoint.async", BOOL, "false", checkpoint.async,
          "saves return when the state was copied; a thread writes it")
EXTENSION("checkpoint.overhead_limit", NUMBER_IN(0, 1), "0.0", checkpoint.overhead_limit,
          "async: saves are left out that would take more than this share of the time; 0: none is")
EXTENSION("checkpoint.keep_last", INT_FROM(0), "0", checkpoint.keep_last,
          "older checkpoints of ours are removed after a save; 0: none")
SUPPORTED("checkpoint.load_universal", BOOL, "false", checkpoint.load_universal,
          "loads what latest_universal names: a folder of ds_to_universal")
SUPPORTED("checkpoint.use_node_local_storage", BOOL, "false", checkpoint.use_node_local_storage,
          "the folder of a save is each host's own, and each host's files are copied to another")
IGNORED_GROUP("checkpoint.parallel_write", NULL_NO, "of pipeline stages")
IGNORED("checkpoint.parallel_write.pipeline_stage", "false", "")
IGNORED("checkpoint.checkpoint_serialization", "true", "torch.save's form")
IGNORED_GROUP("checkpoint.writer", NULL_FIRST, "DeepSpeed's fast writers")
UNSUPPORTED("datastates_ckpt", "null", "another checkpoint library")
GROUP_NO_AUTO("aio", NULL_EMPTY, "files of nvme offload")
SUPPORTED("aio.block_size", INT_FROM(1), "1048576", aio.block_size, "nvme: bytes of a request")
SUPPORTED("aio.queue_depth", COUNT_FROM(1), "8", aio.queue_depth,
          "nvme: requests on their way at a time")
SUPPORTED("aio.intra_op_parallelism", COUNT_FROM(1), "1", aio.intra_op_parallelism,
          "nvme: threads, where io_uring is not allowed")
IGNORED("aio.thread_count", "1",
        "DeepSpeed's documentation has it, its code does not: intra_op_parallelism")
SUPPORTED("aio.single_submit", BOOL, "false", aio.single_submit,
          "nvme: requests are submitted to the kernel one by one")
SUPPORTED("aio.overlap_events", BOOL, "true", aio.overlap_events,
          "nvme: new requests begin while others are on their way")
UNSUPPORTED("aio.use_gds", "false", "NVIDIA's GPUDirect Storage is not used")
