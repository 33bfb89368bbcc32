/* tests/gpu/small_entropy.c: cross entropies of few rows (entropy_lanes and
 * entropy_few of device/cuda/kernels/softmax.cu, which wait for their gradient),
 * and those just beyond their limits, beside the CPU in float64: random shapes,
 * layouts of memory, dtypes, reductions, ignored and bad labels, label smoothing,
 * weights, infinite logits; what is between a loss and its gradient.
 * SPDX-License-Identifier: MIT */
#include "operand.h"

enum { CASES = 600, FEW_CASES = 80 };
enum { MEAN, SUM, NONE, REDUCTIONS }; /* ds_reduction */

/* Work between the loss and its gradient. */
typedef enum Between {
    NOTHING,     /* the fill of dloss, as in a training step */
    OTHER_FILL,  /* and one of another number */
    HOST_WRITES, /* x is written before dloss is filled */
    GIVEN,       /* no fill: dloss was there before */
    NO_GRADIENT,
    N_BETWEEN
} Between;

typedef struct Shape {
    ds_dtype dtype, loss_dtype, weight_dtype; /* a loss of 16 bits or float32 */
    int64_t n, columns, inner;
    dsi_cross_entropy c;
    bool weights, infinite;
    int bad; /* labels that are no classes */
    Between between;
    double dloss;
} Shape;

static Shape shape_pick(void)
{
    static const int64_t ignored[] = {-100, 0, 3, 40, INT64_MIN, INT64_MAX, -1};
    Shape z = {.dtype = one_in(2) ? DS_F32 : (ds_dtype)pick(DS_F32, DS_BF16),
               .columns = one_in(3) ? pick(30, 34) : pick(1, 40),
               .inner = one_in(3) ? pick(1, 5) : 1,
               .weights = one_in(8),
               .infinite = one_in(8),
               .bad = one_in(8) ? (int)pick(1, 2) : 0,
               .between = (Between)pick(0, N_BETWEEN - 1),
               .dloss = one_in(2) ? 1 : (double)pick(-300, 300) / 16};
    z.n = one_in(4) ? pick(62, 66) / z.inner : pick(0, 20);
    if (one_in(30)) z.columns = pick(1000, 1100);
    z.weight_dtype = z.dtype == DS_F64 || one_in(2) ? z.dtype : DS_F32;
    z.loss_dtype = z.dtype == DS_F64 || one_in(2) ? z.dtype : DS_F32;
    z.c.ignore_index = ignored[pick(0, 6)];
    z.c.reduction = one_in(8) ? NONE : (int)pick(MEAN, SUM);
    z.c.smoothing = one_in(8) ? 0.25 : 0;
    return z;
}

static Operand *logits_in(const Shape *z)
{
    static const double special[] = {-INFINITY, INFINITY, NAN, -60000, 60000};
    dsi_view dims = DIMS(z->n, z->columns, z->inner);
    int64_t n = elements_of(&dims);
    double *x = malloc((size_t)(n + 1) * sizeof *x), scale = one_in(3) ? 30 : 3;
    for (int64_t i = 0; i < n; i++) {
        x[i] = scale * pick_value();
        if (z->infinite && one_in(20)) x[i] = special[pick(0, 4)];
    }
    Operand *o = operand_make(z->dtype, dims, one_in(2), x);
    free(x);
    return o;
}

static Operand *labels_in(const Shape *z)
{
    dsi_view dims = DIMS(z->n, z->inner);
    int64_t n = elements_of(&dims), *x = malloc((size_t)(n + 1) * sizeof *x);
    bool none = one_in(12);
    for (int64_t i = 0; i < n; i++) {
        x[i] = pick(0, z->columns - 1);
        if (none || one_in(8)) x[i] = z->c.ignore_index;
    }
    for (int i = 0; i < z->bad && n; i++)
        x[pick(0, n - 1)] = one_in(2) ? z->columns : -pick(1, 200);
    Operand *o = operand_make(DS_I64, dims, one_in(2), x);
    free(x);
    return o;
}

