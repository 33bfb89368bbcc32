/* base/trace.h: what each thread does when, for the trace viewers of Chrome and
 * Perfetto.
 *
 *     DS_TRACE=run.json program       then open run.json in https://ui.perfetto.dev or chrome://tracing
 *
 *     dsi_trace_begin("all_gather");
 *     ...
 *     dsi_trace_end();
 *
 * Without DS_TRACE a call costs a load and a branch.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { DSI_TRACE_UNKNOWN, DSI_TRACE_OFF, DSI_TRACE_ON };
extern int dsi_trace_state __attribute__((__visibility__("hidden"))); /* of the process; atomic */
bool dsi_trace_look(void); /* at DS_TRACE, once: whether it is on */
void dsi_trace_add(char phase, const char *name, uint64_t id);

static inline bool dsi_trace_on(void)
{
    int state = __atomic_load_n(&dsi_trace_state, __ATOMIC_RELAXED);
    return __builtin_expect(state != DSI_TRACE_OFF, 0) && dsi_trace_look();
}

/* Something begins and ends on this thread; what begins inside ends inside. The
 * name is copied, its first 78 bytes. */
static inline void dsi_trace_begin(const char *name)
{
    if (dsi_trace_on()) dsi_trace_add('B', name, 0);
}

static inline void dsi_trace_end(void)
{
    if (dsi_trace_on()) dsi_trace_add('E', "", 0);
}

/* Something is under way beside what the thread does, such as a message; id
 * tells those of one name apart that overlap. */
static inline void dsi_trace_async_begin(const char *name, uint64_t id)
{
    if (dsi_trace_on()) dsi_trace_add('b', name, id);
}

static inline void dsi_trace_async_end(const char *name, uint64_t id)
{
    if (dsi_trace_on()) dsi_trace_add('e', name, id);
}

/* Sets the name of this thread in the viewer: "rank 3". */
static inline void dsi_trace_name_thread(const char *name)
{
    if (dsi_trace_on()) dsi_trace_add('M', name, 0);
}
