/* device/cuda/kernels/conv_step.cu: the last two kernels of a small network's
 * training step as one: the backward of the first convolution, whose input has
 * no gradient, and SGD.
 *
 * The thread that has a whole sum of dw or db stores it, and updates that
 * parameter; it asks for parameter, momentum and the step's scalars before the
 * sum. Blocks after those of the sums update parameters whose gradients other
 * kernels have made. No block reads memory that another one writes.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"

#include "team.cuh"

#include "conv_back.cuh"
#include "conv_step.h"
#include "sgd.cuh"

/* An element of dw or db, and of its parameter, if that is stepped. Nothing
 * waits for what is read before the sum. */
struct dw_stepped {
    const dsi_cuda_conv_step &P;
    long long at, fault;
    double skip;
    StepRead read;
    float p, m;
    DEVICE_MEMBER void before(unsigned k, int column)
    {
        const dsi_cuda_step_span &x = P.own[column == P.dw.taps];
        at = column == P.dw.taps ? k * P.dw.db_s : dw_place(P.dw, k, (unsigned)column);
        if (!x.p) return;
        fault = P.fault->op, skip = P.skip ? *P.skip : 0, read = step_read(P);
        p = x.p[at], m = x.m ? x.m[at] : 0;
    }
    DEVICE_MEMBER void after(const dsi_cuda_conv_args &, unsigned, int column, float g)
    {
        const dsi_cuda_step_span &x = P.own[column == P.dw.taps];
        ((float *)(column == P.dw.taps ? P.dw.db : P.dw.out))[at] = g;
        if (!x.p || fault || skip != 0) return;
        Step s = step_begun(P, x, read);
        Moments<float> e = {m, 0, 0};
        x.p[at] = sgd(P, s, p, (float)s.scale * g, e);
        if (x.m) x.m[at] = flushed(e.m);
    }
};

/* A piece of a span: the loads of LOADS elements are in flight at once. */
DEVICE void step_piece(const dsi_cuda_conv_step &P, int block)
{
    const int LOADS = K_STEP_PIECE / BACK_THREADS;
    int k = 0;
    while (k + 1 < P.n && block >= P.x[k + 1].first) k++;
    const dsi_cuda_step_span &x = P.x[k];
    if (skips(P)) return;
    Step s = step_begun(P, x, step_read(P));
    int begin = (block - x.first) * K_STEP_PIECE + (int)threadIdx.x;
    float p[LOADS], g[LOADS], m[LOADS];
UNROLL
    for (int u = 0; u < LOADS; u++) {
        int i = begin + u * BACK_THREADS;
        bool in = i < x.n;
        p[u] = in ? x.p[i] : 0, g[u] = in ? x.g[i] : 0, m[u] = in && x.m ? x.m[i] : 0;
    }
UNROLL
    for (int u = 0; u < LOADS; u++) {
        int i = begin + u * BACK_THREADS;
        Moments<float> e = {m[u], 0, 0};
        if (i >= x.n) continue;
        x.p[i] = sgd(P, s, p[u], (float)s.scale * g[u], e);
        if (x.m) x.m[i] = flushed(e.m);
    }
}

KERNEL(conv2d_dw_sgd_f32, dsi_cuda_conv_step, BACK_THREADS)
{
    DYNAMIC_SHARED(held_window, memory);
    if (blockIdx.x < P.dw_blocks)
        dw_pooled(P, memory, blockIdx.x, dw_stepped{P, 0, 0, 0, {}, 0, 0});
    else
        step_piece(P, (int)(blockIdx.x - P.dw_blocks));
}
