/* parallel/zero.c: ZeRO as one thing with three switches (the table in zero.h): one step over the parts of the
 * parameters that this rank updates.
 *
 * What the optimizer updates, for each parameter (Note [Layout] says which elements are a rank's own):
 *   float32   the parameter itself, or the own part of its memory;
 *   16 bits   a float32 master of them in one flat buffer, or in a file, beside which the parameter is the copy
 *             that the optimizer writes; gradients stay 16-bit, and are widened as the optimizer reads them.
 * On one rank gradients stay where backward made them and nothing is copied; on several they come from
 * buckets (reduce.h). Unscaling and clipping are one factor that the optimizer multiplies gradients by as it
 * reads them.
 *
 * Source: Rajbhandari et al., ZeRO, arXiv 1910.02054; mixed precision: arXiv 1710.03740.
 * SPDX-License-Identifier: MIT */
#include "zero.h"

#include "autograd/node.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/trace.h"
#include "norm.h"
#include "optim/optim.h"
#include "reduce.h"
#include "shard.h"
#include "zero3.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct dsi_zero {
    ds_module *model; /* these three are borrowed */
    ds_optim *optim;
    ds_comm *comm;  /* NULL: one rank */
    ds_comm *alone; /* where a single rank gathers from its file */
    dsi_zero_opts o;
    dsi_flat *flat;
    dsi_reduce *reduce; /* NULL: gradients stay where backward makes them */
    /* Memory of the parameters that are gathered after a step, counted: [units]; or NULL. */
    ds_tensor **unit;
    dsi_request **gathers; /* [units]: those of one step */
    dsi_zero3 *divided;    /* what has the other parameters; or NULL */
    ds_tensor *masters;    /* float32 [own], counted; NULL: the parameters are their own, or */
    dsi_offload *files;    /* has them, and the moments */
    ds_tensor **part;      /* [n], counted: what the optimizer updates; NULL: nothing of this one */
    dsi_view *views;       /* [n]: room for the gradients of one step */
    ds_tensor *sums;       /* float64 [ranks + 1], counted: of squares: all ranks', this one's */
    char *bad;
};

/* A failure of one rank is one of all: its message, and no rank waits for ever. */
static ds_status all_or_none(const dsi_zero *z, ds_status status)
{
    if (status != DS_OK && z->comm) dsi_comm_abort(z->comm, ds_error());
    return status;
}

/* ---- making -------------------------------------------------------------------------------------------- */

static ds_status check(const dsi_zero_opts *o, const ds_optim *optim, int ranks)
{
    if (o->stage < 0 || o->stage > 3)
        return dsi_fail(DS_EINVAL, "zero: stage is %d: expected 0 to 3", o->stage);
    if (o->dtype != DS_F32 && o->dtype != DS_F16 && o->dtype != DS_BF16)
        return dsi_fail(DS_EINVAL, "zero: dtype is %s: expected float32, float16 or bfloat16",
                        ds_dtype_name(o->dtype));
    if (o->accum_dtype != DS_F32 && o->accum_dtype != o->dtype)
        return dsi_fail(DS_EINVAL, "zero: gradients of %s cannot be added up in %s: expected %s",
                        ds_dtype_name(o->dtype), ds_dtype_name(o->accum_dtype),
                        o->dtype == DS_F32 ? "float32" : "float32 or the model's dtype");
    if (o->stage > 0 && ranks > 1 && dsi_optim_needs_whole(optim))
        return dsi_fail(DS_EINVAL,
                        "zero: this optimizer needs whole parameters (LAMB's trust ratio), but "
                        "stage %d gives it parts: use stage 0",
                        o->stage);
    return DS_OK;
}

