/* tests/checkpoint/pth.c: what is saved is loaded; storages are shared as they
 * were; what is malformed is refused, with a reason; a save that fails leaves
 * the old file as it was. Files of PyTorch's own: tests/reference/pth.c,
 * tests/checkpoint/peer.c.
 * SPDX-License-Identifier: MIT */
#include "pickled.h"

#include "base/crc.h"
#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/value.h"
#include "checkpoint/zip.h"

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- round trips ------------------------------------------------------------------------------------------- */

static ds_tensor *at(const ds_value *v, const char *path)
{
    ds_tensor *x = NULL;
    CHECK_INT(ds_value_read_tensor(v, path, &x), DS_OK);
    return x;
}

static ds_value *reload(const ds_value *v)
{
    CHECK_INT(ds_value_save(v, folder_path("x.pth")), DS_OK);
    ds_value *w = ds_value_load(folder_path("x.pth"));
    CHECK(w != NULL);
    return w;
}

static int64_t file_bytes(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? st.st_size : -1;
}

static void same(ds_tensor *a, ds_tensor *b)
{
    CHECK_INT(ds_dtype_of(a), ds_dtype_of(b));
    CHECK_INT(ds_ndim(a), ds_ndim(b));
    for (int i = 0; i < ds_ndim(b); i++) CHECK_INT(ds_size(a, i), ds_size(b, i));
    CHECK(!memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(b) * ds_dtype_size(ds_dtype_of(b))));
}

static void dtypes(void **unused)
{
    (void)unused;
    ds_value *v = ds_value_dict();
    for (int d = 0; d < DS_DTYPES; d++) {
        ds_tensor *x = ds_cast(ds_arange(DS_F32, 0, 6, 1), (ds_dtype)d);
        ds_value_set_int(v, d, ds_value_tensor(ds_reshape(x, ds_shape(3, 2))));
    }
    ds_value_set(v, "scalar", ds_value_tensor(ds_scalar(DS_F64, 0.5)));
    ds_value_set(v, "empty", ds_value_tensor(ds_zeros(DS_I64, ds_shape(0, 3))));
    ds_value *w = reload(v);
    for (int d = 0; d < DS_DTYPES; d++) {
        char path[4];
        snprintf(path, sizeof path, "%d", d);
        same(at(w, path), at(v, path));
    }
    same(at(w, "scalar"), at(v, "scalar"));
    same(at(w, "empty"), at(v, "empty"));
    ds_value_free(v);
    ds_value_free(w);
}

/* Tied weights stay tied; slices of a large tensor cost their own bytes;
 * strides stay. */
static void views(void **unused)
{
    (void)unused;
    ds_tensor *big = ds_reshape(ds_arange(DS_F32, 0, 30000, 1), ds_shape(100, 300));
    ds_value *v = ds_value_dict();
    ds_value_set(v, "row", ds_value_tensor(ds_slice(big, 0, 7, 8)));
    ds_value_set(v, "next", ds_value_tensor(ds_slice(big, 0, 8, 9)));
    ds_value_set(v, "column", ds_value_tensor(ds_slice(big, 1, 7, 8)));
    ds_tensor *tied = ds_randn(DS_F32, ds_shape(4, 6));
    ds_value_set(v, "w", ds_value_tensor(tied));
    ds_value_set(v, "wt", ds_value_tensor(ds_transpose(tied, 0, 1)));
    ds_value_set(v, "w0", ds_value_tensor(ds_slice(tied, 0, 2, 4)));
    ds_value_set(v, "one",
                 ds_value_tensor(ds_expand(ds_ones(DS_F32, ds_shape(1)), ds_shape(1000))));
    ds_value *w = reload(v);
    static const char *const names[] = {"row", "next", "column", "w", "wt", "w0", "one"};
    for (int i = 0; i < 7; i++) same(at(w, names[i]), at(v, names[i]));
    CHECK(at(w, "w")->storage == at(w, "wt")->storage &&
          at(w, "w")->storage == at(w, "w0")->storage);
    CHECK(at(w, "row")->storage != at(w, "next")->storage); /* neighbours do not overlap */
    CHECK_INT(at(w, "wt")->stride[0], 1);
    CHECK_INT(at(w, "column")->stride[0], 1); /* alone and sparse: row-major */
    CHECK_INT(at(w, "one")->stride[0], 0);
    CHECK(file_bytes(folder_path("x.pth")) < 10000);
    ds_value_free(v);
    ds_value_free(w);
}

