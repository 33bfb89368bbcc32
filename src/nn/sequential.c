/* nn/sequential.c: modules that hold others: Sequential, ModuleList.
 * SPDX-License-Identifier: MIT */
#include "module.h"

/* A failed child gives NULL, which the next call refuses, so the loop needs no
 * check. Without children x is returned as it is. */
static ds_tensor *sequential_forward(void *self, ds_tensor *x)
{
    ds_module *m = ds_module_of(self);
    for (int i = 0; i < ds_module_children(m); i++) x = ds_call(ds_module_child(m, i), x);
    return x;
}

bool dsi_module_is_sequential(const ds_module *m)
{
    return ds_module_type_of(m)->forward == sequential_forward;
}

ds_module *ds_nn_sequential(ds_module *parent, const char *name)
{
    static const ds_module_type type = {"Sequential", 0, .forward = sequential_forward};
    return ds_module_new(parent, name, &type);
}

/* It has no forward: its children are called by the module that made it, and
 * it gives their names a level of the path. */
ds_module *ds_nn_module_list(ds_module *parent, const char *name)
{
    static const ds_module_type type = {"ModuleList", 0, .forward = NULL};
    return ds_module_new(parent, name, &type);
}
