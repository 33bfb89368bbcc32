/* tests/pretend.h: a kind of device that every machine can pretend to have:
 * memory and copies, and no kernel.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device/device.h"

/* This thread has cuda:0 and cuda:1 from now on. The host must not access their
 * addresses: a kernel or copy of the host that does ends the program with a
 * signal, as it would with a GPU. They have 32 MB together, which are not used
 * again. */
void pretend_cuda(void);
