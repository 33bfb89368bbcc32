/* tests/data/image_folder.c: folders of images, with the values of Pillow 13
 * and torchvision 0.29 (PIL.Image.resize, Resize, CenterCrop); the files of
 * tests/golden/jpeg are Pillow's.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include "data/picture.h"

#include <dlfcn.h>
#include <png.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t one_pixel[3] = {1, 2, 3};

static void write_png(const char *name, int h, int w, const uint8_t *rgb)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)w,
                     .height = (png_uint_32)h,
                     .format = PNG_FORMAT_RGB};
    CHECK(png_image_write_to_file(&png, folder_path(name), 0, rgb, 0, NULL));
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(folder_path(name), "wb");
    CHECK(f && fwrite(bytes, 1, n, f) == n);
    fclose(f);
}

static void folders(const char *const *names)
{
    folder_make();
    for (; *names; names++) CHECK_INT(mkdir(folder_path(*names), 0700), 0);
}

/* Pixel (y, x) of the pictures whose sizes change. */
static void write_pattern(const char *name, int h, int w)
{
    uint8_t *rgb = malloc((size_t)(3 * h * w));
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < 3; c++)
                rgb[3 * (y * w + x) + c] = (uint8_t)(x * 37 + y * 101 + c * 59 + x * y * 7);
    write_png(name, h, w, rgb);
    free(rgb);
}

static void samples_have_torchvisions_order(void **state)
{
    (void)state;
    static const char *const made[] = {"zebra",   "Ant",    "ant",       "ant/b", "ant/b/c",
                                       "ant/b-d", ".cache", "empty.png", NULL};
    static const char *const files[] = {"zebra/2.PNG",   "zebra/10.png",       "Ant/x.png",
                                        "ant/z.png",     "ant/b/c/1.png",      "ant/b/9.jpeg",
                                        "ant/b-d/0.png", "empty.png/only.png", NULL};
    static const char *const want[] = {"Ant/x.png",     "ant/z.png",     "ant/b/9.jpeg",
                                       "ant/b-d/0.png", "ant/b/c/1.png", "empty.png/only.png",
                                       "zebra/10.png",  "zebra/2.PNG"};
    static const int label[] = {0, 1, 1, 1, 1, 2, 3, 3};
    folders(made);
    for (int i = 0; files[i]; i++) write_png(files[i], 1, 1, one_pixel);
    write_bytes("ant/notes.txt", "no image", 8);
    write_bytes("ant/._z.png", "of another system", 17);
    write_bytes("not a folder.png", "", 0);

    ds_dataset *d = ds_image_folder(folder_path("."), 2);
    CHECK(d);
    CHECK_INT(ds_dataset_len(d), 8);
    CHECK_INT(ds_image_folder_classes(d), 4);
    assert_string_equal(ds_image_folder_class(d, 3), "zebra");
    CHECK(!ds_image_folder_class(d, 4) && !ds_image_folder_path(d, 8) && !ds_error());
    for (int i = 0; i < 8; i++) {
        uint8_t x[3][2][2];
        int64_t y = -1;
        assert_string_equal(ds_image_folder_path(d, i), want[i]);
        CHECK_INT(ds_dataset_get(d, i, (void *[]){x, &y}), DS_OK);
        CHECK_INT(y, label[i]);
        for (int k = 0; k < 12; k++) CHECK_INT((&x[0][0][0])[k], 1 + k / 4);
    }
    d = ds_transform_to_float(d);
    CHECK(!ds_image_folder_path(d, 0));
    CHECK_ERROR("not a data set around it");
    ds_dataset_free(d);
    folder_remove();
}

/* d's only sample; frees d. */
static void check_values(ds_dataset *d, const uint8_t *want, int n)
{
    uint8_t got[64];
    int64_t y;
    CHECK(d && n <= (int)sizeof got);
    CHECK_INT(ds_dataset_get(d, 0, (void *[]){got, &y}), DS_OK);
    for (int i = 0; i < n; i++) CHECK_INT(got[i], want[i]);
    ds_dataset_free(d);
}

#define CHECK_VALUES(d, ...) \
    check_values(d, (const uint8_t[]){__VA_ARGS__}, (int)sizeof((uint8_t[]){__VA_ARGS__}))

