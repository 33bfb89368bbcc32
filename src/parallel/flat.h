/* parallel/flat.h: parameters laid end to end in units, and who owns which part of them.
 *
 * Note [Layout]
 * A model's trained parameters, the last one first, as backward completes their gradients, are dealt out to
 * units: what one collective moves among the ranks that have the same parameters: all of them, or, for experts
 * that ranks share, those of one data group (Note [Experts] of nn/module.h). Each parameter begins at a multiple of DSI_FLAT_ALIGN elements, a unit
 * ends at one of ranks * DSI_FLAT_ALIGN, and is cut into as many slices as there are such ranks:
 *
 *     | fc3.bias fc3.weight fc2.bias .. | fc1.weight                      | ..      2 units,
 *     |  rank 0  |  rank 1  |  rank 2   |  rank 0  |  rank 1   |  rank 2  | ..      3 ranks
 *
 * Rank r owns slice r of every unit; its own buffers (masters, moments, gradients of stages 2 and 3) hold
 * its slices end to end. So gradients are scattered and parameters gathered where they lie, every rank
 * sends as much as the others, and a bucket leaves as soon as its unit is complete. That is also what
 * DeepSpeed's contiguous_gradients and round_robin_gradients are for.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_PARALLEL_FLAT_H
#define DSI_PARALLEL_FLAT_H

#include "tensor/tensor.h"

#include <deepspeed/comm.h>
#include <deepspeed/nn.h>

#define DSI_FLAT_ALIGN 32 /* elements: 64 bytes in 16 bits */

/* Elements offset .. offset + length - 1 of a parameter: what this folder moves between a
 * parameter, its unit, its shard and a file. Whoever has one says where the offset counts from. */
typedef struct dsi_range {
    int param; /* of the layout */
    int64_t offset, length;
} dsi_range;

typedef struct dsi_flat_param {
    ds_tensor *x;       /* the model's, counted */
    int index;          /* of ds_module_param_at, and of the optimizer */
    int unit;           /* it lies in, */
    int64_t at, n;      /* from this element of it on, n elements */
    int64_t begin, end; /* its own elements: all of them, or those in this rank's slice */
    int64_t own_at;     /* where `begin` lies in an own buffer */
} dsi_flat_param;

typedef struct dsi_flat_unit {
    int first, count; /* parameters first .. first + count - 1 */
    bool alone;       /* the one parameter is large: opts.alone */
    int rank, ranks;  /* among those that have these parameters */
    ds_comm *comm;    /* of them; borrowed */
    int64_t n;        /* elements, gaps included */
    int64_t slice;    /* n / ranks */
    int64_t base;     /* elements of the units before it */
    int64_t own_at;   /* where the own slice lies in an own buffer */
} dsi_flat_unit;

typedef struct dsi_flat {
    int rank, ranks; /* of all */
    bool partition;
    bool shared; /* there are units of a data group */
    int n, units;
    dsi_flat_param *param; /* [n] */
    dsi_flat_unit *unit;   /* [units] */
    int64_t total;         /* elements of all units */
    int64_t own;           /* elements of an own buffer: total, or all own slices */
} dsi_flat;

typedef struct dsi_flat_opts {
    int rank, ranks;
    ds_comm *comm;  /* of them; NULL: one rank, or a layout by which nothing is sent */
    bool partition; /* own: the slice; else everything */
    int64_t bucket; /* elements of a unit of several parameters, at most */
    /* A parameter of more than `alone` elements is a unit by itself, and so are those that come after
     * smaller ones of `together` elements in all. INT64_MAX: none is. */
    int64_t alone, together;
} dsi_flat_opts;

/* NULL, with the message, if the model has no parameter that requires a gradient, or they lie on several
 * devices. */
dsi_flat *dsi_flat_new(ds_module *model, const dsi_flat_opts *o);
void dsi_flat_free(dsi_flat *f);

/* Elements [begin, end) of contiguous x as a 1-D tensor on its memory; NULL passes. */
ds_tensor *dsi_flat_range(const ds_tensor *x, int64_t begin, int64_t end);
/* Parameter i within `unit`, a tensor [n] laid out as its unit, with the parameter's shape. */
ds_tensor *dsi_flat_in_unit(const dsi_flat *f, int i, const ds_tensor *unit);
/* The own elements of parameter i within `own`, a tensor [own]: with its shape if it is whole, else 1-D;
 * NULL if there are none. */
ds_tensor *dsi_flat_in_own(const dsi_flat *f, int i, const ds_tensor *own);
/* The same elements within `unit`; within `whole`, a tensor of the parameter's shape; within the parameter. */
ds_tensor *dsi_flat_own_in_unit(const dsi_flat *f, int i, const ds_tensor *unit);
ds_tensor *dsi_flat_own_in(const dsi_flat *f, int i, const ds_tensor *whole);
ds_tensor *dsi_flat_in_param(const dsi_flat *f, int i);

/* Whether parameter i is all of its unit. */
bool dsi_flat_fills_unit(const dsi_flat *f, int i);

/* Which elements of parameter i are the own ones of a rank of its unit. */
void dsi_flat_part_of(const dsi_flat *f, int i, int rank, int64_t *begin, int64_t *end);

/* Rank 0's parameters and buffers everywhere; those of shared experts: of the first rank that has them. What
 * `skip` says, or nothing if it is NULL, is left out. */
ds_status dsi_flat_begin_equal(const ds_module *model, ds_comm *comm,
                               bool (*skip)(const ds_tensor *x));
/* The ranks that have x: comm, or those of its data group. */
ds_comm *dsi_flat_comm_of(const ds_module *model, const ds_tensor *x, ds_comm *comm);

/* Path of parameter i, for messages; valid until the next call. */
const char *dsi_flat_path(const dsi_flat *f, const ds_module *model, int i);

#endif
