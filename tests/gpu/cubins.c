/* tests/gpu/cubins.c: machine code of kernels on emulated GPUs: which GPUs run
 * it, and that the driver compiles PTX where it is refused or not wanted. Both
 * are the same sources here, so both give the same bits.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "classify.h"
#include "gpu/apart.h"

static double want; /* the loss of a GPU of 9.0 */

/* Modules of PTX that the driver compiles for a step of the tutorial's network. */
static long step_compiles(double *loss)
{
    ds_scope *scope = ds_scope_open();
    long before = emulator_count("fake_cuda_compiled");
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    ds_seed(11);
    int64_t labels[] = {3, 1, 4, 1};
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 3, 32, 32));
    ds_tensor *y = ds_cross_entropy(ds_call(net, x), ds_from_data(DS_I64, ds_shape(4), labels));
    CHECK_INT(ds_backward(y), DS_OK);
    CHECK_INT(ds_optim_step(sgd), DS_OK);
    *loss = ds_item(y);
    CHECK(!ds_error());
    ds_optim_free(sgd);
    ds_module_free(net);
    ds_scope_close(scope);
    return emulator_count("fake_cuda_compiled") - before;
}

/* With a sanitizer a step has other kernels (gpu/train). */
static void runs_machine_code(void **state)
{
    (void)state;
    double loss;
    long compiled = step_compiles(&loss);
    CHECK(loss == want);
    if (!DSI_SANITIZED) CHECK_INT(compiled, 0);
}

static void compiles_all(void **state)
{
    (void)state;
    double loss;
    CHECK(step_compiles(&loss) >= 6);
    CHECK(loss == want);
}

/* A kernel that has no machine code is compiled beside those that have. */
static void compiles_others(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    CHECK(ds_item(ds_sum(ds_full(DS_F64, ds_shape(3), 2))) == 6);
    CHECK(emulator_count("fake_cuda_compiled") > 0);
    ds_scope_close(scope);
    runs_machine_code(state);
}

static void is_misspelt(void **state)
{
    (void)state;
    CHECK(ds_set_device((ds_device){DS_CUDA, 0}) != DS_OK);
    CHECK_ERROR("DS_CUBINS=no: expected on or off");
}

static void is_no_join(void **state)
{
    (void)state;
    CHECK(ds_set_device((ds_device){DS_CUDA, 0}) != DS_OK);
    CHECK_ERROR(
        "DS_FUSIONS=-pair,-conv: expected on, alone, off, or some of -relu -pair "
        "-conv_pool -entropy -linear_entropy -conv_step -norm -kept -batch, separated by commas");
}

static void gpus(void **state)
{
    static const char *const with[] = {"75", "80", "86", "89", "90", "100", "103", "120", "121"};
    (void)state;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        char setting[40];
        snprintf(setting, sizeof setting, "FAKE_CUDA_CAPABILITY=%s", with[i]);
        apart(runs_machine_code, setting, NULL, NULL);
    }
    apart(compiles_all, "FAKE_CUDA_CAPABILITY=110", NULL, NULL);
    apart(runs_machine_code, "FAKE_CUDA_VERSION=12000", NULL, NULL);
    apart(compiles_all, "FAKE_CUDA_VERSION=11080", NULL, NULL);
    apart(compiles_others, NULL, NULL, NULL);
}

/* Out of memory is no refusal: the step fails, with the driver's words. */
static void finds_no_memory(void **state)
{
    (void)state;
    CHECK(ds_set_device((ds_device){DS_CUDA, 0}) != DS_OK || !ds_full(DS_F32, ds_shape(3), 2));
    CHECK_ERROR("OUT_OF_MEMORY");
    CHECK_INT(emulator_count("fake_cuda_compiled"), 0);
}

/* INVALID_IMAGE, NO_BINARY_FOR_GPU, UNSUPPORTED_PTX_VERSION, INVALID_SOURCE,
 * NOT_SUPPORTED */
static void refusals(void **state)
{
    static const int results[] = {200, 209, 222, 300, 801};
    (void)state;
    apart(finds_no_memory, "FAKE_CUDA_NO_CUBIN=2", NULL, NULL);
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        char setting[40];
        snprintf(setting, sizeof setting, "FAKE_CUDA_NO_CUBIN=%d", results[i]);
        apart(compiles_all, setting, NULL, NULL);
    }
}

static void settings(void **state)
{
    (void)state;
    apart(compiles_all, "DS_CUBINS=off", NULL, NULL);
    apart(compiles_all, "CUDA_FORCE_PTX_JIT=1", NULL, NULL);
    apart(runs_machine_code, "CUDA_FORCE_PTX_JIT=0", "DS_CUBINS=on", NULL);
    apart(is_misspelt, "DS_CUBINS=no", NULL, NULL);
    apart(is_no_join, "DS_FUSIONS=-pair,-conv", NULL, NULL);
}

/* In a process of its own: this one is forked, and never starts the driver. */
static double loss_of_hopper(void)
{
    int end[2];
    double loss = 0;
    CHECK(pipe(end) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        step_compiles(&loss);
        _exit(write(end[1], &loss, sizeof loss) != sizeof loss);
    }
    CHECK(read(end[0], &loss, sizeof loss) == sizeof loss && waitpid(child, NULL, 0) == child);
    close(end[0]), close(end[1]);
    return loss;
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    want = loss_of_hopper();
    const struct CMUnitTest tests[] = {cmocka_unit_test(gpus), cmocka_unit_test(refusals),
                                       cmocka_unit_test(settings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
