/* engine/checkpoint/state_keys.h: names of files and keys of a checkpoint: the
 * contents of each, and its readers besides ds_engine_load. Save, load and the
 * separation of client_state from the engine's keys use this table.
 *
 * Keys of ours within deepspeed_c that only one function writes and one reads
 * (the fields of loss_scaler, throughput, loader) have their names there.
 * SPDX-License-Identifier: MIT */
#pragma once

/* ---- files of a checkpoint; %d and %lld are ranks ---- */

/* model states; stage 3: one of each rank instead */
#define DSI_FILE_MODEL      "mp_rank_00_model_states.pt"
#define DSI_FILE_MODEL_RANK "zero_pp_rank_%d_mp_rank_00_model_states.pt"
/* optimizer states of a rank */
#define DSI_FILE_MODEL_RANK_0 "zero_pp_rank_0_mp_rank_00_model_states.pt"
#define DSI_FILE_SHARD        "zero_pp_rank_%lld_mp_rank_00_optim_states.pt"
/* likewise, with bf16 */
#define DSI_FILE_SHARD_BF16 "bf16_zero_pp_rank_%lld_mp_rank_00_optim_states.pt"
/* {name: tensor} of an expert */
#define DSI_FILE_EXPERT "layer_%lld_expert_%lld_mp_rank_00_model_states.pt"
/* stage 0 with experts: optimizer states */
#define DSI_FILE_EXPERT_OPTIM "expp_rank_%lld_mp_rank_00_optim_states.pt"
#define DSI_FILE_RANK         "rank_%d_states.pt" /* ours: random numbers, loader, buffers */
#define DSI_FILE_RANK_0       "rank_0_states.pt"

/* ---- universal checkpoints: load_universal.c ---- */

#define DSI_FOLDER_UNIVERSAL "zero"                    /* a folder for each parameter */
#define DSI_FOLDER_AVERAGES  "averages"                /* ours: NAME.pt */
#define DSI_FILE_UNIVERSAL   "zero/optimizer_state.pt" /* groups and loss scale, see a shard */
#define DSI_STATE_PARAM      "param"   /* float32 [shape]: of fp32.pt, exp_avg.pt, ... */
#define DSI_STATE_CAT_DIM    "cat_dim" /* int: 0, how tensor-parallel portions are put together */

/* ---- model file: DeepSpeed's engine.py reads them ---- */

#define DSI_STATE_MODULE       "module" /* {name: tensor}: parameters, buffers; stage 3: empty */
#define DSI_STATE_BUFFER_NAMES "buffer_names" /* [name]: which of them are buffers */
/* stage 0: torch.optim's state dict, or fp16's; else None */
#define DSI_STATE_OPTIMIZER    "optimizer"
#define DSI_STATE_PARAM_SHAPES "param_shapes" /* [{name: Size}]: a dict for each group of a shard */
/* {name: Size} of parameters that are not trained */
#define DSI_STATE_FROZEN_SHAPES    "frozen_param_shapes"
#define DSI_STATE_FROZEN_FRAGMENTS "frozen_param_fragments" /* {name: tensor} of the same */
#define DSI_STATE_SHARED_PARAMS    "shared_params" /* {tied name: first name}, for zero_to_fp32 */
#define DSI_STATE_LR_SCHEDULER     "lr_scheduler"  /* state dict of the schedule, or None */
/* int in it, of DeepSpeed's schedules */
#define DSI_STATE_LAST_BATCH_ITERATION "last_batch_iteration"
#define DSI_STATE_LAST_EPOCH           "last_epoch"   /* int in it, of torch's schedules */
#define DSI_STATE_DATA_SAMPLER         "data_sampler" /* None */
#define DSI_STATE_RANDOM_LTD           "random_ltd"   /* None */
#define DSI_STATE_SPARSE_NAMES         "sparse_tensor_module_names" /* only read: of sparse gradients */
#define DSI_STATE_CSR_NAMES            "csr_tensor_module_names" /* only read: the same, older */
#define DSI_STATE_SKIPPED_STEPS        "skipped_steps" /* int: updates left out after an overflow */
#define DSI_STATE_GLOBAL_STEPS         "global_steps"  /* int: updates, skipped ones too */
#define DSI_STATE_GLOBAL_SAMPLES       "global_samples" /* int: samples of all ranks */
#define DSI_STATE_DP_WORLD_SIZE        "dp_world_size"  /* int: ranks */
#define DSI_STATE_MP_WORLD_SIZE        "mp_world_size"  /* int: 1 */
/* {pp_degree: 1, tp_degree: 1} */
#define DSI_STATE_PARALLEL_DIMENSIONS "checkpoint_parallel_dimensions"
#define DSI_STATE_DS_CONFIG           "ds_config"   /* the user's configuration as a dict */
#define DSI_STATE_DS_VERSION          "ds_version"  /* string: DSI_DS_VERSION */
#define DSI_STATE_NUM_EXPERTS         "num_experts" /* [int]: experts of each layer */
/* only read: of a client, {universal_checkpoint_version, ...patterns} */
#define DSI_STATE_UNIVERSAL_INFO "universal_checkpoint_info"
#define DSI_STATE_AUTOEP         "ds_autoep_layers" /* only read: of automatic expert parallelism */
#define DSI_STATE_OWN            "deepspeed_c" /* dict: what DeepSpeed has no name for; in shards too */

/* ---- optimizer states of a shard: zero_to_fp32.py and runtime/zero read them ---- */

