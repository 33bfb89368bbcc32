/* tests/device/optim.c: each optimizer's kernel, for every instruction set and
 * dtype, over five steps (three if quick), beside the rule written down plainly
 * in double precision.
 * SPDX-License-Identifier: MIT */
#include "base/half.h"
#include "kernels.h"

#include "device/device.h"

#define SPANS 4

static const int64_t small[SPANS] = {1, 37, 3000, 20000}, large[SPANS] = {1, 37, 3000, 700001};
static const int64_t *sizes = small; /* large: enough to be shared among threads */

static int steps(void) { return quick() ? 3 : 5; }

/* One element of one parameter; t counts from 1. */
typedef struct Element {
    double p, m, v, vmax;
} Element;

static double sign_of(bool maximize) { return maximize ? -1 : 1; }

static void sgd_rule(const dsi_sgd *c, Element *e, double g, int t)
{
    g = sign_of(c->maximize) * g + c->weight_decay * e->p;
    e->m = t == 1 ? g : c->momentum * e->m + (1 - c->dampening) * g;
    if (c->momentum == 0) e->m = g;
    e->p -= c->lr * (c->nesterov ? g + c->momentum * e->m : e->m);
}

static void adam_rule(const dsi_adam *c, Element *e, double g, int t)
{
    g *= sign_of(c->maximize);
    if (c->decoupled)
        e->p *= 1 - c->lr * c->weight_decay;
    else
        g += c->weight_decay * e->p;
    e->m = c->beta1 * e->m + (1 - c->beta1) * g;
    e->v = c->beta2 * e->v + (1 - c->beta2) * g * g;
    e->vmax = fmax(e->vmax, e->v);
    double c1 = c->bias_correction ? 1 - pow(c->beta1, t) : 1;
    double c2 = c->bias_correction ? 1 - pow(c->beta2, t) : 1;
    e->p -= c->lr * (e->m / c1) / (sqrt((c->amsgrad ? e->vmax : e->v) / c2) + c->eps);
}

static void adagrad_rule(const dsi_adagrad *c, Element *e, double g, int t)
{
    g = sign_of(c->maximize) * g + c->weight_decay * e->p;
    e->v += g * g;
    e->p -= c->lr / (1 + (t - 1) * c->lr_decay) * g / (sqrt(e->v) + c->eps);
}

static void rmsprop_rule(const dsi_rmsprop *c, Element *e, double g, int t)
{
    (void)t;
    g = sign_of(c->maximize) * g + c->weight_decay * e->p;
    e->v = c->alpha * e->v + (1 - c->alpha) * g * g;
    e->vmax = c->alpha * e->vmax + (1 - c->alpha) * g; /* the mean of g */
    double u = g / (sqrt(c->centered ? e->v - e->vmax * e->vmax : e->v) + c->eps);
    e->m = c->momentum * e->m + u;
    e->p -= c->lr * e->m;
}

static void adadelta_rule(const dsi_adadelta *c, Element *e, double g, int t)
{
    (void)t;
    g = sign_of(c->maximize) * g + c->weight_decay * e->p;
    e->v = c->rho * e->v + (1 - c->rho) * g * g;
    double delta = sqrt(e->m + c->eps) / sqrt(e->v + c->eps) * g;
    e->m = c->rho * e->m + (1 - c->rho) * delta * delta;
    e->p -= c->lr * delta;
}

static void lion_rule(const dsi_lion *c, Element *e, double g, int t)
{
    (void)t;
    double u = c->beta1 * e->m + (1 - c->beta1) * g;
    e->p -= c->lr * ((signbit(u) ? -1 : 1) + c->weight_decay * e->p);
    e->m = c->beta2 * e->m + (1 - c->beta2) * g;
}

/* LAMB has a second half, once |p| and |u| of the whole parameter are known. */
static double lamb_u(const dsi_lamb *c, const Element *e)
{
    double root = c->eps_inside_sqrt ? sqrt(e->v + c->eps) : sqrt(e->v) + c->eps;
    return e->m / root + c->weight_decay * e->p;
}