/* A file large enough to be mapped: its tensors are written to, and the file
 * stays as it is. */
static void mapped(void **unused)
{
    (void)unused;
    ds_tensor *x = ds_randn(DS_F32, ds_shape(3, 100, 1024));
    ds_state *state = ds_state_new();
    ds_state_set(state, "x", x);
    ds_state_set(state, "n", ds_scalar(DS_I64, 5));
    CHECK_INT(ds_save(state, folder_path("big.pth")), DS_OK);
    size_t before = ds_memory_allocated((ds_device){DS_CPU, 0});
    ds_state *a = ds_load(folder_path("big.pth"));
    CHECK(a != NULL);
    CHECK(ds_memory_allocated((ds_device){DS_CPU, 0}) - before < 4096);
    ds_tensor *y = ds_keep(ds_state_get(a, "x"));
    CHECK((uintptr_t)ds_data(y) % 64 == 0);
    ds_state_free(a); /* the mapping lives with its tensors */
    same(y, x);
    ((float *)ds_data_mut(y))[5] += 1;
    ds_state *b = ds_load(folder_path("big.pth"));
    same(ds_state_get(b, "x"), x);
    ds_state_free(b);
    CHECK_INT(ds_save(state, folder_path("big.pth")), DS_OK); /* replaced under the mapping */
    CHECK_CLOSE(((const float *)ds_data(y))[6], ((const float *)ds_data(x))[6], 0);
    ds_drop(y);
    ds_state_free(state);
}

static void equal_files(void **unused)
{
    (void)unused;
    char *file[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        ds_value *v = ds_value_dict();
        for (int k = 0; k < 20; k++)
            ds_value_set_int(v, k, ds_value_tensor(ds_full(DS_F32, ds_shape(5 + k), k)));
        uint32_t crc = 0;
        CHECK_INT(dsi_pth_write(v, folder_path("crc.pth"), &crc), DS_OK);
        file[i] = dsi_file_read(folder_path("crc.pth"), &bytes[i]);
        CHECK_INT(crc, dsi_crc32(0, file[i], bytes[i]));
        ds_value_free(v);
    }
    CHECK_INT(bytes[0], bytes[1]);
    CHECK(!memcmp(file[0], file[1], bytes[0]));
    dsi_free(file[0]);
    dsi_free(file[1]);
}

static void not_saved(void **unused)
{
    (void)unused;
    ds_state *state = ds_state_new();
    ds_state_set(state, "x", ds_ones(DS_F32, ds_shape(2)));
    CHECK_INT(ds_save(state, folder_path("net.pth")), DS_OK);
    CHECK_INT(ds_save(state, folder_path("net.onnx")), DS_EINVAL);
    CHECK_ERROR("ends in .pth, .pt, .bin or .safetensors");
    CHECK_INT(ds_save(state, folder_path("none/net.pth")), DS_EIO);
    CHECK_ERROR("No such file or directory");
    CHECK_INT(ds_value_save(NULL, folder_path("net.pth")), DS_EINVAL);
    ds_error_clear();
    ds_value *v = ds_value_of_state(state);
    CHECK_INT(dsi_pth_write(v, "/dev/full", NULL), DS_EIO);
    CHECK_ERROR("write /dev/full: No space left on device");
    ds_value_free(v);
    ds_state_free(state);
    state = ds_load(folder_path("net.pth"));
    CHECK_INT(ds_state_len(state), 1);
    ds_state_free(state);
    CHECK(!ds_load(folder_path("absent.pth")));
    CHECK_ERROR("absent.pth: No such file or directory");
    CHECK(!ds_load(folder_path("")));
    CHECK_ERROR("which format is meant?");
}

