/* launcher/argv.h: argument vectors; words split and quoted as a shell does,
 * and as JSON.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "base/text.h"

/* A growing argv. It owns the strings; at[n] is NULL once one was added. */
typedef struct argv_list {
    DSI_LIST(char *)
} argv_list;

void argv_add(argv_list *w, const char *format, ...) DS_PRINTF(2, 3);
/* argv_add_words(&list, "-o", "BatchMode=yes"): each as it is */
#define argv_add_words(list, ...) \
    argv_add_all(list, (char *const *)(const char *const[]){__VA_ARGS__, NULL})
void argv_add_all(argv_list *w, char *const *argv); /* copies; NULL: none */
/* Adds the words of text, split as a POSIX shell does (blanks, '', "", \) but
 * without any expansion. what: for the message about a quote that is not
 * closed. */
ds_status argv_split(argv_list *w, const char *what, const char *text);
char **argv_detach(argv_list *w);   /* w->at, NULL-ended, owned by the caller */
argv_list argv_attach(char **argv); /* the reverse; argv may be NULL */
void argv_list_free(argv_list *w);
void argv_free(char **argv);

/* Adds one word of a command line for a POSIX shell, quoted only if it has to
 * be. */
void text_add_shell(dsi_text *t, const char *word);
/* Adds a JSON string of ASCII characters, as Python's json writes it; a byte
 * that is not UTF-8 becomes \udcXX. */
void text_add_json(dsi_text *t, const char *s);
