/* tools/ds_plot.c: curves of runs in one file that any browser opens: loss,
 * learning rate, samples per second, ..., a line each run. Nothing is fetched
 * from a network, when it is made or when it is opened.
 * SPDX-License-Identifier: MIT */
#include "parse_options.h"
#include "plot/chart.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#include <argp.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Options {
    const char *output;
    char **runs;
    int n_runs;
    const char *only; /* names, separated by commas; or NULL */
    ChartOptions chart;
} Options;

/* ---- options ------------------------------------------------------------------------------------- */

enum { SMOOTH = 256, LOG, ONLY };

static error_t plot_parse_option(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    char *end;
    switch (key) {
    case 'o':
        if (!dsi_ends_with(arg, ".html") && !dsi_ends_with(arg, ".svg"))
            argp_error(state, "--output %s: expected a name that ends with .html or .svg", arg);
        o->output = arg;
        return 0;
    case SMOOTH:
        o->chart.smooth = strtod(arg, &end);
        if (end == arg || *end || !(o->chart.smooth >= 0 && o->chart.smooth < 1))
            argp_error(state, "--smooth %s: expected a number from 0 to below 1", arg);
        return 0;
    case LOG:
        o->chart.log = true;
        return 0;
    case ONLY:
        o->only = arg;
        return 0;
    case ARGP_KEY_ARGS:
        o->runs = state->argv + state->next;
        o->n_runs = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which runs? ds_plot RUN...");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* "NAME=PATH", or a path whose last parts name the run. */
static ds_status read_run(Plot *p, const char *argument)
{
    const char *equals = strchr(argument, '=');
    if (equals && !dsi_file_exists(argument)) {
        char *name = dsi_strdup(argument);
        name[equals - argument] = 0;
        ds_status status = plot_add_run(p, name, equals + 1);
        dsi_free(name);
        return status;
    }
    return plot_add_run(p, argument, argument);
}

/* Whether a comma-separated list has the name. */
static bool list_has(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; *at;) {
        size_t length = strcspn(at, ",");
        if (length == n && !strncmp(at, name, n)) return true;
        at += length + (at[length] == ',');
    }
    return false;
}

/* The names of the series that are shown: the usual ones first. names: an array for
 * all series. Returns their number. */
static int collect_names(const Plot *p, const char *only, const char **names)
{
    static const char usual[] = "loss,accuracy,eval_loss,lr,samples_per_sec";
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < p->series.n; i++) {
            const char *name = p->series.at[i].name;
            bool shown = (!only || list_has(only, name)) && list_has(usual, name) == (pass == 0);
            for (int k = 0; k < n; k++) shown = shown && strcmp(names[k], name) != 0;
            if (shown) names[n++] = name;
        }
    return n;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static const char style[] =
    ":root{color-scheme:light dark;--fg:#222;--bg:#fff;--grid:#ddd}"
    "@media(prefers-color-scheme:dark){:root{--fg:#ddd;--bg:#181818;--grid:#3a3a3a}}"
    "body{font:14px system-ui,sans-serif;color:var(--fg);background:var(--bg);margin:24px}"
    "main{display:flex;flex-wrap:wrap;gap:16px}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;margin:12px 0}td,th{padding:2px 12px;text-align:right}"
    "td:first-child,th:first-child{text-align:left}"
    "i{display:inline-block;width:12px;height:12px;margin-right:8px;border-radius:2px}"
    "span{margin-right:24px;white-space:nowrap}"
    "#at{position:fixed;pointer-events:none;background:var(--bg);border:1px solid var(--grid);"
    "padding:4px 8px;white-space:pre;display:none}";

/* Of the charts, in HTML and SVG. */
static const char chart_style[] =
    ".t,.h{font:12px system-ui,sans-serif;fill:var(--fg,#222)}.h{font-size:15px;font-weight:600}"
    ".g{stroke:var(--grid,#ddd)}.a{stroke:var(--fg,#222);fill:none}"
    ".l{fill:none;stroke-width:1.6;stroke-linejoin:round}.p{opacity:.3;stroke-width:1}";

/* Shows the values of all lines at the step under the mouse. */
static const char script[] =
    "const box=document.getElementById('at');"
    "document.querySelectorAll('main svg').forEach(s=>{"
    "const [x0,x1,y0,y1,log]=s.dataset.axes.split(' ').map(Number),"
    "W=640,H=320,L=72,R=16,T=36,B=40;"
    "const lines=[...s.querySelectorAll('path.l:not(.p)')].map(l=>[l.textContent,"
    "l.getAttribute('d').split(/[ML]/).slice(1).map(q=>q.split(' ').map(Number))]);"
    "s.onmousemove=e=>{const r=s.getBoundingClientRect(),x=(e.clientX-r.left)*W/r.width;"
    "let t='';lines.forEach(([name,points])=>{if(!points.length)return;"
    "const q=points.reduce((a,b)=>Math.abs(b[0]-x)<Math.abs(a[0]-x)?b:a);"
    "let v=y1-(q[1]-T)/(H-T-B)*(y1-y0);if(log)v=10**v;"
    "if(!t)t='step '+Math.round(x0+(q[0]-L)/(W-L-R)*(x1-x0));"
    "t+='\\n'+name+'  '+v.toPrecision(4)});"
    "box.textContent=t;box.style.display=t?'block':'none';"
    "box.style.left=Math.min(e.clientX+14,innerWidth-220)+'px';box.style.top=e.clientY+14+'px'};"
    "s.onmouseleave=()=>box.style.display='none'});";

/* Last, smallest and largest value of each series of that name. */
static void add_table_rows(dsi_text *t, const Plot *p, const char *name)
{
    for (int i = 0; i < p->series.n; i++) {
        const Series *s = &p->series.at[i];
        double low = INFINITY, high = -INFINITY;
        if (strcmp(s->name, name) != 0 || !s->points.n) continue;
        for (int k = 0; k < s->points.n; k++) {
            low = fmin(low, s->points.at[k].y);
            high = fmax(high, s->points.at[k].y);
        }
        const Point *last = &s->points.at[s->points.n - 1];
        dsi_text_add(t, "<tr><td>");
        text_add_escaped(t, name);
        dsi_text_add(t, "</td><td style=\"text-align:left\"><i style=\"background:%s\"></i>",
                     chart_color(s->run));
        text_add_escaped(t, p->runs.at[s->run]);
        dsi_text_add(t, "</td><td>%.0f</td><td>%.5g</td><td>%.5g</td><td>%.5g</td></tr>\n", last->x,
                     last->y, low, high);
    }
}

static void add_html(dsi_text *t, const Plot *p, const char *const *names, int n,
                     const ChartOptions *o)
{
    dsi_text_add(t,
                 "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">"
                 "<meta name=\"viewport\" content=\"width=device-width\">"
                 "<title>ds_plot</title><style>%s%s</style>\n<div id=\"at\"></div>\n<p>",
                 style, chart_style);
    for (int i = 0; i < p->runs.n; i++) {
        dsi_text_add(t, "<span><i style=\"background:%s\"></i>", chart_color(i));
        text_add_escaped(t, p->runs.at[i]);
        dsi_text_add(t, "</span> ");
    }
    dsi_text_add(t, "</p>\n<main>\n");
    for (int i = 0; i < n; i++) chart_add(t, p, names[i], o, 0, 0);
    dsi_text_add(t, "</main>\n<table><tr><th></th><th style=\"text-align:left\">run</th>"
                    "<th>last step</th><th>last</th><th>smallest</th><th>largest</th></tr>\n");
    for (int i = 0; i < n; i++) add_table_rows(t, p, names[i]);
    dsi_text_add(t, "</table>\n<script>%s</script>\n</html>\n", script);
}

/* The legend, then the charts in two columns. */
static void add_svg(dsi_text *t, const Plot *p, const char *const *names, int n,
                    const ChartOptions *o)
{
    enum { LEGEND_ROW = 20, MARGIN = 16 };
    int columns = n > 1 ? 2 : 1, legend = p->runs.n * LEGEND_ROW + MARGIN;
    int height = legend + (n + columns - 1) / columns * CHART_HEIGHT;
    dsi_text_add(t,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\">"
                 "<style>%s</style><rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                 columns * CHART_WIDTH, height, chart_style);
    for (int i = 0; i < p->runs.n; i++) {
        dsi_text_add(t,
                     "<rect x=\"%d\" y=\"%d\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                     "<text class=\"t\" x=\"%d\" y=\"%d\">",
                     MARGIN, MARGIN + i * LEGEND_ROW, chart_color(i), MARGIN + 20,
                     MARGIN + i * LEGEND_ROW + 11);
        text_add_escaped(t, p->runs.at[i]);
        dsi_text_add(t, "</text>\n");
    }
    for (int i = 0; i < n; i++)
        chart_add(t, p, names[i], o, i % columns * CHART_WIDTH,
                  legend + i / columns * CHART_HEIGHT);
    dsi_text_add(t, "</svg>\n");
}

static ds_status plot_write(const Plot *p, const Options *o)
{
    const char **names = dsi_alloc((size_t)(p->series.n + 1) * sizeof *names);
    int n = collect_names(p, o->only, names);
    dsi_text t = {0};
    ds_status status = DS_OK;
    if (!n) {
        status = dsi_fail(DS_EINVAL, "--only %s: the runs have no such numbers", o->only);
    } else {
        dsi_file *f = dsi_file_replace(o->output);
        if (dsi_ends_with(o->output, ".svg"))
            add_svg(&t, p, names, n, &o->chart);
        else
            add_html(&t, p, names, n, &o->chart);
        dsi_file_write(f, t.s, t.n);
        status = dsi_file_commit(f);
        if (status == DS_OK) printf("%s: %d charts of %d runs\n", o->output, n, p->runs.n);
    }
    dsi_text_free(&t);
    dsi_free(names);
    return status;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"output", 'o', "FILE", 0, "Write to FILE, .html or .svg (plot.html)", 0},
        {"only", ONLY, "NAME,...", 0, "Only these numbers: loss,lr", 0},
        {"smooth", SMOOTH, "X", 0,
         "Lines are moving averages, in which the past has weight X, from 0 to below 1; the "
         "values are drawn pale (0)",
         0},
        {"log", LOG, NULL, 0, "Vertical axes by powers of ten, where all values are positive", 0},
        {0}};
    const struct argp argp = {options,
                              plot_parse_option,
                              "[NAME=]RUN...",
                              "Draws the numbers of runs: loss, learning rate, samples per second, "
                              "..., a line each run, in one file for a browser.\v"
                              "A RUN is a trace (--trace FILE.csv), a folder of csv_monitor or "
                              "TensorBoard, or one file of them. Traces count steps; the other "
                              "two count samples.",
                              NULL,
                              NULL,
                              NULL};
    Options o = {.output = "plot.html"};
    Plot p = {0};
    ds_status status = DS_OK;
    argp_program_version = "ds_plot (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, 0, &o)) return 2;
    for (int i = 0; i < o.n_runs && status == DS_OK; i++) status = read_run(&p, o.runs[i]);
    plot_sort(&p);
    if (status == DS_OK) status = plot_write(&p, &o);
    plot_free(&p);
    ds_perror("ds_plot");
    return status == DS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
