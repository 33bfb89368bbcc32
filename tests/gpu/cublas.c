/* tests/gpu/cublas.c: large products by cublasLt (fake_cublas) on an emulated
 * GPU beside the CPU: dtypes, transposes, batches, bias, gradients, graphs; and
 * each failure. A case is a process of its own, as cublasLt is opened once. On a
 * real GPU the values by the machine's cublasLt, if it has one.
 * SPDX-License-Identifier: MIT */
#include "apart.h"
#include "caught.h"

#include <deepspeed.h>

enum { M = 256, K = 272, N = 264 }; /* 18 million multiplications */

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};

/* By the simulated cublasLt. */
static long products(void)
{
    return emulated() ? fake_count_of(FAKE_LIBCUBLAS, "fake_cublas_products") : 0;
}

/* Equal up to rounding to y's dtype, of sums of K products of numbers around 1. */
static void tensors_close(ds_tensor *y, ds_tensor *want, const char *what)
{
    static const double tolerance[] = {[DS_F32] = 1e-4, [DS_F16] = 0.1, [DS_BF16] = 0.6};
    double limit = tolerance[ds_dtype_of(y)];
    ds_tensor *a = ds_to(y, cpu, DS_F32), *b = ds_to(want, cpu, DS_F32);
    CHECK(a && b && ds_numel(a) == ds_numel(b));
    const float *p = ds_data(a), *q = ds_data(b);
    for (int64_t i = 0; i < ds_numel(a); i++)
        if (!(fabs(p[i] - q[i]) <= limit * (1 + fabs(q[i]) / 8)))
            fail_msg("%s: element %lld is %g, %g on the CPU", what, (long long)i, p[i], q[i]);
}

static ds_tensor *random_on(ds_device d, ds_dtype dtype, ds_dims shape, uint64_t seed)
{
    CHECK_INT(ds_set_device(d), DS_OK);
    ds_seed(seed);
    return ds_cast(ds_randn(DS_F32, shape), dtype);
}

/* One product on a device: number `layout` of those below. */
enum { LAYOUTS = 9 };
static ds_tensor *product(ds_device d, ds_dtype dtype, int layout)
{
    ds_tensor *a, *b;
    switch (layout) {
    case 0:
    case 1: /* b transposed */
        a = random_on(d, dtype, ds_shape(M, K), 1);
        b = layout ? ds_transpose(random_on(d, dtype, ds_shape(N, K), 2), 0, 1)
                   : random_on(d, dtype, ds_shape(K, N), 2);
        return ds_matmul(a, b);
    case 2: /* both */
        a = ds_transpose(random_on(d, dtype, ds_shape(K, M), 1), 0, 1);
        b = ds_transpose(random_on(d, dtype, ds_shape(N, K), 2), 0, 1);
        return ds_matmul(a, b);
    case 3: /* bias */
        a = random_on(d, dtype, ds_shape(M, K), 1);
        b = random_on(d, dtype, ds_shape(N, K), 2);
        return ds_linear(a, b, random_on(d, dtype, ds_shape(N), 3));
    case 4: /* batches, one operand of all of them */
        a = random_on(d, dtype, ds_shape(3, M / 2, K), 1);
        b = random_on(d, dtype, ds_shape(1, K, N), 2);
        return ds_matmul(a, ds_expand(b, ds_shape(3, K, N)));
    case 5: /* batches that are steps of a tensor */
        a = ds_transpose(random_on(d, dtype, ds_shape(M / 2, 3, K), 1), 0, 1);
        b = ds_transpose(random_on(d, dtype, ds_shape(3, N, K), 2), 1, 2);
        return ds_matmul(a, b);
    case 6: /* odd lines of b and of the result, copied in 16 bits */
        a = random_on(d, dtype, ds_shape(M, K), 1);
        return ds_matmul(a, random_on(d, dtype, ds_shape(K, N + 1), 2));
    case 7: /* of the result alone, with a bias */
        a = random_on(d, dtype, ds_shape(M, K), 1);
        b = random_on(d, dtype, ds_shape(N + 1, K), 2);
        return ds_linear(a, b, random_on(d, dtype, ds_shape(N + 1), 3));
    default: /* not aligned */
        a = ds_slice(random_on(d, dtype, ds_shape(M, K + 3), 1), 1, 1, K + 1);
        b = random_on(d, dtype, ds_shape(K, N), 2);
        return ds_matmul(a, b);
    }
}

