/* tools/lm/config.c: the configuration of a training by ds_lm: the user's file
 * with each "auto" filled, as transformers' Trainer does, or a whole one.
 * SPDX-License-Identifier: MIT */
#include "models/config.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "config/reader.h"
#include "lm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rotary positions have no end. */
ds_status lm_read_model(LmOptions *o)
{
    dsi_text path = dsi_text_of("%s%s", o->model, dsi_is_folder(o->model) ? "/config.json" : "");
    size_t n;
    char *text = dsi_file_read_regular(path.s, &n);
    dsi_lm_config *c = dsi_alloc(sizeof *c);
    json_t *j = NULL;
    ds_status status = text ? dsi_lm_config_read(text, n, path.s, c, &j) : ds_error_status();
    const json_t *end = json_object_get(j, "eos_token_id");
    if (json_is_array(end)) end = json_array_get(end, 0);
    o->end_token = json_is_integer(end) ? json_integer_value(end) : -1;
    o->hidden = c->hidden;
    int64_t most = status == DS_OK && !c->ropes ? c->positions : INT64_MAX;
    if (o->context > most)
        status = dsi_fail(DS_EINVAL, "--context %lld: the model has %lld positions",
                          (long long)o->context, (long long)most);
    if (!o->context) o->context = most < 256 ? most : 256;
    json_decref(j);
    dsi_free(c), dsi_free(text);
    dsi_text_free(&path);
    return status;
}

static const char ours[] =
    "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
    "\"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\", "
    "\"steps_per_print\": 1000000000, \"bf16\": {\"enabled\": \"auto\"}, "
    "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}, "
    "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": [0.9, 0.95], "
    "\"eps\": 1e-8, \"weight_decay\": \"auto\"}}, \"scheduler\": {\"type\": \"WarmupCosineLR\", "
    "\"params\": {\"total_num_steps\": \"auto\", \"warmup_num_steps\": \"auto\", "
    "\"cos_min_ratio\": 0.1, \"warmup_type\": \"linear\"}}}";

static json_t *config_read(const char *path)
{
    json_error_t error;
    if (!path) return json_loads(ours, 0, &error);
    size_t n;
    char *text = dsi_file_read(path, &n);
    if (!text) return NULL;
    dsi_syntax s = {0};
    dsi_text wrong = {0};
    json_t *j = dsi_config_parse(&s, text, n, &wrong);
    if (!j) dsi_fail(DS_EFORMAT, "config: %s: %s", path, wrong.s);
    dsi_syntax_free(&s);
    dsi_text_free(&wrong);
    dsi_free(text);
    return j;
}

/* ---- "auto" ---- */

/* The configuration of `file`, while options fill it. */
typedef struct Filling {
    json_t *j;
    const char *file;
    ds_status status;
} Filling;

/* The object at `key`; a new one where there is none, if `make`. */
static json_t *object_at(json_t *of, const char *key, bool make)
{
    if (key && make && !json_object_get(of, key)) json_object_set_new(of, key, json_object());
    return key ? json_object_get(of, key) : of;
}

