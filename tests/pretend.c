/* tests/pretend.c: see pretend.h. Two halves of one range of addresses: the
 * devices' own, closed; and behind it, at a fixed distance, the bytes that
 * copies read and write.
 * SPDX-License-Identifier: MIT */
#include "pretend.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HALF = 32 << 20 };

static _Thread_local char *range;
static _Thread_local size_t used;

static char *bytes_of(const void *p) { return range + (size_t)((const char *)p - range) + HALF; }

static int count(void) { return 2; }

static ds_status open_pretended(dsi_device *d, int index)
{
    static const dsi_kernels none = {0};
    (void)index;
    d->kernels = &none;
    return DS_OK;
}

static void *alloc(dsi_device *d, size_t bytes)
{
    (void)d;
    if (bytes > HALF - used) return NULL;
    void *p = range + used;
    used += (bytes + 63) / 64 * 64;
    return p;
}

static void free_nothing(dsi_device *d, void *p)
{
    (void)d;
    (void)p;
}

static void *alloc_host(dsi_device *d, size_t bytes) { return d ? malloc(bytes) : NULL; }

static void free_host(dsi_device *d, void *p)
{
    (void)d;
    free(p);
}

static ds_status copy_in(dsi_stream *s, void *dst, const void *host, size_t bytes)
{
    (void)s;
    memcpy(bytes_of(dst), host, bytes);
    return DS_OK;
}

static ds_status copy_out(dsi_stream *s, void *host, const void *src, size_t bytes)
{
    (void)s;
    memcpy(host, bytes_of(src), bytes);
    return DS_OK;
}

static ds_status copy(dsi_stream *s, void *dst, dsi_device *from, const void *src, size_t bytes)
{
    (void)from;
    return copy_in(s, dst, bytes_of(src), bytes);
}

static ds_status sync(dsi_stream *s) { return s ? DS_OK : DS_EINVAL; }

static const dsi_device_type pretended = {
    .name = "cuda",
    .kind = DS_CUDA,
    .count = count,
    .open = open_pretended,
    .alloc = alloc,
    .free = free_nothing,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .copy = copy,
    .sync = sync,
};

void pretend_cuda(void)
{
    if (!range) {
        range = mmap(NULL, 2 * (size_t)HALF, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(range + HALF, HALF, PROT_READ | PROT_WRITE);
    }
    dsi_device_pretend(&pretended);
}
