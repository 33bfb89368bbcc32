/* tests/ops/collective.c: collectives that have a backward, on several ranks;
 * and what a layer of experts sends.
 * SPDX-License-Identifier: MIT */
#include "ranks.h"

#include "comm/comm.h"
#include "nn/moe.h"
#include "ops/route.h"

/* Rank a sends a + 2 b rows of the value 10 a + b to rank b; d loss / d x of a
 * row is what its receiver made it. */
static ds_status exchange(void *arg)
{
    (void)arg;
    int me = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    int64_t to[8], from[8], rows = 0, got = 0, at = 0;
    float values[3 * 8 * 24];
    for (int r = 0; r < ranks; r++) {
        to[r] = me + 2 * r;
        from[r] = r + 2 * me;
        rows += to[r];
        got += from[r];
        for (int64_t i = 0; i < 3 * to[r]; i++) values[at++] = (float)(10 * me + r);
    }
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_from_data(DS_F32, ds_shape(rows, 3), values), true);
    ds_tensor *y = ds_exchange_rows(x, NULL, to, from);
    RANK_CHECK(y && ds_size(y, 0) == got && ds_size(y, 1) == 3);
    const float *v = ds_data(y);
    at = 0;
    for (int r = 0; r < ranks; r++)
        for (int64_t i = 0; i < 3 * from[r]; i++) RANK_CHECK(v[at++] == (float)(10 * r + me));
    RANK_CHECK(ds_backward(ds_sum(ds_scale(y, me + 1))) == DS_OK);
    const float *g = ds_data(ds_grad(x));
    at = 0;
    for (int r = 0; r < ranks; r++)
        for (int64_t i = 0; i < 3 * to[r]; i++) RANK_CHECK(g[at++] == (float)(r + 1));
    ds_scope_close(scope);
    return DS_OK;
}

static void rows_go_and_gradients_come_back(void **state)
{
    (void)state;
    TEST_RANKS(exchange, NULL);
}

/* ---- batch norm over ranks ------------------------------------------------------------------------------- */

#define CHANNELS 3

/* The batch norm of a batch [N,C,2], or of a rank's rows of it, N = first row
 * .. end. Its loss is sum y w, with w that differs everywhere; results are
 * copied to `out`: y and dx of the rows, dweight, dbias and running
 * statistics. */
typedef struct Normed {
    ds_tensor *y, *dx, *dweight, *dbias, *mean, *var;
} Normed;

static ds_status normed(ds_tensor *x, ds_tensor *w, bool sync, ds_dtype dtype, Normed *out)
{
    ds_module *m = ds_nn_batch_norm1d(NULL, "m", CHANNELS);
    if (sync) RANK_CHECK(ds_convert_sync_batchnorm(m, NULL) == 1);
    x = ds_require_grad(ds_clone(ds_cast(x, dtype)), true);
    ds_tensor *y = ds_call(m, x);
    RANK_CHECK(y && ds_backward(ds_sum(ds_mul(ds_cast(y, DS_F32), w))) == DS_OK);
    *out = (Normed){y,
                    ds_clone(ds_grad(x)),
                    ds_clone(ds_grad(ds_parameter(m, "weight"))),
                    ds_clone(ds_grad(ds_parameter(m, "bias"))),
                    ds_clone(ds_parameter(m, "running_mean")),
                    ds_clone(ds_parameter(m, "running_var"))};
    ds_module_free(m);
    return DS_OK;
}

static bool near(ds_tensor *a, ds_tensor *b, double most)
{
    ds_tensor *d = ds_amax(ds_abs(ds_sub(ds_cast(a, DS_F32), ds_cast(b, DS_F32))));
    return !ds_numel(a) ? a && b : d && ds_item(d) <= most;
}

/* Ranks with 1, 2, 3, ... samples, and of several the first with none, have the
 * values of one that has all. */
