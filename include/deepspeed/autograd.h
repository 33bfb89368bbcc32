/* deepspeed/autograd.h: gradients: backward, leaves, activation checkpoints,
 * your own ops, the gradient check.
 *
 * An op on a tensor that requires a gradient records a node. The graph belongs
 * to its thread; ds_backward runs it, newest node first, and frees it.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_AUTOGRAD_H
#define DEEPSPEED_AUTOGRAD_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* loss.backward(): adds d loss / d p to ds_grad(p) of each leaf p that requires
 * a gradient, and frees the graph. loss has one element. Refuses a loss without
 * a graph: no leaf requires a gradient, or backward has run already. */
DS_API ds_status ds_backward(ds_tensor *loss);

/* torch.autograd.backward(y, dy): the same for any y, with dy = d L / d y,
 * which has y's shape. */
DS_API ds_status ds_backward_from(ds_tensor *y, ds_tensor *dy);

/* torch.set_grad_enabled for this thread: whether ops record; at first they do.
 * Returns what it was:
 *     bool was = ds_set_grad(false); ...; ds_set_grad(was); */
DS_API bool ds_set_grad(bool on);
DS_API bool ds_grad_enabled(void);

/* torch.autocast for this thread: ops take float32 and 16-bit operands as
 * PyTorch's list for CUDA says, on the CPU too. In `dtype`, DS_BF16 or DS_F16:
 * products, convolutions, attention, prelu. In float32: softmax, losses, layer,
 * group and RMS norm, exp, log, pow, sums, products and norms of elements,
 * interpolation. Others take what they are given; float64 stays. Parameters are
 * float32, and so are their gradients. A backward pass needs no autocast, and
 * has none; an activation checkpoint is computed again with that of its
 * forward. DS_F32, as at first: off. Returns what it was:
 *     ds_dtype was = ds_set_autocast(DS_BF16); ...; ds_set_autocast(was); */
DS_API ds_dtype ds_set_autocast(ds_dtype dtype);
DS_API ds_dtype ds_autocast(void);

/* leaf.grad, borrowed: NULL before the first backward and after it was zeroed.
 * It has the strides of a leaf without gaps, such as one that was permuted, and
 * is row-major else. NULL too, with a message, if there is no memory to copy a
 * gradient that shares its memory with another tensor. */
DS_API ds_tensor *ds_grad(const ds_tensor *leaf);

/* leaf.grad = grad, which is kept and has the leaf's shape and dtype. NULL: the
 * leaf has no gradient. */
DS_API ds_status ds_set_grad_of(ds_tensor *leaf, ds_tensor *grad);

/* leaf.requires_grad_(on); returns leaf. Refuses (NULL) what is no leaf, and a
 * dtype that is not floating-point. */
DS_API ds_tensor *ds_require_grad(ds_tensor *leaf, bool on);

/* Whether a gradient flows to x: a leaf that requires one, or a result of one. */
DS_API bool ds_requires_grad(const ds_tensor *x);

/* x.detach(): a tensor on x's memory, without its graph. */
DS_API ds_tensor *ds_detach(ds_tensor *x);

/* ---- activation checkpoints: time for memory ------------------------------------ */

/* torch.utils.checkpoint(use_reentrant=False): y = fn(arg, in, n) without the
 * tensors that backward would need of the ops inside; backward runs fn again,
 * with the same random numbers. Gradients of the inputs, of parameters and of
 * other tensors that fn uses are the same bits as without a checkpoint. fn must
 * do the same both times; arg, and what fn reaches through it, must live until
 * the backward. n is 0 to 32. A checkpoint may contain others. */
typedef ds_tensor *ds_checkpoint_fn(void *arg, ds_tensor **in, int n);
DS_API ds_tensor *ds_checkpoint(ds_checkpoint_fn *fn, void *arg, ds_tensor **in, int n);

/* Called inside fn: x, made there, is another output, such as the loss of a
 * layer, and its gradient comes through the checkpoint. fn must name as many,
 * in the same order, both times. Does not keep x (ds_keep). Outside of a
 * checkpoint it does nothing. Returns x. */
DS_API ds_tensor *ds_checkpoint_output(ds_tensor *x);

