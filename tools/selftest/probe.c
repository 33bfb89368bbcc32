/* tools/selftest/probe.c: each wrapper of device/cuda/kernels/ptx.cuh,
 * ptx_tf32.cuh and ptx_wgmma.cuh beside what the PTX manual says. Numbers are
 * multiples of 1/8 below 4, so that every sum is exact, in whatever order.
 * SPDX-License-Identifier: MIT */
#include "probe.h"

#include "base/error.h"
#include "base/half.h"
#include "device/cuda/kernels/probe.h"

#include <stdio.h>
#include <string.h>

typedef dsi_cuda_probe_memory Memory;

const char *const selftest_probes[] = {"mma_f16_16816",
                                       "mma_bf16_16816",
                                       "ldmatrix_x4",
                                       "ldmatrix_x4_trans",
                                       "cp_async16",
                                       "cp_async16_again",
                                       "mma_tf32_1688",
                                       "wgmma_128",
                                       "wgmma_192",
                                       "wgmma_256",
                                       NULL};

static float number(int i) { return (float)(i * 37 % 63 - 31) / 8; }

/* c + a b into out, and the 16-bit operands. */
static void want_mma(Memory *m, bool bf16)
{
    for (int i = 0; i < 256; i++)
        m->a[i] = bf16 ? dsi_f32_to_bf16(number(i)) : dsi_f32_to_f16(number(i));
    for (int i = 0; i < 128; i++) {
        m->b[i] = bf16 ? dsi_f32_to_bf16(number(i + 7)) : dsi_f32_to_f16(number(i + 7));
        m->c[i] = number(i + 11);
    }
    for (int i = 0; i < 128; i++) {
        float sum = m->c[i];
        for (int k = 0; k < 16; k++) sum += number(i / 8 * 16 + k) * number(k * 8 + i % 8 + 7);
        memcpy(&m->out[i], &sum, sizeof sum);
    }
}

static void want_ldmatrix(Memory *m, bool trans)
{
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            const unsigned short *x = &m->a[i * 64];
            int r = l / 4, c = l % 4 * 2;
            unsigned low = trans ? x[c * 8 + r] : x[r * 8 + c],
                     high = trans ? x[(c + 1) * 8 + r] : x[r * 8 + c + 1];
            m->out[l * 4 + i] = low | high << 16;
        }
}

static void want_cp_async(Memory *m)
{
    memset(m->out, 0, 128 * sizeof *m->out);
    for (int l = 0; l < 32; l++) {
        int from = l ^ 5;
        memcpy(&m->out[l * 4], &m->a[from * 8], (size_t)(from % 17));
        memcpy(&m->late[l * 4], &m->a[(from ^ 1) * 8], 16);
    }
}

/* c + a b into out, and operands of float32, of which a's last 13 bits do not
 * count. */
static void want_tf32(Memory *m)
{
    for (int i = 0; i < 128; i++) {
        unsigned bits;
        float x = number(i), y = number(i + 7);
        memcpy(&bits, &x, sizeof bits);
        bits |= (unsigned)i * 53 % 8192;
        memcpy(&m->a[i * 2], &bits, sizeof bits);
        if (i < 64) memcpy(&m->b[i * 2], &y, sizeof y);
        m->c[i] = number(i + 11);
    }
    for (int i = 0; i < 128; i++) {
        float sum = m->c[i];
        for (int k = 0; k < 8; k++) sum += number(i / 8 * 8 + k) * number(k * 8 + i % 8 + 7);
        memcpy(&m->out[i], &sum, sizeof sum);
    }
}

/* The product of a warpgroup [64,n], and its operands. */
static void want_wgmma(Memory *m, int n, bool bf16)
{
    for (int i = 0; i < 64 * 16; i++)
        m->a[i] = bf16 ? dsi_f32_to_bf16(number(i)) : dsi_f32_to_f16(number(i));
    for (int i = 0; i < 16 * n; i++)
        m->b[i] = bf16 ? dsi_f32_to_bf16(number(i * 5)) : dsi_f32_to_f16(number(i * 5));
    for (int i = 0; i < 64 * n; i++) {
        float sum = 0;
        for (int k = 0; k < 16; k++) sum += number(i / n * 16 + k) * number((k * n + i % n) * 5);
        memcpy(&m->out[i], &sum, sizeof sum);
    }
}

/* Operands, and what is expected. */
static void probe_want(Memory *m, int k)
{
    for (int i = 0; i < 256; i++) m->a[i] = (unsigned short)(i * 259 + 1);
    if (k < 2)
        want_mma(m, k == 1);
    else if (k < 4)
        want_ldmatrix(m, k == 3);
    else if (k < 6)
        want_cp_async(m);
    else if (k == 6)
        want_tf32(m);
    else
        want_wgmma(m, 128 + (k - 7) * 64, k == 8);
}

bool selftest_probe(dsi_device *d, int k, char *why, size_t room)
{
    static Memory want, got;
    memset(&want, 0xff, sizeof want);
    probe_want(&want, k);
    got = want;
    memset(got.out, 0xff, sizeof got.out);
    memset(got.late, 0xff, sizeof got.late);
    Memory *m = dsi_cache_alloc(d, sizeof got);
    ds_status status = m ? d->type->copy_in(&d->stream, m, &got, sizeof got) : DS_ENOMEM;
    if (status == DS_OK) status = d->type->probe(&d->stream, selftest_probes[k], m);
    if (status == DS_OK) status = d->type->copy_out(&d->stream, &got, m, sizeof got);
    if (m) dsi_cache_free(d, m, sizeof got);
    bool same = status == DS_OK && !memcmp(&want, &got, sizeof got);
    if (!same) snprintf(why, room, "%s", status == DS_OK ? "other values" : ds_error());
    return same;
}
