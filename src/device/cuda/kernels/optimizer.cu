/* device/cuda/kernels/optimizer.cu: one step of an optimizer over all
 * parameters. Formulas: device/cpu/optim/optim.inc. A block takes a piece of one
 * span; nothing is written while the fault flag is set. A rule is a kernel: one for
 * all of them takes the driver a quarter of a second to compile.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "vector.cuh"

#include "optimizer.h"
#include "sgd.cuh"

DEVICE double power(double b, long long n) { return pow(b, (double)n); }

template <int RULE> DEVICE Step step_of(const dsi_cuda_optimizer &P, const dsi_cuda_span &x)
{
    Step s = step_begun(P, x, step_read(P));
    if ((RULE == K_ADAM || RULE == K_LAMB) && P.bias_correction) {
        s.sum_m = 1 - power(s.b1, s.step);
        s.sum_v = 1 - power(P.b2, s.step);
    }
    s.rate = s.lr / s.sum_m, s.root = 1 / sqrt(s.sum_v);
    if (P.decoupled) s.shrink = 1 - s.lr * P.decay;
    return s;
}

DEVICE float root(float x) { return sqrtf(x); }
DEVICE double root(double x) { return sqrt(x); }

template <class C>
DEVICE C adam(const dsi_cuda_optimizer &P, const Step &s, C p, C g, Moments<C> &e)
{
    if (!P.decoupled) g = fused((C)P.decay, p, g);
    e.m = fused((C)s.b1, e.m, (C)(1 - s.b1) * g);
    C v = e.v = fused((C)P.b2, e.v, (C)(1 - P.b2) * g * g);
    if (P.amsgrad) v = e.vmax = e.vmax > v ? e.vmax : v;
    return fused((C)s.shrink, p, -(C)s.rate * e.m / fused(root(v), (C)s.root, (C)P.eps));
}

template <class C>
DEVICE C rmsprop(const dsi_cuda_optimizer &P, const Step &s, C p, C g, Moments<C> &e)
{
    C keep = (C)P.b2, take = (C)(1 - P.b2);
    g = fused((C)P.decay, p, g);
    C v = e.v = fused(keep, e.v, take * g * g);
    if (P.centered) {
        e.vmax = fused(keep, e.vmax, take * g);
        v = fused(-e.vmax, e.vmax, v);
    }
    C u = g / (root(v) + (C)P.eps);
    if (P.b1 != 0) u = e.m = fused((C)s.b1, e.m, u);
    return fused(-(C)s.lr, u, p);
}

template <class C>
DEVICE C adadelta(const dsi_cuda_optimizer &P, const Step &s, C p, C g, Moments<C> &e)
{
    C keep = (C)s.b1, take = (C)(1 - s.b1);
    g = fused((C)P.decay, p, g);
    e.v = fused(keep, e.v, take * g * g);
    C delta = root(e.m + (C)P.eps) / root(e.v + (C)P.eps) * g;
    e.m = fused(keep, e.m, take * delta * delta);
    return fused(-(C)s.lr, delta, p);
}

template <class C>
DEVICE C lion(const dsi_cuda_optimizer &P, const Step &s, C p, C g, Moments<C> &e)
{
    C way = fused((C)s.b1, e.m, (C)(1 - s.b1) * g), lr = (C)s.lr;
    e.m = fused((C)P.b2, e.m, (C)(1 - P.b2) * g);
    return fused((C)(1 - s.lr * P.decay), p, signbit(way) ? lr : -lr);
}

template <class C>
DEVICE C adagrad(const dsi_cuda_optimizer &P, const Step &s, C p, C g, Moments<C> &e)
{
    C lr = (C)(s.lr / (1 + (double)(s.step - 1) * P.lr_decay));
    g = fused((C)P.decay, p, g);
    e.v = fused(g, g, e.v);
    return p - lr * g / (root(e.v) + (C)P.eps);
}

/* LAMB's direction, from moments that are up to date. */
template <class C> DEVICE C lamb_u(const dsi_cuda_optimizer &P, C p, const Moments<C> &e)
{
    C under = P.eps_inside ? (C)P.eps : 0, beside = P.eps_inside ? 0 : (C)P.eps;
    return fused((C)P.decay, p, e.m / (root(e.v + under) + beside));
}

