/* tests/gpu/data_parallel.c: DataParallel on emulated GPUs, a replica on each,
 * beside its replicas on the CPU: losses, gradients, buffers; memory that is
 * full, faults; copies and waits of a step.
 * SPDX-License-Identifier: MIT */
#include "emulated.h"
#include "parallel/net.h"

#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 7, MOST_GPUS = 4 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};
static const int batches[] = {8, 9, 7, 3, 2, 1, 5}; /* uneven, smaller than the replicas */

static ds_module *same_net(void *arg)
{
    (void)arg;
    return net_new();
}

/* Bytes that the emulator has copied between GPUs. */
static long peer_bytes(bool staged)
{
    void *symbol = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_peer_bytes");
    long (*call)(bool staged);
    memcpy(&call, &symbol, sizeof call);
    return call(staged);
}

/* ---- training ---------------------------------------------------------------------------------------- */

typedef struct Trained {
    double loss[STEPS];
    float w[ROOM];
    int n;
} Trained;

static double step(ds_data_parallel *dp, ds_optim *optim, int i)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *labels, *x = samples(DS_F32, 100 * i, batches[i % 7], &labels);
    ds_optim_zero_grad(optim);
    ds_tensor *loss = ds_cross_entropy(ds_data_parallel_call(dp, x), labels);
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_INT(ds_optim_step(optim), DS_OK);
    double value = ds_item(loss);
    ds_scope_close(scope);
    return value;
}

static void train(Trained *t, ds_device device, int replicas, const int *ids)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_module *net = net_new();
    ds_data_parallel *dp = ds_data_parallel_new_with(net, replicas, same_net, NULL,
                                                     (ds_data_parallel_opts){.device_ids = ids});
    CHECK(dp);
    ds_optim *sgd = ds_optim_sgd(net, 0.05, .momentum = 0.9);
    for (int i = 0; i < STEPS; i++) t->loss[i] = step(dp, sgd, i);
    t->n = values(net, t->w, ROOM);
    CHECK(!ds_error());
    ds_optim_free(sgd);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void trains_as_on_the_cpu(void **state)
{
    (void)state;
    Trained *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    Trained *again = calloc(1, sizeof *again);
    static const int backward[] = {3, 2, 1, 0};
    for (int n = 2; n <= MOST_GPUS; n++) {
        train(want, cpu, n, NULL);
        train(got, gpu, n, NULL);
        CHECK_INT(got->n, want->n);
        for (int i = 0; i < STEPS; i++) CHECK_CLOSE(got->loss[i], want->loss[i], 1e-6);
        for (int i = 0; i < want->n; i++) CHECK_CLOSE(got->w[i], want->w[i], 1e-6);
        if (quick()) break;
        if (n < MOST_GPUS) continue;
        train(again, (ds_device){DS_CUDA, 3}, n, backward); /* the same bits on other GPUs */
        assert_memory_equal(again->w, got->w, sizeof(float) * (size_t)got->n);
        assert_memory_equal(again->loss, got->loss, sizeof got->loss);
    }
    free(want), free(got), free(again);
}

/* ---- gradients, dtypes, buffers ---------------------------------------------------------------------- */

static ds_module *norm_new(void *arg)
{
    (void)arg;
    ds_module *m = ds_nn_sequential(NULL, "seq");
    ds_nn_batch_norm2d(m, "0", 3);
    ds_nn_conv2d(m, "1", 3, 4, 3);
    ds_nn_flatten(m, "2");
    ds_nn_linear(m, "3", 144, 7);
    return m;
}

typedef struct Pass {
    float y[ROOM], dx[ROOM], grads[ROOM], state[ROOM];
    int n[4];
} Pass;

static int note(float *to, int at, ds_tensor *x)
{
    ds_tensor *host = ds_contiguous(ds_to(ds_detach(x), cpu, DS_F32));
    CHECK(host && at + ds_numel(host) <= ROOM);
    memcpy(to + at, ds_data(host), (size_t)ds_numel(host) * sizeof(float));
    return at + (int)ds_numel(host);
}

/* A forward and backward in the middle of a graph, whose input is in memory
 * as [C,N,H,W]: rows that are not dense. */
