/* examples/cifar10/deepspeed.c: DeepSpeed's CIFAR-10 example: trains the
 * tutorial's network with the engine on one or more ranks. --deepspeed_config
 * gives the configuration; the default is the one in DeepSpeed's example.
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "best.h"
#include "classify.h"
#include "experts.h"
#include "paths.h"
#include "progress.h"
#include "source.h"
#include "trace.h"
#include "weights.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_SIZE 16 /* without --batch-size and without a configuration file */

__attribute__((__visibility__("default")))
const char *argp_program_version = "cifar10_deepspeed (deepspeed.c) " DS_VERSION;

typedef struct Options {
    Source source;
    Experts experts;
    ds_arguments deepspeed;
    const char *dtype, *save, *load, *trace, *save_dir, *load_dir, *load_tag;
    int64_t epochs, batch_size, stage, threads, max_steps, log_interval, save_interval, patience;
    int64_t seed; /* -1: the library's default */
    bool use_ema, with_cuda, no_eval, quiet, resume;
} Options;

/* ---- options ----------------------------------------------------------------------------------------- */

enum {
    WITH_CUDA = 256,
    USE_EMA,
    LOG_INTERVAL,
    DTYPE,
    STAGE,
    SEED,
    THREADS,
    MAX_STEPS,
    SAVE,
    LOAD,
    SAVE_DIR,
    SAVE_INTERVAL,
    LOAD_DIR,
    LOAD_TAG,
    RESUME,
    NO_EVAL,
    TRACE,
    PATIENCE,
    QUIET
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Training:", 2},
    {"epochs", 'e', "N", 0, "passes over the training images (30)", 0},
    {"batch-size", 'b', "N", 0, "images in a batch, over all ranks (16)", 0},
    {"dtype", DTYPE, "TYPE", 0, "type of parameters and activations: fp32, fp16 or bf16 (fp32)", 0},
    {"stage", STAGE, "N", 0, "ZeRO stage, 0 to 3 (0)", 0},
    {"use-ema", USE_EMA, 0, 0, "test with an exponential moving average of the weights", 0},
    {"with-cuda", WITH_CUDA, 0, 0, "train on a GPU", 0},
    {"seed", SEED, "N", 0, "seed of initial weights and shuffling", 0},
    {"max-steps", MAX_STEPS, "N", 0, "stop after N steps of the optimizer", 0},
    BEST_OPTION(PATIENCE),
    {"threads", THREADS, "N", 0, "threads of the kernels (1)", 0},
    {0, 0, 0, 0, "Results:", 4},
    {"load", LOAD, "FILE", 0, "start from these weights: .pth of PyTorch, .safetensors", 0},
    {"save", SAVE, "FILE", 0, "write the trained weights to FILE: .pth, .safetensors", 0},
    {"save-dir", SAVE_DIR, "DIR", 0,
     "write checkpoints to DIR; --load-dir resumes from them; SIGUSR1: save, end with status 75",
     0},
    {"save-interval", SAVE_INTERVAL, "N", 0,
     "save every N steps of the optimizer (once an epoch), and at the end", 0},
    {"load-dir", LOAD_DIR, "DIR", 0, "resume from the newest checkpoint in DIR", 0},
    {"load-tag", LOAD_TAG, "TAG", 0, "resume from checkpoint TAG of --load-dir (its latest)", 0},
    {"resume", RESUME, 0, 0, "resume from the newest checkpoint in --save-dir, if there is one", 0},
    {"no-eval", NO_EVAL, 0, 0, "only train, without testing", 0},
    {"trace", TRACE, "FILE", 0,
     "write step,loss,lr,grad_norm,loss_scale,skipped of every batch (.csv)", 0},
    {"log-interval", LOG_INTERVAL, "N", 0, "print the mean loss every N batches (2000)", 0},
    {"quiet", QUIET, 0, 0, "print only the accuracy", 0},
    {0}};

static const char *one_of(struct argp_state *state, const char *option, char *arg,
                          const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (!strcmp(arg, words[i])) return words[i];
    argp_error(state, "--%s: \"%s\": expected %s, %s or %s", option, arg, words[0], words[1],
               words[2]);
    return NULL;
}