dsi_flat_opts dsi_zero_layout(const dsi_zero_opts *o, int rank, int ranks)
{
    int64_t bucket = o->reduce_bucket ? o->reduce_bucket : DSI_ZERO_BUCKET;
    int64_t gather = o->allgather_bucket ? o->allgather_bucket : DSI_ZERO_BUCKET;
    bool away = o->stage == 3 && o->param_files.nvme_path; /* from one rank too */
    bool partition = (o->stage > 0 && ranks > 1) || away;
    bool divide = o->stage == 3 && (ranks > 1 || away);
    if (partition && gather < bucket) bucket = gather;
    return (dsi_flat_opts){.rank = rank,
                           .ranks = ranks,
                           .partition = partition,
                           .bucket = bucket,
                           .alone = divide ? o->persistence_threshold : INT64_MAX,
                           .together = divide ? o->model_persistence_threshold : INT64_MAX};
}

static ds_status lay_out(dsi_zero *z, int ranks)
{
    dsi_flat_opts o = dsi_zero_layout(&z->o, ds_comm_rank(z->comm), ranks);
    o.comm = z->comm ? z->comm : ranks == 1 ? z->alone : NULL;
    z->flat = dsi_flat_new(z->model, &o);
    if (!z->flat) return ds_error_status();
    if (z->o.deterministic && z->flat->shared)
        return dsi_fail(DS_EINVAL, "zero: deterministic: the bits of experts that ranks share "
                                   "depend on how many tokens come together: use ep_size 1");
    z->part = dsi_alloc((size_t)z->flat->n * sizeof *z->part);
    z->views = dsi_alloc((size_t)z->flat->n * sizeof *z->views);
    if (!o.partition) return DS_OK;
    z->unit = dsi_alloc((size_t)z->flat->units * sizeof *z->unit);
    z->gathers = dsi_alloc((size_t)z->flat->units * sizeof *z->gathers);
    return DS_OK;
}

/* What ds_zero_init has divided: in the model's dtype; whole, where it will not be divided. */
static ds_status convert_shards(const dsi_zero *z)
{
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < ds_module_params(z->model); i++) {
        ds_tensor *x = ds_module_param_at(z->model, i, NULL);
        if (dsi_is_shard(x)) status = dsi_shard_to(x, z->o.dtype);
    }
    return status;
}

static ds_status join_shards(const dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    ds_status status = DS_OK;
    for (int i = 0, k; status == DS_OK && i < ds_module_params(z->model); i++) {
        ds_tensor *x = ds_module_param_at(z->model, i, NULL);
        for (k = 0; k < f->n && f->param[k].x != x;) k++;
        bool stays = k < f->n && z->unit && z->o.stage == 3 && f->unit[f->param[k].unit].alone;
        if (dsi_is_shard(x) && !stays) status = dsi_shard_join(x);
    }
    return status;
}

/* Where DeepSpeed has its files; to be freed. NULL passes. */
static char *folder_in(const dsi_zero *z, const char *nvme_path)
{
    dsi_text folder = {0};
    if (nvme_path) dsi_text_add(&folder, "%s/zero_stage_%d", nvme_path, z->o.stage);
    return folder.s;
}

static ds_status divide(dsi_zero *z)
{
    dsi_zero3_opts o = {.prefetch = z->o.prefetch_bucket,
                        .max_live = z->o.max_live,
                        .max_reuse_distance = z->o.max_reuse_distance,
                        .files = z->o.param_files};
    char *folder = folder_in(z, o.files.nvme_path);
    o.files.nvme_path = folder;
    z->divided = dsi_zero3_new(z->model, z->flat, z->comm, &o);
    dsi_free(folder);
    return z->divided ? DS_OK : ds_error_status();
}

/* The parameters of a unit into one piece of memory, where all_gather finds them. */
static ds_status join_unit(dsi_zero *z, int k)
{
    const dsi_flat *f = z->flat;
    const dsi_flat_unit *u = &f->unit[k];
    if (dsi_zero3_divides(z->divided, k)) return DS_OK;
    ds_tensor *all = dsi_new(f->param[0].x, ds_shape(u->n));
    if (!dsi_run(all, fill, 0.0, dsi_v(all))) return ds_error_status();
    z->unit[k] = dsi_ref(all);
    for (int i = u->first; i < u->first + u->count; i++) {
        ds_tensor *place = dsi_flat_in_unit(f, i, all);
        if (dsi_copy(place, f->param[i].x) != DS_OK) return ds_error_status();
        dsi_become(f->param[i].x, place);
    }
    return DS_OK;
}

