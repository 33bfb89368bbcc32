/* tests/ops/devices.c: ops on a device that has no kernels, and on operands of
 * two devices: each is refused in one line, and none touches memory that the
 * host cannot see (tests/pretend.h).
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "ops/cases.h"
#include "pretend.h"

static const ds_device cpu = {DS_CPU, 0}, gpu = {DS_CUDA, 0}, other = {DS_CUDA, 1};

/* The call makes nothing, and its message holds both parts. */
#define REFUSES(call, part1, part2) \
    do { \
        if (call) fail_msg("%s:%d: no refusal of %s", __FILE__, __LINE__, #call); \
        if (ds_error() && !strstr(ds_error(), part2)) CHECK_ERROR(part2); \
        CHECK_ERROR(part1); \
    } while (0)

static int failures;

static void failed(const Case *c, unsigned moved, const char *what)
{
    fprintf(stderr, "%s (%s), inputs %x on cuda: %s: %s\n", c->op, c->name, moved, what,
            ds_error() ? ds_error() : "no message");
    failures++;
}

static bool names_the_device(void)
{
    const char *error = ds_error();
    return error && !strchr(error, '\n') && strstr(error, "cuda");
}

/* The row's op, with the inputs whose bit is set in `moved` on the pretended
 * GPU: a second handle on the same values (reshape, permute), or refused. */
static void try_row(const Case *c, unsigned moved)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *in[MAX_IN] = {NULL};
    int n = case_inputs(c->in);
    for (int i = 0; i < n; i++) {
        in[i] = case_input(c->in, i, DS_F32);
        if (!(moved >> i & 1)) continue;
        bool grad = ds_requires_grad(in[i]);
        in[i] = ds_require_grad(ds_detach(ds_to(in[i], gpu, ds_dtype_of(in[i]))), grad);
    }
    CHECK(!ds_error());
    ds_tensor *y = c->call(in);
    if (!y && !names_the_device()) failed(c, moved, "refused otherwise");
    if (y && ds_device_of(y).kind != DS_CUDA) failed(c, moved, "computed on the host");
    if (y && ds_requires_grad(y) && ds_backward_from(y, ds_detach(y)) != DS_OK &&
        !names_the_device())
        failed(c, moved, "backward refused otherwise");
    ds_error_clear();
    ds_scope_close(scope);
}

static void every_op(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof op_cases / sizeof *op_cases; i++)
        for (unsigned moved = 1; moved < 1u << case_inputs(op_cases[i].in); moved++)
            try_row(&op_cases[i], moved);
    CHECK_INT(failures, 0);
}

static ds_tensor *on(ds_device device, ds_dtype dtype, ds_dims shape)
{
    float values[24];
    for (int i = 0; i < 24; i++) values[i] = (float)i;
    ds_tensor *x = ds_cast(ds_reshape(ds_from_data(DS_F32, ds_shape(24), values), shape), dtype);
    return ds_to(x, device, dtype);
}

/* Functions that the rows of cases.h do not call. */
static void other_functions(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = on(gpu, DS_F32, ds_shape(4, 6)), *b = on(cpu, DS_F32, ds_shape(4, 6));
    ds_tensor *h = on(gpu, DS_BF16, ds_shape(4, 6)), *n = on(gpu, DS_I64, ds_shape(24));
    REFUSES(ds_add(x, x), "add: no cuda kernel for float32", "compute it on the CPU");
    REFUSES(ds_add(h, h), "add: no cuda kernel for bfloat16", "");
    REFUSES(ds_add(x, on(other, DS_F32, ds_shape(4, 6))), "add: operands are on cuda:0",
            "and cuda:1");
    REFUSES(ds_eq(x, x), "eq: no cuda kernel for bool", "");
    REFUSES(ds_lt(x, b), "lt: ", "cuda:0 and cpu");
    REFUSES(ds_argmax(x, 1), "max: no cuda kernel", "");
    REFUSES(ds_max(x, 1, false), "max: no cuda kernel", "");
    REFUSES(ds_one_hot(n, 24), "eq: no cuda kernel", "");
    REFUSES(ds_cast(x, DS_F16), "copy: no cuda kernel for float16", "");
    REFUSES(ds_to(ds_transpose(x, 0, 1), cpu, DS_F32), "copy: no cuda kernel", "");
    REFUSES(ds_contiguous(ds_transpose(x, 0, 1)), "copy: no cuda kernel", "");
    REFUSES(ds_data(ds_transpose(x, 0, 1)), "copy: no cuda kernel", "");
    REFUSES(ds_data_mut(x), "data_mut: x [4, 6] is on cuda:0", "host memory");
    CHECK_INT(ds_copy(x, ds_transpose(on(cpu, DS_F32, ds_shape(6, 4)), 0, 1)), DS_OK);
    CHECK_INT(ds_copy(b, ds_select(x, 0, 1)), DS_OK); /* the CPU has the kernel that is needed */
    REFUSES(!ds_copy(b, h), "copy: no cuda kernel", "");
    REFUSES(ds_relu(ds_reshape(x, ds_shape(1, 1, 4, 6))), "relu: no cuda kernel", "");
    REFUSES(ds_max_pool2d(ds_reshape(x, ds_shape(1, 1, 4, 6)), 2), "max_pool2d: no cuda kernel",
            "");
    ds_scope_close(scope);
}

