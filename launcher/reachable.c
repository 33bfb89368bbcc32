/* launcher/reachable.c: can the hosts be reached by ssh, and what is the first
 * one's address?
 *
 * Each host is asked by an ssh of its own, which may not ask for a password;
 * the first one also for its addresses, as DeepSpeed does. ssh's own failures
 * have the status 255. Any other status came from the host, which was reached.
 *
 * Invariants: each ssh leads a process group, so that it can be killed with all
 * that it has started (ProxyCommand). Its end is SIGCHLD, not the end of its
 * output: with ControlPersist in the user's configuration a master process
 * keeps the pipe open. All ssh processes have ended and their pipes are closed
 * when reachable_check returns. SIGCHLD, SIGINT, SIGTERM and SIGHUP are blocked
 * meanwhile; only poll blocks, until the time limit.
 * SPDX-License-Identifier: MIT */
#include "reachable.h"
#include "older_libc.h"

#include "argv.h"
#include "local_host.h"
#include "signals.h"

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
#include <sys/wait.h>
#include <unistd.h>

enum { QUERY_LIMIT_MS = 15000, SSH_LIMIT_S = 10, SSH_FAILED = 255 };

typedef struct ssh_query {
    const char *host;
    int number;      /* of the host in the request */
    pid_t pid;       /* 0: it has ended; -1: it was not started */
    int fd;          /* its stdout and stderr; -1: closed */
    dsi_text answer; /* read from fd */
    int status;      /* of the process; -1: killed by us */
} ssh_query;

static int64_t now_ms(void) { return (int64_t)(dsi_now() * 1000); }

/* ---- asking ------------------------------------------------------------------ */

/* Starts argv with /dev/null as its stdin and a pipe, *fd, as its stdout and
 * stderr. Returns -1 with errno if that fails. */
static pid_t ssh_start(char **argv, const sigset_t *mask, int *fd)
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
    posix_spawnattr_setsigmask(&how, mask);
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

/* BatchMode: an ssh that needs a password fails instead of asking. */
static void query_start(ssh_query *q, int ssh_port, const sigset_t *mask, bool for_address)
{
    argv_list argv = {0};
    argv_add_words(&argv, "ssh", "-o", "BatchMode=yes", "-o");
    argv_add(&argv, "ConnectTimeout=%d", SSH_LIMIT_S);
    if (ssh_port > 0) {
        argv_add(&argv, "-p");
        argv_add(&argv, "%d", ssh_port);
    }
    argv_add(&argv, "%s", q->host);
    argv_add(&argv, for_address ? "hostname -I" : "true");
    q->pid = ssh_start(argv.at, mask, &q->fd);
    if (q->pid < 0) {
        dsi_text_add(&q->answer, "ssh: %s", strerror(errno));
        q->fd = -1;
        q->status = SSH_FAILED << 8;
    } else
        fcntl(q->fd, F_SETFL, O_NONBLOCK);
    argv_list_free(&argv);
}

/* Reads what is in the pipe now. */
static void query_read(ssh_query *q)
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

/* Output that is still in the pipe is read; then it is closed, even if another
 * process holds its other end. */
static void query_reap(ssh_query *q)
{
    if (q->pid <= 0 || waitpid(q->pid, &q->status, WNOHANG) != q->pid) return;
    q->pid = 0;
    query_read(q);
    if (q->fd >= 0) close(q->fd);
    q->fd = -1;
}

/* Kills those that still run. */
static void queries_kill(ssh_query *q, int n)
{
    for (int i = 0; i < n; i++) {
        if (q[i].pid <= 0) continue;
        kill(-q[i].pid, SIGKILL);
        waitpid(q[i].pid, NULL, 0);
        if (q[i].fd >= 0) close(q[i].fd);
        q[i].status = -1;
    }
}

/* Waits until all have ended, the time limit, or a signal other than SIGCHLD,
 * which it returns (0: none). */
