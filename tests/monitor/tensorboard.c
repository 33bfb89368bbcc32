/* tests/monitor/tensorboard.c: event files, read by a strict reader here and by
 * TensorBoard's own.
 * SPDX-License-Identifier: MIT */
#include "base/crc.h"
#include "base/file.h"
#include "base/mem.h"
#include "check.h"
#include "folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int make(void **state) { return *state = NULL, folder_make() == NULL; }
static int unmake(void **state) { return (void)state, folder_remove(), 0; }

static ds_monitor *monitor_of(const char *output_path, const char *job_name)
{
    ds_monitor *m = ds_monitor_new();
    CHECK_INT(ds_monitor_tensorboard(m, output_path, job_name), DS_OK);
    return m;
}

/* ---- a strict reader --------------------------------------------------------------------------------- */

typedef struct Bytes {
    const unsigned char *p;
    size_t n;
} Bytes;

static Bytes take(Bytes *b, size_t n)
{
    CHECK(n <= b->n);
    Bytes got = {b->p, n};
    b->p += n;
    b->n -= n;
    return got;
}

static uint64_t take_fixed(Bytes *b, int bytes)
{
    uint64_t x = 0;
    Bytes got = take(b, (size_t)bytes);
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | got.p[i];
    return x;
}

static uint64_t take_varint(Bytes *b)
{
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        CHECK(shift < 70);
        unsigned char c = take(b, 1).p[0];
        x |= (uint64_t)(c & 0x7f) << shift;
        if (c < 0x80) return x;
    }
}

static Bytes take_field(Bytes *b, int number)
{
    CHECK_INT((int64_t)take_varint(b), number << 3 | 2);
    return take(b, (size_t)take_varint(b));
}

