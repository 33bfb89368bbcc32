/* data/curl.h: libcurl, opened by the first download. A program that finds its
 * data never loads it, nor the three dozen libraries that come with it.
 * SPDX-License-Identifier: MIT */
#pragma once

#define CURL_DISABLE_TYPECHECK /* its macros know the functions by their own names only */
#include <curl/curl.h>

/* The functions of libcurl that are used; each is curl_NAME. */
#define DSI_CURL_FUNCTIONS(X) \
    X(global_init) \
    X(easy_init) \
    X(easy_setopt) \
    X(easy_perform) \
    X(easy_getinfo) \
    X(easy_strerror) \
    X(easy_cleanup) \
    X(slist_append) \
    X(slist_free_all)

#define DSI_CURL_MEMBER(name) __typeof__(&curl_##name) name;
typedef struct dsi_curl {
    DSI_CURL_FUNCTIONS(DSI_CURL_MEMBER)
} dsi_curl;
#undef DSI_CURL_MEMBER

/* NULL, with the message: it is not installed. */
const dsi_curl *dsi_curl_open(void);
