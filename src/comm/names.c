/* comm/names.c: what DeepSpeed's comms_logger calls the operations.
 *
 * These names are in logs, which tools parse, and in comms_logger's prof_ops;
 * messages of this library use its own (dsi_collective_name).
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include <string.h>

const char *const dsi_comm_names[DSI_COLLECTIVES] = {[DSI_ALL_REDUCE] = "all_reduce",
                                                     [DSI_REDUCE] = "reduce",
                                                     [DSI_REDUCE_SCATTER] = "reduce_scatter_tensor",
                                                     [DSI_ALL_GATHER] = "all_gather_into_tensor",
                                                     [DSI_GATHER] = "gather",
                                                     [DSI_SCATTER] = "scatter",
                                                     [DSI_ALL_TO_ALL] = "all_to_all_single",
                                                     [DSI_ALL_TO_ALL_ROWS] = "all_to_all_single",
                                                     [DSI_BROADCAST] = "broadcast",
                                                     [DSI_BARRIER] = "barrier",
                                                     [DSI_SEND] = "send",
                                                     [DSI_RECV] = "recv"};

/* DeepSpeed's other names: what they are here; or "": an operation that is not
 * here, of which there will be none. */
static const char *const synonyms[][2] = {
    {"all_gather", "all_gather_into_tensor"},
    {"reduce_scatter", "reduce_scatter_tensor"},
    {"all_to_all", "all_to_all_single"},
    {"isend", "send"},
    {"irecv", "recv"},
    {"all_gather_coalesced", ""},
    {"all_gather_object", ""},
    {"all_reduce_coalesced", ""},
    {"broadcast_object_list", ""},
    {"inference_all_reduce", ""},
    {"monitored_barrier", ""},
};
enum { SYNONYMS = sizeof synonyms / sizeof *synonyms };

bool dsi_comm_is_called(dsi_collective what, const char *op)
{
    for (int i = 0; i < SYNONYMS; i++)
        if (!strcmp(op, synonyms[i][0])) op = synonyms[i][1];
    return !strcmp(op, dsi_comm_names[what]);
}

/* Both collectives of rows and of equal pieces are all_to_all_single: listed
 * once. */
bool dsi_comm_log_knows(const char *op, dsi_text *why)
{
    dsi_text list = {0};
    bool known = false;
    for (int what = 0; what < DSI_COLLECTIVES; what++) {
        known = known || dsi_comm_is_called((dsi_collective)what, op);
        if (what != DSI_ALL_TO_ALL_ROWS)
            dsi_text_add(&list, "%s%s", what ? ", " : "", dsi_comm_names[what]);
    }
    for (int i = 0; i < SYNONYMS; i++) known = known || !strcmp(op, synonyms[i][0]);
    const char *near = known ? NULL : dsi_nearest(op, dsi_comm_names, DSI_COLLECTIVES);
    if (!known)
        dsi_text_add(why, "there is no operation \"%s\"%s%s%s: expected some of %s", op,
                     near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "", list.s);
    dsi_text_free(&list);
    return known;
}
