/* launcher/run.c: from the plan to the exit status.
 *
 * One rank on this machine replaces the launcher: no MPI, no process of ours.
 * All else is a job (job.h) under a supervisor (supervisor.h). Where the
 * command is typed on each node, the nodes first join node 0 (join/join.h).
 * With --max_restarts the job may have several attempts (restart.h).
 *
 * Invariants: files of the job (folders, the file of --save_pid) are made
 * before the supervisor forks and removed by the process that ran the job or,
 * if that was killed, by the other one. The plan's environment is set in this
 * process before anything is started, so that the runner inherits it.
 * SPDX-License-Identifier: MIT */
#include "run.h"

#include "job.h"
#include "job_folders.h"
#include "join/join.h"
#include "join/secret.h"
#include "rank.h"
#include "rank_place.h"
#include "restart.h"
#include "supervisor.h"

#include "base/mem.h"
#include "base/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    START_S = 60,          /* --start_timeout */
    ENOUGH_FILES = 1 << 16 /* that a runner can open */
};

typedef struct run {
    const launch_plan *p;
    job job;
    const char **host; /* [world_size] of each rank */
    char **prefix;     /* [world_size] of each rank's lines */
    job_folders folders;
    char pid_file[64];    /* "": none */
    const attempt *again; /* NULL: the job is not started again */
} run;

/* A closed stdin, stdout or stderr becomes /dev/null opened the wrong way: it
 * still refuses, but its number is not given to the next file that is
 * opened. */
static void keep_standard_files(void)
{
    for (int fd = 0, opened; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && (opened = open("/dev/null", fd ? O_RDONLY : O_WRONLY)) != fd)
            close(opened);
}

static void set_plan_environment(const launch_plan *p)
{
    for (char **s = p->environment; s && *s; s++) {
        char *copy = dsi_strdup(*s), *value = strchr(copy, '=');
        if (value) {
            *value = 0;
            setenv(copy, value + 1, 1);
        }
        dsi_free(copy);
    }
}

/* ---- files of the job ---------------------------------------------------------- */

static void run_make_folders(run *r)
{
    if (!r->p->runner->job_folders) return;
    job_folders_make(&r->folders);
    job_folders_export(&r->folders);
}

static void run_remove_files(void *arg)
{
    run *r = arg;
    job_folders_remove(&r->folders);
    if (*r->pid_file) unlink(r->pid_file);
}

/* --save_pid: /tmp/PID.deepspeed holds this process's number while the job
 * runs. */
