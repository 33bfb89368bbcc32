/* tests/comm/messages.c: send and recv between two ranks; the same under
 * mpirun.
 * SPDX-License-Identifier: MIT */
#include "caught.h"
#include "comm/comm.h"
#include "ranks.h"
#include "tensor/tensor.h"

#include <unistd.h>

static int rank(void) { return ds_comm_rank(ds_world()); }
static int size(void) { return ds_comm_size(ds_world()); }

/* [n]: from * 100, from * 100 + 1, ..: exact in every dtype of the test */
static ds_tensor *numbers(ds_dtype dtype, int64_t n, int from)
{
    return ds_cast(ds_arange(DS_F64, from * 100, (double)n + from * 100, 1), dtype);
}

static bool equal(ds_tensor *x, ds_tensor *y)
{
    return ds_item(ds_sum(ds_abs(ds_sub(ds_cast(x, DS_F64), ds_cast(y, DS_F64))))) == 0;
}

/* Round the ring: the even ranks send first. */
static ds_status ring(ds_dtype dtype, int64_t n)
{
    int to = (rank() + 1) % size(), from = (rank() + size() - 1) % size();
    ds_tensor *mine = numbers(dtype, n, rank()), *got = ds_zeros(dtype, ds_shape(n));
    double before = dsi_comm_volume(ds_world());
    if (rank() % 2 == 0) RANK_CHECK(ds_send(NULL, mine, to) == DS_OK);
    RANK_CHECK(ds_recv(NULL, got, from) == DS_OK);
    if (rank() % 2 == 1) RANK_CHECK(ds_send(NULL, mine, to) == DS_OK);
    double bytes = (double)n * (double)ds_dtype_size(dtype);
    RANK_CHECK(dsi_comm_volume(ds_world()) - before == bytes);
    RANK_CHECK(!n || equal(got, numbers(dtype, n, from)));
    return DS_OK;
}

static ds_status rings(void *arg)
{
    static const int64_t sizes[] = {0, 1, 7, 40000};
    static const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_I64, DS_I32};
    (void)arg;
    for (int s = 0; size() > 1 && s < 4; s++)
        for (int d = 0; d < 4; d++) {
            ds_scope *scope = ds_scope_open();
            ds_status status = ring(dtypes[d], sizes[s]);
            ds_scope_close(scope);
            if (status != DS_OK) return status;
        }
    return DS_OK;
}

static void a_ring_of_messages(void **state)
{
    (void)state;
    TEST_RANKS(rings, NULL);
}

/* Everybody to everybody without waiting, received in another order than sent,
 * collectives in between. */
static ds_status all_at_once(void *arg)
{
    enum { MOST = 8, N = 30000 };
    ds_message *sent[MOST] = {0}, *coming[MOST] = {0};
    ds_tensor *got[MOST] = {0}, *x = ds_ones(DS_F32, ds_shape(3));
    (void)arg;
    for (int q = 0; q < size(); q++) {
        if (q == rank()) continue;
        sent[q] = ds_isend(NULL, numbers(DS_F32, N, rank() * 10 + q), q);
        RANK_CHECK(sent[q] != NULL);
    }
    RANK_CHECK(ds_all_reduce(NULL, x, DS_REDUCE_SUM) == DS_OK && ds_item(ds_mean(x)) == size());
    for (int q = size() - 1; q >= 0; q--) {
        if (q == rank()) continue;
        got[q] = ds_zeros(DS_F32, ds_shape(N));
        coming[q] = ds_irecv(NULL, got[q], q);
        RANK_CHECK(coming[q] != NULL);
    }
    for (int q = 0; q < size(); q++) {
        if (q == rank()) continue;
        RANK_CHECK(ds_message_wait(coming[q]) == DS_OK && ds_message_wait(sent[q]) == DS_OK);
        RANK_CHECK(equal(got[q], numbers(DS_F32, N, q * 10 + rank())));
    }
    return ds_barrier(NULL);
}

static void messages_that_do_not_wait(void **state)
{
    (void)state;
    TEST_RANKS(all_at_once, NULL);
}

/* Several from one rank at a time, waited for in another order. */
static ds_status several(void *arg)
{
    enum { MOST = 40 };
    ds_message *way[MOST];
    ds_tensor *x[MOST];
    (void)arg;
    int last = size() - 1;
    bool sends = rank() == 0, receives = last && rank() == last;
    for (int i = 0; i < MOST && (sends || receives) && last; i++) {
        int64_t n = i % 3 ? 5 + i : 20000 + i;
        x[i] = sends ? ds_full(DS_F32, ds_shape(n), i) : ds_zeros(DS_F32, ds_shape(n));
        way[i] = sends ? ds_isend(NULL, x[i], last) : ds_irecv(NULL, x[i], 0);
        RANK_CHECK(way[i] != NULL);
    }
    for (int i = MOST - 1; i >= 0 && (sends || receives) && last; i--) {
        RANK_CHECK(ds_message_wait(way[i]) == DS_OK);
        RANK_CHECK(ds_item(ds_sum(ds_abs(ds_sub(x[i], ds_full(DS_F32, ds_shape(1), i))))) == 0);
    }
    return ds_barrier(NULL);
}

static void several_messages_of_one_rank(void **state)
{
    (void)state;
    TEST_RANKS(several, NULL);
}

/* Messages keep their order; columns of a matrix go and come; a group has ranks
 * of its own. */
