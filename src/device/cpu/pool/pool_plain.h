/* device/cpu/pool/pool_plain.h: pooling of planes by plain loops, for one
 * element type. Included with REAL = the type and PLAIN(name) = its functions'
 * names. A plane is one channel of one sample; strides are in elements. p, q
 * count windows; h, w rows and columns of x.
 * SPDX-License-Identifier: MIT */

/* The maxima so far of n windows, and their places, with one element of each,
 * `step` apart in x; across: columns from window to window. */
ALWAYS_INLINE void PLAIN(max_step)(int64_t n, const REAL *x, int64_t step, int32_t place,
                                   int32_t across, REAL *restrict max, int32_t *restrict at)
{
    for (int64_t i = 0; i < n; i++) {
        REAL v = x[i * step];
        bool more = (v > max[i]) | (v != v) | (at[i] < 0);
        at[i] = more ? place + (int32_t)i * across : at[i];
        max[i] = more ? v : max[i];
    }
}

/* Columns w .. w + n - 1 of a row as even and odd ones. */
static void PLAIN(columns_apart)(const REAL *row, int64_t w, int64_t n, REAL *even, REAL *odd)
{
    for (int64_t i = 0; i < n / 2; i++) even[i] = row[w + 2 * i], odd[i] = row[w + 2 * i + 1];
    if (n % 2) even[n / 2] = row[w + n - 1];
}

/* max_run of a row of x with stride 2 and contiguous columns: with even and odd columns
 * apart, elements of neighbouring windows are neighbours. */
static void PLAIN(max_halves)(const Pool *o, int64_t h, int64_t q, int64_t n, const REAL *row,
                              REAL *max, int32_t *at)
{
    const dsi_pool2d *c = o->c;
    REAL half[2][MAX_RUN + MAX_SPAN];
    int64_t begin = 2 * q - c->padding[1], reach = (c->kernel[1] - 1) * c->dilation[1];
    int64_t least = dsi_max(begin, 0), last = dsi_min(begin + 2 * (n - 1) + reach + 1, o->W);
    PLAIN(columns_apart)(row, least, last - least, half[0], half[1]);
    for (int64_t k = 0; k < c->kernel[1]; k++) {
        int64_t w = begin + k * c->dilation[1], first, end = run_inside(o->W, w, 2, n, &first);
        if (first >= end) continue;
        w += 2 * first;
        PLAIN(max_step)
        (end - first, half[(w - least) % 2] + (w - least) / 2, 1, (int32_t)(h * o->W + w), 2,
         max + first, at + first);
    }
}

/* Windows q .. q + n - 1 of the row of windows `down`, element by element of a
 * window; n is at most MAX_RUN. at[i] < 0: all elements of a window are padding. */
static void PLAIN(max_run)(const Pool *o, Window down, int64_t q, int64_t n, const REAL *x,
                           REAL *max, int32_t *at)
{
    const dsi_pool2d *c = o->c;
    int64_t stride = c->stride[1], step = stride * o->xw;
    for (int64_t i = 0; i < n; i++) max[i] = -(REAL)INFINITY, at[i] = -1;
    bool halves = step == 2 && o->xw == 1 && (c->kernel[1] - 1) * c->dilation[1] < MAX_SPAN;
    for (int64_t h = down.begin; h < down.end; h += c->dilation[0])
        for (int64_t k = 0; k < c->kernel[1]; k++) {
            if (halves) {
                PLAIN(max_halves)(o, h, q, n, x + h * o->xh, max, at);
                break;
            }
            int64_t w = q * stride - c->padding[1] + k * c->dilation[1]; /* of the first window */
            int64_t first, end = run_inside(o->W, w, stride, n, &first);
            if (first >= end) continue;
            w += first * stride;
            const REAL *from = x + h * o->xh + w * o->xw;
            int32_t place = (int32_t)(h * o->W + w), across = (int32_t)stride;
            if (step == 1)
                PLAIN(max_step)(end - first, from, 1, place, across, max + first, at + first);
            else
                PLAIN(max_step)(end - first, from, step, place, across, max + first, at + first);
        }
}

/* The first of equal maxima wins, and the last NaN, as in PyTorch. Padding is
 * never chosen. */
