/* device/cuda/ptx.c: the PTX of every family, ptx/FAMILY.ptx, as bytes of the
 * library, and a kernel's part of it. scripts/make_ptx makes these files.
 *
 * An assembler directive reads them when this file is compiled, so no C source
 * is generated. PTX is text, and the driver reads up to a 0 byte, which is
 * added. It is machine code of no GPU: the driver compiles it for the one that
 * is there, also for GPUs that are newer than this library.
 *
 * The files number registers and labels by how many were first named since
 * (scripts/ptx_code.py says how), so that they compress to a third.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EMBED(name, capability) \
    __asm__(".section .rodata\n" \
            ".hidden dsi_cuda_ptx_" #name "\n" \
            ".global dsi_cuda_ptx_" #name "\n" \
            "dsi_cuda_ptx_" #name ":\n" \
            ".incbin \"" DSI_CUDA_CODE "/ptx/" #name ".ptx\"\n" \
            ".byte 0\n" \
            ".previous\n"); \
    extern const char dsi_cuda_ptx_##name[];
DSI_CUDA_FAMILIES(EMBED)

#define ENTRY(name, capability) dsi_cuda_ptx_##name,
static const char *const family_ptx[DSI_CUDA_N_FAMILIES] = {DSI_CUDA_FAMILIES(ENTRY)};

static const char *next_line(const char *p)
{
    const char *end = strchr(p, '\n');
    return end ? end + 1 : p + strlen(p);
}

static bool begins(const char *p, const char *with) { return !strncmp(p, with, strlen(with)); }

static bool line_is(const char *p, char c) { return p[0] == c && (p[1] == '\n' || !p[1]); }

/* Past the kernel that begins at p: braces of blocks are lines of their own. */
static const char *kernel_end(const char *p)
{
    int depth = 0;
    bool closes = false;
    for (; *p && !closes; p = next_line(p)) {
        depth += line_is(p, '{') - line_is(p, '}');
        closes = !depth && line_is(p, '}');
    }
    return p;
}

static char *put(char *to, const char *p, const char *end)
{
    memcpy(to, p, (size_t)(end - p));
    return to + (end - p);
}

/* A kernel's first instructions where it may start early: the next kernel may
 * start its blocks when all blocks of this one have started, and none of them
 * reads or writes before the kernel before has ended. So a kernel's start costs
 * nothing, and the order of all that they do is that of the stream: a kernel
 * ends after it has waited for the one before it. */
static const char early[] = "griddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n";
static const char early_version[] = ".version 7.8\n", early_target[] = ".target sm_90\n";

/* A line that is no kernel's: the header asks for what `early` needs. */
static char *put_common(char *to, const char *p, const char *end, bool newer)
{
    if (newer && begins(p, ".version "))
        p = early_version, end = p + sizeof early_version - 1;
    else if (newer && begins(p, ".target "))
        p = early_target, end = p + sizeof early_target - 1;
    return put(to, p, end);
}

static char *put_kernel(char *to, const char *p, const char *end, bool starts_early)
{
    const char *body = p;
    while (!line_is(body, '{')) body = next_line(body);
    to = put(to, p, next_line(body));
    if (starts_early) to = put(to, early, early + sizeof early - 1);
    return put(to, next_line(body), end);
}

/* A family's PTX without its other kernels; dsi_free it. Text outside of
 * kernels is common to all, and is kept. PTX for sm_90a is new enough to start
 * early as it is. */
static char *kernel_part(const char *ptx, const char *name, bool starts_early)
{
    static const char begin[] = ".visible .entry ";
    size_t n = strlen(name);
    bool newer = starts_early && !strstr(ptx, "\n.target sm_90a\n");
    char *out = dsi_alloc(strlen(ptx) + sizeof early + sizeof early_version + sizeof early_target),
         *to = out;
    for (const char *p = ptx, *end; *p; p = end) {
        bool kernel = begins(p, begin);
        const char *its = p + sizeof begin - 1;
        end = kernel ? kernel_end(p) : next_line(p);
        if (!kernel)
            to = put_common(to, p, end, newer);
        else if (!strncmp(its, name, n) && its[n] == '(')
            to = put_kernel(to, p, end, starts_early);
    }
    return out;
}

/* ---- numbers of registers and labels ---- */

/* How many of a kind ("r", "rd", "p", "L") a kernel has named so far. */
typedef struct Numbers {
    struct {
        char kind[4];
        int count;
    } of[12];
} Numbers;

static int *number_of(Numbers *n, const char *kind, size_t letters)
{
    int i = 0;
    while (*n->of[i].kind && (strncmp(n->of[i].kind, kind, letters) != 0 || n->of[i].kind[letters]))
        i++;
    memcpy(n->of[i].kind, kind, letters);
    return &n->of[i].count;
}

/* Past the name at p, such as &rd7, which becomes %rd12 at *to. */
static const char *put_name(Numbers *n, const char *p, char **to)
{
    const char *kind = p + 1;
    size_t letters = 0;
    while ((kind[letters] | 32) >= 'a' && (kind[letters] | 32) <= 'z') letters++;
    int *count = number_of(n, kind, letters), back = 0;
    const char *end = kind + letters;
    if (*end < '0' || *end > '9') ++*count; /* strtol would take the sign of [&rd+8] */
    for (; *end >= '0' && *end <= '9'; end++) back = 10 * back + *end - '0';
    *to += sprintf(*to, "%c%.*s%d", *kind == 'L' ? '$' : '%', (int)letters, kind, *count - back);
    return end;
}

/* The text with its names; dsi_free it. */
static char *with_names(const char *text)
{
    size_t names = 0;
    for (const char *p = text; (p = strchr(p, '&')); p++) names++;
    char *out = dsi_alloc(strlen(text) + names * sizeof "1000000000" + 1), *to = out;
    Numbers numbers = {0};
    for (const char *p = text; *p;) {
        if (*p == '&') {
            p = put_name(&numbers, p, &to);
            continue;
        }
        bool line = p == text || p[-1] == '\n';
        if (line && (begins(p, ".visible ") || begins(p, ".func "))) numbers = (Numbers){0};
        *to++ = *p++;
    }
    return out;
}

char *dsi_cuda_kernel_ptx(dsi_cuda_family family, const char *name, bool starts_early)
{
    char *part = kernel_part(family_ptx[family], name, starts_early), *out = with_names(part);
    dsi_free(part);
    return out;
}
