/* tests/base/library.c: libraries opened when needed.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "base/library.h"

static const char *const libm[] = {"libnowhere.so.1", "libm.so.6", NULL};

static void functions_are_found(void **state)
{
    (void)state;
    struct {
        double (*cos)(double);
        double (*sqrt)(double);
    } m;
    const char *const names[] = {"cos", "sqrt"};
    CHECK(dsi_library_open("sums", libm, "libc6", names, 2, &m));
    CHECK(m.cos(0) == 1 && m.sqrt(9) == 3);
}

static void a_missing_library_names_its_package(void **state)
{
    (void)state;
    const char *const sonames[] = {"libnowhere.so.1", NULL}, *const names[] = {"f"};
    void (*f)(void);
    CHECK(!dsi_library_open("download", sonames, "libnowhere1", names, 1, &f));
    CHECK_ERROR("download: libnowhere.so.1 cannot be opened");
    CHECK(!dsi_library_open("download", sonames, "libnowhere1", names, 1, &f));
    CHECK_ERROR("install the package libnowhere1");
}

static void a_missing_function_is_named(void **state)
{
    (void)state;
    const char *const names[] = {"cos", "cosine_of_tomorrow"};
    void (*f[2])(void);
    CHECK(!dsi_library_open("sums", libm, "libc6", names, 2, f));
    CHECK_ERROR("has no cosine_of_tomorrow; install a newer package libc6");
}

TEST_MAIN(cmocka_unit_test(functions_are_found),
          cmocka_unit_test(a_missing_library_names_its_package),
          cmocka_unit_test(a_missing_function_is_named))
