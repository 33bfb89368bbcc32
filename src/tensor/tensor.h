/* tensor/tensor.h: the struct of a tensor: a handle (shape, strides, gradient)
 * on counted storage.
 *
 * Invariants: a storage counts the handles on it. A handle counts the
 * scopes, keeps, nodes and modules that hold it. A handle holds the node that
 * made it; a node holds handles of what its backward needs: never the handle
 * that it made (a saved output is a second handle on the same storage), or
 * neither would ever be freed. Counts are not atomic: a tensor belongs to the
 * thread that made it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/error.h"
#include "base/handle.h"
#include "base/shared.h"
#include "device/device.h"

#include <deepspeed/tensor.h>

typedef struct dsi_node dsi_node; /* autograd/node.h; its first member is a dsi_grad_fn */

/* The part of a node that this layer knows: how to release it. */
typedef struct dsi_grad_fn {
    void (*unref)(dsi_node *node);
} dsi_grad_fn;

/* Note [Deferred ops] of deferred.c: how a result will be computed, in memory y
 * with the layout of source[0]. */
typedef struct dsi_deferred dsi_deferred;
typedef bool dsi_compute_fn(const dsi_deferred *d, dsi_view y);
enum { DSI_SOURCES = 2, DSI_OPERANDS = 6 };
struct dsi_deferred {
    dsi_compute_fn *compute;
    struct ds_tensor *source[DSI_SOURCES];   /* whose values stay; NULL: none */
    struct ds_tensor *operand[DSI_OPERANDS]; /* what else is needed; NULL: none */
};

typedef struct dsi_storage {
    int refs;
    dsi_device *device;
    void *p;
    size_t bytes;
    dsi_deferred *deferred;       /* owned: p is not computed yet; or NULL */
    struct dsi_storage *reader;   /* whose deferred has a source on this storage; or NULL */
    struct ds_tensor *sharers;    /* Note [Shared gradients] of shared.c: the first of a list */
    bool written;                 /* its address was given out for writing */
    bool borrowed;                /* p belongs to another thread's tensor: dsi_borrow */
    void (*release)(void *owner); /* of dsi_from_blob, with the last handle; or NULL */
    void *owner;
} dsi_storage;

/* Hooks of modules that manage parameters (bucketed reduction, ZeRO). Few
 * tensors have them. */
typedef struct dsi_hooks {
    /* dsi_set_grad_ready_hook */
    void (*grad_ready)(void *arg, struct ds_tensor *leaf);
    void *grad_ready_arg;
    /* dsi_set_grad_buffer_hook */
    struct ds_tensor *(*grad_buffer)(void *grad_ready_arg, struct ds_tensor *leaf);
    struct ds_tensor *grad_in_buffer; /* result of grad_buffer until it is accumulated; borrowed */
    int uses;      /* edges to this leaf whose nodes the running backward has not reached */
    bool got_grad; /* a node of this pass has added to its gradient */
    /* dsi_set_after_use_hook */
    void (*after_use)(void *arg, struct ds_tensor *x);
    void *after_use_arg;
    /* dsi_set_materialize_hook */
    ds_status (*materialize)(void *arg, struct ds_tensor *x);
    void *materialize_arg;
    void (*on_free)(void *materialize_arg); /* the tensor is freed; optional */
    int acquired;                           /* running dsi_acquire calls that name it */
    struct ds_tensor *self;
} dsi_hooks;

struct ds_tensor {
    int refs;
    int keeps; /* of refs, those by ds_keep: each ends with one ds_drop */
    ds_dtype dtype;
    ds_dims shape;
    int64_t stride[DS_MAX_DIMS]; /* elements */
    int64_t offset;              /* elements */
    /* NULL: a gradient in pooled form, not made dense yet; or released */
    dsi_storage *storage;
    dsi_device *device;

    dsi_node *node;     /* the op that made it, counted; NULL for a leaf */
    bool requires_grad; /* a leaf that collects a gradient */
    ds_tensor *grad;    /* of a leaf; counted */

    /* Pooled form (see dsi_pooled): value, max, index; all counted, or all
     * NULL. */
    ds_tensor *pooled[3];
    bool pooled_relu; /* values count only where max is positive: a ReLU's backward to come */

