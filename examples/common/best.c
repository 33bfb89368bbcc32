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

ds_value *best_value(const Best *b)
{
    ds_value *v = ds_value_dict();
    ds_value_set(v, "measure", ds_value_float(b->measure));
    ds_value_set(v, "at", ds_value_int(b->at));
    ds_value_set(v, "waited", ds_value_int(b->waited));
    ds_value_set(v, "count", ds_value_int(b->count));
    if (b->weights) ds_value_set(v, "weights", ds_value_of_state(b->weights));
    return v;
}

ds_status best_load(Best *b, const ds_value *v)
{
    if (!v) return DS_OK;
    ds_status status = ds_value_read_float(v, "measure", &b->measure);
    if (status == DS_OK) status = ds_value_read_int(v, "at", &b->at);
    if (status == DS_OK) status = ds_value_read_int(v, "waited", &b->waited);
    if (status == DS_OK) status = ds_value_read_int(v, "count", &b->count);
    if (status != DS_OK || !ds_value_get(v, "weights")) return status;
    ds_state *weights = ds_state_of_value(ds_value_get(v, "weights"));
    status = weights ? best_keep(b, weights) : ds_error_status();
    ds_state_free(weights);
    return status;
}

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
