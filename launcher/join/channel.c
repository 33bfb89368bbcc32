/* launcher/join/channel.c: messages between two nodes that share a secret (Note
 * [Hand-shake] in channel.h).
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
#define BEAT_S   1.0 /* between two heartbeats */

enum {
    GREETING_BYTES = 8 + SECRET_BYTES,
    HEADER_BYTES = 5,
    PAYLOAD_MOST = 1 << 20,
    READ_BYTES = 1 << 16
};

/* Closes it; the first reason counts. */
static void channel_end_with(channel *c, channel_end how, const char *why)
{
    if (c->state == CHANNEL_CLOSED) return;
    c->state = CHANNEL_CLOSED;
    c->end = how;
    snprintf(c->why, sizeof c->why, "%s", why);
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
}

/* Nothing is sent yet: channel_write does that. */
static void channel_queue(channel *c, const void *bytes, size_t n)
{
    dsi_text_add_bytes(&c->out, bytes, n);
    c->sent = dsi_now();
}

/* Writes what the socket accepts now. A failure closes the channel. */
static void channel_write(channel *c)
{
    while (c->fd >= 0 && c->out_at < c->out.n) {
        ssize_t n = send(c->fd, c->out.s + c->out_at, c->out.n - c->out_at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) {
            channel_end_with(c, CHANNEL_LEFT, strerror(errno));
            return;
        }
        c->out_at += (size_t)n;
    }
    c->out.n = c->out_at = 0;
}

/* ---- hand-shake ------------------------------------------------------------------ */

/* HMAC(secret, label J N): a proof or a key. */
static void channel_derive(const channel *c, const char *label, uint8_t out[SECRET_BYTES])
{
    const secret_part part[] = {
        {label, strlen(label)}, {c->nonce[0], SECRET_BYTES}, {c->nonce[1], SECRET_BYTES}};
    secret_mac(out, c->secret->s, c->secret->n, part, 3);
}

static void channel_send_proof(channel *c)
{
    uint8_t proof[SECRET_BYTES];
    channel_derive(c, c->joins ? "deepspeed joiner" : "deepspeed node 0", proof);
    channel_queue(c, proof, sizeof proof);
}

/* Each direction has its own key, so that a message cannot be sent back. */
static void channel_set_keys(channel *c)
{
    const char *ours = "deepspeed from joiner", *theirs = "deepspeed from node 0";
    channel_derive(c, c->joins ? ours : theirs, c->key_out);
    channel_derive(c, c->joins ? theirs : ours, c->key_in);
    c->state = CHANNEL_OPEN;
    c->keyed = true;
}

void channel_begin(channel *c, int fd, bool joins, const dsi_text *secret)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    *c = (channel){.fd = fd, .joins = joins, .secret = secret, .begun = dsi_now()};
    c->received = c->sent = c->begun;
    if (getpeername(fd, (struct sockaddr *)&address, &length) ||
        getnameinfo((struct sockaddr *)&address, length, c->peer, sizeof c->peer, NULL, 0,
                    NI_NUMERICHOST))
        snprintf(c->peer, sizeof c->peer, "somewhere");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (!secret_random(c->nonce[joins ? 0 : 1])) {
        channel_end_with(c, CHANNEL_LEFT, "the system gives no random bytes");
        return;
    }
    if (!joins) return; /* a joiner that sends nothing gets no answer */
    channel_queue(c, GREETING, 8);
    channel_queue(c, c->nonce[0], SECRET_BYTES);
    channel_write(c);
}

/* Node 0 answers only a whole greeting; the joiner proves the secret first. */
static void channel_read_greeting(channel *c)
{
    size_t have = c->in.n < 8 ? c->in.n : 8;
    if (memcmp(c->in.s, GREETING, have) != 0) {
        channel_end_with(c, CHANNEL_FOREIGN, "it is not a deepspeed launcher");
        return;
    }
    if (c->in.n < GREETING_BYTES) return;
    memcpy(c->nonce[c->joins ? 1 : 0], c->in.s + 8, SECRET_BYTES);
    c->in_at = GREETING_BYTES;
    c->state = CHANNEL_PROVING;
    if (c->joins) {
        channel_send_proof(c);
        return;
    }
    channel_queue(c, GREETING, 8);
    channel_queue(c, c->nonce[1], SECRET_BYTES);
}

/* Node 0 tells a joiner with another secret so, by zeros: it would try until
 * the time limit otherwise. */
static void channel_read_proof(channel *c)
{
    uint8_t right[SECRET_BYTES], given[SECRET_BYTES];
    if (c->in.n - c->in_at < SECRET_BYTES) return;
    channel_derive(c, c->joins ? "deepspeed node 0" : "deepspeed joiner", right);
    memcpy(given, c->in.s + c->in_at, SECRET_BYTES);
    c->in_at += SECRET_BYTES;
    if (secret_equal(right, given)) {
        if (!c->joins) channel_send_proof(c);
        channel_set_keys(c);
        return;
    }
    if (!c->joins) {
        channel_queue(c, (uint8_t[SECRET_BYTES]){0}, SECRET_BYTES);
        channel_write(c);
    }
    channel_end_with(c, CHANNEL_OTHER_SECRET, "it has another secret");
}

/* ---- messages -------------------------------------------------------------------- */