static void PLAIN(max_plane)(const Pool *o, const REAL *x, REAL *y, int32_t *index)
{
    REAL values[MAX_RUN];
    int32_t places[MAX_RUN];
    bool dense = o->yw == 1 && o->iw == 1; /* else the maxima are found beside y */
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q += MAX_RUN) {
            int64_t n = dsi_min(MAX_RUN, o->Q - q);
            Window down = window_max(o, 0, p);
            REAL *to = y + p * o->yh + q * o->yw, *max = dense ? to : values;
            int32_t *place = index + p * o->ih + q * o->iw, *at = dense ? place : places, all = 0;
            PLAIN(max_run)(o, down, q, n, x, max, at);
            for (int64_t i = 0; i < n; i++) all |= at[i];
            for (int64_t i = 0; i < n && all < 0; i++) /* PyTorch's place, which may be outside */
                if (at[i] < 0) at[i] = (int32_t)(down.begin * o->W + window_max(o, 1, q + i).begin);
            for (int64_t i = 0; i < n && o->relu; i++) max[i] = max[i] < 0 ? 0 : max[i];
            for (int64_t i = 0; i < n && !dense; i++)
                to[i * o->yw] = max[i], place[i * o->iw] = at[i];
        }
}

/* Updates the maxima of C channels, and their places, with one pixel. */
static void PLAIN(max_line_of)(int64_t C, const REAL *restrict x, int32_t place, REAL *restrict max,
                               int32_t *restrict at)
{
    for (int64_t c = 0; c < C; c++) {
        bool more = (x[c] > max[c]) | (x[c] != x[c]);
        at[c] = more ? place : at[c];
        max[c] = more ? x[c] : max[c];
    }
}

/* All channels of a sample; they are neighbours in x, y and index. y holds the
 * maxima while the window's pixels are compared. */
static void PLAIN(max_pixels)(const Pool *o, const REAL *x, REAL *y, int32_t *index)
{
    const dsi_pool2d *c = o->c;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window down = window_max(o, 0, p), across = window_max(o, 1, q);
            REAL *max = y + p * o->yh + q * o->yw;
            int32_t *at = index + p * o->ih + q * o->iw;
            for (int64_t k = 0; k < o->C; k++)
                max[k] = -(REAL)INFINITY, at[k] = (int32_t)(down.begin * o->W + across.begin);
            for (int64_t h = down.begin; h < down.end; h += c->dilation[0])
                for (int64_t w = across.begin; w < across.end; w += c->dilation[1])
                    PLAIN(max_line_of)
            (o->C, x + h * o->xh + w * o->xw, (int32_t)(h * o->W + w), max, at);
            for (int64_t k = 0; k < o->C && o->relu; k++) max[k] = max[k] < 0 ? 0 : max[k];
        }
}

/* The same of the gradient; x has no gaps between rows. */
static void PLAIN(max_pixels_dx)(const Pool *o, const REAL *dy, const int32_t *index, REAL *dx)
{
    for (int64_t i = 0; i < o->H * o->W; i++)
        for (int64_t c = 0; c < o->C; c++) dx[i * o->xw + c] = 0;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            const int32_t *at = index + p * o->ih + q * o->iw;
            const REAL *g = dy + p * o->yh + q * o->yw;
            for (int64_t c = 0; c < o->C; c++)
                if (at[c] < o->H * o->W) dx[at[c] * o->xw + c] += g[c];
        }
}

/* dx = 0, then dx[index] += dy: windows may overlap. The index of a window that
 * has no element of x may be outside. */
static void PLAIN(max_plane_dx)(const Pool *o, const REAL *dy, const int32_t *index, REAL *dx)
{
    bool rows = o->xh != o->W * o->xw; /* else the plane is one line, and no division is needed */
    for (int64_t h = 0; h < o->H; h++)
        for (int64_t w = 0; w < o->W; w++) dx[h * o->xh + w * o->xw] = 0;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            int64_t at = index[p * o->ih + q * o->iw], h = rows ? at / o->W : 0;
            if (at >= o->H * o->W) continue;
            dx[h * o->xh + (at - h * o->W) * o->xw] += dy[p * o->yh + q * o->yw];
        }
}

/* The sum of n elements, `step` apart; contiguous ones by vectors. */
static inline REAL PLAIN(sum_run)(const REAL *x, int64_t n, int64_t step)
{
    if (step == 1 && n >= 64) return (REAL)PLAIN(sum_line)(n, x);
    if (step == 1 && n >= 8) return PLAIN(sum_short)(n, x);
    REAL sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i * step];
    return sum;
}

static inline void PLAIN(fill_run)(REAL *x, int64_t n, REAL value)
{
    for (int64_t i = 0; i < n; i++) x[i] = value;
}

/* A plane with contiguous columns whose windows are pairs of columns: column 2
 * q and 2 q + 1 belong to window q, so a loop over q is vectorised. */
