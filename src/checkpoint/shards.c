/* checkpoint/shards.c: a state dict in several files, and the index that says
 * which tensor is in which, as Hugging Face's models are stored.
 *
 *     model.safetensors.index.json        {"metadata": {"total_size": BYTES}, "weight_map": {NAME: FILE, ...}}
 *     model-00001-of-00002.safetensors    or pytorch_model.bin.index.json, pytorch_model-00001-of-00002.bin
 *
 * The index is written last, so that it never names a file that is missing.
 * SPDX-License-Identifier: MIT */
#include "base/file.h"
#include "base/map.h"
#include "base/text.h"
#include "checkpoint.h"
#include "save_plan.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define INDEX ".index.json"

/* As transformers names it: the file's name and an ending. */
bool dsi_shards_is_index(const char *path) { return dsi_ends_with(path, INDEX); }

/* ---- write ------------------------------------------------------------------------------------------------ */

/* Puts the number of the shard of tensor i into shard[i], in the dict's order,
 * and returns how many shards there are. A shard has at most `most` bytes,
 * unless one tensor alone is larger. */
static int shard_plan(const ds_value *dict, int64_t most, int *shard)
{
    int64_t full = 0;
    int n = 0;
    for (int64_t i = 0; i < ds_value_len(dict); i++) {
        int64_t bytes = dsi_value_size(ds_value_at(dict, i));
        if (full && full + bytes > most) n++, full = 0;
        full += bytes;
        shard[i] = n;
    }
    return n + 1;
}

/* Appends the name of shard i of n: for "model.safetensors", 0, 2
 * "model-00001-of-00002.safetensors". */
static void add_shard_name(dsi_text *t, const char *path, int i, int n)
{
    const char *dot = strrchr(path, '.');
    dsi_text_add(t, "%.*s-%05d-of-%05d%s", (int)(dot - path), path, i + 1, n, dot);
}

/* Writes the tensors of shard k and adds {tensor: file name} to map. */
static ds_status shard_save(const ds_value *dict, const char *path, const int *shard, int k, int n,
                            json_t *map)
{
    dsi_text name = {0};
    add_shard_name(&name, path, k, n);
    const char *slash = strrchr(name.s, '/'), *file = slash ? slash + 1 : name.s;
    ds_value *part = ds_value_dict();
    part->class_name = "OrderedDict";
    for (int64_t i = 0; i < ds_value_len(dict); i++) {
        if (shard[i] != k) continue;
        const char *key = ds_value_text(ds_value_key_at(dict, i));
        ds_value_set(part, key, dsi_value_ref(ds_value_at(dict, i)));
        json_object_set_new(map, key, json_string(file));
    }
    ds_status status = dsi_save_dict(part, name.s);
    ds_value_free(part);
    dsi_text_free(&name);
    return status;
}

/* Writes path.index.json. */
static ds_status index_save(const char *path, json_t *map, int64_t total)
{
    json_t *index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total,
                              "weight_map", map);
    char *text = index ? json_dumps(index, JSON_INDENT(2)) : NULL;
    json_decref(index);
    if (!text) return dsi_fail(DS_EINVAL, "save: %s: a tensor's name is not UTF-8", path);
    dsi_text name = dsi_text_of("%s" INDEX, path);
    dsi_file *f = dsi_file_replace(name.s);
    dsi_file_write(f, text, strlen(text));
    dsi_file_write(f, "\n", 1);
    ds_status status = f ? dsi_file_commit(f) : ds_error_status();
    dsi_text_free(&name);
    free(text);
    return status;
}

/* If all tensors fit into one file, that file has the name path and no
 * index. */