static const ArgsField fields[] = {ARGS_WHOLE('e', Options, epochs, 0, ARGS_COUNT),
                                   ARGS_WHOLE('b', Options, batch_size, 1, ARGS_COUNT),
                                   ARGS_WHOLE(STAGE, Options, stage, 0, 3),
                                   ARGS_WHOLE(SEED, Options, seed, 0, INT64_MAX),
                                   ARGS_WHOLE(THREADS, Options, threads, 1, 1024),
                                   ARGS_WHOLE(MAX_STEPS, Options, max_steps, 0, INT64_MAX),
                                   ARGS_WHOLE(SAVE_INTERVAL, Options, save_interval, 1, INT64_MAX),
                                   ARGS_WHOLE(LOG_INTERVAL, Options, log_interval, 1, INT64_MAX),
                                   ARGS_WHOLE(PATIENCE, Options, patience, 1, ARGS_COUNT),
                                   ARGS_TEXT(SAVE, Options, save),
                                   ARGS_TEXT(LOAD, Options, load),
                                   ARGS_TEXT(SAVE_DIR, Options, save_dir),
                                   ARGS_TEXT(LOAD_DIR, Options, load_dir),
                                   ARGS_TEXT(LOAD_TAG, Options, load_tag),
                                   ARGS_TEXT(TRACE, Options, trace),
                                   ARGS_FLAG(USE_EMA, Options, use_ema),
                                   ARGS_FLAG(WITH_CUDA, Options, with_cuda),
                                   ARGS_FLAG(RESUME, Options, resume),
                                   ARGS_FLAG(NO_EVAL, Options, no_eval),
                                   ARGS_FLAG(QUIET, Options, quiet),
                                   {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    static const char *const dtypes[] = {"fp32", "fp16", "bf16", NULL};
    Options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->source;
        state->child_inputs[1] = &o->experts;
        state->child_inputs[2] = &o->deepspeed;
        return 0;
    case DTYPE:
        o->dtype = one_of(state, "dtype", arg, dtypes);
        return 0;
    default:
        return args_store(state, options, fields, key, arg, o);
    }
}

static Options read_options(int argc, char **argv)
{
    const struct argp_child children[] = {{&source_argp, 0, "Data:", 1},
                                          {&experts_argp, 0, "Mixture of experts:", 3},
                                          {ds_add_config_arguments(), 0, "DeepSpeed:", 5},
                                          {0}};
    const struct argp argp = {options,
                              parse,
                              NULL,
                              "Train the tutorial's network on CIFAR-10 with the DeepSpeed engine "
                              "and print its accuracy.",
                              children,
                              NULL,
                              NULL};
    Options o = {
        .epochs = 30, .threads = 1, .max_steps = -1, .log_interval = 2000, .stage = -1, .seed = -1};
    if (args_parse(&argp, argc, argv, &o) != 0) exit(2);
    return o;
}

/* ---- configuration ------------------------------------------------------------------------------------- */

/* The configuration of DeepSpeed's example, as JSON, with the options' values.
 * The caller frees it. */
static char *own_config(const Options *o)
{
    static const char form[] =
        "{\"train_batch_size\": %lld, \"steps_per_print\": %d,"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 0.001, \"betas\": [0.8, 0.999],"
        " \"eps\": 1e-8, \"weight_decay\": 3e-7}},"
        " \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_min_lr\": 0,"
        " \"warmup_max_lr\": 0.001, \"warmup_num_steps\": 1000}},"
        " \"gradient_clipping\": 1.0, \"prescale_gradients\": false, \"wall_clock_breakdown\": "
        "false,"
        " \"bf16\": {\"enabled\": %s},"
        " \"fp16\": {\"enabled\": %s, \"fp16_master_weights_and_grads\": false, \"loss_scale\": 0,"
        " \"loss_scale_window\": 500, \"hysteresis\": 2, \"min_loss_scale\": 1,"
        " \"initial_scale_power\": 15},"
        " \"zero_optimization\": {\"stage\": %lld, \"allgather_partitions\": true,"
        " \"reduce_scatter\": true, \"allgather_bucket_size\": 50000000,"
        " \"reduce_bucket_size\": 50000000, \"overlap_comm\": true, \"contiguous_gradients\": "
        "true}}";
    const char *dtype = o->dtype ? o->dtype : "fp32";
    size_t size = sizeof form + 64;
    char *text = malloc(size);
    if (!text) return NULL;
    snprintf(text, size, form, (long long)(o->batch_size ? o->batch_size : BATCH_SIZE),
             o->quiet ? 0 : 2000, strcmp(dtype, "bf16") ? "false" : "true",
             strcmp(dtype, "fp16") ? "false" : "true", (long long)(o->stage < 0 ? 0 : o->stage));
    return text;
}

