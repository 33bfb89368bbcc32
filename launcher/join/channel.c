/* launcher/join/channel.c: messages between two nodes that know the same secret (Note [Hand-shake]).
 * SPDX-License-Identifier: MIT */
#include "channel.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING "DSJOIN1\n"
#define BEAT_S   1.0 /* between two of "still here" */

enum {
    GREETING_BYTES = 8 + SECRET_BYTES,
    HEADER_BYTES = 5,
    PAYLOAD_MOST = 1 << 20,
    READ_BYTES = 1 << 16
};

static void end(channel *c, channel_end how, const char *why)
{
    if (c->state == CHANNEL_CLOSED) return;
    c->state = CHANNEL_CLOSED;
    c->end = how;
    snprintf(c->why, sizeof c->why, "%s", why);
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

static void queue(channel *c, const void *bytes, size_t n)
{
    dsi_text_add_bytes(&c->out, bytes, n);
    c->said = dsi_now();
}

static void write_some(channel *c)
{
    while (c->fd >= 0 && c->out_at < c->out.n) {
        ssize_t n = send(c->fd, c->out.s + c->out_at, c->out.n - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) {
            end(c, CHANNEL_LEFT, strerror(errno));
            return;
        }
        c->out_at += (size_t)n;
    }
    c->out.n = c->out_at = 0;
}

/* ---- hand-shake ------------------------------------------------------------------------------------------ */

static void derive(const channel *c, const char *label, uint8_t out[SECRET_BYTES])
{
    const secret_part part[] = {
        {label, strlen(label)}, {c->nonce[0], SECRET_BYTES}, {c->nonce[1], SECRET_BYTES}};
    secret_mac(out, c->secret->s, c->secret->n, part, 3);
}

static void prove(channel *c)
{
    uint8_t proof[SECRET_BYTES];
    derive(c, c->joins ? "deepspeed joiner" : "deepspeed node 0", proof);
    queue(c, proof, sizeof proof);
}

static void open_channel(channel *c)
{
    const char *ours = "deepspeed from joiner", *theirs = "deepspeed from node 0";
    derive(c, c->joins ? ours : theirs, c->key_out);
    derive(c, c->joins ? theirs : ours, c->key_in);
    c->state = CHANNEL_OPEN;
    c->keyed = true;
}

void channel_begin(channel *c, int fd, bool joins, const dsi_text *secret)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    *c = (channel){.fd = fd, .joins = joins, .secret = secret, .begun = dsi_now()};
    c->heard = c->said = c->begun;
    if (getpeername(fd, (struct sockaddr *)&address, &length) ||
        getnameinfo((struct sockaddr *)&address, length, c->peer, sizeof c->peer, NULL, 0,
                    NI_NUMERICHOST))
        snprintf(c->peer, sizeof c->peer, "somewhere");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (!secret_random(c->nonce[joins ? 0 : 1])) {
        end(c, CHANNEL_LEFT, "the system gives no random bytes");
        return;
    }
    if (!joins) return; /* who says nothing gets no answer */
    queue(c, GREETING, 8);
    queue(c, c->nonce[0], SECRET_BYTES);
    write_some(c);
}

static void take_greeting(channel *c)
{
    size_t have = c->in.n < 8 ? c->in.n : 8;
    if (memcmp(c->in.s, GREETING, have) != 0) {
        end(c, CHANNEL_FOREIGN, "it is no deepspeed of this kind");
        return;
    }
    if (c->in.n < GREETING_BYTES) return;
    memcpy(c->nonce[c->joins ? 1 : 0], c->in.s + 8, SECRET_BYTES);
    c->in_at = GREETING_BYTES;
    c->state = CHANNEL_PROVING;
    if (c->joins) {
        prove(c);
        return;
    }
    queue(c, GREETING, 8);
    queue(c, c->nonce[1], SECRET_BYTES);
}

static void take_proof(channel *c)
{
    uint8_t right[SECRET_BYTES], given[SECRET_BYTES];
    if (c->in.n - c->in_at < SECRET_BYTES) return;
    derive(c, c->joins ? "deepspeed node 0" : "deepspeed joiner", right);
    memcpy(given, c->in.s + c->in_at, SECRET_BYTES);
    c->in_at += SECRET_BYTES;
    if (secret_equal(right, given)) {
        if (!c->joins) prove(c);
        open_channel(c);
        return;
    }
    if (!c->joins) {
        queue(c, (uint8_t[SECRET_BYTES]){0}, SECRET_BYTES);
        write_some(c);
    }
    end(c, CHANNEL_OTHER_SECRET, "it has another secret");
}

/* ---- messages -------------------------------------------------------------------------------------------- */

static void put_number(uint8_t *to, uint64_t n, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, n >>= 8) to[i] = (uint8_t)n;
}

