/* tests/parallel/offload.c: masters and moments in files: the bits that they
 * give in memory, whatever the stage, dtype, rule, buffers and engine; what is
 * brought for checkpoints; trouble with disks.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "net.h"
#include "ranks.h"

#include "parallel/estimate.h"
#include "parallel/zero.h"

#include <dirent.h>
#include <unistd.h>

#define BATCH 24 /* samples of a step, on all ranks */
#define RANKS 4

static const char *folder; /* of all files */

typedef enum Rule { ADAMW, AMSGRAD, SGD, LION, RMSPROP, ADAMAX, RULES, LAMB = RULES, MUON } Rule;

typedef struct Run {
    dsi_zero_opts o;
    Rule rule;
    int steps;
    bool no_clip;
    bool reads; /* between steps all is read, and between backward and step */
    bool skips; /* a backward is dropped before the second step */
    float x[RANKS][ROOM];
    int n;
    dsi_zero_bytes bytes; /* of rank 0 */
} Run;

static ds_optim *optim_of(Rule rule, ds_module *m)
{
    switch (rule) {
    case ADAMW:
        return ds_optim_adamw(m, 1e-3, .weight_decay = 0.01);
    case AMSGRAD:
        return ds_optim_adam(m, 1e-3, .amsgrad = true);
    case SGD:
        return ds_optim_sgd(m, 0.05, .momentum = 0.9);
    case LION:
        return ds_optim_lion(m, 1e-4);
    case RMSPROP:
        return ds_optim_rmsprop(m, 1e-3);
    case ADAMAX:
        return ds_optim_adamax(m, 1e-3);
    case MUON:
        return ds_optim_muon(m, 1e-3);
    default:
        return ds_optim_lamb(m, 1e-3);
    }
}

/* Biases, in a group of their own, decay less. */
static bool is_bias(void *arg, const char *path, const ds_tensor *p)
{
    (void)arg, (void)p;
    return strstr(path, "bias");
}

static ds_status read_all(dsi_zero *z, const ds_optim *optim)
{
    for (int i = 0; i < 6; i++) {
        ds_tensor *x = dsi_zero_shard(z, i);
        RANK_CHECK(!x || isfinite(ds_item(ds_sum(ds_detach(x)))));
        RANK_CHECK(dsi_zero_release(z, i, i % 2) == DS_OK);
    }
    ds_state *state = ds_optim_state(optim);
    for (int i = 0; i < ds_state_len(state); i++)
        RANK_CHECK(isfinite(ds_item(ds_sum(ds_cast(ds_state_at(state, i), DS_F64)))));
    ds_state_free(state);
    return DS_OK;
}

static ds_status train(void *arg)
{
    Run *run = arg;
    int rank = ds_comm_rank(ds_world()), n = BATCH / ds_comm_size(ds_world());
    ds_module *net = net_new();
    ds_optim *optim = optim_of(run->rule, net);
    ds_optim_set_group_weight_decay(optim, ds_optim_add_group(optim, is_bias, NULL), 1e-3);
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &run->o);
    ds_status status = z ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < run->steps; i++) {
        ds_scope *scope = ds_scope_open();
        if (run->skips && i == 1) {
            status = dsi_zero_backward(z, loss_of(net, run->o.dtype, rank * n, n), 1, true);
            dsi_zero_zero_grad(z);
        }
        ds_tensor *loss = loss_of(net, run->o.dtype, i * BATCH + rank * n, n);
        if (status == DS_OK) status = dsi_zero_backward(z, loss, 1, true);
        if (status == DS_OK && run->reads) status = read_all(z, optim);
        if (status == DS_OK)
            status = dsi_zero_step(z, 1, run->no_clip ? 0 : 0.5, false, true, NULL);
        if (status == DS_OK && run->reads) status = read_all(z, optim);
        ds_scope_close(scope);
    }
    if (status == DS_OK && rank == 0) run->bytes = dsi_zero_memory(z);
    if (status == DS_OK && rank == 0) run->n = values(net, run->x[0], ROOM);
    if (status == DS_OK && rank) values(net, run->x[rank], ROOM);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_module_free(net);
    return status;
}

static void run_on(int ranks, Run *run)
{
    if (run_ranks(ranks, train, run) != DS_OK) fail_msg("%s", ds_error());
    CHECK(run->n > 2900);
}

/* With files as `files` says, in the bits of the run without. */
static void same_bits(int ranks, const Run *want, Run *got, dsi_offload_opts files)
{
    files.nvme_path = folder;
    got->o = want->o;
    got->o.files = files;
    got->rule = want->rule;
    got->steps = want->steps;
    run_on(ranks, got);
    if (memcmp(want->x[0], got->x[0], (size_t)want->n * sizeof(float)))
        fail_msg("%d ranks, stage %d, %s, rule %d, buffers %d of %lld: other bits", ranks,
                 want->o.stage, ds_dtype_name(want->o.dtype), want->rule, files.buffer_count,
                 (long long)files.buffer_size);
    CHECK(got->bytes.file > 0);
}

