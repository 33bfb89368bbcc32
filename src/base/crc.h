/* base/crc.h: CRC-32C (Castagnoli), the check sum of TensorBoard's records, and
 * CRC-32, that of zip files.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of the bytes that gave `crc` (0: none) and the n at data after them. */
uint32_t dsi_crc32c(uint32_t crc, const void *data, size_t n);
uint32_t dsi_crc32c_plain(uint32_t crc, const void *data, size_t n); /* on any processor */

/* CRC-32 (the polynomial of Ethernet), likewise. */
uint32_t dsi_crc32(uint32_t crc, const void *data, size_t n);
/* Of the bytes of a and then the n_b bytes of b. */
uint32_t dsi_crc32_combine(uint32_t a, uint32_t b, size_t n_b);