static void lamb_rule(const dsi_lamb *c, Element *e, double g, int t)
{
    (void)t;
    e->m = c->beta1 * e->m + (1 - c->beta1) * g;
    e->v = c->beta2 * e->v + (1 - c->beta2) * g * g;
}

static void lamb_finish(const dsi_lamb *c, Element *e, int64_t n, int t)
{
    double p2 = 0, u2 = 0;
    for (int64_t i = 0; i < n; i++) {
        double u = lamb_u(c, &e[i]);
        p2 += e[i].p * e[i].p;
        u2 += u * u;
    }
    double trust = p2 > 0 && u2 > 0 ? fmin(fmax(sqrt(p2 / u2), c->min_coeff), c->max_coeff) : 1;
    double rate = c->lr * trust;
    if (c->bias_correction) rate *= sqrt(1 - pow(c->beta2, t)) / (1 - pow(c->beta1, t));
    for (int64_t i = 0; i < n; i++) e[i].p -= rate * lamb_u(c, &e[i]);
}

/* ---- the cases ---------------------------------------------------------------------------------------- */

typedef enum Kind { SGD, ADAM, ADAGRAD, RMSPROP, ADADELTA, LION, LAMB } Kind;

typedef struct Case {
    Kind kind;
    union {
        dsi_sgd sgd;
        dsi_adam adam;
        dsi_adagrad adagrad;
        dsi_rmsprop rmsprop;
        dsi_adadelta adadelta;
        dsi_lion lion;
        dsi_lamb lamb;
    };
} Case;

static const Case cases[] = {
    {SGD, .sgd = {.lr = 0.1, .weight_decay = 0.05}},
    {SGD, .sgd = {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .maximize = true}},
    {SGD, .sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}},
    {ADAM, .adam = {0.01, 0.9, 0.999, 1e-8, 0.1, false, false, false, true}},
    {ADAM, .adam = {0.01, 0.8, 0.99, 1e-6, 0.1, true, true, true, true}},
    {ADAM, .adam = {0.01, 0.9, 0.999, 1e-8, 0, true, false, false, false}},
    {ADAGRAD, .adagrad = {0.05, 0.1, 0.01, 1e-8, true}},
    {RMSPROP, .rmsprop = {.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1}},
    {RMSPROP, .rmsprop = {.lr = 0.01, .alpha = 0.9, .eps = 1e-3, .momentum = 0.5}},
    {RMSPROP, .rmsprop = {.lr = 0.01, .alpha = 0.9, .eps = 1e-1, .centered = true}},
    {RMSPROP, .rmsprop = {0.01, 0.9, 1e-1, 0, 0.5, true, true}},
    {ADADELTA, .adadelta = {1, 0.9, 1e-2, 0.1, false}},
    {ADADELTA, .adadelta = {0.5, 0.8, 1e-3, 0, true}},
    {LION, .lion = {0.01, 0.9, 0.99, 0.1}},
    {LAMB, .lamb = {0.01, 0.9, 0.999, 1e-6, 0.01, 10, 0.01, true, false}},
    {LAMB, .lamb = {0.01, 0.9, 0.999, 1e-6, 0, 0.5, 0.2, false, true}},
};

static void rule(const Case *c, Element *e, double g, int t)
{
    switch (c->kind) {
    case SGD:
        sgd_rule(&c->sgd, e, g, t);
        break;
    case ADAM:
        adam_rule(&c->adam, e, g, t);
        break;
    case ADAGRAD:
        adagrad_rule(&c->adagrad, e, g, t);
        break;
    case RMSPROP:
        rmsprop_rule(&c->rmsprop, e, g, t);
        break;
    case ADADELTA:
        adadelta_rule(&c->adadelta, e, g, t);
        break;
    case LION:
        lion_rule(&c->lion, e, g, t);
        break;
    case LAMB:
        lamb_rule(&c->lamb, e, g, t);
        break;
    }
}