/* The same picture by both ways to another size. */
static ds_dataset *sized(const char *root, int64_t h, int64_t w, bool bicubic, int from_h,
                         int from_w, bool by_transform)
{
    if (!by_transform) return ds_image_folder(folder_path(root), h, .width = w, .bicubic = bicubic);
    ds_dataset *d = ds_image_folder(folder_path(root), from_h, .width = from_w);
    return ds_transform_resize(d, h, w, bicubic);
}

static void sizes_change_as_pillows(void **state)
{
    (void)state;
    static const char *const made[] = {"odd", "odd/a", "small", "small/a", "tall", "tall/a", NULL};
    folders(made);
    write_pattern("odd/a/1.png", 7, 9);
    write_pattern("small/a/1.png", 2, 3);
    write_pattern("tall/a/1.png", 30, 4);
    for (int t = 0; t < 2; t++) {
        CHECK_VALUES(sized("odd", 2, 3, false, 7, 9, t), 129, 128, 132, 144, 125, 145, 126, 129,
                     106, 119, 119, 114, 121, 112, 114, 131, 115, 127);
        CHECK_VALUES(sized("odd", 2, 3, true, 7, 9, t), 124, 130, 133, 145, 125, 145, 125, 130, 102,
                     121, 116, 117, 123, 112, 113, 130, 117, 124);
        CHECK_VALUES(sized("small", 3, 4, false, 2, 3, t), 0, 23, 51, 74, 51, 76, 107, 132, 101,
                     129, 162, 189, 59, 82, 110, 133, 110, 135, 166, 191, 160, 188, 221, 248, 118,
                     141, 169, 192, 169, 114, 97, 122, 219, 87, 24, 51);
        CHECK_VALUES(sized("small", 3, 4, true, 2, 3, t), 0, 14, 46, 68, 50, 73, 109, 134, 106, 132,
                     172, 199, 50, 73, 105, 127, 108, 132, 168, 193, 165, 191, 231, 255, 109, 143,
                     182, 203, 173, 111, 90, 124, 237, 79, 0, 44);
        CHECK_VALUES(sized("tall", 3, 2, false, 30, 4, t), 134, 136, 127, 116, 122, 136, 125, 119,
                     132, 130, 131, 114, 125, 136, 133, 125, 139, 146);
    }
    folder_remove();
}

static void the_middle_is_cut_out(void **state)
{
    (void)state;
    static const char *const made[] = {"tall", "tall/a", "wide", "wide/a", NULL};
    folders(made);
    write_pattern("tall/a/1.png", 20, 13);
    write_pattern("wide/a/1.png", 13, 22);
    CHECK_VALUES(
        ds_image_folder(folder_path("tall"), 3, .width = 4, .fit = DS_CENTER_CROP, .resize = 5),
        136, 133, 134, 119, 148, 115, 124, 120, 112, 99, 95, 134, 139, 113, 115, 106, 110, 139, 120,
        130, 142, 154, 145, 129, 139, 127, 136, 149, 130, 112, 139, 133, 114, 89, 101, 135);
    CHECK_VALUES(ds_image_folder(folder_path("wide"), 3, .fit = DS_CENTER_CROP, .resize = 4), 134,
                 137, 126, 133, 127, 131, 117, 125, 134, 108, 127, 112, 114, 125, 126, 115, 115,
                 119, 122, 119, 132, 133, 124, 126, 141, 138, 126);
    folder_remove();
}

/* Red is the column and green the row, so that a sample says which box it
 * shows. */
