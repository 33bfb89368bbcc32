/* ops/einsum.c: Einstein's sums, as products of matrices.
 *
 * "bij,bjk->bik": a letter names a dimension; those that the result does not
 * name are summed. Operands are multiplied from the left to the right: of the
 * product so far and the next operand, the letters of both that are still
 * needed are the batch [B], the letters of both that are not are summed [K],
 * and [B,L,K] times [B,K,R] is one matmul. "..." stands for dimensions without
 * letters, which broadcast from the last one on; they are letters from ELLIPSIS
 * on here.
 * SPDX-License-Identifier: MIT */
#include "op.h"

#include <ctype.h>
#include <string.h>

enum { LETTERS = 52, ELLIPSIS = LETTERS, LABELS = LETTERS + DS_MAX_DIMS, OPERANDS = 8 };

/* A tensor and the letters of its dimensions. */
typedef struct Labelled {
    ds_tensor *x;
    int n, label[DS_MAX_DIMS];
} Labelled;

typedef struct Equation {
    const char *text;
    Labelled in[OPERANDS], out;
    int n;
    int64_t size[LABELS]; /* 0: not used */
    int used[LABELS];     /* how many operands have it */
} Equation;

static int label_of(char c) { return c >= 'a' ? 26 + c - 'a' : c - 'A'; }

/* Reads the labels of an operand (or of the result) of n dimensions at *text,
 * which is moved behind them; false with the message. */
static bool labels_read(const Equation *e, const char **text, int dims, Labelled *out)
{
    const char *p = *text;
    int letters = 0, dots = -1;
    for (; *p && *p != ',' && strncmp(p, "->", 2) != 0; p++) {
        if (*p == ' ') continue;
        if (!strncmp(p, "...", 3) && dots < 0)
            dots = letters, p += 2;
        else if (isalpha((unsigned char)*p) && letters < DS_MAX_DIMS)
            out->label[letters++] = label_of(*p);
        else
            return dsi_refuse("einsum: \"%s\": unexpected '%c': expected letters, one \"...\", "
                              "',' or \"->\"",
                              e->text, *p);
    }
    *text = p;
    int rest = dims - letters; /* what "..." stands for */
    if (rest < 0 || (rest > 0 && dots < 0) || dims > DS_MAX_DIMS)
        return dsi_refuse("einsum: \"%s\": %d letters for an operand of %d dimensions", e->text,
                          letters, dims);
    for (int i = letters - 1; i >= dots && dots >= 0; i--) out->label[i + rest] = out->label[i];
    for (int i = 0; i < rest; i++) out->label[dots + i] = ELLIPSIS + DS_MAX_DIMS - rest + i;
    out->n = dims;
    return true;
}

/* Notes the sizes of an operand's dimensions; false with the message. */
static bool sizes_note(Equation *e, int operand)
{
    const Labelled *o = &e->in[operand];
    bool seen[LABELS] = {false};
    for (int i = 0; i < o->n; i++) {
        int64_t d = o->x->shape.d[i], *size = &e->size[o->label[i]];
        if (e->used[o->label[i]] && d != *size && d != 1 && *size != 1)
            return dsi_refuse(
                "einsum: \"%s\": operand %d %s: size %lld in dimension %d beside %lld", e->text,
                operand, dsi_shape_text(o->x->shape), (long long)d, i, (long long)*size);
        if (!e->used[o->label[i]] || *size == 1) *size = d;
        if (!seen[o->label[i]]) e->used[o->label[i]]++;
        seen[o->label[i]] = true;
    }
    return true;
}

/* Without "->": "..." and then the letters that occur once, in order. */
static void result_implied(Equation *e)
{
    int times[LABELS] = {0};
    for (int k = 0; k < e->n; k++)
        for (int i = 0; i < e->in[k].n; i++) times[e->in[k].label[i]]++;
    for (int l = ELLIPSIS; l < LABELS; l++)
        if (times[l]) e->out.label[e->out.n++] = l;
    for (int l = 0; l < LETTERS; l++)
        if (times[l] == 1) e->out.label[e->out.n++] = l;
}