static dsi_optimizer options_of(const Case *c)
{
    switch (c->kind) {
    case SGD:
        return (dsi_optimizer){.rule = DSI_SGD, .sgd = c->sgd};
    case ADAM:
        return (dsi_optimizer){.rule = DSI_ADAM, .adam = c->adam};
    case ADAGRAD:
        return (dsi_optimizer){.rule = DSI_ADAGRAD, .adagrad = c->adagrad};
    case RMSPROP:
        return (dsi_optimizer){.rule = DSI_RMSPROP, .rmsprop = c->rmsprop};
    case ADADELTA:
        return (dsi_optimizer){.rule = DSI_ADADELTA, .adadelta = c->adadelta};
    case LION:
        return (dsi_optimizer){.rule = DSI_LION, .lion = c->lion};
    default:
        return (dsi_optimizer){.rule = DSI_LAMB, .lamb = c->lamb};
    }
}

static ds_status kernel(const Case *c, const dsi_kernels *k, const dsi_span *x)
{
    const dsi_optimizer options = options_of(c);
    return k->optimizer(&dsi_device_current()->stream, &options, SPANS, x);
}

/* ---- parameters of a dtype ------------------------------------------------------------------------------ */

static double get(ds_dtype dtype, const void *x, int64_t i)
{
    switch (dtype) {
    case DS_F64:
        return ((const double *)x)[i];
    case DS_BF16:
        return (double)dsi_bf16_to_f32(((const uint16_t *)x)[i]);
    case DS_F16:
        return (double)dsi_f16_to_f32(((const uint16_t *)x)[i]);
    default:
        return (double)((const float *)x)[i];
    }
}

static void put(ds_dtype dtype, void *x, int64_t i, double value)
{
    switch (dtype) {
    case DS_F64:
        ((double *)x)[i] = value;
        break;
    case DS_BF16:
        ((uint16_t *)x)[i] = dsi_f32_to_bf16((float)value);
        break;
    case DS_F16:
        ((uint16_t *)x)[i] = dsi_f32_to_f16((float)value);
        break;
    default:
        ((float *)x)[i] = (float)value;
    }
}

static double draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 33) / 1073741824.0 - 1;
}

static void make_spans(ds_dtype dtype, dsi_span *x, uint64_t seed)
{
    ds_dtype of_moments = dtype == DS_F64 ? DS_F64 : DS_F32;
    for (int i = 0; i < SPANS; i++) {
        size_t n = (size_t)sizes[i], each = ds_dtype_size(of_moments);
        void *p = calloc(n, ds_dtype_size(dtype)), *g = calloc(n, ds_dtype_size(dtype));
        x[i] = (dsi_span){
            .dtype = dtype, .p = p, .g = g, .n = sizes[i], .g_dtype = dtype, .g_scale = 1};
        x[i].m = calloc(n, each), x[i].v = calloc(n, each), x[i].vmax = calloc(n, each);
        for (int64_t j = 0; j < sizes[i]; j++) put(dtype, p, j, draw(&seed));
    }
}

/* Some gradients are 0. Drawn from i and the step alone. */
static void draw_grads(dsi_span *x, int step)
{
    uint64_t state = 1000u + (uint64_t)step;
    for (int i = 0; i < SPANS; i++)
        for (int64_t j = 0; j < x[i].n; j++) {
            double g = draw(&state);
            put(x[i].dtype, (void *)(uintptr_t)x[i].g, j, fabs(g) < 0.1 ? 0 : g);
        }
}

static void free_spans(dsi_span *x)
{
    for (int i = 0; i < SPANS; i++)
        free(x[i].p), free((void *)(uintptr_t)x[i].g), free(x[i].m), free(x[i].v), free(x[i].vmax);
}

/* ---- tests -------------------------------------------------------------------------------------------- */

/* 16-bit parameters are compared after one step from the same bits: later steps
 * add their roundings. */
