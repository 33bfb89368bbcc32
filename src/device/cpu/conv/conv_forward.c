/* device/cpu/conv/conv_forward.c: y and dx of a convolution, both as
 * correlations of planes.
 *
 * A correlation reads a source of planes in which the inputs of neighbouring
 * outputs are neighbours:
 *
 *     y[k][p][q] = bias[k] + sum over taps t of source[tap[t] + p xrow + q] w[t][k]
 *
 * A tap is an offset, so one loop serves kernels, dilations and channels of any
 * size. The source is x itself if x has no padding and suitable strides.
 * Otherwise it is a copy of one sample with zeros around it. A horizontal
 * stride becomes unit steps: columns are divided into `stride` phases
 * (pack_planes).
 *
 * dx is a correlation of dy with the kernel turned by 180 degrees. With stride
 * a x b, dx consists of a x b interleaved images. Each uses only some of the
 * kernel's taps, and reads dy with unit steps.
 *
 * Loop order: samples and blocks of rows (divided among threads), groups,
 * blocks of output channels, rows, tiles. So a packed sample is read from a
 * near cache by all blocks of channels, and a block's weights [T][channels] by
 * all rows.
 * SPDX-License-Identifier: MIT */
#include "conv.h"
#include "conv_tile.h"

typedef struct {
    /* outputs: K channels of each group, P x Q pixels of each sample */
    int64_t N, groups, K, P, Q;
    float *y;
    int64_t yn, yk, yp, yq;

    /* source: x itself, or one packed sample of it */
    dsi_view x;
    bool packed;
    Rect rect; /* of x, that the taps reach */
    int64_t phases;
    /* elements from plane to plane, row to row, output row to row, group to
     * group */
    int64_t plane, pitch, xrow, xgroup;

    /* taps: offset in the source, and in w; [T] each */
    int64_t T;
    int64_t run; /* taps that are neighbours in a row of the source */
    int64_t *tap, *wtap;
    const float *weights, *bias; /* bias may be NULL */
    int64_t wk, wgroup, bk;      /* from output channel to channel, from group to group */

    /* packed weights: for each group, blocks of channels [T][channels of the
     * block]; and bias [groups][padded_k] */
    bool by_pixel;    /* pixel tiles, not channel tiles */
    int64_t padded_k; /* K, rounded up to the channels of whole tiles */
    float *w, *b;
    float *sources; /* packed samples, one for each slot */
    int64_t source_size, row_blocks;
    Cut cut;
} Job;

/* Output channels of the block that begins at k: two vectors or one for channel
 * tiles; at most MAX_CHANNELS, in nearly equal blocks, for pixel tiles. */
static int64_t block_of(const Job *o, int64_t k)
{
    if (!o->by_pixel) return o->K - k > VF ? 2 * VF : VF;
    int64_t blocks = (o->K + MAX_CHANNELS - 1) / MAX_CHANNELS;
    int64_t even = o->K / blocks, larger = o->K % blocks; /* the first ones have one more */
    return k < larger * (even + 1) ? even + 1 : even;
}

/* Packs weights and bias in the order in which tiles read them. */
static void forward_pack_weights(const Job *o)
{
    for (int64_t g = 0; g < o->groups; g++) {
        float *b = o->b + g * o->padded_k, *to = o->w + g * o->padded_k * o->T;
        for (int64_t k = 0; k < o->padded_k; k++)
            b[k] = o->bias && k < o->K ? o->bias[(g * o->K + k) * o->bk] : 0;
        for (int64_t k = 0, n; k < o->K; k += n) {
            n = block_of(o, k);
            int64_t valid = dsi_min(n, o->K - k);
            const float *from = o->weights + g * o->wgroup + k * o->wk;
            for (int64_t t = 0; t < o->T; t++, to += n) {
                const float *wt = from + o->wtap[t];
                int64_t i = 0;
                for (; i + VF <= valid; i += VF)
                    UNROLL for (int j = 0; j < VF; j++) to[i + j] = wt[(i + j) * o->wk];
                for (; i < valid; i++) to[i] = wt[i * o->wk];
                for (; i < n; i++) to[i] = 0;
            }
        }
    }
}

