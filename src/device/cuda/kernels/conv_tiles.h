/* device/cuda/kernels/conv_tiles.h: sizes of conv_last.cu and conv_wgmma.cu that
 * their launcher shares. A stage has a line for each row and each column of a
 * tile.
 * SPDX-License-Identifier: MIT */
#pragma once

enum {
    K_CONV_WARP = 64,  /* rows of a warp's tile */
    K_CONV_PIECES = 4, /* of 16 bytes, in a line of a stage */
    K_CONV_STAGES = 4,
    K_CONV_STAGES_128 = 5, /* of conv_wgmma.cu with 128 channels */
    K_CONV_PIXELS = 256,   /* of its tiles of y and dx */
    K_CONV_TAPS = 192,     /* of its tiles of dw */
    K_CONV_ALIGN = 1024    /* bytes: its stages begin at a multiple */
};