static void mac_of(uint8_t mac[SECRET_BYTES], const uint8_t *key, uint64_t number,
                   const void *header, const void *payload, size_t n)
{
    uint8_t count[8];
    put_number(count, number, 8);
    const secret_part part[] = {{count, 8}, {header, HEADER_BYTES}, {payload, n}};
    secret_mac(mac, key, SECRET_BYTES, part, 3);
}

void channel_send(channel *c, int kind, const void *bytes, size_t n)
{
    uint8_t header[HEADER_BYTES], mac[SECRET_BYTES];
    if (c->state != CHANNEL_OPEN || n > PAYLOAD_MOST) return;
    put_number(header, n, 4);
    header[4] = (uint8_t)kind;
    mac_of(mac, c->key_out, c->n_out++, header, bytes, n);
    queue(c, header, sizeof header);
    queue(c, bytes, n);
    queue(c, mac, sizeof mac);
    write_some(c);
}

static void distrust(channel *c)
{
    end(c, CHANNEL_FOREIGN, "a message was changed on its way");
    c->keyed = false;
}

/* false: it is not whole yet, or the connection has ended. */
static bool take_message(channel *c, message *m)
{
    const uint8_t *at = (const uint8_t *)c->in.s + c->in_at;
    size_t have = c->in.n - c->in_at;
    if (have < HEADER_BYTES) return false;
    size_t n = (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
    if (n > PAYLOAD_MOST) {
        distrust(c);
        return false;
    }
    if (have < HEADER_BYTES + n + SECRET_BYTES) return false;
    uint8_t mac[SECRET_BYTES];
    mac_of(mac, c->key_in, c->n_in++, at, at + HEADER_BYTES, n);
    if (!secret_equal(mac, at + HEADER_BYTES + n)) {
        distrust(c);
        return false;
    }
    c->in.s[c->in_at + HEADER_BYTES + n] = 0; /* the first byte of the code, which was looked at */
    *m = (message){at[4], c->in.s + c->in_at + HEADER_BYTES, n};
    c->in_at += HEADER_BYTES + n + SECRET_BYTES;
    return true;
}

bool channel_next(channel *c, message *m)
{
    while (c->keyed && take_message(c, m))
        if (m->kind != MESSAGE_BEAT) return true;
    return false;
}

/* ---- turns ----------------------------------------------------------------------------------------------- */

short channel_events(const channel *c)
{
    if (c->state == CHANNEL_CLOSED) return 0;
    return (short)(POLLIN | (c->out_at < c->out.n ? POLLOUT : 0));
}

/* Until the hand-shake is over no more is read than it takes. */
static size_t wanted(const channel *c)
{
    if (c->state == CHANNEL_OPEN) return READ_BYTES;
    return (size_t)GREETING_BYTES + SECRET_BYTES - c->in.n;
}

static bool read_some(channel *c)
{
    char bytes[READ_BYTES];
    if (c->in_at) {
        memmove(c->in.s, c->in.s + c->in_at, c->in.n - c->in_at);
        c->in.n -= c->in_at;
        c->in_at = 0;
    }
    ssize_t n = recv(c->fd, bytes, wanted(c), 0);
    if (n > 0) {
        dsi_text_add_bytes(&c->in, bytes, (size_t)n);
        c->heard = dsi_now();
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    end(c, CHANNEL_LEFT, n ? strerror(errno) : "it closed the connection");
    return false;
}

void channel_turn(channel *c)
{
    if (c->state != CHANNEL_CLOSED && read_some(c)) {
        if (c->state == CHANNEL_GREETING) take_greeting(c);
        if (c->state == CHANNEL_PROVING) take_proof(c);
    }
    write_some(c);
}

void channel_beat(channel *c, double silence)
{
    double now = dsi_now();
    if (c->state != CHANNEL_OPEN) return;
    if (now - c->heard > silence) {
        char why[80];
        snprintf(why, sizeof why, "nothing was heard of it for %.3g s", now - c->heard);
        end(c, CHANNEL_SILENT, why);
    } else if (now - c->said >= BEAT_S)
        channel_send(c, MESSAGE_BEAT, NULL, 0);
}

bool channel_flush(channel *c, double seconds)
{
    double limit = dsi_now() + seconds;
    for (write_some(c); c->fd >= 0 && c->out_at < c->out.n; write_some(c)) {
        double left = limit - dsi_now();
        if (left <= 0) return false;
        poll(&(struct pollfd){c->fd, POLLOUT, 0}, 1, (int)(1000 * left) + 1);
    }
    return c->fd >= 0;
}

void channel_close(channel *c)
{
    end(c, CHANNEL_LEFT, "it was closed here");
    dsi_text_free(&c->in);
    dsi_text_free(&c->out);
}
