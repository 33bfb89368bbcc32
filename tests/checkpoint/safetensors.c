/* tests/checkpoint/safetensors.c: what is saved is loaded; what is malformed is
 * refused, with a reason; a save that fails leaves the old file as it was.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "device/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a folder of this test's own ------------------------------------------------------------------- */

static char folder[256], file[300];

static int make_folder(void **unused)
{
    (void)unused;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/ds_safetensors_XXXXXX", tmp && *tmp ? tmp : P_tmpdir);
    if (!mkdtemp(folder)) return -1;
    snprintf(file, sizeof file, "%s/x.safetensors", folder);
    return 0;
}

static int count_files(void)
{
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

static int remove_folder(void **unused)
{
    (void)unused;
    unlink(file);
    return rmdir(folder);
}

/* ---- round trips ------------------------------------------------------------------------------------ */

/* [2,3] of dtype with the bytes 0, 1, 2, ... (of bools 0, 1, 0, ...). */
static ds_tensor *sample(ds_dtype dtype)
{
    unsigned char bytes[48];
    for (int i = 0; i < 48; i++) bytes[i] = (unsigned char)(dtype == DS_BOOL ? i % 2 : i);
    return ds_from_data(dtype, ds_shape(2, 3), bytes);
}

static void check_same(ds_tensor *got, ds_tensor *want)
{
    CHECK(got && want);
    CHECK_INT(ds_dtype_of(got), ds_dtype_of(want));
    CHECK_INT(ds_ndim(got), ds_ndim(want));
    for (int i = 0; i < ds_ndim(want); i++) CHECK_INT(ds_size(got, i), ds_size(want, i));
    size_t bytes = (size_t)ds_numel(want) * ds_dtype_size(ds_dtype_of(want));
    CHECK(!bytes || memcmp(ds_data(got), ds_data(want), bytes) == 0);
}

static void every_dtype(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    for (int d = 0; d < DS_DTYPES; d++)
        CHECK_INT(ds_state_set(state, ds_dtype_name((ds_dtype)d), sample((ds_dtype)d)), DS_OK);
    CHECK_INT(ds_save(state, file), DS_OK);
    ds_state *back = ds_load(file);
    CHECK_INT(ds_state_len(back), DS_DTYPES);
    for (int d = 0; d < DS_DTYPES; d++) {
        assert_string_equal(ds_state_name(back, d), ds_dtype_name((ds_dtype)d)); /* order kept */
        check_same(ds_state_at(back, d), ds_state_at(state, d));
    }
    ds_state_free(back);
    ds_state_free(state);
    ds_scope_close(scope);
    CHECK_INT(ds_live_tensors(), 0);
}

static void scalars_and_empty_tensors(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "none", ds_zeros(DS_I16, ds_shape(0, 4))), DS_OK);
    CHECK_INT(ds_state_set(state, "scalar", ds_scalar(DS_F64, -1.5)), DS_OK);
    CHECK_INT(ds_state_set(state, "none in the middle", ds_zeros(DS_F32, ds_shape(3, 0, 2))),
              DS_OK);
    CHECK_INT(ds_state_set(state, "\xc3\xa9 \"quoted\" \\", ds_ones(DS_F32, ds_shape(1))), DS_OK);
    CHECK_INT(ds_state_set(state, "none at the end", ds_zeros(DS_BOOL, ds_shape(0))), DS_OK);
    CHECK_INT(ds_save(state, file), DS_OK);
    ds_state *back = ds_load(file);
    CHECK_INT(ds_state_len(back), 5);
    for (int i = 0; i < 5; i++)
        check_same(ds_state_get(back, ds_state_name(state, i)), ds_state_at(state, i));
    CHECK(ds_item(ds_state_get(back, "scalar")) == -1.5);
    ds_state_free(back);
    ds_state_free(state);

    state = ds_state_new(); /* no tensor at all */
    CHECK_INT(ds_save(state, file), DS_OK);
    back = ds_load(file);
    CHECK(back);
    CHECK_INT(ds_state_len(back), 0);
    ds_state_free(back);
    ds_state_free(state);
    ds_scope_close(scope);
}

