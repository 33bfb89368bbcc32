/* tensor/copy.c: ds_copy, ds_item, ds_data: values between tensors, devices and
 * the program.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "tensor.h"

#include <math.h>

/* PyTorch's rule: sizes are compared from the last dimension on; 1 fits any. */
static bool broadcasts_to(ds_dims from, ds_dims to)
{
    if (from.n > to.n) return false;
    for (int i = 1; i <= from.n; i++) {
        int64_t d = from.d[from.n - i];
        if (d != 1 && d != to.d[to.n - i]) return false;
    }
    return true;
}

/* Whether a copy of the bytes is a copy of the elements: one dtype, one shape,
 * one order in memory, no gaps. */
static bool is_plain(const ds_tensor *dst, const ds_tensor *src)
{
    return dst->dtype == src->dtype && dsi_same_shape(dst->shape, src->shape) &&
           ((dsi_is_contiguous(dst) && dsi_is_contiguous(src)) ||
            (dsi_same_layout(dst, src) && dsi_is_dense(dst)));
}

/* Waits for d, so that its faults are reported here too. */
static ds_status copy_to_host(dsi_device *d, void *host, const void *p, size_t bytes)
{
    ds_status status = d->type->copy_out(&d->stream, host, p, bytes);
    return status == DS_OK ? dsi_device_check(d) : status;
}

/* Copies bytes between devices, or on a device without a copy kernel. Both
 * tensors are plain (is_plain). */
static ds_status copy_bytes(ds_tensor *dst, const ds_tensor *src)
{
    dsi_device *to = dst->device, *from = src->device;
    size_t bytes = (size_t)dsi_numel(dst->shape) * ds_dtype_size(dst->dtype);
    void *p = dsi_v(dst).p;
    const void *q = dsi_v(src).p;
    if (from->type->kind == DS_CPU) return to->type->copy_in(&to->stream, p, q, bytes);
    if (to->type->kind == DS_CPU) return copy_to_host(from, p, q, bytes);
    return to->type->copy(&to->stream, p, from, q, bytes);
}

/* Conversion and strides need a kernel, and kernels work on one device: src is
 * converted on its device, and copied to a row-major tensor on dst's device if
 * dst is not plain. */
static ds_status copy_across(ds_tensor *dst, const ds_tensor *src)
{
    if (is_plain(dst, src)) return copy_bytes(dst, src);
    ds_scope *scope = ds_scope_open();
    ds_tensor *sent = dsi_new_on(src->device, dst->dtype, src->shape);
    ds_tensor *got = dsi_new_on(dst->device, dst->dtype, src->shape);
    bool made = sent && got;
    ds_status status = made ? dsi_copy(sent, src) : ds_error_status();
    if (made && status == DS_OK) status = copy_bytes(got, sent);
    if (made && status == DS_OK) status = dsi_copy(dst, got);
    ds_scope_close(scope);
    return status;
}

ds_status dsi_copy(ds_tensor *dst, const ds_tensor *src)
{
    if (!dsi_live_all("copy", dst, src)) return dsi_null_argument("copy");
    if (!broadcasts_to(src->shape, dst->shape))
        return dsi_fail(DS_EINVAL, "copy: %s does not broadcast to %s", dsi_shape_text(src->shape),
                        dsi_shape_text(dst->shape));
    if (!dsi_acquire(src, dst) || !dsi_acquire_to_write(dst)) return ds_error_status();
    if (dst->device != src->device) return copy_across(dst, src);
    if (!dst->device->kernels->copy && is_plain(dst, src)) return copy_bytes(dst, src);
    return dsi_run(dst, copy, dsi_v_expand(src, dst->shape), dsi_v(dst)) ? DS_OK
                                                                         : ds_error_status();
}

ds_status ds_copy(ds_tensor *dst, ds_tensor *src)
{
    if (dst && dst->node)
        return dsi_fail(DS_EINVAL,
                        "copy: the destination was made by an op that recorded a gradient; "
                        "ds_detach it first");
    return dsi_copy(dst, src);
}

ds_tensor *dsi_to_dtype(ds_tensor *x, ds_dtype dtype)
{
    if (!x || x->dtype == dtype) return x;
    ds_tensor *y = dsi_new_dtype(x, dtype, x->shape);
    return dsi_copy(y, x) == DS_OK ? y : NULL;
}

