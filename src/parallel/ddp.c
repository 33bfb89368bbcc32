/* parallel/ddp.c: DistributedDataParallel without an engine, as in
 * torch.nn.parallel: buckets of gradients (reduce.h), and buffers that rank 0
 * broadcasts before each forward.
 *
 * Invariants: all ranks make the same calls in the same order; forward and
 * backward may block in collectives. After a backward that synchronizes, the
 * gradients of all ranks are equal and belong to the parameters, as the
 * optimizer expects.
 * SPDX-License-Identifier: MIT */
#include "autograd/node.h"
#include "base/list.h"
#include "base/mem.h"
#include "device/graph.h"
#include "nn/module.h"
#include "reduce.h"

#include <deepspeed/parallel.h>

#define BUCKET_BYTES (25 << 20) /* PyTorch's default */

typedef struct Buffer {
    ds_tensor *x;  /* counted */
    ds_comm *comm; /* of those that have it; borrowed */
} Buffer;

typedef struct Buffers {
    DSI_LIST(Buffer)
} Buffers;

struct ds_ddp {
    ds_module *module; /* borrowed */
    ds_comm *comm;     /* borrowed; NULL: one rank */
    dsi_flat *flat;
    dsi_reduce *reduce; /* NULL: one rank */
    Buffers buffers;    /* broadcast before a forward */
    bool no_sync;
    bool recorded; /* a device has recorded a step: buffers of the host are not broadcast */
};

/* A graph broadcasts buffers on its device alone, so steps beside its replays
 * must do the same: the host's count batches, alike on all ranks. */
static ds_status ddp_broadcast(ds_ddp *d)
{
    const Buffers *b = &d->buffers;
    dsi_device *device = d->flat->param[0].x->device;
    ds_status status = DS_OK;
    d->recorded = d->recorded || dsi_graph_recording(device);
    for (int i = 0; status == DS_OK && i < b->n; i++)
        if (!d->recorded || b->at[i].x->device == device)
            status = ds_broadcast(b->at[i].comm, b->at[i].x, 0);
    return status;
}

static void ddp_list_buffers(ds_ddp *d)
{
    ds_state *state = ds_module_state(d->module);
    for (int i = 0; i < ds_state_len(state); i++) {
        ds_tensor *x = ds_state_at(state, i);
        Buffer b = {x, dsi_flat_comm_of(d->module, x, d->comm)};
        if (dsi_module_has_param(d->module, x)) continue;
        ds_keep(x);
        dsi_list_add(&d->buffers, b);
    }
    ds_state_free(state);
}

static ds_status ddp_prepare(ds_ddp *d, const ds_ddp_opts *o)
{
    if (dsi_flat_begin_equal(d->module, d->comm, NULL) != DS_OK) return ds_error_status();
    if (!o->no_broadcast_buffers) ddp_list_buffers(d);
    size_t bytes = o->bucket_bytes ? (size_t)o->bucket_bytes : BUCKET_BYTES;
    ds_dtype dtype = ds_dtype_of(ds_module_param_at(d->module, 0, NULL));
    d->flat = dsi_flat_new(d->module,
                           &(dsi_flat_opts){.rank = ds_comm_rank(d->comm),
                                            .ranks = ds_comm_size(d->comm),
                                            .comm = d->comm,
                                            .bucket = (int64_t)(bytes / ds_dtype_size(dtype)),
                                            .solo_threshold = INT64_MAX,
                                            .small_total_threshold = INT64_MAX});
    if (!d->flat) return ds_error_status();
    d->reduce = dsi_reduce_new(d->flat, d->comm,
                               &(dsi_reduce_opts){.overlap = true, .accum = dtype, .comm = dtype});
    return DS_OK;
}

ds_ddp *ds_ddp_new_with(ds_module *module, ds_ddp_opts opts)
{
    if (!dsi_live(module, "ddp")) return dsi_null_operand("ddp");
    if (!opts.comm && !ds_is_distributed() && dsi_launched_by_mpi())
        return dsi_refuse("ddp: this process has no ranks beside it yet: call "
                          "ds_init_distributed() first");
    ds_comm *comm = opts.comm ? opts.comm : ds_world();
    if (!comm) return NULL;
    ds_ddp *d = dsi_alloc(sizeof *d);
    d->module = module;
    if (ds_comm_size(comm) == 1) return d;
    d->comm = comm;
    if (dsi_comm_all_or_none(d->comm, ddp_prepare(d, &opts)) == DS_OK) return d;
    ds_ddp_free(d);
    return NULL;
}

