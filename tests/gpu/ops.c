/* tests/gpu/ops.c: each row of tests/ops/cases.h on the GPU beside the CPU:
 * values and gradients, in four dtypes and four layouts of memory. With
 * DS_TEST_QUICK float32 and one layout. The GPU is the emulated one, or the
 * machine's (without LD_LIBRARY_PATH).
 *
 * Rows whose kernel CUDA does not have yet are counted. Dropout draws other
 * numbers on a GPU: tests/gpu/kernels.c compares them with base/philox.h.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"
#include "ops/cases.h"

#define REFUSED_AT_MOST 16 /* of 1824 runs; a quarter of a quarter with DS_TEST_QUICK */

typedef ds_tensor *Layout(ds_tensor *x);

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0};
static int same, refused, wrong;

/* ---- layouts ---- */

static ds_tensor *transposed(ds_tensor *x) /* the first dimension innermost */
{
    ds_dims order = {.n = ds_ndim(x)};
    for (int i = 0; i < order.n; i++) order.d[i] = order.n - 1 - i;
    return ds_permute(ds_contiguous(ds_permute(x, order)), order);
}

static ds_tensor *broadcast(ds_tensor *x) /* floats: the last dimension has stride 0 */
{
    if (!ds_ndim(x) || ds_dtype_of(x) > DS_BF16) return x;
    ds_dims shape = ds_shape_of(x);
    return ds_expand(ds_slice(x, -1, 0, 1), shape);
}

static ds_tensor *offset(ds_tensor *x) /* every second element, from the second on */
{
    ds_tensor *pair[] = {x, x};
    return ds_select(ds_stack(pair, 2, -1), -1, 1);
}

static Layout *const layouts[] = {NULL, transposed, broadcast, offset};
static const char *const layout_names[] = {"contiguous", "transposed", "broadcast", "offset"};

/* ---- one row ---- */

typedef struct Result {
    int n;
    ds_tensor *y, *grad[MAX_IN];
} Result;

static ds_tensor *laid_out(const Case *c, int i, ds_dtype dtype, Layout *layout, ds_device device)
{
    ds_tensor *x = case_input(c->in, i, dtype);
    bool grad = ds_requires_grad(x);
    x = ds_detach(ds_to(ds_detach(x), device, ds_dtype_of(x)));
    if (layout && ds_numel(x)) x = ds_detach(layout(x));
    return ds_require_grad(x, grad);
}

/* The result on the host, and its gradients for a fixed dy; y NULL: refused.
 * current: the default device while the op runs. */
static Result row_run(const Case *c, ds_dtype dtype, Layout *layout, ds_device device,
                      ds_device current)
{
    Result r = {.n = case_inputs(c->in)};
    ds_tensor *in[MAX_IN];
    for (int i = 0; i < r.n; i++)
        if (!(in[i] = laid_out(c, i, dtype, layout, device))) return r;
    CHECK_INT(ds_set_device(current), DS_OK);
    ds_tensor *y = c->call(in);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    if (!y) return r;
    if (ds_requires_grad(y)) {
        ds_tensor *dy = ds_empty(DS_F64, ds_shape_of(y));
        double *p = ds_data_mut(dy);
        uint64_t random = 99;
        for (int64_t i = 0; i < ds_numel(dy); i++)
            p[i] = 0.5 + floor(case_random(&random) * 128) / 128;
        dy = ds_cast(dy, ds_dtype_of(y));
        dy = ds_to(dy, device, ds_dtype_of(dy));
        CHECK_INT(ds_set_device(current), DS_OK);
        ds_status status = ds_backward_from(y, dy);
        CHECK_INT(ds_set_device(cpu), DS_OK);
        if (status != DS_OK) return r;
        for (int i = 0; i < r.n; i++)
            if (ds_grad(in[i])) {
                ds_tensor *g = ds_contiguous(ds_grad(in[i]));
                if (!(r.grad[i] = ds_to(g, cpu, ds_dtype_of(g)))) return r;
            }
    }
    y = ds_contiguous(ds_detach(y));
    r.y = ds_to(y, cpu, ds_dtype_of(y));
    return r;
}

/* ---- comparing ---- */

static double room_of(const Case *c, ds_dtype dtype)
{
    bool gradients = strstr(c->op, "softmax") || strstr(c->op, "norm");
    double eps = dtype == DS_F64    ? 1e-13
                 : dtype == DS_BF16 ? 0x1p-8
                 : dtype == DS_F16  ? 0x1p-11
                                    : 2e-6;
    return (gradients ? 8 : 2) * eps;
}

static bool close_to(const Case *c, const char *what, const char *how, ds_tensor *got,
                     ds_tensor *want, double tol)
{
    if (!got && !want) return true;
    if (!got || !want)
        return fprintf(stderr, "%s (%s), %s: %s: one is missing\n", c->op, c->name, how, what),
               false;
    const double *g = ds_data(ds_cast(got, DS_F64)), *w = ds_data(ds_cast(ds_detach(want), DS_F64));
    double most = 1e-3;
    for (int64_t i = 0; i < ds_numel(want); i++)
        if (isfinite(w[i])) most = fmax(most, fabs(w[i]));
    for (int64_t i = 0; i < ds_numel(want); i++) {
        if (fabs(g[i] - w[i]) <= tol * most || (isnan(g[i]) && isnan(w[i])) || g[i] == w[i])
            continue;
        fprintf(stderr, "%s (%s), %s: %s[%lld] is %.9g, want %.9g\n", c->op, c->name, how, what,
                (long long)i, g[i], w[i]);
        return false;
    }
    return true;
}

