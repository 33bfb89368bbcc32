/* tests/parallel/zero_parts.c: what ranks decide together, and parts of
 * parameters: overflow on one rank, what is not used or not trained, whole
 * parameters for checkpoints.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "model.h"

#define RANKS 3

/* Runs body on three ranks for each stage, in float32 and bfloat16; it gets the
 * options. */
static void in_all_stages(ds_status (*body)(void *arg))
{
    for (int stage = 0; stage <= 3; stage++)
        for (int k = 0; k < 2; k++) {
            ds_dtype t = k ? DS_BF16 : DS_F32;
            dsi_zero_opts o = {.stage = stage,
                               .dtype = t,
                               .accum_dtype = t,
                               .comm_dtype = t,
                               .overlap_comm = true,
                               .reduce_scatter = true,
                               .reduce_bucket = 900};
            CHECK_INT(run_ranks(RANKS, body, &o), DS_OK);
        }
}

/* ---- overflow ------------------------------------------------------------------------------------------- */

static ds_status overflow_once(void *arg)
{
    const dsi_zero_opts *o = arg;
    static _Thread_local float before[ROOM], after[ROOM];
    Model m = model_new(o);
    RANK_CHECK(m.z);
    dsi_zero_step_result r;
    int n = values(m.net, before, ROOM), rank = ds_comm_rank(ds_world());
    for (int i = 0; i < 3; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = loss_of(m.net, o->dtype, 12 * i + 4 * rank, 4);
        double factor = i == 1 && rank == 2 ? INFINITY : 1; /* of one rank, once */
        RANK_CHECK(dsi_zero_backward(m.z, loss, factor, true) == DS_OK);
        RANK_CHECK(dsi_zero_step(m.z, 1, 1, true, false, &r) == DS_OK);
        RANK_CHECK(r.overflow == (i == 1) && isfinite(r.norm) == (i != 1));
        RANK_CHECK(i != 1 ? !r.bad_param_path : !strcmp(r.bad_param_path, "conv.weight"));
        RANK_CHECK(values(m.net, after, ROOM) == n);
        RANK_CHECK((memcmp(before, after, (size_t)n * sizeof(float)) == 0) == (i == 1));
        memcpy(before, after, sizeof before);
        ds_scope_close(scope);
    }
    model_free(&m);
    return DS_OK;
}

static void overflow_of_one_is_of_all(void **state)
{
    (void)state;
    in_all_stages(overflow_once);
}

/* ---- what is not used, or not trained --------------------------------------------------------------------- */

typedef struct Branches {
    ds_module *left, *right, *frozen;
} Branches;

static ds_tensor *branches_forward(void *self, ds_tensor *x)
{
    Branches *b = self;
    x = ds_call(b->frozen, ds_call(b->left, x));
    return ds_comm_rank(ds_world()) == 1 ? ds_call(b->right, x) : x;
}

/* Only rank 1 uses `right`: the mean is a third of its gradient; frozen
 * parameters stay. Nothing is partitioned here, as all ranks must gather the
 * same parameters. */
static ds_status use_some(void *arg)
{
    static const ds_module_type type = {"Branches", sizeof(Branches), .forward = branches_forward};
    static _Thread_local float before[ROOM], after[ROOM];
    dsi_zero_opts o = *(dsi_zero_opts *)arg;
    o.persistence_threshold = o.model_persistence_threshold = 1000;
    ds_scope *scope = ds_scope_open();
    ds_seed(3);
    ds_module *m = ds_module_new(NULL, "branches", &type);
    Branches *b = ds_self(m);
    b->left = ds_nn_linear(m, "left", 4, 4);
    b->right = ds_nn_linear(m, "right", 4, 4);
    b->frozen = ds_nn_linear(m, "frozen", 4, 4);
    for (int i = 0; i < 2; i++) ds_require_grad(ds_module_param_at(b->frozen, i, NULL), false);
    ds_optim *sgd = ds_optim_sgd(m, 0.75);
    dsi_zero *z = dsi_zero_new(m, sgd, ds_world(), &o);
    RANK_CHECK(z);
    RANK_CHECK(values(m, before, ROOM) == 60);
    for (int k = 0; k < 2; k++) { /* the second pass does not use `right` */
        ds_tensor *x = ds_ones(o.dtype, ds_shape(2, 4));
        ds_tensor *y = k ? ds_call(b->frozen, ds_call(b->left, x)) : ds_call(m, x);
        RANK_CHECK(dsi_zero_backward(z, ds_sum(y), 1, k == 1) == DS_OK);
    }
    RANK_CHECK(dsi_zero_step(z, 1, 0, false, false, NULL) == DS_OK);
    RANK_CHECK(values(m, after, ROOM) == 60);
    for (int i = 0; i < 4; i++) /* right.bias: d sum / d bias is 2 on rank 1 */
        RANK_CHECK(fabsf(before[36 + i] - after[36 + i] - 0.75f * 2 / 3) < 4e-3f);
    RANK_CHECK(memcmp(before + 40, after + 40, 20 * sizeof(float)) == 0);
    RANK_CHECK(memcmp(before, after, 20 * sizeof(float)) != 0);
    ds_tensor *frozen = dsi_zero_whole(z, 4);
    RANK_CHECK(frozen && ds_size(frozen, 1) == 4 && !dsi_zero_shard(z, 4));
    dsi_zero_free(z);
    ds_optim_free(sgd);
    ds_scope_close(scope);
    ds_module_free(m);
    return DS_OK;
}

