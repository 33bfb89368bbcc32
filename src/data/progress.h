/* data/progress.h: a bar for long transfers, as tqdm draws it.
 *
 * Invariants: a bar belongs to one thread. Between begin and end stderr's last
 * line is the bar's: a message in between would be overwritten. Without a
 * terminal nothing is drawn, so logs have no bars.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct dsi_progress {
    bool on;       /* stderr is a terminal */
    double begun;  /* seconds; rate and time left are of the bytes since then */
    double shown;  /* when last drawn */
    int64_t first; /* bytes that were there at the beginning */
} dsi_progress;

/* Begins a bar at `done` bytes; it is drawn only if stderr is a terminal. */
void dsi_progress_begin(dsi_progress *p, int64_t done, bool quiet);
void dsi_progress_show(dsi_progress *p, int64_t done, int64_t total); /* total 0: unknown */
void dsi_progress_end(dsi_progress *p, int64_t done, int64_t total);

/* Writes the line itself, at most `width` columns, into `line` of `room` bytes:
 *  45%|████▌     | 76.7M/170M [00:05<00:06, 14.5MB/s]
 * `seconds` have passed since the bar began, and bytes_since came in them: the
 * rate. total 0: no bar. */
void dsi_progress_line(char *line, int room, int width, int64_t done, int64_t total, double seconds,
                       int64_t bytes_since);
