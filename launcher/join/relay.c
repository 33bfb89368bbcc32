/* launcher/join/relay.c: node 0 while the job runs.
 *
 * The job runs as any other (run.c). Beside it the relay, a process of its own,
 * has the connections to the other nodes. It sends them the commands of
 * mpirun's agents and returns output and status. When a node is lost it tells
 * the job and closes the agents' sockets, and mpirun ends the ranks that are
 * left.
 *
 *     mpirun - agent --(Unix socket)-- relay --(TCP, authenticated)-- node K
 *                                      node K - supervised shell - orted - ranks
 *
 * Invariants: after the fork the relay process owns the channels and the
 * agents' sockets, the launcher the two pipes to it: `to_relay`, on which the
 * status of the job is written (its end without that means that the launcher
 * was killed), and `lost`, on which one line comes when a node is lost. An
 * agent's socket belongs to one node and carries one command. The relay ignores
 * signals, which the launcher gets too, and ends PARTING_S after the job at the
 * latest. It waits in poll alone: what an agent cannot take at once is dropped,
 * as it is only text.
 * SPDX-License-Identifier: MIT */
#include "runners/runners.h"
#include "session.h"
#include "wire.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PARTING_S 6.0 /* for the other nodes to end */

#define RELAY_AGAIN " again" /* after the status in END */

enum { SOCKET_NAME = 64 };

typedef struct agent {
    int fd;   /* -1: closed */
    int node; /* 0: it has not sent its command yet */
} agent;

struct relay {
    node_session *s;
    int listener;             /* for agents */
    char socket[SOCKET_NAME]; /* its abstract name */

    /* in the launcher */
    int process, to_relay, lost;

    /* in the relay process */
    int from_launcher, to_job; /* the other ends of to_relay, lost */
    struct {
        DSI_LIST(agent)
    } agents;
    bool node_lost, over; /* over: the job has ended */
};

/* ---- agents -------------------------------------------------------------------------- */

static void agent_close(agent *a)
{
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
}

/* The agent whose command runs on this node; NULL: none. */
static agent *relay_agent_of(relay *r, int node)
{
    for (int i = 0; i < r->agents.n; i++)
        if (r->agents.at[i].fd >= 0 && r->agents.at[i].node == node) return &r->agents.at[i];
    return NULL;
}

static void relay_accept(relay *r)
{
    int fd = wire_accept(r->listener);
    if (fd >= 0) dsi_list_add(&r->agents, ((agent){.fd = fd}));
}

/* An agent sends one packet: the name of its node, 0, the command. Anything
 * else, or its end, closes it. */
