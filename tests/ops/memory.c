/* tests/ops/memory.c: the peak of memory of each op, forward and backward, in
 * 16 bits beside float32's.
 *
 * Rows have about 2^19 elements, because copies of at most 1 MiB are scratch
 * memory that no peak counts (device/cpu/simd/upcast.h).
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ops/cases.h"

/* clang-format off */
#define IMAGES     X(4, 8, 32, 48, 48)
#define ROWS       X(2, 512, 1024)
#define CHANNELS   RANGE(0.5, 2, 1, 32), X(1, 32)
#define HEADS      X(4, 1, 8, 512, 64)
#define HEADS_3    HEADS, HEADS, HEADS
/* clang-format on */

CALL(conv2d_strided, ds_conv2d(in[0], in[1], in[2], .padding = 1, .stride = 2))
CALL(conv2d_by_channel, ds_conv2d(in[0], in[1], in[2], .padding = 1, .groups = 32))
CALL(conv2d_by_groups, ds_conv2d(in[0], in[1], in[2], .padding = 1, .groups = 4))
CALL(softmax_0, ds_softmax(in[0], 0))
CALL(embedding_padded, ds_embedding(in[0], in[1], 0))
CALL(layer_norm_1024, ds_layer_norm(in[0], 1, in[1], in[2], 0))
CALL(rms_norm_1024, ds_rms_norm(in[0], 1, in[1], 0))

static const Case rows[] = {
    {"relu", "", call_relu, .in = {ROWS}},
    {"gelu", "", call_gelu, .in = {ROWS}},
    {"mul", "", call_mul, .in = {ROWS, ROWS}},
    {"mul", "broadcast", call_mul, .in = {ROWS, X(1, 1024)}},
    {"matmul", "", call_matmul, .in = {ROWS, X(2, 1024, 1024)}},
    {"matmul", "batch", call_matmul, .in = {X(3, 16, 256, 256), X(3, 16, 256, 256)}},
    {"linear", "", call_linear, .in = {ROWS, X(2, 1024, 1024), X(1, 1024)}},
    {"conv2d", "3x3", call_conv2d_same, .in = {IMAGES, X(4, 32, 32, 3, 3), X(1, 32)}},
    {"conv2d", "1x1", call_conv2d, .in = {IMAGES, X(4, 32, 32, 1, 1), X(1, 32)}},
    {"conv2d", "5x5", call_conv2d, .in = {IMAGES, X(4, 16, 32, 5, 5), X(1, 16)}},
    {"conv2d", "stride 2", call_conv2d_strided, .in = {IMAGES, X(4, 64, 32, 3, 3), X(1, 64)}},
    {"conv2d", "groups", call_conv2d_by_groups, .in = {IMAGES, X(4, 32, 8, 3, 3), X(1, 32)}},
    {"conv2d", "depthwise", call_conv2d_by_channel, .in = {IMAGES, X(4, 32, 1, 3, 3), X(1, 32)}},
    {"conv2d", "relu, pool", call_conv_relu_pool, .in = {IMAGES, X(4, 32, 32, 3, 3), X(1, 32)}},
    {"conv2d", "pool", call_conv_pool, .in = {IMAGES, X(4, 32, 32, 3, 3), X(1, 32)}},
    {"max_pool2d", "2x2", call_max_pool2d, .in = {IMAGES}},
    {"max_pool2d", "overlap", call_max_pool2d_overlap, .in = {IMAGES}},
    {"avg_pool2d", "2x2", call_avg_pool2d, .in = {IMAGES}},
    {"adaptive_avg_pool2d", "", call_adaptive, .in = {IMAGES}},
    {"softmax", "last", call_softmax, .in = {ROWS}},
    {"softmax", "first", call_softmax_0, .in = {ROWS}},
    {"log_softmax", "last", call_log_softmax, .in = {ROWS}},
    {"cross_entropy", "", call_cross_entropy, .in = {ROWS, LABEL(1024, 1, 512)}},
    {"cross_entropy", "weight, smoothing", call_cross_entropy_all,
     .in = {ROWS, LABEL(1024, 1, 512), CONST(0.5, 2, 1, 1024)}},
    {"cross_entropy", "none", call_cross_entropy_none, .in = {ROWS, LABEL(1024, 1, 512)}},
    {"linear_cross_entropy", "", call_linear_cross_entropy,
     .in = {X(2, 256, 256), X(2, 4096, 256), LABEL(4096, 1, 256)}},
    {"mse_loss", "", call_mse_loss, .in = {ROWS, ROWS}},
    {"batch_norm", "training", call_batch_norm, .in = {IMAGES, CHANNELS}},
    {"batch_norm", "plain", call_batch_norm_plain, .in = {ROWS}},
    {"batch_norm", "evaluation", call_batch_norm_eval,
     .in = {IMAGES, CHANNELS, CONST(-1, 1, 1, 32), CONST(0.5, 2, 1, 32)}},
    {"layer_norm", "", call_layer_norm_1024, .in = {ROWS, X(1, 1024), X(1, 1024)}},
    {"layer_norm", "plain", call_layer_norm_plain, .in = {ROWS}},
    {"rms_norm", "", call_rms_norm_1024, .in = {ROWS, X(1, 1024)}},
    {"sum", "all", call_sum, .in = {ROWS}},
    {"sum", "first and last", call_sum_02, .in = {X(3, 64, 128, 128)}},
    {"sum", "mean, kept", call_mean_1, .in = {X(3, 64, 128, 128)}},
    {"max", "in the middle", call_max, .in = {X(3, 64, 128, 128)}},
    {"max", "last", call_max_keep, .in = {ROWS}},
    {"reshape", "of a transposed", call_contiguous, .in = {ROWS}},
    {"cat", "", call_cat, .in = {X(2, 256, 1024), X(2, 256, 1024), X(2, 256, 1024)}},
    {"embedding", "", call_embedding, .in = {X(2, 4096, 256), LABEL(4096, 1, 1024)}},
    {"embedding", "padding", call_embedding_padded, .in = {X(2, 64, 1024), LABEL(64, 1, 1024)}},
    {"gather", "", call_gather, .in = {ROWS, LABEL(1024, 2, 512, 512)}},
    {"dispatch", "", call_dispatch, .in = {X(2, 1024, 512)}},
    {"combine", "weights", call_combine_weighted, .in = {X(2, 2048, 512), X(2, 1024, 2)}},
    {"dropout", "", call_dropout, .in = {ROWS}},
    {"attention", "", call_attention, .in = {HEADS_3}},
    {"attention", "causal", call_attention_causal, .in = {HEADS_3}},
    {"attention", "added mask", call_attention_mask, .in = {HEADS_3, CONST(-1, 1, 2, 512, 512)}},
    {"attention", "grouped heads", call_attention_gqa,
     .in = {X(4, 1, 16, 512, 64), X(4, 1, 4, 512, 64), X(4, 1, 4, 512, 64)}},
    {"rotary_embedding", "", call_rotary, .in = {X(4, 1, 8, 1024, 64), CONST(-1, 1, 2, 1024, 32)}},
};

