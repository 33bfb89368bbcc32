/* tests/device/attention.c: attention and its gradients, for every instruction
 * set and dtype, beside the softmax of all scores written down plainly in
 * double precision.
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "base/half.h"
#include "device/device.h"

/* CAPPED_BOOL: a bool mask and a cap; CAPPED: causal with a window and a cap. */
enum { NO_MASK, BOOL_MASK, CAPPED_BOOL, FLOAT_MASK, CAUSAL, WINDOW, CAPPED, MASKS };
enum { Q, K, V, DY, Y, DQ, DK, DV, OPERANDS };

typedef struct Case {
    int64_t batch, rows, keys, depth, width; /* B L S D E */
    int mask;
    ds_dtype dtype;
} Case;

typedef struct Problem {
    Case c;
    dsi_attention how;
    dsi_view x[OPERANDS], mask, lse;
    double *want[OPERANDS]; /* of Y, DQ, DK, DV, row-major */
    double *want_lse;
} Problem;

static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 33) / 1073741824.0 - 1;
}

static double get(const dsi_view *v, int64_t i)
{
    if (v->dtype == DS_BF16) return (double)dsi_bf16_to_f32(((uint16_t *)v->p)[i]);
    return v->dtype == DS_F64 ? ((double *)v->p)[i] : (double)((float *)v->p)[i];
}

static void put(const dsi_view *v, int64_t i, double x)
{
    if (v->dtype == DS_F64)
        ((double *)v->p)[i] = x;
    else if (v->dtype == DS_F32)
        ((float *)v->p)[i] = (float)x;
    else
        ((uint16_t *)v->p)[i] = dsi_f32_to_bf16((float)x);
}

/* Rows are a little longer than their elements. */
static int64_t place(const dsi_view *v, int64_t b, int64_t i, int64_t j)
{
    return b * v->s[0] + i * v->s[1] + j * v->s[2];
}

static double el(const dsi_view *v, int64_t b, int64_t i, int64_t j)
{
    return get(v, place(v, b, i, j));
}

static dsi_view make(ds_dtype dtype, int64_t batch, int64_t rows, int64_t cols, uint64_t *state)
{
    dsi_view v = {.dtype = dtype, .n = 3, .d = {batch, rows, cols}};
    v.s[2] = 1, v.s[1] = cols + 3, v.s[0] = rows * v.s[1] + 5;
    v.p = calloc((size_t)(batch * v.s[0] + 16), sizeof(double));
    for (int64_t i = 0; state && i < batch * v.s[0]; i++) put(&v, i, draw(state));
    return v;
}

static bool is_bool(int mask) { return mask == BOOL_MASK || mask == CAPPED_BOOL; }

/* One mask for all batches. The first row of a bool mask is empty where there
 * are two rows or more. */
static void make_mask(Problem *p, uint64_t *state)
{
    int64_t rows = p->c.rows, keys = p->c.keys;
    p->mask = (dsi_view){.dtype = is_bool(p->c.mask) ? DS_BOOL : p->c.dtype,
                         .n = 3,
                         .d = {p->c.batch, rows, keys},
                         .s = {0, keys, 1}};
    p->mask.p = calloc((size_t)(rows * keys + 1), sizeof(double));
    for (int64_t i = 0; i < rows * keys; i++)
        if (is_bool(p->c.mask))
            ((bool *)p->mask.p)[i] = draw(state) > -0.3 && (rows < 2 || i >= keys);
        else
            put(&p->mask, i, draw(state) < -0.7 ? -(double)INFINITY : 2 * draw(state));
}

static double score(const Problem *p, int64_t b, int64_t i, int64_t j)
{
    double sum = 0;
    const dsi_attention *o = &p->how;
    if (o->causal && j > i) return -(double)INFINITY;
    if (o->window && j <= i - o->window) return -(double)INFINITY;
    if (is_bool(p->c.mask) && !((bool *)p->mask.p)[i * p->c.keys + j]) return -(double)INFINITY;
    for (int64_t d = 0; d < p->c.depth; d++) sum += el(&p->x[Q], b, i, d) * el(&p->x[K], b, j, d);
    sum *= o->scale;
    if (o->softcap > 0) sum = o->softcap * tanh(sum / o->softcap);
    return sum + (p->c.mask == FLOAT_MASK ? get(&p->mask, i * p->c.keys + j) : 0);
}

