/* launcher/join/joiner.c: a node other than the first: joins, runs what node 0 says, ends when node 0 does.
 *
 * It keeps trying until the time limit, so that the nodes may be started in any order; what would not get better
 * (another secret, another program) ends it at once.
 * SPDX-License-Identifier: MIT */
#include "session.h"

#include "processes.h"

#include "base/clock.h"

#include <errno.h>
#include <jansson.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define RETRY_S   0.25      /* between two attempts to connect */
#define CONNECT_S 5.0       /* one attempt */
#define HELLO_S   10.0      /* for the hand-shake */
#define NOTICE_S  3.0       /* before saying what is waited for */
#define ENDING_S  5.0       /* for what runs here to end by itself */
#define OUT_MOST  (1 << 20) /* waiting to be sent */

typedef struct joiner {
    meeting *m;
    channel c;
    keeper k;
    int signals;
    bool running; /* the command */
    bool ended;   /* status is known */
    int status;
    double kill_at; /* 0: not set */
    char why[300];  /* why the last attempt came to nothing */
} joiner;

static void say(const joiner *j, const char *what)
{
    fprintf(stderr, "deepspeed: node %d: %s\n", j->m->p->o.node_rank, what);
}

/* ---- coming there ---------------------------------------------------------------------------------------- */

