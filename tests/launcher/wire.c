/* tests/launcher/wire.c: records among other text.
 * SPDX-License-Identifier: MIT */
#include "wire.h"

#include "check.h"

#include <fcntl.h>
#include <unistd.h>

/* Appends a record that came as text: <kind rank: payload>. */
static void note_record(void *arg, wire_kind kind, int rank, const char *payload, size_t n)
{
    dsi_text_add(arg, "<%c %d: %.*s>", kind, rank, (int)n, payload);
}

static void note_other(void *arg, const char *text, size_t n) { dsi_text_add_bytes(arg, text, n); }

static void make(wire_reader *r, wire *w, int rank, int *from)
{
    int fd[2];
    CHECK_INT(pipe(fd), 0);
    *w = (wire){.fd = fd[1], .rank = rank};
    wire_new_secret(w->secret);
    *r = (wire_reader){.held = {0}};
    memcpy(r->secret, w->secret, sizeof r->secret);
    *from = fd[0];
}

static ssize_t drain(int fd, char *bytes, size_t room)
{
    fcntl(fd, F_SETFL, O_NONBLOCK);
    ssize_t n = read(fd, bytes, room);
    return n < 0 ? 0 : n;
}

/* However the stream is cut, the same records and the same other text come out. */
static void any_cut(void **state)
{
    (void)state;
    wire_reader r;
    wire w;
    int from;
    char bytes[2000];
    make(&r, &w, 3, &from);
    CHECK(write(w.fd, "mpirun says\036 that\n", 18) == 18);
    CHECK(wire_send(&w, WIRE_OUT, "a\nb\036\035c\n", 7));
    CHECK(write(w.fd, "\036more", 5) == 5);
    CHECK(wire_send_numbers(&w, WIRE_SIGNAL, 2, (int[]){15, -1}));
    CHECK(wire_send(&w, WIRE_ERR, NULL, 0));
    size_t n = (size_t)drain(from, bytes, sizeof bytes);
    for (size_t cut = 0; cut <= n; cut++) {
        dsi_text got = {0};
        const wire_handler handler = {note_record, note_other, &got};
        wire_feed(&r, bytes, cut, &handler);
        wire_feed(&r, bytes + cut, n - cut, &handler);
        wire_finish(&r, &handler);
        assert_string_equal(
            got.s, "mpirun says\036 that\n<o 3: a\nb\036\035c\n>\036more<k 3: 15 -1><e 3: >");
        dsi_text_free(&got);
    }
    close(from);
    close(w.fd);
}

static void other_secret(void **state)
{
    (void)state;
    wire_reader r;
    wire w;
    int from;
    char bytes[200];
    dsi_text got = {0};
    const wire_handler handler = {note_record, note_other, &got};
    make(&r, &w, 0, &from);
    memset(r.secret, '0', WIRE_SECRET);
    CHECK(wire_send(&w, WIRE_OUT, "x", 1));
    wire_feed(&r, bytes, (size_t)drain(from, bytes, sizeof bytes), &handler);
    wire_finish(&r, &handler);
    CHECK(got.s && got.s[0] == '\036' && !strchr(got.s, '<'));
    dsi_text_free(&got);
    close(from);
    close(w.fd);
}

/* Lines of several ranks, in any order, as srun passes them on. */
static void lines(void **state)
{
    (void)state;
    wire_reader r;
    wire w;
    int from;
    char a[2000], b[2000];
    dsi_text got = {0};
    const wire_handler handler = {note_record, note_other, &got};
    make(&r, &w, 0, &from);
    CHECK(wire_send(&w, WIRE_OUT, "1\n2\n", 4));
    size_t n = (size_t)drain(from, a, sizeof a);
    w.rank = 1;
    CHECK(wire_send(&w, WIRE_OUT, "\n\n", 2));
    size_t m = (size_t)drain(from, b, sizeof b);
    CHECK(memchr(a, '\n', n) == a + n - 1 && memchr(b, '\n', m) == b + m - 1);
    CHECK(n < 1024 && m < 1024);
    wire_feed(&r, b, m, &handler);
    wire_feed(&r, "srun: error\n", 12, &handler);
    wire_feed(&r, a, n, &handler);
    wire_finish(&r, &handler);
    assert_string_equal(got.s, "<o 1: \n\n>srun: error\n<o 0: 1\n2\n>");
    dsi_text_free(&got);
    close(from);
    close(w.fd);
}

/* More than a record holds becomes several, none longer than what a runner
 * forwards at once. */
static void long_text(void **state)
{
    (void)state;
    wire_reader r;
    wire w;
    int from;
    char text[2 * WIRE_PAYLOAD + 7], bytes[WIRE_RECORD];
    size_t sent = 0;
    dsi_text got = {0};
    const wire_handler handler = {note_record, note_other, &got};
    make(&r, &w, 1, &from);
    memset(text, 'x', sizeof text);
    for (; sent < sizeof text; sent += WIRE_PAYLOAD) {
        size_t n = sizeof text - sent < WIRE_PAYLOAD ? sizeof text - sent : WIRE_PAYLOAD;
        CHECK(wire_send(&w, WIRE_OUT, text + sent, n));
        ssize_t came = drain(from, bytes, sizeof bytes);
        CHECK(came > 0 && came <= 4096);
        wire_feed(&r, bytes, (size_t)came, &handler);
    }
    wire_finish(&r, &handler);
    CHECK_INT(got.n, sizeof text + 9 * strlen("<o 1: >"));
    dsi_text_free(&got);
    close(from);
    close(w.fd);
}

static void exits(void **state)
{
    (void)state;
    wire_reader r;
    wire w;
    int from;
    char bytes[200];
    const rank_exit e = {.signal = 9, .requested = true, .out_of_memory = true, .process = 4711};
    make(&r, &w, 0, &from);
    CHECK(wire_send_exit(&w, &e));
    size_t n = (size_t)drain(from, bytes, sizeof bytes - 1);
    bytes[n] = 0;
    const char *payload = strchr(bytes, ':') + 1;
    rank_exit got = wire_read_exit(payload, strlen(payload));
    CHECK_INT(got.signal, 9);
    CHECK(got.requested && got.out_of_memory && !got.reported);
    CHECK_INT(got.process, 4711);
    CHECK_INT(rank_exit_status(&got), 137);
    CHECK_INT(rank_exit_status(&(rank_exit){.code = 3}), 3);
    CHECK_INT(rank_exit_status(&(rank_exit){.error = 2}), 127);
    CHECK_INT(rank_exit_status(&(rank_exit){.error = 13}), 126);
    close(from);
    close(w.fd);
}

TEST_MAIN(cmocka_unit_test(any_cut), cmocka_unit_test(other_secret), cmocka_unit_test(long_text),
          cmocka_unit_test(lines), cmocka_unit_test(exits))