static void no_state_dict(void **unused)
{
    (void)unused;
    ds_value *v = ds_value_dict();
    ds_state *state = ds_state_new();
    ds_state_set(state, "w", ds_ones(DS_F32, ds_shape(2)));
    ds_value_set(v, "epoch", ds_value_int(3));
    ds_value_set(v, "model_state_dict", ds_value_of_state(state));
    CHECK_INT(ds_value_save(v, folder_path("x.pt")), DS_OK);
    CHECK(!ds_load(folder_path("x.pt")));
    CHECK_ERROR(
        "is no state dict: it holds epoch (int), model_state_dict (OrderedDict). ds_value_load "
        "reads it, and ds_state_of_value(ds_value_get(value, \"model_state_dict\")) gives the "
        "weights");
    ds_value_free(v);
    ds_state_free(state);
    v = ds_value_dict();
    ds_value_set(v, "", ds_value_tensor(ds_ones(DS_F32, ds_shape(2))));
    CHECK_INT(ds_value_save(v, folder_path("x.pt")), DS_OK);
    CHECK(!ds_load(folder_path("x.pt")));
    CHECK_ERROR("x.pt is no state dict: it holds \"\" (Tensor)");
    ds_value_free(v);
}

/* A tensor of more than 4 GiB, and entries behind it: zip64. It takes 5 GB of
 * disk, so only where $DS_TEST_LARGE names a folder for it. */
#define LARGE ((int64_t)4300 << 20)

static ds_status count_up(void *arg, int64_t offset, void *to, size_t bytes)
{
    (void)arg;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)to)[i] = (uint8_t)(((uint64_t)offset + i) * 2654435761u >> 24);
    return DS_OK;
}

static void large(void **unused)
{
    (void)unused;
    const char *folder = getenv("DS_TEST_LARGE");
    if (!folder || !*folder) skip();
    char path[1000];
    snprintf(path, sizeof path, "%s/large.pth", folder);
    const int64_t shape[] = {LARGE / 1024, 1024};
    ds_value *v = ds_value_dict();
    ds_value_set(v, "before", ds_value_tensor(ds_ones(DS_F32, ds_shape(3))));
    ds_value_set(v, "large", dsi_value_reader(DS_U8, shape, 2, count_up, NULL));
    ds_value_set(v, "after", ds_value_tensor(ds_full(DS_F64, ds_shape(5), 7)));
    CHECK_INT(ds_value_save(v, path), DS_OK);
    ds_value_free(v);
    v = ds_value_load(path);
    CHECK(v != NULL);
    CHECK_CLOSE(ds_item(ds_slice(at(v, "after"), 0, 4, 5)), 7, 0);
    CHECK_INT(ds_numel(at(v, "large")), LARGE);
    const uint8_t *p = ds_data(at(v, "large"));
    uint8_t want;
    for (int64_t i = 0; i < LARGE; i += 123456789) {
        count_up(NULL, i, &want, 1);
        CHECK_INT(p[i], want);
    }
    ds_value_free(v);
}

/* ---- malformed files --------------------------------------------------------------------------------------- */

