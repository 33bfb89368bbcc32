/* tests/monitor/csv.c: the files of csv_monitor, byte for byte.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static int make(void **state) { return *state = NULL, folder_make() == NULL; }
static int unmake(void **state) { return (void)state, folder_remove(), 0; }

static ds_monitor *monitor_of(const char *output_path, const char *job_name)
{
    ds_monitor *m = ds_monitor_new();
    CHECK_INT(ds_monitor_csv(m, output_path, job_name), DS_OK);
    return m;
}

static void check_file(const char *path, const char *want)
{
    char *got = dsi_file_read(path, NULL);
    CHECK(got);
    assert_string_equal(got, want);
    dsi_free(got);
}

static void files_are_deepspeeds(void **state)
{
    (void)state;
    ds_monitor *m = monitor_of(folder_path("out/deeper"), "job");
    ds_monitor_write(m, "Train/Samples/train_loss", 2.302585, 16);
    ds_monitor_write(m, "Train/Samples/lr", 1e-5, 16);
    ds_monitor_write(m, "Train/Samples/train_loss", 2, 32);
    ds_monitor_write(m, "my own tag", (double)0.1f, -3);
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    check_file(folder_path("out/deeper/job/Train_Samples_train_loss.csv"),
               "step,train_loss\r\n16,2.302585\r\n32,2.0\r\n");
    check_file(folder_path("out/deeper/job/Train_Samples_lr.csv"), "step,lr\r\n16,1e-05\r\n");
    check_file(folder_path("out/deeper/job/my_own_tag.csv"),
               "step,my own tag\r\n-3,0.10000000149011612\r\n");
    ds_monitor_write(m, "Train/Samples/lr", NAN, 48);
    ds_monitor_write(m, "Train/Samples/lr", INFINITY, 64);
    ds_monitor_write(m, "Train/Samples/lr", -INFINITY, INT64_MAX);
    ds_monitor_free(m); /* flushes */
    check_file(folder_path("out/deeper/job/Train_Samples_lr.csv"),
               "step,lr\r\n16,1e-05\r\n48,nan\r\n64,inf\r\n9223372036854775807,-inf\r\n");
}

static void a_later_run_appends(void **state)
{
    (void)state;
    for (int run = 0; run < 3; run++) {
        ds_monitor *m = monitor_of(folder_path("out"), NULL);
        ds_monitor_write(m, "a/b", run, run);
        ds_monitor_free(m);
    }
    check_file(folder_path("out/DeepSpeedJobName/a_b.csv"),
               "step,b\r\n0,0.0\r\n1,1.0\r\n2,2.0\r\n");
}

static void empty_path_is_the_current_folder(void **state)
{
    (void)state;
    int was = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(!chdir(folder_path("")));
    ds_monitor *m = monitor_of("", "job");
    CHECK_INT(ds_monitor_csv(m, NULL, "other"), DS_OK);
    CHECK_INT(ds_monitor_csv(m, "", ""), DS_OK);
    ds_monitor_write(m, "a", 1, 1);
    ds_monitor_free(m);
    CHECK(!fchdir(was));
    close(was);
    check_file(folder_path("job/a.csv"), "step,a\r\n1,1.0\r\n");
    check_file(folder_path("other/a.csv"), "step,a\r\n1,1.0\r\n");
    check_file(folder_path("a.csv"), "step,a\r\n1,1.0\r\n");
}

static void headers_are_quoted_where_they_must(void **state)
{
    (void)state;
    ds_monitor *m = monitor_of(folder_path("out"), "job");
    ds_monitor_write(m, "x/a,b", 1, 1);
    ds_monitor_write(m, "say \"hi\"", 1, 1);
    ds_monitor_write(m, "ends/", 1, 1);
    ds_monitor_free(m);
    check_file(folder_path("out/job/x_a,b.csv"), "step,\"a,b\"\r\n1,1.0\r\n");
    check_file(folder_path("out/job/say_\"hi\".csv"), "step,\"say \"\"hi\"\"\"\r\n1,1.0\r\n");
    check_file(folder_path("out/job/ends_.csv"), "step,\r\n1,1.0\r\n");
}