static void gradients(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(on(cpu, DS_F32, ds_shape(4, 6)), true);
    ds_tensor *y = ds_scale(x, 2), *there = ds_to(y, gpu, DS_F32);
    CHECK(ds_backward_from(y, on(gpu, DS_F32, ds_shape(4, 6))) != DS_OK);
    CHECK_ERROR("dy is float32 [4, 6] on cuda:0, y is float32 [4, 6] on cpu");
    CHECK(ds_set_grad_of(x, on(gpu, DS_F32, ds_shape(4, 6))) != DS_OK);
    CHECK_ERROR("set_grad_of: a gradient on cuda:0 for a leaf on cpu");
    /* there and back: the gradient is copied between the devices too */
    CHECK_INT(ds_backward_from(there, on(gpu, DS_F32, ds_shape(4, 6))), DS_OK);
    CHECK_CLOSE(((const float *)ds_data(ds_grad(x)))[23], 46, 0);
    CHECK(ds_backward(ds_sum(ds_to(y, gpu, DS_F32))) != DS_OK);
    CHECK_ERROR("sum: no cuda kernel");
    ds_scope_close(scope);
}

static void values_go_there_and_back(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = on(gpu, DS_F32, ds_shape(4, 6)), *z = on(other, DS_F32, ds_shape(4, 6));
    CHECK(ds_device_of(x).kind == DS_CUDA && ds_device_of(z).index == 1);
    ds_tensor *y = ds_to(ds_to(x, other, DS_F32), cpu, DS_F32);
    for (int i = 0; i < 24; i++) CHECK(((const float *)ds_data(y))[i] == (float)i);
    CHECK_CLOSE(ds_item(ds_select(ds_select(x, 0, 3), 0, 5)), 23, 0);
    CHECK_CLOSE(((const float *)ds_data(ds_clone(x)))[7], 7, 0);
    CHECK_CLOSE(((const float *)ds_data(ds_slice(x, 0, 1, 3)))[0], 6, 0);
    ds_tensor *wide = ds_to(on(cpu, DS_I32, ds_shape(24)), gpu, DS_F64);
    CHECK(ds_dtype_of(wide) == DS_F64);
    CHECK_CLOSE(((const double *)ds_data(wide))[5], 5, 0);
    CHECK_INT(ds_copy(x, ds_scale(on(cpu, DS_F32, ds_shape(4, 6)), 3)), DS_OK);
    CHECK_CLOSE(((const float *)ds_data(x))[2], 6, 0);
    CHECK_INT(ds_copy(z, x), DS_OK);
    CHECK_CLOSE(((const float *)ds_data(z))[2], 6, 0);
    ds_scope_close(scope);
}

/* New tensors on the current device: what comes from the host is copied there. */
static void current_device(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    CHECK_INT(ds_set_device(other), DS_OK);
    ds_seed(3);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(5)), *p = ds_randperm(9);
    ds_tensor *a = ds_arange(DS_I64, 0, 4, 1);
    CHECK(x && p && a && ds_device_of(x).index == 1 && ds_device_of(a).kind == DS_CUDA);
    REFUSES(ds_zeros(DS_F32, ds_shape(5)), "fill: no cuda kernel for float32", "");
    CHECK_INT(ds_set_device(cpu), DS_OK);
    ds_seed(3);
    ds_tensor *same = ds_randn(DS_F32, ds_shape(5));
    CHECK(!memcmp(ds_data(x), ds_data(same), 5 * sizeof(float)));
    ds_scope_close(scope);
}

static void a_full_device(void **state)
{
    (void)state;
    CHECK_INT(ds_set_device(gpu), DS_OK);
    CHECK(!ds_empty(DS_F32, ds_shape(1 << 20, 100)));
    CHECK_ERROR("no memory for 419430400 bytes (float32 [1048576, 100]) on cuda:0");
    CHECK_INT(ds_set_device(cpu), DS_OK);
}

static int pretend(void **state)
{
    (void)state;
    pretend_cuda();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op),       cmocka_unit_test(other_functions),
        cmocka_unit_test(gradients),      cmocka_unit_test(values_go_there_and_back),
        cmocka_unit_test(current_device), cmocka_unit_test(a_full_device),
    };
    return cmocka_run_group_tests(tests, pretend, NULL);
}