template <class C, int RULE>
DEVICE C new_value(const dsi_cuda_optimizer &P, const Step &s, C p, C g, Moments<C> &e)
{
    switch (RULE) {
    case K_SGD:
        return sgd(P, s, p, g, e);
    case K_ADAM:
        return adam(P, s, p, g, e);
    case K_ADAGRAD:
        return adagrad(P, s, p, g, e);
    case K_RMSPROP:
        return rmsprop(P, s, p, g, e);
    case K_ADADELTA:
        return adadelta(P, s, p, g, e);
    default:
        return lion(P, s, p, g, e);
    }
}

/* ---- float32 in two halves: base/half.h ---- */

DEVICE unsigned untied(unsigned x) { return x - ((x & 0x1ffffu) == 0x8000u); }
DEVICE float untied(float x) { return __uint_as_float(untied(__float_as_uint(x))); }
DEVICE double untied(double x) { return x; } /* has no copy */

DEVICE unsigned joined(unsigned p, int rest) { return (p << 16) + (unsigned)rest; }

/* The upper half of an untied x. */
DEVICE unsigned upper(unsigned x)
{
    return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (x + 0x8000u) >> 16;
}

KERNEL(halves_join, dsi_cuda_halves, 256)
{
    GRID_LOOP(i, P.n) P.x[i] = joined(P.p[i], P.rest[i]);
}

KERNEL(halves_split, dsi_cuda_halves, 256)
{
    GRID_LOOP(i, P.n)
    {
        unsigned x = untied(P.x[i]);
        P.x[i] = x;
        if (!P.p) continue;
        P.p[i] = (unsigned short)upper(x);
        P.rest[i] = (short)(x & 0xffffu);
    }
}

/* ---- kernels ---- */

template <class C> DEVICE Moments<C> read_moments(const dsi_cuda_span &x, long long i)
{
    Moments<C> e = {0, 0, 0};
    if (x.m) e.m = ((const C *)x.m)[i];
    if (x.v) e.v = ((const C *)x.v)[i];
    if (x.vmax) e.vmax = ((const C *)x.vmax)[i];
    return e;
}

template <class C>
DEVICE void write_moments(const dsi_cuda_span &x, long long i, const Moments<C> &e)
{
    if (x.m) ((C *)x.m)[i] = flushed(e.m);
    if (x.v) ((C *)x.v)[i] = flushed(e.v);
    if (x.vmax) ((C *)x.vmax)[i] = flushed(e.vmax);
}

DEVICE int span_of_block(const dsi_cuda_optimizer &P)
{
    int k = 0;
    while (k + 1 < P.n && (long long)blockIdx.x >= P.x[k + 1].first) k++;
    return k;
}

template <class C> DEVICE C read_value(const dsi_cuda_span &x, long long i)
{
    if (x.rest) return (C)__uint_as_float(joined(((const unsigned short *)x.p)[i], x.rest[i]));
    return load<C>(x.p, x.dtype, i);
}

template <class C> DEVICE void write_value(const dsi_cuda_span &x, long long i, C p)
{
    if (x.rest) {
        unsigned bits = untied(__float_as_uint((float)p));
        ((unsigned short *)x.p)[i] = (unsigned short)upper(bits);
        x.rest[i] = (short)(bits & 0xffffu);
        return;
    }
    if (x.low && x.low_dtype == K_BF16) p = untied(p);
    store<C>(x.p, x.dtype, i, p);
    if (x.low) store<C>(x.low, x.low_dtype, i, p);
}

