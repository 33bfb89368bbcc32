/* device/cpu/optim_rules.h: what each optimizer does to elements begin .. end - 1 of one parameter, each
 * read and written once. Included by optim.c for REAL = float, and again for double.
 *
 * Loops have no conditions inside, or only constant ones, so that the compiler makes vectors of them.
 * g is negated to maximize; what multiplies it is exact.
 * SPDX-License-Identifier: MIT */

typedef struct RULE(Elements) {
    REAL *restrict p, *restrict m, *restrict v, *restrict vmax;
    const REAL *restrict g;
    int64_t n;
} RULE(Elements);

static RULE(Elements) RULE(elements)(const dsi_span *x, int64_t begin, int64_t end)
{
    return (RULE(Elements)){.p = (REAL *)x->p + begin,
                            .g = (const REAL *)x->g + begin,
                            .m = x->m ? (REAL *)x->m + begin : NULL,
                            .v = x->v ? (REAL *)x->v + begin : NULL,
                            .vmax = x->vmax ? (REAL *)x->vmax + begin : NULL,
                            .n = end - begin};
}

/* ---- SGD --------------------------------------------------------------------------------------------- */

ALWAYS_INLINE void RULE(sgd_momentum)(const bool nesterov, RULE(Elements) e, REAL lr, REAL decay,
                                      REAL sign, REAL keep, REAL take)
{
    for (int64_t i = 0; i < e.n; i++) {
        REAL g = sign * e.g[i] + decay * e.p[i];
        REAL m = keep * e.m[i] + take * g;
        e.m[i] = m;
        e.p[i] -= lr * (nesterov ? g + keep * m : m);
    }
}

/* The first gradient is the whole momentum: what m held may be anything. */
ALWAYS_INLINE void RULE(sgd_first)(const bool nesterov, RULE(Elements) e, REAL lr, REAL decay,
                                   REAL sign, REAL momentum)
{
    for (int64_t i = 0; i < e.n; i++) {
        REAL g = sign * e.g[i] + decay * e.p[i];
        e.m[i] = g;
        e.p[i] -= lr * (nesterov ? g + momentum * g : g);
    }
}

static void RULE(sgd)(const void *options, const dsi_span *x, int64_t begin, int64_t end)
{
    const dsi_sgd *c = options;
    RULE(Elements) e = RULE(elements)(x, begin, end);
    REAL lr = (REAL)c->lr, decay = (REAL)c->weight_decay, sign = c->maximize ? -1 : 1;
    REAL keep = (REAL)c->momentum, take = (REAL)(1 - c->dampening);
    if (c->momentum == 0)
        for (int64_t i = 0; i < e.n; i++) e.p[i] -= lr * (sign * e.g[i] + decay * e.p[i]);
    else if (x->step == 1 && c->nesterov)
        RULE(sgd_first)(true, e, lr, decay, sign, keep);
    else if (x->step == 1)
        RULE(sgd_first)(false, e, lr, decay, sign, keep);
    else if (c->nesterov)
        RULE(sgd_momentum)(true, e, lr, decay, sign, keep, take);
    else
        RULE(sgd_momentum)(false, e, lr, decay, sign, keep, take);
}

/* ---- Adam, AdamW ------------------------------------------------------------------------------------- */

/* What of a step is the same for all elements. */
typedef struct RULE(AdamStep) {
    REAL b1, b2, a1, a2; /* a = 1 - b */
    REAL rate, root;     /* lr / (1 - b1^t), 1 / sqrt(1 - b2^t) */
    REAL eps, sign;
    REAL decay, shrink; /* added to g, or what p is multiplied by */
} RULE(AdamStep);

ALWAYS_INLINE void RULE(adam_loop)(const bool amsgrad, RULE(Elements) e, RULE(AdamStep) s)
{
    for (int64_t i = 0; i < e.n; i++) {
        REAL g = s.sign * e.g[i] + s.decay * e.p[i];
        REAL m = s.b1 * e.m[i] + s.a1 * g;
        REAL v = s.b2 * e.v[i] + s.a2 * g * g;
        e.m[i] = m;
        e.v[i] = v;
        if (amsgrad) v = e.vmax[i] = e.vmax[i] > v ? e.vmax[i] : v;
        e.p[i] = s.shrink * e.p[i] - s.rate * m / (REAL_SQRT(v) * s.root + s.eps);
    }
}

static void RULE(adam)(const void *options, const dsi_span *x, int64_t begin, int64_t end)
{
    const dsi_adam *c = options;
    double t = (double)x->step;
    double c1 = c->bias_correction ? 1 - pow(c->beta1, t) : 1;
    double c2 = c->bias_correction ? 1 - pow(c->beta2, t) : 1;
    RULE(AdamStep)
    s = {.b1 = (REAL)c->beta1,
         .b2 = (REAL)c->beta2,
         .a1 = (REAL)(1 - c->beta1),
         .a2 = (REAL)(1 - c->beta2),
         .rate = (REAL)(c->lr / c1),
         .root = (REAL)(1 / sqrt(c2)),
         .eps = (REAL)c->eps,
         .sign = c->maximize ? -1 : 1,
         .decay = c->decoupled ? 0 : (REAL)c->weight_decay,
         .shrink = c->decoupled ? (REAL)(1 - c->lr * c->weight_decay) : 1};
    RULE(Elements) e = RULE(elements)(x, begin, end);
    if (c->amsgrad)
        RULE(adam_loop)(true, e, s);
    else
        RULE(adam_loop)(false, e, s);
}

/* ---- Adagrad, RMSprop -------------------------------------------------------------------------------- */

