/* deepspeed/types.h: failures, element types, shapes, devices, threads, seeds.
 * SPDX-License-Identifier: MIT */
#ifndef DEEPSPEED_TYPES_H
#define DEEPSPEED_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DS_VERSION "0.1.0"

#define DS_API               __attribute__((__visibility__("default")))
#define DS_MUST_CHECK        __attribute__((__warn_unused_result__))
#define DS_PRINTF(at, first) __attribute__((__format__(__printf__, at, first)))

#ifdef __cplusplus
extern "C" {
#endif

/* In options (ds_..._opts) a number that is 0, so one that is not named,
 * selects the default that its comment names; DS_ZERO requests exactly 0:
 *     ds_optim_adam(net, 1e-3, .eps = DS_ZERO)
 * It is the smallest normal double, which no rounding mode flushes to 0; every
 * option of type double whose default is not 0 takes it, except the steps of
 * ds_gradcheck and the capacity of experts, which must be positive. */
#define DS_ZERO 2.2250738585072014e-308

/* ---- failure ------------------------------------------------------------------------------------ */

typedef enum ds_status {
    DS_OK = 0,
    DS_EINVAL = -1,  /* a bad argument, shape or option */
    DS_ENOMEM = -2,  /* no memory for a tensor */
    DS_EIO = -3,     /* a file or the network: open, read, write */
    DS_EFORMAT = -4, /* a file with bad content */
    DS_EDEVICE = -5, /* a device or its driver */
    DS_ECOMM = -6,   /* a communicator or another rank */
    DS_ESTATE = -7   /* a call at the wrong time */
} ds_status;

/* The message of this thread's first failure since ds_error_clear, or NULL if
 * nothing has failed. One line, which begins with the path of the module that
 * was running ("net.fc1: linear: ..."). If others followed, it ends in their
 * number: "... (and 2 more failures)". A call that is given NULL because an
 * earlier one has failed is not counted. Owned by the library; valid until the
 * next failure, the next call of ds_error or ds_error_clear on this thread. */
DS_API const char *ds_error(void);
DS_API ds_status ds_error_status(void); /* of that failure; DS_OK: nothing has failed */
DS_API void ds_error_clear(void);       /* forgets all failures of this thread */
/* perror of this header: prints "program: message" to stderr, the first word in
 * red on a terminal (NO_COLOR is respected). Nothing if nothing has failed. */
DS_API void ds_perror(const char *program);
/* Whether all ranks have that failure with the same message, as after a
 * ds_engine_save that failed on one of them: then one rank's line says it.
 * false if nothing has failed or other failures followed. */
DS_API bool ds_error_is_collective(void);

/* Reports a failure from a type, op or data set that you wrote; returns status
 * (DS_ESTATE in place of DS_OK). format and the arguments after it are
 * printf's; line breaks become '?'. To add context to the failure that there
 * is, quote it: ds_fail(DS_EIO, "vocabulary: %s", ds_error()) is not counted as
 * another. */
DS_API ds_status ds_fail(ds_status status, const char *format, ...) DS_PRINTF(2, 3);

/* ---- element types, shapes ---------------------------------------------------------------------- */

typedef enum ds_dtype {
    DS_F32 = 0,
    DS_F64,
    DS_F16,
    DS_BF16,
    DS_I64,
    DS_I32,
    DS_I16,
    DS_I8,
    DS_U8,
    DS_BOOL
} ds_dtype;

#define DS_DTYPES   10
#define DS_MAX_DIMS 8

/* The bytes of one element; PyTorch's name, static: "float32", "bfloat16". */
DS_API size_t ds_dtype_size(ds_dtype dtype);
DS_API const char *ds_dtype_name(ds_dtype dtype);

/* A shape of n dimensions, d[0] x ... x d[n-1] elements; {0} is that of a
 * scalar. ds_shape(2, 3) makes one. */
typedef struct ds_dims {
    int n;
    int64_t d[DS_MAX_DIMS];
} ds_dims;

#define ds_shape(...) \
    ((ds_dims){(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}})

/* ---- devices, threads, seeds -------------------------------------------------------------------- */

typedef enum ds_device_kind { DS_CPU = 0, DS_CUDA } ds_device_kind;

typedef struct ds_device {
    ds_device_kind kind;
    int index;
} ds_device;

/* Reads "cpu", "cuda" or "cuda:1" into *out; "cuda" is the GPU with this rank's
 * local rank as its number. Refuses another name, and (DS_EDEVICE) a device
 * that is not there. */
DS_API ds_status ds_device_parse(const char *name, ds_device *out);

/* "cpu", "cuda:0"; valid until the second call after it on this thread. */
DS_API const char *ds_device_name(ds_device device);

/* How many devices of that kind there are; 1 for DS_CPU. */
DS_API int ds_device_count(ds_device_kind kind);

/* Sets the device on which this thread makes new tensors
 * (torch.set_default_device); at first the CPU. Refuses (DS_EDEVICE) a device
 * that is not there. */
DS_API ds_status ds_set_device(ds_device device);
DS_API ds_device ds_current_device(void);

/* torch.set_num_threads: how many threads a CPU kernel that this thread calls
 * may use, 1 (at first) to 64; never more run than the process has processors.
 * Results do not depend on it: each sum keeps its order. */
DS_API ds_status ds_set_threads(int n);
DS_API int ds_threads(void);

/* torch.set_flush_denormal: whether this thread's CPU kernels, on their helpers
 * too, take subnormal numbers (below 1.2e-38 in float32, 2.2e-308 in float64)
 * as 0, and write 0 for them. Arithmetic with them is up to a hundred times
 * slower. Off at first. Threads that are started later inherit it; it is of the
 * whole thread, your own arithmetic included. False: this processor has no such
 * mode, and nothing changes. */
DS_API bool ds_set_flush_denormal(bool on);

/* torch.cuda.memory_allocated, max_memory_allocated, reset_peak_memory_stats,
 * for any device: bytes of tensors that this thread has there now, and the most
 * that it had since ds_memory_reset_peak. */
DS_API size_t ds_memory_allocated(ds_device device);
DS_API size_t ds_memory_peak(ds_device device);
DS_API void ds_memory_reset_peak(ds_device device);

/* torch.manual_seed: seeds this thread's generator. It is mt19937, and rand,
 * randn, randint, randperm and the initial values of layers are PyTorch's on
 * the CPU. */
DS_API void ds_seed(uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
