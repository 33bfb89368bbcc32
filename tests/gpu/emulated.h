/* tests/gpu/emulated.h: whether the driver is the emulator, what it counts, and
 * what a program of this folder needs. Nothing here starts the driver, so that
 * processes may be forked after it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* False with NVIDIA's driver, and without one. */
static inline bool emulated(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver && dlsym(driver, "fake_cuda_live");
}

/* A count of emulator/fake.h ("fake_cuda_syncs"); 0 with NVIDIA's driver. */
static inline long emulator_count(const char *name)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *f = driver ? dlsym(driver, name) : NULL;
    long (*count)(void);
    if (!f) return 0;
    memcpy(&count, &f, sizeof f);
    return count();
}

/* Whether kernels run while a collective is under way: with FAKE_CUDA_LAZY=1 it
 * begins when a stream waits for it. */
static inline bool emulator_overlaps(void)
{
    const char *lazy = getenv("FAKE_CUDA_LAZY");
    return !lazy || strcmp(lazy, "1") != 0;
}

/* For main: the status of a program that cannot run here, after a line that
 * says why; 0 if it can. */
static inline int skip_without_emulator(void)
{
    if (emulated()) return 0;
    puts("skipped: libcuda.so.1 is not the emulator (tests/gpu/on_cpu)");
    return 77;
}

/* Starts the driver. */
static inline int skip_without_gpus(int n)
{
    ds_device last;
    char name[24];
    snprintf(name, sizeof name, "cuda:%d", n - 1);
    if (ds_device_parse(name, &last) == DS_OK) return 0;
    printf("skipped: %s\n", ds_error());
    ds_error_clear();
    return 77;
}
