/* device/cuda/launch_gemm_mma.c: products of 16-bit matrices by the kernels of
 * gemm_mma.cu: tensor cores, from compute capability 8.0 on.
 *
 * The kernels take lines along one dimension of each operand, 16-byte aligned.
 * Of a large product an operand with other lines, such as rows of 50257
 * elements, is copied to aligned ones first. The letters in a name of
 * gemm_mma.cu say of a and of b whether lines are along k ("n" for a, "t" for b)
 * or across.
 *
 * Tiles that are too few to fill a GPU have their sum over k cut into parts,
 * which a second kernel adds in order. How many is chosen by the time that each
 * number of parts would take on a GPU of SLOTS blocks; it depends on the shape
 * alone.
 *
 * Invariants: tile and stages here equal those of gemm_mma.cu. A grid counts
 * tiles along x, batches (or parts of k) along z.
 * SPDX-License-Identifier: MIT */
#include "launch.h"
#include "launch_gemm.h"
#include "operands.h"

#define TILE       128
#define DEPTH      32
#define SHARED     65536 /* bytes: four stages */
#define SLOTS      264.0 /* blocks that a large GPU runs at a time */
#define STEP_TIME  0.6   /* microseconds that a block takes for DEPTH of k */
#define PARTS_TIME 4.0   /* for the second kernel, and for each MB of parts */
#define MB_TIME    0.6
#define MOST_PARTS 16
#define LEAST      16 /* rows and columns of a tile that are worth tensor cores */
#define MOST_Z     65535
#define COPY_LEAST ((double)(1 << 24)) /* multiplications that are worth aligned copies */

static int64_t tiles(int64_t n) { return (n + TILE - 1) / TILE; }

/* Lines of 16-bit elements along one of the dimensions 1 and 2, 16-byte
 * aligned: which; 0: neither. */
static int aligned_lines(const dsi_view *v)
{
    if ((uintptr_t)v->p % 16 || (v->d[0] > 1 && v->s[0] % 8)) return 0;
    for (int i = 2; i >= 1; i--)
        if (v->s[i] == 1 && v->s[3 - i] % 8 == 0 && v->s[3 - i] > 0) return i;
    return 0;
}

bool dsi_cuda_matmul_mma_takes(const dsi_stream *s, const dsi_view *a, const dsi_view *b)
{
    const dsi_cuda_gpu *g = s->device->own;
    bool half = a->dtype == DS_F16 || a->dtype == DS_BF16;
    bool fits = a->d[1] < INT32_MAX && b->d[2] < INT32_MAX && a->d[2] < INT32_MAX;
    if (!half || g->capability < 80 || !fits || a->d[1] < LEAST || b->d[2] < LEAST) return false;
    if (aligned_lines(a) && aligned_lines(b)) return true;
    return (double)a->d[0] * (double)a->d[1] * (double)a->d[2] * (double)b->d[2] >= COPY_LEAST;
}

/* v itself, or a copy of it with aligned lines, in *scratch of *bytes. */
static ds_status lines_align(dsi_stream *s, dsi_view *v, void **scratch, size_t *bytes)
{
    int line = v->s[1] == 1 ? 1 : 2;
    *scratch = NULL;
    if (aligned_lines(v)) return DS_OK;
    int64_t step = (v->d[line] + 7) / 8 * 8;
    bool one = v->d[0] > 1 && !v->s[0]; /* a broadcast batch */
    dsi_view from = *v, to = *v;
    from.d[0] = to.d[0] = one ? 1 : v->d[0];
    to.s[line] = 1, to.s[3 - line] = step, to.s[0] = step * v->d[3 - line];
    *bytes = (size_t)(to.d[0] * to.s[0]) * 2;
    if (!(*scratch = to.p = dsi_cuda_scratch(s, *bytes))) return DS_ENOMEM;
    v->p = to.p;
    for (int i = 0; i < 3; i++) v->s[i] = to.s[i];
    if (one) v->s[0] = 0;
    return dsi_cuda_copy(s, from, to);
}

