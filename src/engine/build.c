/* engine/build.c: from the configuration to the parts of an engine, in the order in which they need each
 * other: communicator, configuration, precision, optimizer, what updates, schedule, scaler, monitor, loader.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include "agree.h"
#include "base/log.h"
#include "base/mem.h"
#include "nn/moe.h"
#include "optim/optim.h"

#include <deepspeed/autograd.h>
#include <deepspeed/checkpoint.h>

#include <string.h>

/* ---- ranks --------------------------------------------------------------------------------------------- */

static _Thread_local int engines; /* that live, since one of them made the world */

/* As deepspeed.initialize: a program that has not made its world of ranks gets it here. The last engine
 * leaves it, for such a program does not know of it. */
static bool join(ds_engine *e, const ds_init *init)
{
    if (!init->comm && !engines && !ds_is_distributed()) {
        if (ds_init_distributed() != DS_OK) return false;
        engines = 1;
        e->joined = true;
    } else if (engines) {
        engines++;
        e->joined = true;
    }
    e->comm = init->comm ? init->comm : ds_world();
    return true;
}

void dsi_engine_leave(const ds_engine *e)
{
    if (e->joined && !--engines) ds_destroy_process_group();
}

/* ---- configuration ------------------------------------------------------------------------------------- */

static const char *config_text(const ds_init *init)
{
    const char *from_args = init->args ? init->args->deepspeed_config : NULL;
    if (init->config && from_args)
        return dsi_refuse(
            "initialize: a configuration is given twice: .config and --deepspeed_config %s: "
            "leave one of them out",
            from_args);
    if (!init->config && !from_args)
        return dsi_refuse("initialize: no configuration: give --deepspeed_config FILE, or .config");
    return init->config ? init->config : from_args;
}

/* The first rank whose number is not rank 0's, and the two numbers; 0: there is none; -1: the collective failed. */
static int odd_rank(const ds_engine *e, int64_t mine, int64_t two[2])
{
    int size = ds_comm_size(e->comm), odd = 0;
    if (size == 1) return 0;
    ds_scope *scope = ds_scope_open();
    ds_tensor *all = ds_zeros(DS_I64, ds_shape(size));
    bool done = ds_all_gather(e->comm, all, ds_from_data(DS_I64, ds_shape(1), &mine)) == DS_OK;
    const int64_t *of = done ? ds_data(all) : NULL;
    for (int r = 1; of && !odd && r < size; r++)
        if (of[r] != of[0]) two[0] = of[0], two[1] = of[r], odd = r;
    ds_scope_close(scope);
    return of ? odd : -1;
}

/* Ranks that were given different files would wait for each other in different places. */
static bool same_config(const ds_engine *e)
{
    char *json = dsi_config_json(e->config);
    int64_t two[2];
    int odd = odd_rank(e, (int64_t)dsi_same_hash(json), two);
    dsi_free(json);
    if (odd > 0)
        dsi_refuse("initialize: rank %d has another configuration than rank 0: give all ranks the "
                   "same file",
                   odd);
    return !odd;
}

/* With fewer samples a rank would leave the epoch while others wait for it. */
static bool same_data(const ds_engine *e, ds_dataset *data)
{
    int64_t two[2];
    int odd = odd_rank(e, data ? ds_dataset_len(data) : 0, two);
    if (odd > 0)
        dsi_refuse("initialize: rank %d has %lld samples of training data, rank 0 has %lld: give "
                   "all ranks the same data set: the loader takes each rank's part of it",
                   odd, (long long)two[1], (long long)two[0]);
    return !odd;
}

static bool read_config(ds_engine *e, const ds_init *init)
{
    const char *text = config_text(init);
    if (!text) return false;
    e->config = dsi_config_read(text, ds_comm_size(e->comm));
    return e->config && same_config(e);
}

/* What a launcher of another kind appends does not fit the world that was found: each process would train
 * alone. */
