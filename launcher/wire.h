/* launcher/wire.h: what the start of a rank and the launcher tell each other.
 *
 * Records in a stream of bytes:
 *
 *     \036 SECRET KIND RANK LENGTH \n    then LENGTH bytes           through a socket
 *     \036 SECRET KIND RANK LENGTH :     then LENGTH bytes and \n    in a stream: a line without newlines
 *
 * On one machine they go through a Unix socket. From other machines the one way back that every engine has is
 * the stderr of ranks: records stand there among what the engine and its agents say, and a secret of the job
 * tells them apart. There a record is one line of less than 1024 bytes, with \n and \035 written as two bytes, \035n
 * and \035e: srun deals in such lines, those of different ranks in any order. And it waits until the pipe holds so
 * little that mpirun, which forwards at most 4096 bytes at a time, does not cut it in two.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_WIRE_H
#define LAUNCHER_WIRE_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

enum { WIRE_SECRET = 16, WIRE_PAYLOAD = 3072, WIRE_LINE = 900, WIRE_RECORD = WIRE_PAYLOAD + 64 };

typedef enum wire_kind {
    WIRE_STARTED = 's', /* number of the process, "spawned with command: ", its words */
    WIRE_OUT = 'o',     /* bytes of stdout */
    WIRE_ERR = 'e',     /* bytes of stderr */
    WIRE_ENDED = 'x',   /* an ending */
    WIRE_WELCOME =
        'w', /* launcher to rank, on connecting: the process group to join, 1 or 0: pipe the output,
              * columns of the terminal, 1 or 0: ignore SIGHUP */
    WIRE_ORDER = 'k' /* launcher to rank: a signal for the program; 0: leave */
} wire_kind;

/* How a rank's program ended. */
typedef struct ending {
    int code, signal; /* one of them, or both 0 */
    int error;        /* errno: it could not be executed */
    bool asked;       /* it had been told to end before */
    bool told;        /* the cause has been printed */
    bool no_memory;   /* the kernel has killed something of its control group for want of memory */
    int process;
} ending;

int ending_status(const ending *e); /* as a shell counts: 128 + signal */

typedef struct wire {
    int fd; /* -1: there is no launcher */
    bool socket;
    char secret[WIRE_SECRET + 1];
    int rank;
} wire;

void wire_new_secret(char secret[WIRE_SECRET + 1]);
/* false: nobody reads it any more. Blocks until it is written. */
bool wire_send(const wire *w, wire_kind kind, const void *payload, size_t n);
bool wire_send_numbers(const wire *w, wire_kind kind, int n, const int *number);
bool wire_send_ending(const wire *w, const ending *e);

/* Numbers at the beginning of a payload, as many as there are, at most n. */
int wire_numbers(const char *payload, size_t bytes, int n, int *number);
ending wire_ending(const char *payload, size_t bytes);

/* Takes a stream apart. Both functions get `arg`; other text comes in pieces as it came. */
typedef struct wire_reader {
    char secret[WIRE_SECRET + 1];
    dsi_text held; /* the beginning of what may become a record */
} wire_reader;

typedef struct wire_calls {
    void (*record)(void *arg, wire_kind kind, int rank, const char *payload, size_t n);
    void (*other)(void *arg, const char *text, size_t n);
    void *arg;
} wire_calls;

void wire_feed(wire_reader *r, const char *bytes, size_t n, const wire_calls *to);
/* the stream has ended; frees what r holds */
void wire_finish(wire_reader *r, const wire_calls *to);

/* The name of the job's socket, in the abstract namespace: no file is left behind. Returns its length. */
size_t wire_address(const char *secret, void *sockaddr_un);

#endif
