/* config/auto.c: values in place of "auto".
 *
 * Trainers around DeepSpeed replace "auto" before DeepSpeed sees the file. The
 * keys, the arguments that fill them and the defaults are those of
 * transformers' Trainer (transformers/integrations/deepspeed.py,
 * HfTrainerDeepSpeedConfig.trainer_config_process and _finalize).
 *
 * Invariants: only keys that the file has are filled, and the micro batch.
 * The tree is changed before
 * it is resolved, so that values from here pass the same checks as the user's.
 *
 * Which values are taken: an option of the program that is 0 counts as not
 * given, and then the Trainer's default fills the key, if it has one; without
 * either the key stays "auto", which the table may have a meaning for
 * (dsi_config_key_auto). A number that the program does mean to be 0 is
 * DS_ZERO.
 * SPDX-License-Identifier: MIT */
#include "reader.h"

#include "base/error.h"
#include "base/option.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- the values ---------------------------------------------------------------------------------- */

typedef enum auto_type { AUTO_INT, AUTO_REAL, AUTO_BOOL } auto_type;

typedef struct auto_field {
    const char *name;
    auto_type type;
    size_t at;            /* in ds_auto_values */
    double default_value; /* NAN: none */
} auto_field;

#define FIELD(name, type, default_value) \
    { \
#name, type, offsetof(ds_auto_values, name), default_value \
    }
static const auto_field fields[] = {
    FIELD(per_device_train_batch_size, AUTO_INT, NAN), /* its default depends on other keys */
    FIELD(gradient_accumulation_steps, AUTO_INT, NAN),
    FIELD(learning_rate, AUTO_REAL, 5e-5),
    FIELD(adam_beta1, AUTO_REAL, 0.9),
    FIELD(adam_beta2, AUTO_REAL, 0.999),
    FIELD(adam_epsilon, AUTO_REAL, 1e-8),
    FIELD(weight_decay, AUTO_REAL, 0),
    FIELD(max_grad_norm, AUTO_REAL, 1),
    FIELD(warmup_steps, AUTO_INT, 0),
    FIELD(warmup_ratio, AUTO_REAL, 0),
    FIELD(max_steps, AUTO_INT, NAN),
    FIELD(hidden_size, AUTO_INT, NAN),
    FIELD(fp16, AUTO_BOOL, 0),
    FIELD(bf16, AUTO_BOOL, 0),
};
enum { FIELDS = sizeof fields / sizeof *fields, DEFAULT_MICRO_BATCH = 8 };

/* name need not end after n bytes: it may be a part of NAME=VALUE. */
static const auto_field *field_find(const char *name, size_t n)
{
    for (int i = 0; i < FIELDS; i++)
        if (strlen(fields[i].name) == n && !strncmp(fields[i].name, name, n)) return &fields[i];
    return NULL;
}

/* The value of a field, or its default; NAN: neither. given: whether the
 * program gave it. Integers are exact below 2^53. */
static double field_value(const ds_auto_values *v, const char *name, bool *given)
{
    const auto_field *f = field_find(name, strlen(name));
    const char *at = (const char *)v + f->at;
    double x = f->type == AUTO_INT    ? (double)*(const int64_t *)at
               : f->type == AUTO_REAL ? *(const double *)at
                                      : *(const bool *)at;
    *given = x != 0;
    return dsi_option(x, f->default_value);
}

/* text: NAME=VALUE, its name n bytes long. */
static ds_status refuse_name(const char *text, size_t n)
{
    const char *names[FIELDS];
    for (int i = 0; i < FIELDS; i++) names[i] = fields[i].name;
    char name[64] = "";
    if (n < sizeof name) memcpy(name, text, n);
    const char *near = dsi_nearest(name, names, FIELDS);
    return dsi_fail(DS_EINVAL, "auto value \"%.100s\": %s%s%s", text,
                    near ? "did you mean \"" : "there is no such name; ", near ? near : "",
                    near ? "\"?" : "learning_rate is one, deepspeed/config.h has all");
}

/* Numbers of 0 are kept as DS_ZERO, so that they differ from values that were
 * not given. */
