/* tests/data/transform.c: transforms beside the same thing done the slow way.
 * SPDX-License-Identifier: MIT */
#include "check.h"

/* Image i of [C,H,W] bytes: a pattern in which all places differ. */
typedef struct pattern {
    int64_t n, numel;
} pattern;

static int alive;

static int64_t pattern_len(void *self) { return ((pattern *)self)->n; }
static uint8_t pixel(int64_t i, int64_t k) { return (uint8_t)(k * 37 + i * 101 + k / 256); }

static ds_status pattern_get(void *self, int64_t i, void **field)
{
    uint8_t *x = field[0];
    for (int64_t k = 0; k < ((pattern *)self)->numel; k++) x[k] = pixel(i, k);
    *(int64_t *)field[1] = i;
    return i == 13 ? ds_fail(DS_EIO, "pattern: 13 is unlucky") : DS_OK;
}

static void pattern_free(void *self)
{
    (void)self;
    alive--;
}

static ds_dataset *images(ds_dtype dtype, int64_t c, int64_t h, int64_t w)
{
    static const ds_dataset_type type = {"Pattern", sizeof(pattern), pattern_len, pattern_get,
                                         pattern_free};
    ds_dataset *d = ds_dataset_new(
        &type, 2, (ds_field[]){{dtype, ds_shape(c, h, w), "image"}, {DS_I64, {0}, "label"}});
    *(pattern *)ds_dataset_self(d) = (pattern){100, c * h * w * (int64_t)ds_dtype_size(dtype)};
    alive++;
    return d;
}

static void get(ds_dataset *d, int64_t i, void *x)
{
    int64_t label = -1;
    CHECK_INT(ds_dataset_get(d, i, (void *[]){x, &label}), DS_OK);
    CHECK_INT(label, i);
}

static void bytes_become_floats(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{3, 32, 32}, {1, 1, 1}, {2, 3, 5}, {3, 8, 8}, {1, 9, 31}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t c = shapes[s][0], plane = shapes[s][1] * shapes[s][2];
        ds_dataset *d = ds_transform_to_float(images(DS_U8, c, shapes[s][1], shapes[s][2]));
        CHECK(ds_dataset_field(d, 0)->dtype == DS_F32 && ds_dataset_field(d, 1)->dtype == DS_I64);
        CHECK_INT(ds_dataset_len(d), 100);
        float *x = malloc((size_t)(c * plane) * sizeof *x);
        for (int64_t i = 0; i < 3; i++) {
            get(d, i, x);
            for (int64_t k = 0; k < c * plane; k++) CHECK(x[k] == (float)pixel(i, k) / 255);
        }
        free(x);
        ds_dataset_free(d);
    }
    CHECK_INT(alive, 0);
}

/* Over to_float it is part of the table, over other floats a pass of its own:
 * the same values. */
static void normalize_rounds_as_torchvision(void **state)
{
    (void)state;
    enum { N = 3 * 32 * 32 };
    static float x[N], y[N];
    static const float mean[] = {0.4914f, 0.4822f, 0.4465f}, std[] = {0.2470f, 0.2435f, 0.2616f};
    static const float half[] = {0.5f};
    for (int per_channel = 0; per_channel < 2; per_channel++) {
        int n = per_channel ? 3 : 1;
        const float *m = per_channel ? mean : half, *s = per_channel ? std : half;
        ds_dataset *a = ds_transform_normalize(ds_transform_to_float(images(DS_U8, 3, 32, 32)), n,
                                               m, s);
        ds_dataset *b = ds_transform_normalize(
            ds_subset(ds_transform_to_float(images(DS_U8, 3, 32, 32)), 0, 50), n, m, s);
        get(a, 7, x);
        get(b, 7, y);
        for (int k = 0; k < N; k++) {
            float want = (float)pixel(7, k) / 255;
            want = (want - m[per_channel ? k / 1024 : 0]) / s[per_channel ? k / 1024 : 0];
            if (x[k] != want || y[k] != want)
                fail_msg("element %d: %.9g in the table, %.9g alone, want %.9g", k, (double)x[k],
                         (double)y[k], (double)want);
        }
        ds_dataset_free(a);
        ds_dataset_free(b);
    }
    CHECK_INT(alive, 0);
}

