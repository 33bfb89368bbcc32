/* tests/checkpoint/pickled.h: files and pickles of torch.save that tests make.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"
#include "folder.h"

#include "checkpoint/value.h"

#define TENSOR_WITH(type, rest, metadata) \
    "\x80\2}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\n" type \
    "\nX\1\0\0\0" \
    "0X\3\0\0\0cpuK\2tQ" rest "\x89}" metadata "tRs."
#define TENSOR(type, rest) TENSOR_WITH(type, rest, "")

static inline void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, n, f) == n && fclose(f) == 0);
}

static inline int make(void **unused)
{
    (void)unused;
    return folder_make() ? 0 : -1;
}

static inline int clean(void **unused)
{
    (void)unused;
    folder_remove();
    return 0;
}

/* The message with which a file is refused, or "" if it loads; until the next call. */
static inline const char *load_message(const char *path)
{
    static char message[1100];
    ds_value *v = ds_value_load(path);
    snprintf(message, sizeof message, "%s", v ? "" : ds_error());
    ds_error_clear();
    ds_value_free(v);
    return message;
}
