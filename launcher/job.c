/* launcher/job.c: the processes of a job from their start to their end.
 *
 * The launcher waits for four things at once: signals, ranks on the socket (or their records in the stderr of the
 * engine), the engine's text, and room on its own stdout. The first rank that fails without having been told to
 * end is the cause of all that follows: its status becomes the launcher's. Then the others are told to end, have
 * some seconds for it, and are killed; so it is when a signal comes, and a second signal kills at once.
 * What came of it is said by verdict.c.
 * SPDX-License-Identifier: MIT */
#include "job.h"

#include "info.h"
#include "output.h"
#include "processes.h"
#include "verdict.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENGINE_S 1.0 /* an engine ends the other ranks by itself, or is told to */
#define LINGER_S 1.0 /* for what is still to come when an engine has ended, and to be written */
#define REMOTE_S 3.0
#define HANG_S   10.0 /* an engine whose ranks have all ended well */
#define TTY_S    0.1  /* Ctrl-C reaches a rank a moment before us */

typedef enum phase { RUNNING, ENDING, KILLED } phase;

typedef struct peer { /* a rank's connection */
    int fd, rank;     /* -1: not said yet */
    wire_reader reader;
} peer;

typedef struct engine_state {
    int process, out, err; /* -1: ended, closed */
    wire_reader reader;
} engine_state;

typedef struct running {
    const job *j;
    output *output;
    facts f;
    engine_state *engine;
    struct {
        DSI_LIST(peer)
    } peers;
    int listener, signals;
    int engines; /* that run */
    phase phase;
    bool told_engines;
    double since, engine_since; /* of the phase; when the last engine ended; 0: not yet */
    dsi_text held;              /* what the engine says about an end that is explained already */
    dsi_text last;              /* line of ours that several ranks may say */
    peer *speaker;              /* whose bytes are being read */
} running;

/* ---- starting -------------------------------------------------------------------------------------------- */

static bool listen_for_ranks(running *r)
{
    struct sockaddr_un address;
    socklen_t n = (socklen_t)wire_address(r->j->secret, &address);
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return r->listener >= 0 && !bind(r->listener, (struct sockaddr *)&address, n) &&
           !listen(r->listener, 512);
}