static void crops_are_windows_of_the_padded_image(void **state)
{
    (void)state;
    enum { C = 2, H = 6, W = 5, PAD = 2, CH = 7, CW = 4 };
    ds_dataset *d = ds_transform_random_crop(images(DS_U8, C, H, W), CH, CW, PAD, 9);
    const ds_field *f = ds_dataset_field(d, 0);
    CHECK(f->shape.d[0] == C && f->shape.d[1] == CH && f->shape.d[2] == CW);
    bool seen[H + 2 * PAD - CH + 1][W + 2 * PAD - CW + 1] = {{false}};
    for (int epoch = 0; epoch < 40; epoch++) {
        ds_dataset_set_epoch(d, epoch);
        for (int64_t i = 0; i < 13; i++) {
            uint8_t x[C][CH][CW];
            get(d, i, x);
            int found = 0;
            for (int top = 0; top <= H + 2 * PAD - CH; top++)
                for (int left = 0; left <= W + 2 * PAD - CW; left++) {
                    bool equal = true;
                    for (int c = 0; c < C; c++)
                        for (int y = 0; y < CH; y++)
                            for (int k = 0; k < CW; k++) {
                                int v = top + y - PAD, u = left + k - PAD;
                                bool inside = v >= 0 && v < H && u >= 0 && u < W;
                                uint8_t want = inside ? pixel(i, (c * H + v) * W + u) : 0;
                                equal &= x[c][y][k] == want;
                            }
                    found += equal;
                    seen[top][left] |= equal;
                }
            CHECK_INT(found, 1);
        }
    }
    for (int top = 0; top <= H + 2 * PAD - CH; top++)
        for (int left = 0; left <= W + 2 * PAD - CW; left++) CHECK(seen[top][left]);
    ds_dataset_free(d);
}

static void flips_turn_rows_around(void **state)
{
    (void)state;
    static const ds_dtype dtypes[] = {DS_U8, DS_I16, DS_F32, DS_F64};
    for (size_t k = 0; k < sizeof dtypes / sizeof *dtypes; k++)
        for (int64_t w = 1; w <= 6; w++) {
            size_t e = ds_dtype_size(dtypes[k]), bytes = (size_t)(3 * w) * e;
            ds_dataset *d = ds_transform_random_flip(images(dtypes[k], 1, 3, w), 0.5, 4);
            uint8_t x[3 * 6 * 8], is[3 * 6 * 8], turned[3 * 6 * 8];
            int flipped = 0;
            for (int64_t i = 14; i < 100; i++) {
                get(d, i, x);
                for (size_t b = 0; b < bytes; b++) {
                    size_t y = b / e / (size_t)w, u = b / e % (size_t)w;
                    is[b] = pixel(i, (int64_t)b);
                    turned[b] = pixel(i,
                                      (int64_t)((y * (size_t)w + ((size_t)w - 1 - u)) * e + b % e));
                }
                bool f = !memcmp(x, turned, bytes);
                CHECK(f || !memcmp(x, is, bytes));
                flipped += f;
            }
            if (w > 1) CHECK(flipped > 20 && flipped < 66);
            ds_dataset_free(d);
        }
}

static void chance_hangs_on_seed_epoch_and_sample(void **state)
{
    (void)state;
    enum { N = 3 * 8 * 8 };
    uint8_t a[N], b[N];
    int differ[3] = {0};
    ds_dataset *d = ds_transform_random_crop(images(DS_U8, 3, 8, 8), 8, 8, 4, 1);
    ds_dataset *same = ds_transform_random_crop(images(DS_U8, 3, 8, 8), 8, 8, 4, 1);
    ds_dataset *other = ds_transform_random_crop(images(DS_U8, 3, 8, 8), 8, 8, 4, 2);
    for (int64_t i = 14; i < 100; i++) {
        ds_dataset_set_epoch(d, 3);
        ds_dataset_set_epoch(same, 3);
        get(d, i, a);
        get(same, i, b);
        differ[0] += memcmp(a, b, N) != 0;
        ds_dataset_set_epoch(same, 4);
        get(same, i, b);
        differ[1] += memcmp(a, b, N) != 0;
        ds_dataset_set_epoch(other, 3);
        get(other, i, b);
        differ[2] += memcmp(a, b, N) != 0;
    }
    CHECK_INT(differ[0], 0);
    CHECK(differ[1] > 70 && differ[2] > 70);
    ds_dataset_free(d);
    ds_dataset_free(same);
    ds_dataset_free(other);
}

static void all_of_them_go_over_each_other(void **state)
{
    (void)state;
    float half = 0.5f, x[3 * 10 * 10], y[3 * 10 * 10];
    ds_dataset *a = images(DS_U8, 3, 10, 10), *b = images(DS_U8, 3, 10, 10);
    a = ds_transform_normalize(ds_transform_to_float(a), 1, &half, &half);
    a = ds_transform_random_flip(ds_transform_random_crop(a, 10, 10, 0, 5), 1, 5);
    b = ds_transform_random_flip(ds_transform_random_crop(b, 10, 10, 0, 5), 1, 5);
    b = ds_transform_normalize(ds_transform_to_float(b), 1, &half, &half);
    get(a, 3, x);
    get(b, 3, y);
    assert_memory_equal(x, y, sizeof x);
    CHECK(x[0] == ((float)pixel(3, 9) / 255 - 0.5f) / 0.5f);
    int64_t label;
    CHECK_INT(ds_dataset_get(a, 13, (void *[]){x, &label}), DS_EIO);
    CHECK_ERROR("13 is unlucky");
    CHECK_INT(ds_dataset_get(b, 13, (void *[]){x, &label}), DS_EIO);
    CHECK_ERROR("13 is unlucky");
    ds_dataset_free(a);
    ds_dataset_free(b);
    CHECK_INT(alive, 0);
}

