/* ops/ctc.c: connectionist temporal classification. Graves, Fernandez, Gomez
 * and Schmidhuber, ICML 2006.
 *
 * A target of S labels becomes l of L = 2 S + 1: blank, label, blank, ...,
 * blank. With a[0][0..1] = log p[0][l[0..1]], and a[t][s] = log p[t][l[s]] plus
 * the log sum exp of
 *     a[t-1][s], a[t-1][s-1], and a[t-1][s-2] if l[s] is a label other than l[s-2],
 * the loss is -log(e^a[T-1][L-1] + e^a[T-1][L-2]). Made of other ops, a step of
 * time for all samples at once; what cannot be has the logarithm NEVER, which
 * no sum of real ones reaches and whose differences are finite, so that
 * gradients are.
 * SPDX-License-Identifier: MIT */
#include "loss.h"

#include <math.h>

static const double NEVER = -1e30;

typedef struct Ctc {
    int64_t steps, samples, classes, labels; /* labels: of the longest target */
    const int64_t *input, *target;           /* lengths [samples], on the host */
} Ctc;

/* ---- what is given ----------------------------------------------------------------------------------- */

/* given: how many labels there are at most. */
static bool ctc_lengths(const char *op, ds_tensor *input, ds_tensor *target, int64_t given, Ctc *c)
{
    if (dsi_numel(input->shape) != c->samples || dsi_numel(target->shape) != c->samples ||
        input->dtype != DS_I64 || target->dtype != DS_I64)
        return dsi_invalid(
            "%s: input_lengths are %s %s, target_lengths %s %s: expected int64 [%lld]", op,
            ds_dtype_name(input->dtype), dsi_shape_text(input->shape), ds_dtype_name(target->dtype),
            dsi_shape_text(target->shape), (long long)c->samples);
    if (!(c->input = ds_data(input)) || !(c->target = ds_data(target))) return false;
    for (int64_t i = 0; i < c->samples; i++) {
        int64_t steps = c->input[i], labels = c->target[i];
        if (steps < 0 || steps > c->steps || labels < 0 || labels > given)
            return dsi_invalid("%s: sample %lld has an input of %lld and a target of %lld: "
                               "expected 0 to %lld, and 0 to %lld",
                               op, (long long)i, (long long)steps, (long long)labels,
                               (long long)c->steps, (long long)given);
        if (labels > c->labels) c->labels = labels;
    }
    return true;
}

/* int64 [N,L] on the host, the l of each sample, blank behind its end, and
 * where a[s-2] counts, bool [N,L]. False with the message. */
static bool ctc_labels(const char *op, ds_tensor *targets, int64_t blank, Ctc *c, ds_tensor **l,
                       ds_tensor **skips)
{
    int64_t length = 2 * c->labels + 1, total = 0, row, offset = 0;
    for (int64_t i = 0; i < c->samples; i++) total += c->target[i];
    bool padded = targets->shape.n == 2;
    row = padded ? targets->shape.d[1] : 0;
    if (targets->dtype != DS_I64 || targets->shape.n < 1 || targets->shape.n > 2 ||
        (padded ? targets->shape.d[0] != c->samples || row < c->labels
                : targets->shape.d[0] != total))
        return dsi_invalid("%s: targets are %s %s: expected int64 [%lld,%lld], or [%lld]", op,
                           ds_dtype_name(targets->dtype), dsi_shape_text(targets->shape),
                           (long long)c->samples, (long long)c->labels, (long long)total);
    const int64_t *from = ds_data(targets);
    ds_dims shape = ds_shape(c->samples, length);
    int64_t *to = ds_data_mut(*l = dsi_new_host(DS_I64, shape));
    bool *skip = ds_data_mut(*skips = dsi_new_host(DS_BOOL, shape));
    if (!to || !skip || (total && !from)) return false;
    for (int64_t i = 0; i < c->samples; offset += padded ? row : c->target[i], i++)
        for (int64_t s = 0; s < length; s++, to++, skip++) {
            bool label = s % 2 && s / 2 < c->target[i];
            *to = label ? from[offset + s / 2] : blank;
            *skip = label && s > 1 && to[0] != to[-2];
            if (label && (*to < 0 || *to >= c->classes || *to == blank))
                return dsi_invalid("%s: label %lld of sample %lld is %lld: expected 0 to %lld, and "
                                   "not the blank %lld",
                                   op, (long long)(s / 2), (long long)i, (long long)*to,
                                   (long long)(c->classes - 1), (long long)blank);
        }
    return true;
}

