/* tests/nn/half.c: networks in 16 bits: bytes of a training step and of
 * activations beside float32's, gradients of 16 bits, and what layers and ops
 * say of operands of two dtypes.
 * SPDX-License-Identifier: MIT */
#include "check.h"

enum { LAYERS = 16, WIDTH = 128, BATCH = 1024, CLASSES = 10 };

static ds_module *deep(ds_dtype dtype)
{
    ds_module *m = ds_nn_sequential(NULL, "net");
    for (int i = 0; i < 2 * LAYERS; i += 2) {
        char name[2][12];
        snprintf(name[0], sizeof name[0], "%d", i);
        snprintf(name[1], sizeof name[1], "%d", i + 1);
        ds_nn_linear(m, name[0], WIDTH, i == 2 * LAYERS - 2 ? CLASSES : WIDTH);
        if (i < 2 * LAYERS - 2) ds_nn_relu(m, name[1]);
    }
    CHECK_INT(ds_module_to(m, dtype), DS_OK);
    return m;
}

/* The most bytes that a step has in use: model, batch, activations, gradients,
 * momentum. */
static size_t peak_of_step(ds_dtype dtype)
{
    ds_seed(3);
    ds_scope *scope = ds_scope_open();
    ds_module *m = deep(dtype);
    ds_optim *sgd = ds_optim_sgd(m, 0.01, .momentum = 0.9);
    ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(BATCH, WIDTH)), dtype);
    ds_tensor *y = ds_zeros(DS_I64, ds_shape(BATCH));
    ds_scope *step = ds_scope_open();
    ds_memory_reset_peak(ds_current_device());
    CHECK_INT(ds_backward(ds_cross_entropy(ds_call(m, x), y)), DS_OK);
    CHECK_INT(ds_optim_step(sgd), DS_OK);
    size_t peak = ds_memory_peak(ds_current_device());
    for (int i = 0; i < ds_module_params(m); i++)
        CHECK_INT(ds_dtype_of(ds_grad(ds_module_param_at(m, i, NULL))), dtype);
    ds_scope_close(step);
    ds_optim_free(sgd);
    ds_module_free(m);
    ds_scope_close(scope);
    return peak;
}

static void bytes_of_a_step(void **state)
{
    (void)state;
    size_t wide = peak_of_step(DS_F32);
    const ds_dtype dtypes[] = {DS_BF16, DS_F16};
    for (int i = 0; i < 2; i++) {
        size_t half = peak_of_step(dtypes[i]);
        if (half * 100 >= wide * 65)
            fail_msg("%s: the peak is %zu bytes, float32's is %zu: want less than 65 %%",
                     ds_dtype_name(dtypes[i]), half, wide);
    }
}

static ds_module *conv_net(ds_dtype dtype)
{
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_conv2d(m, "0", 3, 16, 3, .padding = 1);
    ds_nn_batch_norm2d(m, "1", 16);
    ds_nn_relu(m, "2");
    ds_nn_max_pool2d(m, "3", (ds_pool2d_opts){.kernel = 2});
    ds_nn_conv2d(m, "4", 16, 32, 3, .padding = 1);
    ds_nn_relu(m, "5");
    ds_nn_max_pool2d(m, "6", (ds_pool2d_opts){.kernel = 2});
    ds_nn_flatten(m, "7");
    ds_nn_linear(m, "8", 32 * 8 * 8, CLASSES);
    CHECK_INT(ds_module_to(m, dtype), DS_OK);
    return m;
}

/* Bytes that forward keeps for backward. */
static size_t activations(ds_dtype dtype)
{
    ds_seed(3);
    ds_scope *scope = ds_scope_open();
    ds_module *m = conv_net(dtype);
    ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(16, 3, 32, 32)), dtype);
    ds_tensor *y = ds_zeros(DS_I64, ds_shape(16));
    size_t before = ds_memory_allocated(ds_current_device());
    ds_tensor *loss = ds_cross_entropy(ds_call(m, x), y);
    size_t kept = ds_memory_allocated(ds_current_device()) - before;
    CHECK_INT(ds_backward(loss), DS_OK);
    ds_module_free(m);
    ds_scope_close(scope);
    return kept;
}

static void bytes_of_activations(void **state)
{
    (void)state;
    size_t wide = activations(DS_F32);
    const ds_dtype dtypes[] = {DS_BF16, DS_F16};
    for (int i = 0; i < 2; i++) {
        size_t half = activations(dtypes[i]);
        if (half * 100 >= wide * 70)
            fail_msg("%s: forward keeps %zu bytes, float32's %zu: want less than 70 %%",
                     ds_dtype_name(dtypes[i]), half, wide);
    }
}