static void casts_round_every_floating_field(void **state)
{
    (void)state;
    enum { N = 3, D = 700 };
    static const ds_dtype to[] = {DS_F16, DS_BF16, DS_F64, DS_F32};
    ds_scope *s = ds_scope_open();
    ds_tensor *x = ds_randn(DS_F32, ds_shape(N, D)), *y = ds_randperm(N),
              *z = ds_randn(DS_F64, ds_shape(N, 2));
    for (size_t k = 0; k < sizeof to / sizeof *to; k++) {
        ds_tensor *all[] = {x, y, z};
        ds_dataset *d = ds_transform_cast(ds_tensor_dataset(all, 3), to[k]);
        CHECK(ds_dataset_field(d, 0)->dtype == to[k] && ds_dataset_field(d, 2)->dtype == to[k]);
        CHECK_INT(ds_dataset_field(d, 1)->dtype, DS_I64);
        size_t row = D * ds_dtype_size(to[k]), tail = 2 * ds_dtype_size(to[k]);
        const char *want_x = ds_data(ds_cast(x, to[k]));
        const char *want_z = ds_data(ds_cast(ds_cast(z, DS_F32), to[k]));
        if (to[k] == DS_F64) want_z = ds_data(z);
        for (int64_t i = 0; i < N; i++) {
            char got_x[D * 8], got_z[16];
            int64_t got_y = -1;
            CHECK_INT(ds_dataset_get(d, i, (void *[]){got_x, &got_y, got_z}), DS_OK);
            CHECK(!memcmp(got_x, want_x + (size_t)i * row, row));
            CHECK(!memcmp(got_z, want_z + (size_t)i * tail, tail));
            CHECK_INT(got_y, ((const int64_t *)ds_data(y))[i]);
        }
        ds_dataset_free(d);
    }
    ds_scope_close(s);
    CHECK(!ds_transform_cast(images(DS_F32, 1, 4, 4), DS_U8));
    CHECK_ERROR("cast: uint8: expected a floating-point dtype");
    CHECK(!ds_transform_cast(NULL, DS_F16));
    ds_error_clear();
    float row[16];
    ds_dataset *unlucky = ds_transform_cast(images(DS_F16, 1, 4, 4), DS_F32);
    int64_t label;
    CHECK(ds_dataset_get(unlucky, 13, (void *[]){row, &label}) != DS_OK);
    CHECK_ERROR("13 is unlucky");
    ds_dataset_free(unlucky);
}

/* A dataset is freed also by a constructor that refuses it. */
static void wrong_ones_are_refused(void **state)
{
    (void)state;
    float one = 1, zero = 0, three[] = {1, 1, 1};
    CHECK(!ds_transform_to_float(images(DS_F32, 1, 2, 2)));
    CHECK_ERROR("to_float: field 0 of Pattern is float32");
    CHECK(!ds_transform_normalize(images(DS_U8, 1, 2, 2), 1, &one, &one));
    CHECK_ERROR("ds_transform_to_float first");
    CHECK(!ds_transform_normalize(images(DS_F32, 2, 2, 2), 3, three, three));
    CHECK_ERROR("3 values for the 2 channels");
    CHECK(!ds_transform_normalize(images(DS_F32, 2, 2, 2), 1, &one, &zero));
    CHECK_ERROR("std[0] is 0");
    CHECK(!ds_transform_normalize(images(DS_F32, 2, 2, 2), 1, NULL, &one));
    CHECK_ERROR("normalize");
    CHECK(!ds_transform_random_crop(images(DS_U8, 1, 4, 4), 9, 4, 2, 0));
    CHECK_ERROR("no 9 x 4 window in 4 x 4 with padding 2");
    CHECK(!ds_transform_random_crop(images(DS_U8, 1, 4, 4), 4, 4, -1, 0));
    CHECK_ERROR("padding -1");
    CHECK(!ds_transform_random_crop(images(DS_U8, 1, 4, 4), 0, 4, 0, 0));
    CHECK_ERROR("no 0 x 4 window");
    CHECK(!ds_transform_random_flip(images(DS_U8, 1, 4, 4), 1.5, 0));
    CHECK_ERROR("p is 1.5");
    CHECK(!ds_transform_random_flip(images(DS_U8, 1, 4, 4), NAN, 0));
    CHECK_ERROR("p is");
    ds_tensor *flat = ds_zeros(DS_F32, ds_shape(4, 4));
    CHECK(!ds_transform_random_flip(ds_tensor_dataset(&flat, 1), 0.5, 0));
    CHECK_ERROR("1 dimensions, expected an image");
    CHECK(!ds_transform_to_float(NULL));
    CHECK_ERROR("to_float: the data set is NULL");
    CHECK_INT(alive, 0);
}

TEST_MAIN(cmocka_unit_test(bytes_become_floats), cmocka_unit_test(normalize_rounds_as_torchvision),
          cmocka_unit_test(crops_are_windows_of_the_padded_image),
          cmocka_unit_test(flips_turn_rows_around),
          cmocka_unit_test(chance_hangs_on_seed_epoch_and_sample),
          cmocka_unit_test(all_of_them_go_over_each_other),
          cmocka_unit_test(casts_round_every_floating_field),
          cmocka_unit_test(wrong_ones_are_refused))
