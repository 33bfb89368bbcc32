/* tests/folder.h: an empty folder for a test.
 * SPDX-License-Identifier: MIT */
#pragma once

/* A new folder, in $TMPDIR if that is set. Its path stays valid until
 * folder_remove, which removes all that is in it. */
const char *folder_make(void);
void folder_remove(void);

/* folder/name; valid until the eighth call after it. */
const char *folder_path(const char *name);
