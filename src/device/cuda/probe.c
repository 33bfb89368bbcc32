/* device/cuda/probe.c: the wrappers of inline PTX, run alone for a self-test.
 * SPDX-License-Identifier: MIT */
#include "kernels/probe.h"
#include "operands.h"

ds_status dsi_cuda_run_probe(dsi_stream *s, const char *wrapper, void *memory)
{
    const dsi_cuda_gpu *g = s->device->own;
    dsi_cuda_probe p = {memory};
    if (g->capability < 80)
        return dsi_no_kernel(s->device, DS_F16, wrapper); /* nor do kernels use them there */
    return dsi_cuda_launch(s, DSI_CUDA_probe, "probe_", wrapper, dsi_cuda_blocks(1, 32), &p);
}