static void store_big_endian(uint8_t *to, uint64_t n, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, n >>= 8) to[i] = (uint8_t)n;
}

/* The number makes a repeated or left-out message differ. */
static void message_mac(uint8_t mac[SECRET_BYTES], const uint8_t *key, uint64_t number,
                        const void *header, const void *payload, size_t n)
{
    uint8_t count[8];
    store_big_endian(count, number, 8);
    const secret_part part[] = {{count, 8}, {header, HEADER_BYTES}, {payload, n}};
    secret_mac(mac, key, SECRET_BYTES, part, 3);
}

void channel_send(channel *c, int kind, const void *bytes, size_t n)
{
    uint8_t header[HEADER_BYTES], mac[SECRET_BYTES];
    if (c->state != CHANNEL_OPEN || n > PAYLOAD_MOST) return;
    store_big_endian(header, n, 4);
    header[4] = (uint8_t)kind;
    message_mac(mac, c->key_out, c->n_out++, header, bytes, n);
    channel_queue(c, header, sizeof header);
    channel_queue(c, bytes, n);
    channel_queue(c, mac, sizeof mac);
    channel_write(c);
}

/* Nothing more is read of it. */
static void channel_distrust(channel *c)
{
    channel_end_with(c, CHANNEL_FOREIGN, "a message was changed on its way");
    c->keyed = false;
}

/* false: the next message is not complete, or was changed. */
static bool channel_read_message(channel *c, message *m)
{
    const uint8_t *at = (const uint8_t *)c->in.s + c->in_at;
    size_t have = c->in.n - c->in_at;
    if (have < HEADER_BYTES) return false;
    size_t n = (size_t)at[0] << 24 | (size_t)at[1] << 16 | (size_t)at[2] << 8 | at[3];
    if (n > PAYLOAD_MOST) {
        channel_distrust(c);
        return false;
    }
    if (have < HEADER_BYTES + n + SECRET_BYTES) return false;
    uint8_t mac[SECRET_BYTES];
    message_mac(mac, c->key_in, c->n_in++, at, at + HEADER_BYTES, n);
    if (!secret_equal(mac, at + HEADER_BYTES + n)) {
        channel_distrust(c);
        return false;
    }
    c->in.s[c->in_at + HEADER_BYTES + n] = 0; /* over the first byte of its MAC */
    *m = (message){at[4], c->in.s + c->in_at + HEADER_BYTES, n};
    c->in_at += HEADER_BYTES + n + SECRET_BYTES;
    return true;
}

bool channel_next(channel *c, message *m)
{
    while (c->keyed && channel_read_message(c, m))
        if (m->kind != MESSAGE_HEARTBEAT) return true;
    return false;
}

/* ---- reading and writing ---------------------------------------------------------- */

short channel_events(const channel *c)
{
    if (c->state == CHANNEL_CLOSED) return 0;
    return (short)(POLLIN | (c->out_at < c->out.n ? POLLOUT : 0));
}

/* Not more than the hand-shake needs until it is over: a stranger cannot fill
 * our
 * memory. */
static size_t channel_wanted(const channel *c)
{
    if (c->state == CHANNEL_OPEN) return READ_BYTES;
    return (size_t)GREETING_BYTES + SECRET_BYTES - c->in.n;
}

static bool channel_receive(channel *c)
{
    char bytes[READ_BYTES];
    if (c->in_at) {
        memmove(c->in.s, c->in.s + c->in_at, c->in.n - c->in_at);
        c->in.n -= c->in_at;
        c->in_at = 0;
    }
    ssize_t n = recv(c->fd, bytes, channel_wanted(c), 0);
    if (n > 0) {
        dsi_text_add_bytes(&c->in, bytes, (size_t)n);
        c->received = dsi_now();
        return true;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    channel_end_with(c, CHANNEL_LEFT, n ? strerror(errno) : "it closed the connection");
    return false;
}

void channel_turn(channel *c)
{
    if (c->state != CHANNEL_CLOSED && channel_receive(c)) {
        if (c->state == CHANNEL_GREETING) channel_read_greeting(c);
        if (c->state == CHANNEL_PROVING) channel_read_proof(c);
    }
    channel_write(c);
}

/* To be called often: at least once per second. */
void channel_beat(channel *c, double silence)
{
    double now = dsi_now();
    if (c->state != CHANNEL_OPEN) return;
    if (now - c->received > silence) {
        char why[80];
        snprintf(why, sizeof why, "nothing was received from it for %.3g s", now - c->received);
        channel_end_with(c, CHANNEL_SILENT, why);
    } else if (now - c->sent >= BEAT_S)
        channel_send(c, MESSAGE_HEARTBEAT, NULL, 0);
}

bool channel_flush(channel *c, double seconds)
{
    double limit = dsi_now() + seconds;
    for (channel_write(c); c->fd >= 0 && c->out_at < c->out.n; channel_write(c)) {
        double left = limit - dsi_now();
        if (left <= 0) return false;
        poll(&(struct pollfd){c->fd, POLLOUT, 0}, 1, (int)(1000 * left) + 1);
    }
    return c->fd >= 0;
}

void channel_close(channel *c)
{
    channel_end_with(c, CHANNEL_LEFT, "it was closed here");
    dsi_text_free(&c->in);
    dsi_text_free(&c->out);
}
