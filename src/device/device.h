/* device/device.h: what a device must be able to do, and the tensor storage
 * that it gives.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "kernels.h"

/* A point in a stream's order; all 0 at first. */
typedef struct dsi_event {
    void *handle;
} dsi_event;

/* A check that a host makes while it waits for a device, `waited` seconds after
 * it began to wait: whether the work that it waits for can still end. A failure
 * ends the wait. */
typedef struct dsi_device_watch {
    ds_status (*check)(struct dsi_device_watch *w, double waited);
    struct dsi_device_watch *next;
} dsi_device_watch;

/* One const struct a kind of device: dsi_cpu; dsi_cuda. Typed members, so that
 * the compiler checks them. */
typedef struct dsi_device_type {
    const char *name; /* "cpu", "cuda" */
    ds_device_kind kind;
    int channels_last_from; /* channels of a convolution's output, from which its kernels like
                               them innermost, if they are a multiple of 8 */
    size_t slab_bytes;      /* small blocks are cut from slabs of this size; 0: none are */
    int (*count)(void);     /* 0: none here */
    const char *(*why_none)(void); /* then: one line; NULL for a kind that every machine has */
    ds_status (*describe)(int index, char *text, size_t size); /* optional: name, size */
    ds_status (*open)(dsi_device *d, int index);               /* sets d->kernels, d->own_fusions */
    void (*close)(dsi_device *d);
    void *(*alloc)(dsi_device *d, size_t bytes); /* 64-byte aligned; NULL: full, or broken */
    void (*free)(dsi_device *d, void *p);
    ds_status (*room)(dsi_device *d, size_t *unused, size_t *all); /* bytes; optional; it says
                                                                      that a device is broken */
    void *(*alloc_host)(dsi_device *d, size_t bytes); /* pinned: its copies need no detour */
    void (*free_host)(dsi_device *d, void *p);
    /* host may be written again on return; ordered on s */
    ds_status (*copy_in)(dsi_stream *s, void *dst, const void *host, size_t bytes);
    /* finished on return */
    ds_status (*copy_out)(dsi_stream *s, void *host, const void *src, size_t bytes);
    /* from a device of this kind, another one or the same; ordered on s, and
     * between two devices on the stream of `from` too */
    ds_status (*copy)(dsi_stream *s, void *dst, dsi_device *from, const void *src, size_t bytes);
    ds_status (*record)(dsi_stream *s, dsi_event *e); /* may be recorded again */
    ds_status (*wait)(dsi_stream *s, dsi_event *e);   /* s, for what was recorded */
    void (*free_event)(dsi_device *d, dsi_event *e);  /* frees what record made */
    ds_status (*sync)(dsi_stream *s);
    /* Waits for s, or, if not `all`, for what may set the fault flag; it ->
     * *out; clears it. NULL: kernels set none. */
    ds_status (*take_fault)(dsi_stream *s, bool all, dsi_fault *out);
    /* ---- work beside that of the stream: all of these or none ---- */
    ds_status (*stream_open)(dsi_device *d,
                             dsi_stream *out); /* ordered with others by events alone */
    void (*stream_close)(dsi_stream *s);       /* its work has ended */
    ds_status (*reached)(dsi_stream *s, const dsi_event *e, bool *out); /* does not wait */
    /* Copies to and from pinned memory that are only queued: it stays as it is,
     * or unread, until s is through with them. */
    ds_status (*queue_in)(dsi_stream *s, void *dst, const void *pinned, size_t bytes);
    ds_status (*queue_out)(dsi_stream *s, void *pinned, const void *src, size_t bytes);
    ds_status (*identify)(const dsi_device *d, char *text, size_t size); /* the hardware behind it,
                                                                            unlike any other of this
                                                                            machine */
    /* ---- recorded work (graph.h): all of these or none ---- */
    void *(*alloc_fixed)(dsi_device *d, size_t bytes); /* not ordered on the stream, also while
                                                          work is captured */
    void (*free_fixed)(dsi_device *d, void *p);        /* waits for the device */
    /* Between these two, work is kept and not done. *work: what was captured;
     * NULL without `keep`, and after a failure. */
    ds_status (*capture_begin)(dsi_stream *s);
    ds_status (*capture_end)(dsi_stream *s, bool keep, void **work);
    /* Copies `bytes` from host to `slots`, then does the work; the host's
     * memory may be written again when it returns. */
    ds_status (*graph_launch)(dsi_stream *s, void *work, void *slots, const void *host,
                              size_t bytes);
    void (*graph_free)(dsi_device *d, void *work);
    /* For self-tests: runs one instruction that kernels use, by its name.
     * Optional. */
    ds_status (*probe)(dsi_stream *s, const char *name, void *memory);
    bool immediate; /* a kernel's work is done when it returns: ops look at the
                       flag right after it */
} dsi_device_type;

