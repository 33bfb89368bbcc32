/* tests/launcher/older_libc.c: the functions that replace those of a newer C
 * library, under other names.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#undef DS_HAVE_SIGABBREV_NP
#undef DS_HAVE_CLOSEFROM
#define sigabbrev_np older_sigabbrev_np
#define closefrom    older_closefrom
#include "../../launcher/older_libc.c"

static void signals_have_names(void **state)
{
    (void)state;
    assert_string_equal(older_sigabbrev_np(SIGKILL), "KILL");
    assert_string_equal(older_sigabbrev_np(SIGSEGV), "SEGV");
    assert_string_equal(older_sigabbrev_np(SIGSYS), "SYS");
    CHECK(!older_sigabbrev_np(-1) && !older_sigabbrev_np(0) && !older_sigabbrev_np(200));
}

static void files_are_closed_from_a_number_on(void **state)
{
    (void)state;
    CHECK(dup2(1, 199) == 199 && dup2(1, 200) == 200 && dup2(1, 300) == 300);
    older_closefrom(200);
    CHECK(fcntl(199, F_GETFD) == 0 && fcntl(200, F_GETFD) == -1 && fcntl(300, F_GETFD) == -1);
    close(199);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(signals_have_names),
                                       cmocka_unit_test(files_are_closed_from_a_number_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