static Bytes take_record(Bytes *file)
{
    const unsigned char *head = file->p;
    uint64_t n = take_fixed(file, 8);
    uint32_t crc = dsi_crc32c_plain(0, head, 8);
    CHECK_INT((int64_t)take_fixed(file, 4), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
    Bytes data = take(file, n);
    crc = dsi_crc32c_plain(0, data.p, data.n);
    CHECK_INT((int64_t)take_fixed(file, 4), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
    return data;
}

static double take_wall_time(Bytes *event)
{
    double wall;
    CHECK_INT((int64_t)take_varint(event), 1 << 3 | 1);
    uint64_t bits = take_fixed(event, 8);
    memcpy(&wall, &bits, sizeof wall);
    CHECK(fabs(wall - (double)time(NULL)) < 3600);
    return wall;
}

typedef struct Scalar {
    char tag[100000];
    float value;
    int64_t step;
    double wall;
} Scalar;

static Scalar scalar; /* the last read */

static void take_scalar(Bytes *file)
{
    Bytes event = take_record(file);
    scalar.wall = take_wall_time(&event);
    CHECK_INT((int64_t)take_varint(&event), 2 << 3);
    scalar.step = (int64_t)take_varint(&event);
    Bytes summary = take_field(&event, 5);
    Bytes value = take_field(&summary, 1);
    Bytes tag = take_field(&value, 1);
    CHECK_INT((int64_t)take_varint(&value), 2 << 3 | 5);
    uint32_t bits = (uint32_t)take_fixed(&value, 4);
    memcpy(&scalar.value, &bits, sizeof bits);
    CHECK(!event.n && !summary.n && !value.n && tag.n < sizeof scalar.tag);
    memcpy(scalar.tag, tag.p, tag.n);
    scalar.tag[tag.n] = 0;
}

/* The i-th event file of the folder by name, past its first record; free
 * `data`. */
static Bytes open_events(const char *folder, int i, char **data)
{
    struct dirent **names;
    char path[1500];
    int n = scandir(folder, &names, NULL, alphasort);
    CHECK(n > i + 2); /* "." and ".." come first */
    snprintf(path, sizeof path, "%s/%s", folder, names[i + 2]->d_name);
    for (int k = 0; k < n; k++) free(names[k]);
    free(names);
    Bytes file;
    *data = dsi_file_read(path, &file.n);
    CHECK(*data);
    file.p = (unsigned char *)*data;
    Bytes event = take_record(&file);
    take_wall_time(&event);
    Bytes version = take_field(&event, 3);
    CHECK(version.n == 13 && !memcmp(version.p, "brain.Event:2", 13) && !event.n);
    return file;
}

/* ---- what is written ---------------------------------------------------------------------------------- */

static void scalars_come_back(void **state)
{
    (void)state;
    static const struct {
        const char *tag;
        double value;
        int64_t step;
    } rows[] = {{"Train/Samples/train_loss", 2.302585, 16},
                {"Train/Samples/lr", 3e-7, 0},
                {"a tag with blanks/and \"quotes\"", -1.5, 300},
                {"\xe2\x82\xac \xf0\x9f\x98\x80", 1e30, 1},
                {"nan", NAN, INT64_MAX},
                {"inf", INFINITY, -1},
                {"-inf", -INFINITY, INT64_MIN},
                {"beyond float32", 1e300, 127},
                {"below float32", 1e-300, 128},
                {"/", 4294967296.0, 16384}};
    enum { ROWS = sizeof rows / sizeof *rows };
    ds_monitor *m = monitor_of(folder_path("runs"), "job");
    for (int i = 0; i < ROWS; i++)
        CHECK_INT(ds_monitor_write(m, rows[i].tag, rows[i].value, rows[i].step), DS_OK);
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    char *data;
    double before = 0;
    Bytes file = open_events(folder_path("runs/job"), 0, &data); /* while the monitor has it open */
    for (int i = 0; i < ROWS; i++) {
        take_scalar(&file);
        assert_string_equal(scalar.tag, rows[i].tag);
        CHECK_CLOSE(scalar.value, (float)rows[i].value, 0);
        CHECK_INT(scalar.step, rows[i].step);
        CHECK(scalar.wall >= before);
        before = scalar.wall;
    }
    CHECK(!file.n);
    dsi_free(data);
    ds_monitor_free(m);
}

static void file_names_are_tensorflows(void **state)
{
    (void)state;
    ds_monitor *a = monitor_of(folder_path("runs"), "job"),
               *b = monitor_of(folder_path("runs"), "job");
    ds_monitor_write(a, "x", 1, 1);
    ds_monitor_write(b, "y", 2, 2);
    ds_monitor_free(a);
    ds_monitor_free(b);
    struct dirent **names;
    CHECK_INT(scandir(folder_path("runs/job"), &names, NULL, alphasort), 4);
    char host[256], want[600];
    gethostname(host, sizeof host);
    for (int i = 0; i < 4; i++) {
        const char *name = names[i]->d_name;
        if (i > 1) { /* both in one second, nearly always; then n tells them apart */
            CHECK(!strncmp(name, "events.out.tfevents.", 20) &&
                  strspn(name + 20, "0123456789") == 10);
            snprintf(want, sizeof want, ".%s.%ld.", host, (long)getpid());
            CHECK(!strncmp(name + 30, want, strlen(want)));
            CHECK(!strcmp(name + 30 + strlen(want), "0") || !strcmp(name + 30 + strlen(want), "1"));
        }
        free(names[i]);
    }
    free(names);
    for (int i = 0; i < 2; i++) {
        char *data;
        Bytes file = open_events(folder_path("runs/job"), i, &data);
        take_scalar(&file);
        assert_string_equal(scalar.tag, i ? "y" : "x");
        CHECK(!file.n);
        dsi_free(data);
    }
}

/* More than the buffer of the sink, and tags of all lengths around those of one
 * and two bytes. */
static void write_many(ds_monitor *m)
{
    static char tag[70001];
    for (int i = 0; i < 4000; i++) {
        snprintf(tag, sizeof tag, "many/%d", i % 50);
        ds_monitor_write(m, tag, i, i);
    }
    for (int n = 1; n < 300; n++) {
        memset(tag, 'a', (size_t)n);
        tag[n] = 0;
        ds_monitor_write(m, tag, n, n);
    }
    memset(tag, 'b', 70000);
    tag[70000] = 0;
    ds_monitor_write(m, tag, 1, 1);
}

static void many_scalars_come_back(void **state)
{
    (void)state;
    ds_monitor *m = monitor_of(folder_path("runs"), "job");
    write_many(m);
    ds_monitor_free(m);
    char *data;
    Bytes file = open_events(folder_path("runs/job"), 0, &data);
    for (int i = 0; i < 4000; i++) {
        take_scalar(&file);
        CHECK_INT(scalar.step, i);
        CHECK_INT(atoi(scalar.tag + 5), i % 50);
    }
    for (int n = 1; n < 300; n++) {
        take_scalar(&file);
        CHECK_INT((int64_t)strlen(scalar.tag), n);
    }
    take_scalar(&file);
    CHECK_INT((int64_t)strlen(scalar.tag), 70000);
    CHECK(!file.n);
    dsi_free(data);
}

static void empty_path_is_the_current_folder(void **state)
{
    (void)state;
    int was = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(!chdir(folder_path("")));
    ds_monitor_free(monitor_of("", NULL));
    CHECK(!fchdir(was));
    close(was);
    char *data;
    CHECK(!open_events(folder_path("DeepSpeedJobName"), 0, &data).n);
    dsi_free(data);
}

/* ---- TensorBoard's own reader ------------------------------------------------------------------------- */

static void tensorboard_reads_it(void **state)
{
    (void)state;
    for (int run = 0; run < 2; run++) {
        ds_monitor *m = monitor_of(folder_path("runs"), "job");
        ds_monitor_write(m, "Train/Samples/train_loss", 2.25, 16 + run);
        ds_monitor_write(m, "a tag/\xe2\x82\xac", NAN, 5);
        ds_monitor_write(m, "inf", -INFINITY, 1LL << 40);
        write_many(m);
        ds_monitor_free(m);
    }
    char command[2000], line[400000];
    const char *python = getenv("DS_PYTHON");
    snprintf(command, sizeof command, "'%s' '%s/tests/monitor/read_events.py' '%s' 2>&1",
             python ? python : "python3", DS_SOURCE_DIR, folder_path("runs/job"));
    FILE *p = popen(command, "r");
    CHECK(p);
    int n = 0, all = 0, shown = 0, found = 0;
    while (fgets(line, sizeof line, p)) {
        found += !strcmp(line, "0 16 0x1.2000000000000p+1 'Train/Samples/train_loss'\n");
        found += !strcmp(line, "1 17 0x1.2000000000000p+1 'Train/Samples/train_loss'\n");
        found += !strcmp(line, "1 5 nan 'a tag/\\u20ac'\n");
        found += !strcmp(line, "0 1099511627776 -inf 'inf'\n");
        if (sscanf(line, "all %d shown %d", &all, &shown) != 2) n++;
    }
    int status = pclose(p);
    if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) {
        print_message(
            "no tensorboard package: its reader is not tested (DS_PYTHON names a python)\n");
        skip();
    }
    CHECK_INT(status, 0);
    CHECK_INT(n, 2 * (3 + 4000 + 299 + 1));
    CHECK_INT(found, 4);
    CHECK_INT(all, n);
    CHECK_INT(shown, n);
}

/* ---- failures -------------------------------------------------------------------------------------- */

static void bad_folders_are_refused(void **state)
{
    (void)state;
    ds_monitor *m = ds_monitor_new();
    fclose(fopen(folder_path("file"), "w"));
    CHECK_INT(ds_monitor_tensorboard(m, folder_path("file"), "job"), DS_EIO);
    CHECK_ERROR("tensorboard: mkdir ");
    CHECK_INT(ds_monitor_tensorboard(m, "/proc/nowhere", "job"), DS_EIO);
    CHECK_ERROR("tensorboard: mkdir /proc/nowhere: ");
    CHECK_INT(ds_monitor_tensorboard(m, "/", "proc"), DS_EIO);
    CHECK_ERROR("tensorboard: write "); /* another user than root is refused the folder */
    if (geteuid()) {                    /* root may write everywhere */
        mkdir(folder_path("shut"), 0555);
        CHECK_INT(ds_monitor_tensorboard(m, folder_path(""), "shut"), DS_EIO);
        CHECK_ERROR("tensorboard: write to folder ");
    }
    ds_monitor_free(m);
}

static void limit_files_to(rlim_t bytes)
{
    struct rlimit r;
    getrlimit(RLIMIT_FSIZE, &r);
    r.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &r);
}

