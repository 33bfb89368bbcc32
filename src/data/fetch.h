/* data/fetch.h: downloads one file.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <deepspeed/types.h>

typedef enum dsi_fetched {
    DSI_FETCHED = 0,
    DSI_FETCH_NETWORK, /* no server was reached, or the connection was lost for good */
    DSI_FETCH_ANSWER,  /* the server that was reached does not have the file */
    DSI_FETCH_LOCAL    /* this machine: a full disk, a read-only folder */
} dsi_fetched;

/* Downloads url (https, http, file) to path, which appears whole and with this
 * md5 (32 hex digits; NULL: any) or not at all. Bytes of a download that broke
 * off stay in path.part; the next call continues after them. Draws a progress
 * bar on stderr unless quiet. Blocks. All results but DSI_FETCHED come with a
 * message. */
dsi_fetched dsi_fetch(const char *url, const char *path, const char *md5, bool quiet);

/* Puts the md5 of a file as 32 lower-case hex digits into hex; "", with DS_OK,
 * if there is no such file. */
ds_status dsi_md5(const char *path, char hex[33]);
