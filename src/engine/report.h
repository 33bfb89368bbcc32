/* engine/report.h: lines of progress and of memory, in DeepSpeed's words.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_ENGINE_REPORT_H
#define DSI_ENGINE_REPORT_H

#include <deepspeed/types.h>

/* "step=10, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]": at the start with step 0, then every
 * steps_per_print steps. lr [groups]; mom [groups * each], where each is 2 for betas and 1 for a
 * momentum. Betas that nobody asked for are a tuple in Python: mom=[(0.9, 0.999)]. */
void dsi_report_progress(int64_t step, int64_t skipped, int groups, const double *lr,
                         const double *mom, int each, bool tuple);

/* see_memory_usage: the message, then MA, Max_MA, CA, Max_CA of tensor storage on the current device,
 * where the two peaks are since the last such line, then what the machine's memory has. */
void dsi_report_memory(const char *message);

/* The machine's memory as psutil counts it, from the text of /proc/meminfo. */
typedef struct dsi_machine_memory {
    double used_bytes; /* all but what a program could still get */
    double percent;
} dsi_machine_memory;
bool dsi_machine_memory_read(const char *meminfo, dsi_machine_memory *out);

#endif
