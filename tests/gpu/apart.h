/* tests/gpu/apart.h: cases in a process of their own, as libraries are opened
 * once a process; what the simulated libraries count.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"
#include "emulated.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* body, with up to three settings NAME=value. */
static inline void apart(CMUnitTestFunction body, const char *a, const char *b, const char *c)
{
    const char *const settings[] = {a, b, c};
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++)
            if (settings[i]) putenv(strdup(settings[i]));
        const struct CMUnitTest one[] = {{a ? a : "apart", body, NULL, NULL, NULL}};
        exit(cmocka_run_group_tests_name("apart", one, NULL, NULL));
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline long fake_count_of(const char *library, const char *name)
{
    long (*count)(void);
    void *f = dlsym(dlopen(library, RTLD_NOW), name);
    CHECK(f);
    memcpy(&count, &f, sizeof f);
    return count();
}
