/* base/profile.c: places of a thread; rows of its profile, and the table; costs
 * of its modules.
 *
 * Invariants: a row belongs to one key, which is found by its pointers. The
 * paths of modules only grow while the thread lives: nodes, rows and places
 * point to them.
 * SPDX-License-Identifier: MIT */
#include "profile.h"

#include "clock.h"
#include "error.h"
#include "list.h"
#include "text.h"
#include "thread.h"
#include "trace.h"

#include <deepspeed/profile.h>

#include <stdlib.h>
#include <string.h>

#define ROWS 40 /* of a table, if the options do not say */

/* Compared as pointers: names of kernels and ops are literals, paths of modules
 * are the thread's. */
typedef struct Key {
    const char *name, *op, *module; /* op, module: NULL: none */
    bool wait;
} Key;

typedef struct Row {
    Key key;
    int64_t calls;
    double seconds, flops, bytes;
} Row;

typedef struct Slots { /* hash table of rows: 1 + place, 0 is free */
    int *at;
    size_t n; /* a power of two, at least twice the rows */
} Slots;

typedef struct Profile {
    bool runs;
    double begun, ended;
    struct {
        DSI_LIST(Row)
    } rows;
    Slots slots;
    struct {
        DSI_LIST(char *)
    } names; /* that ds_profile_rows has made */
    struct {
        DSI_LIST(char *)
    } paths;
    struct {
        DSI_LIST(dsi_cost)
    } costs;     /* number i is that of path i; there may be fewer */
    bool counts; /* costs, with or without a profile */
    bool costs_off;
    void (*wait)(void *arg);
    void *wait_arg;
} Profile;

_Thread_local bool dsi_observed;
static _Thread_local void *memory;
static _Thread_local dsi_place here;

/* ---- life -------------------------------------------------------------------------------------------- */

static void profile_forget(Profile *p)
{
    for (int i = 0; i < p->names.n; i++) dsi_free(p->names.at[i]);
    dsi_list_free(&p->names);
    dsi_list_free(&p->rows);
    dsi_free(p->slots.at);
    p->slots = (Slots){0};
}

static void profile_free(void)
{
    Profile *p = memory;
    profile_forget(p);
    for (int i = 0; i < p->paths.n; i++) dsi_free(p->paths.at[i]);
    dsi_list_free(&p->paths);
    dsi_list_free(&p->costs);
}

static Profile *profile_mine(void)
{
    if (!memory) {
        dsi_thread_memory(&memory, sizeof(Profile));
        dsi_at_thread_end(DSI_END_MEMORY, profile_free);
    }
    return memory;
}

bool dsi_profile_runs(void) { return memory && ((Profile *)memory)->runs; }

void dsi_profile_start(void)
{
    Profile *p = profile_mine();
    profile_forget(p);
    dsi_costs_start(NULL, NULL); /* each kernel waits for itself */
    p->runs = true;
    p->begun = dsi_now();
}

void dsi_profile_stop(void)
{
    Profile *p = profile_mine();
    p->ended = dsi_now();
    p->runs = false;
    dsi_costs_stop();
}

double ds_profile_seconds(void)
{
    const Profile *p = profile_mine();
    return (p->runs ? dsi_now() : p->ended) - p->begun;
}

/* ---- places ------------------------------------------------------------------------------------------ */

/* -1: there is none. */
static int path_find(const Profile *p, const char *path)
{
    int i = p->paths.n - 1;
    while (i >= 0 && strcmp(p->paths.at[i], path) != 0) i--;
    return i;
}

/* The same path as memory that stays until the thread ends, always the same. */
static const char *path_intern(const char *path)
{
    Profile *p = profile_mine();
    int i = path_find(p, path);
    if (i >= 0) return p->paths.at[i];
    char *copy = dsi_alloc(strlen(path) + 1);
    dsi_list_add(&p->paths, strcpy(copy, path));
    return copy;
}

static dsi_place place_enter(const char *module, const char *op)
{
    dsi_place before = here;
    here = (dsi_place){module, op, dsi_trace_on(), 0};
    return before;
}

/* The costs of the module that runs now, whose path there is. */
static dsi_cost *cost_here(Profile *p)
{
    int i = p->paths.n - 1;
    while (p->paths.at[i] != here.module) i--;
    while (p->costs.n <= i) dsi_list_add(&p->costs, (dsi_cost){0});
    return &p->costs.at[i];
}

/* The present time, if the costs of what runs now count; else 0. */
static double cost_time(void)
{
    const Profile *p = memory;
    if (!p || !p->counts || here.op) return 0;
    if (p->wait) p->wait(p->wait_arg);
    return dsi_now();
}

