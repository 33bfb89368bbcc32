/* tests/gpu/train.c: training on the emulated GPU beside the CPU: the tutorial's
 * network, every rule of the optimizers, the engine with its stages and
 * dtypes, checkpoints there and back, faults, memory that is full, how many
 * launches a step takes and how many bytes it moves.
 * SPDX-License-Identifier: MIT */
#include "autograd/node.h"
#include "base/mem.h"
#include "check.h"
#include "classify.h"
#include "device/device.h"
#include "emulated.h"
#include "folder.h"
#include "nets.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 4 };

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* ---- the tutorial's network -------------------------------------------------------------------------- */

/* The loss of one step before its backward pass; bad: one label is no class. */
static ds_tensor *step_loss(ds_module *net, int step, bool bad)
{
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = (step * 7 + i * 3) % 10;
    if (bad) labels[2] = 10;
    return ds_cross_entropy(ds_call(net, ds_randn(DS_F32, ds_shape(BATCH, 3, 32, 32))),
                            ds_from_data(DS_I64, ds_shape(BATCH), labels));
}

static void tutorial_train(ds_device device, int steps, double *losses)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_seed(11);
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    for (int step = 0; step < steps; step++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = step_loss(net, step, false);
        CHECK_INT(ds_backward(loss), DS_OK);
        CHECK_INT(ds_optim_step(sgd), DS_OK);
        ds_module_zero_grad(net);
        losses[step] = ds_item(loss);
        ds_scope_close(scope);
    }
    ds_optim_free(sgd);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void trains_the_tutorial_network(void **state)
{
    (void)state;
    double want[4], got[4], again[4];
    int steps = quick() ? 1 : 4;
    tutorial_train(cpu, steps, want);
    tutorial_train(gpu, steps, got);
    for (int i = 0; i < steps; i++) CHECK_CLOSE(got[i], want[i], 1e-5);
    if (quick()) return;
    tutorial_train(gpu, steps, again);
    CHECK(!memcmp(got, again, sizeof got)); /* the same bits at each run */
    dsi_device_set_fusions(DSI_FUSIONS_ALONE);
    tutorial_train(gpu, steps, again);
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    CHECK(!memcmp(got, again, sizeof got)); /* and without launch fusions */
}

static long step_launches(void)
{
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    long before = emulator_count("fake_cuda_launches");
    CHECK_INT(ds_backward(step_loss(net, 0, false)), DS_OK);
    CHECK_INT(ds_optim_step(sgd), DS_OK);
    long taken = emulator_count("fake_cuda_launches") - before;
    ds_optim_free(sgd);
    ds_module_free(net);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    return taken;
}

/* With a sanitizer memory is the driver's each time, and asking it launches what
 * waits: two ReLUs' gradients are not fused with their products. */
static void a_step_takes_few_launches(void **state)
{
    (void)state;
    enum { AT_MOST = DSI_SANITIZED ? 18 : 9 };
    if (!emulated()) skip();
    long taken = step_launches();
    dsi_device_set_fusions(DSI_FUSIONS_ALONE);
    long alone = step_launches();
    dsi_device_set_fusions(DSI_FUSIONS_ON);
    printf("# a step of the tutorial's network is %ld launches, %ld if none are fused\n", taken,
           alone);
    CHECK(taken > 0 && taken <= AT_MOST && alone > AT_MOST);
    for (int fusion = DSI_FUSE_RELU; fusion <= DSI_FUSE_CONV_STEP && !DSI_SANITIZED; fusion <<= 1) {
        dsi_device_disable_launch_fusions(fusion);
        long without = step_launches();
        if (without <= taken || without >= alone)
            fail_msg("%ld launches without the launch fusion %d", without, fusion);
    }
    dsi_device_disable_launch_fusions(0);
}

/* ---- a cross entropy that waits for its gradient ----------------------------------------------------- */

enum { CLASSES = 7 };

/* An event between a cross entropy and its backward. */
typedef enum Between { NOTHING, LOSS_IS_READ, LOSS_IS_FILLED } Between;

