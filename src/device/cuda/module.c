/* device/cuda/module.c: kernels: at its first launch the driver is handed a
 * kernel's cubin, if there is one for the GPU and it takes it, else its part of
 * its family's PTX, which it compiles. A family as a whole would take the
 * driver seconds, most of them for kernels that the program does not use.
 *
 * Invariants: a thread's handle on a GPU has its own modules, one a kernel,
 * which are unloaded when it closes. The table of kernels is never full: it has
 * more entries than there are kernels.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { ENTRIES = 1024, NAME = 48, LOG = 2048 };

/* A kernel that was launched once; function NULL: an unused entry. Collisions
 * take the next entry (linear probing). */
typedef struct Entry {
    char name[NAME];
    CUmodule module;
    CUfunction function;
    unsigned shared; /* bytes of dynamic shared memory that it may have */
} Entry;

typedef struct dsi_cuda_modules {
    Entry entry[ENTRIES];
} dsi_cuda_modules;

#define FAMILY_NAME(name, capability)  #name,
#define FAMILY_NEEDS(name, capability) capability,
static const char *const family_names[] = {DSI_CUDA_FAMILIES(FAMILY_NAME)};
static const int family_needs[] = {DSI_CUDA_FAMILIES(FAMILY_NEEDS)};

void dsi_cuda_unload(dsi_cuda_gpu *g)
{
    for (int i = 0; g->modules && i < ENTRIES; i++)
        if (g->modules->entry[i].module) g->f->module_free(g->modules->entry[i].module);
    dsi_free(g->modules);
    g->modules = NULL;
}

/* The driver's words on why it does not take the PTX, one line of them. */
static ds_status refused(int index, dsi_cuda_family family, CUresult result, char *log)
{
    const char *advice = "";
    log[strcspn(log, "\n")] = 0;
    if (result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || result == CUDA_ERROR_INVALID_PTX)
        advice = "; a newer NVIDIA driver may take them";
    dsi_cuda_check(index, result, "its kernels are refused");
    return dsi_fail(DS_EDEVICE, "%s: family %s%s%s%s", dsi_error_latest(), family_names[family],
                    *log ? ": " : "", log, advice);
}

/* It cannot run on this GPU, or with this driver. */
static bool refuses_code(CUresult result)
{
    return result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU ||
           result == CUDA_ERROR_UNSUPPORTED_PTX_VERSION || result == CUDA_ERROR_INVALID_SOURCE ||
           result == CUDA_ERROR_NOT_SUPPORTED;
}

/* The kernel from its cubin; CUDA_ERROR_NOT_FOUND: there is none that the
 * driver takes. After one that it refuses it is asked for none. */
