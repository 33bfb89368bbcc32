/* parallel/split.c: Note [Split masters].
 *
 * Invariants: a master with storage is newer than its halves, or equal to them.
 * None has storage during a step, or while a step is captured: the kernel
 * updates the halves alone.
 * SPDX-License-Identifier: MIT */
#include "split.h"

#include "base/mem.h"
#include "device/graph.h"
#include "tensor/lazy.h"

typedef struct Item {
    ds_tensor *master, *p, *rest; /* counted; NULL: no element is this rank's */
} Item;

struct dsi_split {
    int n;
    ds_tensor *rests; /* int16 [owned], counted */
    Item item[];      /* [n] */
};

static ds_status item_materialize(void *arg, ds_tensor *x)
{
    const Item *it = arg;
    ds_scope *scope = ds_scope_open();
    ds_tensor *t = dsi_new_on(x->device, DS_F32, x->shape);
    bool joined = t && dsi_acquire(it->p, it->rest) &&
                  dsi_run(t, halves_join, dsi_v(it->p), dsi_v(it->rest), dsi_v(t));
    if (joined) dsi_tensor_set_data(x, t);
    ds_scope_close(scope);
    return joined ? DS_OK : ds_error_status();
}

static ds_status item_make(Item *it, const dsi_flat *f, int i, ds_tensor *p, const ds_tensor *rests)
{
    ds_tensor *rest = dsi_flat_in_owned(f, i, rests);
    if (!rest) return DS_OK;
    ds_tensor *x = dsi_new_lazy(rest->device, DS_F32, rest->shape, item_materialize, it);
    if (!p || !x) return ds_error_status();
    *it = (Item){dsi_ref(x), dsi_ref(p), dsi_ref(rest)};
    return DS_OK;
}

dsi_split *dsi_split_new(const dsi_flat *f, ds_tensor *(*shard)(void *arg, int i), void *arg)
{
    dsi_split *s = dsi_alloc(sizeof *s + (size_t)f->n * sizeof *s->item);
    s->n = f->n;
    ds_scope *scope = ds_scope_open();
    dsi_device *d = f->param[0].x->device;
    s->rests = dsi_ref(dsi_fill(dsi_new_on(d, DS_I16, ds_shape(f->owned)), 0));
    ds_status status = s->rests ? DS_OK : ds_error_status();
    for (int i = 0; status == DS_OK && i < f->n; i++)
        status = item_make(&s->item[i], f, i, shard(arg, i), s->rests);
    ds_scope_close(scope);
    if (status == DS_OK) return s;
    dsi_split_free(s);
    return NULL;
}

void dsi_split_free(dsi_split *s)
{
    for (int i = 0; s && i < s->n; i++) {
        Item *it = &s->item[i];
        dsi_set_materialize_hook(it->master, NULL, NULL);
        dsi_unref(it->master), dsi_unref(it->p), dsi_unref(it->rest);
    }
    if (s) dsi_unref(s->rests);
    dsi_free(s);
}

ds_tensor *dsi_split_master(const dsi_split *s, int i) { return s->item[i].master; }
ds_tensor *dsi_split_rest(const dsi_split *s, int i) { return s->item[i].rest; }

bool dsi_split_in_memory(const dsi_split *s, int i)
{
    return s->item[i].master && s->item[i].master->storage;
}

ds_status dsi_split_release(dsi_split *s, int i, bool changed)
{
    const Item *it = &s->item[i];
    ds_tensor *x = it->master;
    if (!x || !x->storage) return DS_OK;
    if (changed && !(dsi_acquire_to_write(it->p) && dsi_acquire_to_write(it->rest) &&
                     dsi_run(x, halves_split, dsi_v(x), dsi_v(it->p), dsi_v(it->rest))))
        return ds_error_status();
    dsi_release_storage(x);
    return DS_OK;
}

ds_status dsi_split_store(dsi_split *s)
{
    ds_status status = DS_OK;
    for (int i = 0; s && status == DS_OK && i < s->n; i++) {
        if (!dsi_split_in_memory(s, i)) continue;
        status = dsi_graph_forbid(s->rests->device, "a master weight is in memory");
        if (status == DS_OK) status = dsi_split_release(s, i, true);
    }
    return status;
}

int64_t dsi_split_bytes(const dsi_split *s)
{
    return dsi_numel(s->rests->shape) * (int64_t)sizeof(int16_t);
}
