/* tests/reference/lm_rope.c: rotary scalings of transformers: one model's
 * weights with several configurations: logits behind the positions that the
 * model was trained on, loss, norm of the gradients, greedy tokens.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "folder.h"
#include "reference.h"

/* int64 [1, n] of the case's ids. */
static ds_tensor *ids_of(const Reference *r)
{
    return reference_integers(json_object_get(r->json, "input_ids"));
}

/* The base's weights beside the case's configuration. */
static ds_module *load(Reference *r)
{
    char path[900];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s/model.safetensors", r->folder,
             reference_text(r->json, "base", ""));
    char *weights = dsi_file_read(path, &bytes);
    dsi_file *f = weights ? dsi_file_replace(folder_path("model.safetensors")) : NULL;
    if (!f) return NULL;
    dsi_file_write(f, weights, bytes);
    CHECK_INT(dsi_file_commit(f), DS_OK);
    dsi_free(weights);
    CHECK_INT(json_dump_file(json_object_get(r->json, "config"), folder_path("config.json"), 0), 0);
    return ds_pretrained_load(folder_path(""));
}

static void check_tokens(Reference *r, ds_module *m)
{
    const json_t *want = json_object_get(r->json, "generated");
    int64_t n = quick() ? 8 : (int64_t)json_array_size(want);
    ds_tensor *prompt = ds_slice(ids_of(r), 1, 0, reference_int(r->json, "prompt", 0));
    ds_tensor *got = ds_generate(m, prompt, n);
    const int64_t *p = got ? ds_data(got) : NULL;
    for (int64_t i = 0; i < n; i++)
        if (!p || p[i] != json_integer_value(json_array_get(want, (size_t)i))) {
            reference_fail(r, "token %lld is %lld", (long long)i, p ? (long long)p[i] : -1);
            return;
        }
}

static void check_scaling(Reference *r)
{
    folder_make();
    ds_module *m = load(r);
    if (m) {
        const json_t *tolerance = json_object_get(r->json, "tolerance");
        ds_tensor *ids = ids_of(r), *y = ds_call(m, ids);
        ds_tensor *want = reference_tensor(r, "logits");
        int64_t n = ds_size(ids, 1), last = ds_size(want, 0);
        reference_within(r, "logits", ds_select(ds_slice(y, 1, n - last, n), 0, 0), want,
                         reference_double(tolerance, "logits", 0), 0);
        ds_tensor *loss = ds_call(m, ids, ids);
        reference_number_within(r, "loss", ds_item(loss), reference_double(r->json, "loss", 0),
                                reference_double(tolerance, "loss", 0), 0);
        CHECK_INT(ds_backward(loss), DS_OK);
        reference_number_within(r, "norm", ds_grad_norm(m),
                                reference_double(r->json, "grad_norm", 0), 0,
                                reference_double(tolerance, "grad_norm_relative", 0));
        check_tokens(r, m);
    } else {
        reference_fail(r, "%s", ds_error());
    }
    ds_module_free(m);
    folder_remove();
}

static void scalings(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/rope", check_scaling), 0);
}

TEST_MAIN(cmocka_unit_test(scalings))
