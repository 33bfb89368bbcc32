/* launcher/join/relay.c: node 0 while the job runs.
 *
 * The job is started and watched as any other (run.c). Beside it a process, the hub, holds the connections to the
 * other nodes: it hands them what mpirun's agents bring, passes output and status back, and sees when a node is
 * lost. Then it says so to the job and lets go of the agents, and mpirun ends what is left.
 *
 *     mpirun - agent ---(Unix socket)--- hub ---(TCP, authenticated)--- node K - keeper - orted - ranks
 *
 * SPDX-License-Identifier: MIT */
#include "run.h"
#include "session.h"

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

enum { PACKET = 1 << 17, NAME = 64 };

typedef struct agent {
    int fd, node; /* 0: it has not said for which node it is */
} agent;

typedef struct hub {
    meeting *m;
    int listener;    /* for agents */
    int from_parent; /* the status of the job, or its end */
    int to_job;      /* what was lost */
    struct {
        DSI_LIST(agent)
    } agents;
    bool lost, over;
} hub;

/* ---- agents ---------------------------------------------------------------------------------------------- */

static void close_agent(agent *a)
{
    if (a->fd >= 0) close(a->fd);
    a->fd = -1;
}

static agent *agent_of(hub *h, int node)
{
    for (int i = 0; i < h->agents.n; i++)
        if (h->agents.at[i].fd >= 0 && h->agents.at[i].node == node) return &h->agents.at[i];
    return NULL;
}

static void accept_agent(hub *h)
{
    struct ucred who;
    socklen_t n = sizeof who;
    int fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) || who.uid != getuid())
        close(fd);
    else
        dsi_list_add(&h->agents, ((agent){.fd = fd}));
}