/* Options fill "auto" in the configuration file. */
static ds_auto_values auto_values(const Options *o)
{
    return (ds_auto_values){.per_device_train_batch_size = o->batch_size / ds_comm_size(ds_world()),
                            .max_steps = o->max_steps > 0 ? o->max_steps : 0,
                            .fp16 = o->dtype && !strcmp(o->dtype, "fp16"),
                            .bf16 = o->dtype && !strcmp(o->dtype, "bf16")};
}

/* Refuses an option that the configuration file contradicts: one of the two
 * values would be ignored. */
static void check_engine(const Options *o, const ds_engine *e)
{
    const char *file = o->deepspeed.deepspeed_config;
    const char *dtype = ds_engine_bf16_enabled(e)   ? "bf16"
                        : ds_engine_fp16_enabled(e) ? "fp16"
                                                    : "fp32";
    int64_t batch = ds_engine_train_batch_size(e);
    if (!e || !file) return;
    if (o->batch_size && o->batch_size != batch)
        ds_fail(DS_EINVAL, "--batch-size %lld: train_batch_size of %s is %lld: make it \"auto\"",
                (long long)o->batch_size, file, (long long)batch);
    else if (o->dtype && strcmp(o->dtype, dtype) != 0)
        ds_fail(DS_EINVAL, "--dtype %s: %s configures %s: make fp16.enabled, bf16.enabled \"auto\"",
                o->dtype, file, dtype);
}

/* Refuses options that do not go together. */
static void check_options(const Options *o)
{
    const char *file = o->deepspeed.deepspeed_config;
    if (file && o->stage >= 0)
        ds_fail(DS_EINVAL,
                "--stage (zero_optimization.stage) is set by the configuration %s: give either the "
                "option or the file",
                file);
    if (o->load && o->load_dir)
        ds_fail(DS_EINVAL, "--load and --load-dir: both have weights: give only one");
    if (o->save_interval && !o->save_dir)
        ds_fail(DS_EINVAL, "--save-interval needs --save-dir DIR");
    if (o->patience && (o->no_eval || o->use_ema))
        ds_fail(DS_EINVAL, "--patience tests the trained weights after each epoch: leave out %s",
                o->no_eval ? "--no-eval" : "--use-ema");
    if (o->load_tag && !o->load_dir) ds_fail(DS_EINVAL, "--load-tag needs --load-dir DIR");
    if (o->resume && !o->save_dir) ds_fail(DS_EINVAL, "--resume needs --save-dir DIR");
    if (o->resume && o->load_dir)
        ds_fail(DS_EINVAL, "--resume and --load-dir: from which folder? give only one");
}

/* Checks that need no data, before these are downloaded. first: this is rank 0,
 * which writes. Collective. */
static ds_status prepare(const Options *o, bool first)
{
    ds_device gpu; /* of this rank */
    check_options(o);
    if (!ds_error() && o->with_cuda && ds_device_parse("cuda", &gpu) == DS_OK) ds_set_device(gpu);
    if (!ds_error()) ds_set_threads((int)o->threads);
    if (!ds_error()) path_check_readable("load", o->load);
    if (!ds_error()) path_check_readable("load-dir", o->load_dir);
    if (!ds_error() && first) path_make_folder("save-dir", o->save_dir);
    ds_status status = ds_error_status();
    if (status == DS_OK && first && o->save) status = ds_save_check(o->save);
    return ds_comm_sync_status(NULL, status);
}

/* ---- the program's state --------------------------------------------------------------------------- */

typedef struct Program {
    Options o;
    ds_engine *engine;
    ds_loader *train, *test;
    ds_step_graph *graph; /* of train_step */
    FILE *trace;
    bool first;          /* this is rank 0, which prints */
    bool stopped;        /* a signal has asked for that */
    bool due;            /* save a checkpoint at the next update */
    bool last;           /* no step follows */
    int64_t step, saved; /* micro steps; global steps at the last save */
    double running, sum; /* sum of losses since the last line; of the epoch */
    Best best;           /* of --patience */
} Program;

static ds_module *make_network(const Program *p)
{
    ds_module *net = p->o.experts.on ? experts_net(&p->o.experts) : net_new();
    if (!p->o.load) return net;
    ds_state *state = weights_load(p->o.load);
    if (state && ds_module_load(net, state) == DS_OK && p->first && !p->o.quiet)
        printf("Loaded %s\n", p->o.load);
    ds_state_free(state);
    return net;
}

