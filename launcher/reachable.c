/* launcher/reachable.c: whether the hosts can be reached by ssh, and the
 * address of the first.
 *
 * Each host is asked by an ssh of its own, which may not ask for a password;
 * the first one also for its addresses, as DeepSpeed does. ssh's own failures
 * have the status 255. Any other status came from the host, which was reached.
 *
 * Note [Tree of hosts]
 *
 * The cost of an ssh is the processor time of the host that runs it, so more
 * than fan_out hosts are asked as a tree, the one by which Open MPI starts its
 * daemons (its routed_radix): here the first fan_out of n hosts are asked, and
 * number c of them asks c + fan_out, c + 2 fan_out, ... in the same way, with
 * "deepspeed --ask_hosts". It prints a line for each host that was reached. The
 * others are asked from here, once more: hosts need not reach each other. If
 * one of them answers, the daemons are not started as a tree either.
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

/* A host whose own hosts do not answer has LEVEL_MS left to say so. */
enum { QUERY_LIMIT_MS = 15000, LEVEL_MS = 3000, SSH_LIMIT_S = 10, SSH_FAILED = 255 };

#define REACHED "reached " /* and a host: a line of --ask_hosts */

typedef struct ssh_query {
    const char *host;
    int number;      /* of the host in the request */
    pid_t pid;       /* 0: none, or it has ended; -1: it was not started */
    int fd;          /* its stdout and stderr; -1: closed */
    dsi_text answer; /* read from fd */
    int status;      /* of the process; -1: killed by us */
    bool reached;    /* by another host */
} ssh_query;

typedef struct reach_queries {
    ssh_query *at; /* [n] of the hosts that are not this machine */
    int n;
    int fan_out; /* 0: all are asked from here */
    int ssh_port;
    int limit_ms;
    const char *deepspeed; /* path of this program, if fan_out */
    int signals;           /* descriptor */
    sigset_t previous;     /* before they were blocked */
    int output;            /* its reader has gone: stop; -1: none */
} queries;

static int64_t now_ms(void) { return (int64_t)(dsi_now() * 1000); }

