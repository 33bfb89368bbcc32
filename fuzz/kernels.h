/* fuzz/kernels.h: a CPU without kernels, for fuzzers whose code makes tensors
 * and computes nothing: they are linked without src/device/cpu, which clang
 * instruments for minutes. And what fuzzers of files share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/cpu.h"
#include "device/cpu/gemm/int8.h"
#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern const dsi_cpu_table dsi_cpu_table_generic;
const dsi_cpu_table dsi_cpu_table_generic = {0};
extern const dsi_cpu_int8 dsi_cpu_int8_generic;
const dsi_cpu_int8 dsi_cpu_int8_generic = {0};

static inline int no_device(void) { return 0; }
const dsi_device_type dsi_cuda = {.name = "cuda", .kind = DS_CUDA, .count = no_device};

static inline void must(bool x)
{
    if (!x) abort();
}

/* A refusal is one line. */
static inline void must_say(void)
{
    must(ds_error() && !strpbrk(ds_error(), "\n\r"));
    ds_error_clear();
}

/* Reads the first and the last byte that x spans. */
static inline void touch(const ds_tensor *x)
{
    if (!ds_numel(x)) return;
    dsi_view v = dsi_v(x);
    const volatile unsigned char *p = v.p;
    int64_t last = 0;
    for (int i = 0; i < v.n; i++) last += (v.d[i] - 1) * v.s[i];
    size_t size = ds_dtype_size(v.dtype);
    (void)(p[0] + p[last * (int64_t)size + (int64_t)size - 1]);
}

/* The path of a file that has these bytes, in memory; valid until the next
 * call. */
static inline const char *file_of(const uint8_t *data, size_t n)
{
    static int fd = -1;
    static char path[40];
    if (fd < 0) fd = memfd_create("fuzz", 0);
    must(fd >= 0 && ftruncate(fd, 0) == 0);
    must(pwrite(fd, data, n, 0) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}
