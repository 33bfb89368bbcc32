/* tests/device/conv_bf16.c: convolutions of bfloat16 by AMX, AVX512_BF16 or in
 * float32, and their gradients, beside float64's plain loops on the same
 * values: borders, strides, dilations, groups, orders of memory, blocks of
 * pixels.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "device/device.h"

typedef struct Case {
    int64_t N, C, H, W, K, R, S;
    dsi_conv2d c;
    bool bias;
} Case;

static const Case cases[] = {
    {2, 16, 9, 11, 24, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true},
    {1, 9, 12, 7, 13, 3, 3, {{1, 1}, {0, 2}, {1, 1}, 1}, false},
    {2, 11, 13, 10, 32, 3, 2, {{2, 3}, {1, 1}, {1, 1}, 1}, true},
    {3, 32, 8, 9, 33, 3, 3, {{1, 1}, {2, 3}, {2, 3}, 1}, true},
    {2, 8, 15, 16, 40, 5, 7, {{1, 2}, {2, 3}, {1, 1}, 1}, false},
    {1, 32, 26, 40, 16, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true}, /* several blocks of rows */
    {1, 64, 20, 43, 8, 5, 5, {{1, 1}, {2, 2}, {1, 1}, 1}, true},  /* also of dw */
    {3, 16, 58, 58, 16, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true}, /* enough blocks for 4 threads */
    {3, 16, 10, 9, 40, 1, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, true},
    {3, 24, 10, 9, 40, 1, 1, {{2, 2}, {0, 0}, {1, 1}, 1}, true},
    {2, 24, 10, 9, 17, 1, 1, {{1, 1}, {1, 1}, {1, 1}, 1}, true}, /* 1x1, but with a border */
    {2, 3, 15, 14, 20, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true}, /* kernel rows of 9 numbers */
    {2, 3, 21, 20, 16, 7, 7, {{2, 2}, {3, 3}, {1, 1}, 1}, false},
    {2, 32, 9, 16, 32, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 2}, true}, /* groups */
    {3, 30, 8, 7, 51, 3, 2, {{2, 1}, {1, 0}, {1, 2}, 3}, true},
    {2, 16, 20, 20, 24, 3, 3, {{2, 2}, {1, 1}, {1, 1}, 1}, true}, /* phases of dx */
    {1, 12, 17, 19, 16, 2, 3, {{4, 3}, {0, 1}, {1, 2}, 1}, true}, /* some without taps */
    {2, 16, 16, 23, 16, 4, 5, {{2, 4}, {3, 2}, {3, 2}, 1}, false},
    {2, 9, 1, 70, 16, 1, 4, {{1, 2}, {0, 1}, {1, 1}, 1}, true},
    {2, 64, 9, 12, 80, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true},  /* Winograd's, in float32 */
    {1, 64, 17, 18, 80, 3, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true}, /* also by AVX512_BF16 */
    {3, 272, 4, 3, 40, 2, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true},
    {2, 16, 4, 5, 24, 3, 3, {{1, 1}, {4, 5}, {1, 1}, 1}, true},   /* outputs that read no input */
    {6, 32, 33, 47, 32, 3, 3, {{2, 1}, {1, 0}, {1, 2}, 1}, true}, /* blocks of samples, of dw */
    {3, 80, 8, 7, 64, 3, 3, {{1, 1}, {2, 0}, {1, 1}, 1}, false},
    {5, 160, 5, 6, 128, 3, 3, {{1, 1}, {0, 1}, {1, 1}, 1}, true}, /* dw by rows of positions */
};

typedef struct Operands {
    dsi_view x, w, b, y, dx, dw;
} Operands;

static const int planes[] = {0, 1, 2, 3}, pixels[] = {0, 2, 3, 1};

static void make(Operands *o, const Case *t, ds_dtype dtype, const int *order)
{
    int64_t size[2] = {t->R, t->S}, in[2] = {t->H, t->W}, out[2];
    for (int i = 0; i < 2; i++)
        out[i] = (in[i] + 2 * t->c.padding[i] - t->c.dilation[i] * (size[i] - 1) - 1) /
                     t->c.stride[i] +
                 1;
    const int64_t x[] = {t->N, t->C, t->H, t->W}, w[] = {t->K, t->C / t->c.groups, t->R, t->S},
                  y[] = {t->N, t->K, out[0], out[1]};
    o->x = view_new(dtype, 4, x, order), o->dx = view_new(dtype, 4, x, order);
    o->w = view_new(dtype, 4, w, NULL), o->dw = view_new(dtype, 4, w, NULL);
    o->y = view_new(dtype, 4, y, order);
    o->b = view_new(dtype, 1, &t->K, NULL);
}

static void free_all(Operands *o)
{
    view_free(&o->x), view_free(&o->w), view_free(&o->b);
    view_free(&o->y), view_free(&o->dx), view_free(&o->dw);
}

/* y, then dx and dw of the gradient that `dy` holds */
static void run(const dsi_kernels *k, const Case *t, Operands *o, const dsi_view *dy)
{
    dsi_stream *s = &dsi_device_current()->stream;
    dsi_view none = {0};
    CHECK_INT(k->conv2d(s, &t->c, o->x, o->w, t->bias ? o->b : none, o->y), DS_OK);
    CHECK_INT(k->conv2d_dx(s, &t->c, *dy, o->w, o->dx), DS_OK);
    CHECK_INT(k->conv2d_dw(s, &t->c, *dy, o->x, o->dw), DS_OK);
}

