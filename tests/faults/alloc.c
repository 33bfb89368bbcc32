/* tests/faults/alloc.c: every storage allocation of a training run fails in
 * turn: the run ends with one message, or continues; it never crashes, and
 * nothing stays allocated.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "classify.h"
#include "device/device.h"

static const ds_device cpu = {DS_CPU, 0};

static ds_dataset *noise(void)
{
    ds_scope *s = ds_scope_open();
    ds_tensor *x[] = {ds_randn(DS_F32, ds_shape(8, 3, 32, 32)),
                      ds_randint(DS_I64, 0, 10, ds_shape(8))};
    ds_dataset *d = ds_tensor_dataset(x, 2);
    ds_scope_close(s);
    return d;
}

/* A whole small program, as a user writes it: no check but the one at the end. */
static void program(bool adam)
{
    ds_scope *s = ds_scope_open();
    ds_module *net = net_new();
    ds_loader *loader = ds_loader_new(noise(), 4, .shuffle = true);
    ds_optim *optim = adam ? ds_optim_adam(net, 1e-3) : ds_optim_sgd(net, 1e-3, .momentum = 0.9);
    ds_batch b;
    while (!ds_error() && ds_loader_next(loader, &b)) {
        ds_optim_zero_grad(optim);
        ds_tensor *loss = ds_cross_entropy(ds_call(net, b.x), b.y);
        ds_backward(loss);
        ds_clip_grad_norm(net, 1, 2);
        ds_optim_step(optim);
    }
    if (!ds_error()) evaluate(net, loader);
    ds_optim_free(optim);
    ds_loader_free(loader);
    ds_module_free(net);
    ds_scope_close(s);
}

static void each_fails(bool adam)
{
    program(adam); /* the caches of threads and types are filled */
    CHECK(!ds_error());
    dsi_device *d = dsi_device_get(cpu);
    size_t bytes = ds_memory_allocated(cpu);
    int64_t tensors = ds_live_tensors();
    dsi_cache_fail(0, false);
    program(adam);
    int64_t allocations = dsi_cache_fail(0, false);
    CHECK(allocations > 50);
    for (int64_t n = 1; n <= allocations; n++) {
        dsi_cache_empty(d);
        dsi_cache_fail(n, n % 2 == 0);
        program(adam);
        dsi_cache_fail(0, false);
        if (!ds_error() || ds_error_status() != DS_ENOMEM)
            fail_msg("allocation %lld of %lld failed, but ds_error() is \"%s\"", (long long)n,
                     (long long)allocations, ds_error() ? ds_error() : "");
        ds_error_clear();
        CHECK_INT(ds_live_tensors(), tensors);
        CHECK_INT((int64_t)ds_memory_allocated(cpu), (int64_t)bytes);
    }
}

static void with_sgd(void **state) { (void)state, each_fails(false); }
static void with_adam(void **state) { (void)state, each_fails(true); }

TEST_MAIN(cmocka_unit_test(with_sgd), cmocka_unit_test(with_adam))
