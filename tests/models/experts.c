/* tests/models/experts.c: models with experts beside what transformers computes
 * with noise at the experts' inputs; the load-balancing loss in activation
 * checkpoints; losses of parts of a batch; experts as one product beside calls
 * of each.
 * SPDX-License-Identifier: MIT */
#include "base/philox.h"
#include "base/rng.h"
#include "check.h"
#include "device/device.h"
#include "folder.h"
#include "reference.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#define MOE \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, " \
    "\"num_hidden_layers\": 3, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, " \
    "\"intermediate_size\": 24, \"moe_intermediate_size\": 8, \"num_experts\": 4, " \
    "\"num_experts_per_tok\": 2, \"decoder_sparse_step\": 2, \"mlp_only_layers\": [2], " \
    "\"router_aux_loss_coef\": 0.7, \"output_router_logits\": "

#define NOISE 0.3

/* The model of the reference values, with this router_jitter_noise. */
static ds_module *mixtral(double noise)
{
    static const char base[] = DS_GOLDEN "/lm/models/mixtral";
    folder_make();
    json_t *config = json_load_file(DS_GOLDEN "/lm/models/mixtral/config.json", 0, NULL);
    json_object_set_new(config, "router_jitter_noise", json_real(noise));
    CHECK_INT(json_dump_file(config, folder_path("config.json"), 0), 0);
    char weights[500];
    snprintf(weights, sizeof weights, "%s/model.safetensors", base);
    CHECK_INT(symlink(weights, folder_path("model.safetensors")), 0);
    ds_module *m = ds_pretrained_load(folder_path(""));
    CHECK(m);
    json_decref(config);
    folder_remove();
    return m;
}

/* The loss of the reference's text, and the norm of the gradients, from seed
 * 11. */
static void noisy_run(ds_module *m, double *loss, double *norm)
{
    json_t *reference = json_load_file(DS_GOLDEN "/lm/models/mixtral.json", 0, NULL);
    ds_tensor *ids = reference_integers(json_object_get(reference, "input_ids"));
    ds_tensor *labels = reference_integers(json_object_get(reference, "labels"));
    ds_seed(11);
    ds_tensor *y = ds_call(m, ids, labels);
    *loss = ds_item(y);
    if (norm) {
        CHECK_INT(ds_backward(y), DS_OK);
        *norm = ds_grad_norm(m);
    }
    json_decref(reference);
}

/* torch.manual_seed(11), MixtralForCausalLM in training with
 * router_jitter_noise 0.3, transformers 5.24: its loss and the norm of its
 * gradients. A GPU without its fusions takes these numbers from the host. */
static void jitter_is_that_of_transformers(void **state)
{
    (void)state;
    double loss, norm;
    dsi_device_set_fusions(DSI_FUSIONS_OFF);
    ds_module *m = mixtral(NOISE);
    noisy_run(m, &loss, &norm);
    CHECK_CLOSE(loss, 11.087775230407715, 2e-5);
    CHECK_CLOSE(norm, 21.01857347334125, 2e-4);
    ds_module_train(m, false);
    noisy_run(m, &loss, NULL);
    CHECK_CLOSE(loss, 11.163094520568848, 2e-5);
    ds_module_free(m);
    dsi_device_set_fusions(DSI_FUSIONS_ON);
}

/* The numbers that a device draws for x: Philox's words of one seed of the
 * host's generator; on the CPU PyTorch's numbers. */
static ds_status hook_noise(void *arg, ds_module *m, ds_tensor **x, int n)
{
    (void)m, (void)n;
    ++*(int *)arg;
    ds_tensor *noise = ds_empty(DS_F32, ds_shape_of(x[0]));
    if (ds_current_device().kind == DS_CPU) {
        ds_init_uniform(noise, 1 - NOISE, 1 + NOISE);
    } else {
        uint64_t seed = dsi_rng_u64(dsi_rng_default());
        int64_t all = ds_numel(noise);
        float *u = malloc((size_t)all * sizeof *u);
        for (int64_t i = 0; i < all; i++)
            u[i] = (float)((1 - NOISE) +
                           2 * NOISE * (dsi_philox_word(seed, 0, (uint64_t)i) >> 8) * 0x1p-24);
        noise = ds_from_data(DS_F32, ds_shape_of(x[0]), u);
        free(u);
    }
    x[0] = ds_mul(x[0], noise);
    return x[0] ? DS_OK : ds_error_status();
}

static void hooks_add(ds_module *m, int *calls)
{
    if (!strcmp(ds_module_name(m), "block_sparse_moe"))
        CHECK_INT(ds_register_forward_pre_hook(m, hook_noise, calls), 0);
    for (int i = 0; i < ds_module_children(m); i++) hooks_add(ds_module_child(m, i), calls);
}