static void check_case(const Case *c, const dsi_kernels *k, ds_dtype dtype, double tol)
{
    dsi_span x[SPANS], y[SPANS];
    Element *want[SPANS];
    make_spans(dtype, x, 3), make_spans(dtype, y, 3);
    for (int i = 0; i < SPANS; i++) {
        want[i] = calloc((size_t)sizes[i], sizeof *want[i]);
        for (int64_t j = 0; j < sizes[i]; j++) want[i][j].p = get(dtype, x[i].p, j);
    }
    for (int t = 1; t <= steps(); t++) {
        draw_grads(x, t), draw_grads(y, t);
        for (int i = 0; i < SPANS; i++) x[i].step = y[i].step = t;
        CHECK(kernel(c, k, x) == DS_OK);
        ds_set_threads(3);
        CHECK(kernel(c, k, y) == DS_OK);
        ds_set_threads(1);
        for (int i = 0; i < SPANS; i++) {
            for (int64_t j = 0; j < sizes[i]; j++) rule(c, &want[i][j], get(dtype, x[i].g, j), t);
            if (c->kind == LAMB) lamb_finish(&c->lamb, want[i], sizes[i], t);
            CHECK(!memcmp(x[i].p, y[i].p, (size_t)sizes[i] * ds_dtype_size(dtype)));
            for (int64_t j = 0; j < sizes[i]; j++) {
                CHECK_CLOSE(get(dtype, x[i].p, j), want[i][j].p, tol);
                if (dtype > DS_F64) want[i][j].p = get(dtype, x[i].p, j);
            }
        }
    }
    for (int i = 0; i < SPANS; i++) free(want[i]);
    free_spans(x), free_spans(y);
}

static void check_dtype(ds_dtype dtype, double tol)
{
    FOR_EACH_ISA(k)
    {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            check_case(&cases[i], k, dtype, tol);
    }
}

static void float32(void **state) { (void)state, check_dtype(DS_F32, 3e-6); }
static void float64(void **state) { (void)state, check_dtype(DS_F64, 1e-13); }
static void bfloat16(void **state) { (void)state, check_dtype(DS_BF16, 1.0 / 128); }
static void float16(void **state) { (void)state, check_dtype(DS_F16, 1.0 / 1024); }

/* dsi_untie of n masters, as beside a bfloat16 copy. */
static void untie(void *p, int64_t n)
{
    for (uint32_t *x = p; x < (uint32_t *)p + n; x++) *x = dsi_untie(*x);
}

/* A master with 16-bit gradients 8 times too large, and with a 16-bit copy,
 * beside float32 gradients. */
static void check_master(const Case *c, const dsi_kernels *k, ds_dtype half)
{
    dsi_span x[SPANS], y[SPANS];
    make_spans(DS_F32, x, 3), make_spans(DS_F32, y, 3);
    void *g[SPANS];
    for (int i = 0; i < SPANS; i++) {
        size_t bytes = (size_t)sizes[i] * sizeof(uint16_t);
        free((void *)(uintptr_t)x[i].g);
        x[i].g = g[i] = calloc(1, bytes), x[i].g_dtype = half, x[i].g_scale = 0.125;
        x[i].low = calloc(1, bytes), x[i].low_dtype = half;
    }
    for (int t = 1; t <= steps(); t++) {
        draw_grads(y, t);
        for (int i = 0; i < SPANS; i++) {
            float *f = (float *)(uintptr_t)y[i].g;
            x[i].step = y[i].step = t;
            for (int64_t j = 0; j < sizes[i]; j++) {
                put(half, g[i], j, 8 * (double)f[j]);
                f[j] = (float)get(half, g[i], j) / 8;
            }
        }
        CHECK(kernel(c, k, x) == DS_OK && kernel(c, k, y) == DS_OK);
        for (int i = 0; i < SPANS; i++) {
            const float *p = x[i].p;
            if (half == DS_BF16) untie(y[i].p, sizes[i]);
            CHECK(!memcmp(p, y[i].p, (size_t)sizes[i] * sizeof *p));
            for (int64_t j = 0; j < sizes[i]; j++) {
                uint16_t low;
                put(half, &low, 0, (double)p[j]);
                CHECK_INT(((const uint16_t *)x[i].low)[j], low);
            }
        }
    }
    for (int i = 0; i < SPANS; i++) free(x[i].low);
    free_spans(x), free_spans(y);
}

