/* deepspeed/engine.h: deepspeed.initialize and the engine that it returns:
 * forward, backward, step, driven by DeepSpeed's ds_config.json.
 *
 *     ds_engine *engine = ds_initialize(.model = net_new(), .training_data = train,
 *                                       .config = "ds_config.json");
 *     ds_loader *loader = ds_engine_loader(engine);
 *     while (ds_loader_next(loader, &b)) {
 *         ds_tensor *loss = ds_cross_entropy(ds_engine_forward(engine, b.x), b.y);
 *         ds_engine_backward(engine, loss);
 *         ds_engine_step(engine);
 *     }
 *
 * Conventions of this header:
 *   - e may be NULL, which is what ds_initialize returns after a failure: actions
 *     return the status of that failure, getters 0, false or NULL. So the loop
 *     above ends at once, and ds_error() has the message.
 *   - "Collective": all ranks of the engine's communicator call it, in the same
 *     order. A failure of one rank ends the job on all of them.
 *   - "Borrowed": the engine owns the result; it is valid until ds_engine_free.
 *   - A step that fails changes no parameter.
 *
 * docs/config.md has the keys of the configuration, docs/engine.md what differs
 * from DeepSpeed.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_ENGINE_H
#define DEEPSPEED_ENGINE_H

#include <deepspeed/checkpoint.h>
#include <deepspeed/comm.h>
#include <deepspeed/config.h>
#include <deepspeed/data.h>
#include <deepspeed/monitor.h>
#include <deepspeed/optim.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_engine ds_engine;

/* ---- options of a program ---- */

/* The options that ds_add_config_arguments parses. */
typedef struct ds_arguments {
    bool deepspeed;               /* --deepspeed: no effect in the library, as in DeepSpeed */
    const char *deepspeed_config; /* --deepspeed_config FILE (or base64 of JSON); or NULL */
    int64_t local_rank;           /* --local_rank N, which launchers append; -1: not given */
    bool deepspeed_mpi;           /* --deepspeed_mpi: fail unless MPI started the ranks */
} ds_arguments;

/* deepspeed.add_config_arguments: DeepSpeed's options as a child parser for
 * glibc's argp. Its input is a ds_arguments, filled before main's parser sees
 * the options:
 *     struct argp_child children[] = {{ds_add_config_arguments(), 0, "DeepSpeed:", 0}, {0}};
 *     ... case ARGP_KEY_INIT: state->child_inputs[0] = &my->deepspeed;
 * Names are accepted with underscores and with hyphens. Returns a constant. */
struct argp;
DS_API const struct argp *ds_add_config_arguments(void);

/* ---- making an engine ---- */

typedef struct ds_init {
    ds_module *model; /* taken; required */
    /* Taken. The engine's loader divides it among the ranks, which must all
     * give the same data set. NULL: ds_engine_loader returns NULL. */
    ds_dataset *training_data;
    /* Path of a ds_config.json, its JSON text, or base64 of that. Required here
     * or in args, not in both. */
    const char *config;
    const ds_arguments *args; /* borrowed during the call; or NULL */
    /* Fill "auto" in the configuration. Borrowed during the call. NULL: a key
     * with "auto" gets its default where DeepSpeed gives it one, and is an
     * error elsewhere. */
    const ds_auto_values *auto_values;
    /* An optimizer of the program in place of the configuration's: one that
     * exists (taken), or a function that makes it. At most one of the two. */
    ds_optim *optimizer;
    ds_optim *(*make_optimizer)(ds_module *model, void *arg);
    /* A schedule in place of the configuration's, made for the engine's
     * optimizer. */
    ds_schedule *(*make_lr_scheduler)(ds_optim *optimizer, void *arg);
    void *arg;     /* passed to the two functions */
    ds_comm *comm; /* borrowed; NULL: ds_world() */
    /* Of the loader: */
    bool no_shuffle;
    int workers;   /* threads that load batches in advance; 0: none */
    uint64_t seed; /* of the order of samples */
} ds_init;

/* deepspeed.initialize: ds_initialize(.model = net, .config =
 * "ds_config.json"). Makes the optimizer, schedule, loader and monitor of the
 * configuration, and converts the model to fp16 or bf16 if the configuration
 * says so. If the program has not called ds_init_distributed, it is called
 * here, and the last ds_engine_free destroys the process group. Model, data and
 * optimizer are taken, also by a call that fails. Collective: ranks with
 * different configurations or data sets are an error. Returns NULL on
 * failure. */
