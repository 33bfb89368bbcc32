/* examples/common/training.c: options, loop, saved steps and test of the programs that train in parallel.
 * SPDX-License-Identifier: MIT */
#include "training.h"

#include "args.h"
#include "trace.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* ---- options ----------------------------------------------------------------------------------------- */

enum {
    EPOCHS = 256,
    LR,
    MOMENTUM,
    SEED,
    MAX_STEPS,
    SAVE_STEP_INTERVAL,
    SAVE_DIR,
    NO_EVAL,
    TRACE,
    LOG_INTERVAL,
    QUIET
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Training:", 2},
    {"epochs", EPOCHS, "N", 0, "passes over the training images (2)", 0},
    {"lr", LR, "X", 0, "learning rate of SGD (0.001)", 0},
    {"momentum", MOMENTUM, "X", 0, "momentum of SGD (0.9)", 0},
    {"seed", SEED, "N", 0, "seed of initial weights and shuffling (0)", 0},
    {"max-steps", MAX_STEPS, "N", 0, "stop after N steps", 0},
    {0, 0, 0, 0, "Results:", 3},
    {"save-step-interval", SAVE_STEP_INTERVAL, "N", 0,
     "write cifar_net_step_K.safetensors every N steps, on rank 0", 0},
    {"save-dir", SAVE_DIR, "DIR", 0, "where (the current folder)", 0},
    {"no-eval", NO_EVAL, 0, 0, "only train, without testing", 0},
    {"trace", TRACE, "FILE", 0, "write step,loss,lr,grad_norm of every step of rank 0 (.csv)", 0},
    {"log-interval", LOG_INTERVAL, "N", 0, "print the mean loss every N steps (2000)", 0},
    {"quiet", QUIET, 0, 0, "print only the accuracy", 0},
    {0}};

static const Training defaults = {.epochs = 2,
                                  .batch_size = 4,
                                  .lr = 0.001,
                                  .momentum = 0.9,
                                  .threads = 1,
                                  .max_steps = -1,
                                  .log_interval = 2000,
                                  .folder = ".",
                                  .first = true};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Training *t = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        *t = defaults;
        state->child_inputs[0] = &t->source;
        return 0;
    case EPOCHS:
        t->epochs = args_int(state, "epochs", arg, 0, 1000000000);
        return 0;
    case LR:
        t->lr = args_double(state, "lr", arg, 0, HUGE_VAL);
        return 0;
    case MOMENTUM:
        t->momentum = args_double(state, "momentum", arg, 0, HUGE_VAL);
        return 0;
    case SEED:
        t->seed = (uint64_t)args_int(state, "seed", arg, 0, INT64_MAX);
        return 0;
    case MAX_STEPS:
        t->max_steps = args_int(state, "max-steps", arg, 0, INT64_MAX);
        return 0;
    case SAVE_STEP_INTERVAL:
        t->save_step_interval = args_int(state, "save-step-interval", arg, 1, INT64_MAX);
        return 0;
    case SAVE_DIR:
        t->folder = arg;
        return 0;
    case LOG_INTERVAL:
        t->log_interval = args_int(state, "log-interval", arg, 1, INT64_MAX);
        return 0;
    case TRACE:
        t->trace = arg;
        return 0;
    case NO_EVAL:
        t->no_eval = true;
        return 0;
    case QUIET:
        t->quiet = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&source_argp, 0, "Data:", 1}, {0}};
const struct argp training_argp = {options, parse, NULL, NULL, children, NULL, NULL};

/* ---- the loop ---------------------------------------------------------------------------------------- */

static void add_below(ds_state *all, const char *prefix, const ds_state *part)
{
    char name[512];
    for (int i = 0; i < ds_state_len(part); i++) {
        snprintf(name, sizeof name, "%s.%s", prefix, ds_state_name(part, i));
        ds_state_set(all, name, ds_state_at(part, i));
    }
}

/* cifar_net_step_K: what a run needs to go on: epoch, loss, weights, the optimizer's state. */
static void save_step(const Training *t, int64_t epoch, double loss)
{
    char path[4096];
    ds_scope *scope = ds_scope_open();
    ds_state *all = ds_state_new(), *net = ds_module_state(t->net), *sgd = ds_optim_state(t->sgd);
    ds_state_set(all, "epoch", ds_scalar(DS_I64, (double)epoch));
    ds_state_set(all, "loss", ds_scalar(DS_F64, loss));
    add_below(all, "model_state_dict", net);
    add_below(all, "optimizer_state_dict", sgd);
    snprintf(path, sizeof path, "%s/cifar_net_step_%lld.safetensors", t->folder,
             (long long)t->step);
    if (!ds_error() && ds_save(all, path) == DS_OK && !t->quiet) printf("Saved %s\n", path);
    ds_state_free(all), ds_state_free(net), ds_state_free(sgd);
    ds_scope_close(scope);
}

static bool more_steps(const Training *t)
{
    return !ds_error() && (t->max_steps < 0 || t->step < t->max_steps);
}

static double one_step(Training *t, training_step *step, void *program, const ds_batch *b,
                       int64_t epoch)
{
    double loss = step(program, b);
    t->step++;
    if (t->trace_file)
        fprintf(t->trace_file, "%lld,%.9g,%.9g,%.9g\n", (long long)t->step, loss,
                ds_optim_lr(t->sgd), ds_grad_norm(t->net));
    bool saves = t->first && t->save_step_interval && t->step % t->save_step_interval == 0;
    if (saves && !ds_error()) save_step(t, epoch, loss);
    return loss;
}

static void run_epoch(Training *t, training_step *step, void *program, int64_t epoch)
{
    double running = 0;
    ds_batch b;
    for (int64_t i = 0; more_steps(t) && ds_loader_next(t->train, &b); i++) {
        running += one_step(t, step, program, &b, epoch);
        if (i % t->log_interval != t->log_interval - 1) continue;
        if (t->first && !t->quiet)
            printf("[%lld, %5lld] loss: %.3f\n", (long long)epoch + 1, (long long)i + 1,
                   running / (double)t->log_interval);
        fflush(stdout);
        running = 0;
    }
}

void training_run(Training *t, training_step *step, void *program)
{
    if (t->first) t->trace_file = trace_open(t->trace, "step,loss,lr,grad_norm");
    for (int64_t epoch = 0; epoch < t->epochs && more_steps(t); epoch++)
        run_epoch(t, step, program, epoch);
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
    if (fflush(stdout) != 0 && !ds_error()) ds_fail(DS_EIO, "standard output: %s", strerror(errno));
    if (ds_error()) fprintf(stderr, "%s: %s\n", program, ds_error());
    ds_optim_free(t->sgd);
    ds_module_free(t->net);
    ds_loader_free(t->train);
    ds_loader_free(t->test);
    return ds_error() != NULL;
}
