/* tests/reference/lm_models.c: folders of transformers: logits, loss,
 * gradients, 20 steps of training, as Python has them; and what is saved is
 * what was
 * loaded.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "folder.h"
#include "models/choose.h"
#include "reference.h"

static double tolerance(const Reference *r, const char *name)
{
    return reference_double(json_object_get(r->json, "tolerance"), name, 0);
}

/* The parameter of that name. */
static ds_tensor *parameter(const ds_module *m, const char *name)
{
    ds_state *state = ds_module_state(m);
    ds_tensor *x = ds_state_get(state, name);
    ds_state_free(state);
    return x;
}

/* Dropout is random, so these and all later values are without it. */
static void check_logits(Reference *r, ds_module *m, const char *what)
{
    ds_module_train(m, false);
    ds_tensor *y = ds_call(m, reference_integers(json_object_get(r->json, "input_ids")));
    reference_within(r, what, y, reference_tensor(r, "logits"), tolerance(r, "logits"), 0);
}

static void check_gradients(Reference *r, ds_module *m)
{
    const json_t *j = r->json;
    ds_tensor *loss = ds_call(m, reference_integers(json_object_get(j, "input_ids")),
                              reference_integers(json_object_get(j, "labels")));
    reference_number_within(r, "loss", ds_item(loss), reference_double(j, "loss", 0),
                            tolerance(r, "loss"), 0);
    if (ds_backward(loss) != DS_OK) reference_fail(r, "backward: %s", ds_error());
    double relative = tolerance(r, "grad_norm_relative");
    reference_number_within(r, "grad_norm", ds_grad_norm(m), reference_double(j, "grad_norm", 0), 0,
                            relative);
    const char *name;
    json_t *value;
    size_t i;
    json_object_foreach(json_object_get(j, "grad_norms"), name, value)
    {
        ds_tensor *g = ds_grad(parameter(m, name));
        double norm = g ? sqrt(ds_item(ds_sum(ds_mul(g, g)))) : NAN;
        reference_number_within(r, name, norm, reference_number(value, 0), 1e-6, 10 * relative);
    }
    json_array_foreach(json_object_get(j, "full_gradients"), i, value)
    {
        char key[200];
        snprintf(key, sizeof key, "grad.%s", json_string_value(value));
        ds_tensor *want = reference_tensor(r, key);
        reference_within(r, key, ds_grad(parameter(m, json_string_value(value))), want,
                         tolerance(r, "grad"), 0);
    }
    ds_module_zero_grad(m);
}

static void check_probe(Reference *r, const json_t *training, const ds_module *m)
{
    const char *name;
    json_t *probe, *value;
    const json_t *weights = json_object_get(json_object_get(training, "tolerance"), "weights");
    json_object_foreach(json_object_get(training, "final_probe"), name, probe)
    {
        ds_tensor *x = parameter(m, name);
        const float *p = x ? ds_data(x) : NULL;
        size_t i;
        /* of GPT-2's biases of q, k and v the second third is left out */
        int64_t n = reference_dims(probe, "shape").d[0],
                gap = ds_ndim(x) == 1 ? ds_numel(x) - n : 0;
        json_array_foreach(json_object_get(probe, "at"), i, value)
        {
            int64_t at = json_integer_value(value);
            if (at >= n / 2) at += gap;
            double want = reference_number(json_array_get(json_object_get(probe, "values"), i), 0);
            double got = p ? (double)p[at] : NAN;
            reference_number_within(r, name, got, want, reference_double(weights, name, 1e-5), 0);
        }
    }
}

static bool of_one_dimension(void *arg, const char *path, const ds_tensor *x)
{
    (void)arg, (void)path;
    return ds_ndim(x) == 1;
}

