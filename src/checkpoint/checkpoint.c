/* checkpoint/checkpoint.c: which format a path names.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"

#include <deepspeed/checkpoint.h>

#include <string.h>

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

static ds_status unknown(const char *what, const char *path)
{
    return dsi_fail(DS_EINVAL,
                    "%s: %s: which format is meant? a path that ends in .safetensors says it", what,
                    path);
}

ds_status ds_save(const ds_state *state, const char *path)
{
    if (!path) return dsi_fail(DS_EINVAL, "save: path is NULL");
    if (!ends_with(path, ".safetensors")) return unknown("save", path);
    return ds_safetensors_save(state, path, NULL);
}

ds_state *ds_load(const char *path)
{
    if (!path) return dsi_refuse("load: path is NULL");
    if (ends_with(path, ".safetensors")) return ds_safetensors_load(path);
    unknown("load", path);
    return NULL;
}