static void products_of(long each)
{
    for (int dtype = 0; dtype < 3; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            static const ds_dtype dtypes[] = {DS_F32, DS_F16, DS_BF16};
            char what[64];
            snprintf(what, sizeof what, "%s, layout %d", ds_dtype_name(dtypes[dtype]), layout);
            ds_scope *scope = ds_scope_open();
            ds_tensor *want = product(cpu, dtypes[dtype], layout);
            long before = products();
            ds_tensor *got = product(gpu, dtypes[dtype], layout);
            CHECK(got && want);
            if (emulated() && products() - before != each)
                fail_msg("%s: %ld products by cublasLt", what, products() - before);
            tensors_close(got, want, what);
            ds_scope_close(scope);
        }
}

static void by_cublas(void **state)
{
    (void)state;
    products_of(1);
}

/* Not of float64, nor of few numbers. */
static void others_are_ours(void **state)
{
    (void)state;
    long before = products();
    ds_scope *scope = ds_scope_open();
    CHECK(ds_matmul(random_on(gpu, DS_F64, ds_shape(1024, 16), 1),
                    random_on(gpu, DS_F64, ds_shape(16, 1025), 1)));
    CHECK(ds_matmul(random_on(gpu, DS_F32, ds_shape(64, 64), 1),
                    random_on(gpu, DS_F32, ds_shape(64, 64), 1)));
    CHECK(ds_matmul(random_on(gpu, DS_BF16, ds_shape(1024, 64), 1), /* odd lines, a short sum */
                    random_on(gpu, DS_BF16, ds_shape(64, 301), 1)));
    CHECK_INT(products() - before, 0);
    ds_scope_close(scope);
}

/* ---- training, kernel by kernel and as a graph ---------------------------------------------------------- */

typedef struct Training {
    ds_module *net;
    ds_optim *optim;
} Training;

static ds_tensor *training_step(void *self, ds_tensor *const *in, int n)
{
    Training *t = self;
    CHECK_INT(n, 1);
    ds_optim_zero_grad(t->optim);
    ds_tensor *y = ds_call(t->net, in[0]), *loss = ds_mean(ds_mul(y, y));
    if (ds_backward(loss) != DS_OK || ds_optim_step(t->optim) != DS_OK) return NULL;
    return loss;
}

static void train(ds_device d, bool with_graph, double *losses, int steps)
{
    CHECK_INT(ds_set_device(d), DS_OK);
    ds_seed(3);
    Training t = {.net = ds_nn_linear(NULL, "net", K, N)};
    t.optim = ds_optim_sgd(t.net, 0.1, .momentum = 0.9);
    ds_step_graph *graph = with_graph ? ds_step_graph_new(training_step, &t) : NULL;
    for (int i = 0; i < steps; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = random_on(d, DS_F32, ds_shape(M, K), (uint64_t)i);
        losses[i] = ds_item(graph ? ds_step_graph_run(graph, &x, 1) : training_step(&t, &x, 1));
        ds_scope_close(scope);
    }
    if (graph) CHECK(ds_step_graph_replays(graph));
    ds_step_graph_free(graph);
    ds_optim_free(t.optim);
    ds_module_free(t.net);
}

static void trains(void **state)
{
    (void)state;
    enum { STEPS = 5 };
    double want[STEPS], got[STEPS], graph[STEPS];
    train(cpu, false, want, STEPS);
    long before = products();
    train(gpu, false, got, STEPS);
    if (emulated()) /* forward, and the weight's gradient */
        CHECK_INT(products() - before, 2 * STEPS);
    train(gpu, true, graph, STEPS);
    for (int i = 0; i < STEPS; i++) CHECK_CLOSE(got[i], want[i], 1e-5 * (1 + want[i]));
    CHECK(!memcmp(got, graph, sizeof got));
}

/* ---- failures ------------------------------------------------------------------------------------------- */