/* 0 to 1, some 0. */
static Operand *weights_in(const Shape *z)
{
    double *x = malloc((size_t)z->columns * sizeof *x);
    for (int64_t i = 0; i < z->columns; i++) x[i] = one_in(5) ? 0 : fabs(pick_value());
    Operand *o = operand_make(z->weight_dtype, DIMS(z->columns), one_in(2), x);
    free(x);
    return o;
}

static bool is_bad(const Shape *z, int64_t label)
{
    return label != z->c.ignore_index && (label < 0 || label >= z->columns);
}

/* A fault names a bad label; without one there is no fault. */
static void fault_check(const Shape *z, const Operand *label, int i)
{
    const int64_t *at = label->cpu.p;
    int64_t n = elements_of(&label->cpu), bad = 0;
    bool named = false;
    ds_status status = dsi_device_check(gpu_device());
    for (int64_t k = 0; k < n; k++) {
        char text[120];
        if (!is_bad(z, at[k])) continue;
        bad++;
        snprintf(text, sizeof text, "cross_entropy: label %lld at index %lld is outside 0..%lld",
                 (long long)at[k], (long long)k, (long long)z->columns - 1);
        named = named || (ds_error() && !strcmp(ds_error(), text));
    }
    if ((bad > 0) != (status != DS_OK) || (bad && !named))
        fail_msg("case %d: %lld bad labels: %s", i, (long long)bad, ds_error());
    ds_error_clear();
    CHECK_INT(dsi_device_check(gpu_device()), DS_OK);
}

/* Operands of a case. */
typedef struct Case {
    Operand *x, *label, *weight, *loss, *lse, *divisor, *dloss, *dx, *other;
} Case;

static Case case_make(const Shape *z)
{
    ds_dtype wide = z->dtype == DS_F64 ? DS_F64 : DS_F32;
    dsi_view one = {.n = 0}, rows = DIMS(z->n, z->inner);
    bool none = z->c.reduction == NONE;
    Case k = {.x = logits_in(z), .label = labels_in(z), .weight = weights_in(z)};
    k.loss = operand_out(z->loss_dtype, none ? rows : one);
    k.lse = operand_out(wide, rows), k.divisor = operand_out(wide, one);
    k.dx = operand_out(z->dtype, DIMS(z->n, z->columns, z->inner));
    k.other = operand_out(z->dtype, one);
    k.dloss = none                  ? operand_in(z->loss_dtype, rows)
              : z->between == GIVEN ? operand_make(z->loss_dtype, one, true, &z->dloss)
                                    : operand_out(z->loss_dtype, one);
    return k;
}

/* float64 on the CPU, with labels that are no classes ignored, as their losses may
 * be anything. */
static void reference(const Shape *z, const Case *k)
{
    dsi_device *d = cpu_device();
    dsi_view weight = z->weights ? k->weight->cpu : (dsi_view){.p = NULL};
    if (z->c.reduction != NONE) *(double *)k->dloss->cpu.p = z->dloss;
    CHECK_INT(d->kernels->cross_entropy(&d->stream, &z->c, k->x->cpu, k->label->cpu, weight,
                                        k->loss->cpu, k->lse->cpu, k->divisor->cpu),
              DS_OK);
    CHECK_INT(d->kernels->cross_entropy_dx(&d->stream, &z->c, k->dloss->cpu, k->x->cpu,
                                           k->label->cpu, weight, k->lse->cpu, k->divisor->cpu,
                                           k->dx->cpu),
              DS_OK);
    dsi_fault fault;
    CHECK_INT(d->type->take_fault(&d->stream, true, &fault), DS_OK);
}

static ds_status fill(double value, const Operand *o)
{
    dsi_device *d = gpu_device();
    return d->own_kernels->fill(&d->stream, value, o->gpu);
}

