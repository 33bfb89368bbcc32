/* device/cuda/launch_dropout.c: dropout of kernels.h: mask and product in one
 * pass.
 * SPDX-License-Identifier: MIT */
#include "kernels/dropout.h"
#include "launch.h"
#include "operands.h"

ds_status dsi_cuda_dropout(dsi_stream *s, const dsi_philox *random, double p, double factor,
                           dsi_view x, dsi_view y, dsi_view keep)
{
    dsi_cuda_dropout_args a = {.x = dsi_cuda_view_of(&x),
                               .y = dsi_cuda_view_of(&y),
                               .keep = keep.p,
                               .count = dsi_cuda_elements_in(&y),
                               .seed = random->seed,
                               .offset = random->offset,
                               .kept = (unsigned long long)((1 - p) * 0x1p32),
                               .fresh_seed = (const unsigned long long *)random->fresh_seed,
                               .factor = factor};
    return dsi_cuda_launch_floating(s, DSI_CUDA_dropout, "dropout", x.dtype,
                                    dsi_cuda_grid_of((a.count + 3) / 4), &a);
}