/* The name of the node, 0, the command. Anything else, or its end, closes it. */
static void turn_agent(hub *h, agent *a)
{
    char packet[PACKET], name[NODE_NAME];
    ssize_t n = recv(a->fd, packet, sizeof packet, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const char *end = n > 0 && !a->node ? memchr(packet, 0, (size_t)n) : NULL;
    for (int k = 1; end && k < h->m->p->n_hosts; k++) {
        if (strcmp(packet, node_name(name, k)) != 0 || h->m->nodes[k].c.state != CHANNEL_OPEN ||
            agent_of(h, k))
            continue;
        a->node = k;
        channel_send(&h->m->nodes[k].c, SAY_COMMAND, end + 1, (size_t)(packet + n - end - 1));
        return;
    }
    close_agent(a);
}

/* What an agent cannot take now is only text, and left out. */
static void tell_agent(hub *h, int node, const message *m)
{
    char packet[PACKET];
    agent *a = agent_of(h, node);
    if (!a) return;
    size_t n = m->n < sizeof packet - 1 ? m->n : sizeof packet - 1;
    packet[0] = (char)m->kind;
    memcpy(packet + 1, m->bytes, n);
    bool sent = send(a->fd, packet, n + 1, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
    if (m->kind == SAY_EXITED || (!sent && errno != EAGAIN)) close_agent(a);
}

/* ---- nodes ----------------------------------------------------------------------------------------------- */

/* Only the first is told: others go because of it. */
static void lose(hub *h, int k, const char *why)
{
    if (!h->lost && !h->over)
        dprintf(h->to_job, "deepspeed: node %d on %s is lost: %s\n", k, h->m->nodes[k].host, why);
    h->lost = true;
    for (int i = 0; i < h->agents.n; i++) close_agent(&h->agents.at[i]);
}

static void turn_node(hub *h, int k)
{
    channel *c = &h->m->nodes[k].c;
    message m;
    if (c->state == CHANNEL_CLOSED) return;
    channel_turn(c);
    channel_beat(c, h->m->silence);
    while (channel_next(c, &m)) {
        if (m.kind == SAY_OUTPUT || m.kind == SAY_EXITED) tell_agent(h, k, &m);
        if (m.kind == SAY_LEAVING) lose(h, k, m.bytes);
    }
    if (c->state == CHANNEL_CLOSED) lose(h, k, c->why);
}

/* ---- the process ----------------------------------------------------------------------------------------- */

static void part(hub *h)
{
    char text[16] = "";
    ssize_t n = read(h->from_parent, text, sizeof text - 1);
    if (n <= 0) snprintf(text, sizeof text, "%d", 128 + SIGKILL); /* the launcher was killed */
    h->over = true;
    for (int k = 1; k < h->m->p->n_hosts; k++)
        channel_send(&h->m->nodes[k].c, SAY_END, text, strlen(text));
}

static bool any_node(const hub *h)
{
    for (int k = 1; k < h->m->p->n_hosts; k++)
        if (h->m->nodes[k].c.state != CHANNEL_CLOSED) return true;
    return false;
}

static void turn(hub *h)
{
    int agents = h->agents.n, nodes = h->m->p->n_hosts;
    struct pollfd *p = dsi_alloc((size_t)(2 + agents + nodes) * sizeof *p);
    p[0] = (struct pollfd){h->listener, POLLIN, 0};
    p[1] = (struct pollfd){h->over ? -1 : h->from_parent, POLLIN, 0};
    for (int i = 0; i < agents; i++) p[2 + i] = (struct pollfd){h->agents.at[i].fd, POLLIN, 0};
    for (int k = 0; k < nodes; k++)
        p[2 + agents + k] = (struct pollfd){h->m->nodes[k].c.fd, channel_events(&h->m->nodes[k].c),
                                            0};
    poll(p, (nfds_t)(2 + agents + nodes), h->over ? 100 : 500);
    for (int i = 0; i < agents; i++)
        if (p[2 + i].revents) turn_agent(h, &h->agents.at[i]);
    for (int k = 1; k < nodes; k++) turn_node(h, k);
    if (p[0].revents) accept_agent(h);
    if (p[1].revents) part(h);
    dsi_free(p);
}

static void run_hub(hub *h)
{
    const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGUSR1, SIGUSR2};
    for (int i = 0; i < 6; i++) signal(ignored[i], SIG_IGN); /* the launcher gets them, too */
    double until = 0;
    while (!h->over || (any_node(h) && dsi_now() < until)) {
        turn(h);
        if (h->over && until == 0) until = dsi_now() + PARTING_S;
    }
    _exit(0);
}

/* ---- the launcher ---------------------------------------------------------------------------------------- */

/* An abstract name, so that no file is left behind; the system chooses it. */
static bool listen_for_agents(hub *h, char name[NAME])
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t n = sizeof address;
    h->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->listener < 0 || bind(h->listener, (struct sockaddr *)&address, sizeof(sa_family_t)) ||
        listen(h->listener, 512) || getsockname(h->listener, (struct sockaddr *)&address, &n))
        return false;
    size_t length = n - offsetof(struct sockaddr_un, sun_path) - 1;
    snprintf(name, NAME, "%.*s", (int)length, address.sun_path + 1);
    return true;
}

/* Names of ranks' lines: those of a hostfile, or the nodes' own. */
static void name_hosts(meeting *m)
{
    launch_plan *p = m->p;
    if (p->from == FROM_HOSTFILE) return;
    gethostname(m->nodes[0].host, sizeof m->nodes[0].host - 1);
    for (int k = 0; k < p->n_hosts; k++)
        for (int i = 0; i < k; i++)
            if (!strcmp(m->nodes[i].host, m->nodes[k].host)) return; /* of one machine */
    for (int k = 0; k < p->n_hosts; k++) {
        dsi_free(p->hosts[k].name);
        p->hosts[k].name = dsi_strdup(m->nodes[k].host);
    }
}

/* ---- the network between the nodes ----------------------------------------------------------------------- */

