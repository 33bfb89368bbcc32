/* parallel/same.c: whether all ranks have made the same model.
 *
 * Ranks with different models would wait for each other, or read each other's
 * bytes as other parameters. Each rank describes its parameters and buffers,
 * one a line, and the ranks compare hashes of these texts. Only if they differ
 * are texts sent: rank 0's to all; the first rank with another text finds the
 * line that differs and broadcasts it, so that all ranks fail with the same
 * message.
 * SPDX-License-Identifier: MIT */
#include "same.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/text.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 768 /* of the message */

/* "fc1.weight [8, 4] float32, trained" */
static void model_describe(const ds_module *model, dsi_text *to)
{
    ds_state *state = ds_module_state(model);
    for (int i = 0; i < ds_state_len(state); i++) {
        const ds_tensor *x = ds_state_at(state, i);
        const dsi_experts *of = dsi_module_expert_of(model, x).of;
        if (of && of->ep_size > 1) continue;
        dsi_text_add(to, "%s %s %s%s\n", ds_state_name(state, i), dsi_shape_text(x->shape),
                     ds_dtype_name(x->dtype), x->requires_grad ? ", trained" : "");
    }
    ds_state_free(state);
}

/* The first rank whose text is not rank 0's; 0: there is none; -1: the
 * collective failed. */
static int first_different_rank(const char *text, ds_comm *comm)
{
    int size = ds_comm_size(comm), r = 1;
    int64_t mine = (int64_t)dsi_fnv1a_text(text);
    ds_tensor *all = ds_zeros(DS_I64, ds_shape(size));
    if (ds_all_gather(comm, all, ds_from_data(DS_I64, ds_shape(1), &mine)) != DS_OK) return -1;
    const int64_t *of = ds_data(all);
    while (of && r < size && of[r] == of[0]) r++;
    return !of ? -1 : r < size ? r : 0;
}

/* Broadcasts n bytes at p from rank `root`. */
static ds_status difference_send(ds_comm *comm, void *p, int64_t n, int root)
{
    ds_tensor *x = ds_from_data(DS_U8, ds_shape(n), p);
    if (!x || ds_broadcast(comm, x, root) != DS_OK) return ds_error_status();
    memcpy(p, ds_data(x), (size_t)n);
    return DS_OK;
}

static int line_length(const char *s) { return (int)strcspn(s, "\n"); }

/* Writes a message about the first line that differs to text. */
static void difference_find(const char *mine, const char *theirs, int rank, const char *model,
                            char text[MESSAGE_BYTES])
{
    for (int n; *mine && *theirs; mine += n + 1, theirs += n + 1) {
        n = line_length(mine);
        if (n != line_length(theirs) || strncmp(mine, theirs, (size_t)n) != 0) break;
    }
    if (!*mine) mine = "nothing";
    if (!*theirs) theirs = "nothing";
    snprintf(text, MESSAGE_BYTES,
             "%s: rank %d has made another model than rank 0: %.*s where rank 0 has %.*s: expected "
             "the same one on all ranks",
             model, rank, line_length(mine), mine, line_length(theirs), theirs);
}

/* Collective. Fails on all ranks with the same message. */
static ds_status difference_report(const char *mine, ds_comm *comm, int different,
                                   const char *model)
{
    char message[MESSAGE_BYTES] = "";
    int64_t n = (int64_t)strlen(mine) + 1;
    if (difference_send(comm, &n, sizeof n, 0) != DS_OK) return ds_error_status();
    char *theirs = dsi_alloc((size_t)n);
    if (ds_comm_rank(comm) == 0) memcpy(theirs, mine, (size_t)n);
    ds_status status = difference_send(comm, theirs, n, 0);
    if (ds_comm_rank(comm) == different) difference_find(mine, theirs, different, model, message);
    dsi_free(theirs);
    if (status != DS_OK || difference_send(comm, message, MESSAGE_BYTES, different) != DS_OK)
        return ds_error_status();
    return dsi_fail(DS_EINVAL, "%s", message);
}

ds_status dsi_same_model(const ds_module *model, ds_comm *comm)
{
    ds_scope *scope = ds_scope_open();
    dsi_text text = {0};
    model_describe(model, &text);
    const char *mine = text.s ? text.s : "";
    int different = first_different_rank(mine, comm);
    ds_status status = different < 0 ? ds_error_status() : DS_OK;
    if (different > 0) status = difference_report(mine, comm, different, ds_module_name(model));
    dsi_text_free(&text);
    ds_scope_close(scope);
    return status;
}