static ds_status ordered(void *arg)
{
    (void)arg;
    if (size() < 2) return DS_OK;
    ds_comm *back = ds_comm_split(NULL, 0, -rank()); /* the same ranks, the last one first */
    int last = size() - 1;
    for (int i = 0; i < 5; i++) {
        ds_tensor *x = ds_full(DS_F32, ds_shape(4, 3), i), *column = ds_slice(x, 1, 1, 2);
        if (rank() == 0) RANK_CHECK(ds_send(back, column, 0) == DS_OK); /* to the world's last */
        if (rank() != last) continue;
        ds_tensor *y = ds_zeros(DS_F32, ds_shape(4, 3));
        RANK_CHECK(ds_recv(back, ds_slice(y, 1, 2, 3), last) == DS_OK);
        RANK_CHECK(ds_item(ds_sum(y)) == 4 * i && ds_item(ds_sum(ds_slice(y, 1, 2, 3))) == 4 * i);
    }
    ds_comm_free(back);
    return ds_barrier(NULL);
}

static void messages_keep_their_order(void **state)
{
    (void)state;
    TEST_RANKS(ordered, NULL);
}

/* Messages that no rank waits for: the communicator waits when it ends, and the
 * values have arrived. */
static ds_status forgotten(void *arg)
{
    (void)arg;
    if (size() < 2) return DS_OK;
    int to = (rank() + 1) % size(), from = (rank() + size() - 1) % size();
    ds_comm *c = ds_comm_split(NULL, 0, rank());
    ds_tensor *got = ds_zeros(DS_F32, ds_shape(4, 30000)),
              *x = ds_full(DS_F32, ds_shape(30000), rank());
    for (int i = 0; i < 3; i++) {
        ds_scope *scope = ds_scope_open(); /* the handles of slices end here */
        RANK_CHECK(ds_isend(c, x, to) && ds_irecv(c, ds_select(got, 0, i), from));
        ds_scope_close(scope);
    }
    ds_comm_free(c);
    RANK_CHECK(ds_item(ds_mean(got)) == 0.75 * from);
    RANK_CHECK(ds_isend(NULL, x, to) && ds_irecv(NULL, ds_zeros(DS_F32, ds_shape(30000)), from));
    return DS_OK;
}

static void forgotten_messages_are_ended(void **state)
{
    (void)state;
    TEST_RANKS(forgotten, NULL);
}

static void forget_on_threads(void) { run_ranks(2, forgotten, NULL); }

static void forgotten_messages_are_named(void **state)
{
    (void)state;
    if (under_mpirun()) skip();
    setenv("DS_DEBUG", "comm", 1);
    const char *s = caught_of(NULL, forget_on_threads);
    unsetenv("DS_DEBUG");
    CHECK(strstr(s, "[Rank 0] send of 30000 float32 to rank 1, number 2, was never waited for "
                    "(ds_message_wait): it is now\n"));
    CHECK(strstr(s, "[Rank 1] recv of 30000 float32 from rank 0, number 0, was never waited for"));
}

/* ---- refusals and trouble; not under mpirun, where trouble ends the job ------------------------------------ */

static ds_status refusals(void *arg)
{
    ds_tensor *x = ds_ones(DS_F32, ds_shape(4));
    (void)arg;
    RANK_CHECK(ds_send(NULL, x, rank()) == DS_EINVAL);
    RANK_CHECK(strstr(ds_error(), size() == 1 ? "send: this communicator has one rank"
                                              : "is this one: use ds_copy"));
    ds_error_clear();
    RANK_CHECK(ds_recv(NULL, x, 9) == DS_EINVAL);
    RANK_CHECK(strstr(ds_error(), size() == 1 ? "recv: this communicator has one rank"
                                              : "recv: there is no rank 9: ranks are 0 to"));
    ds_error_clear();
    RANK_CHECK(!ds_isend(NULL, NULL, 0) && ds_message_wait(NULL) != DS_OK);
    ds_error_clear();
    return DS_OK;
}

static ds_status trouble(void *arg)
{
    const char *kind = arg;
    ds_tensor *x = ds_ones(DS_F32, ds_shape(4)), *y = ds_ones(DS_F32, ds_shape(5));
    if (rank() == 1) return ds_recv(NULL, strcmp(kind, "size") ? x : y, 2);
    if (rank() != 2) return DS_OK;
    if (!strcmp(kind, "late")) usleep(500000);
    return !strcmp(kind, "gone") ? DS_OK : ds_send(NULL, x, 1);
}

static void trouble_is_named(void **state)
{
    static char size_[] = "size", gone[] = "gone", late[] = "late";
    (void)state;
    if (under_mpirun()) skip();
    TEST_RANKS(refusals, NULL);
    CHECK_INT(run_ranks(4, trouble, size_), DS_ECOMM);
    CHECK_ERROR("ranks do not agree: rank 2 calls send of 4 float32 to rank 1, rank 1 calls recv "
                "of 5 float32 from rank 2");
    CHECK_INT(run_ranks(4, trouble, gone), DS_ECOMM);
    CHECK_ERROR("rank 1 calls recv of 4 float32 from rank 2, but rank 2 ended without it");
    setenv("DS_TIMEOUT", "0.2", 1);
    CHECK_INT(run_ranks(4, trouble, late), DS_ECOMM);
    CHECK_ERROR("rank 1 calls recv of 4 float32 from rank 2, and rank 2 did not come within 0.2 s");
    unsetenv("DS_TIMEOUT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_ring_of_messages),
                                       cmocka_unit_test(messages_that_do_not_wait),
                                       cmocka_unit_test(several_messages_of_one_rank),
                                       cmocka_unit_test(messages_keep_their_order),
                                       cmocka_unit_test(forgotten_messages_are_ended),
                                       cmocka_unit_test(forgotten_messages_are_named),
                                       cmocka_unit_test(trouble_is_named)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_destroy_process_group();
    return failed;
}
