/* tests/gpu/conv_back.c: conv2d_back_pooled and conv2d_back_scanned (device/cuda/
 * kernels/conv_small.cu) beside the core's kernels of the CPU in float64, over
 * random shapes, strides, paddings, dilations, groups, layouts of memory and
 * outputs; places of windows that are none; memory around each operand; samples
 * that are more than 2^31 elements apart.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

enum { CASES = 120, FEW_CASES = 25 };
#define TOLERANCE 4e-6 /* of float32, beside the largest value */

typedef struct Sizes {
    int64_t n, c, k, h, w, r, s, p, q; /* c and k of a group; p, q: dy's dense plane */
    int64_t windows[2], window;        /* of max-pooling, each window x window */
    dsi_conv2d o;
    ds_dtype dtype;
    bool relu, dx, dw, db;
} Sizes;

static Sizes sizes_pick(void)
{
    Sizes z;
    do {
        bool plain = one_in(2), many = one_in(12);
        z = (Sizes){.n = many ? pick(12, 40) : pick(1, 5),
                    .c = pick(1, 16),
                    .k = pick(1, 16),
                    .h = pick(1, 14),
                    .w = pick(1, 14),
                    .r = pick(1, 5),
                    .s = pick(1, 5),
                    .window = pick(1, 3),
                    .relu = one_in(2)};
        z.o.groups = one_in(3) ? pick(2, 3) : 1;
        for (int i = 0; i < 2; i++) {
            z.o.stride[i] = plain ? 1 : pick(1, 3), z.o.padding[i] = pick(0, 3);
            z.o.dilation[i] = plain ? 1 : pick(1, 2);
        }
        z.p = z.h + 2 * z.o.padding[0] > z.o.dilation[0] * (z.r - 1) ? out_size(z.h, z.r, &z.o, 0)
                                                                     : 0;
        z.q = z.w + 2 * z.o.padding[1] > z.o.dilation[1] * (z.s - 1) ? out_size(z.w, z.s, &z.o, 1)
                                                                     : 0;
        z.windows[0] = z.p / z.window, z.windows[1] = z.q / z.window;
    } while (!z.windows[0] || !z.windows[1]);
    z.dtype = one_in(20) ? (ds_dtype)pick(DS_F32, DS_BF16) : DS_F32;
    int64_t outputs = pick(1, 10);
    z.dx = outputs != 1, z.dw = outputs != 2, z.db = z.dw && outputs < 7;
    return z;
}

/* Places within windows; now and then one that is none. */
static Operand *places_in(const Sizes *z, const dsi_view *dims)
{
    static const int64_t none[] = {-1, INT32_MIN, INT32_MAX};
    int64_t n = elements_of(dims), across = z->windows[1], down = z->windows[0];
    int32_t *x = malloc((size_t)(n + 1) * sizeof *x);
    bool bad = one_in(3);
    for (int64_t i = 0; i < n; i++) {
        int64_t h = i / across % down * z->window + pick(0, z->window - 1),
                w = i % across * z->window + pick(0, z->window - 1);
        x[i] = (int32_t)(h * z->q + w);
        if (bad && one_in(9)) x[i] = (int32_t)(one_in(2) ? z->p * z->q : none[pick(0, 2)]);
    }
    Operand *o = operand_make(DS_I32, *dims, one_in(2), x);
    free(x);
    return o;
}

/* Maxima: also 0, NaN, which are not positive, and inf. */
static Operand *maxima_in(const Sizes *z, const dsi_view *dims)
{
    static const double special[] = {0, -0.0, NAN, INFINITY, -INFINITY};
    int64_t n = elements_of(dims);
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = one_in(10) ? special[pick(0, 4)] : pick_value();
    Operand *o = operand_make(z->dtype, *dims, one_in(2), x);
    free(x);
    return o;
}

/* dy as dense planes, float64. */
static dsi_view dense_of(const Sizes *z, const Operand *value, const Operand *max,
                         const Operand *place)
{
    int64_t planes = z->n * z->o.groups * z->k, area = z->p * z->q,
            windows = z->windows[0] * z->windows[1];
    double *dense = calloc((size_t)(planes * area), sizeof *dense);
    const double *v = value->cpu.p, *m = max->cpu.p;
    const int32_t *at = place->cpu.p;
    for (int64_t i = 0; i < planes * windows; i++)
        if (at[i] >= 0 && at[i] < area && (!z->relu || m[i] > 0))
            dense[i / windows * area + at[i]] = v[i];
    return (dsi_view){.p = dense,
                      .dtype = DS_F64,
                      .n = 4,
                      .d = {z->n, z->o.groups * z->k, z->p, z->q},
                      .s = {z->o.groups * z->k * area, area, z->q, 1}};
}

