/* tests/engine/node_local_jobs.c: with checkpoint.use_node_local_storage, other
 * jobs use the folders of the hosts: they save, load or have been killed. Their
 * locks, and what they leave behind.
 * SPDX-License-Identifier: MIT */
#include "local_saves.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* As another job has it: LOCK_EX to save, LOCK_SH to load. */
static void hosts_lock(int how, int *fd)
{
    for (int h = 0; h < MOST_HOSTS; h++) {
        fd[h] = open(host_dir[h], O_RDONLY | O_DIRECTORY);
        CHECK(fd[h] >= 0 && flock(fd[h], how | LOCK_NB) == 0);
    }
}

static void hosts_unlock(const int *fd)
{
    for (int h = 0; h < MOST_HOSTS; h++) close(fd[h]);
}

/* On host 1: what marks a save that lives; without the lock, one that was
 * killed. */
static int save_begins(void)
{
    CHECK(mkdir(host_path(1, ".saving-theirs"), 0777) == 0);
    int fd = open(host_path(1, ".saving-theirs"), O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
    return fd;
}

static void other_jobs(void **state)
{
    (void)state;
    int fd[MOST_HOSTS];
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    hosts_lock(LOCK_SH, fd);
    host_lose(1); /* the lock of this one is gone with it */
    check_load(4, &j, "beside a load");
    hosts_unlock(fd);
    hosts_lock(LOCK_EX, fd);
    int saving = save_begins();
    check_load(4, &j, "beside a save");
    CHECK(unlink(host_path(1, "global_step3" SHARD_2)) == 0);
    CHECK(run_ranks(4, load, &j) == DS_EFORMAT);
    CHECK_ERROR("another job is saving to");
    CHECK(run_ranks(4, train_and_save, &j) == DS_ESTATE);
    CHECK_ERROR("another job is saving to");
    close(saving);
    hosts_unlock(fd);
    check_load(4, &j, "after the save");
    folder_remove();
}

typedef struct OtherJob {
    int fd[MOST_HOSTS];
    useconds_t takes;
    pthread_t thread;
} OtherJob;

static void *other_job_ends(void *arg)
{
    OtherJob *o = arg;
    usleep(o->takes);
    hosts_unlock(o->fd);
    return NULL;
}

static void other_job_begins(OtherJob *o, int how)
{
    hosts_lock(how, o->fd);
    CHECK(pthread_create(&o->thread, NULL, other_job_ends, o) == 0);
}

static void save_waits_for_a_load(void **state)
{
    (void)state;
    OtherJob o = {.takes = 100000};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    other_job_begins(&o, LOCK_SH);
    j.steps = 4;
    run_job(4, train_and_save, &j);
    pthread_join(o.thread, NULL);
    check_load(4, &j, "saved after a load");
    folder_remove();
}

/* It has the lock of a save, for longer than a save is waited for. The
 * .saving-* is of a save that was killed. */
static void load_waits_for_a_recovery(void **state)
{
    (void)state;
    OtherJob o = {.takes = 1500000};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    CHECK(unlink(host_path(1, "global_step3" SHARD_2)) == 0);
    close(save_begins());
    other_job_begins(&o, LOCK_EX);
    check_load(4, &j, "beside a recovery");
    pthread_join(o.thread, NULL);
    folder_remove();
}

static void save_waits_for_a_recovery(void **state)
{
    (void)state;
    OtherJob o = {.takes = 1500000};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    close(save_begins());
    other_job_begins(&o, LOCK_EX);
    run_job(4, train_and_save, &j);
    pthread_join(o.thread, NULL);
    check_load(4, &j, "saved beside a recovery");
    folder_remove();
}

static void *other_job_takes_another_host(void *arg)
{
    OtherJob *o = arg;
    usleep(o->takes);
    CHECK(flock(o->fd[1], LOCK_EX) == 0);
    hosts_unlock(o->fd);
    return NULL;
}

/* Another job has the lock of host 0, and waits for that of host 1: a rank does
 * not keep one while others of its job wait. */
static void two_jobs_begin(void **state)
{
    (void)state;
    OtherJob o = {.takes = 200000};
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    setenv("DS_SAVE_TIMEOUT", "3", 1);
    hosts_lock(LOCK_EX, o.fd);
    CHECK(flock(o.fd[1], LOCK_UN) == 0);
    CHECK(pthread_create(&o.thread, NULL, other_job_takes_another_host, &o) == 0);
    run_job(4, train_and_save, &j);
    pthread_join(o.thread, NULL);
    unsetenv("DS_SAVE_TIMEOUT");
    folder_remove();
}

/* The folders that other hosts have begun are removed. */
static void one_host_cannot_begin(void **state)
{
    (void)state;
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    CHECK(mkdir(host_path(1, "theirs"), 0777) == 0);
    j.tag = "theirs";
    CHECK(run_ranks(4, train_and_save, &j) != DS_OK);
    CHECK_ERROR("theirs is there already");
    CHECK(!host_has(0, ".saving-theirs") && !host_has(1, ".saving-theirs"));
    folder_remove();
}

static void touch(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0666);
    CHECK(fd >= 0 && close(fd) == 0);
}

/* A process that has ended. */
static pid_t dead_process(void)
{
    pid_t child = fork();
    if (!child) _exit(0);
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    return child;
}

static void temporaries(void **state)
{
    (void)state;
    char dead[100], older[100], living[100];
    Job j = job(2, "\"checkpoint\": {" LOCAL "},");
    hosts_make();
    run_job(4, train_and_save, &j);
    long process = dead_process();
    snprintf(dead, sizeof dead, "global_step3" SHARD_2 ".tmp.%ld-0f", process);
    snprintf(older, sizeof older, "global_step3" SHARD_2 ".tmp.%ld", process);
    snprintf(living, sizeof living, "global_step3" SHARD_2 ".tmp.%ld-0f", (long)getppid());
    touch(host_path(1, dead)), touch(host_path(1, older)), touch(host_path(1, living));
    touch(host_path(1, "mine.tmp.999999"));
    j.steps = 4;
    run_job(4, train_and_save, &j);
    CHECK(!host_has(1, dead) && !host_has(1, older) && host_has(1, living) &&
          host_has(1, "mine.tmp.999999"));
    folder_remove();
}

int main(void)
{
    if (!access("/dev/shm", W_OK)) setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(other_jobs),
                                       cmocka_unit_test(one_host_cannot_begin),
                                       cmocka_unit_test(temporaries),
                                       cmocka_unit_test(save_waits_for_a_load),
                                       cmocka_unit_test(load_waits_for_a_recovery),
                                       cmocka_unit_test(save_waits_for_a_recovery),
                                       cmocka_unit_test(two_jobs_begin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
