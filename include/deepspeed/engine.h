/* deepspeed/engine.h: deepspeed.initialize and the engine that it returns: forward, backward, step, driven by
 * DeepSpeed's ds_config.json.
 *
 *     ds_engine *engine = ds_initialize(.model = net_new(), .training_data = train, .config = "ds_config.json");
 *     ds_loader *loader = ds_engine_loader(engine);
 *     while (ds_loader_next(loader, &b)) {
 *         ds_tensor *loss = ds_cross_entropy(ds_engine_forward(engine, b.x), b.y);
 *         ds_engine_backward(engine, loss);
 *         ds_engine_step(engine);
 *     }
 *
 * NULL passes: an engine that could not be made has no loader, and the loop does not turn; ds_error() says
 * why. A step that fails changes no parameter. docs/config.md has the keys, docs/engine.md what differs
 * from DeepSpeed.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_ENGINE_H
#define DEEPSPEED_ENGINE_H

#include <deepspeed/checkpoint.h>
#include <deepspeed/comm.h>
#include <deepspeed/data.h>
#include <deepspeed/monitor.h>
#include <deepspeed/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_engine ds_engine;

/* ---- options of a program ------------------------------------------------------------------------- */

typedef struct ds_arguments {
    bool deepspeed;               /* --deepspeed: no effect in the library, as in DeepSpeed */
    const char *deepspeed_config; /* --deepspeed_config FILE (base64 of JSON too); or NULL */
    int64_t local_rank;           /* --local_rank N, which launchers append; -1: not given */
    bool deepspeed_mpi; /* --deepspeed_mpi: ranks are those of mpirun, and there must be one */
} ds_arguments;

/* DeepSpeed's options as a child parser for glibc's argp; its input is a ds_arguments:
 *     struct argp_child children[] = {{ds_add_config_arguments(), 0, "DeepSpeed:", 0}, {0}};
 *     ... case ARGP_KEY_INIT: state->child_inputs[0] = &my->deepspeed;
 * Names are taken with underscores and hyphens. */
struct argp;
DS_API const struct argp *ds_add_config_arguments(void);

/* ---- life ------------------------------------------------------------------------------------------- */

typedef struct ds_init {
    ds_module *model;
    /* NULL: the program loads for itself, and there is no ds_engine_loader */
    ds_dataset *training_data;
    const char *config;       /* path of a DeepSpeed JSON, the JSON itself, or its base64 */
    const ds_arguments *args; /* its deepspeed_config in place of .config */
    /* One of the program's own in place of the config's; one of each pair. A schedule is made for the
     * optimizer it is given, so that it can only be made here. */
    ds_optim *optimizer;
    ds_optim *(*make_optimizer)(ds_module *model, void *arg);
    ds_schedule *(*make_lr_scheduler)(ds_optim *optimizer, void *arg);
    void *arg;     /* of the two */
    ds_comm *comm; /* borrowed; NULL: ds_world() */
    /* of the loader: */
    bool no_shuffle;
    int workers;   /* threads that load ahead; 0: none */
    uint64_t seed; /* of its order */
} ds_init;

/* Calls ds_init_distributed for a program that has not, whose last ds_engine_free then leaves the ranks. Model,
 * data and optimizer are taken: the engine frees them, even when it refuses. Converts the model to
 * fp16 or bf16 if the config says so. */
#define ds_initialize(...) ds_initialize_with((ds_init){__VA_ARGS__})
DS_API ds_engine *ds_initialize_with(ds_init init);
DS_API void ds_engine_free(ds_engine *e);

/* ---- the step ---------------------------------------------------------------------------------------- */

/* The model's forward. Floating inputs must have the engine's dtype, which the batches of its loader
 * have; with fp16.auto_cast others are converted. */
