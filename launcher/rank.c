/* launcher/rank.c: the start of one rank: its place in the world, environment,
 * folder, cores, log file.
 *
 * A rank that has no launcher above it (it was started alone, or by hand)
 * becomes its program. Under a launcher this process remains as its monitor
 * (rank_monitor.h).
 *
 * Invariants: until the program is started, failures are sent to the launcher,
 * which prints once what several ranks report; only a rank without a launcher
 * prints them itself. Folder, cores and environment are set in this process, so
 * that the program inherits them. The process gets SIGTERM when the runner
 * dies.
 * SPDX-License-Identifier: MIT */
#include "rank.h"

#include "args.h"
#include "argv.h"
#include "cores.h"
#include "gpus.h"
#include "job_folders.h"
#include "local_host.h"
#include "rank_monitor.h"
#include "rank_place.h"
#include "resources.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

typedef struct rank_options {
    const char *world_info, *master_addr, *master_port, *log_dir, *log_time, *core_list, *folder,
        *link, *file_size;
    int node;     /* -1: the runner started the ranks of all nodes */
    int num_gpus; /* of this host, which are to be there; 0: not asked for */
    bool no_local_rank, bind, watched;
    char **program;
} rank_options;

/* false after one message. */
static bool rank_options_read(rank_options *o, int argc, char **argv)
{
    enum {
        WORLD,
        ADDR,
        PORT,
        LOG,
        LOG_TIME,
        LIST,
        FOLDER,
        LINK,
        FILE_SIZE,
        TEXTS,
        NODE,
        GPUS,
        NO_LOCAL,
        BIND,
        WATCHED,
        SKIP
    };
    const char **text[TEXTS] = {&o->world_info, &o->master_addr, &o->master_port,
                                &o->log_dir,    &o->log_time,    &o->core_list,
                                &o->folder,     &o->link,        &o->file_size};
    static const struct option names[] = {{"rank_start", 0, NULL, SKIP},
                                          {"world_info", 1, NULL, WORLD},
                                          {"master_addr", 1, NULL, ADDR},
                                          {"master_port", 1, NULL, PORT},
                                          {"node_rank", 1, NULL, NODE},
                                          {"num_gpus", 1, NULL, GPUS},
                                          {"no_local_rank", 0, NULL, NO_LOCAL},
                                          {"enable_each_rank_log", 1, NULL, LOG},
                                          {"log_time", 1, NULL, LOG_TIME},
                                          {"bind_cores_to_rank", 0, NULL, BIND},
                                          {"bind_core_list", 1, NULL, LIST},
                                          {"chdir", 1, NULL, FOLDER},
                                          {"quiet", 0, NULL, SKIP},
                                          {"log_level", 1, NULL, SKIP},
                                          {"link", 1, NULL, LINK},
                                          {"file_size", 1, NULL, FILE_SIZE},
                                          {"progress", 0, NULL, WATCHED},
                                          {0}};
    *o = (rank_options){.master_port = "29500", .node = -1};
    optind = 0; /* glibc: start again */
    for (int key; (key = getopt_long(argc, argv, "+", names, NULL)) != -1;) {
        if (key == '?') return false;
        if (key < TEXTS) *text[key] = optarg;
        if (key == NODE) o->node = atoi(optarg);
        if (key == GPUS) o->num_gpus = atoi(optarg);
        o->no_local_rank = o->no_local_rank || key == NO_LOCAL;
        o->watched = o->watched || key == WATCHED;
        o->bind = o->bind || key == BIND || key == LIST;
    }
    o->program = argv + optind;
    if (o->world_info && *o->program) return true;
    fprintf(stderr, "deepspeed: --rank_start: expected --world_info and a program\n");
    return false;
}

/* ---- what the program gets ---------------------------------------------------------- */

static void setenv_int(const char *name, int n)
{
    char text[20];
    snprintf(text, sizeof text, "%d", n);
    setenv(name, text, 1);
}

/* CUDA_VISIBLE_DEVICES has all devices of the node, in the order of local
 * ranks: the program selects its own by LOCAL_RANK, as under DeepSpeed. An
 * empty or -1 value stays, so that GPUs that the user has hidden remain
 * hidden. */