/* Bytes of the row's forward and backward, at most, above the inputs'. */
static size_t peak(const Case *c, ds_dtype dtype)
{
    ds_device cpu = {DS_CPU, 0};
    ds_scope *scope = ds_scope_open();
    ds_tensor *in[MAX_IN] = {NULL};
    int n = case_inputs(c->in);
    for (int i = 0; i < n; i++) in[i] = case_input(c->in, i, dtype);
    ds_memory_reset_peak(cpu);
    ds_scope *step = ds_scope_open();
    ds_tensor *y = c->call(in);
    ds_status status = y ? ds_backward_from(y, ds_like(y, 1)) : ds_error_status();
    ds_scope_close(step);
    size_t bytes = ds_memory_peak(cpu);
    ds_scope_close(scope);
    if (status != DS_OK) fail_msg("%s (%s): %s", c->op, c->name, ds_error());
    return bytes;
}

static void no_more_than_float32(void **state)
{
    (void)state;
    const ds_dtype half[] = {DS_BF16, DS_F16};
    int above = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t single = peak(&rows[i], DS_F32);
        for (int k = 0; k < (quick() ? 1 : 2); k++) {
            size_t bytes = peak(&rows[i], half[k]);
            if (bytes <= single) continue;
            fprintf(stderr, "%s (%s): %s takes %zu bytes, float32 %zu\n", rows[i].op, rows[i].name,
                    ds_dtype_name(half[k]), bytes, single);
            above++;
        }
    }
    CHECK_INT(above, 0);
}

TEST_MAIN(cmocka_unit_test(no_more_than_float32))
