/* checkpoint/resolve.h: makes the values that a caller gets of those that a
 * pickle has.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "pickle.h"

/* Makes the tensors in v views of their storages, whose `flat` was filled
 * before. Refuses, with the path to it, what a caller cannot get: a list that
 * contains itself, a class, a tensor outside of its storage or of an unknown
 * dtype; or, if `objects`, makes DS_VALUE_OBJECTs of these. The limits of
 * values and bytes grow with file_bytes. False with the message, which begins
 * with `what`; v is the caller's to free in both cases. */
bool dsi_resolve_tensors(const char *what, ds_value *v, size_t file_bytes, bool objects);
