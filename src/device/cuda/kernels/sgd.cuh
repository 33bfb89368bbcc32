/* device/cuda/kernels/sgd.cuh: what all rules of an optimizer have in common,
 * and SGD: of optimizer.cu, and of conv_step.cu. P: an argument with the
 * members of these names that a dsi_cuda_optimizer has.
 * SPDX-License-Identifier: MIT */
#pragma once

/* Numbers that are the same for all elements of a span in this step. */
struct Step {
    double lr, b1, scale, sum_m, sum_v; /* sums: 1 - beta^step, or 1 */
    double rate, root, shrink;          /* Adam's lr / sum_m, 1 / sqrt(sum_v), 1 - lr decay */
    long long step;
};

/* Nothing is written: the same for all threads. */
template <class Args> DEVICE bool skips(const Args &P)
{
    return P.fault->op || (P.skip && *P.skip != 0);
}

/* Of a step, from device memory. */
struct StepRead {
    dsi_cuda_step scalars;
    double factor;
};
template <class Args> DEVICE StepRead step_read(const Args &P)
{
    StepRead r = {{P.lr, P.b1, 0}, 1};
    if (P.scalars) r.scalars = *P.scalars;
    if (P.g_factor) r.factor = *P.g_factor;
    return r;
}

/* Without what a rule adds to it. */
template <class Args, class Span>
DEVICE Step step_begun(const Args &P, const Span &x, const StepRead &r)
{
    double scale = x.g_scale * r.factor;
    return {r.scalars.lr, P.momentum ? r.scalars.momentum : P.b1,
            P.maximize ? -scale : scale, 1, 1, 0, 0, 1, x.step + r.scalars.steps};
}

/* The moments of an element; those that a rule does not have stay 0. */
template <class C> struct Moments {
    C m, v, vmax;
};

/* A moment without new gradients ends at 0, as on the CPU, where denormals
 * count as 0. */
DEVICE float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? 0 : x; }
DEVICE double flushed(double x) { return fabs(x) < 2.2250738585072014e-308 ? 0 : x; }

/* a b + c, rounded once: said by name, so that each kernel has the same bits. */
DEVICE float fused(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return fma(a, b, c); }

template <class C, class Args>
DEVICE C sgd(const Args &P, const Step &s, C p, C g, Moments<C> &e)
{
    C keep = (C)s.b1;
    g = fused((C)P.decay, p, g);
    if (P.b1 == 0) return fused(-(C)s.lr, g, p);
    e.m = s.step == 1 ? g : fused(keep, e.m, (C)P.take * g);
    return fused(-(C)s.lr, P.nesterov ? fused(keep, e.m, g) : e.m, p);
}
