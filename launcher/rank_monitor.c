/* launcher/rank_monitor.c: the program of a rank while it runs.
 *
 * The monitor stays between the runner and the program for three things that no
 * runner does. It reports how the program ended before the runner knows, so
 * that the launcher can tell the first failure from those that follow. It
 * passes on whole lines. It ends what the program leaves behind.
 *
 * The program joins the launcher's process group where the system allows it
 * (not across sessions): the terminal's Ctrl-C, Ctrl-Z and input then reach it
 * as if it had been started there.
 *
 * Invariants: the monitor is the subreaper of the program's processes and ends
 * them all before it exits. The program gets SIGKILL when the monitor dies, and
 * SIGTERM, then SIGKILL after processes_grace, when the launcher is gone or
 * sends SIGTERM. `progress` is written by the program alone, and read once that
 * has ended. Signals are blocked and read from `signals`. poll and sending
 * records block; the former until `kill_at` or `last`. Order of records:
 * WIRE_STARTED, WIRE_OUT and WIRE_ERR, WIRE_PROGRESS, WIRE_ENDED last. A monitor whose program
 * failed waits for the launcher's leave (LEAVE_S), as runners end the other
 * ranks, and less well than the launcher, once one has exited.
 * SPDX-License-Identifier: MIT */
#include "rank_monitor.h"

#include "argv.h"
#include "oom.h"
#include "processes.h"
#include "program.h"
#include "signals.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/progress.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#define AGAIN_S 1.0  /* between two SIGKILL */
#define LAST_S  0.5  /* to read the pipes after the program has ended */
#define LEAVE_S 20.0 /* for the launcher to end the other ranks */

typedef struct monitor {
    const monitored *w;
    int program;            /* its process */
    int signals;            /* descriptor */
    int out, err;           /* the program's output; -1: closed */
    int error_pipe;         /* errno comes from it if execution fails */
    int progress_fd;        /* the file of `progress` */
    dsi_progress *progress; /* NULL: it is not watched */
    bool ended;             /* the program */
    bool may_leave;         /* the launcher has sent signal 0 */
    bool requested;         /* the program was told to end */
    bool launcher_gone;
    double kill_at, last; /* when to kill it, to stop reading; 0: not set */
    long oom_kills;       /* of our control group, before the start */
    rank_exit exit;
} monitor;

int monitor_replace(char **argv)
{
    program_execute(argv);
    int status = program_explain(argv[0], errno);
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return status;
}

/* ---- starting ------------------------------------------------------------------------ */

typedef struct pipes {
    int out[2], err[2], error[2];
} pipes;

/* A pipe or, with columns, a terminal that passes bytes on unchanged. */
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

static bool make_pipes(const monitored *w, pipes *p)
{
    *p = (pipes){{-1, -1}, {-1, -1}, {-1, -1}};
    return make_pipe(0, p->error) &&
           (!w->piped || (make_pipe(w->columns, p->out) && make_pipe(w->columns, p->err)));
}

/* Without it the launcher knows less, and all else works. */
static void monitor_make_progress(monitor *s)
{
    const dsi_progress empty = {.magic = DSI_PROGRESS_MAGIC};
    int fd = memfd_create("deepspeed-progress", MFD_CLOEXEC);
    if (fd < 0 || write(fd, &empty, sizeof empty) != sizeof empty) return;
    s->progress = mmap(NULL, sizeof empty, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s->progress == MAP_FAILED) s->progress = NULL;
    s->progress_fd = fd;
}

/* In the child. */
static void pass_progress(int fd)
{
    char number[20];
    snprintf(number, sizeof number, "%d", fd);
    setenv(DSI_PROGRESS_VARIABLE, number, 1);
    fcntl(fd, F_SETFD, 0);
}

/* In the child. */
static void monitored_exec(const monitored *w, const pipes *p, int parent)
{
    if (w->group) setpgid(0, w->group);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* the monitor has died already */
    const int files[3] = {w->std[0], w->piped ? p->out[1] : w->std[1],
                          w->piped ? p->err[1] : w->std[2]};
    for (int i = 0; i < 3; i++)
        if (files[i] >= 0) dup2(files[i], i);
    if (w->nohup) signal(SIGHUP, SIG_IGN);
    signal(SIGXFSZ, SIG_DFL);
    signals_unblock();
    program_execute(w->argv);
    int error = errno;
    if (write(p->error[1], &error, sizeof error) < 0) _exit(126);
    _exit(127);
}

