/* engine/memory_report.h: memory of tensors and of the machine, as lines of the
 * log.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

/* DeepSpeed's see_memory_usage: the message, then MA, Max_MA, CA, Max_CA
 * (memory allocated and cached, in GB, on the current device; peaks since the
 * previous such line), then the memory of the machine. */
void dsi_memory_report_log(const char *message);

/* The machine's memory as psutil counts it. */
typedef struct dsi_machine_memory {
    double used_bytes; /* all but what a program could still get */
    double percent;
} dsi_machine_memory;

/* From the text of /proc/meminfo; false if it lacks the lines. */
bool dsi_machine_memory_parse(const char *meminfo, dsi_machine_memory *out);