/* This rank's elements of parameter i as the model has them; NULL: none. */
static ds_tensor *own_part(const dsi_zero *z, int i)
{
    return dsi_zero3_divides(z->divided, z->flat->param[i].unit) ? dsi_zero3_part(z->divided, i)
                                                                 : dsi_flat_in_param(z->flat, i);
}

/* Whether the model's own elements of parameter i are in a file. */
static bool is_away(const dsi_zero *z, int i) { return dsi_zero3_in_file(z->divided, i); }

/* The masters, with the values of the parameters, which are rounded already: as DeepSpeed begins. */
static ds_status make_masters(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    ds_tensor *masters = dsi_new_on(f->param[0].x->device, DS_F32, ds_shape(f->own));
    if (!dsi_run(masters, fill, 0.0, dsi_v(masters))) return ds_error_status();
    z->masters = dsi_ref(masters);
    for (int i = 0; i < f->n; i++) {
        ds_tensor *to = dsi_flat_in_own(f, i, masters);
        if (to && dsi_copy(to, own_part(z, i)) != DS_OK) return ds_error_status();
        if (is_away(z, i)) dsi_zero3_let_go(z->divided, i);
    }
    return DS_OK;
}

static ds_tensor *open_part(void *arg, int i, bool write)
{
    const dsi_zero *z = arg;
    if (write && is_away(z, i) && dsi_zero3_blank(z->divided, i) != DS_OK) return NULL;
    return own_part(z, i);
}

static ds_status close_part(void *arg, int i, bool write)
{
    const dsi_zero *z = arg;
    if (!is_away(z, i)) return DS_OK;
    if (write) return dsi_zero3_store(z->divided, i);
    dsi_zero3_let_go(z->divided, i);
    return DS_OK;
}

static dsi_offload_model model_of(dsi_zero *z)
{
    return (dsi_offload_model){open_part, close_part, z};
}

static ds_status make_files(dsi_zero *z)
{
    char *folder = folder_in(z, z->o.files.nvme_path);
    z->files = dsi_offload_new(z->flat, z->optim, folder, &z->o.files, model_of(z));
    dsi_free(folder);
    return z->files ? DS_OK : ds_error_status();
}

/* Says to the optimizer what it updates. */
static ds_status set_parts(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    bool apart = z->masters || z->files;
    for (int i = 0; i < f->n; i++) {
        ds_tensor *x = f->param[i].x, *mine = z->unit || apart ? own_part(z, i) : x;
        z->part[i] = dsi_ref(z->files     ? dsi_offload_part(z->files, i)
                             : z->masters ? dsi_flat_in_own(f, i, z->masters)
                                          : mine);
        if (z->part[i] != x &&
            dsi_optim_set_param(z->optim, f->param[i].index, z->part[i],
                                z->o.dtype == DS_F32 || is_away(z, i) ? NULL : mine) != DS_OK)
            return ds_error_status();
    }
    return DS_OK;
}

static ds_status start_reduction(dsi_zero *z)
{
    z->reduce = dsi_reduce_new(z->flat, z->comm,
                               &(dsi_reduce_opts){.partition = z->o.stage >= 2,
                                                  .tree = z->o.deterministic,
                                                  .all_reduce = !z->o.reduce_scatter,
                                                  .overlap = z->o.overlap_comm,
                                                  .squares = true,
                                                  .prescale = z->o.prescale,
                                                  .predivide = z->o.predivide,
                                                  .accum = z->o.accum_dtype,
                                                  .comm = z->o.comm_dtype});
    if (!z->comm) return DS_OK;
    z->sums = dsi_ref(
        dsi_new_on(z->flat->param[0].x->device, DS_F64, ds_shape(ds_comm_size(z->comm) + 1)));
    return z->sums ? DS_OK : ds_error_status();
}