/* y of the layer named "layer" in "net" */
static ds_tensor *call_layer(void *self, ds_tensor *x)
{
    return ds_call(ds_module_child(ds_module_of(self), 0), x);
}

/* Nothing is made, and the message begins with `who`, names both dtypes and
 * says what to do. */
static void refused(const char *who, ds_tensor *y)
{
    const char *said = ds_error() ? ds_error() : "";
    CHECK(!y);
    if (strncmp(said, who, strlen(who))) fail_msg("\"%s\" does not begin with \"%s\"", said, who);
    CHECK(strstr(said, "float32") && strstr(said, "float16") && strstr(said, "ds_cast"));
    CHECK_ERROR("fp16.auto_cast");
}

static void two_dtypes(void **state)
{
    (void)state;
    static const ds_module_type type = {"Net", 0, .forward = call_layer};
    for (int kind = 0; kind < 4; kind++) {
        ds_scope *scope = ds_scope_open();
        ds_module *net = ds_module_new(NULL, "net", &type);
        ds_dims shape = kind == 0 || kind == 3 ? ds_shape(2, 4) : ds_shape(2, 4, 5, 5);
        if (kind == 0) ds_nn_linear(net, "layer", 4, 3);
        if (kind == 1) ds_nn_conv2d(net, "layer", 4, 3, 3);
        if (kind == 2) ds_nn_batch_norm2d(net, "layer", 4);
        if (kind == 3) ds_nn_layer_norm(net, "layer", ds_shape(4));
        CHECK_INT(ds_module_to(net, DS_BF16), DS_OK);
        refused("net.layer: ", ds_call(net, ds_ones(DS_F32, shape)));
        ds_module_free(net);
        ds_scope_close(scope);
    }
}

/* The weight is of 16 bits, or x is. */
static void two_dtypes_in_ops(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    const ds_dtype dtypes[] = {DS_F16, DS_BF16};
    for (int i = 0; i < 4; i++) {
        ds_dtype a = i < 2 ? DS_F32 : dtypes[i % 2], b = i < 2 ? dtypes[i % 2] : DS_F32;
        ds_tensor *x = ds_ones(a, ds_shape(2, 3)), *w = ds_ones(b, ds_shape(4, 3));
        ds_tensor *image = ds_ones(a, ds_shape(1, 3, 4, 4)),
                  *kernel = ds_ones(b, ds_shape(2, 3, 3, 3));
        refused("linear: ", ds_linear(x, w, NULL));
        refused("conv2d: ", ds_conv2d(image, kernel, NULL));
        refused("matmul: ", ds_matmul(x, ds_transpose(w, 0, 1)));
        CHECK_INT(ds_dtype_of(ds_add(x, ds_ones(b, ds_shape(3)))), DS_F32); /* as torch promotes */
    }
    ds_scope_close(scope);
}

/* A float32 weight and float32 statistics go with a 16-bit x, as mixed
 * precision keeps them. */
static void batch_norm_mixed(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_cast(ds_randn(DS_F32, ds_shape(8, 3)), DS_BF16);
    ds_tensor *w = ds_require_grad(ds_ones(DS_F32, ds_shape(3)), true);
    ds_tensor *mean = ds_zeros(DS_F32, ds_shape(3)), *var = ds_ones(DS_F32, ds_shape(3));
    ds_tensor *y = ds_batch_norm_with(
        x, (ds_batch_norm_opts){
               .weight = w, .running_mean = mean, .running_var = var, .training = true});
    CHECK_INT(ds_dtype_of(y), DS_BF16);
    CHECK_INT(ds_backward(ds_sum(y)), DS_OK);
    CHECK_INT(ds_dtype_of(ds_grad(w)), DS_F32);
    CHECK(((const float *)ds_data(mean))[0] != 0);
    ds_scope_close(scope);
}

/* float16's dy / b is out of range, and the gradient of b is not. */
static void large_quotients(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    const float a[] = {0, 1e-4f};
    ds_tensor *x = ds_cast(ds_from_data(DS_F32, ds_shape(2), a), DS_F16);
    ds_tensor *b = ds_require_grad(ds_full(DS_F16, ds_shape(2), 0.01), true);
    CHECK_INT(ds_backward_from(ds_div(x, b), ds_full(DS_F16, ds_shape(2), 1000)), DS_OK);
    CHECK_CLOSE(ds_item(ds_select(ds_grad(b), 0, 0)), 0, 0);
    CHECK_CLOSE(ds_item(ds_select(ds_grad(b), 0, 1)), -1000, 2);
    ds_scope_close(scope);
}

/* ---- kernels that do not go through float32 copies ---------------------------------------------------- */

/* got, of 16 bits, is want rounded once; sums in another order may differ by a
 * last place. A sum may be rounded before a last term of at most `last` is
 * added. */
