/* models/config.c: reads config.json of GPT-2, Llama, Qwen2, Mistral, Qwen3.
 *
 * Keys are those of transformers 4 and 5. A key that the Python class of the
 * architecture does not read has no effect there, so it is ignored here; one
 * that it reads is either used, or must have the value under which it has no
 * effect. Numbers are checked for their range before anything is made of them.
 *
 * Invariants: a Reader borrows the JSON object; only dsi_lm_config_read
 * releases it, and only after a failure. read_rope points the reader at an
 * inner object and back. Values that are read after a failure are within their
 * range or unused, so that no reader divides by zero or indexes outside.
 * SPDX-License-Identifier: MIT */
#include "config.h"

#include "base/error.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The first failure sticks; readers do nothing after it. */
typedef struct Reader {
    const char *name;
    const json_t *json;
    ds_status status;
} Reader;

/* Writes "name: text" for the first failure only: later ones follow from it. */
static void reader_fail(Reader *r, ds_status status, const char *format, ...) DS_PRINTF(3, 4);
static void reader_fail(Reader *r, ds_status status, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->status == DS_OK) r->status = dsi_fail(status, "%s: %s", r->name, text);
}

/* The value of a key; NULL if it is absent or null. */
static const json_t *reader_get(const Reader *r, const char *key)
{
    const json_t *value = json_object_get(r->json, key);
    return json_is_null(value) ? NULL : value;
}

/* An integer from low to high; absent: `otherwise`, or a failure if that is
 * outside of the range. */
static int64_t reader_int(Reader *r, const char *key, int64_t low, int64_t high, int64_t otherwise)
{
    const json_t *value = reader_get(r, key);
    if (!value && otherwise >= low && otherwise <= high) return otherwise;
    if (!value)
        reader_fail(r, DS_EFORMAT, "%s is missing", key);
    else if (!json_is_integer(value))
        reader_fail(r, DS_EFORMAT, "%s is no integer", key);
    else if (json_integer_value(value) < low || json_integer_value(value) > high)
        reader_fail(r, DS_EFORMAT, "%s is %lld: expected %lld to %lld", key,
                    (long long)json_integer_value(value), (long long)low, (long long)high);
    else
        return json_integer_value(value);
    return low;
}

/* A number from low to high; absent: `otherwise`, which may be outside of the
 * range and then tells the caller that the key is missing. */
static double reader_number(Reader *r, const char *key, double low, double high, double otherwise)
{
    const json_t *value = reader_get(r, key);
    double x = json_number_value(value);
    if (!value) return otherwise;
    if (json_is_number(value) && x >= low && x <= high) return x;
    if (json_is_number(value))
        reader_fail(r, DS_EFORMAT, "%s is %g: expected %g to %g", key, x, low, high);
    else
        reader_fail(r, DS_EFORMAT, "%s is no number", key);
    return low;
}

static bool reader_bool(Reader *r, const char *key, bool otherwise)
{
    const json_t *value = reader_get(r, key);
    if (value && !json_is_boolean(value))
        reader_fail(r, DS_EFORMAT, "%s is neither true nor false", key);
    return value ? json_is_true(value) : otherwise;
}

static const char *reader_text(Reader *r, const char *key, const char *otherwise)
{
    const json_t *value = reader_get(r, key);
    if (value && !json_is_string(value)) reader_fail(r, DS_EFORMAT, "%s is no text", key);
    return json_is_string(value) ? json_string_value(value) : otherwise;
}

/* ---- keys ---- */

static const struct {
    const char *architecture, *model_type;
} families[] = {
    [DSI_GPT2] = {"GPT2LMHeadModel", "gpt2"},    [DSI_LLAMA] = {"LlamaForCausalLM", "llama"},
    [DSI_QWEN2] = {"Qwen2ForCausalLM", "qwen2"}, [DSI_MISTRAL] = {"MistralForCausalLM", "mistral"},
    [DSI_QWEN3] = {"Qwen3ForCausalLM", "qwen3"},
};
enum { FAMILIES = sizeof families / sizeof *families };