/* ---- one block of channels over rows p0 .. p1-1 -------------------------------------------------------- */

static void channel_rows(const Job *o, const Taps *taps, int64_t n, int64_t k, const float *x,
                         float *y, int64_t p0, int64_t p1)
{
    float tile[2 * MAX_PIXELS * VF];
    int vectors = (int)(n / VF), rows = vectors == 1 ? 2 : 1;
    bool direct = o->yk == 1 && k + n <= o->K;
    int64_t parts = (o->Q + MAX_PIXELS - 1) / MAX_PIXELS;
    for (int64_t p = p0; p < p1; p += rows) {
        /* the last of an odd number of rows is computed twice, or with the one
         * before it */
        bool single = rows == 2 && p1 - p0 == 1;
        int64_t at = rows == 2 && !single ? dsi_min(p, p1 - 2) : p;
        int64_t xrow = single ? 0 : o->xrow, yp = single ? 0 : o->yp;
        for (int64_t part = 0, q = 0, m; part < parts; part++, q += m) {
            m = o->Q / parts + (part < o->Q % parts);
            const float *from = x + at * o->xrow + q;
            float *to = y + at * o->yp + q * o->yq;
            ChannelTile *run = choose_channel_tile(m, vectors, o->run);
            if (direct) {
                run(taps, from, xrow, to, yp, o->yq);
                continue;
            }
            run(taps, from, xrow, tile, m * n, n);
            int64_t valid = dsi_min(n, o->K - k);
            for (int r = 0; r < rows; r++)
                for (int64_t i = 0; i < valid; i++)
                    for (int64_t j = 0; j < m; j++)
                        to[r * yp + i * o->yk + j * o->yq] = tile[(r * m + j) * n + i];
        }
    }
}

/* True if rows leave half a vector at their end. Then the ends of two rows
 * share a vector (row_ends), and no lane is wasted. */
static bool ends_in_half(const Job *o) { return o->yq == 1 && o->Q % VF == VF / 2; }

static void row_ends(const Job *o, const Taps *taps, int64_t n, const float *x, float *y,
                     int64_t p0, int64_t p1)
{
    const float *from[2 * MAX_VECTORS];
    float *to[2 * MAX_VECTORS];
    int64_t q = o->Q - VF / 2;
    for (int64_t p = p0; p < p1;) {
        int vectors = p1 - p >= 2 * MAX_VECTORS ? MAX_VECTORS : 1;
        for (int i = 0; i < 2 * vectors; i++, p++) {
            int64_t row = dsi_min(p, p1 - 1); /* the last of an odd number is computed twice */
            from[i] = x + row * o->xrow + q;
            to[i] = y + row * o->yp + q;
        }
        pixel_tiles[n - 1][1][vectors > 1](taps, from, to, o->yk);
    }
}

static void pixel_rows(const Job *o, const Taps *taps, int64_t n, const float *x, float *y,
                       int64_t p0, int64_t p1)
{
    float tile[MAX_VECTORS * MAX_CHANNELS * VF];
    const float *from[MAX_VECTORS];
    float *to[MAX_VECTORS], *out[MAX_VECTORS];
    bool half = ends_in_half(o), direct = half || (o->yq == 1 && o->Q >= VF);
    int64_t each = half ? o->Q / VF : (o->Q + VF - 1) / VF, left = (p1 - p0) * each, p = p0, i = 0;
    int lanes = (int)dsi_min(VF, o->Q);
    if (half) row_ends(o, taps, n, x, y, p0, p1);
    while (left > 0) {
        int vectors = left >= MAX_VECTORS ? MAX_VECTORS : 1;
        for (int v = 0; v < vectors; v++) {
            /* the last may overlap the one before */
            int64_t q = dsi_max(0, dsi_min(i * VF, o->Q - VF));
            from[v] = x + p * o->xrow + q;
            out[v] = y + p * o->yp + q * o->yq;
            to[v] = direct ? out[v] : tile + v * n * VF;
            if (++i == each) i = 0, p++;
        }
        pixel_tiles[n - 1][0][vectors > 1](taps, from, to, direct ? o->yk : VF);
        for (int v = 0; v < vectors && !direct; v++)
            for (int64_t m = 0; m < n; m++)
                for (int j = 0; j < lanes; j++)
                    out[v][m * o->yk + j * o->yq] = tile[(v * n + m) * VF + j];
        left -= vectors;
    }
}

