/* device/cuda/cubin.c: machine code of some kernels for some GPUs, cubin/sm_NN,
 * as bytes of the library, so that a first step does not wait for the driver's
 * compiler. scripts/make_cubins makes these files of the PTX, by an assembler
 * of CUDA 12.8: drivers for CUDA 12 and newer take what it makes. Code runs on
 * GPUs of the same major compute capability, from its own minor on.
 *
 * A file is a line, then for each kernel a line "NAME BYTES CHECKSUM" and the
 * bytes of a cubin, an ELF file.
 * SPDX-License-Identifier: MIT */
#include "base/env.h"
#include "base/mem.h"
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define OLDEST_DRIVER 12000 /* of another major version of CUDA: may not take them */

#define EMBED(capability) \
    __asm__(".section .rodata\n" \
            ".hidden dsi_cubin_" #capability "\n" \
            ".global dsi_cubin_" #capability "\n" \
            "dsi_cubin_" #capability ":\n" \
            ".incbin \"" DSI_CUDA_CODE "/cubin/sm_" #capability "\"\n" \
            ".byte 0\n" \
            ".previous\n"); \
    extern const char dsi_cubin_##capability[];
DSI_CUDA_CUBINS(EMBED)

#define ENTRY(capability) {capability, dsi_cubin_##capability},
static const struct {
    int capability;
    const char *file;
} cubins[] = {DSI_CUDA_CUBINS(ENTRY)};

/* The driver's own variable is read too: it would refuse each. */
ds_status dsi_cuda_use_cubins(int capability, const char **file)
{
    static const char *const words[] = {"on", "off", NULL};
    const char *force = getenv("CUDA_FORCE_PTX_JIT");
    int off = 0;
    *file = NULL;
    ds_status status = dsi_env_word("DS_CUBINS", words, &off);
    if (off || (force && atoi(force)) || dsi_cuda_version() < OLDEST_DRIVER) return status;
    for (size_t i = 0; i < sizeof cubins / sizeof *cubins; i++)
        if (cubins[i].capability / 10 == capability / 10 && cubins[i].capability <= capability)
            *file = cubins[i].file;
    return status;
}

void *dsi_cuda_cubin(const char *file, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = strchr(file, '\n') + 1; *p;) {
        char *end = NULL;
        size_t letters = strcspn(p, " "), bytes = strtoul(p + letters, &end, 10);
        const char *code = strchr(end, '\n') + 1;
        if (letters == n && !strncmp(p, name, n)) return memcpy(dsi_alloc(bytes), code, bytes);
        p = code + bytes;
    }
    return NULL;
}
