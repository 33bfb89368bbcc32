/* config/table.h: the keys of ds_config.json, a row each. Parser, messages, docs/config.md, the
 * resolved configuration and a test that each field is read come from it. Those of parts of DeepSpeed that are not here
 * follow in table_unsupported.h.
 *
 * Names, types, defaults and ranges are DeepSpeed 0.19.8's (deepspeed/runtime/config.py, zero/config.py,
 * precision_config.py, ...); keys that only older versions have are refused by name, as there. To add a
 * key: a row, a field in config.h if something is to read it, and the new docs/config.md (see
 * scripts/config_docs).
 *
 *     ACT    acted on: the field is read
 *     OURS   the same, of a key that DeepSpeed does not have
 *     NOP    accepted, without effect: results are the same, so it is only said once
 *     NOT    refused unless it is the default: training would not be what was asked for
 *     GONE   refused wherever it stands
 *     ALSO   another name; OLD: another name, with a warning
 *     GROUP  an object in which "auto" is a key's default; PICKY: in which it is refused by name;
 *            null there is wrong (NULL_NO), an empty one (NULL_EMPTY), or what it is at first (NULL_FIRST)
 *
 * SPDX-License-Identifier: MIT */

/* ---- batch ---- */
ACT("train_batch_size", INT_FROM(1), "null", train_batch_size,
    "samples of an optimizer step, over all ranks and micro steps")
ACT("train_micro_batch_size_per_gpu", INT_FROM(1), "null", train_micro_batch_size_per_gpu,
    "samples of a forward, on one rank")
ACT("gradient_accumulation_steps", INT_FROM(1), "null", gradient_accumulation_steps,
    "forwards of an optimizer step")
NOT("managed_gradient_accumulation", BOOL, "true", "the engine itself counts micro steps")
ACT("dataloader_drop_last", BOOL, "false", dataloader_drop_last, "drop the short last batch")

/* ---- what is printed ---- */
ACT("steps_per_print", INT_FROM(0), "null", steps_per_print,
    "optimizer steps between two lines of progress; null or 0: no lines")
ACT("wall_clock_breakdown", BOOL, "false", wall_clock_breakdown, "time of forward, backward, step")
ACT("memory_breakdown", BOOL, "false", memory_breakdown, "memory around forward, backward, step")
NOP("dump_state", BOOL, "false", "attributes of DeepSpeed's Python engine")
NOP("log_level", TEXT, "null", "DS_LOG=debug, info, warning or error chooses what is printed")

/* ---- gradients ---- */
ACT("gradient_clipping", NUMBER_FROM(0), "1.0", gradient_clipping,
    "largest L2 norm of all gradients; 0: off")
ACT("prescale_gradients", BOOL, "false", prescale_gradients,
    "divide by the number of ranks before the sum instead of after it")
ACT("gradient_predivide_factor", NUMBER_ABOVE(0), "1.0", gradient_predivide_factor,
    "divide by f before the sum and by ranks / f after it")
ACT("gradient_allreduce_op", ANY_CASE(reductions), "\"mean\"", gradient_sum,
    "mean or sum over the ranks; sum not with stage 3")
ACT("communication_data_type", ANY_CASE(comm_dtypes), "null", communication_data_type,
    "type in which gradients travel; null: the model's")
NOP("seq_parallel_communication_data_type", ANY_CASE(comm_dtypes), "\"fp32\"",
    "sequence parallel only")
ALSO("seq_parallel_comm_data_type", "seq_parallel_communication_data_type")
NOP("disable_allgather", BOOL, "false", "DeepSpeed reads it and does not use it")
OURS("on_nan", WORD(on_nan), "\"error\"", on_nan,
     "what a loss that is not a number does in float32 and bfloat16: error or continue")

/* ---- optimizer and schedule ---- */
PICKY("optimizer", NULL_NO, "the optimizer, if the program makes none")
ACT("optimizer.type", TEXT, "null", optimizer.type,
    "Adam, AdamW, SGD, Adagrad, Lion, Lamb, RMSprop")
ACT("optimizer.params", OBJECT, "null", optimizer.params, "its options")
NOP("optimizer.legacy_fusion", BOOL, "false", "a CUDA kernel of DeepSpeed's")
PICKY("scheduler", NULL_NO, "the learning rate schedule, if the program makes none")
ACT("scheduler.type", TEXT, "null", scheduler.type,
    "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest")
