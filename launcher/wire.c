/* launcher/wire.c: records between ranks and the launcher.
 * SPDX-License-Identifier: MIT */
#include "wire.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MARK     '\036'
#define ESCAPE   '\035'
#define CHUNK    4096 /* what runners forward at a time */
#define DRAIN_MS 1
#define HEADER   48 /* MARK SECRET KIND RANK LENGTH, at most */

int rank_exit_status(const rank_exit *e)
{
    if (e->error) return e->error == ENOENT ? 127 : 126;
    return e->signal ? 128 + e->signal : e->code;
}

/* Other processes of this user must not guess it by accident; it does not
 * protect against attackers, who could read the command line. */
void wire_new_secret(char secret[WIRE_SECRET + 1])
{
    uint64_t bits;
    if (getrandom(&bits, sizeof bits, 0) != sizeof bits) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        bits = (uint64_t)t.tv_nsec << 32 ^ (uint64_t)t.tv_sec << 16 ^ (uint64_t)getpid();
    }
    snprintf(secret, WIRE_SECRET + 1, "%016" PRIx64, bits);
}

size_t wire_address(const char *secret, void *sockaddr_un)
{
    struct sockaddr_un *a = sockaddr_un;
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "deepspeed-%s", secret);
    return offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n;
}

int wire_accept(int listener)
{
    struct ucred who;
    socklen_t n = sizeof who;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || (!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) && who.uid == getuid()))
        return fd;
    close(fd);
    return -1;
}

/* ---- sending ---------------------------------------------------------------------- */

/* Waits until a record of n bytes fits into the chunk that the runner will
 * forward next; returns at once if fd is not a pipe. */
static void wire_wait_drained(int fd, size_t n)
{
    int held;
    struct pollfd p = {.fd = fd};
    while (!ioctl(fd, FIONREAD, &held) && held > 0 && (size_t)held + n > CHUNK)
        if (poll(&p, 1, DRAIN_MS) > 0 && p.revents & POLLERR) return; /* no reader */
}

/* Blocks if the descriptor would not. */
static bool wire_write(const wire *w, const char *bytes, size_t n)
{
    while (n) {
        ssize_t done = w->socket ? send(w->fd, bytes, n, MSG_NOSIGNAL) : write(w->fd, bytes, n);
        if (done < 0 && errno == EAGAIN) {
            struct pollfd p = {.fd = w->fd, .events = POLLOUT};
            poll(&p, 1, -1);
        } else if (done < 0 && errno != EINTR) {
            return false;
        } else if (done > 0) {
            bytes += done;
            n -= (size_t)done;
        }
    }
    return true;
}

/* Encodes as many of the bytes as fit into a line. Returns their number; *n: of
 * the line. */
static size_t wire_encode(char to[WIRE_LINE], size_t *n, const char *from, size_t bytes)
{
    size_t taken = 0;
    for (*n = 0; taken < bytes && *n < WIRE_LINE - 1; taken++) {
        char c = from[taken];
        bool plain = c != '\n' && c != ESCAPE;
        if (!plain) to[(*n)++] = ESCAPE;
        to[(*n)++] = plain ? c : c == '\n' ? 'n' : 'e';
    }
    return taken;
}

/* In place. Returns the number of decoded bytes. */
static size_t wire_decode(char *s, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        bool plain = s[i] != ESCAPE || i + 1 == n;
        s[m++] = plain ? s[i] : s[++i] == 'n' ? '\n' : ESCAPE;
    }
    return m;
}

/* An empty payload is one record too. */
bool wire_send(const wire *w, wire_kind kind, const void *payload, size_t n)
{
    char record[WIRE_RECORD], line[WIRE_LINE];
    const char *from = payload;
    if (w->fd < 0) return true;
    do {
        size_t part = n < WIRE_PAYLOAD ? n : WIRE_PAYLOAD, length = part;
        if (!w->socket) part = wire_encode(line, &length, from, n);
        int head = snprintf(record, HEADER, "%c%s%c %d %zu%c", MARK, w->secret, kind, w->rank,
                            length, w->socket ? '\n' : ':');
        if (length) memcpy(record + head, w->socket ? from : line, length);
        size_t all = (size_t)head + length;
        if (!w->socket) record[all++] = '\n';
        if (!w->socket) wire_wait_drained(w->fd, all);
        if (!wire_write(w, record, all)) return false;
        from += part;
        n -= part;
    } while (n);
    return true;
}

bool wire_send_numbers(const wire *w, wire_kind kind, int n, const int *number)
{
    char text[128];
    size_t at = 0;
    for (int i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i ? " %d" : "%d", number[i]);
    return wire_send(w, kind, text, at);
}

bool wire_send_exit(const wire *w, const rank_exit *e)
{
    return wire_send_numbers(w, WIRE_ENDED, 7,
                             (int[]){e->code, e->signal, e->error, e->requested, e->reported,
                                     e->out_of_memory, e->process});
}

