/* tests/parallel/zero3.c: parameters divided among ranks: who may read them,
 * what they take, steps that do not go as the last one did.
 * SPDX-License-Identifier: MIT */
#include "model.h"

#include "tensor/tensor.h"

#define RANKS 3

static const dsi_zero_opts divided = {.stage = 3,
                                      .overlap_comm = true,
                                      .reduce_scatter = true,
                                      .prefetch_bucket = 1000,
                                      .max_live = 1 << 20,
                                      .max_reuse_distance = 500};

/* ---- reading and writing ------------------------------------------------------------------------------------ */

static ds_status read_and_write(void *arg)
{
    (void)arg;
    int rank = ds_comm_rank(ds_world());
    Model m = model_new(&divided);
    RANK_CHECK(m.z);
    ds_tensor *w = ds_module_param_at(m.net, 2, NULL); /* fc1.weight */
    RANK_CHECK(!w->storage && ds_size(w, 0) == 32 && ds_size(w, 1) == 80);
    RANK_CHECK(!ds_data(w) && strstr(ds_error(), "fc1.weight is divided among 3 ranks"));
    RANK_CHECK(strstr(ds_error(), "ds_gathered"));
    ds_error_clear();
    RANK_CHECK(!ds_mul(w, w) && ds_error());
    ds_error_clear();
    RANK_CHECK(ds_gathered(&w, 1) == DS_OK && w->storage && ds_data(w));
    if (rank == 1) ds_init_constant(w, 0.25);
    RANK_CHECK(ds_gathered_end(&w, 1, 1) == DS_OK && !w->storage);
    RANK_CHECK(ds_gathered(&w, 1) == DS_OK && ds_gathered(&w, 1) == DS_OK); /* they nest */
    RANK_CHECK(((const float *)ds_data(w))[0] == 0.25f &&
               ((const float *)ds_data(w))[32 * 80 - 1] == 0.25f);
    RANK_CHECK(ds_gathered_end(&w, 1, -1) == DS_OK && w->storage);
    RANK_CHECK(ds_gathered_end(&w, 1, -1) == DS_OK && !w->storage);
    RANK_CHECK(ds_gathered_end(&w, 1, -1) == DS_OK); /* once too often is nothing */
    ds_tensor *whole = dsi_zero_whole(m.z, 2);
    RANK_CHECK(whole && ((const float *)ds_data(whole))[7] == 0.25f);
    model_free(&m);
    return DS_OK;
}

static void reading_needs_a_gather(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(RANKS, read_and_write, NULL), DS_OK);
}

/* As a forward that calls a module on one rank only. */
static ds_status gather_alone(void *arg)
{
    (void)arg;
    Model m = model_new(&divided);
    RANK_CHECK(m.z);
    ds_tensor *w = ds_module_param_at(m.net, 2, NULL);
    ds_status status = ds_comm_rank(NULL) ? ds_barrier(NULL) : ds_gathered(&w, 1);
    model_free(&m);
    return status;
}

static void a_gather_that_others_do_not_call(void **state)
{
    (void)state;
    if (on_gpu()) return; /* NCCL compares no calls: it would wait for DS_TIMEOUT */
    CHECK(run_ranks(RANKS, gather_alone, NULL) != DS_OK);
    CHECK_ERROR("a module's parameter: all ranks call the same modules in the same order");
}

/* ---- what it takes ------------------------------------------------------------------------------------------- */

static int present(const ds_module *net)
{
    int n = 0;
    for (int i = 0; i < ds_module_params(net); i++)
        n += ds_module_param_at(net, i, NULL)->storage != NULL;
    return n;
}

static ds_status take_little(void *arg)
{
    (void)arg;
    int ranks = ds_comm_size(ds_world());
    dsi_zero_opts o = divided;
    o.max_reuse_distance = 0;
    Model m = model_new(&o);
    RANK_CHECK(m.z);
    int64_t n = ds_module_numel(m.net);
    for (int i = 0; i < 3; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = loss_of(m.net, DS_F32, i * 8, 8);
        RANK_CHECK(present(m.net) <= 1); /* the last one, which backward needs first */
        RANK_CHECK(dsi_zero_backward(m.z, loss, 1, true) == DS_OK && present(m.net) == 0);
        RANK_CHECK(dsi_zero_step(m.z, 1, 0, false, false, NULL) == DS_OK && present(m.net) == 0);
        ds_scope_close(scope);
    }
    dsi_zero_bytes bytes = dsi_zero_memory(m.z);
    int64_t most = 4 * (n / ranks + 32 * 7); /* 7 units filled up */
    RANK_CHECK(bytes.parameters >= 4 * n / ranks && bytes.parameters <= most);
    RANK_CHECK(bytes.gradients <= most && bytes.optimizer <= 2 * most + 8 * 6);
    model_free(&m);
    return DS_OK;
}