/* The gradient of [B,C] logits, as a GPU or the CPU has it; the caller frees it. */
static float *entropy_gradient(ds_device device, int kind, double factor, Between between,
                               long *launches)
{
    static const int64_t labels[BATCH] = {3, -100, 0, 6};
    float *out = malloc(BATCH * CLASSES * sizeof *out);
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_seed(5);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, ds_shape(BATCH, CLASSES));
    ds_tensor *label = ds_from_data(DS_I64, ds_shape(BATCH), labels);
    ds_tensor *weight = ds_rand(DS_F32, ds_shape(CLASSES));
    CHECK(ds_require_grad(x, true));
    long before = emulator_count("fake_cuda_launches");
    ds_cross_entropy_opts opts = {.reduction = kind == 1 ? DS_SUM : DS_MEAN};
    if (kind == 2) opts.weight = weight, opts.label_smoothing = 0.1;
    ds_tensor *loss = ds_cross_entropy_with(x, label, opts);
    if (between == LOSS_IS_READ) CHECK(ds_item(loss) > 0);
    if (between == LOSS_IS_FILLED) CHECK(dsi_fill(ds_detach(loss), 3) && ds_item(loss) == 3);
    CHECK_INT(dsi_backward_scaled(loss, factor), DS_OK);
    ds_tensor *grad = ds_to(ds_grad(x), cpu, DS_F32);
    *launches = emulator_count("fake_cuda_launches") - before;
    CHECK(grad);
    memcpy(out, ds_data(grad), BATCH * CLASSES * sizeof *out);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    return out;
}

static void a_cross_entropy_and_its_gradient_are_one_launch(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (Between between = NOTHING; between <= LOSS_IS_FILLED; between++)
            for (double factor = 1; factor < 2000; factor *= 1024) {
                long launches, none;
                float *want = entropy_gradient(cpu, kind, factor, between, &none);
                float *got = entropy_gradient(gpu, kind, factor, between, &launches);
                for (int i = 0; i < BATCH * CLASSES; i++)
                    CHECK_CLOSE(got[i], want[i], 1e-6 * factor);
                if (emulated() && !DSI_SANITIZED)
                    CHECK(between == NOTHING ? launches == 1 : launches >= 2);
                free(want), free(got);
            }
}

/* Numbers that a step of the tutorial's network must read and write, if each
 * kernel reads its operands once and writes its results once, and every ReLU is
 * done where its operand or its gradient passes anyway. */
static double least_numbers(void)
{
    const double weights = 62006, x = 3 * 32 * 32, conv1 = 6 * 28 * 28, pool1 = conv1 / 4,
                 conv2 = 16 * 10 * 10, pool2 = conv2 / 4, hidden = 120 + 84, out = 10;
    double each = 2 * x +               /* forward, dw */
                  2 * (conv1 + conv2) + /* written, pooled */
                  8 * (pool1 + pool2) + /* written, next op, its dw, sign; index; gradient, twice */
                  7 * hidden +          /* written, next op, its dw, sign; gradient, dx, dw */
                  6 * out;
    return 8 * weights + /* forward, dx; gradient; optimizer: p, m, g read, p, m written */
           BATCH * each;
}

