/* tests/check.h: on cmocka: one line a failure, with both values.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <deepspeed.h>

/* Sanitizers make a run long, and see in a part of it what they can see: tests
 * that repeat themselves do it less often there. CTest sets the variable in
 * their builds. */
static inline bool quick(void) { return getenv("DS_TEST_QUICK") != NULL; }

/* DS_TEST_DEVICE=cuda: what a test makes is on a GPU (tests/gpu/on_cpu), except
 * in tests/gpu, whose tests choose devices. */
__attribute__((constructor)) static void use_test_device(void)
{
    const char *name = getenv("DS_TEST_DEVICE");
    ds_device device;
#ifdef TEST_CHOOSES_DEVICES
    name = NULL;
#endif
    if (!name || !strcmp(name, "cpu")) return; /* a test may be the first to call the library */
    if (ds_device_parse(name, &device) == DS_OK && ds_set_device(device) == DS_OK) return;
    fprintf(stderr, "DS_TEST_DEVICE: %s\n", ds_error());
    exit(1);
}

#define CHECK(x) check_true(x, #x, __FILE__, __LINE__)
static inline void check_true(bool x, const char *what, const char *file, int line)
{
    if (!x)
        fail_msg("%s:%d: not true: %s%s%s", file, line, what, ds_error() ? "; ds_error: " : "",
                 ds_error() ? ds_error() : "");
}

/* |got - want| <= tol, or both NaN, or equal (infinities) */
#define CHECK_CLOSE(got, want, tol) check_close(got, want, tol, #got, __FILE__, __LINE__)
static inline void check_close(double got, double want, double tol, const char *what,
                               const char *file, int line)
{
    if (got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= tol) return;
    fail_msg("%s:%d: %s is %.9g, want %.9g within %.3g (off by %.3g)", file, line, what, got, want,
             tol, fabs(got - want));
}

#define CHECK_INT(got, want) check_int(got, want, #got, __FILE__, __LINE__)
static inline void check_int(int64_t got, int64_t want, const char *what, const char *file,
                             int line)
{
    if (got != want)
        fail_msg("%s:%d: %s is %lld, want %lld%s%s", file, line, what, (long long)got,
                 (long long)want, ds_error() ? "; ds_error: " : "", ds_error() ? ds_error() : "");
}

/* The last failure's message holds `part`; clears it. */
#define CHECK_ERROR(part) check_error(part, __FILE__, __LINE__)
static inline void check_error(const char *part, const char *file, int line)
{
    if (!ds_error()) fail_msg("%s:%d: no failure, want one with \"%s\"", file, line, part);
    if (ds_error() && !strstr(ds_error(), part))
        fail_msg("%s:%d: ds_error is \"%s\", want one with \"%s\"", file, line, ds_error(), part);
    ds_error_clear();
}

/* Element i of x, counted row-major, becomes the value: x is contiguous, and on
 * any device. */
static inline void set_element(ds_tensor *x, int64_t i, double value)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *line = ds_reshape(ds_detach(x), ds_shape(ds_numel(x)));
    CHECK_INT(ds_copy(ds_slice(line, 0, i, i + 1), ds_full(ds_dtype_of(x), ds_shape(1), value)),
              DS_OK);
    ds_scope_close(scope);
}

#define TEST_MAIN(...) \
    int main(void) \
    { \
        const struct CMUnitTest tests[] = {__VA_ARGS__}; \
        return cmocka_run_group_tests(tests, NULL, NULL); \
    }