static void pass(Pass *p, ds_device device, int replicas, ds_dtype dtype)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_seed(3);
    ds_module *net = norm_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(net, replicas, norm_new, NULL);
    CHECK_INT(ds_module_to(net, dtype), DS_OK); /* after the replicas were made */
    ds_tensor *labels, *x = samples(dtype, 5, 11, &labels);
    x = ds_contiguous(ds_transpose(x, 0, 1));
    ds_tensor *a = ds_require_grad(ds_transpose(x, 0, 1), true);
    ds_tensor *y = ds_data_parallel_call(dp, ds_tanh(a));
    CHECK_INT(ds_dtype_of(y), dtype);
    CHECK_INT(ds_backward(ds_cross_entropy(ds_tanh(ds_cast(y, DS_F32)), labels)), DS_OK);
    *p = (Pass){.n = {note(p->y, 0, y), note(p->dx, 0, ds_grad(a))}};
    p->n[0] = note(p->y, 0, y), p->n[1] = note(p->dx, 0, ds_grad(a));
    for (int i = 0; i < ds_module_params(net); i++)
        p->n[2] = note(p->grads, p->n[2], ds_grad(ds_module_param_at(net, i, NULL)));
    ds_state *state = ds_module_state(net);
    for (int i = 0; i < ds_state_len(state); i++)
        p->n[3] = note(p->state, p->n[3], ds_state_at(state, i));
    ds_state_free(state);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void compare_pass(const Pass *got, const Pass *want, double tolerance)
{
    const float *a[] = {got->y, got->dx, got->grads, got->state},
                *b[] = {want->y, want->dx, want->grads, want->state};
    for (int k = 0; k < 4; k++) {
        CHECK_INT(got->n[k], want->n[k]);
        for (int i = 0; i < want->n[k]; i++)
            CHECK_CLOSE(a[k][i], b[k][i], tolerance * (1 + fabsf(b[k][i])));
    }
}

static void gradients_and_buffers(void **state)
{
    (void)state;
    Pass *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    for (int n = 2; n <= (quick() ? 2 : 3); n++) {
        pass(want, cpu, n, DS_F32);
        pass(got, gpu, n, DS_F32);
        compare_pass(got, want, 2e-6);
        pass(want, cpu, n, DS_BF16);
        pass(got, gpu, n, DS_BF16);
        compare_pass(got, want, 1.6e-2); /* two steps of bfloat16 */
    }
    free(want), free(got);
}

/* ---- copies and waits -------------------------------------------------------------------------------- */

/* A step's copies are direct where GPUs can access each other, and five a
 * replica: its parameters, rows of the input, output, gradients of the output and
 * of the parameters. The host waits
 * for each replica but the first after its forward and its backward, for the
 * model's GPU before the update and for the loss. */
static void copies_and_waits(void **state)
{
    (void)state;
    if (!emulated()) skip();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = net_new();
    ds_data_parallel *dp = ds_data_parallel_new(net, 3, same_net, NULL);
    ds_optim *sgd = ds_optim_sgd(net, 0.05);
    step(dp, sgd, 0);
    ds_scope *scope = ds_scope_open();
    ds_tensor *labels, *x = samples(DS_F32, 0, 9, &labels);
    ds_optim_zero_grad(sgd);
    long syncs = emulator_count("fake_cuda_syncs"), direct = peer_bytes(false),
         copies = emulator_count("fake_cuda_peer_copies");
    ds_tensor *loss = ds_cross_entropy(ds_data_parallel_call(dp, x), labels);
    CHECK_INT(ds_backward(loss), DS_OK);
    syncs = emulator_count("fake_cuda_syncs") - syncs;
    direct = peer_bytes(false) - direct;
    copies = emulator_count("fake_cuda_peer_copies") - copies;
    int64_t elements = 0; /* each parameter begins at a multiple of 64 bytes */
    for (int i = 0; i < ds_module_params(net); i++)
        elements += (ds_numel(ds_module_param_at(net, i, NULL)) + 15) / 16 * 16;
    CHECK_INT(copies, 2 * 5);
    /* parameters and gradients (which end behind 7 elements), inputs,
     * outputs and their gradients, of two replicas */
    CHECK_INT(direct, 4 * 2 * (2 * elements - 9 + 3 * 192 + 3 * 7 * 2));
    CHECK_INT(peer_bytes(true), 0);
    CHECK_INT(syncs, 2 * 2);
    ds_scope_close(scope);
    ds_optim_free(sgd);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- refusals and faults --------------------------------------------------------------------------------- */

static ds_module *wide_new(void *arg)
{
    (void)arg;
    return ds_nn_linear(NULL, "wide", 256, 256);
}

/* The block that parameters are copied in is freed before a call returns. */
static void parameters_are_not_kept(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = wide_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, wide_new, NULL);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 256));
    size_t before = ds_memory_allocated(gpu);
    ds_tensor *y = ds_data_parallel_call(dp, x);
    CHECK(y && ds_memory_allocated(gpu) - before < 256 * 256 * sizeof(float));
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(ds_module_param_at(net, 0, NULL)))), 2 * 256 * 256, 0);
    ds_scope_close(scope);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static ds_module *large_new(void *arg)
{
    (void)arg;
    ds_module *m = ds_nn_sequential(NULL, "large");
    ds_nn_linear(m, "a", 1024, 2560); /* 10 MiB each: gradients come layer by layer */
    ds_nn_linear(m, "b", 2560, 1024);
    return m;
}

