/* launcher/join/gather.c: node 0 until all other nodes have joined.
 *
 * A new connection is a stranger until it has proved the secret and sent HELLO.
 * A node that proved the secret but was started with another program, version
 * or number of nodes is a mistake that waiting does not mend: it ends the
 * start, on all nodes.
 *
 * Invariants: strangers own their channels; a node's channel moves into the
 * session with its HELLO. Nothing here waits for one connection: poll waits for
 * all at once, at most half a second. A stranger has HELLO_S to send its HELLO;
 * beyond STRANGERS connections the oldest is closed. `joined` and `ready` count
 * the nodes in those states. Once `wrong` has text, the start has failed and
 * the text is what all nodes are told.
 * SPDX-License-Identifier: MIT */
#include "older_libc.h"
#include "session.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HELLO_S 10.0 /* from connecting until HELLO */
#define READY_S 30.0 /* from START until READY */
/* For the others, once there are enough nodes: at the first start, as torchrun
 * has it; at a restart, whose nodes have just been there. */
#define LAST_CALL_S       30.0
#define LAST_CALL_AGAIN_S 10.0
#define REFUSE_S          1.0 /* to write the reason before closing */

enum { STRANGERS = 64, WARNINGS = 20 };

typedef struct gathering {
    node_session *s;
    int listener;
    struct {
        DSI_LIST(channel *)
    } strangers;
    bool all; /* nodes are needed */
    int joined, ready, warnings;
    int signals, signal; /* descriptor; the one that came, 0: none */
    dsi_text wrong;      /* why the start has failed */
} gathering;

/* About a stranger. Anybody can cause these, so their number is limited. */
static void gather_warn(gathering *g, const channel *c)
{
    if (++g->warnings > WARNINGS) return;
    fprintf(stderr, "deepspeed: refused %s: %s\n", c->peer, c->why);
}

/* ---- listening ---------------------------------------------------------------- */

/* A listening socket, or -1 with errno. */
static int gather_listen_at(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 512)) return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* At the address itself or, if that belongs to a machine in front of this one
 * (address translation), at all addresses of this machine. */
static bool gather_listen(gathering *g)
{
    const launch_plan *p = g->s->p;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    char port[16];
    snprintf(port, sizeof port, "%d", p->o.master_port);
    int wrong = getaddrinfo(g->s->address, port, &hints, &list);
    if (wrong) {
        fprintf(stderr, "deepspeed: --master_addr %s: %s\n", g->s->address, gai_strerror(wrong));
        return false;
    }
    g->listener = gather_listen_at(list);
    freeaddrinfo(list);
    if (g->listener < 0 && errno == EADDRNOTAVAIL && !p->o.master_addr) {
        fprintf(stderr,
                "deepspeed: --node_rank 0: the hostfile's first host is %s, whose address is none "
                "of this machine's: type this on that host, or give --master_addr\n",
                g->s->address);
        return false;
    }
    if (g->listener < 0 && errno == EADDRNOTAVAIL && !getaddrinfo(NULL, port, &hints, &list)) {
        g->listener = gather_listen_at(list);
        freeaddrinfo(list);
    }
    if (g->listener >= 0) return true;
    fprintf(stderr, "deepspeed: waiting for nodes at %s, port %d: %s%s\n", g->s->address,
            p->o.master_port, strerror(errno),
            errno == EADDRINUSE ? "; another --master_port on all nodes?" : "");
    return false;
}

/* The oldest stranger has to go if there are too many: a flood of connections
 * must not keep the nodes out. */
