/* tests/gpu/conv_parts.c: y and dx of convolutions by warpgroups (device/cuda/
 * kernels/conv_wgmma.cu) that have few tiles, whose sums are cut into parts,
 * beside the CPU in float64: random channels, groups, kernels, strides, paddings,
 * dilations, in both 16-bit dtypes; memory around each operand; the same bits at
 * each call.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

enum { CASES = 8, FEW_CASES = 4 };

typedef struct Sizes {
    int64_t n, c, k, h, w, r, s, p, q; /* c and k of a group */
    dsi_conv2d o;
    ds_dtype dtype;
    bool bias;
} Sizes;

static Sizes sizes_pick(void)
{
    Sizes z;
    do {
        z = (Sizes){.n = pick(1, 3),
                    .c = 8 * pick(16, 32),
                    .k = 8 * pick(12, 32),
                    .h = pick(2, 6),
                    .w = pick(2, 6),
                    .r = pick(1, 3),
                    .s = pick(1, 3),
                    .dtype = one_in(2) ? DS_F16 : DS_BF16,
                    .bias = one_in(2)};
        z.o.groups = one_in(4) ? 2 : 1;
        bool plain = !one_in(3);
        for (int i = 0; i < 2; i++) {
            z.o.stride[i] = plain ? 1 : pick(1, 2), z.o.padding[i] = pick(0, 2);
            z.o.dilation[i] = one_in(4) ? 2 : 1;
        }
        z.p = out_size(z.h, z.r, &z.o, 0), z.q = out_size(z.w, z.s, &z.o, 1);
    } while (z.p < 1 || z.q < 1 || z.r * z.s < 4);
    return z;
}

/* An image [n,h,w,c]: input, or output. */
static Operand *image_of(const Sizes *z, bool input, int64_t c, int64_t h, int64_t w)
{
    dsi_view dims = DIMS(z->n, h, w, c);
    int64_t n = elements_of(&dims);
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = pick_value();
    Operand *o = operand_make(z->dtype, dims, true, input ? x : NULL);
    free(x);
    return o;
}

/* It as [n,c,h,w]. */
static dsi_view image(const Operand *o, bool on_gpu)
{
    static const int order[] = {0, 3, 1, 2};
    const dsi_view *from = on_gpu ? &o->gpu : &o->cpu;
    dsi_view v = *from;
    for (int k = 0; k < 4; k++) v.d[k] = from->d[order[k]], v.s[k] = from->s[order[k]];
    return v;
}

typedef struct Case {
    Operand *x, *w, *b, *y, *dy, *dx;
} Case;

static ds_status case_call(const Sizes *z, const Case *k, bool dx, bool on_gpu)
{
    dsi_device *d = on_gpu ? gpu_device() : cpu_device();
    dsi_view w = on_gpu ? k->w->gpu : k->w->cpu, b = on_gpu ? k->b->gpu : k->b->cpu;
    if (!z->bias) b.p = NULL;
    return dx ? d->own_kernels->conv2d_dx(&d->stream, &z->o, image(k->dy, on_gpu), w,
                                          image(k->dx, on_gpu))
              : d->own_kernels->conv2d(&d->stream, &z->o, image(k->x, on_gpu), w, b,
                                       image(k->y, on_gpu));
}

/* Whether the sum had parts. */
static bool product_check(const Sizes *z, const Case *k, int i, bool dx)
{
    char name[160];
    const Operand *o = dx ? k->dx : k->y;
    dsi_device *d = gpu_device();
    char *bytes[2] = {malloc(o->bytes), malloc(o->bytes)};
    CHECK_INT(case_call(z, k, dx, false), DS_OK);
    bool parts = false;
    for (int call = 0; call < 2; call++) {
        CHECK_INT(case_call(z, k, dx, true), DS_OK);
        parts = !strncmp(last_kernel(), dx ? "conv2d_dx_group_sum" : "conv2d_group_sum",
                         dx ? 19 : 16);
        CHECK_INT(d->type->copy_out(&d->stream, bytes[call], o->block, o->bytes), DS_OK);
    }
    CHECK(!memcmp(bytes[0], bytes[1], o->bytes));
    free(bytes[0]), free(bytes[1]);
    snprintf(name, sizeof name,
             "case %d: %s (n %lld, groups %lld, c %lld, k %lld, %lld x %lld by %lld x %lld)", i,
             dx ? "dx" : "y", (long long)z->n, (long long)z->o.groups, (long long)z->c,
             (long long)z->k, (long long)z->h, (long long)z->w, (long long)z->r, (long long)z->s);
    operand_check(name, dx ? k->dx : k->y, z->dtype == DS_F16 ? 0x1p-11 : 0x1p-8, 1e-3);
    return parts;
}

static void random_shapes(void **state)
{
    (void)state;
    int parts[2] = {0}, n = quick() ? FEW_CASES : CASES;
    for (int i = 0; i < n; i++) {
        operand_seed = (uint64_t)i * 131 + 17;
        Sizes z = sizes_pick();
        int64_t groups = z.o.groups;
        Case k = {.x = image_of(&z, true, groups * z.c, z.h, z.w),
                  .w = operand_in(z.dtype, DIMS(groups * z.k, z.c, z.r, z.s)),
                  .b = operand_in(DS_F32, DIMS(groups * z.k)),
                  .y = image_of(&z, false, groups * z.k, z.p, z.q),
                  .dy = image_of(&z, true, groups * z.k, z.p, z.q),
                  .dx = image_of(&z, false, groups * z.c, z.h, z.w)};
        for (int dx = 0; dx < 2; dx++) parts[dx] += product_check(&z, &k, i, dx);
        operands_free();
    }
    printf("# of %d cases %d of y and %d of dx are cut into parts\n", n, parts[0], parts[1]);
    if (emulated()) CHECK(parts[0] > n / 2 && parts[1] > 0);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_shapes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