static void become_engine(char **argv, int in, int out, int err)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTTOU, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(argv[0], argv);
    fprintf(stderr, "deepspeed: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Ranks of this machine get stdin itself. Engines would stop if they read a terminal in the background. */
static int stdin_of_engine(const job *j)
{
    bool real = !j->local && !isatty(STDIN_FILENO);
    return real ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static bool start_engine(running *r, int k)
{
    int out[2], err[2], in = stdin_of_engine(r->j);
    if (in < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) return false;
    int process = fork();
    if (process == 0) become_engine(r->j->commands[k], in, out[1], err[1]);
    close(in);
    close(out[1]);
    close(err[1]);
    r->engine[k] = (engine_state){.process = process, .out = out[0], .err = err[0]};
    memcpy(r->engine[k].reader.secret, r->j->secret, sizeof r->j->secret);
    if (process > 0) r->engines++;
    return process > 0;
}

/* ---- ending ---------------------------------------------------------------------------------------------- */

static void order(running *r, int signal)
{
    for (int i = 0; i < r->peers.n; i++) {
        wire w = {.fd = r->peers.at[i].fd, .socket = true};
        memcpy(w.secret, r->j->secret, sizeof w.secret);
        wire_send_numbers(&w, WIRE_ORDER, 1, &signal);
    }
}

static void signal_engines(const running *r, int signal)
{
    for (int k = 0; k < r->j->n_commands; k++)
        if (r->engine[k].process > 0) kill(r->engine[k].process, signal);
}

static void begin_end(running *r)
{
    if (r->phase != RUNNING) return;
    r->phase = ENDING;
    r->since = dsi_now();
    order(r, SIGTERM);
    if (r->f.signal && !r->j->local) signal_engines(r, SIGTERM);
}

/* When what has not ended is killed. mpirun and its like take a while to end ranks on other machines. */
static double end_of_grace(const running *r)
{
    double grace = processes_grace();
    if (r->j->local) return r->since + grace;
    return r->since + (grace > REMOTE_S ? grace : REMOTE_S) + (r->f.signal ? 0 : ENGINE_S);
}

static void kill_all(running *r)
{
    r->phase = KILLED;
    r->since = dsi_now();
    processes_signal(getpid(), SIGKILL);
}

static void note_engine(running *r, int status)
{
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (!r->f.engine_status) r->f.engine_status = code;
    r->f.engine_died = r->f.engine_died || r->phase == RUNNING;
    if (--r->engines == 0) r->engine_since = dsi_now();
}

static void take_signal(running *r)
{
    struct signalfd_siginfo info;
    int status, pid;
    if (read(r->signals, &info, sizeof info) != sizeof info) return;
    int signal = (int)info.ssi_signo;
    if (signal == SIGUSR1 || signal == SIGUSR2) {
        order(r, signal);
        if (!r->j->local) signal_engines(r, signal);
    } else if (signal != SIGCHLD && r->f.signal) {
        kill_all(r);
    } else if (signal != SIGCHLD) {
        r->f.signal = signal;
        if (r->phase == ENDING && !r->j->local) signal_engines(r, SIGTERM);
        begin_end(r);
    }
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int k = 0; k < r->j->n_commands; k++)
            if (r->engine[k].process == pid) {
                r->engine[k].process = -1;
                note_engine(r, status);
            }
}

/* ---- what ranks say -------------------------------------------------------------------------------------- */

/* "process 17 spawned with command: ..." */
static void inform(running *r, const char *before, int process, const char *after, size_t n)
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

static void note_ending(running *r, int rank, const ending *e)
{
    static const char exits[] = "exits successfully.";
    if (rank < 0)
        r->f.rank_lost = true;
    else
        facts_note(&r->f, rank, e);
    if (rank < 0 || ending_status(e))
        begin_end(r);
    else
        inform(r, "Process", e->process, exits, strlen(exits));
}

/* The number of the process, and its words. */
static void note_start(running *r, int rank, const char *payload, size_t n)
{
    int process = 0;
    const char *words = memchr(payload, ' ', n);
    wire_numbers(payload, n, 1, &process);
    r->f.rank[rank].process = process;
    if (words) inform(r, "process", process, words + 1, n - (size_t)(words + 1 - payload));
}

/* What connect_socket (rank.c) waits for. */
static void welcome(running *r, const peer *l)
{
    bool piped = r->j->prefix != NULL;
    int give[3] = {l->rank == 0 ? STDIN_FILENO : open("/dev/null", O_RDONLY | O_CLOEXEC), 1, 2};
    struct sigaction hangup = {0};
    sigaction(SIGHUP, NULL, &hangup);
    char record[WIRE_RECORD], numbers[60];
    /* the guard's group, which is the shell's */
    int n = snprintf(numbers, sizeof numbers, "%d %d %d %d", (int)getpgid(getppid()), piped,
                     r->j->columns, hangup.sa_handler == SIG_IGN);
    n = snprintf(record, sizeof record, "\036%s%c %d %d\n%s", r->j->secret, WIRE_WELCOME, l->rank,
                 n, numbers);
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof give)];
    } control;
    memset(&control, 0, sizeof control);
    struct iovec bytes = {record, (size_t)n};
    struct msghdr m = {.msg_iov = &bytes,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof give), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), give, sizeof give);
    sendmsg(l->fd, &m, MSG_NOSIGNAL);
    if (l->rank != 0) close(give[0]);
}

/* A message of ours that several ranks may say counts once. */
static bool said_already(running *r, const char *text, size_t n)
{
    if (r->last.n == n && !memcmp(r->last.s, text, n)) return true;
    r->last.n = 0;
    dsi_text_add_bytes(&r->last, text, n);
    return false;
}

