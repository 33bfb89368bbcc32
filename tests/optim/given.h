/* tests/optim/given.h: a module of two parameters, w [2,3] and b [2], with
 * gradients as told.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"

static inline ds_module *given_new(ds_dtype dtype)
{
    static const ds_module_type type = {.name = "Given"};
    const float w[] = {1, -2, 3, -4, 5, -6}, b[] = {0.5f, -0.5f};
    ds_module *m = ds_module_new(NULL, "given", &type);
    ds_module_param(m, "w", ds_cast(ds_from_data(DS_F32, ds_shape(2, 3), w), dtype));
    ds_module_param(m, "b", ds_cast(ds_from_data(DS_F32, ds_shape(2), b), dtype));
    return m;
}

static inline ds_tensor *given_w(ds_module *m) { return ds_module_param_at(m, 0, NULL); }
static inline ds_tensor *given_b(ds_module *m) { return ds_module_param_at(m, 1, NULL); }

/* All elements of the gradient are `value`. */
static inline void given_grad(ds_tensor *p, double value)
{
    CHECK(ds_set_grad_of(p, ds_like(p, value)) == DS_OK);
}

/* Element i as a double. */
static inline double given_at(ds_tensor *p, int i)
{
    const double *x = ds_data(ds_cast(p, DS_F64));
    return x ? x[i] : NAN;
}

/* The constructor refused its options, with this message. */
#define CHECK_REFUSED(optim, part) \
    do { \
        CHECK(!(optim)); \
        CHECK_ERROR(part); \
    } while (0)
