/* tests/reference/lm_lora.c: adapters of PEFT: logits, training, merging; what
 * is saved is what was loaded.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"
#include "reference.h"

static double tolerance(const json_t *of, const char *name)
{
    return reference_double(json_object_get(of, "tolerance"), name, 0);
}

/* Dropout is random, so these and all later values are without it. */
static void check_logits(Reference *r, ds_module *m, const char *what)
{
    ds_module_train(m, false);
    ds_tensor *y = ds_call(
        m, ds_slice(reference_integers(json_object_get(r->json, "input_ids")), 0, 0, 1));
    reference_within(r, what, y, reference_tensor(r, "logits"), tolerance(r->json, "logits"), 0);
}

static void check_training(Reference *r, ds_module *m, const char *base)
{
    const json_t *t = json_object_get(r->json, "training");
    char path[900];
    snprintf(path, sizeof path, "%s/%s.json", r->folder, base);
    json_t *file = json_load_file(path, 0, NULL);
    const json_t *batches = json_object_get(json_object_get(file, "training"), "batches");
    const json_t *betas = json_object_get(t, "betas");
    double decay = reference_double(t, "weight_decay", 0);
    ds_optim *optim = ds_optim_adamw(
        m, reference_double(t, "lr", 0), .beta1 = reference_number(json_array_get(betas, 0), 0.9),
        .beta2 = reference_number(json_array_get(betas, 1), 0.999),
        .eps = reference_double(t, "eps", 1e-8), .weight_decay = decay > 0 ? decay : DS_ZERO);
    double most = reference_double(t, "max_norm", 1);
    int64_t steps = quick() ? 2 : reference_int(t, "steps", 0);
    for (int64_t i = 0; i < steps; i++) {
        ds_scope *scope = ds_scope_open();
        const json_t *b = json_array_get(batches, (size_t)i % json_array_size(batches));
        ds_tensor *loss = ds_call(m, reference_integers(json_object_get(b, "input_ids")),
                                  reference_integers(json_object_get(b, "labels")));
        double want = reference_number(json_array_get(json_object_get(t, "loss"), (size_t)i), 0);
        reference_number_within(r, "loss", ds_item(loss), want, tolerance(t, "loss"), 0);
        ds_backward(loss);
        want = reference_number(json_array_get(json_object_get(t, "grad_norm"), (size_t)i), 0);
        reference_number_within(r, "norm", ds_item(ds_clip_grad_norm(m, most, 2)), want, 0,
                                tolerance(t, "grad_norm_relative"));
        ds_optim_step(optim);
        ds_module_zero_grad(m);
        ds_scope_close(scope);
    }
    ds_optim_free(optim);
    json_decref(file);
}

static void check_merged(Reference *r, ds_module *m)
{
    const char *name;
    json_t *probe, *value;
    size_t i;
    CHECK_INT(ds_lora_merge(m), DS_OK);
    check_logits(r, m, "logits, merged");
    CHECK_INT(ds_lora_save(m, folder_path("adapter"), NULL), DS_EINVAL);
    CHECK_ERROR("not merged");
    CHECK_INT(ds_pretrained_save(m, folder_path("merged")), DS_OK);
    json_t *config = json_load_file(folder_path("merged/config.json"), 0, NULL);
    const json_t *tied = json_object_get(r->json, "merged_tied");
    if (tied) CHECK_INT(reference_bool(config, "tie_word_embeddings", 2), json_is_true(tied));
    json_decref(config);
    ds_module *again = ds_pretrained_load(folder_path("merged"));
    if (again) check_logits(r, again, "logits, merged and saved");
    if (!again) reference_fail(r, "merged: %s", ds_error());
    ds_module_free(again);
    ds_state *state = ds_module_state(m);
    json_object_foreach(json_object_get(r->json, "merged_probe"), name, probe)
    {
        ds_tensor *x = ds_state_get(state, name);
        const float *p = x ? ds_data(x) : NULL;
        json_array_foreach(json_object_get(probe, "at"), i, value) reference_number_within(
            r, name, p ? (double)p[json_integer_value(value)] : NAN,
            reference_number(json_array_get(json_object_get(probe, "values"), i), 0),
            tolerance(r->json, "merged_weights"), 0);
    }
    ds_state_free(state);
}

static void check_adapter(Reference *r)
{
    const char *base = reference_text(r->json, "base", "");
    char model[700], adapter[700];
    snprintf(model, sizeof model, "%s/%s", r->folder, base);
    snprintf(adapter, sizeof adapter, "%s/%s", r->folder, reference_text(r->json, "adapter", ""));
    for (int kind = 0; kind < 3; kind++) {
        ds_module *m = ds_pretrained_load(model);
        const char *from = adapter;
        if (kind == 2) from = folder_path("adapter");
        if (!m || ds_lora_load(m, from) != DS_OK) {
            reference_fail(r, "%s", ds_error());
            ds_module_free(m);
            return;
        }
        check_logits(r, m, kind == 2 ? "logits, saved" : "logits");
        int64_t trained = 0;
        for (int i = 0; i < ds_module_params(m); i++) {
            ds_tensor *p = ds_module_param_at(m, i, NULL);
            trained += ds_requires_grad(p) ? ds_numel(p) : 0;
        }
        CHECK_INT(trained, reference_int(r->json, "trainable_parameters", 0));
        if (kind == 0) check_training(r, m, base);
        if (kind == 1) folder_make();
        if (kind == 1) CHECK_INT(ds_lora_save(m, folder_path("adapter"), NULL), DS_OK);
        if (kind == 1) check_merged(r, m);
        ds_module_free(m);
    }
    folder_remove();
}

static void adapters(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/lora", check_adapter), 0);
}

TEST_MAIN(cmocka_unit_test(adapters))
