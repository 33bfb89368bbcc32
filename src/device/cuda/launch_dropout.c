/* device/cuda/launch_dropout.c: dropout of kernels.h: mask and product in one
 * pass.
 *
 * The mask is Philox4x32-10 (Salmon et al., Parallel random numbers: as easy as
 * 1, 2, 3, 2011), a function of seed and position: no state is kept on the GPU,
 * and the number of threads does not matter. A thread draws the 4 words of one
 * counter, for 4 neighbours in keep; so the grid has a quarter of the elements.
 * An element is kept if its word is below (1 - p) 2^32.
 *
 * fresh_seed is in device memory, where a graph's launch writes it: a captured
 * kernel would otherwise draw the same mask at each replay.
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
    uintptr_t places = (uintptr_t)x.p | (uintptr_t)y.p | (uintptr_t)keep.p;
    a.quads = places % 16 == 0 && dsi_cuda_contiguous(&x) && dsi_cuda_contiguous(&y);
    return dsi_cuda_launch_floating(s, DSI_CUDA_dropout, "dropout", x.dtype,
                                    dsi_cuda_grid_of((a.count + 3) / 4), &a);
}