/* The softmax of row i -> w; returns the logarithm of its sum. */
static double weights(const Problem *p, int64_t b, int64_t i, double *w)
{
    double max = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < p->c.keys; j++) max = fmax(max, w[j] = score(p, b, i, j));
    for (int64_t j = 0; j < p->c.keys; j++) sum += w[j] = isinf(max) ? 0 : exp(w[j] - max);
    for (int64_t j = 0; j < p->c.keys; j++) w[j] = sum > 0 ? w[j] / sum : 0;
    return sum > 0 ? max + log(sum) : -(double)INFINITY;
}

static void expect_row(Problem *p, int64_t b, int64_t i, double *w)
{
    const Case *c = &p->c;
    double *y = p->want[Y] + (b * c->rows + i) * c->width, dot = 0;
    p->want_lse[b * c->rows + i] = weights(p, b, i, w);
    for (int64_t e = 0; e < c->width; e++) {
        for (int64_t j = 0; j < c->keys; j++) y[e] += w[j] * el(&p->x[V], b, j, e);
        dot += y[e] * el(&p->x[DY], b, i, e);
    }
    for (int64_t j = 0; j < c->keys; j++) {
        double ds = -dot;
        for (int64_t e = 0; e < c->width; e++) {
            ds += el(&p->x[DY], b, i, e) * el(&p->x[V], b, j, e);
            p->want[DV][(b * c->keys + j) * c->width + e] += w[j] * el(&p->x[DY], b, i, e);
        }
        ds *= w[j] * p->how.scale;
        if (p->how.softcap > 0 && w[j] > 0) ds *= 1 - pow(score(p, b, i, j) / p->how.softcap, 2);
        for (int64_t d = 0; d < c->depth; d++) {
            p->want[DQ][(b * c->rows + i) * c->depth + d] += ds * el(&p->x[K], b, j, d);
            p->want[DK][(b * c->keys + j) * c->depth + d] += ds * el(&p->x[Q], b, i, d);
        }
    }
}

static Problem new_problem(Case c)
{
    uint64_t state = 11;
    Problem p = {.c = c, .how = {.scale = 0.7, .causal = c.mask >= CAUSAL}};
    if (c.mask >= WINDOW) p.how.window = 1 + c.rows / 3;
    if (c.mask == CAPPED || c.mask == CAPPED_BOOL) p.how.softcap = 0.9;
    const int64_t rows[OPERANDS] = {c.rows, c.keys, c.keys, c.rows, c.rows, c.rows, c.keys, c.keys};
    const int64_t cols[OPERANDS] = {c.depth, c.depth, c.width, c.width,
                                    c.width, c.depth, c.depth, c.width};
    for (int i = 0; i < OPERANDS; i++) {
        p.x[i] = make(c.dtype, c.batch, rows[i], cols[i], i < Y ? &state : NULL);
        p.want[i] = calloc((size_t)(c.batch * rows[i] * cols[i] + 1), sizeof(double));
    }
    if (is_bool(c.mask) || c.mask == FLOAT_MASK) make_mask(&p, &state);
    ds_dtype lse = c.dtype == DS_BF16 ? DS_F32 : c.dtype;
    p.lse = (dsi_view){.dtype = lse, .n = 2, .d = {c.batch, c.rows}, .s = {c.rows, 1}};
    p.lse.p = calloc((size_t)(c.batch * c.rows + 1), sizeof(double));
    p.want_lse = calloc((size_t)(c.batch * c.rows + 1), sizeof(double));
    return p;
}

static void expect(Problem *p)
{
    double *w = calloc((size_t)p->c.keys + 1, sizeof *w);
    for (int64_t b = 0; b < p->c.batch; b++)
        for (int64_t i = 0; i < p->c.rows; i++) expect_row(p, b, i, w);
    free(w);
}

static void free_problem(Problem *p)
{
    for (int i = 0; i < OPERANDS; i++) free(p->x[i].p), free(p->want[i]);
    free(p->mask.p), free(p->lse.p), free(p->want_lse);
}

