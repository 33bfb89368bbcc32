/* data/progress.c: a bar for long transfers, as tqdm draws it.
 *
 * Source: tqdm's format_meter; units are powers of 1000. A column is one
 * character on the terminal, but up to 3 bytes of UTF-8 in a cell, so `room`
 * counts bytes and `width` columns.
 * SPDX-License-Identifier: MIT */
#include "progress.h"

#include "base/clock.h"
#include "base/terminal.h"

#include <stdio.h>
#include <unistd.h>

#define EVERY 0.1 /* seconds between two drawings */

/* Three digits and the unit: 9.99k, 76.7M, 170M. */
static const char *text_bytes(char text[16], double x)
{
    static const char units[] = " kMGTP";
    int u = 0;
    while (x >= 999.5 && units[u + 1]) x /= 1000, u++;
    snprintf(text, 16, "%.*f%.1s",
             !u || x >= 99.95 ? 0
             : x >= 9.995     ? 1
                              : 2,
             x, u ? &units[u] : "");
    return text;
}

/* As tqdm: 02:05, or 1:02:05 from an hour on. */
static const char *text_duration(char text[16], double seconds)
{
    unsigned s = seconds > 0 && seconds < 359999 ? (unsigned)seconds : 0;
    if (s >= 3600)
        snprintf(text, 16, "%u:%02u:%02u", s / 3600 % 100, s / 60 % 60, s % 60);
    else
        snprintf(text, 16, "%02u:%02u", s / 60 % 60, s % 60);
    return text;
}

/* Cells are filled in eighths, so the bar moves smoothly. */
void dsi_progress_line(char *line, int room, int width, int64_t done, int64_t total, double seconds,
                       int64_t bytes_since)
{
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    char a[16], b[16], c[16], d[16], tail[96];
    double rate = seconds > 0 ? (double)bytes_since / seconds : 0;
    if (total <= 0) {
        snprintf(line, (size_t)room, "%sB [%s, %sB/s]", text_bytes(a, (double)done),
                 text_duration(b, seconds), text_bytes(c, rate));
        return;
    }
    if (done > total) done = total;
    int tail_n = snprintf(tail, sizeof tail, "| %s/%s [%s<%s, %sB/s]", text_bytes(a, (double)done),
                          text_bytes(b, (double)total), text_duration(c, seconds),
                          rate > 0 ? text_duration(d, (double)(total - done) / rate) : "?",
                          seconds > 0 ? text_bytes((char[16]){0}, rate) : "?");
    int cells = width - 5 - tail_n; /* beside "100%|" */
    int n = snprintf(line, (size_t)room, "%3d%%|", (int)(100 * done / total));
    if (cells > 0) {
        int64_t fill = 8 * cells * done / total;
        for (int k = 0; k < cells && n + 4 < room; k++, fill -= 8)
            n += snprintf(line + n, (size_t)(room - n), "%s",
                          fill >= 8  ? "█"
                          : fill > 0 ? eighths[fill]
                                     : " ");
    }
    snprintf(line + n, (size_t)(room - n), "%s", tail);
}

/* Draws the line over the last one: \r, the line, and an escape sequence that
 * erases what is right of it. */
static void bar_draw(dsi_progress *p, int64_t done, int64_t total, double at)
{
    int width = dsi_terminal_columns(STDERR_FILENO);
    char line[1024];
    if (width <= 20) width = 80;
    if (width > 200) width = 200;
    dsi_progress_line(line, sizeof line, width, done, total, at - p->begun, done - p->first);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
    p->shown = at;
}

void dsi_progress_begin(dsi_progress *p, int64_t done, bool quiet)
{
    *p = (dsi_progress){.on = !quiet && isatty(STDERR_FILENO), .begun = dsi_now(), .first = done};
    p->shown = p->begun; /* the first drawing waits until there is a rate */
}

/* Draws at most ten times a second. */
void dsi_progress_show(dsi_progress *p, int64_t done, int64_t total)
{
    double at = p->on ? dsi_now() : 0;
    if (p->on && at - p->shown >= EVERY) bar_draw(p, done, total, at);
}

/* Draws once more, so that the last line is complete, and ends it. A bar that
 * was never on leaves no line. */
void dsi_progress_end(dsi_progress *p, int64_t done, int64_t total)
{
    if (!p->on) return;
    bar_draw(p, done, total, dsi_now());
    fputc('\n', stderr);
    p->on = false;
}
