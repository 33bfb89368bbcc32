/* device/cpu/pool_plain.h: pooling of planes by plain loops, for one element type.
 *
 * Included with REAL = the type and PLAIN(name) = its functions' names. A plane is one channel of one
 * sample; strides in elements.
 * SPDX-License-Identifier: MIT */

/* The first of equal maxima wins, and the last NaN, as in PyTorch. Padding is never chosen. */
static void PLAIN(max_plane)(const Pool *o, const REAL *x, REAL *y, int32_t *index)
{
    const dsi_pool2d *c = o->c;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            int64_t h0 = p * c->stride[0] - c->padding[0], w0 = q * c->stride[1] - c->padding[1];
            int64_t h1 = min64(h0 + (c->kernel[0] - 1) * c->dilation[0] + 1, o->H);
            int64_t w1 = min64(w0 + (c->kernel[1] - 1) * c->dilation[1] + 1, o->W);
            while (h0 < 0) h0 += c->dilation[0];
            while (w0 < 0) w0 += c->dilation[1];
            REAL max = -(REAL)INFINITY;
            int64_t at = h0 * o->W + w0;
            for (int64_t h = h0; h < h1; h += c->dilation[0])
                for (int64_t w = w0; w < w1; w += c->dilation[1]) {
                    REAL v = x[h * o->xh + w * o->xw];
                    if (v > max || v != v) max = v, at = h * o->W + w;
                }
            y[p * o->yh + q * o->yw] = max < 0 && c->relu ? 0 : max;
            index[p * o->ih + q * o->iw] = (int32_t)at;
        }
}

/* dx = 0, then dx[index] += dy: windows may overlap */
static void PLAIN(max_plane_dx)(const Pool *o, const REAL *dy, const int32_t *index, REAL *dx)
{
    bool rows = o->xh != o->W * o->xw; /* else the plane is one line, and no division is needed */
    for (int64_t h = 0; h < o->H; h++)
        for (int64_t w = 0; w < o->W; w++) dx[h * o->xh + w * o->xw] = 0;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            int64_t at = index[p * o->ih + q * o->iw], h = rows ? at / o->W : 0;
            dx[h * o->xh + (at - h * o->W) * o->xw] += dy[p * o->yh + q * o->yw];
        }
}

/* The mean of each window. */
static void PLAIN(mean_plane)(const Pool *o, const REAL *x, REAL *y)
{
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window v = o->window(o, 0, p), h = o->window(o, 1, q);
            REAL sum = 0;
            for (int64_t i = v.begin; i < v.end; i++)
                for (int64_t j = h.begin; j < h.end; j++) sum += x[i * o->xh + j * o->xw];
            y[p * o->yh + q * o->yw] = sum / (REAL)divisor(o, v, h);
        }
}

static void PLAIN(mean_plane_dx)(const Pool *o, const REAL *dy, REAL *dx)
{
    for (int64_t h = 0; h < o->H; h++)
        for (int64_t w = 0; w < o->W; w++) dx[h * o->xh + w * o->xw] = 0;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window v = o->window(o, 0, p), h = o->window(o, 1, q);
            REAL g = dy[p * o->yh + q * o->yw] / (REAL)divisor(o, v, h);
            for (int64_t i = v.begin; i < v.end; i++)
                for (int64_t j = h.begin; j < h.end; j++) dx[i * o->xh + j * o->xw] += g;
        }
}