#define ds_engine_forward(e, ...) \
    ds_engine_forward_n(e, (ds_tensor *[]){__VA_ARGS__}, \
                        (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_engine_forward_n(ds_engine *e, ds_tensor **in, int n);

/* Gradients of loss / gradient_accumulation_steps, under the loss scale, averaged over the ranks at the
 * boundary. loss has one element. A loss that is inf or NaN is refused, but for fp16 (its step is skipped
 * and the scale shrinks) and "on_nan": "continue". */
DS_API ds_status ds_engine_backward(ds_engine *e, ds_tensor *loss);

/* At the accumulation boundary: unscale, clip, update, advance the schedule, forget the gradients. Between
 * boundaries it only counts. */
DS_API ds_status ds_engine_step(ds_engine *e);
DS_API void ds_engine_zero_grad(ds_engine *e);

/* From now on the program says which micro step is the last one of an update, before its backward; on all ranks
 * alike. So a group that is cut short by the end of the data becomes an update too (docs/engine.md), and
 * backward may be called again without a step in between while it is false. */
DS_API void ds_engine_set_gradient_accumulation_boundary(ds_engine *e, bool boundary);

/* Batch sizes from the next update on, on all ranks alike; refused between the micro steps of one. The first
 * changes gradient_accumulation_steps, the second the total. Loaders that are there keep their micro batch. */
DS_API ds_status ds_engine_set_train_batch_size(ds_engine *e, int64_t n);
DS_API ds_status ds_engine_set_train_micro_batch_size(ds_engine *e, int64_t n);

DS_API void ds_engine_train(ds_engine *e, bool training); /* the model's mode; at first training */
DS_API void ds_engine_eval(ds_engine *e);

/* ---- parts: borrowed, NULL if there is none ---------------------------------------------------------- */

DS_API ds_module *ds_engine_module(ds_engine *e);
DS_API ds_optim *ds_engine_optimizer(ds_engine *e);
DS_API ds_schedule *ds_engine_lr_scheduler(ds_engine *e);
DS_API ds_loader *ds_engine_loader(ds_engine *e);
/* To add sinks, and write scalars of one's own. Sinks are added on all ranks alike; the engine writes to
 * those of rank 0. */
DS_API ds_monitor *ds_engine_monitor(ds_engine *e);
DS_API ds_comm *ds_engine_comm(ds_engine *e);

/* A loader of other data for this engine: its micro batch, ranks, device, dtype, drop_last. Takes data; the
 * caller frees the loader. */
DS_API ds_loader *ds_engine_io(ds_engine *e, ds_dataset *data, bool shuffle);

/* A new state dict of the model's parameters and buffers, whole, on every rank, which all call it. masters:
 * in float32 as they are trained, not in the engine's dtype. */
DS_API ds_state *ds_engine_state(ds_engine *e, bool masters);
/* Weights and buffers from such a state dict, to where they are trained; moments and averages stay. All ranks call
 * it with the same values; a state dict that does not fit changes nothing. (ds_module_load writes what the model
 * computes with: where masters are apart from it, in 16 bit and with offload, the next step undoes that.) */
DS_API ds_status ds_engine_load_state(ds_engine *e, const ds_state *state);

/* ---- asking ------------------------------------------------------------------------------------------- */

DS_API ds_device ds_engine_device(const ds_engine *e);
DS_API ds_dtype ds_engine_dtype(const ds_engine *e); /* of parameters and activations */
DS_API int ds_engine_global_rank(const ds_engine *e);
DS_API int ds_engine_local_rank(const ds_engine *e);
DS_API int ds_engine_world_size(const ds_engine *e);
DS_API int64_t ds_engine_train_batch_size(const ds_engine *e);
DS_API int64_t ds_engine_train_micro_batch_size_per_gpu(const ds_engine *e);
DS_API int64_t ds_engine_gradient_accumulation_steps(const ds_engine *e);
/* Whether the micro step that runs ends an update. */
DS_API bool ds_engine_is_gradient_accumulation_boundary(const ds_engine *e);
/* Whether the last step updated: not between boundaries, nor after an overflow. */
DS_API bool ds_engine_was_step_applied(const ds_engine *e);
DS_API int64_t ds_engine_global_steps(const ds_engine *e); /* boundaries so far, skipped ones too */
DS_API int64_t ds_engine_micro_steps(const ds_engine *e);
DS_API int64_t ds_engine_global_samples(const ds_engine *e);
DS_API int64_t ds_engine_skipped_steps(const ds_engine *e);
/* Of the first parameter group, for the next update. */
DS_API double ds_engine_lr(const ds_engine *e);
/* Of all groups, until the schedule's next step. */
DS_API void ds_engine_set_lr(ds_engine *e, double lr);
DS_API double ds_engine_loss_scale(const ds_engine *e); /* 1 without fp16 */
/* L2 norm of all gradients of the last step, before clipping, over all ranks; inf where it was skipped. NaN
 * before the first step, and if nothing needs it and zero_optimization.compute_grad_norm is false. */
DS_API double ds_engine_global_grad_norm(const ds_engine *e);
DS_API bool ds_engine_fp16_enabled(const ds_engine *e);
DS_API bool ds_engine_bf16_enabled(const ds_engine *e);
DS_API int ds_engine_zero_stage(const ds_engine *e);
DS_API double ds_engine_gradient_clipping(const ds_engine *e);
DS_API int64_t ds_engine_steps_per_print(const ds_engine *e); /* 0: no lines */

/* ---- exponential moving average of the parameters ------------------------------------------------------ */

/* From now on every applied step does ema = decay ema + (1 - decay) p, in float32. */
DS_API ds_status ds_engine_use_ema(ds_engine *e, double decay);
/* Evaluate with the averages: exchanges them with the parameters; the same call again exchanges back.
 * Training steps are refused in between. */
DS_API ds_status ds_engine_swap_ema(ds_engine *e);

/* ---- checkpoints: docs/checkpoints.md -------------------------------------------------------------------- */

typedef struct ds_save_opts {
    const char *dir;
    const char *tag; /* NULL: "global_stepN" */
    /* a dict of the program's own, borrowed: ds_engine_load gives it back */
    const ds_value *client_state;
    bool no_latest;      /* DIR/latest stays as it is */
    bool exclude_frozen; /* parameters that are not trained are left out */
} ds_save_opts;

/* All that goes on where it was, bit for bit: ds_engine_save(e, "checkpoints"), ds_engine_save(e,
 * "checkpoints", .tag = "best"). In DeepSpeed's folders, files and names, below DIR/TAG. All ranks call it, at
 * the end of a step that updates. DIR/TAG becomes visible when all is on the disk; after a failure, which is
 * one of all ranks, what was there is as it was. With "checkpoint": {"async": true} it returns when the state
 * has been copied, and the next save, or ds_engine_save_wait, tells how the writing went. */
#define ds_engine_save(e, ...) ds_engine_save_with(e, (ds_save_opts){.dir = __VA_ARGS__})
DS_API ds_status ds_engine_save_with(ds_engine *e, ds_save_opts opts);
DS_API ds_status ds_engine_save_wait(ds_engine *e);

typedef struct ds_load_opts {
    const char *dir;
    /* NULL: what DIR/latest names; if that is damaged, the newest one that is whole */
    const char *tag;
    bool module_only;  /* only weights and buffers */
    bool no_optimizer; /* neither moments nor averages */
    bool no_schedule;
    bool not_strict; /* names that only the model or only the checkpoint has are passed over */
    ds_value **client_state; /* becomes the program's dict, to be freed with ds_value_free */
} ds_load_opts;

/* Goes on where the checkpoint was saved, by this library on any number of ranks in any stage and dtype, or by
 * DeepSpeed: ds_engine_load(e, "checkpoints"). The engine is a new one with the same model and optimizer. All
 * ranks call it. A failure changes nothing. */
#define ds_engine_load(e, ...) ds_engine_load_with(e, (ds_load_opts){.dir = __VA_ARGS__})
DS_API ds_status ds_engine_load_with(ds_engine *e, ds_load_opts opts);
/* DIR/TAG of the last one that was loaded; NULL: none. Borrowed. */
DS_API const char *ds_engine_loaded(const ds_engine *e);

/* The whole model in the engine's dtype as one file for inference: DIR/pytorch_model.bin if name is NULL, or a
 * name that ends in .safetensors. All ranks call it. Stage 3 wants
 * zero_optimization.stage3_gather_16bit_weights_on_model_save. */
DS_API ds_status ds_engine_save_16bit_model(ds_engine *e, const char *dir, const char *name);

/* ---- memory, before anything is made ------------------------------------------------------------------- */

typedef struct ds_memory_estimate {
    int stage;
    ds_dtype dtype; /* of parameters, gradients, activations */
    /* bytes of one rank */
    /* model state; optimizer: moments and float32 masters */
    int64_t parameters, gradients, optimizer;
    int64_t passing;  /* at the worst moment of a pass: activations, a new gradient, buckets */
    int64_t gathered; /* stage 3: parameters of other ranks */
    int64_t peak;     /* all of that */
    int64_t file;     /* offload to nvme: on disk, of which optimizer is what is in memory */
} ds_memory_estimate;

typedef struct ds_estimate_opts {
    const char *config;  /* as ds_init's */
    int world_size;      /* 0: 1 */
    int64_t params;      /* elements that are trained */
    int64_t largest;     /* elements of the largest parameter; 0: no larger than a bucket */
    int64_t activations; /* bytes that a micro step needs besides */
    /* In place of these three a model and a micro batch for it: one forward and backward is run and
     * measured, with the mean of what the model returns as its loss. Both are borrowed. No engine
     * may have the model yet. Afterwards the model, its gradients, this thread's generator and its
     * memory peaks are what they were. */
    ds_module *model;
    ds_tensor *input;
} ds_estimate_opts;

/* What a rank will need in training: ds_estimate_memory(&m, .config = "ds_config.json", .world_size = 4,
 * .params = 50000000). docs/memory.md says what is counted. */
#define ds_estimate_memory(out, ...) ds_estimate_memory_with(out, (ds_estimate_opts){__VA_ARGS__})
DS_API ds_status ds_estimate_memory_with(ds_memory_estimate *out, ds_estimate_opts opts);

#ifdef __cplusplus
}
#endif
#endif
