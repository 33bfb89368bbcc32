/* tests/comm/faults.c: when ranks fail, leave early, disagree or are late, all
 * end, and the cause is named.
 * SPDX-License-Identifier: MIT */
#include "comm/comm.h"
#include "ranks.h"
#include "tensor/tensor.h"

#include <unistd.h>

enum { IN_TROUBLE = 4 }; /* ranks */
static int rank(void) { return ds_comm_rank(ds_world()); }

/* Which kind of trouble rank 2 of 4 makes, at the third of ten collectives. */
typedef enum trouble {
    FAILS,
    FAILS_SILENTLY,
    LEAVES,
    DISAGREES,
    OTHER_DTYPE,
    ABORTS,
    LATE
} trouble;

static ds_status make_trouble(ds_tensor *x, trouble t)
{
    switch (t) {
    case FAILS:
        return ds_fail(DS_EIO, "read: the disk of this rank is gone");
    case FAILS_SILENTLY:
        return DS_ENOMEM;
    case LEAVES:
        return DS_OK;
    case DISAGREES:
        return ds_broadcast(NULL, x, 1);
    case OTHER_DTYPE:
        return ds_all_reduce(NULL, ds_cast(x, DS_F64), DS_REDUCE_SUM);
    case ABORTS:
        dsi_comm_abort(NULL, "train: the loss is NaN");
        return DS_OK;
    case LATE:
        sleep(1);
        return ds_all_reduce(NULL, x, DS_REDUCE_SUM);
    }
    return DS_OK;
}

static ds_status ten_collectives(void *arg)
{
    ds_tensor *x = ds_ones(DS_F32, ds_shape(30000));
    for (int i = 0; i < 10; i++) {
        if (i == 3 && rank() == 2) return make_trouble(x, *(trouble *)arg);
        dsi_request *r = dsi_all_reduce_start(ds_world(), x->device, dsi_v(x), DS_REDUCE_AVG, NULL);
        if (!r) return ds_error_status();
        ds_status status = i % 2 ? DS_OK : dsi_request_wait(r); /* the others when the world ends */
        if (status != DS_OK) return status;
    }
    return DS_OK;
}

static void check_trouble(trouble t, ds_status status, const char *message)
{
    CHECK_INT(run_ranks(IN_TROUBLE, ten_collectives, &t), status);
    CHECK_ERROR(message);
}

/* NCCL, on a GPU a rank, knows less than threads do. */
static const char *by_nccl(const char *message, const char *otherwise)
{
    return on_gpu() && ds_device_count(DS_CUDA) >= IN_TROUBLE ? message : otherwise;
}

static void a_failing_rank_ends_all(void **state)
{
    (void)state;
    check_trouble(FAILS, DS_EIO, "rank 2: read: the disk of this rank is gone");
    check_trouble(FAILS_SILENTLY, DS_ENOMEM, "rank 2: ended with status -2");
    check_trouble(ABORTS, DS_ECOMM, "rank 2: train: the loss is NaN");
}

static void a_rank_that_leaves_is_named(void **state)
{
    (void)state;
    check_trouble(LEAVES, DS_ECOMM,
                  by_nccl(": rank 2 ended without it",
                          "calls all_reduce(avg) of 30000 float32, but rank 2 ended without it"));
}

static void ranks_that_disagree_are_named(void **state)
{
    (void)state;
    check_trouble(DISAGREES, DS_ECOMM,
                  by_nccl("the ranks call different collectives",
                          "rank 0 calls all_reduce(avg) of 30000 float32, "
                          "rank 2 calls broadcast of 30000 float32 at root 1"));
    check_trouble(OTHER_DTYPE, DS_ECOMM,
                  by_nccl("the ranks call different collectives",
                          "rank 2 calls all_reduce(sum) of 30000 float64"));
}

static void a_late_rank_is_named(void **state)
{
    (void)state;
    setenv("DS_TIMEOUT", "0.2", 1);
    check_trouble(LATE, DS_ECOMM,
                  by_nccl("stuck for 0.2", "and rank 2 did not come within 0.2 s (DS_TIMEOUT)"));
    unsetenv("DS_TIMEOUT");
}

/* Trouble in one group must wake who waits in another. */
static ds_status trouble_elsewhere(void *arg)
{
    (void)arg;
    ds_comm *pair = ds_comm_split(NULL, rank() / 2, 0);
    ds_status status = rank() == 3 ? ds_fail(DS_EIO, "gone") : ds_barrier(pair);
    if (status == DS_OK) status = ds_barrier(NULL);
    ds_comm_free(pair);
    return status;
}

static void groups_fail_together(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        CHECK_INT(run_ranks(IN_TROUBLE, trouble_elsewhere, NULL), DS_EIO);
        CHECK_ERROR("rank 3: gone");
    }
}

static ds_status unequal_rows(void *arg)
{
    (void)arg;
    int64_t sent[2] = {1, 1}, received[2] = {1, 1};
    if (rank()) sent[0] = 2, sent[1] = received[1] = 0; /* rank 0 expects 1 */
    return ds_all_to_all_rows(NULL, ds_zeros(DS_F32, ds_shape(2 - rank(), 3)), received,
                              ds_zeros(DS_F32, ds_shape(2, 3)), sent);
}

static void rows_that_disagree_are_named(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(2, unequal_rows, NULL), DS_ECOMM);
    CHECK_ERROR(by_nccl("all_to_all_rows", "rank 1 sends 6 elements to rank 0, which expects 3"));
}

static ds_status nothing(void *arg)
{
    (void)arg;
    return DS_OK;
}

static ds_status nested(void *arg)
{
    (void)arg;
    ds_status status = run_ranks(3, nothing, NULL);
    return status == DS_OK ? ds_barrier(NULL) : status;
}

static void worlds_in_worlds(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(0, nothing, NULL), DS_EINVAL);
    CHECK_ERROR("run_ranks: 0 ranks");
    CHECK_INT(run_ranks(3, nested, NULL), DS_OK);
    CHECK_INT(ds_comm_size(ds_world()), 1);
}

enum { MANY = 64, LENGTH = 50000 };

/* Order matters to the last bit: every rank has the bits of a plain loop over
 * ranks. */
static ds_status same_bits(void *want)
{
    ds_seed((uint64_t)rank());
    ds_tensor *x = ds_randn(DS_F32, ds_shape(LENGTH));
    RANK_CHECK(ds_all_reduce(NULL, x, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(!memcmp(ds_data(x), want, LENGTH * sizeof(float)));
    return DS_OK;
}

static void many_ranks(void **state)
{
    (void)state;
    int ranks = on_gpu() ? 8 : MANY;
    float *want = malloc(LENGTH * sizeof *want);
    for (int r = 0; r < ranks; r++) {
        ds_scope *scope = ds_scope_open();
        ds_seed((uint64_t)r);
        const float *x = ds_data(ds_randn(DS_F32, ds_shape(LENGTH)));
        for (int i = 0; i < LENGTH; i++) want[i] = r ? want[i] + x[i] : x[i];
        ds_scope_close(scope);
    }
    CHECK_INT(run_ranks(ranks, same_bits, want), DS_OK);
    free(want);
}

TEST_MAIN(cmocka_unit_test(a_failing_rank_ends_all), cmocka_unit_test(a_rank_that_leaves_is_named),
          cmocka_unit_test(ranks_that_disagree_are_named), cmocka_unit_test(a_late_rank_is_named),
          cmocka_unit_test(groups_fail_together), cmocka_unit_test(rows_that_disagree_are_named),
          cmocka_unit_test(worlds_in_worlds), cmocka_unit_test(many_ranks))
