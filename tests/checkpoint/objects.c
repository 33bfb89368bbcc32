/* tests/checkpoint/objects.c: objects of Python's library as plain values, and
 * unknown ones as DS_VALUE_OBJECT, for which no code is run.
 * tests/golden/objects was made by PyTorch 2.15 and NumPy 2.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include "checkpoint/value.h"
#include "checkpoint/zip.h"

#define GOLDEN(name) DS_GOLDEN "/objects/" name

static const char *class_at(const ds_value *v, const char *path)
{
    return ds_value_class(ds_value_find(v, path));
}

#define CHECK_TEXT(v, path, want, of_class) \
    do { \
        const char *text_; \
        CHECK_INT(ds_value_read_string(v, path, &text_), DS_OK); \
        if (strcmp(text_, want) != 0 || strcmp(class_at(v, path), of_class) != 0) \
            fail_msg("%s is \"%s\" of class %s", path, text_, class_at(v, path)); \
    } while (0)

static void known(void **state)
{
    (void)state;
    ds_value *v = ds_value_load(GOLDEN("known.pth"));
    CHECK(v != NULL);
    CHECK_TEXT(v, "path", "/a/b/c.txt", "PosixPath");
    CHECK_TEXT(v, "relpath", "b/c", "PosixPath");
    CHECK_TEXT(v, "rootpath", "/", "PosixPath");
    CHECK_TEXT(v, "emptypath", ".", "PosixPath");
    CHECK_TEXT(v, "wpath", "C:\\x\\y", "PureWindowsPath");
    CHECK_TEXT(v, "dt", "2024-05-01T12:34:56.000789", "datetime");
    CHECK_TEXT(v, "dtz", "2024-05-01T12:34:56+00:00", "datetime");
    CHECK_TEXT(v, "dtz2", "2024-05-01T12:34:56-05:30", "datetime");
    CHECK_TEXT(v, "date", "2024-05-01", "date");
    CHECK_TEXT(v, "time", "01:02:03", "time");
    CHECK_TEXT(v, "dec", "1.50", "Decimal");
    CHECK_TEXT(v, "npscalars/6", "hi", "str_");
    double x;
    CHECK(ds_value_read_float(v, "td", &x) == DS_OK && x == 86402.000003);
    CHECK(ds_value_read_float(v, "cplx/1", &x) == DS_OK && x == 2);
    CHECK(ds_value_read_float(v, "npscalars/7/0", &x) == DS_OK && x == 1);
    CHECK(!strcmp(class_at(v, "cplx"), "complex") &&
          !strcmp(class_at(v, "npscalars/7"), "complex64"));
    int64_t n;
    CHECK(ds_value_read_int(v, "ns/a", &n) == DS_OK && n == 1);
    CHECK(ds_value_read_int(v, "sns/q", &n) == DS_OK && n == 1);
    CHECK(ds_value_read_int(v, "deque/1", &n) == DS_OK && n == 2);
    CHECK(ds_value_read_int(v, "rng/2", &n) == DS_OK && n == 2);
    CHECK(ds_value_read_int(v, "npscalars/3", &n) == DS_OK && n == 4000000000);
    CHECK(!strcmp(ds_value_text(ds_value_get(v, "big")), "9223372036854775809"));
    const ds_value *key = ds_value_key_at(ds_value_get(v, "tkey"), 0); /* (1, (2, "a")) */
    CHECK(ds_value_kind_of(ds_value_at(key, 1)) == DS_VALUE_TUPLE);
    ds_value_free(v);
}

/* Integers without a sign are as wide as they must be. */
static void wide_integers(void **state)
{
    (void)state;
    static const int32_t transposed[] = {1, 4, 2, 5, 3, 65535};
    ds_value *v = ds_value_load(GOLDEN("known.pth"));
    ds_tensor *x;
    CHECK_INT(ds_value_read_tensor(v, "u16t", &x), DS_OK);
    CHECK(ds_dtype_of(x) == DS_I32 && ds_size(x, 0) == 3 && ds_size(x, 1) == 2);
    CHECK(!memcmp(ds_data(x), transposed, sizeof transposed));
    CHECK_INT(ds_value_read_tensor(v, "u32", &x), DS_OK);
    CHECK(ds_dtype_of(x) == DS_I64 && ds_item(x) == 4000000000.0);
    CHECK_INT(ds_value_read_tensor(v, "np_rng/1", &x), DS_OK);
    CHECK(ds_dtype_of(x) == DS_I64 && ((const int64_t *)ds_data(x))[2] == 4000000002);
    ds_value_free(v);
}