static const dsi_offload_opts ways[] = {
    {0},
    {.buffer_count = 1, .buffer_size = 333},
    {.buffer_count = 2, .buffer_size = 100, .pipeline_read = true, .pin_memory = true},
    {.buffer_count = 4, .buffer_size = 129, .pipeline_write = true, .fast_init = true},
    {.buffer_count = 5,
     .buffer_size = 64,
     .pipeline_read = true,
     .pipeline_write = true,
     .in_memory = 0.4,
     .aio = {.block_size = 4096, .queue_depth = 2, .single_submit = true}},
};
enum { WAYS = sizeof ways / sizeof *ways };

static Run *runs[2];

/* Of run number k: 1, 2 or several. */
static int ranks_of(int k) { return k % 3 < 2 ? 1 + k % 3 : some_ranks(); }

/* In some of the ways, from `first` on. */
static void compare(int ranks, dsi_zero_opts o, Rule rule, int first, int last)
{
    Run *want = runs[0], *got = runs[1];
    o.reduce_scatter = o.overlap_comm = true;
    o.reduce_bucket = 700;
    o.persistence_threshold = o.stage == 3 ? 50 : 0;
    o.model_persistence_threshold = o.max_live = INT64_MAX;
    o.offload_optimizer = on_gpu(); /* which rounds an update in another way */
    *want = (Run){.o = o, .rule = rule, .steps = 3};
    run_on(ranks, want);
    for (int k = first; k <= last; k++) {
        got->reads = k % 2;
        got->skips = k % 3 == 2;
        same_bits(ranks, want, got, ways[k]);
    }
}

static void every_stage_and_dtype(void **state)
{
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16, DS_F16};
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int k = 0; k < 3; k++) {
            dsi_zero_opts o = {.stage = stage, .dtype = dtypes[k]};
            o.accum_dtype = o.comm_dtype = o.dtype;
            if (quick_gpu() && k != stage % 3) continue;
            compare(k == 1 ? 2 : some_ranks(), o, ADAMW, k, WAYS - 1);
            if (stage == 0) compare(1, o, ADAMW, 1, 2);
        }
}

static void every_rule(void **state)
{
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        int way = 1 + rule % (WAYS - 1);
        compare(2, (dsi_zero_opts){.stage = 2}, (Rule)rule, way, way);
        compare(2,
                (dsi_zero_opts){
                    .stage = 3, .dtype = DS_BF16, .accum_dtype = DS_BF16, .comm_dtype = DS_BF16},
                (Rule)rule, way, way);
    }
    /* whole parameters in a block */
    compare(2, (dsi_zero_opts){.stage = 0}, LAMB, 0, WAYS - 1);
    compare(2, (dsi_zero_opts){.stage = 2}, MUON, 0, WAYS - 1);
}

static void threads_in_place_of_the_kernel(void **state)
{
    (void)state;
    setenv("DS_AIO", "threads", 1);
    compare(some_ranks(), (dsi_zero_opts){.stage = 2}, ADAMW, 0, WAYS - 1);
    unsetenv("DS_AIO");
}

/* ---- parameters ------------------------------------------------------------------------------------------- */

static const dsi_param_swap_opts homes[] = {
    {.buffer_count = 1, .buffer_size = 3000},
    {.buffer_count = 2, .buffer_size = 3000, .max_in_cpu = 700},
    {.buffer_count = 5, .buffer_size = 3000, .pin_memory = true},
};

/* Masters in memory or in a file too, whatever is gathered ahead. */
static void parameters_in_files(void **state)
{
    static const ds_dtype dtypes[] = {DS_F32, DS_BF16, DS_F16};
    Run *want = runs[0], *got = runs[1];
    (void)state;
    for (int k = 0; k < 12; k++) {
        dsi_zero_opts o = {.stage = 3, .dtype = dtypes[(k + k / 3) % 3], .reduce_scatter = true};
        o.accum_dtype = o.comm_dtype = o.dtype;
        o.max_live = k % 2 ? 2700 : INT64_MAX;
        o.prefetch_bucket = k % 4 > 1 ? INT64_MAX : 0;
        o.max_reuse_distance = k % 4 ? 0 : INT64_MAX;
        o.offload_optimizer = on_gpu();
        int ranks = ranks_of(k);
        *want = (Run){.o = o, .steps = 3};
        run_on(ranks, want);
        *got = *want;
        got->o.param_files = homes[k / 4];
        got->o.param_files.nvme_path = folder;
        got->o.files = ways[k % WAYS];
        if (k % 3) got->o.files.nvme_path = folder;
        run_on(ranks, got);
        if (memcmp(want->x[0], got->x[0], (size_t)want->n * sizeof(float)))
            fail_msg("offload_param, number %d: other bits", k);
        CHECK(got->bytes.file > 0 && got->bytes.file % 4096 == 0);
    }
}

