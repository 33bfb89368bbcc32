/* device/cache.c: storage of this thread on a device, freed blocks kept for the
 * next step.
 *
 * Sizes are rounded up to classes, four to each power of two, so that the
 * blocks of one training step fit those of the next; a class is a stack of free
 * blocks. When the device is full, unused blocks are given back and the
 * allocation is tried once more; then what owners can do without (dsi_spare),
 * and it is tried a last time. They are given back too when blocks take more
 * than twice the most that was in use at a time: shapes that change from step
 * to step leave blocks in many classes.
 *
 * Invariants: a block belongs to the cache or to one pool, which it leaves only
 * unused, by dsi_pool_move_transient. Pools are few: each free looks for the
 * block in all of them.
 * SPDX-License-Identifier: MIT */
#include "base/env.h"
#include "base/error.h"
#include "base/list.h"
#include "base/thread.h"
#include "device.h"
#include "graph.h"
#include "pool.h"
#include "slabs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)1 << 46)
#define CLASSES   164 /* up to MAX_BYTES */
#define PAD_BYTES 64  /* a vector load may run past the end */
#define ALIGNMENT 64
#define SLACK     ((size_t)2 << 20) /* bytes of unused blocks that are never too many */
#define TRANSIENT 20                /* the first class worth sharing: blocks above 4 KiB */

typedef struct Stack {
    DSI_LIST(void *)
} Stack;

typedef struct PoolBlock {
    void *p;
    int class;
    bool in_use;
    uint64_t use_number; /* of the pool when the block was taken last; 0: never */
} PoolBlock;

struct dsi_block_pool {
    dsi_device *device;
    dsi_block_pool *next; /* of the device's */
    Stack free[CLASSES];
    struct {
        DSI_LIST(PoolBlock)
    } blocks; /* by address */
    int blocks_in_use;
    uint64_t use_number; /* how many times the pool became the current or the transient one */
    bool closed;         /* dsi_pool_free: ends with its last block */
    bool is_persistent[CLASSES]; /* dsi_pool_note_persistent: a block of that class stayed in use */
};

typedef struct dsi_cache {
    Stack free[CLASSES];
    size_t peak; /* of use.live, ever */
    dsi_cache_usage use;
    dsi_block_pool *pools;          /* all of this device, linked by next; freed by their users */
    dsi_block_pool *current_pool;   /* where allocations come from; NULL: from this cache */
    dsi_block_pool *transient_pool; /* where those of transient classes come from; NULL: from
                                       current_pool. Set only while current_pool is. */
    dsi_slab *slabs;                /* of which small blocks are pieces, also those of pools */
} dsi_cache;

/* ---- fault injection: every storage allocation of this thread counts down -------------------------- */

static _Thread_local struct {
    int64_t left, seen;
    bool always, on, asked_environment;
} fault;

int64_t dsi_cache_fail(int64_t n, bool always)
{
    int64_t seen = fault.seen;
    fault.asked_environment = true;
    fault.on = n > 0;
    fault.left = n;
    fault.always = always;
    fault.seen = 0;
    return seen;
}

static bool must_fail(void)
{
    if (!fault.asked_environment) {
        static const dsi_env variable = {"DS_FAIL_ALLOC",
                                         "a whole number, the allocation that fails", .most = 1e15,
                                         .whole = true};
        dsi_cache_fail((int64_t)dsi_env_number_or(&variable, 0), false);
    }
    fault.seen++;
    if (!fault.on || --fault.left > 0) return false;
    fault.on = fault.always;
    return true;
}

/* ---- size classes ----------------------------------------------------------------------------------- */

/* 64, 128, 192, 256 bytes are classes 0 to 3; then four a power of two: 320,
 * 384, 448, 512, 640, ... */
static int class_of(size_t bytes, size_t *rounded)
{
    size_t units = (bytes + ALIGNMENT - 1) / ALIGNMENT;
    if (units <= 4) {
        *rounded = (units ? units : 1) * ALIGNMENT;
        return units ? (int)units - 1 : 0;
    }
    int log = 63 - __builtin_clzll(units - 1); /* 2^log < units <= 2^(log+1) */
    size_t quarter = (size_t)1 << (log - 2);
    size_t steps = (units - ((size_t)1 << log) + quarter - 1) / quarter; /* 1 .. 4 */
    *rounded = (((size_t)1 << log) + steps * quarter) * ALIGNMENT;
    return 4 + (log - 2) * 4 + (int)steps - 1;
}