static void masters(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            check_master(&cases[i], k, DS_F16);
            check_master(&cases[i], k, DS_BF16);
        }
    }
}

/* Copies that are stored past the caches: at any address, and nothing beside
 * them. */
static void large_copies(void **state)
{
    (void)state;
    enum { ROOM = 64 };
    static const int64_t many[SPANS] = {3, ((int64_t)1 << 24) + 1, 33, 2005};
    const dsi_kernels *k = dsi_device_current()->kernels;
    dsi_span x[SPANS];
    uint16_t *low[SPANS];
    for (int i = 0; i < SPANS; i++) {
        int64_t n = many[i];
        float *p = calloc((size_t)n, sizeof *p);
        uint16_t *g = calloc((size_t)n, sizeof *g);
        low[i] = calloc((size_t)n + ROOM, sizeof *g);
        for (int64_t j = 0; j < n; j++) p[j] = (float)(j % 1021), g[j] = (uint16_t)(0x3f80 + j % 8);
        x[i] = (dsi_span){.dtype = DS_F32, .p = p, .g = g, .n = n, .g_dtype = DS_BF16};
        x[i].step = 1, x[i].g_scale = 1, x[i].low = low[i] + 1 + 2 * i, x[i].low_dtype = DS_BF16;
    }
    ds_set_threads(2);
    CHECK_INT(kernel(&cases[0], k, x), DS_OK);
    ds_set_threads(1);
    for (int i = 0; i < SPANS; i++) {
        int64_t first = 1 + 2 * i, wrong = 0;
        for (int64_t j = 0; j < many[i] + ROOM; j++) {
            bool inside = j >= first && j < first + many[i];
            float p = inside ? ((const float *)x[i].p)[j - first] : 0;
            wrong += low[i][j] != (inside ? dsi_f32_to_bf16(p) : 0);
        }
        CHECK_INT(wrong, 0);
        free(low[i]), free(x[i].p), free((void *)(uintptr_t)x[i].g);
    }
}

/* Updates of parts, as a rank of several makes them: the same bits, wherever a
 * parameter was cut. LAMB cannot be cut. */
static void check_parts(const Case *c, const dsi_kernels *k, ds_dtype g_dtype)
{
    static const int64_t cuts[SPANS + 1] = {0, 3, 1030, 9001, 20000};
    dsi_span x[SPANS], whole[SPANS], part[SPANS];
    make_spans(DS_F32, x, 3), make_spans(DS_F32, whole, 3);
    uint16_t *g = calloc((size_t)sizes[SPANS - 1], sizeof *g);
    for (int t = 1; t <= steps(); t++) {
        draw_grads(x, t), draw_grads(whole, t);
        dsi_span *a = &x[SPANS - 1], *b = &whole[SPANS - 1], plain = *a;
        for (int64_t j = 0; j < a->n; j++) put(DS_BF16, g, j, get(DS_F32, a->g, j));
        a->step = b->step = t;
        a->g_dtype = b->g_dtype = g_dtype;
        a->g_scale = b->g_scale = 0.3;
        const void *of_a = a->g, *of_b = b->g;
        if (g_dtype == DS_BF16) a->g = b->g = g;
        for (int i = 0; i < SPANS; i++) {
            size_t from = (size_t)cuts[i];
            part[i] = *a, part[i].n = cuts[i + 1] - cuts[i];
            part[i].g = (const char *)a->g + from * ds_dtype_size(g_dtype);
            part[i].p = (float *)a->p + from, part[i].m = (float *)a->m + from;
            part[i].v = (float *)a->v + from, part[i].vmax = (float *)a->vmax + from;
        }
        for (int i = 0; i < SPANS - 1; i++) whole[i].step = t;
        CHECK(kernel(c, k, part) == DS_OK && kernel(c, k, whole) == DS_OK);
        a->g = of_a, b->g = of_b, a->g_dtype = b->g_dtype = plain.g_dtype;
        CHECK(!memcmp(a->p, b->p, (size_t)a->n * sizeof(float)));
    }
    free(g);
    free_spans(x), free_spans(whole);
}