static void random_boxes(void **state)
{
    (void)state;
    enum { EDGE = 256, N = 64, COUNT = 300 };
    static const char *const made[] = {"a", NULL};
    static uint8_t rgb[EDGE][EDGE][3], x[3][N][N], again[3][N][N];
    folders(made);
    for (int i = 0; i < EDGE; i++)
        for (int j = 0; j < EDGE; j++) rgb[i][j][0] = (uint8_t)j, rgb[i][j][1] = (uint8_t)i;
    write_png("a/1.png", EDGE, EDGE, &rgb[0][0][0]);
    ds_dataset *d = ds_image_folder(folder_path("."), N, .fit = DS_RANDOM_RESIZED_CROP, .seed = 5);
    double least = 1, most = 0, mean = 0, wide = 0;
    int64_t y;
    for (int epoch = 0; epoch < COUNT; epoch++) {
        ds_dataset_set_epoch(d, epoch);
        CHECK_INT(ds_dataset_get(d, 0, (void *[]){x, &y}), DS_OK);
        double w = 2. * (x[0][0][48] - x[0][0][16]), h = 2. * (x[1][48][0] - x[1][16][0]);
        double share = w * h / EDGE / EDGE;
        CHECK(w / h > 0.68 && w / h < 1.46);
        if (share < least) least = share;
        if (share > most) most = share;
        mean += share / COUNT;
        wide += (double)(w > h) / COUNT;
    }
    CHECK(least > 0.05 && least < 0.15 && most > 0.85 && most < 1.05);
    CHECK(mean > 0.42 && mean < 0.58 && wide > 0.4 && wide < 0.6);
    ds_dataset_set_epoch(d, COUNT - 1);
    CHECK_INT(ds_dataset_get(d, 0, (void *[]){again, &y}), DS_OK);
    CHECK(!memcmp(x, again, sizeof x));
    ds_dataset_free(d);

    d = ds_image_folder(folder_path("."), N, .fit = DS_RANDOM_RESIZED_CROP, .scale = {1, 1},
                        .ratio = {2, 3}); /* no such box: the largest one of ratio 2 */
    CHECK_INT(ds_dataset_get(d, 0, (void *[]){x, &y}), DS_OK);
    CHECK(x[0][0][0] < 4 && x[0][0][N - 1] > 251 && x[1][0][0] > 62 && x[1][N - 1][0] < 194);
    ds_dataset_free(d);
    folder_remove();
}

/* One row of w pixels of any kind; interlaced. */
static void write_row(const char *name, int w, int depth, int color, const uint8_t *row)
{
    static const png_color palette[] = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}};
    FILE *f = fopen(folder_path(name), "wb");
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    CHECK(f && info && !setjmp(png_jmpbuf(png)));
    png_init_io(png, f);
    png_set_IHDR(png, info, (png_uint_32)w, 1, depth, color, PNG_INTERLACE_ADAM7, 0, 0);
    png_set_gAMA(png, info, 1.0); /* of no account */
    if (color == PNG_COLOR_TYPE_PALETTE) {
        png_set_PLTE(png, info, palette, 3);
        png_set_tRNS(png, info, (png_bytep) "\0\x80", 2, NULL);
    }
    png_write_info(png, info);
    for (int pass = png_set_interlace_handling(png); pass > 0; pass--) png_write_row(png, row);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    fclose(f);
}

static void check_picture(const char *path, int h, int w, const uint8_t *want, int rows,
                          int columns)
{
    dsi_picture p;
    CHECK_INT(dsi_picture_read(path, &p), DS_OK);
    CHECK_INT(p.h, h);
    CHECK_INT(p.w, w);
    for (int y = 0; y < h; y += rows)
        for (int x = 0; x < w; x += columns)
            for (int c = 0; c < 3; c++) CHECK_INT(p.rgb[3 * (y * w + x) + c], *want++);
    free(p.rgb);
}

static void every_kind_of_png(void **state)
{
    (void)state;
    static const char *const none[] = {NULL};
    static const uint8_t gray[] = {0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255};
    static const uint8_t colors[] = {10, 20, 30, 70, 80, 90, 40, 50, 60};
    static const uint8_t rgb[] = {1, 2, 3, 4, 5, 6};
    folders(none);
    write_row("g", 4, 2, PNG_COLOR_TYPE_GRAY, (const uint8_t[]){0x1b});
    check_picture(folder_path("g"), 1, 4, gray, 1, 1);
    write_row("g", 4, 16, PNG_COLOR_TYPE_GRAY, (const uint8_t[]){0, 9, 85, 9, 170, 255, 255, 0});
    check_picture(folder_path("g"), 1, 4, gray, 1, 1);
    write_row("g", 4, 8, PNG_COLOR_TYPE_GRAY_ALPHA, (const uint8_t[]){0, 0, 85, 1, 170, 9, 255, 0});
    check_picture(folder_path("g"), 1, 4, gray, 1, 1);
    write_row("p", 3, 4, PNG_COLOR_TYPE_PALETTE, (const uint8_t[]){0x02, 0x10});
    check_picture(folder_path("p"), 1, 3, colors, 1, 1);
    write_row("c", 2, 8, PNG_COLOR_TYPE_RGB_ALPHA, (const uint8_t[]){1, 2, 3, 0, 4, 5, 6, 9});
    check_picture(folder_path("c"), 1, 2, rgb, 1, 1);
    write_row("c", 2, 16, PNG_COLOR_TYPE_RGB,
              (const uint8_t[]){1, 250, 2, 0, 3, 9, 4, 0, 5, 1, 6, 255});
    check_picture(folder_path("c"), 1, 2, rgb, 1, 1);
    folder_remove();
}

