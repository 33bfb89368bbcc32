/* tests/device/halves.c: float32 in two halves: of all upper halves and many
 * lower ones, what is joined is what was split, or the neighbour of a tie; and
 * the upper half is rounded as any bfloat16.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/half.h"
#include "parallel/flat.h"

enum { N = 1 << 16 };

static dsi_view line(void *p, ds_dtype dtype)
{
    return (dsi_view){.p = p, .dtype = dtype, .n = 1, .d = {N}, .s = {1}};
}

static bool is_nan(uint32_t x) { return (x & 0x7fffffff) > 0x7f800000; }

/* All floats with these 16 low bits. */
static void check_low(const dsi_kernels *k, uint32_t low)
{
    static uint32_t x[N], untied[N], joined[N];
    static uint16_t p[N];
    static int16_t rest[N];
    dsi_stream *s = &dsi_device_current()->stream;
    for (uint32_t i = 0; i < N; i++) x[i] = untied[i] = i << 16 | low;
    dsi_view halves[] = {line(p, DS_BF16), line(rest, DS_I16)};
    CHECK_INT(k->halves_split(s, line(untied, DS_F32), halves[0], halves[1]), DS_OK);
    CHECK_INT(k->halves_join(s, halves[0], halves[1], line(joined, DS_F32)), DS_OK);
    int wrong = 0;
    for (uint32_t i = 0; i < N; i++) {
        bool tie = low == 0x8000 && i % 2 == 0;
        float f;
        memcpy(&f, &x[i], sizeof f);
        wrong += p[i] != dsi_f32_to_bf16(f) || untied[i] != x[i] - tie;
        wrong += is_nan(x[i]) ? !is_nan(joined[i]) : joined[i] != untied[i];
    }
    CHECK_INT(wrong, 0);
    memcpy(untied, x, sizeof x);
    CHECK_INT(k->halves_split(s, line(untied, DS_F32), (dsi_view){0}, (dsi_view){0}), DS_OK);
    for (uint32_t i = 0; i < N; i++) wrong += untied[i] != x[i] - (low == 0x8000 && i % 2 == 0);
    CHECK_INT(wrong, 0);
}

