/* tests/engine/load_bytes.c: how many bytes each rank reads of a checkpoint: a
 * share of the files once, for their check sums, and of the tensors its own
 * part alone, whatever ranks and stages there were.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "ranks.h"

#include "base/mapping.h"
#include "engine/checkpoint/load.h"

#include <glob.h>
#include <sys/stat.h>

#define IN    700
#define OUT   800
#define STATE (3 * sizeof(float) * (IN * OUT + OUT)) /* bytes of weights and two moments */
#define SMALL (96 << 10)                             /* of names and shapes, on each rank */
#define RANKS 4

typedef struct Job {
    const char *dir, *zero;
    int stage;
    bool save;
    int64_t read[RANKS], files[RANKS]; /* of each rank that loads */
} Job;

static ds_engine *engine_of(const Job *j)
{
    char text[300];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 12, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": "
             "0.01}}, \"zero_optimization\": {\"stage\": %d}}",
             j->stage);
    ds_seed(3);
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", IN, OUT);
    return ds_initialize(.model = m, .config = text);
}

static ds_status step(ds_engine *e)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_rand(DS_F32, ds_shape(12 / ds_comm_size(ds_world()), IN));
    ds_status status = ds_engine_backward(e, ds_mean(ds_engine_forward(e, x)));
    if (status == DS_OK) status = ds_engine_step(e);
    ds_scope_close(scope);
    return status;
}

/* How many files a rank opens, when the folder was verified. */
static ds_status count_files(const Job *j, const ds_engine *e, int rank, int ranks, int64_t *n)
{
    char folder[600];
    snprintf(folder, sizeof folder, "%s/global_step1", j->dir);
    const dsi_load_reader who = {rank, ranks, true, e};
    dsi_loaded l = {0};
    ds_status status = dsi_load_files(&l, folder, &who);
    *n = l.files.n;
    dsi_loaded_free(&l);
    return status;
}

static ds_status run(void *arg)
{
    Job *j = arg;
    int rank = ds_comm_rank(ds_world()), ranks = ds_comm_size(ds_world());
    ds_engine *e = engine_of(j);
    ds_status status = e ? DS_OK : ds_error_status();
    if (status == DS_OK && j->save) {
        status = step(e);
        if (status == DS_OK) status = ds_engine_save(e, j->dir);
    } else if (status == DS_OK) {
        int64_t before = dsi_bytes_read();
        status = ds_engine_load(e, j->dir);
        j->read[rank] = dsi_bytes_read() - before;
        if (status == DS_OK) status = count_files(j, e, rank, ranks, &j->files[rank]);
    }
    ds_engine_free(e);
    return status;
}

static void run_on(int ranks, Job *j)
{
    if (run_ranks(ranks, run, j) != DS_OK)
        fail_msg("stage %d on %d ranks: %s", j->stage, ranks, ds_error());
}

static int64_t bytes_of(const char *dir)
{
    char pattern[600];
    glob_t files = {0};
    struct stat s;
    int64_t n = 0;
    snprintf(pattern, sizeof pattern, "%s/global_step1/*.pt", dir);
    if (glob(pattern, 0, NULL, &files)) return 0;
    for (size_t i = 0; i < files.gl_pathc; i++)
        if (!stat(files.gl_pathv[i], &s)) n += s.st_size;
    globfree(&files);
    return n;
}

/* One save on `from` ranks, loaded on others in every stage. */
static void count(int from, int stage)
{
    Job saved = {.dir = folder_make(), .stage = stage, .save = true};
    run_on(from, &saved);
    int64_t all = bytes_of(saved.dir), shards = stage ? from : 0;
    for (int ranks = quick() ? from : 1; ranks <= RANKS; ranks += ranks)
        for (int to = 0; to <= 3; to += ranks == from ? 1 : 3) {
            Job j = {.dir = saved.dir, .stage = to};
            run_on(ranks, &j);
            /* in stage 0 each rank has all of the state */
            int64_t sum = 0, wanted = (int64_t)STATE * (to ? 1 : ranks);
            for (int r = 0; r < ranks; r++) sum += j.read[r];
            if (sum < all + wanted || sum > all + wanted + ranks * SMALL)
                fail_msg(
                    "%d ranks, stage %d, to %d, %d: %lld bytes are read: of %lld in the files, "
                    "%lld are state that is wanted",
                    from, stage, ranks, to, (long long)sum, (long long)all, (long long)wanted);
            /* beside the model's and its own states, the shards that contain
             * its part: parts are rounded up, so that a few elements may be in
             * one more; stage 3 cuts each unit, other stages all at once */
            bool same = ranks == from, likewise = (to == 3) == (stage == 3);
            int64_t most = !shards            ? 0
                           : !to || !likewise ? shards
                           : shards > ranks   ? shards / ranks
                                              : 1;
            for (int r = 0; r < ranks; r++) CHECK(j.files[r] <= 2 + most + !same);
        }
    folder_remove();
}

static void stage_0(void **state) { (void)state, count(2, 0); }
static void stage_1(void **state) { (void)state, count(4, 1); }
static void stage_2(void **state) { (void)state, count(2, 2); }
static void stage_3(void **state) { (void)state, count(4, 3); }

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stage_0), cmocka_unit_test(stage_1),
                                       cmocka_unit_test(stage_2), cmocka_unit_test(stage_3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