static void check_rounded(ds_tensor *got, ds_tensor *want, double places, double last)
{
    double half = ds_dtype_of(got) == DS_F16 ? 0x1p-11 : 0x1p-8, unit = half * (1 + places);
    const float *g = ds_data(ds_cast(ds_detach(got), DS_F32)), *w = ds_data(ds_detach(want));
    double scale = 0;
    for (int64_t i = 0; i < ds_numel(want); i++) scale = fmax(scale, fabs((double)w[i]));
    for (int64_t i = 0; i < ds_numel(want); i++)
        CHECK_CLOSE(g[i], w[i], unit * fabs((double)w[i]) + half * last + places * 1e-5 * scale);
}

/* In 16 bits: y = x w^T + b and its gradients, of sizes that are packed in
 * several blocks. On a GPU cublasLt may round x w^T to 16 bits before it adds
 * the bias. */
static void large_products(void **state)
{
    (void)state;
    const ds_dtype dtypes[] = {DS_BF16, DS_F16};
    for (int i = 0; i < 2; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *half[3], *wide[3];
        const ds_dims shapes[] = {ds_shape(133, 1000), ds_shape(2100, 1000), ds_shape(2100)};
        for (int k = 0; k < 3; k++) {
            half[k] = ds_require_grad(ds_cast(ds_randn(DS_F32, shapes[k]), dtypes[i]), true);
            wide[k] = ds_require_grad(ds_cast(ds_detach(half[k]), DS_F32), true);
        }
        ds_tensor *y = ds_linear(half[0], half[1], half[2]);
        ds_tensor *want = ds_linear(wide[0], wide[1], wide[2]);
        bool gpu = ds_device_of(y).kind != DS_CPU;
        check_rounded(y, want, 1, gpu ? ds_item(ds_max(ds_abs(half[2]), 0, false)) : 0);
        ds_tensor *dy = ds_cast(ds_randn(DS_F32, ds_shape(133, 2100)), dtypes[i]);
        CHECK_INT(ds_backward_from(y, dy), DS_OK);
        CHECK_INT(ds_backward_from(want, ds_cast(dy, DS_F32)), DS_OK);
        for (int k = 0; k < 3; k++) check_rounded(ds_grad(half[k]), ds_grad(wide[k]), 1, 0);
        ds_scope_close(scope);
    }
}

/* Maxima, their places and gradients: the very same as of float32, in any order
 * of memory. */
static void check_pooling(ds_tensor *x, bool last, bool relu)
{
    ds_tensor *pooled[2], *index[2], *leaf[2];
    for (int i = 0; i < 2; i++) {
        leaf[i] = ds_require_grad(i ? ds_cast(x, DS_F32) : ds_clone(x), true);
        ds_tensor *in = ds_scale(leaf[i], 1); /* what an op made may wait for its ReLU */
        if (last)
            in = ds_permute(ds_contiguous(ds_permute(in, ds_shape(0, 2, 3, 1))),
                            ds_shape(0, 3, 1, 2));
        pooled[i] = ds_max_pool2d(relu ? ds_relu(in) : in, 2);
        CHECK(ds_max_pool2d(ds_detach(in), 2, .indices = &index[i]) != NULL);
        CHECK_INT(ds_backward(ds_sum(pooled[i])), DS_OK);
    }
    check_rounded(pooled[0], pooled[1], 0, 0);
    check_rounded(ds_grad(leaf[0]), ds_grad(leaf[1]), 0, 0);
    const int64_t *got = ds_data(index[0]), *want = ds_data(index[1]);
    for (int64_t i = 0; i < ds_numel(index[0]); i++) CHECK_INT(got[i], want[i]);
}

static void pooling(void **state)
{
    (void)state;
    const ds_dims shapes[] = {ds_shape(2, 3, 28, 28), ds_shape(1, 16, 11, 30),
                              ds_shape(1, 2, 5, 3000), ds_shape(1, 1, 150, 14)};
    for (int i = 0; i < 16; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_randn(DS_F32, shapes[i % 4]);
        check_pooling(ds_cast(x, i & 8 ? DS_F16 : DS_BF16), i & 4, i & 1);
        check_pooling(ds_cast(x, i & 8 ? DS_F16 : DS_BF16), i & 4, !(i & 1));
        ds_scope_close(scope);
    }
}

TEST_MAIN(cmocka_unit_test(bytes_of_a_step), cmocka_unit_test(bytes_of_activations),
          cmocka_unit_test(two_dtypes), cmocka_unit_test(two_dtypes_in_ops),
          cmocka_unit_test(batch_norm_mixed), cmocka_unit_test(large_quotients),
          cmocka_unit_test(large_products), cmocka_unit_test(pooling))