static void rank_set_environment(const rank_options *o, const ds_hosts *world, const rank_place *p,
                                 const char *master)
{
    const ds_host *node = &world->at[p->node];
    dsi_text devices = {0};
    for (int i = 0; i < node->n_slots; i++)
        dsi_text_add(&devices, i ? ",%d" : "%d", node->slots[i]);
    setenv_int("RANK", p->rank);
    setenv_int("LOCAL_RANK", p->local_rank);
    setenv_int("WORLD_SIZE", hosts_count_slots(world));
    setenv_int("LOCAL_SIZE", node->n_slots);
    setenv_int("CROSS_RANK", p->node);
    setenv_int("CROSS_SIZE", world->n);
    setenv("MASTER_ADDR", master, 1);
    setenv("MASTER_PORT", o->master_port, 1);
    if (!local_host_gpus_hidden()) setenv("CUDA_VISIBLE_DEVICES", devices.s, 1);
    job_folders_import();
    dsi_text_free(&devices);
}

/* PROGRAM --local_rank=N ARGS, as DeepSpeed has it. */
static argv_list rank_arguments(const rank_options *o, const rank_place *p)
{
    argv_list w = {0};
    argv_add(&w, "%s", o->program[0]);
    if (!o->no_local_rank) argv_add(&w, "--local_rank=%d", p->local_rank);
    argv_add_all(&w, o->program + 1);
    return w;
}

/* The folder and its missing parents. */
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

/* --enable_each_rank_log: all ranks have the launcher's time in the name. */
static int rank_open_log(const rank_options *o, const rank_place *p, dsi_text *why)
{
    char now[40];
    time_t t = time(NULL);
    struct tm local;
    strftime(now, sizeof now, "%Y%m%d%H%M%S", localtime_r(&t, &local));
    dsi_text path = dsi_text_of("%s/%s_rank%d.log", o->log_dir, o->log_time ? o->log_time : now,
                                p->rank);
    int fd = make_folders(o->log_dir) ? open(path.s, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)
                                      : -1;
    if (fd < 0) dsi_text_add(why, "--enable_each_rank_log: %s: %s", path.s, strerror(errno));
    dsi_text_free(&path);
    return fd;
}

/* --file_size=SOFT:HARD: the user's ulimit -f, which the launcher has raised
 * for the runner; and the ulimit -n, which it has lowered. */
static void rank_limit_files(const char *limits)
{
    unsigned long long soft, hard;
    const char *open_files = getenv(RANK_OPEN_FILES);
    struct rlimit files;
    if (open_files && !getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = strtoull(open_files, NULL, 10);
        setrlimit(RLIMIT_NOFILE, &files);
    }
    unsetenv(RANK_OPEN_FILES);
    if (!limits || sscanf(limits, "%llu:%llu", &soft, &hard) != 2) return;
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){soft, hard});
}

/* Whether this host, which the launcher has not seen, has the GPUs of --num_gpus. */
static bool rank_check_gpus(const rank_options *o, const ds_host *node, dsi_text *why)
{
    options gpus = {.num_gpus = o->num_gpus};
    if (!o->num_gpus || local_host_gpus_hidden()) return true;
    if (resources_check_gpus(&gpus, gpus_count("")) == DS_OK) return true;
    dsi_text_add(why, "%s: %s", node->name, ds_error());
    return false;
}

/* Folder, GPUs, cores, limits and environment. */
static bool rank_prepare(const rank_options *o, const ds_hosts *world, const rank_place *p,
                         dsi_text *why)
{
    if (o->folder && chdir(o->folder)) {
        dsi_text_add(why, "%s: the working folder %s: %s", world->at[p->node].name, o->folder,
                     strerror(errno));
        return false;
    }
    const ds_host *node = &world->at[p->node];
    const int *gpu = local_host_gpus_hidden() ? NULL : node->slots;
    if (!rank_check_gpus(o, node, why)) return false;
    if (o->bind && !cores_bind(o->core_list, gpu, p->local_rank, node->n_slots, why)) return false;
    char *master = o->master_addr ? dsi_strdup(o->master_addr) : rank_place_master(why);
    if (!master) return false;
    rank_set_environment(o, world, p, master);
    rank_limit_files(o->file_size);
    dsi_free(master);
    return true;
}

