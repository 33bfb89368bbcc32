/* tests/reference/flops.c: the report of the flops profiler beside DeepSpeed's, for the
 * tutorial's net, a residual network, a GPT and a layer of experts; flops and MACs of
 * single ops. make_flops.py made the values; a '#' there stands for what a clock says.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"
#include "reference.h"

#include <deepspeed/engine.h>
#include <deepspeed/ops.h>
#include <deepspeed/ops_conv.h>
#include <deepspeed/ops_loss.h>

#include <stdio.h>
#include <stdlib.h>

#define MODULE(type_name, Struct, function) \
    static const ds_module_type type = {type_name, sizeof(Struct), .forward = function}; \
    ds_module *m = ds_module_new(parent, name, &type); \
    Struct *s = ds_self(m)

/* ---- models ------------------------------------------------------------------------------------------- */

typedef struct Net {
    ds_module *conv1, *pool, *conv2, *fc1, *fc2, *fc3;
} Net;

static ds_tensor *net_forward(void *self, ds_tensor *x)
{
    Net *s = self;
    x = ds_call(s->pool, ds_relu(ds_call(s->conv1, x)));
    x = ds_flatten(ds_call(s->pool, ds_relu(ds_call(s->conv2, x))), 1);
    return ds_call(s->fc3, ds_relu(ds_call(s->fc2, ds_relu(ds_call(s->fc1, x)))));
}

static ds_module *net_new(ds_module *parent, const char *name)
{
    MODULE("Net", Net, net_forward);
    s->conv1 = ds_nn_conv2d(m, "conv1", 3, 6, 5);
    s->pool = ds_nn_max_pool2d(m, "pool", (ds_pool2d_opts){.kernel = 2, .stride = 2});
    s->conv2 = ds_nn_conv2d(m, "conv2", 6, 16, 5);
    s->fc1 = ds_nn_linear(m, "fc1", 400, 120);
    s->fc2 = ds_nn_linear(m, "fc2", 120, 84);
    s->fc3 = ds_nn_linear(m, "fc3", 84, 10);
    return m;
}

typedef struct Block {
    ds_module *conv1, *bn1, *conv2, *bn2, *downsample;
} Block;

static ds_tensor *block_forward(void *self, ds_tensor *x)
{
    Block *s = self;
    ds_tensor *y = ds_relu(ds_call(s->bn1, ds_call(s->conv1, x)));
    y = ds_call(s->bn2, ds_call(s->conv2, y));
    return ds_relu(ds_add(y, s->downsample ? ds_call(s->downsample, x) : x));
}

static ds_module *block_new(ds_module *parent, const char *name, int64_t in, int64_t out,
                            int stride)
{
    MODULE("Block", Block, block_forward);
    s->conv1 = ds_nn_conv2d(m, "conv1", in, out, 3, .stride = stride, .padding = 1,
                            .no_bias = true);
    s->bn1 = ds_nn_batch_norm2d(m, "bn1", out);
    s->conv2 = ds_nn_conv2d(m, "conv2", out, out, 3, .padding = 1, .no_bias = true);
    s->bn2 = ds_nn_batch_norm2d(m, "bn2", out);
    if (in == out) return m;
    s->downsample = ds_nn_sequential(m, "downsample");
    ds_nn_conv2d(s->downsample, "0", in, out, 1, .stride = stride, .no_bias = true);
    ds_nn_batch_norm2d(s->downsample, "1", out);
    return m;
}

typedef struct ResNet {
    ds_module *conv1, *bn1, *layer[2], *avgpool, *fc;
} ResNet;

static ds_tensor *resnet_forward(void *self, ds_tensor *x)
{
    ResNet *s = self;
    x = ds_relu(ds_call(s->bn1, ds_call(s->conv1, x)));
    x = ds_call(s->layer[1], ds_call(s->layer[0], x));
    return ds_call(s->fc, ds_flatten(ds_call(s->avgpool, x), 1));
}