static void run(Problem *p, const dsi_kernels *k)
{
    dsi_stream *s = &dsi_device_current()->stream;
    const dsi_view *x = p->x;
    CHECK(k->attention(s, &p->how, x[Q], x[K], x[V], p->mask, x[Y], p->lse) == DS_OK);
    CHECK(k->attention_dx(s, &p->how, x[DY], x[Q], x[K], x[V], p->mask, x[Y], p->lse, x[DQ], x[DK],
                          x[DV]) == DS_OK);
}

static void compare(const Problem *p)
{
    double tol = p->c.dtype == DS_F64 ? 1e-12 : 2e-5;
    for (int n = Y; n < OPERANDS; n++) {
        const dsi_view *v = &p->x[n];
        double largest = 0;
        int64_t all = v->d[0] * v->d[1] * v->d[2];
        for (int64_t i = 0; i < all; i++) largest = fmax(largest, fabs(p->want[n][i]));
        for (int64_t i = 0; i < all; i++) {
            int64_t row = i / v->d[2];
            /* backward reads y, which is rounded */
            double most = p->c.dtype == DS_BF16 ? fabs(p->want[n][i]) / 256 + largest / 256 : tol;
            CHECK_CLOSE(el(v, row / v->d[1], row % v->d[1], i % v->d[2]), p->want[n][i], most);
        }
    }
    for (int64_t i = 0; i < p->c.batch * p->c.rows; i++)
        CHECK_CLOSE(get(&p->lse, i), p->want_lse[i], tol);
}

static void forget_results(Problem *p)
{
    for (int i = Y; i < OPERANDS; i++)
        memset(p->x[i].p, 0, (size_t)(p->c.batch * p->x[i].s[0]) * ds_dtype_size(p->c.dtype));
    memset(p->lse.p, 0, (size_t)(p->c.batch * p->c.rows) * ds_dtype_size(p->lse.dtype));
}

static void each_isa(Case c)
{
    Problem one = new_problem(c), more = new_problem(c);
    if (compares_values()) expect(&one);
    FOR_EACH_ISA(k)
    {
        forget_results(&one), forget_results(&more);
        run(&one, k);
        if (compares_values()) compare(&one);
        ds_set_threads(3);
        run(&more, k);
        ds_set_threads(1);
        for (int i = Y; i < OPERANDS; i++)
            CHECK(!memcmp(one.x[i].p, more.x[i].p,
                          (size_t)(c.batch * one.x[i].s[0]) * ds_dtype_size(c.dtype)));
    }
    free_problem(&one), free_problem(&more);
}

static void all_masks(ds_dtype dtype)
{
    for (int mask = NO_MASK; mask < MASKS; mask++) {
        each_isa((Case){2, 7, 9, 5, 3, mask, dtype});
        each_isa((Case){1, 1, 1, 16, 16, mask, dtype});
        each_isa((Case){3, 37, 150, 24, 50, mask, dtype}); /* several blocks of rows and of keys */
        each_isa((Case){1, 90, 40, 33, 17, mask, dtype});
        if (mask >= WINDOW) each_isa((Case){2, 400, 350, 16, 16, mask, dtype}); /* blocks outside */
    }
}

/* v [F B,...] as [F,B,...] */
static void add_front(dsi_view *v, int64_t front)
{
    if (!v->p) return;
    for (int i = v->n++; i > 0; i--) v->d[i] = v->d[i - 1], v->s[i] = v->s[i - 1];
    v->d[1] /= front;
    v->d[0] = front, v->s[0] = v->d[1] * v->s[1];
}

/* With a dimension in front of `front` indices: the bits of one without, on any number of
 * threads. Work is large enough to be divided. */
