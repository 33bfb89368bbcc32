/* tests/gpu/emulator/module.c: modules and launches. The PTX is read for what a
 * driver checks in it (version, target), and for the names and the sizes of
 * arguments of its kernels; the kernels that run are those of the same sources,
 * compiled for the CPU, or (FAKE_CUDA_MACHINE=ptx) that text. A cubin is read for the same: the GPU that it is for,
 * the size of a kernel's argument and its threads.
 *
 * Invariants: a module is its own copy of the PTX or cubin; a function belongs
 * to a module and is freed with it.
 * SPDX-License-Identifier: MIT */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EARLY "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n"

typedef struct Function {
    struct Function *next;
    const void *kernel; /* compiled for the CPU; NULL: its PTX is executed */
    void *machine;      /* the PTX, once it was launched */
    const char *ptx;    /* of its module */
    char name[64];
    size_t bytes;     /* of its argument */
    unsigned threads; /* of a block, at most */
    unsigned shared;  /* dynamic, at most */
    bool waits;       /* its first instructions wait for the kernel before it */
} Function;

typedef struct Module {
    char *ptx;   /* NULL: it is a cubin */
    char *cubin; /* else NULL */
    Function *functions;
} Module;

static long launches, compiled; /* compiled: modules of PTX */
static char last[64];           /* the kernel that was launched last */

long fake_cuda_launches(void) { return launches; }
long fake_cuda_compiled(void) { return compiled; }
const char *fake_cuda_last_kernel(void) { return last; }

static bool executes_ptx(void)
{
    const char *machine = getenv("FAKE_CUDA_MACHINE");
    return machine && !strcmp(machine, "ptx");
}

static CUresult refuse(unsigned n, CUjit_option *option, void **value, const char *why,
                       CUresult result)
{
    for (unsigned i = 0; i < n; i++)
        if (option[i] == CU_JIT_ERROR_LOG_BUFFER) strcpy(value[i], why);
    return result;
}

/* Writes what the driver is given to FAKE_CUDA_PTX/KERNEL.ptx. */
static bool show_ptx(const char *ptx)
{
    static const char entry[] = ".visible .entry ";
    const char *folder = getenv("FAKE_CUDA_PTX"), *kernel = strstr(ptx, entry);
    if (!folder || !kernel) return true;
    char path[4096];
    kernel += sizeof entry - 1;
    snprintf(path, sizeof path, "%s/%.*s.ptx", folder, (int)strcspn(kernel, "("), kernel);
    FILE *f = fopen(path, "w");
    if (!f) return false;
    bool done = fputs(ptx, f) >= 0;
    return fclose(f) == 0 && done;
}

/* The text, changed by FAKE_CUDA_EDIT=KERNEL;OLD;NEW: the first OLD in a kernel
 * whose name begins so. */
static char *edited(const char *ptx)
{
    const char *edit = getenv("FAKE_CUDA_EDIT");
    char kernel[64] = "", was[128] = "", is[128] = "", entry[96];
    if (!edit || sscanf(edit, "%63[^;];%127[^;];%127[^;]", kernel, was, is) != 3)
        return strdup(ptx);
    snprintf(entry, sizeof entry, ".entry %s", kernel);
    const char *from = strstr(ptx, entry), *at = from ? strstr(from, was) : NULL;
    if (!at) return strdup(ptx);
    size_t room = strlen(ptx) + strlen(is) + 1;
    char *text = malloc(room);
    snprintf(text, room, "%.*s%s%s", (int)(at - ptx), ptx, is, at + strlen(was));
    return text;
}