static ds_status prepare(dsi_zero *z)
{
    ds_status status = convert_shards(z);
    if (status == DS_OK) status = ds_module_to(z->model, z->o.dtype);
    if (status == DS_OK && z->comm) status = dsi_flat_begin_equal(z->model, z->comm, dsi_is_shard);
    if (status == DS_OK) status = lay_out(z, ds_comm_size(z->comm));
    if (status == DS_OK) status = join_shards(z);
    if (status == DS_OK && z->unit && z->o.stage == 3) status = divide(z);
    for (int k = 0; status == DS_OK && z->unit && k < z->flat->units; k++) status = join_unit(z, k);
    if (status == DS_OK && z->o.files.nvme_path)
        status = make_files(z);
    else if (status == DS_OK &&
             (z->o.dtype != DS_F32 || z->o.offload_optimizer || z->o.param_files.nvme_path))
        status = make_masters(z);
    if (status == DS_OK) status = set_parts(z);
    bool sums = z->comm || z->divided || z->o.deterministic || z->o.accum_dtype != z->o.dtype;
    if (status == DS_OK && sums) status = start_reduction(z);
    return status;
}

dsi_zero *dsi_zero_new(ds_module *model, ds_optim *optim, ds_comm *comm, const dsi_zero_opts *o)
{
    if (!model || !optim) return dsi_passed("zero");
    dsi_zero *z = dsi_alloc(sizeof *z);
    z->model = model;
    z->optim = optim;
    z->comm = ds_comm_size(comm) > 1 ? comm : NULL;
    z->alone = comm ? comm : ds_world();
    z->o = *o;
    if (z->o.deterministic && z->o.stage == 0) z->o.stage = 1;
    if (check(&z->o, optim, ds_comm_size(comm)) != DS_OK) {
        dsi_free(z);
        return NULL;
    }
    ds_scope *scope = ds_scope_open();
    ds_status status = all_or_none(z, prepare(z));
    ds_scope_close(scope);
    /* what the model was made in is of other sizes than what a step needs */
    if (z->flat) dsi_cache_empty(z->flat->param[0].x->device);
    if (status == DS_OK) return z;
    dsi_zero_free(z);
    return NULL;
}

void dsi_zero_free(dsi_zero *z)
{
    if (!z) return;
    dsi_reduce_free(z->reduce);
    dsi_zero3_free(z->divided);
    for (int i = 0; z->flat && z->part && i < z->flat->n; i++) dsi_unref(z->part[i]);
    for (int k = 0; z->flat && z->unit && k < z->flat->units; k++) dsi_unref(z->unit[k]);
    dsi_offload_free(z->files);
    dsi_unref(z->masters);
    dsi_unref(z->sums);
    dsi_flat_free(z->flat);
    dsi_free(z->part);
    dsi_free(z->unit);
    dsi_free(z->gathers);
    dsi_free(z->views);
    dsi_free(z->bad);
    dsi_free(z);
}

/* ---- gradients ----------------------------------------------------------------------------------------- */

static ds_status backward(dsi_zero *z, ds_tensor *loss, double factor, bool last)
{
    if (!z->reduce) return dsi_backward_scaled(loss, factor);
    if (dsi_reduce_complete(z->reduce))
        return all_or_none(z, dsi_fail(DS_ESTATE, "zero: a backward pass after the last one, "
                                                  "without a step between"));
    if (z->o.deterministic) factor /= ds_comm_size(z->comm);
    ds_status status = dsi_reduce_begin(z->reduce, last);
    if (z->divided) dsi_zero3_backward(z->divided, true);
    if (status == DS_OK) status = dsi_backward_scaled(loss, factor);
    if (z->divided) dsi_zero3_backward(z->divided, false);
    if (status == DS_OK) status = dsi_reduce_end(z->reduce);
    return all_or_none(z, status);
}

ds_status dsi_zero_backward(dsi_zero *z, ds_tensor *loss, double factor, bool last)
{
    if (!z) return dsi_passed("zero_backward"), DS_EINVAL;
    dsi_trace_begin("backward");
    ds_status status = backward(z, loss, factor, last);
    dsi_trace_end();
    return status;
}

double dsi_zero_reducing(const dsi_zero *z)
{
    return z && z->reduce ? dsi_reduce_seconds(z->reduce) : 0;
}

