/* tests/launcher/secret.c: what nodes prove to each other, and what they refuse
 * (launcher/join/secret.c, channel.c).
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "join/channel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* RFC 4231, case 2. */
static void known_values(void **state)
{
    (void)state;
    static const uint8_t want[SECRET_BYTES] = {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e,
                                               0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
                                               0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83,
                                               0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43};
    const secret_part part[] = {{"what do ya want ", 16}, {"for nothing?", 12}};
    uint8_t mac[SECRET_BYTES];
    char hex[2 * SECRET_BYTES + 1];
    secret_mac(mac, "Jefe", 4, part, 2);
    CHECK(secret_equal(mac, want));
    mac[31] ^= 1;
    CHECK(!secret_equal(mac, want));
    secret_digest(hex, "abc", 3); /* FIPS 180-2 */
    CHECK(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
}

static bool read_file(const char *bytes, size_t n, mode_t mode, dsi_text *secret)
{
    char path[] = "/tmp/secret.XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n && !fchmod(fd, mode));
    close(fd);
    bool good = secret_read(secret, path);
    unlink(path);
    return good;
}

static void reading(void **state)
{
    (void)state;
    dsi_text s;
    setenv("DS_JOIN_SECRET", "from the environment", 1);
    CHECK(secret_read(&s, NULL) && !strcmp(s.s, "from the environment"));
    CHECK(!getenv("DS_JOIN_SECRET")); /* no child inherits it */
    secret_free(&s);
    CHECK(secret_read(&s, NULL) && s.n == 0);
    CHECK(read_file("0123456789abcdef\n", 17, 0600, &s) && s.n == 16);
    secret_free(&s);
    CHECK(read_file("a\0b", 3, 0600, &s) && s.n == 3);
    secret_free(&s);
    CHECK(!read_file("\n", 1, 0600, &s));
    CHECK(!read_file("0123456789abcdef", 16, 0620, &s)); /* others may write it */
    CHECK(!secret_read(&s, "/nowhere"));
}

/* ---- two ends -------------------------------------------------------------------------------------------- */

typedef struct pair {
    dsi_text secret[2];
    channel joiner, zero;
} pair;

static void begin(pair *p, const char *a, const char *b)
{
    int fd[2];
    memset(p, 0, sizeof *p);
    dsi_text_add(&p->secret[0], "%s", a);
    dsi_text_add(&p->secret[1], "%s", b);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
    channel_begin(&p->joiner, fd[0], true, &p->secret[0]);
    channel_begin(&p->zero, fd[1], false, &p->secret[1]);
}

static void turns(pair *p)
{
    for (int i = 0; i < 8; i++) {
        channel_turn(&p->zero);
        channel_turn(&p->joiner);
    }
}

static void finish(pair *p)
{
    channel_close(&p->joiner);
    channel_close(&p->zero);
    secret_free(&p->secret[0]);
    secret_free(&p->secret[1]);
}

static void messages(void **state)
{
    (void)state;
    pair p;
    message m;
    begin(&p, "the same on both", "the same on both");
    channel_send(&p.joiner, 'h', "too early", 9); /* nothing leaves before the other is known */
    turns(&p);
    CHECK(p.joiner.state == CHANNEL_OPEN && p.zero.state == CHANNEL_OPEN);
    CHECK(!channel_next(&p.zero, &m));
    for (int i = 0; i < 3; i++) channel_send(&p.joiner, 'a' + 3 * i, "hello", (size_t)i);
    channel_send(&p.zero, 'z', "back", 4);
    turns(&p);
    for (int i = 0; i < 3; i++)
        CHECK(channel_next(&p.zero, &m) && m.kind == 'a' + 3 * i && m.n == (size_t)i &&
              !m.bytes[i]);
    CHECK(!channel_next(&p.zero, &m));
    CHECK(channel_next(&p.joiner, &m) && m.kind == 'z' && !strcmp(m.bytes, "back"));
    /* what was sent before the end arrives */
    channel_send(&p.joiner, 'q', "bye", 3);
    channel_close(&p.joiner);
    channel_turn(&p.zero);
    channel_turn(&p.zero);
    CHECK(p.zero.state == CHANNEL_CLOSED && p.zero.end == CHANNEL_LEFT);
    CHECK(channel_next(&p.zero, &m) && m.kind == 'q');
    finish(&p);
}

static void other_secret(void **state)
{
    (void)state;
    static const char *const zero[] = {"another secret", "", "one secrets"};
    for (int i = 0; i < 3; i++) {
        pair p;
        begin(&p, "one secret", zero[i]);
        turns(&p);
        CHECK(p.zero.state == CHANNEL_CLOSED && p.zero.end == CHANNEL_OTHER_SECRET);
        CHECK(p.joiner.state == CHANNEL_CLOSED && p.joiner.end == CHANNEL_OTHER_SECRET);
        finish(&p);
    }
}

/* ---- somebody in between --------------------------------------------------------------------------------- */

typedef struct middle {
    dsi_text secret;
    channel joiner, zero;
    int to_joiner, to_zero;
} middle;

/* Passes on what is there; the bytes for node 0 stay in `heard`. */
static void pass(middle *m, dsi_text *heard)
{
    char bytes[4096];
    for (int i = 0; i < 8; i++) {
        ssize_t n;
        channel_turn(&m->joiner);
        while ((n = recv(m->to_joiner, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
            if (heard) dsi_text_add_bytes(heard, bytes, (size_t)n);
            if (!heard) CHECK(send(m->to_zero, bytes, (size_t)n, MSG_NOSIGNAL) == n);
        }
        channel_turn(&m->zero);
        while ((n = recv(m->to_zero, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            CHECK(send(m->to_joiner, bytes, (size_t)n, MSG_NOSIGNAL) == n);
    }
}

static void open_middle(middle *m)
{
    int a[2], b[2];
    memset(m, 0, sizeof *m);
    dsi_text_add(&m->secret, "the middle does not know");
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, a) && !socketpair(AF_UNIX, SOCK_STREAM, 0, b));
    channel_begin(&m->joiner, a[0], true, &m->secret);
    channel_begin(&m->zero, b[0], false, &m->secret);
    m->to_joiner = a[1];
    m->to_zero = b[1];
    pass(m, NULL);
    CHECK(m->joiner.state == CHANNEL_OPEN && m->zero.state == CHANNEL_OPEN);
}

static void close_middle(middle *m)
{
    channel_close(&m->joiner);
    channel_close(&m->zero);
    close(m->to_joiner);
    close(m->to_zero);
    secret_free(&m->secret);
}

/* A change of any byte of a message, its length and kind too, ends the
 * connection; so do a message that is sent twice, one that is left out, and one
 * that is sent back to its sender. */
static void changed_messages(void **state)
{
    (void)state;
    enum { BYTES = 5 + 4 + SECRET_BYTES };
    for (int at = 1; at < BYTES + 3; at++) {
        middle m;
        message got;
        dsi_text first = {0}, second = {0};
        open_middle(&m);
        channel_send(&m.joiner, 'c', "true", 4);
        pass(&m, &first);
        channel_send(&m.joiner, 'c', "next", 4);
        pass(&m, &second);
        CHECK(first.n == BYTES && second.n == BYTES);
        if (at < BYTES) first.s[at] ^= 4;
        int to = at == BYTES + 2 ? m.to_joiner : m.to_zero;
        const dsi_text *sent = at == BYTES ? &second : &first;
        CHECK(send(to, sent->s, sent->n, 0) == (ssize_t)sent->n);
        if (at == BYTES + 1) CHECK(send(to, sent->s, sent->n, 0) == (ssize_t)sent->n);
        channel *c = to == m.to_zero ? &m.zero : &m.joiner;
        for (int i = 0; i < 3; i++) channel_turn(c);
        bool any = channel_next(c, &got);
        CHECK(any == (at == BYTES + 1)); /* the first of two that are the same is good */
        if (any) CHECK(!channel_next(c, &got));
        /* a length that grew waits for bytes that never come, and is given up
         * for its silence */
        if (c->state == CHANNEL_CLOSED)
            CHECK(c->end == CHANNEL_FOREIGN);
        else
            CHECK(at < 4);
        dsi_text_free(&first);
        dsi_text_free(&second);
        close_middle(&m);
    }
}

static void strangers(void **state)
{
    (void)state;
    static const char *const says[] = {"GET / HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH\r\n",
                                       "DSJOIN2\n0123"};
    for (int i = 0; i < 3; i++) {
        int fd[2];
        channel c;
        const dsi_text none = {0};
        CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
        channel_begin(&c, fd[0], i % 2, &none);
        CHECK(send(fd[1], says[i], strlen(says[i]), 0) > 0);
        channel_turn(&c);
        CHECK(c.state == CHANNEL_CLOSED && c.end == CHANNEL_FOREIGN);
        channel_close(&c);
        close(fd[1]);
    }
}

static void silence(void **state)
{
    (void)state;
    pair p;
    begin(&p, "a secret of ours", "a secret of ours");
    turns(&p);
    channel_beat(&p.zero, 3600);
    CHECK(p.zero.state == CHANNEL_OPEN);
    p.zero.received -= 5;
    channel_beat(&p.zero, 4);
    CHECK(p.zero.state == CHANNEL_CLOSED && p.zero.end == CHANNEL_SILENT);
    finish(&p);
}

TEST_MAIN(cmocka_unit_test(known_values), cmocka_unit_test(reading), cmocka_unit_test(messages),
          cmocka_unit_test(other_secret), cmocka_unit_test(changed_messages),
          cmocka_unit_test(strangers), cmocka_unit_test(silence))