static void little_is_there_between_uses(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(RANKS, take_little, NULL), DS_OK);
}

/* ---- ds_zero_init -------------------------------------------------------------------------------------------- */

typedef struct Made {
    dsi_zero_opts o;
    bool divided;
    float x[ROOM];
} Made;

static ds_status make_and_train(void *arg)
{
    Made *made = arg;
    static _Thread_local float x[ROOM];
    ds_scope *all = ds_scope_open();
    if (made->divided) {
        RANK_CHECK(ds_zero_init_with((ds_zero_init_opts){.dtype = DS_BF16}) == DS_OK);
        RANK_CHECK(ds_zero_init() != DS_OK);
        ds_error_clear();
    }
    ds_module *net = net_new();
    if (made->divided) {
        ds_tensor *w = ds_module_param_at(net, 0, NULL), *b = ds_module_param_at(net, 5, NULL);
        if (ds_comm_rank(ds_world())) ds_init_constant(b, 9); /* rank 0's values count */
        RANK_CHECK(present(net) == 1 && ds_init_constant(w, 0.125) && present(net) == 2);
        RANK_CHECK(ds_zero_init_end() == DS_OK && present(net) == 0);
        RANK_CHECK(!ds_data(w) && strstr(ds_error(), "ds_gathered"));
        ds_error_clear();
        RANK_CHECK(ds_gathered(&w, 1) == DS_OK && ds_data(w));
        if (ds_comm_rank(ds_world()) == 1) ds_init_constant(w, 0.25);
        RANK_CHECK(ds_gathered_end(&w, 1, 1) == DS_OK && present(net) == 0);
    } else {
        ds_init_constant(ds_module_param_at(net, 0, NULL), 0.25);
        RANK_CHECK(ds_module_to(net, DS_BF16) == DS_OK);
    }
    ds_optim *optim = ds_optim_adamw(net, 1e-2);
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &made->o);
    RANK_CHECK(z);
    for (int i = 0; i < 3; i++) {
        ds_tensor *loss = loss_of(net, made->o.dtype, i * 8, 8);
        RANK_CHECK(dsi_zero_backward(z, loss, 1, true) == DS_OK);
        RANK_CHECK(dsi_zero_step(z, 1, 1, false, false, NULL) == DS_OK);
    }
    int n = values(net, x, ROOM);
    if (ds_comm_rank(ds_world()) == 0) memcpy(made->x, x, (size_t)n * sizeof *x);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_scope_close(all);
    ds_module_free(net);
    return DS_OK;
}

/* A model made divided trains as one that was not, in every stage and dtype. */
static void models_are_made_divided(void **state)
{
    (void)state;
    static Made want, got;
    for (int ranks = 2; ranks <= RANKS; ranks++)
        for (int stage = 0; stage <= 3; stage++)
            for (int k = 0; k < 2; k++) {
                ds_dtype t = k ? DS_BF16 : DS_F32;
                want.o = divided;
                want.o.stage = stage;
                want.o.dtype = want.o.accum_dtype = want.o.comm_dtype = t;
                got = want;
                got.divided = true;
                CHECK_INT(run_ranks(ranks, make_and_train, &want), DS_OK);
                CHECK_INT(run_ranks(ranks, make_and_train, &got), DS_OK);
                assert_memory_equal(got.x, want.x, sizeof want.x);
            }
}

/* A model that is not handed over is freed; with one rank nothing is
 * partitioned. */
static ds_status make_for_nothing(void *arg)
{
    (void)arg;
    int64_t before = ds_live_tensors();
    ds_scope *scope = ds_scope_open();
    RANK_CHECK(ds_zero_init() == DS_OK);
    ds_module *net = net_new();
    RANK_CHECK(ds_zero_init_end() == DS_OK && ds_zero_init_end() == DS_OK);
    RANK_CHECK(present(net) == (ds_comm_size(ds_world()) == 1 ? 6 : 0));
    ds_module_free(net);
    ds_scope_close(scope);
    RANK_CHECK(ds_live_tensors() == before);
    return DS_OK;
}

static void nothing_stays(void **state)
{
    (void)state;
    CHECK_INT(run_ranks(RANKS, make_for_nothing, NULL), DS_OK);
    CHECK_INT(run_ranks(1, make_for_nothing, NULL), DS_OK);
    CHECK(ds_zero_init_with((ds_zero_init_opts){.dtype = DS_I8}) == DS_EINVAL);
    CHECK_ERROR("dtype is int8");
}

/* ---- steps that go otherwise ----------------------------------------------------------------------------------- */

typedef struct Tangle {
    ds_module *a, *b;
    ds_tensor *w; /* [6,6]: used by itself, and twice */
    int turn;
} Tangle;