/* Rows p0 .. p1-1 of sample n. */
static void sample_rows(const Job *o, int64_t n, const float *x, int64_t p0, int64_t p1)
{
    for (int64_t g = 0; g < o->groups; g++) {
        const float *w = o->w + g * o->padded_k * o->T, *b = o->b + g * o->padded_k;
        for (int64_t k = 0, m; k < o->K; k += m) {
            m = block_of(o, k);
            Taps taps = {o->T, o->tap, w, b + k};
            float *y = o->y + n * o->yn + (g * o->K + k) * o->yk;
            if (o->by_pixel)
                pixel_rows(o, &taps, m, x + g * o->xgroup, y, p0, p1);
            else
                channel_rows(o, &taps, m, k, x + g * o->xgroup, y, p0, p1);
            w += m * o->T;
        }
    }
}

/* Quanta begin .. end-1 of all (sample, block of rows) units, samples slowest.
 * A sample is packed once for the units of this call. */
static void forward_run_share(void *arg, int64_t begin, int64_t end)
{
    Job *o = arg;
    int64_t units = o->N * o->row_blocks, packed_n = -1;
    int slot = slot_take(&o->cut.taken);
    float *source = o->sources + slot * o->source_size;
    for (int64_t u = begin * units / o->cut.quanta; u < end * units / o->cut.quanta; u++) {
        int64_t n = u / o->row_blocks, block = u % o->row_blocks;
        const float *x = (const float *)o->x.p + n * o->x.s[0];
        if (o->packed) {
            if (n != packed_n) pack_planes(&o->x, n, o->rect, o->phases, source, o->plane);
            packed_n = n;
            x = source;
        }
        sample_rows(o, n, x, block * o->P / o->row_blocks, (block + 1) * o->P / o->row_blocks);
    }
    slot_release(&o->cut.taken, slot);
}

/* ---- preparing a job -------------------------------------------------------------------------------------- */

/* Chooses pixel tiles or channel tiles: those that compute fewer lanes, of
 * which some are padding. The factors were measured. */
static bool prefer_pixels(const Job *o)
{
    double by_pixel = (double)o->K * (double)(ends_in_half(o) ? o->Q : dsi_round_up(o->Q, VF));
    double by_channel = (double)dsi_round_up(o->K, VF) * (double)o->Q;
    if (o->K < 4) by_pixel *= 1.5;   /* too few independent sums */
    if (o->yq != 1) by_pixel *= 1.1; /* results are copied once more */
    if (o->yk != 1) by_channel *= 1.1;
    return by_pixel <= by_channel;
}

/* Takes x itself as the source if the taps stay inside it, its columns are
 * neighbours, and its planes do not fall into the same sets of the cache. */
static void choose_source(Job *o)
{
    Rect r = o->rect;
    bool same = r.row0 >= 0 && r.col0 >= 0 && r.row0 + r.rows <= o->x.d[2] &&
                r.col0 + r.cols <= o->x.d[3];
    /* planes a multiple of 4 KB apart fall into the same sets of the first
     * cache */
    bool aliased = o->x.d[1] > 8 && o->x.s[1] % 1024 == 0;
    o->packed = !same || o->phases != 1 || o->x.s[3] != 1 || aliased || (o->by_pixel && o->Q < VF);
    o->pitch = o->packed ? planes_pitch(r, o->phases) : o->x.s[2];
    o->plane = o->packed ? r.rows * o->pitch : o->x.s[1];
    if (o->packed && o->plane % 1024 == 0) o->plane += 16;
    o->source_size = o->packed ? dsi_round_up(o->x.d[1] * o->plane + VF, 16) : 0;
}