/* "architectures", or "model_type" in a file that has none. */
static void read_family(Reader *r, dsi_lm_config *c)
{
    const char *name = json_string_value(json_array_get(reader_get(r, "architectures"), 0));
    const char *type = reader_text(r, "model_type", "");
    for (int i = 0; i < FAMILIES; i++)
        if (!strcmp(name ? families[i].architecture : families[i].model_type, name ? name : type)) {
            c->family = (dsi_lm_family)i;
            c->architecture = families[i].architecture;
            return;
        }
    reader_fail(r, DS_EINVAL,
                "architecture \"%.60s\" is not implemented: expected GPT2LMHeadModel, "
                "LlamaForCausalLM, Qwen2ForCausalLM, MistralForCausalLM or Qwen3ForCausalLM",
                name ? name : type);
}

/* Keys that change the result in a way that is not implemented. */
static void refuse_keys(Reader *r)
{
    static const char *const off[] = {"add_cross_attention", "is_encoder_decoder"};
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (reader_bool(r, off[i], false))
            reader_fail(r, DS_EINVAL, "%s is true: it is not implemented", off[i]);
    if (reader_get(r, "quantization_config"))
        reader_fail(r, DS_EINVAL, "quantization_config: quantised weights are not implemented");
    if (json_object_size(reader_get(r, "pruned_heads")))
        reader_fail(r, DS_EINVAL, "pruned_heads: pruned heads are not implemented");
    if (reader_number(r, "partial_rotary_factor", 0, 1, 1) != 1)
        reader_fail(r, DS_EINVAL, "partial_rotary_factor is not 1: it is not implemented");
}

/* Names are those of transformers' ACT2FN. gelu_new, gelu_fast and
 * gelu_pytorch_tanh are one formula there, written in three ways. */
static void read_activation(Reader *r, dsi_lm_config *c, const char *key, const char *otherwise)
{
    static const struct {
        const char *name;
        dsi_lm_activation activation;
    } names[] = {{"silu", DSI_LM_SILU},
                 {"swish", DSI_LM_SILU},
                 {"gelu", DSI_LM_GELU},
                 {"gelu_new", DSI_LM_GELU_TANH},
                 {"gelu_fast", DSI_LM_GELU_TANH},
                 {"gelu_pytorch_tanh", DSI_LM_GELU_TANH},
                 {"relu", DSI_LM_RELU}};
    const char *name = reader_text(r, key, otherwise);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) {
            c->activation = names[i].activation;
            return;
        }
    reader_fail(r, DS_EINVAL, "%s \"%.40s\" is not implemented", key, name);
}

/* Defaults are those of GPT2Config; -1 marks a size without a default here,
 * whose absence is a failure. GPT-2 has as many heads of keys as of queries. */
static void read_gpt2(Reader *r, dsi_lm_config *c)
{
    c->hidden = reader_int(r, "n_embd", 1, 1 << 20, -1);
    c->layers = reader_int(r, "n_layer", 1, DSI_LM_MAX_LAYERS, -1);
    c->heads = c->kv_heads = reader_int(r, "n_head", 1, 1 << 16, -1);
    c->positions = reader_int(r, "n_positions", 1, 1 << 30, 1024);
    c->inner = reader_int(r, "n_inner", 1, 1 << 24, 4 * c->hidden);
    c->eps = reader_number(r, "layer_norm_epsilon", 0, 1, 1e-5);
    c->embedding_dropout = reader_number(r, "embd_pdrop", 0, 1, 0.1);
    c->attention_dropout = reader_number(r, "attn_pdrop", 0, 1, 0.1);
    c->residual_dropout = reader_number(r, "resid_pdrop", 0, 1, 0.1);
    c->no_scale = !reader_bool(r, "scale_attn_weights", true);
    c->scale_by_layer = reader_bool(r, "scale_attn_by_inverse_layer_idx", false);
    c->tied = reader_bool(r, "tie_word_embeddings", true);
    read_activation(r, c, "activation_function", "gelu_new");
    if (r->status == DS_OK && c->hidden % c->heads)
        reader_fail(r, DS_EFORMAT, "n_embd is %lld: expected a multiple of n_head, %lld",
                    (long long)c->hidden, (long long)c->heads);
    c->head_dim = c->hidden / c->heads;
}

