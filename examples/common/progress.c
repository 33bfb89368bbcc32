/* examples/common/progress.c: a progress bar on stderr, when that is a
 * terminal.
 * SPDX-License-Identifier: MIT */
#include "progress.h"

#include <langinfo.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_begin(Progress *p, bool on, const char *unit, int64_t total, const char *title)
{
    *p = (Progress){.unit = unit, .total = total, .began = now()};
    snprintf(p->title, sizeof p->title, "%s", title);
    const char *terminal = getenv("TERM");
    p->on = on && isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

void progress_hide(Progress *p)
{
    if (p->visible) fputs("\r\033[K", stderr);
    p->visible = false;
}

void progress_title(Progress *p, const char *title)
{
    snprintf(p->title, sizeof p->title, "%s", title);
}

/* As tqdm: 02:05, or 1:02:05 from an hour on. */
static const char *text_time(char text[16], double seconds)
{
    int s = seconds < 359999 ? (int)seconds : 359999;
    if (s >= 3600)
        snprintf(text, 16, "%d:%02d:%02d", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, 16, "%02d:%02d", s / 60, s % 60);
    return text;
}

/* The text after the percentage: forms from the widest to the narrowest. */
static void line_tail(const Progress *p, double seconds, int form, char *text, int size)
{
    char took[16], left[16], rate_text[32];
    double rate = seconds > 0 ? (double)p->done / seconds : 0;
    text_time(took, seconds);
    text_time(left, rate > 0 ? (double)(p->total - p->done) / rate : 0);
    snprintf(rate_text, sizeof rate_text, rate < 10 ? "%.2f %s/s" : "%.0f %s/s", rate, p->unit);
    if (form == 0)
        snprintf(text, (size_t)size, " %lld/%lld [%s<%s, %s, loss=%.3f]", (long long)p->done,
                 (long long)p->total, took, left, rate_text, p->loss);
    else if (form == 1)
        snprintf(text, (size_t)size, " [%s<%s, loss=%.3f]", took, left, p->loss);
    else if (form == 2)
        snprintf(text, (size_t)size, " %s<%s %.3f", took, left, p->loss);
    else
        *text = 0;
}

/* A bar of `width` cells, blocks filled in eighths. */
static int line_bar(double share, int width, bool utf8, char *line)
{
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    int filled = (int)(share * width * 8), n = 0;
    line[n++] = '|';
    for (int i = 0; i < width; i++) {
        int e = filled - 8 * i;
        const char *cell = e >= 8 ? utf8 ? "█" : "#" : e > 0 && utf8 ? eighths[e] : " ";
        n += sprintf(line + n, "%s", cell);
    }
    line[n++] = '|';
    return n;
}

void progress_line(const Progress *p, double seconds, int columns, bool utf8, char *line, int size)
{
    enum { FORMS = 4, WIDEST_BAR = 30, NARROWEST_BAR = 5 };
    double share = p->total > 0 ? (double)p->done / (double)p->total : 0;
    char head[96], tail[128];
    int n_head = snprintf(head, sizeof head, "%s: %3d%%", p->title, (int)(100 * share)), room = 0;
    for (int form = 0; form < FORMS; form++) {
        line_tail(p, seconds, form, tail, sizeof tail);
        room = columns - n_head - (int)strlen(tail) - 2;
        if (room >= (form < 2 ? NARROWEST_BAR : -2)) break;
    }
    int n = snprintf(line, (size_t)size, "%s", head);
    int width = room < WIDEST_BAR ? room : WIDEST_BAR;
    if (width >= NARROWEST_BAR && n + 4 * width + 2 < size)
        n += line_bar(share, width, utf8, line + n);
    snprintf(line + n, (size_t)(size - n), "%s", tail);
}

/* Whether the user's locale writes UTF-8; the program's own stays "C". */
static bool locale_is_utf8(void)
{
    locale_t user = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    bool utf8 = user && !strcmp(nl_langinfo_l(CODESET, user), "UTF-8");
    if (user) freelocale(user);
    return utf8;
}

static void draw(Progress *p)
{
    struct winsize size = {0};
    char line[512];
    bool terminal = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col;
    p->shown = now() - p->began;
    progress_line(p, p->shown, terminal ? size.ws_col - 1 : 80, locale_is_utf8(), line,
                  sizeof line);
    fprintf(stderr, "%s%s", p->on ? "\r\033[K" : "", line);
    fflush(stderr);
    p->visible = true;
}

void progress_add(Progress *p, int64_t n, double loss)
{
    p->done += n;
    p->loss = loss;
    if (!p->on) return;
    double t = now() - p->began;
    if (p->visible && t - p->shown < 0.1 && p->done < p->total) return;
    draw(p);
}

void progress_end(Progress *p)
{
    if (p->last_line) {
        draw(p);
        fputc('\n', stderr);
        p->visible = false;
    }
    progress_hide(p);
    p->on = false;
}
