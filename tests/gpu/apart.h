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

enum { APART_MOST = 32 };
static pid_t apart_children[APART_MOST];
static int apart_count;

/* body, with up to three settings NAME=value, while the caller continues. */
static inline void apart_begin(CMUnitTestFunction body, const char *a, const char *b, const char *c)
{
    const char *const settings[] = {a, b, c};
    CHECK(apart_count < APART_MOST);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++)
            if (settings[i]) putenv(strdup(settings[i]));
        const struct CMUnitTest one[] = {{a ? a : "apart", body, NULL, NULL, NULL}};
        exit(cmocka_run_group_tests_name("apart", one, NULL, NULL));
    }
    CHECK(child > 0);
    apart_children[apart_count++] = child;
}

/* Waits for all that have begun. */
static inline void apart_end(void)
{
    int status, good = 0, all = apart_count;
    while (apart_count) {
        pid_t child = apart_children[--apart_count];
        good += waitpid(child, &status, 0) == child && WIFEXITED(status) &&
                WEXITSTATUS(status) == 0;
    }
    CHECK_INT(good, all);
}

static inline void apart(CMUnitTestFunction body, const char *a, const char *b, const char *c)
{
    apart_begin(body, a, b, c);
    apart_end();
}

static inline long fake_count_of(const char *library, const char *name)
{
    long (*count)(void);
    void *f = dlsym(dlopen(library, RTLD_NOW), name);
    CHECK(f);
    memcpy(&count, &f, sizeof f);
    return count();
}
