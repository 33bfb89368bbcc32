/* parallel/zero3.c: parameters divided among ranks: Note [Stage 3].
 * Source: Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5; ZeRO-Infinity, arXiv 2104.07857, section 6.
 * SPDX-License-Identifier: MIT */
#include "zero3.h"

#include "autograd/node.h"
#include "base/list.h"
#include "base/mem.h"
#include "nn/module.h"
#include "shard.h"

#include <deepspeed/parallel.h>

#include <stdlib.h>
#include <string.h>

/* One parameter's life; units that are not divided have one too, which is never used. */
typedef struct Unit {
    struct dsi_zero3 *z;
    int k, param; /* of the layout */
    bool divided;
    bool present;         /* the model's handle has storage */
    int users;            /* calls that run and need it, ds_gathered */
    bool pinned;          /* somebody holds its address: not to be let go before it was used */
    ds_tensor *coming;    /* [n] of the unit, being gathered; counted */
    ds_tensor *part;      /* the own elements, if home is a file: their storage is away; counted */
    bool reading;         /* the slice was asked for ahead */
    dsi_request *request; /* of it */
} Unit;

/* A module with divided parameters of its own. */
typedef struct Owner {
    const ds_module *m;
    int n;
    Unit **unit; /* [n] */
} Owner;

struct dsi_zero3 {
    ds_module *model;
    const dsi_flat *f;
    ds_comm *comm;
    dsi_zero3_opts o;
    dsi_call_hooks hooks;
    ds_tensor *home;      /* [own elements of units before in_file], counted: this rank's slices */
    int in_file;          /* units from this one on are at home in a file; else f->units */
    dsi_param_swap *file; /* or NULL */
    Unit *unit;           /* [f->units] */
    struct {
        DSI_LIST(Owner)
    } owners; /* by address */

    int calls;     /* of modules, that run, one in the other */
    bool backward; /* a backward pass runs */
    int64_t live;  /* elements of units that are present or coming */

    struct {
        DSI_LIST(int)
    } trace; /* units in the order of the last step's uses, or of this one's if it is recorded */
    int at;  /* next use in the trace */
    bool follows; /* the trace is whole, and this step has followed it so far */
};

/* ---- gather and let go ---------------------------------------------------------------------------------- */

static const dsi_flat_unit *flat_unit(const Unit *u) { return &u->z->f->unit[u->k]; }
static ds_tensor *param(const Unit *u) { return u->z->f->param[u->param].x; }

static bool in_file(const Unit *u) { return u->k >= u->z->in_file; }

static ds_status finish(Unit *u);

/* Where all buffers are busy, gathers that began earlier come to an end. */
static bool make_buffer(const Unit *u)
{
    dsi_zero3 *z = u->z;
    for (int k = z->in_file; k < z->f->units && !dsi_param_swap_has_room(z->file, u->k); k++)
        if (z->unit[k].request && finish(&z->unit[k]) != DS_OK) return false;
    return true;
}

/* Until close_slice nobody writes it. */
static ds_tensor *open_slice(const Unit *u)
{
    const dsi_flat_unit *l = flat_unit(u);
    if (!in_file(u)) return dsi_flat_range(u->z->home, l->own_at, l->own_at + l->slice);
    return make_buffer(u) ? dsi_param_swap_open(u->z->file, u->k) : NULL;
}

static void close_slice(const Unit *u)
{
    if (in_file(u)) dsi_param_swap_close(u->z->file, u->k);
}

static ds_status start(Unit *u)
{
    if (u->present || u->request) return DS_OK;
    dsi_zero3 *z = u->z;
    ds_tensor *all = dsi_new(z->home, ds_shape(flat_unit(u)->n));
    if (!all) return ds_error_status();
    ds_tensor *slice = open_slice(u);
    if (!slice) return ds_error_status();
    u->reading = false;
    u->request = dsi_all_gather_start(flat_unit(u)->comm, dsi_v(slice), dsi_v(all));
    if (!u->request) close_slice(u);
    if (!u->request) return ds_error_status();
    u->coming = dsi_ref(all);
    z->live += flat_unit(u)->n;
    return DS_OK;
}

static void forget_coming(Unit *u)
{
    dsi_unref(u->coming);
    u->coming = NULL;
}

