/* device/cpu/simd/strided.c: iterates over several views of one shape, line by
 * line.
 *
 * Invariants: in a plan, dimension n - 1 is the line (inner); strides are in
 * bytes. If all inner strides are one element, `line` gets pointers into the
 * tensors; otherwise pieces of it pass through a buffer on the
 * stack. Threads divide lines, or blocks of one long line; as an element
 * depends on nothing but its operands, no result depends on the division.
 * SPDX-License-Identifier: MIT */
#include "strided.h"

#include "base/int.h"
#include "device/cpu/cpu.h"

#include <string.h>

/* Bytes of a line that are staged at a time: the buffers of all views have 10
 * KB and stay in the first cache. */
#define STAGE 2048
/* Elements by which a single long line is divided among threads. */
#define BLOCK 4096
/* Elements of a piece of a long line, and the bytes from it to what is fetched
 * meanwhile: the processor itself stops at each page, and a loop that computes
 * much waits there. */
#define PIECE 256
#define AHEAD 2048

/* True if outer dimension `o` continues inner dimension `i` in every view. */
static bool runs_on(const strided *w, int o, int i)
{
    for (int v = 0; v < w->n_views; v++)
        if (w->s[v][o] != w->s[v][i] * w->d[i]) return false;
    return true;
}

void strided_plan(strided *w, int n_views, const dsi_view *const *views)
{
    const dsi_view *y = views[n_views - 1];
    int order[DS_MAX_DIMS], n = 0;
    bool empty = false;

    /* insertion sort by the output's strides, largest first; equal ones stay in
     * order */
    for (int i = 0; i < y->n; i++) {
        if (y->d[i] == 1) continue;
        if (y->d[i] == 0) empty = true;
        int at = n++;
        for (; at > 0 && y->s[order[at - 1]] < y->s[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    if (empty) n = 0; /* no element; in bytes, its strides may overflow an int64 */
    w->n_views = n_views;
    for (int v = 0; v < n_views; v++) {
        w->p[v] = views[v]->p;
        w->size[v] = (int64_t)ds_dtype_size(views[v]->dtype);
    }

    /* from the inner dimension outwards, into the ends of the arrays; a
     * dimension that continues the previous one is joined with it */
    int first = DS_MAX_DIMS;
    for (int i = n - 1; i >= 0; i--) {
        first--;
        w->d[first] = y->d[order[i]];
        for (int v = 0; v < n_views; v++) w->s[v][first] = views[v]->s[order[i]] * w->size[v];
        if (first < DS_MAX_DIMS - 1 && runs_on(w, first, first + 1)) {
            w->d[first + 1] *= w->d[first];
            first++;
        }
    }
    w->n = DS_MAX_DIMS - first;
    for (int i = 0; i < w->n && first > 0; i++) {
        w->d[i] = w->d[first + i];
        for (int v = 0; v < n_views; v++) w->s[v][i] = w->s[v][first + i];
    }
    if (w->n == 0) { /* one element, or none */
        w->n = 1;
        w->d[0] = !empty;
        for (int v = 0; v < n_views; v++) w->s[v][0] = w->size[v];
    }
}

#define GATHER(bytes, type) \
    case bytes: \
        if (stride == 0) { /* one value repeated: a loop of stores that is vectorised */ \
            const type value = *(const type *)from; \
            for (int64_t i = 0; i < n; i++) ((type *)to)[i] = value; \
        } else if (stride == -(bytes)) { /* backwards: shuffled vectors */ \
            const type *last = (const type *)from; \
            for (int64_t i = 0; i < n; i++) ((type *)to)[i] = last[-i]; \
        } else { \
            for (int64_t i = 0; i < n; i++) ((type *)to)[i] = *(const type *)(from + i * stride); \
        } \
        break
/* to[i] = element i of a line with a stride of `stride` bytes; `size` bytes
 * each. */
static void stage_gather(int64_t size, int64_t n, void *to, const char *from, int64_t stride)
{
    switch (size) {
        GATHER(1, uint8_t);
        GATHER(2, uint16_t);
        GATHER(4, uint32_t);
        GATHER(8, uint64_t);
    }
}

#define SCATTER(bytes, type) \
    case bytes: \
        for (int64_t i = 0; i < n; i++) *(type *)(to + i * stride) = ((const type *)from)[i]; \
        break
/* The reverse of stage_gather. */
static void stage_scatter(int64_t size, int64_t n, char *to, const void *from, int64_t stride)
{
    switch (size) {
        SCATTER(1, uint8_t);
        SCATTER(2, uint16_t);
        SCATTER(4, uint32_t);
        SCATTER(8, uint64_t);
    }
}

/* One line of n elements at p, if some view is not dense: copies pieces of such
 * operands into buffers, calls `line`, and copies the result back. A
 * buffer of a broadcast operand (stride 0) is filled once. */
static void run_staged(const strided *w, strided_line *line, const void *arg, int64_t n,
                       char *const *p)
{
    uint64_t stage[STRIDED_VIEWS][STAGE / sizeof(uint64_t)];
    int inner = w->n - 1, out = w->n_views - 1;
    int64_t size = 1; /* of the largest element that is staged */
    for (int v = 0; v <= out; v++)
        if (w->s[v][inner] != w->size[v]) size = dsi_max(size, w->size[v]);

    for (int64_t i = 0; i < n; i += STAGE / size) {
        int64_t m = dsi_min(n - i, STAGE / size);
        void *at[STRIDED_VIEWS];
        for (int v = 0; v <= out; v++) {
            int64_t stride = w->s[v][inner];
            char *first = p[v] + i * stride;
            at[v] = stride == w->size[v] ? (void *)first : stage[v];
            bool filled = v == out || (stride == 0 && i > 0);
            if (at[v] != first && !filled) stage_gather(w->size[v], m, stage[v], first, stride);
        }
        line(arg, m, at);
        if (at[out] == stage[out])
            stage_scatter(w->size[out], m, p[out] + i * w->s[out][inner], stage[out],
                          w->s[out][inner]);
    }
}

typedef struct {
    const strided *w;
    strided_line *line;
    const void *arg;
    bool dense; /* all inner strides are one element */
    bool large; /* the first caches do not hold all views, so what comes next is fetched */
} run;

/* n elements of dense views, in pieces, while the lines ahead are fetched. */
static void run_pieces(const run *r, int64_t n, char *const *p)
{
    const strided *w = r->w;
    int out = w->n_views - 1;
    for (int64_t i = 0; i < n; i += PIECE) {
        void *at[STRIDED_VIEWS];
        for (int v = 0; v <= out; v++) {
            at[v] = p[v] + i * w->size[v];
            uintptr_t next = (uintptr_t)at[v] + AHEAD;
            if (v < out)
                FETCH(next, PIECE * w->size[v], 0);
            else
                FETCH(next, PIECE * w->size[v], 1);
        }
        r->line(r->arg, dsi_min(n - i, PIECE), at);
    }
}

/* Lines begin .. end-1, counted over the outer dimensions. */
static void run_lines(void *arg, int64_t begin, int64_t end)
{
    const run *r = arg;
    const strided *w = r->w;
    int inner = w->n - 1;
    int64_t at[DS_MAX_DIMS];
    char *p[STRIDED_VIEWS];

    memcpy(p, w->p, sizeof p);
    for (int64_t i = inner - 1, rest = begin; i >= 0; i--) {
        at[i] = rest % w->d[i];
        rest /= w->d[i];
        for (int v = 0; v < w->n_views; v++) p[v] += at[i] * w->s[v][i];
    }
    for (int64_t k = begin; k < end; k++) {
        if (r->dense)
            r->line(r->arg, w->d[inner], (void *const *)p);
        else
            run_staged(w, r->line, r->arg, w->d[inner], p);
        for (int i = inner - 1; i >= 0; i--) { /* the next line, as an odometer */
            for (int v = 0; v < w->n_views; v++) p[v] += w->s[v][i];
            if (++at[i] < w->d[i]) break;
            at[i] = 0;
            for (int v = 0; v < w->n_views; v++) p[v] -= w->d[i] * w->s[v][i];
        }
    }
}

/* Blocks begin .. end-1 of the only line. */
static void run_blocks(void *arg, int64_t begin, int64_t end)
{
    const run *r = arg;
    const strided *w = r->w;
    int64_t first = begin * BLOCK, last = end * BLOCK < w->d[0] ? end * BLOCK : w->d[0];
    char *p[STRIDED_VIEWS] = {NULL};

    for (int v = 0; v < w->n_views; v++) p[v] = w->p[v] + first * w->s[v][0];
    if (r->dense && r->large)
        run_pieces(r, last - first, p);
    else if (r->dense)
        r->line(r->arg, last - first, (void *const *)p);
    else
        run_staged(w, r->line, r->arg, last - first, p);
}

void strided_run(const strided *w, strided_line *line, const void *arg)
{
    int inner = w->n - 1;
    int64_t lines = 1, bytes = 0;
    run r = {w, line, arg, true, false};

    for (int i = 0; i < inner; i++) lines *= w->d[i];
    if (lines == 0 || w->d[inner] == 0) return;
    for (int v = 0; v < w->n_views; v++) {
        r.dense &= w->s[v][inner] == w->size[v];
        bytes += w->d[inner] * w->size[v];
    }
    r.large = w->n_views > 1 && bytes > dsi_cpu_l2_bytes() / 2 && dsi_cpu_should_fetch();

    if (lines * w->d[inner] < 2 * PARALLEL_ELEMENTS) {
        if (inner == 0 && r.dense)
            line(arg, w->d[0], (void *const *)w->p);
        else
            run_lines(&r, 0, lines);
    } else if (inner == 0) {
        dsi_parallel((w->d[0] + BLOCK - 1) / BLOCK, PARALLEL_ELEMENTS / BLOCK + 1, run_blocks, &r);
    } else {
        dsi_parallel(lines, PARALLEL_ELEMENTS / w->d[inner] + 1, run_lines, &r);
    }
}
