/* tests/nn/summary.c: a model printed, beside what PyTorch 2.15 prints of the
 * same one.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static const ds_module_type net_type = {"Net", 0, .forward = NULL};

static void convolutions(ds_module *m)
{
    ds_nn_conv2d(m, "conv1", 3, 6, 5);
    ds_nn_conv2d(m, "conv2", 6, 12, 3, .kernel_w = 5, .stride = 2, .stride_w = 1, .padding = 1,
                 .padding_w = 2, .dilation = 2, .groups = 3, .no_bias = true);
    ds_nn_max_pool2d(m, "pool", (ds_pool2d_opts){.kernel = 2, .stride = 2});
    ds_nn_max_pool2d(m, "pool2",
                     (ds_pool2d_opts){.kernel = 3,
                                      .kernel_w = 2,
                                      .stride = 1,
                                      .padding = 1,
                                      .padding_w = -1,
                                      .ceil_mode = true});
    ds_nn_avg_pool2d(m, "avg", (ds_pool2d_opts){.kernel = 3, .stride = 2});
}

static void norms(ds_module *m)
{
    ds_nn_batch_norm2d(m, "bn", 6);
    ds_nn_batch_norm2d_with(
        m, "bn2", 6,
        (ds_nn_norm_opts){
            .eps = 1e-3, .momentum = 0.5, .no_affine = true, .no_running_stats = true});
    ds_nn_layer_norm(m, "ln", ds_shape(8));
    ds_nn_layer_norm_with(m, "ln2", ds_shape(2, 3),
                          (ds_nn_norm_opts){.eps = 1e-6, .no_affine = true});
    ds_nn_embedding(m, "emb", 7, 8, -1);
    ds_nn_embedding(m, "emb2", 7, 8, 0);
}

static void sequences(ds_module *m)
{
    ds_module *s = ds_nn_sequential(m, "features");
    ds_nn_relu(s, "0");
    ds_nn_gelu(s, "1");
    ds_nn_sigmoid(s, "2");
    ds_nn_tanh(s, "3");
    ds_nn_flatten(s, "4");
    ds_nn_dropout(s, "5", 0.25);
    ds_module *inner = ds_nn_sequential(s, "6");
    ds_nn_linear(inner, "0", 400, 120);
    ds_nn_linear(inner, "1", 4, 2, .no_bias = true);
    ds_nn_sequential(s, "7");
}

static const char want[] =
    "Net(\n"
    "  (conv1): Conv2d(3, 6, kernel_size=(5, 5), stride=(1, 1))\n"
    "  (conv2): Conv2d(6, 12, kernel_size=(3, 5), stride=(2, 1), padding=(1, 2), dilation=(2, 2), "
    "groups=3, bias=False)\n"
    "  (pool): MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)\n"
    "  (pool2): MaxPool2d(kernel_size=(3, 2), stride=1, padding=(1, 0), dilation=1, "
    "ceil_mode=True)\n"
    "  (avg): AvgPool2d(kernel_size=3, stride=2, padding=0)\n"
    "  (bn): BatchNorm2d(6, eps=1e-05, momentum=0.1, affine=True, bias=True, "
    "track_running_stats=True)\n"
    "  (bn2): BatchNorm2d(6, eps=0.001, momentum=0.5, affine=False, bias=False, "
    "track_running_stats=False)\n"
    "  (ln): LayerNorm((8,), eps=1e-05, elementwise_affine=True, bias=True)\n"
    "  (ln2): LayerNorm((2, 3), eps=1e-06, elementwise_affine=False, bias=False)\n"
    "  (emb): Embedding(7, 8)\n"
    "  (emb2): Embedding(7, 8, padding_idx=0)\n"
    "  (features): Sequential(\n"
    "    (0): ReLU()\n"
    "    (1): GELU(approximate='none')\n"
    "    (2): Sigmoid()\n"
    "    (3): Tanh()\n"
    "    (4): Flatten(start_dim=1, end_dim=-1)\n"
    "    (5): Dropout(p=0.25, inplace=False)\n"
    "    (6): Sequential(\n"
    "      (0): Linear(in_features=400, out_features=120, bias=True)\n"
    "      (1): Linear(in_features=4, out_features=2, bias=False)\n"
    "    )\n"
    "    (7): Sequential()\n"
    "  )\n"
    ")\n";

static char *printed(ds_module *m)
{
    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    ds_module_print(m, to);
    fclose(to);
    return text;
}

static void as_pytorch_prints(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_module_new(NULL, "net", &net_type);
    convolutions(m);
    norms(m);
    sequences(m);
    char *got = printed(m);
    assert_string_equal(got, want);
    free(got);
    ds_module_free(m);
    ds_scope_close(s);
}

static void two_options(void *self, FILE *to) { (void)self, fputs("width=3, depth=4", to); }

static void types_of_ones_own(void **state)
{
    (void)state;
    static const ds_module_type type = {"Own", 0, .describe = two_options};
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_module_new(NULL, "own", &type);
    char *got = printed(m);
    assert_string_equal(got, "Own(width=3, depth=4)\n");
    free(got);
    ds_nn_relu(m, "act");
    got = printed(m);
    assert_string_equal(got, "Own(\n  width=3, depth=4\n  (act): ReLU()\n)\n");
    free(got);
    CHECK(!strcmp(ds_module_type_of(m)->name, "Own") && !ds_module_type_of(NULL));
    ds_module_print(NULL, stdout);
    ds_module_free(m);
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(as_pytorch_prints), cmocka_unit_test(types_of_ones_own))