/* Gradients of all replicas are on the model's GPU a portion at a time. */
static void gradients_come_in_portions(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = large_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(net, 3, large_new, NULL);
    ds_scope *scope = ds_scope_open();
    ds_tensor *loss = ds_sum(ds_data_parallel_call(dp, ds_ones(DS_F32, ds_shape(3, 1024))));
    double model = 4 * (double)ds_module_numel(net), before = (double)ds_memory_allocated(gpu);
    ds_memory_reset_peak(gpu);
    CHECK_INT(ds_backward(loss), DS_OK);
    /* the model's own, and half of those of two others */
    CHECK((double)ds_memory_peak(gpu) - before < 2.1 * model);
    CHECK_CLOSE(ds_item(ds_sum(ds_grad(ds_module_param_at(net, 3, NULL)))), 3 * 1024, 0);
    ds_scope_close(scope);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void refusals(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    static const int one_twice[] = {0, 1, 1}, none[] = {0, 9}, other[] = {1, 0};
    ds_module *here = net_new();
    CHECK(!ds_data_parallel_new_with(here, 2, same_net, NULL, (ds_data_parallel_opts){other}));
    CHECK_ERROR("data_parallel: device_ids are GPUs, and the module is on the CPU: move it to "
                "cuda:1 first (ds_set_device), or leave them out");
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = net_new();
    CHECK(!ds_data_parallel_new(net, 5, same_net, NULL));
    CHECK_ERROR(
        "data_parallel: 5 replicas: expected at most one for each GPU, and there are 4 here");
    CHECK(!ds_data_parallel_new_with(net, 3, same_net, NULL, (ds_data_parallel_opts){one_twice}));
    CHECK_ERROR("data_parallel: device_ids[1] and [2] are both 1: expected a GPU for each replica");
    CHECK(!ds_data_parallel_new_with(net, 2, same_net, NULL, (ds_data_parallel_opts){none}));
    CHECK_ERROR("data_parallel: device_ids[1] is 9: there are 4 GPUs here, 0 to 3");
    CHECK(!ds_data_parallel_new_with(net, 2, same_net, NULL, (ds_data_parallel_opts){other}));
    CHECK_ERROR("data_parallel: the module is on cuda:0: expected it on cuda:1, device_ids[0]");
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, same_net, NULL);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_tensor *labels, *x = samples(DS_F32, 0, 4, &labels);
    CHECK(!ds_data_parallel_call(dp, x));
    CHECK_ERROR("data_parallel: the input is on cpu: expected cuda:0, where the module's first "
                "parameter is (ds_to)");
    ds_module_param(net, "more", ds_ones(DS_F32, ds_shape(1)));
    CHECK(!ds_data_parallel_new(net, 2, same_net, NULL));
    CHECK_ERROR("data_parallel: the module has a tensor on cuda:0: expected cpu");
    ds_data_parallel_free(dp);
    ds_module_free(net), ds_module_free(here);
    ds_scope_close(scope);
}

static ds_module *embedding_new(void *arg)
{
    (void)arg;
    return ds_nn_embedding(NULL, "e", 5, 3, -1);
}

/* An index that is none, on the second GPU: the call, which waits for its
 * replicas, says so; the next one works. */
