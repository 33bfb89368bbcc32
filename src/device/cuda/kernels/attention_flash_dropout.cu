/* device/cuda/kernels/attention_flash_dropout.cu: attention_flash.cuh with dropout
 * of the weights.
 * SPDX-License-Identifier: MIT */
#include "attention_flash.cuh"

ATTENTION_FLASH_ALL(flash_dropout, true)