static void a_full_disk_leaves_whole_records(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    ds_monitor *m = monitor_of(folder_path("runs"), "job");
    ds_monitor_write(m, "before", 1, 1);
    CHECK_INT(ds_monitor_flush(m), DS_OK);
    for (int i = 0; i < 100; i++) ds_monitor_write(m, "after", i, i);
    limit_files_to(1000);
    CHECK_INT(ds_monitor_flush(m), DS_EIO);
    limit_files_to(RLIM_INFINITY);
    CHECK_ERROR("monitor: tensorboard is closed: tensorboard: write ");
    CHECK_INT(ds_monitor_write(m, "later", 1, 1), DS_OK);
    ds_monitor_free(m);
    CHECK(!ds_error());
    char *data;
    Bytes file = open_events(folder_path("runs/job"), 0, &data);
    take_scalar(&file);
    assert_string_equal(scalar.tag, "before");
    CHECK(!file.n);
    dsi_free(data);
    limit_files_to(10); /* bytes: too few for the first record */
    m = ds_monitor_new();
    CHECK_INT(ds_monitor_tensorboard(m, folder_path("runs"), "job"), DS_EIO);
    limit_files_to(RLIM_INFINITY);
    CHECK_ERROR("File too large");
    ds_monitor_free(m);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make, unmake)
TEST_MAIN(IN_FOLDER(scalars_come_back), IN_FOLDER(file_names_are_tensorflows),
          IN_FOLDER(many_scalars_come_back), IN_FOLDER(empty_path_is_the_current_folder),
          IN_FOLDER(tensorboard_reads_it), IN_FOLDER(bad_folders_are_refused),
          IN_FOLDER(a_full_disk_leaves_whole_records))