static void a_step_moves_few_bytes(void **state)
{
    (void)state;
    ds_profile_row row[64];
    double bytes = 0;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    for (int step = 0; step < 2; step++) { /* the first makes the momentum */
        CHECK_INT(ds_profile_begin(), DS_OK);
        CHECK_INT(ds_backward(step_loss(net, step, false)), DS_OK);
        CHECK_INT(ds_optim_step(sgd), DS_OK);
        CHECK_INT(ds_profile_end(), DS_OK);
        ds_module_zero_grad(net);
    }
    int n = ds_profile_rows(row, 64, (ds_profile_opts){.rows = 64});
    for (int i = 0; i < n && i < 64; i++) bytes += row[i].bytes;
    double least = least_numbers() * sizeof(float);
    printf("# a step moves %.0f bytes, %.2f times the least possible\n", bytes, bytes / least);
    CHECK(n < 64 && bytes > 0.9 * least && bytes < 1.15 * least);
    ds_optim_free(sgd);
    ds_module_free(net);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void nothing_is_updated_after_a_fault(void **state)
{
    (void)state;
    float *before = NULL, *after = NULL;
    size_t n = 0, m = 0;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(gpu), DS_OK);
    ds_seed(11);
    ds_module *net = net_new();
    ds_optim *sgd = ds_optim_sgd(net, 0.01, .momentum = 0.9);
    values_add(net, &before, &n);
    ds_tensor *loss = step_loss(net, 0, true);
    CHECK(loss && !ds_error()); /* queued: the host has not waited */
    CHECK_INT(ds_backward(loss), DS_OK);
    CHECK_INT(ds_optim_step(sgd), DS_EINVAL);
    CHECK_ERROR("cross_entropy: label 10 at index 2 is outside 0..9");
    values_add(net, &after, &m);
    CHECK(n == m && before && after && !memcmp(before, after, n));
    free(before), free(after);
    ds_optim_free(sgd);
    ds_module_free(net);
    ds_scope_close(scope);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

/* ---- optimizers -------------------------------------------------------------------------------------- */

static void optimizer_train(int rule, ds_device device, double *losses, int steps)
{
    CHECK_INT(ds_set_device(device), DS_OK);
    ds_module *net = small_net();
    ds_optim *o = optimizer_new(rule, net);
    CHECK(o);
    for (int i = 0; i < steps; i++) {
        ds_scope *scope = ds_scope_open();
        ds_seed((uint64_t)i);
        ds_tensor *y = ds_call(net, ds_randn(DS_F32, ds_shape(BATCH, WIDTH)));
        ds_tensor *loss = ds_mean(ds_mul(y, y));
        losses[i] = ds_item(loss);
        CHECK_INT(ds_backward(loss), DS_OK);
        CHECK_INT(ds_optim_step(o), DS_OK);
        ds_module_zero_grad(net);
        ds_scope_close(scope);
    }
    ds_optim_free(o);
    ds_module_free(net);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static void every_rule(void **state)
{
    (void)state;
    double want[5], got[5];
    for (int rule = 0; rule < RULES; rule++) {
        optimizer_train(rule, cpu, want, 5);
        optimizer_train(rule, gpu, got, 5);
        for (int i = 0; i < 5; i++) CHECK_CLOSE(got[i], want[i], 2e-5 * (1 + fabs(want[i])));
    }
}

/* ---- the engine -------------------------------------------------------------------------------------- */

enum { STEPS = 4 };

typedef struct Run {
    char config[600];
    const char *save, *load; /* after, or before, the steps */
    double loss[STEPS];
    ds_device device;
    size_t held; /* bytes on the device after the last step */
    long waits;  /* of the host, in the last backward pass and step */
} Run;

static void configure(Run *run, int stage, const char *precision, const char *zero)
{
    snprintf(run->config, sizeof run->config,
             "{\"train_batch_size\": %d, \"gradient_accumulation_steps\": 2, "
             "\"gradient_clipping\": 0.5, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
             "{\"lr\": 0.01}}, %s\"zero_optimization\": {\"stage\": %d%s}}",
             2 * BATCH, precision, stage, zero);
}

/* The parameters as the engine has them, in float32; the caller frees them. */
static float *engine_train(Run *run, size_t *bytes)
{
    CHECK_INT(ds_set_device(run->device), DS_OK);
    ds_engine *e = ds_initialize(.model = small_net(), .config = run->config);
    CHECK(e);
    if (run->load) CHECK_INT(ds_engine_load(e, run->load), DS_OK);
    for (int i = 0; i < STEPS && !run->load; i++) {
        ds_scope *scope = ds_scope_open();
        ds_seed((uint64_t)i);
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(BATCH, WIDTH)), ds_engine_dtype(e));
        ds_tensor *y = ds_cast(ds_engine_forward(e, x), DS_F32), *loss = ds_mean(ds_mul(y, y));
        run->loss[i] = ds_item(loss);
        long before = emulator_count("fake_cuda_syncs");
        CHECK_INT(ds_engine_backward(e, loss), DS_OK);
        CHECK_INT(ds_engine_step(e), DS_OK);
        run->waits = emulator_count("fake_cuda_syncs") - before;
        ds_scope_close(scope);
    }
    run->held = ds_memory_allocated(run->device);
    if (run->save) CHECK_INT(ds_engine_save(e, run->save), DS_OK);
    ds_state *s = ds_engine_state(e, true);
    static const char *const names[] = {"a.weight", "a.bias", "c.weight", "c.bias"};
    float *all = malloc((WIDTH * WIDTH + 2 * WIDTH + 1) * sizeof *all), *at = all;
    for (int i = 0; i < 4; i++) {
        ds_tensor *p = ds_to(ds_state_get(s, names[i]), cpu, DS_F32);
        CHECK(p);
        memcpy(at, ds_data(p), (size_t)ds_numel(p) * sizeof *at);
        at += ds_numel(p);
    }
    *bytes = (size_t)(at - all) * sizeof *all;
    ds_state_free(s);
    ds_engine_free(e);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    return all;
}