static ds_module *resnet_new(ds_module *parent, const char *name)
{
    MODULE("ResNet", ResNet, resnet_forward);
    s->conv1 = ds_nn_conv2d(m, "conv1", 3, 16, 3, .padding = 1, .no_bias = true);
    s->bn1 = ds_nn_batch_norm2d(m, "bn1", 16);
    s->layer[0] = ds_nn_sequential(m, "layer1");
    block_new(s->layer[0], "0", 16, 16, 1), block_new(s->layer[0], "1", 16, 16, 1);
    s->layer[1] = ds_nn_sequential(m, "layer2");
    block_new(s->layer[1], "0", 16, 32, 2), block_new(s->layer[1], "1", 32, 32, 1);
    s->avgpool = ds_nn_adaptive_avg_pool2d(m, "avgpool", 1, 1);
    s->fc = ds_nn_linear(m, "fc", 32, 10);
    return m;
}

typedef struct Heads {
    ds_module *c_attn, *c_proj;
} Heads;

static ds_tensor *heads_forward(void *self, ds_tensor *x)
{
    Heads *s = self;
    ds_attention_opts o = {.causal = true};
    return ds_call(s->c_proj, ds_attention_qkvpacked(ds_call(s->c_attn, x), 4, o));
}

static ds_module *heads_new(ds_module *parent, const char *name, int64_t c)
{
    MODULE("Attention", Heads, heads_forward);
    s->c_attn = ds_nn_linear(m, "c_attn", c, 3 * c);
    s->c_proj = ds_nn_linear(m, "c_proj", c, c);
    return m;
}

typedef struct Layer {
    ds_module *ln_1, *attn, *ln_2, *c_fc, *c_proj;
} Layer;

static ds_tensor *layer_forward(void *self, ds_tensor *x)
{
    Layer *s = self;
    x = ds_add(x, ds_call(s->attn, ds_call(s->ln_1, x)));
    return ds_add(x, ds_call(s->c_proj, ds_gelu_tanh(ds_call(s->c_fc, ds_call(s->ln_2, x)))));
}

static ds_module *layer_new(ds_module *parent, const char *name, int64_t c)
{
    MODULE("Layer", Layer, layer_forward);
    s->ln_1 = ds_nn_layer_norm(m, "ln_1", ds_shape(c));
    s->attn = heads_new(m, "attn", c);
    s->ln_2 = ds_nn_layer_norm(m, "ln_2", ds_shape(c));
    s->c_fc = ds_nn_linear(m, "c_fc", c, 4 * c);
    s->c_proj = ds_nn_linear(m, "c_proj", 4 * c, c);
    return m;
}

typedef struct Tied { /* a Linear with the weight of an Embedding */
    ds_tensor *weight;
} Tied;

static ds_tensor *tied_forward(void *self, ds_tensor *x)
{
    return ds_linear(x, ((Tied *)self)->weight, NULL);
}

static void tied_describe(void *self, FILE *to)
{
    const ds_tensor *w = ((Tied *)self)->weight;
    fprintf(to, "in_features=%d, out_features=%d, bias=False", (int)ds_size(w, 1),
            (int)ds_size(w, 0));
}

typedef struct Gpt {
    ds_module *wte, *wpe, *h, *ln_f, *lm_head;
} Gpt;

static ds_tensor *gpt_forward(void *self, ds_tensor *i)
{
    Gpt *s = self;
    ds_tensor *places = ds_to(ds_arange(DS_I64, 0, 16, 1), ds_device_of(i), DS_I64);
    ds_tensor *x = ds_add(ds_call(s->wte, i), ds_call(s->wpe, places));
    for (int k = 0; k < ds_module_children(s->h); k++) x = ds_call(ds_module_child(s->h, k), x);
    return ds_call(s->lm_head, ds_call(s->ln_f, x));
}

