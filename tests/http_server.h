/* tests/http_server.h: a web server on 127.0.0.1 with bad manners on request,
 * in a process of its own.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct http_manners {
    const void *body; /* of every path */
    size_t bytes;
    const char *etag;     /* "\"v1\""; NULL: none */
    int status;           /* 0: 200, or 206 for ranges */
    int first_busy;       /* number of first requests that are answered with 503 */
    bool no_ranges;       /* whole body, whatever is asked for */
    bool wrong_range;     /* the answer to a range begins one byte late */
    size_t cut;           /* bytes of the body after which every answer breaks off */
    int cuts;             /* number of answers that are cut, the first ones; 0: all */
    size_t promise;       /* Content-Length, where it is not the truth */
    int pause_ms;         /* in the middle of the body */
    const char *redirect; /* Location of a 302 for every path but /there */
} http_manners;

enum { HTTP_LOGGED = 32 };

typedef struct http_server {
    pid_t pid;
    char url[64]; /* http://127.0.0.1:PORT/file.tar.gz */
    struct http_log {
        volatile int requests;
        volatile int64_t range[HTTP_LOGGED];  /* where a request wanted to begin; -1: everything */
        volatile bool condition[HTTP_LOGGED]; /* it had an If-Range */
    } * log;
} http_server;

http_server http_start(http_manners m);
void http_stop(http_server *s);
