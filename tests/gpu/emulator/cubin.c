/* tests/gpu/emulator/cubin.c: what a driver reads in machine code, an ELF file
 * of CUDA 12: the compute capability in its flags (for Blackwell in their
 * second byte), and a kernel's attributes in the section .nv.info.KERNEL: a
 * format, a number, and 16 bits that are the value or (format 4) the length of
 * one. The code itself is not looked at.
 * SPDX-License-Identifier: MIT */
#include "fake.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OF_CUDA = 190, BLACKWELL = 8, SIZED = 4, MAX_THREADS = 0x05, PARAM_BYTES = 0x19 };

bool fake_is_cubin(const void *image) { return !memcmp(image, ELFMAG, SELFMAG); }

static int capability_of(const Elf64_Ehdr *head)
{
    return (int)(head->e_ident[EI_ABIVERSION] == BLACKWELL ? head->e_flags >> 8 & 0xff
                                                           : head->e_flags & 0xff);
}

/* Sections come before their headers, which end the file, or are before it. */
static size_t image_bytes(const Elf64_Ehdr *head)
{
    const char *image = (const char *)head;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(image + head->e_shoff);
    size_t end = head->e_shoff + head->e_shnum * sizeof *section;
    for (int i = 0; i < head->e_shnum; i++)
        if (section[i].sh_type != SHT_NOBITS && section[i].sh_offset + section[i].sh_size > end)
            end = section[i].sh_offset + section[i].sh_size;
    return end;
}

CUresult fake_cubin_load(const void *image, char **copy)
{
    const Elf64_Ehdr *head = image;
    long refusal = fake_setting("FAKE_CUDA_NO_CUBIN", 0);
    int its = capability_of(head), has = fake_capability();
    if (refusal) return (CUresult)refusal;
    NEED(head->e_machine == OF_CUDA && head->e_ident[EI_ABIVERSION] <= BLACKWELL, INVALID_VALUE);
    NEED(its / 10 == has / 10 && its <= has, NO_BINARY_FOR_GPU);
    NEED(fake_setting("FAKE_CUDA_VERSION", 12040) >= 12000, NO_BINARY_FOR_GPU);
    size_t bytes = image_bytes(head);
    *copy = memcpy(malloc(bytes), image, bytes);
    return CUDA_SUCCESS;
}

/* The section of that name. */
static const Elf64_Shdr *find_section(const char *cubin, const char *name)
{
    const Elf64_Ehdr *head = (const Elf64_Ehdr *)cubin;
    const Elf64_Shdr *section = (const Elf64_Shdr *)(cubin + head->e_shoff);
    const char *names = cubin + section[head->e_shstrndx].sh_offset;
    for (int i = 0; i < head->e_shnum; i++)
        if (!strcmp(names + section[i].sh_name, name)) return &section[i];
    return NULL;
}

bool fake_cubin_read(const char *cubin, const char *name, size_t *bytes, unsigned *threads,
                     bool *waits)
{
    char of[128];
    snprintf(of, sizeof of, ".nv.info.%s", name);
    const Elf64_Shdr *info = find_section(cubin, of);
    if (!info) return false;
    const unsigned char *p = (const unsigned char *)cubin + info->sh_offset,
                        *end = p + info->sh_size;
    for (unsigned value; p + 4 <= end; p += 4 + (p[0] == SIZED ? value : 0)) {
        value = p[2] | (unsigned)p[3] << 8;
        if (p[1] == PARAM_BYTES) *bytes = value;
        if (p[1] == MAX_THREADS && p[0] == SIZED) memcpy(threads, p + 4, sizeof *threads);
    }
    *waits = capability_of((const Elf64_Ehdr *)cubin) >= 90; /* scripts/make_cubins */
    return *bytes && *threads;
}