static ds_module *gpt_new(ds_module *parent, const char *name)
{
    static const ds_module_type tied = {"Linear", sizeof(Tied), .forward = tied_forward,
                                        .describe = tied_describe};
    MODULE("GPT", Gpt, gpt_forward);
    s->wte = ds_nn_embedding(m, "wte", 65, 32, -1);
    s->wpe = ds_nn_embedding(m, "wpe", 16, 32, -1);
    s->h = ds_nn_module_list(m, "h");
    layer_new(s->h, "0", 32), layer_new(s->h, "1", 32);
    s->ln_f = ds_nn_layer_norm(m, "ln_f", ds_shape(32));
    s->lm_head = ds_module_new(m, "lm_head", &tied);
    ((Tied *)ds_self(s->lm_head))->weight = ds_module_tie(s->lm_head, "weight",
                                                          ds_module_param_at(s->wte, 0, NULL));
    return m;
}

typedef struct Routed {
    ds_module *moe, *fc;
} Routed;

static ds_module *expert_new(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, 8, 8);
}

static ds_tensor *routed_forward(void *self, ds_tensor *x)
{
    Routed *s = self;
    return ds_call(s->fc, ds_call(s->moe, x));
}

static ds_module *routed_new(ds_module *parent, const char *name)
{
    MODULE("Routed", Routed, routed_forward);
    s->moe = ds_nn_moe(m, "moe", 8, expert_new, .num_experts = 4, .k = 1);
    s->fc = ds_nn_linear(m, "fc", 8, 3);
    return m;
}

/* ---- reports ------------------------------------------------------------------------------------------ */

/* Whether text is pattern, in which a '#' stands for anything. */
static bool matches(const char *pattern, const char *text)
{
    if (*pattern == '#') return matches(pattern + 1, text) || (*text && matches(pattern, text + 1));
    return *pattern == *text && (!*text || matches(pattern + 1, text + 1));
}

static void compare_lines(Reference *r, const char *path)
{
    const json_t *want = json_object_get(r->json, "report");
    char *line = NULL;
    size_t room = 0, n = json_array_size(want);
    FILE *f = fopen(path, "r");
    for (size_t i = 0; i + 1 < n; i++) { /* the last one is empty */
        const char *pattern = json_string_value(json_array_get(want, i));
        ssize_t length = f ? getline(&line, &room, f) : -1;
        if (length > 0 && line[length - 1] == '\n') line[length - 1] = 0;
        if (length > 0 && matches(pattern, line)) continue;
        reference_fail(r, "line %zu is\n%s\nexpected\n%s", i + 1, length > 0 ? line : "missing",
                       pattern);
        break;
    }
    if (f && strcmp(reference_text(r->json, "model", ""), "moe") != 0 &&
        getline(&line, &room, f) > 0)
        reference_fail(r, "another line: %s", line);
    if (f) fclose(f);
    free(line);
}

static ds_tensor *model_loss(const char *model, ds_tensor *y)
{
    if (!strcmp(model, "gpt")) y = ds_flatten_range(y, 0, 1);
    ds_tensor *labels = ds_to(ds_zeros(DS_I64, ds_shape(ds_size(y, 0))), ds_device_of(y), DS_I64);
    return ds_cross_entropy(y, labels);
}

static void run_model(Reference *r, const char *model)
{
    static const struct {
        const char *name;
        ds_module *(*make)(ds_module *parent, const char *name);
        ds_dims x;
    } models[] = {{"net", net_new, {4, {4, 3, 32, 32}}},
                  {"resnet", resnet_new, {4, {4, 3, 32, 32}}},
                  {"gpt", gpt_new, {2, {4, 16}}},
                  {"moe", routed_new, {2, {4, 8}}}};
    size_t i = 0;
    while (strcmp(models[i].name, model) != 0) i++;
    const char *path = folder_path("reports/report.txt");
    json_t *options = json_deep_copy(json_object_get(r->json, "options"));
    json_object_set_new(options, "enabled", json_true());
    json_object_set_new(options, "output_file", json_string(path));
    json_t *config = json_pack("{s:i, s:{s:s, s:{s:f}}, s:o}", "train_micro_batch_size_per_gpu", 4,
                               "optimizer", "type", "Adam", "params", "lr", 1e-3, "flops_profiler",
                               options);
    char *text = json_dumps(config, 0);
    ds_engine *e = ds_initialize(.model = models[i].make(NULL, "net"), .config = text);
    bool tokens = models[i].x.n == 2 && models[i].x.d[1] == 16;
    for (int step = 0; step < 4 && e; step++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_to(ds_zeros(tokens ? DS_I64 : DS_F32, models[i].x), ds_engine_device(e),
                             tokens ? DS_I64 : DS_F32);
        ds_engine_backward(e, model_loss(model, ds_engine_forward(e, x)));
        ds_engine_step(e);
        ds_scope_close(scope);
    }
    ds_engine_free(e);
    if (ds_error())
        reference_fail(r, "%s", ds_error());
    else
        compare_lines(r, path);
    ds_error_clear();
    free(text);
    json_decref(config);
}

