/* tests/parallel/probe.h: a module that shows what a replica of DataParallel
 * was given.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "net.h"

#include "device/device.h"

typedef struct Probe {
    ds_tensor *w, *unused, *seen; /* [1], [2], a buffer [1] */
} Probe;

enum { ROWS, SAME, PRODUCT, VALUE, MODES, UNEVEN, NOISE, NO_MEMORY };
static int what; /* set while no replica works */

/* Fails where a sample is negative. */
static inline ds_tensor *probe_forward(void *self, ds_tensor **in, int n)
{
    Probe *p = self;
    ds_module *m = ds_module_of(self);
    ds_tensor *x = in[0]; /* [B, 1] */
    const float *first = ds_data(x);
    int64_t rows = ds_size(x, 0);
    if (rows && first[0] < 0) {
        ds_fail(DS_EINVAL, "probe: a negative sample, %g", first[0]);
        return NULL;
    }
    *(float *)ds_data_mut(p->seen) += (float)rows;
    if (what == ROWS) return ds_full(DS_I64, ds_shape(rows), (double)rows);
    if (what == SAME) return x;
    if (what == MODES)
        return ds_full(DS_F32, ds_shape(rows),
                       ds_module_training(m) + 10 * ds_grad_enabled() + 100 * ds_item(p->seen));
    if (what == UNEVEN) return ds_zeros(DS_F32, ds_shape(rows, first[0] > 2 ? 2 : 3));
    if (what == NOISE) return ds_dropout(ds_mul(x, p->w), 0.5, ds_module_training(m));
    if (what == NO_MEMORY && first[0] > 2) dsi_cache_fail(1, false);
    ds_tensor *y = ds_mul(x, p->w);
    if (n > 1) y = ds_mul(y, in[1]);
    return what == VALUE ? ds_mean(y) : y;
}

static inline ds_module *probe_new(void *arg)
{
    static const ds_module_type type = {"Probe", sizeof(Probe), .forward_n = probe_forward};
    int *broken = arg;
    ds_module *m = ds_module_new(NULL, "probe", &type);
    Probe *p = ds_self(m);
    p->w = ds_module_param(m, "w", ds_full(DS_F32, ds_shape(broken && *broken == 1 ? 2 : 1), 3));
    p->unused = ds_module_param(m, "unused", ds_ones(DS_F32, ds_shape(2)));
    p->seen = ds_module_buffer(m, "seen", ds_zeros(DS_F32, ds_shape(1)));
    if (broken && *broken == 2) ds_module_buffer(m, "more", ds_zeros(DS_F32, ds_shape(1)));
    if (broken && *broken == 3) ds_module_param(m, "w", ds_ones(DS_F32, ds_shape(1)));
    if (!broken || *broken != 4) return m;
    ds_module_free(m);
    return NULL;
}

static inline ds_tensor *column(int n, const float *x)
{
    return ds_from_data(DS_F32, ds_shape(n, 1), x);
}
static const float one_to_8[] = {1, 2, 3, 4, 5, 6, 7, 8};

static inline double at(ds_tensor *x, int i)
{
    if (!x || i >= ds_numel(x)) return NAN;
    return ds_item(
        ds_slice(ds_cast(ds_contiguous(ds_detach(ds_flatten(x, 0))), DS_F64), 0, i, i + 1));
}

static inline ds_module *same_net(void *arg)
{
    (void)arg;
    return net_new();
}