#define BF16    "\"bf16\": {\"enabled\": true}, "
#define FP16    "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}, "
#define OFFLOAD ", \"offload_optimizer\": {\"device\": \"cpu\"}"

static const struct {
    const char *precision, *zero;
    int stage;
    double tolerance;
} plans[] = {{"", "", 0, 1e-6},      {BF16, "", 0, 2e-2},      {FP16, "", 0, 3e-3},
             {"", "", 1, 1e-6},      {BF16, "", 1, 2e-2},      {FP16, "", 2, 3e-3},
             {"", OFFLOAD, 2, 1e-6}, {BF16, OFFLOAD, 1, 2e-2}, {FP16, OFFLOAD, 3, 3e-3},
             {"", "", 3, 1e-6},      {BF16, "", 3, 2e-2}};

static void stages_and_dtypes(void **state)
{
    (void)state;
    size_t n;
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        Run want = {.device = cpu}, got = {.device = gpu};
        configure(&want, plans[k].stage, plans[k].precision, plans[k].zero);
        configure(&got, plans[k].stage, plans[k].precision, plans[k].zero);
        free(engine_train(&want, &n));
        free(engine_train(&got, &n));
        for (int i = 0; i < STEPS; i++)
            CHECK_CLOSE(got.loss[i], want.loss[i], plans[k].tolerance * (1 + want.loss[i]));
    }
}

/* Masters and moments are not on the GPU; nor are, between steps, parameters. */
static void offload_frees_the_gpu(void **state)
{
    (void)state;
    size_t n;
    static const char *const zero[] = {
        "", OFFLOAD,
        OFFLOAD ", \"stage3_param_persistence_threshold\": 0, \"offload_param\": {\"device\": "
                "\"cpu\"}"};
    size_t held[3];
    for (int i = 0; i < 3; i++) {
        Run run = {.device = gpu};
        configure(&run, i == 2 ? 3 : 1, BF16, zero[i]);
        ds_scope *scope = ds_scope_open();
        size_t before = ds_memory_allocated(gpu);
        free(engine_train(&run, &n));
        held[i] = run.held - before;
        CHECK(run.waits <= 2);
        ds_scope_close(scope);
    }
    printf("# %zu bytes of parameters: the GPU holds %zu, offloaded %zu, parameters too %zu\n",
           n / 2, held[0], held[1], held[2]);
    CHECK(held[1] + 2 * n < held[0] && held[2] + n / 3 < held[1]); /* n: of float32 */
}

