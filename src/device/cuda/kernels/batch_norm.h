/* device/cuda/kernels/batch_norm.h: arguments of batch_norm.cu and
 * batch_norm_last.cu.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "args.h"
#include "line.h"

/* x [n,channels,inner]; its rows are the n inner places (n, i). Sums over rows
 * read a (x, or dy) and b (x). They are cut into `parts` parts of part_rows rows
 * each, which write two sums a channel to part [channels][parts][2]; those of dx
 * are added to sums [channels][2]. Both are scratch. With relu, y is the ReLU of
 * batch norm + b (optional), of the given factor and term, and dx is of that.
 *
 * batch_norm.cu: any strides; `width` channels a block; elements are views (x,
 * channel, y), (x, channel, b, y) with relu, or (dy, x, channel, dx), where the
 * place of `channel` is its number. batch_norm_last.cu: channels are neighbours in memory; rows of a, b
 * and y are row[0], row[1], row[2] elements apart; a block has `width` columns of
 * 16 bytes. */
typedef struct dsi_cuda_batch_norm_args {
    dsi_cuda_elements e;
    const void *a, *b;
    void *y;
    long long as[3], bs[3], row[3];
    long long channels;
    unsigned rows, inner, part_rows, parts;
    dsi_cuda_line mean, var, rstd, running_mean, running_var, weight, bias, factor, term, dw, db;
    double *part, *sums, eps, momentum;
    int dtype, width, batch, relu, last;
} dsi_cuda_batch_norm_args;