/* ---- single ops --------------------------------------------------------------------------------------- */

static ds_tensor *zeros(ds_dims shape)
{
    return ds_to(ds_zeros(DS_F32, shape), ds_current_device(), DS_F32);
}
#define Z(...) zeros(ds_shape(__VA_ARGS__))
#define W6     Z(6)

static ds_tensor *labels_zero(int64_t n)
{
    return ds_to(ds_zeros(DS_I64, ds_shape(n)), ds_current_device(), DS_I64);
}

static ds_tensor *normed(ds_tensor *x, bool training, bool affine)
{
    ds_batch_norm_opts o = {.training = training, .running_mean = W6, .running_var = W6};
    if (affine) o.weight = o.bias = W6;
    return ds_batch_norm_with(x, o);
}

/* name, the call, the shape of x */
#define OPS(X) \
    X(linear, ds_linear(x, Z(5, 7), Z(5)), 2, 3, 7) \
    X(addmm, ds_addmm(Z(5), x, Z(7, 5)), 6, 7) \
    X(matmul, ds_matmul(x, Z(2, 3, 5, 6)), 2, 3, 4, 5) \
    X(matmul_folded, ds_matmul(x, Z(5, 6)), 2, 3, 4, 5) \
    X(conv1d, ds_conv1d(x, Z(8, 4, 3), Z(8), .stride = 2, .padding = 1), 2, 4, 9) \
    X(conv2d, ds_conv2d(x, Z(8, 2, 3, 3), Z(8), .stride = 2, .padding = 1, .groups = 2), 2, 4, 9, \
      9) \
    X(conv2d_no_bias, ds_conv2d(x, Z(8, 4, 3, 3), NULL, .dilation = 2), 2, 4, 9, 9) \
    X(conv3d, ds_conv3d(x, Z(8, 4, 3, 3, 3), Z(8), .padding = ds_shape(1)), 2, 4, 5, 5, 5) \
    X(conv_transpose2d, \
      ds_conv_transpose2d(x, Z(4, 3, 3, 3), Z(6), .stride = 2, .padding = 1, .groups = 2), 2, 4, \
      5, 5) \
    X(conv_transpose1d, ds_conv_transpose1d(x, Z(4, 6, 3), Z(6)), 2, 4, 5) \
    X(conv_transpose3d, ds_conv_transpose3d(x, Z(4, 6, 3, 3, 3), Z(6)), 2, 4, 3, 3, 3) \
    X(relu, ds_relu(x), 2, 3, 4) \
    X(prelu, ds_prelu(x, Z(1)), 2, 3, 4) \
    X(elu, ds_elu(x, 0), 2, 3, 4) \
    X(leaky_relu, ds_leaky_relu(x, 0), 2, 3, 4) \
    X(silu, ds_silu(x), 2, 3, 4) \
    X(gelu, ds_gelu(x), 2, 3, 4) \
    X(sigmoid, ds_sigmoid(x), 2, 3, 4) \
    X(tanh, ds_tanh(x), 2, 3, 4) \
    X(batch_norm, normed(x, true, true), 4, 6, 3, 3) \
    X(batch_norm_plain, normed(x, true, false), 4, 6, 3, 3) \
    X(batch_norm_eval, normed(x, false, true), 4, 6, 3, 3) \
    X(batch_norm_eval_plain, normed(x, false, false), 4, 6, 3, 3) \
    X(layer_norm, ds_layer_norm(x, 1, W6, W6, 0), 4, 6) \
    X(layer_norm_plain, ds_layer_norm(x, 1, NULL, NULL, 0), 4, 6) \
    X(rms_norm, ds_rms_norm(x, 1, W6, 0), 4, 6) \
    X(group_norm, ds_group_norm(x, 2, W6, W6, 0), 4, 6, 3) \
    X(instance_norm, ds_instance_norm_with(x, (ds_batch_norm_opts){0}), 4, 6, 3) \
    X(max_pool2d, ds_max_pool2d(x, 2), 2, 3, 8, 8) \
    X(avg_pool2d, ds_avg_pool2d(x, 3, .stride = 1), 2, 3, 8, 8) \
    X(adaptive_avg_pool2d, ds_adaptive_avg_pool2d(x, 2, 2), 2, 3, 8, 8) \
    X(max_pool1d, ds_max_pool1d(x, 2), 2, 3, 8) \
    X(interpolate, ds_interpolate(x, .scale_factor = 2), 2, 3, 4, 4) \
    X(softmax, ds_softmax(x, -1), 2, 3, 4) \
    X(log_softmax, ds_log_softmax(x, -1), 2, 3, 4) \
    X(embedding, ds_embedding(Z(9, 4), labels_zero(6), -1), 1) \
    X(attention, ds_attention(x, Z(2, 4, 7, 8), Z(2, 4, 7, 6)), 2, 4, 5, 8) \
    X(attention_causal, ds_attention_with(x, x, x, (ds_attention_opts){.causal = true}), 2, 4, 5, \
      8) \
    X(attention_dropout, ds_attention_with(x, x, x, (ds_attention_opts){.dropout_p = 0.1}), 2, 4, \
      5, 8) \
    X(dropout, ds_dropout(x, 0.5, true), 2, 3, 4) \
    X(cross_entropy, ds_cross_entropy(x, labels_zero(2)), 2, 4) \
    X(mse_loss, ds_mse_loss(x, Z(2, 4)), 2, 4) \
    X(add, ds_add(x, x), 2, 4) \
    X(mul, ds_mul(x, x), 2, 4)