/* Checks the configuration, so that a mistake is reported before the
 * download. Collective. */
static ds_status check_config(const Program *p)
{
    const char *file = p->o.deepspeed.deepspeed_config;
    char *own = file ? NULL : own_config(&p->o);
    const ds_auto_values v = auto_values(&p->o);
    int ranks = ds_comm_size(ds_world());
    int64_t batch = p->o.batch_size || file ? p->o.batch_size : BATCH_SIZE;
    ds_status status =
        batch % ranks
            ? ds_fail(DS_EINVAL,
                      "--batch-size %lld: expected a multiple of %d, the number of ranks",
                      (long long)batch, ranks)
            : ds_config_check_auto(file ? file : own, file ? &v : NULL, ranks, NULL, NULL);
    free(own);
    return ds_comm_sync_status(NULL, status);
}

static void make_engine(Program *p)
{
    if (check_config(p) != DS_OK) return;
    ds_dataset *train = source_open_on_ranks(&p->o.source, DS_TRAIN, p->o.quiet), *test = NULL;
    if (train && !p->o.no_eval) test = source_open_on_ranks(&p->o.source, DS_TEST, true);
    if (ds_error()) {
        ds_dataset_free(train);
        ds_dataset_free(test);
        return;
    }
    char *config = p->o.deepspeed.deepspeed_config ? NULL : own_config(&p->o);
    const ds_auto_values values = auto_values(&p->o);
    p->engine = ds_initialize(.model = make_network(p), .training_data = train, .config = config,
                              .args = &p->o.deepspeed, .auto_values = config ? NULL : &values,
                              .no_shuffle = p->o.source.no_shuffle,
                              .workers = (int)p->o.source.workers,
                              .seed = p->o.seed < 0 ? 0 : (uint64_t)p->o.seed);
    free(config);
    if (!p->engine) {
        ds_dataset_free(test);
        return;
    }
    check_engine(&p->o, p->engine);
    ds_comm_sync_status(NULL, ds_error_status());
    p->train = ds_engine_loader(p->engine);
    if (test) p->test = ds_engine_io(p->engine, test, false);
    if (p->o.use_ema) ds_engine_use_ema(p->engine, 0.999);
}

/* ---- training ------------------------------------------------------------------------------------------ */

/* --max-steps counts steps of the optimizer, like --save-interval and the
 * configuration. So training never stops with accumulated gradients that are
 * not used. */
static bool more_steps(const Program *p)
{
    if (p->stopped) return false;
    return p->o.max_steps < 0 || ds_engine_global_steps(p->engine) < p->o.max_steps;
}

/* Whether the engine prints lines at the end of the next step; the bar is
 * hidden before. */
static bool will_print(const ds_engine *e)
{
    int64_t every = ds_engine_steps_per_print(e);
    return every && ds_engine_is_gradient_accumulation_boundary(e) &&
           (ds_engine_global_steps(e) + 1) % every == 0;
}

/* Forward, backward, update, on a batch; returns the loss. A GPU records this
 * and launches it as a graph. */
static ds_tensor *train_step(void *self, ds_tensor *const *batch, int n)
{
    Program *p = self;
    ds_module *net = ds_engine_module(p->engine);
    (void)n;
    ds_tensor *loss = ds_cross_entropy(ds_engine_forward(p->engine, batch[0]), batch[1]);
    experts_count(&p->o.experts, net);
    ds_engine_backward(p->engine, experts_loss(&p->o.experts, net, loss));
    ds_engine_step(p->engine);
    return loss;
}

/* A step; returns the value of its loss. */
static double train_batch(Program *p, Progress *bar, const ds_batch *b)
{
    double lr = ds_engine_lr(p->engine), scale = ds_engine_loss_scale(p->engine);
    if (will_print(p->engine)) progress_hide(bar);
    double value = ds_item(ds_step_graph_run(p->graph, (ds_tensor *const[]){b->x, b->y}, 2));
    p->step++;
    if (p->trace)
        fprintf(p->trace, "%lld,%.9g,%.9g,%.9g,%.9g,%lld\n", (long long)p->step, value, lr,
                ds_engine_global_grad_norm(p->engine), scale,
                (long long)ds_engine_skipped_steps(p->engine));
    return value;
}