/* Rows are divided where samples are too few. */
static void forward_divide(Job *o)
{
    double ns = (double)o->T * (double)(o->groups * o->padded_k) * (double)(o->P * o->Q) *
                (double)o->N / VF;
    cut_work(&o->cut, ns / 4);
    int64_t threads = o->cut.slots;
    o->row_blocks = threads == 1 || o->N >= 4 * threads
                        ? 1
                        : dsi_min(o->P, 4 * threads / dsi_max(1, o->N) + 1);
}

static ds_status tiles_run(dsi_stream *s, Job *o)
{
    forward_divide(o);
    int64_t floats = o->groups * o->padded_k * (o->T + 1) + o->cut.slots * o->source_size;
    o->w = dsi_scratch(s, (size_t)floats * sizeof(float));
    if (!o->w) return DS_ENOMEM;
    o->sources = o->w + o->groups * o->padded_k * o->T;
    o->b = o->sources + o->cut.slots * o->source_size;
    forward_pack_weights(o);
    dsi_parallel(o->cut.quanta, 1, forward_run_share, o);
    dsi_scratch_release(s, o->w);
    return DS_OK;
}

static void round_channels(Job *o)
{
    o->by_pixel = prefer_pixels(o);
    o->padded_k = o->by_pixel ? o->K : dsi_round_up(o->K, VF);
}

ds_status conv_forward(dsi_stream *s, const dsi_conv2d *c, dsi_view x, dsi_view w, dsi_view b,
                       dsi_view y)
{
    int64_t C = w.d[1], R = w.d[2], S = w.d[3];
    Job o = {.N = y.d[0],
             .groups = c->groups,
             .K = y.d[1] / c->groups,
             .P = y.d[2],
             .Q = y.d[3],
             .y = y.p,
             .yn = y.s[0],
             .yk = y.s[1],
             .yp = y.s[2],
             .yq = y.s[3],
             .x = x,
             .phases = c->stride[1],
             .T = C * R * S,
             .weights = w.p,
             .wk = w.s[0],
             .bias = b.p,
             .bk = b.p ? b.s[0] : 0};
    o.wgroup = o.K * w.s[0];
    o.rect = (Rect){-c->padding[0], (o.P - 1) * c->stride[0] + (R - 1) * c->dilation[0] + 1,
                    -c->padding[1], (o.Q - 1) * c->stride[1] + (S - 1) * c->dilation[1] + 1};
    round_channels(&o);
    choose_source(&o);
    o.xrow = c->stride[0] * o.pitch;
    o.xgroup = C * o.plane;
    o.tap = dsi_scratch(s, (size_t)(2 * o.T) * sizeof *o.tap);
    if (!o.tap) return DS_ENOMEM;
    o.wtap = o.tap + o.T;
    int64_t each = o.pitch / o.phases, t = 0; /* columns of a phase */
    for (int64_t i = 0; i < C; i++)
        for (int64_t r = 0; r < R; r++)
            for (int64_t v = 0; v < S; v++, t++) {
                int64_t col = v * c->dilation[1];
                o.tap[t] = i * o.plane + r * c->dilation[0] * o.pitch + col % o.phases * each +
                           col / o.phases;
                if (!o.packed) o.tap[t] += o.rect.row0 * o.pitch + o.rect.col0;
                o.wtap[t] = i * w.s[1] + r * w.s[2] + v * w.s[3];
            }
    o.run = c->dilation[1] == 1 && o.phases == 1 ? S : 1;
    ds_status status = tiles_run(s, &o);
    dsi_scratch_release(s, o.tap);
    return status;
}

/* ---- dx ------------------------------------------------------------------------------------------------------ */

