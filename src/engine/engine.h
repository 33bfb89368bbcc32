/* engine/engine.h: the parts and the counters of an engine.
 *
 * Invariants: an engine belongs to the thread that made it. It owns every part
 * but the communicator. In a step the order is forward, backward, step:
 * went_backward is set from the one to the other. accumulated counts micro
 * steps since the last update, not modulo gradient_accumulation_steps; batch
 * sizes, saves and loads are possible only while it is 0 and went_backward is
 * false. micro_steps, global_steps, global_samples and skipped_steps change in
 * ds_engine_step (step.c) and ds_engine_load only.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/progress.h"
#include "comm/comm.h"
#include "config/config.h"
#include "parallel/ema.h"
#include "parallel/scaler.h"
#include "parallel/zero.h"
#include "timers.h"

#include <deepspeed/engine.h>

/* How it is decided whether the current micro step is the last one of an
 * update. */
typedef enum dsi_ends {
    DSI_ENDS_COUNTED, /* gradient_accumulation_steps */
    DSI_ENDS_NOW,     /* the program: it is the last */
    DSI_ENDS_LATER,   /* the program: it is not the last */
    DSI_ENDS_STEP     /* ds_engine_step, and no backward knows: managed_gradient_accumulation */
} dsi_ends;

/* A loss on a GPU that the step reads when it has waited for the norm. */
typedef struct dsi_late_loss {
    dsi_device *device; /* that pinned the memory; NULL: none so far */
    void *pinned;       /* its value arrives there, before `done` */
    dsi_event done;
    ds_dtype dtype;
    bool pending, whole; /* whole: it is not divided by the accumulation steps */
} dsi_late_loss;

/* When ranks next ask each other whether to stop (stop.c). */
typedef struct dsi_stop {
    int64_t next, every, asked_step; /* global steps; every 0: not asked yet */
    double asked_at;
    bool agreed;
} dsi_stop;

/* Memory into which a state is copied; p from malloc, or NULL. */
typedef struct dsi_copy_buffer {
    char *p;
    size_t bytes;
} dsi_copy_buffer;

struct ds_engine {
    dsi_config *config;
    ds_comm *comm; /* borrowed */
    ds_module *model;
    ds_optim *optim;       /* NULL: an engine that only evaluates */
    ds_schedule *schedule; /* NULL: the learning rate stays */
    dsi_zero *zero;        /* updates the parameters; NULL without an optimizer */
    dsi_scaler scaler;     /* of the loss; 1 without fp16 */
    dsi_ema *ema;          /* NULL until ds_engine_use_ema */
    ds_loader *loader;     /* NULL without training data */
    ds_monitor *monitor;
    dsi_timers *timers; /* NULL: off */
    dsi_throughput throughput;
    struct dsi_async_save *async_save; /* a checkpoint that is being written; NULL: none */
    bool async_save_logged;            /* its failure was printed */
    bool sinks_compared;               /* of the monitor, over the ranks */
    struct dsi_hosts *hosts;           /* checkpoint.use_node_local_storage; NULL: not opened */
    dsi_copy_buffer copy_buffer;       /* what it writes; kept for the next one */
    double save_ended, save_ended_cpu; /* its call: dsi_now, dsi_thread_time of its end */
    double save_took, save_took_cpu;   /* seconds; of processor time, with its thread's */
    double save_not_before;            /* dsi_now: overhead_limit does not allow the next one */
    dsi_progress *progress;            /* for the launcher; NULL: there is none */
    char *loaded;                      /* folder of the last checkpoint that was loaded */

    /* counters, as DeepSpeed's */
    int64_t micro_steps, global_steps, global_samples, skipped_steps;
    int64_t accumulated; /* micro steps since the last update */
    int64_t passes;      /* backwards since the last step */
    dsi_ends ends;

    dsi_late_loss late_loss;
    struct dsi_flops *flops; /* flops_profiler.c: to be reported at the end of the step */
    double loss_sum;         /* of the micro steps since the last boundary, as they count */
    double norm;             /* of the last step: of all gradients, before clipping */
    ds_dtype dtype;          /* of parameters and activations */
    bool joined;             /* an engine made the world of ranks: world_leave in initialize.c */
    bool config_made;        /* optim was made from the configuration */
    bool went_backward;      /* a backward waits for its step */
    bool flops_reported;
    dsi_stop stop;
    bool went_last;                /* and it was the last one of an update */
    struct dsi_captured *captured; /* step_graph.c: from a captured backward to its step */
    bool applied;                  /* the last step updated */
};

/* engine/initialize.c: after a failure, ends the other ranks too, which would
 * wait for this one. Returns the status of the failure. */
ds_status dsi_engine_abort_ranks(const ds_engine *e);

/* engine/backward.c: dsi_zero_on_norm; reads the loss that is pending, and
 * frees its memory. */
ds_status dsi_engine_late_loss(void *engine);
void dsi_engine_late_loss_free(ds_engine *e);

/* engine/backward.c: what follows from the value of a loss: DS_ESTATE if it is
 * inf or NaN and ends the training. */
bool dsi_engine_needs_loss(const ds_engine *e);
ds_status dsi_engine_take_loss(ds_engine *e, double value, bool whole);
bool dsi_engine_ends_on_nan(const ds_engine *e); /* fp16 skips the step, which is no error */

/* engine/step.c: whether inf or NaN among the gradients matters; what follows
 * an update or its skipping, before the averages; what follows each micro
 * step. */
bool dsi_engine_checks_overflow(const dsi_config *c);
ds_status dsi_engine_updated(ds_engine *e, const dsi_zero_step_result *r);
ds_status dsi_engine_end_step(ds_engine *e, bool boundary, ds_status status);

/* engine/step_graph.c: while the device of the loss records a step. A captured
 * step is finished by a hook, after each of its launches. */
ds_status dsi_engine_record_backward(const ds_engine *e, const ds_tensor *loss);
ds_status dsi_engine_capture_backward(ds_engine *e, ds_tensor *loss, bool last, bool whole);
ds_status dsi_engine_capture_step(ds_engine *e, bool boundary);
/* backward.c: of the loss in a pass; whole: it is not divided by the
 * accumulation steps */
double dsi_engine_loss_factor(const ds_engine *e, bool whole);

/* engine/flops_profiler.c: at the start, whether its file can be written;
 * around the forward: begin returns whether end is to be called when the timer
 * was stopped; before the other timers stop; at the end of a step that updates;
 * when the engine is freed. */
ds_status dsi_engine_flops_check(const ds_engine *e);
bool dsi_engine_flops_begin(ds_engine *e);
void dsi_engine_flops_end(ds_engine *e);
void dsi_engine_flops_wait(const ds_engine *e);
void dsi_engine_flops_report(ds_engine *e);
void dsi_engine_flops_free(ds_engine *e);

/* engine/zero_options.c */
dsi_zero_opts dsi_engine_zero_opts(const dsi_config *c);

/* engine/config_check.c: a model whose one parameter has no elements, for an
 * optimizer that is made only to check its options. It takes no device memory
 * and does not use the thread's generator. Free it with ds_module_free. */
ds_module *dsi_trial_model(void);
