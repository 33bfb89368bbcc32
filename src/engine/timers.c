/* engine/timers.c: times of the parts of a step.
 *
 * Names, order and rules are those of deepspeed/utils/timer.py and of its
 * engine, so that scripts which read its lines read ours: "time (ms) | ..."
 * names only timers that were ever started, and times of a throughput line are
 * from forward to step, without the loading of data.
 * SPDX-License-Identifier: MIT */
#include "timers.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"

#include <math.h>
#include <string.h>

/* ---- phases ---------------------------------------------------------------------------------------- */

/* A phase has a timer of the micro step and one up to the boundary; the parts
 * of an update have one each. */
enum { MICRO, GLOBAL, UPDATE, ROWS };

static const char *const names[ROWS][DSI_PHASES] = {
    {"fwd_microstep", "bwd_microstep", "bwd_inner_microstep", "bwd_allreduce_microstep",
     "step_microstep"},
    {"fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"},
    {"optimizer_allgather", "optimizer_gradients", "optimizer_step"}};

typedef struct Timer {
    double begun, seconds, last; /* last: from the last start to its stop */
    double logged;               /* seconds of the last line */
    bool used, running;
} Timer;

struct dsi_timers {
    Timer at[ROWS][DSI_PHASES];
};

dsi_timers *dsi_timers_new(void) { return dsi_alloc(sizeof(dsi_timers)); }
void dsi_timers_free(dsi_timers *t) { dsi_free(t); }

/* Adds a measured time as if the timer had run for it. */
static void timer_add_time(Timer *timer, double seconds)
{
    timer->last = seconds;
    timer->seconds += seconds;
    timer->used = true;
}

/* DeepSpeed's timers exist from their first start: others are left out. */
static void timers_log(dsi_timers *t, int row, int first)
{
    if (!t) return;
    dsi_text line = dsi_text_of("time (ms)");
    for (int i = first; i < DSI_PHASES; i++) {
        Timer *timer = &t->at[row][i];
        if (!timer->used) continue;
        dsi_text_add(&line, " | %s: %.2f", names[row][i], 1e3 * timer->seconds);
        *timer = (Timer){.used = true, .logged = timer->seconds};
    }
    dsi_log(DSI_REQUESTED, "%s", line.s);
    dsi_text_free(&line);
}

void dsi_phase_start(dsi_timers *t, dsi_phase phase)
{
    double now = dsi_now();
    for (int row = MICRO; t && row <= GLOBAL; row++) {
        Timer *timer = &t->at[row][phase];
        timer->begun = now;
        timer->used = timer->running = true;
    }
}

void dsi_phase_stop(dsi_timers *t, dsi_phase phase)
{
    double now = dsi_now();
    for (int row = MICRO; t && row <= GLOBAL; row++) {
        Timer *timer = &t->at[row][phase];
        if (timer->running) timer_add_time(timer, now - timer->begun);
        timer->running = false;
    }
}

/* The reduction runs inside backward: its time is known only afterwards. */
void dsi_phase_split_backward(dsi_timers *t, double reducing)
{
    if (!t || !t->at[MICRO][DSI_BWD].used) return;
    double inner = t->at[MICRO][DSI_BWD].last - reducing;
    for (int row = MICRO; row <= GLOBAL; row++) {
        timer_add_time(&t->at[row][DSI_BWD_INNER], inner);
        timer_add_time(&t->at[row][DSI_BWD_ALLREDUCE], reducing);
    }
}

void dsi_phases_log_update(dsi_timers *t, int stage, double allgather, double gradients,
                           double update)
{
    const double seconds[] = {allgather, gradients, update};
    int first = stage == 3 ? 2 : 0; /* in stage 3 parameters are gathered in forward */
    if (!t || !stage) return;
    for (int i = first; i < 3; i++) timer_add_time(&t->at[UPDATE][i], seconds[i]);
    timers_log(t, UPDATE, first);
}

double dsi_phase_last(const dsi_timers *t, dsi_phase phase)
{
    return t ? t->at[MICRO][phase].last : 0;
}

double dsi_phase_ms(const dsi_timers *t, dsi_phase phase)
{
    return t ? 1e3 * t->at[GLOBAL][phase].seconds : 0;
}

double dsi_timer_logged_ms(const dsi_timers *t, const char *name)
{
    for (int row = MICRO; t && row < ROWS; row++)
        for (int i = 0; i < DSI_PHASES && names[row][i]; i++)
            if (!strcmp(names[row][i], name)) return 1e3 * t->at[row][i].logged;
    return NAN;
}

void dsi_phases_log_micro(dsi_timers *t) { timers_log(t, MICRO, 0); }
void dsi_phases_log_global(dsi_timers *t) { timers_log(t, GLOBAL, 0); }

/* ---- throughput ------------------------------------------------------------------------------------- */

enum { WARM_UP = 2 }; /* global steps that are not timed */

void dsi_throughput_start(dsi_throughput *t)
{
    if (t->off) return;
    t->running = true;
    if (t->global_step < WARM_UP) return;
    t->timed = true;
    t->begun = dsi_now();
}

/* Over all global steps after the warm-up. */
double dsi_throughput_average(const dsi_throughput *t)
{
    if (!t->timed || t->global_step <= WARM_UP) return 0;
    return (double)t->batch_size / (t->total_seconds / (double)(t->global_step - WARM_UP));
}

static void throughput_log(const dsi_throughput *t)
{
    const double GB = 1024.0 * 1024 * 1024;
    ds_device device = ds_current_device();
    dsi_text line = dsi_text_of(
        "epoch=%lld/micro_step=%lld/global_step=%lld, RunningAvgSamplesPerSec=",
        (long long)t->epoch, (long long)t->micro_step, (long long)t->global_step);
    dsi_text_add_double(&line, dsi_throughput_average(t));
    dsi_text_add(&line, ", CurrSamplesPerSec=");
    dsi_text_add_double(&line, t->current);
    dsi_text_add(&line, ", MemAllocated=");
    dsi_text_add_rounded(&line, (double)ds_memory_allocated(device) / GB, 2);
    dsi_text_add(&line, "GB, MaxMemAllocated=");
    dsi_text_add_rounded(&line, (double)ds_memory_peak(device) / GB, 2);
    dsi_log(DSI_REQUESTED, "%sGB", line.s);
    dsi_text_free(&line);
}

/* A micro step's time counts for the global step that it is part of. */
void dsi_throughput_stop(dsi_throughput *t, bool global_step)
{
    if (t->off || !t->running) return;
    t->running = false;
    t->micro_step++;
    t->global_step += global_step;
    if (!t->timed) return;
    double seconds = dsi_now() - t->begun;
    t->step_seconds += seconds;
    t->total_seconds += seconds;
    if (!global_step) return;
    t->current = (double)t->batch_size / (t->step_seconds + 1e-6);
    t->step_seconds = 0;
    if (t->steps_per_print && t->global_step % t->steps_per_print == 0) throughput_log(t);
}
