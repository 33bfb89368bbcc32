/* engine/initialize.c: ds_initialize and ds_engine_free: from the configuration
 * to the parts of an engine, in the order in which they need each other:
 * communicator, configuration, precision, optimizer, ZeRO, schedule, loss
 * scale, monitor, loader.
 *
 * Invariants: the engine owns its model, optimizer, schedule, loader, monitor
 * and timers from ds_initialize on, also if ds_initialize refuses; the
 * communicator is borrowed. While the engine lives its parts are marked as
 * taken: no other engine gets them and the program cannot free them.
 * ds_initialize is collective: configuration and data set are compared over the
 * ranks before the first step, and a failure of one rank ends the job on all.
 * SPDX-License-Identifier: MIT */

#include "base/log.h"
#include "base/map.h"
#include "checkpoint/hosts.h"
#include "checkpoint/save.h"
#include "comm/sync_status.h"
#include "data/loader.h"
#include "log_lines.h"
#include "nn/moe.h"
#include "optim/list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- ranks --------------------------------------------------------------------------------------------- */

static _Thread_local int engines; /* that exist, since one of them made the world */

/* Like deepspeed.initialize, makes the world of ranks for a program that has
 * not. The last engine destroys it, because such a program does not know of
 * it. */
static ds_status world_join(ds_engine *e, const ds_init *init)
{
    if (!init->comm && !engines && !ds_is_distributed()) {
        ds_status status = ds_init_distributed();
        if (status != DS_OK) return status;
        engines = 1;
        e->joined = true;
    } else if (engines) {
        engines++;
        e->joined = true;
    }
    e->comm = init->comm ? init->comm : ds_world();
    return e->comm ? DS_OK : ds_error_status();
}

/* ---- configuration ------------------------------------------------------------------------------------- */

/* The text from .config or --deepspeed_config; giving both is an error, as
 * the program cannot know which one counts. */
static const char *config_text_of(const ds_init *init)
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

/* Ranks with different configurations would wait for each other in different
 * collectives. */
static ds_status config_check_same(const ds_engine *e)
{
    char *json = dsi_config_json(e->config);
    int64_t two[2];
    int odd;
    ds_status status = dsi_sync_find_different(e->comm, (int64_t)dsi_fnv1a_text(json), &odd, two);
    dsi_free(json);
    if (status == DS_OK && odd)
        return dsi_fail(
            DS_EINVAL,
            "initialize: rank %d has another configuration than rank 0: give all ranks the "
            "same file",
            odd);
    return status;
}

/* A rank with fewer samples would end its epoch while others wait for it. */
static ds_status data_check_same(const ds_engine *e, ds_dataset *data)
{
    int64_t two[2];
    int odd;
    ds_status status = dsi_sync_find_different(e->comm, data ? ds_dataset_len(data) : 0, &odd, two);
    if (status == DS_OK && odd)
        return dsi_fail(
            DS_EINVAL,
            "initialize: rank %d has %lld samples of training data, rank 0 has %lld: give "
            "all ranks the same data set: the loader takes each rank's part of it",
            odd, (long long)two[1], (long long)two[0]);
    return status;
}

static ds_status config_read(ds_engine *e, const ds_init *init)
{
    const char *text = config_text_of(init);
    e->config = text ? dsi_config_read_auto(text, init->auto_values, ds_comm_size(e->comm)) : NULL;
    return e->config ? DS_OK : ds_error_status();
}

/* If the arguments are those of another launcher than the one that was
 * detected, each process would train on its own. */
static ds_status arguments_check(const ds_init *init)
{
    const ds_arguments *a = init->args;
    ds_comm *world = ds_world();
    if (!a || !strcmp(ds_comm_backend(world), "thread")) return DS_OK;
    if (a->deepspeed_mpi && !dsi_launched_by_mpi())
        return dsi_fail(DS_EINVAL,
                        "initialize: --deepspeed_mpi, but this process was not started by MPI: use "
                        "mpirun -n N PROGRAM, or leave the option out");
    if (a->local_rank < 0 || a->local_rank == ds_comm_local_rank(world)) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "initialize: --local_rank is %lld, but this process is rank %d of %d on its "
                    "machine: use mpirun -n N PROGRAM or the deepspeed command, which set both",
                    (long long)a->local_rank, ds_comm_local_rank(world), ds_comm_local_size(world));
}

