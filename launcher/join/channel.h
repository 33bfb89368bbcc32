/* launcher/join/channel.h: messages between two nodes that know the same secret.
 *
 * Note [Hand-shake]. The joiner speaks first; all numbers that stand in messages are most significant byte first.
 *
 *     joiner -> node 0    "DSJOIN1\n", 32 random bytes J
 *     node 0 -> joiner    "DSJOIN1\n", 32 random bytes N
 *     joiner -> node 0    HMAC(secret, "deepspeed joiner" J N)
 *     node 0 -> joiner    HMAC(secret, "deepspeed node 0" J N), or 32 zeros and the end: it is another secret
 *
 * So each proves that it knows the secret, to the other, for this connection, and neither sends it. Then
 *
 *     length (4 bytes)  kind (1)  payload  HMAC(key of the direction, number of the message (8), all before)
 *
 * with keys HMAC(secret, "deepspeed from joiner" J N) and HMAC(secret, "deepspeed from node 0" J N): what is
 * changed, left out, repeated or sent back by somebody in between ends the connection. Nothing is hidden: who can
 * listen reads the messages, and can try secrets on what was heard, so that a secret should be long and random.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_CHANNEL_H
#define LAUNCHER_CHANNEL_H

#include "secret.h"

typedef enum channel_state {
    CHANNEL_GREETING, /* waits for the other's random bytes */
    CHANNEL_PROVING,  /* waits for the other's proof */
    CHANNEL_OPEN,
    CHANNEL_CLOSED
} channel_state;

typedef enum channel_end {
    CHANNEL_LEFT,    /* the other closed it, or the network did: `why` */
    CHANNEL_SILENT,  /* nothing was heard for too long */
    CHANNEL_FOREIGN, /* the other is no launcher of this version, or a message was changed */
    CHANNEL_OTHER_SECRET
} channel_end;

typedef struct channel {
    int fd;
    bool joins; /* this side is the joiner */
    channel_state state;
    channel_end end; /* of a closed one */
    char why[160];
    char peer[64]; /* address of the other */
    const dsi_text *secret;
    uint8_t nonce[2][SECRET_BYTES]; /* the joiner's, node 0's */
    bool keyed;                     /* what was read may be taken, of a closed one too */
    uint8_t key_in[SECRET_BYTES], key_out[SECRET_BYTES];
    uint64_t n_in, n_out;
    dsi_text in, out;
    size_t in_at, out_at;      /* what was taken of them */
    double begun, heard, said; /* when */
} channel;

typedef struct message {
    int kind;
    const char *bytes; /* until the next call; a 0 stands after them */
    size_t n;
} message;

enum { MESSAGE_BEAT = 'b' }; /* "still here": never returned by channel_next */

/* Takes a connected socket; `secret` must outlive it. */
void channel_begin(channel *c, int fd, bool joins, const dsi_text *secret);
void channel_send(channel *c, int kind, const void *bytes, size_t n);
short channel_events(const channel *c);    /* for poll; 0 if it is closed */
void channel_turn(channel *c);             /* reads and writes what can be; never blocks */
bool channel_next(channel *c, message *m); /* false: there is none yet, or never */
/* Says "still here" once a second; closes it if nothing was heard for `silence` seconds. */
void channel_beat(channel *c, double silence);
bool channel_flush(channel *c, double seconds); /* waits until all is written; false: it is not */
void channel_close(channel *c);

#endif