static void check_training(Reference *r, ds_module *m)
{
    const json_t *t = json_object_get(r->json, "training"), *tol = json_object_get(t, "tolerance");
    const json_t *batches = json_object_get(t, "batches");
    const json_t *betas = json_object_get(t, "betas");
    double decay = reference_double(t, "weight_decay", 0);
    ds_optim *optim = ds_optim_adamw(
        m, 1e-3, .beta1 = reference_number(json_array_get(betas, 0), 0),
        .beta2 = reference_number(json_array_get(betas, 1), 0),
        .eps = reference_double(t, "eps", 0), .weight_decay = decay > 0 ? decay : DS_ZERO);
    ds_optim_set_group_weight_decay(optim, ds_optim_add_group(optim, of_one_dimension, NULL), 0);
    int64_t steps = quick() ? 3 : reference_int(t, "steps", 0);
    for (int64_t i = 0; i < steps; i++) {
        ds_scope *scope = ds_scope_open();
        const json_t *b = json_array_get(batches, (size_t)i % json_array_size(batches));
        ds_tensor *loss = ds_call(m, reference_integers(json_object_get(b, "input_ids")),
                                  reference_integers(json_object_get(b, "labels")));
        char what[40];
        snprintf(what, sizeof what, "loss of step %d", (int)i);
        double want = reference_number(json_array_get(json_object_get(t, "loss"), (size_t)i), 0);
        reference_number_within(r, what, ds_item(loss), want, reference_double(tol, "loss", 0), 0);
        ds_backward(loss);
        double norm = ds_item(ds_clip_grad_norm(m, reference_double(t, "max_norm", 1), 2));
        want = reference_number(json_array_get(json_object_get(t, "grad_norm"), (size_t)i), 0);
        snprintf(what, sizeof what, "norm of step %d", (int)i);
        reference_number_within(r, what, norm, want, 0,
                                reference_double(tol, "grad_norm_relative", 0));
        double lr = reference_number(json_array_get(json_object_get(t, "lr"), (size_t)i), 0);
        ds_optim_set_lr(optim, lr);
        ds_optim_step(optim);
        ds_module_zero_grad(m);
        ds_scope_close(scope);
    }
    if (!quick()) check_probe(r, t, m);
    ds_optim_free(optim);
}

/* ---- generation ---- */

/* Row `row` of got is want, exactly. */
static void check_tokens(Reference *r, const char *what, ds_tensor *got, int64_t row,
                         const json_t *want)
{
    int64_t n = ds_size(got, 1);
    const int64_t *p = got ? ds_data(got) : NULL;
    if (!p || n > (int64_t)json_array_size(want)) {
        reference_fail(r, "%s: %lld tokens: %s", what, (long long)n, ds_error() ? ds_error() : "");
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t token = json_integer_value(json_array_get(want, (size_t)i));
        if (p[row * n + i] == token) continue;
        reference_fail(r, "%s: token %lld of row %lld is %lld, want %lld", what, (long long)i,
                       (long long)row, (long long)p[row * n + i], (long long)token);
        return;
    }
}

static ds_tensor *prompt_of(const json_t *j)
{
    json_t *rows = json_pack("[O]", json_object_get(j, "prompt"));
    ds_tensor *ids = reference_integers(rows);
    json_decref(rows);
    return ids;
}

