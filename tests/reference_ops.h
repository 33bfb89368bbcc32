/* tests/reference_ops.h: a driver over reference cases of ops and layers.
 *
 * A program has a table of rows, one an op: how to call it from a case's
 * tensors and attributes, which it finds under torch's names:
 *
 *     static ds_tensor *call_flip(OpRun *run)
 *     {
 *         return ds_flip(op_input(run, "input"), reference_dims(run->attrs, "dims"));
 *     }
 *     static const OpRow rows[] = {{"flip", call_flip, "dims"}};
 *
 * The driver calls the op, compares every output and every gradient with the
 * case's, and wants a refusal where the case has one. The list of ops-next says
 * which program has an op: a case of an op without a row is skipped by name.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "reference.h"

#include <deepspeed/ops.h>

typedef struct OpRun {
    Reference *r;
    const json_t *attrs;
    ds_state *outputs; /* what the call returned, by name */
} OpRun;

typedef struct OpRow {
    const char *op;
    /* The output called "output"; NULL if the op refuses. */
    ds_tensor *(*call)(OpRun *run);
    const char *attrs; /* the attributes that it reads */
} OpRow;

/* One case: values, gradients, or the refusal. */
void reference_op(Reference *r, const OpRow *rows, int n);

/* The cases of family ops-next whose ops the list gives to `program`
 * ("layers"); the number of failed ones. */
int reference_ops_next(const char *program, const OpRow *rows, int n);

/* ---- for a row's call -------------------------------------------------------------------------------- */

/* An input of the case, in memory as PyTorch had it; NULL if there is none. */
ds_tensor *op_input(OpRun *run, const char *name);

/* Sets another output than "output"; x may be NULL. Returns x. */
ds_tensor *op_output(OpRun *run, const char *name, ds_tensor *x);

/* Whether the case has the attribute; its value, or `absent`. */
bool op_has(OpRun *run, const char *key);
int64_t op_int(OpRun *run, const char *key, int64_t absent);
double op_number(OpRun *run, const char *key, double absent);
bool op_bool(OpRun *run, const char *key, bool absent);
ds_reduction op_reduction(OpRun *run);
/* An option of which 0 selects the default: DS_ZERO for a given 0, 0 if it is
 * absent. */
double op_option(OpRun *run, const char *key);
/* "dim", an integer or a list; "keepdim". */
ds_reduce_opts op_reduce(OpRun *run);
ds_pool2d_opts op_pool2d(OpRun *run);
ds_pool1d_opts op_pool1d(OpRun *run);
ds_cross_entropy_opts op_classes(OpRun *run);
/* weight, bias, statistics, which become outputs; training is absent's value. */
ds_tensor *op_batch_norm(OpRun *run, bool training,
                         ds_tensor *(*norm)(ds_tensor *x, ds_batch_norm_opts o));
/* input0, input1, ... -> x; their number, at most `most`. */
int op_inputs(OpRun *run, ds_tensor **x, int most);

/* 3 or [2, 3] as an option's two members, where 0 for the second means "the
 * same" and -1 "none"; a stride or dilation of 0 becomes -1, which is refused as
 * well. */
void op_pair(OpRun *run, const char *key, int *vertical, int *horizontal);

/* name is one of the words */
bool op_among(const char *name, const char *words);
