/* tests/data/cifar10_obtain.c: an empty folder becomes one with CIFAR-10, or
 * stays empty.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "cifar10_files.h"
#include "data/extract.h"
#include "data/fetch.h"
#include "data/lock.h"
#include "http_server.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIN     "cifar-10-batches-bin"
#define ARCHIVE "cifar-10-binary.tar.gz"

static const char *source; /* with BIN of 2 images a batch, and its ARCHIVE */
static bytes archive;
static char md5[33];
static const char *folder;

static int begin(void **state)
{
    (void)state;
    source = new_folder();
    make_bin(source, 2);
    archive_of_folder(in(source, ARCHIVE), source);
    archive = load(in(source, ARCHIVE));
    return dsi_md5(in(source, ARCHIVE), md5);
}

static int end(void **state)
{
    (void)state;
    free(archive.p);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    folder = new_folder();
    return setenv("DS_CIFAR10_MD5", md5, 1);
}

static int teardown(void **state)
{
    (void)state;
    ds_error_clear();
    unsetenv("DS_CIFAR10_MD5");
    unsetenv("DS_CIFAR10_URL");
    unsetenv("DS_CIFAR10_SAMPLE");
    return 0;
}

static ds_dataset *obtain(const char *url)
{
    return ds_cifar10_with(folder, DS_TRAIN,
                           (ds_cifar10_opts){.url = url, .download = true, .quiet = true});
}

static void check_set(ds_dataset *d)
{
    float x[3072];
    int64_t label;
    CHECK_INT(ds_dataset_len(d), 10);
    CHECK_INT(ds_dataset_get(d, 9, (void *[]){x, &label}), DS_OK);
    CHECK_INT(label, made_label(5, 1));
    ds_dataset_free(d);
}

static http_server serve(void)
{
    return http_start((http_manners){.body = archive.p, .bytes = archive.n, .etag = "\"v1\""});
}

static void the_archive_is_downloaded_and_unpacked(void **state)
{
    (void)state;
    http_server s = serve();
    check_set(obtain(s.url));
    CHECK_INT(entries(folder), 2); /* the archive, as torchvision keeps it, and the batches */
    CHECK_INT(s.log->requests, 1);
    check_set(obtain(s.url)); /* there */
    CHECK_INT(s.log->requests, 1);

    dsi_remove_tree(in(folder, BIN)); /* the archive is there */
    check_set(obtain(s.url));
    CHECK_INT(s.log->requests, 1);

    dsi_remove_tree(in(folder, BIN)); /* a damaged one */
    CHECK(truncate(in(folder, ARCHIVE), 1000) == 0);
    setenv("DS_CIFAR10_URL", s.url, 1);
    check_set(obtain(NULL));
    CHECK_INT(s.log->requests, 2);
    http_stop(&s);
}

/* The output of a call on stdout. */
static bytes printed(const char *url, bool quiet)
{
    const char *name = in(source, "stdout");
    fflush(stdout);
    int was = dup(STDOUT_FILENO);
    CHECK(freopen(name, "w", stdout) != NULL);
    ds_dataset *d = ds_cifar10_with(
        folder, DS_TEST, (ds_cifar10_opts){.url = url, .download = true, .quiet = quiet});
    fflush(stdout);
    dup2(was, STDOUT_FILENO);
    close(was);
    CHECK(d != NULL);
    ds_dataset_free(d);
    bytes text = load(name);
    put(&text, "", 1);
    return text;
}

static void it_says_what_torchvision_says(void **state)
{
    (void)state;
    char want[1024];
    http_server s = serve();
    bytes text = printed(s.url, false);
    snprintf(want, sizeof want,
             "Downloading %s to %s/" ARCHIVE "\nExtracting %s/" ARCHIVE " to %s\n", s.url, folder,
             folder, folder);
    assert_string_equal((char *)text.p, want);
    free(text.p);
    text = printed(s.url, true);
    assert_string_equal((char *)text.p, "");
    free(text.p);
    http_stop(&s);
}

static void a_mirrors_archive_needs_its_md5(void **state)
{
    (void)state;
    http_server s = serve();
    unsetenv("DS_CIFAR10_MD5");
    CHECK(obtain(s.url) == NULL);
    CHECK_ERROR(
        "expected c32a1d4ab5d03f1284b67883e8d87530: it is damaged, or another file, whose md5 "
        "DS_CIFAR10_MD5 must name");
    CHECK_INT(entries(folder), 0);
    setenv("DS_CIFAR10_MD5", "c32a", 1);
    CHECK(obtain(s.url) == NULL);
    CHECK_ERROR("DS_CIFAR10_MD5 is \"c32a\", expected 32 hex digits or any");
    setenv("DS_CIFAR10_MD5", "any", 1);
    check_set(obtain(s.url));
    http_stop(&s);
    check_set(obtain("data.tar.gz")); /* nothing is fetched: it is there */
    dsi_remove_tree(in(folder, BIN));
    unlink(in(folder, ARCHIVE));
    CHECK(obtain("data.tar.gz") == NULL);
    CHECK_ERROR("\"data.tar.gz\" does not begin with https://");
}