static void cut_and_spoilt(void **unused)
{
    (void)unused;
    ds_value *v = ds_value_dict();
    ds_value_set(v, "w", ds_value_tensor(ds_arange(DS_F32, 0, 10, 1)));
    ds_value_set(v, "n", ds_value_int(3));
    CHECK_INT(ds_value_save(v, folder_path("whole.pth")), DS_OK);
    ds_value_free(v);
    size_t n;
    char *bytes = dsi_file_read(folder_path("whole.pth"), &n);
    const char *path = folder_path("spoilt.pth");
    for (size_t i = 0; i < n; i++) {
        write_file(path, bytes, i);
        ds_value *w = ds_value_load(path);
        if (w) fail_msg("cut after %zu of %zu bytes it loads", i, n);
        CHECK_INT(ds_error_status(), DS_EFORMAT);
    }
    int loads = 0;
    for (size_t i = 0; i < n; i++) { /* padding, times and lengths that are not needed may change */
        bytes[i] ^= 0x40;
        write_file(path, bytes, n);
        ds_value *w = ds_value_load(path);
        loads += w != NULL;
        if (!w) CHECK_INT(ds_error_status(), DS_EFORMAT);
        if (w) CHECK_CLOSE(ds_item(ds_slice(at(w, "w"), 0, 9, 10)), 9, 0);
        ds_value_free(w);
        bytes[i] ^= 0x40;
    }
    CHECK(loads < (int)n * 2 / 3);
    ds_error_clear();
    dsi_free(bytes);
}

/* A file from before PyTorch 1.6. */
static void cut_old(void **unused)
{
    (void)unused;
    size_t n;
    char *bytes = dsi_file_read(DS_GOLDEN "/pth/legacy_views.pth", &n);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < n; i++) {
        write_file(folder_path("cut.pth"), bytes, i);
        if (ds_value_load(folder_path("cut.pth")))
            fail_msg("cut after %zu of %zu bytes it loads", i, n);
        CHECK_INT(ds_error_status(), DS_EFORMAT);
        CHECK(!strstr(ds_error(), "more failure"));
        ds_error_clear();
    }
    char *keys = memmem(bytes, n, "\x80\2]", 3); /* of the storages: not a list */
    memcpy(keys, "\x80\2U\1a.", 6);
    write_file(folder_path("cut.pth"), bytes, n);
    CHECK(ds_value_load(folder_path("cut.pth")) == NULL);
    CHECK_ERROR("the keys of its storages are of class str");
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\n";
    write_file(folder_path("cut.pth"), lfs, sizeof lfs - 1);
    CHECK(!ds_load(folder_path("cut.pth")));
    CHECK_ERROR("a pointer of Git LFS, not the file itself: run");
    write_file(folder_path("cut.pth"), "\x80\2K\1.", 5);
    CHECK(ds_value_load(folder_path("cut.pth")) == NULL);
    CHECK_ERROR("not a file of torch.save");
    bytes[1] = 9; /* the protocol */
    write_file(folder_path("cut.pth"), bytes, n);
    CHECK(ds_value_load(folder_path("cut.pth")) == NULL);
    CHECK(!strstr(ds_error(), "more failure"));
    CHECK_ERROR("protocol 9: 2 to 5 are read");
    dsi_free(bytes);
}

/* ---- archives ------------------------------------------------------------------------------------------------ */

static const char *archived(const char *const *entries, int n)
{
    dsi_file *f = dsi_file_replace(folder_path("z.pth"));
    dsi_zip_writer *w = dsi_zip_write_begin(f);
    for (int i = 0; i < n; i += 2)
        dsi_zip_entry(w, entries[i], entries[i + 1], strlen(entries[i + 1]));
    dsi_zip_write_end(w);
    CHECK_INT(dsi_file_commit(f), DS_OK);
    return load_message(folder_path("z.pth"));
}

#define CHECK_ARCHIVE(part, ...) \
    do { \
        const char *const list[] = {__VA_ARGS__}; \
        const char *said = archived(list, (int)(sizeof list / sizeof *list)); \
        if (!strstr(said, part) || (!*(part) && *said)) \
            fail_msg("%s:%d: \"%s\", want \"%s\"", __FILE__, __LINE__, said, part); \
    } while (0)

