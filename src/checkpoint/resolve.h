/* checkpoint/resolve.h: values that were read become what the caller gets.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_CHECKPOINT_RESOLVE_H
#define DSI_CHECKPOINT_RESOLVE_H

#include "pickle.h"

/* Gives the tensors in v their values, from the storages that were found, and
 * refuses, with the path to it, what is no value: a list that holds itself, a
 * class, a tensor outside of its storage or of a dtype that there is not; or
 * makes objects of such, if they are wanted. file_bytes: a bound for what a few
 * bytes may ask for. */
bool dsi_resolve_tensors(const char *what, ds_value *v, size_t file_bytes, bool objects);

#endif
