/* base/progress.h: how far a training has come, for the process that watches
 * the program: it can read that after the program was killed.
 *
 * The launcher's rank monitor makes a file in memory with one dsi_progress, and
 * passes its descriptor to the program in DEEPSPEED_PROGRESS. The engine maps
 * it and stores numbers there; nothing else is sent.
 *
 * Invariants: the program writes, and the monitor reads once the program has
 * ended. Each number is stored whole, so that a kill between two stores leaves
 * the older one. Times are those of dsi_now, which all processes of a host share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#define DSI_PROGRESS_VARIABLE "DEEPSPEED_PROGRESS"
#define DSI_PROGRESS_MAGIC    INT64_C(0x31676f7270736c44)

typedef struct dsi_progress {
    int64_t magic;
    _Atomic double ready;    /* when training could begin; 0: not yet */
    _Atomic int64_t first;   /* steps of the optimizer that a checkpoint had brought */
    _Atomic int64_t step;    /* steps so far, with those */
    _Atomic int64_t saved;   /* steps that the newest checkpoint has */
    _Atomic double saved_at; /* when that was complete; 0: none was saved */
} dsi_progress;

/* The file of DEEPSPEED_PROGRESS; NULL if there is none. dsi_progress_close
 * unmaps it; both it and the functions below take NULL. */
dsi_progress *dsi_progress_open(void);
void dsi_progress_close(dsi_progress *p);

/* Training can begin, at this step. */
void dsi_progress_ready(dsi_progress *p, int64_t step);
void dsi_progress_step(dsi_progress *p, int64_t step);
/* A checkpoint of this step is complete. */
void dsi_progress_saved(dsi_progress *p, int64_t step);
