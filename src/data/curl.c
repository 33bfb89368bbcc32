/* data/curl.c: libcurl's functions (curl.h).
 *
 * Invariants: libcurl is opened and initialised once a process, by
 * pthread_once, and never closed; afterwards `curl` and `found` are only read.
 * SPDX-License-Identifier: MIT */
#include "curl.h"

#include "base/error.h"
#include "base/library.h"

#include <pthread.h>

#define NAME(name) "curl_" #name,
static const char *const names[] = {DSI_CURL_FUNCTIONS(NAME)};
/* Debian builds it with OpenSSL and with GnuTLS: the same functions. */
static const char *const sonames[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};

static dsi_curl curl;
static bool found;

static bool curl_find(dsi_curl *to)
{
    return dsi_library_open("download", sonames, "libcurl4", names, sizeof names / sizeof names[0],
                            to);
}

/* global_init may not be called twice at the same time, so it belongs here. */
static void curl_open_once(void)
{
    found = curl_find(&curl) && curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

const dsi_curl *dsi_curl_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, curl_open_once);
    if (found) return &curl;
    /* Messages belong to a thread, and another one may have made the attempt
     * that failed: a second attempt sets this thread's message. */
    dsi_curl again;
    if (curl_find(&again)) dsi_fail(DS_ENOMEM, "download: libcurl cannot be started");
    return NULL;
}
