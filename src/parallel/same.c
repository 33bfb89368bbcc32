/* parallel/same.c: whether all ranks have made the same model.
 *
 * Ranks with different models would wait for each other, or read each other's
 * bytes as other parameters. Each rank describes its parameters and buffers,
 * one a line, and the ranks compare hashes of these texts. Only if they differ
 * is rank 0's text sent to all; the first rank with another text finds the line
 * that differs, and its failure becomes that of all ranks.
 * SPDX-License-Identifier: MIT */
#include "same.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/text.h"
#include "comm/sync_status.h"
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
    char *theirs, message[MESSAGE_BYTES];
    ds_status status = dsi_broadcast_text(comm, mine, &theirs);
    if (status == DS_OK && ds_comm_rank(comm) == different) {
        difference_find(mine, theirs, different, model, message);
        status = dsi_fail(DS_EINVAL, "%s", message);
    }
    dsi_free(theirs);
    return ds_comm_sync_status(comm, status);
}

ds_status dsi_same_model(const ds_module *model, ds_comm *comm)
{
    dsi_text text = {0};
    int different;
    int64_t hashes[2];
    model_describe(model, &text);
    const char *mine = text.s ? text.s : "";
    ds_status status = dsi_sync_find_different(comm, (int64_t)dsi_fnv1a_text(mine), &different,
                                               hashes);
    if (status == DS_OK && different)
        status = difference_report(mine, comm, different, ds_module_name(model));
    dsi_text_free(&text);
    return status;
}
