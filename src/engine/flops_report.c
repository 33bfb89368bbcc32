/* engine/flops_report.c: the report of DeepSpeed's flops profiler
 * (deepspeed/profiling/flops_profiler/profiler.py): its lines, their order, and its
 * numbers, of two decimals with a unit.
 * SPDX-License-Identifier: MIT */
#include "flops_report.h"

#include "base/list.h"
#include "base/profile.h"
#include "nn/tree.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 512

/* ---- costs ------------------------------------------------------------------------------------------- */

typedef struct Params {
    const ds_module *root;
    struct {
        DSI_LIST(const ds_tensor *)
    } seen;
    int64_t shared, own, all; /* own: of this rank's experts; all: of all ranks' */
} Params;

/* A parameter that a module uses twice, or shares with another one, counts once in
 * each. */
static bool params_add(void *arg, const char *path, const dsi_module_entry *e)
{
    Params *p = arg;
    (void)path;
    if (e->kind == DSI_BUFFER) return true;
    for (int i = 0; i < p->seen.n; i++)
        if (p->seen.at[i] == e->x) return true;
    dsi_list_add(&p->seen, e->x);
    const dsi_experts *of = dsi_module_expert_of(p->root, e->x).of;
    int64_t n = dsi_numel(e->x->shape);
    *(of ? &p->own : &p->shared) += n;
    p->all += of ? n * of->ep_size : 0;
    return true;
}

static Params params_of(const ds_module *root, const ds_module *m)
{
    Params p = {.root = root};
    dsi_module_walk(m, params_add, &p);
    dsi_list_free(&p.seen);
    return p;
}

static int modules_count(ds_module *m)
{
    int n = 1;
    for (int i = 0; i < ds_module_children(m); i++) n += modules_count(ds_module_child(m, i));
    return n;
}

/* A module that is not called itself, such as a list, took as long as those in it. */
static void rows_add(dsi_flops *f, ds_module *m, int depth)
{
    char path[PATH_BYTES];
    dsi_module_write_path(m, path, sizeof path);
    dsi_cost cost = dsi_cost_of(path);
    Params params = params_of(f->row[0].module ? f->row[0].module : m, m);
    dsi_flops_row *row = &f->row[f->rows++];
    *row = (dsi_flops_row){m,         depth,      params.shared + params.own,
                           cost.macs, cost.flops, cost.seconds};
    double below = 0;
    for (int i = 0; i < ds_module_children(m); i++) {
        const dsi_flops_row *child = &f->row[f->rows];
        rows_add(f, ds_module_child(m, i), depth + 1);
        row->macs += child->macs, row->flops += child->flops, below += child->seconds;
    }
    if (row->seconds == 0) row->seconds = below;
    if (depth) return;
    f->shared = params.shared, f->experts = params.all;
}

dsi_flops *dsi_flops_of(ds_module *model)
{
    dsi_flops *f = dsi_alloc(sizeof *f);
    f->row = dsi_alloc((size_t)modules_count(model) * sizeof *f->row);
    rows_add(f, model, 0);
    return f;
}

void dsi_flops_free(dsi_flops *f)
{
    if (f) dsi_free(f->row);
    dsi_free(f);
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

/* Python's f"{round(x, 2):g}" for x below 100,000. */
static void add_number(dsi_text *t, double x)
{
    size_t before = t->n;
    dsi_text_add_rounded(t, x, 2);
    if (t->n - before > 2 && dsi_ends_with(t->s, ".0")) t->s[t->n -= 2] = 0;
}

/* "62.01 K"; unit: what follows, "MACs" */
static void add_scaled(dsi_text *t, double x, const char *unit)
{
    static const struct {
        double of;
        const char *prefix;
    } scales[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "K"}, {1, ""}, {1e-3, "m"}};
    double of = 1e-6;
    const char *prefix = "u";
    for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
        if (x >= scales[i].of || (x == 0 && scales[i].of == 1)) {
            of = scales[i].of, prefix = scales[i].prefix;
            break;
        }
    add_number(t, x / of);
    dsi_text_add(t, " %s%s", prefix, unit);
}

/* 1e9 is "B", and there is no blank behind a number without a unit. */
static void add_params(dsi_text *t, int64_t n)
{
    add_scaled(t, (double)n, "");
    if (t->s[t->n - 1] == 'G') t->s[t->n - 1] = 'B';
    if (t->s[t->n - 1] == ' ') t->s[--t->n] = 0;
}

static double ratio(double x, double of) { return of > 0 ? x / of : 0; }

/* ---- summary ------------------------------------------------------------------------------------------ */

/* Takes value. */
static void line_add(dsi_text *t, const char *label, dsi_text value)
{
    dsi_text_add(t, "%-70s  %-8s\n", label, value.s);
    dsi_text_free(&value);
}

static void line_add_int(dsi_text *t, const char *label, int64_t n)
{
    line_add(t, label, dsi_text_of("%lld", (long long)n));
}