/* Both see an empty folder; one downloads, slowly, and the other waits. */
static void two_processes_leave_one_good_copy(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    pid_t child[PROCESSES];
    http_server s = http_start(
        (http_manners){.body = archive.p, .bytes = archive.n, .pause_ms = 300});
    for (int k = 0; k < PROCESSES; k++) {
        child[k] = fork();
        if (child[k]) continue;
        ds_dataset *d = obtain(s.url);
        _exit(ds_dataset_len(d) != 10);
    }
    for (int k = 0; k < PROCESSES; k++) {
        int status = -1;
        waitpid(child[k], &status, 0);
        CHECK_INT(status, 0);
    }
    CHECK_INT(s.log->requests, 1);
    CHECK_INT(entries(folder), 2);
    check_set(obtain(s.url));
    http_stop(&s);
}

static void a_server_that_has_it_not_is_a_failure(void **state)
{
    (void)state;
    http_server s = http_start((http_manners){.status = 404});
    CHECK(obtain(s.url) == NULL);
    CHECK_ERROR("the server answers 404");
    CHECK_INT(entries(folder), 0);
    http_stop(&s);
}

/* ---- archives ------------------------------------------------------------------------------------------ */

/* Unpacking path fails with this message, and leaves nothing. */
static void check_refused(const char *path, const char *message)
{
    char url[600];
    snprintf(url, sizeof url, "file://%s", path);
    setenv("DS_CIFAR10_MD5", "any", 1);
    CHECK(obtain(url) == NULL);
    CHECK_ERROR(message);
    CHECK(!there(in(folder, BIN)) && !there(in(folder, ".cifar-10-unpacked")));
    CHECK(!there(in(folder, "../evil")) && !there(in(folder, "evil")));
    unlink(in(folder, ARCHIVE));
    CHECK_INT(entries(folder), 0);
}

static void check_one(entry e, const char *message)
{
    const char *path = in(source, "strange.tar.gz");
    make_archive(path, &e, 1);
    check_refused(path, message);
}

static void no_path_leaves_the_folder(void **state)
{
    (void)state;
    check_one((entry){"../evil", NULL, "x", 1},
              "holds \"../evil\", expected nothing but files in " BIN);
    check_one((entry){BIN "/../../evil", NULL, "x", 1}, "holds \"" BIN "/../../evil\"");
    check_one((entry){BIN "/..", NULL, "x", 1}, "holds \"" BIN "/..\"");
    check_one((entry){"/tmp/evil", NULL, "x", 1}, "holds \"/tmp/evil\"");
    check_one((entry){"evil", NULL, "x", 1}, "holds \"evil\"");
    check_one((entry){BIN "-evil/x", NULL, "x", 1}, "holds \"" BIN "-evil/x\"");
    check_one((entry){BIN "/deep/x", NULL, "x", 1}, "holds \"" BIN "/deep/x\"");
    check_one((entry){BIN, NULL, "x", 1}, "is a file in the folder's place");
    check_one((entry){BIN "/link", "/etc/passwd", NULL, 0}, "\"" BIN "/link\" is a link");
    check_one((entry){BIN, "/etc", NULL, 0}, "\"" BIN "\" is a link");
    check_one((entry){BIN "/", NULL, NULL, 0}, "holds no " BIN);
    check_one((entry){BIN "/data_batch_1.bin", NULL, "x", 1}, "is not CIFAR-10: ");
}

static void an_archive_is_not_believed_its_size(void **state)
{
    (void)state;
    size_t n = 33 << 20;
    entry many[34];
    char names[34][64];
    char *zeros = calloc(n, 1);
    check_one((entry){BIN "/data_batch_1.bin", NULL, zeros, n},
              "has 34603008 bytes, expected at most");
    free(zeros);
    for (int k = 0; k < 34; k++) {
        snprintf(names[k], sizeof names[k], BIN "/%d", k);
        many[k] = (entry){names[k], NULL, "x", 1};
    }
    make_archive(in(source, "strange.tar.gz"), many, 34);
    check_refused(in(source, "strange.tar.gz"), "holds more than 32 files");
}

static void a_damaged_archive_is_refused(void **state)
{
    (void)state;
    const char *path = in(source, "cut.tar.gz");
    for (size_t n = 0; n + 1 < archive.n; n += 1 + archive.n / 23) {
        save(path, archive.p, n);
        check_refused(path, n < 512 ? "" : "cannot be unpacked: ");
    }
    save(path, "this is no archive", 18);
    check_refused(path, "cannot be unpacked: Unrecognized archive format");
}

