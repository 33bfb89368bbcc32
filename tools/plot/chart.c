/* tools/plot/chart.c: one chart: axes, grid, a line for each run.
 *
 * A line has at most four points for each column of pixels (first, smallest,
 * largest, last of the values there), so that peaks stay and a file of a
 * million steps is small.
 * SPDX-License-Identifier: MIT */
#include "chart.h"

#include <math.h>
#include <string.h>

enum { LEFT = 72, RIGHT = 16, TOP = 36, BOTTOM = 40 };
enum { INNER_WIDTH = CHART_WIDTH - LEFT - RIGHT, INNER_HEIGHT = CHART_HEIGHT - TOP - BOTTOM };

typedef struct Axes {
    double x0, x1, y0, y1; /* y: logarithms if log */
    bool log;
} Axes;

/* Colours that people with colour blindness tell apart. */
const char *chart_color(int run)
{
    static const char *const colors[] = {"#4269d0", "#e4772b", "#3a9b57", "#b8439c",
                                         "#8a6d3b", "#17a2b8", "#d62728", "#6c757d"};
    return colors[run % (int)(sizeof colors / sizeof *colors)];
}

void text_add_escaped(dsi_text *t, const char *s)
{
    for (; *s; s++)
        if (*s == '&' || *s == '<' || *s == '>' || *s == '"')
            dsi_text_add(t, "&#%d;", *s);
        else if ((unsigned char)*s >= 0x20)
            dsi_text_add_bytes(t, s, 1);
}

/* ---- axes ---------------------------------------------------------------------------------------- */

static bool series_shown(const Series *s, const char *name) { return !strcmp(s->name, name); }

static Axes axes_of(const Plot *p, const char *name, bool log)
{
    Axes a = {INFINITY, -INFINITY, INFINITY, -INFINITY, log};
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < p->series.n; i++) {
            const Series *s = &p->series.at[i];
            for (int k = 0; series_shown(s, name) && k < s->points.n; k++) {
                Point q = s->points.at[k];
                if (!isfinite(q.y)) continue;
                if (pass == 0 && q.y <= 0) a.log = false;
                if (pass == 0) continue;
                double y = a.log ? log10(q.y) : q.y;
                a.x0 = fmin(a.x0, q.x), a.x1 = fmax(a.x1, q.x);
                a.y0 = fmin(a.y0, y), a.y1 = fmax(a.y1, y);
            }
        }
    if (!(a.x0 <= a.x1)) a = (Axes){0, 1, 0, 1, false};
    if (a.x0 == a.x1) a.x0 -= 0.5, a.x1 += 0.5;
    double margin = (a.y1 - a.y0) * 0.04;
    if (a.y0 == a.y1) margin = a.y0 ? fabs(a.y0) * 0.1 : 1;
    a.y0 -= margin, a.y1 += margin;
    if (a.log && a.y1 - a.y0 <= 0.7) return axes_of(p, name, false); /* too narrow for ticks */
    return a;
}

/* 1, 2 or 5 times a power of ten, so that about `count` steps cover the range. */
static double tick_step(double range, int count)
{
    double raw = range / count, unit = pow(10, floor(log10(raw)));
    return (raw / unit <= 1 ? 1 : raw / unit <= 2 ? 2 : raw / unit <= 5 ? 5 : 10) * unit;
}

static double at_x(const Axes *a, double x)
{
    return LEFT + (x - a->x0) / (a->x1 - a->x0) * INNER_WIDTH;
}
static double at_y(const Axes *a, double y)
{
    return TOP + (a->y1 - y) / (a->y1 - a->y0) * INNER_HEIGHT;
}

static void add_number(dsi_text *t, double x)
{
    if (fabs(x) >= 1e6 && fabs(x) < 1e15) {
        int k = fabs(x) >= 1e12 ? 4 : fabs(x) >= 1e9 ? 3 : 2;
        dsi_text_add(t, "%.4g%c", x / pow(1000, k), " kMGT"[k]);
    } else {
        dsi_text_add(t, "%.6g", fabs(x) < 1e-300 ? 0 : x);
    }
}

static void add_x_ticks(dsi_text *t, const Axes *a)
{
    double step = fmax(tick_step(a->x1 - a->x0, 6), 1e-300);
    for (double x = ceil(a->x0 / step) * step; x <= a->x1 + step * 1e-6; x += step) {
        dsi_text_add(t, "<text class=\"t\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">", at_x(a, x),
                     CHART_HEIGHT - BOTTOM + 18);
        add_number(t, fabs(x) < step * 1e-6 ? 0 : x);
        dsi_text_add(t, "</text>");
    }
}

static void add_y_tick(dsi_text *t, const Axes *a, double y, double value)
{
    dsi_text_add(t, "<path class=\"g\" d=\"M%d %.1fH%d\"/>", LEFT, at_y(a, y), CHART_WIDTH - RIGHT);
    dsi_text_add(t, "<text class=\"t\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">", LEFT - 8,
                 at_y(a, y) + 4);
    add_number(t, value);
    dsi_text_add(t, "</text>");
}

