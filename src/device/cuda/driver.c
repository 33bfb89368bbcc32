/* device/cuda/driver.c: see driver.h. The reason why it cannot start is found
 * once, and given to each caller.
 *
 * Invariants: `driver` is written by driver_open_once alone, and only read
 * after pthread_once has returned; so it needs no lock. count is above 0 only
 * if every function was found and cuInit succeeded. `why` is empty exactly
 * then. The library stays open until the process ends.
 * SPDX-License-Identifier: MIT */
#include "driver.h"

#include "base/error.h"
#include "base/library.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME(ours, symbol, args) #symbol,
static const char *const names[] = {DSI_CUDA_FUNCTIONS(NAME)};
static const char *const sonames[] = {"libcuda.so.1", NULL};

#define N_NAMES      (int)(sizeof names / sizeof *names)
#define WHY_BYTES    512
#define NEEDED       11040        /* has graphs, memory pools, and takes our PTX */
#define EARLY        12030        /* starts kernels early in graphs */
#define MAJOR(v)     ((v) / 1000) /* 12040 is CUDA 12.4 */
#define MINOR(v)     ((v) % 1000 / 10)
#define PACKAGE      "with NVIDIA's driver (Debian: libcuda1), or use the CPU"
#define UNSET_TO_SEE "CUDA_VISIBLE_DEVICES is \"%s\": unset it to see all"

static struct {
    pthread_once_t once;
    dsi_cuda_driver f;
    cuda_launch_early *launch_early; /* NULL: an older driver */
    int version, count, most_yz;
    char why[WHY_BYTES]; /* if count is 0 */
} driver = {.once = PTHREAD_ONCE_INIT};

/* Sets the reason why there is no device. It is no error yet: a program that
 * does not ask for a GPU never sees it. */
static void why(const char *format, ...) DS_PRINTF(1, 2);
static void why(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(driver.why, sizeof driver.why, format, args);
    va_end(args);
}

/* dsi_library_open, whose message becomes the reason why there is no device. */
static bool open_functions(const char *const *name, int n, void *to)
{
    int before = dsi_error_count();
    if (dsi_library_open("no NVIDIA driver", sonames, PACKAGE, name, n, to)) return true;
    why("%s", dsi_error_latest());
    dsi_error_forget(before);
    return false;
}

/* cuDriverGetVersion, asked for alone: an older driver may lack other names. */
static bool new_enough(void)
{
    static const char *const name = "cuDriverGetVersion";
    CUresult (*ask)(int *version);
    if (!open_functions(&name, 1, &ask)) return false;
    ask(&driver.version);
    if (driver.version >= NEEDED) return true;
    why("the NVIDIA driver is for CUDA %d.%d, and %d.%d or newer is needed: install a newer "
        "driver, or use the CPU",
        MAJOR(driver.version), MINOR(driver.version), MAJOR(NEEDED), MINOR(NEEDED));
    return false;
}

/* No GPU is mostly one of two mistakes: the variable hides them all (an empty
 * value does), or a container was started without access to them. */
static void say_no_gpu(const char *error)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible)
        why("the NVIDIA driver shows no GPU (%s); " UNSET_TO_SEE, error, visible);
    else
        why("the NVIDIA driver finds no GPU (%s): in a container, start it with --gpus all; else "
            "use the CPU",
            error);
}

/* It is the same of all GPUs. */
static CUresult ask_most_yz(void)
{
    int y = 0, z = 0;
    CUresult result = driver.f.device_attribute(&y, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 0);
    if (result == CUDA_SUCCESS)
        result = driver.f.device_attribute(&z, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 0);
    driver.most_yz = y < z ? y : z;
    return result;
}

/* Looks up cuDriverGetVersion, then all functions, then starts the driver. The
 * order gives the best reason: too old, before a name is missing. */
static void driver_open_once(void)
{
    static const char *const early = "cuLaunchKernelEx";
    if (!new_enough() || !open_functions(names, N_NAMES, &driver.f)) return;
    if (driver.version >= EARLY && !open_functions(&early, 1, &driver.launch_early)) return;
    CUresult result = driver.f.init(0);
    if (result == CUDA_SUCCESS) result = driver.f.device_count(&driver.count);
    if (result == CUDA_SUCCESS && driver.count) result = ask_most_yz();
    const char *error = "an error without a name", *text = "?";
    if (result != CUDA_SUCCESS) {
        driver.count = 0;
        driver.f.error_name(result, &error);
        driver.f.error_text(result, &text);
    }
    if (result == CUDA_ERROR_NO_DEVICE || (result == CUDA_SUCCESS && !driver.count))
        say_no_gpu(result ? error : "it counts 0");
    else if (result != CUDA_SUCCESS)
        why("the NVIDIA driver does not start: %s (%s); see what nvidia-smi says, or use the CPU",
            text, error);
}

/* The first call takes as long as cuInit; threads that call meanwhile wait for
 * it. */
const dsi_cuda_driver *dsi_cuda_open(void)
{
    pthread_once(&driver.once, driver_open_once);
    return driver.count ? &driver.f : NULL;
}

int dsi_cuda_count(void) { return dsi_cuda_open() ? driver.count : 0; }

int dsi_cuda_version(void) { return dsi_cuda_open() ? driver.version : 0; }

int64_t dsi_cuda_most_yz(void) { return dsi_cuda_open() ? driver.most_yz : 0; }

cuda_launch_early *dsi_cuda_launch_early(void)
{
    return dsi_cuda_open() ? driver.launch_early : NULL;
}

const char *dsi_cuda_why_none(void)
{
    dsi_cuda_open();
    return driver.why;
}

ds_status dsi_cuda_check(int index, CUresult result, const char *what)
{
    const char *name = NULL, *text = NULL;
    if (result == CUDA_SUCCESS) return DS_OK;
    driver.f.error_name(result, &name);
    driver.f.error_text(result, &text);
    return dsi_fail(DS_EDEVICE, "cuda:%d: %s: %s (%s)", index, what, text ? text : "unknown error",
                    name ? name : "an error without a name");
}
