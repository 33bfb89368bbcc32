/* launcher/join/joiner.c: a node other than node 0: joins, runs what node 0
 * sends, ends when node 0 does.
 *
 * It tries to connect until the time limit, so that the nodes may be started in
 * any order. A lasting error (another secret, another program) ends it at once.
 *
 * Invariants: this process owns the channel and, once COMMAND has come, one
 * supervised shell, below which everything runs. SIGINT, SIGTERM, SIGHUP and
 * SIGCHLD are blocked and read from `signals`. Waiting is by poll, at most half
 * a second, so that messages keep flowing; output of the command is not read
 * while OUT_MOST bytes wait to be sent. Once `ended` is set, `status` is final;
 * what still runs is killed at `kill_at`, and nothing is left behind.
 * SPDX-License-Identifier: MIT */
#include "older_libc.h"
#include "session.h"

#include "processes.h"
#include "supervised_shell.h"

#include "base/clock.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RETRY_S   0.25      /* between two attempts to connect */
#define CONNECT_S 5.0       /* one attempt */
#define HELLO_S   10.0      /* for the hand-shake */
#define NOTICE_S  3.0       /* until a line says what is waited for */
#define ENDING_S  5.0       /* for the command to end by itself */
#define OUT_MOST  (1 << 20) /* bytes waiting to be sent */

typedef struct joiner {
    node_session *s;
    channel c;
    supervised_shell shell;
    int signals;
    bool running; /* the command */
    bool ended;   /* `status` is known */
    bool again;   /* and it is not the last one: join again */
    int status;
    bool restarts;  /* node 0 may be started again, and waited for */
    double kill_at; /* 0: not set */
    char why[300];  /* why the last attempt failed */
} joiner;

static void joiner_print(const joiner *j, const char *text)
{
    fprintf(stderr, "deepspeed: node %d: %s\n", j->s->p->o.node_rank, text);
}

/* ---- joining ------------------------------------------------------------------- */

/* The signal that the user has sent; 0: none. */
static int joiner_read_signal(joiner *j)
{
    int signal = signals_read(j->signals);
    while (signal == SIGCHLD) signal = signals_read(j->signals);
    return signal;
}

/* Waits for the descriptor (-1: none), a signal or the time limit; returns the
 * signal or 0. */
static int joiner_wait(joiner *j, int fd, short events, double seconds)
{
    struct pollfd p[] = {{j->signals, POLLIN, 0}, {fd, events, 0}};
    poll(p, 2, seconds > 0 ? (int)(1e3 * seconds) + 1 : 0);
    return joiner_read_signal(j);
}

/* A connected socket, or -1 with j->why; *signal: one that came. */
static int joiner_connect_to(joiner *j, const struct addrinfo *a, int *signal)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t n = sizeof error;
    if (fd < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS)) {
        error = errno;
    } else {
        *signal = joiner_wait(j, fd, POLLOUT, CONNECT_S);
        struct pollfd p = {fd, POLLOUT, 0};
        if (poll(&p, 1, 0) < 1)
            error = ETIMEDOUT;
        else
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n);
    }
    if (!error && !*signal) return fd;
    snprintf(j->why, sizeof j->why, "%s", strerror(error));
    if (fd >= 0) close(fd);
    return -1;
}

/* Tries each address of node 0 once. */
static int joiner_connect(joiner *j, int *signal)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[16];
    int fd = -1;
    snprintf(port, sizeof port, "%d", j->s->p->o.master_port);
    int wrong = getaddrinfo(j->s->address, port, &hints, &list);
    if (wrong) snprintf(j->why, sizeof j->why, "%s", gai_strerror(wrong));
    for (struct addrinfo *a = list; a && fd < 0 && !*signal; a = a->ai_next)
        fd = joiner_connect_to(j, a, signal);
    if (list) freeaddrinfo(list);
    return fd;
}

/* false: no hand-shake, with j->why; j->c.end says whether to try again. */
static bool joiner_shake_hands(joiner *j, int *signal)
{
    double until = dsi_now() + HELLO_S;
    while (j->c.state < CHANNEL_OPEN && dsi_now() < until && !*signal) {
        *signal = joiner_wait(j, j->c.fd, channel_events(&j->c), 0.5);
        channel_turn(&j->c);
    }
    if (j->c.state == CHANNEL_OPEN) return true;
    snprintf(j->why, sizeof j->why, "%s",
             j->c.state == CHANNEL_CLOSED ? j->c.why
                                          : "it accepted the connection but sends nothing");
    return false;
}

