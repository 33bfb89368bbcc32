/* launcher/job_result.c: which of several failures was the cause.
 *
 * A rank that failed without having been told to end is the cause: its status
 * counts, and later failures follow from it. If the runner told all ranks to
 * end, one that exited instead of dying may have called MPI_Abort. Else the
 * runner knows, and its status counts. A runner that was killed from outside is
 * the cause whatever ranks have reported: they may have died of it first. As
 * that may be 0 after a failure, success needs more: each rank has reported
 * status 0.
 * SPDX-License-Identifier: MIT */
#include "job_result.h"
#include "older_libc.h"

#include "local_host.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How likely it is that a failed rank is the cause, in rising order. */
typedef enum cause_confidence {
    NO_FAILED_RANK,
    NOT_CAUSE,      /* killed on request */
    POSSIBLE_CAUSE, /* exited on request: it may have called MPI_Abort */
    CERTAIN_CAUSE,  /* failed without a request */
} cause_confidence;

static cause_confidence exit_confidence(const rank_exit *e)
{
    return !e->requested ? CERTAIN_CAUSE : e->signal ? NOT_CAUSE : POSSIBLE_CAUSE;
}

/* That of rank `first`. */
static cause_confidence first_confidence(const job_result *r)
{
    return r->first < 0 ? NO_FAILED_RANK : exit_confidence(&r->rank[r->first].exit);
}

/* The first report of a rank counts. Of failures with the same confidence the
 * earliest remains the first. */
void job_result_add_exit(job_result *r, int rank, const rank_exit *e)
{
    if (r->rank[rank].ended) return;
    r->rank[rank].ended = true;
    r->rank[rank].exit = *e;
    r->ended++;
    if (rank_exit_status(e) == 0)
        r->succeeded++;
    else if (exit_confidence(e) > first_confidence(r))
        r->first = rank;
}

/* The name of mpirun's host number `node` in the plan: its daemons are counted
 * from 1 without its own host, which is the first one if that has ranks. As
 * names may differ, the host's own name decides, if the plan has it. */
static const char *node_name(const job_result *r, const node_event *e)
{
    const char *nth = e->host;
    int k = -1;
    for (int i = 0; i < r->size; i++) {
        if (!strcmp(r->host[i], e->host)) return r->host[i];
        if (!i || strcmp(r->host[i], r->host[i - 1])) k++;
        if (k == e->node) nth = r->host[i];
    }
    return nth;
}

void job_result_add_node(job_result *r, const node_event *e)
{
    const char *name = node_name(r, e);
    for (int i = 0; i < r->size; i++)
        if (!strcmp(r->host[i], name)) {
            r->rank[i].node_up = true;
            r->rank[i].node_connected |= e->kind == NODE_CONNECTED;
        }
}

/*   HNP daemon   : [[23830,0],0] on node node0
 *   Remote daemon: [[23830,0],1] on node node1 */
bool job_result_read_loss(job_result *r, const char *text, size_t n)
{
    static const char begin[] = "Remote daemon: ", on[] = "on node ";
    const char *at = text ? memmem(text, n, begin, sizeof begin - 1) : NULL;
    const char *end = at ? memchr(at, '\n', n - (size_t)(at - text)) : NULL;
    const char *host = end ? memmem(at, (size_t)(end - at), on, sizeof on - 1) : NULL;
    if (!host || r->node.kind != NODE_UP) return false;
    host += sizeof on - 1;
    r->node.kind = NODE_LOST;
    snprintf(r->node.host, sizeof r->node.host, "%.*s", (int)(end - host), host);
    return true;
}

/* Is the first failed rank a better explanation than the runner's own status?
 * One that exited on request is one if the runner ended after it; one that was
 * killed only if the runner reports success. */
static bool first_rank_is_cause(const job_result *r)
{
    cause_confidence confidence = first_confidence(r);
    if (confidence == NO_FAILED_RANK) return false;
    return confidence == CERTAIN_CAUSE ||
           (confidence == POSSIBLE_CAUSE && !r->runner_ended_first) || !r->runner_status;
}

/* Whether a signal that others send has ended the runner. A failed rank is no
 * reason to send one of these; but it may make the runner crash, and hydra
 * sometimes dies of SIGPIPE without any failure. */
bool job_result_runner_killed(const job_result *r)
{
    int s = r->runner_signal;
    bool sent = s == SIGKILL || s == SIGTERM || s == SIGINT || s == SIGHUP || s == SIGQUIT;
    if (r->status_ignored && s == SIGPIPE) return false;
    return s && (sent || first_confidence(r) != CERTAIN_CAUSE);
}