ds_status ds_auto_values_set(ds_auto_values *v, const char *text)
{
    size_t n = strcspn(text, "=");
    if (!text[n]) return dsi_fail(DS_EINVAL, "auto value \"%.100s\": expected NAME=VALUE", text);
    const auto_field *f = field_find(text, n);
    if (!f) return refuse_name(text, n);
    const char *value = text + n + 1;
    char *end;
    double x = strtod(value, &end);
    if (f->type == AUTO_BOOL && (!strcmp(value, "true") || !strcmp(value, "false")))
        x = *value == 't', end = (char *)value + strlen(value);
    bool whole = x == trunc(x) && x <= 9007199254740992.0;
    if (end == value || *end || !(x >= 0 && isfinite(x)) || (f->type == AUTO_INT && !whole) ||
        (f->type == AUTO_BOOL && x != 0 && x != 1))
        return dsi_fail(DS_EINVAL, "auto value \"%.100s\": expected %s after %s=", text,
                        f->type == AUTO_INT    ? "a whole number"
                        : f->type == AUTO_REAL ? "a number of at least 0"
                                               : "true or false",
                        f->name);
    char *at = (char *)v + f->at;
    if (f->type == AUTO_INT)
        *(int64_t *)at = (int64_t)x;
    else if (f->type == AUTO_REAL)
        *(double *)at = x == 0 ? DS_ZERO : x;
    else
        *(bool *)at = x != 0;
    return DS_OK;
}

/* ---- the keys that they fill --------------------------------------------------------------------- */

/* How a key's value follows from a field. */
typedef enum auto_form {
    AUTO_PLAIN,
    AUTO_BETAS,      /* [adam_beta1, adam_beta2] */
    AUTO_WARMUP,     /* warmup_steps, else warmup_ratio of max_steps */
    AUTO_NOTHING,    /* 0 */
    AUTO_SQUARE,     /* hidden_size^2 */
    AUTO_NINE_TENTH, /* 0.9 hidden_size^2 */
    AUTO_TEN_TIMES   /* 10 hidden_size */
} auto_form;

typedef struct auto_key {
    const char *path, *field;
    auto_form form;
} auto_key;

/* Each key by each of its names: the tree is still as the user wrote it, and
 * aliases are resolved later. */
static const auto_key filled[] = {
    {"train_micro_batch_size_per_gpu", "per_device_train_batch_size", AUTO_PLAIN},
    {"gradient_accumulation_steps", "gradient_accumulation_steps", AUTO_PLAIN},
    {"gradient_clipping", "max_grad_norm", AUTO_PLAIN},
    {"optimizer.params.lr", "learning_rate", AUTO_PLAIN},
    {"optimizer.params.betas", "adam_beta1", AUTO_BETAS},
    {"optimizer.params.eps", "adam_epsilon", AUTO_PLAIN},
    {"optimizer.params.weight_decay", "weight_decay", AUTO_PLAIN},
    {"scheduler.params.warmup_min_lr", "learning_rate", AUTO_NOTHING},
    {"scheduler.params.warmup_max_lr", "learning_rate", AUTO_PLAIN},
    {"scheduler.params.warmup_num_steps", "warmup_steps", AUTO_WARMUP},
    {"scheduler.params.total_num_steps", "max_steps", AUTO_PLAIN},
    {"fp16.enabled", "fp16", AUTO_PLAIN},
    {"bf16.enabled", "bf16", AUTO_PLAIN},
    {"bfloat16.enabled", "bf16", AUTO_PLAIN},
    {"zero_optimization.reduce_bucket_size", "hidden_size", AUTO_SQUARE},
    {"zero_optimization.stage3_prefetch_bucket_size", "hidden_size", AUTO_NINE_TENTH},
    {"zero_optimization.prefetch_bucket_size", "hidden_size", AUTO_NINE_TENTH},
    {"zero_optimization.stage3_param_persistence_threshold", "hidden_size", AUTO_TEN_TIMES},
    {"zero_optimization.param_persistence_threshold", "hidden_size", AUTO_TEN_TIMES},
};
enum { FILLED = sizeof filled / sizeof *filled };

const char *dsi_config_auto_name(const char *path)
{
    for (int i = 0; i < FILLED; i++)
        if (!strcmp(filled[i].path, path)) return filled[i].field;
    return NULL;
}

