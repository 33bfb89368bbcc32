/* device/cuda/kernels/ptx.cuh: all inline PTX, a wrapper an instruction;
 * tests/gpu/emulator/ptx.h has the same functions for the CPU. compute_80.
 * Source: PTX ISA, sections on mma.m16n8k16, ldmatrix and cp.async.
 * SPDX-License-Identifier: MIT */
#pragma once

#ifndef CUDA_ON_CPU

/* d [16,8] = a [16,16] b [16,8] + c, float32 sums, of a warp */
#define MMA_16816(name, type) \
    DEVICE void name(float *d, const unsigned *a, const unsigned *b, const float *c) \
    { \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type \
                     ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};" \
                     : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), \
                       "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3])); \
    }
MMA_16816(mma_f16_16816, "f16")
MMA_16816(mma_bf16_16816, "bf16")

DEVICE unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

/* Four 8 x 8 matrices of 16 bits; lane l gives the address of row l % 8 of
 * matrix l / 8. */
DEVICE void ldmatrix_x4(unsigned *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void ldmatrix_x4_trans(unsigned *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Copies `bytes` of 16 bytes to shared memory, zeros the rest; both addresses
 * are multiples of 16. It has arrived when its group has been waited for. */
DEVICE void cp_async16(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0],[%1],16,%2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
}
/* The same by way of the first cache, for what is read again soon. */
DEVICE void cp_async16_again(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0],[%1],16,%2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes)
                 : "memory");
}
DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#define cp_async_wait(groups_left) \
    asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory")

#endif
