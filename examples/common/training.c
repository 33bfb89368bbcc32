/* examples/common/training.c: options, training loop, saved steps and test of
 * the programs that train in parallel.
 * SPDX-License-Identifier: MIT */
#include "training.h"

#include "args.h"
#include "paths.h"
#include "trace.h"
#include "weights.h"

#include <stdlib.h>
#include <string.h>

/* ---- options ----------------------------------------------------------------------------------------- */

enum {
    EPOCHS = 256,
    BATCH_SIZE,
    THREADS,
    LR,
    MOMENTUM,
    SEED,
    MAX_STEPS,
    LOAD,
    SAVE_STEP_INTERVAL,
    SAVE_DIR,
    NO_EVAL,
    TRACE,
    LOG_INTERVAL,
    PATIENCE,
    QUIET
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Training:", 2},
    {"epochs", EPOCHS, "N", 0, "passes over the training images (2)", 0},
    {"lr", LR, "X", 0, "learning rate of SGD (0.001)", 0},
    {"momentum", MOMENTUM, "X", 0, "momentum of SGD (0.9)", 0},
    {"seed", SEED, "N", 0, "seed of initial weights and shuffling (0)", 0},
    {"max-steps", MAX_STEPS, "N", 0, "stop after N steps", 0},
    BEST_OPTION(PATIENCE),
    {0, 0, 0, 0, "Results:", 3},
    {"load", LOAD, "FILE", 0,
     "resume from cifar_net_step_K.pth, at the begin of its epoch; or start from weights", 0},
    {"save-step-interval", SAVE_STEP_INTERVAL, "N", 0,
     "write cifar_net_step_K.pth every N steps, on rank 0", 0},
    {"save-dir", SAVE_DIR, "DIR", 0, "folder of these files (the current one)", 0},
    {"no-eval", NO_EVAL, 0, 0, "only train, without testing", 0},
    {"trace", TRACE, "FILE", 0, "write step,loss,lr,grad_norm of every step of rank 0 (.csv)", 0},
    {"log-interval", LOG_INTERVAL, "N", 0, "print the mean loss every N steps (2000)", 0},
    {"quiet", QUIET, 0, 0, "print only the accuracy", 0},
    {0}};

static const ArgsField fields[] = {
    ARGS_WHOLE(EPOCHS, Training, epochs, 0, ARGS_COUNT),
    ARGS_WHOLE(BATCH_SIZE, Training, batch_size, 1, ARGS_COUNT),
    ARGS_WHOLE(THREADS, Training, threads, 1, 1024),
    ARGS_REAL(LR, Training, lr),
    ARGS_REAL(MOMENTUM, Training, momentum),
    ARGS_WHOLE(SEED, Training, seed, 0, INT64_MAX),
    ARGS_WHOLE(MAX_STEPS, Training, max_steps, 0, INT64_MAX),
    ARGS_WHOLE(SAVE_STEP_INTERVAL, Training, save_step_interval, 1, INT64_MAX),
    ARGS_WHOLE(LOG_INTERVAL, Training, log_interval, 1, INT64_MAX),
    ARGS_WHOLE(PATIENCE, Training, best.patience, 1, ARGS_COUNT),
    ARGS_TEXT(LOAD, Training, load),
    ARGS_TEXT(SAVE_DIR, Training, folder),
    ARGS_TEXT(TRACE, Training, trace),
    ARGS_FLAG(NO_EVAL, Training, no_eval),
    ARGS_FLAG(QUIET, Training, quiet),
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Training *t = state->input;
    if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument \"%s\"", arg);
    if (key == ARGP_KEY_INIT) state->child_inputs[0] = &t->source;
    return args_store(state, options, fields, key, arg, t);
}

/* The options whose help each program gives. */
static const struct argp_option worded[] = {
    {"batch-size", BATCH_SIZE, "N", 0, NULL, 2}, {"threads", THREADS, "N", 0, NULL, 2}, {0}};

static error_t parse_worded(int key, char *arg, struct argp_state *state)
{
    Training *t = state->input;
    if (key != ARGP_KEY_INIT) return args_store(state, worded, fields, key, arg, t);
    for (int i = 0; i < 2; i++) state->child_inputs[i] = t;
    return 0;
}

void training_options(Training *t, const TrainingUsage *usage, int argc, char **argv)
{
    struct argp_option rows[3];
    memcpy(rows, worded, sizeof rows);
    rows[0].doc = usage->batch_size;
    rows[1].doc = usage->threads;
    const struct argp_child data[] = {{&source_argp, 0, "Data:", 1}, {0}};
    const struct argp shared = {options, parse, NULL, NULL, data, NULL, NULL},
                      own = {usage->more, usage->parse, NULL, NULL, NULL, NULL, NULL};
    const struct argp_child children[] = {{&shared, 0, NULL, 0}, {&own, 0, NULL, 0}, {0}};
    const struct argp argp = {rows, parse_worded, NULL, usage->about, children, NULL, NULL};
    t->epochs = 2;
    t->batch_size = 4;
    t->lr = 0.001;
    t->momentum = 0.9;
    t->threads = 1;
    t->max_steps = -1;
    t->log_interval = 2000;
    t->folder = ".";
    t->first = true;
    if (args_parse(&argp, argc, argv, t) != 0) exit(2);
}

/* ---- saved steps -------------------------------------------------------------------------------------- */

typedef struct StepPath {
    char text[4096];
} StepPath;

static StepPath step_path(const Training *t, int64_t step)
{
    StepPath p;
    snprintf(p.text, sizeof p.text, "%s/cifar_net_step_%lld.pth", t->folder, (long long)step);
    return p;
}

