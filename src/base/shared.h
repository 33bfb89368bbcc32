/* base/shared.h: marks what our own commands (launcher/, tools/) use of
 * libdeepspeed.so beside its public functions. These symbols have the version
 * DEEPSPEED_PRIVATE (cmake/libdeepspeed.map): command and library are of one
 * build.
 * SPDX-License-Identifier: MIT */
#pragma once

#define DSI_SHARED __attribute__((__visibility__("default")))
