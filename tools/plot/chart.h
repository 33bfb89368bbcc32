/* tools/plot/chart.h: charts of series, as SVG.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "series.h"

#include "base/text.h"

typedef struct ChartOptions {
    double smooth; /* weight of the past in a moving average, 0 (none) to below 1 */
    bool log;      /* y in powers of ten where all values are positive */
} ChartOptions;

enum { CHART_WIDTH = 640, CHART_HEIGHT = 320 };

const char *chart_color(int run); /* "#4269d0" */
/* Adds an <svg> element (or, with x and y, a nested one) with the series of
 * that name, a line each run. */
void chart_add(dsi_text *t, const Plot *p, const char *name, const ChartOptions *o, int x, int y);
void text_add_escaped(dsi_text *t, const char *s); /* for XML */