ACT("scheduler.params", OBJECT, "null", scheduler.params, "its options")
ACT("zero_allow_untested_optimizer", BOOL, "false", zero_allow_untested_optimizer,
    "let optimizers that DeepSpeed did not test run with ZeRO")
NOP("zero_force_ds_cpu_optimizer", BOOL, "true", "every optimizer here runs on the CPU")

/* ---- 16 bits ---- */
GROUP("fp16", NULL_NO, "half precision with float32 master weights")
ACT("fp16.enabled", BOOL, "false", fp16.enabled, "weights and activations in float16")
ACT("fp16.auto_cast", BOOL, "false", fp16.auto_cast, "cast floating inputs of forward to float16")
ACT("fp16.loss_scale", NUMBER_FROM(0), "0.0", fp16.loss_scale, "0: dynamic; else the scale")
ACT("fp16.initial_scale_power", INT_IN(0, 126), "16", fp16.initial_scale_power,
    "first scale is 2 to the power of this")
ACT("fp16.loss_scale_window", INT, "1000", fp16.loss_scale_window,
    "good steps before the scale doubles; at least 1 if the scale is dynamic")
ACT("fp16.hysteresis", INT, "2", fp16.hysteresis, "overflows before the scale halves")
ACT("fp16.consecutive_hysteresis", BOOL, "false", fp16.consecutive_hysteresis,
    "a good step refills the hysteresis")
ACT("fp16.min_loss_scale", INT, "1", fp16.min_loss_scale,
    "the least scale; at least 1 if the scale is dynamic")
NOT("fp16.fp16_master_weights_and_grads", BOOL, "false", "master weights are float32")
GROUP("bf16", NULL_EMPTY, "bfloat16 with float32 master weights")
ACT("bf16.enabled", BOOL, "false", bf16.enabled, "weights and activations in bfloat16")
NOP("bf16.immediate_grad_update", BOOL, "false", "when gradients are added up, not how")
ACT("bf16.check_grad_overflow", BOOL, "true", bf16.check_grad_overflow,
    "skip a step whose gradients are infinite or not numbers")
NOT("bf16.bf16_master_weights_and_grads", BOOL, "false", "master weights are float32")
NOT("bf16.bf16_optimizer_states", BOOL, "false", "moments are float32")
OLD("bfloat16", "bf16")
PICKY("torch_autocast", NULL_NO, "types chosen op by op")
NOT("torch_autocast.enabled", BOOL, "false", "fp16 or bf16 make the whole model 16-bit")
NOP("torch_autocast.dtype", WORD(dtypes), "null", "only with torch_autocast.enabled")
NOP("torch_autocast.lower_precision_safe_modules", LIST, "null", "only with torch_autocast.enabled")
PICKY("data_types", NULL_NO, "types of what the engine keeps")
ACT("data_types.grad_accum_dtype", WORD(dtypes), "null", data_types.grad_accum_dtype,
    "type in which gradients add up; null: the model's, float32 for bf16 without ZeRO")
NOT("data_types.param_dtype", WORD(dtypes), "null", "fp16 or bf16 decide the type of parameters")
NOT("data_types.buffer_dtype", WORD(dtypes), "null", "buffers have the type of the parameters")
NOP("data_types.keep_in_fp32_modules", LIST, "\"auto\"", "names of transformers' modules")
GONE("amp", ANY, "null", "NVIDIA's apex; use fp16 or bf16")
GONE("amp.enabled", BOOL, "false", "")

/* ---- ZeRO ---- */
GROUP("zero_optimization", NULL_NO, "what ranks divide among them")
ACT("zero_optimization.stage", INT_IN(0, 3), "0", zero.stage,
    "0: nothing; 1: optimizer states; 2: gradients too; 3: parameters too")
NOP("zero_optimization.contiguous_gradients", BOOL, "true",
    "gradients of a bucket lie side by side in any case")
ACT("zero_optimization.reduce_scatter", BOOL, "true", zero.reduce_scatter,
    "a rank gets its part of a sum only")
ACT("zero_optimization.reduce_bucket_size", INT_FROM(1), "500000000", zero.reduce_bucket_size,
    "elements that are reduced together")
