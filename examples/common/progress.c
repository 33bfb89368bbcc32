/* examples/common/progress.c: a progress bar on stderr, when that is a
 * terminal.
 * SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdio.h>
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
    p->on = on && isatty(STDERR_FILENO);
}

void progress_hide(Progress *p)
{
    if (p->visible) fputs("\r\033[K", stderr);
    p->visible = false;
}

static void print_time(double seconds)
{
    int s = seconds < 359999 ? (int)seconds : 359999;
    if (s >= 3600) fprintf(stderr, "%d:", s / 3600);
    fprintf(stderr, "%02d:%02d", s / 60 % 60, s % 60);
}

/* The bar fills the part of the line that the text (about 70 columns) leaves,
 * in steps of an eighth of a column. */
static void print_bar(double share)
{
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    struct winsize size = {0};
    int columns = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
    int width = columns - 74 < 0 ? 0 : columns - 74 > 30 ? 30 : columns - 74;
    int filled = (int)(share * width * 8);
    fputc('|', stderr);
    for (int i = 0; i < width; i++) {
        int e = filled - 8 * i;
        fputs(e >= 8 ? "█" : e > 0 ? eighths[e] : " ", stderr);
    }
    fputc('|', stderr);
}

void progress_title(Progress *p, const char *title)
{
    snprintf(p->title, sizeof p->title, "%s", title);
}

static void draw(Progress *p)
{
    double t = now() - p->began, share = p->total ? (double)p->done / (double)p->total : 1;
    double rate = t > 0 ? (double)p->done / t : 0;
    fprintf(stderr, "%s%s: %3d%%", p->on ? "\r\033[K" : "", p->title, (int)(100 * share));
    print_bar(share);
    fprintf(stderr, " %lld/%lld [", (long long)p->done, (long long)p->total);
    print_time(t);
    fputc('<', stderr);
    print_time(rate > 0 ? (double)(p->total - p->done) / rate : 0);
    if (p->slow && rate < 1 && rate > 0)
        fprintf(stderr, ", %5.2fs/%s, loss=%.3f]", 1 / rate, p->unit, p->loss);
    else if (p->slow)
        fprintf(stderr, ", %5.2f%s/s, loss=%.3f]", rate, p->unit, p->loss);
    else
        fprintf(stderr, ", %.0f %s/s, loss=%.3f]", rate, p->unit, p->loss);
    fflush(stderr);
    p->visible = true;
    p->shown = t;
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
