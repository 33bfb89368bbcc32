/* tests/base/aio.c: reads and writes that do not wait, by the kernel and by
 * threads; files without a name.
 * SPDX-License-Identifier: MIT */
#include "base/aio.h"
#include "base/error.h"
#include "check.h"
#include "folder.h"

#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OPS = 24, BYTES = 3 * DSI_AIO_ALIGN };

static unsigned char *memory(void) { return aligned_alloc(DSI_AIO_ALIGN, (size_t)OPS * BYTES); }

static unsigned char value(size_t i) { return (unsigned char)(i * 31 + i / 257); }

static void there_and_back(const dsi_aio_opts *o, const char *engine)
{
    dsi_aio_file file;
    CHECK_INT(dsi_aio_file_open(&file, "test", "aio_folder", "file", (int64_t)OPS * BYTES), DS_OK);
    CHECK(access(file.path, F_OK) != 0);
    dsi_aio *a = dsi_aio_new(o);
    if (engine) CHECK(!strcmp(dsi_aio_engine(a), engine));
    unsigned char *x = memory(), *y = memory();
    void *both[2] = {x, y};
    for (size_t i = 0; i < (size_t)OPS * BYTES; i++) x[i] = value(i);
    memset(y, 0, (size_t)OPS * BYTES);
    dsi_aio_pin(a, both, (size_t)OPS * BYTES, 2); /* or not */
    for (int turn = 0; turn < 2; turn++) {
        dsi_aio_op op[OPS] = {0};
        for (int i = 0; i < OPS; i++) {
            op[i] = (dsi_aio_op){.file = &file, .write = !turn, .bytes = BYTES};
            op[i].at = (int64_t)i * BYTES;
            op[i].p = (turn ? y : x) + op[i].at;
            dsi_aio_start(a, &op[i]);
            if (i % 5 == 0) dsi_aio_progress(a);
        }
        for (int i = OPS - 1; i >= 0; i--) CHECK_INT(dsi_aio_wait(a, &op[i]), DS_OK);
        CHECK_INT(dsi_aio_wait(a, &op[0]), DS_OK); /* has ended long ago */
    }
    CHECK(memcmp(x, y, (size_t)OPS * BYTES) == 0);
    dsi_aio_free(a);
    dsi_aio_file_close(&file);
    CHECK(access("aio_folder", F_OK) != 0);
    free(x);
    free(y);
}

static void each_way(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        dsi_aio_opts o = {.block_size = i & 1 ? 1 : 0,
                          .queue_depth = i & 2 ? 1 : 0,
                          .threads = i & 2 ? 3 : 0,
                          .single_submit = i & 4,
                          .in_batches = i & 8};
        there_and_back(&o, NULL);
        setenv("DS_AIO", "threads", 1);
        there_and_back(&o, "threads");
        unsetenv("DS_AIO");
    }
}

static void failures_are_named(void **state)
{
    dsi_aio_file file;
    (void)state;
    CHECK_INT(dsi_aio_file_open(&file, "offload", "no/such/folder", "f", 1), DS_EIO);
    CHECK_ERROR("offload: there is no folder no/such: make it, or name another one");
    CHECK_INT(dsi_aio_file_open(&file, "offload", "aio_folder", "big", INT64_C(1) << 52), DS_EIO);
    CHECK_ERROR("offload: aio_folder/big needs 4503599627370496 bytes, but aio_folder has ");
    CHECK(access("aio_folder", F_OK) != 0);
    /* past the end of the file */
    for (int i = 0; i < 2; i++) {
        if (i) setenv("DS_AIO", "threads", 1);
        unsigned char *x = memory();
        CHECK_INT(dsi_aio_file_open(&file, "test", "aio_folder", "f", DSI_AIO_ALIGN), DS_OK);
        dsi_aio *a = dsi_aio_new(&(dsi_aio_opts){0});
        dsi_aio_op op = {.file = &file, .p = x, .bytes = BYTES};
        dsi_aio_start(a, &op);
        CHECK_INT(dsi_aio_wait(a, &op), DS_EIO);
        CHECK_ERROR("read: aio_folder/f at byte 0: Input/output error");
        dsi_aio_free(a);
        dsi_aio_file_close(&file);
        free(x);
    }
    unsetenv("DS_AIO");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_way),
                                       cmocka_unit_test(failures_are_named)};
    if (!folder_make() || chdir(folder_path(""))) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove();
    return failed;
}