static void PLAIN(mean_pairs)(const Pool *o, const REAL *x, REAL *y)
{
    for (int64_t p = 0; p < o->P; p++) {
        Window v = o->rows[p];
        REAL *restrict to = y + p * o->yh, factor = 1 / (REAL)divisor(o, v, o->columns[0]);
        for (int64_t q = 0; q < o->Q; q++) to[q] = 0;
        for (int64_t i = v.begin; i < v.end; i++) {
            const REAL *row = x + i * o->xh;
            for (int64_t q = 0; q < o->Q; q++) to[q] += row[2 * q] + row[2 * q + 1];
        }
        for (int64_t q = 0; q < o->Q; q++) to[q] *= factor;
    }
}

static void PLAIN(mean_pairs_dx)(const Pool *o, const REAL *dy, REAL *dx)
{
    for (int64_t p = 0; p < o->P; p++) {
        Window v = o->rows[p];
        const REAL *g = dy + p * o->yh, factor = 1 / (REAL)divisor(o, v, o->columns[0]);
        for (int64_t i = v.begin; i < v.end; i++) {
            REAL *restrict row = dx + i * o->xh;
            for (int64_t q = 0; q < o->Q; q++) {
                REAL each = g[q] * factor;
                row[2 * q] += each, row[2 * q + 1] += each;
            }
        }
    }
}

/* sum[i] += column w + i stride of the row x, for those of n that are inside. */
ALWAYS_INLINE void PLAIN(mean_step)(const Pool *o, int64_t n, const REAL *x, int64_t w,
                                    int64_t stride, REAL *restrict sum)
{
    int64_t first, end = run_inside(o->W, w, stride, n, &first), step = stride * o->xw;
    const REAL *from = x + w * o->xw;
    if (step == 1)
        for (int64_t i = first; i < end; i++) sum[i] += from[i];
    else if (step == 2)
        for (int64_t i = first; i < end; i++) sum[i] += from[2 * i];
    else
        for (int64_t i = first; i < end; i++) sum[i] += from[i * step];
}

/* The means of windows of few columns, MAX_RUN of a row together: column by column of
 * a window's row, then row by row, as sum_run adds them. */
static void PLAIN(mean_narrow)(const Pool *o, const REAL *x, REAL *y)
{
    int64_t stride = o->c->stride[1];
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q += MAX_RUN) {
            int64_t n = dsi_min(MAX_RUN, o->Q - q), w = q * stride - o->c->padding[1];
            Window v = o->rows[p];
            REAL sum[MAX_RUN], *to = y + p * o->yh + q * o->yw;
            for (int64_t i = 0; i < n; i++) sum[i] = 0;
            for (int64_t h = v.begin; h < v.end; h++) {
                REAL row[MAX_RUN];
                for (int64_t i = 0; i < n; i++) row[i] = 0;
                for (int64_t k = 0; k < o->c->kernel[1]; k++)
                    PLAIN(mean_step)(o, n, x + h * o->xh, w + k, stride, row);
                for (int64_t i = 0; i < n; i++) sum[i] += row[i];
            }
            for (int64_t i = 0; i < n; i++)
                to[i * o->yw] = sum[i] / (REAL)divisor(o, v, o->columns[q + i]);
        }
}

/* The mean of each window. */
static void PLAIN(mean_plane)(const Pool *o, const REAL *x, REAL *y)
{
    if (o->pairs) {
        PLAIN(mean_pairs)(o, x, y);
        return;
    }
    bool gaps = o->xh != o->W * o->xw; /* between rows; else whole rows of a window are one run */
    bool whole_rows = !gaps && o->Q == 1 && o->columns[0].end - o->columns[0].begin == o->W;
    if (o->c && o->c->kernel[1] < 8 && !whole_rows) {
        PLAIN(mean_narrow)(o, x, y);
        return;
    }
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window v = o->rows[p], h = o->columns[q];
            int64_t rows = v.end - v.begin, width = h.end - h.begin;
            if (!gaps && width == o->W) width *= rows, rows = rows > 0;
            const REAL *from = x + v.begin * o->xh + h.begin * o->xw;
            REAL sum = 0;
            for (int64_t i = 0; i < rows; i++)
                sum += PLAIN(sum_run)(from + i * o->xh, width, o->xw);
            y[p * o->yh + q * o->yw] = sum / (REAL)divisor(o, v, h);
        }
}

