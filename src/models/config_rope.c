/* models/config_rope.c: reads the rotary positions of a config.json:
 * rope_parameters (transformers 5), or rope_theta and rope_scaling (4). Values
 * are those of modeling_rope_utils.py.
 *
 * Invariants: functions whose object is `inner` have the reader at it;
 * read_object points the reader there and back.
 * SPDX-License-Identifier: MIT */
#include "config_reader.h"

#include <math.h>
#include <string.h>

/* The context that the model was first trained on: transformers prefers the
 * outer object's key, which Phi-3's class always has, and takes the model's own
 * context if there is none. Gemma 3's objects are two, so the outer is none. */
static void read_original_positions(dsi_lm_reader *r, const dsi_lm_config *c, dsi_rope *rope,
                                    const json_t *outer)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t *inner = r->json;
    int64_t n = c->family == DSI_PHI3 ? 4096 : dsi_lm_read_int(r, key, 1, 1 << 30, c->positions);
    r->json = outer;
    rope->original_positions = c->ropes == 2 ? n : dsi_lm_read_int(r, key, 1, 1 << 30, n);
    r->json = inner;
}

static void read_llama3(dsi_lm_reader *r, dsi_rope *rope)
{
    rope->low_freq = dsi_lm_read_number(r, "low_freq_factor", 1e-6, 1e6, 1);
    rope->high_freq = dsi_lm_read_number(r, "high_freq_factor", 1e-6, 1e6, 4);
    if (rope->high_freq <= rope->low_freq)
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "rope: high_freq_factor is %g: expected more than low_freq_factor, %g",
                         rope->high_freq, rope->low_freq);
}

/* Peng et al., arXiv:2309.00071, with the keys of transformers. The pair that
 * makes n turns in the original context has the index of turns_pair. */
static double turns_pair(const dsi_rope *rope, double n)
{
    double context = (double)rope->original_positions, turn = 2 * 3.14159265358979323846;
    return (double)rope->dim * log(context / (n * turn)) / (2 * log(rope->theta));
}

/* A number above 0; absent or 0: `otherwise`. */
static double read_positive(dsi_lm_reader *r, const char *key, double otherwise)
{
    double x = dsi_lm_read_number(r, key, 0, 1e6, otherwise);
    return x > 0 ? x : otherwise;
}

/* cos and sin grow with the logarithm of factor, unless the file says by how
 * much. */
static void read_yarn(dsi_lm_reader *r, dsi_rope *rope)
{
    double fast = read_positive(r, "beta_fast", 32), slow = read_positive(r, "beta_slow", 1);
    double grow = 0.1 * log(rope->factor), own = read_positive(r, "mscale", 0);
    double all = read_positive(r, "mscale_all_dim", 0);
    bool whole = dsi_lm_read_bool(r, "truncate", true);
    rope->magnitude = own > 0 && all > 0 ? (1 + grow * own) / (1 + grow * all) : 1 + grow;
    rope->magnitude = dsi_lm_read_number(r, "attention_factor", 0, 1e6, rope->magnitude);
    if (rope->theta <= 1 || fast < slow)
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "rope: rope_theta is %g, beta_fast %g, beta_slow %g: expected a theta "
                         "above 1, and no larger beta_slow than beta_fast",
                         rope->theta, fast, slow);
    double low = turns_pair(rope, fast), high = turns_pair(rope, slow);
    double most = (double)rope->dim - 1;
    if (whole) low = floor(low), high = ceil(high);
    rope->low_pair = low > 0 ? low : 0, rope->high_pair = high < most ? high : most;
}

