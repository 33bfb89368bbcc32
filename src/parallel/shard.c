/* parallel/shard.c: deepspeed.zero.Init: a model whose parameters are divided among ranks as they are made, so
 * that no rank ever has it whole.
 *
 * A layer gives its parameters their first values after they were made; so a parameter is divided when the
 * next one is made, or when the making ends. Until then reading and writing a divided one gathers it again:
 * all ranks run the same constructors.
 * SPDX-License-Identifier: MIT */
#include "shard.h"

#include "base/list.h"
#include "base/mem.h"
#include "flat.h"
#include "nn/module.h"

#include <deepspeed/parallel.h>

typedef struct Shard {
    ds_tensor *x;    /* that has it */
    ds_comm *comm;   /* borrowed */
    ds_tensor *part; /* [slice], counted */
    int64_t n, slice;
    int users;
    bool pending; /* whole, to be divided when the next parameter is made */
} Shard;

/* The making of this thread. */
static _Thread_local struct {
    ds_comm *comm; /* NULL: none runs, or there is one rank */
    ds_dtype dtype;
    struct {
        DSI_LIST(Shard *)
    } pending;
} making;

static ds_status fetch(void *arg, ds_tensor *x);

static Shard *shard_of(const ds_tensor *x)
{
    return x && x->hooks && x->hooks->fetch == fetch ? x->hooks->fetch_arg : NULL;
}

bool dsi_is_shard(const ds_tensor *x) { return shard_of(x) != NULL; }
ds_tensor *dsi_shard_part(const ds_tensor *x) { return shard_of(x)->part; }

/* ---- there and back ------------------------------------------------------------------------------------- */

/* A rank that leaves out a collective must not begin another one in its place. */
static ds_status all_or_none(ds_comm *comm, ds_status status)
{
    if (status != DS_OK) dsi_comm_abort(comm, ds_error());
    return status;
}

static ds_status bring(Shard *s)
{
    if (s->x->storage) return DS_OK;
    ds_scope *scope = ds_scope_open();
    ds_tensor *all = dsi_new(s->part, ds_shape(s->slice * ds_comm_size(s->comm)));
    ds_status status = all ? ds_all_gather(s->comm, all, s->part) : ds_error_status();
    if (status == DS_OK) {
        int64_t stride[DS_MAX_DIMS];
        dsi_row_major(s->x->shape, stride);
        dsi_tensor_set_data(s->x, dsi_view_of(all, s->x->shape, stride, 0));
    }
    ds_scope_close(scope);
    return all_or_none(s->comm, status);
}

/* Rank `root`'s values to the slices of all ranks. */
static ds_status store(Shard *s, int root)
{
    int64_t begin = s->slice * ds_comm_rank(s->comm), end = begin + s->slice;
    if (begin > s->n) begin = s->n;
    if (end > s->n) end = s->n;
    ds_status status = ds_broadcast(s->comm, s->x, root);
    if (status != DS_OK || begin == end) return status;
    return dsi_copy(dsi_flat_range(s->part, 0, end - begin), dsi_flat_range(s->x, begin, end));
}

static ds_status divide(Shard *s)
{
    ds_tensor *x = s->x;
    if (x->dtype != making.dtype && x->dtype <= DS_BF16) {
        ds_tensor *y = dsi_new_dtype(x, making.dtype, x->shape);
        if (dsi_copy(y, x) != DS_OK) return ds_error_status();
        dsi_tensor_set_data(x, y);
    }
    if (!s->part) {
        ds_tensor *part = dsi_new(x, ds_shape(s->slice));
        if (!dsi_fill(part, 0)) return ds_error_status();
        s->part = dsi_ref(part);
    }
    if (store(s, 0) != DS_OK) return ds_error_status();
    s->pending = false;
    if (!s->users) dsi_release_storage(x);
    return DS_OK;
}

/* Constructors go on after a failure; this rank may have made a parameter less than the others. */
static ds_status divide_pending(void)
{
    ds_status status = ds_error() ? ds_error_status() : DS_OK;
    for (int i = 0; status == DS_OK && i < making.pending.n; i++) {
        ds_scope *scope = ds_scope_open();
        status = divide(making.pending.at[i]);
        ds_scope_close(scope);
    }
    making.pending.n = 0;
    return all_or_none(making.comm, status);
}

/* ---- hooks ---------------------------------------------------------------------------------------------- */

