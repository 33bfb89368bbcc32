/* engine/getters.c: what an engine answers about itself.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include <math.h>

/* A function `name` that returns the value; the last argument if e is NULL or freed, with
 * a message that names it. */
#define GETTER(type, name, of, value, ...) \
    type name(of *e) { return dsi_live(e, &#name[3]) ? (value) : (__VA_ARGS__); }

GETTER(ds_module *, ds_engine_module, ds_engine, e->model, NULL)
GETTER(ds_optim *, ds_engine_optimizer, ds_engine, e->optim, NULL)
GETTER(ds_schedule *, ds_engine_lr_scheduler, ds_engine, e->schedule, NULL)
GETTER(ds_loader *, ds_engine_loader, ds_engine, e->loader, NULL)
GETTER(ds_monitor *, ds_engine_monitor, ds_engine, e->monitor, NULL)
GETTER(ds_comm *, ds_engine_comm, ds_engine, e->comm, NULL)

GETTER(ds_device, ds_engine_device, const ds_engine,
       ds_device_of(ds_module_param_at(e->model, 0, NULL)), (ds_device){DS_CPU, 0})
GETTER(ds_dtype, ds_engine_dtype, const ds_engine, e->dtype, DS_F32)
GETTER(int, ds_engine_global_rank, const ds_engine, ds_comm_rank(e->comm), 0)
GETTER(int, ds_engine_local_rank, const ds_engine, ds_comm_local_rank(e->comm), 0)
GETTER(int, ds_engine_world_size, const ds_engine, ds_comm_size(e->comm), 0)
GETTER(int64_t, ds_engine_train_batch_size, const ds_engine, e->config->train_batch_size, 0)
GETTER(int64_t, ds_engine_train_micro_batch_size_per_gpu, const ds_engine,
       e->config->train_micro_batch_size_per_gpu, 0)
GETTER(int64_t, ds_engine_gradient_accumulation_steps, const ds_engine,
       e->config->gradient_accumulation_steps, 0)
GETTER(int64_t, ds_engine_global_steps, const ds_engine, e->global_steps, 0)
GETTER(int64_t, ds_engine_micro_steps, const ds_engine, e->micro_steps, 0)
GETTER(int64_t, ds_engine_global_samples, const ds_engine, e->global_samples, 0)
GETTER(int64_t, ds_engine_skipped_steps, const ds_engine, e->skipped_steps, 0)
GETTER(double, ds_engine_lr, const ds_engine, ds_optim_lr(e->optim), 0)
GETTER(double, ds_engine_loss_scale, const ds_engine, e->scaler.scale, 1)
GETTER(double, ds_engine_global_grad_norm, const ds_engine, e->norm, NAN)
GETTER(int, ds_engine_zero_stage, const ds_engine, (int)e->config->zero.stage, 0)
GETTER(double, ds_engine_gradient_clipping, const ds_engine, e->config->gradient_clipping, 0)
GETTER(int64_t, ds_engine_steps_per_print, const ds_engine, e->config->steps_per_print, 0)

bool ds_engine_was_step_applied(const ds_engine *e) { return e && e->applied; }
void ds_engine_set_lr(ds_engine *e, double lr)
{
    dsi_graph_forbid_call("engine_set_lr");
    for (int g = 0; e && g < ds_optim_groups(e->optim); g++) ds_optim_set_group_lr(e->optim, g, lr);
}

bool ds_engine_fp16_enabled(const ds_engine *e) { return e && e->config->fp16.enabled; }
bool ds_engine_bf16_enabled(const ds_engine *e) { return e && e->config->bf16.enabled; }

double ds_engine_timer_ms(const ds_engine *e, const char *name)
{
    return dsi_live(e, "engine_timer_ms") && name ? dsi_timer_logged_ms(e->timers, name) : NAN;
}

GETTER(double, ds_engine_samples_per_sec, const ds_engine, dsi_throughput_average(&e->throughput),
       0)