/* The text of the runner that was held back is shown unless this is true. */
bool job_result_is_known(const job_result *r)
{
    return r->signal || r->start_timeout || r->node.kind != NODE_UP ||
           job_result_runner_killed(r) || r->node_lost || r->unknown_rank_failed ||
           r->output_error == EPIPE || first_confidence(r) == CERTAIN_CAUSE;
}

/* Is there no use in starting the ranks again? They have succeeded, somebody
 * has ended them, or their program cannot be executed. */
static bool job_result_is_final(const job_result *r, int status)
{
    bool unfit = r->first >= 0 && r->rank[r->first].exit.error;
    return !status || status == DS_EXIT_REQUEUE || r->signal || r->output_error == EPIPE || unfit;
}

/* ---- messages ------------------------------------------------------------------- */

/* "signal 9 (SIGKILL)"; real-time signals have no names. */
static void add_signal(dsi_text *t, int signal)
{
    const char *name = sigabbrev_np(signal);
    dsi_text_add(t, name ? "signal %d (SIG%s)" : "signal %d", signal, name);
}

static void add_rank_exit(const job_result *r, int rank, dsi_text *t)
{
    const rank_exit *e = &r->rank[rank].exit;
    dsi_text_add(t, "deepspeed: rank %d on %s", rank, r->host[rank]);
    if (e->error) {
        dsi_text_add(t, ": %s: %s", r->program, strerror(e->error));
        return;
    }
    dsi_text_add(t, " (process %d) ", e->process);
    if (e->signal) {
        dsi_text_add(t, "was killed by ");
        add_signal(t, e->signal);
        dsi_text_add(t, "%s; ", e->out_of_memory ? " for want of memory" : "");
    }
    dsi_text_add(t, "%s exits with return code = %d", r->program, rank_exit_status(e));
}

/* Has nothing come from another host, rank or node monitor? */
static bool is_silent(const job_result *r, int rank)
{
    return !r->rank[rank].process && !r->rank[rank].node_up && !local_host_is(r->host[rank]);
}

/* "node1 (ranks 2 to 3), node2 (rank 4)": hosts of ranks that have not started;
 * if there are silent hosts, these: they may keep the others from starting. The
 * ranks of a host follow one another. */
static void add_missing_hosts(const job_result *r, dsi_text *t)
{
    bool first = true, silent = false;
    for (int i = 0; i < r->size; i++) silent = silent || is_silent(r, i);
    for (int i = 0, end; i < r->size; i = end) {
        int missing = 0, from = -1, to = -1;
        for (end = i; end < r->size && !strcmp(r->host[end], r->host[i]); end++)
            if (!r->rank[end].process) {
                if (!missing++) from = end;
                to = end;
            }
        if (!missing || (silent && !is_silent(r, from))) continue;
        dsi_text_add(t, "%s%s (rank", first ? "" : ", ", r->host[i]);
        if (missing > 1)
            dsi_text_add(t, "s %d to %d)", from, to);
        else
            dsi_text_add(t, " %d)", from);
        first = false;
    }
}

static int add_node_event(const job_result *r, dsi_text *t)
{
    const char *name = node_name(r, &r->node);
    if (r->node.kind == NODE_UNCONNECTED) {
        dsi_text_add(t,
                     "deepspeed: %s cannot connect to %s, where %s waits for it: every TCP port "
                     "between the hosts must be open in both directions",
                     name, r->node.text, r->runner);
        return 1;
    }
    if (r->node.kind == NODE_LOST) {
        dsi_text_add(t,
                     "deepspeed: %s has lost %s: its processes were killed, or the network is cut; "
                     "all ranks are ended",
                     r->runner, name);
        return r->runner_status ? r->runner_status : 1;
    }
    dsi_text_add(t, "deepspeed: %s (process %d) on %s was killed by ", r->node.text,
                 r->node.process, name);
    add_signal(t, r->node.signal);
    dsi_text_add(t, "; all ranks are ended");
    return 128 + r->node.signal;
}

/* Are the daemons of all other hosts connected? Then the network is good. */
static bool all_are_connected(const job_result *r)
{
    for (int i = 0; i < r->size; i++)
        if (!r->rank[i].process && !r->rank[i].node_connected && !local_host_is(r->host[i]))
            return false;
    return true;
}

