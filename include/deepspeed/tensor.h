/* deepspeed/tensor.h: tensors: make, ask, view, copy; scopes that own them; state dicts.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_TENSOR_H
#define DEEPSPEED_TENSOR_H

#include <deepspeed/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_tensor ds_tensor;
typedef struct ds_scope ds_scope;
typedef struct ds_state ds_state;

/* ---- make: the result belongs to the current scope ----------------------------------------------- */

DS_API ds_tensor *ds_empty(ds_dtype dtype, ds_dims shape); /* elements undefined */
DS_API ds_tensor *ds_zeros(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_ones(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_full(ds_dtype dtype, ds_dims shape, double value);
/* x's shape, dtype, device; all value */
DS_API ds_tensor *ds_like(const ds_tensor *x, double value);
DS_API ds_tensor *ds_scalar(ds_dtype dtype, double value); /* shape {} */

/* begin, begin + step, ... below end (above, for a negative step); torch.arange. */
DS_API ds_tensor *ds_arange(ds_dtype dtype, double begin, double end, double step);

/* A copy of prod(shape) elements of dtype that lie in row-major order at data. */
DS_API ds_tensor *ds_from_data(ds_dtype dtype, ds_dims shape, const void *data);

/* From this thread's generator (ds_seed), value for value as torch.rand, randn, randint, randperm. */
DS_API ds_tensor *ds_rand(ds_dtype dtype, ds_dims shape);  /* U[0, 1) */
DS_API ds_tensor *ds_randn(ds_dtype dtype, ds_dims shape); /* N(0, 1) */
/* [low, high) */
DS_API ds_tensor *ds_randint(ds_dtype dtype, int64_t low, int64_t high, ds_dims shape);
DS_API ds_tensor *ds_randperm(int64_t n); /* int64 [n]: 0 .. n-1 in random order */

/* Where this thread's generator stands, as torch.get_rng_state() and set_rng_state(): uint8 [5056], the same
 * bytes. */
DS_API ds_tensor *ds_rng_state(void);
DS_API ds_status ds_set_rng_state(ds_tensor *state);

/* ---- ask: of NULL the answer is 0, NULL or NaN ---------------------------------------------------- */

DS_API ds_dtype ds_dtype_of(const ds_tensor *x);
DS_API ds_device ds_device_of(const ds_tensor *x);
DS_API ds_dims ds_shape_of(const ds_tensor *x);
DS_API int ds_ndim(const ds_tensor *x);
DS_API int64_t ds_size(const ds_tensor *x, int dim); /* dim < 0 counts from the last */
DS_API int64_t ds_numel(const ds_tensor *x);

/* The one element, as a double; NaN, with ds_error() set, if x has not exactly one. */
DS_API double ds_item(const ds_tensor *x);

/* The elements in host memory in row-major order: x's own memory if it lies so, else a copy that
 * lives as long as the current scope. For reading. */
DS_API const void *ds_data(ds_tensor *x);

/* x's own memory for writing. Refuses a tensor that is not contiguous in host memory. */
DS_API void *ds_data_mut(ds_tensor *x);

/* ---- copy ---------------------------------------------------------------------------------------- */

/* x on that device, with that dtype: x itself if there is nothing to do. Has a gradient. */
DS_API ds_tensor *ds_to(ds_tensor *x, ds_device device, ds_dtype dtype);
DS_API ds_tensor *ds_cast(ds_tensor *x, ds_dtype dtype); /* on its own device */
DS_API ds_tensor *ds_contiguous(ds_tensor *x);           /* x itself if it is row-major */
DS_API ds_tensor *ds_clone(ds_tensor *x);

/* dst = src, converted and broadcast to dst's shape; in place and outside of the graph. */
DS_API ds_status ds_copy(ds_tensor *dst, ds_tensor *src);

/* ---- scopes -------------------------------------------------------------------------------------- */

/* Until it is closed, what is made on this thread belongs to the new scope. Closing a scope closes
 * those opened inside it. */
DS_API ds_scope *ds_scope_open(void);
DS_API void ds_scope_close(ds_scope *scope);

/* Lifts x out of its scope: yours until ds_drop. Keeping a result keeps the graph that made it;
 * ds_detach first for values alone. Both accept NULL; ds_keep returns x. */
DS_API ds_tensor *ds_keep(ds_tensor *x);
DS_API void ds_drop(ds_tensor *x);

DS_API int64_t ds_live_tensors(void); /* handles alive on this thread: to find what was kept */

/* ---- state dicts: an ordered list of (name, tensor) ---------------------------------------------- */

DS_API ds_state *ds_state_new(void);
DS_API void ds_state_free(ds_state *state);
/* Keeps x under that name; replaces what had the name. */
DS_API ds_status ds_state_set(ds_state *state, const char *name, ds_tensor *x);
/* borrowed; NULL if absent */
DS_API ds_tensor *ds_state_get(const ds_state *state, const char *name);
DS_API int ds_state_len(const ds_state *state);
DS_API const char *ds_state_name(const ds_state *state, int i);
DS_API ds_tensor *ds_state_at(const ds_state *state, int i);
/* Takes prefix off the names that begin with it, as torch's consume_prefix_in_state_dict_if_present: "module." of what
 * was saved from DistributedDataParallel or DataParallel, "_orig_mod." of a compiled module. Refuses, changing
 * nothing, if two tensors would have one name, or one none. */
DS_API ds_status ds_state_strip_prefix(ds_state *state, const char *prefix);
/* Puts it in front of all names. */
DS_API ds_status ds_state_add_prefix(ds_state *state, const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