/* ---- optimizer ----------------------------------------------------------------------------------------- */

/* ZeRO addresses the optimizer's parameters by their numbers in the model. */
static ds_status optimizer_check_params(const ds_engine *e)
{
    int n = e->optim ? dsi_optim_params(e->optim) : 0, i = 0;
    if (!e->optim) return DS_OK;
    while (i < n && e->optim->params[i].of == ds_module_param_at(e->model, i, NULL)) i++;
    if (i == n && n == ds_module_params(e->model)) return DS_OK;
    return dsi_fail(
        DS_EINVAL,
        "initialize: the optimizer %s was made of another module than the model %s: make "
        "it of the model",
        ds_optim_name(e->optim), ds_module_name(e->model));
}

/* In DeepSpeed's order: the program's optimizer, its function, the
 * configuration's. */
static ds_status optimizer_make(ds_engine *e, const ds_init *init)
{
    const dsi_config *c = e->config;
    if (init->optimizer && init->make_optimizer)
        return dsi_fail(DS_EINVAL, "initialize: .optimizer and .make_optimizer: give one of them");
    if (e->optim) {
        dsi_log(DSI_INFO, "Using client Optimizer as basic optimizer");
    } else if (init->make_optimizer) {
        dsi_log(DSI_INFO, "Using client callable to create basic optimizer");
        e->optim = init->make_optimizer(e->model, init->arg);
        if (!e->optim && ds_error()) return ds_error_status();
        if (!e->optim) return dsi_fail(DS_EINVAL, "initialize: .make_optimizer returned NULL");
    } else if (c->optimizer.type) {
        dsi_log(DSI_INFO, "Using DeepSpeed Optimizer param name %s as basic optimizer",
                c->optimizer.type);
        e->optim = ds_optim_by_name(e->model, c->optimizer.type, c->optimizer.params);
        if (!e->optim) return dsi_config_fail_at(c, ds_error_status());
        e->config_made = true;
    }
    if (!e->optim && c->zero.stage > 0 && c->zero.stage < 3)
        return dsi_fail(DS_EINVAL,
                        "initialize: zero_optimization.stage %d partitions an optimizer, but "
                        "there is none: "
                        "name one in the configuration (\"optimizer\"), or give .optimizer",
                        (int)c->zero.stage);
    if (e->optim) dsi_log(DSI_INFO, "DeepSpeed Basic Optimizer = %s", ds_optim_name(e->optim));
    return DS_OK;
}

/* Optimizers that DeepSpeed tested with ZeRO; others have to be allowed. */
static ds_status optimizer_check_tested(const ds_engine *e)
{
    const dsi_config *c = e->config;
    if (!e->optim || !c->zero.stage || c->zero_allow_untested_optimizer ||
        dsi_optim_zero_tested(e->optim))
        return DS_OK;
    dsi_text tested = dsi_optim_names(true);
    dsi_fail(DS_EINVAL,
             "initialize: %s is no optimizer that ZeRO was tested with (%s): add "
             "\"zero_allow_untested_optimizer\": true to use it with stage %d",
             ds_optim_name(e->optim), tested.s, (int)c->zero.stage);
    dsi_text_free(&tested);
    return DS_EINVAL;
}

/* ---- precision, and what updates ----------------------------------------------------------------------- */