/* The size of the blocks of a class. */
static size_t block_bytes(int class)
{
    if (class < 4) return (size_t)(class + 1) * ALIGNMENT;
    size_t quarter = (size_t)1 << ((class - 4) / 4);
    return (size_t)(class % 4 + 5) * quarter * ALIGNMENT;
}

/* With a new block of that size, the cache would have too many unused ones. */
static bool has_too_many(const dsi_cache *c, size_t bytes)
{
    size_t peak = c->use.live + bytes > c->peak ? c->use.live + bytes : c->peak;
    return c->use.held + bytes > 2 * peak + SLACK;
}

/* From a slab, or from the device. */
static void *block_take(dsi_device *d, bool fixed, size_t bytes)
{
    void *p = dsi_slab_cut(d, &d->cache->slabs, fixed, bytes + PAD_BYTES);
    return p ? p : (fixed ? d->type->alloc_fixed : d->type->alloc)(d, bytes + PAD_BYTES);
}

static void block_give(dsi_device *d, bool fixed, void *p, size_t bytes)
{
    d->cache->use.held -= bytes;
    if (!dsi_slab_join(d, &d->cache->slabs, p, bytes + PAD_BYTES))
        (fixed ? d->type->free_fixed : d->type->free)(d, p);
}

void dsi_spare_add(dsi_device *d, dsi_spare *s)
{
    s->next = d->spares;
    d->spares = s;
}

void dsi_spare_remove(dsi_device *d, dsi_spare *s)
{
    dsi_spare **at = &d->spares;
    while (*at && *at != s) at = &(*at)->next;
    if (*at) *at = s->next;
}

static void spares_release(dsi_device *d)
{
    while (d->spares) {
        dsi_spare *s = d->spares;
        d->spares = s->next;
        s->release(s->arg);
    }
}

/* From the device, for `pool` or, if that is NULL, for the cache. */
static void *fresh(dsi_device *d, const dsi_block_pool *pool, size_t bytes)
{
    if (!pool && !d->recording && has_too_many(d->cache, bytes)) dsi_cache_empty(d);
    void *p = block_take(d, pool != NULL, bytes);
    for (int i = 0; i < 2 && !p && !dsi_graph_capturing(d); i++) { /* else frees were captured */
        if (i) spares_release(d);
        dsi_cache_empty(d);
        p = block_take(d, pool != NULL, bytes);
    }
    if (!p) return NULL;
    dsi_cache_usage *use = &d->cache->use;
    use->held += bytes;
    if (use->held > use->peak_held) use->peak_held = use->held;
    return p;
}

static dsi_cache *cache_of(dsi_device *d)
{
    if (!d->cache) d->cache = dsi_alloc(sizeof *d->cache);
    return d->cache;
}

/* " (float32 [4, 3])"; "" without a shape. */
static void describe_tensor(ds_dtype dtype, const ds_dims *shape, char *text, size_t room)
{
    text[0] = 0;
    if (!shape) return;
    int at = snprintf(text, room, " (%s [", ds_dtype_name(dtype));
    for (int i = 0; i < shape->n && at < (int)room; i++)
        at += snprintf(text + at, room - (size_t)at, "%s%lld", i ? ", " : "",
                       (long long)shape->d[i]);
    if (at < (int)room) snprintf(text + at, room - (size_t)at, "])");
}

/* Bytes of blocks that belong to pools. */
static size_t pools_bytes(const dsi_cache *c)
{
    size_t bytes = 0;
    for (const dsi_block_pool *pool = c->pools; pool; pool = pool->next)
        for (int i = 0; i < pool->blocks.n; i++) bytes += block_bytes(pool->blocks.at[i].class);
    return bytes;
}

/* The message. A device that can say how full it is may say instead that it is
 * broken. */