static void take_record(void *arg, wire_kind kind, int rank, const char *payload, size_t n)
{
    running *r = arg;
    if (rank < -1 || rank >= r->j->size) return;
    if (r->speaker && kind == WIRE_WELCOME) {
        r->speaker->rank = rank;
        welcome(r, r->speaker);
        if (r->phase != RUNNING) order(r, SIGTERM);
    } else if (kind == WIRE_STARTED && rank >= 0) {
        note_start(r, rank, payload, n);
    } else if (kind == WIRE_OUT || (kind == WIRE_ERR && r->j->prefix && rank >= 0)) {
        output_add(r->output, rank, kind == WIRE_OUT ? STDOUT_FILENO : STDERR_FILENO, payload, n);
    } else if (kind == WIRE_ERR && !said_already(r, payload, n)) {
        output_add(r->output, -1, STDERR_FILENO, payload, n);
    } else if (kind == WIRE_ENDED) {
        ending e = wire_ending(payload, n);
        note_ending(r, rank, &e);
    }
}

/* mpirun says so when an agent of its own was faster than it: nothing is wrong. */
static bool is_noise(const char *text, size_t n)
{
    static const char noise[] = "plm:rsh: Warning: setpgid(";
    return n < 200 && memmem(text, n, noise, sizeof noise - 1);
}

/* What the engine says: at once; but not what it says about a rank's end, which is said better below. */
static void take_text(void *arg, const char *text, size_t n)
{
    running *r = arg;
    if (is_noise(text, n)) return;
    if (r->phase == RUNNING || r->j->verbose)
        output_add(r->output, -1, STDERR_FILENO, text, n);
    else
        dsi_text_add_bytes(&r->held, text, n);
}

/* The line about a node that is lost; what its ranks and the engine say of it is not the cause. */
static void take_loss(running *r)
{
    char text[600];
    ssize_t n = read(r->j->lost, text, sizeof text - 1);
    if (n < 0 || r->f.node_lost) return;
    text[n] = 0;
    text[strcspn(text, "\n")] = 0;
    output_say(r->output,
               n ? text : "deepspeed: the process that holds the other nodes was killed");
    r->f.node_lost = true;
    begin_end(r);
    signal_engines(r, SIGTERM);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void accept_ranks(running *r)
{
    int fd;
    while ((fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct ucred who;
        socklen_t n = sizeof who;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) || who.uid != getuid()) {
            close(fd);
            continue;
        }
        peer l = {.fd = fd, .rank = -1};
        memcpy(l.reader.secret, r->j->secret, sizeof l.reader.secret);
        dsi_list_add(&r->peers, l);
    }
}

/* One that ends before the rank has said how: its start was killed, by hydra most likely, which ends ranks so. */
static void close_peer(running *r, peer *l)
{
    if (l->rank >= 0 && !r->f.rank[l->rank].ended)
        note_ending(
            r, l->rank,
            &(ending){.signal = SIGKILL, .asked = true, .process = r->f.rank[l->rank].process});
    close(l->fd);
    dsi_text_free(&l->reader.held);
    l->fd = -1;
}

