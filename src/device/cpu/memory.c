/* device/cpu/memory.c: the host as a device: its memory, and the choice of an
 * instruction set.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "cpu.h"
#include "gemm/int8.h"
#include "simd/amx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#endif

extern const dsi_cpu_table dsi_cpu_table_generic;
extern const dsi_cpu_int8 dsi_cpu_int8_generic;
#ifdef DSI_HAVE_avx2
extern const dsi_cpu_table dsi_cpu_table_avx2;
extern const dsi_cpu_int8 dsi_cpu_int8_avx2;
/* f16c, which not every compiler can ask for, came a processor generation
 * before avx2 */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
}
#endif
#ifdef DSI_HAVE_avx512
extern const dsi_cpu_table dsi_cpu_table_avx512;
extern const dsi_cpu_int8 dsi_cpu_int8_avx512;
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif
static bool has_generic(void) { return true; }

/* ---- instructions for bfloat16: AVX512_BF16, and the matrix unit, AMX --------------------------------------- */

#if defined(DSI_HAVE_avx512) && defined(DSI_KNOWS_AMX)
static bool has_avx512_bf16(void)
{
    enum { AVX512_BF16 = 1 << 5 };
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}

/* Asked once. */
static bool has_amx(void)
{
    static _Atomic int asked; /* 1: no, 2: yes */
    if (!asked) asked = 1 + (has_avx512_bf16() && dsi_cpu_find_amx());
    return asked == 2;
}
#elif defined(DSI_HAVE_avx512)
static bool has_avx512_bf16(void) { return false; }
static bool has_amx(void) { return false; }
#endif

enum { NEITHER = 1, VECTORS, TILES };

static int bf16_by(void)
{
    static _Atomic int chosen;
    if (!chosen) {
        const char *isa = dsi_cpu_isa();
        bool tiles = isa && !strcmp(isa, "amx"), vectors = isa && !strcmp(isa, "avx512_bf16");
        chosen = tiles ? TILES : vectors ? VECTORS : NEITHER;
    }
    return chosen;
}

bool dsi_cpu_bf16(void) { return bf16_by() != NEITHER; }

bool dsi_cpu_amx(void) { return bf16_by() == TILES; }

/* ---- sets of instructions ------------------------------------------------------------------------------ */

/* best first */
static const struct {
    const char *name;
    const dsi_cpu_table *table;
    const dsi_cpu_int8 *int8;
    bool (*has)(void);
} isas[] = {
#ifdef DSI_HAVE_avx512
    {"amx", &dsi_cpu_table_avx512, &dsi_cpu_int8_avx512, has_amx},
    {"avx512_bf16", &dsi_cpu_table_avx512, &dsi_cpu_int8_avx512, has_avx512_bf16},
    {"avx512", &dsi_cpu_table_avx512, &dsi_cpu_int8_avx512, has_avx512},
#endif
#ifdef DSI_HAVE_avx2
    {"avx2", &dsi_cpu_table_avx2, &dsi_cpu_int8_avx2, has_avx2},
#endif
    {"generic", &dsi_cpu_table_generic, &dsi_cpu_int8_generic, has_generic},
};

#define N_ISAS (int)(sizeof isas / sizeof *isas)

const dsi_cpu_table *dsi_cpu_table_of(const char *isa)
{
    for (int i = 0; i < N_ISAS; i++)
        if (!strcmp(isas[i].name, isa)) return isas[i].has() ? isas[i].table : NULL;
    return NULL;
}

const dsi_cpu_int8 *dsi_cpu_int8_of(const char *isa)
{
    for (int i = 0; i < N_ISAS; i++)
        if (!strcmp(isas[i].name, isa)) return isas[i].has() ? isas[i].int8 : NULL;
    return NULL;
}

const char *dsi_cpu_isa(void)
{
    const char *wish = getenv("DS_CPU");
    for (int i = 0; i < N_ISAS; i++)
        if (isas[i].has() && (!wish || !*wish || !strcmp(wish, isas[i].name))) return isas[i].name;
    for (int i = 0; i < N_ISAS; i++)
        if (isas[i].has())
            return dsi_refuse(
                "DS_CPU=%s: expected generic, avx2, avx512, avx512_bf16 or amx; the best "
                "this processor has is %s",
                wish, isas[i].name);
    return NULL;
}

/* 512 KiB where the system does not say. Asked once: under a hypervisor it can
 * take 20 us. */
int64_t dsi_cpu_l2_bytes(void)
{
    static _Atomic int64_t known;
    if (!known) {
        long said = 0;
#ifdef _SC_LEVEL2_CACHE_SIZE
        said = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        known = said >= 128 << 10 ? said : 512 << 10;
    }
    return known;
}

bool dsi_cpu_should_fetch(void)
{
#if defined(__x86_64__)
    return !__builtin_cpu_is("amd");
#else
    return true;
#endif
}

static int cpu_count(void) { return 1; }

static ds_status cpu_open(dsi_device *d, int index)
{
    (void)index;
    const char *isa = dsi_cpu_isa();
    if (!isa) return DS_EINVAL;
    const dsi_cpu_table *table = dsi_cpu_table_of(isa);
    d->own = (void *)(uintptr_t)table; /* only read */
    d->kernels = &table->kernels;
    d->own_fusions = &table->fusions;
    return DS_OK;
}

/* Blocks of a large batch lie in huge pages where the system gives them: with
 * small ones, walking the page tables costs 5 to 10 % of a step. Rounded up to
 * whole pages, so not for small blocks. */
#define HUGE_PAGE  ((size_t)2 << 20)
#define HUGE_BLOCK ((size_t)512 << 10) /* from this size on */

static void *cpu_alloc(dsi_device *d, size_t bytes)
{
    (void)d;
    size_t page = bytes < HUGE_BLOCK ? 64 : HUGE_PAGE;
    void *p = aligned_alloc(page, (bytes + page - 1) / page * page);
    if (p && page == HUGE_PAGE)
        madvise(p, bytes, MADV_HUGEPAGE); /* a wish: no matter if it fails */
    return p;
}

static void cpu_free(dsi_device *d, void *p)
{
    (void)d;
    free(p);
}

static ds_status cpu_copy(dsi_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes) memcpy(dst, src, bytes);
    return DS_OK;
}

static ds_status cpu_copy_within(dsi_stream *s, void *dst, dsi_device *from, const void *src,
                                 size_t bytes)
{
    (void)from;
    return cpu_copy(s, dst, src, bytes);
}

/* The CPU's stream is the calling thread: what was started is finished. */
static ds_status cpu_event(dsi_stream *s, dsi_event *e)
{
    (void)s;
    (void)e;
    return DS_OK;
}

static void cpu_event_free(dsi_device *d, dsi_event *e)
{
    (void)d;
    (void)e;
}

static ds_status cpu_sync(dsi_stream *s)
{
    (void)s;
    return DS_OK;
}

static ds_status cpu_take_fault(dsi_stream *s, bool all, dsi_fault *out)
{
    (void)all;
    *out = s->device->fault;
    s->device->fault.op = DSI_NO_FAULT;
    return DS_OK;
}

const dsi_device_type dsi_cpu = {
    .name = "cpu",
    .kind = DS_CPU,
    .count = cpu_count,
    .open = cpu_open,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_host = cpu_alloc,
    .free_host = cpu_free,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .copy = cpu_copy_within,
    .record = cpu_event,
    .wait = cpu_event,
    .free_event = cpu_event_free,
    .sync = cpu_sync,
    .take_fault = cpu_take_fault,
    .immediate = true,
};
