/* tools/plot/series.c: CSV files and TensorBoard's event files as series.
 *
 * Event files: records as src/monitor/tensorboard.c describes them. Both forms
 * of a number are read: simple_value (field 2 of Value) and a tensor of one
 * float (field 8, of newer writers). A file that is still being written may end
 * in part of a line or record, which is left out.
 * SPDX-License-Identifier: MIT */
#include "series.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- series -------------------------------------------------------------------------------------- */

/* "Train/Samples/train_loss" and "loss" are the same number. */
static const char *short_name(const char *tag)
{
    const char *slash = strrchr(tag, '/');
    if (slash) tag = slash + 1;
    if (!strcmp(tag, "skipped_steps")) return "skipped";
    return !strncmp(tag, "train_", 6) ? tag + 6 : tag;
}

static Series *plot_series(Plot *p, const char *tag)
{
    const char *name = short_name(tag);
    int run = p->runs.n - 1;
    for (int i = 0; i < p->series.n; i++)
        if (p->series.at[i].run == run && !strcmp(p->series.at[i].name, name))
            return &p->series.at[i];
    dsi_list_add(&p->series, (Series){.name = dsi_strdup(name), .run = run});
    return &p->series.at[p->series.n - 1];
}

static void series_add(Plot *p, const char *tag, double x, double y)
{
    Series *s = plot_series(p, tag);
    dsi_list_add(&s->points, (Point){x, y});
}

typedef struct Order {
    Point point;
    int at; /* in the order of reading */
} Order;

static int order_compare(const void *a, const void *b)
{
    const Order *p = a, *q = b;
    if (p->point.x != q->point.x) return p->point.x < q->point.x ? -1 : 1;
    return p->at < q->at ? -1 : 1;
}

void plot_sort(Plot *p)
{
    for (int i = 0; i < p->series.n; i++) {
        Series *s = &p->series.at[i];
        int n = s->points.n, kept = 0;
        Order *order = dsi_alloc((size_t)(n ? n : 1) * sizeof *order);
        for (int k = 0; k < n; k++) order[k] = (Order){s->points.at[k], k};
        qsort(order, (size_t)n, sizeof *order, order_compare);
        for (int k = 0; k < n; k++)
            if (k == n - 1 || order[k].point.x != order[k + 1].point.x)
                s->points.at[kept++] = order[k].point;
        s->points.n = kept;
        dsi_free(order);
    }
}

void plot_free(Plot *p)
{
    for (int i = 0; i < p->runs.n; i++) dsi_free(p->runs.at[i]);
    for (int i = 0; i < p->series.n; i++) {
        dsi_free(p->series.at[i].name);
        dsi_list_free(&p->series.at[i].points);
    }
    dsi_list_free(&p->runs);
    dsi_list_free(&p->series);
}

/* ---- CSV ----------------------------------------------------------------------------------------- */

/* The number at *at up to a comma or the end of its line; moves *at behind the
 * comma. false: it is no number, as in the header that a later process of
 * DeepSpeed's writes. */
static bool csv_number(char **at, double *x)
{
    char *end;
    *x = strtod(*at, &end);
    if (end == *at) return false;
    end += strspn(end, " ");
    if (*end != ',' && *end) return false;
    *at = end + (*end == ',');
    return true;
}

static void csv_row(Plot *p, char *line, char *const *names, int columns)
{
    double x, y;
    if (!csv_number(&line, &x) || !isfinite(x)) return;
    for (int i = 1; i < columns && *line; i++) {
        if (*line == ',') { /* an empty cell */
            line++;
            continue;
        }
        if (!csv_number(&line, &y)) return;
        series_add(p, names[i], x, y);
    }
}

/* The first line names the columns. */
static ds_status csv_read(Plot *p, const char *path)
{
    enum { COLUMNS = 64 };
    char *text = dsi_file_read_regular(path, NULL), *line, *rest = text, *cell, *cells;
    char *names[COLUMNS];
    int columns = 0;
    if (!text) return ds_error_status();
    line = strsep(&rest, "\n");
    line[strcspn(line, "\r")] = 0;
    for (cells = line; columns < COLUMNS && (cell = strsep(&cells, ","));) names[columns++] = cell;
    if (columns >= 2 && dsi_is_utf8(line, strlen(line)))
        while (rest && (line = strsep(&rest, "\n")) && rest) {
            line[strcspn(line, "\r")] = 0;
            csv_row(p, line, names, columns);
        }
    dsi_free(text);
    if (columns < 2)
        return dsi_fail(DS_EFORMAT,
                        "%s: expected a first line with the names of columns: step,loss", path);
    return DS_OK;
}

/* ---- event files --------------------------------------------------------------------------------- */

typedef struct Bytes {
    const unsigned char *at, *end;
} Bytes;

static uint64_t bytes_fixed(const unsigned char *b, int n)
{
    uint64_t x = 0;
    while (n--) x = x << 8 | b[n];
    return x;
}

static bool bytes_varint(Bytes *b, uint64_t *x)
{
    *x = 0;
    for (int shift = 0; b->at < b->end && shift < 64; shift += 7) {
        *x |= (uint64_t)(*b->at & 0x7f) << shift;
        if (!(*b->at++ & 0x80)) return true;
    }
    return false;
}

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct Field {
    uint64_t number, kind, value; /* value: of a varint or fixed number */
    Bytes bytes;
} Field;

