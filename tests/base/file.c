/* tests/base/file.c: a file is the old one or the whole new one, whatever fails
 * in between.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/mem.h"
#include "check.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "ds-file-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static int next;
    char *p = path[next = (next + 1) % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static int entries(void)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static void put(const char *name, const char *text)
{
    dsi_file *f = dsi_file_replace(in_folder(name));
    dsi_file_write(f, text, strlen(text));
    CHECK_INT(dsi_file_commit(f), DS_OK);
}

static void check_text(const char *name, const char *want)
{
    size_t n = 0;
    char *got = dsi_file_read(in_folder(name), &n);
    CHECK(got != NULL);
    assert_string_equal(got, want);
    CHECK_INT((int64_t)n, (int64_t)strlen(want));
    dsi_free(got);
}

static void written_is_read(void **state)
{
    (void)state;
    put("a", "first");
    check_text("a", "first");
    put("a", "second, longer");
    check_text("a", "second, longer");
    put("a", "");
    check_text("a", "");
    CHECK_INT(entries(), 1);
    CHECK(dsi_file_exists(in_folder("a")) && !dsi_file_exists(in_folder("b")));
    unlink(in_folder("a"));
}

/* A FIFO without a writer is refused, as its reader would wait. */
static void only_regular_files(void **state)
{
    (void)state;
    put("a", "text");
    size_t n = 0;
    char *got = dsi_file_read_regular(in_folder("a"), &n);
    CHECK(got && n == 4 && !strcmp(got, "text"));
    dsi_free(got);
    CHECK(mkfifo(in_folder("fifo"), 0600) == 0);
    CHECK(!dsi_file_read_regular(in_folder("fifo"), &n));
    CHECK_ERROR("fifo: not a regular file");
    CHECK(!dsi_file_read_regular(folder, &n));
    CHECK_ERROR("Is a directory");
    unlink(in_folder("fifo"));
    unlink(in_folder("a"));
}

/* More than the buffer, in pieces smaller and larger than it. */
static void large_files_are_whole(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *data = malloc(BYTES);
    for (int i = 0; i < BYTES; i++) data[i] = (char)(i * 7 ^ i >> 8);
    static const size_t pieces[] = {1000, 65536, 65537, 300000, BYTES};
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        dsi_file *f = dsi_file_replace(in_folder("large"));
        for (size_t at = 0, n; at < BYTES; at += n) {
            n = pieces[k] < BYTES - at ? pieces[k] : BYTES - at;
            dsi_file_write(f, data + at, n);
        }
        CHECK_INT(dsi_file_commit(f), DS_OK);
        size_t n = 0;
        char *got = dsi_file_read(in_folder("large"), &n);
        CHECK_INT((int64_t)n, BYTES);
        assert_memory_equal(got, data, BYTES);
        dsi_free(got);
    }
    unlink(in_folder("large"));
    free(data);
}

static void abandoned_leaves_the_old_one(void **state)
{
    (void)state;
    put("a", "old");
    dsi_file *f = dsi_file_replace(in_folder("a"));
    dsi_file_write(f, "new", 3);
    CHECK_INT(entries(), 2);
    dsi_file_abandon(f);
    dsi_file_abandon(NULL);
    CHECK_INT(entries(), 1);
    check_text("a", "old");
    unlink(in_folder("a"));
}

/* As by two processes of one number, in containers that share a folder. */
static void two_at_once_do_not_mix(void **state)
{
    (void)state;
    dsi_file *a = dsi_file_replace(in_folder("a")), *b = dsi_file_replace(in_folder("a"));
    dsi_file_write(a, "first", 5);
    dsi_file_write(b, "second", 6);
    CHECK_INT(dsi_file_commit(a), DS_OK);
    check_text("a", "first");
    CHECK_INT(dsi_file_commit(b), DS_OK);
    check_text("a", "second");
    CHECK_INT(entries(), 1);
    unlink(in_folder("a"));
}

/* The next write removes the file of a killed program; other files stay. */
static void killed_leaves_nothing(void **state)
{
    (void)state;
    static const char *const others[4] = {"b.tmp.1-00000000", "a.tmp.1-0000000", "a.tmp.-00000000",
                                          "a.tmp.1-00000000x"};
    for (int i = 0; i < 4; i++) put(others[i], "x");
    pid_t child = fork();
    if (child == 0) {
        dsi_file *f = dsi_file_replace(in_folder("a"));
        dsi_file_write(f, others, sizeof others);
        kill(getpid(), SIGKILL);
    }
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    CHECK_INT(entries(), 5);
    put("a", "new");
    check_text("a", "new");
    CHECK_INT(entries(), 5);
    for (int i = 0; i < 4; i++) unlink(in_folder(others[i]));
    unlink(in_folder("a"));
}

/* A limit on the size of files stands for a disk that is full. */
static void full_disk_leaves_the_old_one(void **state)
{
    (void)state;
    put("a", "old");
    struct rlimit was, small;
    getrlimit(RLIMIT_FSIZE, &was);
    small = was;
    small.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    static char zeros[300000];
    dsi_file *f = dsi_file_replace(in_folder("a"));
    for (int i = 0; i < 3; i++) dsi_file_write(f, zeros, sizeof zeros);
    ds_status status = dsi_file_commit(f);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_INT(status, DS_EIO);
    CHECK_ERROR("/a: File too large after 100000 bytes: raise the limit (ulimit -f)");
    CHECK_INT(entries(), 1);
    check_text("a", "old");
    unlink(in_folder("a"));
}