static void line_add_params(dsi_text *t, const char *label, int64_t n)
{
    dsi_text value = {0};
    add_params(&value, n);
    line_add(t, label, value);
}

static void line_add_scaled(dsi_text *t, const char *label, double x, const char *unit)
{
    dsi_text value = {0};
    add_scaled(&value, x, unit);
    line_add(t, label, value);
}

/* "fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd latency): " */
static void line_add_rate(dsi_text *t, const char *what, double factor, double flops,
                          const char *latency, double seconds)
{
    dsi_text label = dsi_text_of("%sFLOPS per GPU = ", what);
    add_number(&label, factor);
    dsi_text_add(&label, " * fwd flops per GPU / %s: ", latency);
    line_add_scaled(t, label.s, ratio(factor * flops, seconds), "FLOPS");
    dsi_text_free(&label);
}

static void summary_add_params(dsi_text *t, const dsi_flops *f)
{
    line_add_params(t, "params per GPU: ", f->row[0].params);
    if (!f->experts) {
        line_add_params(t, "params of model = params per GPU * mp_size: ", f->row[0].params);
        return;
    }
    line_add_params(t, "params of model: ", f->shared + f->experts);
    line_add_params(t, "   non-expert params of model: ", f->shared);
    line_add_params(t, "   expert params of model: ", f->experts);
}

static void summary_add_step(dsi_text *t, double flops, const dsi_flops_step *s)
{
    double factor = s->backward_factor, all = s->forward + s->backward + s->step;
    line_add_scaled(t, "bwd latency: ", s->backward, "s");
    line_add_rate(t, "bwd ", factor, flops, "bwd latency", s->backward);
    line_add_rate(t, "fwd+bwd ", factor + 1, flops, "(fwd+bwd latency)", s->forward + s->backward);
    line_add_scaled(t, "step latency: ", s->step, "s");
    line_add_scaled(t, "iter latency: ", all, "s");
    line_add_rate(t, "", factor + 1, flops, "iter latency", all);
    dsi_text value = {0};
    dsi_text_add_rounded(&value, ratio((double)(s->micro_batch * s->world_size), all), 2);
    line_add(t, "samples/second: ", value);
}

static void summary_add(dsi_text *t, const dsi_flops *f, const dsi_flops_format *how)
{
    const dsi_flops_step *s = how->more;
    double flops = f->row[0].flops, forward = s ? s->forward : f->row[0].seconds;
    dsi_text_add(t, "\n-------------------------- DeepSpeed Flops Profiler "
                    "--------------------------\n");
    dsi_text_add(t, "Profile Summary at step %lld:\n", (long long)how->step);
    dsi_text_add(
        t, "Notations:\n"
           "data parallel size (dp_size), model parallel size(mp_size),\n"
           "number of parameters (params), number of multiply-accumulate operations(MACs),\n"
           "number of floating-point operations (flops), floating-point operations per second "
           "(FLOPS),\n"
           "fwd latency (forward propagation latency), bwd latency (backward propagation "
           "latency),\n"
           "step (weights update latency), iter latency (sum of fwd, bwd and step latency)\n\n");
    if (s) {
        line_add_int(t, "world size: ", s->world_size);
        line_add_int(t, "data parallel size: ", s->world_size);
        line_add_int(t, "model parallel size: ", 1);
        line_add_int(t, "batch size per GPU: ", s->micro_batch);
        if (s->moe) line_add_int(t, "expert tensor parallelism enabled: ", 0);
    }
    summary_add_params(t, f);
    line_add_scaled(t, "fwd MACs per GPU: ", f->row[0].macs, "MACs");
    line_add_scaled(t, "fwd flops per GPU: ", flops, "");
    line_add_scaled(t, "fwd flops of model = fwd flops per GPU * mp_size: ", flops, "");
    line_add_scaled(t, "fwd latency: ", forward, "s");
    line_add_scaled(
        t, "fwd FLOPS per GPU = fwd flops per GPU / fwd latency: ", ratio(flops, forward), "FLOPS");
    if (s) summary_add_step(t, flops, s);
}

/* ---- aggregated -------------------------------------------------------------------------------------- */

typedef enum Key { PARAMS, MACS, LATENCY, KEYS } Key;

/* All modules of one type at one depth. */
typedef struct Kind {
    const char *name;
    double x[KEYS];
} Kind;

/* In the order in which their types come first; the caller frees it. */
static Kind *kinds_at(const dsi_flops *f, int depth, int *n)
{
    Kind *kind = dsi_alloc((size_t)f->rows * sizeof *kind);
    *n = 0;
    for (int i = 0; i < f->rows; i++) {
        const dsi_flops_row *row = &f->row[i];
        if (row->depth != depth) continue;
        const char *name = ds_module_type_of(row->module)->name;
        int k = 0;
        while (k < *n && strcmp(kind[k].name, name) != 0) k++;
        if (k == *n) kind[(*n)++].name = name;
        kind[k].x[PARAMS] += (double)row->params;
        kind[k].x[MACS] += row->macs;
        kind[k].x[LATENCY] += row->seconds;
    }
    return kind;
}