static bool user_chose_network(const launch_plan *p)
{
    static const char *const names[] = {
        "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_if_exclude", "OMPI_MCA_oob_tcp_if_include",
        "OMPI_MCA_oob_tcp_if_exclude"};
    bool chose = false;
    for (int i = 0; i < 4; i++) chose = chose || getenv(names[i]);
    for (char **a = p->launcher_words; a && *a; a++) chose = chose || strstr(*a, "tcp_if_");
    return chose;
}

static bool ipv4_of(int fd, int (*ask)(int, struct sockaddr *, socklen_t *), uint32_t *address)
{
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    if (ask(fd, (struct sockaddr *)&a, &n) || a.sin_family != AF_INET) return false;
    *address = ntohl(a.sin_addr.s_addr);
    return true;
}

/* The mask of the interface that has this address; 0: none has. */
static uint32_t mask_of(uint32_t address)
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

/* Open MPI would try each interface of a node and hang over one, such as a bridge of containers, that has the same
 * address on all of them. Where the nodes met on one network it is told to use that one. */
static void choose_network(const meeting *m)
{
    uint32_t own = 0, peer, mask = 0;
    char network[40];
    if (user_chose_network(m->p)) return;
    for (int k = 1; k < m->p->n_hosts; k++) {
        int fd = m->nodes[k].c.fd;
        if (!ipv4_of(fd, getsockname, &own) || !ipv4_of(fd, getpeername, &peer)) return;
        if (k == 1) mask = mask_of(own);
        if (!mask || (own & mask) != (peer & mask)) return;
    }
    struct in_addr base = {htonl(own & mask)};
    snprintf(network, sizeof network, "%s/%d", inet_ntoa(base), __builtin_popcount(mask));
    setenv("OMPI_MCA_btl_tcp_if_include", network, 1);
    setenv("OMPI_MCA_oob_tcp_if_include", network, 1);
}

/* mpirun splits the agent's words at blanks, whatever is in the path. */
static void set_agent(launch_plan *p, const char *socket_name)
{
    dsi_text t = {0};
    if (strpbrk(p->self, " \t\"'"))
        dsi_text_add(&t, "/proc/%d/exe --join_agent %s", (int)getpid(), socket_name);
    else
        dsi_text_add(&t, "%s --join_agent %s", p->self, socket_name);
    dsi_free(p->agent);
    p->agent = t.s;
}

static int run_job(meeting *m, int to_hub, int process)
{
    char text[16];
    name_hosts(m);
    plan_compose(m->p);
    plan_announce(m->p);
    int status = run_plan(m->p);
    int n = snprintf(text, sizeof text, "%d", status);
    if (write(to_hub, text, (size_t)n) == n) waitpid(process, NULL, 0);
    return status;
}

int hub_run(meeting *m)
{
    hub h = {.m = m};
    int job[2], parent[2];
    char name[NAME];
    if (!listen_for_agents(&h, name) || pipe2(job, O_CLOEXEC) || pipe2(parent, O_CLOEXEC)) {
        fprintf(stderr, "deepspeed: node 0: %s\n", strerror(errno));
        return EXIT_FAILURE;
    }
    choose_network(m);
    h.from_parent = parent[0];
    h.to_job = job[1];
    fflush(NULL);
    int process = fork();
    if (process == 0) {
        close(parent[1]);
        close(job[0]);
        run_hub(&h);
    }
    close(h.listener);
    close(parent[0]);
    close(job[1]);
    for (int k = 1; k < m->p->n_hosts; k++) close(m->nodes[k].c.fd);
    for (int k = 1; k < m->p->n_hosts; k++) m->nodes[k].c.fd = -1;
    m->p->lost = job[0];
    set_agent(m->p, name);
    int status = process > 0 ? run_job(m, parent[1], process) : EXIT_FAILURE;
    close(parent[1]);
    close(job[0]);
    return status;
}