ds_tensor *dsi_to_current(ds_tensor *x)
{
    dsi_device *d = x ? dsi_device_current() : NULL;
    if (!d || d == x->device) return d ? x : NULL;
    ds_tensor *y = dsi_new_on(d, x->dtype, x->shape);
    return dsi_copy(y, x) == DS_OK ? y : NULL;
}

double dsi_element(const void *p, ds_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DS_F32:
        return ((const float *)p)[i];
    case DS_F64:
        return ((const double *)p)[i];
    case DS_F16:
        return dsi_f16_to_f32(((const uint16_t *)p)[i]);
    case DS_BF16:
        return dsi_bf16_to_f32(((const uint16_t *)p)[i]);
    case DS_I64:
        return (double)((const int64_t *)p)[i];
    case DS_I32:
        return ((const int32_t *)p)[i];
    case DS_I16:
        return ((const int16_t *)p)[i];
    case DS_I8:
        return ((const int8_t *)p)[i];
    case DS_U8:
    case DS_BOOL:
        return ((const uint8_t *)p)[i];
    }
    return NAN;
}

void dsi_set_item(ds_tensor *x, double value)
{
    x->item = value;
    x->has_item = true;
}

double ds_item(const ds_tensor *x)
{
    if (!dsi_live(x, "item")) return NAN;
    if (dsi_numel(x->shape) != 1) {
        dsi_fail(DS_EINVAL, "item: x is %s: expected one element", dsi_shape_text(x->shape));
        return NAN;
    }
    if (x->has_item) return x->item;
    if (!dsi_acquire(x)) return NAN;
    dsi_view v = dsi_v(x);
    if (x->device->type->kind == DS_CPU) return dsi_element(v.p, x->dtype, 0);
    double element;
    if (copy_to_host(x->device, &element, v.p, ds_dtype_size(x->dtype)) != DS_OK) return NAN;
    return dsi_element(&element, x->dtype, 0);
}

ds_status dsi_norm(dsi_device *d, double p, int n, const dsi_view *x, double *out)
{
    if (!d->kernels->norm) return dsi_no_kernel(d, x[0].dtype, "norm");
    void *scalar = dsi_cache_alloc(d, sizeof *out);
    if (!scalar) return ds_error_status();
    ds_status status = d->kernels->norm(&d->stream, p, n, x,
                                        (dsi_view){scalar, DS_F64, 0, {0}, {0}});
    if (status == DS_OK) status = copy_to_host(d, out, scalar, sizeof *out);
    dsi_cache_free(d, scalar, sizeof *out);
    return status;
}

/* A tensor that is not contiguous, or not on the CPU, is copied first. The copy
 * belongs to the current scope, and so do the values behind the result. */
const void *ds_data(ds_tensor *x)
{
    if (!dsi_live(x, "data")) return dsi_null_operand("data");
    if (!dsi_acquire(x)) return NULL;
    bool host = x->device->type->kind == DS_CPU;
    if (host && dsi_is_contiguous(x)) return dsi_v(x).p;
    ds_tensor *y = dsi_is_contiguous(x) ? x : dsi_new(x, x->shape);
    if (y != x && dsi_copy(y, x) != DS_OK) return NULL;
    if (host) return dsi_v(y).p;
    ds_tensor *z = dsi_new_host(x->dtype, x->shape);
    return dsi_copy(z, y) == DS_OK ? dsi_v(z).p : NULL;
}

/* `written` is never reset: the caller may keep the address, so nothing that
 * reads this storage may be deferred from now on (deferred.c). */
void *ds_data_mut(ds_tensor *x)
{
    if (!dsi_live(x, "data_mut")) return dsi_null_operand("data_mut");
    if (!dsi_acquire_to_write(x)) return NULL;
    if (x->device->type->kind != DS_CPU)
        return dsi_refuse("data_mut: x %s is on %s, not in host memory: write to a copy on the CPU "
                          "(ds_to), and ds_copy it back",
                          dsi_shape_text(x->shape), ds_device_name(dsi_device_id(x->device)));
    if (!dsi_is_contiguous(x))
        return dsi_refuse(
            "data_mut: x %s is not contiguous in host memory: write to a ds_contiguous copy",
            dsi_shape_text(x->shape));
    x->storage->written = true;
    return dsi_v(x).p;
}