static ds_status finish(Unit *u)
{
    if (!u->request) return DS_OK;
    ds_status status = dsi_request_wait(u->request);
    u->request = NULL;
    close_slice(u);
    if (status == DS_OK) {
        dsi_tensor_set_data(param(u), dsi_flat_in_unit(u->z->f, u->param, u->coming));
        u->present = true;
    } else {
        u->z->live -= flat_unit(u)->n;
    }
    forget_coming(u);
    return status;
}

static void let_go(Unit *u)
{
    if (!u->present || u->users) return;
    dsi_release_storage(param(u));
    u->present = u->pinned = false;
    u->z->live -= flat_unit(u)->n;
}

/* Lets go what nobody uses, until n more elements fit into max_live. */
static void make_room(dsi_zero3 *z, int64_t n)
{
    for (int k = 0; k < z->f->units && z->live + n > z->o.max_live; k++)
        if (z->unit[k].divided && !z->unit[k].pinned && !dsi_is_acquired(param(&z->unit[k])))
            let_go(&z->unit[k]);
}

/* A rank that cannot begin a gather must not begin another collective in its place. */
static ds_status all_or_none(const dsi_zero3 *z, ds_status status)
{
    if (status != DS_OK) dsi_comm_abort(z->comm, ds_error());
    return status;
}

static ds_status bring(Unit *u)
{
    if (u->present) return DS_OK;
    if (!u->request) make_room(u->z, flat_unit(u)->n);
    ds_scope *scope = ds_scope_open();
    ds_status status = start(u);
    if (status == DS_OK) status = finish(u);
    ds_scope_close(scope);
    return all_or_none(u->z, status);
}

/* ---- the trace ------------------------------------------------------------------------------------------ */

/* Evaluation is not a part of a step. */
static bool traced(const dsi_zero3 *z) { return z->backward || ds_grad_enabled(); }

static ds_status prefetch(dsi_zero3 *z)
{
    int64_t ahead = 0;
    int buffers = z->o.files.buffer_count; /* of which one is for who does not look ahead */
    for (int t = z->at; z->follows && t < z->trace.n; t++) {
        Unit *u = &z->unit[z->trace.at[t]];
        int64_t n = flat_unit(u)->n;
        ahead += n;
        if (ahead > z->o.prefetch) break;
        if (u->present || u->request) continue;
        if (z->live + n > z->o.max_live) break;
        if (in_file(u) && --buffers < 1) break;
        if (in_file(u) && !u->reading) {
            dsi_param_swap_ahead(z->file, u->k);
            u->reading = true; /* on all ranks, whether there was a buffer or not */
            continue;
        }
        ds_scope *scope = ds_scope_open();
        ds_status status = start(u);
        ds_scope_close(scope);
        if (status != DS_OK) return all_or_none(z, status);
    }
    return DS_OK;
}

/* A use: the next one of the trace, or the trace is wrong; while there is none it is recorded. */
static void note_use(Unit *u)
{
    dsi_zero3 *z = u->z;
    if (!traced(z)) return;
    if (z->follows && (z->at == z->trace.n || z->trace.at[z->at] != u->k)) {
        z->follows = false;
        z->trace.n = z->at; /* as far as it went it is right, and the rest is recorded anew */
    }
    if (!z->follows) dsi_list_add(&z->trace, u->k);
    z->at++;
}

static bool comes_again_soon(const Unit *u)
{
    const dsi_zero3 *z = u->z;
    int64_t distance = 0;
    if (!z->follows || !traced(z) || z->live > z->o.max_live) return false;
    for (int t = z->at; t < z->trace.n && distance <= z->o.max_reuse_distance; t++) {
        if (z->trace.at[t] == u->k) return true;
        distance += z->f->unit[z->trace.at[t]].n;
    }
    return false;
}

/* ---- hooks ---------------------------------------------------------------------------------------------- */

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const Owner *)a)->m, y = (uintptr_t)((const Owner *)b)->m;
    return x < y ? -1 : x > y;
}

static Owner *owner_of(const dsi_zero3 *z, const ds_module *m)
{
    Owner key = {.m = m};
    if (!z->owners.n) return NULL;
    return bsearch(&key, z->owners.at, (size_t)z->owners.n, sizeof key, by_address);
}

