/* launcher/output.h: what ranks print, line by line, on the launcher's stdout and stderr.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_OUTPUT_H
#define LAUNCHER_OUTPUT_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct output output;

/* prefix[r], borrowed, stands before each line of rank r, r < size. */
output *output_new(int size, const char *const *prefix);
void output_free(output *o);

/* Bytes of a rank; fd is 1 or 2. rank -1: without a prefix. Never waits. */
void output_add(output *o, int rank, int fd, const char *bytes, size_t n);
/* A line of the launcher itself, on stderr, at the beginning of a line whatever stands there. */
void output_print(output *o, const char *line);

/* What to poll for until all is written; then output_write. full: so much waits that ranks should too. */
void output_poll(const output *o, struct pollfd p[2]);
void output_write(output *o);
bool output_full(const output *o);
/* errno of the first write that was refused, and its bytes lost; 0: none. A stream that was closed from the start
 * is not meant. */
int output_error(const output *o);

void output_end_lines(output *o); /* what ranks have begun will not go on */
/* The same, and waits at most so many seconds for whoever reads. */
void output_finish(output *o, double seconds);

#endif