static void without(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *want = product(cpu, DS_F32, 3), *got = product(gpu, DS_F32, 3);
    CHECK(got && want);
    tensors_close(got, want, "bias");
    CHECK_INT(products(), 0);
    ds_scope_close(scope);
}

static void once(void) { without(NULL); }

static void cannot_start(void **state)
{
    (void)state;
    const char *log = caught_of(NULL, once);
    CHECK(strstr(log, "large products by our own kernels: cublasLtCreate says "
                      "CUBLAS_STATUS_NOT_INITIALIZED"));
}

#define FAILS(name, message) \
    static void name(void **state) \
    { \
        (void)state; \
        ds_scope *scope = ds_scope_open(); \
        CHECK(!product(gpu, DS_F32, 3)); \
        CHECK_ERROR(message); \
        ds_error_clear(); \
        ds_scope_close(scope); \
    }
FAILS(no_library, "matmul: cublasLt: /nowhere/libcublasLt.so cannot be opened (")
FAILS(no_path, "matmul: DS_CUBLAS=yes: expected on, off, or the path of libcublasLt.so")
FAILS(no_product, "matmul: matmul of cublasLt says CUBLAS_STATUS_EXECUTION_FAILED; DS_CUBLAS=off "
                  "does without it")
FAILS(no_descriptor, "matmul: desc_new of cublasLt says CUBLAS_STATUS_INVALID_VALUE")
FAILS(no_attribute, "matmul: desc_set of cublasLt says CUBLAS_STATUS_INVALID_VALUE")
FAILS(no_layout, "matmul: layout_new of cublasLt says CUBLAS_STATUS_ALLOC_FAILED")
FAILS(no_preference, "matmul: preference_new of cublasLt says CUBLAS_STATUS_ALLOC_FAILED")

#define FAKE "DS_CUBLAS=" FAKE_LIBCUBLAS

static void values(void **state)
{
    (void)state;
    apart(by_cublas, FAKE, NULL, NULL);
    apart(by_cublas, FAKE, "FAKE_CUDA_LAZY=1", NULL);
    apart(others_are_ours, FAKE, NULL, NULL);
    apart(trains, FAKE, NULL, NULL);
}

static void failures(void **state)
{
    (void)state;
    apart(without, "DS_CUBLAS=off", NULL, NULL);
    apart(without, FAKE, "FAKE_CUBLAS_NONE=1", NULL);
    apart(cannot_start, FAKE, "FAKE_CUBLAS_FAIL=cublasLtCreate=1", NULL);
    apart(no_library, "DS_CUBLAS=/nowhere/libcublasLt.so", NULL, NULL);
    apart(no_path, "DS_CUBLAS=yes", NULL, NULL);
    apart(no_product, FAKE, "FAKE_CUBLAS_FAIL=cublasLtMatmul=13", NULL);
    apart(no_descriptor, FAKE, "FAKE_CUBLAS_FAIL=cublasLtMatmulDescCreate=7", NULL);
    apart(no_attribute, FAKE, "FAKE_CUBLAS_FAIL=cublasLtMatmulDescSetAttribute=7", NULL);
    apart(no_layout, FAKE, "FAKE_CUBLAS_FAIL=cublasLtMatrixLayoutCreate=3", NULL);
    apart(no_preference, FAKE, "FAKE_CUBLAS_FAIL=cublasLtMatmulPreferenceCreate=3", NULL);
}

/* As the library looks for it. */
static bool has_cublas(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "libcublasLt.so.11"};
    bool found = getenv("DS_CUBLAS") && strchr(getenv("DS_CUBLAS"), '/');
    for (int i = 0; i < 3; i++) found = found || dlopen(names[i], RTLD_NOW);
    return found;
}

int main(void)
{
    const struct CMUnitTest all[] = {cmocka_unit_test(values), cmocka_unit_test(failures)};
    const struct CMUnitTest real[] = {cmocka_unit_test(by_cublas), cmocka_unit_test(trains)};
    if (emulated()) return cmocka_run_group_tests(all, NULL, NULL);
    int skip = skip_without_gpus(1);
    if (!skip && !has_cublas()) skip = 77, puts("skipped: cublasLt is not installed");
    return skip ? skip : cmocka_run_group_tests(real, NULL, NULL);
}
