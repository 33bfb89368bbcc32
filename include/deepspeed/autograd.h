/* deepspeed/autograd.h: gradients: backward, leaves, ops of one's own, gradient check.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_AUTOGRAD_H
#define DEEPSPEED_AUTOGRAD_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds d loss / d p to ds_grad(p) of every leaf p that requires a gradient, newest op first, and
 * frees the graph on its way. loss has one element. Refuses a loss without a graph. */
DS_API ds_status ds_backward(ds_tensor *loss);

/* The same with d L / d y given: y and dy have the same shape (torch.autograd.backward(y, dy)). */
DS_API ds_status ds_backward_from(ds_tensor *y, ds_tensor *dy);

/* Whether ops record on this thread; at first they do. Returns what it was:
 *     bool was = ds_set_grad(false); ...; ds_set_grad(was); */
DS_API bool ds_set_grad(bool on);
DS_API bool ds_grad_enabled(void);

/* A leaf's own gradient: NULL before the first backward and after it was zeroed. Borrowed. */
DS_API ds_tensor *ds_grad(const ds_tensor *leaf);
DS_API ds_status ds_set_grad_of(ds_tensor *leaf, ds_tensor *grad); /* NULL: forget it */
DS_API ds_tensor *ds_require_grad(ds_tensor *leaf, bool on);       /* returns leaf */
DS_API bool ds_requires_grad(const ds_tensor *x);

/* x's values without its graph: same memory, no gradient. */
DS_API ds_tensor *ds_detach(ds_tensor *x);

/* ---- checkpoints: time for memory (torch.utils.checkpoint, use_reentrant=False) --------------------- */

/* y = fn(arg, in, n) without keeping what backward would need of what is between: backward runs fn again,
 * with the same random numbers. The gradients of the inputs, and of parameters and others that fn uses, are
 * those without a checkpoint, bit for bit. fn must do the same both times; arg, and what fn reaches by it,
 * stays until the backward. Checkpoints may stand inside of one another; n is at most 32. */
typedef ds_tensor *ds_checkpoint_fn(void *arg, ds_tensor **in, int n);
DS_API ds_tensor *ds_checkpoint(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n);

/* Called by such an fn: x, made in it, is an output too, as a layer's own loss is: gradients that x gets come
 * through the checkpoint as well. fn names as many, in the same order, both times. x is not kept by this (ds_keep).
 * Elsewhere it does nothing. Returns x. */
DS_API ds_tensor *ds_checkpoint_output(ds_tensor *x);

/* True while such an fn runs again: what counts the batches that pass, as batch normalisation's running
 * statistics do, leaves them alone then. */
DS_API bool ds_recomputing(void);

/* The keys of activation_checkpointing, as deepspeed.checkpointing.configure takes them; for this thread.
 * Without model parallelism and an accelerator only profile has an effect. */
typedef struct ds_checkpoint_opts {
    bool partition_activations; /* among model-parallel ranks: there are none, says so once */
    bool contiguous_memory_optimization; /* needs partition_activations and number_checkpoints */
    bool cpu_checkpointing;              /* inputs of checkpoints in host memory: they are */
    int number_checkpoints;
    bool synchronize_checkpoint_boundary; /* waits for the device: the CPU is never behind */
    bool profile;                         /* a line for each forward and backward of a checkpoint */
} ds_checkpoint_opts;
DS_API ds_status ds_checkpoint_configure(ds_checkpoint_opts opts);
DS_API bool ds_checkpoint_is_configured(void);

/* ---- an op of one's own (torch.autograd.Function) ------------------------------------------------ */

typedef struct ds_ctx ds_ctx;

typedef struct ds_op {
    const char *name;
    /* y from in[0..n-1]; what backward needs is given to ds_ctx_save. Runs outside of the graph. */
    ds_tensor *(*forward)(ds_ctx *ctx, ds_tensor **in, int n);
    /* grad_in[i] = gradient of in[i] given grad = d L / d y; NULL where there is none. */
    void (*backward)(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in);
} ds_op;

#define DS_MAX_OP_INPUTS 16

DS_API ds_tensor *ds_apply(const ds_op *op, ds_tensor **in, int n);
DS_API void ds_ctx_save(ds_ctx *ctx, ds_tensor *x);
DS_API ds_tensor *ds_ctx_saved(ds_ctx *ctx, int i);
DS_API bool ds_ctx_needs(ds_ctx *ctx, int i); /* whether in[i] wants a gradient */

/* ---- gradient check ------------------------------------------------------------------------------ */

typedef struct ds_gradcheck_opts {
    double eps;  /* step of the central difference; 0: 1e-6 */
    double atol; /* 0: 1e-5 */
    double rtol; /* 0: 1e-3 */
} ds_gradcheck_opts;

/* Compares backward with central differences of f at float64 inputs in[0..n-1] (those that require a
 * gradient). f must return the same for the same inputs. DS_EINVAL names the first element that
 * differs, with both values; as torch.autograd.gradcheck. */
DS_API ds_status ds_gradcheck(ds_tensor *(*f)(void *arg, ds_tensor **in, int n), void *arg,
                              ds_tensor **in, int n, ds_gradcheck_opts opts);

#ifdef __cplusplus
}
#endif
#endif