/* Views in any order of memory are written row-major. */
static void strided_tensors(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_arange(DS_F32, 0, 24, 1);
    ds_dims nhwc = ds_shape(1, 2, 3, 4), order = ds_shape(0, 3, 1, 2);
    ds_tensor *image = ds_permute(ds_reshape(x, nhwc),
                                  order); /* [1,4,2,3], channels last in memory */
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "image", image), DS_OK);
    CHECK_INT(ds_state_set(state, "part", ds_slice(x, 0, 5, 9)), DS_OK);
    CHECK_INT(ds_save(state, file), DS_OK);
    ds_state *back = ds_load(file);
    const float *got = ds_data(ds_state_get(back, "image")),
                *part = ds_data(ds_state_get(back, "part"));
    CHECK(got && part);
    for (int c = 0; c < 4; c++)
        for (int i = 0; i < 6; i++) CHECK(got[c * 6 + i] == (float)(i * 4 + c));
    for (int i = 0; i < 4; i++) CHECK(part[i] == (float)(5 + i));
    ds_state_free(back);
    ds_state_free(state);
    ds_scope_close(scope);
}

/* ---- the bytes of a file ---------------------------------------------------------------------------- */

static void write_file(const void *bytes, size_t n)
{
    FILE *f = fopen(file, "wb");
    CHECK(f);
    if (!f) return;
    CHECK(fwrite(bytes, 1, n, f) == n);
    CHECK(fclose(f) == 0);
}

static size_t read_file(char *bytes, size_t room)
{
    FILE *f = fopen(file, "rb");
    CHECK(f);
    if (!f) return 0;
    size_t n = fread(bytes, 1, room, f);
    fclose(f);
    return n;
}

/* A file of that header and `data` bytes of zeros. */
static void write_header(const char *header, size_t data)
{
    char bytes[2048] = {0};
    size_t n = strlen(header);
    bytes[0] = (char)(n & 255);
    bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, header, n);
    write_file(bytes, 8 + n + data);
}

static void layout_and_metadata(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "a", ds_ones(DS_F32, ds_shape(2))), DS_OK);
    const char *const metadata[] = {"format", "pt", "note", "x", NULL};
    CHECK_INT(ds_safetensors_save(state, file, metadata), DS_OK);
    char bytes[400] = {0};
    size_t n = read_file(bytes, sizeof bytes);
    size_t header = (unsigned char)bytes[0];
    CHECK_INT(header % 8, 0);
    CHECK_INT(n, 8 + header + 8);
    CHECK(strstr(bytes + 8,
                 "\"__metadata__\":{\"format\":\"pt\",\"note\":\"x\",\"deepspeed_crc32\":\""));
    CHECK(strstr(bytes + 8, "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"));
    ds_state *back = ds_load(file);
    CHECK_INT(ds_state_len(back), 1);
    ds_state_free(back);

    const char *const no_value[] = {"format", NULL, NULL},
                      *const twice[] = {"a", "1", "a", "2", NULL},
                      *const latin1[] = {"a", "\xe9", NULL},
                      *const own[] = {"deepspeed_crc32", "0", NULL};
    CHECK_INT(ds_safetensors_save(state, file, no_value), DS_EINVAL);
    CHECK_ERROR("metadata key format has no value");
    CHECK_INT(ds_safetensors_save(state, file, twice), DS_EINVAL);
    CHECK_ERROR("metadata key a is there twice");
    CHECK_INT(ds_safetensors_save(state, file, latin1), DS_EINVAL);
    CHECK_ERROR("metadata a is not UTF-8");
    CHECK_INT(ds_safetensors_save(state, file, own), DS_EINVAL);
    CHECK_ERROR("metadata key deepspeed_crc32 is the library's own");
    ds_state_free(state);
    ds_scope_close(scope);
}

