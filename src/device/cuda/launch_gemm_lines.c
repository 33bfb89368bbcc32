/* device/cuda/launch_gemm_lines.c: products of matrices whose lines are
 * aligned: in 16 bits by tensor cores (gemm_wgmma.cu on GPUs of compute
 * capability 9.0, gemm_mma.cu on others from 8.0 on), large ones in float32 by
 * gemm_lines.cu.
 *
 * The kernels take lines along one dimension of each operand, 16-byte aligned.
 * Of a large product an operand with other lines, such as rows of 50257
 * elements, is copied to aligned ones first. The letters in a kernel's name say
 * of a and of b whether lines are along k ("n" for a, "t" for b) or across.
 *
 * Tiles that are too few to fill a GPU have their sum over k cut into parts,
 * which a second kernel adds in order. How many is chosen by the time that each
 * number of parts would take on a GPU of a known size; it depends on the shape
 * and the family of kernels alone.
 *
 * Invariants: tiles and stages here equal those of the .cu files. A grid counts
 * tiles along x, batches (or parts of k) along z.
 * SPDX-License-Identifier: MIT */
#include "launch.h"
#include "launch_gemm.h"
#include "operands.h"

#include <math.h>
#include <stdio.h>

#define ROWS       128  /* of a tile */
#define PARTS_TIME 4.0  /* microseconds for the second kernel */
#define MB_TIME    0.45 /* and for each MB of parts */
#define MOST_PARTS 16
#define PART_K     128                 /* at least, of a part */
#define LEAST      16                  /* rows and columns that are worth tensor cores */
#define LEAST_F32  65                  /* and tiles of float32 */
#define LARGE      ((double)(1 << 24)) /* multiplications: worth copies, and gemm_lines.cu */

/* Times in microseconds, as measured on an H100 or H200. */
typedef struct Kernel {
    dsi_cuda_family family;
    int64_t columns;          /* of a tile */
    const char *prefix;       /* then two letters and the dtype */
    int64_t depth;            /* of a stage */
    unsigned threads, shared; /* shared: bytes of dynamic memory */
    double slots;             /* blocks that a large GPU runs at a time */
    double step_time;         /* of a stage */
    double block_time;        /* of a block beside its stages */
    double alone;             /* factor of the time, if there are half as many blocks */
} Kernel;

#define N_KERNELS 6
static const Kernel kernels[N_KERNELS] = {
    {DSI_CUDA_gemm_lines, 128, "matmul_lines_", 16, 256, 0, 132, 1.3, 0, 1},
    {DSI_CUDA_gemm_mma, 128, "matmul_128_", 32, 128, 65536, 264, 0.7, 0, 0.6},
    {DSI_CUDA_gemm_mma, 256, "matmul_256_", 32, 256, 98304, 132, 0.6, 0, 1},
    {DSI_CUDA_gemm_wgmma, 128, "matmul_group_128_", 32, 128, 99328, 264, 0.5, 4.5, 0.7},
    {DSI_CUDA_gemm_wgmma, 192, "matmul_group_192_", 32, 128, 103424, 264, 0.6, 5.3, 0.7},
    {DSI_CUDA_gemm_wgmma, 256, "matmul_group_256_", 64, 256, 197632, 132, 0.76, 3.6, 1},
};

/* A kernel, and how many parts the sum over k has. */
typedef struct Choice {
    const Kernel *kernel;
    int64_t parts;
    double time;
} Choice;

/* Tiles of a row and a column of them. */
static int64_t tiles_of(const dsi_cuda_matmul_args *p, const Kernel *kernel)
{
    return (p->m + ROWS - 1) / ROWS * ((p->n + kernel->columns - 1) / kernel->columns);
}

/* Elements of 16 bytes. */
static int64_t vector_of(int dtype) { return 16 / (int64_t)ds_dtype_size((ds_dtype)dtype); }

/* Lines along one of the dimensions 1 and 2, 16-byte aligned: which; 0:
 * neither. */