static bool run_save_pid(run *r)
{
    snprintf(r->pid_file, sizeof r->pid_file, "/tmp/%d.deepspeed", (int)getpid());
    int fd = open(r->pid_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    bool good = fd >= 0 && dprintf(fd, "%d", (int)getpid()) > 0;
    if (fd >= 0) close(fd);
    if (good) return true;
    fprintf(stderr, "deepspeed: --save_pid: %s: %s\n", r->pid_file, strerror(errno));
    *r->pid_file = 0;
    return false;
}

/* That a runner may open here. */
static rlim_t run_files(const launch_plan *p)
{
    return 32 + (rlim_t)p->runner->files_per_rank * (rlim_t)p->world_size;
}

/* A runner holds some files for each rank of this machine, and Open MPI's hangs
 * when it gets none. The limit is only ever raised. */
static bool raise_file_limit(const launch_plan *p)
{
    struct rlimit files;
    rlim_t needed = run_files(p);
    if (p->remote || !p->runner->files_per_rank || getrlimit(RLIMIT_NOFILE, &files) ||
        files.rlim_cur >= needed)
        return true;
    files.rlim_cur = needed;
    if (needed <= files.rlim_max && !setrlimit(RLIMIT_NOFILE, &files)) return true;
    fprintf(stderr,
            "deepspeed: %d ranks need %llu open files here, and at most %llu are allowed (ulimit "
            "-Hn)\n",
            p->world_size, (unsigned long long)needed, (unsigned long long)files.rlim_max);
    return false;
}

/* Open MPI 4's mpirun closes each number that a file could have before it runs
 * ssh or an agent: with the limit of some containers, a billion, that takes
 * minutes. The program of a rank gets the user's limit back (rank.c). */
static void lower_file_limit(const launch_plan *p)
{
    const rlim_t most = run_files(p) > ENOUGH_FILES ? run_files(p) : ENOUGH_FILES;
    struct rlimit files;
    char text[30];
    if (!p->runner->job_folders || getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur <= most)
        return;
    snprintf(text, sizeof text, "%llu", (unsigned long long)files.rlim_cur);
    files.rlim_cur = most;
    if (!setrlimit(RLIMIT_NOFILE, &files)) setenv(RANK_OPEN_FILES, text, 1);
}

/* Open MPI's files of shared memory count against ulimit -f, and mpirun fails
 * obscurely, or dies, when it gets none. The program of a rank gets the limit
 * back (--file_size). */
static bool raise_size_limit(const launch_plan *p, job *j)
{
    enum { NEEDED_MIB = 32 };
    const rlim_t needed = (rlim_t)NEEDED_MIB << 20;
    struct rlimit size;
    if (p->remote || !p->runner->job_folders || getrlimit(RLIMIT_FSIZE, &size) ||
        size.rlim_cur >= needed)
        return true;
    struct rlimit more = {RLIM_INFINITY, size.rlim_max < needed ? RLIM_INFINITY : size.rlim_max};
    if (more.rlim_max != RLIM_INFINITY) more.rlim_cur = more.rlim_max;
    if (!setrlimit(RLIMIT_FSIZE, &more)) {
        snprintf(j->file_size, sizeof j->file_size, "%llu:%llu", (unsigned long long)size.rlim_cur,
                 (unsigned long long)size.rlim_max);
        return true;
    }
    fprintf(stderr,
            "deepspeed: %s needs files of %d MiB for shared memory, and at most %llu KiB are "
            "allowed (ulimit -f)\n",
            p->runner->name, NEEDED_MIB, (unsigned long long)size.rlim_max >> 10);
    return false;
}

/* ---- the job --------------------------------------------------------------------- */

/* The runner's command with more options for --rank_start: how a rank reaches
 * this job (wire.h), the time in the names of log files, whether it reports its
 * progress. */
static char **link_command(char *const *command, const job *j, int restarts)
{
    char now[40];
    time_t t = time(NULL);
    struct tm local;
    argv_list argv = {0};
    bool linked = false;
    size_t n = strftime(now, sizeof now, "%Y%m%d%H%M%S", localtime_r(&t, &local));
    if (restarts) snprintf(now + n, sizeof now - n, "_restart%d", restarts);
    for (; *command; command++) {
        const char *at = linked ? NULL : strstr(*command, " " NODE_SECRET " ");
        if (at)
            argv_add(&argv, "%.*s %s %s", (int)(at - *command), *command, j->secret,
                     at + sizeof NODE_SECRET + 1);
        else
            argv_add(&argv, "%s", *command);
        if (linked || strcmp(*command, "--rank_start") != 0) continue;
        linked = true;
        argv_add(&argv, "--link=%s:%s:%d", j->local ? "socket" : "stderr", j->secret, j->columns);
        argv_add(&argv, "--log_time=%s", now);
        if (j->report) argv_add(&argv, "--progress");
        if (*j->file_size) argv_add(&argv, "--file_size=%s", j->file_size);
    }
    return argv_detach(&argv);
}

/* Hosts of ranks and prefixes of their lines. */
static void run_name_ranks(run *r)
{
    const launch_plan *p = r->p;
    r->host = dsi_alloc((size_t)p->world_size * sizeof *r->host);
    r->prefix = dsi_alloc((size_t)p->world_size * sizeof *r->prefix);
    for (int h = 0, rank = 0; h < p->n_hosts; h++)
        for (int i = 0; i < p->hosts[h].n_slots && rank < p->world_size; i++, rank++) {
            dsi_text t = dsi_text_of("%s", "");
            if (p->n_hosts > 1) dsi_text_add(&t, "%s: ", p->hosts[h].name);
            if (p->o.tag_output) dsi_text_add(&t, "[rank %d]: ", rank);
            r->host[rank] = p->hosts[h].name;
            r->prefix[rank] = t.s;
        }
}

/* Columns of the terminal that stdout and stderr are, less the longest prefix;
 * 0: they are not a terminal. */
static int run_columns(const run *r)
{
    size_t longest = 0;
    if (!isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO)) return 0;
    int columns = dsi_terminal_columns(STDERR_FILENO);
    for (int i = 0; i < r->p->world_size; i++)
        if (strlen(r->prefix[i]) > longest) longest = strlen(r->prefix[i]);
    return columns > (int)longest + 20 ? columns - (int)longest : 80;
}

/* A queue (srun outside of a job) may take hours to give hosts. */
static int run_start_timeout(const launch_plan *p)
{
    if (p->o.start_timeout > 0) return p->o.start_timeout;
    return p->origin == HOSTS_UNNAMED ? 0 : START_S;
}