static ds_status fetch(void *arg, ds_tensor *x)
{
    Shard *s = arg;
    if (!making.comm)
        return dsi_fail(DS_ESTATE,
                        "zero_init: a parameter %s is divided among %d ranks: read it between "
                        "ds_gathered and ds_gathered_end, on all ranks",
                        dsi_shape_text(x->shape), ds_comm_size(s->comm));
    ds_status status = bring(s);
    if (status == DS_OK && !s->pending) dsi_list_add(&making.pending, s);
    s->pending = true;
    return status;
}

/* x is freed. */
static void forget(void *arg)
{
    Shard *s = arg;
    for (int i = 0; s->pending && i < making.pending.n; i++)
        if (making.pending.at[i] == s) making.pending.at[i] = making.pending.at[--making.pending.n];
    dsi_unref(s->part);
    dsi_free(s);
}

/* x has been made: those before it have their values by now. */
static ds_status made(void *arg, ds_tensor *x)
{
    (void)arg;
    if (divide_pending() != DS_OK) return ds_error_status();
    if (!ds_numel(x)) return DS_OK;
    int64_t ranks = ds_comm_size(making.comm), unit = ranks * DSI_FLAT_ALIGN;
    Shard *s = dsi_alloc(sizeof *s);
    *s = (Shard){.x = x, .comm = making.comm, .n = ds_numel(x), .pending = true};
    s->slice = (s->n + unit - 1) / unit * DSI_FLAT_ALIGN;
    dsi_set_materialize_hook(x, fetch, s);
    x->hooks->gone = forget;
    dsi_list_add(&making.pending, s);
    return DS_OK;
}

/* ---- the face ------------------------------------------------------------------------------------------- */

ds_status ds_zero_init_with(ds_zero_init_opts opts)
{
    ds_comm *comm = opts.comm ? opts.comm : ds_world();
    if (!comm) return ds_error_status();
    if (making.comm)
        return dsi_fail(DS_ESTATE, "zero_init: called twice without ds_zero_init_end between");
    if (opts.dtype != DS_F32 && opts.dtype != DS_F16 && opts.dtype != DS_BF16)
        return dsi_fail(DS_EINVAL, "zero_init: dtype is %s: expected float32, float16 or bfloat16",
                        ds_dtype_name(opts.dtype));
    if (ds_comm_size(comm) == 1) return DS_OK;
    making.comm = comm;
    making.dtype = opts.dtype;
    dsi_on_param(made, NULL);
    return DS_OK;
}

ds_status ds_zero_init(void) { return ds_zero_init_with((ds_zero_init_opts){0}); }

ds_status ds_zero_init_end(void)
{
    if (!making.comm) return DS_OK;
    ds_status status = divide_pending();
    dsi_on_param(NULL, NULL);
    dsi_list_free(&making.pending);
    making.comm = NULL;
    return status;
}

ds_status dsi_shard_gather(ds_tensor *x)
{
    Shard *s = shard_of(x);
    ds_status status = bring(s);
    if (status == DS_OK) s->users++;
    return status;
}

ds_status dsi_shard_end(ds_tensor *x, int modifier)
{
    Shard *s = shard_of(x);
    if (!s->users) return DS_OK;
    ds_status status = modifier < 0 ? DS_OK : store(s, modifier);
    if (--s->users == 0 && !s->pending) dsi_release_storage(x);
    return status;
}

/* ---- taking over ---------------------------------------------------------------------------------------- */

ds_status dsi_shard_to(ds_tensor *x, ds_dtype dtype)
{
    Shard *s = shard_of(x);
    if (x->storage || x->dtype == dtype) return DS_OK;
    ds_tensor *part = dsi_new_dtype(s->part, dtype, s->part->shape);
    if (dsi_copy(part, s->part) != DS_OK) return ds_error_status();
    dsi_unref(s->part);
    s->part = dsi_ref(part);
    x->dtype = dtype;
    return DS_OK;
}

ds_status dsi_shard_join(ds_tensor *x)
{
    ds_status status = bring(shard_of(x));
    if (status == DS_OK) dsi_shard_drop(x);
    return status;
}

void dsi_shard_drop(ds_tensor *x)
{
    Shard *s = shard_of(x);
    x->hooks->gone = NULL;
    dsi_set_materialize_hook(x, NULL, NULL);
    forget(s);
}