#define FORWARD(name, call, ...) \
    static ds_tensor *forward_##name(void *self, ds_tensor *x) \
    { \
        (void)self, (void)x; \
        return call; \
    }
OPS(FORWARD)

static const struct {
    const char *name;
    ds_tensor *(*forward)(void *self, ds_tensor *x);
    ds_dims x;
} ops[] = {
#define ROW(name, call, ...) \
    {#name, forward_##name, {sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}}},
    OPS(ROW)};

static void run_op(Reference *r, const char *name, const json_t *want)
{
    size_t n = sizeof ops / sizeof *ops, i = 0;
    while (i < n && strcmp(ops[i].name, name) != 0) i++;
    if (i == n) return; /* relu6 is not here; torch.add counts, a + b does not */
    const ds_module_type type = {"One", 1, .forward = ops[i].forward};
    ds_module *m = ds_module_new(NULL, "one", &type);
    ds_model_costs c = ds_model_profile(m, zeros(ops[i].x), NULL);
    double flops = json_number_value(json_array_get(want, 0)),
           macs = json_number_value(json_array_get(want, 1));
    if (ds_error() || c.flops != flops || c.macs != macs)
        reference_fail(r, "%s: %g flops, %g MACs, expected %g, %g; %s", name, c.flops, c.macs,
                       flops, macs, ds_error() ? ds_error() : "");
    ds_error_clear();
    ds_module_free(m);
}

static void run_case(Reference *r)
{
    const char *name;
    json_t *want;
    json_object_foreach(json_object_get(r->json, "ops"), name, want) run_op(r, name, want);
    if (json_object_get(r->json, "model")) run_model(r, reference_text(r->json, "model", ""));
}

static void reports(void **state)
{
    (void)state;
    folder_make();
    CHECK_INT(reference_each("flops", run_case), 0);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(reports))
