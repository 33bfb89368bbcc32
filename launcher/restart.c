/* launcher/restart.c: --max_restarts: the attempts of a job.
 *
 * Note [Restart]
 *
 *   wait      nothing after the first failure in a row; then 1, 2, 4, ... 60 s
 *   ask       all hosts of the first plan over ssh; those that do not answer are
 *             left out of this attempt, and asked again before the next one. It
 *             begins while the old ranks are being ended, which takes longer.
 *             Where the command is typed on each node, the nodes join again
 *             (join/gather.c), also one that was started again meanwhile
 *   enough?   fewer than --min_nodes or --min_ranks: wait and ask again, up to
 *             --join_timeout
 *   run       the ranks: the program loads the newest whole checkpoint (--resume)
 *   failed    one line of --error_file; the next attempt, or the end
 *
 * Failures are "in a row" until an attempt has saved a checkpoint, or has run
 * for a minute where the program does not report its checkpoints.
 *
 * Invariants: this is the process that the shell has started. While an attempt
 * runs it is the supervisor's first process (supervisor.h), so a SIGKILL of any
 * other process of the launcher is a failure of the attempt, and one of this
 * process ends the job. Nothing of an attempt is left when the next one begins,
 * on the hosts that answer: a rank of the old attempt on a host that is cut off
 * cannot save alone, as a save needs all ranks (engine/checkpoint/save.c).
 * SPDX-License-Identifier: MIT */
#include "restart.h"
#include "older_libc.h"

#include "reachable.h"
#include "signals.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define FRUITFUL_S 60.0 /* an attempt as long as this was none in vain */
enum { MOST_DELAY_S = 60, ASK_AGAIN_S = 5 };

typedef struct restarts {
    launch_plan *p;
    const restart_job *how;
    ds_hosts all;                /* of the first plan */
    attempt a;                   /* the last one */
    int in_vain;                 /* attempts in a row */
    double begin;                /* of the first one */
    double started;              /* the last one */
    double useful;               /* seconds of all attempts that were not lost */
    int step;                    /* the last one that a rank has reported; 0: none has */
    int repeated;                /* steps */
    bool counted;                /* the program reports its steps */
    bool unknown;                /* but not those of each attempt */
    int signal;                  /* that came while none ran; 0: none */
    struct reach_queries *begun; /* to ask the hosts; NULL: not yet */
} restarts;

/* ---- between attempts -------------------------------------------------------- */

/* 0, 1, 2, 4, ... */
static int restart_delay(const restarts *r)
{
    if (r->in_vain < 2) return 0;
    return r->in_vain > 7 ? MOST_DELAY_S : 1 << (r->in_vain - 2);
}

/* false: a signal that ends the job has come. */
static bool restart_wait(restarts *r, double seconds)
{
    sigset_t previous;
    int fd = signals_open(job_signals, &previous);
    double until = dsi_now() + seconds, left;
    while (!r->signal && (left = until - dsi_now()) > 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)(left * 1e3) + 1) <= 0) continue;
        int signal = signals_read(fd);
        if (signal && signal != SIGCHLD && signal != SIGUSR1 && signal != SIGUSR2)
            r->signal = signal;
    }
    signals_close(fd, &previous);
    return !r->signal;
}

/* A signal that no attempt has reported. */
static int restart_stop(int signal)
{
    fprintf(stderr, "deepspeed: signal %d (SIG%s): the ranks are not started again\n", signal,
            sigabbrev_np(signal));
    return 128 + signal;
}

static bool restart_has_enough(const restarts *r)
{
    return plan_has_enough(r->p, r->p->n_hosts, r->p->world_size);
}

/* 0, or the status of the command, after a line. */
static int restart_check_most(const restarts *r)
{
    const launch_plan *p = r->p;
    if (r->how->find_hosts || restart_has_enough(r)) return 0; /* join/gather.c compares them */
    dsi_text t = dsi_text_of("deepspeed: ");
    plan_add_too_few(p, "host", p->n_hosts, p->world_size, &t);
    fprintf(stderr, "%s\n", t.s);
    dsi_text_free(&t);
    return 2;
}

