/* checkpoint/checkpoint.c: which format a path names.
 * SPDX-License-Identifier: MIT */
#include "checkpoint.h"

#include "base/file.h"
#include "base/text.h"
#include "value.h"

#include <string.h>

/* Upper-case endings are not recognised. */
bool dsi_is_pth(const char *path)
{
    return dsi_ends_with(path, ".pth") || dsi_ends_with(path, ".pt") || dsi_ends_with(path, ".bin");
}

const char *dsi_file_not_downloaded(const void *bytes, size_t n)
{
    static const char lfs[] = "version https://git-lfs", html[] = "<";
    if (n >= sizeof lfs && !memcmp(bytes, lfs, sizeof lfs - 1))
        return "a pointer of Git LFS, not the file itself: run \"git lfs pull\" in its folder";
    if (n >= sizeof html && !memcmp(bytes, html, sizeof html - 1))
        return "a page of HTML, not the file itself: download it again";
    return NULL;
}

/* Fails with a message that names the endings; `what` is "save" or "load". */
static ds_status refuse_path_ending(const char *what, const char *path)
{
    return dsi_fail(DS_EINVAL,
                    "%s: %s: which format is meant? a path that ends in .pth, .pt, .bin or "
                    ".safetensors says it",
                    what, path);
}

/* A path to write must name its format. */
static ds_status check_path(const char *path)
{
    if (!path) return dsi_fail(DS_EINVAL, "save: path is NULL");
    return dsi_ends_with(path, ".safetensors") || dsi_is_pth(path)
               ? DS_OK
               : refuse_path_ending("save", path);
}

/* Checks the name and that the folder can be written, before hours of
 * training. */
ds_status ds_save_check(const char *path)
{
    return check_path(path) == DS_OK ? dsi_file_check_replace(path) : ds_error_status();
}

/* Only a dict of names and tensors fits into safetensors; a .pth takes any
 * value. */
ds_status dsi_save_dict(const ds_value *dict, const char *path)
{
    if (check_path(path) != DS_OK) return ds_error_status();
    if (dsi_ends_with(path, ".safetensors")) {
        /* transformers loads a file only if its metadata name the framework */
        static const char *const format[] = {"format", "pt", NULL};
        return dsi_safetensors_save_dict(dict, path, format);
    }
    return ds_value_save(dict, path);
}

/* The value shares the tensors of the state dict. */
ds_status ds_save(const ds_state *state, const char *path)
{
    if (!state) return dsi_null_argument("save");
    ds_value *v = ds_value_of_state(state);
    ds_status status = v ? dsi_save_dict(v, path) : ds_error_status();
    ds_value_free(v);
    return status;
}

/* The file is a value, but no state dict: a checkpoint of a training, say. The
 * message lists its keys and names the first one whose item is a dict of
 * tensors, which is where the weights probably are. Returns NULL. */
static ds_state *refuse_value_file(const char *path, const ds_value *v)
{
    dsi_text t = {0};
    const char *within = NULL;
    for (int64_t i = 0; i < ds_value_len(v) && ds_value_kind_of(v) == DS_VALUE_DICT && i < 12;
         i++) {
        const ds_value *key = ds_value_key_at(v, i), *item = ds_value_at(v, i);
        const char *name = ds_value_kind_of(key) == DS_VALUE_STRING ? ds_value_text(key) : "a key";
        dsi_text_add(&t, "%s%.60s (%s)", i ? ", " : "", *name ? name : "\"\"",
                     ds_value_class(item));
        const ds_value *first = ds_value_at(item, 0);
        bool weights = ds_value_kind_of(item) == DS_VALUE_DICT && first &&
                       ds_value_kind_of(first) == DS_VALUE_TENSOR;
        if (weights && !within) within = name;
    }
    if (ds_value_kind_of(v) != DS_VALUE_DICT) dsi_text_add(&t, "a %s", ds_value_class(v));
    dsi_fail(DS_EFORMAT, "load: %s is no state dict: it holds %s. ds_value_load reads it%s%.60s%s",
             path, t.n ? t.s : "nothing",
             within ? ", and ds_state_of_value(ds_value_get(value, \"" : "", within ? within : "",
             within ? "\")) gives the weights" : "");
    dsi_text_free(&t);
    return NULL;
}

/* The index is tried only if there is no file of that name, so that a file is
 * never hidden by an old index. */
ds_state *ds_load(const char *path)
{
    if (!path) return dsi_refuse("load: path is NULL");
    if (dsi_shards_is_index(path)) return dsi_shards_load(path);
    /* "model.safetensors" may be there as shards with an index instead. */
    dsi_text index = dsi_text_of("%s.index.json", path);
    bool sharded = !dsi_file_exists(path) && dsi_file_exists(index.s);
    ds_state *parts = sharded ? dsi_shards_load(index.s) : NULL;
    dsi_text_free(&index);
    if (sharded) return parts;
    if (dsi_ends_with(path, ".safetensors")) return ds_safetensors_load(path);
    if (!dsi_is_pth(path)) return refuse_path_ending("load", path), NULL;
    ds_value *v = ds_value_load(path);
    if (!v) return NULL;
    ds_state *state = dsi_value_is_state(v) ? ds_state_of_value(v) : refuse_value_file(path, v);
    ds_value_free(v);
    return state;
}
