/* tests/gpu/optimizer_bits.c: an optimizer's kernels take four elements at a
 * time where memory is aligned, and one where it is not: both give the same bits
 * of values and moments, so that a parameter's do not depend on the rank or the
 * bucket that has it. With the machine that executes PTX this is about what nvcc
 * fuses.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "operand.h"

enum { N = 515, CASES = 80, FEW_CASES = 40, BUFFERS = 5 }; /* p, g, m, v, vmax */

static dsi_optimizer rule_pick(void)
{
    double decay = one_in(2) ? 0.01 : 0, lr = 0.013;
    bool maximize = one_in(4);
    dsi_optimizer c = {.rule = (dsi_rule)pick(DSI_SGD, DSI_LAMB)};
    switch (c.rule) {
    case DSI_SGD:
        c.sgd = (dsi_sgd){lr, one_in(3) ? 0 : 0.9, 0.1, decay, one_in(2), maximize};
        break;
    case DSI_ADAM:
        c.adam = (dsi_adam){lr, 0.9, 0.999, 1e-8, decay, one_in(2), one_in(3), maximize, one_in(2)};
        break;
    case DSI_ADAGRAD:
        c.adagrad = (dsi_adagrad){lr, 0.1, decay, 1e-10, maximize};
        break;
    case DSI_RMSPROP:
        c.rmsprop = (dsi_rmsprop){lr, 0.99, 1e-8, decay, one_in(2) ? 0.9 : 0, one_in(2), maximize};
        break;
    case DSI_ADADELTA:
        c.adadelta = (dsi_adadelta){lr, 0.9, 1e-6, decay, maximize};
        break;
    case DSI_LION:
        c.lion = (dsi_lion){lr, 0.9, 0.99, decay};
        break;
    default:
        c.lamb = (dsi_lamb){lr, 0.9, 0.999, 1e-6, decay, 10, 0.01, one_in(2), one_in(2)};
    }
    return c;
}

/* A step of `values`, which are at `offset` elements in aligned memory. */
static void step_run(const dsi_optimizer *c, int offset, int64_t step, float (*values)[N])
{
    dsi_device *d = gpu_device();
    size_t room = (N + 4) * sizeof(float);
    float *at[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        at[i] = (float *)dsi_cache_alloc(d, room) + offset;
        CHECK_INT(d->type->copy_in(&d->stream, at[i], values[i], sizeof values[i]), DS_OK);
    }
    dsi_span span = {.dtype = DS_F32,
                     .p = at[0],
                     .g = at[1],
                     .m = at[2],
                     .v = at[3],
                     .vmax = at[4],
                     .n = N,
                     .step = step,
                     .g_dtype = DS_F32,
                     .g_scale = 0.7};
    CHECK_INT(d->kernels->optimizer(&d->stream, c, 1, &span), DS_OK);
    for (int i = 0; i < BUFFERS; i++) {
        CHECK_INT(d->type->copy_out(&d->stream, values[i], at[i], sizeof values[i]), DS_OK);
        dsi_cache_free(d, at[i] - offset, room);
    }
}

static bool same_bits(const void *a, const void *b, size_t bytes) { return !memcmp(a, b, bytes); }

static void bits_do_not_depend_on_alignment(void **state)
{
    (void)state;
    static float aligned[BUFFERS][N], apart[BUFFERS][N];
    int differ = 0;
    for (int k = 0; k < (getenv("DS_TEST_QUICK") ? FEW_CASES : CASES); k++) {
        operand_seed = (uint64_t)k * 77 + 5;
        dsi_optimizer c = rule_pick();
        for (int i = 0; i < BUFFERS; i++)
            for (int j = 0; j < N; j++)
                aligned[i][j] = (float)(i < 3 ? pick_value() / 3 : fabs(pick_value()) / 3);
        memcpy(apart, aligned, sizeof apart);
        int64_t step = pick(1, 3);
        step_run(&c, 0, step, aligned);
        step_run(&c, (int)pick(1, 3), step, apart);
        if (same_bits(aligned, apart, sizeof apart)) continue;
        differ++;
        print_message("case %d: rule %d differs\n", k, (int)c.rule);
    }
    CHECK_INT(differ, 0);
}

int main(void)
{
    int skip = skip_without_gpus(1);
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_do_not_depend_on_alignment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
