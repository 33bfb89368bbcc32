/* tests/gpu/emulator/copies.c: copies and memsets, which are queued.
 * SPDX-License-Identifier: MIT */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

static long copies;

long fake_cuda_copies(void) { return copies; }

static CUresult copy_submit(CUstream stream, fake_work w)
{
    fake_lock();
    copies++;
    CUresult result = fake_submit(stream, w);
    fake_unlock();
    return result;
}

/* Pageable memory is read at once, as the driver does; pinned memory when the
 * copy's turn comes. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    char *to = fake_real(dst, bytes, fake_now());
    NEED(to, INVALID_VALUE);
    NEED(!fake_spoil_capture(stream),
         STREAM_CAPTURE_UNSUPPORTED); /* pageable memory is gone later */
    fake_work w = {.kind = FAKE_COPY, .to = to, .bytes = bytes};
    if (!fake_is_pinned(src)) w.own = memcpy(malloc(bytes), src, bytes);
    memcpy(&w.from, w.own ? &w.own : (const void *)&src, sizeof w.from);
    return copy_submit(stream, w);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    char *from = fake_real(src, bytes, fake_now());
    NEED(from, INVALID_VALUE);
    NEED(!fake_spoil_capture(stream), STREAM_CAPTURE_UNSUPPORTED);
    CUresult result = copy_submit(
        stream, (fake_work){.kind = FAKE_COPY, .to = dst, .from = from, .bytes = bytes});
    if (result || fake_is_pinned(dst)) return result;
    fake_lock();
    fake_wait_for(stream);
    fake_unlock();
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    MAY_FAIL();
    char *to = fake_real(dst, bytes, fake_now()), *from = fake_real(src, bytes, fake_now());
    NEED(to && from, INVALID_VALUE);
    return copy_submit(stream,
                       (fake_work){.kind = FAKE_COPY, .to = to, .from = from, .bytes = bytes});
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
    MAY_FAIL();
    char *to = fake_real(dst, n, fake_now());
    NEED(to, INVALID_VALUE);
    fake_work w = {.kind = FAKE_SET, .to = to, .bytes = n, .own = malloc(1)};
    w.from = memset(w.own, value, 1);
    return copy_submit(stream, w);
}
