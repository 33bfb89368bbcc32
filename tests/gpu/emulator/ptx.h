/* tests/gpu/emulator/ptx.h: the wrappers of inline PTX that
 * src/device/cuda/kernels/ptx.cuh and ptx_tf32.cuh have for nvcc. Which lane holds which element:
 * PTX ISA manual, matrix fragments of mma.m16n8k16.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, with the layout of lanes that the PTX manual gives */
template <bool BF16> static void mma_16816(void **const *p, unsigned)
{
    float a[16][16];
    float b[16][8], c[16][8];
    for (unsigned l = 0; l < 32; l++) {
        const uint16_t *pa = (const uint16_t *)p[l][0], *pb = (const uint16_t *)p[l][1];
        unsigned g = l / 4, t = l % 4;
        auto f = [](uint16_t bits) {
            return BF16 ? __bfloat162float({bits}) : __half2float({bits});
        };
        UNROLLED
        for (unsigned i = 0; i < 8; i++)
            a[g + (i / 2 % 2) * 8][t * 2 + i % 2 + (i / 4) * 8] = f(pa[i]);
        UNROLLED
        for (unsigned i = 0; i < 4; i++) b[t * 2 + i % 2 + (i / 2) * 8][g] = f(pb[i]);
        UNROLLED
        for (unsigned i = 0; i < 4; i++) c[g + (i / 2) * 8][t * 2 + i % 2] = ((float *)p[l][2])[i];
    }
    cuda_on_cpu::add_products(c[0], a[0], b[0], 16, 8, 8);
    for (unsigned l = 0; l < 32; l++) UNROLLED
    for (unsigned i = 0; i < 4; i++)
        ((float *)p[l][3])[i] = c[l / 4 + (i / 2) * 8][l % 4 * 2 + i % 2];
}
static inline void mma_f16_16816(float *d, const unsigned *a, const unsigned *b, const float *c,
                                 HERE)
{
    cuda_on_cpu::call(mma_16816<false>, "mma.m16n8k16", line, a, b, c, d);
}
static inline void mma_bf16_16816(float *d, const unsigned *a, const unsigned *b, const float *c,
                                  HERE)
{
    cuda_on_cpu::call(mma_16816<true>, "mma.m16n8k16", line, a, b, c, d);
}
/* mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32: the last 13 bits of a and b do not count */
static void mma_1688(void **const *p, unsigned)
{
    float a[16][8];
    float b[8][8], c[16][8];
    auto f = [](const void *bits) { return bits_as<float>(*(const uint32_t *)bits & 0xffffe000u); };
    for (unsigned l = 0; l < 32; l++) {
        unsigned g = l / 4, t = l % 4;
        UNROLLED
        for (unsigned i = 0; i < 4; i++)
            a[g + i % 2 * 8][t + i / 2 * 4] = f((const uint32_t *)p[l][0] + i);
        UNROLLED
        for (unsigned i = 0; i < 2; i++) b[t + i * 4][g] = f((const uint32_t *)p[l][1] + i);
        UNROLLED
        for (unsigned i = 0; i < 4; i++) c[g + (i / 2) * 8][t * 2 + i % 2] = ((float *)p[l][2])[i];
    }
    cuda_on_cpu::add_products(c[0], a[0], b[0], 8, 8, 8);
    for (unsigned l = 0; l < 32; l++) UNROLLED
    for (unsigned i = 0; i < 4; i++)
        ((float *)p[l][3])[i] = c[l / 4 + (i / 2) * 8][l % 4 * 2 + i % 2];
}
static inline void mma_tf32_1688(float *d, const unsigned *a, const unsigned *b, const float *c,
                                 HERE)
{
    cuda_on_cpu::call(mma_1688, "mma.m16n8k8", line, a, b, c, d);
}
/* ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16: lane l gives the address of row l%8 of matrix l/8 */
template <bool TRANS> static void ldmatrix_4(void **const *p, unsigned)
{
    for (unsigned l = 0; l < 32; l++)
        if ((uintptr_t)p[l][0] % 16)
            cuda_on_cpu::fail("ldmatrix: an address that is no multiple of 16");
    for (unsigned l = 0; l < 32; l++)
        for (unsigned i = 0; i < 4; i++) {
            uint16_t v[2];
            for (unsigned e = 0; e < 2; e++) {
                unsigned r = TRANS ? l % 4 * 2 + e : l / 4, c = TRANS ? l / 4 : l % 4 * 2 + e;
                v[e] = ((const uint16_t *)p[i * 8 + r][0])[c];
            }
            memcpy((unsigned *)p[l][1] + i, v, 4);
        }
}
static inline void ldmatrix_x4(unsigned *r, const void *row, HERE)
{
    cuda_on_cpu::call(ldmatrix_4<false>, "ldmatrix", line, row, r);
}
static inline void ldmatrix_x4_trans(unsigned *r, const void *row, HERE)
{
    cuda_on_cpu::call(ldmatrix_4<true>, "ldmatrix.trans", line, row, r);
}
/* cp.async of 16 bytes, of which `bytes` are copied and the rest is zeros: it
 * arrives at once or as late as it may, when its group is waited for */
void cp_async16(void *shared, const void *global, int bytes);
static inline void cp_async16_again(void *shared, const void *global, int bytes)
{
    cp_async16(shared, global, bytes);
}
void cp_async_commit();
void cp_async_wait(int groups_left);
