/* launcher/job_records.c: what a job reads: records of ranks, and the runner's
 * text.
 *
 * Ranks on this machine are connected to the job's socket, where one packet is
 * one record (wire.h). Records of ranks elsewhere come in the runner's stderr,
 * between its text.
 * SPDX-License-Identifier: MIT */
#include "job_running.h"

#include "info.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- records of ranks ------------------------------------------------------------------ */

/* A line of DeepSpeed's: "process 17 spawned with command: ...". */
static void job_log(running *r, const char *before, int process, const char *after, size_t n)
{
    dsi_text t = {0};
    if (r->j->quiet) return;
    info_begin(&t);
    dsi_text_add(&t, "%s %d ", before, process);
    dsi_text_add_bytes(&t, after, n);
    dsi_text_add(&t, "\n");
    output_add(r->output, -1, STDOUT_FILENO, t.s, t.n);
    dsi_text_free(&t);
}

/* rank -1: it failed before it knew its number. */
static void job_note_exit(running *r, int rank, const rank_exit *e)
{
    static const char exits[] = "exits successfully.";
    if (rank < 0)
        r->result.unknown_rank_failed = true;
    else
        job_result_add_exit(&r->result, rank, e);
    if (rank < 0 || rank_exit_status(e))
        job_begin_end(r);
    else
        job_log(r, "Process", e->process, exits, strlen(exits));
}

/* The payload is the process number and a text. */
static void job_note_start(running *r, int rank, const char *payload, size_t n)
{
    int process = 0;
    const char *text = memchr(payload, ' ', n);
    wire_numbers(payload, n, 1, &process);
    r->n_started += !r->result.rank[rank].process;
    r->result.rank[rank].process = process;
    if (text) job_log(r, "process", process, text + 1, n - (size_t)(text + 1 - payload));
}

/* Sends what rank_connect (rank.c) waits for. */
static void peer_welcome(running *r, const peer *l)
{
    struct sigaction hangup = {0};
    sigaction(SIGHUP, NULL, &hangup);
    wire w = {.fd = l->fd, .socket = true, .rank = l->rank};
    memcpy(w.secret, r->j->secret, sizeof w.secret);
    const int files[3] = {l->rank == 0 ? STDIN_FILENO : open("/dev/null", O_RDONLY | O_CLOEXEC), 1,
                          2};
    /* the supervisor's group, which is the shell's */
    wire_send_welcome(&w,
                      (int[]){(int)getpgid(getppid()), r->j->prefix != NULL, r->j->columns,
                              hangup.sa_handler == SIG_IGN},
                      files);
    if (l->rank != 0) close(files[0]);
}

/* Is this message of ours the last one again? Several ranks may send it. */
static bool job_is_repeated(running *r, const char *text, size_t n)
{
    if (r->last.n == n && !memcmp(r->last.s, text, n)) return true;
    r->last.n = 0;
    dsi_text_add_bytes(&r->last, text, n);
    return false;
}

/* Notes a report of a host's node monitor; its first failure counts. */
static void job_note_node(running *r, const char *payload, size_t n)
{
    node_event e;
    if (!node_event_read(&e, payload, n)) return;
    if (e.kind == NODE_UP || e.kind == NODE_CONNECTED) {
        job_result_add_node(&r->result, &e);
    } else if (r->phase == RUNNING && !r->runner_told) {
        r->result.node = e;
        job_begin_end(r);
        runner_terminate(r);
    }
}

/* Records of other jobs or with an impossible rank are dropped. */
static void job_handle_record(void *arg, wire_kind kind, int rank, const char *payload, size_t n)
{
    running *r = arg;
    if (rank < -1 || rank >= r->j->size) return;
    if (r->sender && kind == WIRE_WELCOME) {
        r->sender->rank = rank;
        peer_welcome(r, r->sender);
        if (r->phase != RUNNING) job_signal_ranks(r, SIGTERM);
    } else if (kind == WIRE_STARTED && rank >= 0) {
        job_note_start(r, rank, payload, n);
    } else if (kind == WIRE_OUT || (kind == WIRE_ERR && r->j->prefix && rank >= 0)) {
        output_add(r->output, rank, kind == WIRE_OUT ? STDOUT_FILENO : STDERR_FILENO, payload, n);
    } else if (kind == WIRE_ERR && !job_is_repeated(r, payload, n)) {
        output_add(r->output, -1, STDERR_FILENO, payload, n);
    } else if (kind == WIRE_NODE) {
        job_note_node(r, payload, n);
    } else if (kind == WIRE_PROGRESS) {
        if (r->j->report) job_report_add_progress(r->j->report, wire_read_progress(payload, n));
    } else if (kind == WIRE_ENDED) {
        rank_exit e = wire_read_exit(payload, n);
        job_note_exit(r, rank, &e);
    }
}