/* -1: not open. */
static void close_all(int n, const int *fd)
{
    for (int i = 0; i < n; i++)
        if (fd[i] >= 0) close(fd[i]);
}

/* A long command line is cut to what a record holds. */
static void monitor_report_start(const monitor *s)
{
    dsi_text t = dsi_text_of("%d spawned with command:", s->program);
    for (char **word = s->w->argv; *word; word++) {
        dsi_text_add(&t, " ");
        text_add_shell(&t, *word);
    }
    wire_send(&s->w->wire, WIRE_STARTED, t.s, t.n < WIRE_PAYLOAD ? t.n : WIRE_PAYLOAD);
    dsi_text_free(&t);
}

/* Both processes set the process group, as either may be the first to need it.
 * The error pipe closes on exec, so that an empty one means success. */
static bool monitor_start(monitor *s)
{
    static const int ours[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, 0};
    pipes p;
    s->signals = signals_open(ours, NULL);
    bool good = s->signals >= 0 && make_pipes(s->w, &p);
    int self = getpid();
    s->program = good ? fork() : -1;
    if (s->program == 0 && s->progress) pass_progress(s->progress_fd);
    if (s->program == 0) monitored_exec(s->w, &p, self);
    if (s->program < 0) {
        s->exit.error = errno;
        return false;
    }
    if (s->w->group) setpgid(s->program, s->w->group);
    close_all(3, (int[]){p.out[1], p.err[1], p.error[1]});
    close_all(3, s->w->std);
    s->out = p.out[0];
    s->err = p.err[0];
    s->error_pipe = p.error[0];
    s->exit.process = s->program;
    monitor_report_start(s);
    return true;
}

/* ---- while the program runs ----------------------------------------------------------- */

/* SIGTERM is followed by SIGKILL after processes_grace. */
static void monitor_signal(monitor *s, int signal)
{
    if (s->ended) return;
    s->requested = s->requested || signal == SIGTERM || signal == SIGKILL;
    if (signal == SIGTERM && !s->kill_at) s->kill_at = dsi_now() + processes_grace();
    kill(s->program, signal);
}

/* Kills what the program has left running; its output so far is still read,
 * until `last`. */
static void monitor_note_end(monitor *s, int status)
{
    s->ended = true;
    s->last = dsi_now() + LAST_S;
    s->exit.code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    s->exit.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    s->exit.requested = s->requested;
    s->exit.out_of_memory = s->exit.signal == SIGKILL && oom_count_kills("") > s->oom_kills;
    if (read(s->error_pipe, &s->exit.error, sizeof s->exit.error) != sizeof s->exit.error)
        s->exit.error = 0;
    processes_signal(getpid(), SIGKILL);
}

static void monitor_read_signal(monitor *s)
{
    int status, pid, signal = signals_read(s->signals);
    if (signal == SIGUSR1 || signal == SIGUSR2) monitor_signal(s, signal);
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) monitor_signal(s, SIGTERM);
    while (signal == SIGCHLD && (pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == s->program) monitor_note_end(s, status);
}

/* A signal for the program, or the end of the connection. */
static void monitor_read_launcher(monitor *s)
{
    char record[WIRE_RECORD];
    int signal;
    ssize_t n = recv(s->w->wire.fd, record, sizeof record, 0);
    if (n <= 0) {
        s->launcher_gone = true;
        monitor_signal(s, SIGTERM);
        return;
    }
    const char *line = memchr(record, '\n', (size_t)n);
    if (!line) return;
    if (wire_numbers(line + 1, (size_t)(record + n - line - 1), 1, &signal) != 1) return;
    if (signal) monitor_signal(s, signal);
    s->may_leave = s->may_leave || !signal;
}

