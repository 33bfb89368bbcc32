/* data/fetch.h: downloads one file.
 * SPDX-License-Identifier: MIT */
#ifndef DSI_DATA_FETCH_H
#define DSI_DATA_FETCH_H

#include <deepspeed/types.h>

typedef enum dsi_fetched {
    DSI_FETCHED = 0,
    DSI_FETCH_NETWORK, /* nobody was reached, or the connection was lost for good */
    DSI_FETCH_ANSWER,  /* what was reached has not got the file */
    DSI_FETCH_LOCAL    /* this machine: a full disk, a read-only folder */
} dsi_fetched;

/* url (https, http, file) -> path, which appears whole and with this md5 (32
 * hex digits; NULL: not looked at) or not at all. What came of a broken
 * download lies in path.part, and is gone on with. A progress bar goes to
 * stderr unless quiet. All but DSI_FETCHED set ds_error(). */
dsi_fetched dsi_fetch(const char *url, const char *path, const char *md5, bool quiet);

/* The md5 of a file as 32 hex digits; "" without failure if there is no such
 * file. */
ds_status dsi_md5(const char *path, char hex[33]);

#endif