/* Plans the hosts that answer, once there are enough. Returns 0 or the status
 * of the command, after a line. */
static int restart_find_hosts(restarts *r)
{
    const options *o = &r->p->o;
    double until = dsi_now() + o->join_timeout;
    for (;;) {
        int status = plan_reach_some(r->p, &r->all, r->begun);
        r->begun = NULL;
        if (status) return status;
        if (restart_has_enough(r)) return 0;
        if (dsi_now() + ASK_AGAIN_S > until) break;
        if (!restart_wait(r, ASK_AGAIN_S)) return restart_stop(r->signal);
    }
    fprintf(stderr,
            "deepspeed: %d of %d hosts answer, with %d ranks; --min_nodes %d, --min_ranks %d were "
            "waited for during %d s (--join_timeout)\n",
            r->p->n_hosts, r->all.n, r->p->world_size, o->min_nodes > 0 ? o->min_nodes : 1,
            o->min_ranks > 0 ? o->min_ranks : 1, o->join_timeout);
    return 1;
}

static void restart_announce(const restarts *r)
{
    const launch_plan *p = r->p;
    dsi_text t = {0};
    dsi_text_add(&t, "deepspeed: restart %d of %d", p->restarts, p->o.max_restarts);
    if (restart_delay(r)) dsi_text_add(&t, " after %d s", restart_delay(r));
    dsi_text_add(&t, ": %d rank%s on ", p->world_size, p->world_size == 1 ? "" : "s");
    for (int i = 0; i < p->n_hosts; i++) dsi_text_add(&t, "%s%s", i ? ", " : "", p->hosts[i].name);
    fprintf(stderr, "%s\n", t.s);
    dsi_text_free(&t);
}

static void restart_finish(const restarts *r, int status, bool again)
{
    if (r->how->finish) r->how->finish(r->how->arg, status, again);
}

/* Returns 0, or the status of the command. */
static int restart_prepare(restarts *r, int last_status)
{
    bool first = !r->p->restarts;
    bool all = first && r->p->o.min_nodes < 0 && r->p->o.min_ranks < 0;
    if (!first && !restart_wait(r, restart_delay(r))) return restart_stop(r->signal);
    if (!first) restart_finish(r, last_status, true);
    int status = r->how->find_hosts ? r->how->find_hosts(r->how->arg, all)
                 : all              ? plan_reach(r->p)
                                    : restart_find_hosts(r);
    if (!status && !first) restart_announce(r);
    return status;
}

/* ---- during and after an attempt ---------------------------------------------------------- */

static void restart_ending(void *arg)
{
    restarts *r = arg;
    if (!r->begun) r->begun = plan_begin_asking(r->p, &r->all);
}

/* Drops answers that are of no use: they are old, not needed, or a launcher
 * that was killed has ended ssh too. */
static void restart_drop_answers(restarts *r)
{
    reachable_drop(r->begun);
    r->begun = NULL;
}

static void restart_add_record(const restarts *r, int status, dsi_text *t)
{
    const launch_plan *p = r->p;
    char *resources = hosts_json(p->hosts, p->n_hosts);
    dsi_text_add(t, "{\"attempt\": %d, \"time\": %lld, \"seconds\": %.3f, \"resources\": %s, ",
                 p->restarts, (long long)time(NULL), dsi_now() - r->started, resources);
    dsi_text_add(t, "\"status\": %d, \"error\": ", status);
    text_add_json(t, r->a.report->cause);
    dsi_text_add(t, "}\n");
    dsi_free(resources);
}

/* A regular file only: to open a FIFO waits for a reader, to which each record
 * ends. */
static int error_file_open(const char *path)
{
    struct stat s;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd < 0 || (!fstat(fd, &s) && S_ISREG(s.st_mode))) return fd;
    close(fd);
    errno = ENXIO; /* as open has it for a FIFO without a reader */
    return -1;
}