static void not_used_counts_as_zero(void **state)
{
    (void)state;
    in_all_stages(use_some);
}

/* ---- parts and wholes -------------------------------------------------------------------------------------- */

/* Each rank sets its parts to its number; the wholes show who has what, the
 * model follows. */
static ds_status number_parts(void *arg)
{
    const dsi_zero_opts *o = arg;
    static _Thread_local float model[ROOM];
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world()), at = 0;
    int64_t mine = 0;
    bool parts = o->stage > 0;
    Model m = model_new(o);
    RANK_CHECK(m.z);
    for (int i = 0; i < ds_module_params(m.net); i++) {
        ds_tensor *part = dsi_zero_shard(m.z, i);
        mine += ds_numel(part);
        RANK_CHECK(!part || ds_dtype_of(part) == DS_F32);
        if (part) ds_init_constant(part, parts ? rank + 1 : 7);
    }
    RANK_CHECK(parts ? mine < ds_module_numel(m.net) / 2 : mine == ds_module_numel(m.net));
    RANK_CHECK(dsi_zero_publish(m.z) == DS_OK);
    int n = values(m.net, model, ROOM);
    RANK_CHECK(n == ds_module_numel(m.net));
    for (int i = 0; i < ds_module_params(m.net); i++) {
        ds_tensor *whole = dsi_zero_whole(m.z, i);
        const float *w = ds_data(whole);
        RANK_CHECK(w && ds_ndim(whole) == ds_ndim(ds_module_param_at(m.net, i, NULL)));
        for (int64_t k = 0; k < ds_numel(whole); k++, at++) {
            RANK_CHECK(w[k] == model[at] && w[k] >= 1 && w[k] <= (parts ? (float)ranks : 7));
            if (k) RANK_CHECK(w[k] >= w[k - 1]); /* rank after rank */
        }
    }
    model_free(&m);
    return DS_OK;
}

static void parts_make_wholes(void **state)
{
    (void)state;
    in_all_stages(number_parts);
}

/* ---- calls at the wrong moment ------------------------------------------------------------------------- */

static ds_status step_too_early(void *arg)
{
    (void)arg;
    Model m = model_new(&(dsi_zero_opts){.stage = 2, .reduce_scatter = true});
    RANK_CHECK(m.z);
    RANK_CHECK(dsi_zero_backward(m.z, loss_of(m.net, DS_F32, 0, 4), 1, true) == DS_OK);
    RANK_CHECK(dsi_zero_step(m.z, 1, 0, false, false, NULL) == DS_OK);
    RANK_CHECK(dsi_zero_backward(m.z, loss_of(m.net, DS_F32, 0, 4), 1, false) == DS_OK);
    ds_status status = dsi_zero_step(m.z, 1, 0, false, false, NULL);
    model_free(&m);
    return status;
}

static ds_status pass_too_many(void *arg)
{
    (void)arg;
    Model m = model_new(&(dsi_zero_opts){.stage = 1, .reduce_scatter = true});
    RANK_CHECK(m.z);
    RANK_CHECK(dsi_zero_backward(m.z, loss_of(m.net, DS_F32, 0, 4), 1, true) == DS_OK);
    ds_status status = dsi_zero_backward(m.z, loss_of(m.net, DS_F32, 0, 4), 1, true);
    model_free(&m);
    return status;
}

static void backward_and_step_in_turn(void **state)
{
    (void)state;
    CHECK(run_ranks(2, step_too_early, NULL) != DS_OK);
    CHECK_ERROR("without the last backward pass");
    CHECK(run_ranks(2, pass_too_many, NULL) != DS_OK);
    CHECK_ERROR("after the last one, without a step");
}

/* ---- optimizers that need whole parameters --------------------------------------------------------------- */

typedef struct Whole {
    dsi_zero_opts o;
    bool muon, no_clip, first; /* first: others are to have its bits */
    float want[ROOM];          /* of one rank */
} Whole;

static ds_optim *whole_optim(ds_module *net, bool muon)
{
    return muon ? ds_optim_muon(net, 1e-2) : ds_optim_lamb(net, 1e-2);
}