ds_status dsi_save_dict_sharded(const ds_value *dict, const char *path, int64_t max_bytes)
{
    if (!dict || !path) return dsi_null_argument("save");
    if (max_bytes < 1 || !strrchr(path, '.'))
        return dsi_fail(DS_EINVAL,
                        "save: %s in files of %" PRId64 " bytes: expected a path that ends in "
                        ".safetensors or .bin, and at least 1 byte",
                        path, max_bytes);
    int *shard = dsi_alloc((size_t)ds_value_len(dict) * sizeof *shard);
    int n = shard_plan(dict, max_bytes, shard);
    ds_status status = DS_OK;
    if (n == 1) {
        status = dsi_save_dict(dict, path);
    } else {
        json_t *map = json_object();
        int64_t total = 0;
        for (int64_t i = 0; i < ds_value_len(dict); i++)
            total += dsi_value_size(ds_value_at(dict, i));
        for (int k = 0; k < n && status == DS_OK; k++)
            status = shard_save(dict, path, shard, k, n, map);
        if (status == DS_OK) status = index_save(path, map, total);
        json_decref(map);
    }
    dsi_free(shard);
    return status;
}

/* A NULL state dict or path is refused by dsi_save_dict_sharded. */
ds_status ds_save_sharded(const ds_state *state, const char *path, int64_t max_bytes)
{
    ds_value *dict = state && path ? ds_value_of_state(state) : NULL;
    ds_status status = dsi_save_dict_sharded(dict, path, max_bytes);
    ds_value_free(dict);
    return status;
}

/* ---- read ------------------------------------------------------------------------------------------------- */

/* Returns "weight_map" of the index, counted; NULL with the message. */
static json_t *index_read_map(const char *path)
{
    size_t bytes = 0;
    json_error_t error;
    char *text = dsi_file_read_regular(path, &bytes);
    if (!text) return NULL;
    json_t *index = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    dsi_free(text);
    if (!index)
        return dsi_refuse_with(DS_EFORMAT, "load: %s: is not JSON: %s at line %d", path, error.text,
                               error.line);
    json_t *map = json_incref(json_object_get(index, "weight_map"));
    json_decref(index);
    if (json_is_object(map)) return map;
    json_decref(map);
    return dsi_refuse_with(DS_EFORMAT, "load: %s: there is no \"weight_map\" {tensor: file} in it",
                           path);
}

/* Returns the shard `file`, beside the index at path, that has the tensor. It
 * is loaded by the first call and kept in *opened. A name with a slash is
 * refused: an index may not name files elsewhere. NULL with the message. */
static ds_state *shard_load_once(dsi_map *opened, const char *path, const char *tensor,
                                 const char *file)
{
    if (!file || !*file || strchr(file, '/'))
        return dsi_refuse_with(DS_EFORMAT,
                               "load: %s: tensor %.100s: its file is no name of a file beside it",
                               path, tensor);
    ds_state *state = dsi_map_get(opened, file);
    if (state) return state;
    const char *slash = strrchr(path, '/');
    dsi_text name = dsi_text_of("%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, file);
    if (dsi_shards_is_index(name.s))
        dsi_fail(DS_EFORMAT, "load: %s: tensor %.100s is in an index", path, tensor);
    else
        state = ds_load(name.s);
    if (state) dsi_map_set(opened, file, state);
    dsi_text_free(&name);
    return state;
}

/* Shards are loaded whole, also if the index names only some of their tensors;
 * the state dict keeps the tensors that it names. */
ds_state *dsi_shards_load(const char *path)
{
    json_t *map = index_read_map(path), *file;
    if (!map) return NULL;
    dsi_map opened = {0};
    ds_state *state = ds_state_new();
    bool ok = true;
    const char *name;
    json_object_foreach(map, name, file)
    {
        const ds_state *shard = shard_load_once(&opened, path, name, json_string_value(file));
        ds_tensor *x = ds_state_get(shard, name);
        if (shard && !x)
            dsi_fail(DS_EFORMAT, "load: %s: tensor %.100s is not in %s", path, name,
                     json_string_value(file));
        ok = x && ds_state_set(state, name, x) == DS_OK;
        if (!ok) break;
    }
    for (int i = 0; i < opened.n; i++) ds_state_free(opened.at[i].value);
    dsi_map_free(&opened);
    json_decref(map);
    if (ok) return state;
    ds_state_free(state);
    return NULL;
}
