/* tests/engine/node_local.c: checkpoint.use_node_local_storage. Hosts are
 * folders: ranks, which are threads, give the folder of their host. A host that
 * is lost is a folder that is removed. With any one host lost a load continues
 * to the bit. node_local_jobs.c has other jobs in the same folders;
 * node_local_kill.c kills saves and loads.
 * SPDX-License-Identifier: MIT */
#include "local_saves.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- one host is lost -------------------------------------------------------------------------------------- */

static void lose_each(int stage, const char *more)
{
    Job j = job(stage, more);
    hosts_make();
    run_job(4, train_and_save, &j);
    for (int h = 0; h < 3; h++) { /* the load before has made the copies again */
        host_lose(h);
        check_load(4, &j, "one host lost");
        CHECK(host_has(h, "latest") && host_has(h, "global_step3/manifest"));
    }
    folder_remove();
}

static void one_host(void **state)
{
    (void)state;
    for (int stage = 0; stage < 4; stage++) lose_each(stage, "\"checkpoint\": {" LOCAL "},");
}

static void one_host_async(void **state)
{
    (void)state;
    lose_each(2, "\"checkpoint\": {\"async\": true, " LOCAL "},");
}

/* The files of a host are its own ranks' and those of the host before. */
static void files(void **state)
{
    (void)state;
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    for (int h = 0; h < 3; h++)
        for (int r = 0; r < 4; r++) {
            char name[100];
            snprintf(name, sizeof name,
                     "global_step3/bf16_zero_pp_rank_%d_mp_rank_00_optim_states.pt", r);
            CHECK_INT(host_has(h, name), j.host[r] == h || (j.host[r] + 1) % 3 == h);
        }
    folder_remove();
}

/* ---- fewer hosts, more hosts -------------------------------------------------------------------------------- */

static void other_hosts(void **state)
{
    (void)state;
    static const int fewer[] = {0, 2};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    j.plan.plain = true;
    hosts_make();
    run_job(4, train_and_save, &j);
    host_lose(1);
    memcpy(j.host, fewer, sizeof fewer);
    check_load(2, &j, "2 ranks on 2 hosts");
    j.host[1] = 1;
    check_load(2, &j, "one of them empty");
    j.host[0] = 1;
    check_load(2, &j, "one host, which has all");
    j = job(2, j.plan.more);
    j.plan.plain = true;
    check_load(4, &j, "4 ranks again");
    folder_remove();
}

/* Ranks read shards of others, which their host had not. */
static void other_stages(void **state)
{
    (void)state;
    static const int stages[] = {3, 0, 1, 2};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    j.plan.plain = true;
    for (int i = 0; i < 4; i++) {
        hosts_make();
        j.plan.stage = 2;
        j.result = &saved;
        run_job(4, train_and_save, &j);
        host_lose(i % 3);
        j.plan.stage = stages[i];
        check_load(4, &j, "another stage");
        folder_remove();
    }
}

/* A host that was away has a `latest` of then, and the newest is whole nowhere. */
static void an_old_latest(void **state)
{
    (void)state;
    char away[900];
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    snprintf(away, sizeof away, "%s", host_path(2, "away"));
    CHECK(!rename(host_path(2, "latest"), away));
    j.steps = 4;
    run_job(4, train_and_save, &j);
    j.steps = 5, j.result = &loaded;
    run_job(4, train_and_save, &j);
    CHECK(!rename(away, host_path(2, "latest")));
    for (int h = 0; h < 3; h++) unlink(host_path(h, "global_step5" SHARD_2));
    check_load(4, &j, "the newest that is whole");
    folder_remove();
}

/* ---- damage, and what is not there ---------------------------------------------------------------------------- */

static void damage(const char *path)
{
    char byte;
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && pread(fd, &byte, 1, 2000) == 1);
    byte ^= 1;
    CHECK(pwrite(fd, &byte, 1, 2000) == 1 && close(fd) == 0);
}