static bool check_arguments(const ds_init *init)
{
    const ds_arguments *a = init->args;
    ds_comm *world = ds_world();
    if (!a || !strcmp(ds_comm_backend(world), "thread")) return true;
    if (a->deepspeed_mpi && !dsi_launched_by_mpi())
        return dsi_refuse(
                   "initialize: --deepspeed_mpi, but this process was not started by MPI: use "
                   "mpirun -n N PROGRAM, or leave the option out") != NULL;
    if (a->local_rank < 0 || a->local_rank == ds_comm_local_rank(world)) return true;
    return dsi_refuse("initialize: --local_rank is %lld, but this process is rank %d of %d on its "
                      "machine: use mpirun -n N PROGRAM or the deepspeed command, which set both",
                      (long long)a->local_rank, ds_comm_local_rank(world),
                      ds_comm_local_size(world)) != NULL;
}

/* ---- optimizer ----------------------------------------------------------------------------------------- */

/* Masters and parts are told to the optimizer by the parameter's number in the model. */
static bool check_parameters(const ds_engine *e)
{
    int n = e->optim ? dsi_optim_params(e->optim) : 0, i = 0;
    if (!e->optim) return true;
    while (i < n && e->optim->params[i].of == ds_module_param_at(e->model, i, NULL)) i++;
    if (i == n && n == ds_module_params(e->model)) return true;
    return dsi_refuse(
               "initialize: the optimizer %s was made of another module than the model %s: make "
               "it of the model",
               ds_optim_name(e->optim), ds_module_name(e->model)) != NULL;
}

static bool make_optimizer(ds_engine *e, const ds_init *init)
{
    const dsi_config *c = e->config;
    if (init->optimizer && init->make_optimizer)
        return dsi_refuse("initialize: .optimizer and .make_optimizer: give one of them") != NULL;
    if (e->optim) {
        dsi_log(DSI_INFO, "Using client Optimizer as basic optimizer");
    } else if (init->make_optimizer) {
        dsi_log(DSI_INFO, "Using client callable to create basic optimizer");
        e->optim = init->make_optimizer(e->model, init->arg);
        if (!e->optim && ds_error()) return false;
        if (!e->optim) return dsi_refuse("initialize: .make_optimizer returned NULL") != NULL;
    } else if (c->optimizer.type) {
        dsi_log(DSI_INFO, "Using DeepSpeed Optimizer param name %s as basic optimizer",
                c->optimizer.type);
        e->optim = ds_optim_by_name(e->model, c->optimizer.type, c->optimizer.params);
        if (!e->optim) return false;
        e->config_made = true;
    }
    if (!e->optim && c->zero.stage > 0 && c->zero.stage < 3)
        return dsi_refuse("initialize: zero_optimization.stage %d partitions an optimizer, but "
                          "there is none: "
                          "name one in the configuration (\"optimizer\"), or give .optimizer",
                          (int)c->zero.stage) != NULL;
    if (e->optim) dsi_log(DSI_INFO, "DeepSpeed Basic Optimizer = %s", ds_optim_name(e->optim));
    return true;
}

/* Those that ZeRO was tested with in DeepSpeed; others want to be asked for. */
static bool check_tested(const ds_engine *e)
{
    static const char *const tested[] = {"adam", "adamw", "adagrad", "lion"};
    const dsi_config *c = e->config;
    if (!e->optim || !c->zero.stage || c->zero_allow_untested_optimizer) return true;
    for (size_t i = 0; i < sizeof tested / sizeof *tested; i++)
        if (!strcmp(ds_optim_name(e->optim), tested[i])) return true;
    return dsi_refuse("initialize: %s is no optimizer that ZeRO was tested with (Adam, AdamW, "
                      "Adagrad, Lion): "
                      "add \"zero_allow_untested_optimizer\": true to use it with stage %d",
                      ds_optim_name(e->optim), (int)c->zero.stage) != NULL;
}

/* ---- precision, and what updates ----------------------------------------------------------------------- */

/* inventory: accumulation is float32 for bf16 without ZeRO, else the model's dtype. */
static ds_dtype accumulation_dtype(const dsi_config *c, ds_dtype dtype)
{
    if (c->data_types.grad_accum_dtype >= 0) return (ds_dtype)c->data_types.grad_accum_dtype;
    return c->bf16.enabled && !c->zero.stage ? DS_F32 : dtype;
}