static void names_that_cannot_be(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "__metadata__", ds_ones(DS_F32, ds_shape(2))), DS_OK);
    CHECK_INT(ds_save(state, file), DS_EINVAL);
    CHECK_ERROR("cannot be named __metadata__");
    ds_state_free(state);
    state = ds_state_new();
    CHECK_INT(ds_state_set(state, "\xff", ds_ones(DS_F32, ds_shape(2))), DS_OK);
    CHECK_INT(ds_save(state, file), DS_EINVAL);
    CHECK_ERROR("not UTF-8");
    CHECK_INT(ds_save(state, "x.txt"), DS_EINVAL);
    CHECK_ERROR("x.txt: which format");
    CHECK(!ds_load("x.txt"));
    CHECK_ERROR("x.txt: which format");
    CHECK_INT(ds_save(state, NULL), DS_EINVAL);
    CHECK_ERROR("path is NULL");
    CHECK(!ds_load(NULL));
    CHECK_ERROR("path is NULL");
    CHECK(ds_save(NULL, file) != DS_OK);
    CHECK_ERROR("NULL");
    ds_state_free(state);
    ds_scope_close(scope);
}

/* ---- malformed files -------------------------------------------------------------------------------- */

typedef struct Bad {
    const char *header;
    size_t data;
    const char *says;
} Bad;

#define A(dtype, shape, offsets) \
    "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define B(offsets) "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":" offsets "}"

