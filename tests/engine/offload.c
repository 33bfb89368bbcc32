/* tests/engine/offload.c: what offload's keys do: the same parameters and
 * losses from memory and from files.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"
#include "ranks.h"

#include "engine/engine.h"

enum { STEPS = 4, WIDTH = 40, BATCH = 4, LOSSES = 2 * STEPS };

typedef struct Run {
    char config[1500];
    const char *dir;     /* NULL: neither is saved nor loaded */
    bool loads;          /* and continues from the middle */
    double loss[LOSSES]; /* of rank 0 */
} Run;

static ds_module *net_new(void)
{
    ds_seed(11);
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "a", WIDTH, WIDTH);
    ds_nn_relu(net, "b");
    ds_nn_linear(net, "c", WIDTH, 1);
    return net;
}

/* Weights are averaged too: the average reads parts, and changes places with
 * them. */
static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world());
    ds_module *net = net_new();
    ds_engine *e = ds_initialize(.model = net, .config = run->config);
    if (!e || ds_engine_use_ema(e, 0.5) != DS_OK) return ds_error_status();
    if (run->loads && ds_engine_load(e, run->dir) != DS_OK) return ds_error_status();
    for (int i = run->loads ? STEPS : 0; i < LOSSES; i++) {
        if (i == STEPS && run->dir && !run->loads && ds_engine_save(e, run->dir) != DS_OK)
            return ds_error_status();
        ds_scope *scope = ds_scope_open();
        ds_seed((uint64_t)(100 + 8 * i + rank));
        ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(BATCH, WIDTH)), ds_engine_dtype(e));
        ds_tensor *y = ds_cast(ds_engine_forward(e, x), DS_F32), *loss = ds_mean(ds_mul(y, y));
        if (rank == 0) run->loss[i] = ds_item(loss);
        if (ds_engine_backward(e, loss) == DS_OK) ds_engine_step(e);
        if (i == STEPS && ds_engine_swap_ema(e) == DS_OK) {
            double average = ds_item(ds_mean(ds_engine_forward(e, x)));
            if (rank == 0) run->loss[i] += average;
            ds_engine_swap_ema(e);
        }
        ds_scope_close(scope);
    }
    ds_status status = ds_error() ? ds_error_status() : DS_OK;
    ds_engine_free(e);
    return status;
}

static void configure(Run *run, int ranks, int stage, const char *precision, const char *zero)
{
    snprintf(
        run->config, sizeof run->config,
        "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": 2, "
        "\"train_batch_size\": %d, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": "
        "0.01}}, %s\"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": "
        "100%s}}",
        BATCH, 2 * BATCH * ranks, precision, stage, zero);
}

static void run_on(int ranks, Run *run)
{
    if (run_ranks(ranks, train, run) != DS_OK) fail_msg("%s\n%s", ds_error(), run->config);
}

static void files_change_nothing(void **state)
{
    static const char *const precisions[] = {"", "\"bf16\": {\"enabled\": true}, "};
    static const char form[] =
        ", \"sub_group_size\": 500, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
        "\"%s\", \"pipeline_read\": true, \"pipeline_write\": true, \"buffer_count\": 3}, "
        "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}";
    /* on a GPU: the CPU updates, which rounds in other places */
    const char *memory = on_gpu() ? ", \"offload_optimizer\": {\"device\": \"cpu\"}" : "";
    Run want = {0}, got = {0};
    char zero[1000];
    (void)state;
    snprintf(zero, sizeof zero, form, folder_path(""), folder_path(""));
    for (int stage = 1; stage <= 3; stage++)
        for (int p = 0; p < 2; p++) {
            configure(&want, 2, stage, precisions[p], memory);
            run_on(2, &want);
            configure(&got, 2, stage, precisions[p], zero);
            run_on(2, &got);
            for (int i = 0; i < LOSSES; i++) CHECK_CLOSE(got.loss[i], want.loss[i], 0);
        }
}

/* Saved from a file and from memory, read to memory and to a file. */
static void checkpoints_do_not_know(void **state)
{
    char files[1000];
    (void)state;
    snprintf(files, sizeof files,
             ", \"sub_group_size\": 300, \"offload_optimizer\": {\"device\": \"nvme\", "
             "\"nvme_path\": \"%s\"}, \"offload_param\": {\"device\": \"nvme\", \"max_in_cpu\": 0, "
             "\"nvme_path\": \"%s\"}",
             folder_path(""), folder_path(""));
    for (int stage = 1; stage <= 4; stage++)
        for (int k = 0; k < 2; k++) {
            int ranks = stage < 4 ? 2 : 1;
            Run whole = {.dir = folder_path(k ? "file" : "memory")}, cut = whole;
            configure(&whole, ranks, stage < 4 ? stage : 3, "\"fp16\": {\"enabled\": true}, ",
                      k ? files : "");
            configure(&cut, ranks, stage < 4 ? stage : 3, "\"fp16\": {\"enabled\": true}, ",
                      k ? "" : files);
            cut.loads = true;
            run_on(ranks, &whole);
            run_on(ranks, &cut);
            for (int i = STEPS; i < LOSSES; i++) CHECK_CLOSE(cut.loss[i], whole.loss[i], 0);
        }
}

/* A block of less than a page would make the file many times as long, and each
 * update as many requests. */
static void blocks_are_not_too_small(void **state)
{
    static const int64_t cases[][2] = {
        {0, 0}, {1, 1024}, {1023, 1024}, {1025, 1025}, {1000000000, 1 << 20}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 1, "
                 "\"sub_group_size\": %lld}}",
                 (long long)cases[i][0]);
        dsi_config *c = dsi_config_read(text, 1);
        CHECK(c != NULL);
        CHECK_INT(dsi_engine_zero_opts(c).files.buffer_size, cases[i][1]);
        dsi_config_free(c);
    }
}

static void what_is_missing_is_said(void **state)
{
    Run run = {0};
    (void)state;
    configure(&run, 1, 2, "", ", \"offload_optimizer\": {\"device\": \"nvme\"}");
    CHECK_INT(run_ranks(1, train, &run), DS_EINVAL);
    CHECK_ERROR("offload_optimizer.device\": \"nvme\", but there is no nvme_path");
    configure(&run, 1, 2, "",
              ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"\"}");
    CHECK_INT(run_ranks(1, train, &run), DS_EINVAL);
    CHECK_ERROR("offload_optimizer.device\": \"nvme\", but there is no nvme_path");
    configure(&run, 1, 2, "",
              ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/no/disk\"}");
    CHECK_INT(run_ranks(1, train, &run), DS_EIO);
    CHECK_ERROR("offload_optimizer: there is no folder /no/disk");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_change_nothing), cmocka_unit_test(checkpoints_do_not_know),
        cmocka_unit_test(blocks_are_not_too_small), cmocka_unit_test(what_is_missing_is_said)};
    if (!folder_make()) return 1;
    setenv("DS_LOG", "error", 1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    return failed;
}