/* A factor of each pair: a list of positive numbers. */
static void read_pair_factors(dsi_lm_reader *r, const dsi_rope *rope, const char *key, float *to)
{
    const json_t *list = dsi_lm_read_get(r, key);
    size_t pairs = (size_t)rope->dim / 2, n = json_array_size(list);
    if (n != pairs || n > DSI_ROPE_FACTORS) {
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "rope: %s has %zu numbers: expected %zu, one for each pair%s", key, n,
                         pairs, n > DSI_ROPE_FACTORS ? ", and at most 256" : "");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        double x = json_number_value(json_array_get(list, i));
        if (!(x >= 1e-6 && x <= 1e6))
            dsi_lm_read_fail(r, DS_EFORMAT, "rope: %s: number %zu is %g: expected 1e-06 to 1e+06",
                             key, i, x);
        to[i] = (float)x;
    }
}

/* Ding et al., arXiv:2402.13753: short rows and long ones have factors of their
 * own, and cos and sin grow with the logarithm of the context. */
static void read_longrope(dsi_lm_reader *r, dsi_rope *rope)
{
    double original = (double)rope->original_positions;
    read_pair_factors(r, rope, "short_factor", rope->pair_factor[0]);
    read_pair_factors(r, rope, "long_factor", rope->pair_factor[1]);
    if (rope->factor > 1 && rope->original_positions < 2)
        dsi_lm_read_fail(r, DS_EFORMAT,
                         "original_max_position_embeddings is 1: expected 2 or more");
    rope->magnitude = rope->factor > 1 ? sqrt(1 + log(rope->factor) / log(original)) : 1;
    rope->magnitude = dsi_lm_read_number(r, "attention_factor", 0, 1e6, rope->magnitude);
}

/* ---- the type ---- */

static const char *const types[] = {
    [DSI_ROPE_DEFAULT] = "default", [DSI_ROPE_LINEAR] = "linear", [DSI_ROPE_DYNAMIC] = "dynamic",
    [DSI_ROPE_LLAMA3] = "llama3",   [DSI_ROPE_YARN] = "yarn",     [DSI_ROPE_LONGROPE] = "longrope"};

/* Phi-3's class has longrope alone, and takes "su" and "yarn" for older names
 * of it. dynamic makes tables of its own in generation, of one object only. */
static dsi_rope_type read_type(dsi_lm_reader *r, const dsi_lm_config *c)
{
    bool phi = c->family == DSI_PHI3;
    const char *type = dsi_lm_read_text(r, "rope_type", dsi_lm_read_text(r, "type", "default"));
    const char *name = phi && (!strcmp(type, "su") || !strcmp(type, "yarn")) ? "longrope" : type;
    int i = DSI_ROPE_DEFAULT;
    while (i <= DSI_ROPE_LONGROPE && strcmp(types[i], name) != 0) i++;
    bool lacks = phi                     ? i != DSI_ROPE_DEFAULT && i != DSI_ROPE_LONGROPE
                 : i == DSI_ROPE_DYNAMIC ? c->ropes == 2
                                         : i > DSI_ROPE_LONGROPE;
    if (!lacks) return (dsi_rope_type)i;
    dsi_lm_read_fail(r, DS_EINVAL, "rope_type \"%.40s\" is not implemented: expected default%s",
                     type,
                     phi             ? " or longrope"
                     : c->ropes == 2 ? ", linear, llama3, yarn or longrope"
                                     : ", linear, dynamic, llama3, yarn or longrope");
    return DSI_ROPE_DEFAULT;
}

/* The scaling of the inner object. */
static void read_scaling(dsi_lm_reader *r, const dsi_lm_config *c, dsi_rope *rope,
                         const json_t *outer)
{
    rope->type = read_type(r, c);
    if (rope->type == DSI_ROPE_DEFAULT) return;
    read_original_positions(r, c, rope, outer);
    bool longrope = rope->type == DSI_ROPE_LONGROPE;
    bool ratio = longrope || (rope->type == DSI_ROPE_YARN && r->status == DS_OK);
    rope->factor = dsi_lm_read_number(
        r, "factor", longrope ? 1e-6 : 1, 1e6,
        ratio ? (double)c->positions / (double)rope->original_positions : -1);
    if (rope->factor < 1 && !longrope) dsi_lm_read_fail(r, DS_EFORMAT, "rope: factor is missing");
    if (rope->type == DSI_ROPE_DYNAMIC) rope->original_positions = c->positions;
    if (rope->type == DSI_ROPE_DYNAMIC && rope->dim < 4)
        dsi_lm_read_fail(r, DS_EINVAL, "rope_type \"dynamic\": head_dim is 2: expected 4 or more");
    if (rope->type == DSI_ROPE_LLAMA3) read_llama3(r, rope);
    if (rope->type == DSI_ROPE_YARN && r->status == DS_OK) read_yarn(r, rope);
    if (longrope) read_longrope(r, rope);
}