static void RULE(adagrad)(const void *options, const dsi_span *x, int64_t begin, int64_t end)
{
    const dsi_adagrad *c = options;
    RULE(Elements) e = RULE(elements)(x, begin, end);
    REAL lr = (REAL)(c->lr / (1 + (double)(x->step - 1) * c->lr_decay)), eps = (REAL)c->eps;
    REAL decay = (REAL)c->weight_decay, sign = c->maximize ? -1 : 1;
    for (int64_t i = 0; i < e.n; i++) {
        REAL g = sign * e.g[i] + decay * e.p[i];
        REAL v = e.v[i] + g * g;
        e.v[i] = v;
        e.p[i] -= lr * g / (REAL_SQRT(v) + eps);
    }
}

/* m is the momentum, vmax the mean of g. */
ALWAYS_INLINE void RULE(rmsprop_loop)(const bool centered, const bool momentum, RULE(Elements) e,
                                      const dsi_rmsprop *c)
{
    REAL lr = (REAL)c->lr, eps = (REAL)c->eps, decay = (REAL)c->weight_decay;
    REAL keep = (REAL)c->alpha, take = (REAL)(1 - c->alpha), sign = c->maximize ? -1 : 1;
    REAL mu = (REAL)c->momentum;
    for (int64_t i = 0; i < e.n; i++) {
        REAL g = sign * e.g[i] + decay * e.p[i];
        REAL v = keep * e.v[i] + take * g * g;
        e.v[i] = v;
        if (centered) {
            REAL mean = keep * e.vmax[i] + take * g;
            e.vmax[i] = mean;
            v -= mean * mean;
        }
        REAL u = g / (REAL_SQRT(v) + eps);
        if (momentum) u = e.m[i] = mu * e.m[i] + u;
        e.p[i] -= lr * u;
    }
}

static void RULE(rmsprop)(const void *options, const dsi_span *x, int64_t begin, int64_t end)
{
    const dsi_rmsprop *c = options;
    RULE(Elements) e = RULE(elements)(x, begin, end);
    if (c->centered && c->momentum != 0)
        RULE(rmsprop_loop)(true, true, e, c);
    else if (c->centered)
        RULE(rmsprop_loop)(true, false, e, c);
    else if (c->momentum != 0)
        RULE(rmsprop_loop)(false, true, e, c);
    else
        RULE(rmsprop_loop)(false, false, e, c);
}

/* ---- Lion ---------------------------------------------------------------------------------------------- */

static void RULE(lion)(const void *options, const dsi_span *x, int64_t begin, int64_t end)
{
    const dsi_lion *c = options;
    RULE(Elements) e = RULE(elements)(x, begin, end);
    REAL b1 = (REAL)c->beta1, a1 = (REAL)(1 - c->beta1);
    REAL b2 = (REAL)c->beta2, a2 = (REAL)(1 - c->beta2);
    REAL lr = (REAL)c->lr, shrink = (REAL)(1 - c->lr * c->weight_decay);
    for (int64_t i = 0; i < e.n; i++) {
        REAL step = REAL_COPYSIGN(lr, b1 * e.m[i] + a1 * e.g[i]);
        e.m[i] = b2 * e.m[i] + a2 * e.g[i];
        e.p[i] = shrink * e.p[i] - step;
    }
}

/* ---- LAMB ---------------------------------------------------------------------------------------------- */

/* Its two halves: moments, with the sums of p^2 and u^2; then the step, with the trust ratio known. */
ALWAYS_INLINE REAL RULE(lamb_u)(const RULE(AdamStep) * s, REAL p, REAL m, REAL v)
{
    return s->rate * m / (REAL_SQRT(v) * s->root + s->eps) + s->decay * p;
}

static RULE(AdamStep) RULE(lamb_step)(const dsi_lamb *c, int64_t step)
{
    double c1 = c->bias_correction ? 1 - pow(c->beta1, (double)step) : 1;
    double c2 = c->bias_correction ? 1 - pow(c->beta2, (double)step) : 1;
    return (RULE(AdamStep)){.b1 = (REAL)c->beta1,
                            .b2 = (REAL)c->beta2,
                            .a1 = (REAL)(1 - c->beta1),
                            .a2 = (REAL)(1 - c->beta2),
                            .rate = (REAL)(1 / c1),
                            .root = (REAL)(1 / sqrt(c2)),
                            .eps = (REAL)c->eps,
                            .decay = (REAL)c->weight_decay};
}

static void RULE(lamb_moments)(const void *options, const dsi_span *x, int64_t begin, int64_t end,
                               double *sums)
{
    RULE(AdamStep) s = RULE(lamb_step)(options, x->step);
    RULE(Elements) e = RULE(elements)(x, begin, end);
    double p2[8] = {0}, u2[8] = {0}; /* eight sums at once: a vector */
    for (int64_t i = 0; i < e.n; i++) {
        REAL g = e.g[i], p = e.p[i];
        REAL m = s.b1 * e.m[i] + s.a1 * g, v = s.b2 * e.v[i] + s.a2 * g * g;
        e.m[i] = m;
        e.v[i] = v;
        REAL u = RULE(lamb_u)(&s, p, m, v);
        p2[i % 8] += (double)p * (double)p;
        u2[i % 8] += (double)u * (double)u;
    }
    for (int i = 0; i < 8; i++) sums[0] += p2[i], sums[1] += u2[i];
}

static void RULE(lamb_apply)(const void *options, const dsi_span *x, int64_t begin, int64_t end,
                             double rate)
{
    RULE(AdamStep) s = RULE(lamb_step)(options, x->step);
    RULE(Elements) e = RULE(elements)(x, begin, end);
    for (int64_t i = 0; i < e.n; i++) {
        REAL p = e.p[i];
        e.p[i] = p - (REAL)rate * RULE(lamb_u)(&s, p, e.m[i], e.v[i]);
    }
}
