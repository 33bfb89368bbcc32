/* parallel/replica_caller.c: what the caller's thread does before there are
 * replicas, and to one that waits. Note [Replicas]
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "flat.h"
#include "packed.h"
#include "replica.h"

/* device_ids: different GPUs, the module's first. */
static bool check_device_ids(ds_device home, int replicas, const int *id)
{
    int count = ds_device_count(DS_CUDA);
    if (!id) return true;
    if (home.kind == DS_CPU)
        return dsi_refuse("data_parallel: device_ids are GPUs, and the module is on the CPU: move "
                          "it to cuda:%d first (ds_set_device), or leave them out",
                          id[0]);
    for (int r = 0; r < replicas; r++) {
        if (id[r] < 0 || id[r] >= count)
            return dsi_refuse(
                "data_parallel: device_ids[%d] is %d: there are %d GPUs here, 0 to %d", r, id[r],
                count, count - 1);
        for (int k = 0; k < r; k++)
            if (id[k] == id[r])
                return dsi_refuse("data_parallel: device_ids[%d] and [%d] are both %d: expected a "
                                  "GPU for each replica",
                                  k, r, id[r]);
    }
    return id[0] == home.index ||
           dsi_refuse("data_parallel: the module is on cuda:%d: expected it on cuda:%d, "
                      "device_ids[0]",
                      home.index, id[0]);
}

ds_device dsi_replica_device(ds_device home, int r, const int *id)
{
    if (home.kind == DS_CPU) return home;
    return (ds_device){home.kind, id ? id[r] : (home.index + r) % ds_device_count(home.kind)};
}

bool dsi_replicas_check(ds_device home, int replicas, bool can_make, const int *id)
{
    int count = ds_device_count(home.kind);
    if (replicas < 1 || replicas > DSI_MAX_REPLICAS)
        return dsi_refuse("data_parallel: %d replicas: expected 1 to %d", replicas,
                          DSI_MAX_REPLICAS);
    if (replicas > 1 && !can_make) return dsi_refuse("data_parallel: make is NULL");
    if (home.kind != DS_CPU && replicas > count)
        return dsi_refuse("data_parallel: %d replicas: expected at most one for each GPU, and "
                          "there %s %d here",
                          replicas, count == 1 ? "is" : "are", count);
    return check_device_ids(home, replicas, id);
}

void dsi_replica_set_mode(const ds_module *model, ds_module *replica)
{
    bool training = ds_module_training(model);
    if (ds_module_training(replica) != training) ds_module_train(replica, training);
    for (int i = 0; i < ds_module_children(model); i++)
        dsi_replica_set_mode(ds_module_child(model, i), ds_module_child(replica, i));
}

/* A seed for the generator of replica r: a hash (steps of splitmix64) of the
 * state of the caller's generator, which does not advance. Restoring that state
 * restores the random numbers of all replicas. */
uint64_t dsi_replica_new_seed(int r)
{
    const dsi_rng *g = dsi_rng_default();
    uint64_t h = g->seed + ((uint64_t)r << 32) + (uint64_t)g->next * 2 + g->has_normal;
    for (int i = 0; i < 8; i++) {
        h = (h ^ g->state[i]) + 0x9e3779b97f4a7c15u;
        h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
        h = (h ^ h >> 27) * 0x94d049bb133111ebu;
        h ^= h >> 31;
    }
    return h;
}

ds_status dsi_replica_fetch_grads(dsi_replica *r, dsi_device *home, int first, int end)
{
    int64_t begin = -1, stop = 0;
    for (int i = first; i < end && r->packed_grads.p; i++) {
        if (!r->grad[i].p) continue;
        if (begin < 0) begin = r->grad_at[i];
        stop = r->grad_at[i] + dsi_packed_bytes(r->grad[i]);
    }
    if (begin < 0) return DS_OK;
    ds_tensor *from = dsi_replica_borrow(r->device, r->packed_grads);
    ds_tensor *here = from ? dsi_new_on(home, DS_U8, ds_shape(stop - begin)) : NULL;
    if (!here || dsi_copy(here, dsi_flat_range(from, begin, stop)) != DS_OK)
        return ds_error_status();
    for (int i = first; i < end; i++)
        if (r->grad[i].p)
            r->grad[i] = dsi_packed_view(dsi_v(here).p, r->grad_at[i] - begin, r->grad[i]);
    return DS_OK;
}