/* The result's letters are those of operands, each once. */
static bool result_read(Equation *e, const char *p)
{
    int dots = 0, letters = 0;
    for (int l = ELLIPSIS; l < LABELS; l++) dots += e->used[l] > 0;
    for (const char *c = p; *c; c++) letters += isalpha((unsigned char)*c) != 0;
    int rest = strstr(p, "...") ? dots : 0;
    if (!labels_read(e, &p, letters + rest, &e->out)) return false;
    if (*p)
        return dsi_refuse("einsum: \"%s\": expected nothing behind the letters of the result",
                          e->text);
    int seen[LABELS] = {0};
    for (int i = 0; i < e->out.n; i++) {
        int l = e->out.label[i];
        if (!e->used[l] || seen[l]++)
            return dsi_refuse("einsum: \"%s\": letter %d of the result: expected one of the "
                              "operands', once",
                              e->text, i);
    }
    return true;
}

static bool equation_read(Equation *e, ds_tensor **x)
{
    const char *p = e->text;
    for (int k = 0; k < e->n; k++) {
        e->in[k].x = x[k];
        if (!labels_read(e, &p, x[k]->shape.n, &e->in[k]) || !sizes_note(e, k)) return false;
        if (k + 1 < e->n && *p++ != ',')
            return dsi_refuse("einsum: \"%s\": expected %d operands, separated by ','", e->text,
                              e->n);
    }
    if (!*p) return result_implied(e), true;
    if (!strncmp(p, "->", 2)) return result_read(e, p + 2);
    return dsi_refuse("einsum: \"%s\" has more than %d operands", e->text, e->n);
}

/* ---- one operand ------------------------------------------------------------------------------------- */

static int place_of(const Labelled *o, int label)
{
    for (int i = 0; i < o->n; i++)
        if (o->label[i] == label) return i;
    return -1;
}

/* The diagonal of dimensions a < b, which becomes the last one. */
static ds_tensor *diagonal(ds_tensor *x, int a, int b)
{
    ds_dims order = {.n = x->shape.n}, shape = {.n = x->shape.n - 1};
    int64_t size = x->shape.d[a];
    int k = 0;
    for (int i = 0; i < order.n; i++)
        if (i != a && i != b) order.d[k] = i, shape.d[k++] = x->shape.d[i];
    order.d[k] = a, order.d[k + 1] = b, shape.d[k] = size;
    ds_dims flat = shape;
    flat.d[k] = size * size;
    x = ds_reshape(ds_permute(x, order), flat);
    return x ? ds_index_select(x, k, dsi_arange(x, 0, size, size + 1)) : NULL;
}

/* Letters that occur twice in an operand become one. */
static bool labels_unique(Labelled *o)
{
    for (int b = o->n - 1; b > 0; b--) {
        int a = place_of(o, o->label[b]), label = o->label[b];
        if (a == b) continue;
        if (o->x->shape.d[a] != o->x->shape.d[b])
            return dsi_refuse("einsum: dimensions %d and %d of %s have the same letter: expected "
                              "equal sizes",
                              a, b, dsi_shape_text(o->x->shape));
        if (!(o->x = diagonal(o->x, a, b))) return false;
        for (int pass = 0; pass < 2; pass++) { /* b first, so that a stays where it is */
            int gone = pass ? a : b;
            for (int i = gone; i + 1 < o->n; i++) o->label[i] = o->label[i + 1];
            o->n--;
        }
        o->label[o->n++] = label;
        b = o->n;
    }
    return true;
}

/* Sums over the letters that nothing needs. */
static bool labels_sum(Labelled *o, const bool *needed)
{
    ds_reduce_opts sum = {0};
    Labelled left = {0};
    for (int i = 0; i < o->n; i++)
        if (needed[o->label[i]])
            left.label[left.n++] = o->label[i];
        else
            sum.dims.d[sum.dims.n++] = i;
    left.x = sum.dims.n ? ds_sum_with(o->x, sum) : o->x;
    *o = left;
    return o->x;
}

