/* launcher/join/session.c: the same command typed on each node, without ssh:
 * what is the same on node 0 and on the others.
 *
 * Whoever can reach node 0's port could run commands on all nodes. So the nodes
 * share a secret, or meet at a loopback address.
 *
 * Invariants: the session owns the secret and the channels of all nodes; from
 * relay_start on the relay process has its own copy of the channels, and those
 * of this process are closed. A node's slots are those of its HELLO.
 * SPDX-License-Identifier: MIT */
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
#include <sys/socket.h>
#include <unistd.h>

/* The digest is of all arguments with their final zero bytes: {"a b"} and
 * {"a", "b"} print the same but differ. */
void session_program(char *const *argv, dsi_text *text, char digest[2 * SECRET_BYTES + 1])
{
    dsi_text all = {0};
    for (int i = 0; argv[i]; i++) {
        dsi_text_add(text, i ? " %s" : "%s", argv[i]);
        dsi_text_add_bytes(&all, argv[i], strlen(argv[i]) + 1);
    }
    secret_digest(digest, all.s, all.n);
    dsi_text_free(&all);
}

const int session_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD, 0};

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* Does the name resolve to loopback addresses only? */
static bool is_local_only(const char *name)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    bool local = !getaddrinfo(name, NULL, &hints, &list);
    for (struct addrinfo *a = list; a && local; a = a->ai_next) local = is_loopback(a->ai_addr);
    if (list) freeaddrinfo(list);
    return local;
}

/* DS_JOIN_SILENCE; false after one message. */
static bool read_silence(double *silence)
{
    static const dsi_env v = {"DS_JOIN_SILENCE", "seconds, from 3 to 86400", .least = 3,
                              .most = 86400};
    *silence = DEFAULT_SILENCE_S;
    if (dsi_env_number(&v, silence) == DS_OK) return true;
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return false;
}

/* false after one message. */
static bool session_check_secret(const node_session *s)
{
    if (s->secret.n || is_local_only(s->address)) return true;
    fprintf(stderr,
            "deepspeed: nodes that meet at %s need a secret, or anybody who reaches it could run "
            "commands as you: put the same DS_JOIN_SECRET into the environment of each node, or "
            "give --join_secret_file\n",
            s->address);
    return false;
}

int session_open(node_session **session, const launch_plan *p)
{
    node_session *s = *session = dsi_alloc(sizeof *s);
    s->p = p;
    s->address = p->o.master_addr ? p->o.master_addr : host_address(&p->hosts[0]);
    if (!secret_read(&s->secret, p->o.join_secret_file) || !read_silence(&s->silence) ||
        !session_check_secret(s))
        return STATUS_WRONG;
    signal(SIGPIPE, SIG_IGN);
    if (p->o.node_rank > 0) return 0;
    s->nodes = dsi_alloc((size_t)p->n_hosts * sizeof *s->nodes);
    for (int k = 0; k < p->n_hosts; k++)
        s->nodes[k].c = (channel){.fd = -1, .state = CHANNEL_CLOSED};
    return 0;
}

/* After relay_start the descriptors are closed already (-1); only buffers
 * remain to be freed. */
void session_close(node_session *s)
{
    if (!s) return;
    for (int k = 0; s->nodes && k < s->p->n_hosts; k++) {
        channel_close(&s->nodes[k].c);
        dsi_free(s->nodes[k].slots.slots);
    }
    dsi_free(s->nodes);
    secret_free(&s->secret);
    dsi_free(s);
}

/* Do the nodes have different names? Several nodes may be one machine. */
static bool have_different_names(const node_session *s)
{
    for (int k = 0; k < s->p->n_hosts; k++)
        for (int i = 0; i < k; i++)
            if (!strcmp(s->nodes[i].host, s->nodes[k].host)) return false;
    return true;
}

/* Names in a hostfile are kept; else a node is called what it calls itself. */
ds_host *session_hosts(const node_session *s)
{
    const launch_plan *p = s->p;
    ds_hosts h = {0};
    gethostname(s->nodes[0].host, sizeof s->nodes[0].host - 1);
    bool own_names = p->origin != HOSTS_OF_FILE && have_different_names(s);
    for (int k = 0; k < p->n_hosts; k++) {
        const char *name = own_names ? s->nodes[k].host : p->hosts[k].name;
        const ds_host *slots = k ? &s->nodes[k].slots : &p->hosts[0];
        hosts_add(&h, name, strlen(name), slots->n_slots);
        if (slots->n_slots)
            memcpy(h.at[k].slots, slots->slots, (size_t)slots->n_slots * sizeof(int));
    }
    return h.at;
}