static dsi_aio_opts aio_opts(const dsi_config *c)
{
    return (dsi_aio_opts){.block_size = c->aio.block_size,
                          .queue_depth = (int)c->aio.queue_depth,
                          .threads = (int)c->aio.intra_op_parallelism,
                          .single_submit = c->aio.single_submit,
                          .in_batches = !c->aio.overlap_events};
}

/* What "nvme" says; without nvme_path: nothing. */
static dsi_offload_opts file_opts(const dsi_config *c)
{
    /* elements of a block: more does not make a disk faster, and less than a page of a file is a page all the same */
    const int64_t most = 1 << 20, least = DSI_AIO_ALIGN / 4, asked = c->zero.sub_group_size;
    bool files = c->zero.offload_optimizer.device == DSI_OFFLOAD_NVME;
    return (dsi_offload_opts){
        .nvme_path = files ? c->zero.offload_optimizer.nvme_path : NULL,
        .buffer_count = (int)c->zero.offload_optimizer.buffer_count,
        .buffer_size = asked > most             ? most
                       : asked && asked < least ? least
                                                : asked,
        .pin_memory = c->zero.offload_optimizer.pin_memory,
        .pipeline_read = c->zero.offload_optimizer.pipeline_read,
        .pipeline_write = c->zero.offload_optimizer.pipeline_write,
        .fast_init = c->zero.offload_optimizer.fast_init,
        .in_memory = 1 - c->zero.offload_optimizer.ratio,
        .aio = aio_opts(c),
    };
}

static dsi_param_swap_opts param_file_opts(const dsi_config *c)
{
    bool files = c->zero.offload_param.device == DSI_OFFLOAD_NVME;
    return (dsi_param_swap_opts){
        .nvme_path = files ? c->zero.offload_param.nvme_path : NULL,
        .buffer_count = (int)c->zero.offload_param.buffer_count,
        .buffer_size = c->zero.offload_param.buffer_size,
        .max_in_cpu = c->zero.offload_param.max_in_cpu,
        .pin_memory = c->zero.offload_param.pin_memory,
        .aio = aio_opts(c),
    };
}

dsi_zero_opts dsi_engine_zero_opts(const dsi_config *c)
{
    ds_dtype dtype = c->fp16.enabled ? DS_F16 : c->bf16.enabled ? DS_BF16 : DS_F32;
    return (dsi_zero_opts){
        .stage = (int)c->zero.stage,
        .dtype = dtype,
        .accum_dtype = accumulation_dtype(c, dtype),
        .comm_dtype = c->communication_data_type >= 0 ? (ds_dtype)c->communication_data_type
                                                      : dtype,
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
        .files = file_opts(c),
        .param_files = param_file_opts(c),
    };
}

/* What updates the parameters, in DeepSpeed's words. */
static void announce_zero(const ds_engine *e, const dsi_zero_opts *o)
{
    const dsi_config *c = e->config;
    if (o->stage) {
        dsi_log(DSI_INFO, "Creating torch.%s ZeRO stage %d optimizer", ds_dtype_name(o->dtype),
                o->stage);
        dsi_log(DSI_INFO, "Reduce bucket size %lld", (long long)c->zero.reduce_bucket_size);
        dsi_log(DSI_INFO, "Allgather bucket size %lld", (long long)c->zero.allgather_bucket_size);
        dsi_log(DSI_INFO, "CPU Offload: %s", o->offload_optimizer ? "True" : "False");
    } else if (c->bf16.enabled) {
        dsi_log(DSI_INFO, "Creating BF16 optimizer");
    } else if (c->fp16.enabled && c->fp16.loss_scale == 0) {
        dsi_log(DSI_INFO, "Creating fp16 optimizer with dynamic loss scale");
    } else if (c->fp16.enabled) {
        dsi_log(DSI_INFO, "Creating fp16 optimizer with static loss scale: %g", c->fp16.loss_scale);
    }
    dsi_log(DSI_INFO, "DeepSpeed Final Optimizer = %s", ds_optim_name(e->optim));
}

