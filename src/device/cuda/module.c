/* device/cuda/module.c: kernels: a kernel's part of its family's PTX is handed
 * to the driver, which compiles it for the GPU, at its first launch. A family
 * as a whole would take the driver seconds, most of them for kernels that the
 * program does not use.
 *
 * Invariants: a thread's handle on a GPU has its own modules, one a kernel,
 * which are unloaded when it closes. The table of kernels is never full: it has
 * more entries than there are kernels.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

#include "base/error.h"
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

/* ---- a kernel's part of the PTX ---- */

static const char *next_line(const char *p)
{
    const char *end = strchr(p, '\n');
    return end ? end + 1 : p + strlen(p);
}

static bool line_is(const char *p, char c) { return p[0] == c && (p[1] == '\n' || !p[1]); }

/* Past the kernel that begins at p: braces of blocks are lines of their own. */
static const char *kernel_end(const char *p)
{
    int depth = 0;
    bool closes = false;
    for (; *p && !closes; p = next_line(p)) {
        depth += line_is(p, '{') - line_is(p, '}');
        closes = !depth && line_is(p, '}');
    }
    return p;
}

static char *put(char *to, const char *p, const char *end)
{
    memcpy(to, p, (size_t)(end - p));
    return to + (end - p);
}

/* A kernel's first instructions where it may start early: the next kernel may
 * start its blocks when all blocks of this one have started, and none of them reads
 * or writes before the kernel before has ended. So a kernel's start costs
 * nothing, and the order of all that they do is that of the stream: a kernel
 * ends after it has waited for the one before it. */
static const char early[] = "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n";
static const char early_version[] = ".version 7.8\n", early_target[] = ".target sm_90\n";

/* A line that is no kernel's: the header asks for what `early` needs. */
static char *put_common(char *to, const char *p, const char *end, bool newer)
{
    if (newer && !strncmp(p, ".version ", 9))
        p = early_version, end = p + sizeof early_version - 1;
    else if (newer && !strncmp(p, ".target ", 8))
        p = early_target, end = p + sizeof early_target - 1;
    return put(to, p, end);
}

static char *put_kernel(char *to, const char *p, const char *end, bool starts_early)
{
    const char *body = p;
    while (!line_is(body, '{')) body = next_line(body);
    to = put(to, p, next_line(body));
    if (starts_early) to = put(to, early, early + sizeof early - 1);
    return put(to, next_line(body), end);
}

/* A family's PTX without its other kernels; dsi_free it. What is not a kernel is
 * common to all. PTX for sm_90a is new enough to start early as it is. */
static char *kernel_ptx(const char *ptx, const char *name, bool starts_early)
{
    static const char begin[] = ".visible .entry ";
    size_t n = strlen(name);
    bool newer = starts_early && !strstr(ptx, "\n.target sm_90a\n");
    char *out = dsi_alloc(strlen(ptx) + sizeof early + sizeof early_version + sizeof early_target),
         *to = out;
    for (const char *p = ptx, *end; *p; p = end) {
        bool kernel = !strncmp(p, begin, sizeof begin - 1);
        const char *its = p + sizeof begin - 1;
        end = kernel ? kernel_end(p) : next_line(p);
        if (!kernel)
            to = put_common(to, p, end, newer);
        else if (!strncmp(its, name, n) && its[n] == '(')
            to = put_kernel(to, p, end, starts_early);
    }
    return out;
}

/* Compiling takes up to a tenth of a second at a kernel's first launch, unless
 * the driver has it in its own cache (~/.nv). */
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
    char *ptx = kernel_ptx(dsi_cuda_ptx[family], e->name, g->launch_early);
    CUresult result = g->f->module_load(&e->module, ptx, 2, option, value);
    dsi_free(ptx);
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
