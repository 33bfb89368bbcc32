/* tensor/acquire.c: operands become memory that kernels can read.
 *
 * Note [Residency]
 * A tensor's values need not be in memory when an op gets it:
 *
 *     lazy      a parameter that is partitioned over ranks or on disk has no
 *               storage; its owner materializes it (lazy.c), which may start a
 *               collective, and may fail
 *     pooled    a gradient of max-pooling has a value for each window in place
 *               of a plane; it is made dense (pooled.c), which takes memory
 *     deferred  some results wait for their first reader (deferred.c)
 *
 * So an op acquires all operands that its kernels read: after its checks,
 * before it allocates its result, in one statement, where a failure is returned
 * like any other. dsi_v, which makes the views that kernels take, does nothing
 * else and asserts that this was done. Backward passes are acquired for by
 * autograd/backward.c.
 *
 * Invariants:
 * - After dsi_acquire(x, ..) is true, each x has storage and is not deferred,
 *   until this thread acquires again or the owner of a lazy x evicts it
 *   at a point of its own: the end of a module call, the end of a node's
 *   backward pass (dsi_set_after_use_hook), the end of a step. No op runs at
 *   these points, so an op that acquires last thing before its kernels needs no
 *   release.
 * - While one call materializes several operands, those are acquired together:
 *   an owner that evicts one lazy tensor to make place for another asks
 *   dsi_is_acquired first.
 * - Materializing may block in a collective. All ranks run the same ops with
 *   the same operands, so they acquire in the same order: that of the
 *   arguments.
 * SPDX-License-Identifier: MIT */
#include "tensor.h"

/* Adds `delta` to the count of running acquires of each operand that has hooks. */
static void mark_acquired(const ds_tensor *const *x, int n, int delta)
{
    for (int i = 0; i < n; i++)
        if (x[i] && x[i]->hooks) x[i]->hooks->acquired += delta;
}

/* Brings the values of x into memory, dense; may block in a collective. Callers
 * cast const away: a const handle promises the values, not the form in which
 * they are kept. */
static ds_status make_present(ds_tensor *x)
{
    if (!x || dsi_is_present(x)) return DS_OK;
    ds_status status = x->pooled[0] ? dsi_make_dense(x) : dsi_materialize(x);
    return status == DS_OK && x->storage->deferred ? dsi_compute_deferred(x->storage) : status;
}

bool dsi_acquire_absent(const ds_tensor *const *x, int n)
{
    ds_status status = DS_OK;
    mark_acquired(x, n, 1);
    for (int i = 0; status == DS_OK && i < n; i++) status = make_present((ds_tensor *)x[i]);
    mark_acquired(x, n, -1);
    return status == DS_OK;
}

bool dsi_acquire_pooled(const ds_tensor *x)
{
    if (!x || !x->pooled[0]) return dsi_acquire(x);
    return dsi_acquire(x->pooled[0], x->pooled[1], x->pooled[2]);
}

bool dsi_acquire_to_write(const ds_tensor *x)
{
    if (!dsi_acquire(x)) return false;
    if (x && x->storage->sharers && !dsi_make_all_own(x->storage)) return false;
    if (x && x->storage->reader && dsi_compute_deferred(x->storage->reader) != DS_OK) return false;
    if (x) ((ds_tensor *)x)->has_item = false;
    return true;
}

bool dsi_is_acquired(const ds_tensor *x) { return x->hooks && x->hooks->acquired; }