static bool query_has_answered(const ssh_query *q)
{
    return q->status >= 0 && !WIFSIGNALED(q->status) && WEXITSTATUS(q->status) != SSH_FAILED;
}

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
static void query_start(ssh_query *q, const queries *all, const char *command)
{
    argv_list argv = {0};
    argv_add_words(&argv, "ssh", "-o", "BatchMode=yes", "-o");
    argv_add(&argv, "ConnectTimeout=%d", SSH_LIMIT_S);
    if (all->ssh_port > 0) {
        argv_add(&argv, "-p");
        argv_add(&argv, "%d", all->ssh_port);
    }
    argv_add(&argv, "%s", q->host);
    argv_add(&argv, "%s", command);
    q->pid = ssh_start(argv.at, &all->previous, &q->fd);
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
static void queries_kill(const queries *all)
{
    for (int i = 0; i < all->n; i++) {
        ssh_query *q = &all->at[i];
        if (q->pid <= 0) continue;
        kill(-q->pid, SIGKILL);
        waitpid(q->pid, NULL, 0);
        if (q->fd >= 0) close(q->fd);
        *q = (ssh_query){q->host, q->number, 0, -1, q->answer, -1, false};
    }
}

/* Waits until all have ended, the time limit, or a signal other than SIGCHLD,
 * which it returns (0: none). */
static int queries_wait(const queries *all)
{
    const int n = all->n;
    struct pollfd *fds = dsi_alloc(((size_t)n + 2) * sizeof *fds);
    int64_t end = now_ms() + all->limit_ms, left;
    int caught = 0;
    for (int i = 0; i < n; i++) query_reap(&all->at[i]); /* whose SIGCHLD came before */
    for (int running = n; running && !caught && (left = end - now_ms()) > 0;) {
        fds[n] = (struct pollfd){all->signals, POLLIN, 0};
        fds[n + 1] = (struct pollfd){all->output, 0, 0};
        for (int i = 0; i < n; i++) fds[i] = (struct pollfd){all->at[i].fd, POLLIN, 0};
        running = 0;
        for (int i = 0; i < n; i++) running += all->at[i].pid > 0;
        if (!running || poll(fds, (nfds_t)n + 2, (int)left) <= 0) continue;
        for (int i = 0; i < n; i++)
            if (fds[i].revents) query_read(&all->at[i]);
        if (fds[n + 1].revents) caught = SIGPIPE;
        for (int signal; (signal = signals_read(all->signals));)
            if (signal != SIGCHLD) caught = signal;
        for (int i = 0; i < n; i++) query_reap(&all->at[i]);
    }
    queries_kill(all);
    dsi_free(fds);
    return caught;
}

static void queries_open(queries *all)
{
    static const int list[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, 0};
    all->signals = signals_open(list, &all->previous);
}

static void queries_free(queries *all)
{
    for (int i = 0; i < all->n; i++) dsi_text_free(&all->at[i].answer);
    dsi_free(all->at);
}

static void queries_close(queries *all)
{
    while (signals_read(all->signals)) continue; /* a second Ctrl-C */
    signals_close(all->signals, &all->previous);
    queries_free(all);
}

static void queries_add(queries *all, const char *host, int number)
{
    all->at[all->n++] = (ssh_query){.host = host, .number = number, .fd = -1};
}

/* ---- the tree ------------------------------------------------------------------ */

static bool queries_are_tree(const queries *all)
{
    return all->fan_out > 0 && all->n > all->fan_out;
}

/* " deepspeed --ask_hosts ..." for the hosts below number c. */
static void add_ask_command(dsi_text *t, const queries *all, int c)
{
    int limit = all->limit_ms - LEVEL_MS;
    dsi_text_add(t, "exec ");
    text_add_shell(t, all->deepspeed);
    dsi_text_add(t, " --ask_hosts %d %d %d", all->fan_out, all->ssh_port,
                 limit < LEVEL_MS ? LEVEL_MS : limit);
    for (int i = c + all->fan_out; i < all->n; i += all->fan_out) {
        dsi_text_add(t, " ");
        text_add_shell(t, all->at[i].host);
    }
}

/* Number c has answered: the hosts below it that it has reached. */
static void query_read_reached(const queries *all, int c)
{
    const char *answer = all->at[c].answer.s ? all->at[c].answer.s : "";
    for (int i = c + all->fan_out; i < all->n; i += all->fan_out) {
        dsi_text line = dsi_text_of(REACHED "%s\n", all->at[i].host);
        const char *found = strstr(answer, line.s);
        all->at[i].reached = found && (found == answer || found[-1] == '\n');
        dsi_text_free(&line);
    }
}

/* Asks all, or the first fan_out. for_address: host 0 also for that. */
static void queries_start(const queries *all, bool for_address)
{
    bool tree = queries_are_tree(all);
    int n = tree ? all->fan_out : all->n;
    for (int i = 0; i < n; i++) {
        bool ask = tree && i + n < all->n, address = for_address && i == 0;
        dsi_text command = dsi_text_of("%s%s",
                                       address ? "hostname -I"
                                       : ask   ? ""
                                               : "true",
                                       address && ask ? "; " : "");
        if (ask) add_ask_command(&command, all, i);
        query_start(&all->at[i], all, command.s);
        dsi_text_free(&command);
    }
}

/* After queries_start. Returns the signal that ended it; 0: none. */
static int queries_finish(const queries *all)
{
    int caught = queries_wait(all);
    for (int i = 0; queries_are_tree(all) && i < all->fan_out; i++) query_read_reached(all, i);
    return caught;
}

/* After queries_finish: those that no other host has reached. *answered: one of
 * them answers. */
static int queries_run_rest(const queries *all, bool *answered)
{
    int caught, first = all->fan_out;
    for (int i = first; i < all->n; i++)
        if (!all->at[i].reached) query_start(&all->at[i], all, "true");
    caught = queries_wait(all);
    for (int i = first; i < all->n; i++)
        *answered = *answered || (!all->at[i].reached && query_has_answered(&all->at[i]));
    return caught;
}

int reachable_ask_hosts(int argc, char **argv)
{
    queries all = {.deepspeed = local_host_program(), .output = STDOUT_FILENO};
    if (argc < 6 || (all.fan_out = atoi(argv[2])) < 1 || (all.limit_ms = atoi(argv[4])) < 1) {
        fprintf(stderr, "deepspeed: --ask_hosts: expected FAN_OUT PORT MILLISECONDS HOST...\n");
        return EXIT_FAILURE;
    }
    all.ssh_port = atoi(argv[3]);
    all.at = dsi_alloc((size_t)argc * sizeof *all.at);
    for (int i = 5; i < argc; i++) queries_add(&all, argv[i], i);
    queries_open(&all);
    queries_start(&all, false);
    int signal = queries_finish(&all);
    for (int i = 0; i < all.n && !signal; i++) {
        bool asked = !queries_are_tree(&all) || i < all.fan_out;
        if (asked ? query_has_answered(&all.at[i]) : all.at[i].reached)
            printf(REACHED "%s\n", all.at[i].host);
    }
    queries_close(&all);
    dsi_free((char *)all.deepspeed);
    return signal ? 128 + signal : EXIT_SUCCESS;
}

/* ---- the answers --------------------------------------------------------------- */

static ds_status query_check(const ssh_query *q, const char *hostfile)
{
    const char *answer = q->answer.s ? q->answer.s : "";
    char why[64] = "";
    bool killed = q->status >= 0 && WIFSIGNALED(q->status);
    if (query_has_answered(q)) return DS_OK;
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
static ds_status queries_check(const queries *all, const reach_request *request)
{
    for (int i = 0; request->answers && i < request->n_hosts; i++) request->answers[i] = true;
    for (int i = 0; i < all->n; i++) {
        ds_status status = query_check(&all->at[i], request->hostfile);
        if (status == DS_OK) continue;
        if (!request->answers) return status;
        request->answers[all->at[i].number] = false;
        fprintf(stderr, "deepspeed: %s: it is left out\n", ds_error());
        ds_error_clear();
    }
    return DS_OK;
}

static queries queries_of(const reach_request *request)
{
    const ds_host *hosts = request->hosts;
    queries all = {.at = dsi_alloc((size_t)request->n_hosts * sizeof *all.at),
                   .fan_out = request->fan_out,
                   .ssh_port = request->ssh_port,
                   .limit_ms = QUERY_LIMIT_MS,
                   .deepspeed = request->deepspeed,
                   .signals = -1,
                   .output = -1};
    for (int i = 0; i < request->n_hosts; i++)
        if (!local_host_is(hosts[i].name)) queries_add(&all, hosts[i].name, i);
    return all;
}

/* For each ssh no signal is blocked, as here `previous` is empty. */
struct reach_queries *reachable_begin(const reach_request *request)
{
    queries *begun = dsi_alloc(sizeof *begun);
    *begun = queries_of(request);
    queries_start(begun, false);
    return begun;
}

void reachable_drop(struct reach_queries *begun)
{
    if (!begun) return;
    queries_kill(begun);
    queries_free(begun);
    dsi_free(begun);
}

ds_status reachable_check(const reach_request *request, char **address, int *signal, bool *tree)
{
    bool others = false; /* one that only this host has reached */
    ds_status status = DS_OK;
    bool begun = request->begun != NULL;
    queries all = begun ? *request->begun : queries_of(request);
    bool for_address = !begun && address && all.n && all.at[0].number == 0;
    dsi_free(request->begun);
    queries_open(&all);
    if (!begun) queries_start(&all, for_address);
    *tree = queries_are_tree(&all);
    *signal = queries_finish(&all);
    if (*tree && !*signal) *signal = queries_run_rest(&all, &others);
    *tree = *tree && !others;
    if (*signal)
        status = dsi_fail(DS_ECOMM,
                          "signal %d (SIG%s) while the hosts were asked: nothing was started",
                          *signal, sigabbrev_np(*signal));
    if (status == DS_OK) status = queries_check(&all, request);
    if (status == DS_OK && for_address) *address = first_address(all.at[0].answer.s);
    queries_close(&all);
    return status;
}
