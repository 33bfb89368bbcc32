/* tools/lm/update.c: the micro batches of an update, and the divisor of its
 * loss.
 *
 * The loss of a micro batch is the mean over its labels, and the engine takes
 * the mean of the micro batches and ranks. Where these have different numbers
 * of labels, as beside prompts, which do not count, that is not the mean over
 * all labels of the update. There its micro batches are read first, their
 * labels are counted on all ranks, and the model divides by that number: what
 * transformers' Trainer does by num_items_in_batch. Elsewhere each is read when
 * it is its turn.
 *
 * Invariants: x[0..n-1] and y[0..n-1], if labels are counted, are kept tensors
 * from lm_update_next to the next one. No batch behind the update is read, so
 * that a checkpoint between two updates has the loader's place.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/mem.h"
#include "lm.h"

int64_t lm_count_labels(ds_tensor *labels, int64_t rows)
{
    const int64_t *label = ds_data(labels);
    int64_t n = 0, width = ds_size(labels, 1);
    for (int64_t i = 0; label && i < rows * width; i++) n += i % width && label[i] != -100;
    return n;
}

void lm_update_begin(LmUpdate *u, ds_loader *loader, int64_t n, bool counts)
{
    *u = (LmUpdate){.loader = loader, .n = n};
    if (!counts) return;
    u->x = dsi_alloc((size_t)n * sizeof *u->x), u->y = dsi_alloc((size_t)n * sizeof *u->y);
}

static void update_drop(LmUpdate *u)
{
    for (int64_t i = 0; i < u->n; i++) {
        ds_drop(u->x[i]), ds_drop(u->y[i]);
        u->x[i] = u->y[i] = NULL;
    }
    ds_drop(u->items);
    u->items = NULL;
}

void lm_update_end(LmUpdate *u)
{
    if (u->x) update_drop(u);
    dsi_free(u->x), dsi_free(u->y);
    *u = (LmUpdate){0};
}

/* The next batch, of the next epoch if this one has no more. */
static ds_status update_read(LmUpdate *u, ds_batch *b)
{
    for (int i = 0; i < 2; i++) {
        if (ds_loader_next(u->loader, b)) return DS_OK;
        if (ds_error()) return ds_error_status();
    }
    return dsi_fail(DS_EINVAL,
                    "train: the data has less than one batch: shorten --context or --batch");
}

ds_status lm_update_next(LmUpdate *u)
{
    if (!u->x) return DS_OK;
    update_drop(u);
    int64_t counts[2] = {0, u->n};
    for (int64_t i = 0; i < u->n; i++) {
        ds_batch b;
        ds_status status = update_read(u, &b);
        if (status != DS_OK) return status;
        u->x[i] = ds_keep(b.x), u->y[i] = ds_keep(b.y);
        counts[0] += lm_count_labels(b.y, b.size);
    }
    ds_scope *scope = ds_scope_open();
    u->items = ds_keep(ds_from_data(DS_I64, ds_shape(2), counts));
    ds_status status = u->items ? ds_all_reduce(NULL, u->items, DS_REDUCE_SUM) : ds_error_status();
    ds_scope_close(scope);
    return status;
}

int lm_update_batch(LmUpdate *u, int64_t i, ds_tensor *in[3])
{
    if (u->x) {
        in[0] = u->x[i], in[1] = u->y[i], in[2] = u->items;
        return 3;
    }
    ds_batch b;
    if (update_read(u, &b) != DS_OK) return 0;
    in[0] = b.x, in[1] = b.y;
    return 2;
}
