/* tests/engine/model_state.c: a state dict that an engine loads sets the
 * weights that are trained: its outputs, its masters, and its next step are
 * those of an engine that began with these weights; in each stage, dtype, with
 * offload, on several ranks.
 * SPDX-License-Identifier: MIT */
#include "run.h"

static double norm_of(ds_engine *e, bool masters)
{
    double sum = 0;
    ds_state *s = ds_engine_state(e, masters);
    for (int i = 0; i < ds_state_len(s); i++) {
        const float *x = ds_data(ds_cast(ds_state_at(s, i), DS_F32));
        for (int64_t k = 0; x && k < ds_numel(ds_state_at(s, i)); k++)
            sum += x[k] * (1 + (double)(k % 7));
    }
    ds_state_free(s);
    return sum;
}

static ds_status step(ds_engine *e)
{
    ds_batch b;
    double loss = 0;
    CHECK(ds_loader_next(ds_engine_loader(e), &b));
    return run_micro(e, &b, &loss);
}

static ds_status as_if_begun_with(void *arg)
{
    RunPlan here = *(const RunPlan *)arg, there = here;
    here.seed = 1;
    there.seed = 7;
    ds_scope *scope = ds_scope_open();
    ds_engine *e = run_engine(&here), *want = run_engine(&there);
    ds_state *weights = want ? ds_engine_state(want, true) : NULL;
    RANK_CHECK(e && weights && norm_of(e, true) != norm_of(want, true));
    RANK_CHECK(ds_engine_load_state(e, weights) == DS_OK);
    RANK_CHECK(norm_of(e, true) == norm_of(want, true));
    RANK_CHECK(norm_of(e, false) == norm_of(want, false));
    for (int i = 0; i < 2; i++) {
        ds_tensor *x = ds_ones(ds_engine_dtype(e), ds_shape(4, 2, 6, 6));
        ds_engine *both[] = {e, want};
        for (int k = 0; k < 2; k++) {
            ds_tensor *y = ds_cast(ds_engine_forward(both[k], x), DS_F32);
            RANK_CHECK(ds_engine_backward(both[k], ds_mean(ds_mul(y, y))) == DS_OK);
            RANK_CHECK(ds_engine_step(both[k]) == DS_OK);
        }
    }
    RANK_CHECK(norm_of(e, true) == norm_of(want, true));
    ds_state_free(weights);
    ds_engine_free(e);
    ds_engine_free(want);
    ds_scope_close(scope);
    return DS_OK;
}

static void weights_go_where_they_are_trained(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"fp32", "bf16", "fp16"};
    static const char *const zero[] = {NULL, "\"offload_optimizer\": {\"device\": \"cpu\"},"};
    for (int stage = 0; stage <= 3; stage++)
        for (int d = 0; d < 3; d++)
            for (int offload = 0; offload < 1 + (stage > 0); offload++) {
                RunPlan plan = {.stage = stage,
                                .accumulate = 1,
                                .dtype = dtypes[d],
                                .zero = zero[offload],
                                .plain = true};
                TEST_RANKS(as_if_begun_with, &plan);
            }
}

/* Experts: each rank takes its own out of all. */
static void experts(void **state)
{
    (void)state;
    RunPlan plan = {.stage = 1, .accumulate = 1, .dtype = "bf16", .plain = true, .ep_size = 2};
    if (under_mpirun()) return;
    if (run_ranks(4, as_if_begun_with, &plan) != DS_OK) fail_msg("%s", ds_error());
}

/* A state dict of one rank that does not fit is one of all, and changes
 * nothing. */
static ds_status one_misfits(void *arg)
{
    RunPlan plan = {.stage = 2, .accumulate = 1, .dtype = "bf16", .plain = true, .seed = 1};
    (void)arg;
    ds_scope *scope = ds_scope_open();
    ds_engine *e = run_engine(&plan);
    ds_state *weights = e ? ds_engine_state(e, true) : NULL;
    RANK_CHECK(weights);
    double before = norm_of(e, true);
    bool last = ds_engine_global_rank(e) == ds_engine_world_size(e) - 1;
    RANK_CHECK(ds_state_set(weights, last ? "fc1.bias" : "fc1.weight",
                            ds_zeros(DS_F32, last ? ds_shape(3) : ds_shape(19, 144))) == DS_OK);
    ds_status status = ds_engine_load_state(e, weights);
    bool told = ds_error() && strstr(ds_error(), "fc1.bias is [3], expected [19]");
    ds_error_clear();
    RANK_CHECK(status == DS_EINVAL && told);
    RANK_CHECK(norm_of(e, true) == before);
    ds_state_free(weights);
    ds_engine_free(e);
    ds_scope_close(scope);
    return DS_OK;
}

static void refused(void **state)
{
    (void)state;
    TEST_RANKS(one_misfits, NULL);
    CHECK(ds_engine_load_state(NULL, NULL) == DS_EINVAL);
    ds_error_clear();
    RunPlan plan = {.accumulate = 1, .dtype = "fp32", .seed = 1};
    ds_engine *e = run_engine(&plan); /* with averages */
    ds_state *weights = ds_engine_state(e, true);
    CHECK(step(e) == DS_OK && ds_engine_swap_ema(e) == DS_OK);
    CHECK(ds_engine_load_state(e, weights) == DS_ESTATE);
    CHECK_ERROR("averaged");
    ds_state_free(weights);
    ds_engine_free(e);
}

TEST_MAIN(cmocka_unit_test(weights_go_where_they_are_trained), cmocka_unit_test(experts),
          cmocka_unit_test(refused))