dsi_place dsi_observe_module_now(void)
{
    char path[512];
    dsi_error_context_path(path, sizeof path);
    dsi_trace_begin(path);
    dsi_place before = place_enter(path_intern(path), here.op);
    here.begun = cost_time();
    return before;
}

dsi_place dsi_observe_backward_now(const char *module, const char *op)
{
    if (dsi_trace_on()) {
        dsi_text name = dsi_text_of("%s_backward %s", op, module ? module : "");
        dsi_trace_begin(name.s);
        dsi_text_free(&name);
    }
    return place_enter(module, op);
}

void dsi_observe_end_now(dsi_place before)
{
    double now = here.begun > 0 ? cost_time() : 0;
    if (now > 0) {
        dsi_cost *cost = cost_here(memory);
        cost->calls++;
        cost->seconds += now - here.begun;
    }
    if (here.traced) dsi_trace_end();
    here = before;
}

const char *dsi_observed_module(void) { return dsi_observed ? here.module : NULL; }

/* ---- costs of modules -------------------------------------------------------------------------------- */

void dsi_costs_start(void (*wait)(void *arg), void *arg)
{
    Profile *p = profile_mine();
    dsi_list_free(&p->costs);
    p->wait = wait, p->wait_arg = arg;
    p->counts = dsi_observed = true;
}

void dsi_costs_stop(void)
{
    Profile *p = profile_mine();
    p->counts = false;
    dsi_observed = p->runs || dsi_trace_on();
}

bool dsi_costs_run(void) { return memory && ((Profile *)memory)->counts; }

void dsi_cost_add_now(double flops, double macs)
{
    Profile *p = memory;
    if (!p || !p->counts || p->costs_off || here.op || !here.module) return;
    dsi_cost *cost = cost_here(p);
    cost->flops += flops;
    cost->macs += macs;
}

bool dsi_cost_set(bool on)
{
    Profile *p = dsi_observed ? profile_mine() : NULL;
    bool was = p && !p->costs_off;
    if (p) p->costs_off = !on;
    return was;
}

dsi_cost dsi_cost_of(const char *path)
{
    const Profile *p = profile_mine();
    int i = path_find(p, path);
    return i >= 0 && i < p->costs.n ? p->costs.at[i] : (dsi_cost){0};
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static size_t key_hash(const Key *k)
{
    uint64_t h = (uint64_t)(uintptr_t)k->name * 0x9e3779b97f4a7c15u;
    h = (h ^ (uint64_t)(uintptr_t)k->op) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (uint64_t)(uintptr_t)k->module) * 0x94d049bb133111ebu;
    return (size_t)(h >> 20) + k->wait;
}

static bool key_equal(const Key *a, const Key *b)
{
    return a->name == b->name && a->op == b->op && a->module == b->module && a->wait == b->wait;
}

/* The slot of the key's row, or the free one where it is to be. */
static int *slot_of(Profile *p, const Key *key)
{
    size_t mask = p->slots.n - 1, i = key_hash(key) & mask;
    while (p->slots.at[i] && !key_equal(&p->rows.at[p->slots.at[i] - 1].key, key))
        i = (i + 1) & mask;
    return &p->slots.at[i];
}

static void slots_grow(Profile *p)
{
    dsi_free(p->slots.at);
    p->slots.n = p->slots.n ? 2 * p->slots.n : 256;
    p->slots.at = dsi_alloc(p->slots.n * sizeof *p->slots.at); /* zeros */
    for (int i = 0; i < p->rows.n; i++) *slot_of(p, &p->rows.at[i].key) = i + 1;
}

void dsi_profile_add(const char *name, bool wait, double seconds, double flops, double bytes)
{
    const Key key = {name, here.op, here.module, wait};
    Profile *p = memory;
    if (!p || !p->runs) return;
    if (2 * (size_t)p->rows.n >= p->slots.n) slots_grow(p);
    int *slot = slot_of(p, &key);
    if (!*slot) {
        dsi_list_add(&p->rows, (Row){.key = key});
        *slot = p->rows.n;
    }
    Row *row = &p->rows.at[*slot - 1];
    row->calls++;
    row->seconds += seconds;
    row->flops += flops;
    row->bytes += bytes;
}

/* ---- the answer -------------------------------------------------------------------------------------- */

