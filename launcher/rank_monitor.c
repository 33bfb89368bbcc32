/* launcher/rank_monitor.c: the program of a rank while it runs.
 *
 * The process stays between the engine and the program for three things that no engine does: it says how the
 * program ended before the engine knows, so that the launcher can tell the first that failed from those ended
 * because of it; it passes whole lines on; and it ends what the program leaves behind. The program dies with it, and
 * is told to end when the launcher goes.
 *
 * The program joins the launcher's process group where the system allows it (not across sessions): then the
 * terminal's Ctrl-C, Ctrl-Z and input are its own, as if it had been started there.
 * SPDX-License-Identifier: MIT */
#include "rank_monitor.h"

#include "argv.h"
#include "processes.h"
#include "program.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define AGAIN_S  1.0
#define LAST_S   0.5  /* for what is in the pipes when the program has ended */
#define LEAVE_S  20.0 /* a rank that failed waits for the launcher to have ended the others */
#define OOM_FILE "/sys/fs/cgroup/memory.events"

typedef struct watch {
    const watched *w;
    int program, signals, out, err;
    int error_pipe;                /* errno, if it cannot be executed */
    bool ended, left, asked, gone; /* gone: the launcher */
    double kill_at, last;          /* 0: not set */
    long killed_before;            /* of our control group, for want of memory */
    ending how;
} watch;

