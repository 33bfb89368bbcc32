/* examples/common/losses.c: see losses.h.
 * SPDX-License-Identifier: MIT */
#include "losses.h"

void losses_begin(Losses *l, bool each)
{
    *l = (Losses){0};
    if (!each && ds_current_device().kind != DS_CPU)
        l->waiting = ds_keep(ds_zeros(DS_F32, ds_shape(LOSSES)));
}

void losses_add(Losses *l, ds_tensor *loss)
{
    if (!loss) return;
    ds_scope *scope = ds_scope_open();
    if (l->waiting)
        ds_copy(ds_select(l->waiting, 0, l->count), ds_detach(loss));
    else
        l->value[0] = ds_item(loss);
    l->count++;
    ds_scope_close(scope);
}

bool losses_due(const Losses *l) { return l->count >= (l->waiting ? LOSSES : 1); }

void losses_read(Losses *l)
{
    l->n = l->count;
    l->count = 0;
    if (!l->waiting || !l->n) return;
    ds_scope *scope = ds_scope_open();
    const float *x = ds_data(ds_to(l->waiting, (ds_device){DS_CPU, 0}, DS_F32));
    for (int i = 0; x && i < l->n; i++) l->value[i] = x[i];
    if (!x) l->n = 0;
    ds_scope_close(scope);
}

void losses_end(Losses *l) { ds_drop(l->waiting); }
