/* tests/checkpoint/pickle.c: pickles in files of torch.save: what is read,
 * followed, and refused.
 * SPDX-License-Identifier: MIT */
#include "pickled.h"

#include "base/file.h"
#include "checkpoint/value.h"
#include "checkpoint/zip.h"

/* The message with which an archive of this pickle is refused, or "" if it
 * loads. */
static const char *pickled(const char *pickle, size_t n)
{
    dsi_file *f = dsi_file_replace(folder_path("p.pth"));
    dsi_zip_writer *w = dsi_zip_write_begin(f);
    dsi_zip_entry(w, "a/data.pkl", pickle, n);
    dsi_zip_entry(w, "a/version", "3\n", 2);
    dsi_zip_entry(w, "a/data/0", "\0\0\0\0\0\0\200?", 8); /* two floats */
    dsi_zip_write_end(w);
    CHECK_INT(dsi_file_commit(f), DS_OK);
    return load_message(folder_path("p.pth"));
}

#define CHECK_PICKLE(pickle, part) \
    do { \
        const char *said = pickled(pickle, sizeof(pickle) - 1); \
        if (!strstr(said, part) || (!*(part) && *said)) \
            fail_msg("%s:%d: \"%s\", want \"%s\"", __FILE__, __LINE__, said, part); \
    } while (0)

static void pickles(void **unused)
{
    (void)unused;
    CHECK_PICKLE("\x80\2}.", "");
    CHECK_PICKLE("\x80\4]\x94\x8c\1x\x94"
                 "ah\1a.",
                 ""); /* memo, lists */
    CHECK_PICKLE("\x80\2(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
                 "7X\3\0\0\0cpuK\2tQ0N.",
                 "storage data/7 is missing");
    CHECK_PICKLE(TENSOR("FloatStorage", "K\0K\2\x85K\1\x85"), "");
    CHECK_PICKLE(TENSOR_WITH("FloatStorage", "K\0K\2\x85K\1\x85", "}X\3\0\0\0neg\x89s"), "");
    CHECK_PICKLE(TENSOR_WITH("FloatStorage", "K\0K\2\x85K\1\x85", "}X\3\0\0\0neg\x88s"),
                 "a tensor whose elements are negated when they are read: save x.resolve_neg()");
    CHECK_PICKLE(TENSOR("FloatStorage", "K\11K\0\x85K\1\x85"), ""); /* empty, behind its storage */
    CHECK_PICKLE(TENSOR("FloatStorage", "K\1K\2\x85K\1\x85"),
                 "w [2] at element 1 is outside of its storage of 2");
    CHECK_PICKLE(TENSOR("FloatStorage", "J\377\377\377\377K\2\x85K\1\x85"),
                 "outside of its storage");
    CHECK_PICKLE(TENSOR("FloatStorage", "K\0K\2\x85J\377\377\377\377\x85"),
                 "outside of its storage");
    CHECK_PICKLE(TENSOR("FloatStorage",
                        "K\0J\377\377\377\177\x85\x8a\10\377\377\377\377\377\377\377\177\x85"),
                 "outside of its storage");
    CHECK_PICKLE(TENSOR("FloatStorage", "K\0J\377\377\377\177J\377\377\377\177\x86K\0K\0\x86"),
                 "repeats 2 elements to more bytes than are read");
    CHECK_PICKLE(TENSOR("FloatStorage", "K\0K\2\x85K\1K\1\x86"),
                 "other arguments than torch.save writes");
    CHECK_PICKLE(TENSOR("DoubleStorage", "K\0K\2\x85K\1\x85"),
                 "storage 0 has 8 bytes, 2 elements of torch.float64 are expected");
    CHECK_PICKLE(TENSOR("ComplexFloatStorage", "K\0K\2\x85K\1\x85"),
                 "w is a tensor of torch.complex64, which there is not");
}

/* Pickles that do not end, or that call something. */
static void refused_pickles(void **unused)
{
    (void)unused;
    CHECK_PICKLE("\x80\2cos\nsystem\nX\2\0\0\0ls\x85R.",
                 "it wants Python's os.system, which is not on the list");
    CHECK_PICKLE("\x80\4\x8c\5posix\x8c\6system\x93.", "it wants Python's posix.system");
    CHECK_PICKLE("\x80\2c__builtin__\neval\n.", "it wants Python's builtins.eval");
    CHECK_PICKLE("\x80\2ctorch.nn.modules.linear\nLinear\n)\x81}b.",
                 "it holds an object of class torch.nn.modules.linear.Linear, which only Python "
                 "can make: save the module's state_dict()");
    CHECK_PICKLE("\x80\2ctorch._utils\n_rebuild_qtensor\n.",
                 "it wants torch._utils._rebuild_qtensor, a kind of tensor that is not known here");
    CHECK_PICKLE("\x80\2ccollections\nOrderedDict\n.",
                 "is collections.OrderedDict itself, no value");
    CHECK_PICKLE("\x80\2ctorch\nTensor\n)R.", "torch.Tensor is called");
    CHECK_PICKLE("\x80\2]q\0h\0a.", "is a list or dict that holds itself");
    CHECK_PICKLE("\x80\2]q\0}X\1\0\0\0kh\0sa.", "that holds itself");
    CHECK_PICKLE("\x80\2K\1R.", "the stack is empty");
    CHECK_PICKLE("\x80\2K\1)R.", "a call of a value of class int");
    CHECK_PICKLE("\x80\2e.", "a mark is missing");
    CHECK_PICKLE("\x80\2h\7.", "memo number 7 was never given");
    CHECK_PICKLE("\x80\2Nr\377\377\377\377.", "memo number 4294967295");
    CHECK_PICKLE("\x80\2X\377\377\377\177x.", "wants 2147483647 bytes more");
    CHECK_PICKLE("\x80\4\x8d\377\377\377\377\377\377\377\377x.", "bytes more");
    CHECK_PICKLE("\x80\2X\2\0\0\0\300\200.", "is not UTF-8");
    CHECK_PICKLE("\x80\2}]K\1s.", "a key of class list");
    CHECK_PICKLE("\x80\2NK\1a.", "an item for a value of class NoneType");
    CHECK_PICKLE("\x80\2NN.", "it ends with 2 values on the stack");
    CHECK_PICKLE("\x80\2N", "it was cut off or damaged");
    CHECK_PICKLE("\x80\11N.", "protocol 9");
    CHECK_PICKLE("\x80\2Pnone\n.", "opcode 0x50 is not one that torch.save writes");
    CHECK_PICKLE("\x80\2(X\6\0\0\0moduletQ.", "a persistent id that does not name a storage");
    CHECK_PICKLE("\x80\2X\1\0\0\0xQ.", "a persistent id that does not name a storage");
    CHECK_PICKLE("\x80\2cno end", "a name has no end");
}