/* "matmul", "linear_backward: matmul", "wait: all_reduce": the profile's memory. */
static const char *row_name(Profile *p, const Key *k)
{
    if (!k->op && !k->wait) return k->name;
    dsi_text t = dsi_text_of("%s%s: %s", k->op ? k->op : "wait", k->op ? "_backward" : "", k->name);
    dsi_list_add(&p->names, t.s);
    return t.s;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const ds_profile_row *)a)->seconds, y = ((const ds_profile_row *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* All rows, sorted; those of different modules joined unless by_module. The
 * caller frees them. */
static ds_profile_row *rows_collect(Profile *p, bool by_module, int *n)
{
    ds_profile_row *out = dsi_alloc((size_t)(p->rows.n + 1) * sizeof *out);
    Key *keys = dsi_alloc((size_t)(p->rows.n + 1) * sizeof *keys);
    *n = 0;
    for (int i = 0; i < p->rows.n; i++) {
        const Row *r = &p->rows.at[i];
        Key key = r->key;
        if (!by_module) key.module = NULL;
        int k = 0;
        while (k < *n && !key_equal(&keys[k], &key)) k++;
        if (k == *n) {
            keys[(*n)++] = key;
            out[k] = (ds_profile_row){.name = row_name(p, &key),
                                      .module = key.module ? key.module : ""};
        }
        out[k].calls += r->calls;
        out[k].seconds += r->seconds;
        out[k].flops += r->flops;
        out[k].bytes += r->bytes;
    }
    dsi_free(keys);
    qsort(out, (size_t)*n, sizeof *out, by_time);
    return out;
}

int ds_profile_rows(ds_profile_row *row, int most, ds_profile_opts opts)
{
    int n;
    ds_profile_row *all = rows_collect(profile_mine(), opts.by_module, &n);
    for (int i = 0; row && i < n && i < most; i++) row[i] = all[i];
    dsi_free(all);
    return n;
}

/* ---- the table --------------------------------------------------------------------------------------- */

/* 3 significant digits with a unit: "1.25 ms", "431 MB" */
static void add_scaled(dsi_text *t, double x, const char *const *units, double step)
{
    int i = 0;
    while (x >= 999.5 && units[i + 1]) x /= step, i++;
    dsi_text_add(t, "%.*f %s", x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2, x, units[i]);
}

static void add_row(dsi_text *t, const ds_profile_row *r, int width, double total)
{
    static const char *const times[] = {"us", "ms", "s", NULL};
    static const char *const sizes[] = {"B", "KB", "MB", "GB", "TB", NULL};
    dsi_text all = {0}, each = {0}, bytes = {0}, rate = {0};
    add_scaled(&all, 1e6 * r->seconds, times, 1000);
    if (r->calls) add_scaled(&each, 1e6 * r->seconds / (double)r->calls, times, 1000);
    if (r->bytes > 0) add_scaled(&bytes, r->bytes, sizes, 1000);
    if (r->flops > 0 && r->seconds > 0) dsi_text_add(&rate, "%.1f", r->flops / r->seconds / 1e9);
    dsi_text_add(t, "%-*s%s%s", r->module[0] ? 0 : width, r->name, r->module[0] ? "  " : "",
                 r->module);
    if (r->module[0]) {
        int used = (int)(strlen(r->name) + strlen(r->module)) + 2;
        dsi_text_add(t, "%*s", width > used ? width - used : 0, "");
    }
    if (r->calls)
        dsi_text_add(t, " %10lld", (long long)r->calls);
    else
        dsi_text_add(t, " %10s", "");
    dsi_text_add(t, " %10s %6.1f %% %10s %8s %9s\n", all.s,
                 total > 0 ? 100 * r->seconds / total : 0, each.s ? each.s : "",
                 rate.s ? rate.s : "", bytes.s ? bytes.s : "");
    dsi_text_free(&all), dsi_text_free(&each), dsi_text_free(&bytes), dsi_text_free(&rate);
}

void ds_profile_print_with(FILE *to, ds_profile_opts opts)
{
    int n, width = 24, most = opts.rows > 0 ? opts.rows : ROWS;
    ds_profile_row *rows = rows_collect(profile_mine(), opts.by_module, &n);
    double total = ds_profile_seconds();
    ds_profile_row rest = {.name = "other rows", .module = ""};
    ds_profile_row outside = {.name = "outside of kernels", .module = "", .seconds = total};
    for (int i = 0; i < n && i < most; i++) {
        int used = (int)(strlen(rows[i].name) + strlen(rows[i].module)) + 2;
        if (used > width) width = used;
    }
    dsi_text t = dsi_text_of("%-*s %10s %10s %8s %10s %8s %9s\n", width, "name", "calls", "time",
                             "share", "per call", "GF/s", "bytes");
    for (int i = 0; i < n; i++) {
        outside.seconds -= rows[i].seconds;
        if (i < most) {
            add_row(&t, &rows[i], width, total);
            continue;
        }
        rest.calls += rows[i].calls;
        rest.seconds += rows[i].seconds;
        rest.bytes += rows[i].bytes;
    }
    if (n > most) add_row(&t, &rest, width, total);
    add_row(&t, &outside, width, total);
    fputs(t.s, to);
    dsi_text_free(&t);
    dsi_free(rows);
}
