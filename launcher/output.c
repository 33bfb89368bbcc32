/* launcher/output.c: prints ranks' lines.
 *
 * A line is written as a whole, so that lines of ranks never mix; apart from
 * the prefix its bytes are unchanged. In a terminal the beginning of a line is
 * shown at once, for progress bars and questions: each carriage return is then
 * followed by the prefix too, and output of another rank begins a new line. In
 * a file a line appears when it is complete.
 *
 * Invariants: stream 2 (rank + 1) + k is rank's stdout (k = 0) or stderr (1);
 * rank -1 is text without a prefix. A byte is in line[stream] until it is
 * shown, then in target[k].waiting until it is written. `open` is the stream
 * whose line the target's cursor is in. Nothing but output_finish blocks: a
 * reader that does not read must not delay Ctrl-C. PIECE is what poll promises
 * a pipe to accept.
 * SPDX-License-Identifier: MIT */
#include "output.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    NO_STREAM = -2,
    LONGEST = 1 << 16, /* a longer line is shown in parts */
    FULL = 1 << 20,    /* bytes waiting: see output_full */
    PIECE = 4096       /* bytes of one write */
};

typedef struct target {
    int fd;
    int error; /* errno of the first write that was refused */
    bool terminal;
    dsi_text waiting;
    size_t written; /* bytes of `waiting` that are written */
    int open;       /* stream whose line is not complete; NO_STREAM: none */
} target;

struct output {
    int size;
    const char *const *prefix;
    target target[2];
    bool one_screen; /* both are terminals, with one cursor */
    dsi_text *line;  /* [2 (size + 1)] of each stream: bytes not shown yet */
};

output *output_new(int size, const char *const *prefix)
{
    output *o = dsi_alloc(sizeof *o);
    *o = (output){.size = size, .prefix = prefix};
    for (int i = 0; i < 2; i++)
        o->target[i] = (target){.fd = 1 + i, .terminal = isatty(1 + i) == 1, .open = NO_STREAM};
    o->one_screen = o->target[0].terminal && o->target[1].terminal;
    o->line = dsi_alloc(2 * ((size_t)size + 1) * sizeof *o->line);
    return o;
}

void output_free(output *o)
{
    if (!o) return;
    for (int i = 0; i < 2 * (o->size + 1); i++) dsi_text_free(&o->line[i]);
    for (int i = 0; i < 2; i++) dsi_text_free(&o->target[i].waiting);
    dsi_free(o->line);
    dsi_free(o);
}

/* ---- lines ----------------------------------------------------------------------- */

static const char *stream_prefix(const output *o, int stream)
{
    int rank = stream / 2 - 1;
    return rank >= 0 && o->prefix ? o->prefix[rank] : "";
}

/* Ends the line of another stream that is not complete. */
static void output_leave_line(output *o, target *t, int stream)
{
    target *other = &o->target[t == o->target];
    if (o->one_screen && other->open != NO_STREAM && other->open != stream) {
        dsi_text_add(&other->waiting, "\n");
        other->open = NO_STREAM;
        output_write(o);
    }
    if (t->open == NO_STREAM || t->open == stream) return;
    dsi_text_add(&t->waiting, "\n");
    t->open = NO_STREAM;
}

/* Shows part of a line, or its end with the newline. */
static void output_show(output *o, int stream, const char *s, size_t n)
{
    target *t = &o->target[stream % 2];
    const char *prefix = stream_prefix(o, stream);
    output_leave_line(o, t, stream);
    if (t->open == NO_STREAM) {
        if (t->terminal && n > 1 && *s == '\r') s++, n--; /* the cursor is there already */
        dsi_text_add_bytes(&t->waiting, prefix, strlen(prefix));
    }
    for (const char *at = s, *stop = s + n; at < stop;) {
        const char *back = t->terminal ? memchr(at, '\r', (size_t)(stop - at)) : NULL;
        bool again = back && back + 1 < stop && back[1] != '\n';
        const char *end = again ? back + 1 : stop;
        dsi_text_add_bytes(&t->waiting, at, (size_t)(end - at));
        if (again) dsi_text_add_bytes(&t->waiting, prefix, strlen(prefix));
        at = end;
    }
    t->open = s[n - 1] == '\n' ? NO_STREAM : stream;
}