static ds_status before_call(void *arg, ds_module *m)
{
    dsi_zero3 *z = arg;
    Owner *o = owner_of(z, m);
    ds_status status = DS_OK;
    for (int i = 0; o && status == DS_OK && i < o->n; i++) {
        note_use(o->unit[i]);
        status = bring(o->unit[i]);
        if (status == DS_OK)
            o->unit[i]->users++;
        else
            for (int j = 0; j < i; j++) o->unit[j]->users--;
    }
    if (status == DS_OK && o) status = prefetch(z);
    if (status == DS_OK) z->calls++;
    return status;
}

static ds_status after_call(void *arg, ds_module *m, ds_tensor *y)
{
    dsi_zero3 *z = arg;
    Owner *o = owner_of(z, m);
    (void)y;
    z->calls--;
    for (int i = 0; o && i < o->n; i++) {
        o->unit[i]->users--;
        if (!comes_again_soon(o->unit[i])) let_go(o->unit[i]);
    }
    return DS_OK;
}

/* Somebody reads a parameter that is not there: backward, or a forward that uses another module's. */
static ds_status fetch(void *arg, ds_tensor *x)
{
    Unit *u = arg;
    dsi_zero3 *z = u->z;
    (void)x;
    if (!z->calls && !z->backward)
        return dsi_fail(DS_ESTATE,
                        "zero: %s is divided among %d ranks (stage 3): read it between ds_gathered "
                        "and ds_gathered_end, on all ranks",
                        dsi_flat_path(z->f, z->model, u->param), flat_unit(u)->ranks);
    ds_status status = bring(u);
    u->pinned = status == DS_OK;
    return status;
}

static void after_use(void *arg, ds_tensor *x)
{
    Unit *u = arg;
    (void)x;
    note_use(u);
    u->pinned = false;
    if (!comes_again_soon(u)) let_go(u);
    prefetch(u->z); /* after a failure all that follows fails */
}

void dsi_zero3_backward(dsi_zero3 *z, bool runs)
{
    z->backward = runs;
    for (int k = 0; !runs && k < z->f->units; k++)
        if (z->unit[k].divided) let_go(&z->unit[k]);
}

/* Other ranks read our slices until these gathers end. */
ds_status dsi_zero3_wait_gathers(dsi_zero3 *z)
{
    ds_status status = DS_OK;
    for (int k = 0; k < z->f->units; k++) {
        Unit *u = &z->unit[k];
        if (!u->request) continue;
        if (dsi_request_wait(u->request) != DS_OK) status = ds_error_status();
        u->request = NULL;
        close_slice(u);
        forget_coming(u);
        z->live -= flat_unit(u)->n;
    }
    return status;
}

void dsi_zero3_changed(dsi_zero3 *z)
{
    for (int k = 0; k < z->f->units; k++)
        if (z->unit[k].divided) let_go(&z->unit[k]);
    z->trace.n = z->at; /* a step that ended early was another one */
    z->follows = z->at > 0;
    z->at = 0;
    for (int k = 0; k < z->f->units; k++) z->unit[k].reading = false;
}

/* ---- access for users ----------------------------------------------------------------------------------- */

/* The life of x, if it is divided. */
static Unit *unit_of(ds_tensor *x)
{
    if (!x || !x->hooks || x->hooks->fetch != fetch) return NULL;
    return x->hooks->fetch_arg;
}

ds_status ds_gathered(ds_tensor **params, int n)
{
    if (n > 0 && !params) return dsi_null_operand("gathered"), DS_EINVAL;
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < n; i++) {
        Unit *u = unit_of(params[i]);
        if (dsi_is_shard(params[i])) status = dsi_shard_gather(params[i]);
        if (!u) continue;
        status = bring(u);
        if (status == DS_OK) u->users++;
    }
    return status;
}

/* What the modifier has written to x goes home, on all ranks; of a shared expert, what the ranks that stand in its
 * place among those that have the same ones have written. */
static ds_status send_home(Unit *u, int modifier)
{
    ds_tensor *x = param(u), *part = dsi_zero3_part(u->z, u->param);
    int root = modifier / (u->z->f->ranks / flat_unit(u)->ranks);
    if (dsi_zero3_wait_gathers(u->z) != DS_OK ||
        ds_broadcast(flat_unit(u)->comm, x, root) != DS_OK ||
        dsi_zero3_blank(u->z, u->param) != DS_OK ||
        (part && dsi_copy(part, dsi_flat_own_in(u->z->f, u->param, x)) != DS_OK))
        return ds_error_status();
    return dsi_zero3_store(u->z, u->param);
}

