/* data/parts.c: data sets of the samples of others: a part of one, several
 * parts of one, several in a row.
 *
 * Invariants: a part holds its data set by a count, which the parts of
 * ds_random_split share; the last one frees it. Such parts do not pass an epoch
 * on, since loaders of others may be reading.
 * SPDX-License-Identifier: MIT */
#include "base/error.h"
#include "base/handle.h"
#include "base/mem.h"
#include "base/rng.h"
#include "resident.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* ---- a part -------------------------------------------------------------------------------------------- */

typedef struct shared {
    ds_dataset *whole;
    atomic_int parts;
} shared;

typedef struct part {
    shared *of;
    int64_t begin, n;
    int64_t *index; /* [n]: samples of the whole, owned; NULL: those from begin on */
} part;

static int64_t part_len(void *self) { return ((part *)self)->n; }

static int64_t part_place(const part *p, int64_t i)
{
    return p->index ? p->index[i] : p->begin + i;
}

static ds_status part_get(void *self, int64_t i, void **field)
{
    part *p = self;
    return ds_dataset_get(p->of->whole, part_place(p, i), field);
}

static ds_status part_get_bytes(void *self, int64_t i, void **field)
{
    part *p = self;
    ds_dataset *whole = p->of->whole;
    return dsi_dataset_byte_form(whole)->get(ds_dataset_self(whole), part_place(p, i), field);
}

static const float *part_table(void *self)
{
    ds_dataset *whole = ((part *)self)->of->whole;
    return dsi_dataset_byte_form(whole)->table(ds_dataset_self(whole));
}

static void part_epoch(void *self, int64_t epoch)
{
    ds_dataset_set_epoch(((part *)self)->of->whole, epoch);
}

static void part_free(void *self)
{
    part *p = self;
    dsi_free(p->index);
    if (atomic_fetch_sub(&p->of->parts, 1) > 1) return;
    ds_dataset_free(p->of->whole);
    dsi_free(p->of);
}

static ds_dataset *part_new(shared *of, int64_t begin, int64_t n, int64_t *index)
{
    static const ds_dataset_type type = {"Subset", sizeof(part), part_len, part_get, part_free};
    static const dsi_byte_form bytes = {part_get_bytes, part_table};
    ds_dataset *d = ds_dataset_new(&type, ds_dataset_fields(of->whole),
                                   ds_dataset_field(of->whole, 0));
    *(part *)ds_dataset_self(d) = (part){of, begin, n, index};
    if (dsi_dataset_byte_form(of->whole)) dsi_dataset_set_byte_form(d, &bytes);
    return d;
}

static shared *share(ds_dataset *d, int parts)
{
    shared *of = dsi_alloc(sizeof *of);
    of->whole = d;
    atomic_init(&of->parts, parts);
    return of;
}

/* A part of its own, which passes epochs on. */
static ds_dataset *part_alone(ds_dataset *d, int64_t begin, int64_t n, int64_t *index)
{
    ds_dataset *y = part_new(share(d, 1), begin, n, index);
    ds_dataset_on_epoch(y, part_epoch);
    return y;
}

/* The part frees it. */
static int64_t *index_copy(const int64_t *index, int64_t n)
{
    int64_t *copy = dsi_alloc((size_t)(n + 1) * sizeof *copy);
    if (n) memcpy(copy, index, (size_t)n * sizeof *copy);
    return copy;
}

/* Frees d; NULL with the message, which comes first. */
#define give_up(d, ...) (dsi_refuse(__VA_ARGS__), ds_dataset_free(d), NULL)

/* Takes d, also when it fails. A part that reaches beyond d's end is cut
 * there. */
ds_dataset *ds_subset(ds_dataset *d, int64_t begin, int64_t n)
{
    if (!dsi_live(d, "subset")) return dsi_null_operand("subset");
    if (begin < 0 || n < 0)
        return give_up(d, "subset: begin %lld, n %lld: neither may be negative", (long long)begin,
                       (long long)n);
    int64_t all = ds_dataset_len(d), rest = begin < all ? all - begin : 0;
    return part_alone(d, begin, n < rest ? n : rest, NULL);
}

ds_dataset *ds_subset_of(ds_dataset *d, const int64_t *index, int64_t n)
{
    if (!dsi_live(d, "subset_of")) return dsi_null_operand("subset_of");
    if (n < 0 || (n && !index))
        return give_up(d, "subset_of: %lld indices: expected 0 or more, and a list", (long long)n);
    int64_t all = ds_dataset_len(d);
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= all)
            return give_up(d, "subset_of: index %lld is %lld: %s has %lld samples", (long long)i,
                           (long long)index[i], ds_dataset_name(d), (long long)all);
    return part_alone(d, 0, n, index_copy(index, n));
}

/* ---- random parts -------------------------------------------------------------------------------------- */

/* Lengths or, if they add up to 1, shares of `all`, of which each is rounded
 * down and the first ones get what is left, as in torch. False with the
 * message. */
