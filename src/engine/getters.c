/* engine/getters.c: what an engine answers about itself.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

#include <math.h>

ds_module *ds_engine_module(ds_engine *e) { return dsi_live(e, "engine_module") ? e->model : NULL; }
ds_optim *ds_engine_optimizer(ds_engine *e)
{
    return dsi_live(e, "engine_optimizer") ? e->optim : NULL;
}
ds_schedule *ds_engine_lr_scheduler(ds_engine *e)
{
    return dsi_live(e, "engine_lr_scheduler") ? e->schedule : NULL;
}
ds_loader *ds_engine_loader(ds_engine *e)
{
    return dsi_live(e, "engine_loader") ? e->loader : NULL;
}
ds_monitor *ds_engine_monitor(ds_engine *e)
{
    return dsi_live(e, "engine_monitor") ? e->monitor : NULL;
}
ds_comm *ds_engine_comm(ds_engine *e) { return dsi_live(e, "engine_comm") ? e->comm : NULL; }

ds_device ds_engine_device(const ds_engine *e)
{
    return dsi_live(e, "engine_device") ? ds_device_of(ds_module_param_at(e->model, 0, NULL))
                                        : (ds_device){DS_CPU, 0};
}

ds_dtype ds_engine_dtype(const ds_engine *e)
{
    return dsi_live(e, "engine_dtype") ? e->dtype : DS_F32;
}
int ds_engine_global_rank(const ds_engine *e)
{
    return dsi_live(e, "engine_global_rank") ? ds_comm_rank(e->comm) : 0;
}
int ds_engine_local_rank(const ds_engine *e)
{
    return dsi_live(e, "engine_local_rank") ? ds_comm_local_rank(e->comm) : 0;
}
int ds_engine_world_size(const ds_engine *e)
{
    return dsi_live(e, "engine_world_size") ? ds_comm_size(e->comm) : 0;
}
int64_t ds_engine_train_batch_size(const ds_engine *e)
{
    return dsi_live(e, "engine_train_batch_size") ? e->config->train_batch_size : 0;
}

int64_t ds_engine_train_micro_batch_size_per_gpu(const ds_engine *e)
{
    return dsi_live(e, "engine_train_micro_batch_size_per_gpu")
               ? e->config->train_micro_batch_size_per_gpu
               : 0;
}

int64_t ds_engine_gradient_accumulation_steps(const ds_engine *e)
{
    return dsi_live(e, "engine_gradient_accumulation_steps")
               ? e->config->gradient_accumulation_steps
               : 0;
}

bool ds_engine_was_step_applied(const ds_engine *e) { return e && e->applied; }
int64_t ds_engine_global_steps(const ds_engine *e)
{
    return dsi_live(e, "engine_global_steps") ? e->global_steps : 0;
}
int64_t ds_engine_micro_steps(const ds_engine *e)
{
    return dsi_live(e, "engine_micro_steps") ? e->micro_steps : 0;
}
int64_t ds_engine_global_samples(const ds_engine *e)
{
    return dsi_live(e, "engine_global_samples") ? e->global_samples : 0;
}
int64_t ds_engine_skipped_steps(const ds_engine *e)
{
    return dsi_live(e, "engine_skipped_steps") ? e->skipped_steps : 0;
}
double ds_engine_lr(const ds_engine *e)
{
    return dsi_live(e, "engine_lr") ? ds_optim_lr(e->optim) : 0;
}

void ds_engine_set_lr(ds_engine *e, double lr)
{
    for (int g = 0; e && g < ds_optim_groups(e->optim); g++) ds_optim_set_group_lr(e->optim, g, lr);
}

double ds_engine_loss_scale(const ds_engine *e)
{
    return dsi_live(e, "engine_loss_scale") ? e->scaler.scale : 1;
}
double ds_engine_global_grad_norm(const ds_engine *e)
{
    return dsi_live(e, "engine_global_grad_norm") ? e->norm : NAN;
}
bool ds_engine_fp16_enabled(const ds_engine *e) { return e && e->config->fp16.enabled; }
bool ds_engine_bf16_enabled(const ds_engine *e) { return e && e->config->bf16.enabled; }
int ds_engine_zero_stage(const ds_engine *e)
{
    return dsi_live(e, "engine_zero_stage") ? (int)e->config->zero.stage : 0;
}
double ds_engine_gradient_clipping(const ds_engine *e)
{
    return dsi_live(e, "engine_gradient_clipping") ? e->config->gradient_clipping : 0;
}
int64_t ds_engine_steps_per_print(const ds_engine *e)
{
    return dsi_live(e, "engine_steps_per_print") ? e->config->steps_per_print : 0;
}