/* Until the time limit; 0, or a status after one message. */
static int joiner_join(joiner *j)
{
    const options *o = &j->s->p->o;
    double begun = dsi_now(), until = begun + o->join_timeout;
    bool noticed = options_silent(o);
    int signal = 0;
    while (!signal && dsi_now() < until) {
        int fd = joiner_connect(j, &signal);
        if (fd >= 0) {
            channel_begin(&j->c, fd, true, &j->s->secret);
            if (joiner_shake_hands(j, &signal)) return 0;
            bool hopeless = j->c.state == CHANNEL_CLOSED && j->c.end == CHANNEL_OTHER_SECRET;
            channel_close(&j->c);
            if (hopeless) {
                fprintf(stderr,
                        "deepspeed: node %d: node 0 at %s, port %d has another secret "
                        "(DS_JOIN_SECRET, --join_secret_file)\n",
                        o->node_rank, j->s->address, o->master_port);
                return EXIT_FAILURE;
            }
        }
        if (!noticed && dsi_now() > begun + NOTICE_S) {
            noticed = true;
            fprintf(stderr, "deepspeed: node %d waits for node 0 at %s, port %d (%s)\n",
                    o->node_rank, j->s->address, o->master_port, j->why);
        }
        if (!signal) signal = joiner_wait(j, -1, 0, RETRY_S);
    }
    if (signal) return 128 + signal;
    fprintf(stderr,
            "deepspeed: node %d: node 0 was not reached at %s, port %d within %d s "
            "(--join_timeout): %s\n",
            o->node_rank, j->s->address, o->master_port, o->join_timeout, j->why);
    return EXIT_FAILURE;
}

/* Sends what node 0 compares and shows. */
static void joiner_send_hello(joiner *j)
{
    const launch_plan *p = j->s->p;
    const ds_host *own = &j->s->all.at[p->o.node_rank];
    char host[256] = "", digest[2 * SECRET_BYTES + 1];
    dsi_text program = {0};
    gethostname(host, sizeof host - 1);
    session_program(p->o.program, &program, digest);
    json_t *slots = json_array();
    for (int i = 0; i < own->n_slots; i++)
        json_array_append_new(slots, json_integer(own->slots[i]));
    json_t *hello = json_pack("{s:i, s:i, s:s, s:s, s:s, s:s, s:o}", "node_rank", p->o.node_rank,
                              "nnodes", j->s->all.n, "version", DS_VERSION, "host", host, "program",
                              program.s, "digest", digest, "slots", slots);
    char *text = hello ? json_dumps(hello, JSON_COMPACT) : NULL;
    if (text) channel_send(&j->c, MESSAGE_HELLO, text, strlen(text));
    free(text);
    json_decref(hello);
    dsi_text_free(&program);
}

/* ---- messages of node 0 ---------------------------------------------------------- */

static void joiner_refuse(joiner *j, const char *what, const char *path)
{
    char text[5000];
    int n = snprintf(text, sizeof text, "%s %s: %s", what, path, strerror(errno));
    joiner_print(j, text);
    channel_send(&j->c, MESSAGE_REFUSED, text, (size_t)n);
}

/* Checks that the job can run here, before mpirun would fail obscurely. */
static void joiner_check_paths(joiner *j, const message *m)
{
    json_t *start = json_loadb(m->bytes, m->n, JSON_ALLOW_NUL, NULL);
    const char *folder = "", *self = "";
    if (!start || json_unpack(start, "{s:s, s:s}", "folder", &folder, "deepspeed", &self))
        errno = EINVAL;
    if (!*folder || chdir(folder))
        joiner_refuse(j, "the working folder of node 0 must exist here too:", folder);
    else if (access(self, X_OK))
        joiner_refuse(j, "the deepspeed command must be where node 0 has it:", self);
    else
        channel_send(&j->c, MESSAGE_READY, NULL, 0);
    json_decref(start);
}

/* The job has ended with this status; the first call counts. */
static void joiner_finish(joiner *j, int status)
{
    if (j->ended) return;
    j->ended = true;
    j->status = status;
    j->kill_at = dsi_now() + (j->running ? ENDING_S : 0);
}