/* o's dimensions in that order of letters, those it lacks or has with size 1
 * repeated, as a tensor [B,M,N]: the first b letters, the next m, the rest. */
static ds_tensor *labels_matrix(const Equation *e, const Labelled *o, const int *label, int n,
                                int b, int m)
{
    ds_dims order = {0}, wide = {.n = n}, shape = {3, {1, 1, 1}};
    ds_tensor *x = o->x;
    for (int i = 0; i < n; i++) {
        order.d[order.n++] = place_of(o, label[i]);
        wide.d[i] = e->size[label[i]];
        shape.d[i < b ? 0 : i < b + m ? 1 : 2] *= wide.d[i];
    }
    x = n ? ds_permute(x, order) : x;
    return x ? ds_reshape(dsi_same_shape(x->shape, wide) ? x : ds_expand(x, wide), shape) : NULL;
}

/* ---- two operands ------------------------------------------------------------------------------------ */

/* Appends the labels of o for which (in the other, needed) is as wanted. */
static int labels_pick(const Labelled *o, const Labelled *other, const bool *needed, bool both,
                       bool want, int *label, int n)
{
    for (int i = 0; i < o->n; i++) {
        bool shared = place_of(other, o->label[i]) >= 0;
        if (shared == both && (!both || needed[o->label[i]] == want)) label[n++] = o->label[i];
    }
    return n;
}

/* *a = the product of *a and b, summed over the letters of both that nothing
 * needs. */
static bool labels_product(const Equation *e, Labelled *a, Labelled *b, const bool *needed)
{
    bool mine[LABELS], theirs[LABELS];
    for (int l = 0; l < LABELS; l++) {
        mine[l] = needed[l] || place_of(b, l) >= 0;
        theirs[l] = needed[l] || place_of(a, l) >= 0;
    }
    if (!labels_sum(a, mine) || !labels_sum(b, theirs)) return false;
    int left[2 * DS_MAX_DIMS],
        right[2 * DS_MAX_DIMS]; /* [batch, mine, sum], [batch, sum, theirs] */
    int batch = labels_pick(a, b, needed, true, true, left, 0);
    memcpy(right, left, (size_t)batch * sizeof *left);
    int rows = labels_pick(a, b, needed, false, true, left, batch);
    int sum = labels_pick(a, b, needed, true, false, left, rows) - rows;
    memcpy(right + batch, left + rows, (size_t)sum * sizeof *left);
    int columns = labels_pick(b, a, needed, false, true, right, batch + sum) - batch - sum;
    if (rows + columns > DS_MAX_DIMS)
        return dsi_refuse("einsum: \"%s\": a product has %d dimensions: expected at most %d",
                          e->text, rows + columns, DS_MAX_DIMS);
    ds_tensor *x = labels_matrix(e, a, left, rows + sum, batch, rows - batch);
    ds_tensor *y = labels_matrix(e, b, right, batch + sum + columns, batch, sum);
    Labelled out = {.n = rows + columns};
    ds_dims shape = {.n = out.n};
    for (int i = 0; i < out.n; i++) {
        out.label[i] = i < rows ? left[i] : right[batch + sum + i - rows];
        shape.d[i] = e->size[out.label[i]];
    }
    out.x = ds_reshape(ds_matmul(x, y), shape);
    *a = out;
    return a->x;
}

/* Letters that the result or operands from `next` on have. */
static void labels_needed(const Equation *e, int next, bool *needed)
{
    for (int l = 0; l < LABELS; l++) {
        needed[l] = place_of(&e->out, l) >= 0;
        for (int k = next; k < e->n && !needed[l]; k++) needed[l] = place_of(&e->in[k], l) >= 0;
    }
}

