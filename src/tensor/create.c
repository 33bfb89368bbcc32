/* tensor/create.c: new tensors: filled, copied from memory, or random. All are
 * made on the current device.
 *
 * Random values are drawn on the host, in row-major order, so that a seed means
 * the same numbers on every device and for every memory format. float16 and
 * bfloat16 values are drawn as float32.
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "device/graph.h"
#include "tensor.h"

#include <math.h>

ds_tensor *dsi_fill(ds_tensor *x, double value)
{
    if (!x || !dsi_acquire_to_write(x)) return NULL;
    return dsi_run(x, fill, value, dsi_v(x)) ? x : NULL;
}

ds_tensor *ds_empty(ds_dtype dtype, ds_dims shape)
{
    dsi_handle_call("empty");
    return dsi_new_on(dsi_device_current(), dtype, shape);
}

static ds_tensor *new_filled(const char *call, ds_dtype dtype, ds_dims shape, double value)
{
    dsi_handle_call(call);
    return dsi_fill(dsi_new_on(dsi_device_current(), dtype, shape), value);
}

ds_tensor *ds_full(ds_dtype dtype, ds_dims shape, double value)
{
    return new_filled("full", dtype, shape, value);
}

ds_tensor *ds_zeros(ds_dtype dtype, ds_dims shape) { return new_filled("zeros", dtype, shape, 0); }
ds_tensor *ds_ones(ds_dtype dtype, ds_dims shape) { return new_filled("ones", dtype, shape, 1); }

ds_tensor *ds_scalar(ds_dtype dtype, double value)
{
    return new_filled("scalar", dtype, (ds_dims){0}, value);
}

ds_tensor *ds_like(const ds_tensor *x, double value)
{
    if (!dsi_live(x, "like")) return dsi_null_operand("like");
    return dsi_fill(dsi_new_like(x), value);
}

/* Returns a contiguous CPU tensor of `dtype` and x's shape for values that
 * staging_flush copies to x: x itself if it is one. NULL if x is NULL. */
static ds_tensor *host_staging(ds_tensor *x, ds_dtype dtype)
{
    if (!x) return NULL;
    if (x->device->type->kind == DS_CPU && x->dtype == dtype && dsi_is_contiguous(x)) return x;
    return dsi_new_host(dtype, x->shape);
}

/* Copies `host`, made by host_staging, to x; returns x, or NULL. The dtype is
 * converted on the host, as only equal dtypes can be copied between devices. */
static ds_tensor *staging_flush(ds_tensor *x, ds_tensor *host)
{
    if (!host || host == x) return host;
    if (x->device != host->device) host = dsi_to_dtype(host, x->dtype);
    return host && dsi_copy(x, host) == DS_OK ? x : NULL;
}

/* x[i] = begin + i step; returns x, or NULL. */
static ds_tensor *fill_range(ds_tensor *x, double begin, double step)
{
    if (x && dsi_fusion(x->device, arange))
        return dsi_run_fusion(x, arange, begin, step, dsi_v(x)) ? x : NULL;
    ds_tensor *host = host_staging(x, DS_F64);
    if (!host) return NULL;
    double *value = dsi_v(host).p;
    for (int64_t i = 0; i < dsi_numel(x->shape); i++) value[i] = begin + (double)i * step;
    return staging_flush(x, host);
}

ds_tensor *ds_arange(ds_dtype dtype, double begin, double end, double step)
{
    dsi_handle_call("arange");
    double n = ceil((end - begin) / step);
    if (!(step != 0 && n >= 0 && n < 9e18))
        return dsi_refuse("arange: no way from %g to %g in steps of %g", begin, end, step);
    return fill_range(ds_empty(dtype, ds_shape((int64_t)n)), begin, step);
}

ds_tensor *dsi_arange(const ds_tensor *like, int64_t begin, int64_t n, int64_t step)
{
    return fill_range(dsi_new_dtype(like, DS_I64, ds_shape(n)), (double)begin, (double)step);
}

ds_tensor *ds_from_data(ds_dtype dtype, ds_dims shape, const void *data)
{
    dsi_handle_call("from_data");
    ds_tensor *x = ds_empty(dtype, shape);
    if (!x) return NULL;
    size_t bytes = (size_t)dsi_numel(shape) * ds_dtype_size(dtype);
    if (!bytes) return x;
    if (!data) return dsi_refuse("from_data: data is NULL, shape %s", dsi_shape_text(shape));
    return x->device->type->copy_in(&x->device->stream, dsi_v(x).p, data, bytes) == DS_OK ? x
                                                                                          : NULL;
}

/* ---- random values ------------------------------------------------------------------------------------ */

/* Write n values of a distribution with parameters a, b to x (base/rng.h). */ typedef void
draw_f32(dsi_rng *g, float *x, int64_t n, double a, double b);
typedef void draw_f64(dsi_rng *g, double *x, int64_t n, double a, double b);

/* Fills x from this thread's generator: by f64 if x is float64, else by f32,
 * whose values are rounded to x's dtype. a and b are the parameters of the
 * distribution. `what` begins the message. */
