/* tests/gpu/mistakes/mistakes.cu: kernels with a mistake each, and the same
 * without it: NAME_wrong and NAME_right. tests/gpu/mistakes.c says in which mode
 * of the emulator each must be seen.
 *
 * All take x [128] and y [128], 2 blocks of 64 threads, 256 bytes of dynamic
 * shared memory; those of a warpgroup, whose names begin with group_, 128 threads
 * and GROUP_BYTES.
 * SPDX-License-Identifier: MIT */
#include "common.cuh"
#include "ptx_wgmma.cuh"

#include <stdlib.h>
#include <string.h>

#define N 128 /* elements */
#define T 64  /* threads of a block */

typedef struct mistake_args {
    const float *x;
    float *y;
} mistake_args;

#define MISTAKE(name) \
    template <bool RIGHT> static void name(const mistake_args &P); \
    KERNEL(name##_right, mistake_args, T) { name<true>(P); } \
    KERNEL(name##_wrong, mistake_args, T) { name<false>(P); } \
    template <bool RIGHT> static void name(const mistake_args &P)
#define T0     ((int)threadIdx.x)
#define HERE_I ((int)blockIdx.x * T + T0)

/* ---- barriers ---- */

MISTAKE(sum_without_barrier)
{
    SHARED(float, part, [T]);
    part[T0] = P.x[HERE_I];
    __syncthreads();
    for (int o = T / 2; o; o /= 2) {
        if (T0 < o) part[T0] += part[T0 + o];
        if (RIGHT) __syncthreads();
    }
    P.y[HERE_I] = part[0];
}

MISTAKE(tile_read_before_written)
{
    SHARED(float, tile, [T]);
    tile[T0] = P.x[HERE_I];
    if (RIGHT) __syncthreads();
    P.y[HERE_I] = tile[T - 1 - T0];
}

MISTAKE(stage_written_while_read)
{
    SHARED(float, tile, [T]);
    float sum = 0;
    for (int k = 0; k < 3; k++) {
        tile[T0] = P.x[(HERE_I + k) % N];
        __syncthreads();
        sum += tile[(T0 + 33) % T] * (float)(k + 1);
        if (RIGHT) __syncthreads();
    }
    P.y[HERE_I] = sum;
}

MISTAKE(barrier_in_a_branch)
{
    SHARED(float, tile, [T]);
    tile[T0] = P.x[HERE_I];
    if (RIGHT || T0 < 32)
        __syncthreads();
    else
        __syncthreads();
    P.y[HERE_I] = tile[T - 1 - T0];
}

MISTAKE(result_read_before_the_sum_is_whole)
{
    SHARED(float, part, [2]);
    float v = P.x[HERE_I];
    for (int o = 16; o; o /= 2) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (T0 % 32 == 0) part[T0 / 32] = v;
    if (RIGHT) __syncthreads();
    P.y[HERE_I] = part[0] + part[1];
}

MISTAKE(reversed_in_place)
{
    SHARED(float, tile, [T]);
    tile[T0] = P.x[HERE_I];
    __syncthreads();
    float v = tile[T - 1 - T0];
    if (RIGHT) __syncthreads();
    tile[T0] = v;
    __syncthreads();
    P.y[HERE_I] = tile[T0];
}

/* ---- warps ---- */

MISTAKE(neighbour_without_syncwarp)
{
    SHARED(float, tile, [T]);
    tile[T0] = P.x[HERE_I];
    if (RIGHT) __syncwarp();
    P.y[HERE_I] = tile[T0 ^ 1];
}

MISTAKE(shuffle_in_a_branch)
{
    float v = P.x[HERE_I];
    if (RIGHT || T0 % 32 < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);
    P.y[HERE_I] = v;
    __syncthreads();
}

MISTAKE(shuffle_from_a_lane_outside)
{
    unsigned few = RIGHT ? 0xffffffffu : 0xffu;
    float v = P.x[HERE_I];
    if (few >> T0 % 32 & 1) v = __shfl_down_sync(few, v, 4);
    P.y[HERE_I] = v;
}

/* ---- memory ---- */

MISTAKE(shared_not_written)
{
    SHARED(float, tile, [T]);
    if (RIGHT || T0 > 0) tile[T0] = P.x[HERE_I];
    __syncthreads();
    P.y[HERE_I] = tile[T - 1 - T0];
}

MISTAKE(tail_of_a_tile_not_zero)
{
    SHARED(float, tile, [T]);
    if (T0 < 50)
        tile[T0] = P.x[HERE_I];
    else if (RIGHT)
        tile[T0] = 0;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < T; i++) sum += tile[i];
    P.y[HERE_I] = sum;
}

MISTAKE(shared_one_too_far)
{
    SHARED(float, tile, [T]);
    tile[RIGHT ? T0 : T0 + 1] = P.x[HERE_I];
    __syncthreads();
    P.y[HERE_I] = T0 ? tile[T0] : 0;
}

MISTAKE(dynamic_shared_too_small)
{
    DYNAMIC_SHARED(float, tile);
    tile[T0] = P.x[HERE_I];
    if (!RIGHT) tile[T0 + T] = 1;
    __syncthreads();
    P.y[HERE_I] = tile[T0];
}

MISTAKE(edge_not_checked)
{
    for (int i = HERE_I; RIGHT ? i < N : i <= N; i += 2 * T) P.y[i] = P.x[i];
}

MISTAKE(padding_read)
{
    int left = HERE_I - 1;
    P.y[HERE_I] = (!RIGHT || left >= 0 ? P.x[left] : 0) + P.x[HERE_I];
}

MISTAKE(vector_not_aligned)
{
    const float *from = P.x + (RIGHT ? 4 * (HERE_I / 8) : 4 * (HERE_I / 8) + 1);
    float4 v = *(const float4 *)from;
    P.y[HERE_I] = v.x;
}

/* ---- order ---- */

MISTAKE(sum_by_arrival)
{
    if (RIGHT) {
        float sum = 0;
        for (int i = 0; i < N; i++) sum += P.x[i] / 3;
        P.y[HERE_I] = sum;
        return;
    }
    atomicAdd(&P.y[0], P.x[HERE_I] / 3);
}

MISTAKE(scatter_of_the_last_writer)
{
    int at = HERE_I / 4 * 4; /* four threads write there */
    if (!RIGHT || HERE_I % 4 == 0) P.y[at] = P.x[HERE_I];
}

MISTAKE(block_waits_for_no_one)
{
    /* the second block adds to what the first has written */
    if (RIGHT)
        P.y[HERE_I] = P.x[T0] + (blockIdx.x ? P.x[HERE_I] : 0);
    else
        P.y[HERE_I] = blockIdx.x ? P.y[T0] + P.x[HERE_I] : P.x[T0];
}

/* ---- cp.async ---- */

MISTAKE(copy_not_waited_for)
{
    SHARED(float4, tile, [T]);
    if (T0 < T / 4) cp_async16(&tile[T0], P.x + blockIdx.x * T + 4 * T0, 16);
    cp_async_commit();
    if (RIGHT) cp_async_wait(0);
    __syncthreads();
    P.y[HERE_I] = ((const float *)tile)[T0];
    if (!RIGHT) cp_async_wait(0);
}

MISTAKE(one_group_too_few)
{
    SHARED(float4, tile, [2 * T / 4]);
    for (int s = 0; s < 2; s++) {
        if (T0 < T / 4) cp_async16(&tile[s * T / 4 + T0], P.x + s * T + 4 * T0, 16);
        cp_async_commit();
    }
    if (RIGHT)
        cp_async_wait(0);
    else
        cp_async_wait(1);
    __syncthreads();
    P.y[HERE_I] = ((const float *)tile)[HERE_I];
    cp_async_wait(0);
}

MISTAKE(copy_into_less_aligned_memory)
{
    struct Plain {
        unsigned short x[2 * T];
    };
    struct alignas(16) Aligned {
        unsigned short x[2 * T];
    };
    typedef typename std::conditional<RIGHT, Aligned, Plain>::type Tile;
    SHARED(Tile, tile, [1]);
    if (T0 < T / 4) cp_async16(&tile[0].x[8 * T0], P.x + blockIdx.x * T + 4 * T0, 16);
    cp_async_commit();
    cp_async_wait(0);
    __syncthreads();
    P.y[HERE_I] = ((const float *)tile)[T0];
}

MISTAKE(copy_from_beyond_the_end)
{
    SHARED(float4, tile, [T / 4]);
    if (T0 < T / 4) cp_async16(&tile[T0], P.x + blockIdx.x * T + 4 * T0 + (RIGHT ? 0 : 4), 16);
    cp_async_commit();
    cp_async_wait(0);
    __syncthreads();
    P.y[HERE_I] = ((const float *)tile)[T0];
}

MISTAKE(zeros_copied_beyond_the_end)
{
    SHARED(float4, tile, [T / 4]);
    if (T0 < T / 4) cp_async16(&tile[T0 + (RIGHT ? 0 : 1)], P.x, 0);
    cp_async_commit();
    cp_async_wait(0);
    __syncthreads();
    P.y[HERE_I] = ((const float *)tile)[T0];
}

/* ---- products of a warpgroup ---- */

enum { GROUP_A = 64 * 64, GROUP_BYTES = GROUP_A + 128 * 64 + 1024 };

/* a [64,32] and b [128,32], lines of 64 bytes: x again and again, each float two
 * of bfloat16. */
static char *group_operands()
{
    DYNAMIC_SHARED(float4, shared);
    return wgmma_stages<char>(shared);
}
static void group_operands_copy(const mistake_args &P)
{
    for (int i = T0; i < (GROUP_A + 128 * 64) / 16; i += 128)
        cp_async16(group_operands() + 16 * i, P.x + i * 4 % N, 16);
    cp_async_commit();
    cp_async_wait(0);
}
/* As a product needs them: written, fenced, a barrier. */
static void group_operands_come(const mistake_args &P)
{
    group_operands_copy(P);
    fence_proxy_async();
    __syncthreads();
}
static void group_product(float (&sums)[16][4], int stride)
{
    unsigned a = shared_address(group_operands());
    wgmma<true, false, false>(sums, wgmma_operand(a, K_LINES_64, 16, 512),
                              wgmma_operand(a + GROUP_A, K_LINES_64, 16, stride));
}
static void group_result(const mistake_args &P, const float (&sums)[16][4])
{
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += sums[i / 4][i % 4] * (float)(i + 1);
    if (T0 < T) P.y[HERE_I] = sum;
}

MISTAKE(group_copy_not_fenced)
{
    float sums[16][4] = {};
    group_operands_copy(P);
    if (RIGHT) fence_proxy_async();
    __syncthreads();
    wgmma_fence();
    group_product(sums, 512);
    wgmma_commit();
    wgmma_wait(0);
    group_result(P, sums);
}

MISTAKE(group_sums_not_fenced)
{
    float sums[16][4] = {};
    group_operands_come(P);
    if (RIGHT) wgmma_fence();
    group_product(sums, 512);
    wgmma_commit();
    wgmma_wait(0);
    group_result(P, sums);
}

MISTAKE(group_not_committed)
{
    float sums[16][4] = {};
    group_operands_come(P);
    wgmma_fence();
    group_product(sums, 512);
    if (RIGHT) wgmma_commit();
    wgmma_wait(0);
    group_result(P, sums);
}

MISTAKE(group_not_waited_for)
{
    float sums[16][4] = {};
    group_operands_come(P);
    wgmma_fence();
    group_product(sums, 512);
    wgmma_commit();
    if (RIGHT) wgmma_wait(0);
    group_result(P, sums);
    if (!RIGHT) wgmma_wait(0);
}

MISTAKE(group_operand_overwritten)
{
    float sums[16][4] = {};
    group_operands_come(P);
    wgmma_fence();
    group_product(sums, 512);
    wgmma_commit();
    if (RIGHT) wgmma_wait(0);
    __syncthreads();
    memset(group_operands() + T0 * 64, 0, 64);
    __syncthreads();
    wgmma_wait(0);
    group_result(P, sums);
}

MISTAKE(group_stride_doubled)
{
    float sums[16][4] = {};
    group_operands_come(P);
    wgmma_fence();
    group_product(sums, RIGHT ? 512 : 1024);
    wgmma_commit();
    wgmma_wait(0);
    group_result(P, sums);
}

/* ---- the program: mistakes NAME prints the bits of y, and "nan" if one is ---- */

int main(int argc, char **argv)
{
    const cuda_on_cpu::Entry *e = argc == 2 ? cuda_on_cpu::find(argv[1]) : nullptr;
    if (!e) return fprintf(stderr, "usage: mistakes NAME_right|NAME_wrong\n"), 2;
    float *x = (float *)aligned_alloc(64, N * sizeof *x), *y = (float *)aligned_alloc(64, N * sizeof *y);
    for (int i = 0; i < N; i++) x[i] = (float)(i * 37 % 101) + 1, y[i] = 0;
    mistake_args args = {x, y};
    bool group = strncmp(argv[1], "group_", 6) == 0;
    cuda_on_cpu::run({dim3(2), dim3(group ? 128 : T), group ? GROUP_BYTES : T * sizeof(float),
                      e->thread, &args, e->name});
    uint64_t hash = 14695981039346656037u;
    bool nan = false;
    for (int i = 0; i < N; i++) hash = (hash ^ bits_as<uint32_t>(y[i])) * 1099511628211u, nan |= y[i] != y[i];
    printf("%016llx%s\n", (unsigned long long)hash, nan ? " nan" : "");
    free(x);
    free(y);
    return 0;
}