/* Beside a model without noise whose layers are given noisy inputs; also with
 * activation checkpoints, whose second run has the noise of the first. */
static void jitter_is_that_of_the_device(void **state)
{
    (void)state;
    double want[2], got[2];
    int calls = 0;
    ds_module *m = mixtral(0);
    hooks_add(m, &calls);
    noisy_run(m, &want[0], &want[1]);
    CHECK(calls > 1);
    ds_module_free(m);
    for (int again = 0; again < 2; again++) {
        m = mixtral(NOISE);
        CHECK_INT(ds_lm_set_checkpointing(m, again), DS_OK);
        noisy_run(m, &got[0], &got[1]);
        CHECK_CLOSE(got[0], want[0], 1e-6 * want[0]);
        CHECK_CLOSE(got[1], want[1], 1e-5 * want[1]);
        ds_module_free(m);
    }
}

static ds_module *small_model(bool balance)
{
    FILE *f = fopen(folder_path("config.json"), "w");
    assert_non_null(f);
    fprintf(f, "%s%s}", MOE, balance ? "true" : "false");
    fclose(f);
    ds_seed(5);
    return ds_pretrained_load(folder_path(""), .no_weights = true);
}

/* Without labels there is no such loss, and a checkpoint has its output anyway. */
static void balance_in_checkpoints(void **state)
{
    (void)state;
    folder_make();
    double norm[2], own[2];
    for (int on = 0; on < 2; on++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = small_model(true);
        CHECK_INT(ds_lm_set_checkpointing(m, on), DS_OK);
        ds_tensor *ids = ds_randint(DS_I64, 0, 31, ds_shape(2, 9)), *loss = ds_call(m, ids, ids);
        ds_tensor *logits = ds_call(m, ids);
        ds_tensor *plain = ds_cross_entropy(ds_reshape(ds_slice(logits, 1, 0, 8), ds_shape(16, 31)),
                                            ds_reshape(ds_slice(ids, 1, 1, 9), ds_shape(16)));
        double balance = ds_item(loss) - ds_item(plain);
        CHECK(balance > 0.7 * 2 * 0.9 &&
              balance < 0.7 * 2 * 1.5); /* 2 experts of equal shares: 2 */
        CHECK_INT(ds_backward(loss), DS_OK);
        norm[on] = ds_grad_norm(m);
        ds_module_zero_grad(m);
        CHECK_INT(ds_backward(plain), DS_OK);
        own[on] = ds_grad_norm(m);
        ds_module_free(m);
        ds_scope_close(scope);
    }
    CHECK(norm[0] > 0 && own[0] > 0 && norm[0] != own[0]);
    CHECK_CLOSE(norm[1], norm[0], 0);
    CHECK_CLOSE(own[1], own[0], 0);
    folder_remove();
}

/* Rows with 8, 2 and 5 labels: the mean of their losses, each divided by all
 * labels, is that of the batch; also where the head has an adapter. */
static void losses_of_parts(void **state)
{
    (void)state;
    static const char *const targets[] = {"lm_head", "q_proj"};
    folder_make();
    for (int adapters = 0; adapters < 2; adapters++) {
        ds_scope *scope = ds_scope_open();
        ds_module *m = small_model(false);
        if (adapters) CHECK_INT(ds_lora(m, .r = 2, .targets = targets, .n_targets = 2), DS_OK);
        ds_module_train(m, false);
        ds_tensor *ids = ds_randint(DS_I64, 0, 31, ds_shape(3, 9)), *labels = ds_clone(ids);
        ds_init_constant(ds_slice(ds_slice(labels, 0, 1, 2), 1, 0, 7), -100);
        ds_init_constant(ds_slice(ds_slice(labels, 0, 2, 3), 1, 2, 5), -100);
        ds_tensor *items = ds_from_data(DS_I64, ds_shape(2), (const int64_t[]){15, 3});
        ds_tensor *one = ds_from_data(DS_I64, ds_shape(2), (const int64_t[]){15, 1}), *sum = NULL;
        ds_tensor *all = ds_call(m, ids, labels);
        CHECK_CLOSE(ds_item(ds_call(m, ids, labels, one)), ds_item(all), 1e-6);
        for (int64_t i = 0; i < 3; i++) {
            ds_tensor *loss = ds_call(m, ds_slice(ids, 0, i, i + 1), ds_slice(labels, 0, i, i + 1),
                                      items);
            sum = sum ? ds_add(sum, loss) : loss;
        }
        CHECK_CLOSE(ds_item(sum) / 3, ds_item(all), 1e-6);
        CHECK(!ds_call(m, ids, labels, ids));
        CHECK_ERROR("the number of items is int64 [3, 9]: expected int64 [2]");
        CHECK(!ds_call(m, ids, labels, items, items));
        CHECK_ERROR("ids, labels and a number of items, or less: it was given 4 tensors");
        ds_module_free(m);
        ds_scope_close(scope);
    }
    folder_remove();
}