/* JPEG is skipped where libturbojpeg is not installed. */
static void need_turbojpeg(void)
{
    if (!dlopen("libturbojpeg.so.0", RTLD_NOW)) skip();
}

static void every_kind_of_jpeg(void **state)
{
    (void)state;
    need_turbojpeg();
    static const uint8_t colour[] = {0, 4,   240, 68, 5,   198, 140, 10,  172, 212, 10,  130,
                                     5, 86,  230, 76, 85,  188, 149, 92,  163, 220, 93,  120,
                                     5, 174, 203, 75, 176, 162, 149, 182, 137, 219, 183, 95};
    static const uint8_t grey[] = {3, 3, 3, 75, 75, 75, 150, 150, 150, 223, 223, 223,
                                   3, 3, 3, 75, 75, 75, 150, 150, 150, 223, 223, 223,
                                   3, 3, 3, 75, 75, 75, 150, 150, 150, 223, 223, 223};
    static const uint8_t cmyk[] = {254, 255, 0,  153, 218, 32, 75, 178, 57, 18, 141, 66,
                                   254, 168, 25, 153, 144, 53, 75, 117, 75, 18, 93,  80,
                                   254, 78,  50, 153, 67,  74, 75, 54,  92, 18, 43,  93};
    static const uint8_t progressive[] = {9, 0,   252, 80, 0,   211, 153, 1,   182, 223, 2,   141,
                                          2, 88,  223, 72, 89,  181, 146, 95,  154, 217, 96,  113,
                                          1, 177, 200, 71, 178, 158, 146, 185, 132, 216, 186, 90};
    check_picture(DS_GOLDEN "/jpeg/colour.jpg", 8, 16, colour, 3, 5);
    check_picture(DS_GOLDEN "/jpeg/grey.jpg", 8, 16, grey, 3, 5);
    check_picture(DS_GOLDEN "/jpeg/cmyk.jpg", 8, 16, cmyk, 3, 5);
    check_picture(DS_GOLDEN "/jpeg/progressive.jpg", 8, 16, progressive, 3, 5);
}

/* Each beginning of the file is refused, and a file with stray bytes before its
 * last marker is not. */
static void check_cuts(const char *bytes, size_t n, size_t most, const char *error)
{
    dsi_picture p;
    for (size_t cut = 0; cut < most; cut++) {
        char *part = malloc(cut + !cut); /* its size, for the address sanitizer */
        memcpy(part, bytes, cut);
        CHECK(dsi_picture_decode("x", (const uint8_t *)part, cut, &p) != DS_OK && !p.rgb);
        CHECK_ERROR(cut < 8 ? "expected a JPEG or PNG image" : error);
        free(part);
    }
    CHECK_INT(dsi_picture_decode("x", (const uint8_t *)bytes, n, &p), DS_OK);
    free(p.rgb);
}

static size_t read_bytes(const char *path, char *bytes, size_t room)
{
    FILE *f = fopen(path, "rb");
    CHECK(f);
    size_t n = fread(bytes, 1, room, f);
    fclose(f);
    return n;
}

static void damaged_files(void **state)
{
    (void)state;
    static const char *const made[] = {"a", NULL};
    char bytes[4096];
    dsi_picture p;
    folders(made);
    write_pattern("a/1.png", 9, 9);
    size_t n = read_bytes(folder_path("a/1.png"), bytes, sizeof bytes);
    check_cuts(bytes, n, n - 16, "x: not a whole PNG file: the file is cut short");
    size_t data = 8;
    while (memcmp(bytes + data, "IDAT", 4)) data++;
    bytes[data + 9] ^= 1;
    write_bytes("a/1.png", bytes, n);
    CHECK(dsi_picture_read(folder_path("a/1.png"), &p) == DS_EFORMAT);
    CHECK_ERROR("a/1.png: not a whole PNG file: IDAT: ");
    memcpy(bytes + 16, "\0\1\0\0\0\1\0\0\x08\2\0\0\0\x5d\x19\x99\x6f", 17); /* 65536 x 65536 */
    CHECK(dsi_picture_decode("x", (uint8_t *)bytes, n, &p) != DS_OK);
    CHECK(ds_error());
    ds_error_clear();

    /* the loader's error has the path */
    ds_loader *l = ds_loader_new(ds_image_folder(folder_path("."), 4), 1, .workers = 1);
    ds_batch b;
    CHECK(!ds_loader_next(l, &b));
    CHECK_ERROR("a/1.png: not a whole PNG file");
    ds_loader_free(l);
    folder_remove();
}

