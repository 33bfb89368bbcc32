/* examples/common/progress.h: a progress bar on stderr, when that is a
 * terminal.
 *
 *     epoch 1/2:  45%|█████████           | 22500/50000 [00:01<00:01, 15220 samples/s, loss=1.234]
 *     [ 030 / 30 ]: 100%|██████████| 93750/93750 [00:42<00:00, 2232 it/s, loss=0.504]
 *     [ 030 / 30 ]: 100% 00:42<00:00 0.504            in a terminal of 40 columns
 *
 * '#' takes the place of the blocks where the locale has no UTF-8. On a terminal
 * that cannot go back in a line (TERM=dumb) only the last line is printed.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct Progress {
    const char *unit; /* "samples" */
    char title[64];   /* "epoch 1/2" */
    int64_t total, done;
    double began, shown; /* seconds */
    double loss;         /* of the last progress_add */
    bool on;             /* stderr is a terminal, and not --quiet */
    bool visible;        /* the bar is on the screen now */
    bool last_line;      /* the full bar stays at the end, and is printed to a file too */
} Progress;

void progress_begin(Progress *p, bool on, const char *unit, int64_t total, const char *title);
void progress_add(Progress *p, int64_t n, double loss); /* redraws ten times a second */
void progress_title(Progress *p, const char *title);
void progress_hide(Progress *p); /* before something else is printed */
void progress_end(Progress *p);

/* The line of the bar after `seconds`, at most `columns` wide. line: of `size`
 * bytes, 4 a column. utf8: with blocks. */
void progress_line(const Progress *p, double seconds, int columns, bool utf8, char *line, int size);
