/* tests/gpu/real.c: the GPU of this machine, if it has one and the build is
 * with CUDA; and its NCCL, by a communicator of one rank.
 * SPDX-License-Identifier: MIT */
#include "gpu/real.h"

#include "comm/nccl.h"

#include <unistd.h>

/* ---- NCCL, of one rank: what it gets arrives, whatever the call ---- */

typedef struct OneRank {
    const dsi_nccl_functions *f;
    ncclComm_t comm;
    dsi_device *d;
    char *in, *out; /* on the GPU */
} OneRank;

/* Until the call whose result this is, is done. */
static void one_rank_settle(const OneRank *o, ncclResult_t result)
{
    for (int ms = 0; result == ncclInProgress && ms < 20000; ms++) {
        usleep(1000);
        CHECK_INT(o->f->async_error(o->comm, &result), ncclSuccess);
    }
    CHECK_INT(result, ncclSuccess);
}

static void one_rank_call(const OneRank *o, dsi_collective what, ds_dtype dtype, ds_redop op)
{
    enum { BYTES = 960 };
    char bytes[BYTES], got[BYTES];
    int64_t n = BYTES / (int64_t)ds_dtype_size(dtype), counts[2] = {n, n};
    for (int i = 0; i < BYTES; i++) bytes[i] = (char)(i % 50); /* no float of them is NaN */
    dsi_request r = {.comm = ds_world(), .what = what, .dtype = dtype, .op = op};
    r.in = o->in, r.out = o->out, r.n = n, r.counts = counts;
    CHECK_INT(o->d->type->copy_in(&o->d->stream, o->in, bytes, BYTES), DS_OK);
    memset(got, 0, BYTES);
    CHECK_INT(o->d->type->copy_in(&o->d->stream, o->out, got, BYTES), DS_OK);
    if (what == DSI_SEND) CHECK_INT(o->f->group_begin(), ncclSuccess);
    ncclResult_t result = dsi_nccl_call(o->f, o->comm, o->d->stream.handle, &r);
    if (what == DSI_SEND) {
        CHECK_INT(result, ncclSuccess);
        r.what = DSI_RECV;
        CHECK_INT(dsi_nccl_call(o->f, o->comm, o->d->stream.handle, &r), ncclSuccess);
        result = o->f->group_end();
    }
    one_rank_settle(o, result);
    CHECK_INT(o->d->type->copy_out(&o->d->stream, got, o->out, BYTES), DS_OK);
    CHECK(!memcmp(got, bytes, BYTES));
}

static void one_rank_of_nccl(void **state)
{
    (void)state;
    const dsi_nccl_library *l = dsi_nccl_open();
    if (!l->version) {
        printf("# no NCCL: %s\n", l->why);
        skip();
    }
    OneRank o = {.f = &l->f, .d = dsi_device_get((ds_device){DS_CUDA, 0})};
    ncclUniqueId id;
    ncclConfig_t config = dsi_nccl_config();
    o.in = dsi_cache_alloc(o.d, 1024), o.out = dsi_cache_alloc(o.d, 1024);
    CHECK(o.in && o.out);
    CHECK_INT(o.f->get_id(&id), ncclSuccess);
    ncclResult_t result = o.f->init(&o.comm, 1, id, 0, &config);
    CHECK(o.comm);
    one_rank_settle(&o, result);
    const ds_dtype dtypes[] = {DS_F32, DS_F16, DS_BF16, DS_F64, DS_I64, DS_I32, DS_I8, DS_U8};
    for (int i = 0; i < 8; i++)
        for (int op = DS_REDUCE_AVG; op <= DS_REDUCE_MIN; op++)
            one_rank_call(&o, DSI_ALL_REDUCE, dtypes[i], (ds_redop)op);
    const dsi_collective all[] = {DSI_REDUCE,     DSI_REDUCE_SCATTER,  DSI_ALL_GATHER,
                                  DSI_BROADCAST,  DSI_GATHER,          DSI_SCATTER,
                                  DSI_ALL_TO_ALL, DSI_ALL_TO_ALL_ROWS, DSI_SEND};
    for (int i = 0; i < 9; i++) one_rank_call(&o, all[i], DS_F32, DS_REDUCE_SUM);
    one_rank_settle(&o, o.f->finalize(o.comm));
    CHECK_INT(o.f->destroy(o.comm), ncclSuccess);
    dsi_cache_free(o.d, o.in, 1024);
    dsi_cache_free(o.d, o.out, 1024);
    printf("# NCCL %d\n", l->version);
}

int main(void)
{
    if (!ds_device_count(DS_CUDA)) {
        printf("skipped: %s\n", dsi_device_why_none(DS_CUDA));
        return 77;
    }
    const struct CMUnitTest tests[] = {GPU_TESTS, cmocka_unit_test(one_rank_of_nccl)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
