/* deepspeed/tensor.h: tensors: constructors, getters, copies; the scopes that
 * own them; state dicts.
 *
 * A ds_tensor is a handle on storage that it may share with others (a view). It
 * belongs to the thread that made it, and to a scope, which frees it when it is
 * closed. Functions that return a tensor return NULL after a failure, and after
 * a NULL argument; ds_error() has the message.
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

/* ---- constructors: the result belongs to the current scope ------------------- */

/* A new tensor on ds_current_device() with undefined elements; all 0; all 1;
 * all `value`, rounded to dtype (torch.empty, zeros, ones, full). {0} is the
 * shape of a scalar; a size may be 0. Fails (DS_EINVAL) for a negative size and
 * (DS_ENOMEM) if the memory is not there. */
DS_API ds_tensor *ds_empty(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_zeros(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_ones(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_full(ds_dtype dtype, ds_dims shape, double value);

/* All `value`, with x's shape, dtype and device (torch.full_like). */
DS_API ds_tensor *ds_like(const ds_tensor *x, double value);

/* One element without dimensions, of shape {} (torch.tensor(value)). */
DS_API ds_tensor *ds_scalar(ds_dtype dtype, double value);

/* [n]: begin, begin + step, ... below end, or above it for a negative step
 * (torch.arange). Refuses a step of 0 and one that leads away from end. */
DS_API ds_tensor *ds_arange(ds_dtype dtype, double begin, double end, double step);

/* A copy of the elements of dtype that are at data in row-major order: as many
 * as shape has. data stays the caller's. */
DS_API ds_tensor *ds_from_data(ds_dtype dtype, ds_dims shape, const void *data);

/* Random numbers of this thread's generator (ds_seed), the same as PyTorch's on
 * the CPU: uniform in [0, 1) (torch.rand); normal, mean 0, variance 1
 * (torch.randn); integers in [low, high) (torch.randint; low < high). */
DS_API ds_tensor *ds_rand(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_randn(ds_dtype dtype, ds_dims shape);
DS_API ds_tensor *ds_randint(ds_dtype dtype, int64_t low, int64_t high, ds_dims shape);

/* int64 [n]: the numbers 0 to n - 1 in random order (torch.randperm). n >= 0. */
DS_API ds_tensor *ds_randperm(int64_t n);

/* The state of this thread's generator, uint8 [5056], with the bytes of
 * torch.get_rng_state(); and sets it (torch.set_rng_state). Refuses another
 * shape or dtype, and bytes that are no state; then nothing changes. */
DS_API ds_tensor *ds_rng_state(void);
DS_API ds_status ds_set_rng_state(ds_tensor *state);

/* ---- getters: of NULL the answer is 0, NULL or NaN ------------------------------ */

/* x.dtype, x.device, x.shape, x.dim(). */
DS_API ds_dtype ds_dtype_of(const ds_tensor *x);
DS_API ds_device ds_device_of(const ds_tensor *x);
DS_API ds_dims ds_shape_of(const ds_tensor *x);
DS_API int ds_ndim(const ds_tensor *x);

/* The size of dimension dim; dim < 0 counts from the last (x.size(dim)). 0 if x
 * has no such dimension. */
DS_API int64_t ds_size(const ds_tensor *x, int dim);

/* The number of elements; 1 for a scalar (x.numel()). */
DS_API int64_t ds_numel(const ds_tensor *x);

/* The only element of x as a double (x.item()); NaN, with ds_error() set, if x
 * has another number of elements. Waits for the device. */
DS_API double ds_item(const ds_tensor *x);

/* The elements in host memory, row-major, for reading: x's own memory if it is
 * contiguous there, else a copy that the current scope frees. Valid as long as
 * x or that scope. NULL for a tensor without memory or after a failure. */
DS_API const void *ds_data(ds_tensor *x);

/* x's own memory, for reading and writing. Refuses (NULL) a tensor that is not
 * contiguous in host memory. */
DS_API void *ds_data_mut(ds_tensor *x);

/* ---- copies -------------------------------------------------------------------- */

/* x on `device` with `dtype`; x itself if it is there already (x.to). Has a
 * gradient. */
DS_API ds_tensor *ds_to(ds_tensor *x, ds_device device, ds_dtype dtype);

/* x with `dtype` on its own device; x itself if it has it (x.to(dtype)). */
DS_API ds_tensor *ds_cast(ds_tensor *x, ds_dtype dtype);

/* x in row-major order; x itself if it is (x.contiguous()). */
DS_API ds_tensor *ds_contiguous(ds_tensor *x);

/* A copy of x in memory that it does not share (x.clone()). Has a gradient. */
DS_API ds_tensor *ds_clone(ds_tensor *x);

/* dst.copy_(src) without a gradient: writes src, converted to dst's dtype and
 * broadcast to its shape, into dst's memory. Refuses shapes that do not
 * broadcast; then dst stays as it is. */
DS_API ds_status ds_copy(ds_tensor *dst, ds_tensor *src);

/* ---- scopes -------------------------------------------------------------------- */

/* Opens a scope: tensors that this thread makes from now on belong to it, until
 * it is closed. Closing frees them, except those that ds_keep has lifted out,
 * and closes scopes that were opened inside. NULL passes. */
DS_API ds_scope *ds_scope_open(void);
DS_API void ds_scope_close(ds_scope *scope);

/* ds_keep lifts x out of its scope: it is the caller's until ds_drop, once for
 * each ds_keep. A result keeps the graph that made it: ds_detach it first if
 * you need its values alone. Both accept NULL; ds_keep returns x. The
 * environment variable DS_CHECK_HANDLES=1 makes a use after the end of the
 * scope an error that says where the tensor was made. */
DS_API ds_tensor *ds_keep(ds_tensor *x);
DS_API void ds_drop(ds_tensor *x);

/* How many tensors of this thread are alive: to find what was kept and never
 * dropped. */
DS_API int64_t ds_live_tensors(void);

/* ---- a step as a graph (torch.cuda.graphs) ----------------------------------- */

/* One step: forward, loss, backward, update of the optimizer, zero_grad, on the
 * inputs in[0..n-1]. Returns a tensor of the step, as the loss; NULL after a
 * failure. */
typedef ds_tensor *ds_step_fn(void *self, ds_tensor *const *in, int n);
typedef struct ds_step_graph ds_step_graph;

/* A step whose kernels a GPU launches as one CUDA graph: the first two runs are
 * the function itself, the third is recorded, and later runs launch the record
 * without calling the function. Learning rates, step counts, seeds of dropout
 * and the inputs may change; what else the function decides on the host is that
 * of the record, and what it keeps from one run to the next must be tensors
 * that it writes in place (ds_copy). A ds_schedule_step after its optimizer's
 * step is repeated. The same bits as without a graph.
 *
 * A step that a graph cannot repeat (it reads a value on the host, or sets a
 * learning rate: do that before the run) and one with other shapes is run by
 * the function, and one line of the log says why. On the CPU, and with
 * DS_GRAPHS=off, each run is the function. Ranks that exchange tensors in a
 * step by NCCL all call _run for it: they record and replay it together.
 *
 * The caller owns the result of _new, and self; NULL if step is NULL. One step
 * graph belongs to one thread and one device: that of its first input. It is
 * freed before the optimizers and schedules that it steps. */
DS_API ds_step_graph *ds_step_graph_new(ds_step_fn *step, void *self);
DS_API void ds_step_graph_free(ds_step_graph *g);

/* Runs the step on n <= 16 tensors, borrowed. Returns what the step returned,
 * without its gradient, in the current scope; the next run writes into the same
 * memory. NULL, with the message, after a failure, which also is one if the
 * function sets it and returns a tensor. A bad label or index is reported by
 * the next call that waits for the GPU, as ds_item; nothing is updated. */
DS_API ds_tensor *ds_step_graph_run(ds_step_graph *g, ds_tensor *const *in, int n);

/* Whether the next run with the same shapes is a launch of the record; and why
 * there will be no record, in one line, or NULL. */
DS_API bool ds_step_graph_replays(const ds_step_graph *g);
DS_API const char *ds_step_graph_why_not(const ds_step_graph *g);

/* ---- state dicts: an ordered list of (name, tensor) ------------------------------ */

/* An empty state dict, the caller's until ds_state_free. Freeing drops its
 * tensors; NULL passes. */
DS_API ds_state *ds_state_new(void);
DS_API void ds_state_free(ds_state *state);

/* Keeps x under a copy of `name`, in place of the tensor that had the name. */
DS_API ds_status ds_state_set(ds_state *state, const char *name, ds_tensor *x);

/* The tensor of that name, borrowed; NULL, without a failure, if there is none. */
DS_API ds_tensor *ds_state_get(const ds_state *state, const char *name);

/* The number of entries; name and tensor of entry i, 0 <= i < ds_state_len, in
 * the order in which they were set. Borrowed; NULL for another i. */
DS_API int ds_state_len(const ds_state *state);
DS_API const char *ds_state_name(const ds_state *state, int i);
DS_API ds_tensor *ds_state_at(const ds_state *state, int i);

/* Removes prefix from the names that begin with it, as PyTorch's
 * consume_prefix_in_state_dict_if_present: "module." of DistributedDataParallel
 * and DataParallel, "_orig_mod." of a compiled module. Refuses, and changes
 * nothing, if two tensors would have the same name or one would have none. */
DS_API ds_status ds_state_strip_prefix(ds_state *state, const char *prefix);

/* Puts prefix in front of all names. */
DS_API ds_status ds_state_add_prefix(ds_state *state, const char *prefix);

#ifdef __cplusplus
}
#endif
#endif
