/* tests/parallel/split.c: masters that are kept as the rest of their parameter:
 * the bits of whole ones, in less memory, and none of it stays where one was
 * read or written.
 * SPDX-License-Identifier: MIT */
#include "net.h"

#include "base/half.h"
#include "parallel/estimate.h"

enum { BATCH = 16, STEPS = 6, PARAMS = 6 };

typedef struct Run {
    int stage;
    bool split, lamb, wide; /* wide: gradients are added up in float32 */
} Run;

static ds_status one_step(dsi_zero *z, ds_module *net, int i)
{
    ds_scope *scope = ds_scope_open();
    int rank = ds_comm_rank(ds_world());
    ds_tensor *loss = loss_of(net, DS_BF16, i * BATCH + rank * 8, 8);
    ds_status status = dsi_zero_backward(z, loss, 1, true);
    if (status == DS_OK) status = dsi_zero_step(z, 1, 1, true, false, NULL);
    ds_scope_close(scope);
    return status;
}

static bool in_memory(const dsi_zero *z)
{
    for (int i = 0; i < PARAMS; i++)
        if (dsi_zero_shard(z, i) && dsi_zero_shard(z, i)->storage) return true;
    return false;
}

/* All masters, whole; their number. */
static int masters(dsi_zero *z, float *to)
{
    int n = 0;
    for (int i = 0; i < PARAMS; i++) {
        ds_tensor *x = dsi_zero_whole(z, i);
        if (!x) return -1;
        memcpy(to + n, ds_data(x), (size_t)ds_numel(x) * sizeof *to);
        n += (int)ds_numel(x);
    }
    return n;
}

static dsi_zero *start(const Run *r, ds_module *net, ds_optim **optim)
{
    dsi_zero_opts o = {.stage = r->stage,
                       .dtype = DS_BF16,
                       .accum_dtype = r->wide ? DS_F32 : DS_BF16,
                       .comm_dtype = DS_BF16,
                       .reduce_scatter = true,
                       .max_live = INT64_MAX,
                       .offload_optimizer = !r->split};
    *optim = r->lamb ? ds_optim_lamb(net, 1e-2) : ds_optim_adamw(net, 1e-2);
    return dsi_zero_new(net, *optim, ds_world(), &o);
}

static ds_status same_bits(void *arg)
{
    static _Thread_local float value[2][ROOM], master[2][ROOM];
    Run r = *(Run *)arg;
    int n[2] = {0, 0};
    int64_t bytes[2], owned = 0;
    for (int k = 0; k < 2; k++) {
        ds_scope *scope = ds_scope_open();
        ds_module *net = net_new();
        ds_optim *optim;
        r.split = k == 1;
        dsi_zero *z = start(&r, net, &optim);
        RANK_CHECK(z);
        for (int i = 0; i < STEPS; i++) RANK_CHECK(one_step(z, net, i) == DS_OK);
        n[k] = masters(z, master[k]);
        RANK_CHECK(n[k] > 0 && values(net, value[k], ROOM) == n[k]);
        RANK_CHECK(in_memory(z) == (k == 0));
        bytes[k] = dsi_zero_memory(z).optimizer;
        owned = dsi_zero_flat(z)->owned;
        dsi_zero_free(z);
        ds_optim_free(optim);
        ds_module_free(net);
        ds_scope_close(scope);
    }
    RANK_CHECK(bytes[0] - bytes[1] == 2 * owned);
    RANK_CHECK(n[0] == n[1] && !memcmp(value[0], value[1], (size_t)n[0] * sizeof(float)));
    RANK_CHECK(!memcmp(master[0], master[1], (size_t)n[0] * sizeof(float)));
    for (int i = 0; i < n[0]; i++)
        RANK_CHECK(dsi_bf16_to_f32(dsi_f32_to_bf16(master[1][i])) == value[1][i]);
    return DS_OK;
}

static void gives_the_bits_of_whole_masters(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int k = 0; k < 4; k++) {
            Run r = {.stage = stage, .lamb = k % 2, .wide = k / 2};
            for (int ranks = 1; ranks <= 3; ranks += 2)
                if (run_ranks(ranks, same_bits, &r) != DS_OK)
                    fail_msg("stage %d, %d ranks, %d: %s", stage, ranks, k, ds_error());
        }
}

/* The part of x that halves can hold. */
static float untied(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = dsi_untie(bits);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Masters that are written, and published: what is read then. */
static ds_status there_and_back(void *arg)
{
    static _Thread_local float want[ROOM], got[ROOM];
    const Run r = {.stage = *(int *)arg, .split = true};
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_optim *optim;
    dsi_zero *z = start(&r, net, &optim);
    RANK_CHECK(z && one_step(z, net, 0) == DS_OK);
    for (int i = 0; i < PARAMS; i++) {
        ds_tensor *x = dsi_zero_shard(z, i);
        if (x) RANK_CHECK(ds_copy(x, ds_scale(x, 1.0 / 3)) == DS_OK && x->storage);
        if (i % 2) RANK_CHECK(dsi_zero_release(z, i, true) == DS_OK);
        if (i % 2 && x) RANK_CHECK(!x->storage);
    }
    int n = masters(z, want);
    for (int i = 0; i < n; i++) want[i] = untied(want[i]);
    RANK_CHECK(dsi_zero_publish(z) == DS_OK && !in_memory(z));
    RANK_CHECK(masters(z, got) == n && !memcmp(want, got, (size_t)n * sizeof *got));
    RANK_CHECK(values(net, want, ROOM) == n);
    for (int i = 0; i < n; i++) RANK_CHECK(dsi_bf16_to_f32(dsi_f32_to_bf16(got[i])) == want[i]);
    /* what is written before a step counts in it */
    ds_tensor *first = dsi_zero_shard(z, 0);
    if (first) RANK_CHECK(dsi_fill(first, 3) != NULL);
    RANK_CHECK(one_step(z, net, 1) == DS_OK && !in_memory(z));
    RANK_CHECK(masters(z, got) == n && got[0] > 2.5F && got[0] < 3.5F);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(net);
    ds_scope_close(scope);
    return DS_OK;
}

static void read_and_written_like_memory(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 3; ranks += 2)
            if (run_ranks(ranks, there_and_back, &stage) != DS_OK)
                fail_msg("stage %d, %d ranks: %s", stage, ranks, ds_error());
}

/* 12 bytes a parameter, as float32 has; whole masters where they are apart, and
 * for other dtypes and rules. */
static void takes_two_bytes(void **state)
{
    (void)state;
    dsi_zero_opts o = {.dtype = DS_BF16, .accum_dtype = DS_BF16};
    dsi_estimate_sizes s = {.ranks = 1, .moments = 2, .params = 1000, .takes_halves = true};
    dsi_estimate e = dsi_estimate_sizes_only(&o, &s);
    CHECK_INT(e.parameters + e.optimizer, 12 * 1000);
    s.takes_halves = false;
    CHECK_INT(dsi_estimate_sizes_only(&o, &s).optimizer, 12 * 1000);
    s.takes_halves = o.offload_optimizer = true;
    CHECK_INT(dsi_estimate_sizes_only(&o, &s).optimizer, 12 * 1000);
    o = (dsi_zero_opts){.dtype = DS_F16, .accum_dtype = DS_F16};
    CHECK_INT(dsi_estimate_sizes_only(&o, &s).optimizer, 12 * 1000);
}

TEST_MAIN(cmocka_unit_test(gives_the_bits_of_whole_masters),
          cmocka_unit_test(read_and_written_like_memory), cmocka_unit_test(takes_two_bytes))
