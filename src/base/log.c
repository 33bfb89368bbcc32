/* base/log.c: lines of DeepSpeed's form on stdout, or stderr.
 *
 * The form is that of DeepSpeed's logger (deepspeed/utils/logging.py), so that
 * scripts which read its output can read ours. A line is one write, after what
 * the program itself has printed, so that lines of several ranks on one pipe do
 * not mix.
 *
 * Invariants: rank and level belong to the thread, as a rank is a thread. The
 * level is read from DS_LOG once a thread. Writing blocks while a pipe is full.
 * SPDX-License-Identifier: MIT */
#include "log.h"

#include "terminal.h"
#include "text.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const names[] = {"debug", "info", "warning", "error"};
enum { NAMES = sizeof names / sizeof *names };

static _Thread_local int rank;
static _Thread_local int least_level = -1; /* -1: DS_LOG was not looked at yet */
static _Thread_local FILE *stream;         /* NULL: stdout */
static _Thread_local dsi_text *collected;  /* NULL: lines go to the stream */
static _Thread_local const char *collected_prefix;

static void log_read_level(void)
{
    const char *asked = getenv("DS_LOG");
    least_level = DSI_WARNING;
    if (!asked || !*asked) return;
    for (int i = 0; i < NAMES; i++)
        if (!strcmp(asked, names[i])) {
            least_level = i;
            return;
        }
    dsi_log(DSI_WARNING, "DS_LOG=%s: expected debug, info, warning or error; warning is used",
            asked);
}

bool dsi_log_on(dsi_level level)
{
    if (least_level < 0) log_read_level();
    if (level == DSI_WARNING || level == DSI_ERROR) return (int)level >= least_level;
    return !rank && (level == DSI_REQUESTED || (int)level >= least_level);
}

void dsi_log_collect(dsi_text *to, const char *prefix)
{
    collected = to;
    collected_prefix = prefix;
}

void dsi_log_set_stream(FILE *to) { stream = to; }
void dsi_log_set_rank(int r) { rank = r; }
int dsi_log_rank(void) { return rank; }

/* "[2026-11-21 12:05:41,123] [INFO] [engine.c:210:step] [Rank 0] " */
static void log_add_prefix(dsi_text *t, FILE *to, dsi_level level, const char *file, int line,
                           const char *func)
{
    static const char *const tags[] = {"DEBUG", "INFO", "WARNING", "ERROR", "INFO"};
    struct timespec now;
    struct tm day;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &day);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S", &day);
    const char *slash = strrchr(file, '/');
    bool marked = (level == DSI_WARNING || level == DSI_ERROR) && dsi_terminal_colors(fileno(to));
    const char *color = !marked ? "" : level == DSI_ERROR ? DSI_RED : DSI_YELLOW;
    dsi_text_add(t, "[%s,%03d] [%s%s%s] [%s:%d:%s] [Rank %d] ", date, (int)(now.tv_nsec / 1000000),
                 color, tags[level], marked ? DSI_PLAIN : "", slash ? slash + 1 : file, line, func,
                 rank);
}

/* Writes all bytes in one write where the system can. A failure is ignored:
 * there is no other place for a message. */
static void log_write_line(FILE *to, const char *s, size_t n)
{
    flockfile(to);
    fflush(to);
    int fd = fileno(to);
    while (n) {
        ssize_t put = write(fd, s, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0 && errno == EAGAIN) { /* a terminal that somebody made non-blocking */
            poll(&(struct pollfd){fd, POLLOUT, 0}, 1, -1);
            continue;
        }
        if (put < 0) break;
        s += put;
        n -= (size_t)put;
    }
    funlockfile(to);
}

void dsi_log_at(dsi_level level, const char *file, int line, const char *func, const char *format,
                ...)
{
    if (!dsi_log_on(level)) return;
    int kept = errno; /* a line about a failure must not change what it is about */
    dsi_text t = {0};
    va_list args;
    FILE *to = stream ? stream : stdout;
    if (collected)
        dsi_text_add(&t, "%s", collected_prefix);
    else
        log_add_prefix(&t, to, level, file, line, func);
    va_start(args, format);
    dsi_text_add_args(&t, format, args);
    va_end(args);
    dsi_text_add_bytes(&t, "\n", 1);
    if (collected)
        dsi_text_add_bytes(collected, t.s, t.n);
    else
        log_write_line(to, t.s, t.n);
    dsi_text_free(&t);
    errno = kept;
}