static bool split_lengths(const double *lengths, int n, int64_t all, int64_t *out)
{
    double sum = 0;
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        if (!(lengths[i] >= 0))
            return dsi_invalid("random_split: length %d is %g: expected 0 or more", i, lengths[i]);
        sum += lengths[i];
    }
    bool shares = sum <= 1 && sum > 1 - 1e-9;
    for (int i = 0; i < n; i++) {
        double x = shares ? floor((double)all * lengths[i]) : lengths[i];
        if (x != floor(x) || x > 0x1p53)
            return dsi_invalid("random_split: length %d is %g: expected a number of samples, or "
                               "shares that add up to 1",
                               i, lengths[i]);
        out[i] = (int64_t)x;
        total += out[i];
    }
    for (int i = 0; shares && total < all; i = (i + 1) % n) out[i]++, total++;
    if (total == all) return true;
    return dsi_invalid("random_split: the %d lengths are %lld in all: expected %lld, the samples "
                       "that there are",
                       n, (long long)total, (long long)all);
}

bool ds_random_split(ds_dataset *d, const double *lengths, int n, ds_dataset **out)
{
    if (!dsi_live(d, "random_split") || !lengths || !out) {
        dsi_null_operand("random_split");
        ds_dataset_free(d);
        return false;
    }
    int64_t all = ds_dataset_len(d), begin = 0;
    int64_t *size = dsi_alloc((size_t)(n < 1 ? 1 : n) * sizeof *size);
    bool fits = n < 1 ? dsi_invalid("random_split: %d parts: expected at least 1", n)
                      : split_lengths(lengths, n, all, size);
    if (!fits) ds_dataset_free(d);
    int64_t *order = dsi_alloc((size_t)(all + 1) * sizeof *order);
    if (fits) dsi_rng_permutation(dsi_rng_default(), order, all);
    shared *of = fits ? share(d, n) : NULL;
    for (int i = 0; i < n && fits; begin += size[i++])
        out[i] = part_new(of, 0, size[i], index_copy(order + begin, size[i]));
    dsi_free(order);
    dsi_free(size);
    return fits;
}

/* ---- several in a row --------------------------------------------------------------------------------- */

typedef struct row {
    int n;
    ds_dataset **d; /* [n], owned */
} row;

static int64_t row_len(void *self)
{
    row *r = self;
    int64_t all = 0;
    for (int i = 0; i < r->n; i++) all += ds_dataset_len(r->d[i]);
    return all;
}

static ds_status row_get(void *self, int64_t i, void **field)
{
    row *r = self;
    int k = 0;
    for (int64_t n; k < r->n - 1 && i >= (n = ds_dataset_len(r->d[k])); k++) i -= n;
    return ds_dataset_get(r->d[k], i, field);
}

static void row_epoch(void *self, int64_t epoch)
{
    row *r = self;
    for (int i = 0; i < r->n; i++) ds_dataset_set_epoch(r->d[i], epoch);
}

static void row_free(void *self)
{
    row *r = self;
    for (int i = 0; i < r->n; i++) ds_dataset_free(r->d[i]);
    dsi_free(r->d);
}

/* Whether set i has the fields of the first one; false with the message. */
static bool same_fields(ds_dataset *const *d, int i)
{
    int n = ds_dataset_fields(d[0]);
    if (ds_dataset_fields(d[i]) != n)
        return dsi_invalid("concat_dataset: set %d has %d fields, set 0 has %d", i,
                           ds_dataset_fields(d[i]), n);
    for (int f = 0; f < n; f++) {
        const ds_field *a = ds_dataset_field(d[0], f), *b = ds_dataset_field(d[i], f);
        if (a->dtype != b->dtype || !dsi_same_shape(a->shape, b->shape))
            return dsi_invalid("concat_dataset: field %d of set %d is %s %s, of set 0 %s %s", f, i,
                               ds_dtype_name(b->dtype), dsi_shape_text(b->shape),
                               ds_dtype_name(a->dtype), dsi_shape_text(a->shape));
    }
    return true;
}

ds_dataset *ds_concat_dataset(ds_dataset **d, int n)
{
    static const ds_dataset_type type = {"ConcatDataset", sizeof(row), row_len, row_get, row_free};
    bool fits = d && n >= 1;
    if (!d && n > 0)
        dsi_null_operand("concat_dataset");
    else if (!fits)
        dsi_refuse("concat_dataset: %d data sets: expected at least 1", n);
    for (int i = 0; fits && i < n; i++) {
        fits = dsi_live(d[i], "concat_dataset");
        if (!fits) dsi_null_operand("concat_dataset");
    }
    for (int i = 1; fits && i < n; i++) fits = same_fields(d, i);
    if (!fits) {
        for (int i = 0; d && i < n; i++) ds_dataset_free(d[i]);
        return NULL;
    }
    ds_dataset *y = ds_dataset_new(&type, ds_dataset_fields(d[0]), ds_dataset_field(d[0], 0));
    row *r = ds_dataset_self(y);
    r->n = n;
    r->d = dsi_alloc((size_t)n * sizeof *r->d);
    memcpy(r->d, d, (size_t)n * sizeof *r->d);
    ds_dataset_on_epoch(y, row_epoch);
    return y;
}
