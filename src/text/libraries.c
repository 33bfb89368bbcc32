/* text/libraries.c: PCRE2 and utf8proc, each opened once a process.
 *
 * Invariants: each library is opened once a process, by pthread_once, and never
 * closed. Afterwards the table and its `found` flag are only read, by any
 * thread.
 * SPDX-License-Identifier: MIT */
#include "libraries.h"

#include "base/error.h"
#include "base/library.h"

#include <pthread.h>

#define PCRE2_NAME(name)    "pcre2_" #name "_8",
#define UTF8PROC_NAME(name) "utf8proc_" #name,
#define COUNT(array)        (int)(sizeof(array) / sizeof *(array))

static const char *const pcre2_names[] = {DSI_PCRE2_FUNCTIONS(PCRE2_NAME)};
static const char *const pcre2_sonames[] = {"libpcre2-8.so.0", NULL};
static dsi_pcre2 pcre2;
static bool pcre2_found;

static const char *const utf8proc_names[] = {DSI_UTF8PROC_FUNCTIONS(UTF8PROC_NAME)};
static const char *const utf8proc_sonames[] = {"libutf8proc.so.3", "libutf8proc.so.2", NULL};
static dsi_utf8proc utf8proc;
static bool utf8proc_found;

/* Both functions are called by pthread_once, and again by each caller that
 * finds the library missing: dsi_library_open writes its message to the calling
 * thread. */
static bool pcre2_open(dsi_pcre2 *to)
{
    return dsi_library_open("tokenizer", pcre2_sonames, "libpcre2-8-0", pcre2_names,
                            COUNT(pcre2_names), to);
}

static void pcre2_open_once(void) { pcre2_found = pcre2_open(&pcre2); }

/* Messages belong to a thread. If the first attempt failed, on whichever
 * thread, the second one gives this thread the same message. */
const dsi_pcre2 *dsi_pcre2_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    dsi_pcre2 again;
    pthread_once(&once, pcre2_open_once);
    if (!pcre2_found) pcre2_open(&again);
    return pcre2_found ? &pcre2 : NULL;
}

static bool utf8proc_open(dsi_utf8proc *to)
{
    return dsi_library_open("tokenizer", utf8proc_sonames, "libutf8proc2", utf8proc_names,
                            COUNT(utf8proc_names), to);
}

static void utf8proc_open_once(void) { utf8proc_found = utf8proc_open(&utf8proc); }

const dsi_utf8proc *dsi_utf8proc_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    dsi_utf8proc again;
    pthread_once(&once, utf8proc_open_once);
    if (!utf8proc_found) utf8proc_open(&again);
    return utf8proc_found ? &utf8proc : NULL;
}
