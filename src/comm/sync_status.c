/* comm/sync_status.c: a failure of one rank becomes a failure of all;
 * rank 0's texts on all ranks.
 * SPDX-License-Identifier: MIT */
#include "sync_status.h"

#include "base/error.h"
#include "base/map.h"
#include "base/mem.h"
#include "comm.h"

#include <stdio.h>
#include <string.h>

#define ROOM 1024 /* bytes of a message */

/* The n elements at p as an operand. */
static dsi_view message_view(void *p, ds_dtype dtype, int64_t n)
{
    return (dsi_view){.p = p, .dtype = dtype, .n = 1, .d = {n}, .s = {1}};
}

/* Of n elements at p, from root. */
static ds_status message_broadcast(ds_comm *c, void *p, ds_dtype dtype, int64_t n, int root)
{
    return dsi_request_wait(dsi_broadcast_start(c, NULL, message_view(p, dtype, n), root));
}

static ds_status message_all_reduce(ds_comm *c, int64_t *x, int64_t n, ds_redop op)
{
    return dsi_request_wait(dsi_all_reduce_start(c, NULL, message_view(x, DS_I64, n), op, NULL));
}

/* The smallest number of all ranks. A program that saves on rank 0 only waits
 * here, and DS_DEBUG=comm prints the purpose. */
static ds_status rank_find_first(ds_comm *c, int64_t *number)
{
    return dsi_request_run(&(dsi_request){
        DSI_NUMBERS(c, DSI_ALL_REDUCE, DS_I64, number, number, 1), .op = DS_REDUCE_MIN,
        .purpose =
            "all ranks call ds_comm_sync_status, ds_engine_save and ds_engine_load, not one"});
}

/* The lowest failed rank is found first; then its status and message are
 * broadcast from it. */
ds_status ds_comm_sync_status(ds_comm *c, ds_status mine)
{
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    if (size == 1) return mine;
    if (!c) c = ds_world();
    char message[ROOM] = "", own[ROOM];
    int64_t first = mine == DS_OK ? size : rank, status = mine;
    snprintf(own, sizeof own, "%s", mine != DS_OK && ds_error() ? dsi_error_latest() : "");
    if (rank_find_first(c, &first) != DS_OK) return ds_error_status();
    if (first == size) return DS_OK;
    if (first == rank) memcpy(message, own, sizeof message);
    if (message_broadcast(c, &status, DS_I64, 1, (int)first) != DS_OK ||
        message_broadcast(c, message, DS_U8, ROOM, (int)first) != DS_OK)
        return ds_error_status();
    message[ROOM - 1] = 0;
    /* a rank that failed too has that message in place of its own */
    if (mine != DS_OK && dsi_error_count() > 0) dsi_error_forget(dsi_error_count() - 1);
    dsi_fail((ds_status)status, "%s (rank %d)", message, (int)first);
    dsi_error_set_collective();
    return (ds_status)status;
}

ds_status dsi_sync_disk(ds_comm *c, const char *folder, ds_status mine)
{
    c->disk = folder;
    ds_status status = ds_comm_sync_status(c, mine);
    c->disk = NULL;
    return status;
}

ds_status dsi_broadcast_text(ds_comm *c, const char *text, char **out)
{
    int64_t n = text ? (int64_t)strlen(text) : -1;
    *out = NULL;
    if (ds_comm_size(c) > 1 && message_broadcast(c, &n, DS_I64, 1, 0) != DS_OK)
        return ds_error_status();
    if (n < 0) return DS_OK;
    *out = dsi_alloc((size_t)n + 1);
    if (ds_comm_rank(c) == 0 && text) memcpy(*out, text, (size_t)n);
    if (ds_comm_size(c) == 1 || !n) return DS_OK;
    return message_broadcast(c, *out, DS_U8, n, 0);
}

ds_status dsi_broadcast_count(ds_comm *c, int64_t *n)
{
    return ds_comm_size(c) > 1 ? message_broadcast(c, n, DS_I64, 1, 0) : DS_OK;
}

ds_status dsi_broadcast_bytes(ds_comm *c, void *p, int64_t n, int root)
{
    return ds_comm_size(c) > 1 ? message_broadcast(c, p, DS_U8, n, root) : DS_OK;
}

ds_status dsi_sync_find_different(ds_comm *c, int64_t mine, int *rank, int64_t two[2])
{
    int64_t size = ds_comm_size(c), first = size;
    *rank = 0;
    two[0] = two[1] = mine;
    if (dsi_broadcast_count(c, two) != DS_OK) return ds_error_status();
    if (mine != two[0]) first = ds_comm_rank(c);
    if (size == 1) return DS_OK;
    if (message_all_reduce(c, &first, 1, DS_REDUCE_MIN) != DS_OK) return ds_error_status();
    if (first == size) return DS_OK;
    *rank = (int)first;
    return message_broadcast(c, two + 1, DS_I64, 1, *rank);
}

ds_status dsi_sync_same_text(ds_comm *c, const char *text, bool *same)
{
    int rank;
    int64_t two[2];
    ds_status status = dsi_sync_find_different(c, (int64_t)dsi_fnv1a_text(text), &rank, two);
    *same = !rank;
    return status;
}

ds_status dsi_sync_max(ds_comm *c, int64_t *x, int64_t n)
{
    return ds_comm_size(c) > 1 ? message_all_reduce(c, x, n, DS_REDUCE_MAX) : DS_OK;
}
