/* tools/selftest/trial.h: one kernel call on one device, with operands of given
 * shapes, dtypes and layouts, whose values are the same on each device.
 *
 * A case is a function that asks for its operands and calls an entry of
 * device/kernels.h; trial_run calls it. The first call makes the operands,
 * later ones get the same again.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/device.h"

enum { TRIAL_OPERANDS = 16 };

/* Where the elements of an operand are: without gaps; the first dimension
 * innermost; every second element. */
typedef enum Layout { DENSE, TRANSPOSED, SPACED, N_LAYOUTS } Layout;

typedef struct Operand {
    dsi_view view;
    void *block;         /* on the device */
    void *image;         /* on the host: what the block holds before the call */
    void *fresh, *first; /* of outputs, on the device: the image; the first results. Or NULL */
    size_t bytes;
    bool output;
} Operand;

typedef struct Trial {
    dsi_device *device;
    const struct Trial *like; /* has the same images, and lives longer; or NULL */
    ds_dtype dtype;
    Layout layout;
    bool big; /* sizes to measure time, not those that only cross the edges of tiles */
    uint64_t random;
    int n, made;
    bool missing; /* the device has no such kernel */
    Operand operand[TRIAL_OPERANDS];
} Trial;

typedef ds_status TrialBody(Trial *t);

/* Operands of the trial's dtype and layout; the last arguments are the
 * dimensions. Values are -1 to 1. */
#define DIMS(...) \
    ((dsi_view){.n = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .d = {__VA_ARGS__}})
#define IN(t, ...)    trial_operand(t, (t)->dtype, (t)->layout, -1, 1, false, DIMS(__VA_ARGS__))
#define OUT(t, ...)   trial_operand(t, (t)->dtype, (t)->layout, 0, 0, true, DIMS(__VA_ARGS__))
#define INOUT(t, ...) trial_operand(t, (t)->dtype, DENSE, 0, 1, true, DIMS(__VA_ARGS__))
/* float32 beside 16 bits, without gaps: 0.5 to 1.5 */
#define STATS(t, ...)     trial_operand(t, trial_wide(t), DENSE, 0.5, 1.5, false, DIMS(__VA_ARGS__))
#define OUT_STATS(t, ...) trial_operand(t, trial_wide(t), DENSE, 0, 0, true, DIMS(__VA_ARGS__))
/* integers 0 .. high - 1; the index of a kernel's output */
#define INDEX(t, high, ...)     trial_operand(t, DS_I64, DENSE, 0, high, false, DIMS(__VA_ARGS__))
#define OUT_INDEX(t, type, ...) trial_operand(t, type, DENSE, 0, 0, true, DIMS(__VA_ARGS__))
#define BOOLS(t, ...)           trial_operand(t, DS_BOOL, DENSE, 0, 2, false, DIMS(__VA_ARGS__))

#define ABSENT ((dsi_view){.p = NULL})

/* Calls an entry of the core, or of the fusions. */
#define CALL(t, entry, ...) \
    ((t)->device->kernels->entry ? (t)->device->kernels->entry(&(t)->device->stream, __VA_ARGS__) \
                                 : trial_missing(t))
#define CALL_FUSION(t, entry, ...) \
    ((t)->device->own_fusions && (t)->device->own_fusions->entry \
         ? (t)->device->own_fusions->entry(&(t)->device->stream, __VA_ARGS__) \
         : trial_missing(t))

dsi_view trial_operand(Trial *t, ds_dtype dtype, Layout layout, double low, double high,
                       bool output, dsi_view dims);
ds_dtype trial_wide(const Trial *t);
ds_status trial_missing(Trial *t);

/* Calls the body. */
ds_status trial_run(Trial *t, TrialBody *body);

/* Calls the body n times more, with what the operands held at first: whether
 * each time all outputs have the bytes that they have now, those of gaps too.
 * They are compared on the device, by kernels that have cases of their own. */
bool trial_repeats(Trial *t, TrialBody *body, int n);

/* The largest difference of the outputs, relative to the largest number of each
 * output; INFINITY if an integer differs, only one is NaN, or bytes between
 * elements were written. -1 with the message if an output cannot be read. */
double trial_difference(Trial *got, Trial *want);

void trial_end(Trial *t); /* frees the operands */