NOP("zero_optimization.use_multi_rank_bucket_allreduce", BOOL, "true",
    "how one bucket with parts of several ranks travels")
NOP("zero_optimization.allgather_partitions", BOOL, "true",
    "parts are gathered by all_gather in any case")
ACT("zero_optimization.allgather_bucket_size", INT_FROM(0), "500000000", zero.allgather_bucket_size,
    "elements that are gathered together")
ACT("zero_optimization.overlap_comm", BOOL, "null", zero.overlap_comm,
    "reduce while backward runs; null: true in stage 3, else false")
ACT("zero_optimization.compute_grad_norm", BOOL, "true", zero.compute_grad_norm,
    "the norm of all gradients, though nothing needs it; false only in stages 1 and 2")
NOP("zero_optimization.load_from_fp32_weights", BOOL, "true",
    "checkpoints are restored from their float32 masters")
NOP("zero_optimization.elastic_checkpoint", BOOL, "false", "gone from DeepSpeed's stage 3")
GROUP("zero_optimization.offload_param", NULL_FIRST,
      "stage 3: where parameters wait; null: nowhere")
ACT("zero_optimization.offload_param.device", WORD(devices), "\"none\"", zero.offload_param.device,
    "cpu: they are in host memory in any case; nvme: a file a rank")
ACT("zero_optimization.offload_param.nvme_path", TEXT, "null", zero.offload_param.nvme_path,
    "nvme: a folder that is there")
ACT("zero_optimization.offload_param.buffer_count", COUNT_FROM(0), "5",
    zero.offload_param.buffer_count, "nvme: slices in memory at a time")
ACT("zero_optimization.offload_param.buffer_size", INT_FROM(0), "100000000",
    zero.offload_param.buffer_size, "nvme: elements of a slice, at most")
ACT("zero_optimization.offload_param.max_in_cpu", INT_FROM(0), "1000000000",
    zero.offload_param.max_in_cpu, "nvme: elements of a rank that stay in memory")
ACT("zero_optimization.offload_param.pin_memory", BOOL, "true", zero.offload_param.pin_memory,
    "nvme: the kernel keeps the buffers in its tables")
GROUP("zero_optimization.offload_optimizer", NULL_FIRST,
      "where masters and moments lie, and the step runs; null: with the parameters")
ACT("zero_optimization.offload_optimizer.device", WORD(devices), "\"none\"",
    zero.offload_optimizer.device, "none, cpu (host memory), nvme (a file a rank)")
ACT("zero_optimization.offload_optimizer.nvme_path", TEXT, "null", zero.offload_optimizer.nvme_path,
    "nvme: a folder that is there")
ACT("zero_optimization.offload_optimizer.buffer_count", COUNT_FROM(0), "4",
    zero.offload_optimizer.buffer_count,
    "nvme: blocks of masters and moments in memory during a step")
ACT("zero_optimization.offload_optimizer.pin_memory", BOOL, "true",
    zero.offload_optimizer.pin_memory, "nvme: the kernel keeps those blocks in its tables")
ACT("zero_optimization.offload_optimizer.pipeline_read", BOOL, "false",
    zero.offload_optimizer.pipeline_read, "nvme: read the next blocks while one is updated")
ACT("zero_optimization.offload_optimizer.pipeline_write", BOOL, "false",
    zero.offload_optimizer.pipeline_write, "nvme: go on while a block is being written")
ACT("zero_optimization.offload_optimizer.fast_init", BOOL, "false",
    zero.offload_optimizer.fast_init, "nvme: do not write the zeros of moments at first")
ACT("zero_optimization.offload_optimizer.ratio", NUMBER_IN(0, 1), "1.0",
    zero.offload_optimizer.ratio,
    "nvme: share that is in the file, below 1 in stage 3 only; cpu: it is the same memory")
NOP("zero_optimization.offload_optimizer.super_offload", BOOL, "false", "Grace Hopper machines")
NOP("zero_optimization.offload_optimizer.cpuadam_cores_perc", NUMBER_IN(0, 1), "0.8",
    "only with super_offload")
NOT("zero_optimization.zenflow", OBJECT, "null", "delayed updates are another algorithm")
OURS("zero_optimization.deterministic", BOOL, "false", zero.deterministic,
     "the same bits on 1, 2, 4, 8 .. ranks, for the same train_batch_size and micro batch")
