/* deepspeed/checkpoint.h: state dicts and nested values in files: PyTorch's
 * .pth and .safetensors.
 *
 *     ds_state *state = ds_module_state(net);
 *     ds_status status = ds_save(state, "net.pth");          torch.load("net.pth") reads it
 *
 *     ds_value *v = ds_value_load("checkpoint.pth");          what torch.save wrote
 *     int64_t epoch;
 *     ds_value_read_int(v, "epoch", &epoch);
 *     ds_state *weights = ds_state_of_value(ds_value_get(v, "model_state_dict"));
 *
 * Nothing in a file is executed. Files are written beside their path, synced,
 * and renamed: until then, and after a failure, an older file stays as it was.
 * Failures are DS_EIO (open, read, write), DS_EFORMAT (a damaged file, or one
 * that holds something that is not read), DS_EINVAL (a bad argument).
 * docs/checkpoints.md lists what is written, read and refused.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_CHECKPOINT_H
#define DEEPSPEED_CHECKPOINT_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- state dicts ----------------------------------------------------------------------------------- */

/* Writes a state dict (torch.save(state, path)). The path's ending chooses the
 * format: ".pth", ".pt" and ".bin" are torch.save's, ".safetensors" is
 * safetensors'; another one is refused. */
DS_API DS_MUST_CHECK ds_status ds_save(const ds_state *state, const char *path);

/* Whether ds_save can write to path, to be asked before a long training: DS_OK,
 * or the status and message of ds_save (an unknown ending, no such folder, no
 * permission). Creates a temporary file beside path and removes it. */
DS_API DS_MUST_CHECK ds_status ds_save_check(const char *path);

/* The same in shards of at most max_bytes of tensors (1 or more; a larger
 * tensor has its own file): for the path model.safetensors
 * model-00001-of-00002.safetensors, ..., and model.safetensors.index.json,
 * which names each tensor's file. One file if all fit. */
DS_API DS_MUST_CHECK ds_status ds_save_sharded(const ds_state *state, const char *path,
                                               int64_t max_bytes);

/* Reads a state dict from a file of these formats, or from shards, by the path
 * of their index or of the whole file. Its tensors are on the CPU; those of a
 * large file are its mapped pages (see ds_value_load). The caller's, until
 * ds_state_free. Refuses (NULL) a .pth that holds something else, and says
 * what. */
DS_API ds_state *ds_load(const char *path);

/* Writes a .safetensors file: tensors in the order of the state dict,
 * row-major. metadata: key, value, key, value, ..., NULL; or NULL. */
DS_API DS_MUST_CHECK ds_status ds_safetensors_save(const ds_state *state, const char *path,
                                                   const char *const *metadata);

/* Reads one, as ds_load. Refuses what the format forbids (holes, overlaps,
 * trailing bytes, wrong sizes) and what hides mistakes (a name twice, unknown
 * fields); the message names the tensor. */
DS_API ds_state *ds_safetensors_load(const char *path);

/* ---- nested values: what a .pth holds ---------------------------------------------------------------- */

typedef enum ds_value_kind {
    DS_VALUE_NONE,
    DS_VALUE_BOOL,
    DS_VALUE_INT,
    DS_VALUE_FLOAT,
    DS_VALUE_STRING, /* UTF-8 */
    DS_VALUE_BYTES,
    DS_VALUE_TENSOR,
    DS_VALUE_LIST,
    DS_VALUE_TUPLE,
    DS_VALUE_DICT,
    DS_VALUE_SET,
    DS_VALUE_BIG_INT, /* an int beyond 64 bits; its text is its decimal digits */
    DS_VALUE_NAME,    /* a constant of Python; its text is its name, "torch.float16" */
    DS_VALUE_OBJECT   /* of an unknown class: ds_value_load's .objects */
} ds_value_kind;

/* A value of Python: a number, a text, a tensor, or a container of values. It
 * belongs to the thread that made it. */
typedef struct ds_value ds_value;

/* New values. The caller's, until they are put into a container or freed. Texts
 * and bytes are copied; ds_value_tensor keeps x. NULL for NULL. */
DS_API ds_value *ds_value_none(void);
DS_API ds_value *ds_value_bool(bool b);
DS_API ds_value *ds_value_int(int64_t i);
DS_API ds_value *ds_value_float(double f);
DS_API ds_value *ds_value_string(const char *utf8);
DS_API ds_value *ds_value_bytes(const void *bytes, size_t n);
DS_API ds_value *ds_value_tensor(ds_tensor *x);
DS_API ds_value *ds_value_list(void);
DS_API ds_value *ds_value_tuple(void);
DS_API ds_value *ds_value_dict(void);