static int queries_wait(ssh_query *q, int n, int signals)
{
    struct pollfd *fds = dsi_alloc(((size_t)n + 1) * sizeof *fds);
    int64_t end = now_ms() + QUERY_LIMIT_MS, left;
    int caught = 0;
    for (int running = n; running && !caught && (left = end - now_ms()) > 0;) {
        fds[n] = (struct pollfd){signals, POLLIN, 0};
        for (int i = 0; i < n; i++) fds[i] = (struct pollfd){q[i].fd, POLLIN, 0};
        running = 0;
        for (int i = 0; i < n; i++) running += q[i].pid > 0;
        if (!running || poll(fds, (nfds_t)n + 1, (int)left) <= 0) continue;
        for (int i = 0; i < n; i++)
            if (fds[i].revents) query_read(&q[i]);
        for (int signal; (signal = signals_read(signals));)
            if (signal != SIGCHLD) caught = signal;
        for (int i = 0; i < n; i++) query_reap(&q[i]);
    }
    queries_kill(q, n);
    dsi_free(fds);
    return caught;
}

/* ---- the answers --------------------------------------------------------------- */

static ds_status query_check(const ssh_query *q, const char *hostfile)
{
    const char *answer = q->answer.s ? q->answer.s : "";
    char why[64] = "";
    bool killed = q->status >= 0 && WIFSIGNALED(q->status);
    if (q->status >= 0 && !killed && WEXITSTATUS(q->status) != SSH_FAILED) return DS_OK;
    if (q->status < 0) snprintf(why, sizeof why, "no answer in time");
    if (killed)
        snprintf(why, sizeof why, "ssh was killed by signal %d (SIG%s)", WTERMSIG(q->status),
                 sigabbrev_np(WTERMSIG(q->status)));
    return dsi_fail(
        DS_ECOMM,
        "%s of %s was not reachable via ssh (%.*s%s%s); set up ssh without a password, or "
        "leave the host out (--exclude %s)",
        q->host, hostfile, (int)strcspn(answer, "\r\n"), answer, *answer && *why ? "; " : "", why,
        q->host);
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

char *reachable_resolve(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char text[64] = "";
    if (getaddrinfo(host, NULL, &hints, &found) == 0 && found)
        getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST);
    if (found) freeaddrinfo(found);
    return *text ? dsi_strdup(text) : NULL;
}

/* The first host that does not answer is the failure, or each a line. */
static ds_status queries_check(const ssh_query *q, int n, const reach_request *request)
{
    for (int i = 0; request->answers && i < request->n_hosts; i++) request->answers[i] = true;
    for (int i = 0; i < n; i++) {
        ds_status status = query_check(&q[i], request->hostfile);
        if (status == DS_OK) continue;
        if (!request->answers) return status;
        request->answers[q[i].number] = false;
        fprintf(stderr, "deepspeed: %s: it is left out\n", ds_error());
        ds_error_clear();
    }
    return DS_OK;
}

ds_status reachable_check(const reach_request *request, char **address, int *signal)
{
    ssh_query *q = dsi_alloc((size_t)request->n_hosts * sizeof *q);
    const ds_host *hosts = request->hosts;
    int n = 0;
    ds_status status = DS_OK;
    static const int list[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, 0};
    sigset_t previous;
    int signals = signals_open(list, &previous);
    for (int i = 0; i < request->n_hosts; i++) {
        if (local_host_is(hosts[i].name)) continue;
        q[n].host = hosts[i].name;
        q[n].number = i;
        query_start(&q[n++], request->ssh_port, &previous, address && i == 0);
    }
    *signal = queries_wait(q, n, signals);
    while (signals_read(signals)) continue; /* a second Ctrl-C */
    signals_close(signals, &previous);
    if (*signal)
        status = dsi_fail(DS_ECOMM,
                          "signal %d (SIG%s) while the hosts were asked: nothing was started",
                          *signal, sigabbrev_np(*signal));
    if (status == DS_OK) status = queries_check(q, n, request);
    if (status == DS_OK && address && n && q[0].host == hosts[0].name)
        *address = first_address(q[0].answer.s);
    for (int i = 0; i < n; i++) dsi_text_free(&q[i].answer);
    dsi_free(q);
    return status;
}
