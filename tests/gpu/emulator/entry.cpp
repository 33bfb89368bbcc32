/* tests/gpu/emulator/entry.cpp: the emulator, as the pretending driver calls it.
 * SPDX-License-Identifier: MIT */
#include "machine.h"

using namespace cuda_on_cpu;

extern "C" const void *emulator_find(const char *name, size_t *bytes)
{
    const Entry *e = find(name);
    if (e) *bytes = e->bytes;
    return e;
}

extern "C" void emulator_run(const void *kernel, const unsigned grid[3], const unsigned block[3],
                             size_t shared, const void *args)
{
    const Entry *e = (const Entry *)kernel;
    run({dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), shared, e->thread,
         args, e->name});
}
