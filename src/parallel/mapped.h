/* parallel/mapped.h: tensors in files that memory maps: for what must be at
 * hand, but need not stay in memory.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "tensor/tensor.h"

/* [n] zeros in host memory, on a new file in `folder`, which is made if its
 * parent is there. The file has no name and is freed with the tensor. The
 * kernel may remove its pages from memory when it needs the memory. `who`
 * begins messages, rank makes the name unique. NULL with the message: no
 * folder, or no space on the disk. */
ds_tensor *dsi_mapped_new(const char *who, const char *folder, int rank, ds_dtype dtype, int64_t n);

/* x was written, and is not read soon: its pages leave this process now.
 * Nothing if x is no such tensor. */
void dsi_mapped_release_pages(const ds_tensor *x);
