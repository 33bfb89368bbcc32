/* data/tokens.h: the header of a file of tokens.
 *
 * The layout is in tokens.c; sizes are checked when a file is opened, so that
 * what follows may index without checks. reserved is written as 0 and not read.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"

#include <deepspeed/data.h>

#define DSI_TOKENS_MAGIC "DSTOKEN1"

typedef struct dsi_tokens_header {
    char magic[8];
    uint32_t width;  /* bytes of an id: 2 or 4 */
    uint32_t masked; /* 1: a byte for each id follows the ids */
    uint64_t n, vocab;
    uint8_t reserved[32];
} dsi_tokens_header;

DSI_SHARED bool dsi_tokens_is_file(const void *bytes, size_t n);
