/* launcher/join/session.c: the same command typed on each node, without ssh:
 * the code that node 0 and the others share.
 *
 * A process that can reach node 0's port could run commands on all nodes. So
 * the nodes share a secret, or use a loopback address.
 *
 * Invariants: the session owns the secret and the channels of all nodes; from
 * relay_start on the relay process has its own copy of the channels, and those
 * of this process are closed. A node's slots are those of its HELLO. The plan
 * has the nodes of an attempt, the session all of them, by --node_rank.
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
    for (int k = 0; k < p->n_hosts; k++) hosts_add_copy(&s->all, &p->hosts[k]);
    s->address = p->o.master_addr ? p->o.master_addr : host_address(&p->hosts[0]);
    if (!secret_read(&s->secret, p->o.join_secret_file) || !read_silence(&s->silence) ||
        !session_check_secret(s))
        return STATUS_WRONG;
    signal(SIGPIPE, SIG_IGN);
    if (p->o.node_rank > 0) return 0;
    s->nodes = dsi_alloc((size_t)s->all.n * sizeof *s->nodes);
    for (int k = 0; k < s->all.n; k++) s->nodes[k].c = (channel){.fd = -1, .state = CHANNEL_CLOSED};
    return 0;
}

/* After relay_start the descriptors are closed already (-1); only buffers
 * remain to be freed. */
void session_forget_nodes(node_session *s)
{
    for (int k = 0; s->nodes && k < s->all.n; k++) {
        channel_close(&s->nodes[k].c);
        s->nodes[k].joined = s->nodes[k].ready = false;
    }
}

void session_close(node_session *s)
{
    if (!s) return;
    session_forget_nodes(s);
    dsi_free(s->nodes);
    hosts_free(&s->all);
    secret_free(&s->secret);
    dsi_free(s);
}

bool session_has(const node_session *s, int k) { return !k || s->nodes[k].joined; }

/* Do the nodes have different names? Several nodes may be one machine. */
static bool have_different_names(const node_session *s)
{
    for (int k = 0; k < s->all.n; k++)
        for (int i = 0; i < k; i++)
            if (session_has(s, i) && session_has(s, k) &&
                !strcmp(s->nodes[i].host, s->nodes[k].host))
                return false;
    return true;
}

/* Names in a hostfile are kept; else a node is called what it calls itself. */
void session_hosts(const node_session *s, ds_hosts *joined)
{
    gethostname(s->nodes[0].host, sizeof s->nodes[0].host - 1);
    bool own_names = s->p->origin != HOSTS_OF_FILE && have_different_names(s);
    for (int k = 0; k < s->all.n; k++) {
        if (!session_has(s, k)) continue;
        ds_host h = s->all.at[k];
        if (own_names) h.name = s->nodes[k].host;
        hosts_add_copy(joined, &h);
    }
}

int session_full_size(const node_session *s) { return hosts_count_slots(&s->all); }