static void kernels_run(const Shape *z, const Case *k)
{
    dsi_device *d = gpu_device();
    dsi_stream *s = &d->stream;
    dsi_view weight = z->weights ? k->weight->gpu : (dsi_view){.p = NULL};
    CHECK_INT(d->own_kernels->cross_entropy(s, &z->c, k->x->gpu, k->label->gpu, weight,
                                            k->loss->gpu, k->lse->gpu, k->divisor->gpu),
              DS_OK);
    if (z->between == NO_GRADIENT) return;
    if (z->between == OTHER_FILL) CHECK_INT(fill(7, k->other), DS_OK);
    if (z->between == HOST_WRITES) { /* the loss is of what was there before */
        char *ones = malloc(k->x->bytes);
        memset(ones, 0x11, k->x->bytes);
        CHECK_INT(d->type->copy_in(s, k->x->block, ones, k->x->bytes), DS_OK);
        CHECK_INT(d->type->copy_in(s, k->x->block, k->x->image, k->x->bytes), DS_OK);
        free(ones);
    }
    if (z->between != GIVEN && z->c.reduction != NONE) CHECK_INT(fill(z->dloss, k->dloss), DS_OK);
    CHECK_INT(d->own_kernels->cross_entropy_dx(s, &z->c, k->dloss->gpu, k->x->gpu, k->label->gpu,
                                               weight, k->lse->gpu, k->divisor->gpu, k->dx->gpu),
              DS_OK);
}

typedef struct Counts {
    int lanes, few, joined;
} Counts;

static void case_check(const Shape *z, const Case *k, int i)
{
    char name[5][160];
    static const char *const what[] = {"loss", "lse", "divisor", "dx", "dloss"};
    for (int o = 0; o < 5; o++)
        snprintf(name[o], sizeof name[o],
                 "case %d: %s of %s [%lld, %lld, %lld], reduction %d, ignored %lld, between %d", i,
                 what[o], ds_dtype_name(z->dtype), (long long)z->n, (long long)z->columns,
                 (long long)z->inner, z->c.reduction, (long long)z->c.ignore_index, z->between);
    double eps = z->dtype == DS_F64    ? 1e-13
                 : z->dtype == DS_BF16 ? 0x1p-8
                 : z->dtype == DS_F16  ? 0x1p-11
                                       : 2e-6;
    operand_check(name[0], k->loss, 2 * eps, 1);
    operand_check(name[1], k->lse, z->dtype == DS_F64 ? eps : 2e-6, 1);
    operand_check(name[2], k->divisor, z->dtype == DS_F64 ? eps : 2e-6, 1);
    if (z->between == NO_GRADIENT) return;
    operand_check(name[3], k->dx, 2 * eps, 1e-3);
    operand_check(name[4], k->dloss, eps, 1e-3);
    if (z->between == OTHER_FILL)
        *(double *)k->other->cpu.p = 7, operand_check("7", k->other, 0, 1);
}

static void case_run(int i, Counts *counts)
{
    operand_seed = (uint64_t)i * 7919 + 3;
    Shape z = shape_pick();
    Case k = case_make(&z);
    CHECK_INT(dsi_device_check(gpu_device()), DS_OK);
    long before = emulator_count("fake_cuda_launches");
    reference(&z, &k);
    kernels_run(&z, &k);
    fault_check(&z, k.label, i);
    long launches = emulator_count("fake_cuda_launches") - before;
    bool lanes = !strcmp(last_kernel(), "entropy_lanes_f32"),
         few = !strncmp(last_kernel(), "entropy_few", 11);
    if (z.between != GIVEN) {
        counts->lanes += lanes, counts->few += few;
        counts->joined += (lanes || few) && z.between == NOTHING && launches == 1;
    }
    bool bad = false;
    for (int64_t n = 0; n < elements_of(&k.label->cpu); n++)
        bad = bad || is_bad(&z, ((const int64_t *)k.label->cpu.p)[n]);
    if (!bad) case_check(&z, &k, i);
    operands_free();
}

static void random_cases(void **state)
{
    (void)state;
    Counts counts = {0};
    int n = quick() ? FEW_CASES : CASES;
    for (int i = 0; i < n; i++) case_run(i, &counts);
    printf("# the last kernel: entropy_lanes of %d cases, entropy_few of %d; %d with dx in it\n",
           counts.lanes, counts.few, counts.joined);
    if (emulated()) CHECK(counts.lanes > n / 12 && counts.few > n / 40 && counts.joined > n / 20);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
