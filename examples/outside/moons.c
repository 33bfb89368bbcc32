/* moons.c: classifies two moons with a custom layer, op and dataset: a program
 * outside of the source tree. `make` or cmake builds it with an installed
 * deepspeed.c.
 * SPDX-License-Identifier: MIT */
#include <deepspeed.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- an op: y = x sigmoid(x) (torch.autograd.Function) ------------------------------------------------ */

static ds_tensor *swish_forward(ds_ctx *ctx, ds_tensor **in, int n)
{
    (void)n;
    ds_tensor *s = ds_sigmoid(in[0]);
    ds_ctx_save(ctx, in[0]);
    ds_ctx_save(ctx, s);
    return ds_mul(in[0], s);
}

static void swish_backward(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in)
{
    ds_tensor *x = ds_ctx_saved(ctx, 0), *s = ds_ctx_saved(ctx, 1);
    /* s + x s (1 - s) */
    ds_tensor *slope = ds_add(s, ds_mul(ds_mul(x, s), ds_sub(ds_like(s, 1), s)));
    grad_in[0] = ds_mul(grad, slope);
}

static ds_tensor *swish(ds_tensor *x)
{
    static const ds_op op = {"swish", swish_forward, swish_backward};
    return ds_apply(&op, &x, 1);
}

/* ---- a layer: y = x + scale swish(fc(x)) ---------------------------------------------------------------- */

typedef struct Gated {
    ds_module *fc;
    ds_tensor *scale; /* [features] */
} Gated;

static ds_tensor *gated_forward(void *self, ds_tensor *x)
{
    Gated *g = self;
    return ds_add(x, ds_mul(g->scale, swish(ds_call(g->fc, x))));
}

static ds_module *gated(ds_module *parent, const char *name, int features)
{
    static const ds_module_type type = {
        .name = "Gated", .self_size = sizeof(Gated), .forward = gated_forward};
    ds_module *m = ds_module_new(parent, name, &type);
    Gated *g = ds_self(m);
    g->fc = ds_nn_linear(m, "fc", features, features);
    g->scale = ds_module_param(m, "scale", ds_ones(DS_F32, ds_shape(features)));
    return m;
}

/* ---- a dataset: a sample is a point [2] and a label [] ------------------------------------------------- */

typedef struct Moons {
    int64_t n;
} Moons;

static int64_t moons_len(void *self) { return ((Moons *)self)->n; }

static ds_status moons_get(void *self, int64_t i, void **field)
{
    float t = (float)(i / 2) / (float)(((Moons *)self)->n / 2) * 3.1416f;
    float point[2] = {i % 2 ? 1 - cosf(t) : cosf(t), i % 2 ? 0.5f - sinf(t) : sinf(t)};
    memcpy(field[0], point, sizeof point);
    *(int64_t *)field[1] = i % 2;
    return DS_OK;
}

static ds_dataset *moons(int64_t n)
{
    static const ds_dataset_type type = {"Moons", sizeof(Moons), moons_len, moons_get, NULL};
    const ds_field fields[] = {{DS_F32, ds_shape(2), "point"}, {DS_I64, {0}, "label"}};
    ds_dataset *d = ds_dataset_new(&type, 2, fields);
    ((Moons *)ds_dataset_self(d))->n = n;
    return d;
}

/* ---- training -------------------------------------------------------------------------------------------- */

static ds_module *net_new(void)
{
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "0", 2, 16);
    gated(net, "1", 16);
    gated(net, "2", 16);
    ds_nn_linear(net, "3", 16, 2);
    return net;
}

/* The number of points that are classified correctly. */
static int64_t count_right(ds_engine *engine)
{
    ds_loader *loader = ds_engine_io(engine, moons(400), false);
    ds_batch b;
    int64_t right = 0;
    bool was = ds_set_grad(false);
    while (ds_loader_next(loader, &b)) {
        ds_tensor *said = ds_argmax(ds_engine_forward(engine, b.x), 1);
        for (int64_t i = 0; i < ds_numel(said); i++)
            right += ((const int64_t *)ds_data(said))[i] == ((const int64_t *)ds_data(b.y))[i];
    }
    ds_set_grad(was);
    ds_loader_free(loader);
    return right;
}

int main(void)
{
    static const char config[] =
        "{\"train_batch_size\": 16,"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}},"
        " \"gradient_clipping\": 1.0}";
    ds_seed(1);
    ds_engine *engine = ds_initialize(.model = net_new(), .training_data = moons(400),
                                      .config = config);
    ds_loader *loader = ds_engine_loader(engine);
    ds_batch b;
    for (int epoch = 0; epoch < 20 && !ds_error(); epoch++)
        while (ds_loader_next(loader, &b)) {
            ds_tensor *loss = ds_cross_entropy(ds_engine_forward(engine, b.x), b.y);
            ds_engine_backward(engine, loss);
            ds_engine_step(engine);
        }
    if (!ds_error()) printf("%lld of 400 right\n", (long long)count_right(engine));
    ds_engine_free(engine);
    if (!ds_error()) return 0;
    ds_perror("moons");
    return 1;
}
