/* examples/cifar10/tutorial.c: PyTorch's beginner tutorial "Training a
 * Classifier", in C: load and show the images, define the network, train it,
 * and test it in total and per
 * class.
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "best.h"
#include "classify.h"
#include "losses.h"
#include "paths.h"
#include "progress.h"
#include "source.h"
#include "trace.h"
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((__visibility__("default")))
const char *argp_program_version = "cifar10_tutorial (deepspeed.c) " DS_VERSION;

typedef struct Options {
    Source source;
    const char *device, *save, *load, *show, *trace;
    int64_t epochs, batch_size, threads, max_steps, log_interval;
    int64_t seed; /* -1: the library's default */
    int64_t patience;
    double lr, momentum;
    bool eval, no_eval, quiet;
} Options;

/* ---- options ----------------------------------------------------------------------------------------- */

enum {
    EPOCHS = 256,
    BATCH_SIZE,
    LR,
    MOMENTUM,
    SEED,
    THREADS,
    DEVICE,
    SAVE,
    LOAD,
    EVAL,
    MAX_STEPS,
    NO_EVAL,
    TRACE,
    QUIET,
    SHOW,
    LOG_INTERVAL,
    PATIENCE,
    LOCAL_RANK
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Training:", 2},
    {"epochs", EPOCHS, "N", 0, "passes over the training images (2)", 0},
    {"batch-size", BATCH_SIZE, "N", 0, "images in a batch (4)", 0},
    {"lr", LR, "X", 0, "learning rate of SGD (0.001)", 0},
    {"momentum", MOMENTUM, "X", 0, "momentum of SGD (0.9)", 0},
    {"seed", SEED, "N", 0, "seed of initial weights and shuffling (a fixed seed)", 0},
    {"max-steps", MAX_STEPS, "N", 0, "stop after N steps", 0},
    BEST_OPTION(PATIENCE),
    {"threads", THREADS, "N", 0, "threads of the kernels (1)", 0},
    {"device", DEVICE, "NAME", 0, "cpu, cuda or cuda:N (cpu)", 0},
    {0, 0, 0, 0, "Results:", 3},
    {"load", LOAD, "FILE", 0, "start from these weights: .pth of PyTorch, .safetensors", 0},
    {"save", SAVE, "FILE", 0, "write the trained weights to FILE (./cifar_net.pth)", 0},
    {"eval", EVAL, 0, 0, "only test, without training", 0},
    {"no-eval", NO_EVAL, 0, 0, "only train, without testing", 0},
    {"show", SHOW, "FILE", 0,
     "write the images of the first batch, with their classes, to one picture (.png); with --eval "
     "those of the first test batch, with predictions too",
     0},
    {"trace", TRACE, "FILE", 0, "write step,loss,lr,grad_norm of every step (.csv)", 0},
    {"log-interval", LOG_INTERVAL, "N", 0, "print the mean loss every N steps (2000)", 0},
    {"quiet", QUIET, 0, 0, "print only the accuracy", 0},
    ARGS_LOCAL_RANK(LOCAL_RANK),
    {0}};

