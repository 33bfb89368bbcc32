/* tests/data/cifar10.c: both layouts give the same samples; damage is named by
 * file and record.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "cifar10_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define BIN "cifar-10-batches-bin"
#define PY  "cifar-10-batches-py"

static ds_dataset *open_quietly(const char *folder, ds_split split)
{
    return ds_cifar10_with(folder, split, (ds_cifar10_opts){.quiet = true});
}

static void check_samples(ds_dataset *d, ds_split split, int n, bool raw)
{
    static float x[3072];
    static uint8_t u[3072];
    int64_t label;
    void *field[] = {raw ? (void *)u : (void *)x, &label};
    for (int64_t i = 0; i < ds_dataset_len(d); i++) {
        int b = split == DS_TEST ? 0 : 1 + (int)(i / n);
        CHECK_INT(ds_dataset_get(d, i, field), DS_OK);
        CHECK_INT(label, made_label(b, i % n));
        for (int k = 0; k < 3072; k++) {
            uint8_t p = made_pixel(b, i % n, k);
            float y = (float)p / 255;
            y -= 0.5f;
            y /= 0.5f;
            if (raw ? u[k] != p : x[k] != y) fail_msg("sample %d, byte %d is wrong", (int)i, k);
        }
    }
}

static void check_layout(void (*write)(const char *, int))
{
    enum { N = 7 };
    const char *folder = new_folder();
    write(folder, N);
    for (int split = DS_TRAIN; split <= DS_TEST; split++)
        for (int raw = 0; raw < 2; raw++) {
            ds_dataset *d = ds_cifar10_with(folder, (ds_split)split,
                                            (ds_cifar10_opts){.quiet = true, .raw = raw});
            CHECK_INT(ds_dataset_len(d), split == DS_TEST ? N : 5 * N);
            CHECK_INT(ds_dataset_fields(d), 2);
            CHECK_INT(ds_dataset_field(d, 0)->dtype, raw ? DS_U8 : DS_F32);
            CHECK_INT(ds_dataset_field(d, 0)->shape.n, 3);
            CHECK_INT(ds_dataset_field(d, 1)->dtype, DS_I64);
            check_samples(d, (ds_split)split, N, raw);
            void *nowhere[2] = {NULL, NULL};
            CHECK(ds_dataset_get(d, ds_dataset_len(d), nowhere) != DS_OK);
            CHECK(ds_dataset_get(d, -1, nowhere) != DS_OK);
            ds_error_clear();
            ds_dataset_free(d);
        }
}

static void the_binary_layout_is_read(void **state) { (void)state, check_layout(make_bin); }
static void the_python_layout_is_read(void **state) { (void)state, check_layout(make_py); }

/* 10,000 records a file without a file SAMPLE; the files are sparse and take no
 * disk space. */
static void make_full(const char *folder)
{
    static const char *const names[] = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                        "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"};
    const char *home = in(folder, BIN);
    CHECK(mkdir(home, 0777) == 0);
    for (int k = 0; k < 6; k++) {
        save(in(home, names[k]), "", 0);
        CHECK(truncate(in(home, names[k]), 30730000) == 0);
    }
}

static void poke(const char *path, off_t at, uint8_t x)
{
    int fd = open(path, O_WRONLY);
    CHECK(fd >= 0 && pwrite(fd, &x, 1, at) == 1);
    close(fd);
}

static void the_full_set_has_its_sizes(void **state)
{
    (void)state;
    const char *folder = new_folder();
    make_full(folder);
    const char *third = in(folder, BIN "/data_batch_3.bin");
    poke(third, 9999L * 3073, 9);
    poke(third, 9999L * 3073 + 3072, 255);
    ds_dataset *d = open_quietly(folder, DS_TRAIN);
    CHECK_INT(ds_dataset_len(d), 50000);
    float x[3072];
    int64_t label;
    CHECK_INT(ds_dataset_get(d, 29999, (void *[]){x, &label}), DS_OK);
    CHECK_INT(label, 9);
    CHECK_CLOSE(x[0], -1, 0);
    CHECK_CLOSE(x[3071], 1, 0);
    ds_dataset_free(d);

    poke(third, 1234L * 3073, 10);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("data_batch_3.bin: record 1234 has label 10, expected 0 to 9");
    d = open_quietly(folder, DS_TEST); /* which has no part in it */
    CHECK_INT(ds_dataset_len(d), 10000);
    ds_dataset_free(d);
}

