/* examples/common/progress.h: a progress bar on stderr, when that is a
 * terminal.
 *
 *     epoch 1/2:  45%|█████████           | 22500/50000 [00:01<00:01, 15220 samples/s, loss=1.234]
 *     [ 030 / 30 ]: 100%|████████████████████| 30/30 [00:42<00:00,  1.40s/it, loss=0.504]
 *
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
    bool slow;           /* units take seconds: the rate is in "s/it", as in tqdm */
    bool last_line;      /* the full bar stays at the end, and is printed to a file too */
} Progress;

void progress_begin(Progress *p, bool on, const char *unit, int64_t total, const char *title);
void progress_add(Progress *p, int64_t n, double loss); /* redraws ten times a second */
void progress_title(Progress *p, const char *title);
void progress_hide(Progress *p); /* before something else is printed */
void progress_end(Progress *p);