static int aligned_lines(const dsi_view *v)
{
    int64_t n = vector_of((int)v->dtype);
    if ((uintptr_t)v->p % 16 || (v->d[0] > 1 && v->s[0] % n)) return 0;
    for (int i = 2; i >= 1; i--)
        if (v->s[i] == 1 && v->s[3 - i] % n == 0 && v->s[3 - i] > 0) return i;
    return 0;
}

bool dsi_cuda_matmul_lines_takes(const dsi_stream *s, const dsi_view *a, const dsi_view *b)
{
    const dsi_cuda_gpu *g = s->device->own;
    bool half = a->dtype == DS_F16 || a->dtype == DS_BF16;
    int64_t m = a->d[1], n = b->d[2], k = a->d[2], least = half ? LEAST : LEAST_F32;
    bool large = (double)a->d[0] * (double)m * (double)n * (double)k >= LARGE;
    bool fits = m < INT32_MAX && n < INT32_MAX && k < INT32_MAX && m >= least && n >= least;
    if (!fits || !(half ? g->capability >= 80 : a->dtype == DS_F32 && large)) return false;
    return large || (aligned_lines(a) && aligned_lines(b));
}

/* v itself, or a copy of it with aligned lines, in *scratch of *bytes. */
static ds_status lines_align(dsi_stream *s, dsi_view *v, void **scratch, size_t *bytes)
{
    int line = v->s[1] == 1 ? 1 : 2;
    *scratch = NULL;
    if (aligned_lines(v)) return DS_OK;
    int64_t unit = vector_of((int)v->dtype), step = (v->d[line] + unit - 1) / unit * unit;
    bool one = v->d[0] > 1 && !v->s[0]; /* a broadcast batch */
    dsi_view from = *v, to = *v;
    from.d[0] = to.d[0] = one ? 1 : v->d[0];
    to.s[line] = 1, to.s[3 - line] = step, to.s[0] = step * v->d[3 - line];
    *bytes = (size_t)(to.d[0] * to.s[0]) * ds_dtype_size(v->dtype);
    if (!(*scratch = to.p = dsi_cuda_scratch(s, *bytes))) return DS_ENOMEM;
    v->p = to.p;
    for (int i = 0; i < 3; i++) v->s[i] = to.s[i];
    if (one) v->s[0] = 0;
    return dsi_cuda_copy(s, from, to);
}

/* In microseconds: a GPU's slots are filled again and again; the blocks of the
 * last time have more of the GPU each, if they are few. */
static double time_of(const dsi_cuda_matmul_args *p, const Kernel *kernel, int64_t parts)
{
    double blocks = (double)(tiles_of(p, kernel) * parts * p->batch),
           rounds = floor(blocks / kernel->slots), rest = blocks - rounds * kernel->slots;
    double steps = (double)((p->k + parts * kernel->depth - 1) / (parts * kernel->depth));
    if (rest > 0) rounds += rest <= kernel->slots / 2 ? kernel->alone : 1;
    double time = rounds * (steps * kernel->step_time + kernel->block_time);
    double mb = (double)p->m * (double)p->n * (double)parts * 4e-6;
    return time + (parts > 1 ? PARTS_TIME + mb * MB_TIME : 0);
}

/* The family of kernels for p's dtype. */
static dsi_cuda_family family_of(const dsi_stream *s, const dsi_cuda_matmul_args *p)
{
    const dsi_cuda_gpu *g = s->device->own;
    if (p->dtype == DS_F32) return DSI_CUDA_gemm_lines;
    return g->warpgroups ? DSI_CUDA_gemm_wgmma : DSI_CUDA_gemm_mma;
}

static Choice choose(const dsi_stream *s, const dsi_cuda_matmul_args *p)
{
    Choice best = {.kernel = NULL};
    dsi_cuda_family family = family_of(s, p);
    for (int k = 0; k < N_KERNELS; k++) {
        if (kernels[k].family != family) continue;
        for (int64_t i = 1; i <= MOST_PARTS && (i == 1 || (p->batch == 1 && i * PART_K <= p->k));
             i++) {
            double time = time_of(p, &kernels[k], i);
            if (!best.kernel || time < best.time) best = (Choice){&kernels[k], i, time};
        }
    }
    return best;
}

