/* tests/gpu/driver.c: the CUDA device over a driver that pretends to have GPUs
 * (emulator): all of it runs on machines without one, and failures of drivers
 * and GPUs can be made at will.
 * SPDX-License-Identifier: MIT */
#include "gpu/real.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static void *fake;
static int (*live)(void); /* what the driver has handed out and not got back */

/* NAME=value in the environment; NULL: nothing */
static void set(const char *setting)
{
    char name[64];
    if (!setting) return;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(setting, "="), setting);
    setenv(name, strchr(setting, '=') + 1, 1);
}

/* Runs body in a process of its own, in which no GPU was used before, with
 * settings as NAME=value. */
static void apart(CMUnitTestFunction body, const char *a, const char *b)
{
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        set(a);
        set(b);
        const struct CMUnitTest one[] = {{a ? a : "apart", body, NULL, NULL, NULL}};
        _exit(cmocka_run_group_tests_name("apart", one, NULL, NULL));
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Each way of asking for a GPU says the same. */
static void none_because(const char *why)
{
    ds_device d;
    CHECK_INT(ds_device_count(DS_CUDA), 0);
    CHECK(!ds_error());
    CHECK(ds_device_parse("cuda", &d) != DS_OK);
    CHECK_INT(ds_error_status(), DS_EDEVICE);
    CHECK(!strchr(ds_error(), '\n'));
    CHECK_ERROR(why);
    CHECK(ds_device_parse("cuda:1", &d) != DS_OK);
    CHECK_ERROR("device cuda:1: ");
    CHECK(ds_set_device((ds_device){DS_CUDA, 0}) != DS_OK);
    CHECK_ERROR(why);
    CHECK(ds_current_device().kind == DS_CPU);
}

static void has_none(void **state)
{
    (void)state;
    none_because("device cuda:0: the NVIDIA driver finds no GPU (CUDA_ERROR_NO_DEVICE): in a "
                 "container, start it with --gpus all; else use the CPU");
}

static void counts_none(void **state)
{
    (void)state;
    none_because("the NVIDIA driver finds no GPU (it counts 0)");
}

static void hides_all(void **state)
{
    (void)state;
    none_because("shows no GPU (CUDA_ERROR_NO_DEVICE); CUDA_VISIBLE_DEVICES is \"7\": unset it to "
                 "see all");
}

static void is_broken(void **state)
{
    (void)state;
    none_because("the NVIDIA driver does not start: an error of the fake (CUDA_ERROR_UNKNOWN); see "
                 "what nvidia-smi says, or use the CPU");
}

static void is_old(void **state)
{
    (void)state;
    none_because("the NVIDIA driver is for CUDA 10.2, and 11.4 or newer is needed: install a newer "
                 "driver, or use the CPU");
}

static void drivers_that_do_not_start(void **state)
{
    (void)state;
    unsetenv("CUDA_VISIBLE_DEVICES");
    apart(has_none, "FAKE_CUDA_FAIL=cuInit=100", NULL);
    apart(counts_none, "FAKE_CUDA_COUNT=0", NULL);
    apart(hides_all, "FAKE_CUDA_FAIL=cuInit=100", "CUDA_VISIBLE_DEVICES=7");
    apart(is_broken, "FAKE_CUDA_FAIL=cuInit=999", NULL);
    apart(is_old, "FAKE_CUDA_VERSION=10020", NULL);
}

static void two_are_here(void **state)
{
    (void)state;
    ds_device d;
    CHECK_INT(ds_device_count(DS_CUDA), 2);
    CHECK_INT(ds_device_parse("cuda", &d), DS_OK);
    CHECK(d.kind == DS_CUDA && d.index == 0);
    CHECK_INT(ds_device_parse("cuda:1", &d), DS_OK);
    CHECK_INT(d.index, 1);
    CHECK(ds_device_parse("cuda:2", &d) != DS_OK);
    CHECK_ERROR("device cuda:2: there are 2 cuda devices here, cuda:0 to cuda:1; "
                "CUDA_VISIBLE_DEVICES is 4,5");
    setenv("LOCAL_RANK", "1", 1);
    CHECK_INT(ds_device_parse("cuda", &d), DS_OK);
    CHECK_INT(d.index, 1);
    setenv("LOCAL_RANK", "2", 1);
    CHECK(ds_device_parse("cuda", &d) != DS_OK);
    CHECK_ERROR(
        "device cuda: local rank 2 has no GPU of its own, there are 2 here: start at most 2 "
        "ranks on this machine (deepspeed --num_gpus 2), or name a device, as cuda:0");
    CHECK_INT(ds_device_parse("cuda:0", &d), DS_OK); /* who names one gets it */
    unsetenv("LOCAL_RANK");
}

static void cannot_be_opened(void **state)
{
    (void)state;
    CHECK(ds_set_device((ds_device){DS_CUDA, 1}) != DS_OK);
    CHECK_ERROR("cuda:1: this GPU cannot be used: an error of the fake "
                "(CUDA_ERROR_DEVICE_UNAVAILABLE)");
    CHECK(ds_current_device().kind == DS_CPU);
    CHECK_INT(live(), 0);
}

static void has_no_stream(void **state)
{
    (void)state;
    CHECK(ds_set_device((ds_device){DS_CUDA, 0}) != DS_OK);
    CHECK_ERROR("cuda:0: a stream: an error of the fake (CUDA_ERROR_OUT_OF_MEMORY)");
    CHECK_INT(live(), 0);
}

static void is_an_old_gpu(void **state)
{
    (void)state;
    CHECK(ds_set_device((ds_device){DS_CUDA, 1}) != DS_OK);
    CHECK_ERROR("cuda:1: this GPU has compute capability 6.1, and 7.5 or newer is needed: use a "
                "newer GPU, or the CPU");
    CHECK_INT(live(), 0);
}

static void devices(void **state)
{
    (void)state;
    apart(two_are_here, "CUDA_VISIBLE_DEVICES=4,5", NULL);
    apart(cannot_be_opened, "FAKE_CUDA_FAIL=cuDevicePrimaryCtxRetain=46", NULL);
    apart(is_an_old_gpu, "FAKE_CUDA_CAPABILITY=61", NULL);
    apart(has_no_stream, "FAKE_CUDA_FAIL=cuStreamCreate=2", NULL);
}

static void without_pools(void **state)
{
    tensors_go_everywhere(state);
    blocks_are_kept(state);
    more_than_it_has(state);
}

/* By tensor cores: not few multiplications of few rows, or gemm_small.cu does
 * it. */
static void products_compute(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_to(ds_full(DS_BF16, ds_shape(64, 64), 0.5), (ds_device){DS_CUDA, 0}, DS_BF16);
    const float *got = ds_data(
        ds_to(ds_matmul(x, ds_transpose(x, 0, 1)), (ds_device){DS_CPU, 0}, DS_F32));
    CHECK(got && got[0] == 16 && got[64 * 64 - 1] == 16);
    CHECK_INT(ds_error_status(), DS_OK);
    ds_scope_close(scope);
}

/* Products of warpgroups are of compute capability 9.0 alone, and need a driver
 * for CUDA 12.0. */
static void older_gpus(void **state)
{
    (void)state;
    apart(without_pools, "FAKE_CUDA_POOLS=0", NULL);
    apart(ops_compute, "FAKE_CUDA_CAPABILITY=86", NULL); /* kernels do not start early */
    apart(ops_compute, "FAKE_CUDA_VERSION=12020", NULL);
    apart(products_compute, "FAKE_CUDA_VERSION=12000", NULL);
    apart(products_compute, "FAKE_CUDA_VERSION=11080", NULL);
    apart(products_compute, "FAKE_CUDA_CAPABILITY=100", NULL);
}

/* A result that is computed when it is first read fails there, and can be read
 * later. */
static void a_deferred_result(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    ds_tensor *leaf = ds_require_grad(ds_ones(DS_F32, ds_shape(2, 8, 3, 3)), true);
    ds_tensor *y = ds_batch_norm_with(ds_scale(leaf, 2), (ds_batch_norm_opts){.training = true});
    setenv("FAKE_CUDA_FAIL", "cuLaunchKernel=1", 1);
    CHECK(!ds_silu(y));
    CHECK_ERROR("cuda:0: ");
    unsetenv("FAKE_CUDA_FAIL");
    CHECK_CLOSE(ds_item(ds_sum(ds_relu(ds_silu(y)))), 0, 0);
    CHECK_INT(ds_error_status(), DS_OK);
    ds_scope_close(scope);
}

/* Unused blocks are given back before an allocation fails. */
static void a_full_gpu(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    for (size_t mb = 1; mb < 6; mb++) {
        void *p = dsi_cache_alloc(d, mb << 20);
        CHECK(p);
        dsi_cache_free(d, p, mb << 20);
    }
    CHECK(!dsi_cache_alloc(d, 9 << 20));
    CHECK_ERROR("no memory for 9437184 bytes on cuda:0: 0 are in use, the most so far was 5242880, "
                "8388568 of its 8388608 are free");
}

/* The same on a GPU that is behind: blocks are free only when the stream has
 * come to their release. */
static void a_full_gpu_that_is_behind(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    void *p = dsi_cache_alloc(d, 5 << 20);
    CHECK(p);
    dsi_cache_free(d, p, 5 << 20);
    CHECK((p = dsi_cache_alloc(d, 6 << 20)));
    dsi_cache_free(d, p, 6 << 20);
}

/* 1,000 steps of six tensors whose sizes change: what is kept for later steps
 * does not fill the GPU, which has twice what a step needs. */
static void shapes_that_change(void **state)
{
    (void)state;
    enum { STEPS = 1000, TENSORS = 6, MOST = 512 << 10 };
    dsi_device *d = dsi_device_get((ds_device){DS_CUDA, 0});
    uint64_t random = 1;
    for (int step = 0; step < STEPS; step++) {
        void *p[TENSORS];
        size_t bytes[TENSORS];
        for (int i = 0; i < TENSORS; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (random >> 33) % MOST + 1;
            CHECK((p[i] = dsi_cache_alloc(d, bytes[i])));
        }
        for (int i = 0; i < TENSORS; i++) dsi_cache_free(d, p[i], bytes[i]);
    }
    dsi_cache_peaks peaks = dsi_cache_get_peaks(d);
    printf("# %zu bytes in use at most, %zu held\n", peaks.peak_live, peaks.peak_held);
    CHECK(peaks.peak_live <= (size_t)TENSORS * MOST);
}

/* Not for want of memory, so that is not what the message says. */
static void memory_is_refused(void **state)
{
    (void)state;
    CHECK(!dsi_cache_alloc(dsi_device_get((ds_device){DS_CUDA, 0}), 64));
    CHECK_ERROR("cuda:0: taking memory: ");
}

static void a_failing_copy(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = given((ds_device){DS_CUDA, 0});
    setenv("FAKE_CUDA_FAIL", "cuMemcpyDtoHAsync_v2=1", 1);
    CHECK(!ds_data(x));
    CHECK_ERROR("cuda:0: copying from it: an error of the fake (CUDA_ERROR_INVALID_VALUE)");
    CHECK(isnan(ds_item(ds_select(x, 0, 1))));
    CHECK_ERROR("copying from it");
    setenv("FAKE_CUDA_FAIL", "cuMemcpyHtoDAsync_v2=1", 1);
    CHECK(!ds_to(ds_ones(DS_F32, ds_shape(3)), (ds_device){DS_CUDA, 0}, DS_F32));
    CHECK_ERROR("cuda:0: copying to it: ");
    setenv("FAKE_CUDA_FAIL", "cuMemcpyPeerAsync=1", 1);
    CHECK(!ds_to(x, (ds_device){DS_CUDA, 1}, DS_F32));
    CHECK_ERROR("cuda:1: copying from another GPU: ");
    setenv("FAKE_CUDA_FAIL", "cuMemcpyDtoDAsync_v2=1", 1);
    CHECK(!ds_clone(x));
    CHECK_ERROR("cuda:0: copying: ");
    setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize=700", 1);
    CHECK(!ds_data(x));
    CHECK_ERROR("cuda:0: waiting for its stream: an illegal memory access was encountered "
                "(CUDA_ERROR_ILLEGAL_ADDRESS)");
    unsetenv("FAKE_CUDA_FAIL");
    check_given(x);
    ds_scope_close(scope);
}

/* Copies are behind the host by a megabyte at most: then it waits for them. */
static void a_failing_wait(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    setenv("FAKE_CUDA_FAIL", "cuEventSynchronize=700", 1);
    CHECK_INT(ds_set_device((ds_device){DS_CUDA, 0}), DS_OK);
    float *host = calloc(1 << 20, 1);
    for (int i = 0; i < 2; i++) CHECK(ds_from_data(DS_F32, ds_shape(1 << 18), host));
    CHECK(!ds_from_data(DS_F32, ds_shape(1), host));
    CHECK_ERROR("cuda:0: waiting for copies to it: an illegal memory access was encountered "
                "(CUDA_ERROR_ILLEGAL_ADDRESS)");
    free(host);
    ds_scope_close(scope);
    unsetenv("FAKE_CUDA_FAIL");
}

/* After a fault of a kernel every call of the driver fails; it is not taken for
 * a lack of memory. */
static void a_broken_gpu(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = given((ds_device){DS_CUDA, 0});
    setenv("FAKE_CUDA_FAIL", "all=700", 1);
    CHECK(!ds_clone(x));
    CHECK_INT(ds_error_status(), DS_EDEVICE);
    CHECK_ERROR("cuda:0: taking memory: an illegal memory access was encountered");
    ds_scope_close(scope);
    unsetenv("FAKE_CUDA_FAIL");
}

static void refuses_kernels(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = given((ds_device){DS_CUDA, 0});
    CHECK(!ds_relu(x));
    CHECK_ERROR("cuda:0: its kernels are refused: an error of the fake "
                "(CUDA_ERROR_UNSUPPORTED_PTX_VERSION): family pointwise; a newer NVIDIA driver may "
                "take them");
    setenv("FAKE_CUDA_FAIL", "cuModuleGetFunction=500", 1);
    CHECK(!ds_relu(x));
    CHECK_ERROR("cuda:0: unary_dense_f32: an error of the fake (CUDA_ERROR_NOT_FOUND)");
    setenv("FAKE_CUDA_FAIL", "cuLaunchKernel=1", 1);
    CHECK(!ds_relu(x));
    CHECK_ERROR("cuda:0: unary_dense_f32: an error of the fake (CUDA_ERROR_INVALID_VALUE)");
    unsetenv("FAKE_CUDA_FAIL");
    CHECK(ds_relu(x));
    ds_scope_close(scope);
}

static void failures(void **state)
{
    (void)state;
    apart(a_deferred_result, NULL, NULL);
    apart(a_full_gpu, "FAKE_CUDA_BYTES=8388608", NULL);
    apart(a_full_gpu_that_is_behind, "FAKE_CUDA_BYTES=8388608", "FAKE_CUDA_LAZY=1");
    apart(shapes_that_change, "FAKE_CUDA_BYTES=6291456", NULL);
    apart(shapes_that_change, "FAKE_CUDA_BYTES=6291456", "FAKE_CUDA_LAZY=1");
    apart(memory_is_refused, "FAKE_CUDA_FAIL=cuMemAllocAsync=700", NULL);
    apart(a_failing_copy, NULL, NULL);
    apart(copies_take_values, "FAKE_CUDA_LAZY=1", NULL);
    apart(a_failing_wait, NULL, NULL);
    apart(a_broken_gpu, NULL, NULL);
    apart(refuses_kernels, "FAKE_CUDA_FAIL=cuModuleLoadDataEx=222", NULL);
}

static void *one_thread(void *arg)
{
    (void)arg;
    tensors_go_everywhere(NULL);
    events_order_streams(NULL);
    return NULL;
}

/* Threads have handles of their own, which go with them, and all that they held
 * of the driver. */
static void threads_leave_nothing(void **state)
{
    (void)state;
    int before = live();
    pthread_t thread[3];
    for (int i = 0; i < 3; i++) CHECK(!pthread_create(&thread[i], NULL, one_thread, NULL));
    for (int i = 0; i < 3; i++) pthread_join(thread[i], NULL);
    CHECK_INT(live(), before);
}

/* Before the driver that pretends is there. */
static void no_driver(void **state)
{
    (void)state;
    void *real = dlopen("libcuda.so.1", RTLD_NOW);
    if (real) return; /* it has one */
    none_because("device cuda:0: no NVIDIA driver: libcuda.so.1 cannot be opened");
    ds_set_device((ds_device){DS_CUDA, 0});
    CHECK_ERROR("install the package with NVIDIA's driver (Debian: libcuda1), or use the CPU");
}

static void machines_without_a_driver(void **state)
{
    (void)state;
    apart(no_driver, NULL, NULL);
    fake = dlopen(FAKE_LIBCUDA, RTLD_NOW); /* whoever asks for libcuda.so.1 now gets this one */
    CHECK(fake);
    void *f = dlsym(fake, "fake_cuda_live");
    memcpy(&live, &f, sizeof f);
}

int main(void)
{
    if (access(FAKE_LIBCUDA, R_OK)) {
        printf("skipped: there is no emulator, %s\n", FAKE_LIBCUDA);
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_without_a_driver), /* first */
        cmocka_unit_test(drivers_that_do_not_start),
        cmocka_unit_test(devices),
        cmocka_unit_test(older_gpus),
        cmocka_unit_test(failures),
        GPU_TESTS,
        cmocka_unit_test(threads_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