/* The context that the model was first trained on: transformers prefers the
 * outer object's key, and takes the model's own context if there is none. */
static void read_original_positions(Reader *r, dsi_lm_config *c, const json_t *outer)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t *inner = r->json;
    c->original_positions = reader_int(r, key, 1, 1 << 30, c->positions);
    r->json = outer;
    c->original_positions = reader_int(r, key, 1, 1 << 30, c->original_positions);
    r->json = inner;
}

static void read_llama3(Reader *r, dsi_lm_config *c)
{
    c->low_freq = reader_number(r, "low_freq_factor", 1e-6, 1e6, 1);
    c->high_freq = reader_number(r, "high_freq_factor", 1e-6, 1e6, 4);
    if (c->high_freq <= c->low_freq)
        reader_fail(r, DS_EFORMAT,
                    "rope: high_freq_factor is %g: expected more than low_freq_factor, %g",
                    c->high_freq, c->low_freq);
}

/* Peng et al., arXiv:2309.00071, with the keys of transformers. The pair that
 * makes n turns in the original context has the index of turns_pair. */
static double turns_pair(const dsi_lm_config *c, double n)
{
    double context = (double)c->original_positions, turn = 2 * 3.14159265358979323846;
    return (double)c->head_dim * log(context / (n * turn)) / (2 * log(c->theta));
}

/* A number above 0; absent or 0: `otherwise`. */
static double reader_positive(Reader *r, const char *key, double otherwise)
{
    double x = reader_number(r, key, 0, 1e6, otherwise);
    return x > 0 ? x : otherwise;
}

/* cos and sin grow with the logarithm of factor, unless the file says by how
 * much. */
static void read_yarn(Reader *r, dsi_lm_config *c)
{
    double fast = reader_positive(r, "beta_fast", 32), slow = reader_positive(r, "beta_slow", 1);
    double grow = 0.1 * log(c->factor), own = reader_positive(r, "mscale", 0);
    double all = reader_positive(r, "mscale_all_dim", 0);
    bool whole = reader_bool(r, "truncate", true);
    c->rope_magnitude = own > 0 && all > 0 ? (1 + grow * own) / (1 + grow * all) : 1 + grow;
    c->rope_magnitude = reader_number(r, "attention_factor", 0, 1e6, c->rope_magnitude);
    if (c->theta <= 1 || fast < slow)
        reader_fail(r, DS_EFORMAT,
                    "rope: rope_theta is %g, beta_fast %g, beta_slow %g: expected a theta "
                    "above 1, and no larger beta_slow than beta_fast",
                    c->theta, fast, slow);
    double low = turns_pair(c, fast), high = turns_pair(c, slow), most = (double)c->head_dim - 1;
    if (whole) low = floor(low), high = ceil(high);
    c->low_pair = low > 0 ? low : 0, c->high_pair = high < most ? high : most;
}

/* The scaling of the inner object. Other types (dynamic, longrope) compute
 * other values for each length. */