/* The convolution along one axis, rows or columns. */
typedef struct {
    int64_t stride, padding, dilation, taps;
} Axis;

/* dx at i stride + a gets dy at i + *at by tap r. False if no output uses tap r
 * for phase a, because the stride does not divide the distance. */
static bool tap_at(Axis x, int64_t a, int64_t r, int64_t *at)
{
    int64_t d = a + x.padding - r * x.dilation;
    if (d % x.stride) return false;
    *at = d / x.stride;
    return true;
}

/* The least and the greatest position in dy, relative to i, of the taps of
 * phase a. */
static void forward_reach(Axis x, int64_t a, int64_t *low, int64_t *high)
{
    int64_t at;
    *low = INT64_MAX, *high = INT64_MIN;
    for (int64_t r = 0; r < x.taps; r++)
        if (tap_at(x, a, r, &at)) *low = dsi_min(*low, at), *high = dsi_max(*high, at);
    if (*low > *high) *low = *high = 0;
}

/* The image of dx at rows a, a + stride, ... and columns b, b + stride, ... */
static ds_status dx_image(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx,
                          int64_t a, int64_t b)
{
    Axis v = {c->stride[0], c->padding[0], c->dilation[0], w.d[2]};
    Axis h = {c->stride[1], c->padding[1], c->dilation[1], w.d[3]};
    int64_t K = w.d[0] / c->groups, low[2], high[2], row, col;
    Job o = {.N = dx.d[0],
             .groups = c->groups,
             .K = w.d[1],
             .P = (dx.d[2] - a + v.stride - 1) / v.stride,
             .Q = (dx.d[3] - b + h.stride - 1) / h.stride,
             .y = (float *)dx.p + a * dx.s[2] + b * dx.s[3],
             .yn = dx.s[0],
             .yk = dx.s[1],
             .yp = dx.s[2] * v.stride,
             .yq = dx.s[3] * h.stride,
             .x = dy,
             .phases = 1,
             .weights = w.p,
             .wk = w.s[1],
             .wgroup = K * w.s[0]};
    if (o.P <= 0 || o.Q <= 0) return DS_OK;
    forward_reach(v, a, &low[0], &high[0]);
    forward_reach(h, b, &low[1], &high[1]);
    o.rect = (Rect){low[0], o.P + high[0] - low[0], low[1], o.Q + high[1] - low[1]};
    round_channels(&o);
    choose_source(&o);
    o.xrow = o.pitch;
    o.xgroup = K * o.plane;
    o.tap = dsi_scratch(s, (size_t)(2 * K * v.taps * h.taps) * sizeof *o.tap);
    if (!o.tap) return DS_ENOMEM;
    o.wtap = o.tap + K * v.taps * h.taps;
    int64_t origin = o.packed ? -(low[0] * o.pitch + low[1]) : 0;
    for (int64_t k = 0; k < K; k++)
        for (int64_t i = 0; i < v.taps; i++)
            for (int64_t j = h.taps - 1; j >= 0; j--) { /* from left to right in dy */
                if (!tap_at(v, a, i, &row) || !tap_at(h, b, j, &col)) continue;
                o.tap[o.T] = origin + k * o.plane + row * o.pitch + col;
                o.wtap[o.T++] = k * w.s[0] + i * w.s[2] + j * w.s[3];
            }
    o.run = h.stride == 1 && h.dilation == 1 ? h.taps : 1;
    ds_status status = tiles_run(s, &o);
    dsi_scratch_release(s, o.tap);
    return status;
}

ds_status conv_dx(dsi_stream *s, const dsi_conv2d *c, dsi_view dy, dsi_view w, dsi_view dx)
{
    for (int64_t a = 0; a < c->stride[0]; a++)
        for (int64_t b = 0; b < c->stride[1]; b++) {
            ds_status status = dx_image(s, c, dy, w, dx, a, b);
            if (status != DS_OK) return status;
        }
    return DS_OK;
}