static const Bad bad[] = {
    {"", 0, "does not begin with {"},
    {" {}", 0, "does not begin with {"},
    {"[]", 0, "does not begin with {"},
    {"{", 0, "not JSON"},
    {"{}x", 0, "not JSON"},
    {"{\"a\":NaN}", 0, "not JSON"},
    {"{\"a\":7}", 0, "tensor a: is not a map"},
    {"{\"\\u0000\":7}", 0, "not JSON"},
    {"{\"\":7}", 0, "a tensor has no name"},
    {"{\"\xff\":7}", 0, "not JSON"},
    {"{}", 1, "1 bytes after the last tensor"},
    {"{" A("F32", "[2]", "[0,8]") "," A("F32", "[2]", "[8,16]") "}", 16, "duplicate"},
    {"{" A("F32", "[2]", "[0,8]") "}", 7, "ends at byte 8 of the data, which has 7"},
    {"{" A("F32", "[2]", "[0,8]") "}", 9, "1 bytes after the last tensor"},
    {"{" A("F32", "[2]", "[0,4]") "}", 4, "F32[2] takes 8 bytes, data_offsets give 4"},
    {"{" A("F32", "[2]", "[0,12]") "}", 12, "takes 8 bytes"},
    {"{" A("F32", "[2]", "[4,12]") "}", 12, "4 bytes before it belong to no tensor"},
    {"{" A("F32", "[2]", "[0,8]") "," B("[4,12]") "}", 12, "tensor b: overlaps tensor a"},
    {"{" A("F32", "[2]", "[0,8]") "," B("[0,8]") "}", 8, "overlaps tensor"},
    {"{" A("F32", "[2]", "[0,8]") "," B("[12,20]") "}", 20, "4 bytes before it"},
    {"{" A("F32", "[0]", "[4,4]") "," B("[0,8]") "}", 8, "overlaps"},
    {"{" A("F32", "[2]", "[8,0]") "}", 8, "do not go up"},
    {"{" A("F32", "[2]", "[-8,0]") "}", 8, "do not go up"},
    {"{" A("F32", "[2]", "[0,8,16]") "}", 8, "two whole numbers"},
    {"{" A("F32", "[2]", "[0]") "}", 8, "two whole numbers"},
    {"{" A("F32", "[2]", "[0,8.0]") "}", 8, "two whole numbers"},
    {"{" A("F32", "[2]", "{}") "}", 8, "two whole numbers"},
    {"{" A("F32", "[2]", "[0,99999999999999999999]") "}", 8, "not JSON"},
    {"{" A("F32", "[2]", "[0,9223372036854775807]") "}", 8, "takes 8 bytes"},
    {"{" A("F32", "2", "[0,8]") "}", 8, "shape is not a list"},
    {"{" A("F32", "[-2]", "[0,8]") "}", 8, "shape[0] is not a whole number"},
    {"{" A("F32", "[1,2.0]", "[0,8]") "}", 8, "shape[1] is not a whole number"},
    {"{" A("F32", "[true]", "[0,8]") "}", 8, "shape[0] is not a whole number"},
    {"{" A("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "has 9 dimensions"},
    {"{" A("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "more elements than any memory"},
    {"{" A("F32", "[0,4294967296,4294967296]", "[0,0]") "}", 0, "more elements than any memory"},
    {"{" A("F32", "[9223372036854775807]", "[0,8]") "}", 8, "more elements than any memory"},
    {"{" A("F31", "[2]", "[0,8]") "}", 8, "dtype is F31"},
    {"{" A("f32", "[2]", "[0,8]") "}", 8, "dtype is f32"},
    {"{" A("U64", "[1]", "[0,8]") "}", 8, "dtype is U64"},
    {"{\"a\":{\"dtype\":1,\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "dtype is not a string"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "wants dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4,
     "wants dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "wants dtype, shape and data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
     "unknown field \"x\""},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "duplicate"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__: a is not a string"},
    {"{\"__metadata__\":[]}", 0, "__metadata__ is not a map"},
};

static void malformed_headers(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_header(bad[i].header, bad[i].data);
        ds_state *state = ds_load(file);
        if (state) fail_msg("loaded, but is malformed: %s", bad[i].header);
        if (!ds_error() || !strstr(ds_error(), bad[i].says))
            fail_msg("%s: says \"%s\", want \"%s\"", bad[i].header, ds_error(), bad[i].says);
        CHECK_INT(ds_error_status(), DS_EFORMAT);
        CHECK(strncmp(ds_error(), "safetensors: ", 13) == 0 && !strchr(ds_error(), '\n'));
        ds_error_clear();
    }
    write_header("{" A("BOOL", "[2]", "[0,2]") "}", 2);
    char bytes[100];
    size_t n = read_file(bytes, sizeof bytes);
    bytes[n - 1] = 2;
    write_file(bytes, n);
    CHECK(!ds_load(file));
    CHECK_ERROR("neither 0 nor 1");
}

/* Odd, but what the format allows. */
static void unusual_headers(void **unused)
{
    (void)unused;
    const char *good[] = {
        "{" B("[0,8]") "}   ",                            /* padded */
        "{" B("[8,16]") "," A("F32", "[2]", "[0,8]") "}", /* not in the order of the data */
        "{\"__metadata__\":{}," B("[0,8]") "}",           /* no metadata */
        "{" A("U8", "[3]", "[0,3]") "," B("[3,11]") "}",  /* not aligned */
        "{" A("F32", "[0]", "[0,0]") "," B("[0,8]") "}",  /* empty at the beginning */
        "{" B("[0,8]") "," A("F32", "[0]", "[8,8]") "}",  /* empty at the end */
        "{" A("F32", "[1,1,1,1,1,1,1,2]", "[0,8]") "}",   /* 8 dimensions */
        "{ \"b\" :\t{\"shape\":[2],\"data_offsets\":[0,8],\n\"dtype\":\"F32\"}}",
    };
    const size_t data[] = {8, 16, 8, 11, 8, 8, 8, 8};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        write_header(good[i], data[i]);
        ds_state *state = ds_load(file);
        if (!state) fail_msg("%s: %s", good[i], ds_error());
        ds_state_free(state);
    }
}

/* Every shorter file, and one too long by a byte, is refused. */
static void cut_at_each_byte(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "weight", sample(DS_F32)), DS_OK);
    CHECK_INT(ds_state_set(state, "steps", sample(DS_I64)), DS_OK);
    CHECK_INT(ds_save(state, file), DS_OK);
    char bytes[512] = {0};
    size_t n = read_file(bytes, sizeof bytes - 1);
    for (size_t i = 0; i <= n + 1; i++) {
        write_file(bytes, i);
        ds_state *back = ds_load(file);
        CHECK((back != NULL) == (i == n));
        if (i != n) CHECK_ERROR(file);
        ds_state_free(back);
    }
    ds_state_free(state);
    ds_scope_close(scope);
}