static void gather_accept(gathering *g)
{
    int fd;
    while ((fd = accept4(g->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        if (g->strangers.n == STRANGERS) {
            channel_close(g->strangers.at[0]);
            dsi_free(g->strangers.at[0]);
            memmove(g->strangers.at, g->strangers.at + 1,
                    (size_t)--g->strangers.n * sizeof *g->strangers.at);
        }
        channel *c = dsi_alloc(sizeof *c);
        channel_begin(c, fd, false, &g->s->secret);
        dsi_list_add(&g->strangers, c);
    }
}

/* ---- HELLO -------------------------------------------------------------------- */

typedef struct hello {
    int rank, nodes;
    const char *version, *host, *program, *digest;
    json_t *slots;
} hello;

/* The strings belong to j. */
static bool hello_read(hello *h, json_t *j)
{
    *h = (hello){0};
    return j &&
           !json_unpack(j, "{s:i, s:i, s:s, s:s, s:s, s:s, s:o}", "node_rank", &h->rank, "nnodes",
                        &h->nodes, "version", &h->version, "host", &h->host, "program", &h->program,
                        "digest", &h->digest, "slots", &h->slots) &&
           json_is_array(h->slots);
}

/* Adds to `wrong` how the node differs from this one, if it does. */
static void gather_compare(gathering *g, const hello *h, dsi_text *wrong)
{
    dsi_text mine = {0};
    char digest[2 * SECRET_BYTES + 1];
    session_program(g->s->p->o.program, &mine, digest);
    if (strcmp(h->version, DS_VERSION) != 0)
        dsi_text_add(wrong, "it is deepspeed.c %s, node 0 is %s", h->version, DS_VERSION);
    else if (h->nodes != g->s->all.n)
        dsi_text_add(wrong, "its command has %d nodes, node 0's %d", h->nodes, g->s->all.n);
    else if (h->rank < 1 || h->rank >= g->s->all.n)
        dsi_text_add(wrong, "expected --node_rank 1 to %d", g->s->all.n - 1);
    else if (strcmp(digest, h->digest) != 0)
        dsi_text_add(wrong, "it is to run \"%s\", node 0 \"%s\"", h->program, mine.s);
    else if (g->s->nodes[h->rank].joined)
        dsi_text_add(wrong, "%s (%s) has that --node_rank already", g->s->nodes[h->rank].host,
                     g->s->nodes[h->rank].c.peer);
    dsi_text_free(&mine);
}

/* The channel moves from the stranger, which the caller frees, to the node. */
static void gather_admit(gathering *g, channel *c, const hello *h)
{
    node_state *n = &g->s->nodes[h->rank];
    char text[80];
    channel_close(&n->c);
    n->c = *c;
    n->joined = true;
    snprintf(n->host, sizeof n->host, "%s", h->host);
    host_read_slots(&g->s->all.at[h->rank], h->slots);
    int length = snprintf(text, sizeof text, "{\"silence\": %.3g, \"restarts\": %s}", g->s->silence,
                          g->s->p->o.max_restarts ? "true" : "false");
    channel_send(&n->c, MESSAGE_WELCOME, text, (size_t)length);
    g->joined++;
    if (!options_silent(&g->s->p->o))
        fprintf(stderr, "deepspeed: node %d of %d is %s (%s)\n", h->rank, g->s->all.n, n->host,
                n->c.peer);
}

/* Admits or refuses a stranger; its channel is moved or closed. */
static void gather_read_hello(gathering *g, channel *c, const message *m)
{
    dsi_text wrong = {0};
    json_t *j = m->kind == MESSAGE_HELLO ? json_loadb(m->bytes, m->n, 0, NULL) : NULL;
    hello h;
    bool good = hello_read(&h, j);
    if (good) gather_compare(g, &h, &wrong);
    if (good && !wrong.n) {
        gather_admit(g, c, &h);
        json_decref(j);
        return;
    }
    if (good)
        dsi_text_add(&g->wrong, "node %d on %s (%s) does not fit: %s", h.rank, h.host, c->peer,
                     wrong.s);
    else
        dsi_text_add(&g->wrong, "a node at %s sent no valid HELLO", c->peer);
    channel_send(c, MESSAGE_REFUSED, g->wrong.s, g->wrong.n);
    channel_flush(c, REFUSE_S);
    channel_close(c);
    dsi_text_free(&wrong);
    json_decref(j);
}

/* false: it is no stranger any more. */
static bool gather_serve_stranger(gathering *g, channel *c)
{
    message m;
    channel_turn(c);
    if (channel_next(c, &m)) {
        gather_read_hello(g, c, &m);
        return false;
    }
    bool late = dsi_now() > c->begun + HELLO_S;
    if (c->state != CHANNEL_CLOSED && !late) return true;
    if (c->state == CHANNEL_CLOSED && (c->end != CHANNEL_LEFT || c->in.n)) gather_warn(g, c);
    channel_close(c);
    return false;
}

/* A node that leaves before the job has begun may join again. */
static void gather_serve_node(gathering *g, int k)
{
    node_state *n = &g->s->nodes[k];
    message m;
    channel_turn(&n->c);
    channel_beat(&n->c, g->s->silence);
    while (channel_next(&n->c, &m)) {
        if (m.kind == MESSAGE_READY && !n->ready) {
            n->ready = true;
            g->ready++;
        } else if (m.kind == MESSAGE_REFUSED) {
            dsi_text_add(&g->wrong, "node %d on %s: %s", k, n->host, m.bytes);
        } else if (m.kind == MESSAGE_LEAVING) {
            snprintf(n->c.why, sizeof n->c.why, "%s", m.bytes);
        }
    }
    if (n->c.state != CHANNEL_CLOSED) return;
    fprintf(stderr, "deepspeed: node %d on %s has left (%s); waiting for it again\n", k, n->host,
            n->c.why);
    g->ready -= n->ready;
    g->joined--;
    n->joined = n->ready = false;
    channel_close(&n->c);
}

/* A signal of the user ends the start on all nodes. */
static void gather_read_signal(gathering *g)
{
    int signal = signals_read(g->signals);
    if (!signal || signal == SIGCHLD || g->wrong.n) return;
    g->signal = signal;
    dsi_text_add(&g->wrong, "node 0 was ended by signal %d (SIG%s)", g->signal,
                 sigabbrev_np(g->signal));
}

/* ---- waiting ------------------------------------------------------------------ */

/* Waits for something to happen, not beyond `until`, and handles it. */
static void gather_step(gathering *g, double until)
{
    int strangers = g->strangers.n, nodes = g->s->all.n, kept = 0;
    struct pollfd *p = dsi_alloc((size_t)(2 + strangers + nodes) * sizeof *p);
    double left = until - dsi_now();
    p[0] = (struct pollfd){.fd = g->listener, .events = POLLIN};
    for (int i = 0; i < strangers; i++)
        p[1 + i] = (struct pollfd){.fd = g->strangers.at[i]->fd,
                                   .events = channel_events(g->strangers.at[i])};
    for (int k = 0; k < nodes; k++)
        p[1 + strangers + k] = (struct pollfd){.fd = g->s->nodes[k].c.fd,
                                               .events = channel_events(&g->s->nodes[k].c)};
    p[1 + strangers + nodes] = (struct pollfd){.fd = g->signals, .events = POLLIN};
    poll(p, (nfds_t)(2 + strangers + nodes),
         left > 0.5 ? 500
         : left > 0 ? (int)(1e3 * left) + 1
                    : 0);
    for (int i = 0; i < strangers; i++) {
        if (gather_serve_stranger(g, g->strangers.at[i]))
            g->strangers.at[kept++] = g->strangers.at[i];
        else
            dsi_free(g->strangers.at[i]);
    }
    g->strangers.n = kept;
    for (int k = 1; k < nodes; k++)
        if (g->s->nodes[k].joined) gather_serve_node(g, k);
    if (p[0].revents) gather_accept(g);
    if (p[1 + strangers + nodes].revents) gather_read_signal(g);
    dsi_free(p);
}

static int gather_ranks(const gathering *g)
{
    int ranks = 0;
    for (int k = 0; k < g->s->all.n; k++)
        if (session_has(g->s, k)) ranks += g->s->all.at[k].n_slots;
    return ranks;
}

static bool gather_has_enough(const gathering *g)
{
    if (g->joined == g->s->all.n - 1) return true;
    if (g->all) return false;
    return plan_has_enough(g->s->p, g->joined + 1, gather_ranks(g));
}

/* Waiting gives no more ranks than all nodes have. */
static void gather_check_most(gathering *g)
{
    int nodes = g->s->all.n, ranks = gather_ranks(g);
    if (!plan_has_enough(g->s->p, nodes, ranks))
        plan_add_too_few(g->s->p, "node", nodes, ranks, &g->wrong);
}

/* "s 1, 3 of 4" */
static void gather_add_missing(const gathering *g, dsi_text *t)
{
    int missing = g->s->all.n - 1 - g->joined, n = 0;
    dsi_text_add(t, missing > 1 ? "s" : "");
    for (int k = 1; k < g->s->all.n; k++)
        if (!g->s->nodes[k].joined) dsi_text_add(t, n++ ? ", %d" : " %d", k);
    dsi_text_add(t, " of %d", g->s->all.n);
}

/* Sets `wrong` if the time limit is over. */
static void gather_wait_joined(gathering *g)
{
    const launch_plan *p = g->s->p;
    double begun = dsi_now(), until = begun + p->o.join_timeout;
    double last_call = begun + (p->restarts ? LAST_CALL_AGAIN_S : LAST_CALL_S);
    dsi_text missing = {0};
    while (g->joined < g->s->all.n - 1 && !g->wrong.n && dsi_now() < until &&
           !(gather_has_enough(g) && dsi_now() > last_call))
        gather_step(g, until);
    if (g->wrong.n) return;
    if (g->joined == g->s->all.n - 1) {
        gather_check_most(g);
        return;
    }
    gather_add_missing(g, &missing);
    if (gather_has_enough(g))
        fprintf(stderr, "deepspeed: node%s did not join: left out\n", missing.s);
    else
        dsi_text_add(&g->wrong, "node%s did not join at %s, port %d within %d s (--join_timeout)",
                     missing.s, g->s->address, p->o.master_port, p->o.join_timeout);
    dsi_text_free(&missing);
}

/* From here on a node that leaves ends the start; where it may be left out,
 * false: wait again. */
static bool gather_wait_ready(gathering *g)
{
    const launch_plan *p = g->s->p;
    int joined = g->joined;
    json_t *j = json_object();
    json_object_set_new(j, "folder", json_stringn_nocheck(p->folder, strlen(p->folder)));
    json_object_set_new(j, "deepspeed", json_stringn_nocheck(p->deepspeed, strlen(p->deepspeed)));
    char *text = json_dumps(j, JSON_COMPACT);
    for (int k = 1; k < g->s->all.n && text; k++)
        if (!g->s->nodes[k].ready)
            channel_send(&g->s->nodes[k].c, MESSAGE_START, text, strlen(text));
    free(text);
    json_decref(j);
    double until = dsi_now() + READY_S;
    while (g->ready < joined && g->joined == joined && !g->wrong.n && dsi_now() < until)
        gather_step(g, until);
    if (g->ready == joined || g->wrong.n) return true;
    if (p->o.max_restarts && g->joined != joined) return false;
    dsi_text_add(&g->wrong, "not all of the %d nodes are ready", g->s->all.n);
    return true;
}

/* Strangers that are left are closed; nodes that have joined stay connected,
 * for the relay, or are told why the start has failed. */
int gather_nodes(node_session *s, bool all)
{
    gathering g = {.s = s, .listener = -1, .all = all};
    const launch_plan *p = s->p;
    sigset_t previous;
    session_forget_nodes(s);
    if (!gather_listen(&g)) return EXIT_FAILURE;
    g.signals = signals_open(session_signals, &previous);
    if (!options_silent(&p->o))
        fprintf(stderr, "deepspeed: node 0 waits for %d other%s at %s, port %d\n", s->all.n - 1,
                s->all.n > 2 ? "s" : "", s->address, p->o.master_port);
    do gather_wait_joined(&g);
    while (!g.wrong.n && !gather_wait_ready(&g));
    close(g.listener);
    signals_close(g.signals, &previous);
    for (int i = 0; i < g.strangers.n; i++) {
        channel_close(g.strangers.at[i]);
        dsi_free(g.strangers.at[i]);
    }
    dsi_list_free(&g.strangers);
    if (!g.wrong.n) return 0;
    fprintf(stderr, "deepspeed: %s\n", g.wrong.s);
    for (int k = 1; k < s->all.n; k++) {
        channel_send(&s->nodes[k].c, MESSAGE_REFUSED, g.wrong.s, g.wrong.n);
        channel_flush(&s->nodes[k].c, REFUSE_S);
    }
    dsi_text_free(&g.wrong);
    return g.signal ? 128 + g.signal : EXIT_FAILURE;
}