#define ds_initialize(...) ds_initialize_with((ds_init){__VA_ARGS__})
DS_API ds_engine *ds_initialize_with(ds_init init);

/* Waits for an asynchronous save, and frees the engine and all it owns.
 * Collective if the last save was asynchronous and was not waited for: ranks
 * wait for each other's disks, up to DS_SAVE_TIMEOUT. After a failure
 * (ds_error()) it ends the other ranks too. */
DS_API void ds_engine_free(ds_engine *e);

/* ---- the training step ---- */

/* engine(inputs): ds_engine_forward(e, x, ...) calls the model's forward. in: n
 * tensors, at most DS_MAX_OP_INPUTS, borrowed. Floating inputs must have the
 * engine's dtype, as the batches of its loader do; with fp16.auto_cast they are
 * cast. Returns what the model returns, in the current scope; NULL on failure.
 * Collective with ZeRO stage 3. */
#define ds_engine_forward(e, ...) \
    ds_engine_forward_n(e, (ds_tensor *[]){__VA_ARGS__}, \
                        (int)(sizeof((ds_tensor *[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
DS_API ds_tensor *ds_engine_forward_n(ds_engine *e, ds_tensor **in, int n);

/* engine.backward: adds the gradients of loss / gradient_accumulation_steps,
 * times the loss scale; at an accumulation boundary they are averaged over the
 * ranks. loss: one element, of this rank's micro batch, borrowed. DS_ESTATE:
 * there is no optimizer, ds_engine_step was not called after the previous
 * backward, the parameters are the averaged ones, or the loss is inf or NaN
 * (allowed in fp16, where the step is skipped and the scale reduced, and with
 * "on_nan": "continue"). DS_EINVAL: the loss has more than one element.
 * Collective at a boundary. */
DS_API ds_status ds_engine_backward(ds_engine *e, ds_tensor *loss);

typedef struct ds_backward_opts {
    /* scale_wrt_gas=False: the loss is not divided by
     * gradient_accumulation_steps. For a loss that the program has weighted, by
     * its share of the tokens of an update. */
    bool no_scale_wrt_gas;
} ds_backward_opts;
DS_API ds_status ds_engine_backward_with(ds_engine *e, ds_tensor *loss, ds_backward_opts opts);

/* engine.step: at an accumulation boundary unscales and clips the gradients,
 * updates the parameters, advances the schedule and resets the gradients; inf
 * or NaN in a gradient skips the update (fp16, bf16, and with "on_nan":
 * "continue" float32 in stages 1 to 3). Between boundaries it only counts.
 * DS_ESTATE: no backward, or a gradient with inf or NaN in float32, and nothing
 * was updated. Collective at a boundary. */
DS_API ds_status ds_engine_step(ds_engine *e);

/* A step graph (ds_step_graph_new) for micro steps of e: `step` calls
 * ds_engine_forward, ds_engine_backward and ds_engine_step once each, and
 * returns the loss. On a GPU the micro steps of an update are recorded kind by
 * kind (the first, those between, the last), and launched as graphs, with the
 * same bits. Clipping, and the skipping of a step, are then decided on the GPU,
 * and the host waits once a micro step, in which it also reads the loss:
 * ds_item of the result is free. On several ranks collectives are part of the
 * graph (NCCL), and a rank may replay a step which another one runs by the
 * function. On several ranks without NCCL, or in stage 3 with accumulation,
 * with an optimizer in host memory, and with wall_clock_breakdown or
 * memory_breakdown each run is the function, and one line of rank 0's log says
 * why.
 *
 * The caller frees the result (ds_step_graph_free), before e. NULL if e or step
 * is NULL. */
DS_API ds_step_graph *ds_engine_step_graph_new(ds_engine *e, ds_step_fn *step, void *self);

/* engine.zero_grad: resets the gradients; ds_engine_step does that too. After a
 * backward, on all ranks alike, it drops that batch: another backward may
 * follow, and a step without one is refused. (DeepSpeed's stages 1 to 3 keep
 * the gradients.) */
DS_API void ds_engine_zero_grad(ds_engine *e);

/* engine.set_gradient_accumulation_boundary: from now on the program says,
 * before each backward, whether that micro step is the last one of an update;
 * the same on all ranks. So a group that the end of the data cuts short can be
 * an update (docs/engine.md), and backward may be called repeatedly without a
 * step while boundary is false. */
DS_API void ds_engine_set_gradient_accumulation_boundary(ds_engine *e, bool boundary);

/* engine.set_train_batch_size, engine.set_train_micro_batch_size: batch sizes
 * from the next update on; the same on all ranks. The first changes
 * gradient_accumulation_steps: n is the total in samples, a multiple of micro
 * batch * ranks (else DS_EINVAL). The second changes the total: n is in samples
 * of a rank, 1 to 2^31 - 1. Loaders that exist keep their micro batch.
 * DS_ESTATE: between the micro steps of an update, or with
 * zero_optimization.deterministic. */
DS_API ds_status ds_engine_set_train_batch_size(ds_engine *e, int64_t n);
DS_API ds_status ds_engine_set_train_micro_batch_size(ds_engine *e, int64_t n);

/* engine.train, engine.eval: the model's mode; a new engine is in training. */
DS_API void ds_engine_train(ds_engine *e, bool training);
DS_API void ds_engine_eval(ds_engine *e);

/* ---- parts of an engine: borrowed, NULL if it has none ---- */

DS_API ds_module *ds_engine_module(ds_engine *e);
DS_API ds_optim *ds_engine_optimizer(ds_engine *e);
DS_API ds_schedule *ds_engine_lr_scheduler(ds_engine *e);
DS_API ds_loader *ds_engine_loader(ds_engine *e);
/* To add sinks, on all ranks alike before the first update, and to write
 * scalars of the program. The first update, and no later one, fails if only
 * some ranks have sinks. The engine writes to the sinks of rank 0. */
DS_API ds_monitor *ds_engine_monitor(ds_engine *e);
DS_API ds_comm *ds_engine_comm(ds_engine *e);

/* engine.deepspeed_io: a loader of other data with the engine's micro batch,
 * ranks, device, dtype and drop_last. Takes data, also on failure. The caller
 * frees the loader. Returns NULL on failure. */
DS_API ds_loader *ds_engine_io(ds_engine *e, ds_dataset *data, bool shuffle);

/* A new state dict of the model's parameters and buffers, complete on every
 * rank; the caller frees it. masters: parameters in float32, as they are
 * trained, not in the engine's dtype. Collective. Returns NULL on failure. */
DS_API ds_state *ds_engine_state(ds_engine *e, bool masters);

/* Weights and buffers from such a state dict (borrowed, with the same values on
 * all ranks), to where they are trained; moments and averages stay. DS_EINVAL:
 * names or shapes do not fit; DS_ESTATE: the parameters are the averaged ones;
 * nothing changes then. Collective. (ds_module_load writes the parameters that
 * the model computes with: in 16 bits and with offload their masters, or what
 * they have beside the parameters, are elsewhere, and the next step may undo
 * that.) */
DS_API ds_status ds_engine_load_state(ds_engine *e, const ds_state *state);

/* ---- one parameter ---- */

/* safe_get_full_grad, safe_get_full_fp32_param, safe_get_full_optimizer_state:
 * what is "grad", "fp32", or a state of the optimizer by its name ("exp_avg");
 * param is a parameter of the model, of the experts that ranks share each
 * rank's own. Returns a new float32 tensor of param's shape, the same on all
 * ranks that have param, in the current scope and on param's device.
 *   grad     after the backward that ends an update and before its step: the mean over
 *            the ranks of the sum over micro steps, as the optimizer gets it: times the
 *            loss scale, and not clipped; zeros if the loss does not depend on param
 *   fp32     the value that is trained: the master weight
 *   states   zeros before the first update
 * NULL with the message: DS_ESTATE: no complete gradient, or the update has the
 * optimizer's file (offload_optimizer to nvme, between a backward and its
 * step), or there is no optimizer; DS_EINVAL: no parameter of the model, one
 * that is not trained, or no such state. Collective. Not in a step graph. */
DS_API ds_tensor *ds_engine_get_full(ds_engine *e, ds_tensor *param, const char *what);

/* safe_set_full_grad, _fp32_param, _optimizer_state: the way back: value is a
 * floating tensor of param's shape, the same on all ranks, borrowed. "fp32"
 * also changes the parameter that the model computes with. (For a whole model
 * ds_engine_load_state sends less.) Failures as above; DS_EINVAL: another
 * shape. A refused call changes nothing.
 * Collective. */
DS_API ds_status ds_engine_set_full(ds_engine *e, ds_tensor *param, const char *what,
                                    ds_tensor *value);

/* safe_get_local_grad and so on: the elements of param that this rank updates,
 * [n], as a shard in stages 1 to 3; [0] if it has none of them. Collective,
 * too. */
DS_API ds_tensor *ds_engine_get_local(ds_engine *e, ds_tensor *param, const char *what);
DS_API ds_status ds_engine_set_local(ds_engine *e, ds_tensor *param, const char *what,
                                     ds_tensor *value);

/* ---- getters: named like DeepSpeed's properties ---- */

DS_API ds_device ds_engine_device(const ds_engine *e);
DS_API ds_dtype ds_engine_dtype(const ds_engine *e); /* of parameters and activations */
DS_API int ds_engine_global_rank(const ds_engine *e);
DS_API int ds_engine_local_rank(const ds_engine *e);
DS_API int ds_engine_world_size(const ds_engine *e);
/* Samples of an update over all ranks; of a forward on one rank; micro steps of
 * an update. */
DS_API int64_t ds_engine_train_batch_size(const ds_engine *e);
DS_API int64_t ds_engine_train_micro_batch_size_per_gpu(const ds_engine *e);
DS_API int64_t ds_engine_gradient_accumulation_steps(const ds_engine *e);
/* Whether the current micro step ends an update; false with
 * managed_gradient_accumulation: false, where the step does. */
DS_API bool ds_engine_is_gradient_accumulation_boundary(const ds_engine *e);
/* Whether the last step updated: false between boundaries and after an
 * overflow. */
DS_API bool ds_engine_was_step_applied(const ds_engine *e);
/* Boundaries so far, including skipped updates; calls of ds_engine_step;
 * samples of all ranks; updates that were skipped because of an overflow. */
DS_API int64_t ds_engine_global_steps(const ds_engine *e);
DS_API int64_t ds_engine_micro_steps(const ds_engine *e);
DS_API int64_t ds_engine_global_samples(const ds_engine *e);
DS_API int64_t ds_engine_skipped_steps(const ds_engine *e);
/* The learning rate of the first parameter group in the next update. */
DS_API double ds_engine_lr(const ds_engine *e);
/* Sets the rate of all groups, until the schedule's next step. */
DS_API void ds_engine_set_lr(ds_engine *e, double lr);
DS_API double ds_engine_loss_scale(const ds_engine *e); /* 1 without fp16 */
/* The L2 norm of all gradients of the last step, before clipping, over all
 * ranks; inf if it was skipped. NaN before the first step, and if nothing needs
 * the norm and zero_optimization.compute_grad_norm is false. */
DS_API double ds_engine_global_grad_norm(const ds_engine *e);
DS_API bool ds_engine_fp16_enabled(const ds_engine *e);
DS_API bool ds_engine_bf16_enabled(const ds_engine *e);
DS_API int ds_engine_zero_stage(const ds_engine *e);           /* 0 to 3 */
DS_API double ds_engine_gradient_clipping(const ds_engine *e); /* largest norm; 0: off */
DS_API int64_t ds_engine_steps_per_print(const ds_engine *e);  /* 0: no lines */

/* get_wall_clock_timers()[name]: milliseconds of the last line of
 * wall_clock_breakdown that has the timer "fwd", "bwd", "step", "fwd_microstep"
 * and so on; 0: there was none. NaN without wall_clock_breakdown, or if there
 * is no such timer. */
DS_API double ds_engine_timer_ms(const ds_engine *e, const char *name);
/* tput_timer.avg_samples_per_sec(): of all ranks, from the third step on; 0
 * before, and if timers.throughput is off. */
DS_API double ds_engine_samples_per_sec(const ds_engine *e);

/* ---- exponential moving average of the parameters ---- */

/* From now on every applied step does ema = decay * ema + (1 - decay) * p, in
 * float32; the first copies p, as torch's AveragedModel does. decay is in [0,
 * 1]; 0 selects the default, 0.999.
 * DS_ESTATE: the engine has averages already; DS_EINVAL: decay. */
DS_API ds_status ds_engine_use_ema(ds_engine *e, double decay);

/* Exchanges the parameters with their averages, to evaluate with these; the
 * same call exchanges them back. Backward, save and load are refused in
 * between. DS_ESTATE: the engine has no averages. Collective. */
DS_API ds_status ds_engine_swap_ema(ds_engine *e);

/* ---- checkpoints: docs/checkpoints.md ---- */

/* The status with which a program ends that has saved because its time is over,
 * and is to be started again (EX_TEMPFAIL of sysexits.h). */
enum { DS_EXIT_REQUEUE = 75 };

/* From now on `signal` (SIGUSR1, of a queue before the time limit) does not end
 * this process, but makes ds_engine_should_stop true. Replaces the program's
 * handler. DS_EINVAL: no such signal. */
DS_API ds_status ds_stop_on_signal(int signal);

/* Whether a rank has got such a signal: true on all ranks in the same step,
 * about half a second after the signal or one step, whichever is later, and
 * from then on. To be called after each step; false between the micro steps of
 * an update. Then save, and end with DS_EXIT_REQUEUE. Collective. */
DS_API bool ds_engine_should_stop(ds_engine *e);

typedef struct ds_save_opts {
    /* Made if it does not exist; on a file system of all ranks, or, with
     * checkpoint.use_node_local_storage, each host's own. */
    const char *dir;
    const char *tag; /* name of the folder in dir; NULL: "global_stepN" */
    /* A dict of the program, borrowed: ds_engine_load returns it. Its keys must
     * not be keys of the engine. */
    const ds_value *client_state;
    bool no_latest;      /* DIR/latest is not changed */
    bool exclude_frozen; /* parameters that are not trained are left out */
    bool required;       /* made even where checkpoint.overhead_limit would leave it out */
    bool *left_out;      /* receives whether it was; or NULL */
} ds_save_opts;

/* engine.save_checkpoint: ds_engine_save(e, "checkpoints", .tag = "best") saves
 * all that a resumed run needs to continue bit for bit, in DeepSpeed's folders,
 * files and names, at the end of a step that updates. DIR/TAG becomes visible
 * when everything is on the disk; after a failure, which is reported on all
 * ranks, existing checkpoints are unchanged. With "checkpoint": {"async": true}
 * it returns when the state has been copied; the next save, or
 * ds_engine_save_wait, reports a failure of the writing. With
 * checkpoint.overhead_limit too, a save that comes too early is left out, on
 * all ranks, and DS_OK: the last one of a program is .required. DS_EIO: the
 * disk; DS_ESTATE: between the micro steps of an update, or with averaged
 * parameters; DS_EINVAL: dir, tag or client_state.
 * Collective. */
#define ds_engine_save(e, ...) ds_engine_save_with(e, (ds_save_opts){.dir = __VA_ARGS__})
DS_API ds_status ds_engine_save_with(ds_engine *e, ds_save_opts opts);

/* Waits for an asynchronous save and returns how it went on all ranks; DS_OK if
 * there is none. Collective. */
DS_API ds_status ds_engine_save_wait(ds_engine *e);

typedef struct ds_load_opts {
    const char *dir;
    /* NULL: of DIR/latest, or the newest complete one; load_universal: of
     * DIR/latest_universal */
    const char *tag;
    bool module_only;  /* weights and buffers only */
    bool no_optimizer; /* neither moments nor averages */
    bool no_schedule;
    /* If dir has no checkpoint at all, or does not exist, nothing is loaded:
     * DS_OK, and ds_engine_loaded is NULL. For a program that is started again
     * with the same arguments. Not with a tag. */
    bool if_any;
    bool not_strict; /* names that only the model or only the checkpoint has are skipped */
    /* Receives the program's dict, which the caller frees with ds_value_free;
     * NULL after a failure. The option may be NULL. */
    ds_value **client_state;
} ds_load_opts;

/* engine.load_checkpoint: ds_engine_load(e, "checkpoints") restores a
 * checkpoint that this library saved, on any number of ranks, in any stage and
 * dtype, or that DeepSpeed saved. The engine has the same model and optimizer
 * as the one that saved. A failure before the checks are done on all ranks
 * changes nothing. DS_EIO, DS_EFORMAT: files are missing or damaged; DS_EINVAL:
 * the checkpoint does not fit; DS_ESTATE: between the micro steps of an update.
 * Collective. */
#define ds_engine_load(e, ...) ds_engine_load_with(e, (ds_load_opts){.dir = __VA_ARGS__})
DS_API ds_status ds_engine_load_with(ds_engine *e, ds_load_opts opts);

/* DIR/TAG of the last checkpoint that was loaded; NULL: none. Borrowed, until
 * the next load. */
DS_API const char *ds_engine_loaded(const ds_engine *e);

/* engine.save_16bit_model: the model in the engine's dtype as one file for
 * inference. name: of the file in dir, in safetensors form if it ends in
 * .safetensors; NULL: "pytorch_model.bin". DS_ESTATE: stage 3 without
 * zero_optimization.stage3_gather_16bit_weights_on_model_save. Collective. */
DS_API ds_status ds_engine_save_16bit_model(ds_engine *e, const char *dir, const char *name);

/* ---- costs of a forward ---- */

/* Of all modules together: elements of parameters; multiply-accumulate
 * operations and floating-point operations, counted as DeepSpeed's flops
 * profiler does (docs/monitoring.md); seconds of the forward. */
typedef struct ds_model_costs {
    int64_t params;
    double macs, flops, seconds;
} ds_model_costs;

typedef struct ds_model_profile_opts {
    FILE *to;         /* receives DeepSpeed's report; NULL: it is not written */
    int warm_up;      /* forwards before the one that counts; 0: 1; negative: none */
    int module_depth; /* depths of the aggregated part; 0: all but the innermost */
    int top_modules;  /* types that each depth names; 0: 1 */
    bool brief;       /* without the tree of modules */
} ds_model_profile_opts;

/* get_model_profile: runs forwards of the model in evaluation, without
 * gradients, and returns what the last one cost: ds_model_profile(net, x,
 * stdout, .brief = true). In and out are as in ds_call_n; the modules' modes
 * are as before. An engine prints the same report of a training step
 * (flops_profiler). Zeros after a failure; DS_ESTATE: a profile of this thread
 * runs. Collective if the model is an engine's in stage 3. */
#define ds_model_profile(model, x, ...) \
    ds_model_profile_with(model, (ds_tensor *[]){x}, 1, (ds_model_profile_opts){.to = __VA_ARGS__})
DS_API ds_model_costs ds_model_profile_with(ds_module *model, ds_tensor **in, int n,
                                            ds_model_profile_opts opts);

/* FlopsProfiler's print_model_profile and get_total_flops: the same of all
 * forwards of the model between this thread's last ds_profile_begin and
 * ds_profile_end (deepspeed/profile.h); warm_up is the step that the title
 * names. Zeros after a failure; DS_ESTATE: a profile runs. */
#define ds_profile_model(model, ...) \
    ds_profile_model_with(model, (ds_model_profile_opts){.to = __VA_ARGS__})
DS_API ds_model_costs ds_profile_model_with(ds_module *model, ds_model_profile_opts opts);

/* ---- memory, before training ---- */

/* Bytes of one rank. */
typedef struct ds_memory_estimate {
    int stage;
    ds_dtype dtype; /* of parameters, gradients, activations */
    int64_t parameters, gradients;
    int64_t optimizer; /* moments and float32 masters, or their halves, in memory */
    int64_t passing;   /* at most during a pass: activations, a new gradient, buckets */
    int64_t gathered;  /* stage 3: parameters of other ranks */
    int64_t peak;      /* the sum of those above */
    int64_t file;      /* offload to nvme: on disk */
} ds_memory_estimate;

typedef struct ds_estimate_opts {
    const char *config;  /* as in ds_init */
    int world_size;      /* ranks; 0: 1 */
    int64_t params;      /* elements that are trained */
    int64_t largest;     /* elements of the largest parameter; 0: at most a bucket */
    int64_t activations; /* bytes that a micro step needs in addition */
    /* In place of these three, a model and a micro batch: one forward and
     * backward is measured. Both are borrowed. The model belongs to no engine.
     * Afterwards the model, its gradients, this thread's generator and its
     * memory peaks are unchanged. */
    ds_module *model;
    ds_tensor *input;
    /* The loss of the model's output and the target, such as ds_cross_entropy:
     * its memory counts too. Default: the mean of the output. The target is
     * borrowed, and may be NULL. */
    ds_tensor *(*loss)(ds_tensor *output, ds_tensor *target);
    ds_tensor *target;
} ds_estimate_opts;

/* estimate_zero*_model_states_mem_needs: the memory of a rank in training:
 * ds_estimate_memory(&m, .config = "ds_config.json", .world_size = 4,
 * .params = 50000000). docs/memory.md says what is counted. DS_EINVAL: a wrong
 * configuration or size; *out is zeros then. Not collective. */
#define ds_estimate_memory(out, ...) ds_estimate_memory_with(out, (ds_estimate_opts){__VA_ARGS__})
DS_API ds_status ds_estimate_memory_with(ds_memory_estimate *out, ds_estimate_opts opts);

#ifdef __cplusplus
}
#endif
#endif