static void show_epoch(const Program *p, Progress *bar, int64_t epoch)
{
    char title[64];
    snprintf(title, sizeof title, "[ %03lld / %lld ]", (long long)epoch, (long long)p->o.epochs);
    progress_title(bar, title);
}

/* Saves a checkpoint, with the sums of losses, and the best weights so far, as
 * client state. All ranks call it. */
static void save_checkpoint(Program *p, Progress *bar)
{
    ds_value *client = ds_value_dict();
    bool left_out = false;
    if (p->best.patience) ds_value_set(client, "best", best_value(&p->best));
    if (ds_value_set(client, "running_loss", ds_value_float(p->running)) == DS_OK &&
        ds_value_set(client, "epoch_loss", ds_value_float(p->sum)) == DS_OK &&
        ds_engine_save(p->engine, p->o.save_dir, .client_state = client, .required = p->last,
                       .left_out = &left_out) == DS_OK &&
        !left_out)
        p->saved = ds_engine_global_steps(p->engine);
    ds_value_free(client);
    if (ds_error() || left_out || !p->first || p->o.quiet) return;
    progress_hide(bar);
    printf("Saved %s/global_step%lld\n", p->o.save_dir, (long long)p->saved);
    fflush(stdout);
}

/* Saves a checkpoint if one is due and no update is in progress: partially
 * accumulated gradients cannot be saved. */
static void save_if_due(Program *p, Progress *bar)
{
    int64_t steps = ds_engine_global_steps(p->engine), every = p->o.save_interval;
    bool half = ds_engine_micro_steps(p->engine) %
                    ds_engine_gradient_accumulation_steps(p->engine) !=
                0;
    if (every && steps > p->saved && steps % every == 0) p->due = true;
    if (ds_error() || !p->o.save_dir || !p->due || half || steps == p->saved) return;
    save_checkpoint(p, bar);
    p->due = false;
}

/* --patience: the accuracy after an epoch, the same on all ranks. */
static void measure(Program *p, Progress *bar, int64_t epoch)
{
    if (!p->o.patience || p->stopped || ds_error()) return;
    Accuracy a = evaluate(ds_engine_module(p->engine), p->test);
    if (ds_error()) return;
    progress_hide(bar);
    if (p->first && !p->o.quiet) print_epoch_accuracy(epoch, &a);
    if (!best_add(&p->best, accuracy_total(&a), epoch)) return;
    ds_state *state = ds_engine_state(p->engine, true);
    best_keep(&p->best, state);
    ds_state_free(state);
}

static void train_epoch(Program *p, Progress *bar, int64_t epoch)
{
    int64_t i = ds_loader_tell(p->train).batch, every = p->o.log_interval;
    ds_batch b;
    show_epoch(p, bar, epoch + 1);
    for (; more_steps(p) && ds_loader_next(p->train, &b); i++) {
        double loss = train_batch(p, bar, &b);
        p->running += loss;
        p->sum += loss;
        progress_add(bar, 1, p->sum / (double)(i + 1));
        if (i % every == every - 1) {
            progress_hide(bar);
            if (p->first && !p->o.quiet)
                printf("[%lld, %5lld] loss: %.3f\n", (long long)epoch + 1, (long long)i + 1,
                       p->running / (double)every);
            fflush(stdout);
            p->running = 0;
        }
        save_if_due(p, bar);
        if (p->o.save_dir) p->stopped = ds_engine_should_stop(p->engine);
    }
    measure(p, bar, epoch + 1);
    if (ds_error() || !more_steps(p)) return;
    p->running = p->sum = 0;
    p->due = p->due || !p->o.save_interval;
    save_if_due(p, bar);
}

/* The best weights are those that are saved and tested; checkpoints have the
 * last ones. */
static void use_best(Program *p)
{
    if (!p->best.weights || ds_error()) return;
    if (ds_engine_load_state(p->engine, p->best.weights) == DS_OK && p->first && !p->o.quiet)
        best_print(&p->best);
}

/* Micro steps of this run: the epochs that are left, or --max-steps. */
static int64_t batches_left(const Program *p)
{
    int64_t epochs = p->o.epochs - ds_loader_epoch(p->train);
    int64_t n = epochs * ds_loader_len(p->train) - ds_loader_tell(p->train).batch;
    int64_t steps = p->o.max_steps - ds_engine_global_steps(p->engine);
    int64_t most = steps * ds_engine_gradient_accumulation_steps(p->engine);
    return p->o.max_steps >= 0 && most < n ? most : n;
}