/* ---- the sum over alignments -------------------------------------------------------------------------- */

/* x, on the host, on the device of `like` */
static ds_tensor *beside(ds_tensor *x, const ds_tensor *like)
{
    return x && like ? dsi_beside(x, like, x->dtype) : NULL;
}

/* bool [N,1]: the samples whose input has a step t */
static ds_tensor *samples_with(const Ctc *c, int64_t t, const ds_tensor *like)
{
    ds_tensor *in = dsi_new_host(DS_BOOL, ds_shape(c->samples, 1));
    bool *at = ds_data_mut(in);
    for (int64_t i = 0; at && i < c->samples; i++) at[i] = t < c->input[i];
    return at ? beside(in, like) : NULL;
}

static bool all_have(const Ctc *c, int64_t t)
{
    for (int64_t i = 0; i < c->samples; i++)
        if (t >= c->input[i]) return false;
    return true;
}

/* a of t from that of t - 1 [N,L]; p [N,L] */
static ds_tensor *ctc_step(ds_tensor *a, ds_tensor *p, ds_tensor *skips)
{
    if (!a) return NULL;
    int64_t length = a->shape.d[1];
    ds_tensor *wide = ds_pad_with(a, ds_shape(2, 0), (ds_pad_opts){.value = NEVER});
    ds_tensor *before = ds_slice(wide, 1, 1, length + 1), *two = ds_slice(wide, 1, 0, length);
    two = two ? ds_where(skips, two, dsi_number_beside(two, NEVER)) : NULL;
    ds_tensor *from = ds_stack((ds_tensor *[]){a, before, two}, 3, 0);
    return ds_add(p, ds_logsumexp(from, (ds_reduce_opts){.dims = ds_shape(0)}));
}

/* int64 [N,2]: the last blank and the last label of each l; without labels the
 * blank
 * twice. */
static ds_tensor *last_places(const Ctc *c, const ds_tensor *like)
{
    ds_tensor *places = dsi_new_host(DS_I64, ds_shape(c->samples, 2));
    int64_t *at = ds_data_mut(places);
    for (int64_t i = 0; at && i < c->samples; i++)
        *at++ = 2 * c->target[i], *at++ = c->target[i] ? 2 * c->target[i] - 1 : 0;
    return at ? beside(places, like) : NULL;
}

/* [1,L]: 0 in the first n places, else NEVER */
static ds_tensor *first_places(int64_t length, int64_t n, const ds_tensor *like)
{
    ds_tensor *places = dsi_fill(dsi_new_host(like->dtype, ds_shape(1, length)), NEVER);
    if (!places || !dsi_fill(ds_slice(places, 1, 0, n < length ? n : length), 0)) return NULL;
    return beside(places, like);
}

/* a of the last step of each sample, [N,L]. log_p is [T,N,C]. */
static ds_tensor *ctc_sums(const Ctc *c, ds_tensor *log_p, ds_tensor *l, ds_tensor *skips)
{
    int64_t length = l->shape.d[1];
    ds_dims all = ds_shape(c->steps, c->samples, length);
    ds_tensor *p = ds_gather(log_p, 2, ds_expand(ds_unsqueeze(beside(l, log_p), 0), all));
    p = ds_clamp(p, NEVER, INFINITY);
    if (!p || !(skips = beside(skips, p))) return NULL;
    ds_tensor *begin = first_places(length, 2, p); /* blank or the first label */
    /* without any step: the blank in front, which is all of a target without
     * labels */
    ds_tensor *a = ds_expand(first_places(length, 1, p), ds_shape(c->samples, length));
    for (int64_t t = 0; a && t < c->steps; t++) {
        ds_tensor *now = ds_select(p, 0, t);
        ds_tensor *next = t ? ctc_step(a, now, skips) : ds_add(now, begin);
        a = all_have(c, t) || !next ? next : ds_where(samples_with(c, t, next), next, a);
    }
    return a;
}