static void check_generation(Reference *r, ds_module *m)
{
    const json_t *g = json_object_get(r->json, "generation"), *c;
    int64_t most = quick() ? 8 : reference_int(g, "new_tokens", 0);
    size_t i;
    json_t *j;
    json_array_foreach(json_object_get(g, "cases"), i, j) check_tokens(
        r, "greedy", ds_generate(m, prompt_of(j), most), 0, json_object_get(j, "generated"));
    c = json_object_get(g, "left_padded");
    ds_generate_opts o = {.max_new_tokens = most,
                          .pad_token_id = reference_int(c, "pad_token_id", 0)};
    o.attention_mask = reference_integers(json_object_get(c, "attention_mask"));
    ds_tensor *y = ds_generate_with(m, reference_integers(json_object_get(c, "input_ids")), o);
    json_array_foreach(json_object_get(c, "generated"), i, j)
        check_tokens(r, "padded", y, (int64_t)i, j);
    const json_t *stops = json_object_get(g, "left_padded_eos");
    ds_dims ends = reference_dims(stops, "eos_token_id");
    for (o.n_stop = 0; o.n_stop < ends.n; o.n_stop++) o.stop[o.n_stop] = ends.d[o.n_stop];
    y = ds_generate_with(m, reference_integers(json_object_get(c, "input_ids")), o);
    json_array_foreach(json_object_get(stops, "generated"), i, j)
        check_tokens(r, "stop tokens", y, (int64_t)i, j);
    const json_t *d = json_object_get(g, "folder_defaults");
    if (!d) return;
    ds_generate_opts own = ds_generation_config(m);
    own.do_sample = false;
    own.max_new_tokens = quick() ? 8 : (int64_t)json_array_size(json_object_get(d, "generated"));
    check_tokens(r, "folder's defaults", ds_generate_with(m, prompt_of(d), own), 0,
                 json_object_get(d, "generated"));
}

/* The tokens among which the one after a prompt would be drawn. */
static void check_choices(Reference *r, const float *logits, int64_t vocab, ds_tensor *prompt,
                          const json_t *s)
{
    ds_generate_opts o = {.temperature = reference_double(s, "temperature", 0),
                          .top_k = reference_int(s, "top_k", -1),
                          .top_p = reference_double(s, "top_p", 0),
                          .repetition_penalty = reference_double(s, "repetition_penalty", 0)};
    dsi_lm_choice *c = malloc((size_t)vocab * sizeof *c);
    int64_t kept = dsi_lm_choices(logits, vocab, ds_data(prompt), ds_numel(prompt), 0, &o, c);
    int64_t want = reference_int(s, "kept", 0);
    bool near_edge = reference_double(s, "distance_from_top_p_edge", 1) < 1e-4;
    if (kept != want && !(near_edge && llabs(kept - want) == 1))
        reference_fail(r, "sampling keeps %lld, want %lld", (long long)kept, (long long)want);
    double all = 0;
    for (int64_t i = 0; i < kept; i++) all += exp((double)(c[i].logit - c[0].logit));
    const json_t *p = json_object_get(s, "probabilities"), *ids = json_object_get(s, "ids");
    for (size_t i = 0; i < json_array_size(p) && (int64_t)i < kept && kept == want; i++) {
        double x = reference_number(json_array_get(p, i), 0);
        double next = i ? reference_number(json_array_get(p, i - 1), 0) - x : 1;
        reference_number_within(r, "probability", exp((double)(c[i].logit - c[0].logit)) / all, x,
                                tolerance(r, "probabilities"), 0);
        if (next > 1e-4 && i + 1 < json_array_size(p) &&
            x - reference_number(json_array_get(p, i + 1), 0) > 1e-4 &&
            c[i].id != json_integer_value(json_array_get(ids, i)))
            reference_fail(r, "sampling: choice %zu is %lld", i, (long long)c[i].id);
    }
    free(c);
}

static void check_sampling(Reference *r, ds_module *m)
{
    size_t i, k;
    json_t *j, *s;
    int64_t vocab = ds_lm_info_of(m).vocab_size;
    json_array_foreach(json_object_get(r->json, "sampling"), i, j)
    {
        ds_tensor *prompt = prompt_of(j), *y = ds_call(m, prompt);
        y = ds_contiguous(ds_select(y, 1, -1));
        const float *logits = ds_data(y);
        json_array_foreach(json_object_get(j, "settings"), k, s)
            check_choices(r, logits, vocab, prompt, s);
    }
}