/* DeepSpeed's line for each layer of experts. */
static void announce_experts(const ds_engine *e)
{
    for (int i = 0; !ds_error() && i < ds_moe_layers(e->model); i++) {
        dsi_experts x = dsi_moe_experts(ds_moe_layer(e->model, i));
        dsi_log(DSI_INFO,
                "MoE layer with num_experts: %d | num_local_experts: %d | expert_parallel_size: %d",
                x.all, x.all / x.ep_size, x.ep_size);
    }
}

static bool lacks_path(int device, const char *path)
{
    return device == DSI_OFFLOAD_NVME && (!path || !*path); /* "" would be the root */
}

static bool make_zero(ds_engine *e)
{
    dsi_zero_opts o = dsi_engine_zero_opts(e->config);
    announce_experts(e);
    if (e->optim) ds_optim_split_experts(e->optim, e->model);
    if (!e->optim) return ds_module_to(e->model, e->dtype) == DS_OK;
    const dsi_config_zero *c = &e->config->zero;
    const char *lacks = lacks_path(c->offload_optimizer.device, o.files.nvme_path)
                            ? "offload_optimizer"
                        : lacks_path(c->offload_param.device, o.param_files.nvme_path)
                            ? "offload_param"
                            : NULL;
    if (lacks)
        return dsi_refuse("initialize: zero_optimization.%s.device is \"nvme\", but there is no "
                          "nvme_path: name a folder on that disk",
                          lacks) != NULL;
    announce_zero(e, &o);
    e->zero = dsi_zero_new(e->model, e->optim, e->comm, &o);
    return e->zero != NULL;
}

static void make_scaler(ds_engine *e)
{
    const dsi_config *c = e->config;
    if (c->fp16.enabled && c->fp16.loss_scale == 0)
        dsi_scaler_dynamic(&e->scaler, (int)c->fp16.initial_scale_power, c->fp16.loss_scale_window,
                           c->fp16.hysteresis, c->fp16.consecutive_hysteresis,
                           (double)c->fp16.min_loss_scale);
    else
        dsi_scaler_static(&e->scaler, c->fp16.enabled ? c->fp16.loss_scale : 1);
}

/* ---- schedule, monitor, loader ------------------------------------------------------------------------- */

static bool make_schedule(ds_engine *e, const ds_init *init)
{
    const dsi_config *c = e->config;
    if (!e->optim) return true;
    if (init->make_lr_scheduler) {
        dsi_log(DSI_INFO, "DeepSpeed using client callable to create LR scheduler");
        e->schedule = init->make_lr_scheduler(e->optim, init->arg);
        return e->schedule || dsi_null_operand("initialize: .make_lr_scheduler") != NULL;
    }
    if (!c->scheduler.type) return true;
    dsi_log(DSI_INFO, "DeepSpeed using configured LR scheduler = %s", c->scheduler.type);
    e->schedule = ds_schedule_by_name(e->optim, c->scheduler.type, c->scheduler.params);
    if (e->schedule)
        dsi_log(DSI_INFO, "DeepSpeed LR Scheduler = %s", ds_schedule_name(e->schedule));
    return e->schedule != NULL;
}

/* Only rank 0 writes; a user's sinks may be added on any rank later. */
static bool make_monitor(ds_engine *e)
{
    const dsi_config *c = e->config;
    e->monitor = ds_monitor_new();
    if (ds_comm_rank(e->comm) != 0) return true;
    if (c->tensorboard.enabled && ds_monitor_tensorboard(e->monitor, c->tensorboard.output_path,
                                                         c->tensorboard.job_name) != DS_OK)
        return false;
    return !c->csv_monitor.enabled ||
           ds_monitor_csv(e->monitor, c->csv_monitor.output_path, c->csv_monitor.job_name) == DS_OK;
}

#define MOST_OPS 32 /* of comms_logger.prof_ops */

