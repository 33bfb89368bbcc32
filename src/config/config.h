/* config/config.h: ds_config.json, read, checked against the table of keys, and
 * resolved for a number of ranks. The struct is nested as the file is; it has
 * the keys that act. dsi_config_json has all keys.
 *
 *     text (file, JSON, base64)  -> load.c    -> bytes
 *     comments, bare keys, ...   -> syntax.c  -> JSON, every key with its line
 *     "auto"                     -> auto.c    -> JSON with values in place of it
 *     values                     -> resolve.c -> a tree with every key, by table.h
 *     keys about one another     -> batch.c   -> batch sizes, and the struct below
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"

#include <deepspeed/config.h>

#define DSI_CONFIG_NO_DTYPE (-1) /* a key that names a dtype was not given */

typedef enum dsi_offload_device {
    DSI_OFFLOAD_NONE,
    DSI_OFFLOAD_CPU,
    DSI_OFFLOAD_NVME
} dsi_offload_device;
typedef enum dsi_tag_validation { DSI_TAG_IGNORE, DSI_TAG_WARN, DSI_TAG_FAIL } dsi_tag_validation;
typedef enum dsi_on_nan { DSI_NAN_ERROR, DSI_NAN_CONTINUE } dsi_on_nan;

/* "optimizer" and "scheduler": the type's name and the text of the JSON object
 * params, or NULL. */
typedef struct dsi_config_named {
    char *type, *params;
} dsi_config_named;

typedef struct dsi_config_monitor {
    bool enabled;
    char *output_path, *job_name;
} dsi_config_monitor;

typedef struct dsi_config_zero {
    int64_t stage;
    bool reduce_scatter, overlap_comm, compute_grad_norm;
    int64_t reduce_bucket_size, allgather_bucket_size; /* elements */
    /* stage 3, elements; the "stage3_" names lead here too */
    int64_t prefetch_bucket_size, param_persistence_threshold, model_persistence_threshold;
    int64_t max_live_parameters, max_reuse_distance;
    bool gather_16bit_weights_on_model_save;
    int64_t sub_group_size;
    bool deterministic;
    struct {
        int device; /* dsi_offload_device */
        char *nvme_path;
        int64_t buffer_count;
        bool pin_memory, pipeline_read, pipeline_write, fast_init;
        double ratio;
    } offload_optimizer;
    struct {
        int device; /* dsi_offload_device */
        char *nvme_path;
        int64_t buffer_count, buffer_size, max_in_cpu;
        bool pin_memory;
    } offload_param;
} dsi_config_zero;

typedef struct dsi_config {
    int world_size; /* the ranks it was resolved for */
    /* always resolved: train = micro * accumulation * world_size */
    int64_t train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps;

    int64_t steps_per_print; /* 0: no lines */
    bool wall_clock_breakdown, memory_breakdown;
    double gradient_clipping; /* largest norm; 0: off */
    bool prescale_gradients;
    double gradient_predivide_factor;
    bool gradient_sum;           /* "gradient_allreduce_op": "sum" */
    int communication_data_type; /* a ds_dtype, or DSI_CONFIG_NO_DTYPE: the model's */
    bool dataloader_drop_last, zero_allow_untested_optimizer, managed_gradient_accumulation;
    int on_nan; /* dsi_on_nan: for a loss of inf or NaN, not in fp16 */

    dsi_config_named optimizer, scheduler;
    struct {
        bool enabled, auto_cast;
        double loss_scale; /* 0: dynamic */
        int64_t initial_scale_power, loss_scale_window, hysteresis;
        bool consecutive_hysteresis;
        int64_t min_loss_scale;
    } fp16;
    struct {
        bool enabled, check_grad_overflow;
    } bf16;
    struct {
        int dtype; /* a ds_dtype, or DSI_CONFIG_NO_DTYPE: bfloat16 */
        bool enabled;
    } torch_autocast;
    struct {
        bool enabled;
    } throughput; /* "timers.throughput" */
    struct {
        bool profile;
    } activation_checkpointing;
    struct {
        int grad_accum_dtype; /* a ds_dtype, or DSI_CONFIG_NO_DTYPE */
    } data_types;
    dsi_config_zero zero;

    dsi_config_monitor tensorboard, csv_monitor;
    struct {
        bool enabled, verbose, prof_all;
        char *prof_ops; /* "all_reduce,broadcast"; NULL: none */
    } comms_logger;
    struct {
        double recompute_fwd_factor;
        int64_t profile_step, module_depth, top_modules;
        char *output_file;      /* NULL: stdout */
        bool enabled, detailed; /* enabled turns wall_clock_breakdown on */
    } flops_profiler;

    struct {
        int tag_validation; /* dsi_tag_validation */
        bool load_universal;
        bool use_node_local_storage;
        bool async;
        double overhead_limit; /* 0: none */
        int64_t keep_last;     /* 0: all */
    } checkpoint;

    struct {
        int64_t block_size, queue_depth, intra_op_parallelism;
        bool single_submit, overlap_events;
    } aio;

    struct dsi_config_trees *trees; /* JSON: as given, and resolved; reader.h */
} dsi_config;

/* The ranks of the whole job, of which `ranks` are left: DS_FULL_WORLD_SIZE,
 * which the launcher sets (Note [Fewer ranks] in batch.c); else `ranks`. */
DSI_SHARED int dsi_config_full_world_size(int ranks);

/* Reads a configuration for world_size ranks. text: path of a file, JSON text,
 * or (urlsafe) base64 of JSON text. Returns NULL with a message that names
 * every wrong key. Not collective: initialize.c compares the results of the
 * ranks. */
dsi_config *dsi_config_read(const char *text, int world_size);
/* The same with values in place of "auto"; NULL: "auto" stays. */
dsi_config *dsi_config_read_auto(const char *text, const ds_auto_values *values, int world_size);
void dsi_config_free(dsi_config *c);

/* A value of "optimizer" or "scheduler" was refused by what was made of it:
 * puts "config: FILE: line N: " in front of the latest failure's message, if
 * that begins with the path of the key. Returns status. */
ds_status dsi_config_fail_at(const dsi_config *c, ds_status status);

/* The resolved configuration as JSON, every key with its value; free with
 * dsi_free. */
char *dsi_config_json(const dsi_config *c);

/* On rank 0: a WARNING for each deprecated key and one for keys without effect;
 * at INFO, DeepSpeed's "DeepSpeedEngine configuration:" with every value, and
 * the user's JSON. */
void dsi_config_print(const dsi_config *c);