/* Of an object, or NULL. theta and the part of a head that turns are those of
 * the object, else of the outer one. */
static void read_object(dsi_lm_reader *r, const dsi_lm_config *c, dsi_rope *rope,
                        const json_t *object, double theta)
{
    const json_t *outer = r->json;
    bool neox = c->family == DSI_GPT_NEOX;
    double part = dsi_lm_read_number(r, neox ? "rotary_pct" : "partial_rotary_factor", 0, 1,
                                     neox ? 0.25 : 1);
    rope->theta = theta, rope->magnitude = 1, rope->dim = c->head_dim;
    if (object && !json_is_object(object)) {
        dsi_lm_read_fail(r, DS_EFORMAT, "rope_parameters is no object");
        return;
    }
    if (object) r->json = object;
    rope->theta = object ? dsi_lm_read_number(r, "rope_theta", 1, 1e15, theta) : theta;
    part = dsi_lm_read_number(r, "partial_rotary_factor", 0, 1, part);
    if (part != 1 && c->family != DSI_PHI3 && !neox)
        dsi_lm_read_fail(r, DS_EINVAL, "partial_rotary_factor is not 1: it is not implemented");
    rope->dim = (int64_t)((double)c->head_dim * part);
    if (rope->dim < 2 || rope->dim % 2)
        dsi_lm_read_fail(r, DS_EINVAL,
                         "partial_rotary_factor is %g: %lld elements of a head turn: expected an "
                         "even number",
                         part, (long long)rope->dim);
    if (object && r->status == DS_OK) read_scaling(r, c, rope, outer);
    r->json = outer;
}

/* Gemma 3 and OLMo 3: an object for each kind of layer, or the keys of version
 * 4, of which rope_scaling is that of full attention. Its "type" does not count
 * beside the class's "rope_type". */
static void read_pair(dsi_lm_reader *r, dsi_lm_config *c, double theta)
{
    const json_t *both = dsi_lm_read_get(r, "rope_parameters");
    const json_t *scaling = dsi_lm_read_get(r, "rope_scaling");
    json_t *full = json_object_get(both, "full_attention");
    const json_t *sliding = json_object_get(both, "sliding_attention");
    full = json_is_object(full) ? json_copy(full) : json_pack("{s:s}", "rope_type", "default");
    json_object_update(full, (json_t *)scaling);
    theta = dsi_lm_read_number(r, "rope_theta", 1, 1e15, theta);
    read_object(r, c, &c->rope[0], full, theta);
    if (c->family == DSI_GEMMA3)
        theta = dsi_lm_read_number(r, "rope_local_base_freq", 1, 1e15, 1e4);
    read_object(r, c, &c->rope[1], json_is_null(sliding) ? NULL : sliding, theta);
    json_decref(full);
}

void dsi_lm_read_rope(dsi_lm_reader *r, dsi_lm_config *c, double theta)
{
    if (c->ropes == 2) {
        read_pair(r, c, theta);
        return;
    }
    const json_t *object = dsi_lm_read_get(r, "rope_scaling");
    if (!object || (json_is_object(object) && !json_object_size(object)))
        object = dsi_lm_read_get(r, "rope_parameters");
    const char *key = c->family == DSI_GPT_NEOX ? "rotary_emb_base" : "rope_theta";
    read_object(r, c, &c->rope[0], object, dsi_lm_read_number(r, key, 1, 1e15, theta));
}
