/* tests/models/streamed.c: a model that is made, or read, piece by piece where a
 * configuration keeps its parameters: peak of memory, and the same training as
 * that of a model made whole.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "ranks.h"

enum { STEPS = 3, ROWS = 4, WIDTH = 12 };

/* The folder's config.json, of 50,000 parameters a layer, nearly all in matrices
 * of 64 x 64 and 64 x 256. */
static const char *write_config(void)
{
    const char *path = folder_path("config.json");
    FILE *f = fopen(path, "w");
    fprintf(f,
            "{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 97, \"n_embd\": 64, "
            "\"n_layer\": %d, \"n_head\": 2, \"n_positions\": 16, \"resid_pdrop\": 0, "
            "\"embd_pdrop\": 0, \"attn_pdrop\": 0}",
            quick_gpu() ? 4 : 32);
    fclose(f);
    return path;
}

typedef struct Run {
    const char *model, *device, *dtype;
    bool streamed, weights;
    double loss[STEPS];
    int64_t peak[2]; /* bytes of tensors on the host, and on the test's device, while the model was
                        made, beside those before */
    int64_t params;
} Run;

static void config_text(char *json, size_t room, const Run *r, int ranks)
{
    snprintf(
        json, room,
        "{\"train_micro_batch_size_per_gpu\": %d, \"%s\": {\"enabled\": true}, \"optimizer\": "
        "{\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"zero_optimization\": {\"stage\": "
        "3, \"stage3_param_persistence_threshold\": 20, \"sub_group_size\": 20000, "
        "\"offload_param\": {\"device\": \"%s\", \"nvme_path\": \"%s\", \"buffer_count\": 3, "
        "\"buffer_size\": 20000}, \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": "
        "\"%s\"}}}",
        ROWS / ranks, r->dtype, r->device, folder_path(""), r->device, folder_path(""));
}

static ds_tensor *tokens(int rows, int rank)
{
    int64_t token[ROWS * WIDTH], from = rank * rows * WIDTH;
    for (int64_t k = 0; k < rows * WIDTH; k++) token[k] = (from + k) * (from + k + 5) % 97;
    return ds_from_data(DS_I64, ds_shape(rows, WIDTH), token);
}

static ds_status train(void *arg)
{
    Run *r = arg;
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world());
    char json[3000];
    config_text(json, sizeof json, r, ranks);
    ds_seed(3);
    const ds_device device[] = {{0}, ds_current_device()};
    int64_t before[2];
    for (int i = 0; i < 2; i++) {
        ds_memory_reset_peak(device[i]);
        before[i] = (int64_t)ds_memory_allocated(device[i]);
    }
    ds_module *m = ds_pretrained_load(r->model, .no_weights = !r->weights,
                                      .config = r->streamed ? json : NULL);
    RANK_CHECK(m != NULL);
    for (int i = 0; i < 2 && !rank; i++)
        r->peak[i] = (int64_t)ds_memory_peak(device[i]) - before[i];
    if (!rank) r->params = ds_module_numel(m);
    ds_engine *e = ds_initialize(.model = m, .config = json);
    for (int i = 0; i < STEPS && e; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = tokens(ROWS / ranks, rank);
        ds_tensor *loss = ds_engine_forward(e, x, x);
        ds_tensor *all = ds_scalar(DS_F64, ds_item(loss) / ranks);
        ds_engine_backward(e, loss);
        ds_engine_step(e);
        RANK_CHECK(ds_all_reduce(NULL, all, DS_REDUCE_SUM) == DS_OK);
        if (!rank) r->loss[i] = ds_item(all);
        ds_scope_close(scope);
    }
    ds_engine_free(e);
    return ds_error() ? ds_error_status() : DS_OK;
}

/* The same losses, bit for bit, and in the host's memory at most `most` of the
 * bytes that the model has in float32; on a GPU less of them. */
static void compare(Run whole, int ranks, double most)
{
    Run streamed = whole;
    streamed.streamed = true;
    CHECK_INT(run_ranks(ranks, train, &whole), DS_OK);
    CHECK_INT(run_ranks(ranks, train, &streamed), DS_OK);
    for (int i = 0; i < STEPS; i++) CHECK_CLOSE(streamed.loss[i], whole.loss[i], 0);
    CHECK(whole.loss[2] < whole.loss[0]);
    double bytes = 4 * (double)streamed.params;
    CHECK((double)streamed.peak[0] <= most * bytes);
    CHECK(!on_gpu() || (double)streamed.peak[1] <= 0.2 * bytes);
}

static void made_or_read(void **state)
{
    (void)state;
    folder_make();
    char config[1100], weights[1100];
    snprintf(config, sizeof config, "%s", write_config());
    snprintf(weights, sizeof weights, "%s", folder_path("weights"));
    ds_module *m = ds_pretrained_load(config, .no_weights = true);
    CHECK_INT(ds_pretrained_save(m, weights), DS_OK);
    ds_module_free(m);
    compare((Run){.model = config, .device = "nvme", .dtype = "bf16"}, 1, 0.1);
    if (!quick_gpu()) compare((Run){.model = config, .device = "cpu", .dtype = "bf16"}, 1, 0.6);
    if (!quick() || on_gpu())
        compare((Run){.model = config, .device = "nvme", .dtype = "bf16"}, 2, 0.1);
    if (on_gpu()) compare((Run){.model = config, .device = "cpu", .dtype = "bf16"}, 4, 0.6);
    if (!quick())
        compare((Run){.model = weights, .weights = true, .device = "nvme", .dtype = "bf16"}, 1,
                0.1);
    folder_remove();
}

static void refused(void **state)
{
    (void)state;
    folder_make();
    CHECK(ds_zero_init_with((ds_zero_init_opts){.remote_device = "tape"}) == DS_EINVAL);
    CHECK_ERROR("zero_init: remote_device is \"tape\": expected cpu or nvme");
    CHECK(ds_zero_init_with((ds_zero_init_opts){.remote_device = "nvme"}) == DS_EINVAL);
    CHECK_ERROR("zero_optimization.offload_param.nvme_path");
    CHECK(ds_zero_init_with((ds_zero_init_opts){.config = "{\"zero\": 3}"}) != DS_OK);
    CHECK_ERROR("zero");
    char json[600];
    snprintf(json, sizeof json,
             "{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": 3, \"offload_param\": "
             "{\"device\": \"nvme\", \"nvme_path\": \"%s/none/disk\"}}}",
             folder_path(""));
    CHECK(!ds_pretrained_load(write_config(), .no_weights = true, .config = json));
    CHECK_ERROR("none/disk");
    ds_error_clear();
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(made_or_read), cmocka_unit_test(refused))
