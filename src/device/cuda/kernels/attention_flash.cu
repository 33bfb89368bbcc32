/* device/cuda/kernels/attention_flash.cu: attention_flash.cuh without dropout.
 * SPDX-License-Identifier: MIT */
#include "attention_flash.cuh"

ATTENTION_FLASH_ALL(flash, false)
