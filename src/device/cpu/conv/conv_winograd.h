/* device/cpu/conv/conv_winograd.h: the small transforms of conv_winograd.c,
 * each along rows and along columns:
 *
 *     B^T = | 1  0 -1  0 |    G = |  1    0    0  |    A^T = | 1  1  1  0 |
 *           | 0  1  1  0 |        | 1/2  1/2  1/2 |          | 0  1 -1 -1 |
 *           | 0 -1  1  0 |        | 1/2 -1/2  1/2 |
 *           | 0  1  0 -1 |        |  0    0    1  |
 *
 * Each vector holds one element of VF channels.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "conv.h"

/* d [4][4] -> B^T d B */
ALWAYS_INLINE void to_v(vf d[4][4])
{
    UNROLL for (int way = 0; way < 2; way++) UNROLL for (int i = 0; i < 4; i++)
    {
        vf *a[4];
        UNROLL for (int j = 0; j < 4; j++) a[j] = way ? &d[i][j] : &d[j][i];
        vf d1 = *a[1], d2 = *a[2];
        *a[0] = vf_sub(*a[0], d2);
        *a[3] = vf_sub(d1, *a[3]);
        *a[1] = vf_add(d1, d2);
        *a[2] = vf_sub(d2, d1);
    }
}

/* w [3][3] -> u [4][4] = G w G^T */
ALWAYS_INLINE void to_u(vf w[3][3], vf u[4][4])
{
    const vf half = vf_set(0.5f);
    vf t[4][3];
    UNROLL for (int j = 0; j < 3; j++)
    {
        vf ends = vf_add(w[0][j], w[2][j]);
        t[0][j] = w[0][j], t[3][j] = w[2][j];
        t[1][j] = vf_mul(half, vf_add(ends, w[1][j]));
        t[2][j] = vf_mul(half, vf_sub(ends, w[1][j]));
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        vf ends = vf_add(t[i][0], t[i][2]);
        u[i][0] = t[i][0], u[i][3] = t[i][2];
        u[i][1] = vf_mul(half, vf_add(ends, t[i][1]));
        u[i][2] = vf_mul(half, vf_sub(ends, t[i][1]));
    }
}

/* u [4][4] -> w [3][3] = G^T u G */
ALWAYS_INLINE void from_u(vf u[4][4], vf w[3][3])
{
    const vf half = vf_set(0.5f);
    vf t[3][4];
    UNROLL for (int j = 0; j < 4; j++)
    {
        vf sum = vf_mul(half, vf_add(u[1][j], u[2][j]));
        t[0][j] = vf_add(u[0][j], sum);
        t[1][j] = vf_mul(half, vf_sub(u[1][j], u[2][j]));
        t[2][j] = vf_add(sum, u[3][j]);
    }
    UNROLL for (int i = 0; i < 3; i++)
    {
        vf sum = vf_mul(half, vf_add(t[i][1], t[i][2]));
        w[i][0] = vf_add(t[i][0], sum);
        w[i][1] = vf_mul(half, vf_sub(t[i][1], t[i][2]));
        w[i][2] = vf_add(sum, t[i][3]);
    }
}

/* m [4][4] -> y [2][2] = A^T m A */
ALWAYS_INLINE void from_m(vf m[4][4], vf y[2][2])
{
    vf t[2][4];
    UNROLL for (int j = 0; j < 4; j++)
    {
        t[0][j] = vf_add(vf_add(m[0][j], m[1][j]), m[2][j]);
        t[1][j] = vf_sub(vf_sub(m[1][j], m[2][j]), m[3][j]);
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        y[i][0] = vf_add(vf_add(t[i][0], t[i][1]), t[i][2]);
        y[i][1] = vf_sub(vf_sub(t[i][1], t[i][2]), t[i][3]);
    }
}

/* d [2][4], the two rows of a patch that row i of B^T d is made of -> that row
 * of B^T d B */
ALWAYS_INLINE void to_v_row(int i, vf d[2][4], vf v[4])
{
    vf t[4];
    UNROLL for (int j = 0; j < 4; j++) t[j] = i == 1 ? vf_add(d[0][j], d[1][j])
                                                     : vf_sub(d[0][j], d[1][j]);
    v[0] = vf_sub(t[0], t[2]), v[1] = vf_add(t[1], t[2]);
    v[2] = vf_sub(t[2], t[1]), v[3] = vf_sub(t[1], t[3]);
}

/* y [2][2] -> row i of A y A^T */
ALWAYS_INLINE void to_m_row(int i, vf y[2][2], vf m[4])
{
    vf t[2];
    UNROLL for (int j = 0; j < 2; j++)
    {
        if (i == 1)
            t[j] = vf_add(y[0][j], y[1][j]);
        else if (i == 2)
            t[j] = vf_sub(y[0][j], y[1][j]);
        else
            t[j] = i ? vf_sub(vf_zero(), y[1][j]) : y[0][j];
    }
    m[0] = t[0], m[1] = vf_add(t[0], t[1]);
    m[2] = vf_sub(t[0], t[1]), m[3] = vf_sub(vf_zero(), t[1]);
}
