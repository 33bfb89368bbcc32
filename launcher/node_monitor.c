/* launcher/node_monitor.c: Open MPI's daemon on one host while it runs.
 *
 * mpirun starts one orted on each other host, by ssh or what takes its place,
 * and this process in front of it. It reports that the host was reached, that
 * orted has no connection back (a firewall), and that orted was killed: mpirun
 * waits without limit for the first two, and takes the third for a failure of
 * the network. It gives Open MPI folders of its own, and leaves no process and
 * no file behind.
 *
 * Invariants: it is the subreaper of all below it, and ends them before it
 * removes the folders. It ends when orted does or when its stderr is closed: the
 * connection to the launcher. The signals of `ours` are blocked and read from a
 * descriptor; only poll blocks, at most PROBE_S seconds.
 * SPDX-License-Identifier: MIT */
#include "node_monitor.h"

#include "args.h"
#include "job_folders.h"
#include "processes.h"
#include "signals.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE_S 10.0 /* for orted to connect to mpirun, or to try */
enum { PROBES = 3 };

typedef struct node_monitor {
    wire wire;
    int node;
    const char *uri; /* of mpirun; NULL: not known */
    char **daemon;   /* argv */
    int process;     /* of the daemon; -1: ended */
    int status;      /* of waitpid */
    int signals;
    bool told; /* the daemon was told to end */
} node_monitor;

/* ---- events ------------------------------------------------------------------- */

static void node_report(const node_monitor *m, node_event_kind kind, int signal, const char *text)
{
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    dsi_text t = dsi_text_of("%d %d %d %d %s %s", kind, m->node, m->process, signal, host, text);
    wire_send(&m->wire, WIRE_NODE, t.s, t.n);
    dsi_text_free(&t);
}

bool node_event_read(node_event *e, const char *payload, size_t n)
{
    char text[600];
    int kind;
    *e = (node_event){0};
    snprintf(text, sizeof text, "%.*s", (int)n, payload);
    int found = sscanf(text, "%d %d %d %d %255s %127[^\n]", &kind, &e->node, &e->process,
                       &e->signal, e->host, e->text);
    e->kind = (node_event_kind)kind;
    return found >= 5 && kind >= NODE_UP && kind <= NODE_CONNECTED;
}

/* ---- the connection to mpirun ------------------------------------------------- */

/* The value of "-mca NAME VALUE"; NULL: it is not there. */
static const char *daemon_find_parameter(char **argv, const char *name)
{
    for (; argv[0] && argv[1]; argv++)
        if (!strcmp(argv[0], name)) return argv[1];
    return NULL;
}

/* "123.0;tcp://10.0.0.1,10.1.0.1:33755": the address and the port. */
static bool uri_read(const char *uri, char address[64], int *port)
{
    const char *tcp = uri ? strstr(uri, "tcp://") : NULL;
    const char *colon = tcp ? strchr(tcp + 6, ':') : NULL;
    if (!colon) return false;
    snprintf(address, 64, "%.*s", (int)strcspn(tcp + 6, ",:"), tcp + 6);
    *port = atoi(colon + 1);
    return *port > 0;
}

/* As /proc/net/tcp numbers them. */
enum { TCP_NO_SOCKET = 0, TCP_CONNECTED = 1, TCP_SYN_IS_SENT = 2 };

/* How far this host has come with a connection to that port. */
static int connection_state(int port)
{
    static const char *const tables[] = {"/proc/net/tcp", "/proc/net/tcp6"};
    char line[512];
    int best = TCP_NO_SOCKET;
    for (int i = 0; i < 2 && best != TCP_CONNECTED; i++) {
        FILE *f = fopen(tables[i], "re");
        unsigned remote, state;
        while (f && best != TCP_CONNECTED && fgets(line, sizeof line, f))
            if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%*x %*[0-9A-Fa-f]:%x %x", &remote, &state) == 2 &&
                (int)remote == port && (state == TCP_CONNECTED || state == TCP_SYN_IS_SENT))
                best = (int)state;
        if (f) fclose(f);
    }
    return best;
}

/* Reports it, and returns true, once it is known: a daemon that has not tried
 * to connect may only be slow, on a busy machine. */
static bool node_check_connection(node_monitor *m, bool last)
{
    char address[64], text[128];
    int port;
    if (!uri_read(m->uri, address, &port)) return true;
    int state = connection_state(port);
    if (state == TCP_NO_SOCKET && !last) return false;
    snprintf(text, sizeof text, "%s, port %d", address, port);
    node_report(m, state == TCP_CONNECTED ? NODE_CONNECTED : NODE_UNCONNECTED, 0, text);
    return true;
}

/* ---- the daemon --------------------------------------------------------------- */

/* In the child. */
static void daemon_exec(const node_monitor *m, int parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    signals_unblock();
    execvp(m->daemon[0], m->daemon);
    fprintf(stderr, "deepspeed: %s: %s\n", m->daemon[0], strerror(errno));
    _exit(127);
}

static void node_read_signal(node_monitor *m)
{
    int pid, status, signal = signals_read(m->signals);
    if (signal && signal != SIGCHLD && m->process > 0) {
        m->told = true;
        kill(m->process, SIGTERM);
    }
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == m->process) {
            if (WIFSIGNALED(status) && !m->told)
                node_report(m, NODE_KILLED, WTERMSIG(status), basename(m->daemon[0]));
            m->status = status;
            m->process = -1;
        }
}

/* Until the daemon has ended or the launcher is gone. */
static void node_watch(node_monitor *m)
{
    double probe = dsi_now() + PROBE_S;
    int probes = 0;
    bool probed = false;
    while (m->process > 0) {
        struct pollfd p[] = {{m->signals, POLLIN, 0}, {STDERR_FILENO, 0, 0}};
        double left = probe - dsi_now();
        poll(p, 2, probed ? -1 : left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (p[1].revents & (POLLERR | POLLHUP)) return;
        if (p[0].revents) node_read_signal(m);
        if (probed || m->process < 0 || dsi_now() < probe) continue;
        probed = node_check_connection(m, ++probes == PROBES);
        probe = dsi_now() + PROBE_S;
    }
}

/* Folders of a shell that the launcher has started (supervised_shell.h) stay
 * in use. */
int node_monitor_run(int argc, char **argv)
{
    static const int ours[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, 0};
    if (argc < 4) {
        fprintf(stderr, "deepspeed: --node_monitor: expected a secret and a daemon\n");
        return STATUS_WRONG;
    }
    node_monitor m = {.wire = {.fd = STDERR_FILENO, .rank = -1}, .daemon = argv + 3};
    const char *node = daemon_find_parameter(m.daemon, "ess_base_vpid");
    job_folders folders = {0};
    snprintf(m.wire.secret, sizeof m.wire.secret, "%s", argv[2]);
    m.node = node ? atoi(node) : 0;
    m.uri = daemon_find_parameter(m.daemon, "orte_hnp_uri");
    m.signals = signals_open(ours, NULL);
    signal(SIGPIPE, SIG_IGN);
    processes_adopt();
    if (!job_folders_are_exported()) {
        job_folders_make_one(&folders);
        job_folders_export(&folders);
    }
    int self = getpid();
    m.process = fork();
    if (m.process == 0) daemon_exec(&m, self);
    if (m.process > 0) node_report(&m, NODE_UP, 0, "");
    node_watch(&m);
    processes_end();
    job_folders_remove(&folders);
    return m.process > 0 ? EXIT_FAILURE : signals_exit_status(m.status);
}
