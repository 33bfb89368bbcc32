/* tests/core_device.c: see core_device.h.
 *
 * Invariants: the table of kernels is a copy of the CPU's, so that nothing but
 * its entries is reachable; blocks of memory are the device's own (malloc),
 * never the CPU's cache; the flag is written by the kernels into
 * dsi_device.fault and read by take_fault alone.
 * SPDX-License-Identifier: MIT */
#include "core_device.h"

#include "base/philox.h"
#include "device/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local dsi_kernels core;
static _Thread_local const dsi_fusions *extra;
static _Thread_local int checks;

static int core_count(void) { return 1; }

static ds_status core_open(dsi_device *d, int index)
{
    (void)index;
    const char *isa = dsi_cpu_isa();
    if (!isa) return DS_EINVAL;
    core = dsi_cpu_table_of(isa)->kernels;
    d->kernels = &core;
    d->own_fusions = extra;
    return DS_OK;
}

static void *core_alloc(dsi_device *d, size_t bytes)
{
    (void)d;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void core_free(dsi_device *d, void *p)
{
    (void)d;
    free(p);
}

static ds_status core_copy_in(dsi_stream *s, void *dst, const void *host, size_t bytes)
{
    (void)s;
    if (bytes) memcpy(dst, host, bytes);
    return DS_OK;
}

static ds_status core_copy(dsi_stream *s, void *dst, dsi_device *from, const void *src,
                           size_t bytes)
{
    (void)from;
    return core_copy_in(s, dst, src, bytes);
}

static ds_status core_sync(dsi_stream *s)
{
    (void)s;
    return DS_OK;
}

static ds_status core_take_fault(dsi_stream *s, bool all, dsi_fault *out)
{
    (void)all;
    checks++;
    *out = s->device->fault;
    s->device->fault.op = DSI_NO_FAULT;
    return DS_OK;
}

int core_device_checks(void) { return checks; }

static const dsi_device_type core_type = {
    .name = "cuda",
    .kind = DS_CUDA,
    .count = core_count,
    .open = core_open,
    .alloc = core_alloc,
    .free = core_free,
    .copy_in = core_copy_in,
    .copy_out = core_copy_in,
    .copy = core_copy,
    .sync = core_sync,
    .take_fault = core_take_fault,
};

void core_device(const dsi_fusions *fusions)
{
    extra = fusions;
    dsi_device_pretend(&core_type);
}

static ds_status core_dropout(dsi_stream *s, const dsi_philox *random, double p, double factor,
                              dsi_view x, dsi_view y, dsi_view keep)
{
    uint64_t below = (uint64_t)((1 - p) * 0x1p32), seed = random->seed;
    int64_t n = 1;
    (void)s;
    if (random->fresh_seed) seed = *random->fresh_seed;
    for (int i = 0; i < x.n; i++) n *= x.d[i];
    for (int64_t i = 0; i < n; i++) {
        bool kept = dsi_philox_word(seed, random->offset, (uint64_t)i) < below;
        ((uint8_t *)keep.p)[i] = kept;
        ((float *)y.p)[i] = kept ? ((const float *)x.p)[i] * (float)factor : 0;
    }
    return DS_OK;
}

const dsi_fusions core_device_dropout = {.dropout = core_dropout};