/* To the bit: what a GPU has saved a CPU loads, and the other way. */
static void checkpoints_there_and_back(void **state)
{
    (void)state;
    size_t n;
    const char *folder = folder_make();
    for (int way = 0; way < 2; way++)
        for (int stage = 0; stage < 3; stage += 2) {
            char path[400];
            snprintf(path, sizeof path, "%s/%d-%d", folder, way, stage);
            Run first = {.device = way ? cpu : gpu, .save = path};
            Run other = {.device = way ? gpu : cpu, .load = path};
            configure(&first, stage, stage ? BF16 : "", "");
            configure(&other, stage, stage ? BF16 : "", "");
            float *a = engine_train(&first, &n), *b = engine_train(&other, &n);
            CHECK(!memcmp(a, b, n));
            free(a), free(b);
        }
    folder_remove();
}

/* ---- memory ------------------------------------------------------------------------------------------ */

static void says_what_does_not_fit(void **state)
{
    (void)state;
    if (!emulated()) skip(); /* a process that was forked cannot use NVIDIA's driver */
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_CUDA_BYTES", "1048576", 1);
        bool good = ds_set_device(gpu) == DS_OK;
        ds_tensor *x = good ? ds_zeros(DS_F32, ds_shape(512, 256)) : NULL;
        good = x && !ds_matmul(x, ds_zeros(DS_F32, ds_shape(256, 1024))) &&
               strstr(ds_error(),
                      "no memory for 1048576 bytes (float32 [256, 1024]) on cuda:0: ") &&
               strstr(ds_error(), " of its 1048576 are free; a smaller batch, ");
        if (!good) fprintf(stderr, "%s\n", ds_error() ? ds_error() : "no message");
        _exit(!good);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A step of `layers` tensors of changing lengths, and their release. */
static void step_of_shapes(uint64_t *random)
{
    enum { LAYERS = 12 };
    ds_scope *scope = ds_scope_open();
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    int64_t length = 16 + (int64_t)(*random >> 33) % 240;
    for (int i = 0; i < LAYERS; i++)
        CHECK(
            ds_zeros(DS_F32, i % 3 == 2 ? ds_shape(length, length) : ds_shape(length, 96 + 7 * i)));
    ds_scope_close(scope);
}

/* 1,000 steps with changing shapes: what the GPU has given is at most twice what
 * was in use at a time; and it settles, instead of being given back and taken
 * again in each step. */
static void fragmentation_is_bounded(void **state)
{
    (void)state;
    uint64_t random = 1;
    size_t unused, all, begun;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    dsi_device *d = dsi_device_get(gpu);
    dsi_cache_empty(d);
    ds_memory_reset_peak(gpu);
    dsi_cache_restart_peaks(d);
    CHECK_INT(d->type->room(d, &begun, &all), DS_OK);
    for (int i = 0; i < (quick() ? 100 : 1000); i++) step_of_shapes(&random);
    CHECK_INT(d->type->sync(&d->stream), DS_OK); /* what was given back is there */
    CHECK_INT(d->type->room(d, &unused, &all), DS_OK);
    dsi_cache_usage use = dsi_cache_use(d);
    size_t most = 2 * use.peak_live + ((size_t)2 << 20);
    printf("# changing shapes: %zu bytes in use at most, %zu taken\n", use.peak_live,
           use.peak_held);
    CHECK(use.peak_held <= most);
    if (emulated()) /* on a real one other programs take memory too; 64 KiB: the blocks' ends */
        CHECK(begun - unused <= most + (64 << 10));
    dsi_cache_empty(d);
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_does_not_fit), /* first: the GPU is not open yet */
        cmocka_unit_test(trains_the_tutorial_network),
        cmocka_unit_test(a_step_takes_few_launches),
        cmocka_unit_test(a_step_moves_few_bytes),
        cmocka_unit_test(a_cross_entropy_and_its_gradient_are_one_launch),
        cmocka_unit_test(nothing_is_updated_after_a_fault),
        cmocka_unit_test(every_rule),
        cmocka_unit_test(stages_and_dtypes),
        cmocka_unit_test(offload_frees_the_gpu),
        cmocka_unit_test(checkpoints_there_and_back),
        cmocka_unit_test(fragmentation_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