/* Whether rows of y are aligned vectors of 16 bytes. */
static bool has_vectors(const dsi_cuda_matmul_args *p)
{
    int64_t n = vector_of(p->y_dtype);
    return p->ys[2] == 1 && (uintptr_t)p->y % 16 == 0 && p->ys[1] % n == 0 &&
           (p->batch == 1 || p->ys[0] % n == 0);
}

static ds_status lines_launch(dsi_stream *s, const Kernel *kernel, const char *letters,
                              dsi_cuda_matmul_args *p)
{
    dsi_cuda_grid grid = dsi_cuda_blocks(tiles_of(p, kernel), kernel->threads);
    const char *suffix = p->dtype == DS_F32 ? "" : dsi_cuda_dtype_suffix((ds_dtype)p->dtype);
    char name[32];
    snprintf(name, sizeof name, "%s%s", kernel->prefix, letters);
    grid.blocks[2] = dsi_cuda_loops(p->batch);
    grid.shared = kernel->shared;
    p->vectors = has_vectors(p) && (p->dtype != DS_F32 || p->y_dtype == DS_F32);
    return dsi_cuda_launch(s, kernel->family, name, suffix, grid, p);
}

/* p's product, with the sum over k in parts. */
static ds_status launch_parts(dsi_stream *s, Choice c, const char *letters,
                              const dsi_cuda_matmul_args *p)
{
    int64_t unit = c.parts * c.kernel->depth, row = (p->n + 3) / 4 * 4,
            each = (p->k + unit - 1) / unit * c.kernel->depth;
    dsi_cuda_matmul_args part = *p, sum = *p;
    part.batch = (p->k + each - 1) / each;
    part.k = each, part.last_k = p->k - (part.batch - 1) * each;
    part.as[0] = each * p->as[2], part.bs[0] = each * p->bs[1];
    part.bias = NULL, part.y_dtype = DS_F32;
    part.ys[0] = p->m * row, part.ys[1] = row, part.ys[2] = 1;
    size_t bytes = (size_t)(part.batch * part.ys[0]) * sizeof(float);
    if (!(part.y = dsi_cuda_scratch(s, bytes))) return DS_ENOMEM;
    ds_status status = lines_launch(s, c.kernel, letters, &part);
    sum.a = part.y, sum.batch = part.batch, sum.vectors = has_vectors(p);
    for (int i = 0; i < 3; i++) sum.as[i] = part.ys[i];
    if (status == DS_OK)
        status = dsi_cuda_launch(s, DSI_CUDA_gemm_lines, "matmul_parts", "",
                                 dsi_cuda_grid_of(p->m * row / 4), &sum);
    dsi_cuda_scratch_free(s, part.y, bytes);
    return status;
}

ds_status dsi_cuda_matmul_lines(dsi_stream *s, dsi_view a, dsi_view b,
                                const dsi_cuda_matmul_args *all)
{
    dsi_cuda_matmul_args p = *all;
    void *copy_a, *copy_b = NULL;
    size_t bytes_a = 0, bytes_b = 0;
    ds_status status = lines_align(s, &a, &copy_a, &bytes_a);
    if (status == DS_OK) status = lines_align(s, &b, &copy_b, &bytes_b);
    p.a = a.p, p.b = b.p, p.last_k = p.k;
    for (int i = 0; i < 3; i++) p.as[i] = a.s[i], p.bs[i] = b.s[i];
    const char letters[] = {aligned_lines(&a) == 2 ? 'n' : 't', aligned_lines(&b) == 1 ? 't' : 'n',
                            0};
    Choice c = choose(s, &p);
    if (status == DS_OK)
        status = c.parts > 1 ? launch_parts(s, c, letters, &p)
                             : lines_launch(s, c.kernel, letters, &p);
    dsi_cuda_scratch_free(s, copy_a, bytes_a);
    dsi_cuda_scratch_free(s, copy_b, bytes_b);
    return status;
}