static void reference(const Sizes *z, dsi_view dense, const Operand *x, const Operand *w,
                      const Operand *dx, const Operand *dw, const Operand *db)
{
    dsi_device *d = cpu_device();
    dsi_stream *s = &d->stream;
    dsi_view sums = {
        .p = db->cpu.p, .dtype = DS_F64, .n = 4, .d = {1, dense.d[1], 1, 1}, .s = {0, 1, 0, 0}};
    CHECK_INT(d->kernels->conv2d_dx(s, &z->o, dense, w->cpu, dx->cpu), DS_OK);
    CHECK_INT(d->kernels->conv2d_dw(s, &z->o, dense, x->cpu, dw->cpu), DS_OK);
    CHECK_INT(d->kernels->reduce(s, DSI_SUM, 1, dense, sums, (dsi_view){.p = NULL}), DS_OK);
}

typedef struct Counts {
    int pooled, scanned, declined;
} Counts;

static void count(Counts *c, bool done)
{
    const char *name = last_kernel();
    if (!done)
        c->declined++;
    else if (!strcmp(name, "conv2d_back_scanned_f32"))
        c->scanned++;
    else if (!strcmp(name, "conv2d_back_pooled_f32"))
        c->pooled++;
    else
        CHECK(!emulated());
}

static void outputs_check(const Sizes *z, int i, bool done, Operand *dx, Operand *dw, Operand *db)
{
    char name[200];
    Operand *const out[] = {dx, dw, db};
    const bool asked[] = {z->dx, z->dw, z->db};
    for (int k = 0; k < 3; k++) {
        snprintf(name, sizeof name,
                 "case %d: %s (n %lld, groups %lld, c %lld, k %lld, %lld x %lld by %lld x %lld)", i,
                 ((const char *const[]){"dx", "dw", "db"})[k], (long long)z->n,
                 (long long)z->o.groups, (long long)z->c, (long long)z->k, (long long)z->h,
                 (long long)z->w, (long long)z->r, (long long)z->s);
        if (done && asked[k]) {
            operand_check(name, out[k], TOLERANCE, 1e-3);
        } else { /* untouched */
            char *bytes = malloc(out[k]->bytes);
            dsi_device *d = gpu_device();
            CHECK_INT(d->type->copy_out(&d->stream, bytes, out[k]->block, out[k]->bytes), DS_OK);
            if (memcmp(bytes, out[k]->image, out[k]->bytes) != 0)
                fail_msg("%s was written, which was not asked for", name);
            free(bytes);
        }
    }
}

static void case_run(const Sizes *z, int i, Counts *counts)
{
    dsi_device *d = gpu_device();
    int64_t groups = z->o.groups;
    dsi_view pooled = DIMS(z->n, groups * z->k, z->windows[0], z->windows[1]),
             image = DIMS(z->n, groups * z->c, z->h, z->w),
             weight = DIMS(groups * z->k, z->c, z->r, z->s), none = {.p = NULL};
    Operand *x = operand_in(z->dtype, image), *w = operand_in(z->dtype, weight),
            *value = operand_in(z->dtype, pooled), *max = maxima_in(z, &pooled),
            *place = places_in(z, &pooled), *dx = operand_out(z->dtype, image),
            *dw = operand_out(z->dtype, weight), *db = operand_out(z->dtype, DIMS(groups * z->k));
    dsi_view dense = dense_of(z, value, max, place);
    dsi_pooled dy = {.value = value->gpu,
                     .max = max->gpu,
                     .index = place->gpu,
                     .h = z->p,
                     .w = z->q,
                     .relu = z->relu};
    bool done = false;
    reference(z, dense, x, w, dx, dw, db);
    CHECK_INT(d->own_fusions->conv2d_back_pooled(&d->stream, &z->o, &dy, x->gpu, w->gpu,
                                                 z->dx ? dx->gpu : none, z->dw ? dw->gpu : none,
                                                 z->db ? db->gpu : none, &done),
              DS_OK);
    count(counts, done && (z->dx || z->dw));
    outputs_check(z, i, done, dx, dw, db);
    free(dense.p);
    operands_free();
}

static void random_shapes(void **state)
{
    (void)state;
    Counts counts = {0};
    int n = quick() ? FEW_CASES : CASES;
    for (int i = 0; i < n; i++) {
        operand_seed = (uint64_t)i * 977 + 5;
        Sizes z = sizes_pick();
        case_run(&z, i, &counts);
    }
    printf("# %d by conv2d_back_pooled, %d by conv2d_back_scanned, %d declined\n", counts.pooled,
           counts.scanned, counts.declined);
    if (emulated()) CHECK(counts.pooled > n / 8 && counts.scanned > n / 8);
}

/* ---- samples that are far apart ---- */

enum { SAMPLES = 2 };

/* Samples of x and dx in blocks of their own. */
typedef struct Far {
    char *block[2][SAMPLES];
    dsi_view view[2];
} Far;

