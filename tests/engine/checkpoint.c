/* tests/engine/checkpoint.c: what a folder of checkpoints holds and keeps;
 * damaged ones; what is refused, by file and tensor; on which ranks.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "run.h"

#include "engine/checkpoint/folder.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static RunPlan plan(void)
{
    return (RunPlan){.accumulate = 1, .dtype = "fp32", .plain = true, .seed = 1};
}

static ds_engine *engine_of(RunPlan p)
{
    ds_engine *e = run_engine(&p);
    CHECK(e);
    return e;
}

static void steps(ds_engine *e, int64_t until)
{
    RunResult r;
    CHECK(run_steps(e, until, &r) == DS_OK);
}

static double weight(ds_engine *e)
{
    ds_state *s = ds_engine_state(e, true);
    double x = ds_item(ds_sum(ds_state_get(s, "fc2.weight")));
    ds_state_free(s);
    return x;
}

/* An engine after `n` steps, saved at each of them. */
static ds_engine *saved(RunPlan p, int64_t n)
{
    ds_engine *e = engine_of(p);
    for (int64_t i = 1; i <= n; i++) {
        steps(e, i);
        CHECK(ds_engine_save(e, folder_path("")) == DS_OK);
    }
    return e;
}

static bool there(const char *name)
{
    struct stat s;
    return stat(folder_path(name), &s) == 0;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(folder_path(name), "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static int names_in(const char *folder)
{
    DIR *d = opendir(folder);
    int n = -2; /* . and .. */
    CHECK(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

static void names(void **state)
{
    (void)state;
    folder_make();
    ds_engine *e = saved(plan(), 1);
    CHECK(there("latest") && there("global_step1/mp_rank_00_model_states.pt") &&
          there("global_step1/manifest") && there("global_step1/rank_0_states.pt"));
    char *tag = dsi_folder_latest(folder_path(""), DSI_LATEST);
    assert_string_equal(tag, "global_step1");
    free(tag);
    CHECK(ds_engine_save(e, folder_path(""), .tag = "best", .no_latest = true) == DS_OK);
    tag = dsi_folder_latest(folder_path(""), DSI_LATEST);
    assert_string_equal(tag, "global_step1");
    free(tag);
    CHECK_INT(names_in(folder_path("")), 3);
    ds_engine_free(e);
    folder_remove();
}

static void keep_last(void **state)
{
    (void)state;
    RunPlan p = plan();
    p.more = "\"checkpoint\": {\"keep_last\": 2},";
    folder_make();
    CHECK(mkdir(folder_path("mine"), 0777) == 0);
    write_text("mine/model.pt", "not ours");
    ds_engine *e = saved(p, 1);
    CHECK(ds_engine_save(e, folder_path(""), .tag = "named") == DS_OK);
    write_text("latest", "global_step1"); /* by hand: it stays */
    steps(e, 2);
    CHECK(ds_engine_save(e, folder_path(""), .no_latest = true) == DS_OK);
    CHECK(ds_engine_save(e, folder_path(""), .tag = "a", .no_latest = true) == DS_OK);
    CHECK(there("mine/model.pt") && there("global_step1") && !there("named") &&
          there("global_step2") && there("a"));
    ds_engine_free(e);
    folder_remove();
}

/* The files of a killed save are removed by the next one; the checkpoint that
 * it was to replace comes back. */
static void leftovers(void **state)
{
    (void)state;
    folder_make();
    ds_engine *e = saved(plan(), 2);
    CHECK(mkdir(folder_path(".saving-global_step9"), 0777) == 0 &&
          mkdir(folder_path(".removing-x"), 0777) == 0);
    write_text(".saving-global_step9/mp_rank_00_model_states.pt", "half");
    write_text("latest.tmp.2000000000", "x");
    CHECK(rename(folder_path("global_step2"), folder_path(".old-global_step2")) == 0);
    ds_engine *other = engine_of(plan());
    CHECK(ds_engine_load(other, folder_path("")) == DS_OK);
    CHECK_INT(ds_engine_global_steps(other), 2);
    steps(e, 3);
    CHECK(ds_engine_save(e, folder_path("")) == DS_OK);
    CHECK_INT(names_in(folder_path("")), 4); /* three, and latest */
    CHECK(there("global_step2/manifest"));
    ds_engine_free(e);
    ds_engine_free(other);
    folder_remove();
}

static void refused_places(void **state)
{
    (void)state;
    static const char *const tags[] = {"", ".", "..", ".x", "a/b", "latest", "a\nb"};
    folder_make();
    ds_engine *e = saved(plan(), 1);
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        CHECK(ds_engine_save(e, folder_path(""), .tag = tags[i]) == DS_EINVAL);
        CHECK_ERROR("the tag is");
    }
    CHECK(mkdir(folder_path("mine"), 0777) == 0);
    CHECK(ds_engine_save(e, folder_path(""), .tag = "mine") == DS_EINVAL);
    CHECK_ERROR("was not written by this library");
    write_text("file", "");
    CHECK(ds_engine_save(e, folder_path("file/x")) == DS_EIO);
    CHECK_ERROR("engine_save: mkdir");
    CHECK(ds_engine_save(e, NULL) == DS_EINVAL);
    CHECK_ERROR("no folder");
    CHECK(ds_engine_load(e, folder_path("nowhere")) == DS_EIO);
    CHECK_ERROR("has no checkpoint");
    CHECK(ds_engine_load(e, folder_path(""), .tag = "global_step7") != DS_OK);
    CHECK_ERROR("there is no folder");
    CHECK(ds_engine_save(NULL, "x") == DS_EINVAL && ds_engine_load(NULL, "x") == DS_EINVAL);
    ds_error_clear();
    ds_engine_free(e);
    folder_remove();
}

/* A disk that is full: files of more than 8 KiB cannot be written. */
static void full_disk(void **state)
{
    (void)state;
    struct rlimit was, small;
    folder_make();
    ds_engine *e = saved(plan(), 1);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = was, small.rlim_cur = 8192;
    steps(e, 2);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    ds_status status = ds_engine_save(e, folder_path(""));
    CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    CHECK_INT(status, DS_EIO);
    CHECK_ERROR("mp_rank_00_model_states.pt");
    CHECK_INT(names_in(folder_path("")), 2);
    ds_engine *other = engine_of(plan());
    CHECK(ds_engine_load(other, folder_path("")) == DS_OK);
    CHECK_INT(ds_engine_global_steps(other), 1);
    CHECK(ds_engine_save(e, folder_path("")) == DS_OK);
    ds_engine_free(e);
    ds_engine_free(other);
    folder_remove();
}

/* ---- damaged ones -------------------------------------------------------------------------------------- */

static void flip(const char *name, long at)
{
    FILE *f = fopen(folder_path(name), "r+b");
    CHECK(f && fseek(f, at, SEEK_SET) == 0);
    int c = fgetc(f);
    CHECK(c != EOF && fseek(f, at, SEEK_SET) == 0 && fputc(c ^ 1, f) != EOF && fclose(f) == 0);
}

/* Loads the newest whole one, which is of step 1; the one of step 2 is refused
 * by name. */
static void only_the_first_loads(const char *why)
{
    ds_engine *e = engine_of(plan());
    CHECK(ds_engine_load(e, folder_path("")) == DS_OK);
    CHECK_INT(ds_engine_global_steps(e), 1);
    CHECK(strstr(ds_engine_loaded(e), "global_step1"));
    double before = weight(e);
    CHECK(ds_engine_load(e, folder_path(""), .tag = "global_step2") != DS_OK);
    CHECK_ERROR(why);
    CHECK_CLOSE(weight(e), before, 0);
    ds_engine_free(e);
    folder_remove();
}

static void two(void)
{
    folder_make();
    ds_engine_free(saved(plan(), 2));
}

static void damaged(void **state)
{
    (void)state;
    two(), flip("global_step2/mp_rank_00_model_states.pt", 5000);
    only_the_first_loads("mp_rank_00_model_states.pt is damaged: its check sum");
    two(), CHECK(truncate(folder_path("global_step2/rank_0_states.pt"), 100) == 0);
    only_the_first_loads("rank_0_states.pt has 100 bytes");
    two(), CHECK(unlink(folder_path("global_step2/rank_0_states.pt")) == 0);
    only_the_first_loads("rank_0_states.pt: No such file");
    two(), CHECK(unlink(folder_path("global_step2/manifest")) == 0);
    only_the_first_loads("manifest is missing");
    two(), flip("global_step2/manifest", 40);
    only_the_first_loads("manifest is damaged");
    two(), CHECK(rename(folder_path("global_step2"), folder_path("elsewhere")) == 0);
    CHECK(unlink(folder_path("elsewhere/manifest")) == 0);
    only_the_first_loads("there is no folder");
}

static void latest_is_damaged(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "../x", "nothing\n", "global_step2\n\n \r\n", "a\nb"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        two(), write_text("latest", texts[i]);
        ds_engine *e = engine_of(plan());
        CHECK(ds_engine_load(e, folder_path("")) == DS_OK);
        CHECK_INT(ds_engine_global_steps(e), 2);
        CHECK(!ds_error());
        ds_engine_free(e);
        folder_remove();
    }
}

/* No checkpoint at all is the only thing that .if_any allows. */
static void if_any(void **state)
{
    (void)state;
    folder_make();
    ds_engine *e = engine_of(plan());
    CHECK(ds_engine_load(e, folder_path("none"), .if_any = true) == DS_OK);
    CHECK(ds_engine_load(e, folder_path(""), .if_any = true) == DS_OK);
    CHECK(!ds_engine_loaded(e) && !ds_error());
    CHECK_INT(ds_engine_global_steps(e), 0);
    write_text("latest", "global_step2");
    CHECK(ds_engine_load(e, folder_path(""), .if_any = true) != DS_OK);
    CHECK_ERROR("there is no folder");
    ds_engine_free(e);
    folder_remove();
    two();
    e = engine_of(plan());
    CHECK(ds_engine_load(e, folder_path(""), .if_any = true) == DS_OK);
    CHECK_INT(ds_engine_global_steps(e), 2);
    ds_engine_free(e);
    folder_remove();
}

/* ---- parts of one ---------------------------------------------------------------------------------------- */

static void parts_only(void **state)
{
    (void)state;
    folder_make();
    ds_engine *e = saved(plan(), 3), *other = engine_of(plan());
    double x = weight(e);
    CHECK(ds_engine_load(other, folder_path(""), .module_only = true) == DS_OK);
    CHECK_CLOSE(weight(other), x, 0);
    CHECK_INT(ds_engine_global_steps(other), 0);
    CHECK(ds_engine_load(other, folder_path(""), .no_optimizer = true, .no_schedule = true) ==
          DS_OK);
    CHECK_INT(ds_engine_global_steps(other), 3);
    CHECK_CLOSE(ds_engine_lr(other), 0, 0); /* the warm-up's first */
    CHECK(ds_engine_load(other, folder_path("")) == DS_OK);
    CHECK_CLOSE(ds_engine_lr(other), ds_engine_lr(e), 0);
    ds_engine_free(e);
    ds_engine_free(other);
    folder_remove();
}

/* ---- what the program puts in -------------------------------------------------------------------------- */

static void client_state(void **state)
{
    (void)state;
    folder_make();
    ds_engine *e = engine_of(plan());
    ds_value *in = ds_value_dict(), *list = ds_value_list(), *out = NULL, *inner = ds_value_dict();
    ds_value_append(list, ds_value_int(7));
    ds_value_append(list, ds_value_string("text"));
    ds_value_set_int(inner, 4, ds_value_tensor(ds_arange(DS_F32, 0, 5, 1)));
    ds_value_set(in, "epoch", ds_value_int(3));
    ds_value_set(in, "list", list);
    ds_value_set(in, "inner", inner);
    CHECK(ds_engine_save(e, folder_path(""), .client_state = in) == DS_OK);
    CHECK(ds_engine_load(e, folder_path(""), .client_state = &out) == DS_OK);
    int64_t epoch, seven;
    const char *text;
    ds_tensor *x;
    CHECK_INT(ds_value_len(out), 3);
    CHECK(ds_value_read_int(out, "epoch", &epoch) == DS_OK && epoch == 3);
    CHECK(ds_value_read_int(out, "list/0", &seven) == DS_OK && seven == 7);
    CHECK(ds_value_read_string(out, "list/1", &text) == DS_OK && !strcmp(text, "text"));
    CHECK(ds_value_read_tensor(out, "inner/4", &x) == DS_OK && ds_item(ds_sum(x)) == 10);
    ds_value_set(in, "module", ds_value_int(1));
    CHECK(ds_engine_save(e, folder_path(""), .client_state = in) == DS_EINVAL);
    CHECK_ERROR("client_state has the key \"module\"");
    CHECK(ds_engine_save(e, folder_path(""), .client_state = list) == DS_EINVAL);
    CHECK_ERROR("client_state is no dict, but list");
    ds_value_free(in);
    ds_value_free(out);
    ds_engine_free(e);
    folder_remove();
}

/* ---- wrong moments ------------------------------------------------------------------------------------- */

static void between_micro_steps(void **state)
{
    (void)state;
    RunPlan p = plan();
    ds_batch b;
    double sum = 0;
    p.accumulate = 2;
    folder_make();
    ds_engine *e = engine_of(p);
    CHECK(ds_loader_next(ds_engine_loader(e), &b) && run_micro(e, &b, &sum) == DS_OK);
    CHECK(ds_engine_save(e, folder_path("")) == DS_ESTATE);
    CHECK_ERROR("micro step 1 of 2");
    CHECK(ds_engine_load(e, folder_path("")) == DS_ESTATE);
    CHECK_ERROR("between the micro steps");
    CHECK(ds_engine_backward(e, ds_mean(ds_engine_forward(e, b.x))) == DS_OK);
    CHECK(ds_engine_save(e, folder_path("")) == DS_ESTATE);
    CHECK_ERROR("between ds_engine_backward and ds_engine_step");
    CHECK(ds_engine_step(e) == DS_OK && ds_engine_save(e, folder_path("")) == DS_OK);
    ds_engine_free(e);
    folder_remove();
}

static void averages_in_place(void **state)
{
    (void)state;
    RunPlan p = plan();
    p.plain = false;
    folder_make();
    ds_engine *e = engine_of(p);
    steps(e, 1);
    CHECK(ds_engine_swap_ema(e) == DS_OK);
    CHECK(ds_engine_save(e, folder_path("")) == DS_ESTATE);
    CHECK_ERROR("averaged ones");
    CHECK(ds_engine_load(e, folder_path("")) == DS_ESTATE);
    CHECK_ERROR("averaged ones");
    ds_engine_free(e);
    folder_remove();
}

/* ---- several ranks ------------------------------------------------------------------------------------- */

static const char *validation;

/* Ranks with tags of their own. */
static ds_status save_with_tags(void *arg)
{
    RunPlan p = plan();
    char tag[20], more[80];
    int rank = ds_comm_rank(ds_world());
    snprintf(tag, sizeof tag, "rank%d", rank);
    snprintf(more, sizeof more, "\"checkpoint\": {\"tag_validation\": \"%s\"},", validation);
    p.more = more;
    ds_engine *e = run_engine(&p);
    ds_status status = ds_engine_save(e, arg, .tag = tag);
    bool fails = !strcmp(validation, "FAIL");
    RANK_CHECK((status == DS_OK) == !fails);
    if (fails) RANK_CHECK(strstr(ds_error(), "not the same on all ranks"));
    ds_error_clear();
    ds_engine_free(e);
    return DS_OK;
}

static void tags_of_ranks(void **state)
{
    (void)state;
    static const char *const all[] = {"IGNORE", "Warn", "FAIL"};
    for (int i = 0; i < 3; i++) {
        char dir[600];
        snprintf(dir, sizeof dir, "%s", folder_make());
        validation = i == 1 ? "WARN" : all[i];
        CHECK_INT(run_ranks(2, save_with_tags, dir), DS_OK);
        CHECK(there("rank0/manifest") == (i < 2) && !there("rank1"));
        folder_remove();
    }
}

/* One rank cannot make its values: all know, nothing is left. Stage 3: each
 * rank has a client state. */
static ds_status one_fails(void *arg)
{
    RunPlan p = plan();
    p.stage = 3;
    ds_engine *e = run_engine(&p);
    ds_value *client = ds_value_dict();
    if (ds_comm_rank(ds_world()) == 1) ds_value_set(client, "optimizer", ds_value_int(1));
    ds_status status = ds_engine_save(e, arg, .client_state = client);
    RANK_CHECK(status == DS_EINVAL && strstr(ds_error(), "engine_save: client_state has the key") &&
               strstr(ds_error(), "(rank 1)"));
    ds_error_clear();
    RANK_CHECK(ds_engine_save(e, arg) == DS_OK);
    ds_value_free(client);
    ds_engine_free(e);
    return DS_OK;
}

static void a_failure_of_one(void **state)
{
    (void)state;
    char dir[600];
    snprintf(dir, sizeof dir, "%s", folder_make());
    CHECK_INT(run_ranks(3, one_fails, dir), DS_OK);
    CHECK_INT(names_in(dir), 2);
    folder_remove();
}

static ds_status save_on_ranks(void *arg)
{
    RunPlan p = plan();
    p.stage = 2;
    ds_engine *e = run_engine(&p);
    ds_status status = ds_engine_save(e, arg);
    ds_engine_free(e);
    return status;
}

static ds_status load_on_ranks(void *arg)
{
    RunPlan p = plan();
    p.stage = 2;
    ds_engine *e = run_engine(&p);
    ds_status status = ds_engine_load(e, arg);
    RANK_CHECK(status == DS_EIO && strstr(ds_error(), "zero_pp_rank_1_mp_rank_00_optim_states.pt"));
    ds_error_clear();
    ds_engine_free(e);
    return DS_OK;
}

static void missing_shard(void **state)
{
    (void)state;
    char dir[600];
    snprintf(dir, sizeof dir, "%s", folder_make());
    CHECK_INT(run_ranks(3, save_on_ranks, dir), DS_OK);
    CHECK(unlink(folder_path("global_step0/zero_pp_rank_1_mp_rank_00_optim_states.pt")) == 0);
    CHECK_INT(run_ranks(2, load_on_ranks, dir), DS_OK);
    folder_remove();
}

/* Of five saves the first is made, and the one that is required; others come
 * too
 * early. */
static ds_status save_each_step(void *dir)
{
    RunPlan p = plan();
    RunResult r;
    bool left_out;
    p.more = "\"checkpoint\": {\"async\": true, \"overhead_limit\": 1e-9},";
    ds_engine *e = run_engine(&p);
    for (int i = 1; i <= 5; i++) {
        RANK_CHECK(run_steps(e, i, &r) == DS_OK);
        RANK_CHECK(ds_engine_save(e, dir, .left_out = &left_out) == DS_OK);
        RANK_CHECK(left_out == (i > 1));
    }
    RANK_CHECK(ds_engine_save(e, dir, .required = true, .left_out = &left_out) == DS_OK);
    RANK_CHECK(!left_out);
    RANK_CHECK(ds_engine_save_wait(e) == DS_OK && run_steps(e, 6, &r) == DS_OK);
    RANK_CHECK(ds_engine_save(e, dir, .left_out = &left_out) == DS_OK && left_out);
    ds_engine_free(e); /* waits */
    return DS_OK;
}

static void overhead_limit(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        char dir[600];
        snprintf(dir, sizeof dir, "%s", folder_make());
        CHECK_INT(run_ranks(ranks, save_each_step, dir), DS_OK);
        CHECK(there("global_step1") && there("global_step5") && !there("global_step2") &&
              !there("global_step3") && !there("global_step4") && !there("global_step6"));
        folder_remove();
    }
}

/* ---- the model for inference --------------------------------------------------------------------------- */

static void sixteen_bits(void **state)
{
    (void)state;
    RunPlan p = plan();
    p.dtype = "bf16", p.stage = 3;
    folder_make();
    ds_engine *e = engine_of(p);
    CHECK(ds_engine_save_16bit_model(e, folder_path(""), NULL) == DS_ESTATE);
    CHECK_ERROR("stage3_gather_16bit_weights_on_model_save is false");
    ds_engine_free(e);
    p.stage = 1;
    e = engine_of(p);
    CHECK(ds_engine_save_16bit_model(e, folder_path("out"), NULL) == DS_OK);
    CHECK(ds_engine_save_16bit_model(e, folder_path("out"), "model.safetensors") == DS_OK);
    ds_state *s = ds_load(folder_path("out/pytorch_model.bin")),
             *t = ds_load(folder_path("out/model.safetensors"));
    CHECK(s && t && ds_state_len(s) == ds_state_len(t));
    CHECK_INT(ds_dtype_of(ds_state_get(s, "fc1.weight")), DS_BF16);
    ds_state_free(s), ds_state_free(t);
    ds_engine_free(e);
    folder_remove();
}

int main(void)
{
    if (!access("/dev/shm", W_OK))
        setenv("TMPDIR", "/dev/shm", 0); /* it does not wait for a disk */
    const struct CMUnitTest tests[] = {cmocka_unit_test(names),
                                       cmocka_unit_test(keep_last),
                                       cmocka_unit_test(overhead_limit),
                                       cmocka_unit_test(leftovers),
                                       cmocka_unit_test(refused_places),
                                       cmocka_unit_test(full_disk),
                                       cmocka_unit_test(damaged),
                                       cmocka_unit_test(latest_is_damaged),
                                       cmocka_unit_test(if_any),
                                       cmocka_unit_test(parts_only),
                                       cmocka_unit_test(client_state),
                                       cmocka_unit_test(between_micro_steps),
                                       cmocka_unit_test(averages_in_place),
                                       cmocka_unit_test(tags_of_ranks),
                                       cmocka_unit_test(a_failure_of_one),
                                       cmocka_unit_test(missing_shard),
                                       cmocka_unit_test(sixteen_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
