/* base/library.h: shared libraries of others that are opened when they are
 * first needed, so that a program which needs none starts without them, and
 * runs where they are not installed.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "shared.h"

#include <deepspeed/types.h>

/* Opens the first of sonames, a list that ends with NULL, and finds n functions
 * in it: writes the address of names[i] to the pointer at to[i]. false, with a
 * message that begins with `who` and names the package, if the library or a
 * function is not there. It stays open: others of the process may use it
 * too. */
DSI_SHARED bool dsi_library_open(const char *who, const char *const *sonames, const char *package,
                                 const char *const *names, int n, void *to);

/* The folder of the program, or of the shared library, that this code is in;
 * free() it. NULL: the system does not say. */
DSI_SHARED char *dsi_own_folder(void);