static void archives(void **unused)
{
    (void)unused;
    CHECK_ARCHIVE("", "a/data.pkl", "\x80\2}.", "a/version", "3\n");
    CHECK_ARCHIVE("", "a/data.pkl", "\x80\2}.", "a/version", "10", "a/byteorder", "big");
    CHECK_ARCHIVE("there is no a/version", "a/data.pkl", "\x80\2}.");
    CHECK_ARCHIVE("version 11 of the format", "a/data.pkl", "\x80\2}.", "a/version", "11");
    CHECK_ARCHIVE("byte order is neither", "a/data.pkl", "\x80\2}.", "a/version", "3",
                  "a/byteorder", "mixed");
    CHECK_ARCHIVE("there is no FOLDER/data.pkl", "data.pkl", "\x80\2}.", "version", "3");
    CHECK_ARCHIVE("there is no FOLDER/data.pkl", "a/b", "x");
    CHECK_ARCHIVE("a program of TorchScript", "a/data.pkl", "\x80\2}.", "a/constants.pkl",
                  "\x80\2).", "a/version", "3");
    CHECK_ARCHIVE("entry b/data.pkl of the archive is not in its folder a", "a/data.pkl",
                  "\x80\2}.", "a/version", "3", "b/data.pkl", "\x80\2N.");
    CHECK_ARCHIVE("entry a/version is there twice", "a/data.pkl", "\x80\2}.", "a/version", "3",
                  "a/version", "4");
}

/* By a tool that compresses, and does not align: libarchive. */
static void repacked(void **unused)
{
    (void)unused;
    static const char pickle[] = TENSOR("FloatStorage", "K\0K\2\x85K\1\x85");
    static const struct {
        const char *name, *data;
        size_t bytes;
    } entries[] = {{"a/data.pkl", pickle, sizeof pickle - 1},
                   {"a/version", "3\n", 2},
                   {"a/data/0", "\0\0\200?\0\0\200?", 8}};
    for (int stored = 0; stored < 2; stored++) {
        struct archive *z = archive_write_new();
        archive_write_set_format_zip(z);
        CHECK_INT(stored ? archive_write_zip_set_compression_store(z)
                         : archive_write_zip_set_compression_deflate(z),
                  ARCHIVE_OK);
        CHECK_INT(archive_write_open_filename(z, folder_path("r.pth")), ARCHIVE_OK);
        for (int i = 0; i < 3; i++) {
            struct archive_entry *e = archive_entry_new();
            archive_entry_set_pathname(e, entries[i].name);
            archive_entry_set_filetype(e, AE_IFREG);
            archive_entry_set_perm(e, 0644);
            if (!stored) archive_entry_set_size(e, (la_int64_t)entries[i].bytes);
            CHECK_INT(archive_write_header(z, e), ARCHIVE_OK);
            CHECK(archive_write_data(z, entries[i].data, entries[i].bytes) >= 0);
            archive_entry_free(e);
        }
        CHECK_INT(archive_write_close(z), ARCHIVE_OK);
        archive_write_free(z);
        ds_value *v = ds_value_load(folder_path("r.pth"));
        CHECK(v != NULL);
        CHECK_CLOSE(ds_item(ds_slice(at(v, "w"), 0, 1, 2)), 1, 0);
        ds_value_free(v);
    }
}

TEST_MAIN(cmocka_unit_test_setup_teardown(repacked, make, clean),
          cmocka_unit_test_setup_teardown(dtypes, make, clean),
          cmocka_unit_test_setup_teardown(views, make, clean),
          cmocka_unit_test_setup_teardown(mapped, make, clean),
          cmocka_unit_test_setup_teardown(equal_files, make, clean),
          cmocka_unit_test_setup_teardown(not_saved, make, clean),
          cmocka_unit_test_setup_teardown(no_state_dict, make, clean), cmocka_unit_test(large),
          cmocka_unit_test_setup_teardown(cut_and_spoilt, make, clean),
          cmocka_unit_test_setup_teardown(cut_old, make, clean),
          cmocka_unit_test_setup_teardown(archives, make, clean))