/* mpirun prints this when an agent of its own was faster than it. */
static bool is_noise(const char *text, size_t n)
{
    static const char noise[] = "plm:rsh: Warning: setpgid(";
    return n < 200 && memmem(text, n, noise, sizeof noise - 1);
}

/* Text of the runner is held back for a moment, and during the start: the
 * launcher's own line about a cause is better. */
static void job_handle_text(void *arg, const char *text, size_t n)
{
    running *r = arg;
    if (is_noise(text, n)) return;
    if (r->j->verbose) {
        output_add(r->output, -1, STDERR_FILENO, text, n);
        return;
    }
    if (!r->held.n) r->held_since = dsi_now();
    dsi_text_add_bytes(&r->held, text, n);
}

bool job_has_started(const running *r) { return r->n_started == r->j->size; }

void job_show_held(running *r)
{
    if (r->held.n) output_add(r->output, -1, STDERR_FILENO, r->held.s, r->held.n);
    r->held.n = 0;
}

/* Reads the line about a lost node. Later reports of its ranks and of the
 * runner are not the cause. */
void job_read_loss(running *r)
{
    char text[600];
    ssize_t n = read(r->j->node_lost, text, sizeof text - 1);
    if (n < 0 || r->result.node_lost) return;
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    output_print(r->output,
                 n ? text
                   : "deepspeed: the process with the connections to the other nodes was killed");
    if (r->j->report)
        snprintf(r->j->report->cause, sizeof r->j->report->cause, "%s",
                 n ? text : "the process with the connections to the other nodes was killed");
    r->result.node_lost = true;
    job_begin_end(r);
    runner_terminate(r);
}

/* ---- reading -------------------------------------------------------------------------- */

void job_accept(running *r)
{
    for (int fd; (fd = wire_accept(r->listener)) >= 0;) {
        peer l = {.fd = fd, .rank = -1};
        memcpy(l.reader.secret, r->j->secret, sizeof l.reader.secret);
        dsi_list_add(&r->peers, l);
    }
}

/* If the rank has not reported its exit, its monitor was killed; by hydra most
 * likely, which ends ranks so. */
void peer_close(running *r, peer *l)
{
    if (l->rank >= 0 && !r->result.rank[l->rank].ended)
        job_note_exit(r, l->rank,
                      &(rank_exit){.signal = SIGKILL,
                                   .requested = true,
                                   .process = r->result.rank[l->rank].process});
    close(l->fd);
    dsi_text_free(&l->reader.held);
    l->fd = -1;
}

/* One packet of the socket is one record. */
void peer_read(running *r, int i)
{
    char bytes[WIRE_RECORD];
    ssize_t n = recv(r->peers.at[i].fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    const wire_handler handler = {job_handle_record, job_handle_text, r};
    r->sender = &r->peers.at[i];
    if (n > 0)
        wire_feed(&r->sender->reader, bytes, (size_t)n, &handler);
    else
        peer_close(r, r->sender);
    r->sender = NULL;
}

int runner_read(running *r, int fd, bool records)
{
    char bytes[1 << 16];
    const wire_handler handler = {job_handle_record, job_handle_text, r};
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return fd;
    r->runner_read = dsi_now();
    if (n > 0 && records) wire_feed(&r->runner.reader, bytes, (size_t)n, &handler);
    if (n > 0 && !records) job_handle_text(r, bytes, (size_t)n);
    if (n > 0) return fd;
    if (records) wire_finish(&r->runner.reader, &handler);
    close(fd);
    return -1;
}
