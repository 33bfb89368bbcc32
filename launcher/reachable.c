/* launcher/reachable.c: can the hosts be reached by ssh, and what is the first one's address?
 *
 * All hosts are asked at the same time, each by an ssh of its own that may not ask for a password, and the first one
 * for its addresses too, as DeepSpeed does. An ssh that has not come back after a time limit, or when a signal ends the launcher, is ended. ssh's own failures
 * have the status 255; any other status came from the host, which thus was reached.
 * SPDX-License-Identifier: MIT */
#include "local_host.h"
#include "runner.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_MS = 15000, SSH_LIMIT_S = 10, SSH_FAILED = 255 };

/* One ssh. */
typedef struct Question {
    const char *host;
    pid_t pid; /* 0: it has ended; -1: it was not started */
    int fd;    /* what it says on stdout and stderr; -1: it said all */
    dsi_text answer;
    int status; /* of the process, or -1: ended by us */
} Question;

static int64_t now_ms(void) { return (int64_t)(dsi_now() * 1000); }

/* ---- asking ------------------------------------------------------------------------------------------------ */

/* What is waited for besides answers. An ssh has ended when it has, not when nobody holds its stdout any more: with
 * ControlPersist in the user's configuration its master process does. */
typedef struct Signals {
    int fd; /* SIGCHLD, and what ends the launcher */
    sigset_t was;
    int caught; /* 0: none of the latter */
} Signals;

static void watch_signals(Signals *s)
{
    static const int ours[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP};
    sigset_t mask;
    sigemptyset(&mask);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) sigaddset(&mask, ours[i]);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &mask, &s->was);
    s->fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    s->caught = 0;
}

static void leave_signals(Signals *s)
{
    struct signalfd_siginfo info;
    while (read(s->fd, &info, sizeof info) == sizeof info) continue; /* a second Ctrl-C */
    close(s->fd);
    sigprocmask(SIG_SETMASK, &s->was, NULL);
}

/* Starts argv with /dev/null as its stdin and a pipe as its stdout and stderr; -1 with errno if it cannot. It leads a
 * process group, which can be ended with all that it has started (ProxyCommand). */
static pid_t start(char **argv, const Signals *s, int *fd)
{
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_adddup2(&files, ends[1], 2);
    posix_spawnattr_init(&how);
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setsigmask(&how, &s->was);
    int error = posix_spawnp(&pid, argv[0], &files, &how, argv, environ);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    *fd = ends[0];
    if (!error) return pid;
    close(ends[0]);
    errno = error;
    return -1;
}

static void ask(Question *q, const launch_plan *p, const Signals *s, bool for_address)
{
    words w = {0};
    words_add(&w, "ssh");
    words_add(&w, "-o");
    words_add(&w, "BatchMode=yes");
    words_add(&w, "-o");
    words_add(&w, "ConnectTimeout=%d", SSH_LIMIT_S);
    if (p->o.ssh_port > 0) {
        words_add(&w, "-p");
        words_add(&w, "%d", p->o.ssh_port);
    }
    words_add(&w, "%s", q->host);
    words_add(&w, for_address ? "hostname -I" : "true");
    q->pid = start(w.at, s, &q->fd);
    if (q->pid < 0) {
        dsi_text_add(&q->answer, "ssh: %s", strerror(errno));
        q->fd = -1;
        q->status = SSH_FAILED << 8;
    } else
        fcntl(q->fd, F_SETFL, O_NONBLOCK);
    words_free(&w);
}

