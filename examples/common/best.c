/* examples/common/best.c: the best weights of a training.
 * SPDX-License-Identifier: MIT */
#include "best.h"

#include <stdio.h>

bool best_add(Best *b, double measure, int64_t at)
{
    bool better = measure == measure && (!b->weights || measure > b->measure);
    b->count++;
    b->waited = better ? 0 : b->waited + 1;
    if (!better) return false;
    b->measure = measure;
    b->at = at;
    return true;
}

ds_status best_keep(Best *b, const ds_state *state)
{
    ds_state *copy = ds_state_new();
    ds_status status = state ? DS_OK : DS_EINVAL;
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        ds_tensor *x = ds_clone(ds_detach(ds_state_at(state, i)));
        status = ds_state_set(copy, ds_state_name(state, i), x);
    }
    ds_state_free(b->weights);
    b->weights = copy;
    return status;
}

bool best_is_over(const Best *b) { return b->patience && b->waited >= b->patience; }

void best_print(const Best *b)
{
    printf("The best of %lld epochs was epoch %lld: %.2f %%: its weights are taken\n",
           (long long)b->count, (long long)b->at, 100 * b->measure);
}

void best_free(Best *b)
{
    ds_state_free(b->weights);
    b->weights = NULL;
}