    dsi_hooks *hooks; /* owned; NULL: none */

    struct ds_tensor *next_sharer; /* of its storage, if `shares` */
    bool shares;                   /* it is in its storage's list of sharers */

    bool has_item;
    double item; /* dsi_set_item */
};

/* ---- life: dsi_new.. returns a handle owned by the current scope -------------------------------------- */

/* Row-major; on like's device with like's dtype. NULL passes. */
ds_tensor *dsi_new(const ds_tensor *like, ds_dims shape);
ds_tensor *dsi_new_dtype(const ds_tensor *like, ds_dtype dtype, ds_dims shape);
ds_tensor *dsi_new_on(dsi_device *d, ds_dtype dtype, ds_dims shape);
ds_tensor *dsi_new_host(ds_dtype dtype,
                        ds_dims shape); /* on the CPU, whatever the current device is */
/* The same shape and dtype; the same order of dimensions in memory if x is
 * dense, else row-major. */
ds_tensor *dsi_new_like(const ds_tensor *x);
/* [N,C,H,W] with the channels innermost in memory (torch.channels_last). */
ds_tensor *dsi_new_channels_last(const ds_tensor *like, ds_dims shape);

/* Another handle on x's storage, without its graph. */
ds_tensor *dsi_alias(const ds_tensor *x);
ds_tensor *dsi_view_of(const ds_tensor *x, ds_dims shape, const int64_t *stride, int64_t offset);

/* A tensor on memory that another thread's tensor owns, as v sees it, and must
 * keep while this one is read. d: this thread's device handle. */
ds_tensor *dsi_borrow(dsi_device *d, dsi_view v);

/* [n] elements at p in this process's memory, which belongs to owner, until
 * release(owner), which is called with the last handle on it. Elements are
 * aligned, and 64 bytes behind the last one may be read. */
ds_tensor *dsi_from_blob(ds_dtype dtype, int64_t n, void *p, void (*release)(void *owner),
                         void *owner);

/* x, which keeps its identity (its holders, gradient, hooks), gives up its
 * storage and is from now on another handle on y's: dtype, strides, offset.
 * Both dense, of one shape. */
void dsi_tensor_set_data(ds_tensor *x, const ds_tensor *y);

/* Releases x's storage; all else stays. When x is acquired, materialize gives
 * it a row-major storage with the values (dsi_tensor_set_data), or fails with
 * the message. NULL removes the hook. Note [Lazy tensors] */
void dsi_release_storage(ds_tensor *x);
/* A new tensor without storage: row-major, of that shape. */
ds_tensor *dsi_new_lazy(dsi_device *d, ds_dtype dtype, ds_dims shape,
                        ds_status (*materialize)(void *arg, ds_tensor *x), void *arg);
void dsi_set_materialize_hook(ds_tensor *x, ds_status (*materialize)(void *arg, ds_tensor *x),
                              void *arg);
/* Whether x has one, as a partitioned parameter has; x NULL: no. */
static inline bool dsi_has_materialize_hook(const ds_tensor *x)
{
    return x && x->hooks && x->hooks->materialize;
}
/* Calls x's materialize hook if x has no storage. May block. For acquire.c. */
ds_status dsi_materialize(const ds_tensor *x);

/* ---- residency: Note [Residency] of acquire.c ---------------------------------------------------------- */

/* Whether x's values are in memory, dense, to be read. */
static inline bool dsi_is_present(const ds_tensor *x)
{
    return x->storage && !x->storage->deferred;
}

/* Makes the values of all operands readable by kernels: materializes lazy ones,
 * makes pooled ones dense, computes deferred ones. NULL operands are ignored.
 * May block in a collective. False, with the message, if one cannot be had. */
#define dsi_acquire(...) \
    dsi_acquire_n((const ds_tensor *const[]){__VA_ARGS__}, \
                  (int)(sizeof((const ds_tensor *const[]){__VA_ARGS__}) / sizeof(ds_tensor *)))
bool dsi_acquire_absent(const ds_tensor *const *x, int n);
static inline bool dsi_acquire_n(const ds_tensor *const *x, int n)
{
    for (int i = 0; i < n; i++)
        if (x[i] && !dsi_is_present(x[i])) return dsi_acquire_absent(x, n);
    return true;
}

