/* launcher/join/channel.h: messages between two nodes that share a secret.
 *
 * Note [Hand-shake]. The joiner sends first; numbers in messages are
 * big-endian.
 *
 *     joiner -> node 0    "DSJOIN1\n", 32 random bytes J
 *     node 0 -> joiner    "DSJOIN1\n", 32 random bytes N
 *     joiner -> node 0    HMAC(secret, "deepspeed joiner" J N)
 *     node 0 -> joiner    HMAC(secret, "deepspeed node 0" J N), or 32 zeros and the end: it is another secret
 *
 * Each proves to the other that it knows the secret, for this connection, and
 * neither sends it. Then follow messages:
 *
 *     length (4 bytes), kind (1), payload,
 *     HMAC(key of the direction, number of the message (8), all before)
 *
 * with keys HMAC(secret, "deepspeed from joiner" J N) and HMAC(secret,
 * "deepspeed from node 0" J N). A message that an attacker changes, leaves out,
 * repeats or sends back ends the connection. Messages are not encrypted:
 * whoever can listen reads them and can try secrets on them, so a secret should
 * be long and random.
 *
 * Invariants: the channel owns its socket, and closes it when the state becomes
 * CHANNEL_CLOSED; messages that came before can still be read after that,
 * unless one was changed. No function but channel_flush blocks. The order of
 * calls is channel_begin, then channel_turn whenever poll reports
 * channel_events, then channel_next until it returns false, and channel_close
 * at the end.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "secret.h"

typedef enum channel_state {
    CHANNEL_GREETING, /* waits for the peer's random bytes */
    CHANNEL_PROVING,  /* waits for the peer's proof */
    CHANNEL_OPEN,
    CHANNEL_CLOSED
} channel_state;

typedef enum channel_end {
    CHANNEL_LEFT,        /* the peer or the network closed it: `why` */
    CHANNEL_SILENT,      /* no message for too long */
    CHANNEL_FOREIGN,     /* the peer is no launcher, or a message was changed */
    CHANNEL_OTHER_SECRET /* the peer has another secret */
} channel_end;

typedef struct channel {
    int fd;
    bool joins; /* this side is the joiner */
    channel_state state;
    channel_end end; /* of a closed one */
    char why[160];
    char peer[64]; /* address of the other side */
    const dsi_text *secret;
    uint8_t nonce[2][SECRET_BYTES]; /* the joiner's, node 0's */
    bool keyed;                     /* the keys are known: messages can be read */
    uint8_t key_in[SECRET_BYTES], key_out[SECRET_BYTES];
    uint64_t n_in, n_out;
    dsi_text in, out;
    size_t in_at, out_at;         /* bytes of them that are done with */
    double begun, received, sent; /* times: of channel_begin, of the last bytes */
} channel;

typedef struct message {
    int kind;
    const char *bytes; /* valid until the next call; followed by a 0 */
    size_t n;
} message;

enum { MESSAGE_HEARTBEAT = 'b' }; /* never returned by channel_next */

/* Takes a connected socket; `secret` must outlive it. */
void channel_begin(channel *c, int fd, bool joins, const dsi_text *secret);
/* Queues a message; dropped unless the channel is open. */
void channel_send(channel *c, int kind, const void *bytes, size_t n);
short channel_events(const channel *c);    /* for poll; 0 if it is closed */
void channel_turn(channel *c);             /* reads and writes what is possible */
bool channel_next(channel *c, message *m); /* false: none yet, or none any more */
/* Sends a heartbeat once a second; closes the channel if nothing was received
 * for `silence` seconds. */
void channel_beat(channel *c, double silence);
bool channel_flush(channel *c, double seconds); /* blocks until all is written; false: it is not */
void channel_close(channel *c);
