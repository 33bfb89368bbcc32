/* tools/plot/series.h: the numbers of runs, by name and step, read from the
 * files that a run writes.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"

#include <deepspeed/types.h>

typedef struct Point {
    double x, y; /* y may be NaN or infinite: a gap */
} Point;

typedef struct Series {
    char *name; /* "loss": the last part of a tag, without "train_" */
    int run;    /* index of Plot's runs */
    struct {
        DSI_LIST(Point)
    } points; /* in the order of x */
} Series;

typedef struct Plot {
    struct {
        DSI_LIST(char *)
    } runs; /* their names */
    struct {
        DSI_LIST(Series)
    } series;
} Plot;

/* Adds a run: a .csv file (the first column is x; a trace of our programs, a
 * file of csv_monitor), an event file of TensorBoard, or a folder with such
 * files, also in its subfolders. Series of the same name and run are joined.
 * name: shown in the legend; copied. Fails, with the message, if nothing can be
 * read from path. */
ds_status plot_add_run(Plot *p, const char *name, const char *path);

/* Sorts the points of each series by x; of equal ones the last stays, which a
 * resumed run wrote. */
void plot_sort(Plot *p);
void plot_free(Plot *p);