/* all: the last line too, though it is not complete. */
static void output_show_lines(output *o, int stream, bool all)
{
    dsi_text *line = &o->line[stream];
    const char *s = line->s, *stop = s + line->n;
    for (const char *end; s < stop && (end = memchr(s, '\n', (size_t)(stop - s))); s = end + 1)
        output_show(o, stream, s, (size_t)(end + 1 - s));
    /* a carriage return at the end may belong to a newline that follows */
    const char *until = o->target[stream % 2].terminal && !all && stop > s && stop[-1] == '\r'
                            ? stop - 1
                            : stop;
    bool show = all || o->target[stream % 2].terminal || stop - s > LONGEST;
    if (show && until > s) {
        output_show(o, stream, s, (size_t)(until - s));
        s = until;
    }
    line->n = (size_t)(stop - s);
    if (line->n) memmove(line->s, s, line->n);
}

/* Bytes of an unknown rank are dropped. */
void output_add(output *o, int rank, int fd, const char *bytes, size_t n)
{
    if (rank < -1 || rank >= o->size || !n) return;
    int stream = 2 * (rank + 1) + (fd == STDERR_FILENO);
    dsi_text_add_bytes(&o->line[stream], bytes, n);
    output_show_lines(o, stream, false);
    output_write(o);
}

/* Ranks may have written to the terminal themselves. A line of blanks less one
 * ends in the next line if the cursor was not at the beginning of one. */
static void output_begin_line(output *o)
{
    target *t = &o->target[1];
    output_leave_line(o, t, NO_STREAM);
    int columns = t->terminal ? dsi_terminal_columns(t->fd) : 0;
    if (columns >= 2) dsi_text_add(&t->waiting, "%*s\r", columns - 1, "");
}

void output_print(output *o, const char *line)
{
    output_begin_line(o);
    dsi_text_add(&o->target[1].waiting, "%s\n", line);
    output_write(o);
}

/* ---- writing --------------------------------------------------------------------- */

static size_t target_left(const target *t) { return t->waiting.n - t->written; }

void output_poll(const output *o, struct pollfd p[2])
{
    for (int i = 0; i < 2; i++)
        p[i] = (struct pollfd){.fd = target_left(&o->target[i]) ? o->target[i].fd : -1,
                               .events = POLLOUT};
}

/* false: it accepts no more now. */
static bool target_write(target *t)
{
    struct pollfd p = {.fd = t->fd, .events = POLLOUT};
    if (poll(&p, 1, 0) <= 0) return false;
    size_t n = target_left(t) < PIECE ? target_left(t) : PIECE;
    ssize_t done = write(t->fd, t->waiting.s + t->written, n);
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (done < 0) {
        if (!t->error && errno != EBADF) t->error = errno;
        done = (ssize_t)target_left(t); /* dropped */
    }
    t->written += (size_t)done;
    return true;
}

/* Written bytes are removed from the buffer only when it is large or empty:
 * moving it for each piece would cost quadratic time. */
void output_write(output *o)
{
    for (int i = 0; i < 2; i++) {
        target *t = &o->target[i];
        while (target_left(t) && target_write(t)) continue;
        if (target_left(t) && t->written < FULL) continue;
        t->waiting.n = target_left(t);
        if (t->waiting.n) memmove(t->waiting.s, t->waiting.s + t->written, t->waiting.n);
        t->written = 0;
    }
}

int output_error(const output *o)
{
    return o->target[0].error ? o->target[0].error : o->target[1].error;
}

/* A rank that prints faster than the reader reads must wait, or the buffer
 * would grow without limit. */
bool output_full(const output *o)
{
    return target_left(&o->target[0]) > FULL || target_left(&o->target[1]) > FULL;
}

void output_end_lines(output *o)
{
    for (int i = 0; i < 2 * (o->size + 1); i++)
        if (o->line[i].n) output_show_lines(o, i, true);
    output_write(o);
}

void output_finish(output *o, double seconds)
{
    double until = dsi_now() + seconds;
    output_end_lines(o);
    for (double rest; (rest = until - dsi_now()) > 0;) {
        struct pollfd p[2];
        output_poll(o, p);
        if (p[0].fd < 0 && p[1].fd < 0) return;
        poll(p, 2, (int)(rest * 1e3) + 1);
        output_write(o);
    }
}