/* [N]: the losses, infinite (or 0) where there is no alignment */
static ds_tensor *ctc_losses(const Ctc *c, ds_tensor *a, bool zero_infinity)
{
    if (!a) return NULL;
    ds_tensor *ends = ds_gather(a, 1, last_places(c, a));
    ds_tensor *none = dsi_new_host(DS_BOOL, ds_shape(c->samples, 2)); /* no labels: one end */
    bool *at = ds_data_mut(none);
    for (int64_t i = 0; at && i < c->samples; i++) *at++ = false, *at++ = !c->target[i];
    ends = at && ends ? ds_masked_fill(ends, beside(none, ends), NEVER) : NULL;
    ds_tensor *loss = ds_neg(ds_logsumexp(ends, (ds_reduce_opts){.dims = ds_shape(1)}));
    if (!loss) return NULL;
    ds_tensor *dead = ds_gt(loss, dsi_number_beside(loss, -NEVER / 10));
    return ds_masked_fill(loss, dead, zero_infinity ? 0 : INFINITY);
}

/* losses / max(target length, 1) */
static ds_tensor *by_length(const Ctc *c, ds_tensor *losses)
{
    if (!losses) return NULL;
    ds_tensor *lengths = dsi_new_host(DS_F64, ds_shape(c->samples));
    double *at = ds_data_mut(lengths);
    for (int64_t i = 0; at && i < c->samples; i++)
        at[i] = c->target[i] > 1 ? (double)c->target[i] : 1;
    if (!at) return NULL;
    return ds_div(losses, dsi_beside(lengths, losses, losses->dtype));
}

ds_tensor *ds_ctc_loss(ds_tensor *log_probs, ds_tensor *targets, ds_tensor *input_lengths,
                       ds_tensor *target_lengths, ds_ctc_loss_opts o)
{
    const char *op = "ctc_loss";
    ds_tensor *l, *skips;
    if (!dsi_live_all(op, log_probs, targets, input_lengths, target_lengths))
        return dsi_null_operand(op);
    if (!dsi_want_float(op, log_probs)) return NULL;
    ds_dtype dtype = log_probs->dtype;
    bool one = log_probs->shape.n == 2;
    if (one) log_probs = ds_unsqueeze(log_probs, 1);
    if (!log_probs) return NULL;
    const int64_t *s = log_probs->shape.d;
    Ctc c = {.steps = s[0], .samples = s[1], .classes = s[2]};
    if (log_probs->shape.n != 3 || !c.samples || o.blank < 0 || o.blank >= c.classes)
        return dsi_refuse("%s: log_probs are %s, blank is %lld: expected [T,N,C] or [T,C] with "
                          "samples, and a class",
                          op, dsi_shape_text(log_probs->shape), (long long)o.blank);
    if ((unsigned)o.reduction > DS_NONE)
        return dsi_refuse("%s: there is no reduction number %d", op, (int)o.reduction);
    if (!ctc_lengths(op, input_lengths, target_lengths, dsi_numel(targets->shape), &c) ||
        !ctc_labels(op, targets, o.blank, &c, &l, &skips))
        return NULL;
    ds_tensor *losses = ctc_losses(&c, ctc_sums(&c, dsi_upcast(log_probs), l, skips),
                                   o.zero_infinity);
    if (o.reduction == DS_MEAN) losses = by_length(&c, losses);
    if (losses && one) losses = ds_squeeze(losses, 0);
    return dsi_loss_reduced(losses, o.reduction, dtype);
}