static void each_front(Case c, int64_t front)
{
    FOR_EACH_ISA(k)
    {
        Problem flat = new_problem(c);
        run(&flat, k);
        for (int threads = 1; threads <= 3; threads++) {
            Problem p = new_problem(c);
            for (int i = 0; i < OPERANDS; i++) add_front(&p.x[i], front);
            add_front(&p.lse, front), add_front(&p.mask, front);
            ds_set_threads(threads);
            run(&p, k);
            ds_set_threads(1);
            for (int i = Y; i < OPERANDS; i++)
                CHECK(!memcmp(flat.x[i].p, p.x[i].p,
                              (size_t)(c.batch * flat.x[i].s[0]) * ds_dtype_size(c.dtype)));
            CHECK(!memcmp(flat.lse.p, p.lse.p,
                          (size_t)(c.batch * c.rows) * ds_dtype_size(p.lse.dtype)));
            free_problem(&p);
        }
        free_problem(&flat);
    }
}

static void dimension_in_front(void **state)
{
    (void)state;
    const ds_dtype dtypes[] = {DS_F32, DS_F64, DS_BF16};
    for (int i = 0; i < 3; i++) {
        each_front((Case){12, 60, 80, 24, 16, CAUSAL, dtypes[i]}, 6);    /* by its indices */
        each_front((Case){4, 110, 90, 24, 24, BOOL_MASK, dtypes[i]}, 2); /* by heads, rows */
        each_front((Case){3, 5, 7, 4, 4, NO_MASK, dtypes[i]}, 3);
    }
}

static void float32(void **state) { (void)state, all_masks(DS_F32); }
static void float64(void **state) { (void)state, all_masks(DS_F64); }

static void bfloat16(void **state)
{
    (void)state;
    all_masks(DS_BF16);
    each_isa((Case){6, 100, 200, 64, 70, CAUSAL, DS_BF16});
}

static void nothing_to_attend_to(void **state)
{
    (void)state;
    each_isa((Case){2, 5, 0, 4, 3, NO_MASK, DS_F32});
    each_isa((Case){2, 0, 5, 4, 3, NO_MASK, DS_F32});
    each_isa((Case){0, 5, 5, 4, 3, NO_MASK, DS_F32});
}

static void nan_stays(void **state)
{
    (void)state;
    Problem p = new_problem((Case){1, 3, 4, 2, 2, NO_MASK, DS_F32});
    put(&p.x[Q], place(&p.x[Q], 0, 1, 0), NAN);
    run(&p, dsi_device_current()->kernels);
    CHECK(!isnan(el(&p.x[Y], 0, 0, 0)));
    CHECK(isnan(el(&p.x[Y], 0, 1, 0)));
    CHECK(isnan(el(&p.x[DK], 0, 0, 0)));
    free_problem(&p);
}

/* p is 1 whatever the score: no gradient comes to it. */
static void one_key(void **state)
{
    (void)state;
    Problem p = new_problem((Case){2, 8, 1, 2, 8, NO_MASK, DS_F32});
    run(&p, dsi_device_current()->kernels);
    for (int64_t b = 0; b < 2; b++)
        for (int64_t i = 0; i < 8 * 2; i++) {
            CHECK(el(&p.x[DQ], b, i / 2, i % 2) == 0);
            CHECK(el(&p.x[DK], b, 0, i % 2) == 0);
        }
    free_problem(&p);
}

static void refusals(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_current();
    Problem p = new_problem((Case){1, 3, 4, 2, 2, NO_MASK, DS_F32});
    dsi_view wide = p.x[K], whole = p.x[Q];
    wide.s[2] = 2;
    CHECK(d->kernels->attention(&d->stream, &p.how, p.x[Q], wide, p.x[V], p.mask, p.x[Y], p.lse) ==
          DS_EINVAL);
    CHECK_ERROR("attention: k has stride 2 along its last dimension");
    whole.dtype = DS_I32;
    CHECK(d->kernels->attention(&d->stream, &p.how, whole, p.x[K], p.x[V], p.mask, p.x[Y], p.lse) ==
          DS_EINVAL);
    CHECK_ERROR("attention: no cpu kernel for int32");
    free_problem(&p);
}

TEST_MAIN(cmocka_unit_test(float32), cmocka_unit_test(float64), cmocka_unit_test(bfloat16),
          cmocka_unit_test(dimension_in_front), cmocka_unit_test(nothing_to_attend_to),
          cmocka_unit_test(nan_stays), cmocka_unit_test(one_key), cmocka_unit_test(refusals))
