/* tests/parallel/same.c: ranks that make different models are told so, with the
 * same words on all.
 * SPDX-License-Identifier: MIT */
#include "ranks.h"

#define RANKS 3

typedef enum Kind { EQUAL, WIDER, LONGER, SHORTER, FROZEN, HALF } Kind;

typedef struct Run {
    Kind kind;
    bool engine;
    char said[RANKS][1024];
} Run;

static ds_module *make(Kind kind, bool other)
{
    int width = kind == WIDER && other ? 16 : 8;
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 4, width);
    if (kind != SHORTER || !other) ds_nn_linear(m, "1", width, 3);
    if (kind == LONGER && other) ds_nn_batch_norm2d(m, "2", 3);
    if (kind == FROZEN && other) ds_require_grad(ds_module_param_at(m, 1, NULL), false);
    if (kind == HALF && other) ds_module_to(m, DS_BF16);
    return m;
}

static ds_status begin(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(NULL);
    CHECK_INT(rank, ds_comm_rank(ds_world()));
    ds_module *net = make(run->kind, rank == 1);
    ds_engine *e = NULL;
    ds_ddp *d = NULL;
    if (run->engine)
        e = ds_initialize(.model = net, .config = "{\"train_batch_size\": 3, \"optimizer\": "
                                                  "{\"type\": \"SGD\"}}");
    else
        d = ds_ddp_new(net);
    ds_status status = e || d ? DS_OK : ds_error_status();
    snprintf(run->said[rank], sizeof run->said[rank], "%s", ds_error() ? ds_error() : "");
    ds_ddp_free(d);
    ds_engine_free(e);
    if (!run->engine) ds_module_free(net);
    return status;
}

static void the_first_difference_is_named(void **state)
{
    (void)state;
    static const struct {
        Kind kind;
        const char *says;
    } cases[] = {
        {WIDER, "net: rank 1 has made another model than rank 0: 0.weight [16, 4] float32, trained "
                "where rank 0 has 0.weight [8, 4] float32, trained: expected the same one"},
        {LONGER, "2.weight [3] float32, trained where rank 0 has nothing:"},
        {SHORTER, "than rank 0: nothing where rank 0 has 1.weight [3, 8] float32, trained:"},
        {FROZEN, "0.bias [8] float32 where rank 0 has 0.bias [8] float32, trained:"},
        {HALF, "0.weight [8, 4] bfloat16, trained where rank 0 has 0.weight [8, 4] float32"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int engine = 0; engine < 2; engine++) {
            if (engine && cases[i].kind == HALF) continue; /* it makes the dtype its own */
            Run run = {.kind = cases[i].kind, .engine = engine};
            CHECK(run_ranks(RANKS, begin, &run) != DS_OK);
            CHECK_ERROR(cases[i].says);
            for (int r = 0; r < RANKS; r++) CHECK(strstr(run.said[r], cases[i].says));
        }
}

static void equal_ones_pass(void **state)
{
    (void)state;
    for (int engine = 0; engine < 2; engine++) {
        Run run = {.engine = engine};
        CHECK_INT(run_ranks(RANKS, begin, &run), DS_OK);
        CHECK_INT(run_ranks(1, begin, &run), DS_OK);
    }
}

static ds_status other_data(void *arg)
{
    (void)arg;
    int64_t n = ds_comm_rank(NULL) == 2 ? 32 : 64;
    ds_tensor *x[] = {ds_zeros(DS_F32, ds_shape(n, 4)), ds_zeros(DS_I64, ds_shape(n))};
    ds_engine *e = ds_initialize(.model = make(EQUAL, false),
                                 .training_data = ds_tensor_dataset(x, 2),
                                 .config = "{\"train_batch_size\": 3}");
    ds_status status = e ? DS_OK : ds_error_status();
    ds_engine_free(e);
    return status;
}

static void data_of_another_length(void **state)
{
    (void)state;
    CHECK(run_ranks(RANKS, other_data, NULL) != DS_OK);
    CHECK_ERROR("initialize: rank 2 has 32 samples of training data, rank 0 has 64: give all ranks "
                "the same data set");
}

TEST_MAIN(cmocka_unit_test(the_first_difference_is_named), cmocka_unit_test(equal_ones_pass),
          cmocka_unit_test(data_of_another_length))