static void a_full_disk_while_unpacking_is_named(void **state)
{
    (void)state;
    struct rlimit was, small;
    char url[600];
    snprintf(url, sizeof url, "file://%s", in(source, ARCHIVE));
    check_set(obtain(url)); /* so that the archive is there */
    dsi_remove_tree(in(folder, BIN));
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = (struct rlimit){5000, was.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    ds_dataset *d = obtain(url);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK(d == NULL);
    CHECK_ERROR("test_batch.bin: File too large");
    CHECK_INT(entries(folder), 1);
    check_set(obtain(url));
}

/* Files that a killed process has left are no problem. */
static void leftovers_do_no_harm(void **state)
{
    (void)state;
    http_server s = serve();
    mkdir(in(folder, ".cifar-10-unpacked"), 0777);
    mkdir(in(folder, ".cifar-10-unpacked/" BIN), 0777);
    save(in(folder, ".cifar-10-unpacked/" BIN "/data_batch_1.bin"), "x", 1);
    save(in(folder, ".cifar-10.lock"), "", 0);
    check_set(obtain(s.url));
    CHECK_INT(entries(folder), 2);
    http_stop(&s);
}

/* One that holds the lock and writes nothing does not block for ever; one that
 * writes does, until it ends. */
static void a_lock_is_waited_for_while_its_holder_works(void **state)
{
    (void)state;
    dsi_lock lock, held;
    const char *path = in(folder, ".lock"), *file = in(folder, "part");
    CHECK_INT(dsi_lock_take(&held, path, NULL, 1), DS_OK);
    CHECK_INT(dsi_lock_take(&lock, path, NULL, 0.2), DS_EIO);
    CHECK_ERROR("and writes nothing: end it");
    dsi_lock_drop(&held);

    pid_t child = fork();
    if (child == 0) {
        if (dsi_lock_take(&held, path, NULL, 1) != DS_OK) _exit(1);
        for (int i = 0; i < 30; i++) save(file, "x", 1), usleep(50000);
        dsi_lock_drop(&held);
        _exit(0);
    }
    while (!there(file)) usleep(1000);
    CHECK_INT(dsi_lock_take(&lock, path, NULL, 1), DS_OK);
    dsi_lock_drop(&lock);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void an_archive_that_is_no_file(void **state)
{
    (void)state;
    CHECK_INT(mkfifo(in(folder, ARCHIVE), 0600), 0);
    CHECK(obtain("http://127.0.0.1:1/x") == NULL);
    CHECK_ERROR(ARCHIVE " is not a regular file: remove it to have it fetched");
    setenv("DS_CIFAR10_SAMPLE", in(folder, ARCHIVE), 1);
    CHECK(ds_cifar10_with(folder, DS_TRAIN, (ds_cifar10_opts){.sample = true}) == NULL);
    CHECK_ERROR("which is no file");
}

/* ---- the sample instead ---------------------------------------------------------------------------------- */

static ds_dataset *obtain_or_sample(const char *url, bool download)
{
    setenv("DS_CIFAR10_SAMPLE", in(source, ARCHIVE), 1);
    return ds_cifar10_with(
        folder, DS_TRAIN,
        (ds_cifar10_opts){
            .url = url, .download = download, .quiet = true, .fallback_sample = true});
}

static void without_a_network_the_sample_does(void **state)
{
    (void)state;
    http_server s = serve();
    http_stop(&s); /* no process listens there now */
    check_set(obtain_or_sample(s.url, true));
    CHECK(!ds_error());
    CHECK(there(in(folder, "cifar-10-sample/" BIN)) && !there(in(folder, BIN)));
    check_set(obtain_or_sample(NULL, false));
    CHECK_INT(entries(folder), 1);
}

static void the_sample_hides_no_failure(void **state)
{
    (void)state;
    http_server s = http_start((http_manners){.status = 404});
    CHECK(obtain_or_sample(s.url, true) == NULL); /* a mirror that was named */
    CHECK_ERROR("the server answers 404");
    http_stop(&s);
    mkdir(in(folder, BIN), 0777);
    CHECK(obtain_or_sample(s.url, true) == NULL); /* a damaged folder */
    CHECK_ERROR("data_batch_1.bin: No such file or directory");
    rmdir(in(folder, BIN));
    save(in(source, "file"), "x", 1);
    folder = in(source, "file/folder");
    CHECK(obtain_or_sample(s.url, true) == NULL);
    CHECK_ERROR("Not a directory");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_archive_is_downloaded_and_unpacked),
        TEST(it_says_what_torchvision_says),
        TEST(a_mirrors_archive_needs_its_md5),
        TEST(two_processes_leave_one_good_copy),
        TEST(a_server_that_has_it_not_is_a_failure),
        TEST(no_path_leaves_the_folder),
        TEST(an_archive_is_not_believed_its_size),
        TEST(a_damaged_archive_is_refused),
        TEST(a_full_disk_while_unpacking_is_named),
        TEST(leftovers_do_no_harm),
        TEST(a_lock_is_waited_for_while_its_holder_works),
        TEST(an_archive_that_is_no_file),
        TEST(without_a_network_the_sample_does),
        TEST(the_sample_hides_no_failure),
    };
    setenv("no_proxy", "*", 1);
    return cmocka_run_group_tests(tests, begin, end);
}