/* "{'Conv2d': '1.41 MMACs', 'Linear': '236 KMACs'}": the largest first, equal ones in
 * their order. */
static void kinds_add(dsi_text *t, const Kind *kind, int n, int64_t top, Key key)
{
    bool *used = dsi_alloc((size_t)n * sizeof *used);
    dsi_text_add(t, "{");
    for (int i = 0; i < n && i < top; i++) {
        int best = -1;
        for (int k = 0; k < n; k++)
            if (!used[k] && (best < 0 || kind[k].x[key] > kind[best].x[key])) best = k;
        used[best] = true;
        dsi_text_add(t, "%s'%s': '", i ? ", " : "", kind[best].name);
        if (key == PARAMS)
            add_params(t, (int64_t)kind[best].x[key]);
        else
            add_scaled(t, kind[best].x[key], key == MACS ? "MACs" : "s");
        dsi_text_add(t, "'");
    }
    dsi_text_add(t, "}\n");
    dsi_free(used);
}

static void aggregated_add(dsi_text *t, const dsi_flops *f, const dsi_flops_format *how)
{
    static const char *const labels[KEYS] = {"params     ", "MACs       ", "fwd latency"};
    int deepest = 0, n;
    for (int i = 0; i < f->rows; i++)
        if (f->row[i].depth > deepest) deepest = f->row[i].depth;
    dsi_text_add(t, "\n----------------------------- Aggregated Profile per GPU "
                    "-----------------------------\n");
    dsi_text_add(t,
                 "Top %lld modules in terms of params, MACs or fwd latency at different model "
                 "depths:\n",
                 (long long)how->top);
    for (int depth = 0; depth <= deepest; depth++) {
        if (how->depths < 0 ? depth == deepest : depth == how->depths) break;
        Kind *kind = kinds_at(f, depth, &n);
        dsi_text_add(t, "depth %d:\n", depth);
        for (int key = PARAMS; key < KEYS; key++) {
            dsi_text_add(t, "    %s - ", labels[key]);
            kinds_add(t, kind, n, how->top, (Key)key);
        }
        dsi_free(kind);
    }
}

/* ---- detailed ---------------------------------------------------------------------------------------- */

static void add_percent(dsi_text *t, double x, double of, const char *what)
{
    dsi_text_add(t, " = ");
    add_number(t, ratio(100 * x, of));
    dsi_text_add(t, "%% %s, ", what);
}

/* A dsi_module_note: "456 = 0.74% Params, ..". PyTorch prints no options of a
 * ModuleList. */
static void row_note(void *arg, ds_module *m, FILE *to)
{
    const dsi_flops *f = arg;
    const dsi_flops_row *all = f->row, *row = f->row;
    if (!strcmp(ds_module_type_of(m)->name, "ModuleList")) return;
    while (row->module != m) row++;
    dsi_text t = {0};
    add_params(&t, row->params);
    add_percent(&t, (double)row->params, (double)all->params, "Params");
    add_scaled(&t, row->macs, "MACs");
    add_percent(&t, row->macs, all->macs, "MACs");
    add_scaled(&t, row->seconds, "s");
    add_percent(&t, row->seconds, all->seconds, "latency");
    add_scaled(&t, ratio(row->flops, row->seconds), "FLOPS");
    fputs(t.s, to);
    dsi_text_free(&t);
}

static void detailed_add(dsi_text *t, const dsi_flops *f)
{
    char *tree = NULL;
    size_t n = 0;
    dsi_text_add(
        t,
        "\n------------------------------ Detailed Profile per GPU "
        "------------------------------\n"
        "Each module profile is listed after its name in the following order: \n"
        "params, percentage of total params, MACs, percentage of total MACs, fwd latency, "
        "percentage of total fwd latency, fwd FLOPS\n\n"
        "Note: 1. A module can have torch.nn.module or torch.nn.functional to compute logits "
        "(e.g. CrossEntropyLoss). They are not counted as submodules, thus not to be printed "
        "out. However they make up the difference between a parent's MACs (or latency) and the "
        "sum of its submodules'.\n"
        "2. Number of floating-point operations is a theoretical estimation, thus FLOPS computed "
        "using that could be larger than the maximum system throughput.\n"
        "3. The fwd latency listed in the top module's profile is directly captured at the "
        "module forward function in PyTorch, thus it's less than the fwd latency shown above "
        "which is captured in DeepSpeed.\n\n");
    FILE *to = open_memstream(&tree, &n);
    if (!to) return;
    dsi_module_print_notes(f->row[0].module, row_note, (void *)f, to);
    fclose(to);
    dsi_text_add_bytes(t, tree, n);
    free(tree);
}

void dsi_flops_write(const dsi_flops *f, const dsi_flops_format *how, dsi_text *to)
{
    summary_add(to, f, how);
    aggregated_add(to, f, how);
    if (how->detailed) detailed_add(to, f);
    dsi_text_add(to, "------------------------------------------------------------------------"
                     "------\n");
}