ds_tensor *ds_einsum(const char *equation, ds_tensor **x, int n)
{
    Equation e = {.text = equation, .n = n};
    bool needed[LABELS];
    if (!equation || !dsi_live(x, "einsum")) return dsi_null_operand("einsum");
    if (n < 1 || n > OPERANDS)
        return dsi_refuse("einsum: %d operands: expected 1 to %d", n, (int)OPERANDS);
    for (int i = 0; i < n; i++) {
        if (!dsi_live(x[i], "einsum")) return dsi_null_operand("einsum");
        if (!dsi_want_float("einsum", x[i]) || !dsi_same_kind("einsum", x[0], x[i])) return NULL;
    }
    if (!equation_read(&e, x)) return NULL;
    for (int k = 0; k < n; k++)
        if (!labels_unique(&e.in[k])) return NULL;
    Labelled *y = &e.in[0];
    labels_needed(&e, 1, needed);
    if (!labels_sum(y, needed)) return NULL;
    for (int k = 1; k < n; k++) {
        labels_needed(&e, k + 1, needed);
        if (!labels_product(&e, y, &e.in[k], needed)) return NULL;
    }
    ds_dims order = {.n = e.out.n};
    for (int i = 0; i < order.n; i++) order.d[i] = place_of(y, e.out.label[i]);
    return order.n ? ds_permute(y->x, order) : y->x;
}

/* ---- bilinear ---------------------------------------------------------------------------------------- */

static bool bilinear_check(const ds_tensor *x1, const ds_tensor *x2, const ds_tensor *w,
                           const ds_tensor *b)
{
    if (!dsi_want_float("bilinear", x1) || !dsi_same_kind("bilinear", x1, x2) ||
        !dsi_same_kind("bilinear", x1, w) || !dsi_same_kind("bilinear", x1, b))
        return false;
    int n = x1->shape.n;
    bool good = n && x2->shape.n == n && w->shape.n == 3 && w->shape.d[1] == x1->shape.d[n - 1] &&
                w->shape.d[2] == x2->shape.d[n - 1] &&
                (!b || (b->shape.n == 1 && b->shape.d[0] == w->shape.d[0]));
    for (int i = 0; good && i < n - 1; i++) good = x1->shape.d[i] == x2->shape.d[i];
    return good ||
           dsi_invalid("bilinear: x1 is %s, x2 is %s, weight is %s, bias is %s: expected [...,I], "
                       "[...,J], [O,I,J] and [O]",
                       dsi_shape_text(x1->shape), dsi_shape_text(x2->shape),
                       dsi_shape_text(w->shape), b ? dsi_shape_text(b->shape) : "NULL");
}

/* 16-bit operands are computed in float32, so that y is rounded once. */
ds_tensor *ds_bilinear(ds_tensor *x1, ds_tensor *x2, ds_tensor *w, ds_tensor *b)
{
    dsi_autocast_wide(&x1, &x2, &w, &b);
    if (!dsi_live_all("bilinear", x1, x2, w)) return dsi_null_operand("bilinear");
    if (!bilinear_check(x1, x2, w, b)) return NULL;
    ds_dims shape = x1->shape;
    ds_dtype dtype = x1->dtype;
    shape.d[shape.n - 1] = w->shape.d[0];
    int64_t rows = 1;
    for (int i = 0; i < shape.n - 1; i++) rows *= shape.d[i];
    ds_tensor *in[] = {ds_reshape(dsi_upcast(x1), ds_shape(rows, w->shape.d[1])), dsi_upcast(w),
                       ds_reshape(dsi_upcast(x2), ds_shape(rows, w->shape.d[2]))};
    ds_dtype cast = ds_set_autocast(DS_F32);
    ds_tensor *y = ds_einsum("ni,oij,nj->no", in, 3);
    ds_set_autocast(cast);
    if (b) y = ds_add(y, dsi_upcast(b));
    return y ? ds_cast(ds_reshape(y, shape), dtype) : NULL;
}
