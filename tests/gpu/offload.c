/* tests/gpu/offload.c: gradients whose optimizer is on the host leave an
 * emulated GPU while backward runs, and the updates are those of gradients that
 * leave it in the step.
 * SPDX-License-Identifier: MIT */
#include "emulated.h"
#include "parallel/model.h"
#include "parallel/zero_state.h"

enum { STEPS = 3 };

typedef struct Run {
    dsi_zero_opts o;
    int passes;
    bool in_step; /* no gradient may leave before */
    int left;     /* by rank 0's end of backward, of the last step */
    float x[ROOM];
    int n;
} Run;

static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(NULL);
    static _Thread_local float mine[ROOM];
    RANK_CHECK(ds_set_device((ds_device){DS_CUDA, rank}) == DS_OK);
    Model m = model_new(&run->o);
    RANK_CHECK(m.z);
    for (int i = 0; i < STEPS; i++) {
        ds_scope *scope = ds_scope_open();
        int left = 0;
        if (i == 1) { /* dropped */
            RANK_CHECK(dsi_zero_backward(m.z, loss_of(m.net, run->o.dtype, 90, 4), 1, true) ==
                       DS_OK);
            dsi_zero_zero_grad(m.z);
        }
        for (int k = 0; k < run->passes; k++) {
            bool last = k == run->passes - 1;
            ds_tensor **outgoing_grads = m.z->outgoing_grads;
            ds_tensor *loss = loss_of(m.net, run->o.dtype, 16 * i + 8 * rank + 4 * k, 4);
            if (run->in_step) m.z->outgoing_grads = NULL;
            RANK_CHECK(dsi_zero_backward(m.z, loss, 1.0 / run->passes, last) == DS_OK);
            m.z->outgoing_grads = outgoing_grads;
            for (int p = 0; p < m.z->flat->n; p++) {
                RANK_CHECK(!m.z->outgoing_grads[p] || (last && !run->in_step));
                left += m.z->outgoing_grads[p] != NULL;
            }
        }
        RANK_CHECK(dsi_zero_step(m.z, 1, 0.5, true, true, NULL) == DS_OK);
        if (rank == 0) run->left = left;
        ds_scope_close(scope);
    }
    int n = values(m.net, mine, ROOM);
    if (rank == 0) run->n = n, memcpy(run->x, mine, sizeof mine);
    model_free(&m);
    return DS_OK;
}

static void compare(int ranks, int stage, ds_dtype dtype, int passes, int at_least)
{
    static Run want, got;
    got = (Run){.passes = passes, .o = {.stage = stage, .dtype = dtype, .offload_optimizer = true}};
    got.o.accum_dtype = got.o.comm_dtype = dtype;
    got.o.overlap_comm = got.o.reduce_scatter = true;
    got.o.reduce_bucket = 300;
    got.o.max_live = INT64_MAX;
    want = got;
    want.in_step = true;
    CHECK_INT(ds_run_ranks(ranks, train, &want), DS_OK);
    CHECK_INT(ds_run_ranks(ranks, train, &got), DS_OK);
    print_message("%d ranks, stage %d: %d of 6 gradients leave during backward\n", ranks, stage,
                  got.left);
    CHECK(want.left == 0 && got.left >= at_least);
    CHECK(want.n > 2900 && !memcmp(want.x, got.x, (size_t)want.n * sizeof(float)));
}

static void gradients_leave_early(void **state)
{
    (void)state;
    compare(1, 1, DS_F32, 1, 6);
    compare(1, 2, DS_BF16, 2, 6);
    compare(2, 2, DS_F32, 1, 1);
    compare(2, 3, DS_BF16, 2, 1);
}

int main(void)
{
    int skip = skip_without_gpus(2);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_leave_early)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