/* Collectives are timed from now on, so that those of the making of the parts count too. */
static bool start_comms_log(const ds_engine *e)
{
    const dsi_config *c = e->config;
    const char *ops[MOST_OPS];
    int n = 0;
    if (!c->comms_logger.enabled) return true;
    char *names = c->comms_logger.prof_ops ? dsi_strdup(c->comms_logger.prof_ops) : NULL,
         *rest = NULL;
    for (char *name = names ? strtok_r(names, ",", &rest) : NULL; name && n < MOST_OPS;
         name = strtok_r(NULL, ",", &rest))
        ops[n++] = name;
    ds_status status = ds_comm_log_start(e->comm, c->comms_logger.verbose,
                                         c->comms_logger.prof_all ? NULL : ops, n);
    dsi_free(names);
    return status == DS_OK;
}

/* Data in the engine's dtype, a micro batch a turn, this rank's share of each global batch. */
static ds_loader *make_loader(const ds_engine *e, ds_dataset *data, bool shuffle, int workers,
                              uint64_t seed)
{
    int64_t batch = e->config->train_micro_batch_size_per_gpu;
    if (e->dtype != DS_F32) data = ds_transform_cast(data, e->dtype);
    ds_loader *l = ds_loader_new(
        data, batch, .shuffle = shuffle, .drop_last = e->config->dataloader_drop_last,
        .workers = workers, .rank = ds_comm_rank(e->comm), .ranks = ds_comm_size(e->comm),
        .seed = seed,
        .global_batch = e->config->zero.deterministic ? e->config->train_batch_size : 0);
    if (l && !ds_loader_len(l) && !ds_comm_rank(e->comm))
        dsi_log(DSI_WARNING,
                "the loader has no batch: a rank's data are less than its micro batch of %lld, and "
                "dataloader_drop_last leaves such a rest out",
                (long long)batch);
    return l;
}

ds_loader *ds_engine_io(ds_engine *e, ds_dataset *data, bool shuffle)
{
    if (e) return make_loader(e, data, shuffle, 0, 0);
    ds_dataset_free(data);
    return dsi_null_operand("engine_io");
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* There is one, and it is not another engine's, which would free it too. */
static bool check_model(ds_engine *e)
{
    bool taken = dsi_module_take(e->model, false), both = e->optim && e->optim->taken;
    dsi_module_take(e->model, taken);
    if (!e->model && !ds_error())
        dsi_refuse("initialize: .model is NULL: ds_initialize(.model = net, ...)");
    else if (taken || both)
        dsi_refuse("initialize: the %s belongs to another engine: each engine needs its own",
                   taken ? "model" : "optimizer");
    if (taken) e->model = NULL;
    if (both) e->optim = NULL;
    return e->model && !both;
}

static bool build(ds_engine *e, const ds_init *init)
{
    if (!join(e, init)) return false;
    if (!e->comm || !check_model(e)) return false;
    if (!check_arguments(init) || !read_config(e, init) || !start_comms_log(e)) return false;
    e->dtype = dsi_engine_zero_opts(e->config).dtype;
    if (e->config->wall_clock_breakdown) e->timers = dsi_timers_new();
    e->throughput = (dsi_throughput){.off = !e->config->throughput.enabled,
                                     .batch_size = e->config->train_batch_size,
                                     .steps_per_print = e->config->steps_per_print};
    if (e->config->activation_checkpointing.profile)
        ds_checkpoint_configure((ds_checkpoint_opts){.profile = true});
    make_scaler(e);
    return make_optimizer(e, init) && check_parameters(e) && check_tested(e) && make_zero(e) &&
           make_schedule(e, init) && make_monitor(e);
}

bool dsi_engine_build(ds_engine *e, const ds_init *init)
{
    if (!build(e, init) || !same_data(e, init->training_data)) {
        ds_dataset_free(init->training_data);
        return false;
    }
    if (!init->training_data) return true;
    e->loader = make_loader(e, init->training_data, !init->no_shuffle, init->workers, init->seed);
    return e->loader != NULL;
}
