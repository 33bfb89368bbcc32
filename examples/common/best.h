/* examples/common/best.h: the best weights of a training, and when it ends
 * because it does not improve (--patience).
 *
 *     Best best = {.patience = 3};
 *     if (best_add(&best, accuracy, epoch)) best_keep(&best, state);
 *     if (best_is_over(&best)) ...             3 evaluations without a better one
 *     ds_module_load(net, best.weights);
 *     best_free(&best);
 *
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

typedef struct Best {
    int64_t patience;  /* evaluations without a better one; 0: no early end */
    double measure;    /* the best; larger is better */
    int64_t at;        /* epoch or step of it */
    int64_t waited;    /* evaluations since then */
    int64_t count;     /* evaluations */
    ds_state *weights; /* of the best, copies; NULL: none yet */
} Best;

/* The row of --patience and its key in ArgsField, for a program's options. */
#define BEST_OPTION(key) \
    { \
        "patience", key, "N", 0, \
            "test after each epoch; stop after N without a better accuracy, and take the best " \
            "weights", \
            0 \
    }

/* The next evaluation; NaN is never better. Returns true if it is the best so
 * far: the caller then keeps the weights. All ranks give the same measure. */
bool best_add(Best *b, double measure, int64_t at);
/* Copies the tensors of state in place of those kept before. */
ds_status best_keep(Best *b, const ds_state *state);
bool best_is_over(const Best *b);
/* For the client state of a checkpoint: all but patience; new. */
ds_value *best_value(const Best *b);
/* Takes it back; NULL: nothing. */
ds_status best_load(Best *b, const ds_value *v);
/* "Best of 5 epochs: 3, 52.4 %" */
void best_print(const Best *b);
void best_free(Best *b);
