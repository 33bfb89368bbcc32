/* tests/launcher/output.c: lines of ranks, in files and in a terminal.
 * SPDX-License-Identifier: MIT */
#include "output.h"

#include "check.h"

#include <fcntl.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

static const char *const prefix[] = {"a: ", "b: "};

typedef struct standard {
    int was[3], from; /* from: what is written to stdout; and to stderr, if that is the same */
} standard;

/* stdout, or both, go where they can be read. */
static standard divert(bool terminal)
{
    standard s = {.was = {-1, dup(1), dup(2)}};
    struct termios raw = {0};
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    int fd[2];
    cfmakeraw(&raw);
    fflush(NULL);
    CHECK_INT(terminal ? openpty(&fd[0], &fd[1], NULL, &raw, &size) : pipe(fd), 0);
    dup2(fd[1], 1);
    if (terminal) dup2(fd[1], 2);
    close(fd[1]);
    s.from = fd[0];
    fcntl(s.from, F_SETFL, O_NONBLOCK);
    return s;
}

static void restore(standard *s, char *got, size_t room)
{
    /* what is written to a terminal arrives at its other end a moment later */
    struct pollfd p = {.fd = s->from, .events = POLLIN};
    size_t n = 0;
    for (ssize_t more = 1; n < room - 1 && more > 0 && poll(&p, 1, 50) > 0; n += (size_t)more)
        if ((more = read(s->from, got + n, room - 1 - n)) < 0) more = 0;
    got[n] = 0;
    for (int i = 1; i < 3; i++) {
        dup2(s->was[i], i);
        close(s->was[i]);
    }
    close(s->from);
}

static void add(output *o, int rank, int fd, const char *text)
{
    output_add(o, rank, fd, text, strlen(text));
}

static void in_files(void **state)
{
    (void)state;
    char got[1000];
    standard s = divert(false);
    output *o = output_new(2, prefix);
    add(o, 0, 1, "half of");
    add(o, 1, 1, "other\nlast of b");
    add(o, 0, 1, " a line\n\n10%\r20%\r");
    add(o, 0, 1, "\n");
    add(o, -1, 1, "runner\n");
    add(o, 7, 1, "no such rank\n");
    output_finish(o, 1);
    output_free(o);
    restore(&s, got, sizeof got);
    assert_string_equal(got,
                        "b: other\na: half of a line\na: \na: 10%\r20%\r\nrunner\nb: last of b");
}

/* The beginning of a line is shown; who prints next begins a new one; bars keep
 * their prefix. */
static void in_terminal(void **state)
{
    (void)state;
    char got[1000];
    standard s = divert(true);
    output *o = output_new(2, prefix);
    add(o, 0, 2, "\r10%");
    add(o, 0, 2, "\r20%");
    add(o, 1, 1, "line\n");
    add(o, 0, 2, "\r30%");
    add(o, 0, 2, "\rdone\n");
    add(o, 0, 1, "crlf\r");
    add(o, 0, 1, "\n");
    output_finish(o, 1);
    output_free(o);
    restore(&s, got, sizeof got);
    assert_string_equal(got, "a: 10%\ra: 20%\nb: line\na: 30%\ra: done\na: crlf\r\n");
}

static void full_pipe(void **state)
{
    (void)state;
    char got[16], big[4096];
    standard s = divert(false);
    output *o = output_new(2, prefix);
    memset(big, 'x', sizeof big);
    big[sizeof big - 1] = '\n';
    for (int i = 0; i < 400; i++) output_add(o, 0, 1, big, sizeof big); /* never waits */
    bool full = output_full(o);
    output_finish(o, 0.01);
    output_free(o);
    restore(&s, got, sizeof got);
    CHECK(full);
}

TEST_MAIN(cmocka_unit_test(in_files), cmocka_unit_test(in_terminal), cmocka_unit_test(full_pipe))
