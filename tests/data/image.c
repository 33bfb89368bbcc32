/* tests/data/image.c: the grid has make_grid's layout, and is written whole or
 * not at all.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include <png.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[] = "ds-image-XXXXXX.png";

typedef struct picture {
    int w, h;
    uint8_t *rgb;
} picture;

static picture load(const char *name)
{
    png_image png = {.version = PNG_IMAGE_VERSION};
    CHECK(png_image_begin_read_from_file(&png, name));
    png.format = PNG_FORMAT_RGB;
    picture p = {(int)png.width, (int)png.height, malloc(PNG_IMAGE_SIZE(png))};
    CHECK(png_image_finish_read(&png, NULL, p.rgb, 0, NULL));
    return p;
}

static void check_pixel(picture p, int x, int y, int r, int g, int b)
{
    const uint8_t *at = p.rgb + 3 * (y * p.w + x);
    CHECK_INT(at[0], r);
    CHECK_INT(at[1], g);
    CHECK_INT(at[2], b);
}

/* Three images of 4 x 5 pixels: black, grey with one red pixel, white. */
static ds_tensor *three(void)
{
    float x[3][3][4][5];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3 * 4 * 5; k++) ((float *)x[i])[k] = (float)(i - 1);
    x[1][0][2][3] = 1, x[1][1][2][3] = -1, x[1][2][2][3] = -7;
    return ds_from_data(DS_F32, ds_shape(3, 3, 4, 5), x);
}

static void images_lie_in_rows(void **state)
{
    (void)state;
    CHECK_INT(ds_save_image_grid(three(), 2, path), DS_OK);
    picture p = load(path);
    CHECK_INT(p.w, 2 * (5 + 2) + 2);
    CHECK_INT(p.h, 2 * (4 + 2) + 2);
    check_pixel(p, 0, 0, 0, 0, 0);
    check_pixel(p, 2, 2, 0, 0, 0);               /* image 0 */
    check_pixel(p, 9, 2, 128, 128, 128);         /* image 1 begins after 2 + 5 + 2 */
    check_pixel(p, 13, 5, 128, 128, 128);        /* and ends */
    check_pixel(p, 14, 5, 0, 0, 0);              /* the border */
    check_pixel(p, 9 + 3, 2 + 2, 255, 0, 0);     /* the red pixel; -7 is cut to 0 */
    check_pixel(p, 2, 2 + 4 + 2, 255, 255, 255); /* image 2, second row */
    check_pixel(p, 9, 2 + 4 + 2, 0, 0, 0);       /* the empty place */
    free(p.rgb);
}

static int64_t count_pixels(picture p, int y, int rows, int r, int g, int b)
{
    int64_t n = 0;
    for (int i = y * p.w; i < (y + rows) * p.w; i++)
        n += p.rgb[3 * i] == r && p.rgb[3 * i + 1] == g && p.rgb[3 * i + 2] == b;
    return n;
}

/* At scale 16 an image is 80 x 64 pixels, letters have their smallest size, and
 * each line takes 9 pixels, one more below. The letter i has 9 pixels, l 10, ?
 * 10. */
static void squares_and_captions(void **state)
{
    (void)state;
    static const char *const labels[] = {"il", "i", NULL}, *const guesses[] = {"il", "l", "\xff"};
    CHECK_INT(
        ds_save_image_grid(three(), 3, path, .scale = 16, .labels = labels, .predictions = guesses),
        DS_OK);
    picture p = load(path);
    CHECK_INT(p.w, 3 * (80 + 2) + 2);
    CHECK_INT(p.h, 2 + 64 + 2 * 9 + 1 + 2);
    check_pixel(p, 2 + 82 + 3 * 16, 2 + 2 * 16, 255, 0, 0); /* the red pixel is a square */
    check_pixel(p, 2 + 82 + 4 * 16 - 1, 2 + 3 * 16 - 1, 255, 0, 0);
    check_pixel(p, 2 + 82 + 4 * 16, 2 + 3 * 16 - 1, 128, 128, 128);
    CHECK_INT(count_pixels(p, 66, 9, 255, 255, 255), 19 + 9); /* labels */
    CHECK_INT(count_pixels(p, 75, 11, 96, 220, 96), 19);      /* equal */
    CHECK_INT(count_pixels(p, 75, 11, 255, 96, 80), 10);      /* not */
    CHECK_INT(count_pixels(p, 75, 11, 255, 255, 255), 10);    /* without a label */
    free(p.rgb);

    const char *const wide[] = {"wide wide wide wide", "", ""};
    CHECK_INT(ds_save_image_grid(three(), 1, path, .labels = wide),
              DS_OK); /* 5 pixels: none fits */
    p = load(path);
    CHECK_INT(p.h, 3 * (4 + 9 + 1 + 2) + 2);
    CHECK_INT(count_pixels(p, 6, 9, 255, 255, 255), 0);
    free(p.rgb);
    CHECK_INT(ds_save_image_grid(three(), 1, path, .scale = 65), DS_EINVAL);
    CHECK_ERROR("the scale is 65, expected 1 to 64");
    CHECK_INT(ds_save_image_grid(three(), 1, path, .scale = -1), DS_EINVAL);
    ds_error_clear();
}

