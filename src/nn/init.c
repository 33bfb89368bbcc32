/* nn/init.c: initial values: torch.nn.init, in place, from this thread's
 * generator.
 *
 * Fans: of a weight [out, in, k...] the fan in is in times the elements of k,
 * the fan out is out times them. Kaiming: He et al., arXiv 1502.01852; Xavier:
 * Glorot and Bengio, AISTATS 2010. Orthogonal: Saxe et al., arXiv:1312.6120.
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"
#include "tensor/tensor.h"

#include <deepspeed/nn.h>

#include <math.h>

/* As torch computes them: dimension 0 is the output, dimension 1 the input, the
 * rest the kernel's size. */
static bool fans(const char *what, const ds_tensor *x, double *in, double *out)
{
    if (!dsi_live(x, what)) return dsi_null_operand(what);
    if (x->shape.n < 2)
        return dsi_refuse("%s: x is %s: fans need at least 2 dimensions", what,
                          dsi_shape_text(x->shape));
    double kernel = 1;
    for (int i = 2; i < x->shape.n; i++) kernel *= (double)x->shape.d[i];
    *in = (double)x->shape.d[1] * kernel;
    *out = (double)x->shape.d[0] * kernel;
    return true;
}

/* All of these write x in place and return it, or NULL with the message; they
 * record no graph. */