/* A file with one changed bit is refused, or it is a change of the check sum's
 * own key or length, and the tensors are as they were. */
static void damaged_at_each_byte(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    CHECK_INT(ds_state_set(state, "weight", sample(DS_F32)), DS_OK);
    CHECK_INT(ds_save(state, file), DS_OK);
    char bytes[512] = {0};
    size_t n = read_file(bytes, sizeof bytes - 1), accepted = 0;
    for (size_t i = 0; i < n; i++) {
        char was = bytes[i];
        bytes[i] = (char)(was ^ 1 << i % 8);
        write_file(bytes, n);
        bytes[i] = was;
        ds_state *back = ds_load(file);
        if (back) {
            ds_tensor *x = ds_state_get(back, "weight");
            CHECK(x && ds_numel(x) == ds_numel(ds_state_get(state, "weight")));
            CHECK(!memcmp(ds_data(x), ds_data(ds_state_get(state, "weight")),
                          (size_t)ds_numel(x) * sizeof(float)));
            accepted++;
        }
        ds_state_free(back);
        ds_error_clear();
    }
    CHECK(accepted < strlen("deepspeed_crc32:000000000"));
    ds_state_free(state);
    ds_scope_close(scope);
}

/* The value of zlib.crc32 in Python over the same bytes; a file of another
 * program with our metadata is not compared. */
static void check_sums(void **unused)
{
    (void)unused;
    static const char front[] = "{\"__metadata__\":{\"deepspeed_crc32\":\"", /* */
        rest[] = "\"}," B("[0,8]") "}";
    static const struct {
        const char *sum;
        bool good;
    } c[] = {{"b8facad4:000000110", true},
             {"00000000:000000110", false},
             {"00000000:000000111", true},
             {"", true},
             {"no digits", true}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char header[400];
        snprintf(header, sizeof header, "%s%s%s", front, c[i].sum, rest);
        write_header(header, 8);
        ds_state *state = ds_load(file);
        CHECK((state != NULL) == c[i].good);
        if (!state) CHECK_ERROR("its check sum (deepspeed_crc32) is 00000000, its bytes give ");
        ds_state_free(state);
        ds_error_clear();
    }
}

/* Header lengths from one too many to 2^64 - 1 are refused before memory is
 * asked for. */
