/* launcher/wire.h: records between the process that starts a rank and the
 * launcher.
 *
 * In a stream of bytes a record is
 *
 *     \036 SECRET KIND RANK LENGTH \n LENGTH bytes       through a socket
 *     \036 SECRET KIND RANK LENGTH : LENGTH bytes \n     in stderr, as one line
 *
 * On one machine records are sent through a Unix socket. From other machines
 * the only way back that every runner has is the stderr of ranks. Records are
 * found there among what the runner prints by the secret of the job. Such a
 * record is a line of less than 1024 bytes, in which \n and \035 are written as
 * two bytes, \035n and \035e: srun forwards lines of that length, those of
 * different ranks in any order.
 *
 * Invariants: a record in stderr is written by one write, and only when the
 * pipe holds so little that mpirun, which forwards at most 4096 bytes at a
 * time, does not cut it in two. wire_send blocks until its bytes are written. A
 * reader holds the beginning of an incomplete record and passes on all else at
 * once.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

enum { WIRE_SECRET = 16, WIRE_PAYLOAD = 3072, WIRE_LINE = 900, WIRE_RECORD = WIRE_PAYLOAD + 64 };

typedef enum wire_kind {
    WIRE_STARTED = 's',  /* the process number, "spawned with command:", argv */
    WIRE_OUT = 'o',      /* bytes of stdout */
    WIRE_ERR = 'e',      /* bytes of stderr */
    WIRE_ENDED = 'x',    /* a rank_exit */
    WIRE_PROGRESS = 'p', /* a rank_progress, before WIRE_ENDED */
    /* from the rank when it connects: its number; the answer: the process group
     * to join, 1 or 0: pipe the output, columns of the terminal, 1 or 0: ignore
     * SIGHUP; with it stdin, stdout and stderr */
    WIRE_WELCOME = 'w',
    WIRE_NODE = 'n',  /* a node_event (node_monitor.h), of no rank */
    WIRE_SIGNAL = 'k' /* launcher to rank: a signal for the program; 0: exit */
} wire_kind;

/* How a rank's program ended. */
typedef struct rank_exit {
    int code, signal;   /* one of them, or both 0 */
    int error;          /* errno: it could not be executed */
    bool requested;     /* it had been told to end before */
    bool reported;      /* the cause has been printed */
    bool out_of_memory; /* the kernel killed a process of its control group */
    int process;
} rank_exit;

/* How far a rank's training has come (base/progress.h). */
typedef struct rank_progress {
    int first, step, saved; /* steps of the optimizer: at its start, at its end, of the newest
                               checkpoint; saved 0: none was saved */
    double useful_s;        /* from its start to that checkpoint; if it has succeeded, to its end */
} rank_progress;

int rank_exit_status(const rank_exit *e); /* as in a shell: 128 + signal */

typedef struct wire {
    int fd; /* -1: there is no launcher */
    bool socket;
    char secret[WIRE_SECRET + 1];
    int rank;
} wire;

void wire_new_secret(char secret[WIRE_SECRET + 1]);
/* Splits payloads that are too long. false: there is no reader any more. */
bool wire_send(const wire *w, wire_kind kind, const void *payload, size_t n);
bool wire_send_numbers(const wire *w, wire_kind kind, int n, const int *number);
bool wire_send_exit(const wire *w, const rank_exit *e);
/* The answer to WIRE_WELCOME, through a socket: its numbers, and the files that
 * become the program's stdin, stdout and stderr. */
void wire_send_welcome(const wire *w, const int numbers[4], const int files[3]);

/* Reads at most n numbers from the beginning of a payload; returns how many
 * there
 * are. */
int wire_numbers(const char *payload, size_t bytes, int n, int *number);
rank_exit wire_read_exit(const char *payload, size_t bytes);
bool wire_send_progress(const wire *w, const rank_progress *p);
rank_progress wire_read_progress(const char *payload, size_t bytes);

/* Splits a stream into records and other text. */
typedef struct wire_reader {
    char secret[WIRE_SECRET + 1];
    dsi_text held; /* the beginning of what may be a record */
} wire_reader;

/* Called with `arg`; other text comes in pieces, as it was read. */
typedef struct wire_handler {
    void (*record)(void *arg, wire_kind kind, int rank, const char *payload, size_t n);
    void (*other)(void *arg, const char *text, size_t n);
    void *arg;
} wire_handler;

void wire_feed(wire_reader *r, const char *bytes, size_t n, const wire_handler *to);
/* At the end of the stream; frees what r holds. */
void wire_finish(wire_reader *r, const wire_handler *to);

/* The address of the job's socket, in the abstract namespace: it leaves no file
 * behind. Returns its length. */
size_t wire_address(const char *secret, void *sockaddr_un);
/* The next connection to a listening socket, if it is from a process of this
 * user; else -1. */
int wire_accept(int listener);
