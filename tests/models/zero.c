/* tests/models/zero.c: a language model in ZeRO's stages on two ranks: the losses
 * and the weights of one rank.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "ranks.h"

enum { STEPS = 4, ROWS = 4, WIDTH = 12 };

typedef struct Run {
    const char *config; /* config.json */
    int stage, ranks;
    double loss[STEPS], norm;
} Run;

static const char *const configs[] = {
    "{\"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 31, \"n_embd\": 16, \"n_layer\": "
    "2, "
    "\"n_head\": 2, \"n_positions\": 16, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}",
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"head_dim\": 8, \"intermediate_size\": 24, \"tie_word_embeddings\": true}",
    "{\"architectures\": [\"Gemma2ForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"head_dim\": 8, \"intermediate_size\": 24, \"sliding_window\": 5}",
    "{\"architectures\": [\"Phi3ForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"intermediate_size\": 24, \"partial_rotary_factor\": 0.5}",
    "{\"architectures\": [\"OPTForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"ffn_dim\": 24, \"dropout\": 0, "
    "\"word_embed_proj_dim\": 8, \"do_layer_norm_before\": false}",
    "{\"architectures\": [\"GPTNeoXForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 1, \"intermediate_size\": 24}",
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
    "\"intermediate_size\": 24, \"moe_intermediate_size\": 10, \"num_experts\": 5, "
    "\"num_experts_per_tok\": 2, \"shared_expert_intermediate_size\": 12}"};
enum { CONFIGS = sizeof configs / sizeof *configs };

/* This rank's rows of a batch of ROWS. */
static ds_tensor *batch(int step, int rank, int ranks)
{
    int64_t rows = ROWS / ranks;
    int64_t p[ROWS * WIDTH];
    for (int64_t i = 0; i < rows * WIDTH; i++) {
        int64_t at = rank * rows * WIDTH + i;
        p[i] = (at * at * 7 + at * 3 + 11 * (step % 2)) % 31;
    }
    return ds_from_data(DS_I64, ds_shape(rows, WIDTH), p);
}

static ds_tensor *logits(ds_module *m, int64_t token)
{
    return ds_contiguous(ds_call(m, ds_full(DS_I64, ds_shape(1, 1), token)));
}

/* Both ranks compute the same token, and then each its own, which may need other
 * experts: the same logits. */
static ds_status check_tokens_of_ranks(ds_module *m, int rank)
{
    bool grad = ds_set_grad(false);
    for (int i = 0; i < 6; i++) {
        ds_tensor *same[] = {logits(m, 5 * i), logits(m, 5 * i + 1)};
        ds_tensor *off = ds_sub(logits(m, 5 * i + rank), same[rank]);
        RANK_CHECK(ds_item(ds_max(ds_flatten(ds_abs(off), 0), 0, false)) < 1e-6);
    }
    ds_set_grad(grad);
    return DS_OK;
}

static ds_status train(void *arg)
{
    Run *run = arg;
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world());
    char json[600];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": %d, \"optimizer\": {\"type\": \"AdamW\", "
        "\"params\": {\"lr\": 1e-2, \"weight_decay\": 0.1}}, \"zero_optimization\": {\"stage\": "
        "%d, \"stage3_param_persistence_threshold\": 20, \"reduce_bucket_size\": 500}}",
        ROWS / ranks, run->stage);
    ds_seed(3);
    if (run->stage == 3 && ds_zero_init() != DS_OK) return ds_error_status();
    ds_module *m = ds_pretrained_load(run->config, .no_weights = true);
    if (run->stage == 3 && ds_zero_init_end() != DS_OK) return ds_error_status();
    ds_lm_set_checkpointing(m, run->stage % 2);
    ds_engine *e = ds_initialize(.model = m, .config = json);
    for (int i = 0; i < STEPS && e; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = batch(i, rank, ranks), *loss = ds_engine_forward(e, x, x);
        double mean = ds_item(loss);
        ds_tensor *all = ds_scalar(DS_F64, mean / ranks);
        ds_engine_backward(e, loss);
        ds_engine_step(e);
        RANK_CHECK(ds_all_reduce(NULL, all, DS_REDUCE_SUM) == DS_OK);
        if (!rank) run->loss[i] = ds_item(all);
        ds_scope_close(scope);
    }
    if (run->stage == 3) { /* all ranks generate, and gather for it */
        ds_scope *scope = ds_scope_open();
        RANK_CHECK(ds_size(ds_generate(ds_engine_module(e), batch(0, 0, 1), 3), 1) == 3);
        RANK_CHECK(check_tokens_of_ranks(ds_engine_module(e), rank) == DS_OK);
        ds_scope_close(scope);
    }
    ds_engine_free(e);
    return ds_error() ? ds_error_status() : DS_OK;
}

static void stages_agree(void **state)
{
    (void)state;
    folder_make();
    for (int c = 0; c < (quick() ? 1 : CONFIGS); c++) {
        char path[1100];
        snprintf(path, sizeof path, "%s", folder_path("config.json"));
        FILE *f = fopen(path, "w");
        fputs(configs[quick() ? 1 : c], f);
        fclose(f);
        Run one = {.config = path};
        CHECK_INT(run_ranks(1, train, &one), DS_OK);
        CHECK(one.loss[3] < one.loss[1]);
        for (int stage = 0; stage <= 3; stage++) {
            Run two = {.config = path, .stage = stage};
            CHECK_INT(run_ranks(2, train, &two), DS_OK);
            for (int i = 0; i < STEPS; i++) CHECK_CLOSE(two.loss[i], one.loss[i], 2e-4);
        }
    }
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(stages_agree))