ds_status training_check(const Training *t)
{
    if (t->best.patience && t->no_eval)
        return ds_fail(DS_EINVAL,
                       "--patience tests after each epoch of a training: leave out --no-eval");
    if (path_check_readable("load", t->load) != DS_OK) return ds_error_status();
    if (!t->first || !t->save_step_interval) return DS_OK;
    return ds_save_check(step_path(t, t->save_step_interval).text);
}

/* cifar_net_step_K.pth: the state to resume from, with the keys of PyTorch's
 * tutorials. */
static void save_step(const Training *t, double loss)
{
    StepPath path = step_path(t, t->step);
    ds_state *net = ds_module_state(t->net);
    ds_value *all = ds_value_dict();
    ds_value_set(all, "epoch", ds_value_int(t->epoch));
    ds_value_set(all, "model_state_dict", ds_value_of_state(net));
    ds_value_set(all, "optimizer_state_dict", ds_optim_state_dict(t->sgd));
    ds_value_set(all, "loss", ds_value_float(loss));
    if (!ds_error() && ds_value_save(all, path.text) == DS_OK && !t->quiet)
        printf("Saved %s\n", path.text);
    ds_value_free(all);
    ds_state_free(net);
}

static void load_optimizer(Training *t)
{
    ds_value *all = ds_value_load(t->load);
    const ds_value *sgd = ds_value_get(all, "optimizer_state_dict");
    ds_status status = sgd ? ds_optim_load_state_dict(t->sgd, sgd) : DS_OK;
    if (status == DS_OK && ds_value_get(all, "epoch"))
        status = ds_value_read_int(all, "epoch", &t->epoch);
    if (status == DS_OK && t->epoch < 0)
        ds_fail(DS_EFORMAT, "%s: epoch is %lld: expected 0 or more", t->load, (long long)t->epoch);
    ds_value_free(all);
}

void training_load(Training *t)
{
    if (!t->load || ds_error()) return;
    ds_state *weights = weights_load(t->load);
    const char *end = strrchr(t->load, '.');
    bool torch = end && strcmp(end, ".safetensors") != 0;
    if (weights && ds_module_load(t->net, weights) == DS_OK && torch) load_optimizer(t);
    ds_state_free(weights);
    if (!ds_error() && t->first && !t->quiet)
        printf("Loaded %s: epoch %lld\n", t->load, (long long)t->epoch + 1);
}

/* ---- the loop ---------------------------------------------------------------------------------------- */

static bool more_steps(const Training *t)
{
    return !ds_error() && (t->max_steps < 0 || t->step < t->max_steps);
}

static double one_step(Training *t, training_step *step, void *program, const ds_batch *b)
{
    double loss = step(program, b);
    t->step++;
    if (t->trace_file)
        fprintf(t->trace_file, "%lld,%.9g,%.9g,%.9g\n", (long long)t->step, loss,
                ds_optim_lr(t->sgd), ds_grad_norm(t->net));
    bool saves = t->first && t->save_step_interval && t->step % t->save_step_interval == 0;
    if (saves && !ds_error()) save_step(t, loss);
    return loss;
}

static void run_epoch(Training *t, training_step *step, void *program)
{
    double running = 0;
    ds_batch b;
    for (int64_t i = 0; more_steps(t) && ds_loader_next(t->train, &b); i++) {
        running += one_step(t, step, program, &b);
        if (i % t->log_interval != t->log_interval - 1) continue;
        if (t->first && !t->quiet)
            printf("[%lld, %5lld] loss: %.3f\n", (long long)t->epoch + 1, (long long)i + 1,
                   running / (double)t->log_interval);
        fflush(stdout);
        running = 0;
    }
}

/* --patience: the accuracy after an epoch. Returns false at the end of the
 * training. */
static bool measure(Training *t, int64_t epoch)
{
    if (!t->best.patience || ds_error()) return true;
    Accuracy a = evaluate(t->net, t->test);
    if (ds_error()) return false;
    if (t->first && !t->quiet) print_epoch_accuracy(epoch, &a);
    if (best_add(&t->best, accuracy_total(&a), epoch)) {
        ds_state *state = ds_module_state(t->net);
        best_keep(&t->best, state);
        ds_state_free(state);
    }
    return !best_is_over(&t->best);
}

static void use_best(Training *t)
{
    if (!t->best.weights || ds_error()) return;
    if (ds_module_load(t->net, t->best.weights) == DS_OK && t->first && !t->quiet)
        best_print(&t->best);
}

void training_run(Training *t, training_step *step, void *program)
{
    bool more = true;
    if (t->first) t->trace_file = trace_open(t->trace, "step,loss,lr,grad_norm");
    if (t->epoch) ds_loader_set_epoch(t->train, t->epoch);
    for (; more && t->epoch < t->epochs && more_steps(t); t->epoch++) {
        run_epoch(t, step, program);
        more = measure(t, t->epoch + 1);
    }
    use_best(t);
    ds_loader_stop(t->train);
    trace_close(t->trace_file, t->trace);
    if (!ds_error() && t->first && !t->quiet) printf("Finished Training\n");
}

void training_test(const Training *t)
{
    if (t->no_eval || ds_error()) return;
    Accuracy a = evaluate(t->net, t->test);
    if (ds_error() || !t->first) return;
    print_accuracy(&a);
    print_accuracy_by_class(&a);
}

int training_end(Training *t, const char *program)
{
    fflush(stdout);
    if (t->first || !ds_error_is_collective()) ds_perror(program);
    best_free(&t->best);
    ds_optim_free(t->sgd);
    ds_module_free(t->net);
    ds_loader_free(t->train);
    ds_loader_free(t->test);
    return ds_error() != NULL;
}