static void read_peer(running *r, int i)
{
    char bytes[WIRE_RECORD];
    ssize_t n = recv(r->peers.at[i].fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    const wire_calls calls = {take_record, take_text, r};
    r->speaker = &r->peers.at[i];
    if (n > 0)
        wire_feed(&r->speaker->reader, bytes, (size_t)n, &calls);
    else
        close_peer(r, r->speaker);
    r->speaker = NULL;
}

/* Returns fd, or -1 at the end of the stream. */
static int read_engine(running *r, engine_state *e, int fd, bool records)
{
    char bytes[1 << 16];
    const wire_calls calls = {take_record, take_text, r};
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return fd;
    if (n > 0 && records) wire_feed(&e->reader, bytes, (size_t)n, &calls);
    if (n > 0 && !records) take_text(r, bytes, (size_t)n);
    if (n > 0) return fd;
    if (records) wire_finish(&e->reader, &calls);
    close(fd);
    return -1;
}

static int patience_ms(const running *r)
{
    double now = dsi_now(), until = now + 3600;
    if (r->phase == ENDING) until = end_of_grace(r);
    if (r->phase == KILLED) until = r->since + LINGER_S;
    if (r->phase == ENDING && !r->j->local && r->engines && r->since + ENGINE_S > now)
        until = r->since + ENGINE_S;
    if (r->engine_since) until = r->engine_since + LINGER_S;
    if (r->phase == RUNNING && r->f.ended == r->j->size) until = now + 1;
    return until <= now ? 0 : (int)((until - now) * 1e3) + 1;
}

/* One turn: waits, and takes what has come. Nothing is read while nobody takes what ranks print. */
static void turn(running *r)
{
    int n = r->peers.n, m = r->j->n_commands;
    bool full = output_full(r->output) && r->phase == RUNNING;
    struct pollfd *p = dsi_alloc((size_t)(4 + n + 2 * m) * sizeof *p);
    p[0] = (struct pollfd){.fd = r->signals, .events = POLLIN};
    p[1] = (struct pollfd){.fd = r->listener, .events = POLLIN};
    if (r->j->lost && !r->f.node_lost) p[1].fd = r->j->lost; /* ranks elsewhere: nobody listens */
    output_poll(r->output, p + 2);
    for (int i = 0; i < n; i++)
        p[4 + i] = (struct pollfd){.fd = full ? -1 : r->peers.at[i].fd, .events = POLLIN};
    for (int k = 0; k < m; k++) {
        p[4 + n + 2 * k] = (struct pollfd){.fd = full ? -1 : r->engine[k].out, .events = POLLIN};
        p[5 + n + 2 * k] = (struct pollfd){.fd = full ? -1 : r->engine[k].err, .events = POLLIN};
    }
    poll(p, (nfds_t)(4 + n + 2 * m), patience_ms(r));
    output_write(r->output);
    r->f.unwritten = output_error(r->output);
    if (r->f.unwritten == EPIPE) begin_end(r);
    for (int i = 0; i < n; i++)
        if (p[4 + i].revents) read_peer(r, i);
    for (int k = 0; k < m; k++) {
        engine_state *e = &r->engine[k];
        if (p[4 + n + 2 * k].revents) e->out = read_engine(r, e, e->out, false);
        if (p[5 + n + 2 * k].revents) e->err = read_engine(r, e, e->err, true);
    }
    if (p[1].revents && p[1].fd == r->listener) accept_ranks(r);
    if (p[1].revents && p[1].fd == r->j->lost) take_loss(r);
    if (p[0].revents) take_signal(r);
    dsi_free(p);
}

/* ---- the course of things -------------------------------------------------------------------------------- */

/* Whether nothing more is to come of ranks and engines. */
static bool streams_ended(const running *r)
{
    for (int i = 0; i < r->peers.n; i++)
        if (r->peers.at[i].fd >= 0) return false;
    for (int k = 0; k < r->j->n_commands; k++)
        if (r->engine[k].out >= 0 || r->engine[k].err >= 0) return false;
    return true;
}

static bool peers_run(const running *r)
{
    for (int i = 0; i < r->peers.n; i++) {
        const peer *l = &r->peers.at[i];
        if (l->fd >= 0 && (l->rank < 0 || !r->f.rank[l->rank].ended)) return true;
    }
    return false;
}

static bool over(running *r)
{
    double now = dsi_now();
    if (!r->engines && streams_ended(r)) return true;
    if (r->engine_since && output_full(r->output) && !r->f.signal) r->engine_since = now;
    if (r->engine_since && now > r->engine_since + LINGER_S) return true;
    if (r->phase == KILLED && now > r->since + LINGER_S) return true;
    /* the engine has nothing left to do but to wonder at the end of its ranks; or it knows the cause */
    bool unknown = !verdict_is_clear(&r->f);
    if (r->phase != RUNNING && r->j->local && !peers_run(r) &&
        !(unknown && r->engines && now < r->since + ENGINE_S)) {
        order(r, 0);
        return true;
    }
    return false;
}

static void watch_clock(running *r, double *all_ended)
{
    double now = dsi_now();
    bool running_on = r->phase == RUNNING && r->f.ended == r->j->size;
    if (running_on && !*all_ended) *all_ended = now;
    if (running_on && now > *all_ended + HANG_S) {
        r->f.engine_hung = true;
        kill_all(r);
    }
    if (r->phase == ENDING && !r->j->local && !r->told_engines && now > r->since + ENGINE_S) {
        r->told_engines = true;
        signal_engines(r, SIGTERM);
    }
    if (r->phase == ENDING && now > end_of_grace(r)) kill_all(r);
}

/* A rank that died of the terminal's Ctrl-C says so before our own SIGINT has come. */
static void wait_for_own_signal(running *r)
{
    int s = r->f.first >= 0 ? r->f.rank[r->f.first].how.signal : 0;
    struct pollfd p = {.fd = r->signals, .events = POLLIN};
    if (s != SIGINT && s != SIGHUP && s != SIGTERM) return;
    double until = dsi_now() + TTY_S;
    while (!r->f.signal && dsi_now() < until)
        if (poll(&p, 1, (int)(TTY_S * 1e3)) > 0) take_signal(r);
}

/* ---- the end --------------------------------------------------------------------------------------------- */

/* Whoever reads what ranks have printed takes the time that it needs, unless a signal comes. */
static void write_all(running *r)
{
    output_end_lines(r->output);
    while (!r->f.signal) {
        struct pollfd p[3] = {[2] = {.fd = r->signals, .events = POLLIN}};
        output_poll(r->output, p);
        if (p[0].fd < 0 && p[1].fd < 0) return;
        poll(p, 3, -1);
        output_write(r->output);
        if (p[2].revents) take_signal(r);
    }
}

/* The status, and its line on stderr. */
static int conclude(running *r)
{
    dsi_text why = {0};
    write_all(r);
    r->f.unwritten = output_error(r->output);
    int status = verdict(&r->f, r->j, &why);
    bool clear = verdict_is_clear(&r->f) || !status;
    if (!clear && r->held.n) output_add(r->output, -1, STDERR_FILENO, r->held.s, r->held.n);
    if (why.n) output_say(r->output, why.s);
    output_finish(r->output, LINGER_S);
    dsi_text_free(&why);
    return status;
}

static void free_all(running *r)
{
    for (int i = 0; i < r->peers.n; i++)
        if (r->peers.at[i].fd >= 0) close_peer(r, &r->peers.at[i]);
    dsi_list_free(&r->peers);
    for (int k = 0; k < r->j->n_commands; k++) {
        if (r->engine[k].out >= 0) close(r->engine[k].out);
        if (r->engine[k].err >= 0) close(r->engine[k].err);
        dsi_text_free(&r->engine[k].reader.held);
    }
    if (r->listener >= 0) close(r->listener);
    close(r->signals);
    output_free(r->output);
    dsi_text_free(&r->held);
    dsi_text_free(&r->last);
    dsi_free(r->f.rank);
    dsi_free(r->engine);
}

/* Those that guard_run has blocked for us; others may be blocked for reasons of whoever started the launcher. */
static int open_signals(void)
{
    static const int ours[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
    sigset_t blocked, set;
    sigemptyset(&set);
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (sigismember(&blocked, ours[i])) sigaddset(&set, ours[i]);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int job_run(const job *j)
{
    running r = {.j = j, .listener = -1, .f = {.first = -1}};
    double all_ended = 0;
    r.signals = open_signals();
    r.f.rank = dsi_alloc((size_t)j->size * sizeof *r.f.rank);
    r.engine = dsi_alloc((size_t)j->n_commands * sizeof *r.engine);
    r.output = output_new(j->size, j->prefix);
    for (int k = 0; k < j->n_commands; k++)
        r.engine[k] = (engine_state){.process = -1, .out = -1, .err = -1};
    processes_adopt();
    bool good = r.signals >= 0 && (!j->local || listen_for_ranks(&r));
    for (int k = 0; k < j->n_commands && good; k++) good = start_engine(&r, k);
    if (!good) {
        fprintf(stderr, "deepspeed: starting %s: %s\n", j->commands[0][0], strerror(errno));
        kill_all(&r);
    }
    while (good && !over(&r)) {
        turn(&r);
        watch_clock(&r, &all_ended);
    }
    wait_for_own_signal(&r);
    processes_end();
    int status = good ? conclude(&r) : 1;
    free_all(&r);
    return status;
}