static void relay_read_agent(relay *r, agent *a)
{
    char packet[AGENT_PACKET];
    ssize_t n = recv(a->fd, packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const char *end = n > 0 && !a->node ? memchr(packet, 0, (size_t)n) : NULL;
    for (int k = 1, host = 1; end && k < r->s->all.n; k++) {
        if (!session_has(r->s, k)) continue;
        char *name = per_node_name(host++);
        bool same = !strcmp(packet, name);
        dsi_free(name);
        if (!same || r->s->nodes[k].c.state != CHANNEL_OPEN || relay_agent_of(r, k)) continue;
        a->node = k;
        channel_send(&r->s->nodes[k].c, MESSAGE_COMMAND, end + 1, (size_t)(packet + n - end - 1));
        return;
    }
    agent_close(a);
}

/* Passes on output or the status of the command. */
static void relay_write_agent(relay *r, int node, const message *m)
{
    char packet[AGENT_PACKET];
    agent *a = relay_agent_of(r, node);
    if (!a) return;
    size_t n = m->n < sizeof packet - 1 ? m->n : sizeof packet - 1;
    packet[0] = (char)m->kind;
    memcpy(packet + 1, m->bytes, n);
    bool sent = send(a->fd, packet, n + 1, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    if (m->kind == MESSAGE_EXITED || (!sent && errno != EAGAIN)) agent_close(a);
}

/* ---- nodes ---------------------------------------------------------------------------- */

/* Reports the first one only: others are lost because of it. */
static void relay_lose_node(relay *r, int k, const char *why)
{
    if (!r->node_lost && !r->over)
        dprintf(r->to_job, "deepspeed: node %d on %s is lost: %s\n", k, r->s->nodes[k].host, why);
    r->node_lost = true;
    for (int i = 0; i < r->agents.n; i++) agent_close(&r->agents.at[i]);
}

/* Messages that came before the connection ended are handled before the loss
 * is reported. */
static void relay_serve_node(relay *r, int k)
{
    channel *c = &r->s->nodes[k].c;
    message m;
    if (c->state == CHANNEL_CLOSED) return;
    channel_turn(c);
    channel_beat(c, r->s->silence);
    while (channel_next(c, &m)) {
        if (m.kind == MESSAGE_OUTPUT || m.kind == MESSAGE_EXITED) relay_write_agent(r, k, &m);
        if (m.kind == MESSAGE_LEAVING) relay_lose_node(r, k, m.bytes);
    }
    if (c->state == CHANNEL_CLOSED) relay_lose_node(r, k, c->why);
}

/* ---- the relay process ------------------------------------------------------------------ */

/* The job has ended: tells all nodes. */
static void relay_send_end(relay *r)
{
    char text[24] = "";
    ssize_t n = read(r->from_launcher, text, sizeof text - 1);
    if (n <= 0) /* the launcher was killed; with --max_restarts somebody may start it again */
        snprintf(text, sizeof text, "%d%s", 128 + SIGKILL,
                 r->s->p->o.max_restarts ? RELAY_AGAIN : "");
    r->over = true;
    for (int k = 1; k < r->s->all.n; k++)
        channel_send(&r->s->nodes[k].c, MESSAGE_END, text, strlen(text));
}

/* Nodes close the connection after END; then the relay may exit. */
static bool relay_has_node(const relay *r)
{
    for (int k = 1; k < r->s->all.n; k++)
        if (r->s->nodes[k].c.state != CHANNEL_CLOSED) return true;
    return false;
}

/* Waits for something to happen and handles it. */
static void relay_step(relay *r)
{
    int agents = r->agents.n, nodes = r->s->all.n;
    struct pollfd *p = dsi_alloc((size_t)(2 + agents + nodes) * sizeof *p);
    p[0] = (struct pollfd){r->listener, POLLIN, 0};
    p[1] = (struct pollfd){r->over ? -1 : r->from_launcher, POLLIN, 0};
    for (int i = 0; i < agents; i++) p[2 + i] = (struct pollfd){r->agents.at[i].fd, POLLIN, 0};
    for (int k = 0; k < nodes; k++)
        p[2 + agents + k] = (struct pollfd){r->s->nodes[k].c.fd, channel_events(&r->s->nodes[k].c),
                                            0};
    poll(p, (nfds_t)(2 + agents + nodes), r->over ? 100 : 500);
    for (int i = 0; i < agents; i++)
        if (p[2 + i].revents) relay_read_agent(r, &r->agents.at[i]);
    for (int k = 1; k < nodes; k++) relay_serve_node(r, k);
    if (p[0].revents) relay_accept(r);
    if (p[1].revents) relay_send_end(r);
    dsi_free(p);
}

/* Never returns. Signals are ignored: the launcher gets them too and ends the
 * job. */
static void relay_run(relay *r)
{
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGUSR1, SIGUSR2};
    for (int i = 0; i < 6; i++) signal(ignored[i], SIG_IGN); /* the launcher gets them, too */
    double until = 0;
    while (!r->over || (relay_has_node(r) && dsi_now() < until)) {
        relay_step(r);
        if (r->over && until == 0) until = dsi_now() + PARTING_S;
    }
    _exit(0);
}

/* At an abstract address, which leaves no file behind; the system chooses it. */
static bool relay_listen(relay *r)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t n = sizeof address;
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (r->listener < 0 || bind(r->listener, (struct sockaddr *)&address, sizeof(sa_family_t)) ||
        listen(r->listener, 512) || getsockname(r->listener, (struct sockaddr *)&address, &n))
        return false;
    size_t length = n - offsetof(struct sockaddr_un, sun_path) - 1;
    snprintf(r->socket, sizeof r->socket, "%.*s", (int)length, address.sun_path + 1);
    return true;
}

/* ---- the network between the nodes -------------------------------------------------------- */

static bool is_network_set(const launch_plan *p)
{
    static const char *const names[] = {
        "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_include",
        "OMPI_MCA_oob_tcp_if_exclude", "PRTE_MCA_prte_if_include",    "PRTE_MCA_prte_if_exclude"};
    bool set = false;
    for (int i = 0; i < 6; i++) set = set || getenv(names[i]);
    for (char **a = p->launcher_args; a && *a; a++)
        set = set || strstr(*a, "tcp_if_") || strstr(*a, "prte_if_");
    return set;
}