static void check_class(const ds_value *v, int64_t i, const char *want)
{
    assert_string_equal(ds_value_class(ds_value_at(v, i)), want);
}

/* Classes that have opcodes or calls of their own; also of what is written
 * again. */
static void classes(void **unused)
{
    (void)unused;
    CHECK_PICKLE("\x80\5(\x96\1\0\0\0\0\0\0\0x(K\1\x91"
                 "c__builtin__\nbytearray\n)Rctorch\nquint8\n"
                 "ctorch.serialization\n_get_layout\nX\15\0\0\0torch.strided\x85Rt.",
                 "");
    ds_value *v = ds_value_load(folder_path("p.pth"));
    check_class(v, 0, "bytearray");
    check_class(v, 1, "frozenset");
    check_class(v, 2, "bytearray");
    check_class(v, 3, "dtype");
    check_class(v, 4, "layout");
    CHECK_INT(ds_value_save(v, folder_path("again.pth")), DS_OK);
    ds_value_free(v);
    v = ds_value_load(folder_path("again.pth"));
    check_class(v, 4, "layout");
    assert_string_equal(ds_value_text(ds_value_at(v, 4)), "torch.strided");
    ds_value_free(v);
}

/* Bytes behind the archive, which PyTorch does not mind; an end cut short is
 * none. */
static void followed(void **unused)
{
    (void)unused;
    size_t n, room = 300;
    CHECK_PICKLE("\x80\2}.", "");
    char *bytes = dsi_file_read(folder_path("p.pth"), &n), *more = calloc(1, n + room);
    memcpy(more, bytes, n);
    write_file(folder_path("p.pth"), more, n + room);
    ds_value *v = ds_value_load(folder_path("p.pth"));
    CHECK(v != NULL);
    ds_value_free(v);
    write_file(folder_path("p.pth"), more, n - 1);
    CHECK(ds_value_load(folder_path("p.pth")) == NULL);
    ds_error_clear();
    dsi_free(bytes);
    free(more);
}

/* Small files that ask for much: a list of two lists of two lists ..., an
 * endless depth, copies of copies. */
static void bombs(void **unused)
{
    (void)unused;
    char pickle[9000] = "\x80\2(]q\0";
    size_t n = 6;
    for (int i = 1; i < 40; i++) { /* [x, x] of the one before */
        const char list[] = {']', '(', 'h', (char)(i - 1), 'h', (char)(i - 1), 'e', 'q', (char)i};
        memcpy(pickle + n, list, sizeof list);
        n += sizeof list;
    }
    memcpy(pickle + n, "t.", 2);
    const char *said = pickled(pickle, n + 2);
    CHECK(strstr(said, "holds the same lists again and again") != NULL);

    /* ten lists, each of which is 100 deep and has the one before in it */
    n = 3;
    for (int k = 0; k < 10; k++) {
        memset(pickle + n, ']', 100);
        n += 100;
        if (k) {
            const char before[] = {'h', (char)(k - 1), 'a'};
            memcpy(pickle + n, before, 3);
            n += 3;
        }
        memset(pickle + n, 'a', 99);
        n += 99;
        pickle[n++] = 'q';
        pickle[n++] = (char)k;
    }
    memcpy(pickle + n, "t.", 2);
    said = pickled(pickle, n + 2);
    CHECK(strstr(said, "is more than 500 lists deep") != NULL);

    memset(pickle, ']', sizeof pickle);
    memcpy(pickle, "\x80\2", 2);
    memset(pickle + 4000, 'a', 3997);
    pickle[7997] = '.';
    said = pickled(pickle, 7998);
    CHECK(strstr(said, "is more than 500 lists deep") != NULL);

    char all[9000]; /* a string of 3 KB, encoded again and again */
    memcpy(all, "\x80\2(X\270\13\0\0", 8);
    size_t m = 8;
    memset(all + m, 'x', 3000);
    m += 3000;
    memcpy(all + m, "q\0c_codecs\nencode\nq\1X\6\0\0\0latin1q\2", 33);
    m += 33;
    for (int i = 0; i < 600; i++, m += 8) memcpy(all + m, "h\1h\0h\2\x86R", 8);
    memcpy(all + m, "t.", 2);
    said = pickled(all, m + 2);
    CHECK(strstr(said, "it makes more than 16 times its own size") != NULL);
}

TEST_MAIN(cmocka_unit_test_setup_teardown(pickles, make, clean),
          cmocka_unit_test_setup_teardown(refused_pickles, make, clean),
          cmocka_unit_test_setup_teardown(classes, make, clean),
          cmocka_unit_test_setup_teardown(followed, make, clean),
          cmocka_unit_test_setup_teardown(bombs, make, clean))