ACT("zero_optimization.sub_group_size", INT_FROM(0), "1000000000", zero.sub_group_size,
    "offload_optimizer to nvme: elements of a block, at most; and at most 2^20")
OLD("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer")
OLD("zero_optimization.cpu_offload_param", "zero_optimization.offload_param")
NOP("zero_optimization.cpu_offload_use_pin_memory", BOOL, "null",
    "old; DeepSpeed warns and does not use it")
ACT("zero_optimization.prefetch_bucket_size", INT_FROM(0), "50000000", zero.prefetch_bucket_size,
    "stage 3: elements gathered ahead of their use")
ALSO("zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size")
ACT("zero_optimization.param_persistence_threshold", INT_FROM(0), "100000",
    zero.param_persistence_threshold, "stage 3: parameters up to this size stay whole")
ALSO("zero_optimization.stage3_param_persistence_threshold",
     "zero_optimization.param_persistence_threshold")
ACT("zero_optimization.model_persistence_threshold", INT_FROM(0), "9223372036854775807",
    zero.model_persistence_threshold, "stage 3: up to this sum of elements")
ALSO("zero_optimization.stage3_model_persistence_threshold",
     "zero_optimization.model_persistence_threshold")
ACT("zero_optimization.max_live_parameters", INT_FROM(0), "1000000000", zero.max_live_parameters,
    "stage 3: elements gathered at a time")
ALSO("zero_optimization.stage3_max_live_parameters", "zero_optimization.max_live_parameters")
ACT("zero_optimization.max_reuse_distance", INT_FROM(0), "1000000000", zero.max_reuse_distance,
    "stage 3: keep what is used again within so many elements")
ALSO("zero_optimization.stage3_max_reuse_distance", "zero_optimization.max_reuse_distance")
ACT("zero_optimization.gather_16bit_weights_on_model_save", BOOL, "false",
    zero.gather_16bit_weights_on_model_save,
    "stage 3: ds_engine_save_16bit_model puts the model together; else it refuses")
ALSO("zero_optimization.stage3_gather_16bit_weights_on_model_save",
     "zero_optimization.gather_16bit_weights_on_model_save")
OLD("zero_optimization.stage3_gather_fp16_weights_on_model_save",
    "zero_optimization.gather_16bit_weights_on_model_save")
NOP("zero_optimization.module_granularity_threshold", INT, "0",
    "stage 3: hooks of small modules cost nothing here")
ALSO("zero_optimization.stage3_module_granularity_threshold",
     "zero_optimization.module_granularity_threshold")
NOP("zero_optimization.use_all_reduce_for_fetch_params", BOOL, "false",
    "stage 3: another way to gather")
ALSO("zero_optimization.stage3_use_all_reduce_for_fetch_params",
     "zero_optimization.use_all_reduce_for_fetch_params")
NOP("zero_optimization.allgather_sequential", BOOL, "false", "stage 3: another way to gather")
ALSO("zero_optimization.stage3_allgather_sequential", "zero_optimization.allgather_sequential")
NOP("zero_optimization.ignore_unused_parameters", BOOL, "true",
    "a parameter without a gradient is no error")
NOP("zero_optimization.round_robin_gradients", BOOL, "false",
    "every rank has a slice of each bucket in any case")
NOT("zero_optimization.legacy_stage1", BOOL, "false", "gone from DeepSpeed")
NOP("zero_optimization.parameter_alignment", BOOL, "false", "parts are aligned in any case")
NOP("zero_optimization.zero_hpz_partition_size", INT_FROM(0), "1", "ZeRO++: how weights travel")
NOP("zero_optimization.zero_quantized_weights", BOOL, "false", "ZeRO++: weights travel exactly")
NOP("zero_optimization.zero_quantized_nontrainable_weights", BOOL, "false",
    "ZeRO++: weights travel exactly")
NOP("zero_optimization.zero_quantized_gradients", BOOL, "false", "ZeRO++: gradients travel exactly")
GONE("zero_optimization.zeropp_loco_param", OBJECT, "null", "error feedback for ZeRO++")
GONE("zero_optimization.mics_shard_size", INT, "-1", "MiCS groups")
GONE("zero_optimization.mics_hierarchical_params_gather", BOOL, "false", "MiCS groups")
NOP("zero_optimization.memory_efficient_linear", BOOL, "true",
    "linear layers never keep the gathered weight")