void dsi_zero_zero_grad(dsi_zero *z)
{
    if (!z) return;
    for (int i = 0; i < z->flat->n; i++) {
        ds_set_grad_of(z->flat->param[i].x, NULL);
        if (z->part[i]) ds_set_grad_of(z->part[i], NULL);
    }
    if (z->reduce) dsi_reduce_forget(z->reduce);
}

/* The gradient of parameter i's own elements, dense; NULL: none. */
static ds_tensor *gradient(const dsi_zero *z, int i)
{
    ds_tensor *g = z->reduce ? dsi_reduce_grad(z->reduce, i) : ds_grad(z->flat->param[i].x);
    return g && dsi_make_dense(g) == DS_OK ? g : NULL;
}

/* The gradients to where the optimizer looks for them. */
static ds_status hand_over(dsi_zero *z)
{
    for (int i = 0; i < z->flat->n; i++) {
        ds_tensor *g = z->part[i] ? gradient(z, i) : NULL;
        if (g && g != ds_grad(z->part[i]) && ds_set_grad_of(z->part[i], g) != DS_OK)
            return ds_error_status();
    }
    return DS_OK;
}

/* ---- the norm: Note [Norm] ----------------------------------------------------------------------------- */

static int lines_of_parts(const dsi_zero *z)
{
    int n = 0;
    for (int i = 0; i < z->flat->n; i++) {
        ds_tensor *g = z->part[i] ? ds_grad(z->part[i]) : NULL;
        if (!ds_numel(g)) continue;
        z->views[n] = dsi_norm_line(g);
        if (!z->views[n++].p) return -1;
    }
    return n;
}

static ds_status global_norm(dsi_zero *z, double *norm)
{
    double counted = 0; /* squares */
    int n = z->comm ? dsi_reduce_slices(z->reduce, z->views, &counted) : lines_of_parts(z);
    if (n < 0 || dsi_norm_of(z->flat->param[0].x, n, z->views, norm) != DS_OK)
        return ds_error_status();
    return z->comm ? dsi_norm_over(z->comm, z->sums, *norm * *norm + counted, norm) : DS_OK;
}

#define PATH 256 /* bytes */

/* z->bad is the path of the first of all ranks' parameters; an expert has another one on each rank. */
static ds_status agree_on_bad(dsi_zero *z, int64_t first)
{
    int n = z->flat->n, ranks = ds_comm_size(z->comm);
    int64_t where = first * ranks + ds_comm_rank(z->comm);
    char path[PATH] = "";
    if (first < n) snprintf(path, PATH, "%s", dsi_flat_path(z->flat, z->model, n - 1 - (int)first));
    if (z->comm) {
        ds_tensor *x = ds_from_data(DS_I64, ds_shape(1), &where);
        if (ds_all_reduce(z->comm, x, DS_REDUCE_MIN) != DS_OK) return ds_error_status();
        where = *(const int64_t *)ds_data(x);
        if (where / ranks == n) return DS_OK;
        ds_tensor *text = ds_from_data(DS_U8, ds_shape(PATH), path);
        if (ds_broadcast(z->comm, text, (int)(where % ranks)) != DS_OK) return ds_error_status();
        memcpy(path, ds_data(text), PATH);
    }
    z->bad = *path ? dsi_strdup(path) : NULL;
    return DS_OK;
}

/* The first parameter, in the model's order, whose gradient is not finite on some rank: z->bad. */
static ds_status find_bad(dsi_zero *z)
{
    int64_t first = z->flat->n; /* counted from the model's first */
    for (int i = z->flat->n - 1; i >= 0 && first == z->flat->n; i--) {
        ds_tensor *g = z->part[i] ? ds_grad(z->part[i]) : NULL;
        double norm = 0;
        dsi_view v = dsi_norm_line(g);
        if (g && (!v.p || dsi_norm_of(g, 1, &v, &norm) != DS_OK)) return ds_error_status();
        if (!isfinite(norm)) first = z->flat->n - 1 - i;
    }
    dsi_free(z->bad);
    z->bad = NULL;
    return agree_on_bad(z, first);
}

/* ---- the step ------------------------------------------------------------------------------------------ */

