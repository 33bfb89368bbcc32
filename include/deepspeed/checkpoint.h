/* deepspeed/checkpoint.h: state dicts and nested values to and from files, as PyTorch and safetensors have
 * them.
 *
 *     ds_state *state = ds_module_state(net);
 *     ds_status status = ds_save(state, "net.pth");          torch.load("net.pth") reads it
 *
 *     ds_value *v = ds_value_load("checkpoint.pth");          what torch.save wrote
 *     int64_t epoch;
 *     ds_value_read_int(v, "epoch", &epoch);
 *     ds_state *weights = ds_state_of_value(ds_value_get(v, "model_state_dict"));
 *
 * Nothing in a file is executed. docs/checkpoints.md says what is written, read and refused.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_CHECKPOINT_H
#define DEEPSPEED_CHECKPOINT_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- state dicts ----------------------------------------------------------------------------------- */

/* By the end of the path: ".pth", ".pt", ".bin" as torch.save writes a state dict, ".safetensors". Written
 * beside, synced, then renamed: what was there stays until then. */
DS_API DS_MUST_CHECK ds_status ds_save(const ds_state *state, const char *path);

/* Whether ds_save can write to path, to be asked before a long training: DS_OK, or the status and the
 * message of ds_save (unknown suffix, no such folder, no permission). Creates a temporary file beside
 * path and removes it; path itself is not touched. */
DS_API DS_MUST_CHECK ds_status ds_save_check(const char *path);

/* The same in files of at most max_bytes of tensors, model-00001-of-00002.safetensors (.bin) for the path
 * model.safetensors, and model.safetensors.index.json, which says where each tensor is; one file if all fit. */
DS_API DS_MUST_CHECK ds_status ds_save_sharded(const ds_state *state, const char *path,
                                               int64_t max_bytes);

/* The tensors lie on the CPU; those of a large file in its pages (see ds_value_load). Also an index of shards, by
 * its own path or by that of the whole file. Refuses a .pth whose top is no dict of tensors, and says what it
 * holds. */
DS_API ds_state *ds_load(const char *path);

/* A .safetensors file. Tensors are written row-major in the order of the state dict. metadata: key, value,
 * key, value, ..., NULL; or NULL. */
DS_API DS_MUST_CHECK ds_status ds_safetensors_save(const ds_state *state, const char *path,
                                                   const char *const *metadata);

/* Refuses what the format forbids (holes, overlaps, trailing bytes, wrong sizes) and what hides mistakes (a
 * name twice, unknown fields); the message says which tensor. */
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
    DS_VALUE_BIG_INT, /* beyond 64 bits: its text is its digits */
    DS_VALUE_NAME,    /* a constant of Python: its text is its name, "torch.float16" */
    DS_VALUE_OBJECT   /* of a class that is not known here: ds_value_load's .objects */
} ds_value_kind;

typedef struct ds_value ds_value;

/* The caller's, until it is put into a list or dict, or freed. */
DS_API ds_value *ds_value_none(void);
DS_API ds_value *ds_value_bool(bool b);
DS_API ds_value *ds_value_int(int64_t i);
DS_API ds_value *ds_value_float(double f);
DS_API ds_value *ds_value_string(const char *utf8);
DS_API ds_value *ds_value_bytes(const void *bytes, size_t n);
DS_API ds_value *ds_value_tensor(ds_tensor *x); /* keeps x */
DS_API ds_value *ds_value_list(void);
DS_API ds_value *ds_value_tuple(void);
DS_API ds_value *ds_value_dict(void);
DS_API void ds_value_free(ds_value *v); /* with all that is in it; NULL passes */

/* These take the item, also when they fail: f(v, key, ds_value_tensor(x)) needs no other check. */
DS_API ds_status ds_value_append(ds_value *list, ds_value *item);               /* a tuple too */
DS_API ds_status ds_value_set(ds_value *dict, const char *key, ds_value *item); /* replaces */
DS_API ds_status ds_value_set_int(ds_value *dict, int64_t key, ds_value *item);

/* Borrowed; NULL, without a message, if there is none. */
DS_API ds_value *ds_value_get(const ds_value *dict, const char *key);
DS_API ds_value *ds_value_get_int(const ds_value *dict, int64_t key);
/* By keys and positions with / between them: "optimizer_state_dict/param_groups/0/lr"; "" is v itself. */
DS_API ds_value *ds_value_find(const ds_value *v, const char *path);

DS_API ds_value_kind ds_value_kind_of(const ds_value *v); /* NULL is DS_VALUE_NONE */
/* Python's name of its class: "int", "str", "OrderedDict", "Parameter", "Size" */
DS_API const char *ds_value_class(const ds_value *v);
DS_API int64_t ds_value_len(const ds_value *v);                    /* items; bytes of a text */
DS_API ds_value *ds_value_at(const ds_value *v, int64_t i);        /* item i, of a dict too */
DS_API ds_value *ds_value_key_at(const ds_value *dict, int64_t i); /* its key */
/* Of a string, bytes, name or big int; ds_value_len bytes and a 0 behind them. NULL for other kinds. */
DS_API const char *ds_value_text(const ds_value *v);

/* What lies at path (see ds_value_find); a message names the path if nothing is there or something else.
 * An int may be read as a float; the one element of a tensor as a number. Text and tensor are borrowed. */
DS_API ds_status ds_value_read_bool(const ds_value *v, const char *path, bool *out);
DS_API ds_status ds_value_read_int(const ds_value *v, const char *path, int64_t *out);
DS_API ds_status ds_value_read_float(const ds_value *v, const char *path, double *out);
DS_API ds_status ds_value_read_string(const ds_value *v, const char *path, const char **out);
DS_API ds_status ds_value_read_tensor(const ds_value *v, const char *path, ds_tensor **out);

DS_API ds_value *ds_value_of_state(const ds_state *state);
DS_API ds_state *ds_state_of_value(const ds_value *dict); /* NULL if it is no dict of tensors */

/* As torch.save; torch.load(path, weights_only=True) reads it. Tensors that overlap in memory still do when
 * they are loaded; of a view's memory only its own part is written. */
DS_API DS_MUST_CHECK ds_status ds_value_save(const ds_value *v, const char *path);

typedef struct ds_value_load_opts {
    const char *path;
    /* Objects of classes that are not known here, functions and tensors of other kinds do not end the reading: each is
     * a DS_VALUE_OBJECT. ds_value_class is its name ("omegaconf.dictconfig.DictConfig"); keys and paths reach its
     * attributes, and by 0, 1, ... what it was made of, as they stand in the file. Nothing is run for them either. */
    bool objects;
} ds_value_load_opts;

/* As torch.load, on the CPU, also of files older than PyTorch 1.6. Large files are mapped: tensors lie in the
 * file's pages, which become private where they are written to. So do not overwrite such a file in place while
 * its tensors live; to replace it by a rename, as the functions here do, is safe. */
#define ds_value_load(...) ds_value_load_with((ds_value_load_opts){.path = __VA_ARGS__})
DS_API ds_value *ds_value_load_with(ds_value_load_opts opts);

#ifdef __cplusplus
}
#endif
#endif