/* Saves the model, loads it again, in shards too: the same state dict. */
static void check_saved(Reference *r, ds_module *m, const char *config)
{
    folder_make();
    for (int kind = 0; kind < 2; kind++) {
        const char *to = folder_path(kind ? "shards" : "whole");
        if (ds_pretrained_save(m, to, .max_shard_size = kind ? 60000 : 0) != DS_OK)
            reference_fail(r, "save: %s", ds_error());
        if (kind && config) {
            char path[700];
            size_t bytes;
            snprintf(path, sizeof path, "%s/%s", r->folder, config);
            char *text = dsi_file_read(path, &bytes);
            snprintf(path, sizeof path, "%s/config.json", to);
            dsi_file *f = dsi_file_replace(path);
            dsi_file_write(f, text, bytes);
            CHECK_INT(dsi_file_commit(f), DS_OK);
            dsi_free(text);
        }
        ds_module *again = ds_pretrained_load(to);
        if (!again) reference_fail(r, "saved and loaded: %s", ds_error());
        if (again) check_logits(r, again, kind ? "logits, saved in shards" : "logits, saved");
        ds_module_free(again);
    }
    folder_remove();
}

static double rms(ds_tensor *x) { return sqrt(ds_item(ds_mean(ds_mul(x, x)))); }

/* PyTorch's own logits in bfloat16 say how far off is usual for these weights. */
static void check_bf16(Reference *r, const char *folder)
{
    ds_tensor *want = reference_tensor(r, "logits");
    ds_module *m = ds_pretrained_load(folder, .stored_dtype = true);
    ds_tensor *y = ds_call(m, reference_integers(json_object_get(r->json, "input_ids")));
    if (ds_dtype_of(y) != DS_BF16) reference_fail(r, "logits are not bfloat16");
    ds_tensor *theirs = reference_tensor(r, "logits_bf16");
    double off = theirs ? rms(ds_sub(ds_cast(theirs, DS_F32), want)) : 0;
    reference_number_within(r, "rms of bf16", rms(ds_sub(ds_cast(y, DS_F32), want)), 0,
                            fmax(0.04, 1.3 * off), 0);
    ds_tensor *loss = ds_call(m, reference_integers(json_object_get(r->json, "input_ids")),
                              reference_integers(json_object_get(r->json, "labels")));
    if (ds_dtype_of(loss) != DS_F32) reference_fail(r, "the loss is not float32");
    reference_number_within(r, "loss of bf16", ds_item(loss), reference_double(r->json, "loss", 0),
                            0.03, 0);
    ds_module_free(m);
}

static void check_model(Reference *r)
{
    const char *name = reference_text(r->json, "folder", NULL);
    const char *same = reference_text(r->json, "same_as", NULL), *config;
    if (!name) return; /* a config.json of transformers 4 */
    char folder[700], path[700];
    snprintf(folder, sizeof folder, "%s/%s", r->folder, name);
    Reference other = *r;
    if (same) {
        snprintf(path, sizeof path, "%s/%s.json", r->folder, same);
        other.json = json_load_file(path, 0, NULL);
        snprintf(path, sizeof path, "%s.safetensors", same);
        other.tensors = reference_load(r, path);
    }
    ds_module *m = ds_pretrained_load(folder);
    if (!m) reference_fail(r, "load: %s", ds_error());
    config = reference_text(other.json, "config_v4", NULL);
    if (m) {
        CHECK_INT(ds_module_numel(m), reference_int(other.json, "parameters", ds_module_numel(m)));
        check_logits(&other, m, "logits");
        check_generation(&other, m), check_sampling(&other, m);
        if (!same)
            check_saved(&other, m, config), check_gradients(&other, m), check_training(&other, m);
    }
    if (m && json_object_get(other.json, "bf16")) check_bf16(&other, folder);
    ds_module_free(m);
    r->failures += other.failures;
    if (same) json_decref(other.json), ds_state_free(other.tensors);
}

static void models(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/models", check_model), 0);
}

TEST_MAIN(cmocka_unit_test(models))