/* Whether four elements at a time are aligned in all of a span. */
DEVICE bool has_quads(const dsi_cuda_span &x)
{
    unsigned long long wide = (unsigned long long)x.p | (unsigned long long)x.m |
                              (unsigned long long)x.v | (unsigned long long)x.vmax;
    if (x.rest)
        wide = (unsigned long long)x.m | (unsigned long long)x.v | (unsigned long long)x.vmax |
               2 * ((unsigned long long)x.p | (unsigned long long)x.rest);
    return (x.dtype == K_F32 || x.rest) && x.g_dtype != K_F64 && wide % 16 == 0 &&
           (unsigned long long)x.g % (4 * size_of(x.g_dtype)) == 0 &&
           (unsigned long long)x.low % (4 * size_of(x.low_dtype)) == 0;
}

DEVICE void moments_load(float (&to)[4], const void *p, long long i)
{
UNROLL
    for (int k = 0; k < 4; k++) to[k] = 0;
    if (p) vector_load<float>(to, p, i);
}

DEVICE void moments_store(void *p, long long i, float (&v)[4])
{
UNROLL
    for (int k = 0; k < 4; k++) v[k] = flushed(v[k]);
    if (p) vector_store<float>(p, i, v);
}

DEVICE void value_load(float (&to)[4], const dsi_cuda_span &x, long long i)
{
    if (!x.rest) {
        quad_load(to, x.p, K_F32, i);
        return;
    }
    uint2 p = ((const uint2 *)x.p)[i / 4], rest = ((const uint2 *)x.rest)[i / 4];
    to[0] = __uint_as_float(joined(p.x, (short)(rest.x & 0xffffu)));
    to[1] = __uint_as_float(joined(p.x >> 16, (short)(rest.x >> 16)));
    to[2] = __uint_as_float(joined(p.y, (short)(rest.y & 0xffffu)));
    to[3] = __uint_as_float(joined(p.y >> 16, (short)(rest.y >> 16)));
}

DEVICE void value_store(const dsi_cuda_span &x, long long i, float (&p)[4])
{
    bool unties = x.rest || (x.low && x.low_dtype == K_BF16);
UNROLL
    for (int k = 0; unties && k < 4; k++) p[k] = untied(p[k]);
    if (!x.rest) {
        quad_store(x.p, K_F32, i, p);
        if (x.low) quad_store(x.low, x.low_dtype, i, p);
        return;
    }
    unsigned u[4];
UNROLL
    for (int k = 0; k < 4; k++) u[k] = __float_as_uint(p[k]);
    ((uint2 *)x.p)[i / 4] = make_uint2(upper(u[0]) | upper(u[1]) << 16,
                                       upper(u[2]) | upper(u[3]) << 16);
    ((uint2 *)x.rest)[i / 4] = make_uint2((u[0] & 0xffffu) | u[1] << 16,
                                          (u[2] & 0xffffu) | u[3] << 16);
}

/* Elements i .. i + 3 of a span that has_quads. */
template <int RULE>
DEVICE void optimizer_quad(const dsi_cuda_optimizer &P, const Step &s, const dsi_cuda_span &x,
                           long long i)
{
    float p[4], g[4], m[4], v[4], vmax[4];
    value_load(p, x, i);
    quad_load(g, x.g, x.g_dtype, i);
    moments_load(m, x.m, i), moments_load(v, x.v, i), moments_load(vmax, x.vmax, i);
UNROLL
    for (int k = 0; k < 4; k++) {
        Moments<float> e = {m[k], v[k], vmax[k]};
        p[k] = new_value<float, RULE>(P, s, p[k], (float)s.scale * g[k], e);
        m[k] = e.m, v[k] = e.v, vmax[k] = e.vmax;
    }
    moments_store(x.m, i, m), moments_store(x.v, i, v), moments_store(x.vmax, i, vmax);
    value_store(x, i, p);
}