static void damaged_jpegs(void **state)
{
    (void)state;
    need_turbojpeg();
    char bytes[4096];
    dsi_picture p;
    size_t n = read_bytes(DS_GOLDEN "/jpeg/colour.jpg", bytes, sizeof bytes);
    for (size_t cut = 3; cut < n; cut++) {
        CHECK(dsi_picture_decode("x", (uint8_t *)bytes, cut, &p) == DS_EFORMAT && !p.rgb);
        CHECK_ERROR("x: not a whole JPEG file: ");
    }
    memmove(bytes + n + 1, bytes + n - 2, 2);
    memcpy(bytes + n - 2, "\0\7\7", 3); /* stray bytes before the end: Pillow reads it too */
    CHECK_INT(dsi_picture_decode("x", (uint8_t *)bytes, n + 3, &p), DS_OK);
    free(p.rgb);
}

static void check_refused(ds_dataset *d, const char *error)
{
    CHECK(!d);
    CHECK_ERROR(error);
}

static void wrong_folders(void **state)
{
    (void)state;
    static const char *const made[] = {"none",    "flat", "flat/a", "flat/b", "other",
                                       "other/a", "loop", "loop/a", NULL};
    folders(made);
    check_refused(ds_image_folder(NULL, 4), "the folder is NULL");
    check_refused(ds_image_folder(folder_path("no"), 4), "/no: No such file or directory");
    check_refused(ds_image_folder(folder_path("none"), 4), "expected one for each class");
    write_png("flat/a/1.png", 1, 1, one_pixel);
    check_refused(ds_image_folder(folder_path("flat"), 4), "flat/b: no image (.jpg, .jpeg, .png)");
    write_bytes("other/a/x.webp", "", 0);
    check_refused(ds_image_folder(folder_path("other"), 4),
                  "other/a/x.webp: only JPEG and PNG are read; convert it");
    CHECK_INT(symlink("..", folder_path("loop/a/up")), 0);
    check_refused(ds_image_folder(folder_path("loop"), 4), "a link to a folder above?");
    folder_remove();
}

static void wrong_options(void **state)
{
    (void)state;
    static const char *const made[] = {"a", NULL};
    folders(made);
    write_png("a/1.png", 1, 1, one_pixel);
    const char *root = folder_path(".");
    check_refused(ds_image_folder(root, 0), "images of 0 x 0 pixels, expected 1 to 16384");
    check_refused(ds_image_folder(root, 4, .width = -1), "4 x -1");
    check_refused(ds_image_folder(root, 4, .fit = (ds_image_fit)3), "no ds_image_fit number 3");
    check_refused(ds_image_folder(root, 4, .width = 9, .fit = DS_CENTER_CROP, .resize = 8),
                  "resize is 8, expected 9, the crop's longer edge, to");
    check_refused(ds_image_folder(root, 4, .scale = {0.5, 0.4}), "scale is 0.5 to 0.4");
    check_refused(ds_image_folder(root, 4, .scale = {0, 1}), "scale is 0 to 1");
    check_refused(ds_image_folder(root, 4, .ratio = {NAN, 1}), "ratio is nan to 1");
    check_refused(ds_transform_resize(NULL, 2, 2, false), "resize: the data set is NULL");
    check_refused(ds_transform_resize(ds_image_folder(root, 4), 0, 2, false), "to 0 x 2 pixels");
    check_refused(ds_transform_resize(ds_transform_to_float(ds_image_folder(root, 4)), 2, 2, false),
                  "is float32 [3, 4, 4], expected uint8 [3,H,W]");
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(samples_have_torchvisions_order),
          cmocka_unit_test(sizes_change_as_pillows), cmocka_unit_test(the_middle_is_cut_out),
          cmocka_unit_test(random_boxes), cmocka_unit_test(every_kind_of_png),
          cmocka_unit_test(every_kind_of_jpeg), cmocka_unit_test(damaged_files),
          cmocka_unit_test(damaged_jpegs), cmocka_unit_test(wrong_folders),
          cmocka_unit_test(wrong_options))