/* A signal of the user's, or 0. */
static int take_signal(joiner *j)
{
    struct signalfd_siginfo info;
    while (read(j->signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD) return (int)info.ssi_signo;
    return 0;
}

/* Waits for the descriptor, or the signal, whichever comes first; fd -1: for the signal alone. */
static int wait_for(joiner *j, int fd, short events, double seconds)
{
    struct pollfd p[] = {{j->signals, POLLIN, 0}, {fd, events, 0}};
    poll(p, 2, seconds > 0 ? (int)(1e3 * seconds) + 1 : 0);
    return take_signal(j);
}

/* A connected socket or -1 with j->why; *signal: one came. */
static int connect_to(joiner *j, const struct addrinfo *a, int *signal)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t n = sizeof error;
    if (fd < 0 || (connect(fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS)) {
        error = errno;
    } else {
        *signal = wait_for(j, fd, POLLOUT, CONNECT_S);
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

static int connect_once(joiner *j, int *signal)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char port[16];
    int fd = -1;
    snprintf(port, sizeof port, "%d", j->m->p->o.master_port);
    int wrong = getaddrinfo(j->m->address, port, &hints, &list);
    if (wrong) snprintf(j->why, sizeof j->why, "%s", gai_strerror(wrong));
    for (struct addrinfo *a = list; a && fd < 0 && !*signal; a = a->ai_next)
        fd = connect_to(j, a, signal);
    if (list) freeaddrinfo(list);
    return fd;
}

/* false: it did not come about; j->c.end says how bad that is. */
static bool shake_hands(joiner *j, int *signal)
{
    double until = dsi_now() + HELLO_S;
    while (j->c.state < CHANNEL_OPEN && dsi_now() < until && !*signal) {
        *signal = wait_for(j, j->c.fd, channel_events(&j->c), 0.5);
        channel_turn(&j->c);
    }
    if (j->c.state == CHANNEL_OPEN) return true;
    snprintf(j->why, sizeof j->why, "%s",
             j->c.state == CHANNEL_CLOSED ? j->c.why : "it took the connection, but says nothing");
    return false;
}

/* 0, or a status after one message. */
static int come_there(joiner *j)
{
    const options *o = &j->m->p->o;
    double begun = dsi_now(), until = begun + o->join_timeout;
    bool told = args_silent(o);
    int signal = 0;
    while (!signal && dsi_now() < until) {
        int fd = connect_once(j, &signal);
        if (fd >= 0) {
            channel_begin(&j->c, fd, true, &j->m->secret);
            if (shake_hands(j, &signal)) return 0;
            bool hopeless = j->c.state == CHANNEL_CLOSED && j->c.end == CHANNEL_OTHER_SECRET;
            channel_close(&j->c);
            if (hopeless) {
                fprintf(stderr,
                        "deepspeed: node %d: node 0 at %s, port %d has another secret "
                        "(DS_JOIN_SECRET, --join_secret_file)\n",
                        o->node_rank, j->m->address, o->master_port);
                return EXIT_FAILURE;
            }
        }
        if (!told && dsi_now() > begun + NOTICE_S) {
            told = true;
            fprintf(stderr, "deepspeed: node %d waits for node 0 at %s, port %d (%s)\n",
                    o->node_rank, j->m->address, o->master_port, j->why);
        }
        if (!signal) signal = wait_for(j, -1, 0, RETRY_S);
    }
    if (signal) return 128 + signal;
    fprintf(
        stderr,
        "deepspeed: node %d: node 0 was not met at %s, port %d within %d s (--join_timeout): %s\n",
        o->node_rank, j->m->address, o->master_port, o->join_timeout, j->why);
    return EXIT_FAILURE;
}

static void say_hello(joiner *j)
{
    const launch_plan *p = j->m->p;
    const ds_host *own = &p->hosts[p->o.node_rank];
    char host[256] = "", digest[2 * SECRET_BYTES + 1];
    dsi_text program = {0};
    gethostname(host, sizeof host - 1);
    program_text(p->o.program, &program, digest);
    json_t *slots = json_array();
    for (int i = 0; i < own->n_slots; i++)
        json_array_append_new(slots, json_integer(own->slots[i]));
    json_t *hello = json_pack("{s:i, s:i, s:s, s:s, s:s, s:s, s:o}", "node_rank", p->o.node_rank,
                              "nnodes", p->n_hosts, "version", DS_VERSION, "host", host, "program",
                              program.s, "digest", digest, "slots", slots);
    char *text = hello ? json_dumps(hello, JSON_COMPACT) : NULL;
    if (text) channel_send(&j->c, SAY_HELLO, text, strlen(text));
    free(text);
    json_decref(hello);
    dsi_text_free(&program);
}

/* ---- what node 0 says ------------------------------------------------------------------------------------ */

static void refuse(joiner *j, const char *what, const char *path)
{
    char text[5000];
    int n = snprintf(text, sizeof text, "%s %s: %s", what, path, strerror(errno));
    say(j, text);
    channel_send(&j->c, SAY_REFUSED, text, (size_t)n);
}

/* Looks whether the job can run here, so that it is not mpirun that finds out. */
static void look_around(joiner *j, const message *m)
{
    json_t *start = json_loadb(m->bytes, m->n, JSON_ALLOW_NUL, NULL);
    const char *folder = "", *self = "";
    if (!start || json_unpack(start, "{s:s, s:s}", "folder", &folder, "deepspeed", &self))
        errno = EINVAL;
    if (!*folder || chdir(folder))
        refuse(j, "the working folder of node 0 is wanted here too,", folder);
    else if (access(self, X_OK))
        refuse(j, "the deepspeed command is wanted where node 0 has it,", self);
    else
        channel_send(&j->c, SAY_READY, NULL, 0);
    json_decref(start);
}

static void finish(joiner *j, int status)
{
    if (j->ended) return;
    j->ended = true;
    j->status = status;
    j->kill_at = dsi_now() + (j->running ? ENDING_S : 0);
}

static void take_message(joiner *j, const message *m)
{
    switch (m->kind) {
    case SAY_WELCOME: {
        json_t *welcome = json_loadb(m->bytes, m->n, 0, NULL);
        if (welcome) json_unpack(welcome, "{s:F}", "silence", &j->m->silence);
        json_decref(welcome);
        break;
    }
    case SAY_START:
        look_around(j, m);
        break;
    case SAY_COMMAND:
        if (j->running || j->ended) break;
        j->running = keeper_start(&j->k, m->bytes, m->n);
        if (!j->running) channel_send(&j->c, SAY_EXITED, "126", 3);
        break;
    case SAY_REFUSED:
        say(j, m->bytes);
        finish(j, EXIT_FAILURE);
        break;
    case SAY_END:
        finish(j, atoi(m->bytes));
        break;
    default: /* of a newer node 0 */
        break;
    }
}

/* ---- what runs here -------------------------------------------------------------------------------------- */

static void take_output(joiner *j)
{
    char bytes[1 << 14];
    ssize_t n = read(j->k.out, bytes, sizeof bytes);
    if (n > 0) channel_send(&j->c, SAY_OUTPUT, bytes, (size_t)n);
}

static void look_for_end(joiner *j)
{
    int status;
    char text[16];
    if (!j->running || waitpid(j->k.process, &status, WNOHANG) != j->k.process) return;
    take_output(j);
    status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    int n = snprintf(text, sizeof text, "%d", status);
    channel_send(&j->c, SAY_EXITED, text, (size_t)n);
    j->running = false;
    if (status == 128 + SIGKILL)
        processes_end(); /* it was killed itself: what it kept is ours now */
    keeper_tidy(&j->k);
}

static void leave(joiner *j, int signal)
{
    char text[80];
    if (j->ended) { /* asked twice */
        j->kill_at = dsi_now();
        return;
    }
    int n = snprintf(text, sizeof text, "it was ended by signal %d (SIG%s)", signal,
                     sigabbrev_np(signal));
    channel_send(&j->c, SAY_LEAVING, text, (size_t)n);
    channel_flush(&j->c, 0.5);
    say(j, text);
    finish(j, 128 + signal);
}

static void turn(joiner *j)
{
    message m;
    bool full = j->c.out.n - j->c.out_at > OUT_MOST;
    struct pollfd p[] = {{j->signals, POLLIN, 0},
                         {j->c.fd, channel_events(&j->c), 0},
                         {j->running && !full ? j->k.out : -1, POLLIN, 0}};
    poll(p, 3, j->ended ? 50 : 500);
    int signal = take_signal(j);
    if (signal) leave(j, signal);
    if (p[2].revents & POLLIN) take_output(j);
    look_for_end(j);
    channel_turn(&j->c);
    channel_beat(&j->c, j->m->silence);
    while (channel_next(&j->c, &m)) take_message(j, &m);
    if (j->c.state != CHANNEL_CLOSED || j->ended) return;
    char text[200];
    snprintf(text, sizeof text, "node 0 has gone: %s", j->c.why);
    say(j, text);
    finish(j, EXIT_FAILURE);
    j->kill_at = dsi_now();
}

static int work(joiner *j)
{
    if (!args_silent(&j->m->p->o)) say(j, "joined, and waits for the others");
    say_hello(j);
    while (!j->ended || (j->running && dsi_now() < j->kill_at)) turn(j);
    if (j->running) {
        close(j->k.hold);
        j->k.hold = -1;
        waitpid(j->k.process, NULL, 0);
        keeper_tidy(&j->k);
    }
    processes_end();
    channel_flush(&j->c, 0.5);
    return j->status;
}

int joiner_run(meeting *m)
{
    joiner j = {.m = m, .c = {.fd = -1, .state = CHANNEL_CLOSED}};
    sigset_t was;
    j.signals = signals_take(&was);
    processes_adopt();
    int status = come_there(&j);
    if (!status) status = work(&j);
    channel_close(&j.c);
    close(j.signals);
    sigprocmask(SIG_SETMASK, &was, NULL);
    return status;
}