#define DSI_STATE_OPTIMIZER_STATE_DICT "optimizer_state_dict" /* dict of all that follows */
/* {state: {group: {step, moments}}, param_groups} */
#define DSI_STATE_BASE_STATE "base_optimizer_state"
/* [float32 [n]]: masters, per group */
#define DSI_STATE_FP32_PARTITION   "single_partition_of_fp32_groups"
#define DSI_STATE_FP32_FLAT_GROUPS "fp32_flat_groups" /* only read: the same in stage 3 */
/* int: 1 or 2, how groups are cut; in deepspeed_c the stage */
#define DSI_STATE_ZERO_STAGE     "zero_stage"
#define DSI_STATE_GROUP_PADDINGS "group_paddings" /* [0 or 1]: per group */
/* [[int]]: elements behind each parameter */
#define DSI_STATE_ALIGNMENT_PADDINGS "param_alignment_paddings"
#define DSI_STATE_PARTITION_COUNT    "partition_count" /* [int]: ranks that a group is cut among */
/* [{name: {start, numel}}]: places in a group */
#define DSI_STATE_SLICE_MAPPINGS     "param_slice_mappings"
#define DSI_STATE_DYNAMIC_LOSS_SCALE "dynamic_loss_scale" /* bool */
#define DSI_STATE_OVERFLOW           "overflow"           /* bool: False */
#define DSI_STATE_CLIP_GRAD          "clip_grad"          /* float: gradient_clipping */
/* only read in a shard: an object; in deepspeed_c a dict */
#define DSI_STATE_LOSS_SCALER "loss_scaler"

/* ---- torch.optim's state dict ---- */

#define DSI_STATE_STATE        "state"        /* {number: {step, moments}} */
#define DSI_STATE_PARAM_GROUPS "param_groups" /* [{lr, ..., params}] */
#define DSI_STATE_PARAMS       "params"       /* [number]; in deepspeed_c [name] */
#define DSI_STATE_STEP         "step"         /* int */
/* only of NAdam, beside its moments: a number that follows from the step */
#define DSI_STATE_MU_PRODUCT "mu_product"

/* ---- fp16 in stage 0: FP16_Optimizer, FP16_UnfusedOptimizer ---- */

#define DSI_STATE_CUR_SCALE          "cur_scale"          /* float: loss scale */
#define DSI_STATE_CUR_ITER           "cur_iter"           /* int: steps of the scaler */
#define DSI_STATE_LAST_OVERFLOW_ITER "last_overflow_iter" /* int */
#define DSI_STATE_CUR_HYSTERESIS     "cur_hysteresis"     /* only read: int */
#define DSI_STATE_SCALE_FACTOR       "scale_factor"       /* float: 2 */
#define DSI_STATE_SCALE_WINDOW       "scale_window"       /* int */
#define DSI_STATE_FP32_GROUPS        "fp32_groups" /* [[tensor]]: masters, one for each parameter */
#define DSI_STATE_FP32_GROUPS_FLAT   "fp32_groups_flat" /* only read: [tensor], one for each group */

/* ---- deepspeed_c: only this library reads it ---- */

#define DSI_STATE_FORMAT       "format"                         /* int: DSI_FORMAT */
#define DSI_STATE_RANKS        "ranks"                          /* int: ranks that saved */
#define DSI_STATE_SHARDS       "shards"                         /* int: files of shards; 0: none */
#define DSI_STATE_GAS          "gradient_accumulation_steps"    /* int */
#define DSI_STATE_MICRO_BATCH  "train_micro_batch_size_per_gpu" /* int */
#define DSI_STATE_MICRO_STEPS  "micro_steps"                    /* int */
#define DSI_STATE_GRAD_NORM    "grad_norm"                      /* float: of the last step */
#define DSI_STATE_STEP_APPLIED "step_applied"                   /* bool: the last step updated */
#define DSI_STATE_THROUGHPUT   "throughput" /* {epoch, micro_step, global_step, total_seconds} */
#define DSI_STATE_EMA          "ema"        /* {decay, updates, averages}, or None */
#define DSI_STATE_AVERAGES     "averages" /* {name: tensor}; in a shard [float32 [n]], per group */
#define DSI_STATE_GROUPS       "groups"   /* in a shard [[{name, shape, begin, end, step}]] */

/* ---- files of ranks: only this library reads them ---- */

#define DSI_STATE_RNG     "rng_state" /* uint8 [n]: torch.get_rng_state's */
#define DSI_STATE_LOADER  "loader"    /* {epoch, batch, seed, begun, base_seed}, or None */
#define DSI_STATE_BUFFERS "buffers"   /* {name: tensor} that differ from rank 0's */

/* The keys of the model file that are no client_state. */
#define DSI_STATE_MODEL_KEYS \
    DSI_STATE_MODULE, DSI_STATE_BUFFER_NAMES, DSI_STATE_OPTIMIZER, DSI_STATE_PARAM_SHAPES, \
        DSI_STATE_FROZEN_SHAPES, DSI_STATE_FROZEN_FRAGMENTS, DSI_STATE_SHARED_PARAMS, \
        DSI_STATE_LR_SCHEDULER, DSI_STATE_DATA_SAMPLER, DSI_STATE_RANDOM_LTD, \
        DSI_STATE_SPARSE_NAMES, DSI_STATE_CSR_NAMES, DSI_STATE_SKIPPED_STEPS, \
        DSI_STATE_GLOBAL_STEPS, DSI_STATE_GLOBAL_SAMPLES, DSI_STATE_DP_WORLD_SIZE, \
        DSI_STATE_MP_WORLD_SIZE, DSI_STATE_PARALLEL_DIMENSIONS, DSI_STATE_DS_CONFIG, \
        DSI_STATE_DS_VERSION, DSI_STATE_NUM_EXPERTS, DSI_STATE_AUTOEP, DSI_STATE_OWN