static void damaged(void **state)
{
    (void)state;
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    damage(host_path(1, "global_step3" SHARD_2));
    CHECK(unlink(host_path(0, "global_step3/mp_rank_00_model_states.pt")) == 0);
    check_load(4, &j, "damaged and missing files");
    damage(host_path(2, "global_step3" SHARD_2)); /* that on host 1 is whole again */
    check_load(4, &j, "the other one damaged");
    folder_remove();
}

static void two_hosts(void **state)
{
    (void)state;
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    host_lose(1);
    host_lose(2);
    CHECK(run_ranks(4, load, &j) == DS_EFORMAT);
    CHECK(strstr(ds_error(), "global_step3 is not whole: "));
    CHECK_ERROR("written by 4 ranks, is on none of these 3 hosts");
    host_lose(0);
    CHECK(run_ranks(4, load, &j) != DS_OK);
    CHECK_ERROR("has no checkpoint");
    j.tag = "best";
    CHECK(run_ranks(4, load, &j) != DS_OK);
    CHECK_ERROR("there is no folder");
    folder_remove();
}

/* Hosts were killed between their renames: one has the new version and the old
 * one as .old-a, the others are before that. */
static void between_renames(void **state)
{
    (void)state;
    char later[300], a[300], old[300];
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    j.tag = "a";
    run_job(4, train_and_save, &j);
    snprintf(a, sizeof a, "%s/a", host_dir[0]);
    snprintf(old, sizeof old, "%s/.old-a", host_dir[0]);
    snprintf(later, sizeof later, "%s.later", host_dir[0]);
    for (int h = 1; h < 3; h++) {
        CHECK(!mkdir(host_path(h, "keep"), 0777)); /* a folder of somebody else */
        char from[900], to[900];
        snprintf(from, sizeof from, "%s/a", host_dir[h]);
        snprintf(to, sizeof to, "%s/keep/a", host_dir[h]);
        CHECK(rename(from, to) == 0);
    }
    CHECK(rename(a, later) == 0);
    Job second = j;
    second.steps = 4;
    second.result = &loaded;
    run_job(4, train_and_save, &second); /* the same serial: the folders were empty */
    run_job(4, train_and_save, &second); /* a later one */
    CHECK(rename(later, old) == 0);
    for (int h = 1; h < 3; h++) {
        char from[900], to[900];
        snprintf(from, sizeof from, "%s/keep/a", host_dir[h]);
        snprintf(to, sizeof to, "%s/a", host_dir[h]);
        CHECK(nftw(to, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0 && rename(from, to) == 0);
    }
    j.tag = NULL;
    check_load(4, &j, "between renames");
    CHECK(host_has(0, ".old-a") && host_has(0, "a/manifest"));
    check_load(4, &j, "between renames, again");
    j.tag = "b", j.result = &saved;
    run_job(4, train_and_save, &j);
    CHECK(!host_has(0, ".old-a"));
    folder_remove();
}

/* All hosts have published a version of a tag when they are killed, and only
 * host 0 comes back, which has the one before, too: it loads that one, and what
 * the others would make whole stays until there is something newer. */
static void few_hosts(void **state)
{
    (void)state;
    char aside[300], old[300];
    Job j = job(2, "\"checkpoint\": {" LOCAL "},"), alone = j;
    static RunResult before;
    hosts_make();
    j.tag = "a", j.plan.plain = true;
    alone.host[0] = 0, alone.tag = "a", alone.plan.plain = true, alone.result = &before;
    run_job(1, train_and_save, &alone);
    snprintf(aside, sizeof aside, "%s.aside", host_dir[0]);
    snprintf(old, sizeof old, "%s/.old-a", host_dir[0]);
    copy_folder(host_path(0, "a"), aside);
    j.steps = 4;
    run_job(4, train_and_save, &j);
    CHECK(rename(aside, old) == 0);

    alone.tag = NULL, alone.result = &loaded;
    for (int again = 0; again < 2; again++) {
        run_job(1, load, &alone);
        CHECK(same(&before, &loaded) && host_has(0, ".old-a/manifest"));
    }
    host_lose(1);
    j.tag = NULL;
    check_load(4, &j, "with the hosts that were away");
    CHECK(!host_has(0, ".old-a"));
    folder_remove();
}

/* All hosts were killed in a save of the same tag, before or after their first
 * rename. */
static void between_two_renames(void **state)
{
    (void)state;
    char a[900], old[900];
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    j.tag = "a";
    run_job(4, train_and_save, &j);
    for (int h = 0; h < 2; h++) {
        snprintf(a, sizeof a, "%s/a", host_dir[h]);
        snprintf(old, sizeof old, "%s/.old-a", host_dir[h]);
        CHECK(rename(a, old) == 0);
    }
    host_lose(2);
    j.tag = NULL;
    check_load(4, &j, "between two renames");
    folder_remove();
}

/* A host that has missed saves has older checkpoints, and one that is empty
 * none. */
static void keep_last(void **state)
{
    (void)state;
    static const int fewer[] = {0, 1, 2}, two[] = {0, 1, 1};
    Job j = job(1, "\"checkpoint\": {\"keep_last\": 1, " LOCAL "},");
    j.plan.plain = true;
    hosts_make();
    memcpy(j.host, fewer, sizeof fewer);
    run_job(3, train_and_save, &j);
    memcpy(j.host, two, sizeof two);
    j.steps = 4;
    run_job(3, train_and_save, &j);
    CHECK(host_has(2, "global_step3") && !host_has(1, "global_step3"));
    memcpy(j.host, fewer, sizeof fewer);
    host_lose(1);
    check_load(3, &j, "a host with an older one");
    j.steps = 5;
    j.result = &saved;
    run_job(3, train_and_save, &j);
    for (int h = 0; h < 3; h++)
        CHECK(host_has(h, "global_step5") && !host_has(h, "global_step4") &&
              !host_has(h, "global_step3"));
    check_load(3, &j, "the newest");
    folder_remove();
}

/* Host 0 is away, and comes back with a checkpoint of the same tag and serial,
 * but of other ranks. */
static void same_serial(void **state)
{
    (void)state;
    static const int away[] = {1, 2};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    j.plan.plain = true;
    j.result = &loaded;
    run_job(4, train_and_save, &j);
    host_lose(1);
    host_lose(2);
    memcpy(j.host, away, sizeof away);
    j.result = &saved;
    run_job(2, train_and_save, &j);
    j = job(2, j.plan.more);
    j.plan.plain = true;
    check_load(4, &j, "the same serial");
    folder_remove();
}

/* ---- one folder for all ------------------------------------------------------------------------------------- */

static void shared(void **state)
{
    (void)state;
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    memset(j.host, 0, sizeof j.host);
    hosts_make();
    run_job(4, train_and_save, &j);
    check_load(4, &j, "all share one folder");
    j.plan.more = NULL;
    check_load(4, &j, "without the key");
    j.result = &saved;
    run_job(4, train_and_save, &j);
    j.plan.more = "\"checkpoint\": {" LOCAL "},";
    check_load(4, &j, "saved without the key");
    run_job(1, train_and_save, &j);
    j.host[0] = 1;
    j.result = &saved;
    run_job(1, train_and_save, &j);
    check_load(1, &j, "one rank");
    folder_remove();
}

int main(void)
{
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_host),        cmocka_unit_test(one_host_async),
        cmocka_unit_test(files),           cmocka_unit_test(other_hosts),
        cmocka_unit_test(other_stages),    cmocka_unit_test(an_old_latest),
        cmocka_unit_test(damaged),         cmocka_unit_test(two_hosts),
        cmocka_unit_test(between_renames), cmocka_unit_test(between_two_renames),
        cmocka_unit_test(few_hosts),       cmocka_unit_test(keep_last),
        cmocka_unit_test(same_serial),     cmocka_unit_test(shared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