static void unknown(void **state)
{
    (void)state;
    CHECK(!ds_value_load(GOLDEN("unknown.pth")));
    CHECK_ERROR(
        "it wants Python's zoo.Cfg, which is not on the list of what is read; nothing was run. "
        ".objects = true of ds_value_load");
    ds_value *v = ds_value_load(GOLDEN("unknown.pth"), .objects = true);
    CHECK(v != NULL && !ds_error());
    const ds_value *object = ds_value_get(v, "dc");
    double lr;
    int64_t n;
    CHECK(ds_value_kind_of(object) == DS_VALUE_OBJECT &&
          !strcmp(ds_value_class(object), "zoo.Cfg"));
    CHECK(ds_value_read_float(v, "dc/lr", &lr) == DS_OK && lr == 0.1);
    CHECK(ds_value_read_int(v, "slots/state/0", &n) == DS_OK && n == 1);
    CHECK(ds_value_read_int(v, "enum/0", &n) == DS_OK && n == 1);
    CHECK(ds_value_read_int(v, "easydict/extra", &n) == DS_OK && n == 3);
    CHECK(ds_value_read_int(v, "mylist/1", &n) == DS_OK && n == 2);
    CHECK(!strcmp(class_at(v, "cyc/sub"), "...")); /* which holds itself */
    CHECK(!strcmp(class_at(v, "func"), "zoo.fn") && !strcmp(class_at(v, "partial/0"), "zoo.fn"));
    CHECK(!strcmp(ds_value_text(ds_value_find(v, "c64/dtype")), "torch.complex64"));
    CHECK(!strcmp(class_at(v, "f8"), "torch.Tensor") &&
          !strcmp(class_at(v, "big64"), "torch.Tensor"));
    CHECK(!strcmp(class_at(v, "np_str"), "ndarray"));
    const ds_value *key = ds_value_key_at(ds_value_get(v, "ekey"), 0);
    CHECK(!strcmp(ds_value_class(key), "zoo.Color") && ds_value_get_int(key, 0));

    /* what is beside them, and even within */
    ds_state *weights = ds_state_of_value(ds_value_get(v, "model_state_dict"));
    ds_tensor *w;
    CHECK_INT(ds_state_len(weights), 2);
    CHECK(ds_value_read_tensor(v, "seqmod/_modules/0/_parameters/weight", &w) == DS_OK &&
          ds_numel(w) == 4);
    ds_state_free(weights);

    CHECK(ds_value_save(v, folder_path("x.pth")) != DS_OK);
    CHECK_ERROR("an object of zoo.Cfg is not written");
    ds_value_free(v);
    v = ds_value_load(GOLDEN("unknown.pth"), .objects = true);
    CHECK(ds_value_save(ds_value_get(v, "ekey"), folder_path("x.pth")) != DS_OK);
    CHECK_ERROR("an object of zoo.Color is not written"); /* nor as a key */
    ds_value_free(v);
}

/* ---- pickles by hand --------------------------------------------------------------------------------------- */

static ds_value *pickled(const char *pickle, size_t n)
{
    dsi_file *f = dsi_file_replace(folder_path("p.pth"));
    dsi_zip_writer *w = dsi_zip_write_begin(f);
    dsi_zip_entry(w, "a/data.pkl", pickle, n);
    dsi_zip_entry(w, "a/version", "3\n", 2);
    dsi_zip_write_end(w);
    CHECK_INT(dsi_file_commit(f), DS_OK);
    return ds_value_load(folder_path("p.pth"), .objects = true);
}

#define PICKLED(text) pickled(text, sizeof(text) - 1)

static void hostile(void **state)
{
    (void)state;
    ds_value *v = PICKLED("\x80\2cos\nsystem\nX\2\0\0\0ls\x85R.");
    CHECK(ds_value_kind_of(v) == DS_VALUE_OBJECT && !strcmp(ds_value_class(v), "os.system"));
    CHECK(!strcmp(ds_value_text(ds_value_get_int(v, 0)), "ls")); /* and was not called */
    ds_value_free(v);
    v = PICKLED("\x80\2cm\nf\n)R)R."); /* what a call gives is called */
    CHECK(!strcmp(ds_value_class(v), "m.f") && !ds_value_len(v));
    ds_value_free(v);
    v = PICKLED("\x80\4\x8c\1m\x8c\1C\x93)}\x8c\1kK\5s\x92."); /* named arguments */
    CHECK(ds_value_get(v, "k") != NULL);
    ds_value_free(v);
    v = PICKLED("\x80\2cm\nC\n)\x81q\0}h\0K\1sb."); /* a key that is the object itself */
    CHECK(!v);
    CHECK_ERROR("holds itself");
    v = PICKLED("\x80\2]q\0h\0a0]."); /* a list that holds itself, and is dropped */
    CHECK_INT(ds_value_len(v), 0);
    ds_value_free(v);
    CHECK(!PICKLED("\x80\2cdatetime\ndatetime\nK\1\x85R")); /* cut off */
    CHECK_ERROR("cut off");
    v = PICKLED(
        "\x80\2cdatetime\ndatetime\nK\1\x85R."); /* other arguments: as one that is not known */
    CHECK(!strcmp(ds_value_class(v), "datetime.datetime") && !ds_error());
    ds_value_free(v);
    v = PICKLED("\x80\2cbuiltins\ncomplex\nK\1K\2\x86R.");
    CHECK(ds_value_kind_of(v) == DS_VALUE_OBJECT);
    ds_value_free(v);
}

/* Complex numbers are written as such; the others as the plain values that they
 * became. */
static void again(void **state)
{
    (void)state;
    ds_value *v = ds_value_load(GOLDEN("known.pth"));
    CHECK_INT(ds_value_save(v, folder_path("again.pth")), DS_OK);
    ds_value *w = ds_value_load(folder_path("again.pth"));
    CHECK(w && !strcmp(class_at(w, "cplx"), "complex") &&
          !strcmp(class_at(w, "npscalars/7"), "complex"));
    CHECK_TEXT(w, "path", "/a/b/c.txt", "str");
    ds_value_free(w);
    ds_value_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(known), cmocka_unit_test(wide_integers),
                                       cmocka_unit_test(unknown), cmocka_unit_test(hostile),
                                       cmocka_unit_test(again)};
    folder_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    return failed;
}