/* Logs how the parameters are updated, in DeepSpeed's words. */
static void zero_log(const ds_engine *e, const dsi_zero_opts *o)
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
static void experts_log(const ds_engine *e)
{
    for (int i = 0; !ds_error() && i < ds_moe_layers(e->model); i++) {
        dsi_experts x = dsi_moe_experts(ds_moe_layer(e->model, i));
        dsi_log(DSI_INFO,
                "MoE layer with num_experts: %d | num_local_experts: %d | expert_parallel_size: %d",
                x.all, x.all / x.ep_size, x.ep_size);
    }
}

/* Whether the parameters of a model on a GPU wait in host memory, or in files. */
static bool params_leave_gpu(const ds_engine *e, const dsi_config_zero *c)
{
    const ds_tensor *x = ds_module_param_at(e->model, 0, NULL);
    return x && ds_device_of(x).kind != DS_CPU && c->stage == 3 &&
           c->offload_param.device != DSI_OFFLOAD_NONE;
}

/* Blocks of the parameters as they were before they were converted and divided
 * are not needed again. */
static void release_unused_blocks(const ds_module *model)
{
    const ds_tensor *x = ds_module_param_at(model, 0, NULL);
    if (x) dsi_cache_empty(x->device);
}

/* Without an optimizer the engine only evaluates: the model is converted,
 * nothing is partitioned. */
static ds_status zero_make(ds_engine *e)
{
    dsi_zero_opts o = dsi_engine_zero_opts(e->config);
    experts_log(e);
    if (e->optim) ds_optim_split_experts(e->optim, e->model);
    if (!e->optim) return ds_module_to(e->model, e->dtype);
    const dsi_config_zero *c = &e->config->zero;
    o.offload_param = params_leave_gpu(e, c);
    zero_log(e, &o);
    if (e->config->zero.deterministic) e->comm->ordered = true;
    e->zero = dsi_zero_new(e->model, e->optim, e->comm, &o);
    if (!e->zero) return ds_error_status();
    dsi_zero_on_norm(e->zero, dsi_engine_late_loss, e);
    return DS_OK;
}

/* Without fp16 the scale is 1. */
static void scaler_make(ds_engine *e)
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

/* The program's function takes precedence over the configuration. */
static ds_status schedule_make(ds_engine *e, const ds_init *init)
{
    const dsi_config *c = e->config;
    if (!e->optim) return DS_OK;
    if (init->make_lr_scheduler) {
        dsi_log(DSI_INFO, "DeepSpeed using client callable to create LR scheduler");
        e->schedule = init->make_lr_scheduler(e->optim, init->arg);
        return e->schedule ? DS_OK : dsi_null_argument("initialize: .make_lr_scheduler");
    }
    if (!c->scheduler.type) return DS_OK;
    dsi_log(DSI_INFO, "DeepSpeed using configured LR scheduler = %s", c->scheduler.type);
    e->schedule = ds_schedule_by_name(e->optim, c->scheduler.type, c->scheduler.params);
    if (e->schedule)
        dsi_log(DSI_INFO, "DeepSpeed LR Scheduler = %s", ds_schedule_name(e->schedule));
    return e->schedule ? DS_OK : dsi_config_fail_at(c, ds_error_status());
}

/* Rank 0 alone writes; a program may add sinks on any rank later. */
static ds_status monitor_make(ds_engine *e)
{
    const dsi_config *c = e->config;
    e->monitor = ds_monitor_new();
    if (ds_comm_rank(e->comm) != 0) return DS_OK;
    ds_status status = DS_OK;
    if (c->tensorboard.enabled)
        status = ds_monitor_tensorboard(e->monitor, c->tensorboard.output_path,
                                        c->tensorboard.job_name);
    if (status == DS_OK && c->csv_monitor.enabled)
        status = ds_monitor_csv(e->monitor, c->csv_monitor.output_path, c->csv_monitor.job_name);
    return status;
}

#define MOST_OPS 32 /* of comms_logger.prof_ops */