static void a_check_writes_nothing(void **state)
{
    (void)state;
    put("a", "old");
    CHECK_INT(dsi_file_check_replace(in_folder("a")), DS_OK);
    check_text("a", "old");
    CHECK_INT(dsi_file_check_replace(in_folder("b")), DS_OK);
    CHECK_INT(entries(), 1);
    CHECK(dsi_file_check_replace(in_folder("nowhere/a")) != DS_OK);
    CHECK_ERROR("nowhere/a: No such file or directory");
    CHECK(dsi_file_check_replace(folder) != DS_OK);
    CHECK_ERROR(": Is a directory");
    CHECK(dsi_file_check_replace(NULL) != DS_OK);
    CHECK_ERROR("NULL");
    unlink(in_folder("a"));
}

static void wrong_paths_are_named(void **state)
{
    (void)state;
    CHECK(!dsi_file_replace(in_folder("nowhere/a")));
    CHECK_ERROR("nowhere/a: No such file or directory"); /* not that of the temporary file */
    CHECK(!dsi_file_read(in_folder("nothing"), NULL));
    CHECK_ERROR("nothing: No such file");
    CHECK(!dsi_file_read(folder, NULL));
    CHECK_ERROR("directory");
    CHECK(!dsi_file_read(NULL, NULL));
    CHECK_ERROR("NULL");
    CHECK(!dsi_file_replace(NULL));
    CHECK_ERROR("NULL");
    dsi_file_write(NULL, "x", 1);
    CHECK(dsi_file_commit(NULL) != DS_OK);
    ds_error_clear();
    CHECK(!dsi_file_exists(NULL));
    /* the name is taken by a folder: found at the rename, and cleaned up */
    CHECK_INT(dsi_mkdirs(in_folder("taken/x")), DS_OK);
    dsi_file *f = dsi_file_replace(in_folder("taken"));
    CHECK(f != NULL);
    CHECK_INT(dsi_file_commit(f), DS_EIO);
    CHECK_ERROR("taken: ");
    CHECK_INT(entries(), 1);
    rmdir(in_folder("taken/x"));
    rmdir(in_folder("taken"));
}

static void folders_are_made(void **state)
{
    (void)state;
    CHECK_INT(dsi_mkdirs(in_folder("b/c//d/")), DS_OK);
    CHECK_INT(dsi_mkdirs(in_folder("b/c/d")), DS_OK); /* there already */
    CHECK(dsi_file_exists(in_folder("b/c/d")));
    CHECK_INT(dsi_mkdirs("/"), DS_OK);
    put("b/file", "x");
    CHECK_INT(dsi_mkdirs(in_folder("b/file/e")), DS_EIO);
    CHECK_ERROR("b/file: Not a directory");
    CHECK_INT(dsi_mkdirs(in_folder("b/file")), DS_EIO);
    CHECK_ERROR("b/file: Not a directory");
    CHECK_INT(dsi_mkdirs(""), DS_EINVAL);
    ds_error_clear();
    CHECK_INT(dsi_mkdirs(NULL), DS_EINVAL);
    ds_error_clear();
    unlink(in_folder("b/file"));
    rmdir(in_folder("b/c/d"));
    rmdir(in_folder("b/c"));
    rmdir(in_folder("b"));
}

/* The writer of a FIFO comes later than its reader, and writes in parts. */
static void a_fifo_waits_for_its_writer(void **state)
{
    (void)state;
    CHECK_INT(mkfifo(in_folder("fifo"), 0600), 0);
    pid_t child = fork();
    if (child == 0) {
        usleep(20000);
        int fd = open(in_folder("fifo"), O_WRONLY | O_CLOEXEC);
        usleep(20000);
        bool good = write(fd, "ab", 2) == 2;
        usleep(20000);
        _exit(good && write(fd, "c", 1) == 1 ? 0 : 1);
    }
    check_text("fifo", "abc");
    CHECK(child > 0 && waitpid(child, NULL, 0) == child);
    unlink(in_folder("fifo"));
}

static void devices_without_an_end(void **state)
{
    (void)state;
    size_t n;
    CHECK(!dsi_file_read("/dev/zero", &n));
    CHECK_ERROR("read /dev/zero: a device without an end: expected a file");
    char *nothing = dsi_file_read("/dev/null", &n);
    CHECK(nothing && n == 0);
    dsi_free(nothing);
}

/* Files of /proc say that they have no bytes. */
static void files_without_a_size_are_read(void **state)
{
    (void)state;
    size_t n = 0;
    char *text = dsi_file_read("/proc/self/maps", &n);
    CHECK(text && n > 1000 && strlen(text) == n);
    dsi_free(text);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder); /* and nothing may be left in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_is_read),
        cmocka_unit_test(only_regular_files),
        cmocka_unit_test(large_files_are_whole),
        cmocka_unit_test(abandoned_leaves_the_old_one),
        cmocka_unit_test(killed_leaves_nothing),
        cmocka_unit_test(two_at_once_do_not_mix),
        cmocka_unit_test(full_disk_leaves_the_old_one),
        cmocka_unit_test(a_check_writes_nothing),
        cmocka_unit_test(wrong_paths_are_named),
        cmocka_unit_test(folders_are_made),
        cmocka_unit_test(files_without_a_size_are_read),
        cmocka_unit_test(devices_without_an_end),
        cmocka_unit_test(a_fifo_waits_for_its_writer),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