static void *no_memory(dsi_device *d, size_t bytes, ds_dtype dtype, const ds_dims *shape)
{
    size_t unused, all, pooled = pools_bytes(d->cache);
    char room[64] = "", what[128], pools[96] = "";
    if (d->type->room) {
        if (d->type->room(d, &unused, &all) != DS_OK) return NULL;
        snprintf(room, sizeof room, ", %zu of its %zu are free", unused, all);
    }
    describe_tensor(dtype, shape, what, sizeof what);
    if (pooled)
        snprintf(pools, sizeof pools, ", %zu belong to recorded steps (DS_GRAPHS=off: none)",
                 pooled);
    return dsi_refuse_with(DS_ENOMEM,
                           "no memory for %zu bytes%s on %s: %zu are in use, the most so far was "
                           "%zu%s%s%s",
                           bytes, what, ds_device_name(dsi_device_id(d)), d->cache->use.live,
                           d->cache->peak, room, pools,
                           d->type->room && shape
                               ? "; a smaller batch, 16 bits, ds_checkpoint (recomputation) "
                                 "and offload need less"
                               : "");
}

/* ---- pools ------------------------------------------------------------------------------------------ */

/* Where the block at p is among the blocks, or would be. */
static int pool_place(const dsi_block_pool *pool, const void *p)
{
    int low = 0, high = pool->blocks.n;
    while (low < high) {
        int middle = (low + high) / 2;
        if ((uintptr_t)pool->blocks.at[middle].p < (uintptr_t)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static PoolBlock *pool_find(const dsi_block_pool *pool, const void *p)
{
    int at = pool_place(pool, p);
    return at < pool->blocks.n && pool->blocks.at[at].p == p ? &pool->blocks.at[at] : NULL;
}

static void pool_insert(dsi_block_pool *pool, PoolBlock b)
{
    int at = pool_place(pool, b.p);
    dsi_list_add(&pool->blocks, b);
    PoolBlock *blocks = pool->blocks.at;
    memmove(blocks + at + 1, blocks + at, (size_t)(pool->blocks.n - 1 - at) * sizeof *blocks);
    blocks[at] = b;
}

static void pool_remove(dsi_block_pool *pool, const void *p)
{
    int at = pool_place(pool, p);
    PoolBlock *blocks = pool->blocks.at;
    memmove(blocks + at, blocks + at + 1, (size_t)(pool->blocks.n - 1 - at) * sizeof *blocks);
    pool->blocks.n--;
}

static void *pool_take(dsi_block_pool *pool, int class, size_t rounded)
{
    Stack *stack = &pool->free[class];
    void *p = stack->n ? stack->at[--stack->n] : NULL;
    if (!p) {
        p = fresh(pool->device, pool, rounded);
        if (!p) return NULL;
        pool_insert(pool, (PoolBlock){.p = p, .class = class});
    }
    PoolBlock *b = pool_find(pool, p);
    b->use_number = pool->use_number;
    b->in_use = true;
    pool->blocks_in_use++;
    return p;
}

static void pool_free_block(dsi_block_pool *pool, const PoolBlock *b)
{
    block_give(pool->device, true, b->p, block_bytes(b->class));
}

/* Ends a pool none of whose blocks is in use. */
static void pool_end(dsi_block_pool *pool)
{
    dsi_block_pool **at = &pool->device->cache->pools;
    while (*at != pool) at = &(*at)->next;
    *at = pool->next;
    for (int i = 0; i < CLASSES; i++) {
        while (pool->free[i].n)
            pool_free_block(pool, pool_find(pool, pool->free[i].at[--pool->free[i].n]));
        dsi_list_free(&pool->free[i]);
    }
    dsi_list_free(&pool->blocks);
    dsi_free(pool);
}

/* Whether p is a pool's block, which is then given back to it. */
static bool pools_give(dsi_device *d, void *p)
{
    for (dsi_block_pool *pool = d->cache->pools; pool; pool = pool->next) {
        PoolBlock *b = pool_find(pool, p);
        if (!b) continue;
        b->in_use = false;
        pool->blocks_in_use--;
        dsi_list_add(&pool->free[b->class], p);
        if (pool->closed && !pool->blocks_in_use) pool_end(pool);
        return true;
    }
    return false;
}

dsi_block_pool *dsi_pool_new(dsi_device *d)
{
    dsi_cache *c = cache_of(d);
    dsi_block_pool *pool = dsi_alloc(sizeof *pool);
    *pool = (dsi_block_pool){.device = d, .next = c->pools};
    return c->pools = pool;
}

void dsi_pool_free(dsi_block_pool *pool)
{
    if (!pool) return;
    pool->closed = true;
    if (!pool->blocks_in_use) pool_end(pool);
}

void dsi_pool_use(dsi_device *d, dsi_block_pool *pool)
{
    cache_of(d)->current_pool = pool;
    d->cache->transient_pool = NULL;
    if (pool) pool->use_number++;
}

void dsi_pool_use_transient(dsi_device *d, dsi_block_pool *transient)
{
    d->cache->transient_pool = transient;
    transient->use_number++;
}

void dsi_pool_note_persistent(dsi_block_pool *pool)
{
    for (int i = 0; i < pool->blocks.n; i++) {
        const PoolBlock *b = &pool->blocks.at[i];
        if (b->in_use && b->use_number == pool->use_number) pool->is_persistent[b->class] = true;
    }
}

/* Whether blocks of that class come from the transient pool, beside this one. */
static bool class_is_transient(const dsi_block_pool *pool, int class)
{
    return class >= TRANSIENT && !pool->is_persistent[class];
}

/* The pool that allocations of that class come from, while one is in use. */
static dsi_block_pool *pool_of_class(const dsi_cache *c, int class)
{
    bool transient = c->transient_pool && class_is_transient(c->current_pool, class);
    return transient ? c->transient_pool : c->current_pool;
}

/* Moved blocks are put below those that the transient pool has: the top of a
 * stack is taken first. */
void dsi_pool_move_transient(dsi_block_pool *pool, dsi_block_pool *transient)
{
    for (int i = 0; i < CLASSES; i++) {
        Stack *from = &pool->free[i], *to = &transient->free[i];
        if (!from->n || !class_is_transient(pool, i)) continue;
        for (int k = 0; k < from->n; k++) {
            pool_remove(pool, from->at[k]);
            pool_insert(transient, (PoolBlock){.p = from->at[k], .class = i});
            dsi_list_add(to, NULL);
        }
        memmove(to->at + from->n, to->at, (size_t)(to->n - from->n) * sizeof *to->at);
        memcpy(to->at, from->at, (size_t)from->n * sizeof *to->at);
        from->n = 0;
    }
}

void dsi_pool_trim(dsi_block_pool *pool)
{
    for (int i = 0; i < CLASSES; i++) {
        Stack *stack = &pool->free[i];
        int kept = 0;
        for (int k = 0; k < stack->n; k++) {
            void *p = stack->at[k];
            const PoolBlock *b = pool_find(pool, p);
            if (b->use_number) {
                stack->at[kept++] = p;
            } else {
                pool_free_block(pool, b);
                pool_remove(pool, p);
            }
        }
        stack->n = kept;
    }
}

int dsi_pool_blocks_in_use(const dsi_block_pool *pool) { return pool->blocks_in_use; }

bool dsi_pool_took(const dsi_block_pool *pool, const void *p)
{
    const PoolBlock *b = pool_find(pool, p);
    return b && b->use_number == pool->use_number;
}

/* ---- allocation ------------------------------------------------------------------------------------- */

void *dsi_cache_alloc(dsi_device *d, size_t bytes)
{
    return dsi_cache_alloc_for(d, bytes, DS_U8, NULL);
}

void *dsi_cache_alloc_for(dsi_device *d, size_t bytes, ds_dtype dtype, const ds_dims *shape)
{
    dsi_cache *c = cache_of(d);
    size_t rounded = 0;
    void *p = NULL;
    if (bytes <= MAX_BYTES && !must_fail()) {
        int class = class_of(bytes, &rounded);
        Stack *stack = &c->free[class];
        if (c->current_pool)
            p = pool_take(pool_of_class(c, class), class, rounded);
        else
            p = stack->n ? stack->at[--stack->n] : fresh(d, NULL, rounded);
    }
    if (!p) return no_memory(d, bytes, dtype, shape);
    c->use.live += bytes;
    if (c->use.live > c->use.peak_live) c->use.peak_live = c->use.live;
    if (c->use.live > c->peak) c->peak = c->use.live;
    return p;
}

void dsi_cache_free(dsi_device *d, void *p, size_t bytes)
{
    if (!p) return;
    size_t rounded;
    d->cache->use.live -= bytes;
    if (d->cache->pools && pools_give(d, p)) return;
    Stack *stack = &d->cache->free[class_of(bytes, &rounded)];
    if (DSI_SANITIZED && !d->recording) {
        block_give(d, false, p, rounded);
    } else {
        dsi_list_add(stack, p);
    }
}

void dsi_cache_empty(dsi_device *d)
{
    if (!d->cache) return;
    for (int i = 0; i < CLASSES; i++) {
        Stack *stack = &d->cache->free[i];
        while (stack->n) block_give(d, false, stack->at[--stack->n], block_bytes(i));
        dsi_list_free(stack);
    }
}

size_t dsi_cache_live(const dsi_device *d) { return d->cache ? d->cache->use.live : 0; }
size_t dsi_cache_peak(const dsi_device *d) { return d->cache ? d->cache->peak : 0; }

dsi_cache_usage dsi_cache_use(const dsi_device *d)
{
    return d->cache ? d->cache->use : (dsi_cache_usage){0};
}

void dsi_cache_restart_peaks(dsi_device *d)
{
    if (!d->cache) return;
    d->cache->use.peak_live = d->cache->use.live;
    d->cache->use.peak_held = d->cache->use.held;
}

dsi_cache_peaks dsi_cache_get_peaks(const dsi_device *d)
{
    if (!d->cache) return (dsi_cache_peaks){0};
    return (dsi_cache_peaks){d->cache->peak, d->cache->use.peak_live, d->cache->use.peak_held};
}

void dsi_cache_set_peaks(dsi_device *d, dsi_cache_peaks peaks)
{
    dsi_cache *c = d->cache;
    if (!c) return;
    c->peak = peaks.peak > c->use.live ? peaks.peak : c->use.live;
    c->use.peak_live = peaks.peak_live > c->use.live ? peaks.peak_live : c->use.live;
    c->use.peak_held = peaks.peak_held > c->use.held ? peaks.peak_held : c->use.held;
}

void dsi_cache_reset_peak(dsi_device *d)
{
    if (d->cache) d->cache->peak = d->cache->use.live;
}

/* ---- scratch: a stack of blocks of this thread ------------------------------------------------------ */

typedef struct Block {
    struct Block *down;
    size_t bytes, used; /* of the memory behind this struct */
} Block;

#define HEAD_BYTES 64 /* sizeof (Block), rounded up so that the memory stays aligned */

static _Thread_local Block *top;

static void free_blocks(void)
{
    while (top) {
        Block *b = top;
        top = b->down;
        free(b);
    }
}

static Block *push_block(size_t bytes)
{
    size_t room = top ? 2 * top->bytes : (size_t)256 << 10;
    if (room < bytes) room = bytes;
    Block *b = must_fail() ? NULL : aligned_alloc(ALIGNMENT, HEAD_BYTES + room);
    if (!b) return dsi_refuse_with(DS_ENOMEM, "no memory for %zu bytes of scratch on cpu", room);
    if (!top) dsi_at_thread_end(DSI_END_MEMORY, free_blocks);
    if (top && !top->used) { /* too small, and unused */
        Block *small = top;
        top = small->down;
        free(small);
    }
    b->down = top;
    b->bytes = room;
    b->used = 0;
    return top = b;
}

void *dsi_scratch(dsi_stream *s, size_t bytes)
{
    (void)s;
    bytes = (bytes + PAD_BYTES + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if ((!top || top->bytes - top->used < bytes) && !push_block(bytes)) return NULL;
    void *p = (char *)top + HEAD_BYTES + top->used;
    top->used += bytes;
    return p;
}

void dsi_scratch_release(dsi_stream *s, void *p)
{
    (void)s;
    if (!p) return;
    while ((char *)p < (char *)top || (char *)p >= (char *)top + HEAD_BYTES + top->bytes) {
        Block *b = top, *down = b->down; /* memory taken after p is in b, and was released */
        bool last = p == (char *)down + HEAD_BYTES && down->bytes < b->bytes;
        if (last) b->down = down->down, b->used = 0;
        top = last ? b : down;
        free(last ? down : b);
        if (last) return;
    }
    top->used = (size_t)((char *)p - ((char *)top + HEAD_BYTES));
}