/* torch.nn.utils.clip_grad_norm_'s factor; not "< 1", so that gradients of a NaN norm become NaN too. */
static double clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6);
    return factor >= 1 ? 1 : factor;
}

/* Every rank's part of every unit to all ranks, in place. */
static ds_status gather_units(dsi_zero *z)
{
    const dsi_flat *f = z->flat;
    ds_status status = DS_OK;
    int begun = 0;
    for (; status == DS_OK && begun < f->units; begun++) {
        const dsi_flat_unit *u = &f->unit[begun];
        int64_t at = u->rank * u->slice;
        ds_tensor *all = z->unit[begun];
        z->gathers[begun] = NULL;
        if (!all) continue;
        z->gathers[begun] = dsi_all_gather_start(
            u->comm, dsi_v(dsi_flat_range(all, at, at + u->slice)), dsi_v(all));
        if (!z->gathers[begun]) status = ds_error_status();
    }
    for (int k = 0; k < begun; k++)
        if (z->gathers[k] && dsi_request_wait(z->gathers[k]) != DS_OK) status = ds_error_status();
    return status;
}

static ds_status copy_master(dsi_zero *z, int i)
{
    ds_tensor *mine = open_part(z, i, true);
    ds_status status = dsi_copy(mine, z->part[i]);
    return status == DS_OK ? close_part(z, i, true) : status;
}

/* The parts have changed: the model's parameters too, where they are whole. */
static ds_status gather(dsi_zero *z)
{
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && z->masters && i < z->flat->n; i++)
        if (z->part[i] && (z->o.dtype == DS_F32 || is_away(z, i))) status = copy_master(z, i);
    if (status == DS_OK && z->unit) status = gather_units(z);
    if (status == DS_OK && z->divided) dsi_zero3_changed(z->divided);
    return status;
}

static ds_status update(dsi_zero *z, double scale)
{
    dsi_trace_begin("optimizer");
    ds_status status = z->files ? dsi_offload_step(z->files, scale, model_of(z))
                                : dsi_optim_step_scaled(z->optim, scale);
    dsi_trace_end();
    return status == DS_OK ? gather(z) : status;
}

static ds_status step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                      bool want_norm, dsi_zero_step_result *out)
{
    double scale = 1 / loss_scale;
    if (z->reduce && !dsi_reduce_complete(z->reduce))
        return dsi_fail(DS_ESTATE, "zero: a step without the last backward pass before it");
    if (z->reduce && dsi_reduce_wait(z->reduce) != DS_OK) return ds_error_status();
    if (hand_over(z) != DS_OK) return ds_error_status();
    if (max_norm > 0 || check_overflow || want_norm) {
        if (global_norm(z, &out->norm) != DS_OK) return ds_error_status();
        out->norm *= scale;
    }
    if (z->divided && dsi_zero3_settle(z->divided) != DS_OK) return ds_error_status();
    if (check_overflow && !isfinite(out->norm)) {
        ds_status status = find_bad(z);
        if (z->divided) dsi_zero3_changed(z->divided);
        out->overflow = true;
        out->bad = z->bad;
        return status;
    }
    if (max_norm > 0) scale *= clip_factor(out->norm, max_norm);
    return update(z, scale);
}

ds_status dsi_zero_step(dsi_zero *z, double loss_scale, double max_norm, bool check_overflow,
                        bool want_norm, dsi_zero_step_result *out)
{
    if (!z) return dsi_passed("zero_step"), DS_EINVAL;
    dsi_zero_step_result result = {.norm = NAN};
    ds_scope *scope = ds_scope_open();
    dsi_trace_begin("step");
    ds_status status = step(z, loss_scale, max_norm, check_overflow, want_norm, &result);
    dsi_zero_zero_grad(z);
    dsi_trace_end();
    ds_scope_close(scope);
    if (out) *out = result;
    return all_or_none(z, status);
}

/* ---- for checkpoints and averages ---------------------------------------------------------------------- */

static int find(const dsi_zero *z, int index)
{
    for (int i = 0; z && i < z->flat->n; i++)
        if (z->flat->param[i].index == index) return i;
    return -1;
}