/* --error_file: a record, NULL: none, is one write at the end of the file. */
static bool error_file_append(const char *path, const dsi_text *record)
{
    int fd = error_file_open(path);
    bool good = fd >= 0 && (!record || write(fd, record->s, record->n) == (ssize_t)record->n);
    if (!good)
        fprintf(stderr, "deepspeed: --error_file: %s: %s\n", path,
                errno == ENXIO ? "expected a regular file" : strerror(errno));
    if (fd >= 0) close(fd);
    return good;
}

static void restart_write_record(const restarts *r, int status)
{
    dsi_text t = {0};
    if (!r->p->o.error_file) return;
    restart_add_record(r, status, &t);
    error_file_append(r->p->o.error_file, &t);
    dsi_text_free(&t);
}

/* Lost steps are known once the next attempt has begun, at the step of the
 * checkpoint that it has loaded. */
static void restart_count(restarts *r, int status)
{
    const rank_progress *p = &r->a.report->progress;
    bool killed = status && !*r->a.report->cause; /* with all that it knew */
    r->unknown = r->unknown || (killed && !r->a.report->counted);
    if (!r->a.report->counted) return;
    r->counted = true;
    r->useful += p->useful_s;
    if (r->step > p->first) r->repeated += r->step - p->first;
    r->step = p->step;
}

/* Useful is the time of steps that were not lost: from the begin of training to
 * the newest checkpoint, or to the end. */
static void restart_print_share(const restarts *r)
{
    double all = dsi_now() - r->begin;
    int n = r->p->restarts;
    if (!n && options_silent(&r->p->o)) return;
    fprintf(stderr, "deepspeed: %d restart%s in %.1f s", n, n == 1 ? "" : "s", all);
    if (r->counted)
        fprintf(stderr, ": %s%.0f %% of the time did useful work, and %s%d step%s were done again",
                r->unknown ? "at least " : "", 100 * r->useful / all, r->unknown ? "at least " : "",
                r->repeated, r->repeated == 1 ? "" : "s");
    fputc('\n', stderr);
}

/* Whether there is to be another attempt. */
static bool restart_again(restarts *r, int status)
{
    job_report *report = r->a.report;
    if (!status || report->final || r->a.ended_by) return false;
    if (!*report->cause)
        snprintf(report->cause, sizeof report->cause, "a process of the launcher was killed");
    bool fruitful = report->progress.saved || dsi_now() - r->started >= FRUITFUL_S;
    r->in_vain = fruitful ? 0 : r->in_vain + 1;
    return r->p->restarts < r->p->o.max_restarts;
}

int restart_run(launch_plan *p, const restart_job *how)
{
    restarts r = {.p = p, .how = how, .begin = dsi_now()};
    int status = 0;
    if (restart_check_most(&r)) return 2;
    if (p->o.error_file && !error_file_append(p->o.error_file, NULL)) return 2;
    for (int i = 0; i < p->n_hosts; i++) hosts_add_copy(&r.all, &p->hosts[i]);
    if (!how->find_hosts) r.a.ending = restart_ending, r.a.arg = &r;
    r.a.report = mmap(NULL, sizeof *r.a.report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                      -1, 0);
    if (r.a.report == MAP_FAILED) {
        fprintf(stderr, "deepspeed: --max_restarts: mmap: %s\n", strerror(errno));
        hosts_free(&r.all);
        return 1;
    }
    for (;; p->restarts++) {
        *r.a.report = (job_report){0};
        status = restart_prepare(&r, status);
        if (status) break;
        r.started = dsi_now();
        status = how->run(how->arg, &r.a);
        restart_count(&r, status);
        bool killed = !*r.a.report->cause, again = restart_again(&r, status);
        if (killed || !again || restart_delay(&r) > ASK_AGAIN_S) restart_drop_answers(&r);
        if (status) restart_write_record(&r, status);
        if (again) continue;
        int signal = r.a.ended_by;
        if (status && signal && status != 128 + signal) status = restart_stop(signal);
        restart_print_share(&r);
        break;
    }
    restart_finish(&r, status, false);
    munmap(r.a.report, sizeof *r.a.report);
    hosts_free(&r.all);
    return status;
}
