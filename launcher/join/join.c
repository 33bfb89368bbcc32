/* launcher/join/join.c: the same command typed on each node, without ssh: what is the same on node 0 and the others.
 *
 * Who can reach node 0's port could run commands on all nodes, so they meet with a secret, or on this machine.
 * SPDX-License-Identifier: MIT */
#include "join.h"

#include "runner.h"
#include "session.h"

#include "base/env.h"
#include "base/error.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

const char *node_name(char name[NODE_NAME], int k)
{
    snprintf(name, NODE_NAME, "deepspeed-node-%d", k);
    return name;
}

void program_text(char *const *argv, dsi_text *text, char digest[2 * SECRET_BYTES + 1])
{
    dsi_text all = {0};
    for (int i = 0; argv[i]; i++) {
        dsi_text_add(text, i ? " %s" : "%s", argv[i]);
        dsi_text_add_bytes(&all, argv[i], strlen(argv[i]) + 1);
    }
    secret_digest(digest, all.s, all.n);
    dsi_text_free(&all);
}

int signals_take(sigset_t *was)
{
    struct sigaction hangup;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, was);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* Whether the name leads to this machine alone. */
static bool stays_here(const char *name)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    bool here = !getaddrinfo(name, NULL, &hints, &list);
    for (struct addrinfo *a = list; a && here; a = a->ai_next) here = is_loopback(a->ai_addr);
    if (list) freeaddrinfo(list);
    return here;
}

static bool read_silence(double *silence)
{
    static const dsi_env v = {"DS_JOIN_SILENCE", "seconds, from 3 to 86400", .least = 3,
                              .most = 86400};
    *silence = DEFAULT_SILENCE_S;
    if (dsi_env_number(&v, silence) == DS_OK) return true;
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return false;
}

int join_nodes(launch_plan *p)
{
    meeting m = {.p = p};
    m.address = p->o.master_addr ? p->o.master_addr : host_address(&p->hosts[0]);
    if (!secret_read(&m.secret, p->o.join_secret_file) || !read_silence(&m.silence))
        return STATUS_WRONG;
    if (!m.secret.n && !stays_here(m.address)) {
        fprintf(
            stderr,
            "deepspeed: nodes that meet at %s need a secret, or anybody who reaches it could run "
            "commands as you: put the same DS_JOIN_SECRET into the environment of each node, or "
            "give --join_secret_file\n",
            m.address);
        return STATUS_WRONG;
    }
    signal(SIGPIPE, SIG_IGN);
    int status;
    if (p->o.node_rank > 0) {
        status = joiner_run(&m);
    } else {
        m.nodes = dsi_alloc((size_t)p->n_hosts * sizeof *m.nodes);
        for (int k = 0; k < p->n_hosts; k++)
            m.nodes[k].c = (channel){.fd = -1, .state = CHANNEL_CLOSED};
        status = plan_reach(p);
        if (!status) status = gather_nodes(&m);
        if (!status) status = hub_run(&m);
        for (int k = 0; k < p->n_hosts; k++) channel_close(&m.nodes[k].c);
        dsi_free(m.nodes);
    }
    secret_free(&m.secret);
    return status;
}
