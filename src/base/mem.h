/* base/mem.h: memory for small structs (never NULL), and free lists for those
 * made at every step.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <stddef.h>

/* Whether freed memory is watched by AddressSanitizer: free lists and caches
 * then keep nothing. */
#if defined(__SANITIZE_ADDRESS__)
#define DSI_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DSI_SANITIZED 1
#endif
#endif
#ifndef DSI_SANITIZED
#define DSI_SANITIZED 0
#endif

/* Zeroed. Without memory for a small struct the program ends with one line:
 * callers need no code for this failure, which no test could cover. Tensor
 * storage is not allocated here. */
DSI_SHARED void *dsi_alloc(size_t bytes);
DSI_SHARED void *dsi_realloc(void *p, size_t bytes); /* new bytes are undefined */
DSI_SHARED char *dsi_strdup(const char *s);
DSI_SHARED void dsi_free(void *p);

/* A free list of equal structs: one a type and thread, as a _Thread_local of
 * its file. */
typedef struct dsi_pool {
    size_t bytes; /* of one struct; at least a pointer */
    void *free;
    size_t n_free;
} dsi_pool;

void *dsi_pool_get(dsi_pool *pool); /* contents undefined */
void dsi_pool_put(dsi_pool *pool, void *p);
void dsi_pool_clear(dsi_pool *pool);
