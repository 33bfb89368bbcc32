/* device/cpu/index/index.h: an index [outer,K,inner] of elements of a
 * dimension.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/cpu/simd/isa.h"

#define elements_inside KERNEL(dsi_elements_inside)
#define elements_valid  KERNEL(dsi_elements_valid)

/* Element (o, k, i) of an index [outer,K,inner]. */
ALWAYS_INLINE int64_t element_index(const dsi_view *index, int64_t o, int64_t k, int64_t i)
{
    return ((const int64_t *)index->p)[o * index->s[0] + k * index->s[1] + i * index->s[2]];
}

/* True if one index serves all of `inner`, whose elements are neighbours in x
 * and in y: they are moved together. */
ALWAYS_INLINE bool inner_together(const dsi_view *index, const dsi_view *x, const dsi_view *y)
{
    return index->s[2] == 0 && x->s[2] == 1 && y->s[2] == 1 && y->d[2] > 1;
}

/* True if all of index [outer,K,inner] is in 0 .. classes-1. */
bool elements_inside(dsi_view index, int64_t classes);

/* Sets the fault flag, and is false, if index [outer,K,inner] names an element
 * outside of a dimension of `classes`. */
bool elements_valid(dsi_stream *s, const dsi_view *index, int64_t classes);
