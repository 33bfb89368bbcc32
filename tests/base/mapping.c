/* tests/base/mapping.c: whole files in memory: small ones copied, large ones
 * mapped, both readable past their end and writable without a change of the
 * file.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include "base/crc.h"
#include "base/mapping.h"

#include <errno.h>
#include <unistd.h>

static void write_file(const char *path, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    for (size_t i = 0; i < n; i++) putc((int)(i * 7 & 255), f);
    CHECK_INT(fclose(f), 0);
}

static void read_and_written(void **unused)
{
    (void)unused;
    /* the last two end at a page's end and behind it */
    const size_t sizes[] = {0, 1, 4096, DSI_MAPPED_BYTES, DSI_MAPPED_BYTES + 1};
    folder_make();
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        const char *path = folder_path("f");
        int fd = -1;
        write_file(path, sizes[k]);
        dsi_mapping *m = dsi_mapping_open("test", path, &fd);
        CHECK(m != NULL && fd >= 0);
        CHECK_INT(close(fd), 0);
        CHECK_INT(m->bytes, sizes[k]);
        CHECK_INT(m->mapped, sizes[k] >= DSI_MAPPED_BYTES);
        CHECK_INT((uintptr_t)m->p % 64, 0);
        for (size_t i = 0; i < m->bytes; i++)
            if (m->p[i] != (i * 7 & 255)) fail_msg("byte %zu differs", i);
        for (size_t i = 0; i < 64; i++) CHECK_INT(m->p[m->bytes + i], 0);
        if (m->bytes) m->p[m->bytes - 1] = 1; /* of this process alone */
        dsi_mapping *other = dsi_mapping_open("test", path, NULL);
        if (m->bytes) CHECK_INT(other->p[m->bytes - 1], (m->bytes - 1) * 7 & 255);
        dsi_mapping_advise_random(other);
        dsi_mapping_prefetch(other, other->p + 5, other->bytes - 5);
        dsi_mapping_drop_pages(other, other->p, other->bytes);
        if (m->bytes) CHECK_INT(other->p[m->bytes - 1], (m->bytes - 1) * 7 & 255);
        dsi_mapping_unref(other);
        dsi_mapping_unref(m);
    }
    dsi_mapping_unref(NULL);
    folder_remove();
}

/* The check sum of any part; of a file that became shorter, a failure and no
 * signal. */
static void sums(void **unused)
{
    (void)unused;
    static const size_t sizes[] = {10, DSI_MAPPED_BYTES, 5 * DSI_MAPPED_BYTES + 12345};
    folder_make();
    for (size_t k = 0; k < 3; k++) {
        const char *path = folder_path("f");
        int fd;
        uint32_t crc = 0;
        write_file(path, sizes[k]);
        dsi_mapping *m = dsi_mapping_open("test", path, &fd);
        for (size_t at = 0; at < 9; at += 4) {
            CHECK(dsi_mapping_sum(m, fd, at, m->bytes - at - 1, at == 4, &crc));
            CHECK_INT(crc, dsi_crc32(0, m->p + at, m->bytes - at - 1));
        }
        CHECK(dsi_mapping_sum(m, fd, 3, 0, true, &crc) && crc == 0);
        if (m->mapped) {
            CHECK_INT(truncate(path, 4096), 0);
            CHECK(!dsi_mapping_sum(m, fd, 0, m->bytes, false, &crc) && errno == 0);
        }
        close(fd);
        dsi_mapping_unref(m);
    }
    folder_remove();
}

static void refused(void **unused)
{
    (void)unused;
    const char *folder = folder_make();
    CHECK(!dsi_mapping_open("test", folder_path("none"), NULL));
    CHECK_ERROR("none: No such file or directory");
    CHECK(!dsi_mapping_open("test", folder, NULL));
    CHECK_ERROR("is a folder");
    CHECK(!dsi_mapping_open("test", "/dev/null", NULL));
    CHECK_ERROR("not a regular file");
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(read_and_written), cmocka_unit_test(sums), cmocka_unit_test(refused))
