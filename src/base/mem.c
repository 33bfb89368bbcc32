/* base/mem.c: memory for small structs, and free lists.
 * SPDX-License-Identifier: MIT */
#include "mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *mem_must(void *p, size_t bytes)
{
    if (p) return p;
    fprintf(stderr, "deepspeed: no memory for %zu bytes\n", bytes);
    abort();
}

void *dsi_alloc(size_t bytes)
{
    if (!bytes) bytes = 1;
    return mem_must(calloc(1, bytes), bytes);
}

void *dsi_realloc(void *p, size_t bytes)
{
    if (!bytes) bytes = 1;
    return mem_must(realloc(p, bytes), bytes);
}

char *dsi_strdup(const char *s) { return mem_must(strdup(s), strlen(s) + 1); }
void dsi_free(void *p) { free(p); }

#define POOL_KEEPS 4096

void *dsi_pool_get(dsi_pool *pool)
{
    void *p = pool->free;
    if (!p) return mem_must(malloc(pool->bytes), pool->bytes);
    pool->free = *(void **)p;
    pool->n_free--;
    return p;
}

void dsi_pool_put(dsi_pool *pool, void *p)
{
    /* under a sanitizer structs are freed for real, so that a use after the end
     * is seen */
    if (DSI_SANITIZED || pool->n_free >= POOL_KEEPS) {
        free(p);
        return;
    }
    *(void **)p = pool->free;
    pool->free = p;
    pool->n_free++;
}

void dsi_pool_clear(dsi_pool *pool)
{
    while (pool->free) {
        void *p = pool->free;
        pool->free = *(void **)p;
        free(p);
    }
    pool->n_free = 0;
}