/* 1, 2 and 5 times powers of ten; above three powers only those themselves. */
static void add_log_ticks(dsi_text *t, const Axes *a)
{
    static const double parts[] = {1, 2, 5};
    int step = (int)fmax(1, ceil((a->y1 - a->y0) / 6));
    for (int k = (int)floor(a->y0); k <= a->y1; k += step)
        for (int i = 0; i < (a->y1 - a->y0 > 3 ? 1 : 3); i++) {
            double y = k + log10(parts[i]);
            if (y >= a->y0 && y <= a->y1) add_y_tick(t, a, y, parts[i] * pow(10, k));
        }
}

static void add_y_ticks(dsi_text *t, const Axes *a)
{
    double step = tick_step(a->y1 - a->y0, 5);
    for (double y = ceil(a->y0 / step) * step; y <= a->y1 + step * 1e-6; y += step)
        add_y_tick(t, a, y, fabs(y) < step * 1e-6 ? 0 : y);
}

/* ---- lines --------------------------------------------------------------------------------------- */

typedef struct Column {
    int pixel; /* -1: none yet */
    Point first, low, high, last;
} Column;

static void column_flush(dsi_text *t, const Axes *a, const Column *c, bool *open)
{
    const Point in[] = {c->first, c->low.x < c->high.x ? c->low : c->high,
                        c->low.x < c->high.x ? c->high : c->low, c->last};
    if (c->pixel < 0) return;
    for (int i = 0; i < 4; i++) {
        if (i && in[i].x == in[i - 1].x) continue;
        dsi_text_add(t, "%s%.1f %.1f", *open ? "L" : "M", at_x(a, in[i].x), at_y(a, in[i].y));
        *open = true;
    }
}

/* The path of a series; smooth: of its exponential moving average, corrected
 * for its start as TensorBoard does. */
static void add_path(dsi_text *t, const Axes *a, const Series *s, double smooth)
{
    Column c = {.pixel = -1};
    bool open = false;
    double mean = 0, weight = 0;
    for (int i = 0; i < s->points.n; i++) {
        Point q = s->points.at[i];
        if (!isfinite(q.y)) { /* a gap */
            column_flush(t, a, &c, &open);
            c.pixel = -1, open = false;
            continue;
        }
        if (a->log) q.y = log10(q.y);
        mean = smooth * mean + (1 - smooth) * q.y;
        weight = smooth * weight + (1 - smooth);
        q.y = mean / weight;
        int pixel = (int)at_x(a, q.x);
        if (pixel != c.pixel) {
            column_flush(t, a, &c, &open);
            c = (Column){pixel, q, q, q, q};
        }
        if (q.y < c.low.y) c.low = q;
        if (q.y > c.high.y) c.high = q;
        c.last = q;
    }
    column_flush(t, a, &c, &open);
}

static void add_line(dsi_text *t, const Plot *p, const Series *s, const Axes *a, double smooth,
                     const char *class)
{
    dsi_text_add(t, "<path class=\"%s\" stroke=\"%s\" d=\"", class, chart_color(s->run));
    add_path(t, a, s, smooth);
    dsi_text_add(t, "\"><title>");
    text_add_escaped(t, p->runs.at[s->run]);
    dsi_text_add(t, "</title></path>");
    if (s->points.n != 1 || !isfinite(s->points.at[0].y)) return;
    double y = a->log ? log10(s->points.at[0].y) : s->points.at[0].y; /* one point is no line */
    dsi_text_add(t, "<circle r=\"3\" fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\"/>", chart_color(s->run),
                 at_x(a, s->points.at[0].x), at_y(a, y));
}

void chart_add(dsi_text *t, const Plot *p, const char *name, const ChartOptions *o, int x, int y)
{
    Axes a = axes_of(p, name, o->log);
    dsi_text_add(t,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" x=\"%d\" y=\"%d\" width=\"%d\" "
                 "height=\"%d\" viewBox=\"0 0 %d %d\" data-axes=\"%.17g %.17g %.17g %.17g %d\">"
                 "<text class=\"h\" x=\"%d\" y=\"22\">",
                 x, y, CHART_WIDTH, CHART_HEIGHT, CHART_WIDTH, CHART_HEIGHT, a.x0, a.x1, a.y0, a.y1,
                 a.log, LEFT);
    text_add_escaped(t, name);
    dsi_text_add(t, "</text>");
    if (a.log)
        add_log_ticks(t, &a);
    else
        add_y_ticks(t, &a);
    add_x_ticks(t, &a);
    dsi_text_add(t, "<path class=\"a\" d=\"M%d %dV%dH%d\"/>", LEFT, TOP, CHART_HEIGHT - BOTTOM,
                 CHART_WIDTH - RIGHT);
    for (int pass = o->smooth > 0 ? 0 : 1; pass < 2; pass++) /* first as they are, pale */
        for (int i = 0; i < p->series.n; i++)
            if (series_shown(&p->series.at[i], name))
                add_line(t, p, &p->series.at[i], &a, pass ? o->smooth : 0, pass ? "l" : "l p");
    dsi_text_add(t, "</svg>\n");
}
