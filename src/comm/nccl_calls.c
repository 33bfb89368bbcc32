/* comm/nccl_calls.c: a request as calls of NCCL:
 *
 *     all_reduce, reduce_to, reduce_scatter, all_gather, broadcast     NCCL's own
 *     gather_to, scatter_from, all_to_all, all_to_all_rows             a group of sends and receives
 *     send, recv                                                       one of these, in the caller's group
 * SPDX-License-Identifier: MIT */
#include "nccl.h"

ncclConfig_t dsi_nccl_config(void)
{
    return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                          .magic = NCCL_CONFIG_MAGIC,
                          .version = NCCL_CONFIG_VERSION,
                          .blocking = 0,
                          .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                          .minCTAs = NCCL_CONFIG_UNDEF_INT,
                          .maxCTAs = NCCL_CONFIG_UNDEF_INT,
                          .splitShare = NCCL_CONFIG_UNDEF_INT};
}

/* int16: nccl_composed.c uses int32 in its place. */
static int reduced_type(ds_dtype dtype)
{
    static const signed char types[] = {[DS_F32] = ncclFloat32, [DS_F64] = ncclFloat64,
                                        [DS_F16] = ncclFloat16, [DS_BF16] = ncclBfloat16,
                                        [DS_I64] = ncclInt64,   [DS_I32] = ncclInt32,
                                        [DS_I16] = -1,          [DS_I8] = ncclInt8,
                                        [DS_U8] = ncclUint8,    [DS_BOOL] = ncclUint8};
    return types[dtype];
}

/* The elements [at, at + n) of an operand that go to a rank or come from it. */
typedef struct piece {
    int64_t at, n;
} piece;

static int64_t counts_sum(const int64_t *x, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* Of `in`, to rank q. */
static piece piece_sent(const dsi_request *r, int q)
{
    bool root = r->root == r->comm->rank;
    switch (r->what) {
    case DSI_GATHER:
        return (piece){0, q == r->root ? r->n : 0};
    case DSI_SCATTER:
        return (piece){q * r->n, root ? r->n : 0};
    case DSI_ALL_TO_ALL_ROWS:
        return (piece){counts_sum(r->counts, q), r->counts[q]};
    default:
        return (piece){q * r->n, r->n};
    }
}

/* Of `out`, from rank q. */
static piece piece_received(const dsi_request *r, int q)
{
    bool root = r->root == r->comm->rank;
    const int64_t *from = r->counts ? r->counts + r->comm->size : NULL;
    switch (r->what) {
    case DSI_GATHER:
        return (piece){q * r->n, root ? r->n : 0};
    case DSI_SCATTER:
        return (piece){0, q == r->root ? r->n : 0};
    case DSI_ALL_TO_ALL_ROWS:
        return (piece){counts_sum(from, q), from[q]};
    default:
        return (piece){q * r->n, r->n};
    }
}

/* Sends and receives between all pairs, as one group, so that they do not wait
 * for each other. */
static ncclResult_t exchange(const dsi_nccl_functions *f, ncclComm_t comm, ncclStream stream,
                             const dsi_request *r)
{
    size_t element = ds_dtype_size(r->dtype);
    ncclResult_t result = f->group_begin();
    for (int q = 0; result == ncclSuccess && q < r->comm->size; q++) {
        piece to = piece_sent(r, q), from = piece_received(r, q);
        if (to.n)
            result = f->send((const char *)r->in + (size_t)to.at * element, (size_t)to.n * element,
                             ncclInt8, q, comm, stream);
        if (from.n && result == ncclSuccess)
            result = f->recv((char *)r->out + (size_t)from.at * element, (size_t)from.n * element,
                             ncclInt8, q, comm, stream);
    }
    ncclResult_t ended = f->group_end();
    return result == ncclSuccess ? ended : result;
}

ncclResult_t dsi_nccl_call(const dsi_nccl_functions *f, ncclComm_t comm, ncclStream stream,
                           const dsi_request *r)
{
    static const ncclRedOp_t ops[] = {[DS_REDUCE_SUM] = ncclSum,
                                      [DS_REDUCE_AVG] = ncclAvg,
                                      [DS_REDUCE_MAX] = ncclMax,
                                      [DS_REDUCE_MIN] = ncclMin};
    size_t count = (size_t)r->n, bytes = count * ds_dtype_size(r->dtype);
    ncclDataType_t type = (ncclDataType_t)reduced_type(r->dtype);
    if (!count && r->what != DSI_ALL_TO_ALL_ROWS) return ncclSuccess;
    switch (r->what) {
    case DSI_ALL_REDUCE:
        return f->all_reduce(r->in, r->out, count, type, ops[r->op], comm, stream);
    case DSI_REDUCE:
        return f->reduce(r->in, r->out, count, type, ops[r->op], r->root, comm, stream);
    case DSI_REDUCE_SCATTER:
        return f->reduce_scatter(r->in, r->out, count, type, ops[r->op], comm, stream);
    case DSI_ALL_GATHER:
        return f->all_gather(r->in, r->out, bytes, ncclInt8, comm, stream);
    case DSI_BROADCAST:
        return f->broadcast(r->in, r->out, bytes, ncclInt8, r->root, comm, stream);
    case DSI_SEND:
        return f->send(r->in, bytes, ncclInt8, r->root, comm, stream);
    case DSI_RECV:
        return f->recv(r->out, bytes, ncclInt8, r->root, comm, stream);
    default:
        return exchange(f, comm, stream, r);
    }
}