/* Run again by backward: all parameters once more. */
static ds_tensor *recomputed(void *arg, ds_tensor **in, int n)
{
    Tangle *t = arg;
    (void)n;
    ds_tensor *x = ds_call(t->b, ds_tanh(ds_call(t->a, in[0])));
    return ds_matmul(x, t->w);
}

/* a and b in changing order, b's weight read from outside of b. */
static ds_tensor *tangle_forward(void *self, ds_tensor *x)
{
    Tangle *t = self;
    ds_tensor *bw = ds_module_param_at(t->b, 0, NULL);
    x = ds_tanh(ds_matmul(x, t->w));
    if (t->turn % 3 == 1) x = ds_call(t->a, ds_call(t->b, x));
    if (t->turn % 3 == 2) x = ds_call(t->b, ds_call(t->b, ds_call(t->a, x)));
    if (t->turn % 4 == 3) x = ds_checkpoint(recomputed, t, &x, 1);
    return ds_matmul(ds_tanh(ds_matmul(x, t->w)), bw);
}

static ds_module *tangle_new(void)
{
    static const ds_module_type type = {"Tangle", sizeof(Tangle), .forward = tangle_forward};
    ds_seed(11);
    ds_module *m = ds_module_new(NULL, "tangle", &type);
    Tangle *t = ds_self(m);
    t->w = ds_module_param(m, "w", ds_randn(DS_F32, ds_shape(6, 6)));
    t->a = ds_nn_linear(m, "a", 6, 6);
    t->b = ds_nn_linear(m, "b", 6, 6);
    return m;
}

typedef struct Turns {
    dsi_zero_opts o;
    float x[ROOM];
} Turns;

static ds_status turn_about(void *arg)
{
    Turns *turns = arg;
    ds_scope *all = ds_scope_open();
    ds_module *m = tangle_new();
    ds_optim *optim = ds_optim_sgd(m, 0.01, .momentum = 0.9);
    dsi_zero *z = dsi_zero_new(m, optim, ds_world(), &turns->o);
    RANK_CHECK(z);
    Tangle *t = ds_self(m);
    float row[6] = {1, -1, 0.5f, 2, 0, (float)ds_comm_rank(ds_world())};
    for (int i = 0; i < 24; i++) {
        ds_scope *scope = ds_scope_open();
        t->turn = i < 9 ? i / 3 : i; /* some the same, then each another */
        ds_tensor *x = ds_from_data(DS_F32, ds_shape(1, 6), row);
        bool was = ds_set_grad(false);
        RANK_CHECK(i % 4 || ds_call(m, x)); /* an evaluation in between */
        ds_set_grad(was);
        for (int k = 0; k <= i % 2; k++)
            RANK_CHECK(dsi_zero_backward(z, ds_mean(ds_call(m, x)), 1, k == i % 2) == DS_OK);
        RANK_CHECK(dsi_zero_step(z, 1, 1, false, false, NULL) == DS_OK);
        ds_scope_close(scope);
    }
    int n = values(m, turns->x, ROOM);
    RANK_CHECK(n == 36 + 2 * 42);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_scope_close(all);
    ds_module_free(m);
    return DS_OK;
}

/* Ranks share the argument: each has a copy of its own, and one of them is the
 * result. */
static ds_status turn_about_alone(void *arg)
{
    static _Thread_local Turns mine;
    Turns *turns = arg;
    mine.o = turns->o;
    ds_status status = turn_about(&mine);
    if (status == DS_OK && ds_comm_rank(ds_world()) == 0) memcpy(turns->x, mine.x, sizeof mine.x);
    return status;
}

static void steps_may_differ(void **state)
{
    (void)state;
    static Turns want, got;
    static const dsi_zero_opts some[] = {
        {.stage = 3},
        {.stage = 3, .overlap_comm = true, .prefetch_bucket = 100, .max_live = 50},
        {.stage = 3, .prefetch_bucket = 60, .max_live = 1000, .max_reuse_distance = 60},
        {.stage = 3, .prefetch_bucket = 1000, .max_live = 100, .max_reuse_distance = 1000},
        {.stage = 3,
         .persistence_threshold = 10,
         .model_persistence_threshold = 1000,
         .max_live = 1000,
         .prefetch_bucket = 1000},
    };
    want.o = (dsi_zero_opts){.stage = 2};
    CHECK_INT(run_ranks(RANKS, turn_about_alone, &want), DS_OK);
    for (int i = 0; i < 5; i++) {
        got.o = some[i];
        CHECK_INT(run_ranks(RANKS, turn_about_alone, &got), DS_OK);
        assert_memory_equal(got.x, want.x, sizeof want.x);
    }
}

TEST_MAIN(cmocka_unit_test(reading_needs_a_gather),
          cmocka_unit_test(a_gather_that_others_do_not_call),
          cmocka_unit_test(little_is_there_between_uses), cmocka_unit_test(models_are_made_divided),
          cmocka_unit_test(nothing_stays), cmocka_unit_test(steps_may_differ))