static void bad_index_of_a_replica(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = embedding_new(NULL);
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, embedding_new, NULL);
    int64_t index[] = {0, 4, 2, 7};
    CHECK(!ds_data_parallel_call(dp, ds_from_data(DS_I64, ds_shape(4), index)));
    CHECK_ERROR("data_parallel: replica 1: embedding: index 7 at position 1 is outside 0..4");
    index[3] = 3;
    ds_tensor *y = ds_data_parallel_call(dp, ds_from_data(DS_I64, ds_shape(4), index));
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    const float *g = ds_data(ds_grad(ds_module_param_at(net, 0, NULL)));
    for (int i = 0; i < 15; i++) CHECK_CLOSE(g[i], i / 3 == 1 ? 0 : 1, 0);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static ds_tensor *graph_step(void *dp, ds_tensor *const *batch, int n)
{
    (void)n;
    return ds_sum(ds_data_parallel_call(dp, batch[0]));
}

/* A step with replicas runs kernel by kernel. */
static void no_step_graph(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_module *net = net_new();
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, same_net, NULL);
    ds_step_graph *graph = ds_step_graph_new(graph_step, dp);
    double first = 0;
    for (int i = 0; i < 5; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *labels, *x = samples(DS_F32, 0, 6, &labels);
        double sum = ds_item(ds_step_graph_run(graph, &x, 1));
        CHECK(!ds_error() && isfinite(sum));
        if (i == 0) first = sum;
        CHECK_CLOSE(sum, first, 0);
        ds_scope_close(scope);
    }
    ds_step_graph_free(graph);
    ds_data_parallel_free(dp);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- in a process of its own: other GPUs -------------------------------------------------------------- */

static void apart(bool (*body)(void), const char *name, const char *value)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv(name, value, 1);
        bool good = body();
        if (!good) fprintf(stderr, "%s=%s: %s\n", name, value, ds_error() ? ds_error() : "?");
        _exit(!good);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The second GPU is full: the message names it and its replica, and the first
 * one continues without it. */
static bool names_the_full_gpu(void)
{
    if (ds_set_device(gpu) != DS_OK) return false;
    ds_module *net = net_new();
    ds_data_parallel *dp = ds_data_parallel_new(net, 2, same_net, NULL);
    ds_tensor *labels, *x = samples(DS_F32, 0, 96, &labels);
    bool good = dp && !ds_data_parallel_call(dp, x) &&
                strstr(ds_error(), "data_parallel: replica 1: net") &&
                strstr(ds_error(), ": no memory for ") && strstr(ds_error(), " on cuda:1: ");
    if (good) ds_error_clear();
    if (good) good = ds_data_parallel_call(dp, ds_slice(x, 0, 0, 2)) && !ds_error();
    if (good) good = ds_backward(ds_sum(ds_call(net, x))) == DS_OK;
    ds_data_parallel_free(dp);
    ds_module_free(net);
    return good;
}

/* Without access the driver copies through the host's memory: the same bits. */
static bool copies_through_the_host(void)
{
    Trained *t = calloc(1, sizeof *t), *again = calloc(1, sizeof *again);
    train(t, gpu, 2, NULL);
    bool good = peer_bytes(false) == 0 && peer_bytes(true) > 0;
    setenv("FAKE_CUDA_PEERS", "1", 1);
    train(again, gpu, 2, NULL);
    good = good && peer_bytes(false) > 0 && !memcmp(t, again, sizeof *t);
    free(t), free(again);
    return good;
}

static void other_gpus(void **state)
{
    (void)state;
    if (!emulated()) skip();
    apart(names_the_full_gpu, "FAKE_CUDA_BYTES", "1073741824,131072");
    apart(copies_through_the_host, "FAKE_CUDA_PEERS", "0");
}

int main(void)
{
    int skip = skip_without_gpus(MOST_GPUS);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_gpus), /* first: no GPU is open yet */
        cmocka_unit_test(trains_as_on_the_cpu),
        cmocka_unit_test(gradients_and_buffers),
        cmocka_unit_test(copies_and_waits),
        cmocka_unit_test(parameters_are_not_kept),
        cmocka_unit_test(gradients_come_in_portions),
        cmocka_unit_test(refusals),
        cmocka_unit_test(bad_index_of_a_replica),
        cmocka_unit_test(no_step_graph),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
