/* device/cuda/kernels/ptx_wgmma.cuh: ptx.cuh for the products of a warpgroup,
 * four warps, which Hopper alone has (sm_90a). Both operands are in shared
 * memory.
 * Source: PTX ISA, sections on wgmma: matrix descriptor, strides, swizzling modes,
 * register fragments of D.
 *
 * Invariants: shared memory that a product reads was written before
 * fence_proxy_async and a barrier. Between wgmma_fence and the wgmma_wait of
 * its group no thread touches the sums of a product or overwrites its operands.
 * SPDX-License-Identifier: MIT */
#pragma once

/* Operands in the layouts that a descriptor names: lines of 64 or 128 bytes,
 * whose pieces of 16 bytes have their place XORed by the line's number (bits 7
 * to 9 of the address). LBO, SBO: bytes between groups of elements; along k
 * lines, SBO between groups of 8 lines; across, SBO between groups of 8 of k,
 * LBO between groups of 64 elements. */
enum { K_LINES_64 = 2, K_LINES_128 = 1 };
DEVICE unsigned long long wgmma_operand(unsigned address, int lines, int lbo, int sbo)
{
    return (unsigned long long)lines << 62 | (unsigned long long)(sbo >> 4) << 32 |
           (unsigned long long)(lbo >> 4) << 16 | (address >> 4 & 0x3fff);
}

/* The first stage in dynamic shared memory: the XOR of lines repeats after 1,024
 * bytes, so that many more are asked for. */
template <class Stage> DEVICE Stage *wgmma_stages(void *shared)
{
    return (Stage *)((char *)shared + (-shared_address(shared) & 1023));
}

#ifndef CUDA_ON_CPU

DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/* The sums are set here, not after the fence that follows: nvcc moves nothing
 * that an asm statement names. */
template <int N> DEVICE void wgmma_set(float (&d)[N][4])
{
    UNROLL
    for (int j = 0; j < N; j++)
        asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define wgmma_wait(groups_left) \
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups_left) : "memory")

/* d [64,N] += a [64,16] b [16,N], float32 sums, of a warpgroup. Warp w has rows
 * 16 w to 16 w + 15; d[j] has 8 columns, in the order of mma.m16n8k16. ACROSS:
 * its lines are across k. */
#define WGMMA_D4(j)  "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define WGMMA_D16(j) WGMMA_D4(j), WGMMA_D4(j + 1), WGMMA_D4(j + 2), WGMMA_D4(j + 3)
#define WGMMA_D64    WGMMA_D16(0), WGMMA_D16(4), WGMMA_D16(8), WGMMA_D16(12)
#define WGMMA_D96    WGMMA_D64, WGMMA_D16(16), WGMMA_D16(20)
#define WGMMA_D128   WGMMA_D96, WGMMA_D16(24), WGMMA_D16(28)
#define WGMMA_R64 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15" \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31" \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47" \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_R96 \
    WGMMA_R64 \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79" \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define WGMMA_R128 \
    WGMMA_R96 \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111" \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_TYPE(n, type, d_registers, a, b, ta, tb, ...) \
    asm volatile("{.reg .pred p; setp.eq.u32 p,1,1; wgmma.mma_async.sync.aligned.m64n" n \
                 "k16.f32." type "." type " {" d_registers "}," a "," b ",p,1,1," ta "," tb ";}" \
                 : __VA_ARGS__ \
                 : "l"(x), "l"(y), "n"(A_ACROSS), "n"(B_ACROSS) \
                 : "memory")
#define WGMMA(columns, n, d_registers, a, b, ta, tb, ...) \
    template <bool BF16, bool A_ACROSS, bool B_ACROSS> \
    DEVICE void wgmma(float (&d)[columns][4], unsigned long long x, unsigned long long y) \
    { \
        if (BF16) \
            WGMMA_TYPE(n, "bf16", d_registers, a, b, ta, tb, __VA_ARGS__); \
        else \
            WGMMA_TYPE(n, "f16", d_registers, a, b, ta, tb, __VA_ARGS__); \
    }
WGMMA(16, "128", WGMMA_R64, "%64", "%65", "%66", "%67", WGMMA_D64)
WGMMA(24, "192", WGMMA_R96, "%96", "%97", "%98", "%99", WGMMA_D96)
WGMMA(32, "256", WGMMA_R128, "%128", "%129", "%130", "%131", WGMMA_D128)

#endif