/* The steps of warmup; NAN: a share of an unknown number of steps. */
static double warmup_steps(const ds_auto_values *v, bool *given)
{
    bool by_ratio, unused;
    double steps = field_value(v, "warmup_steps", given);
    double ratio = field_value(v, "warmup_ratio", &by_ratio);
    if (by_ratio && !*given) {
        *given = true;
        steps = ceil(ratio * field_value(v, "max_steps", &unused));
    }
    return steps < 1 ? 1 : steps; /* DeepSpeed refuses 0 */
}

/* The value of a key as JSON; NULL if the program did not give what it needs. */
static json_t *key_value(const auto_key *key, const ds_auto_values *v, bool *given)
{
    double x = field_value(v, key->field, given);
    bool is_bool = field_find(key->field, strlen(key->field))->type == AUTO_BOOL, second;
    switch (key->form) {
    case AUTO_BETAS: {
        json_t *betas = json_pack("[f,f]", x, field_value(v, "adam_beta2", &second));
        *given = *given || second;
        return betas;
    }
    case AUTO_WARMUP:
        x = warmup_steps(v, given);
        break;
    case AUTO_NOTHING:
        *given = false;
        return json_integer(0);
    case AUTO_SQUARE:
        x = x * x;
        break;
    case AUTO_NINE_TENTH:
        x = trunc(0.9 * x * x);
        break;
    case AUTO_TEN_TIMES:
        x = 10 * x;
        break;
    default:
        break;
    }
    if (isnan(x)) return NULL;
    if (is_bool) return json_boolean(x != 0);
    return x == trunc(x) ? json_integer((json_int_t)x) : json_real(x); /* as from a file */
}

/* ---- filling ------------------------------------------------------------------------------------- */

/* Numbers by value, lists of numbers by element. */
static bool values_equal(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (!json_is_array(a) || !json_is_array(b)) return json_equal(a, b);
    bool equal = json_array_size(a) == json_array_size(b);
    for (size_t i = 0; equal && i < json_array_size(a); i++)
        equal = values_equal(json_array_get(a, i), json_array_get(b, i));
    return equal;
}

/* The file has a value of its own, and the program gave another one. Sizes of
 * buckets may differ from the Trainer's rule of thumb. */
static void compare_given(dsi_config_reader *r, const auto_key *key, const json_t *file,
                          const json_t *value)
{
    if (key->form >= AUTO_SQUARE || values_equal(file, value)) return;
    char *own = json_dumps(file, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    char *other = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    dsi_config_add_error(
        r, key->path, "%.100s differs from the %s %s of the program: give one of them, or \"auto\"",
        own ? own : "?", key->field, other ? other : "?");
    free(own);
    free(other);
}

/* The Trainer's batch: a micro batch is the program's; or of 8 samples, if a
 * batch key is "auto" and nothing says how large a batch is. */
static void fill_batch(json_t *tree, const ds_auto_values *v)
{
    const char *micro_name = "train_micro_batch_size_per_gpu";
    json_t *train = json_object_get(tree, "train_batch_size");
    json_t *micro = json_object_get(tree, micro_name);
    int64_t own = v->per_device_train_batch_size;
    if (json_is_number(micro)) return;
    if (!own && !json_is_number(train) && (dsi_config_is_auto(train) || dsi_config_is_auto(micro)))
        own = DEFAULT_MICRO_BATCH;
    if (own) json_object_set_new(tree, micro_name, json_integer(own));
}

/* Changes `given` before it is resolved. A value that the file sets itself is
 * compared with the program's: they must not contradict each other. */
void dsi_config_fill_auto(dsi_config_reader *r, const ds_auto_values *values)
{
    json_t *tree = r->c->trees->given;
    r->auto_filled = true;
    for (int i = 0; i < FILLED; i++) {
        bool given;
        json_t *file = dsi_config_tree_get(tree, filled[i].path);
        json_t *value = file ? key_value(&filled[i], values, &given) : NULL;
        if (value && dsi_config_is_auto(file)) {
            dsi_text *keys = &r->c->trees->filled;
            dsi_text_add(keys, "%s%s", keys->n ? ", " : "", filled[i].path);
            dsi_config_tree_set(tree, filled[i].path, json_incref(value));
        } else if (value && given)
            compare_given(r, &filled[i], file, value);
        json_decref(value);
    }
    fill_batch(tree, values);
}