/* ---- the launcher ---------------------------------------------------------------------- */

/* Connects to the launcher and waits for its WIRE_WELCOME. */
static bool rank_connect(monitored *w)
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
    if (!wire_send(&w->wire, WIRE_WELCOME, NULL, 0)) return false;
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

/* link: the value of --link. false after one message. */
static bool rank_open_link(const char *link, int rank, monitored *w)
{
    const char *colon = strchr(link, ':');
    *w = (monitored){.wire = {.fd = STDERR_FILENO, .rank = rank}, .std = {-1, -1, -1}};
    if (colon) snprintf(w->wire.secret, sizeof w->wire.secret, "%s", colon + 1);
    w->wire.socket = strncmp(link, "socket:", 7) == 0;
    w->piped = !w->wire.socket;
    if (!w->wire.socket) {
        const char *columns = colon ? strchr(colon + 1, ':') : NULL;
        w->columns = columns ? atoi(columns + 1) : 0;
        /* a copy, closed in the program: that must not keep the runner's pipe
         * open when this process ends */
        w->wire.fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        return true;
    }
    if (rank_connect(w)) return true;
    fprintf(stderr, "deepspeed: rank %d cannot reach its launcher: %s\n", rank, strerror(errno));
    return false;
}

/* Reports a failure before the program was started; returns the status. */
static int rank_fail(const monitored *w, const dsi_text *why)
{
    dsi_text line = dsi_text_of("deepspeed: %s\n", why->s ? why->s : "?");
    if (w->wire.fd < 0) fputs(line.s, stderr);
    wire_send(&w->wire, WIRE_ERR, line.s, line.n);
    wire_send_exit(&w->wire,
                   &(rank_exit){.code = EXIT_FAILURE, .reported = true, .process = getpid()});
    dsi_text_free(&line);
    return EXIT_FAILURE;
}

/* ---- starting -------------------------------------------------------------------------- */

/* The log file becomes stdout and stderr of the program (linked) or of this
 * process, which will become it. */
static void rank_use_log(int log, bool linked, monitored *job)
{
    for (int i = 1; i < 3 && !linked; i++) dup2(log, i);
    for (int i = 1; i < 3; i++)
        if (job->std[i] >= 0) close(job->std[i]);
    job->std[1] = log;
    job->std[2] = fcntl(log, F_DUPFD_CLOEXEC, 3);
    job->piped = false;
}

/* alone: the runner's variables are not looked at. */
static int rank_run(const rank_options *o, const ds_hosts *world, bool alone, dsi_text *why)
{
    monitored job = {.wire = {.fd = -1}, .std = {-1, -1, -1}};
    rank_place p = {.rank = -1};
    int log = -1;
    bool good = alone || rank_place_find(world, o->node, &p, why);
    if (alone) p = (rank_place){0};
    if (o->link && !rank_open_link(o->link, p.rank, &job)) return EXIT_FAILURE;
    good = good && rank_prepare(o, world, &p, why);
    if (good && o->log_dir) good = (log = rank_open_log(o, &p, why)) >= 0;
    if (!good) return rank_fail(&job, why);
    if (log >= 0) rank_use_log(log, o->link != NULL, &job);
    argv_list argv = rank_arguments(o, &p);
    job.argv = argv.at;
    job.watched = o->watched;
    int status = o->link ? monitor_run(&job) : monitor_replace(job.argv);
    argv_list_free(&argv);
    return status;
}

/* alone: this is the only rank, started in place of the launcher. */
static int rank_start_with(int argc, char **argv, bool alone)
{
    rank_options o;
    ds_hosts world = {0};
    dsi_text why = {0};
    if (!rank_options_read(&o, argc, argv) || !hosts_decode(&world, o.world_info))
        return STATUS_WRONG;
    if (o.link) prctl(PR_SET_PDEATHSIG, SIGTERM); /* of the runner */
    int status = rank_run(&o, &world, alone, &why);
    dsi_text_free(&why);
    hosts_free(&world);
    return status;
}

int rank_start(int argc, char **argv) { return rank_start_with(argc, argv, false); }

int rank_start_alone(char **argv)
{
    int argc = 0;
    while (argv[argc]) argc++;
    rank_place_forget();
    return rank_start_with(argc, argv, true);
}