ds_tensor *ds_init_constant(ds_tensor *x, double value)
{
    if (!dsi_live(x, "init_constant")) return dsi_null_operand("init_constant");
    return dsi_fill(x, value);
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

/* Values are drawn for the whole tensor, and only those that are still wanted
 * are taken, round after round: so the generator gives what it gives in
 * PyTorch. */
typedef struct truncation {
    double mean, std;
    float low, high;
    /* [n] each; chance: if little of the bell is between the bounds */
    float *x, *fresh, *chance;
    int64_t n;
} truncation;

/* A whole tensor is drawn in each round, and values that are inside stay:
 * torch's order of numbers. */
static void redraw_outside(const truncation *t)
{
    dsi_rng *g = dsi_rng_default();
    dsi_rng_normal_f32(g, t->x, t->n, t->mean, t->std);
    for (bool again = true; again;) {
        again = false;
        for (int64_t i = 0; i < t->n && !again; i++) again = t->x[i] < t->low || t->x[i] > t->high;
        if (!again) return;
        dsi_rng_normal_f32(g, t->fresh, t->n, t->mean, t->std);
        for (int64_t i = 0; i < t->n; i++)
            if (t->x[i] < t->low || t->x[i] > t->high) t->x[i] = t->fresh[i];
    }
}

/* Uniform between the bounds, accepted with the bell's height there over its
 * highest one there. */
static void accept_uniform(const truncation *t)
{
    dsi_rng *g = dsi_rng_default();
    float mean = (float)t->mean, std = (float)t->std;
    double mode = fmax(t->low, fmin(t->mean, t->high)), z = (mode - t->mean) / t->std;
    float log_peak = (float)(-0.5 * z * z);
    int64_t pending = t->n;
    for (int64_t i = 0; i < t->n; i++) t->x[i] = NAN; /* still wanted */
    while (pending) {
        dsi_rng_uniform_f32(g, t->fresh, t->n, t->low, t->high);
        dsi_rng_uniform_f32(g, t->chance, t->n, 0, 1);
        for (int64_t i = 0; i < t->n; i++) {
            float d = (t->fresh[i] - mean) / std;
            if (!isnan(t->x[i]) || logf(t->chance[i]) > d * d * -0.5f - log_peak) continue;
            t->x[i] = t->fresh[i];
            pending--;
        }
    }
}

/* The bounds no further than 11 deviations beyond the nearer one: values
 * there are never drawn, and proposals spread over it would take for ever. */
static void tighten(truncation *t)
{
    double near = fmax(fmax(t->low - t->mean, t->mean - t->high), 0), far = near + 11 * t->std;
    t->low = (float)fmax(t->low, t->mean - far);
    t->high = (float)fmin(t->high, t->mean + far);
}

/* torch.nn.init.trunc_normal_: which of its two ways is used depends on how
 * much of the bell is between the bounds. */
ds_tensor *ds_init_trunc_normal(ds_tensor *x, double mean, double std, double low, double high)
{
    if (!dsi_live(x, "init_trunc_normal")) return dsi_null_operand("init_trunc_normal");
    if (x->dtype > DS_BF16)
        return dsi_refuse("init_trunc_normal: x is %s, expected a floating dtype",
                          ds_dtype_name(x->dtype));
    if (!(std > 0) || !((float)low < (float)high))
        return dsi_refuse(
            "init_trunc_normal: std is %g, the bounds are %g and %g: expected std > 0 "
            "and bounds in order",
            std, low, high);
    ds_tensor *host = dsi_new_host(DS_F32, x->shape);
    ds_tensor *fresh = dsi_new_host(DS_F32, x->shape);
    ds_tensor *chance = dsi_new_host(DS_F32, x->shape);
    if (!host || !fresh || !chance) return NULL;
    truncation t = {mean,
                    std,
                    (float)low,
                    (float)high,
                    dsi_v(host).p,
                    dsi_v(fresh).p,
                    dsi_v(chance).p,
                    dsi_numel(x->shape)};
    /* the part of the bell between the bounds */
    double part = (erf((high - mean) / std / sqrt(2)) - erf((low - mean) / std / sqrt(2))) / 2;
    tighten(&t);
    if (part > 0.3)
        redraw_outside(&t);
    else
        accept_uniform(&t);
    return dsi_copy(x, host) == DS_OK ? x : NULL;
}

/* ---- by fan ---------------------------------------------------------------------------------------- */

/* gain / sqrt(fan), the standard deviation of both Kaiming rules; 0 for a
 * tensor without elements. */
static bool kaiming_std(const char *what, const ds_tensor *x, double a, ds_fan fan, ds_gain gain,
                        double *std)
{
    static const double gains[] = {[DS_GAIN_LEAKY_RELU] = 0, /* by a */
                                   [DS_GAIN_RELU] = M_SQRT2,
                                   [DS_GAIN_LINEAR] = 1,
                                   [DS_GAIN_TANH] = 5.0 / 3,
                                   [DS_GAIN_SELU] = 0.75};
    double in, out;
    if (!fans(what, x, &in, &out)) return false;
    if (fan != DS_FAN_IN && fan != DS_FAN_OUT)
        return dsi_refuse("%s: there is no fan number %d", what, (int)fan);
    if ((unsigned)gain >= sizeof gains / sizeof *gains)
        return dsi_refuse("%s: there is no gain number %d", what, (int)gain);
    double g = gain == DS_GAIN_LEAKY_RELU ? sqrt(2 / (1 + a * a)) : gains[gain];
    double n = fan == DS_FAN_IN ? in : out;
    *std = n > 0 ? g / sqrt(n) : 0;
    return true;
}

/* U(-b, b) has the standard deviation b / sqrt(3). With a = sqrt(5) and fan
 * in, torch.nn.Linear's choice, b is 1 / sqrt(fan). */
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

/* gain sqrt(2 / (fan_in + fan_out)). */
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

/* ---- orthogonal ------------------------------------------------------------------------------------ */

static double dot(const double *a, const double *b, int64_t n)
{
    double sum[4] = {0, 0, 0, 0}; /* so that additions need not wait for each other */
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += a[i + k] * b[i + k];
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* Makes the n rows of v, of m elements each, orthonormal: Q of a QR
 * decomposition whose R has a positive diagonal. Gram-Schmidt, a second time
 * where little of a row is left (Daniel, Gragg, Kaufman, Stewart, 1976). */
static void orthonormalize(double *v, int64_t n, int64_t m)
{
    for (int64_t j = 0; j < n; j++) {
        double *row = v + j * m, before = sqrt(dot(row, row, m)), after = before;
        for (int round = 0; round < 3 && (round == 0 || after < 0.7 * before); round++) {
            before = after;
            for (int64_t i = 0; i < j; i++) {
                double part = dot(v + i * m, row, m);
                for (int64_t k = 0; k < m; k++) row[k] -= part * v[i * m + k];
            }
            after = sqrt(dot(row, row, m));
        }
        for (int64_t k = 0; k < m; k++) row[k] = after > 0 ? row[k] / after : 0;
    }
}

/* Normal values as [rows, columns] = [size of dimension 0, the rest]: Q of it, or
 * of its transpose if that is the tall one, as torch.nn.init.orthogonal_. */
ds_tensor *ds_init_orthogonal(ds_tensor *x, double gain)
{
    if (!dsi_live(x, "init_orthogonal")) return dsi_null_operand("init_orthogonal");
    if (x->shape.n < 2 || x->dtype > DS_BF16)
        return dsi_refuse("init_orthogonal: x is %s %s: expected floats of at least 2 dimensions",
                          ds_dtype_name(x->dtype), dsi_shape_text(x->shape));
    int64_t rows = x->shape.d[0], columns = rows ? ds_numel(x) / rows : 0;
    if (!rows || !columns) return x;
    ds_tensor *drawn = dsi_new_host(x->dtype == DS_F64 ? DS_F64 : DS_F32, ds_shape(rows, columns));
    if (!dsi_fill_normal("init_orthogonal", drawn, 0, 1)) return NULL;
    bool tall = rows >= columns;
    ds_tensor *v = dsi_new_host(DS_F64, tall ? ds_shape(columns, rows) : ds_shape(rows, columns));
    if (!v || dsi_copy(v, tall ? ds_transpose(drawn, 0, 1) : drawn) != DS_OK) return NULL;
    double *p = dsi_v(v).p;
    orthonormalize(p, tall ? columns : rows, tall ? rows : columns);
    for (int64_t i = 0; i < rows * columns; i++) p[i] *= gain;
    ds_tensor *q = ds_reshape(tall ? ds_transpose(v, 0, 1) : v, x->shape);
    return dsi_copy(x, q) == DS_OK ? x : NULL;
}