static void splits_and_joins(void **state)
{
    static const uint32_t special[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    (void)state;
    FOR_EACH_ISA(k)
    {
        for (size_t i = 0; i < sizeof special / sizeof *special; i++) check_low(k, special[i]);
        for (uint32_t low = 0; low < N; low += quick() ? 4001 : 257) check_low(k, low);
    }
}

/* ---- optimizers ---------------------------------------------------------------------------------------- */

static const dsi_optimizer rules[] = {
    {.rule = DSI_SGD, .sgd = {.lr = 1.0 / 1024}}, /* makes ties: see `start` */
    {.rule = DSI_SGD, .sgd = {0.1, 0.9, 0, 0.01, true, false}},
    {.rule = DSI_ADAM, .adam = {0.1, 0.9, 0.99, 1e-8, 0.01, true, true, false, true}},
    {.rule = DSI_ADAGRAD, .adagrad = {0.1, 0.01, 0.01, 1e-8, false}},
    {.rule = DSI_RMSPROP, .rmsprop = {0.1, 0.9, 1e-8, 0.01, 0.9, false, false}},
    {.rule = DSI_ADADELTA, .adadelta = {0.1, 0.9, 1e-8, 0.01, false}},
    {.rule = DSI_LION, .lion = {0.1, 0.9, 0.99, 0.01}},
    {.rule = DSI_LAMB, .lamb = {0.1, 0.9, 0.99, 1e-8, 0.01, 10, 0.01, true, false}}};

enum { ELEMENTS = 1031, MOMENTS = 3, UPDATES = 3 };

/* A parameter in both forms: x with its copy; p and rest. */
typedef struct Master {
    ds_tensor *x, *copy, *p, *rest, *moment[2][MOMENTS];
} Master;

/* Elements from `skip` on: from 1 on they are not aligned. */
static ds_tensor *part(ds_tensor *x, int skip) { return dsi_flat_range(x, skip, ELEMENTS); }

static ds_tensor *zeros(ds_dtype dtype, int skip)
{
    return part(ds_zeros(dtype, ds_shape(ELEMENTS)), skip);
}

/* 1 + k / 128; with gradients of -4, SGD moves these half way to the next
 * bfloat16. */
static Master start(int skip)
{
    float x[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) x[i] = 1 + (float)(i % 127) / 128;
    Master m = {.x = part(ds_from_data(DS_F32, ds_shape(ELEMENTS), x), skip),
                .copy = zeros(DS_BF16, skip),
                .p = zeros(DS_BF16, skip),
                .rest = zeros(DS_I16, skip)};
    for (int i = 0; i < 2 * MOMENTS; i++) m.moment[i % 2][i / 2] = zeros(DS_F32, skip);
    return m;
}

static ds_tensor *gradient(int t, ds_dtype dtype, int skip)
{
    float g[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        g[i] = t == 1 ? -4 : (float)((i * 7919 + t * 31) % 1000 - 500) / 300;
    return part(ds_cast(ds_from_data(DS_F32, ds_shape(ELEMENTS), g), dtype), skip);
}

static dsi_span span_of(const Master *m, bool split, const ds_tensor *g, int t)
{
    ds_tensor *const *moment = m->moment[split];
    return (dsi_span){.dtype = split ? DS_BF16 : DS_F32,
                      .p = dsi_v(split ? m->p : m->x).p,
                      .low = split ? NULL : dsi_v(m->copy).p,
                      .low_dtype = DS_BF16,
                      .rest = split ? dsi_v(m->rest).p : NULL,
                      .g = dsi_v(g).p,
                      .g_dtype = g->dtype,
                      .g_scale = 1,
                      .m = dsi_v(moment[0]).p,
                      .v = dsi_v(moment[1]).p,
                      .vmax = dsi_v(moment[2]).p,
                      .n = dsi_numel(g->shape),
                      .step = t};
}

static void check_same(ds_tensor *a, ds_tensor *b)
{
    const ds_device cpu = {DS_CPU, 0};
    a = ds_to(a, cpu, a->dtype), b = ds_to(b, cpu, b->dtype);
    assert_memory_equal(ds_data(a), ds_data(b), (size_t)ds_numel(a) * ds_dtype_size(a->dtype));
}

static void check_rule(const dsi_kernels *k, const dsi_optimizer *c, ds_dtype g_dtype, int skip)
{
    ds_scope *scope = ds_scope_open();
    Master m = start(skip);
    dsi_stream *s = &m.x->device->stream;
    CHECK_INT(k->halves_split(s, dsi_v(m.x), dsi_v(m.p), dsi_v(m.rest)), DS_OK);
    for (int t = 1; t <= UPDATES; t++) {
        ds_tensor *g = gradient(t, g_dtype, skip), *joined = dsi_new(m.x, m.x->shape);
        dsi_span whole = span_of(&m, false, g, t), split = span_of(&m, true, g, t);
        CHECK_INT(k->optimizer(s, c, 1, &whole), DS_OK);
        CHECK_INT(k->optimizer(s, c, 1, &split), DS_OK);
        CHECK_INT(k->halves_join(s, dsi_v(m.p), dsi_v(m.rest), dsi_v(joined)), DS_OK);
        check_same(m.x, joined), check_same(m.copy, m.p);
        for (int i = 0; i < MOMENTS; i++) check_same(m.moment[0][i], m.moment[1][i]);
    }
    ds_scope_close(scope);
}

static void check_rules(const dsi_kernels *k)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (int skip = 0; skip < 2; skip++) {
            check_rule(k, &rules[i], DS_BF16, skip);
            check_rule(k, &rules[i], DS_F32, skip);
        }
}

/* The halves of a master become what the master beside its copy becomes, also
 * where that is a tie. */
static void are_updated_as_the_whole(void **state)
{
    (void)state;
    const dsi_device *d = dsi_device_current();
    if (d->type->kind != DS_CPU) {
        check_rules(d->kernels);
        return;
    }
    FOR_EACH_ISA(k) check_rules(k);
}

static void refuses_dtypes(void **state)
{
    static float x[N];
    (void)state;
    const dsi_kernels *k = kernels_of(0);
    dsi_stream *s = &dsi_device_current()->stream;
    dsi_view f = line(x, DS_F32), h = line(x, DS_BF16), i = line(x, DS_I16);
    CHECK_INT(k->halves_split(s, line(x, DS_F64), h, i), DS_EINVAL);
    CHECK_ERROR("halves: no cpu kernel for float64");
    CHECK_INT(k->halves_split(s, f, line(x, DS_F16), i), DS_EINVAL);
    CHECK_INT(k->halves_join(s, h, line(x, DS_I32), f), DS_EINVAL);
}

TEST_MAIN(cmocka_unit_test(splits_and_joins), cmocka_unit_test(are_updated_as_the_whole),
          cmocka_unit_test(refuses_dtypes))