/* Values that a user writes to a gathered parameter are written to the file. */
static ds_status write_one(void *arg)
{
    dsi_zero_opts o = {.stage = 3, .max_live = INT64_MAX, .offload_optimizer = true};
    ds_module *net = net_new();
    ds_optim *optim = ds_optim_sgd(net, 0.1);
    ds_scope *scope = ds_scope_open();
    (void)arg;
    o.param_files = homes[0];
    o.param_files.nvme_path = folder;
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &o);
    ds_tensor *w = ds_module_param_at(net, 2, NULL);
    RANK_CHECK(z && ds_gathered(&w, 1) == DS_OK);
    if (ds_comm_rank(ds_world()) == 1) ds_init_constant(w, 0.5);
    RANK_CHECK(ds_gathered_end(&w, 1, 1) == DS_OK && ds_gathered(&w, 1) == DS_OK);
    RANK_CHECK(ds_item(ds_sum(ds_detach(w))) == 0.5 * 2560);
    RANK_CHECK(ds_gathered_end(&w, 1, -1) == DS_OK);
    dsi_zero_free(z);
    ds_optim_free(optim);
    ds_scope_close(scope);
    ds_module_free(net);
    return DS_OK;
}

/* The pass over the optimizer's file begins during backward; some programs read
 * masters before the step. */
static void updates_in_backward(void **state)
{
    (void)state;
    Run *want = runs[0], *got = runs[1];
    for (int k = 0; k < 10; k++) {
        dsi_zero_opts o = {.stage = 3, .dtype = k % 3 ? DS_BF16 : DS_F32, .reduce_scatter = true};
        o.accum_dtype = o.comm_dtype = o.dtype;
        o.max_live = INT64_MAX, o.prefetch_bucket = 1000, o.overlap_comm = k % 4 < 2;
        o.offload_optimizer = on_gpu();
        *want = (Run){.o = o, .steps = 4, .no_clip = true};
        run_on(ranks_of(k), want);
        *got = *want;
        got->reads = k % 2;
        got->o.overlap_update = true;
        got->o.param_files = homes[k % 3];
        got->o.files = ways[k % WAYS];
        got->o.param_files.nvme_path = got->o.files.nvme_path = folder;
        run_on(ranks_of(k), got);
        if (memcmp(want->x[0], got->x[0], (size_t)want->n * sizeof(float)))
            fail_msg("updates in backward, number %d: other bits", k);
    }
}

static void gathered_and_written(void **state)
{
    (void)state;
    if (run_ranks(some_ranks(), write_one, NULL) != DS_OK) fail_msg("%s", ds_error());
}

/* ---- checkpoints ----------------------------------------------------------------------------------------- */

static ds_status one_step(dsi_zero *z, ds_module *net, int i)
{
    ds_scope *scope = ds_scope_open();
    int rank = ds_comm_rank(ds_world());
    ds_status status = dsi_zero_backward(z, loss_of(net, DS_F32, i * BATCH + rank * 8, 8), 1, true);
    if (status == DS_OK) status = dsi_zero_step(z, 1, 0, false, false, NULL);
    ds_scope_close(scope);
    return status;
}

static ds_tensor *copy_of(ds_tensor *x) { return ds_clone(ds_detach(x)); }

/* State that was read after one step, and written back after three, repeats
 * steps two and three: parts, moments, counts, and the model by publish. */