static void row_compare(const Case *c, ds_dtype dtype, int layout)
{
    char how[80];
    ds_scope *scope = ds_scope_open();
    Result want = row_run(c, dtype, layouts[layout], cpu, cpu);
    CHECK(want.y);
    Result got = row_run(c, dtype, layouts[layout], gpu, cpu);
    snprintf(how, sizeof how, "%s %s", ds_dtype_name(dtype), layout_names[layout]);
    bool missing = ds_error() && (strstr(ds_error(), "no cuda kernel") ||
                                  strstr(ds_error(), "takes tensors on the CPU"));
    if (!got.y && missing) {
        refused++;
        if (getenv("LIST")) fprintf(stderr, "refused: %s (%s): %s\n", c->op, c->name, ds_error());
    } else if (!got.y) {
        wrong++;
        fprintf(stderr, "%s (%s), %s: %s\n", c->op, c->name, how, ds_error());
    } else {
        bool good = close_to(c, "y", how, got.y, want.y, room_of(c, dtype));
        for (int i = 0; i < want.n; i++)
            good = good &&
                   close_to(c, "gradient", how, got.grad[i], want.grad[i], room_of(c, dtype));
        good ? same++ : wrong++;
    }
    ds_error_clear();
    ds_scope_close(scope);
}

static void each_row(void **state)
{
    (void)state;
    const ds_dtype dtypes[] = {DS_F32, DS_F16, DS_BF16, DS_F64};
    for (int r = 0; r < OP_CASES; r++) {
        if (!strcmp(op_cases[r].op, "dropout")) continue;
        for (int k = 0; k < (quick() ? 1 : 4); k++)
            for (int l = 0; l < (quick() ? 1 : 4); l++) row_compare(&op_cases[r], dtypes[k], l);
    }
    printf("# %d runs are the same, %d refused, %d wrong\n", same, refused, wrong);
    CHECK_INT(wrong, 0);
    CHECK(refused <= REFUSED_AT_MOST);
}

/* Operands decide where an op runs, not the default device: the CPU's values to
 * the bit while new tensors are on the GPU. */
static void operands_decide(void **state)
{
    (void)state;
    wrong = 0;
    for (int r = 0; r < OP_CASES; r++) {
        const Case *c = &op_cases[r];
        if (!strcmp(c->op, "dropout")) continue;
        ds_scope *scope = ds_scope_open();
        Result want = row_run(c, DS_F32, NULL, cpu, cpu), got = row_run(c, DS_F32, NULL, cpu, gpu);
        bool good = got.y && close_to(c, "y", "beside the GPU", got.y, want.y, 0);
        if (!got.y) fprintf(stderr, "%s (%s): %s\n", c->op, c->name, ds_error());
        for (int i = 0; i < want.n; i++)
            good = good && close_to(c, "gradient", "beside the GPU", got.grad[i], want.grad[i], 0);
        wrong += !good;
        ds_error_clear();
        ds_scope_close(scope);
    }
    CHECK_INT(wrong, 0);
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_full(DS_I64, ds_shape(3), 5);
    CHECK_INT(ds_set_device(gpu), DS_OK);
    CHECK_CLOSE(ds_item(ds_sum(ds_floor_divide(ds_neg(x), x))), -3, 0);
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_scope_close(scope);
}

/* The gradient of an embedding, [ROWS, 3], for more tokens than a block looks
 * at: sorted by row, in the order of the tokens. */
static ds_tensor *embedding_grad(ds_device device, int64_t bad)
{
    enum { TOKENS = 3000, ROWS = 70000 };
    int64_t index[TOKENS];
    ds_seed(3);
    ds_tensor *w = ds_require_grad(ds_to(ds_randn(DS_F32, ds_shape(ROWS, 3)), device, DS_F32),
                                   true);
    ds_tensor *dy = ds_to(ds_randn(DS_F32, ds_shape(TOKENS, 3)), device, DS_F32);
    for (int64_t i = 0; i < TOKENS; i++) index[i] = i % 5 ? i * i % ROWS : i % 7;
    if (bad) index[2900] = bad;
    ds_tensor *at = ds_to(ds_from_data(DS_I64, ds_shape(TOKENS), index), device, DS_I64);
    ds_tensor *y = ds_embedding(w, at, 6);
    if (ds_backward_from(y, dy) != DS_OK) return NULL;
    return ds_to(ds_grad(w), cpu, DS_F32);
}

static void many_rows_are_sorted(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *want = embedding_grad(cpu, 0), *got = embedding_grad(gpu, 0);
    CHECK(want && got);
    CHECK(!memcmp(ds_data(want), ds_data(got), (size_t)ds_numel(want) * sizeof(float)));
    CHECK(!embedding_grad(gpu, 70000));
    CHECK_ERROR("embedding: index 70000 at position 2900 is outside 0..69999");
    ds_scope_close(scope);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_row),
                                       cmocka_unit_test(operands_decide),
                                       cmocka_unit_test(many_rows_are_sorted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