/* Whether fn is running again, for backward. Code that counts batches, as the
 * running statistics of batch normalisation do, must not count then. */
DS_API bool ds_recomputing(void);

/* Sets, for this thread, what deepspeed.checkpointing.configure takes. Without
 * model parallelism only profile has an effect. Refuses values that contradict
 * each other. */
typedef struct ds_checkpoint_opts {
    bool partition_activations;           /* over model-parallel ranks; none: a warning, once */
    bool contiguous_memory_optimization;  /* needs the one above and number_checkpoints */
    bool cpu_checkpointing;               /* no effect: inputs stay on their device */
    int number_checkpoints;               /* >= 0 */
    bool synchronize_checkpoint_boundary; /* no effect: nothing needs the wait */
    bool profile; /* a log line for each forward and backward of a checkpoint */
} ds_checkpoint_opts;
DS_API ds_status ds_checkpoint_configure(ds_checkpoint_opts opts);
/* Whether this thread has called it. */
DS_API bool ds_checkpoint_is_configured(void);

/* ---- your own op (torch.autograd.Function) -------------------------------------- */

/* The context of one call of an op, as torch's ctx: its forward and its
 * backward share it. */
typedef struct ds_ctx ds_ctx;

typedef struct ds_op {
    const char *name; /* for messages; static */
    /* y, made of in[0..n-1]; NULL after a failure. Ops inside are not recorded:
     * what backward needs is given to ds_ctx_save. */
    ds_tensor *(*forward)(ds_ctx *ctx, ds_tensor **in, int n);
    /* Sets grad_in[i] to d L / d in[i], of in[i]'s shape, given grad = d L / d
     * y; NULL where in[i] has no gradient. */
    void (*backward)(ds_ctx *ctx, ds_tensor *grad, ds_tensor **grad_in);
} ds_op;

#define DS_MAX_OP_INPUTS 16

/* Runs op's forward on in[0..n-1], n <= DS_MAX_OP_INPUTS, and records it. op
 * must live as long as the graph: make it static. */
DS_API ds_tensor *ds_apply(const ds_op *op, ds_tensor **in, int n);

/* In forward: saves x for the backward. In backward: the i-th tensor that was
 * saved, borrowed; NULL, with the message, if there is none. */
DS_API void ds_ctx_save(ds_ctx *ctx, ds_tensor *x);
DS_API ds_tensor *ds_ctx_saved(ds_ctx *ctx, int i);

/* Whether in[i] needs a gradient (ctx.needs_input_grad[i]). */
DS_API bool ds_ctx_needs(ds_ctx *ctx, int i);

/* ---- hooks ----------------------------------------------------------------------------------- */

/* x.register_hook(fn): y is x, on its memory, to be used in its place. Backward
 * calls fn(arg, grad) with the whole gradient of y. fn returns the gradient
 * that x gets, of grad's shape, dtype and device, or NULL for grad itself; a
 * failure that it sets ends the pass. It may keep grad (ds_keep), as
 * retain_grad() does. arg must live until the backward. Of an x that requires
 * no gradient fn is not called. */
typedef ds_tensor *ds_grad_hook_fn(void *arg, ds_tensor *grad);
DS_API ds_tensor *ds_grad_hook(ds_tensor *x, ds_grad_hook_fn *fn, void *arg);

/* ---- gradient check ------------------------------------------------------------------------------ */

typedef struct ds_gradcheck_opts {
    double eps;  /* step of the central difference; 0: 1e-6 */
    double atol; /* 0: 1e-5 */
    double rtol; /* 0: 1e-3 */
} ds_gradcheck_opts;

/* torch.autograd.gradcheck: compares backward with central differences of f at
 * the float64 inputs in[0..n-1], for those that require a gradient. f(arg, in,
 * n) must give the same for the same inputs. DS_EINVAL names the first element
 * that differs by more than atol + rtol |numerical|, with both values. */
DS_API ds_status ds_gradcheck(ds_tensor *(*f)(void *arg, ds_tensor **in, int n), void *arg,
                              ds_tensor **in, int n, ds_gradcheck_opts opts);

#ifdef __cplusplus
}
#endif
#endif