/* Begins before the parts are made, whose collectives are timed too. */
static ds_status comms_log_begin(const ds_engine *e)
{
    const dsi_config *c = e->config;
    const char *ops[MOST_OPS];
    int n = 0;
    DSI_ASSERT(c);
    if (!c->comms_logger.enabled) return DS_OK;
    char *names = c->comms_logger.prof_ops ? dsi_strdup(c->comms_logger.prof_ops) : NULL,
         *rest = NULL;
    for (char *name = names ? strtok_r(names, ",", &rest) : NULL; name && n < MOST_OPS;
         name = strtok_r(NULL, ",", &rest))
        ops[n++] = name;
    ds_status status = ds_comm_log_start(e->comm, c->comms_logger.verbose,
                                         c->comms_logger.prof_all ? NULL : ops, n);
    dsi_free(names);
    return status;
}

/* Loads this rank's part of each global batch, a micro batch at a time, in the
 * engine's dtype. */
static ds_loader *loader_make(const ds_engine *e, ds_dataset *data, bool shuffle, int workers,
                              uint64_t seed)
{
    int64_t batch = e->config->train_micro_batch_size_per_gpu;
    if (e->dtype != DS_F32) data = ds_transform_cast(data, e->dtype);
    return ds_loader_new(
        data, batch, .shuffle = shuffle, .drop_last = e->config->dataloader_drop_last,
        .workers = workers, .rank = ds_comm_rank(e->comm), .ranks = ds_comm_size(e->comm),
        .seed = seed,
        .global_batch = e->config->zero.deterministic ? e->config->train_batch_size : 0);
}

ds_loader *ds_engine_io(ds_engine *e, ds_dataset *data, bool shuffle)
{
    if (e) return loader_make(e, data, shuffle, 0, 0);
    ds_dataset_free(data);
    return dsi_null_operand("engine_io");
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

/* The model must exist, and neither it nor the optimizer may be owned by
 * another engine, which would free it too. */
static ds_status model_check(ds_engine *e)
{
    bool taken = dsi_module_take(e->model, false), both = e->optim && e->optim->taken;
    dsi_module_take(e->model, taken);
    if (!e->model)
        return ds_error() ? ds_error_status()
                          : dsi_fail(DS_EINVAL, "initialize: .model is NULL: "
                                                "ds_initialize(.model = net, ...)");
    if (taken) e->model = NULL;
    if (both) e->optim = NULL;
    if (!taken && !both) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "initialize: the %s belongs to another engine: each engine needs its own",
                    taken ? "model" : "optimizer");
}

/* Dtype, timers, throughput and loss scale. */
static void counters_make(ds_engine *e)
{
    const dsi_config *c = e->config;
    DSI_ASSERT(c);
    e->dtype = dsi_engine_zero_opts(c).dtype;
    if (!c->managed_gradient_accumulation) e->ends = DSI_ENDS_STEP;
    if (c->wall_clock_breakdown) e->timers = dsi_timers_new();
    e->throughput = (dsi_throughput){.off = !c->throughput.enabled,
                                     .batch_size = c->train_batch_size,
                                     .steps_per_print = c->steps_per_print};
    if (c->activation_checkpointing.profile)
        ds_checkpoint_configure((ds_checkpoint_opts){.profile = true});
    scaler_make(e);
}

/* The parts that a rank makes alone. Ranks mostly make the same mistakes:
 * a failure of one is a failure of all, which one rank prints. */
static ds_status parts_make_alone(ds_engine *e, const ds_init *init)
{
    ds_status status = model_check(e);
    if (status == DS_OK) status = arguments_check(init);
    if (status == DS_OK) status = config_read(e, init);
    if (status == DS_OK) status = comms_log_begin(e);
    if (status == DS_OK) status = dsi_engine_flops_check(e);
    if (status == DS_OK) counters_make(e);
    if (status == DS_OK) status = optimizer_make(e, init);
    if (status == DS_OK) status = optimizer_check_params(e);
    if (status == DS_OK) status = optimizer_check_tested(e);
    return ds_comm_sync_status(e->comm, status);
}

