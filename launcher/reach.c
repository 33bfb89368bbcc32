/* launcher/reach.c: can the hosts be reached by ssh, and what is the first one's address?
 *
 * All hosts are asked at the same time, each by an ssh of its own that may not ask for a password, and the first one
 * for its addresses too, as DeepSpeed does. An ssh that has not come back after a time limit is ended. ssh's own failures
 * have the status 255; any other status came from the host, which thus was reached.
 * SPDX-License-Identifier: MIT */
#include "engines.h"
#include "here.h"

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

enum { LIMIT_MS = 15000, SSH_LIMIT_S = 10, SSH_FAILED = 255 };

/* One ssh. */
typedef struct Question {
    const char *host;
    pid_t pid;
    int fd; /* what it says on stdout and stderr; -1: it said all */
    dsi_text answer;
    int status; /* of the process, or -1: ended by us */
} Question;

static int64_t now_ms(void) { return (int64_t)(dsi_now() * 1000); }

/* ---- asking ------------------------------------------------------------------------------------------------ */

/* Starts argv with /dev/null as its stdin and a pipe as its stdout and stderr; -1 with errno if it cannot. */
static pid_t start(char **argv, int *fd)
{
    int ends[2];
    pid_t pid = -1;
    posix_spawn_file_actions_t files;
    if (pipe2(ends, O_CLOEXEC) != 0) return -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    posix_spawn_file_actions_adddup2(&files, ends[1], 2);
    int error = posix_spawnp(&pid, argv[0], &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    close(ends[1]);
    *fd = ends[0];
    if (!error) return pid;
    close(ends[0]);
    errno = error;
    return -1;
}

static void ask(Question *q, const launch_plan *p, bool for_address)
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
    q->pid = start(w.at, &q->fd);
    if (q->pid < 0) {
        dsi_text_add(&q->answer, "ssh: %s", strerror(errno));
        q->fd = -1;
        q->status = SSH_FAILED << 8;
    }
    words_free(&w);
}

static void hear(Question *q)
{
    char text[512];
    ssize_t n = read(q->fd, text, sizeof text);
    if (n > 0) dsi_text_add_bytes(&q->answer, text, (size_t)n);
    if (n > 0 || (n < 0 && errno == EINTR)) return;
    close(q->fd);
    q->fd = -1;
}

/* Until each has answered, or time is up; then none of them runs any more. */
static void await(Question *q, int n)
{
    struct pollfd *fds = dsi_alloc((size_t)n * sizeof *fds);
    int64_t end = now_ms() + LIMIT_MS, left;
    for (int open = 1; open && (left = end - now_ms()) > 0;) {
        open = 0;
        for (int i = 0; i < n; i++) {
            fds[i] = (struct pollfd){q[i].fd, POLLIN, 0};
            open += q[i].fd >= 0;
        }
        if (!open || poll(fds, (nfds_t)n, (int)left) <= 0) continue;
        for (int i = 0; i < n; i++)
            if (fds[i].fd >= 0 && fds[i].revents) hear(&q[i]);
    }
    for (int i = 0; i < n; i++) {
        bool late = q[i].fd >= 0;
        if (late) {
            kill(q[i].pid, SIGKILL);
            close(q[i].fd);
        }
        if (q[i].pid > 0) waitpid(q[i].pid, &q[i].status, 0);
        if (late) q[i].status = -1;
    }
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

/* Asks the first n hosts, but not this machine; the first one for its address if that is wanted. */
static ds_status ask_hosts(launch_plan *p, int n_hosts, bool wants_address)
{
    Question *q = dsi_alloc((size_t)n_hosts * sizeof *q);
    int n = 0;
    ds_status status = DS_OK;
    bool asked_first = false;
    for (int i = 0; i < n_hosts; i++) {
        if (here_is(p->hosts[i].name)) continue;
        q[n].host = p->hosts[i].name;
        ask(&q[n++], p, wants_address && i == 0);
        asked_first = asked_first || i == 0;
    }
    await(q, n);
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
    if (reach(p) == DS_OK) {
        plan_compose(p);
        return 0;
    }
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return EXIT_FAILURE;
}