/* Moments that a rule does not have cost the driver time to compile. */
template <class C, int RULE> DEVICE void optimizer_piece(const dsi_cuda_optimizer &P)
{
    SHARED(Step, s, [1]);
    dsi_cuda_span x = P.x[span_of_block(P)];
    if (RULE == K_ADAGRAD) x.m = NULL;
    if (RULE == K_SGD || RULE == K_LION) x.v = NULL;
    if (RULE != K_ADAM && RULE != K_RMSPROP) x.vmax = NULL;
    if ((sizeof(C) == 8) != (x.dtype == K_F64) || skips(P)) return;
    if (threadIdx.x == 0) s[0] = step_of<RULE>(P, x);
    __syncthreads();
    long long begin = (blockIdx.x - x.first) * P.piece, end = min(begin + P.piece, x.n);
    if (sizeof(C) == 4 && has_quads(x)) {
        long long quads = begin + (end - begin) / 4 * 4;
        for (long long i = begin + threadIdx.x * 4; i < quads; i += blockDim.x * 4)
            optimizer_quad<RULE>(P, s[0], x, i);
        begin = quads;
    }
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        C p = read_value<C>(x, i), g = (C)s[0].scale * load<C>(x.g, x.g_dtype, i);
        Moments<C> e = read_moments<C>(x, i);
        p = new_value<C, RULE>(P, s[0], p, g, e);
        write_moments(x, i, e);
        write_value(x, i, p);
    }
}
#define OPTIMIZER(name, RULE) \
    KERNEL(name##_f32, dsi_cuda_optimizer, 256) { optimizer_piece<float, RULE>(P); } \
    KERNEL(name##_f64, dsi_cuda_optimizer, 256) { optimizer_piece<double, RULE>(P); }
OPTIMIZER(sgd, K_SGD)
OPTIMIZER(adam, K_ADAM)
OPTIMIZER(adagrad, K_ADAGRAD)
OPTIMIZER(rmsprop, K_RMSPROP)
OPTIMIZER(adadelta, K_ADADELTA)
OPTIMIZER(lion, K_LION)

DEVICE double block_sum(double v, double *part)
{
    int i = threadIdx.x;
    part[i] = v;
    __syncthreads();
    for (int half = blockDim.x / 2; half; half /= 2) { /* 256 threads */
        if (i < half) part[i] += part[i + half];
        __syncthreads();
    }
    v = part[0];
    __syncthreads();
    return v;
}

/* LAMB's first pass: moments, and the sums of p^2 and u^2 of each piece. */
template <class C> DEVICE void lamb_moments(const dsi_cuda_optimizer &P)
{
    SHARED(double, part, [256]);
    const dsi_cuda_span &x = P.x[span_of_block(P)];
    if ((sizeof(C) == 8) != (x.dtype == K_F64) || skips(P)) return;
    Step s = step_of<K_LAMB>(P, x);
    long long begin = (blockIdx.x - x.first) * P.piece, end = min(begin + P.piece, x.n);
    double p2 = 0, u2 = 0;
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        C p = read_value<C>(x, i), g = (C)s.scale * load<C>(x.g, x.g_dtype, i);
        Moments<C> e = read_moments<C>(x, i);
        e.m = fused((C)s.b1, e.m, (C)(1 - s.b1) * g);
        e.v = fused((C)P.b2, e.v, (C)(1 - P.b2) * g * g);
        write_moments(x, i, e);
        double u = (double)lamb_u(P, p, e);
        p2 += (double)p * (double)p, u2 += u * u;
    }
    p2 = block_sum(p2, part);
    u2 = block_sum(u2, part);
    if (threadIdx.x == 0) P.sums[2 * blockIdx.x] = p2, P.sums[2 * blockIdx.x + 1] = u2;
}
KERNEL(lamb_moments_f32, dsi_cuda_optimizer, 256) { lamb_moments<float>(P); }
KERNEL(lamb_moments_f64, dsi_cuda_optimizer, 256) { lamb_moments<double>(P); }

/* A block a span: its rate, which is lr, corrected, times |p| / |u| within
 * bounds. */
KERNEL(lamb_rates, dsi_cuda_optimizer, 256)
{
    SHARED(double, part, [256]);
    const dsi_cuda_span &x = P.x[blockIdx.x];
    long long pieces = (x.n + P.piece - 1) / P.piece;
    double p2 = 0, u2 = 0;
    if (skips(P)) return;
    for (long long i = threadIdx.x; i < pieces; i += blockDim.x)
        p2 += P.sums[2 * (x.first + i)], u2 += P.sums[2 * (x.first + i) + 1];
    p2 = block_sum(p2, part);
    u2 = block_sum(u2, part);
    if (threadIdx.x != 0) return;
    Step s = step_of<K_LAMB>(P, x);
    double ratio = 1;
    if (p2 > 0 && u2 > 0) {
        ratio = sqrt(p2) / sqrt(u2);
        ratio = ratio > P.most ? P.most : ratio < P.least ? P.least : ratio;
    }
    P.rates[blockIdx.x] = s.lr * sqrt(s.sum_v) / s.sum_m * ratio;
}

template <class C> DEVICE void lamb_apply(const dsi_cuda_optimizer &P)
{
    int k = span_of_block(P);
    const dsi_cuda_span &x = P.x[k];
    if ((sizeof(C) == 8) != (x.dtype == K_F64) || skips(P)) return;
    long long begin = (blockIdx.x - x.first) * P.piece, end = min(begin + P.piece, x.n);
    for (long long i = begin + threadIdx.x; i < end; i += blockDim.x) {
        C p = read_value<C>(x, i);
        write_value(x, i, fused(-(C)P.rates[k], lamb_u(P, p, read_moments<C>(x, i)), p));
    }
}
KERNEL(lamb_apply_f32, dsi_cuda_optimizer, 256) { lamb_apply<float>(P); }
KERNEL(lamb_apply_f64, dsi_cuda_optimizer, 256) { lamb_apply<double>(P); }

/* ---- what a step does ---- */

/* One thread. Products and sums are rounded one by one, as on the host. */
KERNEL(step_result, dsi_cuda_step_result, 32)
{
    dsi_cuda_result r;
    if (threadIdx.x != 0) return;
    r.loss = P.loss ? load<double>(P.loss, P.loss_dtype, 0) : NAN;
    r.g_factor = *P.unscale;
    r.norm = P.norm ? __dmul_rn(*P.norm, r.g_factor) : NAN;
    double clip = __ddiv_rn(P.max_norm, __dadd_rn(r.norm, 1e-6));
    if (P.max_norm > 0 && !(clip >= 1)) r.g_factor = __dmul_rn(r.g_factor, clip);
    r.fault = (double)P.fault->op;
    r.skip = P.fault->op || (P.finite_loss && !isfinite(r.loss)) ||
             (P.finite_norm && !isfinite(r.norm));
    *P.result = r;
}

/* One thread, rounded as on the host. */
KERNEL(loss_scale, dsi_cuda_loss_scale, 32)
{
    if (threadIdx.x != 0) return;
    dsi_cuda_scale x = *P.x;
    bool skipped = x.skips != 0, grows = !skipped && x.good + 1 >= P.interval;
    P.x->skips = 0;
    if (P.fault->op) return;
    double factor = skipped ? P.backoff : grows ? P.growth : 1;
    double next = (double)(float)__dmul_rn(x.scale, factor);
    if (next > 0 && next <= 3.4028234663852886e38) x.scale = next; /* FLT_MAX */
    P.x->scale = x.scale;
    P.x->inverse = (double)(float)__ddiv_rn(1, x.scale);
    P.x->good = skipped || grows ? 0 : x.good + 1;
}
