/* text/libraries.h: PCRE2 and utf8proc, opened when a tokenizer needs them, so
 * that programs without text start without them.
 * SPDX-License-Identifier: MIT */
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

/* The functions in use; each is pcre2_NAME_8. */
#define DSI_PCRE2_FUNCTIONS(X) \
    X(compile) \
    X(jit_compile) \
    X(match) \
    X(match_data_create) \
    X(match_data_free) \
    X(get_ovector_pointer) \
    X(match_context_create) \
    X(match_context_free) \
    X(set_match_limit) \
    X(get_error_message) \
    X(code_free)

#define DSI_PCRE2_MEMBER(name) __typeof__(&pcre2_##name##_8) name;
typedef struct dsi_pcre2 {
    DSI_PCRE2_FUNCTIONS(DSI_PCRE2_MEMBER)
} dsi_pcre2;
#undef DSI_PCRE2_MEMBER

/* The functions in use; each is utf8proc_NAME. */
#define DSI_UTF8PROC_FUNCTIONS(X) \
    X(map) \
    X(category) \
    X(tolower) \
    X(toupper)

#define DSI_UTF8PROC_MEMBER(name) __typeof__(&utf8proc_##name) name;
typedef struct dsi_utf8proc {
    DSI_UTF8PROC_FUNCTIONS(DSI_UTF8PROC_MEMBER)
} dsi_utf8proc;
#undef DSI_UTF8PROC_MEMBER

/* Return the functions of the library, opened by the first call; NULL, with a
 * message that names the package, if it is not installed. */
const dsi_pcre2 *dsi_pcre2_open(void);
const dsi_utf8proc *dsi_utf8proc_open(void);