/* Returns fd, or -1 at the end of the stream. */
static int monitor_read_output(monitor *s, int fd, wire_kind kind)
{
    char bytes[WIRE_PAYLOAD];
    ssize_t n = read(fd, bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return fd;
    if (n > 0 && (s->launcher_gone || wire_send(&s->w->wire, kind, bytes, (size_t)n))) return fd;
    if (n > 0) s->launcher_gone = true;
    if (n > 0) return fd;
    close(fd);
    return -1;
}

/* Until the next limit; an hour if there is none. */
static int monitor_wait_ms(const monitor *s)
{
    double until = s->ended ? s->last : s->kill_at;
    double left = until ? until - dsi_now() : 3600;
    return left < 0 ? 0 : (int)(left * 1e3) + 1;
}

/* Waits for something to happen and handles it. */
static void monitor_step(monitor *s)
{
    struct pollfd p[4] = {
        {.fd = s->signals, .events = POLLIN},
        {.fd = s->w->wire.socket && !s->launcher_gone ? s->w->wire.fd : -1, .events = POLLIN},
        {.fd = s->out, .events = POLLIN},
        {.fd = s->err, .events = POLLIN}};
    poll(p, 4, monitor_wait_ms(s));
    if (p[2].revents) s->out = monitor_read_output(s, s->out, WIRE_OUT);
    if (p[3].revents) s->err = monitor_read_output(s, s->err, WIRE_ERR);
    if (p[1].revents) monitor_read_launcher(s);
    if (p[0].revents) monitor_read_signal(s);
    if (s->kill_at && !s->ended && dsi_now() > s->kill_at) {
        processes_signal(getpid(), SIGKILL);
        s->kill_at = dsi_now() + AGAIN_S;
    }
}

static bool monitor_is_over(const monitor *s)
{
    return s->ended && ((s->out < 0 && s->err < 0) || dsi_now() > s->last);
}

/* Only with a socket: in stderr the launcher cannot answer. */
static void monitor_wait_leave(monitor *s)
{
    double until = dsi_now() + LEAVE_S;
    while (s->w->wire.socket && !s->may_leave && !s->launcher_gone && dsi_now() < until) {
        struct pollfd p = {.fd = s->w->wire.fd, .events = POLLIN};
        if (poll(&p, 1, (int)(LEAVE_S * 1e3)) > 0) monitor_read_launcher(s);
    }
}

/* Why the program cannot be executed: the file is on this host. The launcher
 * prints once what several ranks report. */
static void monitor_report_unfit(monitor *s)
{
    program_explain(s->w->argv[0], s->exit.error);
    dsi_text line = dsi_text_of("deepspeed: %s\n", ds_error());
    s->exit.reported = wire_send(&s->w->wire, WIRE_ERR, line.s, line.n);
    dsi_text_free(&line);
}

/* Steps are counted only by programs that have an engine. */
static void monitor_report_progress(const monitor *s)
{
    const dsi_progress *p = s->progress;
    bool good = !rank_exit_status(&s->exit);
    if (!p || p->ready == 0) return;
    double until = good ? dsi_now() : p->saved_at;
    wire_send_progress(&s->w->wire, &(rank_progress){.first = (int)p->first,
                                                     .step = (int)p->step,
                                                     .saved = (int)p->saved,
                                                     .useful_s = until > 0 ? until - p->ready : 0});
}

/* Order: start, steps until the program has ended and its output was read,
 * WIRE_ENDED, leave. */
int monitor_run(const monitored *w)
{
    monitor s = {.w = w, .out = -1, .err = -1, .oom_kills = oom_count_kills("")};
    processes_adopt();
    if (w->watched) monitor_make_progress(&s);
    if (monitor_start(&s)) {
        while (!monitor_is_over(&s)) monitor_step(&s);
        close_all(4, (int[]){s.out, s.err, s.error_pipe, s.signals});
    }
    if (s.exit.error) monitor_report_unfit(&s);
    monitor_report_progress(&s);
    wire_send_exit(&w->wire, &s.exit);
    if (rank_exit_status(&s.exit)) monitor_wait_leave(&s);
    processes_end();
    return rank_exit_status(&s.exit);
}