static void one_image_has_no_border(void **state)
{
    (void)state;
    float x[6] = {-1, -0.5f, 0, 0.5f, 1, NAN};
    CHECK_INT(ds_save_image_grid(ds_from_data(DS_F32, ds_shape(1, 1, 2, 3), x), 8, path), DS_OK);
    picture p = load(path);
    CHECK_INT(p.w, 3);
    CHECK_INT(p.h, 2);
    check_pixel(p, 0, 0, 0, 0, 0);
    check_pixel(p, 1, 0, 64, 64, 64);
    check_pixel(p, 1, 1, 255, 255, 255);
    check_pixel(p, 2, 1, 0, 0, 0); /* NaN */
    free(p.rgb);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    CHECK_INT(ds_save_image_grid(ds_zeros(DS_F32, ds_shape(3, 4, 5)), 2, path), DS_EINVAL);
    CHECK_ERROR("save_image_grid: images are float32 [3, 4, 5], expected");
    CHECK_INT(ds_save_image_grid(ds_zeros(DS_U8, ds_shape(1, 3, 4, 5)), 2, path), DS_EINVAL);
    CHECK_ERROR("uint8");
    CHECK_INT(ds_save_image_grid(ds_zeros(DS_F32, ds_shape(1, 2, 4, 5)), 2, path), DS_EINVAL);
    CHECK_ERROR("expected float32 [n,3,h,w]");
    CHECK_INT(ds_save_image_grid(three(), 0, path), DS_EINVAL);
    CHECK_ERROR("0 columns");
    CHECK_INT(ds_save_image_grid(three(), 1, NULL), DS_EINVAL);
    CHECK_ERROR("the path is NULL");
    CHECK_INT(ds_save_image_grid(three(), 1, "grid.jpg"), DS_EINVAL);
    CHECK_ERROR("save_image_grid: grid.jpg: expected a name that ends with .png");
    CHECK_INT(ds_save_image_grid(NULL, 1, path), DS_EINVAL);
    CHECK_ERROR("save_image_grid: an operand is NULL");
}

static void a_path_that_cannot_be_written_is_named(void **state)
{
    (void)state;
    CHECK(ds_save_image_grid(three(), 2, "no-such-folder/grid.png") == DS_EIO);
    CHECK_ERROR("no-such-folder/grid.png");
}

/* A limit on the size of files stands for a full disk. The old picture stays. */
static void a_full_disk_leaves_the_old_file(void **state)
{
    (void)state;
    struct rlimit was, small = {16, 16};
    CHECK_INT(ds_save_image_grid(three(), 2, path), DS_OK);
    CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    ds_status status = ds_save_image_grid(three(), 1, path);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_INT(status, DS_EIO);
    CHECK_ERROR(path);
    picture p = load(path);
    CHECK_INT(p.w, 16);
    free(p.rgb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(images_lie_in_rows),
        cmocka_unit_test(squares_and_captions),
        cmocka_unit_test(one_image_has_no_border),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_path_that_cannot_be_written_is_named),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
    };
    int fd = mkstemps(path, 4);
    if (fd < 0) return 1;
    close(fd);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