/* The order matters: each part needs those before it. */
static ds_status parts_make(ds_engine *e, const ds_init *init)
{
    ds_status status = world_join(e, init);
    if (status == DS_OK) status = parts_make_alone(e, init);
    if (status != DS_OK) return status;
    if (!e->config) return DS_EINVAL; /* never: clang-tidy cannot know that */
    status = config_check_same(e);
    if (status == DS_OK) status = zero_make(e);
    if (status == DS_OK) release_unused_blocks(e->model);
    if (status == DS_OK) status = schedule_make(e, init);
    if (status == DS_OK) status = monitor_make(e);
    if (status == DS_OK) status = data_check_same(e, init->training_data);
    return status;
}

/* The data set is freed after a failure; the loader, made last, owns it. */
static ds_status engine_make(ds_engine *e, const ds_init *init)
{
    ds_status status = parts_make(e, init);
    if (status != DS_OK) ds_dataset_free(init->training_data);
    if (status != DS_OK || !init->training_data) return status;
    e->loader = loader_make(e, init->training_data, !init->no_shuffle, init->workers, init->seed);
    return e->loader ? DS_OK : ds_error_status();
}

/* ---- life ---- */

ds_status dsi_engine_abort_ranks(const ds_engine *e)
{
    if (ds_comm_size(e->comm) > 1) dsi_comm_abort(e->comm, ds_error());
    return ds_error_status();
}

/* Marks the parts as owned by an engine, or no longer so. */
static void engine_take_parts(const ds_engine *e, bool taken)
{
    dsi_module_take(e->model, taken);
    dsi_loader_take(e->loader, taken);
    dsi_schedule_take(e->schedule, taken);
    if (e->optim) e->optim->taken = taken;
}

static const dsi_handle_kind engine_kind = {"engine", NULL, NULL, NULL};

ds_engine *ds_initialize_with(ds_init init)
{
    ds_engine *e = dsi_alloc(sizeof *e);
    dsi_handle_call("initialize");
    dsi_handle_made(e, &engine_kind);
    e->model = init.model;
    e->optim = init.optimizer;
    e->norm = NAN;
    dsi_scaler_static(&e->scaler, 1);
    if (engine_make(e, &init) == DS_OK) {
        engine_take_parts(e, true);
        if (e->optim) e->progress = dsi_progress_open();
        dsi_progress_ready(e->progress, 0);
        dsi_engine_log_start(e);
        return e;
    }
    if (e->comm && !ds_error_is_collective()) dsi_engine_abort_ranks(e);
    const char *was = dsi_handle_reason("ds_initialize, which was refused and frees what it took");
    ds_engine_free(e);
    dsi_handle_reason_end(was);
    return NULL;
}

void ds_engine_free(ds_engine *e)
{
    if (!dsi_live(e, "engine_free")) return;
    dsi_engine_end_async_save(e);
    dsi_hosts_free(e->hosts);
    free(e->copy_buffer.p);
    bool known = !ds_error() || ds_error_is_collective(); /* no rank waits for this one */
    if (e->comm && !known) dsi_engine_abort_ranks(e);
    if (e->config && e->config->comms_logger.enabled && !ds_error())
        ds_comm_log_summary(e->comm, false);
    const char *was = dsi_handle_reason("ds_engine_free");
    bool quarantined = dsi_handle_freed(e);
    engine_take_parts(e, false);
    ds_loader_free(e->loader);
    dsi_engine_late_loss_free(e);
    dsi_zero_free(e->zero);
    dsi_ema_free(e->ema);
    ds_schedule_free(e->schedule);
    ds_optim_free(e->optim);
    ds_module_free(e->model);
    ds_monitor_free(e->monitor);
    dsi_engine_flops_free(e);
    dsi_timers_free(e->timers);
    dsi_config_free(e->config);
    dsi_progress_close(e->progress);
    dsi_free(e->loaded);
    if (e->joined && !--engines) ds_destroy_process_group();
    dsi_handle_reason_end(was);
    if (!quarantined) dsi_free(e);
}