/* get: getsockname or getpeername */
static bool socket_ipv4(int fd, int (*get)(int, struct sockaddr *, socklen_t *), uint32_t *address)
{
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    if (get(fd, (struct sockaddr *)&a, &n) || a.sin_family != AF_INET) return false;
    *address = ntohl(a.sin_addr.s_addr);
    return true;
}

/* The netmask of the interface that has this address; 0: there is none. */
static uint32_t interface_mask(uint32_t address)
{
    struct ifaddrs *list = NULL;
    uint32_t mask = 0;
    if (getifaddrs(&list)) return 0;
    for (struct ifaddrs *i = list; i; i = i->ifa_next)
        if (i->ifa_addr && i->ifa_netmask && i->ifa_addr->sa_family == AF_INET &&
            ntohl(((struct sockaddr_in *)i->ifa_addr)->sin_addr.s_addr) == address)
            mask = ntohl(((struct sockaddr_in *)i->ifa_netmask)->sin_addr.s_addr);
    freeifaddrs(list);
    return mask;
}

/* Open MPI would try each interface of a node, and hang over one that has the
 * same address on all of them, such as a bridge of containers. If all nodes
 * connected from one IPv4 network, Open MPI is told to use that one. */
static void choose_network(const node_session *s)
{
    uint32_t own = 0, peer, mask = 0;
    char network[40];
    if (is_network_set(s->p)) return;
    for (int k = 1; k < s->all.n; k++) {
        int fd = s->nodes[k].c.fd;
        if (!session_has(s, k)) continue;
        if (!socket_ipv4(fd, getsockname, &own) || !socket_ipv4(fd, getpeername, &peer)) return;
        if (!mask) mask = interface_mask(own);
        if (!mask || (own & mask) != (peer & mask)) return;
    }
    if (!mask) return;
    struct in_addr base = {htonl(own & mask)};
    snprintf(network, sizeof network, "%s/%d", inet_ntoa(base), __builtin_popcount(mask));
    setenv("OMPI_MCA_btl_tcp_if_include", network, 1);
    setenv("OMPI_MCA_oob_tcp_if_include", network, 1); /* version 4 */
    setenv("PRTE_MCA_prte_if_include", network, 1);    /* version 5 */
}

/* ---- the launcher ------------------------------------------------------------------ */

/* mpirun splits the agent's command at blanks, wherever they are. */
char *relay_agent(const relay *r)
{
    const char *deepspeed = r->s->p->deepspeed;
    dsi_text t = {0};
    if (strpbrk(deepspeed, " \t\"'"))
        dsi_text_add(&t, "/proc/%d/exe --join_agent %s", (int)getpid(), r->socket);
    else
        dsi_text_add(&t, "%s --join_agent %s", deepspeed, r->socket);
    return t.s;
}

int relay_lost(const relay *r) { return r->lost; }

/* The fork copies the channels with their keys and counters; only the copy in
 * the relay process is used from here on. */
int relay_start(relay **result, node_session *s)
{
    relay *r = *result = dsi_alloc(sizeof *r);
    int lost[2], parent[2];
    r->s = s;
    if (!relay_listen(r) || pipe2(lost, O_CLOEXEC) || pipe2(parent, O_CLOEXEC)) {
        fprintf(stderr, "deepspeed: node 0: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    choose_network(s);
    fflush(NULL);
    r->process = fork();
    if (r->process == 0) {
        close(parent[1]);
        close(lost[0]);
        r->from_launcher = parent[0];
        r->to_job = lost[1];
        relay_run(r);
    }
    close(r->listener);
    close(parent[0]);
    close(lost[1]);
    r->to_relay = parent[1];
    r->lost = lost[0];
    for (int k = 1; k < s->all.n; k++) {
        if (s->nodes[k].c.fd >= 0) close(s->nodes[k].c.fd);
        s->nodes[k].c.fd = -1;
    }
    if (r->process > 0) return 0;
    fprintf(stderr, "deepspeed: fork: %s\n", strerror(errno));
    return EXIT_FAILURE;
}

/* The relay tells the nodes the status and exits when they have closed their
 * connections. */
void relay_finish(relay *r, int status, bool again)
{
    char text[24];
    int n = snprintf(text, sizeof text, "%d%s", status, again ? RELAY_AGAIN : "");
    bool told = write(r->to_relay, text, (size_t)n) == n;
    close(r->to_relay);
    if (told) waitpid(r->process, NULL, 0);
    close(r->lost);
    dsi_free(r);
}