static ds_tensor *draw_values(const char *what, ds_tensor *x, draw_f32 *f32, draw_f64 *f64,
                              double a, double b)
{
    if (!dsi_live(x, what)) return dsi_null_operand(what);
    if (x->dtype > DS_BF16)
        return dsi_refuse("%s: x is %s, expected a floating dtype", what, ds_dtype_name(x->dtype));
    if (!dsi_acquire_to_write(x)) return NULL;
    ds_tensor *host = host_staging(x, x->dtype == DS_F64 ? DS_F64 : DS_F32);
    if (!host) return NULL;
    int64_t n = dsi_numel(x->shape);
    if (host->dtype == DS_F64)
        f64(dsi_rng_default(), dsi_v(host).p, n, a, b);
    else
        f32(dsi_rng_default(), dsi_v(host).p, n, a, b);
    return staging_flush(x, host);
}

ds_tensor *dsi_fill_uniform(const char *what, ds_tensor *x, double low, double high)
{
    if (!(low <= high) || isinf(high - low))
        return dsi_refuse("%s: no uniform values from %g to %g", what, low, high);
    return draw_values(what, x, dsi_rng_uniform_f32, dsi_rng_uniform_f64, low, high);
}

ds_tensor *dsi_fill_normal(const char *what, ds_tensor *x, double mean, double std)
{
    if (!(std >= 0)) return dsi_refuse("%s: std is %g, expected at least 0", what, std);
    return draw_values(what, x, dsi_rng_normal_f32, dsi_rng_normal_f64, mean, std);
}

ds_tensor *ds_rand(ds_dtype dtype, ds_dims shape)
{
    dsi_handle_call("rand");
    return dsi_fill_uniform("rand", ds_empty(dtype, shape), 0, 1);
}

ds_tensor *ds_randn(ds_dtype dtype, ds_dims shape)
{
    dsi_handle_call("randn");
    return dsi_fill_normal("randn", ds_empty(dtype, shape), 0, 1);
}

/* Whether the integers low .. high - 1 are all values of dtype. */
static bool dtype_holds_range(ds_dtype dtype, int64_t low, int64_t high)
{
    static const int64_t limits[DS_DTYPES][2] = {[DS_I32] = {INT32_MIN, INT32_MAX},
                                                 [DS_I16] = {INT16_MIN, INT16_MAX},
                                                 [DS_I8] = {INT8_MIN, INT8_MAX},
                                                 [DS_U8] = {0, UINT8_MAX},
                                                 [DS_BOOL] = {0, 1}};
    const int64_t *limit = limits[dtype];
    return !limit[1] || (low >= limit[0] && high - 1 <= limit[1]);
}

ds_tensor *ds_randint(ds_dtype dtype, int64_t low, int64_t high, ds_dims shape)
{
    dsi_handle_call("randint");
    if (low >= high)
        return dsi_refuse("randint: no integers from %lld to below %lld", (long long)low,
                          (long long)high);
    if (!dtype_holds_range(dtype, low, high))
        return dsi_refuse("randint: %s does not hold %lld to %lld", ds_dtype_name(dtype),
                          (long long)low, (long long)(high - 1));
    ds_tensor *x = ds_empty(dtype, shape), *host = host_staging(x, DS_I64);
    if (!host) return NULL;
    int64_t *value = dsi_v(host).p, n = dsi_numel(shape);
    for (int64_t i = 0; i < n; i++) value[i] = dsi_rng_below(dsi_rng_default(), low, high);
    return staging_flush(x, host);
}

/* Always int64, as torch.randperm. */
ds_tensor *ds_randperm(int64_t n)
{
    dsi_handle_call("randperm");
    if (n < 0) return dsi_refuse("randperm: n is %lld, expected at least 0", (long long)n);
    ds_tensor *x = ds_empty(DS_I64, ds_shape(n)), *host = host_staging(x, DS_I64);
    if (!host) return NULL;
    dsi_rng_permutation(dsi_rng_default(), dsi_v(host).p, n);
    return staging_flush(x, host);
}

void ds_seed(uint64_t seed)
{
    dsi_graph_forbid_call("seed");
    dsi_rng_seed(dsi_rng_default(), seed);
}

ds_tensor *ds_rng_state(void)
{
    unsigned char bytes[DSI_RNG_STATE_BYTES];
    dsi_rng_save(dsi_rng_default(), bytes);
    return ds_from_data(DS_U8, ds_shape(DSI_RNG_STATE_BYTES), bytes);
}

ds_status ds_set_rng_state(ds_tensor *state)
{
    if (!dsi_live(state, "set_rng_state")) return dsi_null_argument("set_rng_state");
    if (state->dtype != DS_U8 || state->shape.n != 1 || state->shape.d[0] != DSI_RNG_STATE_BYTES)
        return dsi_fail(DS_EINVAL, "set_rng_state: the state is %s %s: expected uint8 [%d]",
                        ds_dtype_name(state->dtype), dsi_shape_text(state->shape),
                        DSI_RNG_STATE_BYTES);
    dsi_graph_forbid_call("set_rng_state");
    const void *bytes = ds_data(state);
    if (!bytes) return ds_error_status();
    if (!dsi_rng_load(dsi_rng_default(), bytes))
        return dsi_fail(DS_EFORMAT, "set_rng_state: these bytes are no state of PyTorch's CPU "
                                    "generator");
    return DS_OK;
}
