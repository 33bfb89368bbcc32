/* examples/common/paths.h: mistakes in paths are found before data are
 * downloaded and a network is trained.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed.h>

/* Fails if the file or folder at path, the value of --option, cannot be read;
 * path NULL: DS_OK. */
ds_status path_check_readable(const char *option, const char *path);

/* Makes the folder at path and those above it, and fails if nothing can be
 * written to it; path NULL: DS_OK. */
ds_status path_make_folder(const char *option, const char *path);
