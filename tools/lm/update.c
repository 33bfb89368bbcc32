/* tools/lm/update.c: the micro batches of an update, and what its loss is
 * divided
 * by.
 *
 * The loss of a micro batch is the mean over its labels, and the engine takes
 * the mean of the micro batches and ranks. Where these have different numbers
 * of labels, as beside prompts, which do not count, that is not the mean over
 * all labels of the update. So its micro batches are read first, their labels
 * are counted on all ranks, and the model divides by that number: what
 * transformers' Trainer does by num_items_in_batch.
 *
 * Invariants: between lm_update_next and the next one, x[0..n-1] and y[0..n-1]
 * are kept tensors. No batch behind the update is read, so that a checkpoint
 * between two updates has the loader's place.
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
    *u = (LmUpdate){.loader = loader, .n = n, .counts = counts};
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
    update_drop(u);
    int64_t counts[2] = {0, u->n};
    for (int64_t i = 0; i < u->n; i++) {
        ds_batch b;
        ds_status status = update_read(u, &b);
        if (status != DS_OK) return status;
        u->x[i] = ds_keep(b.x), u->y[i] = ds_keep(b.y);
        if (u->counts) counts[0] += lm_count_labels(b.y, b.size);
    }
    if (!u->counts) return DS_OK;
    ds_scope *scope = ds_scope_open();
    u->items = ds_keep(ds_from_data(DS_I64, ds_shape(2), counts));
    ds_status status = u->items ? ds_all_reduce(NULL, u->items, DS_REDUCE_SUM) : ds_error_status();
    ds_scope_close(scope);
    return status;
}
