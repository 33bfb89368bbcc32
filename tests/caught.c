/* tests/caught.c: what a function prints.
 * SPDX-License-Identifier: MIT */
#include "caught.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *run(void *fn)
{
    (*(void (**)(void))fn)();
    return NULL;
}

const char *caught_of(const char *level, void (*fn)(void))
{
    static char caught[1 << 20];
    FILE *file = tmpfile();
    int was = dup(1);
    fflush(stdout);
    dup2(fileno(file), 1);
    if (level) setenv("DS_LOG", level, 1);
    if (!level) unsetenv("DS_LOG");
    pthread_t t;
    pthread_create(&t, NULL, run, &fn);
    pthread_join(t, NULL);
    fflush(stdout);
    dup2(was, 1);
    ssize_t n = pread(fileno(file), caught, sizeof caught - 1, 0);
    caught[n < 0 ? 0 : n] = 0;
    close(was);
    fclose(file);
    return caught;
}

int is_like(const char *s, const char *pattern)
{
    for (; *pattern; s++, pattern++)
        if (*pattern == '0' ? !isdigit((unsigned char)*s) : *s != *pattern) return 0;
    return 1;
}

const char *text_of_line(const char *s, int n)
{
    static char text[1000];
    for (; n && s; n--) {
        s = strchr(s, '\n');
        if (s) s++;
    }
    const char *rank = s ? strstr(s, "] [Rank ") : NULL, *end = s ? strchr(s, '\n') : NULL;
    text[0] = 0;
    if (!rank || !end || rank > end) return text;
    rank = strchr(rank + 2, ']') + 2;
    snprintf(text, sizeof text, "%.*s", (int)(end - rank), rank);
    return text;
}
