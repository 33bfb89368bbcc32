/* device/cuda/probe.c: the wrappers of inline PTX, run alone for a self-test.
 * SPDX-License-Identifier: MIT */
#include "kernels/probe.h"
#include "operands.h"

#include <string.h>

#define WGMMA_SHARED (42 << 10) /* lines of 128 bytes: 64 of a, 256 of b; and to align them */

ds_status dsi_cuda_run_probe(dsi_stream *s, const char *wrapper, void *memory)
{
    const dsi_cuda_gpu *g = s->device->own;
    dsi_cuda_probe p = {memory};
    bool group = !strncmp(wrapper, "wgmma", 5);
    if (g->capability < 80 || (group && !g->warpgroups))
        return dsi_no_kernel(s->device, DS_F16, wrapper); /* nor do kernels use them there */
    dsi_cuda_grid grid = dsi_cuda_blocks(1, 128);
    grid.shared = WGMMA_SHARED;
    if (group) return dsi_cuda_launch(s, DSI_CUDA_probe_wgmma, "probe_", wrapper, grid, &p);
    return dsi_cuda_launch(s, DSI_CUDA_probe, "probe_", wrapper, dsi_cuda_blocks(1, 32), &p);
}
