/* device/cuda/kernels/gemm_wgmma.cu: products of 16-bit matrices on GPUs of
 * compute capability 9.0, by the products of warpgroups that only these have.
 * Operands arrive by cp.async; each of a and b has unit stride along one of its
 * dimensions, and 16-byte aligned lines along it.
 *
 * A block computes a tile of 128 rows and 128, 192 or 256 columns. It has a
 * warpgroup (four warps) or two; a product is 64 rows, all columns, 16 of k.
 * The tensor cores read a stage's operands from shared memory, in lines of 64
 * or 128 bytes whose pieces are XORed by the line's number: [EDGE][DEPTH],
 * lines along k, or [EDGE / 64][DEPTH][64].
 *
 * Where tiles are too few for a GPU, the sum over k is cut as in gemm_mma.cu.
 *
 * Invariants: a step's products run while the next step's barrier is waited
 * for. At a barrier all threads have waited for the products of the step before
 * the last; so its stage is filled again, AHEAD steps ahead. Elements outside
 * of a matrix arrive as zeros.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "gemm_tile.cuh"
#include "ptx.cuh"
#include "ptx_wgmma.cuh"


template <int COLUMNS_, int DEPTH_, int STAGES_, int THREADS_> struct shape {
    enum {
        COLUMNS = COLUMNS_,
        DEPTH = DEPTH_,
        STAGES = STAGES_,
        THREADS = THREADS_,
        AHEAD = STAGES - 2,
        GROUPS = THREADS / 128,       /* warpgroups */
        HIGH = ROWS / 64 / GROUPS,    /* products of a warpgroup, one below the other */
        SLAB = COLUMNS + 8            /* floats of a row of results; no bank conflicts */
    };
};
template <class S> struct alignas(16) wgmma_stage {
    half_bits a[ROWS * S::DEPTH], b[S::COLUMNS * S::DEPTH];
};

/* The pieces of an operand that this thread brings: COUNT a group of 64
 * elements or of all lines, NEXT lines apart. */
template <class S, bool LINES_K, int EDGE> struct wgmma_source {
    enum {
        DEPTH = S::DEPTH,
        LINE = LINES_K ? DEPTH : 64, /* elements */
        NEXT = S::THREADS / (LINE / 8),
        COUNT = (LINES_K ? EDGE : DEPTH) / NEXT,
        PARTS = LINES_K ? 1 : EDGE / 64
    };
    const half_bits *matrix, *p; /* p: of the next stage */
    long long step;              /* elements between lines */
    int place, n, k; /* n: lines, or elements of a line, from the first piece on; k: its k */
    bool inside;     /* the whole tile */

    DEVICE_MEMBER wgmma_source(const half_bits *of, long long s, int i, int size)
    {
        int line = threadIdx.x / (LINE / 8), piece = threadIdx.x % (LINE / 8);
        int moved = piece ^ (LINE == 64 ? line % 8 : line / 2 % 4);
        matrix = of, step = s, place = line * LINE + moved * 8;
        n = size - i - (LINES_K ? line : piece * 8), k = LINES_K ? piece * 8 : line;
        p = matrix + (LINES_K ? (i + line) * s + piece * 8 : line * s + i + piece * 8);
        inside = i + EDGE <= size;
    }
    /* Of the next stage, from which on `depth` of k are left. */
    DEVICE_MEMBER void fill(half_bits *to, int depth)
    {
        const half_bits *at = p;
        to += place;
        if (inside && depth >= DEPTH)
#pragma unroll
            for (int j = 0; j < COUNT; j++, at += NEXT * step)
#pragma unroll
                for (int part = 0; part < PARTS; part++)
                    cp_async16(&to[(part * DEPTH + j * NEXT) * LINE], at + part * 64, 16);
        else
#pragma unroll
            for (int j = 0; j < COUNT; j++, at += NEXT * step)
#pragma unroll
                for (int part = 0; part < PARTS; part++) {
                    int bytes = bytes_of(LINES_K ? depth - k : n - part * 64);
                    if (j * NEXT >= (LINES_K ? n : depth - k)) bytes = 0;
                    cp_async16(&to[(part * DEPTH + j * NEXT) * LINE],
                               bytes ? at + part * 64 : matrix, bytes);
                }
        p += (LINES_K ? 1 : step) * DEPTH;
    }
};

/* The descriptor of an operand from line or element `first` on, a multiple of
 * 64. */
template <class S, bool LINES_K>
DEVICE unsigned long long operand_of(const half_bits *tile, int first)
{
    unsigned address = shared_address(tile) + (unsigned)first * S::DEPTH * 2;
    if (!LINES_K) return wgmma_operand(address, K_LINES_128, S::DEPTH * 128, 1024);
    return wgmma_operand(address, S::DEPTH == 64 ? K_LINES_128 : K_LINES_64, 16, S::DEPTH * 16);
}
/* In units of a descriptor's address: 16 of k further. */
template <bool LINES_K> DEVICE unsigned long long deeper(int k)
{
    return (LINES_K ? 32 : 2048) / 16 * k;
}

template <class S, bool BF16, bool A_K, bool B_K>
DEVICE void wgmma_multiply(float (&acc)[S::HIGH][S::COLUMNS / 8][4], const wgmma_stage<S> &s,
                           int group)
{
    unsigned long long a = operand_of<S, A_K>(s.a, group * S::HIGH * 64),
                       b = operand_of<S, B_K>(s.b, 0);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < S::DEPTH / 16; k++)
