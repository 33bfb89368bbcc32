/* parallel/replica_caller.c: what the caller's thread does to a replica that
 * waits. Note [Replicas]
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "packed.h"
#include "replica.h"

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

ds_status dsi_replica_fetch_grads(dsi_replica *r, dsi_device *home, int slots)
{
    if (!r->packed_grads.p) return DS_OK;
    ds_tensor *from = dsi_replica_borrow(r->device, r->packed_grads);
    ds_tensor *here = from ? dsi_new_on(home, DS_U8, from->shape) : NULL;
    if (!here || dsi_copy(here, from) != DS_OK) return ds_error_status();
    for (int i = 0; i < slots; i++)
        if (r->grad[i].p) r->grad[i] = dsi_packed_view(dsi_v(here).p, r->grad_at[i], r->grad[i]);
    r->packed_grads.p = NULL;
    return DS_OK;
}