static CUresult load_ptx(Module *m, const char *image, unsigned n, CUjit_option *option,
                         void **value)
{
    const char *version = strstr(image, ".version "), *target = strstr(image, ".target sm_");
    if (!version || !target)
        return refuse(n, option, value, "ptxas fatal : no PTX", CUDA_ERROR_INVALID_PTX);
    int needed = atoi(target + 11);
    bool hopper = target[13] == 'a';
    if (atof(version + 9) > (needed < 90 ? 7.0
                             : hopper    ? 8.0
                                         : 7.8) ||
        (hopper && fake_setting("FAKE_CUDA_VERSION", 12040) < 12000))
        return refuse(n, option, value, "ptxas fatal : unsupported .version",
                      CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    if (needed > fake_capability() || (hopper && needed != fake_capability()))
        return refuse(n, option, value, "", CUDA_ERROR_NO_BINARY_FOR_GPU);
    if (!show_ptx(image))
        return refuse(n, option, value, "FAKE_CUDA_PTX: cannot be written", CUDA_ERROR_INVALID_PTX);
    m->ptx = edited(image);
    __atomic_add_fetch(&compiled, 1, __ATOMIC_SEQ_CST);
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, CUjit_option *option,
                            void **value)
{
    MAY_FAIL();
    NEED(fake_now() >= 0, INVALID_CONTEXT);
    NEED(!fake_is_cubin(image) || !executes_ptx(), NO_BINARY_FOR_GPU);
    Module *m = calloc(1, sizeof *m);
    CUresult result = fake_is_cubin(image) ? fake_cubin_load(image, &m->cubin)
                                           : load_ptx(m, image, n, option, value);
    if (result != CUDA_SUCCESS) {
        free(m);
        return result;
    }
    *module = (CUmodule)m;
    fake_count(1);
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    Module *m = (Module *)module;
    while (m->functions) {
        Function *f = m->functions;
        m->functions = f->next;
        ptx_machine_free(f->machine);
        free(f);
    }
    free(m->ptx);
    free(m->cubin);
    free(m);
    fake_count(-1);
    return CUDA_SUCCESS;
}

/* The entry in the PTX: .visible .entry NAME( .param .align 8 .b8
 * NAME_param_0[SIZE] ) .maxntid N, 1, 1 */
static bool read_entry(const char *ptx, Function *f)
{
    char text[128];
    snprintf(text, sizeof text, ".entry %s(", f->name);
    const char *at = strstr(ptx, text);
    if (!at) return false;
    snprintf(text, sizeof text, "%s_param_0[", f->name);
    const char *bytes = strstr(at, text), *threads = strstr(at, ".maxntid "),
               *end = strchr(at, '{');
    if (!bytes || bytes > end) return false;
    f->bytes = (size_t)atol(bytes + strlen(text));
    f->threads = threads && threads < end ? (unsigned)atoi(threads + 9) : 1024;
    f->waits = !strncmp(end, "{\n" EARLY, sizeof EARLY + 1);
    return true;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    Module *m = (Module *)module;
    Function f = {.next = m->functions, .shared = 48 << 10, .ptx = m->ptx};
    size_t bytes = 0;
    bool own = m->ptx && executes_ptx();
    MAY_FAIL();
    snprintf(f.name, sizeof f.name, "%s", name);
    if (!own) f.kernel = emulator_find(name, &bytes);
    bool is_there = m->ptx ? read_entry(m->ptx, &f)
                           : fake_cubin_read(m->cubin, name, &f.bytes, &f.threads, &f.waits);
    if (!is_there || (!own && (!f.kernel || f.bytes != bytes))) {
        fprintf(stderr, "libcuda of tests: %s: %s\n", name,
                !own && !f.kernel ? "no such kernel in the sources"
                : f.bytes ? "its argument has another size in the module: run scripts/make_ptx"
                          : "it is not in the module: run scripts/make_ptx");
        return CUDA_ERROR_NOT_FOUND;
    }
    m->functions = memcpy(malloc(sizeof f), &f, sizeof f);
    *function = (CUfunction)m->functions;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value)
{
    NEED(which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value <= fake_most_shared(),
         INVALID_VALUE);
    ((Function *)function)->shared = (unsigned)value;
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void **args, void **extra)
{
    MAY_FAIL();
    Function *f = (Function *)function;
    unsigned long long threads = (unsigned long long)block_x * block_y * block_z;
    NEED(!extra && grid_x && grid_y && grid_z && grid_x <= 0x7fffffff && grid_y <= fake_most_yz() &&
             grid_z <= fake_most_yz() && threads && threads <= f->threads && block_z <= 64 &&
             shared_bytes <= f->shared,
         INVALID_VALUE);
    if (fake_setting("FAKE_CUDA_LOG", 0)) fprintf(stderr, "%s\n", f->name);
    fake_lock();
    launches++;
    memcpy(last, f->name, sizeof last);
    fake_unlock();
    fake_work w = {.kind = FAKE_KERNEL,
                   .function = function,
                   .grid = {grid_x, grid_y, grid_z},
                   .block = {block_x, block_y, block_z},
                   .shared = shared_bytes};
    w.own = memcpy(malloc(f->bytes), args[0], f->bytes);
    return fake_submit(stream, w);
}

/* A kernel that may start early must wait for the one before it: its PTX is
 * asked. Here it starts when that one has ended. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **args, void **extra)
{
    NEED(c->n_attributes == 1 &&
             c->attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
             c->attribute->value.programmatic == 1 && ((const Function *)function)->waits,
         INVALID_VALUE);
    NEED(fake_capability() >= 90 && fake_setting("FAKE_CUDA_VERSION", 12040) >= 12030,
         NOT_SUPPORTED);
    return cuLaunchKernel(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                          c->block[2], c->shared_bytes, c->stream, args, extra);
}

size_t fake_argument_bytes(const fake_work *w) { return ((const Function *)w->function)->bytes; }

void fake_run_kernel(const fake_work *w, int gpu)
{
    Function *f = (Function *)w->function;
    if (!f->kernel && !f->machine) f->machine = ptx_machine_load(f->ptx, f->name);
    if (!f->kernel && !f->machine) abort(); /* it says why */
    fake_gates(gpu, true);
    if (f->kernel)
        emulator_run(f->kernel, w->grid, w->block, w->shared, w->own);
    else
        ptx_machine_run(f->machine, w->grid, w->block, w->shared, w->own);
    fake_gates(gpu, false);
}