static const ArgsField fields[] = {ARGS_WHOLE(EPOCHS, Options, epochs, 0, ARGS_COUNT),
                                   ARGS_WHOLE(BATCH_SIZE, Options, batch_size, 1, ARGS_COUNT),
                                   ARGS_REAL(LR, Options, lr),
                                   ARGS_REAL(MOMENTUM, Options, momentum),
                                   ARGS_WHOLE(SEED, Options, seed, 0, INT64_MAX),
                                   ARGS_WHOLE(THREADS, Options, threads, 1, 1024),
                                   ARGS_WHOLE(MAX_STEPS, Options, max_steps, 0, INT64_MAX),
                                   ARGS_WHOLE(LOG_INTERVAL, Options, log_interval, 1, INT64_MAX),
                                   ARGS_WHOLE(PATIENCE, Options, patience, 1, ARGS_COUNT),
                                   ARGS_TEXT(DEVICE, Options, device),
                                   ARGS_TEXT(SAVE, Options, save),
                                   ARGS_TEXT(LOAD, Options, load),
                                   ARGS_TEXT(SHOW, Options, show),
                                   ARGS_TEXT(TRACE, Options, trace),
                                   ARGS_FLAG(EVAL, Options, eval),
                                   ARGS_FLAG(NO_EVAL, Options, no_eval),
                                   ARGS_FLAG(QUIET, Options, quiet),
                                   {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    if (key == ARGP_KEY_ARG) argp_error(state, "unexpected argument \"%s\"", arg);
    if (key == LOCAL_RANK) return args_local_rank(state, arg, "cifar10_ddp or cifar10_deepspeed");
    if (key != ARGP_KEY_INIT) return args_store(state, options, fields, key, arg, o);
    state->child_inputs[0] = &o->source;
    return 0;
}

static Options read_options(int argc, char **argv)
{
    static const struct argp_child children[] = {{&source_argp, 0, "Data:", 1}, {0}};
    static const struct argp argp = {
        options,  parse, NULL, "Train the tutorial's network on CIFAR-10 and print its accuracy.",
        children, NULL,  NULL};
    Options o = {.device = "cpu",
                 .epochs = 2,
                 .batch_size = 4,
                 .lr = 0.001,
                 .momentum = 0.9,
                 .threads = 1,
                 .max_steps = -1,
                 .seed = -1,
                 .log_interval = 2000};
    if (args_parse(&argp, argc, argv, &o) != 0) exit(2);
    return o;
}

/* ---- the program's state --------------------------------------------------------------------------- */

typedef struct Program {
    Options o;
    ds_loader *train, *test;
    ds_module *net;
    ds_optim *sgd;
    ds_step_graph *graph; /* of train_step */
    FILE *trace;
    int64_t step;           /* whose loss was read last */
    Losses losses;          /* of the steps after it */
    double running, recent; /* loss: sum since the last line; smoothed, for the bar */
    Best best;              /* of --patience */
} Program;

static void load_data(Program *p)
{
    const Options *o = &p->o;
    ds_dataset *train = source_open(&o->source, DS_TRAIN, o->quiet);
    p->train = ds_loader_new(train, o->batch_size, .shuffle = !o->source.no_shuffle,
                             .workers = (int)o->source.workers);
    if (o->no_eval || !p->train) return;
    p->test = ds_loader_new(source_open(&o->source, DS_TEST, true), 4);
}

#define MOST_SHOWN 64 /* images */

/* --show: the batch as a picture, with its labels; guesses: int64 [n], or NULL. */
static ds_status save_picture(const Program *p, const ds_batch *b, ds_tensor *guesses)
{
    const char *labels[MOST_SHOWN], *predictions[MOST_SHOWN];
    int64_t n = b->size < MOST_SHOWN ? b->size : MOST_SHOWN;
    const int64_t *label = ds_data(b->y), *guess = guesses ? ds_data(guesses) : NULL;
    if (!label || (guesses && !guess)) return ds_error_status();
    for (int64_t i = 0; i < n; i++) {
        labels[i] = ds_cifar10_class((int)label[i]);
        predictions[i] = guess ? ds_cifar10_class((int)guess[i]) : NULL;
    }
    return ds_save_image_grid(ds_slice(b->x, 0, 0, n), 8, p->o.show, .scale = 4, .labels = labels,
                              .predictions = guess ? predictions : NULL);
}

/* Draws an order and shows its first batch, like the tutorial's dataiter.
 * Training then draws a new order. */
static void show_batch(Program *p)
{
    ds_batch b;
    if (p->o.eval || !ds_loader_next(p->train, &b)) return;
    if (!p->o.quiet) print_names("", b.y);
    if (p->o.show && save_picture(p, &b, NULL) != DS_OK) return;
    ds_loader_stop(p->train);
}

static void make_network(Program *p)
{
    p->net = net_new();
    if (p->o.eval && !p->o.load)
        fprintf(stderr, "cifar10_tutorial: --eval without --load FILE: the weights are random\n");
    if (p->o.load) {
        ds_state *state = weights_load(p->o.load);
        if (state && ds_module_load(p->net, state) == DS_OK && !p->o.quiet)
            printf("Loaded %s\n", p->o.load);
        ds_state_free(state);
    }
    p->sgd = ds_optim_sgd(p->net, p->o.lr, .momentum = p->o.momentum);
}

/* ---- training ------------------------------------------------------------------------------------------ */

/* Forward, backward, update, on a batch; returns the loss. A GPU records this
 * and launches it as one graph. */
static ds_tensor *train_step(void *self, ds_tensor *const *batch, int n)
{
    Program *p = self;
    (void)n;
    ds_optim_zero_grad(p->sgd);
    ds_tensor *loss = ds_cross_entropy(ds_call(p->net, batch[0]), batch[1]);
    if (ds_backward(loss) == DS_OK) ds_optim_step(p->sgd);
    return loss;
}

/* The loss of the next step is known. */
static void note_loss(Program *p, double loss)
{
    p->step++;
    if (!isfinite(loss))
        ds_fail(DS_ESTATE, "step %lld: the loss is %g, so training stops (a smaller --lr may help)",
                (long long)p->step, loss);
    if (p->trace)
        fprintf(p->trace, "%lld,%.9g,%.9g,%.9g\n", (long long)p->step, loss, ds_optim_lr(p->sgd),
                ds_grad_norm(p->net));
    p->running += loss;
    p->recent = p->recent > 0 ? 0.99 * p->recent + 0.01 * loss : loss; /* an epoch begins with 0 */
}

static void read_losses(Program *p)
{
    losses_read(&p->losses);
    for (int i = 0; i < p->losses.n && !ds_error(); i++) note_loss(p, p->losses.value[i]);
}

static bool more_steps(const Program *p)
{
    return p->o.max_steps < 0 || p->step + p->losses.count < p->o.max_steps;
}

/* One line each --log-interval. */
static void print_loss(Program *p, int64_t epoch, int64_t steps)
{
    read_losses(p);
    if (!p->o.quiet)
        printf("[%lld, %5lld] loss: %.3f\n", (long long)epoch + 1, (long long)steps,
               p->running / (double)p->o.log_interval);
    fflush(stdout);
    p->running = 0;
}

static void train_epoch(Program *p, int64_t epoch)
{
    Progress bar;
    char title[64];
    snprintf(title, sizeof title, "epoch %lld/%lld", (long long)epoch + 1, (long long)p->o.epochs);
    progress_begin(&bar, !p->o.quiet, "samples", ds_dataset_len(ds_loader_dataset(p->train)),
                   title);
    ds_batch b;
    p->running = p->recent = 0;
    for (int64_t i = 0; more_steps(p) && ds_loader_next(p->train, &b); i++) {
        losses_add(&p->losses, ds_step_graph_run(p->graph, (ds_tensor *const[]){b.x, b.y}, 2));
        if (losses_due(&p->losses)) read_losses(p);
        progress_add(&bar, b.size, p->recent);
        if (i % p->o.log_interval != p->o.log_interval - 1) continue;
        progress_hide(&bar);
        print_loss(p, epoch, i + 1);
    }
    read_losses(p);
    progress_end(&bar);
}

/* --patience: the accuracy after each epoch. */
static void measure(Program *p, int64_t epoch)
{
    if (!p->o.patience || ds_error()) return;
    Accuracy a = evaluate(p->net, p->test);
    if (ds_error()) return;
    if (!p->o.quiet) print_epoch_accuracy(epoch, &a);
    if (!best_add(&p->best, accuracy_total(&a), epoch)) return;
    ds_state *state = ds_module_state(p->net);
    best_keep(&p->best, state);
    ds_state_free(state);
}

/* The best weights are those that are saved and tested. */
static void use_best(Program *p)
{
    if (!p->best.weights || ds_error()) return;
    if (ds_module_load(p->net, p->best.weights) == DS_OK && !p->o.quiet) best_print(&p->best);
}

static void train(Program *p)
{
    p->best.patience = p->o.patience;
    p->trace = trace_open(p->o.trace, "step,loss,lr,grad_norm");
    p->graph = ds_step_graph_new(train_step, p);
    losses_begin(&p->losses, p->trace != NULL);
    for (int64_t epoch = 0; epoch < p->o.epochs && more_steps(p) && !ds_error(); epoch++) {
        train_epoch(p, epoch);
        measure(p, epoch + 1);
        if (best_is_over(&p->best)) break;
    }
    use_best(p);
    losses_end(&p->losses);
    ds_loader_stop(p->train);
    trace_close(p->trace, p->o.trace);
    if (!ds_error() && !p->o.quiet) printf("Finished Training\n");
}

/* The file to write the weights to, or NULL for none. */
static const char *save_path(const Options *o)
{
    return o->save || o->eval ? o->save : "./cifar_net.pth";
}

static void save(Program *p)
{
    const char *path = save_path(&p->o);
    if (!path || ds_error()) return;
    ds_state *state = ds_module_state(p->net);
    if (ds_save(state, path) == DS_OK && !p->o.quiet) printf("Saved %s\n", path);
    ds_state_free(state);
}

/* ---- testing ------------------------------------------------------------------------------------------- */

/* Prints the labels and predictions of the first test images; with --eval
 * --show also writes their picture. */
static void show_predictions(Program *p)
{
    ds_batch b;
    bool picture = p->o.show && p->o.eval;
    if ((p->o.quiet && !picture) || !ds_loader_next(p->test, &b)) return;
    bool was = ds_set_grad(false);
    ds_tensor *guesses = ds_argmax(ds_call(p->net, b.x), 1);
    ds_set_grad(was);
    if (picture && save_picture(p, &b, guesses) != DS_OK) return;
    if (!p->o.quiet) {
        print_names("GroundTruth:  ", b.y);
        print_names("Predicted:  ", guesses);
    }
    ds_loader_stop(p->test);
}

static void test(Program *p)
{
    if (p->o.no_eval || ds_error()) return;
    show_predictions(p);
    Accuracy a = evaluate(p->net, p->test);
    if (ds_error()) return;
    print_accuracy(&a);
    print_accuracy_by_class(&a);
}

/* ---- main -------------------------------------------------------------------------------------------- */

static void run(Program *p)
{
    ds_device device;
    if (ds_device_parse(p->o.device, &device) != DS_OK || ds_set_device(device) != DS_OK) return;
    if (ds_set_threads((int)p->o.threads) != DS_OK) return;
    if (path_check_readable("load", p->o.load) != DS_OK) return;
    if (save_path(&p->o) && ds_save_check(save_path(&p->o)) != DS_OK) return;
    if (p->o.patience && (p->o.no_eval || p->o.eval)) {
        ds_fail(DS_EINVAL, "--patience tests after each epoch of a training: leave out %s",
                p->o.eval ? "--eval" : "--no-eval");
        return;
    }
    if (p->o.seed >= 0) ds_seed((uint64_t)p->o.seed);
    load_data(p);
    if (!ds_error()) show_batch(p);
    if (!ds_error()) make_network(p);
    if (!ds_error() && !p->o.eval) train(p);
    save(p);
    test(p);
    if (!ds_error() && !p->o.quiet) printf("%s\n", ds_device_name(device));
}

int main(int argc, char **argv)
{
    Program p = {.o = read_options(argc, argv)};
    run(&p);
    fflush(stdout);
    ds_perror("cifar10_tutorial");
    ds_step_graph_free(p.graph);
    best_free(&p.best);
    ds_optim_free(p.sgd);
    ds_module_free(p.net);
    ds_loader_free(p.train);
    ds_loader_free(p.test);
    return ds_error() != NULL;
}