static void PLAIN(mean_plane_dx)(const Pool *o, const REAL *dy, REAL *dx)
{
    for (int64_t h = 0; h < o->H; h++)
        for (int64_t w = 0; w < o->W; w++) dx[h * o->xh + w * o->xw] = 0;
    if (o->pairs) {
        PLAIN(mean_pairs_dx)(o, dy, dx);
        return;
    }
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window v = o->rows[p], h = o->columns[q];
            REAL g = dy[p * o->yh + q * o->yw] / (REAL)divisor(o, v, h);
            for (int64_t i = v.begin; i < v.end; i++)
                for (int64_t j = h.begin; j < h.end; j++) dx[i * o->xh + j * o->xw] += g;
        }
}

/* All channels of a sample, if they are neighbours: loops over channels are
 * vectorised. */
static void PLAIN(mean_pixels)(const Pool *o, const REAL *x, REAL *y)
{
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window v = o->rows[p], h = o->columns[q];
            REAL *restrict to = y + p * o->yh + q * o->yw, factor = 1 / (REAL)divisor(o, v, h);
            for (int64_t c = 0; c < o->C; c++) to[c] = 0;
            for (int64_t i = v.begin; i < v.end; i++)
                for (int64_t j = h.begin; j < h.end; j++) {
                    const REAL *from = x + i * o->xh + j * o->xw;
                    for (int64_t c = 0; c < o->C; c++) to[c] += from[c];
                }
            for (int64_t c = 0; c < o->C; c++) to[c] *= factor;
        }
}

static void PLAIN(mean_pixels_dx)(const Pool *o, const REAL *dy, REAL *dx)
{
    for (int64_t h = 0; h < o->H; h++)
        for (int64_t w = 0; w < o->W; w++)
            for (int64_t c = 0; c < o->C; c++) dx[h * o->xh + w * o->xw + c] = 0;
    for (int64_t p = 0; p < o->P; p++)
        for (int64_t q = 0; q < o->Q; q++) {
            Window v = o->rows[p], h = o->columns[q];
            const REAL *g = dy + p * o->yh + q * o->yw, factor = 1 / (REAL)divisor(o, v, h);
            for (int64_t i = v.begin; i < v.end; i++)
                for (int64_t j = h.begin; j < h.end; j++) {
                    REAL *restrict to = dx + i * o->xh + j * o->xw;
                    for (int64_t c = 0; c < o->C; c++) to[c] += g[c] * factor;
                }
        }
}

/* ---- parts of a parallel loop: samples begin .. end-1 where channels are neighbours, else planes ---------------- */

static void PLAIN(maxima)(void *arg, int64_t begin, int64_t end)
{
    const Pool *o = arg;
    for (int64_t i = begin, n = begin * o->C; i < end; i++, n += o->C) {
        if (max_by_pixels(o))
            PLAIN(max_pixels)(o, X(o, REAL, n), Y(o, REAL, n), I(o, n));
        else
            PLAIN(max_plane)(o, X(o, REAL, i), Y(o, REAL, i), I(o, i));
    }
}

static void PLAIN(maxima_dx)(void *arg, int64_t begin, int64_t end)
{
    const Pool *o = arg;
    for (int64_t i = begin, n = begin * o->C; i < end; i++, n += o->C) {
        if (max_by_pixels(o))
            PLAIN(max_pixels_dx)(o, Y(o, REAL, n), I(o, n), X(o, REAL, n));
        else
            PLAIN(max_plane_dx)(o, Y(o, REAL, i), I(o, i), X(o, REAL, i));
    }
}

static void PLAIN(means)(void *arg, int64_t begin, int64_t end)
{
    const Pool *o = arg;
    for (int64_t i = begin, n = begin * o->C; i < end; i++, n += o->C) {
        if (o->whole)
            *Y(o, REAL, i) = PLAIN(sum_run)(X(o, REAL, i), o->H * o->W, 1) / (REAL)(o->H * o->W);
        else if (by_pixels(o))
            PLAIN(mean_pixels)(o, X(o, REAL, n), Y(o, REAL, n));
        else
            PLAIN(mean_plane)(o, X(o, REAL, i), Y(o, REAL, i));
    }
}

static void PLAIN(means_dx)(void *arg, int64_t begin, int64_t end)
{
    const Pool *o = arg;
    for (int64_t i = begin, n = begin * o->C; i < end; i++, n += o->C) {
        if (o->whole)
            PLAIN(fill_run)(X(o, REAL, i), o->H * o->W, *Y(o, REAL, i) / (REAL)(o->H * o->W));
        else if (by_pixels(o))
            PLAIN(mean_pixels_dx)(o, Y(o, REAL, n), X(o, REAL, n));
        else
            PLAIN(mean_plane_dx)(o, Y(o, REAL, i), X(o, REAL, i));
    }
}
