/* launcher/rank.c: the start of one rank: its place in the world, environment, folder, cores, log file.
 *
 * A rank that has no launcher above it (it was started alone, or by hand) becomes its program. Under a launcher
 * it watches it (watch.c).
 * SPDX-License-Identifier: MIT */
#include "rank.h"

#include "argv.h"
#include "cores.h"
#include "hosts.h"
#include "local_host.h"
#include "rank_monitor.h"
#include "world.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { FAILED = 1, WRONG = 2 };

typedef struct rank_options {
    const char *world_info, *master_addr, *master_port, *log_dir, *log_time, *core_list, *folder,
        *link;
    int node; /* -1: the engine started the ranks of all nodes */
    bool no_local_rank, bind;
    char **program;
} rank_options;

static bool read_options(rank_options *o, int argc, char **argv)
{
    enum { WORLD = 1, ADDR, PORT, NODE, NO_LOCAL, LOG, LOG_TIME, BIND, LIST, FOLDER, LINK, SKIP };
    static const struct option names[] = {{"rank_start", 0, NULL, SKIP},
                                          {"world_info", 1, NULL, WORLD},
                                          {"master_addr", 1, NULL, ADDR},
                                          {"master_port", 1, NULL, PORT},
                                          {"node_rank", 1, NULL, NODE},
                                          {"no_local_rank", 0, NULL, NO_LOCAL},
                                          {"enable_each_rank_log", 1, NULL, LOG},
                                          {"log_time", 1, NULL, LOG_TIME},
                                          {"bind_cores_to_rank", 0, NULL, BIND},
                                          {"bind_core_list", 1, NULL, LIST},
                                          {"chdir", 1, NULL, FOLDER},
                                          {"quiet", 0, NULL, SKIP},
                                          {"log_level", 1, NULL, SKIP},
                                          {"link", 1, NULL, LINK},
                                          {0}};
    *o = (rank_options){.master_port = "29500", .node = -1};
    optind = 0; /* glibc: begin anew */
    for (int key; (key = getopt_long(argc, argv, "+", names, NULL)) != -1;) {
        const char **text = key == WORLD      ? &o->world_info
                            : key == ADDR     ? &o->master_addr
                            : key == PORT     ? &o->master_port
                            : key == LOG      ? &o->log_dir
                            : key == LOG_TIME ? &o->log_time
                            : key == LIST     ? &o->core_list
                            : key == FOLDER   ? &o->folder
                            : key == LINK     ? &o->link
                                              : NULL;
        if (key == '?') return false;
        if (text) *text = optarg;
        if (key == NODE) o->node = atoi(optarg);
        o->no_local_rank = o->no_local_rank || key == NO_LOCAL;
        o->bind = o->bind || key == BIND || key == LIST;
    }
    o->program = argv + optind;
    if (o->world_info && *o->program) return true;
    fprintf(stderr, "deepspeed: --rank_start: expected --world_info and a program\n");
    return false;
}

/* ---- what the program gets ------------------------------------------------------------------------------- */

static void set_number(const char *name, int n)
{
    char text[20];
    snprintf(text, sizeof text, "%d", n);
    setenv(name, text, 1);
}

/* Where rank 0 is, if the launcher could not know: the first node of Slurm's step. Lives as long as the process. */
static const char *find_master(const rank_options *o, dsi_text *why)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    ds_hosts h = {0};
    if (o->master_addr) return o->master_addr;
    if (!list) return "127.0.0.1";
    if (hosts_expand(&h, "SLURM_STEP_NODELIST", list, 1) == DS_OK) return h.at[0].name;
    dsi_text_add(why, "%s", ds_error());
    return NULL;
}

static void set_environment(const rank_options *o, const world *w, const place *p,
                            const char *master)
{
    const world_node *node = &w->nodes[p->node];
    dsi_text devices = {0};
    for (int i = 0; i < node->n_slots; i++)
        dsi_text_add(&devices, i ? ",%d" : "%d", node->slots[i]);
    set_number("RANK", p->rank);
    set_number("LOCAL_RANK", p->local_rank);
    set_number("WORLD_SIZE", w->size);
    set_number("LOCAL_SIZE", node->n_slots);
    set_number("CROSS_RANK", p->node);
    set_number("CROSS_SIZE", w->n_nodes);
    setenv("MASTER_ADDR", master, 1);
    setenv("MASTER_PORT", o->master_port, 1);
    if (!here_gpus_hidden()) setenv("CUDA_VISIBLE_DEVICES", devices.s, 1);
    world_take_folders();
    dsi_text_free(&devices);
}

/* PROGRAM --local_rank=N ARGS: where DeepSpeed puts it. */
static words arguments(const rank_options *o, const place *p)
{
    words w = {0};
    words_add(&w, "%s", o->program[0]);
    if (!o->no_local_rank) words_add(&w, "--local_rank=%d", p->local_rank);
    words_add_all(&w, o->program + 1);
    return w;
}