static ds_status there_and_back(void *arg)
{
    static _Thread_local float want[ROOM], got[ROOM];
    dsi_zero_opts o = {.stage = *(int *)arg, .max_live = INT64_MAX};
    o.files = (dsi_offload_opts){.nvme_path = folder, .buffer_size = 200};
    ds_scope *scope = ds_scope_open();
    ds_module *net = net_new();
    ds_optim *optim = ds_optim_adamw(net, 1e-2);
    dsi_zero *z = dsi_zero_new(net, optim, ds_world(), &o);
    RANK_CHECK(z && one_step(z, net, 0) == DS_OK);

    ds_tensor *part[6];
    ds_state *state = ds_optim_state(optim), *kept = ds_state_new();
    for (int i = 0; i < 6; i++) {
        part[i] = dsi_zero_shard(z, i) ? copy_of(dsi_zero_shard(z, i)) : NULL;
        RANK_CHECK(dsi_zero_release(z, i, false) == DS_OK);
    }
    for (int i = 0; i < ds_state_len(state); i++)
        RANK_CHECK(ds_state_set(kept, ds_state_name(state, i), copy_of(ds_state_at(state, i))) ==
                   DS_OK);
    ds_state_free(state);
    ds_tensor *whole = dsi_zero_whole(z, 2);
    RANK_CHECK(whole && ds_numel(whole) == 2560);

    RANK_CHECK(one_step(z, net, 1) == DS_OK && one_step(z, net, 2) == DS_OK);
    int n = values(net, want, ROOM);
    for (int i = 0; i < 6; i++) {
        if (part[i]) RANK_CHECK(ds_copy(dsi_zero_shard(z, i), part[i]) == DS_OK);
        if (i % 2) RANK_CHECK(dsi_zero_release(z, i, true) == DS_OK);
    }
    RANK_CHECK(ds_optim_load(optim, kept) == DS_OK && dsi_zero_publish(z) == DS_OK);
    RANK_CHECK(values(net, got, ROOM) == n && memcmp(want, got, (size_t)n * sizeof(float)) != 0);
    RANK_CHECK(one_step(z, net, 1) == DS_OK && one_step(z, net, 2) == DS_OK);
    RANK_CHECK(values(net, got, ROOM) == n && !memcmp(want, got, (size_t)n * sizeof(float)));

    ds_state_free(kept);
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
        for (int k = 0; k < 3; k++)
            if (run_ranks(ranks_of(k), there_and_back, &stage) != DS_OK)
                fail_msg("stage %d, %d ranks: %s", stage, ranks_of(k), ds_error());
}

/* ---- memory, and disks in trouble ------------------------------------------------------------------------- */

static void memory_is_that_of_buffers(void **state)
{
    Run *run = runs[0];
    (void)state;
    *run = (Run){.o = {.files = {.nvme_path = folder, .buffer_count = 2}}, .steps = 1};
    run->o.files.buffer_size = 100;
    run_on(1, run);
    CHECK(run->bytes.optimizer < 2 * (3 * 4096 + 4096) + 200);
    CHECK(run->bytes.file >= 12 * run->n && run->bytes.file % 4096 == 0);
    dsi_estimate_sizes s = {.ranks = 1, .moments = 2, .params = run->n};
    CHECK_INT(dsi_estimate_sizes_only(&run->o, &s).optimizer, run->bytes.optimizer);
}

static void nothing_is_left(void **state)
{
    (void)state;
    DIR *d = opendir(folder);
    for (struct dirent *e; (e = readdir(d));) CHECK(e->d_name[0] == '.');
    closedir(d);
}

static void disks_in_trouble(void **state)
{
    Run *run = runs[0];
    (void)state;
    *run = (Run){.o = {.stage = 1, .files = {.nvme_path = "/no/such/disk"}}, .steps = 1};
    CHECK_INT(run_ranks(2, train, run), DS_ECOMM);
    CHECK_ERROR("offload_optimizer: there is no folder /no/such/disk: make it, or name another");
    *run = (Run){.o = {.stage = 3, .param_files = {.nvme_path = folder}}, .steps = 1};
    run->o.param_files.buffer_size = 100;
    CHECK_INT(run_ranks(2, train, run), DS_ECOMM);
    CHECK_ERROR(
        "offload_param: fc2.weight has 128 elements on each rank, but buffer_size is 100: set it");
    *run = (Run){.o = {.stage = 1}, .steps = 1};
    if (!access("/dev/full", F_OK)) {
        run->o.files.nvme_path = "/dev/full"; /* no folder at all */
        CHECK_INT(run_ranks(1, train, run), DS_EIO);
        CHECK_ERROR("there is no folder /dev/full");
    }
}

int main(void)
{
    runs[0] = calloc(1, sizeof(Run)), runs[1] = calloc(1, sizeof(Run));
    /* a disk would make it slow, and no more */
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    folder = folder_make();
    if (!folder || !runs[0] || !runs[1]) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_stage_and_dtype),
                                       cmocka_unit_test(every_rule),
                                       cmocka_unit_test(threads_in_place_of_the_kernel),
                                       cmocka_unit_test(parameters_in_files),
                                       cmocka_unit_test(updates_in_backward),
                                       cmocka_unit_test(gathered_and_written),
                                       cmocka_unit_test(nothing_is_left),
                                       cmocka_unit_test(read_and_written_like_memory),
                                       cmocka_unit_test(memory_is_that_of_buffers),
                                       cmocka_unit_test(disks_in_trouble)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    free(runs[0]), free(runs[1]);
    return failed;
}