static ds_status sync_norm(void *arg)
{
    ds_dtype dtype = *(ds_dtype *)arg;
    double most = dtype == DS_F32 ? 2e-5 : 0.05;
    int me = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    int64_t begin = 0, end = 0, rows = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t n = ranks == 1 ? 4 : r;
        if (r == me) begin = rows, end = rows + n;
        rows += n;
    }
    ds_scope *scope = ds_scope_open();
    ds_seed(7);
    ds_tensor *x = ds_shift(ds_scale(ds_randn(DS_F32, ds_shape(rows, CHANNELS, 2)), 2), 1),
              *w = ds_randn(DS_F32, ds_shape(rows, CHANNELS, 2));
    Normed whole, part;
    RANK_CHECK(normed(x, w, false, dtype, &whole) == DS_OK);
    RANK_CHECK(normed(ds_slice(x, 0, begin, end), ds_slice(w, 0, begin, end), true, dtype, &part) ==
               DS_OK);
    RANK_CHECK(near(part.y, ds_slice(whole.y, 0, begin, end), most));
    RANK_CHECK(near(part.dx, ds_slice(whole.dx, 0, begin, end), most));
    RANK_CHECK(ds_all_reduce(ds_world(), part.dweight, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(ds_all_reduce(ds_world(), part.dbias, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(near(part.dweight, whole.dweight, 10 * most));
    RANK_CHECK(near(part.dbias, whole.dbias, 10 * most));
    RANK_CHECK(near(part.mean, whole.mean, most) && near(part.var, whole.var, most));
    ds_scope_close(scope);
    return DS_OK;
}

static void statistics_of_all_ranks(void **state)
{
    (void)state;
    for (ds_dtype dtype = DS_F32; dtype <= DS_BF16; dtype++)
        if (dtype != DS_F64) TEST_RANKS(sync_norm, &dtype);
}

/* ---- a layer of experts ---------------------------------------------------------------------------------- */

#define TOKENS   24
#define HIDDEN   16
#define K        2
#define CAPACITY 4

static ds_module *expert(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, HIDDEN, HIDDEN);
}

/* Each way, forward and backward, sends the rows that were kept for experts of
 * other ranks, and no more. The numbers of rows go once. Where the device
 * routes tokens, each expert has as many rows as its capacity. */
static ds_status send(void *arg)
{
    (void)arg;
    int ranks = ds_comm_size(ds_world());
    ds_seed(3 + (uint64_t)ds_comm_rank(ds_world()));
    ds_module *moe = ds_nn_moe(NULL, "moe", HIDDEN, expert, .num_experts = 24, .ep_size = ranks,
                               .k = K, .min_capacity = CAPACITY);
    ds_comm *c = dsi_moe_experts(moe).expert;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_require_grad(ds_randn(DS_F32, ds_shape(TOKENS, HIDDEN)), true);
    bool there = dsi_can_route(x, K, 24);
    double before = c ? dsi_comm_volume(c) : 0;
    RANK_CHECK(ds_backward(ds_sum(ds_call(moe, x))) == DS_OK);
    const int64_t *taken = ds_data(ds_moe_taken_counts(moe));
    int64_t kept = 0, leaving = 0;
    for (int e = 0; e < 24; e++) {
        kept += taken[e];
        bool leaves = e / (24 / ranks) != ds_comm_rank(c);
        leaving += !leaves ? 0 : there ? CAPACITY : taken[e];
    }
    RANK_CHECK(kept <= TOKENS * K && kept > TOKENS * K / 2);
    double sums[] = {c ? dsi_comm_volume(c) - before : 0, (double)leaving};
    ds_tensor *all = ds_from_data(DS_F64, ds_shape(2), sums);
    RANK_CHECK(ds_all_reduce(NULL, all, DS_REDUCE_SUM) == DS_OK);
    const double *v = ds_data(all);
    double counts = there ? 0 : 24.0 * (ranks - 1) * sizeof(int64_t);
    RANK_CHECK(v[0] == 4 * v[1] * HIDDEN * sizeof(float) + counts);
    ds_scope_close(scope);
    ds_module_free(moe);
    return DS_OK;
}

static void experts_send_what_they_keep(void **state)
{
    (void)state;
    TEST_RANKS(send, NULL);
}

TEST_MAIN(cmocka_unit_test(statistics_of_all_ranks),
          cmocka_unit_test(rows_go_and_gradients_come_back),
          cmocka_unit_test(experts_send_what_they_keep))