/* Of 40 experts, of which most have no token of 7. */
#define MANY \
    "{\"architectures\": [\"Qwen2MoeForCausalLM\"], \"vocab_size\": 31, \"hidden_size\": 16, " \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, " \
    "\"intermediate_size\": 24, \"moe_intermediate_size\": 8, \"num_experts\": 40, " \
    "\"num_experts_per_tok\": 3, \"shared_expert_intermediate_size\": 12}"

static ds_tensor *hook_as_it_is(void *calls, ds_module *m, ds_tensor **x, int n, ds_tensor *y)
{
    (void)m, (void)x, (void)n;
    ++*(int *)calls;
    return y;
}

static ds_module *expert_below(ds_module *m)
{
    if (!strcmp(ds_module_name(m), "experts")) return ds_module_child(m, 7);
    ds_module *found = NULL;
    for (int i = 0; i < ds_module_children(m) && !found; i++)
        found = expert_below(ds_module_child(m, i));
    return found;
}

/* The loss, and all gradients in one tensor on the CPU. by_hook: with a hook on
 * an expert, so that each expert is called. */
static ds_tensor *gradients_of(ds_dtype dtype, int64_t length, bool by_hook, double *loss)
{
    ds_seed(5);
    ds_module *m = ds_pretrained_load(folder_path(""), .no_weights = true, .dtype = dtype);
    ds_module *expert = expert_below(m);
    int calls = 0;
    CHECK(m && expert);
    if (by_hook) CHECK_INT(ds_register_forward_hook(expert, hook_as_it_is, &calls), 0);
    ds_tensor *ids = ds_randint(DS_I64, 0, 31, ds_shape(1, length)), *y = ds_call(m, ids, ids);
    CHECK_INT(ds_backward(y), DS_OK);
    CHECK_INT(calls, by_hook);
    *loss = ds_item(y);
    int n = ds_module_params(m);
    ds_tensor **all = malloc((size_t)n * sizeof *all);
    for (int i = 0; i < n; i++) {
        ds_tensor *g = ds_grad(ds_module_param_at(m, i, NULL));
        CHECK(g);
        all[i] = ds_reshape(g, ds_shape(-1));
    }
    ds_tensor *joined = ds_to(ds_cat(all, n, 0), (ds_device){0}, DS_F32);
    free(all);
    ds_module_free(m);
    return joined;
}

/* All experts in one product, and one after the other. */
static void experts_together(void **state)
{
    (void)state;
    folder_make();
    FILE *f = fopen(folder_path("config.json"), "w");
    CHECK(f && fputs(MANY, f) > 0 && !fclose(f));
    static const double near[] = {[DS_F32] = 1e-6, [DS_F16] = 2e-3, [DS_BF16] = 2e-2};
    static const ds_dtype dtypes[] = {DS_F32, DS_F16, DS_BF16, DS_F32};
    for (int i = 0; i < 8; i++) {
        ds_scope *scope = ds_scope_open();
        bool cast = i > 5; /* by autocast; its sums are rounded once */
        double want_loss, got_loss, most = 0, tol = cast ? 1e-6 : near[dtypes[i / 2]];
        ds_set_autocast(cast ? DS_BF16 : DS_F32);
        ds_tensor *want = gradients_of(dtypes[i / 2], i % 2 ? 2 : 7, true, &want_loss);
        ds_tensor *got = gradients_of(dtypes[i / 2], i % 2 ? 2 : 7, false, &got_loss);
        ds_set_autocast(DS_F32);
        const float *a = ds_data(want), *b = ds_data(got);
        for (int64_t k = 0; k < ds_numel(want); k++) most = fmax(most, fabs((double)a[k]));
        CHECK_CLOSE(got_loss, want_loss, tol);
        for (int64_t k = 0; k < ds_numel(want); k++) CHECK_CLOSE(b[k], a[k], tol * most);
        ds_scope_close(scope);
    }
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(jitter_is_that_of_transformers),
          cmocka_unit_test(jitter_is_that_of_the_device), cmocka_unit_test(balance_in_checkpoints),
          cmocka_unit_test(losses_of_parts), cmocka_unit_test(experts_together))
