/* tests/sample.h: images of the built-in CIFAR-10 sample, unpacked to a folder
 * that is removed at the end.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

/* The training images (or the test images) of the sample; NULL with the
 * message. */
ds_dataset *sample_data(ds_split split);

/* Samples index[0..n-1] of data as one batch: x float32 [n,3,32,32], y int64
 * [n], in the current scope. */
ds_status sample_batch(ds_dataset *data, const int64_t *index, int64_t n, ds_tensor **x,
                       ds_tensor **y);
