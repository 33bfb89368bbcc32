/* base/log.h: lines of DeepSpeed's form on stdout, quiet unless asked.
 *
 *     [2026-11-21 12:05:41,123] [INFO] [engine.c:210:engine_step] [Rank 0] text
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include "text.h"

#include <stdio.h>

/* DSI_REQUESTED is what a config key asked for (steps_per_print,
 * wall_clock_breakdown, memory_breakdown): printed as [INFO] whatever DS_LOG
 * says. */
typedef enum dsi_level { DSI_DEBUG, DSI_INFO, DSI_WARNING, DSI_ERROR, DSI_REQUESTED } dsi_level;

/* Prints the line if it is at or above DS_LOG (debug, info, warning, error; at
 * first warning). DEBUG, INFO and ASKED are for rank 0 alone; a warning or an
 * error comes from the rank that has it. */
#define dsi_log(level, ...) dsi_log_at(level, __FILE__, __LINE__, __func__, __VA_ARGS__)
void dsi_log_at(dsi_level level, const char *file, int line, const char *func, const char *format,
                ...) DS_PRINTF(5, 6);

/* The same, the first time that this thread comes to this place. */
#define dsi_log_once(level, ...) \
    do { \
        static _Thread_local bool said; \
        if (!said) dsi_log(level, __VA_ARGS__); \
        said = true; \
    } while (0)

/* From now on this thread's lines are added to *to, as "PREFIXtext\n", in place
 * of stdout. Both are borrowed until the call with NULL, which ends it. */
void dsi_log_collect(dsi_text *to, const char *prefix);

/* This thread's lines go to that stream, not to stdout: of a program whose
 * stdout is a result. NULL: stdout. */
DSI_SHARED void dsi_log_set_stream(FILE *to);

bool dsi_log_on(dsi_level level); /* whether such a line would be printed: for long texts */
void dsi_log_set_rank(int rank);  /* of this thread; 0 at first */
int dsi_log_rank(void);