static void absolute(const dsi_view *v)
{
    for (int64_t i = 0; i < view_count(v); i++) view_set(v, i, fabs(view_get(v, i)));
}

static void compare(const char *what, const dsi_view *got, const dsi_view *want,
                    const dsi_view *scale)
{
    dsi_view g = view_new(DS_F64, got->n, got->d, NULL);
    CHECK_INT(dsi_device_current()->kernels->copy(&dsi_device_current()->stream, *got, g), DS_OK);
    for (int64_t i = 0; i < view_count(got); i++) {
        double a = view_get(&g, i), b = view_get(want, i);
        if (fabs(a - b) > fabs(b) * 0x1p-8 + 3e-7 * view_get(scale, i))
            fail_msg("%s: element %lld is %.9g, want %.9g", what, (long long)i, a, b);
    }
    view_free(&g);
}

static bool same(const dsi_view *a, const dsi_view *b)
{
    return !memcmp(a->p, b->p, (size_t)view_count(a) * ds_dtype_size(a->dtype));
}

static void run_case(const Case *t, const int *order)
{
    dsi_device *d = dsi_device_current();
    Operands half, again, want, scale;
    make(&half, t, DS_BF16, order), make(&again, t, DS_BF16, order);
    make(&want, t, DS_F64, planes), make(&scale, t, DS_F64, planes);
    dsi_view dy = view_new(DS_BF16, 4, half.y.d, order), dy64 = view_new(DS_F64, 4, half.y.d, NULL);
    const dsi_view *const to[] = {&half.x, &half.w, &half.b, &dy};
    const dsi_view *const from[] = {&want.x, &want.w, &want.b, &dy64};
    const dsi_view *const sizes[] = {&scale.x, &scale.w, &scale.b};
    for (int i = 0; i < 4; i++) {
        view_random(from[i], 3 + (uint64_t)i);
        CHECK_INT(d->kernels->copy(&d->stream, *from[i], *to[i]), DS_OK); /* rounds */
        CHECK_INT(d->kernels->copy(&d->stream, *to[i], *from[i]), DS_OK);
        if (i < 3)
            CHECK_INT(d->kernels->copy(&d->stream, *to[i], *sizes[i]), DS_OK), absolute(sizes[i]);
    }
    run(d->kernels, t, &half, &dy);
    if (compares_values()) {
        run(d->kernels, t, &want, &dy64);
        absolute(&dy64);
        run(d->kernels, t, &scale, &dy64);
        compare("conv2d", &half.y, &want.y, &scale.y);
        compare("conv2d_dx", &half.dx, &want.dx, &scale.dx);
        compare("conv2d_dw", &half.dw, &want.dw, &scale.dw);
    }

    memcpy(again.x.p, half.x.p, (size_t)view_count(&half.x) * 2);
    memcpy(again.w.p, half.w.p, (size_t)view_count(&half.w) * 2);
    memcpy(again.b.p, half.b.p, (size_t)view_count(&half.b) * 2);
    ds_set_threads(4);
    run(d->kernels, t, &again, &dy);
    ds_set_threads(1);
    CHECK(same(&half.y, &again.y) && same(&half.dx, &again.dx) && same(&half.dw, &again.dw));
    free_all(&half), free_all(&again), free_all(&want), free_all(&scale);
    view_free(&dy), view_free(&dy64);
}

/* dx + b in one rounding: a transposed convolution with its bias */
static void run_with_bias(const Case *t, const int *order)
{
    dsi_device *d = dsi_device_current();
    Operands half, want, scale;
    make(&half, t, DS_BF16, order), make(&want, t, DS_F64, planes), make(&scale, t, DS_F64, planes);
    dsi_view b = view_new(DS_BF16, 1, &t->C, NULL), b64 = view_new(DS_F64, 1, &t->C, NULL);
    const dsi_view *const to[] = {&half.y, &half.w, &b};
    const dsi_view *const from[] = {&want.y, &want.w, &b64};
    for (int i = 0; i < 3; i++) {
        view_random(from[i], 7 + (uint64_t)i);
        CHECK_INT(d->kernels->copy(&d->stream, *from[i], *to[i]), DS_OK); /* rounds */
        CHECK_INT(d->kernels->copy(&d->stream, *to[i], *from[i]), DS_OK);
    }
    const dsi_fusions *f = d->used_fusions;
    CHECK_INT(f->conv2d_dx_bias(&d->stream, &t->c, half.y, half.w, b, half.dx), DS_OK);
    CHECK_INT(f->conv2d_dx_bias(&d->stream, &t->c, want.y, want.w, b64, want.dx), DS_OK);
    absolute(&want.y), absolute(&want.w), absolute(&b64);
    CHECK_INT(f->conv2d_dx_bias(&d->stream, &t->c, want.y, want.w, b64, scale.dx), DS_OK);
    compare("conv2d_dx_bias", &half.dx, &want.dx, &scale.dx);
    free_all(&half), free_all(&want), free_all(&scale);
    view_free(&b), view_free(&b64);
}

static void beside_float64(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (compares_values()) run_with_bias(&cases[i], i % 2 ? planes : pixels);
        if (!quick() || i % 2) run_case(&cases[i], planes);
        if (!quick() || i % 2 == 0) run_case(&cases[i], pixels);
    }
}

TEST_MAIN(cmocka_unit_test(beside_float64))
