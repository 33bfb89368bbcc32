/* launcher/argv.h: argument vectors; words as a shell would split and quote them, and as JSON.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_ARGV_H
#define LAUNCHER_ARGV_H

#include "base/list.h"
#include "base/text.h"

/* A growing argv: at[n] is NULL once something was added. The words are its own. */
typedef struct argv_list {
    DSI_LIST(char *)
} argv_list;

void argv_add(argv_list *w, const char *format, ...) DS_PRINTF(2, 3);
/* argv_add_words(&list, "-o", "BatchMode=yes"): each as it is */
#define argv_add_words(list, ...) \
    argv_add_all(list, (char *const *)(const char *const[]){__VA_ARGS__, NULL})
void argv_add_all(argv_list *w, char *const *argv); /* copies; NULL: none */
/* The words of text, split as a POSIX shell does (blanks, '', "", \), without expanding anything; `what` is for
 * the message about a quote that is not closed. */
ds_status argv_split(argv_list *w, const char *what, const char *text);
char **argv_detach(argv_list *w);   /* w->at, NULL-ended, now the caller's */
argv_list argv_attach(char **argv); /* and back */
void argv_list_free(argv_list *w);
void argv_free(char **argv);

/* As one word of a command line for a POSIX shell: bare where that is the same, else in single quotes. */
void text_add_shell(dsi_text *t, const char *word);
/* As a JSON string of ASCII characters, as Python's json writes it; a byte that is not UTF-8 becomes \udcXX. */
void text_add_json(dsi_text *t, const char *s);
bool text_is_utf8(const char *s);

#endif