static void read_rope_type(Reader *r, dsi_lm_config *c, const json_t *outer)
{
    static const char *const types[] = {[DSI_ROPE_DEFAULT] = "default",
                                        [DSI_ROPE_LINEAR] = "linear",
                                        [DSI_ROPE_LLAMA3] = "llama3",
                                        [DSI_ROPE_YARN] = "yarn"};
    const char *type = reader_text(r, "rope_type", reader_text(r, "type", "default"));
    int i = DSI_ROPE_DEFAULT;
    while (i <= DSI_ROPE_YARN && strcmp(types[i], type) != 0) i++;
    if (i > DSI_ROPE_YARN) {
        reader_fail(r, DS_EINVAL,
                    "rope_type \"%.40s\" is not implemented: expected default, linear, llama3 "
                    "or yarn",
                    type);
        return;
    }
    c->rope = (dsi_rope)i;
    if (c->rope == DSI_ROPE_DEFAULT) return;
    read_original_positions(r, c, outer);
    bool ratio = c->rope == DSI_ROPE_YARN && r->status == DS_OK;
    c->factor = reader_number(r, "factor", 1, 1e6,
                              ratio ? (double)c->positions / (double)c->original_positions : -1);
    if (c->factor < 1) reader_fail(r, DS_EFORMAT, "rope: factor is missing");
    if (c->rope == DSI_ROPE_LLAMA3) read_llama3(r, c);
    if (c->rope == DSI_ROPE_YARN && r->status == DS_OK) read_yarn(r, c);
}

/* rope_parameters (transformers 5), or rope_theta and rope_scaling (4). theta
 * of the inner object has precedence. */
static void read_rope(Reader *r, dsi_lm_config *c)
{
    const json_t *own = reader_get(r, "rope_parameters"), *outer = r->json;
    if (!own) own = reader_get(r, "rope_scaling");
    c->theta = reader_number(r, "rope_theta", 1, 1e15, 10000);
    c->rope_magnitude = 1;
    if (!own) return;
    if (!json_is_object(own)) {
        reader_fail(r, DS_EFORMAT, "rope_parameters is no object");
        return;
    }
    r->json = own;
    c->theta = reader_number(r, "rope_theta", 1, 1e15, c->theta);
    read_rope_type(r, c, outer);
    if (reader_number(r, "partial_rotary_factor", 0, 1, 1) != 1)
        reader_fail(r, DS_EINVAL, "partial_rotary_factor is not 1: it is not implemented");
    r->json = outer;
}

/* Which layers see a window of keys only; none if sliding_window is null, and
 * 4096 keys if it is absent. Mistral: all layers. Qwen: those of layer_types,
 * else those from max_window_layers on, and only with use_sliding_window.
 * Llama: none. */
static void read_window(Reader *r, dsi_lm_config *c)
{
    bool qwen = c->family == DSI_QWEN2 || c->family == DSI_QWEN3;
    const json_t *types = qwen ? reader_get(r, "layer_types") : NULL;
    if (c->family == DSI_LLAMA) return;
    bool used = !qwen || reader_bool(r, "use_sliding_window", false);
    bool null = json_is_null(json_object_get(r->json, "sliding_window"));
    if (used && !null) c->window = reader_int(r, "sliding_window", 1, 1 << 30, 4096);
    if (types && (int64_t)json_array_size(types) != c->layers) {
        reader_fail(r, DS_EFORMAT, "layer_types has %lld entries: expected num_hidden_layers, %lld",
                    (long long)json_array_size(types), (long long)c->layers);
        return;
    }
    int64_t full = qwen ? reader_int(r, "max_window_layers", 0, 1 << 30, 28) : 0;
    for (int64_t i = 0; i < c->layers && c->window; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        c->sliding[i] = types ? type && !strcmp(type, "sliding_attention") : i >= full;
        if (types && (!type || (strcmp(type, "sliding_attention") != 0 &&
                                strcmp(type, "full_attention") != 0)))
            reader_fail(r, DS_EINVAL, "layer_types: \"%.40s\" is not implemented",
                        type ? type : "");
    }
}

/* Keys and defaults of LlamaConfig, Qwen2Config, MistralConfig, Qwen3Config.
 * head_dim is hidden / heads unless the file has it; Qwen3's class has its own
 * default, 128. Which biases exist is a property of the class: Qwen2 always
 * has those of q, k, v, Mistral none. */
