/* examples/common/losses.h: the losses of steps, read from a GPU many at a time:
 * reading one makes the host wait for the step, and the GPU for the host.
 *
 *     losses_begin(&l, false);
 *     for each step:
 *         losses_add(&l, loss);
 *         if (losses_due(&l)) losses_read(&l), use l.value[0 .. l.n - 1]
 *     the rest:
 *     losses_read(&l), use l.value[0 .. l.n - 1]; losses_end(&l);
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

enum { LOSSES = 100 };

typedef struct Losses {
    ds_tensor *waiting; /* float32 [LOSSES], on the GPU; NULL: each is read at once */
    int count;          /* of added ones that were not read */
    int n;
    double value[LOSSES]; /* the n that the last losses_read read, in their order */
} Losses;

/* each: read every loss at once, as on the CPU */
void losses_begin(Losses *l, bool each);
/* loss: of one element; NULL is left out */
void losses_add(Losses *l, ds_tensor *loss);
bool losses_due(const Losses *l);
void losses_read(Losses *l);
void losses_end(Losses *l);
