/* tests/folder.c: an empty folder for a test.
 * SPDX-License-Identifier: MIT */
#include "folder.h"

#include "check.h"

#include <ftw.h>
#include <unistd.h>

static char folder[512];

const char *folder_make(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%.400s/ds_test_XXXXXX", tmp && *tmp ? tmp : P_tmpdir);
    assert_non_null(mkdtemp(folder));
    return folder;
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *where)
{
    (void)s, (void)kind, (void)where;
    return remove(path);
}

void folder_remove(void) { nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS); }

const char *folder_path(const char *name)
{
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%.500s", folder, name);
    return path;
}
