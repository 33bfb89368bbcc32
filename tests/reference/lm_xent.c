/* tests/reference/lm_xent.c: cross entropy of bfloat16 logits, and the fused head
 * and loss, as PyTorch has them in float32.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference.h"

#include <deepspeed/autograd.h>
#include <deepspeed/ops.h>

static ds_tensor *labels(const Reference *r)
{
    return reference_integers(json_object_get(r->json, "labels"));
}

static double tolerance(const Reference *r, const char *name)
{
    return reference_double(json_object_get(r->json, "tolerance"), name, 0);
}

/* Rows 0 to 7, and the L2 norm of each row. */
static void check_grad(Reference *r, const json_t *c, ds_tensor *g, const char *reduction)
{
    const char *name = reference_text(c, "grad", "");
    bool sum = !strcmp(reduction, "sum");
    double atol = tolerance(r, sum ? "grad_atol_sum" : "grad_atol"),
           rtol = tolerance(r, "grad_rtol");
    reference_within(r, name, ds_slice(g, 0, 0, 8), reference_tensor(r, name), atol, rtol);
    ds_reduce_opts row = {.dims = {.n = 1, .d = {1}}};
    const float *norm = ds_data(ds_sqrt(ds_sum_with(ds_mul(g, g), row)));
    const json_t *want = json_object_get(c, "grad_row_l2");
    size_t i;
    json_t *value;
    json_array_foreach(want, i, value)
        reference_number_within(r, "grad_row_l2", norm ? (double)norm[i] : NAN,
                                reference_number(value, 0), 10 * atol, 10 * rtol);
}

static void check_case(Reference *r, const json_t *c)
{
    const char *reduction = reference_text(c, "reduction", "");
    ds_cross_entropy_opts o = {.label_smoothing = reference_double(c, "label_smoothing", 0),
                               .ignore_index = reference_int(c, "ignore_index", -100),
                               .ignore = true,
                               .reduction = !strcmp(reduction, "sum") ? DS_SUM : DS_MEAN};
    ds_tensor *logits = ds_clone(ds_cast(reference_tensor(r, "logits"), DS_F32));
    ds_require_grad(logits, true);
    ds_tensor *loss = ds_cross_entropy_with(logits, labels(r), o);
    reference_number_within(r, "loss", ds_item(loss), reference_double(c, "loss", 0), 0,
                            tolerance(r, "loss_relative"));
    ds_backward(loss);
    check_grad(r, c, ds_grad(logits), reduction);
}

/* Of bfloat16 logits the loss is rounded to 8 bits, and so is the gradient. */
static void check_bf16(Reference *r)
{
    ds_tensor *logits = ds_clone(reference_tensor(r, "logits"));
    ds_require_grad(logits, true);
    ds_tensor *loss = ds_cross_entropy(logits, labels(r));
    const json_t *c = json_array_get(json_object_get(r->json, "cases"), 0);
    reference_number_within(r, "loss of bfloat16", ds_item(loss), reference_double(c, "loss", 0), 0,
                            1.0 / 256);
    ds_backward(loss);
    const char *name = reference_text(c, "grad_bf16", "case0.grad_bf16.rows0_7");
    reference_within(r, name, ds_slice(ds_grad(logits), 0, 0, 8), reference_tensor(r, name),
                     tolerance(r, "grad_atol"), 1.0 / 128);
}

static void check_linear(Reference *r)
{
    const json_t *c = json_object_get(r->json, "linear");
    ds_tensor *x = ds_clone(ds_cast(reference_tensor(r, "linear.hidden"), DS_F32));
    ds_tensor *w = ds_clone(ds_cast(reference_tensor(r, "linear.weight"), DS_F32));
    ds_require_grad(x, true), ds_require_grad(w, true);
    ds_tensor *loss = ds_linear_cross_entropy(x, w, labels(r));
    reference_number_within(r, "linear", ds_item(loss), reference_double(c, "loss", 0), 0,
                            tolerance(r, "loss_relative"));
    ds_backward(loss);
    double atol = tolerance(r, "linear_grad_atol");
    reference_within(r, "linear.grad_hidden", ds_grad(x), reference_tensor(r, "linear.grad_hidden"),
                     atol, 0);
    reference_within(r, "linear.grad_weight", ds_grad(w), reference_tensor(r, "linear.grad_weight"),
                     atol, 0);
    ds_tensor *half = ds_linear_cross_entropy(reference_tensor(r, "linear.hidden"),
                                              reference_tensor(r, "linear.weight"), labels(r));
    reference_number_within(r, "linear of bfloat16", ds_item(half), reference_double(c, "loss", 0),
                            0, tolerance(r, "loss_relative"));
}

static void xent(Reference *r)
{
    const json_t *cases = json_object_get(r->json, "cases");
    if (!json_array_size(cases)) reference_fail(r, "the file has no cases");
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(r, json_array_get(cases, i));
    check_bf16(r);
    check_linear(r);
}

static void cross_entropy(void **state)
{
    (void)state;
    CHECK_INT(reference_each("lm/xent", xent), 0);
}

TEST_MAIN(cmocka_unit_test(cross_entropy))
