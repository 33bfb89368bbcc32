/* base/crc.h: CRC-32C (Castagnoli), the check sum of iSCSI and of TensorBoard's records.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_BASE_CRC_H
#define DSI_BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Of the bytes that gave `crc` (0: none) and the n at data after them. */
uint32_t dsi_crc32c(uint32_t crc, const void *data, size_t n);
uint32_t dsi_crc32c_plain(uint32_t crc, const void *data, size_t n); /* on any processor */

#endif