void wire_send_welcome(const wire *w, const int numbers[4], const int files[3])
{
    char record[WIRE_RECORD], text[60];
    int n = snprintf(text, sizeof text, "%d %d %d %d", numbers[0], numbers[1], numbers[2],
                     numbers[3]);
    n = snprintf(record, sizeof record, "%c%s%c %d %d\n%s", MARK, w->secret, WIRE_WELCOME, w->rank,
                 n, text);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec bytes = {record, (size_t)n};
    struct msghdr m = {.msg_iov = &bytes,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(3 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), files, 3 * sizeof(int));
    sendmsg(w->fd, &m, MSG_NOSIGNAL);
}

/* ---- reading ---------------------------------------------------------------------- */

int wire_numbers(const char *payload, size_t bytes, int n, int *number)
{
    char text[128], *at = text, *end;
    if (bytes >= sizeof text) bytes = sizeof text - 1;
    memcpy(text, payload, bytes);
    text[bytes] = 0;
    for (int i = 0; i < n; i++, at = end) {
        number[i] = (int)strtol(at, &end, 10);
        if (end == at) return i;
    }
    return n;
}

rank_exit wire_read_exit(const char *payload, size_t bytes)
{
    int v[7] = {0};
    wire_numbers(payload, bytes, 7, v);
    return (rank_exit){.code = v[0],
                       .signal = v[1],
                       .error = v[2],
                       .requested = v[3] != 0,
                       .reported = v[4] != 0,
                       .out_of_memory = v[5] != 0,
                       .process = v[6]};
}

bool wire_send_progress(const wire *w, const rank_progress *p)
{
    int seconds = (int)p->useful_s, ms = (int)((p->useful_s - seconds) * 1e3);
    return wire_send_numbers(w, WIRE_PROGRESS, 5,
                             (int[]){p->first, p->step, p->saved, seconds, ms});
}

rank_progress wire_read_progress(const char *payload, size_t bytes)
{
    int v[5] = {0};
    wire_numbers(payload, bytes, 5, v);
    return (rank_progress){
        .first = v[0], .step = v[1], .saved = v[2], .useful_s = v[3] + 1e-3 * v[4]};
}

typedef struct wire_header {
    wire_kind kind;
    int rank;
    size_t head, payload; /* bytes */
    bool line;            /* it came in stderr */
} wire_header;

/* The length of the record that begins at s; 0: none begins there, -1: more
 * bytes are needed to know. */
static long wire_find_record(const wire_reader *r, const char *s, size_t n, wire_header *f)
{
    char head[HEADER + 1], c;
    size_t same = n - 1 < WIRE_SECRET ? n - 1 : WIRE_SECRET, length = 0;
    if (*s != MARK || memcmp(s + 1, r->secret, same) != 0) return 0;
    size_t look = n < HEADER ? n : HEADER;
    while (length < look && s[length] != '\n' && s[length] != ':') length++;
    if (length == look) return look < HEADER ? -1 : 0;
    memcpy(head, s, length);
    head[length] = 0;
    if (length < WIRE_SECRET + 2 ||
        sscanf(head + 1 + WIRE_SECRET, "%c %d %zu", &c, &f->rank, &f->payload) != 3 ||
        f->payload > WIRE_PAYLOAD)
        return 0;
    f->kind = (wire_kind)c;
    f->line = s[length] == ':';
    f->head = length + 1;
    size_t all = f->head + f->payload + (f->line ? 1 : 0);
    return n < all ? -1 : (long)all;
}

/* Text before, between and after records is passed on in the order in which it
 * came. */
void wire_feed(wire_reader *r, const char *bytes, size_t n, const wire_handler *to)
{
    dsi_text_add_bytes(&r->held, bytes, n);
    char *s = r->held.s, *stop = s + r->held.n;
    while (s < stop) {
        wire_header f;
        char *mark = memchr(s, MARK, (size_t)(stop - s));
        long length = mark ? wire_find_record(r, mark, (size_t)(stop - mark), &f) : 0;
        char *other_end = !mark ? stop : length == 0 ? mark + 1 : mark;
        if (other_end > s) to->other(to->arg, s, (size_t)(other_end - s));
        s = other_end;
        if (length < 0) break;
        if (length > 0) {
            char *payload = mark + f.head;
            to->record(to->arg, f.kind, f.rank, payload,
                       f.line ? wire_decode(payload, f.payload) : f.payload);
            s = mark + length;
        }
    }
    size_t rest = (size_t)(stop - s);
    memmove(r->held.s, s, rest);
    r->held.n = rest;
}

void wire_finish(wire_reader *r, const wire_handler *to)
{
    if (r->held.n) to->other(to->arg, r->held.s, r->held.n);
    dsi_text_free(&r->held);
}
