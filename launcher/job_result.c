/* launcher/job_result.c: which of several failures was the cause.
 *
 * A rank that failed without having been told to end is the cause: its status
 * counts, and later failures follow from it. If the runner told all ranks to
 * end, one that exited instead of dying may have called MPI_Abort. Else the
 * runner knows, and its status counts. As that may be 0 after a failure,
 * success needs more: each rank has reported status 0.
 * SPDX-License-Identifier: MIT */
#include "job_result.h"
#include "older_libc.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* How much a failed rank says about the cause: killed on request nothing,
 * exited on request little. */
enum { SAYS_NOTHING, SAYS_LITTLE, SAYS_ALL };

static int exit_weight(const rank_exit *e)
{
    return !e->requested ? SAYS_ALL : e->signal ? SAYS_NOTHING : SAYS_LITTLE;
}

static int first_weight(const job_result *r)
{
    return r->first < 0 ? -1 : exit_weight(&r->rank[r->first].exit);
}

/* The first report of a rank counts. Of failures with the same weight the
 * earliest remains the first. */
void job_result_add_exit(job_result *r, int rank, const rank_exit *e)
{
    if (r->rank[rank].ended) return;
    r->rank[rank].ended = true;
    r->rank[rank].exit = *e;
    r->ended++;
    if (rank_exit_status(e) == 0)
        r->succeeded++;
    else if (exit_weight(e) > first_weight(r))
        r->first = rank;
}

/* Is the first failed rank a better explanation than the runner's own status?
 * One that exited on request is one if the runner ended after it; one that was
 * killed only if the runner reports success. */
static bool is_failed_rank(const job_result *r)
{
    int weight = first_weight(r);
    if (weight < 0) return false;
    return weight == SAYS_ALL || (weight == SAYS_LITTLE && !r->runner_ended_first) ||
           !r->runner_status;
}

/* The text of the runner that was held back is shown unless this is true. */
bool job_result_is_known(const job_result *r)
{
    return r->signal || r->node_lost || r->unknown_rank_failed || r->output_error == EPIPE ||
           first_weight(r) == SAYS_ALL;
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
    if (r->signal) {
        dsi_text_add(line, "deepspeed: ");
        add_signal(line, r->signal);
        dsi_text_add(line, ": all ranks are ended");
        return 128 + r->signal;
    }
    if (r->node_lost) return 1;
    if (r->output_error == EPIPE && first_weight(r) != SAYS_ALL)
        return add_output_error(EPIPE, line);
    if (is_failed_rank(r)) {
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