ds_status ds_gathered_end(ds_tensor **params, int n, int modifier_rank)
{
    if (n > 0 && !params) return dsi_null_operand("gathered_end"), DS_EINVAL;
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < n; i++) {
        Unit *u = unit_of(params[i]);
        if (dsi_is_shard(params[i])) status = dsi_shard_end(params[i], modifier_rank);
        if (!u || !u->users) continue;
        if (modifier_rank >= 0) status = send_home(u, modifier_rank);
        u->users--;
        let_go(u);
    }
    ds_scope_close(scope);
    return status;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static ds_status fetch_part(void *arg, ds_tensor *x)
{
    const Unit *u = arg;
    ds_scope *scope = ds_scope_open();
    ds_tensor *slice = open_slice(u), *t = slice ? dsi_new(slice, x->shape) : NULL;
    int64_t n = dsi_numel(x->shape);
    ds_status status = t ? dsi_copy(dsi_flat_range(t, 0, n), dsi_flat_range(slice, 0, n))
                         : ds_error_status();
    if (slice) close_slice(u);
    if (status == DS_OK) dsi_tensor_set_data(x, t);
    ds_scope_close(scope);
    return status;
}

static ds_tensor *new_part(Unit *u, int64_t n)
{
    const ds_tensor *x = param(u);
    ds_dims shape = n == dsi_numel(x->shape) ? x->shape : ds_shape(n);
    return dsi_new_lazy(x->device, x->dtype, shape, fetch_part, u);
}

/* The own slice of a unit's parameter goes home, and the parameter away. */
static ds_status divide(dsi_zero3 *z, int k)
{
    const dsi_flat *f = z->f;
    Unit *u = &z->unit[k];
    *u = (Unit){.z = z, .k = k, .param = f->unit[k].first};
    if (!f->unit[k].alone) return DS_OK;
    ds_tensor *x = param(u);
    int64_t n = f->param[u->param].end - f->param[u->param].begin;
    bool shard = dsi_is_shard(x);
    if (n) {
        ds_tensor *from = shard ? dsi_shard_part(x) : dsi_flat_in_param(f, u->param);
        from = dsi_flat_range(from, 0, n);
        ds_tensor *part = in_file(u) ? NULL : dsi_flat_in_own(f, u->param, z->home);
        if (in_file(u)) u->part = dsi_ref(new_part(u, n));
        if (in_file(u) ? !u->part || dsi_param_swap_write(z->file, k, from) != DS_OK
                       : dsi_copy(dsi_flat_range(part, 0, n), from) != DS_OK)
            return ds_error_status();
    }
    if (shard) dsi_shard_drop(x);
    u->divided = true;
    dsi_release_storage(x);
    dsi_set_materialize_hook(x, fetch, u);
    dsi_set_after_use_hook(x, after_use, u);
    return DS_OK;
}

static void add_owner(dsi_zero3 *z, const ds_module *m)
{
    int own = ds_module_params(m);
    for (int i = 0; i < ds_module_children(m); i++) {
        const ds_module *child = ds_module_child(m, i);
        own -= ds_module_params(child);
        add_owner(z, child);
    }
    Owner o = {.m = m, .unit = dsi_alloc((size_t)own * sizeof *o.unit)};
    for (int i = 0; i < own; i++) { /* a module's own parameters come first */
        Unit *u = unit_of(ds_module_param_at(m, i, NULL));
        if (u) o.unit[o.n++] = u;
    }
    if (o.n)
        dsi_list_add(&z->owners, o);
    else
        dsi_free(o.unit);
}

/* The first units, up to max_in_cpu elements, in memory, and the others in a file, if there is to be one. */
static ds_status make_home(dsi_zero3 *z)
{
    const dsi_flat *f = z->f;
    const ds_tensor *like = f->param[0].x;
    const dsi_param_swap_opts *o = &z->o.files;
    int64_t left = o->nvme_path ? o->max_in_cpu : INT64_MAX;
    for (int k = 0; k < f->units && z->in_file == k; k++) {
        if (f->unit[k].alone) left -= f->unit[k].slice;
        if (left >= 0) z->in_file++;
    }
    bool files = z->in_file < f->units;
    ds_scope *scope = ds_scope_open();
    ds_tensor *home = dsi_new_on(like->device, like->dtype,
                                 ds_shape(files ? f->unit[z->in_file].own_at : f->own));
    if (dsi_fill(home, 0)) z->home = dsi_ref(home);
    ds_scope_close(scope);
    if (z->home && files) z->file = dsi_param_swap_new(f, z->model, z->in_file, o->nvme_path, o);
    return z->home && (z->file || !files) ? DS_OK : ds_error_status();
}