bool dsi_acquire_pooled(const ds_tensor *x); /* like dsi_acquire, but x may stay in pooled form */
/* also computes what is deferred and reads x, and ends sharing */
bool dsi_acquire_to_write(const ds_tensor *x);
bool dsi_is_acquired(const ds_tensor *x); /* must not be evicted now: Note [Residency] */

/* ---- Note [Shared gradients] of shared.c ------------------------------------------------------------------ */

/* Makes x, a handle without other holders, a sharer of its storage; false if the
 * storage cannot be shared. */
bool dsi_share(ds_tensor *x);
void dsi_share_end(ds_tensor *x); /* x gets other storage, or is freed */
/* Gives x, or all sharers of s, memory of their own. False, with the message. */
bool dsi_make_own(ds_tensor *x);
bool dsi_make_all_own(const dsi_storage *s);

/* x's hooks, made if it has none; the number of this thread's tensors with
 * hooks. */
dsi_hooks *dsi_hooks_of(ds_tensor *x);
int dsi_hooked_tensors(void);

/* A gradient in pooled form; counts its three parts. */
ds_tensor *dsi_new_pooled(ds_tensor *value, ds_tensor *max, ds_tensor *index, ds_dims dense);
/* Replaces the pooled form by a dense storage, in place. Other tensors are left
 * as they are. For acquire.c, and for callers that read no values. */
ds_status dsi_make_dense(ds_tensor *x);
dsi_pooled dsi_pooled_view(const ds_tensor *x);

/* Whether a result of y = f(a, b) may be deferred; b: NULL for y = f(a). */
bool dsi_may_defer(const ds_tensor *a, const ds_tensor *b);
/* Tries to defer y, which is new, to its first reader; `by` is copied. */
bool dsi_defer(ds_tensor *y, dsi_deferred by);
/* How y will be computed, if by that function; NULL: it is computed already, is
 * a part of a result, or comes from another op. */
const dsi_deferred *dsi_deferred_by(const ds_tensor *y, dsi_compute_fn *compute);
ds_status dsi_compute_deferred(dsi_storage *s); /* s is deferred */
void dsi_drop_deferred(dsi_storage *s);         /* without computing it, if s is deferred */
/* Before x gets other storage: what waits and reads x keeps this one. */
void dsi_leave_to_reader(const ds_tensor *x);

bool dsi_defer_relu(ds_tensor *y, ds_tensor *x);
ds_tensor *dsi_deferred_relu(const ds_tensor *y); /* the x of a deferred y = relu(x); else NULL */

ds_tensor *dsi_ref(ds_tensor *x);            /* NULL passes */
void dsi_unref(ds_tensor *x);                /* NULL passes */
void dsi_hold(ds_tensor **at, ds_tensor *x); /* *at, which is counted, becomes x */
ds_tensor *dsi_scope_add(
    ds_tensor *x); /* moves one count of x from the caller to the current scope; returns x */
void dsi_storage_unref(dsi_storage *s);

/* ---- scopes -------------------------------------------------------------------------------------------- */

/* Closes `scope` and moves one count of x from the caller to the outer scope. */
ds_tensor *dsi_scope_return(ds_scope *scope, ds_tensor *x);

/* For a holder of a scope that others may close (closing an outer scope closes
 * it too). Scopes are reused, so the holder also keeps the number, which is
 * unique on a thread. */
uint64_t dsi_scope_number(const ds_scope *scope);
void dsi_scope_close_if(ds_scope *scope,
                        uint64_t number); /* does nothing if it is closed already */

/* ---- values from this thread's generator, in place; x of any layout and device ------------------------ */

ds_tensor *dsi_fill_uniform(const char *what, ds_tensor *x, double low, double high);
ds_tensor *dsi_fill_normal(const char *what, ds_tensor *x, double mean, double std);

/* ---- properties -------------------------------------------------------------------------------------------- */

DSI_SHARED int64_t dsi_numel(ds_dims shape);
bool dsi_same_shape(ds_dims a, ds_dims b);
/* True if a and b, which may be NULL, are on one device; else false, with the
 * message of `op`. */