NOP("zero_optimization.pipeline_loading_checkpoint", BOOL, "false", "order of loading")
NOP("zero_optimization.override_module_apply", BOOL, "true", "Python's Module.apply")
NOP("zero_optimization.log_trace_cache_warnings", BOOL, "false", "DeepSpeed's prefetch trace")
NOP("zero_optimization.enable_sanity_checks", BOOL, "false", "DeepSpeed's own checks")
NOP("zero_optimization.save_muon_momentum_buffer_in_memory", BOOL, "false", "Muon only")
GROUP("zero_optimization.leaf_module", NULL_EMPTY, "modules gathered as a whole")
NOP("zero_optimization.leaf_module.classes", LIST, "[]", "Python classes")
NOP("zero_optimization.leaf_module.names", LIST, "[]", "modules gathered as a whole")
NOP("zero_optimization.leaf_module.name_suffixes", LIST, "[]", "modules gathered as a whole")
NOP("allgather_size", INT_FROM(0), "500000000",
    "allgather_bucket_size of the old form \"zero_optimization\": true")

/* ---- monitors ---- */
GROUP("tensorboard", NULL_NO, "event files for TensorBoard")
ACT("tensorboard.enabled", BOOL, "false", tensorboard.enabled, "write them")
ACT("tensorboard.output_path", TEXT, "\"\"", tensorboard.output_path, "folder")
ACT("tensorboard.job_name", TEXT, "\"DeepSpeedJobName\"", tensorboard.job_name,
    "folder in the folder")
GROUP("csv_monitor", NULL_NO, "a CSV file for each tag")
ACT("csv_monitor.enabled", BOOL, "false", csv_monitor.enabled, "write them")
ACT("csv_monitor.output_path", TEXT, "\"\"", csv_monitor.output_path, "folder")
ACT("csv_monitor.job_name", TEXT, "\"DeepSpeedJobName\"", csv_monitor.job_name,
    "folder in the folder")
GROUP("wandb", NULL_NO, "a service on the network")
NOP("wandb.enabled", BOOL, "false", "a sink of one's own can send there")
NOP("wandb.group", TEXT, "null", "of runs")
NOP("wandb.team", TEXT, "null", "of people")
NOP("wandb.project", TEXT, "\"deepspeed\"", "")
GROUP("comet", NULL_NO, "a service on the network")
NOP("comet.enabled", BOOL, "false", "a sink of one's own can send there")
NOP("comet.samples_log_interval", INT, "100", "samples between values")
NOP("comet.project", TEXT, "null", "")
NOP("comet.workspace", TEXT, "null", "")
NOP("comet.api_key", TEXT, "null", "")
NOP("comet.experiment_name", TEXT, "null", "")
NOP("comet.experiment_key", TEXT, "null", "")
NOP("comet.online", BOOL, "null", "")
NOP("comet.mode", TEXT, "null", "")

/* ---- timers, profilers ---- */
GROUP("comms_logger", NULL_NO, "a table of what ranks sent")
ACT("comms_logger.enabled", BOOL, "false", comms_logger.enabled,
    "time each collective, and print the table at the end; nothing overlaps then. (DeepSpeed does "
    "if the "
    "group is there at all)")
ACT("comms_logger.verbose", BOOL, "false", comms_logger.verbose, "a line for each collective")
ACT("comms_logger.prof_all", BOOL, "true", comms_logger.prof_all,
    "all collectives, not only those of prof_ops")
ACT("comms_logger.prof_ops", LIST, "[]", comms_logger.prof_ops, "only these: all_reduce, send, ...")
NOP("comms_logger.debug", BOOL, "false", "name of the caller in each line")
PICKY("timers", NULL_NO, "clocks of the engine")
GROUP("timers.throughput", NULL_NO, "samples per second")
ACT("timers.throughput.enabled", BOOL, "true", throughput.enabled, "measure them")
NOP("timers.throughput.synchronized", BOOL, "true", "the CPU needs no synchronisation")
PICKY("flops_profiler", NULL_NO, "a report of operations")
NOP("flops_profiler.enabled", BOOL, "false", "it turns wall_clock_breakdown on, as in DeepSpeed")
NOP("flops_profiler.recompute_fwd_factor", NUMBER_FROM(0), "0.0", "")
NOP("flops_profiler.profile_step", INT_FROM(0), "1", "")
NOP("flops_profiler.module_depth", INT, "-1", "")
NOP("flops_profiler.top_modules", INT_FROM(0), "1", "")
NOP("flops_profiler.detailed", BOOL, "true", "")
NOP("flops_profiler.output_file", TEXT, "null", "")