static void parts_are_the_whole(void **state)
{
    (void)state;
    FOR_EACH_ISA(k)
    {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (cases[i].kind == LAMB) continue;
            check_parts(&cases[i], k, DS_F32);
            check_parts(&cases[i], k, DS_BF16);
        }
    }
}

static void threads_change_nothing(void **state)
{
    (void)state;
    const dsi_kernels *k = dsi_device_current()->kernels;
    sizes = large;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsi_span x[SPANS], y[SPANS];
        make_spans(DS_F32, x, 3), make_spans(DS_F32, y, 3);
        for (int t = 1; t <= 3; t++) {
            draw_grads(x, t), draw_grads(y, t);
            for (int j = 0; j < SPANS; j++) x[j].step = y[j].step = t;
            CHECK(kernel(&cases[i], k, x) == DS_OK);
            ds_set_threads(1 + t); /* 2, 3, 4 */
            CHECK(kernel(&cases[i], k, y) == DS_OK);
            ds_set_threads(1);
        }
        for (int j = 0; j < SPANS; j++)
            CHECK(!memcmp(x[j].p, y[j].p, (size_t)sizes[j] * sizeof(float)));
        free_spans(x), free_spans(y);
    }
    sizes = small;
}

/* The momentum of SGD and RMSprop, beta1 of others; NULL: the rule has none. */
static double *momentum_of(dsi_optimizer *c)
{
    switch (c->rule) {
    case DSI_SGD:
        return &c->sgd.momentum;
    case DSI_RMSPROP:
        return &c->rmsprop.momentum;
    case DSI_ADAM:
        return &c->adam.beta1;
    case DSI_LION:
        return &c->lion.beta1;
    case DSI_LAMB:
        return &c->lamb.beta1;
    default:
        return NULL;
    }
}

/* Scalars that change from step to step have the same effect from memory as by
 * value: bit for bit. */
static void scalars_in_memory(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_current();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dsi_step_scalars now = {0};
        const double factor = 0.125, skip = 1;
        dsi_optimizer by_value = options_of(&cases[i]), recorded = by_value;
        double lr = by_value.sgd.lr; /* the first field of all rules */
        double *momentum = momentum_of(&by_value), first = momentum ? *momentum : 0;
        dsi_span x[SPANS], y[SPANS];
        make_spans(DS_F32, x, 3), make_spans(DS_F32, y, 3);
        recorded.scalars = &now;
        recorded.g_factor = &factor;
        recorded.sgd.lr = NAN;
        for (int j = 0; j < SPANS; j++) y[j].step = 1; /* as at the recording */
        for (int t = 1; t <= 3; t++) {
            draw_grads(x, t), draw_grads(y, t);
            by_value.sgd.lr = now.lr = lr / t;
            if (momentum) *momentum = now.momentum = first / t;
            now.steps = t - 1;
            for (int j = 0; j < SPANS; j++) x[j].step = t, x[j].g_scale = 0.125;
            CHECK_INT(d->kernels->optimizer(&d->stream, &by_value, SPANS, x), DS_OK);
            CHECK_INT(d->kernels->optimizer(&d->stream, &recorded, SPANS, y), DS_OK);
        }
        recorded.skip = &skip;
        CHECK_INT(d->kernels->optimizer(&d->stream, &recorded, SPANS, y), DS_OK);
        for (int j = 0; j < SPANS; j++)
            CHECK(!memcmp(x[j].p, y[j].p, (size_t)sizes[j] * sizeof(float)));
        free_spans(x), free_spans(y);
    }
}

