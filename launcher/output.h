/* launcher/output.h: prints ranks' lines on the launcher's stdout and stderr.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct output output;

/* prefix[r], borrowed, is printed before each line of rank r, 0 <= r < size. */
output *output_new(int size, const char *const *prefix);
void output_free(output *o);

/* Bytes of a rank for fd 1 or 2. rank -1: without a prefix. Never blocks. */
void output_add(output *o, int rank, int fd, const char *bytes, size_t n);
/* A line of the launcher itself on stderr, at the beginning of a line. */
void output_print(output *o, const char *line);

/* output_poll: the descriptors to poll until all is written (fd -1: none); then
 * call output_write. output_full: whether too many bytes wait to be written, so
 * that ranks should wait. */
void output_poll(const output *o, struct pollfd p[2]);
void output_write(output *o);
bool output_full(const output *o);
/* errno of the first write that failed, whose bytes are lost; 0: none. A stream
 * that was closed from the start does not count. */
int output_error(const output *o);

void output_end_lines(output *o); /* lines that are not complete are printed */
/* The same, and blocks until all is written, at most for this time. */
void output_finish(output *o, double seconds);