static void lengths_beyond_the_file(void **unused)
{
    (void)unused;
    for (int byte = 0; byte < 8; byte++) {
        unsigned char bytes[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        bytes[byte] = byte ? 255 : 3;
        write_file(bytes, sizeof bytes);
        CHECK(!ds_load(file));
        CHECK_ERROR("claims a header of");
    }
}

static void files_that_are_none(void **unused)
{
    (void)unused;
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0a\nsize 9\n";
    static const char html[] = "<!DOCTYPE html>";
    char name[400];
    write_file(lfs, sizeof lfs - 1);
    CHECK(!ds_load(file));
    CHECK_ERROR("a pointer of Git LFS, not the file itself: run");
    write_file(html, sizeof html - 1);
    CHECK(!ds_load(file));
    CHECK_ERROR("a page of HTML, not the file itself");
    snprintf(name, sizeof name, "%s/absent.safetensors", folder);
    CHECK(!ds_load(name));
    CHECK_ERROR("absent.safetensors: No such file");
    snprintf(name, sizeof name, "%s/folder.safetensors", folder);
    CHECK(mkdir(name, 0700) == 0);
    CHECK(!ds_load(name));
    CHECK_INT(ds_error_status(), DS_EIO);
    CHECK_ERROR("folder.safetensors");
    CHECK(rmdir(name) == 0);
    CHECK(mkfifo(name, 0600) == 0); /* no writer: it must not wait */
    CHECK(!ds_load(name));
    CHECK_ERROR("not a regular file");
    CHECK(unlink(name) == 0);
}

/* ---- saves that go wrong ---------------------------------------------------------------------------- */

/* The file still holds the 2 ones that were saved first, and its folder has no
 * other file. */
static void check_old_file(void)
{
    ds_state *back = ds_load(file);
    CHECK_INT(ds_state_len(back), 1);
    CHECK_INT(ds_numel(ds_state_get(back, "old")), 2);
    ds_state_free(back);
    CHECK_INT(count_files(), 1);
}

static void old_file_stays(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *old = ds_state_new(), *big = ds_state_new();
    CHECK_INT(ds_state_set(old, "old", ds_ones(DS_F32, ds_shape(2))), DS_OK);
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(100, 1000));
    CHECK_INT(ds_state_set(big, "big", ds_transpose(x, 0, 1)), DS_OK);
    CHECK_INT(ds_save(old, file), DS_OK);

    /* a file system that is full, played by a limit on the size of files */
    struct rlimit was, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = (struct rlimit){100000, was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    ds_status status = ds_save(big, file);
    CHECK(setrlimit(RLIMIT_FSIZE, &was) == 0);
    signal(SIGXFSZ, handler);
    CHECK_INT(status, DS_EIO);
    CHECK_ERROR("x.safetensors");
    check_old_file();

    /* no memory for the row-major copy */
    dsi_cache_empty(dsi_device_current());
    dsi_cache_fail(1, true);
    status = ds_save(big, file);
    dsi_cache_fail(0, false);
    CHECK_INT(status, DS_ENOMEM);
    ds_error_clear();
    check_old_file();

    /* a folder that is not there */
    char name[400];
    snprintf(name, sizeof name, "%s/absent/x.safetensors", folder);
    CHECK_INT(ds_save(old, name), DS_EIO);
    CHECK_ERROR("absent");
    check_old_file();
    ds_state_free(old);
    ds_state_free(big);
    ds_scope_close(scope);
}

/* root may write anywhere, so it plays somebody else for the moment. */
static void folder_without_permission(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *old = ds_state_new();
    CHECK_INT(ds_state_set(old, "old", ds_ones(DS_F32, ds_shape(2))), DS_OK);
    CHECK_INT(ds_save(old, file), DS_OK);
    CHECK(chmod(folder, 0555) == 0);
    bool root = geteuid() == 0;
    if (root) CHECK(seteuid(65534) == 0);
    ds_status status = ds_save(old, file);
    if (root) CHECK(seteuid(0) == 0);
    CHECK(chmod(folder, 0700) == 0);
    CHECK_INT(status, DS_EIO);
    CHECK_ERROR("x.safetensors");
    check_old_file();
    ds_state_free(old);
    ds_scope_close(scope);
}

/* Every allocation of a load fails in turn: no crash, no leak, a message. */
static void loading_without_memory(void **unused)
{
    (void)unused;
    ds_scope *scope = ds_scope_open();
    ds_state *state = ds_state_new();
    for (int d = 0; d < DS_DTYPES; d++)
        CHECK_INT(ds_state_set(state, ds_dtype_name((ds_dtype)d), sample((ds_dtype)d)), DS_OK);
    CHECK_INT(ds_save(state, file), DS_OK);
    ds_state_free(state);
    ds_scope_close(scope);
    for (int n = 1; n <= DS_DTYPES; n++) {
        dsi_cache_fail(n, false);
        CHECK(!ds_load(file));
        dsi_cache_fail(0, false);
        CHECK_INT(ds_error_status(), DS_ENOMEM);
        ds_error_clear();
        CHECK_INT(ds_live_tensors(), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(scalars_and_empty_tensors),
        cmocka_unit_test(strided_tensors),
        cmocka_unit_test(layout_and_metadata),
        cmocka_unit_test(names_that_cannot_be),
        cmocka_unit_test(malformed_headers),
        cmocka_unit_test(damaged_at_each_byte),
        cmocka_unit_test(check_sums),
        cmocka_unit_test(unusual_headers),
        cmocka_unit_test(cut_at_each_byte),
        cmocka_unit_test(lengths_beyond_the_file),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(old_file_stays),
        cmocka_unit_test(folder_without_permission),
        cmocka_unit_test(loading_without_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