static void a_wrong_size_is_named(void **state)
{
    (void)state;
    const char *folder = new_folder();
    make_full(folder);
    const char *second = in(folder, BIN "/data_batch_2.bin");
    CHECK(truncate(second, 30729999) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("data_batch_2.bin ends in record 9999: it has 30729999 bytes, expected 30730000");
    CHECK(truncate(second, 30730001) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR(
        "data_batch_2.bin continues after record 9999: it has 30730001 bytes, expected 30730000");
    CHECK(truncate(second, 0) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("ends in record 0");
    CHECK(unlink(second) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("data_batch_2.bin: No such file or directory");
    CHECK(mkdir(second, 0777) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("data_batch_2.bin is not a regular file");
}

/* A thousand records are a wrong size unless SAMPLE says that they are meant. */
static void only_a_marked_folder_may_be_smaller(void **state)
{
    (void)state;
    const char *folder = new_folder();
    make_bin(folder, 3);
    CHECK(unlink(in(folder, BIN "/SAMPLE")) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("data_batch_1.bin ends in record 3: it has 9219 bytes, expected 30730000");
    save(in(folder, BIN "/SAMPLE"), "data_batch_2.bin 3\n", 19);
    ds_dataset *d = open_quietly(folder, DS_TRAIN);
    CHECK_INT(ds_dataset_len(d), 3);
    ds_dataset_free(d);
    CHECK(open_quietly(folder, DS_TEST) == NULL);
    CHECK_ERROR("SAMPLE names no file of this split");
}

static void a_folder_without_data_is_refused(void **state)
{
    (void)state;
    const char *folder = new_folder();
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("has neither cifar-10-batches-bin nor cifar-10-batches-py");
    CHECK(open_quietly(in(folder, "not-there"), DS_TRAIN) == NULL);
    CHECK_ERROR("not-there has neither");
    CHECK(open_quietly(NULL, DS_TRAIN) == NULL);
    CHECK_ERROR("no folder is given");
    CHECK(open_quietly(folder, (ds_split)7) == NULL);
    CHECK_ERROR("split is 7");
    save(in(folder, BIN), "x", 1);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("cifar-10-batches-bin is a file, expected a folder");
    CHECK(open_quietly(in(folder, BIN), DS_TRAIN) == NULL);
    CHECK_ERROR("is a file, expected a folder");
}

static void a_folder_that_may_not_be_read_is_named(void **state)
{
    (void)state;
    if (geteuid() == 0) skip(); /* root may read everything */
    const char *folder = new_folder();
    make_bin(folder, 2);
    chmod(folder, 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("Permission denied");
    chmod(folder, 0700);
}

/* ---- pickles ------------------------------------------------------------------------------------------- */

/* The test batch of folder becomes b. */
static void set_test_batch(const char *folder, const bytes *b)
{
    save(in(folder, PY "/test_batch"), b->p, b->n);
}

static void a_pickle_may_end_nowhere_else(void **state)
{
    (void)state;
    const char *folder = new_folder();
    make_py(folder, 1);
    bytes whole = {0};
    put_batch(&whole, 0, 1);
    for (size_t n = 0; n < whole.n; n++) {
        set_test_batch(folder, &(bytes){whole.p, n, n});
        CHECK(open_quietly(folder, DS_TEST) == NULL);
        CHECK_ERROR("test_batch: ");
    }
    put_text(&whole, "x");
    set_test_batch(folder, &whole);
    CHECK(open_quietly(folder, DS_TEST) == NULL);
    CHECK_ERROR("continues after the pickle's end");
    free(whole.p);
}

/* Every byte of the pickle but the pixels, changed in turn to some values:
 * refused or read, and never more than that. The sanitizers look on. */
static void a_damaged_pickle_does_no_harm(void **state)
{
    (void)state;
    static const uint8_t values[] = {0, 1, 'q', 'h', 'j', 'R', 'b', 'e', 'u', 't', '(', 0x85, 0xff};
    const char *folder = new_folder();
    make_py(folder, 1);
    bytes whole = {0};
    put_batch(&whole, 0, 1);
    for (size_t k = 0; k < whole.n; k++) {
        if (k == 240) k += 3000; /* within the pixels */
        uint8_t was = whole.p[k];
        for (size_t v = 0; v < sizeof values; v++) {
            whole.p[k] = values[v];
            set_test_batch(folder, &whole);
            ds_dataset *d = open_quietly(folder, DS_TEST);
            CHECK(d || ds_error());
            ds_dataset_free(d);
            ds_error_clear();
        }
        whole.p[k] = was;
    }
    free(whole.p);
}

static void check_hostile(const char *pickle, size_t n, const char *message)
{
    const char *folder = new_folder();
    make_py(folder, 1);
    set_test_batch(folder, &(bytes){(uint8_t *)(uintptr_t)pickle, n, n});
    CHECK(open_quietly(folder, DS_TEST) == NULL);
    CHECK_ERROR(message);
}
#define CHECK_HOSTILE(pickle, message) check_hostile(pickle, sizeof(pickle) - 1, message)

static void a_pickle_that_wants_more_is_refused(void **state)
{
    (void)state;
    CHECK_HOSTILE("\x80\x02"
                  "cos\nsystem\nU\x04true\x85R.",
                  "wants Python's os.system");
    CHECK_HOSTILE("\x80\x02"
                  "cposix\nsystem\n(U\x04truetR.",
                  "wants Python's posix.system");
    CHECK_HOSTILE("\x80\x02"
                  "cnumpy.core.multiarray\nscalar\n.",
                  "wants Python's numpy.core.multiarray.scalar, which is not read here");
    CHECK_HOSTILE("\x80\x02"
                  "ccollections\nOrderedDict\n)R.",
                  "wants Python's collections.OrderedDict");
    CHECK_HOSTILE("\x80\x06.", "protocol 6: 2 to 5 are read");
    CHECK_HOSTILE("\x80\x04\x95", "byte 3: wants 8 bytes more, 0 are there");
    CHECK_HOSTILE("cos\nsystem\n", "no pickle of protocol 2 to 5");
    CHECK_HOSTILE("\x80\x02i", "opcode 0x69");
    CHECK_HOSTILE("\x80\x02h\x05.", "memo number 5 was never given");
    CHECK_HOSTILE("\x80\x02Nr\xff\xff\xff\x7f.", "memo number 2147483647");
    CHECK_HOSTILE("\x80\x02)b.", "the stack is empty");
    CHECK_HOSTILE("\x80\x02)Rt.", "the stack is empty");
    CHECK_HOSTILE("\x80\x02t.", "a mark is missing");
    CHECK_HOSTILE("\x80\x02}}.", "it ends with 2 values on the stack");
    CHECK_HOSTILE("\x80\x02K\x01.", "the pickle is of class int, expected a dict");
    CHECK_HOSTILE("\x80\x02}.", "\"data\" is not an array of NumPy, expected uint8 [1, 3072]");
    CHECK_HOSTILE("\x80\x02"
                  "cnumpy\nndarray\n)R.",
                  "numpy.ndarray is called");
    CHECK_HOSTILE("\x80\x02T\xff\xff\xff\xff", "wants 4294967295 bytes more, 0 are there");
    CHECK_HOSTILE("\x80\x02\x8a\x09"
                  "12345678",
                  "wants 9 bytes more, 8 are there");
    CHECK_HOSTILE("", "the file is empty");
}

/* 32 bytes as an array of NumPy's type `code`, as "data". */
static void check_array(const char *code, int n, const char *message)
{
    bytes b = {0};
    char head[200];
    int length = snprintf(
        head, sizeof head,
        "\x80\x02}(U\x04"
        "datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n)tR(K\x01K%c\x85"
        "cnumpy\ndtype\n(U\x02%stR\x89U ",
        n, code);
    put(&b, head, (size_t)length);
    put(&b, (uint8_t[32]){0}, 32);
    put_text(&b, "tbu.");
    const char *folder = new_folder();
    make_py(folder, 1);
    set_test_batch(folder, &b);
    CHECK(open_quietly(folder, DS_TEST) == NULL);
    CHECK_ERROR(message);
    free(b.p);
}

static void an_array_of_another_kind_is_refused(void **state)
{
    (void)state;
    check_array("f4", 8, "\"data\" is float32 [8], expected uint8 [1, 3072]");
    check_array("u1", 32, "\"data\" is uint8 [32], expected uint8 [1, 3072]");
    check_array("u2", 15, "an array of NumPy has other data than its shape says");
}

/* `unit` again and again, to 3 MB. */
static void check_flood(const char *start, const char *unit)
{
    bytes b = {0};
    put_text(&b, start);
    while (b.n < 3000000) put_text(&b, unit);
    check_hostile((const char *)b.p, b.n, "it holds too many values");
    free(b.p);
}

static void a_pickle_cannot_fill_the_memory(void **state)
{
    (void)state;
    check_flood("\x80\x02", "(");
    check_flood("\x80\x02", "]");
    check_flood("\x80\x02", "}");
    check_flood("\x80\x02", ")");
    check_flood("\x80\x02N", "2");
    check_flood("\x80\x02N", "\x85");
    check_flood("\x80\x02Nq\x01", "h\x01");
    check_flood("\x80\x02", "G12345678");
    check_flood("\x80\x02", "U\x08"
                            "abcdefgh");
    check_flood("\x80\x02", "U\x14"
                            "abcdefghijklmnopqrst");
    check_flood("\x80\x02", "cnumpy\nndarray\n");
    check_flood("\x80\x02", "cnumpy.core.multiarray\n_reconstruct\n)R");
}

static void what_a_batch_must_have_is_checked(void **state)
{
    (void)state;
    const char *folder = new_folder();
    make_py(folder, 2);
    bytes b = {0};
    put_batch(&b, 0, 3);
    set_test_batch(folder, &b);
    CHECK(open_quietly(folder, DS_TEST) == NULL);
    CHECK_ERROR("\"data\" is uint8 [3, 3072], expected uint8 [2, 3072]");
    b.n = 0;
    put_batch(&b, 0, 2);
    b.p[43 + 3] = 200; /* the second label: the list begins at byte 43 */
    set_test_batch(folder, &b);
    CHECK(open_quietly(folder, DS_TEST) == NULL);
    CHECK_ERROR("test_batch: record 1 has label 200, expected 0 to 9");
    free(b.p);
    CHECK(unlink(in(folder, PY "/SAMPLE")) == 0);
    CHECK(open_quietly(folder, DS_TRAIN) == NULL);
    CHECK_ERROR("\"data\" is uint8 [2, 3072], expected uint8 [10000, 3072]");
}

/* ---- the sample, and words ------------------------------------------------------------------------------- */

static void the_sample_is_the_real_one(void **state)
{
    (void)state;
    const char *folder = new_folder();
    ds_cifar10_opts o = {.quiet = true, .sample = true, .raw = true};
    setenv("DS_CIFAR10_SAMPLE", DS_SOURCE_DIR "/assets/cifar10-sample.tar.xz", 1);
    for (int turn = 0; turn < 2; turn++) { /* unpacked, and found */
        ds_dataset *train = ds_cifar10_with(folder, DS_TRAIN, o),
                   *test = ds_cifar10_with(folder, DS_TEST, o);
        CHECK_INT(ds_dataset_len(train), 3900);
        CHECK_INT(ds_dataset_len(test), 1000);
        static const uint8_t first[] = {59, 43, 50, 68, 98},
                             first_test[] = {158, 159, 165, 166, 160};
        uint8_t x[3072];
        int64_t label;
        CHECK_INT(ds_dataset_get(train, 0, (void *[]){x, &label}), DS_OK);
        CHECK_INT(label, 6); /* a frog */
        CHECK(!memcmp(x, first, sizeof first));
        CHECK_INT(ds_dataset_get(test, 0, (void *[]){x, &label}), DS_OK);
        CHECK_INT(label, 3); /* the cat that the tutorial shows */
        CHECK(!memcmp(x, first_test, sizeof first_test));
        ds_dataset_free(train);
        ds_dataset_free(test);
        CHECK_INT(entries(folder), 1);
        CHECK_INT(entries(in(folder, "cifar-10-sample")), 1);
    }

    setenv("DS_CIFAR10_SAMPLE", "/no/such/sample", 1);
    folder = new_folder();
    CHECK(ds_cifar10_with(folder, DS_TRAIN, o) == NULL);
    CHECK_ERROR("DS_CIFAR10_SAMPLE names /no/such/sample");
    unsetenv("DS_CIFAR10_SAMPLE");
}

static void classes_have_the_tutorials_names(void **state)
{
    (void)state;
    assert_string_equal(ds_cifar10_class(0), "plane");
    assert_string_equal(ds_cifar10_class(9), "truck");
    CHECK(!ds_cifar10_class(10) && !ds_cifar10_class(-1));
}

TEST_MAIN(cmocka_unit_test(the_binary_layout_is_read), cmocka_unit_test(the_python_layout_is_read),
          cmocka_unit_test(the_full_set_has_its_sizes), cmocka_unit_test(a_wrong_size_is_named),
          cmocka_unit_test(only_a_marked_folder_may_be_smaller),
          cmocka_unit_test(a_folder_without_data_is_refused),
          cmocka_unit_test(a_folder_that_may_not_be_read_is_named),
          cmocka_unit_test(a_pickle_may_end_nowhere_else),
          cmocka_unit_test(a_damaged_pickle_does_no_harm),
          cmocka_unit_test(a_pickle_that_wants_more_is_refused),
          cmocka_unit_test(an_array_of_another_kind_is_refused),
          cmocka_unit_test(a_pickle_cannot_fill_the_memory),
          cmocka_unit_test(what_a_batch_must_have_is_checked),
          cmocka_unit_test(the_sample_is_the_real_one),
          cmocka_unit_test(classes_have_the_tutorials_names))
