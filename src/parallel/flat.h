/* parallel/flat.h: parameters laid end to end in units, and which shard of each
 * unit belongs to which rank.
 *
 * Note [Layout] A model's trained parameters are put into units, the last
 * parameter first, in the order in which backward completes their gradients. A
 * unit is what one collective moves among the ranks that have the same
 * parameters: all ranks, or, for experts that ranks share, those of one data
 * group (Note [Experts] of nn/module.h). Each parameter begins at a multiple of
 * DSI_FLAT_ALIGN elements. A unit ends at a multiple of ranks * DSI_FLAT_ALIGN
 * and is cut into as many shards of `shard_size` elements as there are ranks:
 *
 *     | fc3.bias fc3.weight fc2.bias .. | fc1.weight                      | ..      2 units,
 *     |  rank 0  |  rank 1  |  rank 2   |  rank 0  |  rank 1   |  rank 2  | ..      3 ranks
 *
 * Rank r has shard r of every unit. Its flat buffers (masters, moments,
 * gradients of stages 2 and 3) hold its shards end to end. So gradients are
 * scattered and parameters gathered in place, every rank sends as much as the
 * others, and a bucket is sent as soon as its unit is complete. DeepSpeed's
 * contiguous_gradients and round_robin_gradients have the same purpose.
 *
 * An optimizer that needs whole parameters (Muon, LAMB) has gaps at the end of
 * shards, so that no parameter crosses from one into the next: a unit is as
 * many times as long as its longest shard as there are ranks. Units of many
 * parameters lose little by that. A parameter that is a unit by itself is cut
 * all the same (zero_whole.c).
 *
 * Invariants:
 * - Indices: i is a parameter of the layout, `index` the same one in the module
 *   and the optimizer, k a unit.
 * - Places: `at` counts from the beginning of the unit, `owned_at` from that of
 *   this rank's flat buffers, begin and end from that of the parameter. All in
 *   elements.
 * - A layout does not change after it was made. Without `partition` every rank
 *   has all elements, and a flat buffer has the units end to end.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "tensor/tensor.h"

#include <deepspeed/comm.h>
#include <deepspeed/nn.h>

#define DSI_FLAT_ALIGN 32 /* elements: 64 bytes in 16 bits */

/* Elements offset .. offset + length - 1 of a parameter: what this folder moves
 * between a parameter, its unit, its shard and a file. Its user says where the
 * offset counts from. */
typedef struct dsi_range {
    int param; /* of the layout */
    int64_t offset, length;
} dsi_range;

typedef struct dsi_flat_param {
    ds_tensor *x;       /* the model's, counted */
    int index;          /* of ds_module_param_at, and of the optimizer */
    int unit;           /* that it is in, */
    int64_t at, n;      /* at this element of the unit; its elements */
    int64_t begin, end; /* this rank's elements: all, or those in its shard of the unit */
    int64_t owned_at;   /* place of `begin` in this rank's flat buffers */
} dsi_flat_param;

typedef struct dsi_flat_unit {
    int first, count;   /* parameters first .. first + count - 1 */
    bool solo;          /* one parameter, above a threshold of the options */
    int rank, ranks;    /* among those that have these parameters */
    ds_comm *comm;      /* of them; borrowed */
    int64_t n;          /* elements, gaps included */
    int64_t shard_size; /* elements of a shard: n / ranks */
    int64_t base;       /* elements of the units before it */
    int64_t owned_at;   /* place of this rank's shard in its flat buffers */
} dsi_flat_unit;

typedef struct dsi_flat {
    int rank, ranks; /* of all */
    bool partition;
    bool shared; /* there are units of a data group */
    int n, units;
    dsi_flat_param *param; /* [n] */
    dsi_flat_unit *unit;   /* [units] */
    int64_t total;         /* elements of all units */
    int64_t owned;         /* elements of a flat buffer: total, or those of this rank's shards */
} dsi_flat;

typedef struct dsi_flat_opts {
    int rank, ranks;
    ds_comm *comm;  /* of them; NULL: one rank, or a layout by which nothing is sent */
    bool partition; /* a rank has its shards; else everything */
    bool whole;     /* a unit of several parameters cuts none: each is in one shard */
    int64_t bucket; /* elements of a unit of several parameters, at most */
    /* A parameter of more than solo_threshold elements is a unit by itself, and
     * so are those that come after smaller ones of small_total_threshold
     * elements in all. INT64_MAX: none is. */
    int64_t solo_threshold, small_total_threshold;
} dsi_flat_opts;

/* NULL, with the message, if the model has no parameter that requires a
 * gradient, or they are on several
 * devices. */
dsi_flat *dsi_flat_new(ds_module *model, const dsi_flat_opts *o);
void dsi_flat_free(dsi_flat *f);

/* Elements [begin, end) of contiguous x as a 1-D tensor on its memory; NULL
 * passes. */
DSI_SHARED ds_tensor *dsi_flat_range(const ds_tensor *x, int64_t begin, int64_t end);
/* Parameter i within `unit`, a tensor [n] laid out as its unit, with the
 * parameter's shape. */
ds_tensor *dsi_flat_in_unit(const dsi_flat *f, int i, const ds_tensor *unit);
/* This rank's elements of parameter i within `owned`, a flat buffer [owned]:
 * with its shape if they are all, else 1-D; NULL if there are none. */
ds_tensor *dsi_flat_in_owned(const dsi_flat *f, int i, const ds_tensor *owned);
/* The same elements within `unit`; within `whole`, a tensor of the parameter's
 * shape; within the parameter. */
ds_tensor *dsi_flat_owned_in_unit(const dsi_flat *f, int i, const ds_tensor *unit);
ds_tensor *dsi_flat_owned_in(const dsi_flat *f, int i, const ds_tensor *whole);
ds_tensor *dsi_flat_in_param(const dsi_flat *f, int i);

/* Whether parameter i is all of its unit. */
bool dsi_flat_fills_unit(const dsi_flat *f, int i);

/* Which elements of parameter i are in the shard of a rank of its unit. */
void dsi_flat_shard_range(const dsi_flat *f, int i, int rank, int64_t *begin, int64_t *end);

/* Broadcasts rank 0's parameters and buffers; those of shared experts from the
 * first rank that has them. Tensors for which `skip` is true are left out;
 * NULL: none. */
ds_status dsi_flat_begin_equal(const ds_module *model, ds_comm *comm,
                               bool (*skip)(const ds_tensor *x));
/* The ranks that have x: comm, or those of its data group. */
ds_comm *dsi_flat_comm_of(const ds_module *model, const ds_tensor *x, ds_comm *comm);

/* Path of parameter i, for messages; valid until the next call. */
const char *dsi_flat_path(const dsi_flat *f, const ds_module *model, int i);
