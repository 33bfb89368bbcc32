/* fuzz/latest.c: any text as the content of DIR/latest, and as a checkpoint's
 * manifest: no crash, no over-read, no leak; and what is accepted is a name of
 * a folder, and a list that reads back as it was
 * written.
 *
 * scripts/fuzz latest 300
 * SPDX-License-Identifier: MIT */
#include "engine/checkpoint/folder.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must(bool x)
{
    if (!x) abort();
}

/* The fuzzer begins no save, which alone takes locks. */
ds_status dsi_folder_lock(const char *dir, int *lock)
{
    (void)dir, (void)lock;
    return DS_EIO;
}
void dsi_folder_mark_saving(const char *saving, int *lock) { (void)saving, (void)lock; }

static void one_line(void)
{
    must(ds_error() && !strpbrk(ds_error(), "\n\r"));
    ds_error_clear();
}

static void tag(const char *text, size_t n)
{
    char *tag = dsi_latest_parse(text, n, "latest");
    if (!tag) one_line();
    must(!tag || (*tag && *tag != '.' && !strchr(tag, '/') && strlen(tag) <= n));
    dsi_free(tag);
}

static bool same(const dsi_manifest *a, const dsi_manifest *b)
{
    bool same = a->n == b->n && a->serial == b->serial && a->ranks == b->ranks &&
                a->step == b->step;
    for (int i = 0; same && i < a->n; i++)
        same = !strcmp(a->at[i].name, b->at[i].name) && a->at[i].bytes == b->at[i].bytes &&
               a->at[i].crc == b->at[i].crc;
    return same;
}

static void list(const char *text, size_t n)
{
    char path[] = "/tmp/fuzz_latest_XXXXXX";
    dsi_manifest m, again;
    if (dsi_manifest_parse(&m, text, n, "manifest") != DS_OK) {
        must(m.n == 0);
        one_line();
        return;
    }
    int fd = mkstemp(path);
    must(fd >= 0 && dsi_manifest_write(&m, path) == DS_OK &&
         dsi_manifest_read(&again, path) == DS_OK);
    must(same(&m, &again));
    close(fd);
    unlink(path);
    dsi_manifest_free(&m);
    dsi_manifest_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char *text = malloc(n ? n : 1); /* of this size, so that one byte too far is seen */
    must(text != NULL);
    memcpy(text, data, n);
    tag(text, n);
    list(text, n);
    free(text);
    return 0;
}