/* The same numbers as the engine computes on the host. */
static void decides_what_a_step_does(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_current();
    const struct {
        double unscale;
        float loss;
        double norm, max_norm, factor;
        bool skip;
    } rows[] = {{0.5, 3, 4, 1, 0.5 * (1 / (2 + 1e-6)), false}, /* norm 2 is clipped to 1 */
                {0.5, 3, 1, 1, 0.5, false},
                {0.25, 3, 1e30, 0, 0.25, false},
                {1, NAN, 1, 1, 1 / (1 + 1e-6), true},
                {1, 1, INFINITY, 0, 1, true},
                {1, 1, NAN, 1, NAN, true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double unscale = rows[i].unscale, norm = rows[i].norm;
        float loss = rows[i].loss;
        dsi_step_result r;
        dsi_step_limits c = {.max_norm = rows[i].max_norm};
        dsi_view u = {.p = &unscale, .dtype = DS_F64}, l = {.p = &loss, .dtype = DS_F32},
                 n = {.p = &norm, .dtype = DS_F64},
                 out = {.p = &r, .dtype = DS_F64, .n = 1, .d = {5}, .s = {1}};
        for (int strict = 0; strict < 2; strict++) {
            c.finite_loss = c.finite_norm = strict;
            CHECK_INT(d->kernels->step_result(&d->stream, &c, u, l, n, out), DS_OK);
            CHECK(r.g_factor == rows[i].factor || isnan(rows[i].factor));
            CHECK(r.fault == 0 && r.skip == (strict && rows[i].skip));
            CHECK(r.norm == unscale * norm || isnan(norm));
        }
        CHECK_INT(d->kernels->step_result(&d->stream, &c, u, (dsi_view){0}, (dsi_view){0}, out),
                  DS_OK);
        CHECK(isnan(r.loss) && isnan(r.norm) && r.skip == 1);
        l.dtype = DS_I64;
        CHECK_INT(d->kernels->step_result(&d->stream, &c, u, l, n, out), DS_EINVAL);
        CHECK_ERROR("step_result: no cpu kernel for int64");
    }
}

static void refuses_dtypes(void **state)
{
    (void)state;
    dsi_device *d = dsi_device_current();
    int32_t p = 0, g = 0;
    const dsi_optimizer sgd = {.rule = DSI_SGD, .sgd.lr = 1},
                        lamb = {.rule = DSI_LAMB, .lamb.lr = 1};
    dsi_span x = {.dtype = DS_I32, .p = &p, .g = &g, .n = 1, .step = 1, .g_dtype = DS_I32};
    CHECK(d->kernels->optimizer(&d->stream, &sgd, 1, &x) == DS_EINVAL);
    CHECK_ERROR("sgd: no cpu kernel for int32");
    CHECK(d->kernels->optimizer(&d->stream, &lamb, 1, &x) == DS_EINVAL);
    CHECK_ERROR("lamb: no cpu kernel for int32");
    x.dtype = DS_F64;
    CHECK(d->kernels->optimizer(&d->stream, &sgd, 1, &x) == DS_EINVAL);
    CHECK_ERROR("sgd: no cpu kernel for float64 with a gradient of int32");
    x.g_dtype = DS_F64, x.low = &g, x.low_dtype = DS_F16;
    CHECK(d->kernels->optimizer(&d->stream, &lamb, 1, &x) == DS_EINVAL);
    CHECK_ERROR("lamb: no cpu kernel for float64 with a copy of float16");
}

TEST_MAIN(cmocka_unit_test(float32), cmocka_unit_test(float64), cmocka_unit_test(bfloat16),
          cmocka_unit_test(float16), cmocka_unit_test(masters), cmocka_unit_test(large_copies),
          cmocka_unit_test(parts_are_the_whole), cmocka_unit_test(threads_change_nothing),
          cmocka_unit_test(scalars_in_memory), cmocka_unit_test(decides_what_a_step_does),
          cmocka_unit_test(refuses_dtypes))