/* Three steps on 12 images, of which each rank has its portion: into v. */
static ds_status whole_train(const Whole *w, float *v)
{
    Model m = {.net = net_new()};
    int ranks = ds_comm_size(ds_world()), rank = ds_comm_rank(ds_world()), n = 12 / ranks;
    m.optim = whole_optim(m.net, w->muon);
    m.z = dsi_zero_new(m.net, m.optim, ds_world(), &w->o);
    RANK_CHECK(m.z);
    for (int i = 0; i < 3; i++) {
        ds_scope *scope = ds_scope_open();
        ds_tensor *loss = loss_of(m.net, w->o.dtype, 12 * i + n * rank, n);
        RANK_CHECK(dsi_zero_backward(m.z, loss, 1, true) == DS_OK);
        RANK_CHECK(dsi_zero_step(m.z, 1, w->no_clip ? 0 : 1, true, false, NULL) == DS_OK);
        ds_scope_close(scope);
    }
    values(m.net, v, ROOM);
    const dsi_flat *f = dsi_zero_flat(m.z);
    for (int i = 0; i < f->n; i++) /* whole, if stage 3 does not divide it among ranks */
        RANK_CHECK(f->unit[f->param[i].unit].solo || f->param[i].begin == f->param[i].end ||
                   f->param[i].end - f->param[i].begin == f->param[i].n);
    model_free(&m);
    return DS_OK;
}

/* Of the four of optimizer and dtype: on the emulator each takes seconds. */
static bool is_left_out(int k) { return quick_gpu() && (k == 0 || k == 3); }

static ds_status whole_compare(void *arg)
{
    const Whole *w = arg;
    static _Thread_local float v[ROOM];
    RANK_CHECK(whole_train(w, v) == DS_OK);
    double tolerance = w->o.dtype == DS_F32 ? 2e-5 : 2e-2;
    for (int i = 0; i < ROOM; i++) RANK_CHECK(fabs((double)v[i] - (double)w->want[i]) < tolerance);
    return DS_OK;
}

static void whole_parameters_in_all_stages(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        ds_dtype t = k & 1 ? DS_BF16 : DS_F32;
        static Whole w;
        if (is_left_out(k)) continue;
        w = (Whole){.muon = k & 2, .o = {.dtype = t, .accum_dtype = t, .comm_dtype = t}};
        w.o.overlap_comm = w.o.reduce_scatter = true;
        CHECK_INT(whole_train(&w, w.want), DS_OK);
        w.o.max_live = w.o.model_persistence_threshold = INT64_MAX;
        for (w.o.stage = 0; w.o.stage <= 3; w.o.stage++)
            for (int64_t bucket = 900; bucket <= 1000000; bucket += 999100) {
                w.o.reduce_bucket = bucket;
                w.o.persistence_threshold = bucket == 900 ? 0 : 200;
                w.o.offload_optimizer = w.o.stage == 3 && bucket == 900;
                CHECK_INT(run_ranks(RANKS, whole_compare, &w), DS_OK);
            }
    }
}

static ds_status whole_same(void *arg)
{
    Whole *w = arg;
    static _Thread_local float v[ROOM];
    RANK_CHECK(whole_train(w, v) == DS_OK);
    if (w->first && ds_comm_rank(ds_world()) == 0) memcpy(w->want, v, sizeof v);
    RANK_CHECK(w->first || !memcmp(w->want, v, sizeof v));
    return DS_OK;
}

static void whole_run(Whole *w, bool first)
{
    w->first = first;
    CHECK_INT(run_ranks(RANKS, whole_same, w), DS_OK);
}

/* Without clipping all ranks' sums are the same in stages 2 and 3: the same
 * bits, also with masters and moments, or all, in files. On a GPU what is in
 * files is updated by the CPU, which rounds in other places: there it has the
 * bits of masters in the host's memory. */
static void whole_parameters_same_bits(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        ds_dtype t = k & 1 ? DS_BF16 : DS_F32;
        static Whole w;
        if (is_left_out(k)) continue;
        w = (Whole){.muon = k & 2, .no_clip = true, .o = {.stage = 2, .dtype = t}};
        w.o.accum_dtype = w.o.comm_dtype = t;
        w.o.reduce_scatter = true;
        w.o.max_live = w.o.model_persistence_threshold = INT64_MAX;
        whole_run(&w, true);
        w.o.stage = 3;
        for (int files = 0; files < 3; files++) {
            const char *folder = folder_make();
            w.o.offload_optimizer = files && on_gpu();
            if (files == 1 && on_gpu()) whole_run(&w, true);
            w.o.files = (dsi_offload_opts){.nvme_path = files ? folder : NULL, .buffer_count = 2};
            w.o.param_files = (dsi_param_swap_opts){
                .nvme_path = files > 1 ? folder : NULL, .buffer_count = 4, .buffer_size = 4000};
            whole_run(&w, false);
            folder_remove();
        }
    }
}

TEST_MAIN(cmocka_unit_test(overflow_of_one_is_of_all), cmocka_unit_test(not_used_counts_as_zero),
          cmocka_unit_test(parts_make_wholes), cmocka_unit_test(backward_and_step_in_turn),
          cmocka_unit_test(whole_parameters_in_all_stages),
          cmocka_unit_test(whole_parameters_same_bits))
