/* engine/stop.c: a training that a signal asks to end.
 *
 * The signal may reach one rank alone, or the ranks in different steps, and all
 * must end in the same one. A question to all ranks after each step would take
 * as long as a small step. So they ask each other about every ASK_S seconds:
 * with each answer rank 0 says how many steps it takes until then.
 *
 * Invariants: stop_asked is set by the signal's handler, and never reset. next
 * and every are the same on all ranks, so that all ask in the same step.
 * SPDX-License-Identifier: MIT */
#include "comm/sync_status.h"
#include "engine.h"

#include "base/clock.h"
#include "base/error.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

#define ASK_S 0.5

static volatile sig_atomic_t stop_asked;

static void stop_note(int signal)
{
    (void)signal;
    stop_asked = 1;
}

ds_status ds_stop_on_signal(int signal)
{
    struct sigaction how = {.sa_handler = stop_note, .sa_flags = SA_RESTART};
    if (sigaction(signal, &how, NULL) == 0) return DS_OK;
    return dsi_fail(DS_EINVAL, "stop_on_signal: signal %d: %s", signal, strerror(errno));
}

/* Rank 0's steps until the next question: at most twice as many as last time,
 * as the first steps may take longer than the others. */
static int64_t stop_interval(const dsi_stop *s, double now, int64_t steps)
{
    int64_t taken = steps - s->asked_step;
    if (!s->every || taken < 1) return 1;
    double wanted = ASK_S * (double)taken / (now - s->asked_at + 1e-9);
    double most = 2 * (double)s->every;
    return wanted < 1 ? 1 : (int64_t)(wanted < most ? wanted : most);
}

bool ds_engine_should_stop(ds_engine *e)
{
    if (!dsi_live(e, "engine_should_stop") || ds_error()) return false;
    dsi_stop *s = &e->stop;
    if (s->agreed || e->accumulated || e->global_steps < s->next) return s->agreed;
    double now = dsi_now();
    bool first = ds_comm_rank(e->comm) == 0;
    int64_t x[2] = {stop_asked, first ? stop_interval(s, now, e->global_steps) : 0};
    if (dsi_sync_max(e->comm, x, 2) != DS_OK) return false;
    s->agreed = x[0] != 0;
    s->every = x[1];
    s->asked_at = now;
    s->asked_step = e->global_steps;
    s->next = e->global_steps + s->every;
    return s->agreed;
}