static bool same_value(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

static void refuse_two_values(Filling *f, const char *path, const json_t *now, const char *option,
                              const json_t *value)
{
    char *a = json_dumps(now, JSON_ENCODE_ANY), *b = json_dumps(value, JSON_ENCODE_ANY);
    if (f->status == DS_OK)
        f->status = dsi_fail(DS_EINVAL,
                             "config: %s: %s is %s, and %s is %s: leave the option out, or write "
                             "\"auto\" in the file",
                             f->file, path, a, option, b);
    free(a), free(b);
}

/* Replaces "auto" at group.inner.key. `option`: its name, if it was given; then
 * a key that the file has not is set too, and another value there is refused,
 * as by the Trainer. */
static void fill(Filling *f, const char *group, const char *inner, const char *key,
                 const char *option, json_t *value)
{
    json_t *at = object_at(object_at(f->j, group, option), inner, option);
    const json_t *now = json_object_get(at, key);
    const char *text = json_string_value(now);
    dsi_text path = dsi_text_of("%s%s%s%s%s", group ? group : "", group ? "." : "",
                                inner ? inner : "", inner ? "." : "", key);
    if ((text && !strcmp(text, "auto")) || (!now && option))
        json_object_set(at, key, value);
    else if (now && option && !same_value(now, value))
        refuse_two_values(f, path.s, now, option, value);
    dsi_text_free(&path);
    json_decref(value);
}

/* Batch sizes: of the file, of the options, or the defaults. */
static void plan_batches(LmPlan *p, const json_t *j)
{
    const LmOptions *o = p->o;
    int64_t micro = json_integer_value(json_object_get(j, "train_micro_batch_size_per_gpu"));
    int64_t accum = json_integer_value(json_object_get(j, "gradient_accumulation_steps"));
    int64_t all = json_integer_value(json_object_get(j, "train_batch_size"));
    p->batch = micro ? micro : o->batch ? o->batch : 8;
    p->grad_accum = accum ? accum : o->grad_accum ? o->grad_accum : 1;
    if (all && !accum && !o->grad_accum && all / (p->batch * p->ranks) > 0)
        p->grad_accum = all / (p->batch * p->ranks);
    int64_t each = p->batch * p->grad_accum * p->ranks;
    int64_t of_epochs = (p->windows / each > 0 ? p->windows / each : 1) *
                        (o->epochs ? o->epochs : 1);
    p->steps = o->max_steps ? o->max_steps : of_epochs;
    p->warmup = o->warmup >= 0 ? o->warmup : p->steps / 20;
    if (p->warmup < 2) p->warmup = 2; /* the least that DeepSpeed's schedules take */
}

/* Without an optimizer or a schedule in the file it has those of ds_lm, as with
 * the Trainer, which makes its own. */
static void fill_missing(json_t *j)
{
    static const char *const keys[] = {"optimizer", "scheduler"};
    json_t *own = json_loads(ours, 0, NULL);
    for (int i = 0; i < 2; i++)
        if (!json_object_get(j, keys[i]))
            json_object_set(j, keys[i], json_object_get(own, keys[i]));
    json_decref(own);
}

static void fill_schedule(Filling *f, const LmPlan *p)
{
    const LmOptions *o = p->o;
    const json_t *schedule = json_object_get(f->j, "scheduler"),
                 *params = json_object_get(schedule, "params"),
                 *warmup = json_object_get(params, "warmup_num_steps");
    const char *type = json_string_value(json_object_get(schedule, "type")), *lr = NULL;
    bool given = o->warmup >= 0;
    if (json_is_number(warmup) && json_number_value(warmup) == (double)o->warmup) given = false;
    if ((given || o->given_lr) && type && strncmp(type, "Warmup", 6) != 0 && f->status == DS_OK)
        f->status = dsi_fail(DS_EINVAL,
                             "config: %s: %s has no effect with the schedule %s: leave it out",
                             f->file, given ? "--warmup" : "--lr", type);
    if (o->given_lr && type && strcmp(type, "WarmupCosineLR") != 0) lr = "--lr";
    fill(f, "scheduler", "params", "warmup_min_lr", NULL, json_real(0));
    fill(f, "scheduler", "params", "warmup_max_lr", lr, json_real(o->lr));
    fill(f, "scheduler", "params", "warmup_num_steps", given ? "--warmup" : NULL,
         json_integer(p->warmup));
    fill(f, "scheduler", "params", "total_num_steps", NULL,
         json_integer(p->steps > p->warmup ? p->steps : p->warmup));
}

static void fill_all(Filling *f, const LmPlan *p)
{
    const LmOptions *o = p->o;
    fill_missing(f->j);
    fill(f, NULL, NULL, "train_batch_size", NULL,
         json_integer(p->batch * p->grad_accum * p->ranks));
    fill(f, NULL, NULL, "train_micro_batch_size_per_gpu", o->batch ? "--batch" : NULL,
         json_integer(o->batch ? o->batch : p->batch));
    fill(f, NULL, NULL, "gradient_accumulation_steps", o->grad_accum ? "--grad-accum" : NULL,
         json_integer(o->grad_accum ? o->grad_accum : p->grad_accum));
    fill(f, NULL, NULL, "gradient_clipping", o->given_clip ? "--clip" : NULL, json_real(o->clip));
    fill(f, "bf16", NULL, "enabled", o->bf16 ? "--bf16" : NULL, json_boolean(o->bf16));
    fill(f, "fp16", NULL, "enabled", NULL, json_false());
    fill(f, "optimizer", "params", "lr", o->given_lr ? "--lr" : NULL, json_real(o->lr));
    fill(f, "optimizer", "params", "weight_decay", o->given_weight_decay ? "--weight-decay" : NULL,
         json_real(o->weight_decay));
    fill(f, "optimizer", "params", "betas", NULL, json_pack("[f, f]", 0.9, 0.999));
    fill(f, "optimizer", "params", "eps", NULL, json_real(1e-8));
    fill_schedule(f, p);
    int64_t h = o->hidden;
    fill(f, "zero_optimization", NULL, "reduce_bucket_size", NULL, json_integer(h * h));
    fill(f, "zero_optimization", NULL, "stage3_prefetch_bucket_size", NULL,
         json_integer(h * h * 9 / 10));
    fill(f, "zero_optimization", NULL, "stage3_param_persistence_threshold", NULL,
         json_integer(10 * h));
}

char *lm_config(LmPlan *p)
{
    const LmOptions *o = p->o;
    json_t *j = config_read(o->config);
    if (!j) return NULL;
    Filling f = {j, o->config ? o->config : "", DS_OK};
    plan_batches(p, j);
    fill_all(&f, p);
    if (o->tensorboard)
        json_object_set_new(j, "tensorboard",
                            json_pack("{s:b, s:s, s:s}", "enabled", 1, "output_path",
                                      o->tensorboard, "job_name", "ds_lm"));
    p->stage = (int)json_integer_value(
        json_object_get(json_object_get(j, "zero_optimization"), "stage"));
    p->checkpointing = json_is_object(json_object_get(j, "activation_checkpointing"));
    const json_t *optimizer = json_object_get(j, "optimizer");
    const char *type = json_string_value(json_object_get(optimizer, "type"));
    p->optimizer = type ? strdup(type) : NULL;
    p->params = json_dumps(json_object_get(optimizer, "params"), 0);
    char *text = f.status == DS_OK ? json_dumps(j, 0) : NULL;
    json_decref(j);
    return text;
}