static Far far_make(const Operand *x, const Operand *dx)
{
    dsi_device *d = gpu_device();
    const Operand *from[] = {x, dx};
    Far f;
    for (int i = 0; i < SAMPLES; i++)
        for (int k = 0; k < 2; k++) {
            int64_t each = from[k]->gpu.s[0] * (int64_t)sizeof(float);
            if (!i && k) setenv("FAKE_CUDA_GAP", "8592000000", 1); /* more than 2^31 floats */
            f.block[k][i] = d->type->alloc_fixed(d, (size_t)each);
            unsetenv("FAKE_CUDA_GAP");
            CHECK(f.block[k][i]);
            CHECK_INT(d->type->copy(&d->stream, f.block[k][i], d, (char *)from[k]->gpu.p + i * each,
                                    (size_t)each),
                      DS_OK);
        }
    for (int k = 0; k < 2; k++) {
        f.view[k] = from[k]->gpu;
        f.view[k].p = f.block[k][0];
        f.view[k].s[0] = (f.block[k][1] - f.block[k][0]) / (int64_t)sizeof(float);
        CHECK(f.view[k].s[0] > INT32_MAX);
    }
    return f;
}

static ds_status back(const Sizes *z, const dsi_pooled *dy, dsi_view x, const Operand *w,
                      dsi_view dx, const Operand *dw, const Operand *db)
{
    dsi_device *d = gpu_device();
    bool done = false;
    ds_status status = d->own_fusions->conv2d_back_pooled(&d->stream, &z->o, dy, x, w->gpu, dx,
                                                          dw->gpu, db->gpu, &done);
    CHECK(done);
    return status;
}

static void same_bytes(const void *a, const void *b, size_t bytes)
{
    dsi_device *d = gpu_device();
    char *got[2] = {malloc(bytes), malloc(bytes)};
    CHECK_INT(d->type->copy_out(&d->stream, got[0], a, bytes), DS_OK);
    CHECK_INT(d->type->copy_out(&d->stream, got[1], b, bytes), DS_OK);
    CHECK(!memcmp(got[0], got[1], bytes));
    free(got[0]), free(got[1]);
}

/* The bits of samples side by side. */
static void far_compare(int stride, const char *kernel)
{
    Sizes z = {.n = SAMPLES,
               .c = 6,
               .k = 16,
               .h = 14,
               .w = 14,
               .r = 5,
               .s = 5,
               .window = 2,
               .dtype = DS_F32,
               .o = {{stride, stride}, {2, 2}, {1, 1}, 1}};
    z.p = out_size(z.h, z.r, &z.o, 0), z.q = out_size(z.w, z.s, &z.o, 1);
    z.windows[0] = z.p / 2, z.windows[1] = z.q / 2;
    dsi_view pooled = DIMS(z.n, z.k, z.windows[0], z.windows[1]), image = DIMS(z.n, z.c, z.h, z.w),
             weight = DIMS(z.k, z.c, z.r, z.s);
    double values[SAMPLES * 6 * 14 * 14];
    for (int i = 0; i < SAMPLES * 6 * 14 * 14; i++) values[i] = pick_value();
    Operand *x = operand_make(DS_F32, image, true, values), *w = operand_in(DS_F32, weight),
            *value = operand_in(DS_F32, pooled), *max = maxima_in(&z, &pooled),
            *place = places_in(&z, &pooled), *dx = operand_make(DS_F32, image, true, values);
    Operand *dw[2], *db[2];
    for (int k = 0; k < 2; k++)
        dw[k] = operand_make(DS_F32, weight, true, NULL),
        db[k] = operand_make(DS_F32, DIMS(z.k), true, NULL);
    Far f = far_make(x, dx);
    dsi_pooled dy = {.value = value->gpu, .max = max->gpu, .index = place->gpu, .h = z.p, .w = z.q};
    CHECK_INT(back(&z, &dy, x->gpu, w, dx->gpu, dw[0], db[0]), DS_OK);
    CHECK_INT(back(&z, &dy, f.view[0], w, f.view[1], dw[1], db[1]), DS_OK);
    CHECK(!strcmp(last_kernel(), kernel));
    same_bytes(dw[0]->block, dw[1]->block, dw[0]->bytes);
    same_bytes(db[0]->block, db[1]->block, db[0]->bytes);
    size_t each = (size_t)dx->gpu.s[0] * sizeof(float);
    for (int i = 0; i < SAMPLES; i++) {
        same_bytes((char *)dx->gpu.p + (size_t)i * each, f.block[1][i], each);
        for (int k = 0; k < 2; k++) gpu_device()->type->free_fixed(gpu_device(), f.block[k][i]);
    }
    operands_free();
}

static void far_samples(void **state)
{
    (void)state;
    if (!emulated()) skip();
    far_compare(1, "conv2d_back_scanned_f32");
    far_compare(2, "conv2d_back_pooled_f32");
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes),
                                       cmocka_unit_test(far_samples)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
