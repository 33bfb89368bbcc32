/* nn/init.c: initial values: torch.nn.init, in place, from this thread's generator.
 *
 * Fans: of a weight [out, in, k...] the fan in is in times the elements of k, the fan out is out times
 * them. Kaiming: He et al., arXiv 1502.01852; Xavier: Glorot and Bengio, AISTATS 2010.
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>

#include <math.h>

static bool fans(const char *what, const ds_tensor *x, double *in, double *out)
{
    if (!x) return dsi_passed(what) != NULL;
    if (x->shape.n < 2)
        return dsi_refuse("%s: x is %s: fans need at least 2 dimensions", what,
                          dsi_shape_text(x->shape)) != NULL;
    double kernel = 1;
    for (int i = 2; i < x->shape.n; i++) kernel *= (double)x->shape.d[i];
    *in = (double)x->shape.d[1] * kernel;
    *out = (double)x->shape.d[0] * kernel;
    return true;
}

ds_tensor *ds_init_constant(ds_tensor *x, double value)
{
    if (!x) return dsi_passed("init_constant");
    return dsi_run(x, fill, value, dsi_v(x)) ? x : NULL;
}

ds_tensor *ds_init_uniform(ds_tensor *x, double low, double high)
{
    return dsi_fill_uniform("init_uniform", x, low, high);
}

ds_tensor *ds_init_normal(ds_tensor *x, double mean, double std)
{
    return dsi_fill_normal("init_normal", x, mean, std);
}

/* ---- truncated ------------------------------------------------------------------------------------- */

typedef struct truncation {
    double mean, std, low, high;
    bool rare; /* little of the bell lies between the bounds */
} truncation;

/* One value where normal draws would mostly miss: uniform ones between the bounds, taken with the
 * bell's probability relative to its highest point there. */
static double draw_between(const truncation *t)
{
    double z0 = (t->low - t->mean) / t->std, z1 = (t->high - t->mean) / t->std;
    double near = z0 > 0 ? z0 : z1 < 0 ? -z1 : 0;
    double far = sqrt(near * near + 83); /* below 2^-60 of the highest point beyond */
    z0 = fmax(z0, -far);
    z1 = fmin(z1, far);
    double z, accept;
    do {
        dsi_rng_uniform_f64(dsi_rng_default(), &z, 1, z0, z1);
        dsi_rng_uniform_f64(dsi_rng_default(), &accept, 1, 0, 1);
    } while (accept >= exp((near * near - z * z) / 2));
    return fmin(fmax(t->mean + t->std * z, t->low), t->high);
}

/* Draws again what lies outside of the bounds, until nothing does. */
static void truncate_f32(float *x, int64_t n, const truncation *t)
{
    for (int64_t i = 0; i < n; i++)
        while (!(x[i] >= t->low && x[i] <= t->high)) {
            if (t->rare)
                x[i] = (float)draw_between(t);
            else
                dsi_rng_normal_f32(dsi_rng_default(), x + i, 1, t->mean, t->std);
        }
}

ds_tensor *ds_init_trunc_normal(ds_tensor *x, double mean, double std, double low, double high)
{
    if (!x) return dsi_passed("init_trunc_normal");
    if (x->dtype > DS_BF16)
        return dsi_refuse("init_trunc_normal: x is %s, expected a floating dtype",
                          ds_dtype_name(x->dtype));
    if (!(std > 0) || !((float)low < (float)high))
        return dsi_refuse(
            "init_trunc_normal: std is %g, the bounds are %g and %g: expected std > 0 "
            "and bounds in order",
            std, low, high);
    /* the part of the bell between the bounds */
    double part = (erf((high - mean) / std / sqrt(2)) - erf((low - mean) / std / sqrt(2))) / 2;
    truncation t = {mean, std, (float)low, (float)high, part < 0.05};
    dsi_device *cpu = dsi_device_get((ds_device){DS_CPU, 0});
    ds_tensor *host = dsi_new_on(cpu, DS_F32, x->shape);
    if (!dsi_fill_normal("init_trunc_normal", host, mean, std)) return NULL;
    truncate_f32(dsi_v(host).p, dsi_numel(x->shape), &t);
    return dsi_copy(x, host) == DS_OK ? x : NULL;
}

/* ---- by fan ---------------------------------------------------------------------------------------- */

/* gain / sqrt(fan), the standard deviation of both Kaiming rules; 0 for a tensor without elements. */
static bool kaiming_std(const char *what, const ds_tensor *x, double a, ds_fan fan, ds_gain gain,
                        double *std)
{
    double in, out, g = 1;
    if (!fans(what, x, &in, &out)) return false;
    if (fan != DS_FAN_IN && fan != DS_FAN_OUT)
        return dsi_refuse("%s: there is no fan number %d", what, (int)fan) != NULL;
    switch (gain) {
    case DS_GAIN_LEAKY_RELU:
        g = sqrt(2 / (1 + a * a));
        break;
    case DS_GAIN_RELU:
        g = sqrt(2);
        break;
    case DS_GAIN_LINEAR:
        break;
    case DS_GAIN_TANH:
        g = 5.0 / 3;
        break;
    case DS_GAIN_SELU:
        g = 0.75;
        break;
    default:
        return dsi_refuse("%s: there is no gain number %d", what, (int)gain) != NULL;
    }
    double n = fan == DS_FAN_IN ? in : out;
    *std = n > 0 ? g / sqrt(n) : 0;
    return true;
}

ds_tensor *ds_init_kaiming_uniform(ds_tensor *x, double a, ds_fan fan, ds_gain gain)
{
    double std;
    if (!kaiming_std("init_kaiming_uniform", x, a, fan, gain, &std)) return NULL;
    double bound = sqrt(3) * std;
    return dsi_fill_uniform("init_kaiming_uniform", x, -bound, bound);
}

ds_tensor *ds_init_kaiming_normal(ds_tensor *x, double a, ds_fan fan, ds_gain gain)
{
    double std;
    if (!kaiming_std("init_kaiming_normal", x, a, fan, gain, &std)) return NULL;
    return dsi_fill_normal("init_kaiming_normal", x, 0, std);
}

static bool xavier_std(const char *what, const ds_tensor *x, double gain, double *std)
{
    double in, out;
    if (!fans(what, x, &in, &out)) return false;
    *std = in + out > 0 ? gain * sqrt(2 / (in + out)) : 0;
    return true;
}

ds_tensor *ds_init_xavier_uniform(ds_tensor *x, double gain)
{
    double std;
    if (!xavier_std("init_xavier_uniform", x, gain, &std)) return NULL;
    double bound = sqrt(3) * std;
    return dsi_fill_uniform("init_xavier_uniform", x, -bound, bound);
}

ds_tensor *ds_init_xavier_normal(ds_tensor *x, double gain)
{
    double std;
    if (!xavier_std("init_xavier_normal", x, gain, &std)) return NULL;
    return dsi_fill_normal("init_xavier_normal", x, 0, std);
}