/* ---- memory, files ---- */
PICKY("activation_checkpointing", NULL_NO, "ds_checkpoint: activations computed a second time")
NOP("activation_checkpointing.partition_activations", BOOL, "false", "model parallel only")
NOP("activation_checkpointing.contiguous_memory_optimization", BOOL, "false",
    "storage is taken from a cache in any case")
NOP("activation_checkpointing.cpu_checkpointing", BOOL, "false",
    "activations are in host memory in any case")
NOP("activation_checkpointing.number_checkpoints", INT_FROM(1), "null",
    "only with contiguous_memory_optimization")
NOP("activation_checkpointing.synchronize_checkpoint_boundary", BOOL, "false",
    "the CPU needs no synchronisation")
ACT("activation_checkpointing.profile", BOOL, "false", activation_checkpointing.profile,
    "a line with the time of each forward and backward of a checkpoint")
PICKY("checkpoint", NULL_NO, "files of the engine's state")
ACT("checkpoint.tag_validation", ANY_CASE(validations), "\"WARN\"", checkpoint.tag_validation,
    "when ranks save under different tags: rank 0's counts, with a warning or not, or all refuse")
OURS("checkpoint.async", BOOL, "false", checkpoint.async,
     "saves return when the state was copied; a thread writes it")
OURS("checkpoint.keep_last", INT_FROM(0), "0", checkpoint.keep_last,
     "older checkpoints of ours are removed after a save; 0: none")
NOT("checkpoint.load_universal", BOOL, "false",
    "every checkpoint loads on any number of ranks and stage: leave it out")
NOP("checkpoint.use_node_local_storage", BOOL, "false",
    "all ranks write to one folder, on a file system that they share")
PICKY("checkpoint.parallel_write", NULL_NO, "of pipeline stages")
NOP("checkpoint.parallel_write.pipeline_stage", BOOL, "false", "pipeline parallel only")
NOP("checkpoint.checkpoint_serialization", BOOL, "true", "torch.save's form")
PICKY("checkpoint.writer", NULL_FIRST, "DeepSpeed's fast writers")
NOP("checkpoint.writer.type", ANY_CASE(writers), "\"FAST\"", "")
NOP("checkpoint.writer.decoupled", BOOL, "false", "")
NOP("checkpoint.writer.io_buffer_size", INT_FROM(1), "67108864", "bytes")
NOP("checkpoint.writer.io_buffer_double", BOOL, "true", "")
NOP("checkpoint.writer.show_statistics", BOOL, "false", "")
NOP("checkpoint.writer.data_parallel", ANY_CASE(write_units), "null", "")
NOP("checkpoint.writer.io_multiplier", INT_FROM(1), "1", "")
NOT("datastates_ckpt", ANY, "null", "another checkpoint library")
PICKY("aio", NULL_EMPTY, "files of nvme offload")
ACT("aio.block_size", INT_FROM(1), "1048576", aio.block_size, "nvme: bytes of a request")
ACT("aio.queue_depth", COUNT_FROM(1), "8", aio.queue_depth, "nvme: requests on their way at a time")
ACT("aio.intra_op_parallelism", COUNT_FROM(1), "1", aio.intra_op_parallelism,
    "nvme: threads, where io_uring is not allowed")
NOP("aio.thread_count", INT_FROM(1), "1",
    "DeepSpeed's documentation has it, its code does not: intra_op_parallelism")
ACT("aio.single_submit", BOOL, "false", aio.single_submit,
    "nvme: the kernel is told of requests one by one")
ACT("aio.overlap_events", BOOL, "true", aio.overlap_events,
    "nvme: new requests begin while others are on their way")
NOT("aio.use_gds", BOOL, "false", "needs a GPU, in DeepSpeed too")