/* X(member, name): launch fusions: a GPU's small launch waits for the next one,
 * or a graph, and becomes one launch with it; DS_FUSIONS=-name disables one. */
#define DSI_LAUNCH_FUSIONS(X) \
    X(RELU, relu)                     /* a product, and its activation or ReLU's gradient */ \
    X(PAIR, pair)                     /* two or three products, also gate times up */ \
    X(CONV_POOL, conv_pool)           /* a convolution, and max-pooling of it */ \
    X(ENTROPY, entropy)               /* a cross entropy, and its gradient */ \
    X(LINEAR_ENTROPY, linear_entropy) /* the layer before it, and its gradients */ \
    X(CONV_STEP, conv_step)           /* the backward of a convolution, and SGD's step */ \
    X(NORM, norm)                     /* a sum of two, and the norms around it */ \
    X(KEPT, kept)                     /* the copy of a kept loss, and the next batch */ \
    X(BATCH, batch)                   /* a batch, and the graph of its step */

#define DSI_FUSE_PLACE(member, name) DSI_FUSE_AT_##member,
#define DSI_FUSE_BIT(member, name)   DSI_FUSE_##member = 1 << DSI_FUSE_AT_##member,
enum { DSI_LAUNCH_FUSIONS(DSI_FUSE_PLACE) DSI_N_LAUNCH_FUSIONS };
enum { DSI_LAUNCH_FUSIONS(DSI_FUSE_BIT) DSI_FUSE_ALL = (1 << DSI_N_LAUNCH_FUSIONS) - 1 };

struct dsi_device {
    const dsi_device_type *type;
    int index;
    const dsi_kernels *kernels;      /* that ops call: own_kernels, or those that
                                       observe them (observe.h) */
    const dsi_fusions *fusions;      /* the same; never NULL */
    const dsi_kernels *own_kernels;  /* of its kind */
    const dsi_fusions *own_fusions;  /* of its kind; NULL: none */
    const dsi_fusions *used_fusions; /* those, or a table of NULLs where they are
                                        switched off */
    int launch_fusions; /* DSI_FUSE_...: those that are enabled; 0: each launch is alone */
    struct dsi_observed_tables *observed; /* once the thread was observed */
    dsi_fault fault;                      /* the flag, where kernels run on the host */
    void *own;                            /* of its kind */
    dsi_stream stream;                    /* of this thread */
    struct dsi_cache *cache;
    struct dsi_spare *spares;    /* what allocations may ask back */
    dsi_device_watch *watches;   /* what waits of the host look at */
    struct dsi_graph *recording; /* graph.h: the graph that a step is recorded for; NULL: none */
    int64_t recordings;          /* begun so far */
    int64_t replays;             /* of its graphs, so far, except of a token's (decode.c) */
    struct dsi_graph *fed;       /* graph.h: the graph whose inputs get values; NULL: none */
    struct dsi_step_collectives *collectives; /* graph.h: of the step that runs; NULL: none does */
};

/* This thread's handle on a device, opened at first use; NULL with the message
 * if there is none. */
DSI_SHARED dsi_device *dsi_device_get(ds_device which);
dsi_device *dsi_device_current(void);
ds_device dsi_device_id(const dsi_device *d);

extern const dsi_device_type dsi_cpu, dsi_cuda; /* the latter where DSI_HAVE_CUDA */

/* One line about a device that is there, without opening it: "NVIDIA H100, 79.6
 * GB, ..." */
DSI_SHARED ds_status dsi_device_describe(ds_device which, char *text, size_t room);
DSI_SHARED bool dsi_device_built(ds_device_kind kind); /* this build knows the kind */
/* Why there is none of a kind, in one line, if ds_device_count is 0. */
DSI_SHARED const char *dsi_device_why_none(ds_device_kind kind);

/* dsi_observed has changed: this thread's devices get other tables. */
void dsi_devices_observe(void);

/* For tests: to this thread `type` is from now on the one of its kind; NULL: as
 * it was. No device of that kind is
 * open. */
void dsi_device_pretend(const dsi_device_type *type);

/* ---- device/cache.c: storage of this thread on a device, freed blocks kept for the next step -------- */

/* At least `bytes` bytes, 64-byte aligned; 64 bytes behind them may be read
 * too, by a vector at the end. NULL, with DS_ENOMEM and the sizes in the
 * message, if it does not fit. */