/* In microseconds, for the sum over k in so many parts. */
static double parts_time(const dsi_cuda_matmul_args *p, int64_t parts)
{
    double blocks = (double)(tiles(p->m) * tiles(p->n) * parts), waves = blocks / SLOTS;
    double steps = (double)((p->k + parts * DEPTH - 1) / (parts * DEPTH));
    int64_t whole = (int64_t)waves + ((double)(int64_t)waves < waves);
    /* a block that is alone on its part of a GPU takes half of the time */
    double time = (double)whole * steps * STEP_TIME * (blocks <= SLOTS / 2 ? 0.5 : 1);
    double mb = (double)p->m * (double)p->n * (double)parts * 4e-6;
    return time + (parts > 1 ? PARTS_TIME + mb * MB_TIME : 0);
}

static int64_t choose_parts(const dsi_cuda_matmul_args *p)
{
    int64_t best = 1;
    if (p->batch != 1) return 1;
    for (int64_t i = 2; i <= MOST_PARTS && i * 4 * DEPTH <= p->k; i++)
        if (parts_time(p, i) < parts_time(p, best)) best = i;
    return best;
}

/* Whether rows of y are aligned vectors of 16 bytes. */
static bool has_vectors(const dsi_cuda_matmul_args *p)
{
    int64_t n = 16 / (int64_t)ds_dtype_size((ds_dtype)p->y_dtype);
    return p->ys[2] == 1 && (uintptr_t)p->y % 16 == 0 && p->ys[1] % n == 0 &&
           (p->batch == 1 || p->ys[0] % n == 0);
}

static ds_status mma_launch(dsi_stream *s, const char *name, const char *suffix,
                            dsi_cuda_matmul_args *p)
{
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles(p->m) * tiles(p->n), 128);
    grid.blocks[2] = (unsigned)(p->batch < MOST_Z ? p->batch : MOST_Z), grid.shared = SHARED;
    p->vectors = has_vectors(p);
    return dsi_cuda_launch(s, DSI_CUDA_gemm_mma, name, suffix, grid, p);
}

/* p's product, with the sum over k in parts. */
static ds_status launch_parts(dsi_stream *s, const char *name, const char *suffix,
                              const dsi_cuda_matmul_args *p, int64_t parts)
{
    int64_t row = (p->n + 3) / 4 * 4, each = (p->k + parts * DEPTH - 1) / (parts * DEPTH) * DEPTH;
    dsi_cuda_matmul_args part = *p, sum = *p;
    part.batch = (p->k + each - 1) / each;
    part.k = each, part.last_k = p->k - (part.batch - 1) * each;
    part.as[0] = each * p->as[2], part.bs[0] = each * p->bs[1];
    part.bias = NULL, part.y_dtype = DS_F32;
    part.ys[0] = p->m * row, part.ys[1] = row, part.ys[2] = 1;
    size_t bytes = (size_t)(part.batch * part.ys[0]) * sizeof(float);
    if (!(part.y = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    ds_status status = mma_launch(s, name, suffix, &part);
    sum.a = part.y, sum.batch = part.batch, sum.vectors = has_vectors(p);
    for (int i = 0; i < 3; i++) sum.as[i] = part.ys[i];
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_gemm_mma, "matmul_parts", "",
                                 dsi_cuda_grid_of(p->m * row / 4), &sum);
    dsi_cuda_scratch_free(s, part.y, bytes);
    return status;
}

ds_status dsi_cuda_matmul_mma(dsi_stream *s, dsi_view a, dsi_view b,
                              const dsi_cuda_matmul_args *all)
{
    static const char *const names[2][2] = {{"matmul_tn", "matmul_tt"}, {"matmul_nn", "matmul_nt"}};
    const char *suffix = a.dtype == DS_F16 ? "_f16" : "_bf16";
    dsi_cuda_matmul_args p = *all;
    void *copy_a, *copy_b = NULL;
    size_t bytes_a = 0, bytes_b = 0;
    ds_status status = lines_align(s, &a, &copy_a, &bytes_a);
    if (status == DS_OK) status = lines_align(s, &b, &copy_b, &bytes_b);
    p.a = a.p, p.b = b.p, p.last_k = p.k;
    for (int i = 0; i < 3; i++) p.as[i] = a.s[i], p.bs[i] = b.s[i];
    const char *name = names[aligned_lines(&a) == 2][aligned_lines(&b) == 1];
    int64_t parts = choose_parts(&p);
    if (status == DS_OK)
        status = parts > 1 ? launch_parts(s, name, suffix, &p, parts)
                           : mma_launch(s, name, suffix, &p);
    dsi_cuda_scratch_free(s, copy_a, bytes_a);
    dsi_cuda_scratch_free(s, copy_b, bytes_b);
    return status;
}