static int files_in(const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void long_tags_have_short_names(void **state)
{
    (void)state;
    ds_monitor *m = monitor_of(folder_path("out"), "job");
    char tag[5001], header[6000];
    memset(tag, 'x', 5000);
    for (int end = 0; end < 2; end++) { /* tags that differ at their end alone */
        tag[4999] = (char)('a' + end);
        tag[5000] = 0;
        ds_monitor_write(m, tag, 1, 1);
    }
    memset(tag, 'y', 240);
    tag[240] = 0;
    ds_monitor_write(m, tag, 1, 1);
    ds_monitor_free(m);
    CHECK(!ds_error());
    CHECK_INT(files_in(folder_path("out/job")), 3);
    snprintf(header, sizeof header, "out/job/%s.csv", tag);
    CHECK(dsi_file_exists(folder_path(header)));
}

static void thousands_of_tags_are_fine(void **state)
{
    (void)state;
    struct rlimit was, few;
    getrlimit(RLIMIT_NOFILE, &was);
    few = was;
    few.rlim_cur = 40;
    setrlimit(RLIMIT_NOFILE, &few);
    ds_monitor *m = monitor_of(folder_path("out"), "job");
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < 2000; i++) {
            char tag[32];
            snprintf(tag, sizeof tag, "grad/%d", i);
            CHECK_INT(ds_monitor_write(m, tag, i, step), DS_OK);
        }
    ds_monitor_free(m);
    setrlimit(RLIMIT_NOFILE, &was);
    CHECK(!ds_error());
    CHECK_INT(files_in(folder_path("out/job")), 2000);
    check_file(folder_path("out/job/grad_1999.csv"),
               "step,1999\r\n0,1999.0\r\n1,1999.0\r\n2,1999.0\r\n");
}

/* ---- failures -------------------------------------------------------------------------------------- */

static void bad_folders_are_refused(void **state)
{
    (void)state;
    ds_monitor *m = ds_monitor_new();
    fclose(fopen(folder_path("file"), "w"));
    CHECK_INT(ds_monitor_csv(m, folder_path("file"), "job"), DS_EIO);
    CHECK_ERROR("csv_monitor: mkdir ");
    CHECK_INT(ds_monitor_csv(m, folder_path(""), "file"), DS_EIO);
    CHECK_ERROR("Not a directory");
    if (geteuid()) { /* root may write everywhere */
        mkdir(folder_path("shut"), 0555);
        CHECK_INT(ds_monitor_csv(m, folder_path("shut"), "job"), DS_EIO);
        CHECK_ERROR("Permission denied");
        CHECK_INT(ds_monitor_csv(m, folder_path(""), "shut"), DS_EIO);
        CHECK_ERROR("csv_monitor: write to folder ");
    }
    CHECK_INT(ds_monitor_csv(m, "/proc/nowhere", "job"), DS_EIO);
    CHECK_ERROR("csv_monitor: mkdir /proc/nowhere: ");
    CHECK_INT(ds_monitor_write(m, "x", 1, 1), DS_OK); /* there is no sink */
    ds_monitor_free(m);
}

static void a_file_that_cannot_be_written_closes_the_sink(void **state)
{
    (void)state;
    ds_monitor *m = monitor_of(folder_path("out"), "job");
    mkdir(folder_path("out/job/b.csv"), 0777);
    ds_monitor_write(m, "a", 1, 1);
    ds_monitor_write(m, "b", 1, 1);
    CHECK_INT(ds_monitor_flush(m), DS_EIO);
    CHECK_ERROR("monitor: csv_monitor is closed: csv_monitor: write ");
    CHECK_INT(ds_monitor_write(m, "b", 1, 2), DS_OK);
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    ds_monitor_free(m);
    CHECK(!ds_error());
}

static void a_full_disk_leaves_whole_lines(void **state)
{
    (void)state;
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, SIG_IGN);
    ds_monitor *m = monitor_of(folder_path("out"), "job");
    ds_monitor_write(m, "a", 1, 1);
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    for (int i = 0; i < 100; i++) ds_monitor_write(m, "a", i, i);
    small = was;
    small.rlim_cur = 50;
    setrlimit(RLIMIT_FSIZE, &small);
    CHECK_INT(ds_monitor_flush(m), DS_EIO);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_ERROR("a.csv: File too large");
    ds_monitor_free(m);
    CHECK(!ds_error());
    check_file(folder_path("out/job/a.csv"), "step,a\r\n1,1.0\r\n");
    /* /dev/full is a full disk */
    CHECK(!symlink("/dev/full", folder_path("out/job/c.csv")));
    m = monitor_of(folder_path("out"), "job");
    ds_monitor_write(m, "c", 1, 1);
    CHECK_INT(ds_monitor_flush(m), DS_EIO);
    CHECK_ERROR("c.csv: ");
    ds_monitor_free(m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make, unmake)
TEST_MAIN(IN_FOLDER(files_are_deepspeeds), IN_FOLDER(a_later_run_appends),
          IN_FOLDER(empty_path_is_the_current_folder),
          IN_FOLDER(headers_are_quoted_where_they_must), IN_FOLDER(long_tags_have_short_names),
          IN_FOLDER(thousands_of_tags_are_fine), IN_FOLDER(bad_folders_are_refused),
          IN_FOLDER(a_file_that_cannot_be_written_closes_the_sink),
          IN_FOLDER(a_full_disk_leaves_whole_lines))