static int add_start_timeout(const job_result *r, dsi_text *t)
{
    bool several = r->size && strcmp(r->host[0], r->host[r->size - 1]) != 0;
    dsi_text_add(t, "deepspeed: nothing was heard within %d s (--start_timeout) from ",
                 r->start_timeout);
    add_missing_hosts(r, t);
    if (several && all_are_connected(r))
        dsi_text_add(t, ": %s is connected to the hosts, but does not start the ranks", r->runner);
    else if (several)
        dsi_text_add(t,
                     ": every TCP port between the hosts must be open in both directions, not only "
                     "that of ssh or of --master_port");
    else
        dsi_text_add(t, ": %s does not start them", r->runner);
    return 1;
}

enum { HOST_BYTES = 256 };

static const char *this_host(char name[HOST_BYTES])
{
    snprintf(name, HOST_BYTES, "this host");
    gethostname(name, HOST_BYTES - 1);
    return name;
}

/* A process that this host's launcher has started. */
static int add_runner_killed(const job_result *r, dsi_text *t)
{
    char host[HOST_BYTES];
    dsi_text_add(t, "deepspeed: %s (process %d) on %s was killed by ", r->runner, r->runner_process,
                 this_host(host));
    add_signal(t, r->runner_signal);
    dsi_text_add(t, "%s; all ranks are ended",
                 r->out_of_memory && r->runner_signal == SIGKILL ? " for want of memory" : "");
    return 128 + r->runner_signal;
}

/* Returns the status of the command, too. */
static int add_runner_exit(const job_result *r, dsi_text *t)
{
    int status = r->runner_status;
    dsi_text_add(t, "deepspeed: %s ", r->runner);
    if (r->succeeded == r->size && status)
        dsi_text_add(
            t,
            "exits with return code = %d, although each rank ended with 0: does one use MPI "
            "and not finalize it?",
            status);
    else if (status)
        dsi_text_add(t, "%sexits with return code = %d",
                     r->ended > r->succeeded ? "has ended the ranks and " : "", status);
    else
        dsi_text_add(t, "has ended, but %d of %d ranks have not reported how they ended",
                     r->size - r->ended, r->size);
    return status ? status : 1;
}

static int add_output_error(int error, dsi_text *t)
{
    bool broken = error == EPIPE;
    dsi_text_add(t, "deepspeed: what ranks printed could not be written: %s%s", strerror(error),
                 broken ? "; all ranks are ended" : "");
    return broken ? 128 + SIGPIPE : 1;
}

/* Lost output is a failure, but others explain an end better. */
int job_result_status(const job_result *r, dsi_text *line)
{
    if (r->signal && r->launcher_killed) {
        char host[HOST_BYTES];
        dsi_text_add(line,
                     "deepspeed: the launcher (process %d) on %s was killed; all ranks are ended",
                     r->launcher_killed, this_host(host));
        return 128 + SIGKILL;
    }
    if (r->signal) {
        dsi_text_add(line, "deepspeed: ");
        add_signal(line, r->signal);
        dsi_text_add(line, ": all ranks are ended");
        return 128 + r->signal;
    }
    if (r->node_lost) return 1;
    if (r->node.kind != NODE_UP && !job_result_runner_killed(r)) return add_node_event(r, line);
    if (r->start_timeout) return add_start_timeout(r, line);
    if (job_result_runner_killed(r)) return add_runner_killed(r, line);
    if (r->output_error == EPIPE && first_confidence(r) != CERTAIN_CAUSE)
        return add_output_error(EPIPE, line);
    if (first_rank_is_cause(r)) {
        const rank_exit *e = &r->rank[r->first].exit;
        if (!e->reported) add_rank_exit(r, r->first, line);
        return rank_exit_status(e);
    }
    if (r->unknown_rank_failed) return 1;
    if (r->succeeded < r->size || (r->runner_status && !r->status_ignored && !r->runner_hung))
        return add_runner_exit(r, line);
    if (r->output_error) return add_output_error(r->output_error, line);
    if (r->runner_hung)
        dsi_text_add(line, "deepspeed: %s did not end after its ranks, and was killed", r->runner);
    return 0;
}

/* ---- the report ------------------------------------------------------------------- */

static int larger(int a, int b) { return a > b ? a : b; }

void job_report_add_progress(job_report *report, rank_progress p)
{
    const rank_progress *all = &report->progress;
    if (report->counted) {
        p.step = larger(p.step, all->step);
        p.saved = larger(p.saved, all->saved);
        if (all->useful_s > p.useful_s) p.useful_s = all->useful_s;
    }
    report->progress = p;
    report->counted = true;
}

void job_report_finish(job_report *report, const job_result *r, int status, const dsi_text *line)
{
    report->final = job_result_is_final(r, status);
    if (status && line->n && !*report->cause)
        snprintf(report->cause, sizeof report->cause, "%.*s", (int)strcspn(line->s, "\n"), line->s);
}