static void read_llama(Reader *r, dsi_lm_config *c)
{
    c->hidden = reader_int(r, "hidden_size", 1, 1 << 20, -1);
    c->layers = reader_int(r, "num_hidden_layers", 1, DSI_LM_MAX_LAYERS, -1);
    c->heads = reader_int(r, "num_attention_heads", 1, 1 << 16, -1);
    int64_t class_kv = c->family == DSI_LLAMA ? c->heads : c->family == DSI_MISTRAL ? 8 : 32;
    bool null = json_is_null(json_object_get(r->json, "num_key_value_heads"));
    c->kv_heads = reader_int(r, "num_key_value_heads", 1, 1 << 16, null ? c->heads : class_kv);
    c->inner = reader_int(r, "intermediate_size", 1, 1 << 24, -1);
    c->positions = reader_int(r, "max_position_embeddings", 1, 1 << 30, 2048);
    bool own_size = reader_get(r, "head_dim") || c->family == DSI_QWEN3;
    c->head_dim = reader_int(r, "head_dim", 1, 1 << 16, c->family == DSI_QWEN3 ? 128 : 1);
    if (!own_size && r->status == DS_OK && c->hidden % c->heads)
        reader_fail(r, DS_EFORMAT,
                    "hidden_size is %lld: expected a multiple of num_attention_heads, %lld",
                    (long long)c->hidden, (long long)c->heads);
    if (!own_size && c->heads) c->head_dim = c->hidden / c->heads;
    c->eps = reader_number(r, "rms_norm_eps", 0, 1, 1e-6);
    c->attention_dropout = reader_number(r, "attention_dropout", 0, 1, 0);
    c->tied = reader_bool(r, "tie_word_embeddings", false);
    bool biased = c->family == DSI_LLAMA || c->family == DSI_QWEN3;
    c->qkv_bias = c->o_bias = biased && reader_bool(r, "attention_bias", false);
    if (c->family == DSI_QWEN2) c->qkv_bias = true;
    c->mlp_bias = c->family == DSI_LLAMA && reader_bool(r, "mlp_bias", false);
    c->qk_norm = c->family == DSI_QWEN3;
    read_activation(r, c, "hidden_act", "silu");
    read_rope(r, c);
    read_window(r, c);
    if (r->status == DS_OK && (c->head_dim % 2 || c->heads % c->kv_heads))
        reader_fail(
            r, DS_EFORMAT,
            "head_dim is %lld, num_attention_heads %lld, num_key_value_heads %lld: expected "
            "an even head_dim, and heads that are a multiple of the last",
            (long long)c->head_dim, (long long)c->heads, (long long)c->kv_heads);
}

/* An id, or the first of a list of ids; -1: none. */
static int64_t read_token(Reader *r, const char *key)
{
    const json_t *value = reader_get(r, key);
    if (json_is_array(value)) value = json_array_get(value, 0);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

ds_status dsi_lm_config_read(const char *text, size_t bytes, const char *name, dsi_lm_config *c,
                             json_t **json)
{
    json_error_t error;
    *c = (dsi_lm_config){0};
    *json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!*json) return dsi_fail(DS_EFORMAT, "%s: line %d: %s", name, error.line, error.text);
    Reader r = {.name = name, .json = *json};
    if (!json_is_object(*json)) reader_fail(&r, DS_EFORMAT, "it holds no object");
    if (r.status == DS_OK) read_family(&r, c);
    if (r.status == DS_OK) {
        c->vocab = reader_int(&r, "vocab_size", 1, INT32_MAX, -1);
        c->init_std = reader_number(&r, "initializer_range", 0, 100, 0.02);
        c->bos = read_token(&r, "bos_token_id"), c->eos = read_token(&r, "eos_token_id");
        c->pad = read_token(&r, "pad_token_id");
        refuse_keys(&r);
    }
    if (r.status == DS_OK) (c->family == DSI_GPT2 ? read_gpt2 : read_llama)(&r, c);
    if (r.status == DS_OK) return DS_OK;
    json_decref(*json);
    *json = NULL;
    return r.status;
}