static ds_status prepare(dsi_zero3 *z)
{
    if (make_home(z) != DS_OK) return ds_error_status();
    for (int k = 0; k < z->f->units; k++) {
        ds_scope *scope = ds_scope_open();
        ds_status status = divide(z, k);
        ds_scope_close(scope);
        if (status != DS_OK) return status;
    }
    add_owner(z, z->model);
    if (z->owners.n) qsort(z->owners.at, (size_t)z->owners.n, sizeof *z->owners.at, by_address);
    z->hooks = (dsi_call_hooks){z, before_call, after_call};
    dsi_module_set_hooks(z->model, &z->hooks);
    return DS_OK;
}

dsi_zero3 *dsi_zero3_new(ds_module *model, const dsi_flat *f, ds_comm *comm,
                         const dsi_zero3_opts *o)
{
    dsi_zero3 *z = dsi_alloc(sizeof *z);
    z->model = model;
    z->f = f;
    z->comm = comm;
    z->o = *o;
    z->unit = dsi_alloc((size_t)f->units * sizeof *z->unit);
    if (prepare(z) == DS_OK) return z;
    dsi_zero3_free(z);
    return NULL;
}

void dsi_zero3_free(dsi_zero3 *z)
{
    if (!z) return;
    if (z->hooks.arg) dsi_module_set_hooks(z->model, NULL);
    for (int k = 0; k < z->f->units; k++) {
        Unit *u = &z->unit[k];
        if (u->request) dsi_request_wait(u->request);
        forget_coming(u);
        if (u->part) dsi_set_materialize_hook(u->part, NULL, NULL);
        dsi_unref(u->part);
        if (!u->divided) continue;
        dsi_set_materialize_hook(param(u), NULL, NULL);
        dsi_set_after_use_hook(param(u), NULL, NULL);
    }
    for (int i = 0; i < z->owners.n; i++) dsi_free(z->owners.at[i].unit);
    dsi_list_free(&z->owners);
    dsi_list_free(&z->trace);
    dsi_param_swap_free(z->file);
    dsi_unref(z->home);
    dsi_free(z->unit);
    dsi_free(z);
}

ds_tensor *dsi_zero3_part(const dsi_zero3 *z, int i)
{
    const Unit *u = &z->unit[z->f->param[i].unit];
    if (!u->divided) return NULL;
    return in_file(u) ? u->part : dsi_flat_in_own(z->f, i, z->home);
}

bool dsi_zero3_in_file(const dsi_zero3 *z, int i) { return z && z->unit[z->f->param[i].unit].part; }

ds_status dsi_zero3_blank(const dsi_zero3 *z, int i)
{
    ds_tensor *x = z->unit[z->f->param[i].unit].part;
    if (!x || x->storage) return DS_OK;
    ds_scope *scope = ds_scope_open();
    ds_tensor *t = dsi_new_on(x->device, x->dtype, x->shape);
    if (t) dsi_tensor_set_data(x, t);
    ds_scope_close(scope);
    return t ? DS_OK : ds_error_status();
}

ds_status dsi_zero3_store(const dsi_zero3 *z, int i)
{
    const Unit *u = &z->unit[z->f->param[i].unit];
    if (!u->part || !u->part->storage) return DS_OK;
    if (!make_buffer(u) || dsi_param_swap_write(z->file, u->k, u->part) != DS_OK)
        return ds_error_status();
    dsi_release_storage(u->part);
    return DS_OK;
}

void dsi_zero3_release(const dsi_zero3 *z, int i)
{
    ds_tensor *x = z->unit[z->f->param[i].unit].part;
    if (x) dsi_release_storage(x);
}

bool dsi_zero3_divides(const dsi_zero3 *z, int unit) { return z && z->unit[unit].divided; }

int64_t dsi_zero3_bytes(const dsi_zero3 *z)
{
    int64_t buffers = z->file ? dsi_param_swap_memory(z->file) : 0;
    return (int64_t)ds_dtype_size(z->home->dtype) * dsi_numel(z->home->shape) + buffers;
}

int64_t dsi_zero3_file(const dsi_zero3 *z) { return z->file ? dsi_param_swap_file(z->file) : 0; }