/* What is in the pipe now. */
static void hear(Question *q)
{
    char text[512];
    ssize_t n = 1;
    while (q->fd >= 0 && n > 0) {
        n = read(q->fd, text, sizeof text);
        if (n > 0) dsi_text_add_bytes(&q->answer, text, (size_t)n);
    }
    if (q->fd < 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
    close(q->fd);
    q->fd = -1;
}

static void note_end(Question *q)
{
    if (q->pid <= 0 || waitpid(q->pid, &q->status, WNOHANG) != q->pid) return;
    q->pid = 0;
    hear(q);
    if (q->fd >= 0) close(q->fd);
    q->fd = -1;
}

static void take_signals(Signals *s, Question *q, int n)
{
    struct signalfd_siginfo info;
    while (read(s->fd, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD) s->caught = (int)info.ssi_signo;
    for (int i = 0; i < n; i++) note_end(&q[i]);
}

/* None of them runs any more, whether it has answered or not. */
static void end_all(Question *q, int n)
{
    for (int i = 0; i < n; i++) {
        if (q[i].pid <= 0) continue;
        kill(-q[i].pid, SIGKILL);
        waitpid(q[i].pid, NULL, 0);
        if (q[i].fd >= 0) close(q[i].fd);
        q[i].status = -1;
    }
}

/* Until each has answered, time is up, or a signal has come. */
static void await(Question *q, int n, Signals *s)
{
    struct pollfd *fds = dsi_alloc(((size_t)n + 1) * sizeof *fds);
    int64_t end = now_ms() + LIMIT_MS, left;
    for (int running = n; running && !s->caught && (left = end - now_ms()) > 0;) {
        fds[n] = (struct pollfd){s->fd, POLLIN, 0};
        for (int i = 0; i < n; i++) fds[i] = (struct pollfd){q[i].fd, POLLIN, 0};
        running = 0;
        for (int i = 0; i < n; i++) running += q[i].pid > 0;
        if (!running || poll(fds, (nfds_t)n + 1, (int)left) <= 0) continue;
        for (int i = 0; i < n; i++)
            if (fds[i].revents) hear(&q[i]);
        if (fds[n].revents) take_signals(s, q, n);
    }
    end_all(q, n);
    dsi_free(fds);
}

/* ---- judging ----------------------------------------------------------------------------------------------- */

static ds_status judge(const launch_plan *p, const Question *q)
{
    const char *says = q->answer.s ? q->answer.s : "";
    const char *hostfile = p->o.hostfile ? p->o.hostfile : DEFAULT_HOSTFILE;
    if (q->status >= 0 && !(WIFEXITED(q->status) && WEXITSTATUS(q->status) == SSH_FAILED))
        return DS_OK;
    return dsi_fail(
        DS_ECOMM,
        "%s of %s was not reachable via ssh (%.*s%s); set up ssh without a password, or "
        "leave the host out (--exclude %s)",
        q->host, hostfile, (int)strcspn(says, "\r\n"), says,
        q->status < 0 ? "no answer in time" : "", q->host);
}

/* The first word of "10.1.2.3 192.168.0.7", if it is an address. */
static char *first_address(const char *answer)
{
    size_t n = answer ? strcspn(answer, " \r\n") : 0;
    if (!n || strspn(answer, "0123456789abcdefABCDEF.:") != n) return NULL;
    dsi_text t = {0};
    dsi_text_add_bytes(&t, answer, n);
    return t.s;
}

static char *look_up(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char text[64] = "";
    if (getaddrinfo(host, NULL, &hints, &found) == 0 && found)
        getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    if (found) freeaddrinfo(found);
    return *text ? dsi_strdup(text) : NULL;
}

static ds_status note_signal(launch_plan *p, int signal)
{
    p->wrong = 128 + signal;
    return dsi_fail(DS_ECOMM, "signal %d (SIG%s) while the hosts were asked: nothing was started",
                    signal, sigabbrev_np(signal));
}

/* Asks the first n hosts, but not this machine; the first one for its address if that is wanted. */
static ds_status ask_hosts(launch_plan *p, int n_hosts, bool wants_address)
{
    Question *q = dsi_alloc((size_t)n_hosts * sizeof *q);
    int n = 0;
    ds_status status = DS_OK;
    bool asked_first = false;
    Signals signals;
    watch_signals(&signals);
    for (int i = 0; i < n_hosts; i++) {
        if (here_is(p->hosts[i].name)) continue;
        q[n].host = p->hosts[i].name;
        ask(&q[n++], p, &signals, wants_address && i == 0);
        asked_first = asked_first || i == 0;
    }
    await(q, n, &signals);
    leave_signals(&signals);
    if (signals.caught) status = note_signal(p, signals.caught);
    for (int i = 0; i < n && status == DS_OK; i++) status = judge(p, &q[i]);
    if (status == DS_OK && wants_address && asked_first)
        p->master_addr = first_address(q[0].answer.s);
    for (int i = 0; i < n; i++) dsi_text_free(&q[i].answer);
    dsi_free(q);
    return status;
}

/* One host that is left of a hostfile is this machine, as DeepSpeed has it; if it has another name, that is worth a
 * line. */
static void stay(launch_plan *p)
{
    const char *name = p->hosts[0].name;
    if (!p->master_addr) p->master_addr = here_address();
    if (!args_silent(&p->o) && !here_is(name))
        fprintf(stderr,
                "deepspeed: the ranks of %s are started on this machine, as no other host is left; "
                "--force_multi starts them there\n",
                name);
}

static ds_status reach(launch_plan *p)
{
    bool by_ssh = p->engine == ENGINE_OPENMPI || p->engine == ENGINE_MPICH ||
                  p->engine == ENGINE_MVAPICH;
    bool local = p->engine == ENGINE_DIRECT || p->engine == ENGINE_LOCAL;
    if (local && p->from == FROM_HOSTFILE) stay(p);
    bool wants_address = !p->master_addr && p->n_hosts && p->from != FROM_SRUN;
    ds_status status = DS_OK;
    if (by_ssh && !p->o.no_ssh_check) status = ask_hosts(p, p->n_hosts, wants_address);
    if (status != DS_OK || !wants_address || p->master_addr) return status;

    const char *first = host_address(&p->hosts[0]);
    p->master_addr = here_is(first) ? here_address() : look_up(first);
    if (!p->master_addr && by_ssh && p->o.no_ssh_check) status = ask_hosts(p, 1, true);
    if (status == DS_OK && !p->master_addr)
        return dsi_fail(DS_ECOMM, "%s: its address cannot be found; give it as --master_addr",
                        first);
    return status;
}

int plan_reach(launch_plan *p)
{
    p->wrong = EXIT_FAILURE;
    if (reach(p) == DS_OK) {
        plan_compose(p);
        return 0;
    }
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return p->wrong;
}