const dsi_flat *dsi_zero_flat(const dsi_zero *z) { return z->flat; }

ds_tensor *dsi_zero_part(const dsi_zero *z, int i)
{
    int k = find(z, i);
    return k < 0 ? NULL : z->part[k];
}

ds_status dsi_zero_let_go(dsi_zero *z, int i, bool changed)
{
    int k = find(z, i);
    if (k < 0 || !z->files) return DS_OK;
    if (changed) return dsi_offload_store(z->files, k);
    dsi_offload_let_go(z->files, k);
    return DS_OK;
}

ds_status dsi_zero_publish(dsi_zero *z)
{
    if (!z) return dsi_passed("zero_publish"), DS_EINVAL;
    ds_scope *scope = ds_scope_open();
    ds_status status = z->divided ? dsi_zero3_settle(z->divided) : DS_OK;
    for (int i = 0; status == DS_OK && (z->masters || z->files) && i < z->flat->n; i++) {
        if (z->part[i]) status = copy_master(z, i);
        if (status == DS_OK && z->files) status = dsi_offload_store(z->files, i);
    }
    if (status == DS_OK) status = gather(z);
    ds_scope_close(scope);
    return all_or_none(z, status);
}

/* Every rank's elements of parameter k of the layout, from where they are updated. */
static ds_status assemble(const dsi_zero *z, int k, ds_tensor *whole)
{
    const dsi_flat *f = z->flat;
    bool brings = z->files && !dsi_offload_is_here(z->files, k);
    ds_status status = z->part[k] ? dsi_copy(dsi_flat_own_in(f, k, whole), z->part[k]) : DS_OK;
    if (brings) dsi_offload_let_go(z->files, k);
    const dsi_flat_unit *u = &f->unit[f->param[k].unit];
    for (int r = 0; status == DS_OK && z->unit && r < u->ranks; r++) {
        int64_t begin, end;
        dsi_flat_part_of(f, k, r, &begin, &end);
        if (begin < end) status = ds_broadcast(u->comm, dsi_flat_range(whole, begin, end), r);
    }
    return status;
}

ds_tensor *dsi_zero_whole(dsi_zero *z, int i)
{
    ds_tensor *x = z ? ds_module_param_at(z->model, i, NULL) : NULL;
    if (!x) return dsi_refuse("zero: there is no parameter %d", i);
    int k = find(z, i);
    ds_tensor *whole = dsi_new_dtype(x, DS_F32, x->shape);
    ds_status status = !whole  ? ds_error_status()
                       : k < 0 ? dsi_copy(whole, x)
                               : assemble(z, k, whole);
    return all_or_none(z, status) == DS_OK ? whole : NULL;
}

/* ---- what it takes ------------------------------------------------------------------------------------- */

dsi_zero_bytes dsi_zero_memory(const dsi_zero *z)
{
    dsi_zero_bytes bytes = {0};
    if (!z) return bytes;
    for (int i = 0; i < z->flat->n; i++)
        if (!dsi_zero3_divides(z->divided, z->flat->param[i].unit))
            bytes.parameters += z->flat->param[i].n * (int64_t)ds_dtype_size(z->o.dtype);
    if (z->divided) {
        bytes.parameters += dsi_zero3_bytes(z->divided);
        bytes.file = dsi_zero3_file(z->divided);
    }
    bytes.gradients = z->comm ? dsi_reduce_bytes(z->reduce) : bytes.parameters;
    if (z->files) {
        bytes.optimizer = dsi_offload_memory(z->files);
        bytes.file += dsi_offload_file(z->files);
        return bytes;
    }
    if (z->masters) bytes.optimizer += z->flat->own * (int64_t)sizeof(float);
    ds_state *moments = ds_optim_state(z->optim);
    for (int i = 0; i < ds_state_len(moments); i++) {
        const ds_tensor *x = ds_state_at(moments, i);
        bytes.optimizer += ds_numel(x) * (int64_t)ds_dtype_size(ds_dtype_of(x));
    }
    ds_state_free(moments);
    return bytes;
}