/* The next field of a message; false at its end or where it is damaged. */
static bool field_next(Bytes *b, Field *f)
{
    uint64_t key, n = 0;
    if (!bytes_varint(b, &key)) return false;
    f->number = key >> 3;
    f->kind = key & 7;
    f->bytes = (Bytes){0};
    if (f->kind == VARINT) return bytes_varint(b, &f->value);
    if (f->kind == FIXED64 || f->kind == FIXED32)
        n = f->kind == FIXED64 ? 8 : 4;
    else if (f->kind != BYTES || !bytes_varint(b, &n))
        return false;
    if (n > (uint64_t)(b->end - b->at)) return false;
    f->bytes = (Bytes){b->at, b->at + n};
    if (f->kind != BYTES) f->value = bytes_fixed(b->at, (int)n);
    b->at += n;
    return true;
}

static double float_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float x;
    memcpy(&x, &low, sizeof x);
    return (double)x;
}

/* TensorProto: dtype 1 (float) with float_val 5, packed or not, or
 * tensor_content 4. */
static bool tensor_value(Bytes tensor, double *y)
{
    Field f;
    bool is_float = false, found = false;
    while (field_next(&tensor, &f)) {
        if (f.number == 1 && f.kind == VARINT) is_float = f.value == 1;
        size_t n = (size_t)(f.bytes.end - f.bytes.at);
        if ((f.number == 5 || f.number == 4) && n == 4) {
            *y = float_of(bytes_fixed(f.bytes.at, 4));
            found = true;
        }
    }
    return is_float && found;
}

/* Value: tag 1, simple_value 2, tensor 8. */
static void event_value(Plot *p, Bytes value, double step)
{
    Field f;
    double y = 0;
    bool has = false;
    char *tag = NULL;
    while (field_next(&value, &f)) {
        if (f.number == 1 && f.kind == BYTES && !tag) {
            size_t n = (size_t)(f.bytes.end - f.bytes.at);
            tag = dsi_alloc(n + 1);
            memcpy(tag, f.bytes.at, n);
        } else if (f.number == 2 && f.kind == FIXED32) {
            y = float_of(f.value);
            has = true;
        } else if (f.number == 8 && f.kind == BYTES) {
            has = tensor_value(f.bytes, &y);
        }
    }
    if (tag && has && dsi_is_utf8(tag, strlen(tag))) series_add(p, tag, step, y);
    dsi_free(tag);
}

/* Event: step 2, summary 5, whose values are its fields 1. */
static void event_read(Plot *p, Bytes event)
{
    Field f, value;
    double step = 0;
    Bytes summary = {0};
    while (field_next(&event, &f)) {
        if (f.number == 2 && f.kind == VARINT) step = (double)(int64_t)f.value;
        if (f.number == 5 && f.kind == BYTES) summary = f.bytes;
    }
    while (field_next(&summary, &value))
        if (value.number == 1 && value.kind == BYTES) event_value(p, value.bytes, step);
}

static ds_status events_read(Plot *p, const char *path)
{
    enum { HEAD = 12, TAIL = 4 }; /* length and its check sum; check sum of the data */
    size_t n;
    char *data = dsi_file_read_regular(path, &n);
    if (!data) return ds_error_status();
    const unsigned char *at = (const unsigned char *)data, *end = at + n;
    while ((size_t)(end - at) > HEAD + TAIL) {
        uint64_t length = bytes_fixed(at, 8);
        if (length > (uint64_t)(end - at) - HEAD - TAIL) break;
        event_read(p, (Bytes){at + HEAD, at + HEAD + length});
        at += HEAD + length + TAIL;
    }
    dsi_free(data);
    return DS_OK;
}

/* ---- runs ---------------------------------------------------------------------------------------- */

static ds_status file_read_series(Plot *p, const char *path)
{
    if (dsi_ends_with(path, ".csv")) return csv_read(p, path);
    if (strstr(path, "tfevents")) return events_read(p, path);
    return dsi_fail(DS_EINVAL, "%s: expected a .csv file, an event file (*tfevents*) or a folder",
                    path);
}

static int not_hidden(const struct dirent *e) { return e->d_name[0] != '.'; }

static ds_status folder_read(Plot *p, const char *path, int depth)
{
    enum { DEEPEST = 8 };
    struct dirent **names;
    int n = scandir(path, &names, not_hidden, alphasort);
    if (n < 0) return dsi_fail(DS_EIO, "%s: cannot be listed", path);
    ds_status status = DS_OK;
    for (int i = 0; i < n; i++) {
        dsi_text inner = {0};
        dsi_text_add(&inner, "%s/%s", path, names[i]->d_name);
        if (status != DS_OK)
            ;
        else if (dsi_is_folder(inner.s))
            status = depth < DEEPEST ? folder_read(p, inner.s, depth + 1) : DS_OK;
        else if (dsi_ends_with(inner.s, ".csv") || strstr(names[i]->d_name, "tfevents"))
            status = file_read_series(p, inner.s);
        dsi_text_free(&inner);
        free(names[i]);
    }
    free(names);
    return status;
}

ds_status plot_add_run(Plot *p, const char *name, const char *path)
{
    int before = p->series.n;
    dsi_list_add(&p->runs, dsi_strdup(name));
    ds_status status = dsi_is_folder(path) ? folder_read(p, path, 0) : file_read_series(p, path);
    if (status == DS_OK && p->series.n == before)
        return dsi_fail(
            DS_EFORMAT,
            "%s: no numbers: expected the .csv of --trace or csv_monitor, or event files "
            "of TensorBoard",
            path);
    return status;
}
