/* launcher/verdict.c: which of all that went wrong was the cause.
 *
 * A rank that failed without having been told to end is the cause: its status counts, and what came later
 * came of it. If all were told to by their engine, one that exited instead of dying may have called MPI_Abort.
 * Else the engine knows, and its status counts; but it may be 0 after a failure, so success takes more: each rank
 * has said that it ended with 0.
 * SPDX-License-Identifier: MIT */
#include "verdict.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* How much a failure says of the cause. */
enum { NOTHING, LITTLE, ALL };
static int weight(const ending *e) { return !e->asked ? ALL : e->signal ? NOTHING : LITTLE; }

void facts_note(facts *f, int rank, const ending *e)
{
    if (f->rank[rank].ended) return;
    f->rank[rank].ended = true;
    f->rank[rank].how = *e;
    f->ended++;
    if (ending_status(e) == 0)
        f->good++;
    else if (f->first < 0 || weight(e) > weight(&f->rank[f->first].how))
        f->first = rank;
}

static bool knows_rank(const facts *f)
{
    if (f->first < 0) return false;
    int w = weight(&f->rank[f->first].how);
    return w == ALL || (w == LITTLE && !f->engine_died) || !f->engine_status;
}

bool verdict_is_clear(const facts *f)
{
    return f->signal || f->node_lost || f->rank_lost || f->unwritten == EPIPE ||
           (f->first >= 0 && weight(&f->rank[f->first].how) == ALL);
}

/* "SIGKILL"; real-time signals have no names. */
static void add_signal(dsi_text *t, int signal)
{
    const char *name = sigabbrev_np(signal);
    dsi_text_add(t, name ? "signal %d (SIG%s)" : "signal %d", signal, name);
}

static void tell_rank(const job *j, int rank, const ending *e, dsi_text *t)
{
    dsi_text_add(t, "deepspeed: rank %d on %s", rank, j->host[rank]);
    if (e->error) {
        dsi_text_add(t, ": %s: %s", j->program, strerror(e->error));
        return;
    }
    dsi_text_add(t, " (process %d) ", e->process);
    if (e->signal) {
        dsi_text_add(t, "was killed by ");
        add_signal(t, e->signal);
        dsi_text_add(t, "%s; ", e->no_memory ? " for want of memory" : "");
    }
    dsi_text_add(t, "%s exits with return code = %d", j->program, ending_status(e));
}

static const char *engine_name(const job *j)
{
    const char *path = j->commands[0][0], *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int tell_engine(const facts *f, const job *j, dsi_text *t)
{
    int status = f->engine_status;
    dsi_text_add(t, "deepspeed: %s ", engine_name(j));
    if (f->good == j->size && status)
        dsi_text_add(
            t,
            "exits with return code = %d, although each rank ended with 0: does one use MPI "
            "and not finalize it?",
            status);
    else if (status)
        dsi_text_add(t, "%sexits with return code = %d",
                     f->ended > f->good ? "has ended the ranks and " : "", status);
    else
        dsi_text_add(t, "has ended, but %d of %d ranks have not said how they did",
                     j->size - f->ended, j->size);
    return status ? status : 1;
}

/* Lost output is a failure, but one that other failures explain better. */
static int tell_unwritten(int error, dsi_text *t)
{
    bool broken = error == EPIPE;
    dsi_text_add(t, "deepspeed: what ranks printed could not be written: %s%s", strerror(error),
                 broken ? "; all ranks are ended" : "");
    return broken ? 128 + SIGPIPE : 1;
}

int verdict(const facts *f, const job *j, dsi_text *line)
{
    if (f->signal) {
        dsi_text_add(line, "deepspeed: ");
        add_signal(line, f->signal);
        dsi_text_add(line, ": all ranks are ended");
        return 128 + f->signal;
    }
    if (f->node_lost) return 1;
    bool rank_failed = f->first >= 0 && weight(&f->rank[f->first].how) == ALL;
    if (f->unwritten == EPIPE && !rank_failed) return tell_unwritten(EPIPE, line);
    if (knows_rank(f)) {
        const ending *e = &f->rank[f->first].how;
        if (!e->told) tell_rank(j, f->first, e, line);
        return ending_status(e);
    }
    if (f->rank_lost) return 1;
    if (f->good < j->size || (f->engine_status && !j->hydra && !f->engine_hung))
        return tell_engine(f, j, line);
    if (f->engine_hung && !f->unwritten)
        dsi_text_add(line, "deepspeed: %s did not end after its ranks, and was killed",
                     engine_name(j));
    return f->unwritten ? tell_unwritten(f->unwritten, line) : 0;
}