DSI_SHARED void *dsi_cache_alloc(dsi_device *d, size_t bytes);
/* The same for a tensor, which the message names. */
void *dsi_cache_alloc_for(dsi_device *d, size_t bytes, ds_dtype dtype, const ds_dims *shape);
DSI_SHARED void dsi_cache_free(dsi_device *d, void *p, size_t bytes); /* bytes as asked for */
void dsi_cache_empty(dsi_device *d);                                  /* gives unused blocks back */

/* Memory in use that its owner can do without: before an allocation of this
 * thread fails for want of memory, `release` frees it. It is not in the list
 * any more then. */
typedef struct dsi_spare {
    void (*release)(void *arg);
    void *arg;
    struct dsi_spare *next; /* of the device's */
} dsi_spare;
void dsi_spare_add(dsi_device *d, dsi_spare *s);    /* borrowed until it is removed or released */
void dsi_spare_remove(dsi_device *d, dsi_spare *s); /* not in the list: nothing */
DSI_SHARED size_t dsi_cache_live(const dsi_device *d); /* bytes asked for and not freed */
size_t dsi_cache_peak(const dsi_device *d);
void dsi_cache_reset_peak(dsi_device *d); /* the peak is what is live now */

/* A pool: blocks that only those get who allocate while the device uses it
 * (dsi_pool_use), each at the same address as long as the pool lives. A block
 * that is freed returns to its pool, also outside of dsi_pool_use. Freeing the
 * pool frees its unused blocks, and the others when they are freed. */
typedef struct dsi_block_pool dsi_block_pool;
dsi_block_pool *dsi_pool_new(dsi_device *d);
void dsi_pool_free(dsi_block_pool *pool);
void dsi_pool_use(dsi_device *d, dsi_block_pool *pool); /* NULL: the cache again */
/* Whether the block at p was taken from the pool since dsi_pool_use. */
bool dsi_pool_took(const dsi_block_pool *pool, const void *p);

/* Bytes for reports: asked for and not freed; in blocks of ours, used or free;
 * and the most that both were since dsi_cache_restart_peaks (which leaves
 * dsi_cache_peak alone). */
typedef struct dsi_cache_usage {
    size_t live, peak_live, held, peak_held;
} dsi_cache_usage;
dsi_cache_usage dsi_cache_use(const dsi_device *d);
void dsi_cache_restart_peaks(dsi_device *d);

/* All three peaks, and back: around a measurement whose memory is not the
 * program's own use. */
typedef struct dsi_cache_peaks {
    size_t peak, peak_live, peak_held;
} dsi_cache_peaks;
dsi_cache_peaks dsi_cache_get_peaks(const dsi_device *d);
void dsi_cache_set_peaks(dsi_device *d, dsi_cache_peaks peaks); /* none below what is there now */

/* Fault injection for tests: the n-th allocation from now on fails, and every
 * one after it when `always`; 0 switches it off. Also DS_FAIL_ALLOC=n in the
 * environment. Returns allocations seen. */
int64_t dsi_cache_fail(int64_t n, bool always);

/* Scratch memory of one kernel call on the CPU: a piece of a block that grows
 * and stays. Released, last taken first, before the kernel returns. NULL with
 * the message if it does not fit. */
void *dsi_scratch(dsi_stream *s, size_t bytes);
void dsi_scratch_release(dsi_stream *s, void *p);

/* ---- running a kernel ---------------------------------------------------------------------------------- */

ds_status dsi_no_kernel(const dsi_device *d, ds_dtype dtype, const char *kernel);

/* The device's entry of that name in dsi_fusions; NULL: the caller runs the
 * composition of core kernels. */
#define dsi_fusion(device, name) ((device)->fusions->name)

/* For tests: this thread's devices use their fusions, or do as if they had
 * none; ALONE: they do, but without launch fusions. DS_FUSIONS does it for a
 * whole program. */
typedef enum dsi_fusions_use { DSI_FUSIONS_OFF, DSI_FUSIONS_ON, DSI_FUSIONS_ALONE } dsi_fusions_use;
void dsi_device_set_fusions(dsi_fusions_use use);
/* ON, without these launch fusions (DSI_FUSE_...), from now on. */
void dsi_device_disable_launch_fusions(int fusions);

/* Reports the device's fault flag, after waiting for its kernels, and clears
 * it: DS_EINVAL, and a message that names the op, the place and the value.
 * Called where the host waits anyway (ds_item, ds_data, copies to the host). */
ds_status dsi_device_check(dsi_device *d);

/* The same before an optimizer's step, which must not use gradients that a
 * fault has spoilt; it need not wait for work that sets none. */
ds_status dsi_device_check_faults(dsi_device *d);

/* The same where it costs nothing: right after a kernel of an immediate device. */
static inline ds_status dsi_device_check_early(dsi_device *d)
{
    return d->type->immediate ? dsi_device_check(d) : DS_OK;
}
