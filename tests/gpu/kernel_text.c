/* tests/gpu/kernel_text.c: the PTX that a driver is given: of each kernel, as it
 * is and with an early start, all registers are among those that it declares.
 * SPDX-License-Identifier: MIT */
#include "base/mem.h"
#include "check.h"
#include "device/cuda/driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 16 };

/* Registers of a kind ("r", "rd", "p") are %r1 .. %r(most - 1), from
 * ".reg .b32 %r<most>;" on to the next such line: of a function, or a kernel.
 * Blocks of inline PTX declare %r0 and others one by one. */
typedef struct Kind {
    char name[8];
    long most;
} Kind;

static Kind *kind_of(Kind *all, const char *name, int letters)
{
    int i = 0;
    while (*all[i].name && (strncmp(all[i].name, name, (size_t)letters) || all[i].name[letters]))
        i++;
    snprintf(all[i].name, sizeof all[i].name, "%.*s", letters, name);
    return &all[i];
}

/* Counts the registers, and those that are wrong. */
static int check_registers(const char *kernel, const char *text, int *wrong)
{
    Kind all[KINDS + 1] = {0};
    int count = 0;
    for (const char *p = text; (p = strpbrk(p, "%&$")); p++) {
        int letters = 0;
        while (isalpha((unsigned char)p[1 + letters])) letters++;
        const char *number = p + 1 + letters;
        bool bad = *p == '&' || *number == '-', named = isdigit((unsigned char)*number);
        if (*p == '%' && letters < 4 && (*number == '<' || named)) {
            Kind *kind = kind_of(all, p + 1, letters);
            long its = strtol(number + !named, NULL, 10);
            if (!named) kind->most = its;
            bad |= named && kind->most && its >= kind->most;
            count += named;
        }
        if (bad) print_message("%s: %.40s\n", kernel, p), ++*wrong;
    }
    return count;
}

/* The kernels of a file of src/device/cuda/ptx. */
static void check_family(dsi_cuda_family family, const char *its)
{
    char path[500], line[500], name[300];
    int kernels = 0, wrong = 0;
    snprintf(path, sizeof path, DS_SOURCE_DIR "/src/device/cuda/ptx/%s.ptx", its);
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, ".visible .entry %299[^(]", name) != 1) continue;
        for (int early = 0; early < 2; early++) {
            char *text = dsi_cuda_kernel_ptx(family, name, early);
            CHECK(strstr(text, name) && check_registers(name, text, &wrong) > 0);
            dsi_free(text);
        }
        kernels++;
    }
    if (f) fclose(f);
    CHECK(kernels > 0);
    CHECK_INT(wrong, 0);
}

static void registers_are_declared(void **state)
{
    (void)state;
#define CHECK_FAMILY(name, capability) check_family(DSI_CUDA_##name, #name);
    DSI_CUDA_FAMILIES(CHECK_FAMILY)
}

TEST_MAIN(cmocka_unit_test(registers_are_declared))