ds_ddp *ds_ddp_new(ds_module *module) { return ds_ddp_new_with(module, (ds_ddp_opts){0}); }

void ds_ddp_free(ds_ddp *d)
{
    if (!d) return;
    dsi_reduce_free(d->reduce);
    dsi_flat_free(d->flat);
    for (int i = 0; i < d->buffers.n; i++) ds_drop(d->buffers.at[i].x);
    dsi_list_free(&d->buffers);
    dsi_free(d);
}

ds_module *ds_ddp_module(const ds_ddp *d) { return d ? d->module : NULL; }

bool ds_ddp_set_sync(ds_ddp *d, bool on)
{
    if (!d) return true;
    bool was = !d->no_sync;
    d->no_sync = !on;
    return was;
}

ds_tensor *ds_ddp_call_n(ds_ddp *d, ds_tensor **in, int n)
{
    if (!dsi_live(d, "ddp_call")) return dsi_null_operand("ddp_call");
    bool send = d->comm && !d->no_sync && ds_module_training(d->module);
    if (send && dsi_comm_all_or_none(d->comm, ddp_broadcast(d)) != DS_OK) return NULL;
    return ds_call_n(d->module, in, n);
}

/* Sets the gradients of the parameters: views of the buckets, with the mean. */
static ds_status ddp_set_grads(const ds_ddp *d)
{
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < d->flat->n; i++)
        status = ds_set_grad_of(d->flat->param[i].x, dsi_reduce_grad(d->reduce, i));
    ds_scope_close(scope);
    dsi_reduce_reset(d->reduce);
    return status;
}

/* ---- a pass that a device records (device/graph.h) ---- */

typedef struct Pass {
    const dsi_reduce *reduce;
    dsi_reduce_record *before;
} Pass;

static bool pass_holds(void *arg)
{
    const Pass *p = arg;
    return dsi_reduce_is_as(p->reduce, p->before);
}

static void pass_release(void *arg)
{
    Pass *p = arg;
    dsi_reduce_record_free(p->before);
    dsi_free(p);
}

/* A replay sums the gradients in the memory of the captured pass, which made
 * all of them. */
static ds_status ddp_record_pass(const ds_ddp *d)
{
    static const dsi_graph_hook hook = {.holds = pass_holds, .release = pass_release};
    dsi_device *device = d->flat->param[0].x->device;
    ds_status status = DS_OK;
    if (!dsi_graph_recording(device)) return DS_OK;
    for (int i = 0; status == DS_OK && i < d->flat->n; i++)
        if (ds_grad(d->flat->param[i].x))
            status = dsi_graph_forbid(
                device, "it adds to gradients of an earlier pass (ds_ddp_backward; zero_grad)");
    dsi_graph_accumulate(device); /* of parts of this pass */
    if (status != DS_OK || !dsi_graph_capturing(device)) return status;
    Pass *p = dsi_alloc(sizeof *p);
    *p = (Pass){d->reduce, dsi_reduce_record_new(d->reduce)};
    dsi_graph_add_hook(device, &hook, p);
    return DS_OK;
}

/* Blocks until the gradients of all ranks are summed. */
ds_status ds_ddp_backward(ds_ddp *d, ds_tensor *loss)
{
    if (!dsi_live_all("ddp_backward", d, loss)) return dsi_null_argument("ddp_backward");
    if (!d->comm || d->no_sync) return ds_backward(loss);
    dsi_reduce_spare_kept(d->reduce);
    ds_status status = ddp_record_pass(d);
    if (status == DS_OK) status = dsi_reduce_begin(d->reduce, true);
    if (status == DS_OK) status = ds_backward(loss);
    if (status == DS_OK) status = dsi_reduce_end(d->reduce);
    if (status == DS_OK) status = dsi_reduce_wait(d->reduce);
    if (status == DS_OK) status = ddp_set_grads(d);
    return dsi_comm_all_or_none(d->comm, status);
}
