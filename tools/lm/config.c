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

static json_t *config_at(json_t *j, const char *group, const char *inner)
{
    json_t *value = group ? json_object_get(j, group) : j;
    return inner ? json_object_get(value, inner) : value;
}

/* Replaces "auto" at group.inner.key. */
static void fill(json_t *j, const char *group, const char *inner, const char *key, json_t *value)
{
    json_t *at = config_at(j, group, inner);
    const char *now = json_string_value(json_object_get(at, key));
    if (now && !strcmp(now, "auto"))
        json_object_set_new(at, key, value);
    else
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

char *lm_config(LmPlan *p)
{
    const LmOptions *o = p->o;
    json_t *j = config_read(o->config);
    if (!j) return NULL;
    plan_batches(p, j);
    fill(j, NULL, NULL, "train_batch_size", json_integer(p->batch * p->grad_accum * p->ranks));
    fill(j, NULL, NULL, "train_micro_batch_size_per_gpu", json_integer(p->batch));
    fill(j, NULL, NULL, "gradient_accumulation_steps", json_integer(p->grad_accum));
    fill(j, NULL, NULL, "gradient_clipping", json_real(o->clip));
    fill(j, "bf16", NULL, "enabled", json_boolean(o->bf16));
    fill(j, "fp16", NULL, "enabled", json_false());
    fill(j, "optimizer", "params", "lr", json_real(o->lr));
    fill(j, "optimizer", "params", "weight_decay", json_real(o->weight_decay));
    fill(j, "optimizer", "params", "betas", json_pack("[f, f]", 0.9, 0.999));
    fill(j, "optimizer", "params", "eps", json_real(1e-8));
    fill(j, "scheduler", "params", "warmup_min_lr", json_real(0));
    fill(j, "scheduler", "params", "warmup_max_lr", json_real(o->lr));
    fill(j, "scheduler", "params", "warmup_num_steps", json_integer(p->warmup));
    fill(j, "scheduler", "params", "total_num_steps",
         json_integer(p->steps > p->warmup ? p->steps : p->warmup));
    int64_t h = o->hidden;
    fill(j, "zero_optimization", NULL, "reduce_bucket_size", json_integer(h * h));
    fill(j, "zero_optimization", NULL, "stage3_prefetch_bucket_size", json_integer(h * h * 9 / 10));
    fill(j, "zero_optimization", NULL, "stage3_param_persistence_threshold", json_integer(10 * h));
    if (o->tensorboard)
        json_object_set_new(j, "tensorboard",
                            json_pack("{s:b, s:s, s:s}", "enabled", 1, "output_path",
                                      o->tensorboard, "job_name", "ds_lm"));
    p->stage = (int)json_integer_value(
        config_at(json_object_get(j, "zero_optimization"), NULL, "stage"));
    p->checkpointing = json_is_object(json_object_get(j, "activation_checkpointing"));
    const json_t *optimizer = json_object_get(j, "optimizer");
    const char *type = json_string_value(json_object_get(optimizer, "type"));
    p->optimizer = type ? strdup(type) : NULL;
    p->params = json_dumps(json_object_get(optimizer, "params"), 0);
    char *text = json_dumps(j, 0);
    json_decref(j);
    return text;
}