static bool make_folders(const char *path)
{
    char *part = dsi_strdup(path);
    for (char *s = strchr(part + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        mkdir(part, 0777);
        *s = '/';
    }
    dsi_free(part);
    return !mkdir(path, 0777) || errno == EEXIST;
}

static int open_log(const rank_options *o, const place *p, dsi_text *why)
{
    char now[40];
    dsi_text path = {0};
    time_t t = time(NULL);
    struct tm local;
    strftime(now, sizeof now, "%Y%m%d%H%M%S", localtime_r(&t, &local));
    dsi_text_add(&path, "%s/%s_rank%d.log", o->log_dir, o->log_time ? o->log_time : now, p->rank);
    int fd = make_folders(o->log_dir) ? open(path.s, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)
                                      : -1;
    if (fd < 0) dsi_text_add(why, "--enable_each_rank_log: %s: %s", path.s, strerror(errno));
    dsi_text_free(&path);
    return fd;
}

/* Folder, cores and environment. */
static bool prepare(const rank_options *o, const world *w, const place *p, dsi_text *why)
{
    if (o->folder && chdir(o->folder)) {
        dsi_text_add(why, "%s: the working folder %s: %s", w->nodes[p->node].name, o->folder,
                     strerror(errno));
        return false;
    }
    if (o->bind && !cores_bind(o->core_list, p->local_rank, w->nodes[p->node].n_slots, why))
        return false;
    const char *master = find_master(o, why);
    if (master) set_environment(o, w, p, master);
    return master != NULL;
}

/* ---- the launcher ---------------------------------------------------------------------------------------- */

/* Connects, and gets what the launcher sends: its group, whether output is piped, the columns of its terminal, whether
 * it ignores SIGHUP, its stdin (rank 0), stdout and stderr. */
static bool connect_socket(watched *w)
{
    struct sockaddr_un address;
    socklen_t length = (socklen_t)wire_address(w->wire.secret, &address);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), numbers[4] = {0};
    char record[WIRE_RECORD];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control;
    struct iovec bytes = {record, sizeof record};
    struct msghdr m = {.msg_iov = &bytes,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control};
    w->wire.fd = fd;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length)) return false;
    if (!wire_send(&w->wire, WIRE_WELCOME, NULL, 0)) return false; /* which rank this is */
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    const char *line = n > 0 ? memchr(record, '\n', (size_t)n) : NULL;
    if (!line || wire_numbers(line + 1, (size_t)(record + n - line - 1), 4, numbers) != 4)
        return false;
    w->group = numbers[0];
    w->piped = numbers[1];
    w->columns = numbers[2];
    w->nohup = numbers[3];
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_type == SCM_RIGHTS) memcpy(w->std, CMSG_DATA(c), sizeof w->std);
    return true;
}

/* false after one message. */
static bool open_link(const char *link, int rank, watched *w)
{
    const char *colon = strchr(link, ':');
    *w = (watched){.wire = {.fd = STDERR_FILENO, .rank = rank}, .std = {-1, -1, -1}};
    if (colon) snprintf(w->wire.secret, sizeof w->wire.secret, "%s", colon + 1);
    w->wire.socket = strncmp(link, "socket:", 7) == 0;
    w->piped = !w->wire.socket;
    if (!w->wire.socket) {
        const char *columns = colon ? strchr(colon + 1, ':') : NULL;
        w->columns = columns ? atoi(columns + 1) : 0;
        /* a copy of its own: the program must not keep the engine's pipe open when this process ends */
        w->wire.fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        return true;
    }
    if (connect_socket(w)) return true;
    fprintf(stderr, "deepspeed: rank %d does not reach its launcher: %s\n", rank, strerror(errno));
    return false;
}

/* Through the launcher, which says once what many ranks say. */
static int fail(const watched *w, const dsi_text *why)
{
    dsi_text line = {0};
    dsi_text_add(&line, "deepspeed: %s\n", why->s ? why->s : "?");
    if (w->wire.fd < 0) fputs(line.s, stderr);
    wire_send(&w->wire, WIRE_ERR, line.s, line.n);
    wire_send_ending(&w->wire, &(ending){.code = FAILED, .told = true, .process = getpid()});
    dsi_text_free(&line);
    return FAILED;
}

/* ---- in order -------------------------------------------------------------------------------------------- */

static void use_log(int log, bool linked, watched *job)
{
    for (int i = 1; i < 3 && !linked; i++) dup2(log, i);
    for (int i = 1; i < 3; i++)
        if (job->std[i] >= 0) close(job->std[i]);
    job->std[1] = log;
    job->std[2] = fcntl(log, F_DUPFD_CLOEXEC, 3);
    job->piped = false;
}

static int start(const rank_options *o, const world *w, bool alone, dsi_text *why)
{
    watched job = {.wire = {.fd = -1}, .std = {-1, -1, -1}};
    place p = {.rank = -1};
    int log = -1;
    bool good = alone || world_find_me(w, o->node, &p, why);
    if (alone) p = (place){0};
    if (o->link && !open_link(o->link, p.rank, &job)) return FAILED;
    good = good && prepare(o, w, &p, why);
    if (good && o->log_dir) good = (log = open_log(o, &p, why)) >= 0;
    if (!good) return fail(&job, why);
    if (log >= 0) use_log(log, o->link != NULL, &job);
    words argv = arguments(o, &p);
    job.argv = argv.at;
    int status = o->link ? watch_program(&job) : become_program(job.argv);
    words_free(&argv);
    return status;
}

static int start_at(int argc, char **argv, bool alone)
{
    rank_options o;
    world w;
    dsi_text why = {0};
    if (!read_options(&o, argc, argv) || !world_read(&w, o.world_info)) return WRONG;
    if (o.link) prctl(PR_SET_PDEATHSIG, SIGTERM); /* of the engine */
    int status = start(&o, &w, alone, &why);
    dsi_text_free(&why);
    world_free(&w);
    return status;
}

int rank_start(int argc, char **argv) { return start_at(argc, argv, false); }

int rank_start_alone(char **argv)
{
    int argc = 0;
    while (argv[argc]) argc++;
    world_forget_engine();
    return start_at(argc, argv, true);
}
