/* launcher/run.c: from the plan to the exit status.
 *
 * One rank on this machine is executed in place of the launcher: no MPI, no process of ours. All else is a job
 * (job.h) under a guard (guard.h), with a folder of its own for the files of Open MPI, one of them in shared
 * memory, which go with the job however it ends.
 * SPDX-License-Identifier: MIT */
#include "run.h"

#include "job.h"
#include "rank.h"
#include "supervisor.h"
#include "world.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

typedef struct run {
    const launch_plan *p;
    job job;
    const char **host;
    char **prefix;
    char folder[4096], shared[64], pid_file[64]; /* "": none */
} run;

/* A descriptor that is closed stays useless, instead of becoming whatever is opened next. */
static void keep_standard_files(void)
{
    for (int fd = 0, now; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && (now = open("/dev/null", fd ? O_RDONLY : O_WRONLY)) != fd)
            close(now);
}

static void set_environment(const launch_plan *p)
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

/* ---- files of the job ------------------------------------------------------------------------------------ */

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st, (void)flag, (void)at;
    remove(path);
    return 0;
}

static void tidy(void *arg)
{
    run *r = arg;
    if (*r->folder) nftw(r->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (*r->shared) nftw(r->shared, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (*r->pid_file) unlink(r->pid_file);
}

/* Where a folder cannot be made, Open MPI uses what it always does. On other machines there is none: what mpirun
 * sets for itself it would set for them. */
static void make_folders(run *r)
{
    const char *tmp = getenv("TMPDIR");
    bool openmpi = r->p->engine == ENGINE_OPENMPI || r->p->engine == ENGINE_NODES;
    if (!r->job.local && !openmpi) return;
    snprintf(r->folder, sizeof r->folder, "%s/deepspeed.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(r->folder)) *r->folder = 0;
    snprintf(r->shared, sizeof r->shared, "/dev/shm/deepspeed.XXXXXX");
    if (!mkdtemp(r->shared)) *r->shared = 0;
    if (!r->job.local) {
        world_set_folders(r->folder, r->shared);
        return;
    }
    if (*r->folder) setenv("OMPI_MCA_orte_tmpdir_base", r->folder, 0);
    if (!*r->shared) return;
    setenv("OMPI_MCA_btl_vader_backing_directory", r->shared, 0);
    setenv("OMPI_MCA_osc_sm_backing_directory", r->shared, 0);
}

/* --save_pid: /tmp/<number of this process>.deepspeed holds it, as long as the job runs. */
static bool save_pid(run *r)
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

/* Open MPI's mpirun holds four files for each rank here, and hangs without them. What is not needed the limit keeps. */
static bool allow_files(const launch_plan *p)
{
    struct rlimit files;
    rlim_t needed = 32 + 5 * (rlim_t)p->world_size;
    if (p->engine != ENGINE_LOCAL || getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur >= needed)
        return true;
    files.rlim_cur = needed;
    if (needed <= files.rlim_max && !setrlimit(RLIMIT_NOFILE, &files)) return true;
    fprintf(stderr,
            "deepspeed: %d ranks need %llu open files here, and at most %llu are allowed (ulimit "
            "-Hn)\n",
            p->world_size, (unsigned long long)needed, (unsigned long long)files.rlim_max);
    return false;
}

/* ---- the job --------------------------------------------------------------------------------------------- */

/* The command with what the start of a rank must know of this job. */
static char **link_command(char **argv, const job *j)
{
    char text[100], now[40];
    int n = 0, at = 0;
    time_t t = time(NULL);
    struct tm local;
    strftime(now, sizeof now, "%Y%m%d%H%M%S", localtime_r(&t, &local));
    while (argv[n]) n++;
    char **linked = dsi_alloc((size_t)(n + 3) * sizeof *linked);
    for (int i = 0, found = 0; i < n; i++) {
        linked[at++] = dsi_strdup(argv[i]);
        if (found || strcmp(argv[i], "--rank_start") != 0) continue;
        found = 1;
        snprintf(text, sizeof text, "--link=%s:%s:%d", j->local ? "socket" : "stderr", j->secret,
                 j->columns);
        linked[at++] = dsi_strdup(text);
        snprintf(text, sizeof text, "--log_time=%s", now);
        linked[at++] = dsi_strdup(text);
    }
    return linked;
}

static void name_ranks(run *r)
{
    const launch_plan *p = r->p;
    r->host = dsi_alloc((size_t)p->world_size * sizeof *r->host);
    r->prefix = dsi_alloc((size_t)p->world_size * sizeof *r->prefix);
    for (int h = 0, rank = 0; h < p->n_hosts; h++)
        for (int i = 0; i < p->hosts[h].n_slots && rank < p->world_size; i++, rank++) {
            dsi_text t = {0};
            dsi_text_add(&t, "%s", "");
            if (p->n_hosts > 1) dsi_text_add(&t, "%s: ", p->hosts[h].name);
            if (p->o.tag_output) dsi_text_add(&t, "[rank %d]: ", rank);
            r->host[rank] = p->hosts[h].name;
            r->prefix[rank] = t.s;
        }
}

/* Of the terminal that stdout and stderr are, less the longest prefix; 0: they are not one. */
static int columns_left(const run *r)
{
    struct winsize w;
    size_t longest = 0;
    if (!isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO) || ioctl(STDERR_FILENO, TIOCGWINSZ, &w))
        return 0;
    for (int i = 0; i < r->p->world_size; i++)
        if (strlen(r->prefix[i]) > longest) longest = strlen(r->prefix[i]);
    return w.ws_col > longest + 20 ? w.ws_col - (int)longest : 80;
}

static void make_job(run *r)
{
    const launch_plan *p = r->p;
    bool local = p->engine == ENGINE_DIRECT || p->engine == ENGINE_LOCAL;
    name_ranks(r);
    r->job = (job){.n_commands = p->n_commands,
                   .size = p->world_size,
                   .host = r->host,
                   .prefix = !local || p->o.tag_output ? (const char *const *)r->prefix : NULL,
                   .columns = columns_left(r),
                   .program = p->o.program[0],
                   .local = local,
                   .hydra = p->hydra,
                   .lost = p->lost,
                   .quiet = args_silent(&p->o),
                   .verbose = p->o.log_level && !strcmp(p->o.log_level, "debug")};
    wire_new_secret(r->job.secret);
    r->job.commands = dsi_alloc((size_t)p->n_commands * sizeof *r->job.commands);
    for (int k = 0; k < p->n_commands; k++)
        r->job.commands[k] = link_command(p->commands[k], &r->job);
}

static void free_job(run *r)
{
    for (int k = 0; k < r->job.n_commands; k++) {
        for (char **s = r->job.commands[k]; *s; s++) dsi_free(*s);
        dsi_free(r->job.commands[k]);
    }
    dsi_free(r->job.commands);
    for (int i = 0; i < r->job.size; i++) dsi_free(r->prefix[i]);
    dsi_free(r->prefix);
    dsi_free(r->host);
}

static int work(void *arg)
{
    run *r = arg;
    int status = job_run(&r->job);
    tidy(r);
    return status;
}

int run_plan(launch_plan *p)
{
    run r = {.p = p};
    keep_standard_files();
    set_environment(p);
    if (p->engine == ENGINE_DIRECT && !p->o.save_pid && !p->o.tag_output)
        return rank_start_alone(p->commands[0]);
    if (!allow_files(p)) return 1;
    world_forget_engine();
    make_job(&r);
    int status = 1;
    if (!p->o.save_pid || save_pid(&r)) {
        make_folders(&r);
        status = guard_run(&(guarded){.work = work,
                                      .tidy = tidy,
                                      .arg = &r,
                                      .signals = 1 << SIGINT | 1 << SIGTERM | 1 << SIGHUP |
                                                 1 << SIGUSR1 | 1 << SIGUSR2});
    }
    free_job(&r);
    return status;
}