static CUresult load_cubin(dsi_device *d, Entry *e)
{
    dsi_cuda_gpu *g = d->own;
    void *cubin = g->cubins ? dsi_cuda_cubin(g->cubins, e->name) : NULL;
    if (!cubin) return CUDA_ERROR_NOT_FOUND;
    CUresult result = g->f->module_load(&e->module, cubin, 0, NULL, NULL);
    dsi_free(cubin);
    if (!refuses_code(result)) return result;
    dsi_log(DSI_DEBUG, "cuda:%d: the driver refuses machine code (error %d of %s): it compiles PTX",
            d->index, (int)result, e->name);
    g->cubins = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* Compiling PTX takes up to a tenth of a second at a kernel's first launch,
 * unless the driver has it in its own cache (~/.nv). */
static ds_status load_kernel(dsi_device *d, dsi_cuda_family family, Entry *e)
{
    dsi_cuda_gpu *g = d->own;
    char log[LOG] = "";
    CUjit_option option[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *value[] = {log, (void *)(uintptr_t)sizeof log};
    if (g->capability < family_needs[family])
        return dsi_fail(DS_EDEVICE,
                        "cuda:%d: kernels of %s need compute capability %d.%d, this GPU has %d.%d: "
                        "use a newer GPU, or the CPU",
                        d->index, family_names[family], family_needs[family] / 10,
                        family_needs[family] % 10, g->capability / 10, g->capability % 10);
    CUresult result = load_cubin(d, e);
    if (result == CUDA_ERROR_NOT_FOUND) {
        char *ptx = dsi_cuda_kernel_ptx(family, e->name, g->launch_early);
        result = g->f->module_load(&e->module, ptx, 2, option, value);
        dsi_free(ptx);
    }
    return result == CUDA_SUCCESS ? DS_OK : refused(d->index, family, result, log);
}

/* FNV-1a of name and suffix together (Fowler, Noll, Vo), 64 bits. */
static size_t hash(const char *name, const char *suffix)
{
    size_t h = 14695981039346656037u;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211u;
    for (const char *p = suffix; *p; p++) h = (h ^ (unsigned char)*p) * 1099511628211u;
    return h;
}

static bool has_name(const Entry *e, const char *name, const char *suffix)
{
    size_t n = strlen(name);
    return !strncmp(e->name, name, n) && !strcmp(e->name + n, suffix);
}

/* The entry of that kernel; NULL with the message. */
static Entry *find_kernel(dsi_device *d, dsi_cuda_family family, const char *name,
                          const char *suffix)
{
    dsi_cuda_gpu *g = d->own;
    if (!g->modules) g->modules = dsi_alloc(sizeof *g->modules);
    Entry *e = &g->modules->entry[hash(name, suffix) % ENTRIES];
    while (e->function && !has_name(e, name, suffix))
        e = e == &g->modules->entry[ENTRIES - 1] ? g->modules->entry : e + 1;
    if (e->function) return e;
    snprintf(e->name, NAME, "%s%s", name, suffix);
    if (load_kernel(d, family, e) != DS_OK) return NULL;
    CUresult result = g->f->module_function(&e->function, e->module, e->name);
    if (result == CUDA_SUCCESS) return e;
    g->f->module_free(e->module);
    e->function = NULL, e->module = NULL;
    dsi_cuda_check(d->index, result, e->name);
    return NULL;
}

static CUresult launch(const dsi_cuda_gpu *g, CUstream stream, CUfunction function,
                       const dsi_cuda_grid *grid, void **argument)
{
    const unsigned *b = grid->blocks, *t = grid->threads;
    CUlaunchAttribute early_start = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                     .value.programmatic = 1};
    CUlaunchConfig config = {.grid = {b[0], b[1], b[2]},
                             .block = {t[0], t[1], t[2]},
                             .shared_bytes = grid->shared,
                             .stream = stream,
                             .attribute = &early_start,
                             .n_attributes = 1};
    if (g->launch_early) return g->launch_early(&config, function, argument, NULL);
    return g->f->launch(function, b[0], b[1], b[2], t[0], t[1], t[2], grid->shared, stream,
                        argument, NULL);
}

/* The driver copies the argument before it returns, so it may be a local
 * variable. Up to 48 KiB of shared memory need no attribute; above, it is set
 * once for each larger size. An error may be an earlier kernel's: the driver
 * reports it at the next call. */
ds_status dsi_cuda_launch(dsi_stream *s, dsi_cuda_family family, const char *name,
                          const char *suffix, dsi_cuda_grid grid, const void *args)
{
    dsi_cuda_gpu *g = dsi_cuda_enter(s->device);
    union {
        const void *in;
        void *out;
    } argument = {.in = args}; /* the driver only reads it */
    if (dsi_cuda_lost(s->device) != DS_OK) return ds_error_status();
    if (!grid.blocks[0] || !grid.blocks[1] || !grid.blocks[2]) return DS_OK;
    Entry *e = find_kernel(s->device, family, name, suffix);
    if (!e) return ds_error_status();
    CUresult result = CUDA_SUCCESS;
    g->fault_is_seen = false;
    if (grid.shared > 48 << 10 && grid.shared > e->shared) {
        result = g->f->function_set(e->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                    (int)grid.shared);
        if (result == CUDA_SUCCESS) e->shared = grid.shared;
    }
    if (result == CUDA_SUCCESS) result = launch(g, s->handle, e->function, &grid, &argument.out);
    return result == CUDA_SUCCESS ? DS_OK : dsi_cuda_check(s->device->index, result, e->name);
}