/* Frees v with all that is in it, and drops its tensors. NULL passes. */
DS_API void ds_value_free(ds_value *v);

/* Append an item to a list or tuple; set the item of a key, in place of an
 * older one. They take the item, also when they fail, so that ds_value_set(v,
 * key, ds_value_tensor(x)) needs no other check. Refuse (DS_EINVAL) another
 * kind of container, and NULL. */
DS_API ds_status ds_value_append(ds_value *list, ds_value *item);
DS_API ds_status ds_value_set(ds_value *dict, const char *key, ds_value *item);
DS_API ds_status ds_value_set_int(ds_value *dict, int64_t key, ds_value *item);

/* The item of a key, borrowed; NULL, without a failure, if there is none. */
DS_API ds_value *ds_value_get(const ds_value *dict, const char *key);
DS_API ds_value *ds_value_get_int(const ds_value *dict, int64_t key);

/* The value at a path of keys and positions, separated by '/', borrowed:
 * "optimizer_state_dict/param_groups/0/lr". "" is v itself; NULL, without a
 * failure, if there is none. */
DS_API ds_value *ds_value_find(const ds_value *v, const char *path);

/* Its kind; DS_VALUE_NONE for NULL. */
DS_API ds_value_kind ds_value_kind_of(const ds_value *v);

/* Python's name of its class, borrowed: "int", "str", "OrderedDict",
 * "Parameter". */
DS_API const char *ds_value_class(const ds_value *v);

/* The number of items of a container, of bytes of a text; 0 for other kinds. */
DS_API int64_t ds_value_len(const ds_value *v);

/* Item i, and its key in a dict, 0 <= i < ds_value_len, in the file's order.
 * Borrowed; NULL for another i. */
DS_API ds_value *ds_value_at(const ds_value *v, int64_t i);
DS_API ds_value *ds_value_key_at(const ds_value *dict, int64_t i);

/* The text of a string, bytes, name or big int: ds_value_len bytes and a 0
 * behind them, borrowed. NULL for other kinds. */
DS_API const char *ds_value_text(const ds_value *v);

/* Read the value at path (see ds_value_find) into *out. Fail (DS_EFORMAT), with
 * the path in the message, if nothing is there, or another kind. An int may be
 * read as a float, the only element of a tensor as a number. Text and tensor
 * are borrowed. */
DS_API ds_status ds_value_read_bool(const ds_value *v, const char *path, bool *out);
DS_API ds_status ds_value_read_int(const ds_value *v, const char *path, int64_t *out);
DS_API ds_status ds_value_read_float(const ds_value *v, const char *path, double *out);
DS_API ds_status ds_value_read_string(const ds_value *v, const char *path, const char **out);
DS_API ds_status ds_value_read_tensor(const ds_value *v, const char *path, ds_tensor **out);

/* A state dict as a dict of names and tensors, and back; new, on the same
 * tensors. The second refuses (NULL) a value that is no such dict. */
DS_API ds_value *ds_value_of_state(const ds_state *state);
DS_API ds_state *ds_state_of_value(const ds_value *dict);

/* torch.save(v, path); torch.load(path, weights_only=True) reads it. Tensors
 * that overlap in memory do so when they are loaded; of a view's storage only
 * its own part is written. Refuses objects (DS_VALUE_OBJECT). */
DS_API DS_MUST_CHECK ds_status ds_value_save(const ds_value *v, const char *path);

typedef struct ds_value_load_opts {
    const char *path;
    /* Objects of unknown classes, functions and tensors of other dtypes become
     * DS_VALUE_OBJECTs instead of a failure: ds_value_class is the name
     * ("omegaconf.dictconfig.DictConfig"), keys are their attributes, and 0, 1,
     * ... the arguments that they were made of. Nothing is run for them
     * either. */
    bool objects;
} ds_value_load_opts;

/* torch.load(path), onto the CPU; also files from before PyTorch 1.6. The
 * caller's, until ds_value_free. Large files are mapped: tensors are the file's
 * pages, which become private where they are written to. So do not overwrite
 * such a file in place while its tensors live. Replacing it by a rename, as the
 * functions here do, is safe. */
#define ds_value_load(...) ds_value_load_with((ds_value_load_opts){.path = __VA_ARGS__})
DS_API ds_value *ds_value_load_with(ds_value_load_opts opts);

#ifdef __cplusplus
}
#endif
#endif