/* Messages of an unknown kind are ignored: node 0 may be newer. */
static void joiner_handle(joiner *j, const message *m)
{
    switch (m->kind) {
    case MESSAGE_WELCOME: {
        json_t *welcome = json_loadb(m->bytes, m->n, 0, NULL);
        int restarts = 0;
        if (welcome)
            json_unpack(welcome, "{s:F, s?b}", "silence", &j->s->silence, "restarts", &restarts);
        j->restarts = restarts;
        json_decref(welcome);
        break;
    }
    case MESSAGE_START:
        joiner_check_paths(j, m);
        break;
    case MESSAGE_COMMAND:
        if (j->running || j->ended) break;
        if (!options_silent(&j->s->p->o)) joiner_print(j, "the job starts");
        j->running = supervised_shell_start(&j->shell, m->bytes, m->n);
        if (!j->running) channel_send(&j->c, MESSAGE_EXITED, "126", 3);
        break;
    case MESSAGE_REFUSED:
        joiner_print(j, m->bytes);
        joiner_finish(j, EXIT_FAILURE);
        break;
    case MESSAGE_END:
        j->again = !j->ended && strchr(m->bytes, ' ');
        if (j->again && !options_silent(&j->s->p->o))
            joiner_print(j, "joins again after a failure");
        joiner_finish(j, atoi(m->bytes));
        break;
    default: /* of a newer node 0 */
        break;
    }
}

/* ---- the command ------------------------------------------------------------------ */

static void joiner_send_output(joiner *j)
{
    char bytes[1 << 14];
    ssize_t n = read(j->shell.out, bytes, sizeof bytes);
    if (n > 0) channel_send(&j->c, MESSAGE_OUTPUT, bytes, (size_t)n);
}

/* Output that was written before the end is sent before EXITED. */
static void joiner_reap(joiner *j)
{
    int status;
    char text[16];
    if (!j->running || waitpid(j->shell.process, &status, WNOHANG) != j->shell.process) return;
    joiner_send_output(j);
    status = signals_exit_status(status);
    int n = snprintf(text, sizeof text, "%d", status);
    channel_send(&j->c, MESSAGE_EXITED, text, (size_t)n);
    j->running = false;
    /* the shell's supervisor was killed itself: its processes are ours now */
    if (status == 128 + SIGKILL) processes_end();
    supervised_shell_clean_up(&j->shell);
}

/* Because of the user's signal; a second one kills at once. */
static void joiner_leave(joiner *j, int signal)
{
    char text[80];
    if (j->ended) {
        if (j->again) j->status = 128 + signal;
        j->again = false;
        j->kill_at = dsi_now();
        return;
    }
    int n = snprintf(text, sizeof text, "it was ended by signal %d (SIG%s)", signal,
                     sigabbrev_np(signal));
    channel_send(&j->c, MESSAGE_LEAVING, text, (size_t)n);
    channel_flush(&j->c, 0.5);
    joiner_print(j, text);
    joiner_finish(j, 128 + signal);
}

/* Waits for something to happen and handles it. */
static void joiner_step(joiner *j)
{
    message m;
    bool full = j->c.out.n - j->c.out_at > OUT_MOST;
    struct pollfd p[] = {{j->signals, POLLIN, 0},
                         {j->c.fd, channel_events(&j->c), 0},
                         {j->running && !full ? j->shell.out : -1, POLLIN, 0}};
    poll(p, 3, j->ended ? 50 : 500);
    int signal = joiner_read_signal(j);
    if (signal) joiner_leave(j, signal);
    if (p[2].revents & POLLIN) joiner_send_output(j);
    joiner_reap(j);
    channel_turn(&j->c);
    channel_beat(&j->c, j->s->silence);
    while (channel_next(&j->c, &m)) joiner_handle(j, &m);
    if (j->c.state != CHANNEL_CLOSED || j->ended) return;
    char text[200];
    snprintf(text, sizeof text, "node 0 is gone: %s%s", j->c.why,
             j->restarts ? "; waiting for it again" : "");
    joiner_print(j, text);
    j->again = j->restarts;
    joiner_finish(j, EXIT_FAILURE);
    j->kill_at = dsi_now();
}

/* From HELLO to the end of the attempt. */
static int joiner_work(joiner *j)
{
    j->ended = j->again = false;
    j->kill_at = 0;
    if (!options_silent(&j->s->p->o)) joiner_print(j, "joined; waiting for the others");
    joiner_send_hello(j);
    while (!j->ended || (j->running && dsi_now() < j->kill_at)) joiner_step(j);
    if (j->running) {
        close(j->shell.hold);
        j->shell.hold = -1;
        waitpid(j->shell.process, NULL, 0);
        supervised_shell_clean_up(&j->shell);
        j->running = false;
    }
    processes_end();
    channel_flush(&j->c, 0.5);
    return j->status;
}

int joiner_run(node_session *s)
{
    joiner j = {.s = s, .c = {.fd = -1, .state = CHANNEL_CLOSED}};
    sigset_t previous;
    j.signals = signals_open(session_signals, &previous);
    processes_adopt();
    int status;
    do {
        status = joiner_join(&j);
        if (status) break;
        status = joiner_work(&j);
        channel_close(&j.c);
    } while (j.again);
    channel_close(&j.c);
    signals_close(j.signals, &previous);
    return status;
}