#pragma unroll
        for (int i = 0; i < S::HIGH; i++)
            wgmma<BF16, !A_K, !B_K>(acc[i], a + i * (S::DEPTH * 128 / 16) + deeper<A_K>(k),
                                    b + deeper<B_K>(k));
    wgmma_commit();
}

/* Writes a warp's 16 rows of a product, by way of its own shared memory. */
template <class S>
DEVICE void wgmma_write(const dsi_cuda_matmul_args &P, const float (&acc)[S::COLUMNS / 8][4],
                        float *slab, long long batch, long long row, long long column)
{
    int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < S::COLUMNS / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            *(float2 *)&slab[(lane / 4 + e * 8) * S::SLAB + j * 8 + lane % 4 * 2] =
                make_float2(acc[j][e * 2], acc[j][e * 2 + 1]);
    __syncwarp();
#pragma unroll 1
    for (int c = lane % 8 * 8; c < S::COLUMNS; c += 64) {
        long long x = column + c;
        float bias[8] = {};
        if (P.bias)
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (x + e < P.n) bias[e] = load<float>(P.bias, P.bias_dtype, (x + e) * P.bias_s);
#pragma unroll 1
        for (int r = lane / 8; r < 16; r += 4)
            if (row + r < P.m)
                row_write(P, batch * P.ys[0] + (row + r) * P.ys[1], x, &slab[r * S::SLAB + c],
                          bias);
    }
}

/* Blocks of S::THREADS threads: tiles; batches along z. */
template <class S, bool BF16, bool A_K, bool B_K>
DEVICE void matmul_wgmma(const dsi_cuda_matmul_args &P)
{
    typedef wgmma_stage<S> Stage;
    DYNAMIC_SHARED(float4, shared);
    Stage *stage = wgmma_stages<Stage>(shared);
    int warp = __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0), group = warp / 4, row, column;
    tile_of<S::COLUMNS>(P, &row, &column);
#pragma unroll 1
    for (long long z = blockIdx.z; z < P.batch; z += gridDim.z) {
        wgmma_source<S, A_K, ROWS> a((const half_bits *)P.a + z * P.as[0],
                                     A_K ? P.as[1] : P.as[2], row, (int)P.m);
        wgmma_source<S, B_K, S::COLUMNS> b((const half_bits *)P.b + z * P.bs[0],
                                           B_K ? P.bs[2] : P.bs[1], column, (int)P.n);
        int depth = (int)(z == P.batch - 1 ? P.last_k : P.k);
        float acc[S::HIGH][S::COLUMNS / 8][4] = {};
#pragma unroll 1
        for (int i = 0; i < S::AHEAD; i++) {
            if (i * S::DEPTH < depth) {
                a.fill(stage[i].a, depth - i * S::DEPTH);
                b.fill(stage[i].b, depth - i * S::DEPTH);
            }
            cp_async_commit(); /* maybe of nothing: one group a step */
        }
        int now = 0, next = S::AHEAD;
#pragma unroll 1
        for (int k = 0; k < depth; k += S::DEPTH) {
            cp_async_wait(S::AHEAD - 1);
            fence_proxy_async();
            __syncthreads();
            wgmma_multiply<S, BF16, A_K, B_K>(acc, stage[now], group);
            int ahead = k + S::AHEAD * S::DEPTH;
            if (ahead < depth) {
                a.fill(stage[next].a, depth - ahead);
                b.fill(stage[next].b, depth - ahead);
            }
            cp_async_commit();
            wgmma_wait(1);
            now = now + 1 == S::STAGES ? 0 : now + 1, next = next + 1 == S::STAGES ? 0 : next + 1;
        }
        wgmma_wait(0);
        cp_async_wait(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < S::HIGH; i++)
            wgmma_write<S>(P, acc[i], (float *)stage + warp * 16 * S::SLAB, z,
                           row + (group * S::HIGH + i) * 64 + warp % 4 * 16, column);
        __syncthreads();
    }
}

typedef shape<128, 32, 6, 128> Shape128;
typedef shape<192, 32, 5, 128> Shape192;
typedef shape<256, 64, 4, 256> Shape256;

/* Names: as in gemm_mma.cu. */
#define MATMUL_WGMMA(columns, threads, suffix, bf16) \
    KERNEL(matmul_group_##columns##_nn_##suffix, dsi_cuda_matmul_args, threads) \
    { \
        matmul_wgmma<Shape##columns, bf16, true, false>(P); \
    } \
    KERNEL(matmul_group_##columns##_nt_##suffix, dsi_cuda_matmul_args, threads) \
    { \
        matmul_wgmma<Shape##columns, bf16, true, true>(P); \
    } \
    KERNEL(matmul_group_##columns##_tn_##suffix, dsi_cuda_matmul_args, threads) \
    { \
        matmul_wgmma<Shape##columns, bf16, false, false>(P); \
    } \
    KERNEL(matmul_group_##columns##_tt_##suffix, dsi_cuda_matmul_args, threads) \
    { \
        matmul_wgmma<Shape##columns, bf16, false, true>(P); \
    }
MATMUL_WGMMA(128, 128, f16, false)
MATMUL_WGMMA(128, 128, bf16, true)
MATMUL_WGMMA(192, 128, f16, false)
MATMUL_WGMMA(192, 128, bf16, true)
MATMUL_WGMMA(256, 256, f16, false)
MATMUL_WGMMA(256, 256, bf16, true)