/* How often the kernel has killed in this control group for want of memory. */
static long out_of_memory(void)
{
    char line[100];
    long n = 0;
    FILE *f = fopen(OOM_FILE, "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "oom_kill %ld", &n);
    if (f) fclose(f);
    return n;
}

int become_program(char **argv)
{
    program_execute(argv);
    int status = program_explain(argv[0], errno);
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return status;
}

/* ---- starting -------------------------------------------------------------------------------------------- */

typedef struct pipes {
    int out[2], err[2], error[2];
} pipes;

/* A terminal that changes nothing of what is written to it, or a pipe. */
static bool make_pipe(int columns, int fd[2])
{
    struct termios raw = {0};
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    if (!columns) return !pipe2(fd, O_CLOEXEC);
    cfmakeraw(&raw);
    raw.c_cflag |= CREAD;
    if (openpty(&fd[0], &fd[1], NULL, &raw, &size)) return false;
    fcntl(fd[0], F_SETFD, FD_CLOEXEC);
    fcntl(fd[1], F_SETFD, FD_CLOEXEC);
    return true;
}

static bool make_pipes(const watched *w, pipes *p)
{
    *p = (pipes){{-1, -1}, {-1, -1}, {-1, -1}};
    return make_pipe(0, p->error) &&
           (!w->piped || (make_pipe(w->columns, p->out) && make_pipe(w->columns, p->err)));
}

static void child(const watched *w, const pipes *p, int parent)
{
    sigset_t none;
    if (w->group) setpgid(0, w->group);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it died before we asked */
    const int give[3] = {w->std[0], w->piped ? p->out[1] : w->std[1],
                         w->piped ? p->err[1] : w->std[2]};
    for (int i = 0; i < 3; i++)
        if (give[i] >= 0) dup2(give[i], i);
    if (w->nohup) signal(SIGHUP, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    program_execute(w->argv);
    int error = errno;
    if (write(p->error[1], &error, sizeof error) < 0) _exit(126);
    _exit(127);
}

static void close_all(int n, const int *fd)
{
    for (int i = 0; i < n; i++)
        if (fd[i] >= 0) close(fd[i]);
}

static void tell_start(const watch *s)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%d spawned with command:", s->program);
    for (char **word = s->w->argv; *word; word++) {
        dsi_text_add(&t, " ");
        text_add_shell(&t, *word);
    }
    wire_send(&s->w->wire, WIRE_STARTED, t.s, t.n < WIRE_PAYLOAD ? t.n : WIRE_PAYLOAD);
    dsi_text_free(&t);
}

static bool start(watch *s)
{
    pipes p;
    sigset_t mask;
    sigemptyset(&mask);
    signal(SIGCHLD, SIG_DFL);
    const int ours[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) sigaddset(&mask, ours[i]);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    s->signals = signalfd(-1, &mask, SFD_CLOEXEC);
    bool good = s->signals >= 0 && make_pipes(s->w, &p);
    int self = getpid();
    s->program = good ? fork() : -1;
    if (s->program == 0) child(s->w, &p, self);
    if (s->program < 0) {
        s->how.error = errno;
        return false;
    }
    if (s->w->group) setpgid(s->program, s->w->group);
    close_all(3, (int[]){p.out[1], p.err[1], p.error[1]});
    close_all(3, s->w->std);
    s->out = p.out[0];
    s->err = p.err[0];
    s->error_pipe = p.error[0];
    s->how.process = s->program;
    tell_start(s);
    return true;
}

/* ---- while it runs --------------------------------------------------------------------------------------- */

/* SIGTERM: and SIGKILL after a while. */
static void order(watch *s, int signal)
{
    if (s->ended) return;
    s->asked = s->asked || signal == SIGTERM || signal == SIGKILL;
    if (signal == SIGTERM && !s->kill_at) s->kill_at = dsi_now() + processes_grace();
    kill(s->program, signal);
}

static void note_end(watch *s, int status)
{
    s->ended = true;
    s->last = dsi_now() + LAST_S;
    s->how.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    s->how.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    s->how.asked = s->asked;
    s->how.no_memory = s->how.signal == SIGKILL && out_of_memory() > s->killed_before;
    if (read(s->error_pipe, &s->how.error, sizeof s->how.error) != sizeof s->how.error)
        s->how.error = 0;
    processes_signal(getpid(), SIGKILL);
}

static void take_signal(watch *s)
{
    struct signalfd_siginfo info;
    int status, pid;
    if (read(s->signals, &info, sizeof info) != sizeof info) return;
    int signal = (int)info.ssi_signo;
    if (signal == SIGUSR1 || signal == SIGUSR2) order(s, signal);
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) order(s, SIGTERM);
    while (signal == SIGCHLD && (pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == s->program) note_end(s, status);
}

static void take_order(watch *s)
{
    char record[WIRE_RECORD];
    int signal;
    ssize_t n = recv(s->w->wire.fd, record, sizeof record, 0);
    if (n <= 0) {
        s->gone = true;
        order(s, SIGTERM);
        return;
    }
    const char *line = memchr(record, '\n', (size_t)n);
    if (!line) return;
    if (wire_numbers(line + 1, (size_t)(record + n - line - 1), 1, &signal) != 1) return;
    if (signal) order(s, signal);
    s->left = s->left || !signal;
}

/* -1: the stream has ended. */
static int take_output(watch *s, int fd, wire_kind kind)
{
    char bytes[WIRE_PAYLOAD];
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return fd;
    if (n > 0 && (s->gone || wire_send(&s->w->wire, kind, bytes, (size_t)n))) return fd;
    if (n > 0) s->gone = true;
    if (n > 0) return fd;
    close(fd);
    return -1;
}

static int patience_ms(const watch *s)
{
    double until = s->ended ? s->last : s->kill_at;
    double left = until ? until - dsi_now() : 3600;
    return left < 0 ? 0 : (int)(left * 1e3) + 1;
}

static void turn(watch *s)
{
    struct pollfd p[4] = {
        {.fd = s->signals, .events = POLLIN},
        {.fd = s->w->wire.socket && !s->gone ? s->w->wire.fd : -1, .events = POLLIN},
        {.fd = s->out, .events = POLLIN},
        {.fd = s->err, .events = POLLIN}};
    poll(p, 4, patience_ms(s));
    if (p[2].revents) s->out = take_output(s, s->out, WIRE_OUT);
    if (p[3].revents) s->err = take_output(s, s->err, WIRE_ERR);
    if (p[1].revents) take_order(s);
    if (p[0].revents) take_signal(s);
    if (s->kill_at && !s->ended && dsi_now() > s->kill_at) {
        processes_signal(getpid(), SIGKILL);
        s->kill_at = dsi_now() + AGAIN_S;
    }
}

static bool over(const watch *s)
{
    return s->ended && ((s->out < 0 && s->err < 0) || dsi_now() > s->last);
}

/* Engines end the other ranks as soon as one has gone with a failure, and less well than the launcher. */
static void wait_for_leave(watch *s)
{
    double until = dsi_now() + LEAVE_S;
    while (s->w->wire.socket && !s->left && !s->gone && dsi_now() < until) {
        struct pollfd p = {.fd = s->w->wire.fd, .events = POLLIN};
        if (poll(&p, 1, (int)(LEAVE_S * 1e3)) > 0) take_order(s);
    }
}

/* This host's file, so here; the launcher says once what many ranks say. */
static void tell_unfit(watch *s)
{
    dsi_text line = {0};
    program_explain(s->w->argv[0], s->how.error);
    dsi_text_add(&line, "deepspeed: %s\n", ds_error());
    s->how.told = wire_send(&s->w->wire, WIRE_ERR, line.s, line.n);
    dsi_text_free(&line);
}

int watch_program(const watched *w)
{
    watch s = {.w = w, .out = -1, .err = -1, .killed_before = out_of_memory()};
    processes_adopt();
    if (start(&s)) {
        while (!over(&s)) turn(&s);
        close_all(4, (int[]){s.out, s.err, s.error_pipe, s.signals});
    }
    if (s.how.error) tell_unfit(&s);
    wire_send_ending(&w->wire, &s.how);
    if (ending_status(&s.how)) wait_for_leave(&s);
    processes_end();
    return ending_status(&s.how);
}
