/* engine/timers.c: times of the parts of a step.
 *
 * Names, order and rules are those of deepspeed/utils/timer.py and of its
 * engine, so that scripts which read its lines read ours: "time (ms) | ..."
 * names only timers that were ever started, and times of a throughput line are
 * from forward to step, without the loading of data.
 * SPDX-License-Identifier: MIT */
#include "timers.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/text.h"

#include <string.h>

/* ---- timers by name -------------------------------------------------------------------------------- */

typedef struct Timer {
    const char *name;
    double begun, seconds, last; /* last: from the last start to its stop */
    bool running;
} Timer;

struct dsi_timers {
    DSI_LIST(Timer)
};

dsi_timers *dsi_timers_new(void) { return dsi_alloc(sizeof(dsi_timers)); }

void dsi_timers_free(dsi_timers *t)
{
    if (!t) return;
    for (int i = 0; i < t->n; i++) dsi_free((char *)t->at[i].name);
    dsi_list_free(t);
    dsi_free(t);
}

static Timer *timer_find(const dsi_timers *t, const char *name)
{
    for (int i = 0; t && i < t->n; i++)
        if (!strcmp(t->at[i].name, name)) return &t->at[i];
    return NULL;
}

static Timer *timer_find_or_add(dsi_timers *t, const char *name)
{
    Timer *timer = timer_find(t, name);
    if (timer) return timer;
    dsi_list_add(t, (Timer){.name = dsi_strdup(name)});
    return &t->at[t->n - 1];
}

static void timer_start_at(dsi_timers *t, const char *name, double now)
{
    Timer *timer = timer_find_or_add(t, name);
    timer->begun = now;
    timer->running = true;
}

/* Adds a measured time as if the timer had run for it. */
static void timer_add_time(Timer *timer, double seconds)
{
    timer->last = seconds;
    timer->seconds += seconds;
}

static void timer_stop_at(dsi_timers *t, const char *name, double now)
{
    Timer *timer = timer_find(t, name);
    if (!timer || !timer->running) return;
    timer->running = false;
    timer_add_time(timer, now - timer->begun);
}

double dsi_timer_ms(const dsi_timers *t, const char *name)
{
    const Timer *timer = timer_find(t, name);
    return timer ? 1e3 * timer->seconds : 0;
}

/* Names without a timer are left out: DeepSpeed's timers exist from their
 * first start. */
void dsi_timers_log(dsi_timers *t, int n, const char *const *names)
{
    if (!t) return;
    dsi_text line = dsi_text_of("time (ms)");
    for (int i = 0; i < n; i++) {
        Timer *timer = timer_find(t, names[i]);
        if (!timer) continue;
        dsi_text_add(&line, " | %s: %.2f", names[i], 1e3 * timer->seconds);
        *timer = (Timer){.name = timer->name};
    }
    dsi_log(DSI_REQUESTED, "%s", line.s);
    dsi_text_free(&line);
}

/* ---- the engine's phases ------------------------------------------------------------------------------ */

static const char *const micro[DSI_PHASES] = {"fwd_microstep", "bwd_microstep",
                                              "bwd_inner_microstep", "bwd_allreduce_microstep",
                                              "step_microstep"};
static const char *const global[DSI_PHASES] = {"fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"};

void dsi_phase_start(dsi_timers *t, dsi_phase phase)
{
    if (!t) return;
    double now = dsi_now();
    timer_start_at(t, micro[phase], now);
    timer_start_at(t, global[phase], now);
}

void dsi_phase_stop(dsi_timers *t, dsi_phase phase)
{
    if (!t) return;
    double now = dsi_now();
    timer_stop_at(t, micro[phase], now);
    timer_stop_at(t, global[phase], now);
}

/* The reduction runs inside backward: its time is known only afterwards. */
void dsi_phase_split_backward(dsi_timers *t, double reducing)
{
    const Timer *all = timer_find(t, micro[DSI_BWD]);
    if (!all) return;
    double inner = all->last - reducing;
    timer_add_time(timer_find_or_add(t, micro[DSI_BWD_INNER]), inner);
    timer_add_time(timer_find_or_add(t, global[DSI_BWD_INNER]), inner);
    timer_add_time(timer_find_or_add(t, micro[DSI_BWD_ALLREDUCE]), reducing);
    timer_add_time(timer_find_or_add(t, global[DSI_BWD_ALLREDUCE]), reducing);
}

void dsi_phases_log_update(dsi_timers *t, int stage, double allgather, double gradients,
                           double update)
{
    static const char *const name[] = {"optimizer_allgather", "optimizer_gradients",
                                       "optimizer_step"};
    const double seconds[] = {allgather, gradients, update};
    int first = stage == 3 ? 2 : 0; /* in stage 3 parameters are gathered in forward */
    if (!t || !stage) return;
    for (int i = first; i < 3; i++) timer_add_time(timer_find_or_add(t, name[i]), seconds[i]);
    dsi_timers_log(t, 3 - first, name + first);
}

double dsi_phase_ms(const dsi_timers *t, dsi_phase phase) { return dsi_timer_ms(t, global[phase]); }
void dsi_phases_log_micro(dsi_timers *t) { dsi_timers_log(t, DSI_PHASES, micro); }
void dsi_phases_log_global(dsi_timers *t) { dsi_timers_log(t, DSI_PHASES, global); }

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