bool dsi_same_device(const char *op, const ds_tensor *a, const ds_tensor *b);
bool dsi_same_layout(const ds_tensor *a, const ds_tensor *b); /* shapes and strides */
bool dsi_is_contiguous(const ds_tensor *x);                   /* row-major, without gaps */
bool dsi_is_dense(const ds_tensor *x); /* without gaps and repeats, in some order of dimensions */
bool dsi_is_channels_last(const ds_tensor *x);
void dsi_row_major(ds_dims shape, int64_t *stride);
int dsi_dim(int dim, int n); /* dim counted from the front; -1 if it is outside */

/* "[4, 3, 32, 32]" in one of a few thread-local buffers: for messages. */
DSI_SHARED const char *dsi_shape_text(ds_dims shape);

/* x as kernels see it; a view with p == NULL for NULL. x is acquired, or new. */
dsi_view dsi_v(const ds_tensor *x);
ds_dims dsi_view_dims(dsi_view v);                        /* its shape */
dsi_view dsi_v_shape(const ds_tensor *x, ds_dims shape);  /* contiguous x seen with another shape */
dsi_view dsi_v_expand(const ds_tensor *x, ds_dims shape); /* broadcast to shape, stride 0 */

/* The first entry of a state dict that has entry i's tensor: i, unless that is
 * tied to an earlier one. */
int dsi_state_first(const ds_state *state, int i);

/* The only element of x, which the caller knows: ds_item returns it without
 * waiting for the device, until this handle is written to. */
void dsi_set_item(ds_tensor *x, double value);
double dsi_element(const void *host, ds_dtype dtype, int64_t i); /* element i, as a double */

/* Sets each element of x to value. Returns x; NULL if x is NULL or, with the
 * message, after a failure. */
ds_tensor *dsi_fill(ds_tensor *x, double value);

/* int64 begin, begin + step, ..: n of them, on the device of `like`, by that
 * device, so that a step graph has them. */
ds_tensor *dsi_arange(const ds_tensor *like, int64_t begin, int64_t n, int64_t step);

/* dst (any strides) = src, converted to its dtype and broadcast to its shape.
 * Across devices both must have one dtype and one layout. */
ds_status dsi_copy(ds_tensor *dst, const ds_tensor *src);

/* x, or a copy of it in that dtype if it has another; on the current device if
 * it is on another. NULL for NULL. */
ds_tensor *dsi_to_dtype(ds_tensor *x, ds_dtype dtype);
ds_tensor *dsi_to_current(ds_tensor *x);

/* Calls a kernel of t's device: dsi_run(y, affine, 2.0, 0.0, dsi_v(x),
 * dsi_v(y)). False, with the message, if t is NULL, the device has no such
 * kernel, or it failed. */
#define dsi_run(t, kernel, ...) dsi_run_named(t, #kernel, kernels, kernel, __VA_ARGS__)

/* The same for an entry of `table` (kernels or fusions) with its name in
 * messages. */
#define dsi_run_named(t, name, table, kernel, ...) \
    ((t) && (t)->device->table->kernel \
         ? (t)->device->table->kernel(&(t)->device->stream, __VA_ARGS__) == DS_OK \
         : ((t) && dsi_no_kernel((t)->device, (t)->dtype, name) == DS_OK))

/* For a kernel whose first argument selects an operation: dsi_run_op(y, unary,
 * DSI_RELU, 0.0, dsi_v(x), dsi_v(y)). */
#define dsi_run_op(t, kernel, op, ...) \
    dsi_run_named(t, dsi_##kernel##_name(op), kernels, kernel, op, __VA_ARGS__)

#define dsi_run_fusion(t, kernel, ...) dsi_run_named(t, #kernel, fusions, kernel, __VA_ARGS__)

/* For a kernel that checks labels or indices. False, with the message, for bad
 * ones, if the device computes at once; else the next check reports them. */
#define dsi_run_index(t, kernel, ...) \
    (dsi_run(t, kernel, __VA_ARGS__) && dsi_device_check_early((t)->device) == DS_OK)

/* *out = the p-norm of all elements of n views on d (kernels.h, `norm`), as a
 * double in host memory. Blocks until the device is done; reports faults of
 * earlier kernels too. */
ds_status dsi_norm(dsi_device *d, double p, int n, const dsi_view *x, double *out);