static void run_make_job(run *r, int node_lost, job_report *report)
{
    const launch_plan *p = r->p;
    bool piped = p->remote || p->o.tag_output;
    run_name_ranks(r);
    job own = {.size = p->world_size,
               .host = r->host,
               .prefix = piped ? (const char *const *)r->prefix : NULL,
               .columns = run_columns(r),
               .program = p->o.program[0],
               .local = !p->remote,
               .status_ignored = p->runner->status_ignored,
               .start_timeout = run_start_timeout(p),
               .node_lost = node_lost,
               .supervisor = getpid(),
               .quiet = options_silent(&p->o),
               .report = report,
               .verbose = p->o.log_level && !strcmp(p->o.log_level, "debug")};
    memcpy(own.file_size, r->job.file_size, sizeof own.file_size);
    r->job = own;
    wire_new_secret(r->job.secret);
    r->job.command = link_command(p->command, &r->job, p->restarts);
}

static void run_free_job(run *r)
{
    argv_free(r->job.command);
    for (int i = 0; i < r->job.size; i++) dsi_free(r->prefix[i]);
    dsi_free(r->prefix);
    dsi_free(r->host);
}

/* In the process of the job, of which the supervisor is the parent. */
static int run_supervised(void *arg)
{
    run *r = arg;
    int status = job_run(&r->job);
    run_remove_files(r);
    return status;
}

static void run_ending(void *arg)
{
    const run *r = arg;
    r->again->ending(r->again->arg);
}

/* node_lost: descriptor from which a line comes when a node is lost; 0: none.
 * again: NULL, or what the next attempt needs to know of this one. */
static int run_job(const launch_plan *p, int node_lost, attempt *again)
{
    run r = {.p = p, .again = again};
    keep_standard_files();
    set_plan_environment(p);
    if (p->runner->in_place && !p->o.save_pid && !p->o.tag_output && !again)
        return rank_start_alone(p->command);
    if (!raise_file_limit(p)) return 1;
    lower_file_limit(p);
    rank_place_forget();
    if (!raise_size_limit(p, &r.job)) return 1;
    run_make_job(&r, node_lost, again ? again->report : NULL);
    int status = 1;
    if (!p->o.save_pid || run_save_pid(&r)) {
        supervised work = {.work = run_supervised,
                           .clean_up = run_remove_files,
                           .arg = &r,
                           .ending = again && again->ending ? run_ending : NULL,
                           .signals = job_signals};
        run_make_folders(&r);
        status = supervisor_run(&work);
        job_folders_unexport(&r.folders);
        if (again) again->ended_by = work.ended_by;
    }
    run_free_job(&r);
    return status;
}

/* ---- with other nodes or without --------------------------------------------------- */

/* Node 0 of a job whose command is typed on each node. */
typedef struct joined_job {
    launch_plan *p;
    node_session *s;
    relay *r; /* NULL: the nodes are not connected */
} joined_job;

static int joined_find_hosts(void *arg, bool all)
{
    joined_job *j = arg;
    ds_hosts joined = {0};
    relay *r;
    int status = gather_nodes(j->s, all);
    if (!status) status = relay_start(&r, j->s);
    if (status) return status;
    j->r = r;
    session_hosts(j->s, &joined);
    plan_set_joined(j->p, &joined, session_full_size(j->s), relay_agent(r));
    return 0;
}

static int joined_run(void *arg, attempt *again)
{
    joined_job *j = arg;
    plan_announce(j->p);
    return run_job(j->p, relay_lost(j->r), again);
}

static void joined_finish(void *arg, int status, bool again)
{
    joined_job *j = arg;
    if (j->r) relay_finish(j->r, status, again);
    j->r = NULL;
}

static int run_node_0(launch_plan *p, node_session *s)
{
    joined_job j = {.p = p, .s = s};
    int status = plan_reach(p);
    if (status) return status;
    if (p->o.max_restarts)
        return restart_run(p, &(restart_job){joined_find_hosts, joined_run, joined_finish, &j});
    status = joined_find_hosts(&j, true);
    if (!status) status = joined_run(&j, NULL);
    joined_finish(&j, status, false);
    return status;
}

/* Node 0 and the other nodes share the session; only node 0 starts a job. */
static int run_joining(launch_plan *p)
{
    node_session *s = NULL;
    int status = session_open(&s, p);
    if (!status) status = p->o.node_rank > 0 ? joiner_run(s) : run_node_0(p, s);
    session_close(s);
    return status;
}

static int run_attempt(void *arg, attempt *again)
{
    const launch_plan *p = arg;
    plan_announce(p);
    return run_job(p, 0, again);
}

int run_plan(launch_plan *p)
{
    if (p->runner->joins) return run_joining(p);
    secret_forget_variable(); /* needed only to join */
    if (p->o.max_restarts) return restart_run(p, &(restart_job){.run = run_attempt, .arg = p});
    int status = plan_reach(p);
    return status ? status : run_attempt(p, NULL);
}