static void train(Program *p)
{
    Progress bar;
    if (p->first) p->trace = trace_open(p->o.trace, "step,loss,lr,grad_norm,loss_scale,skipped");
    progress_begin(&bar, p->first && !p->o.quiet, "it", batches_left(p), "");
    show_epoch(p, &bar, 0);
    p->best.patience = p->o.patience;
    p->graph = ds_engine_step_graph_new(p->engine, train_step, p);
    while (ds_loader_epoch(p->train) < p->o.epochs && more_steps(p) && !best_is_over(&p->best) &&
           !ds_error())
        train_epoch(p, &bar, ds_loader_epoch(p->train));
    p->due = p->last = true;
    save_if_due(p, &bar);
    if (!ds_error()) ds_engine_save_wait(p->engine);
    ds_loader_stop(p->train);
    bar.last_line = p->first && !p->o.quiet && !ds_error();
    progress_end(&bar);
    trace_close(p->trace, p->o.trace);
    if (!ds_error() && p->first && !p->o.quiet)
        printf(p->stopped ? "Stopped by a signal\n" : "Finished Training\n");
    if (!p->o.quiet) experts_print(&p->o.experts, p->first);
}

/* Resumes from --load-dir, or with --resume from --save-dir. */
static void load_checkpoint(Program *p)
{
    const char *dir = p->o.resume ? p->o.save_dir : p->o.load_dir;
    ds_value *client = NULL;
    if (!dir || ds_error()) return;
    ds_engine_load(p->engine, dir, .tag = p->o.load_tag, .if_any = p->o.resume,
                   .client_state = &client);
    if (!ds_engine_loaded(p->engine)) return;
    if (ds_value_get(client, "running_loss"))
        ds_value_read_float(client, "running_loss", &p->running);
    if (ds_value_get(client, "epoch_loss")) ds_value_read_float(client, "epoch_loss", &p->sum);
    if (p->o.patience) best_load(&p->best, ds_value_get(client, "best"));
    ds_value_free(client);
    p->step = ds_engine_micro_steps(p->engine);
    p->saved = ds_engine_global_steps(p->engine);
    if (!ds_error() && p->first && !p->o.quiet)
        printf("Loaded %s: %lld steps, epoch %lld\n", ds_engine_loaded(p->engine),
               (long long)p->saved, (long long)ds_loader_epoch(p->train) + 1);
}

/* Writes the weights; for fp16 and bf16 the float32 master weights. */
static void save(const Program *p)
{
    if (!p->o.save || p->stopped || ds_error()) return;
    ds_state *state = ds_engine_state(p->engine, true); /* on all ranks: it may gather */
    if (p->first && ds_save(state, p->o.save) == DS_OK && !p->o.quiet)
        printf("Saved %s\n", p->o.save);
    ds_state_free(state);
}

/* ---- testing ------------------------------------------------------------------------------------------- */

static void test(Program *p)
{
    if (!p->test || p->stopped || ds_error()) return;
    if (p->o.use_ema) ds_engine_swap_ema(p->engine);
    Accuracy a = evaluate(ds_engine_module(p->engine), p->test);
    if (p->o.use_ema) ds_engine_swap_ema(p->engine);
    if (ds_error() || !p->first) return;
    print_accuracy(&a);
    print_accuracy_by_class(&a);
}

/* ---- main -------------------------------------------------------------------------------------------- */

static void run(Program *p)
{
    if (p->o.save_dir) ds_stop_on_signal(SIGUSR1);
    if (ds_error() || ds_init_distributed() != DS_OK) return;
    p->first = ds_comm_rank(ds_world()) == 0;
    if (prepare(&p->o, p->first) != DS_OK) return;
    if (p->o.seed >= 0) ds_seed((uint64_t)p->o.seed);
    make_engine(p);
    load_checkpoint(p);
    if (!ds_error()) train(p);
    use_best(p);
    save(p);
    test(p);
}

int main(int argc, char **argv)
{
    Program p = {.o = read_options(argc, argv)};
    run(&p);
    fflush(stdout);
    if (p.first || !ds_error_is_collective()) ds_perror("cifar10_deepspeed");
    int status = ds_error() ? 1 : p.stopped ? DS_EXIT_REQUEUE : 0;
    ds_step_graph_free(p.graph);
    best_free(&p.best);
    experts_free(&p.o.experts);
    ds_loader_free(p.test);
    ds_engine_free(p.engine);
    ds_destroy_process_group();
    return status;
}
