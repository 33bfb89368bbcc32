/* config/print.c: a configuration as JSON, and as DeepSpeed prints it when an
 * engine starts.
 *
 * DeepSpeed prints every attribute of its Python object, sorted by name; values
 * in Python's form, typed groups in that of pydantic (enabled=False
 * loss_scale=0.0), some as JSON. Tools read these lines, so names and forms are
 * kept; `lines` says which key is behind which attribute.
 *
 * Invariants: values are those of the trees; the struct is not read, except
 * world_size. Lines are in alphabetical order of the attribute. A key that
 * DeepSpeed has and this library ignores is printed with the user's value or
 * its default.
 * SPDX-License-Identifier: MIT */
#include "reader.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define INDENT 4

/* ---- values -------------------------------------------------------------------------------------- */

/* The indent of a level of braces. */
static void text_add_spaces(dsi_text *t, int level) { dsi_text_add(t, "%*s", level * INDENT, ""); }

/* In quotes, with JSON's escapes, for strings; true, false and null as they
 * are. */
static void json_add_string(dsi_text *t, const json_t *value)
{
    char *s = json_dumps(value, JSON_ENCODE_ANY);
    dsi_text_add(t, "%s", s);
    free(s);
}

/* Reals with the fewest digits that give the same double. */
static void json_add_number(dsi_text *t, const json_t *value)
{
    if (json_is_integer(value))
        dsi_text_add(t, "%lld", (long long)json_integer_value(value));
    else
        dsi_text_add_double(t, json_real_value(value));
}

/* JSON with the fewest digits: jansson writes 0.10000000000000001, and people
 * compare these by eye. scientific: numbers above 1000 as 2.000000e+03, commas
 * with a blank behind, lists on one line, which is what DeepSpeed's encoder
 * makes. */
static void json_add(dsi_text *t, const json_t *value, int level, bool scientific)
{
    const char *key;
    json_t *inner;
    size_t i = 0;
    if (json_is_object(value)) {
        const char *comma = scientific ? ", " : ",";
        dsi_text_add(t, "{");
        json_object_foreach((json_t *)value, key, inner)
        {
            json_t *name = json_string(key);
            dsi_text_add(t, "%s\n", i++ ? comma : "");
            text_add_spaces(t, level + 1);
            json_add_string(t, name);
            dsi_text_add(t, ": ");
            json_add(t, inner, level + 1, scientific);
            json_decref(name);
        }
        if (i || scientific) {
            dsi_text_add(t, "\n");
            text_add_spaces(t, level);
        }
        dsi_text_add(t, "}");
    } else if (json_is_array(value)) {
        dsi_text_add(t, "[");
        json_array_foreach(value, i, inner)
        {
            dsi_text_add(t, "%s", i ? ", " : "");
            json_add(t, inner, scientific ? 0 : level, scientific);
        }
        dsi_text_add(t, "]");
    } else if (json_is_number(value)) {
        if (scientific && json_number_value(value) > 1e3)
            dsi_text_add(t, "%e", json_number_value(value));
        else
            json_add_number(t, value);
    } else {
        json_add_string(t, value);
    }
}

static void python_add(dsi_text *t, const json_t *value);

/* Python's choice of quotes: double ones only if the text has single ones
 * and no double ones. */
static void python_add_string(dsi_text *t, const char *s)
{
    char quote = strchr(s, '\'') && !strchr(s, '"') ? '"' : '\'';
    dsi_text_add_bytes(t, &quote, 1);
    for (; *s; s++)
        if (*s == quote || *s == '\\')
            dsi_text_add(t, "\\%c", *s);
        else if (*s == '\n')
            dsi_text_add(t, "\\n");
        else
            dsi_text_add_bytes(t, s, 1);
    dsi_text_add_bytes(t, &quote, 1);
}

/* repr() of a list or a dict. */
static void python_add_items(dsi_text *t, const json_t *value)
{
    const char *key;
    json_t *inner;
    size_t i = 0;
    dsi_text_add(t, json_is_object(value) ? "{" : "[");
    json_array_foreach(value, i, inner)
    {
        dsi_text_add(t, "%s", i ? ", " : "");
        python_add(t, inner);
    }
    i = 0;
    json_object_foreach((json_t *)value, key, inner)
    {
        dsi_text_add(t, "%s", i++ ? ", " : "");
        python_add_string(t, key);
        dsi_text_add(t, ": ");
        python_add(t, inner);
    }
    dsi_text_add(t, json_is_object(value) ? "}" : "]");
}

/* repr(value): True, None, 'text', [0.8, 0.999], {'lr': 0.001} */
static void python_add(dsi_text *t, const json_t *value)
{
    if (json_is_string(value))
        python_add_string(t, json_string_value(value));
    else if (json_is_number(value))
        json_add_number(t, value);
    else if (json_is_boolean(value))
        dsi_text_add(t, json_is_true(value) ? "True" : "False");
    else if (json_is_object(value) || json_is_array(value))
        python_add_items(t, value);
    else
        dsi_text_add(t, "None");
}

/* str() of a pydantic model: enabled=False loss_scale=0.0; an inner model as
 * Class(a=1, b=2) */
static void pydantic_add(dsi_text *t, const json_t *group, const char *between)
{
    static const struct {
        const char *key, *model;
    } models[] = {{"offload_param", "DeepSpeedZeroOffloadParamConfig"},
                  {"offload_optimizer", "DeepSpeedZeroOffloadOptimizerConfig"},
                  {"leaf_module", "DeepSpeedZeroLeafModuleConfig"},
                  {"tensor_parallel", "TPConfig"},
                  {"tensorboard", "TensorBoardConfig"},
                  {"csv_monitor", "CSVConfig"},
                  {"wandb", "WandbConfig"},
                  {"comet", "CometConfig"}};
    const char *key;
    json_t *value;
    int n = 0;
    json_object_foreach((json_t *)group, key, value)
    {
        const char *model = NULL;
        for (size_t i = 0; i < sizeof models / sizeof *models; i++)
            if (json_is_object(value) && !strcmp(key, models[i].key)) model = models[i].model;
        dsi_text_add(t, "%s%s=", n++ ? between : "", key);
        if (model) {
            dsi_text_add(t, "%s(", model);
            pydantic_add(t, value, ", ");
            dsi_text_add(t, ")");
        } else {
            python_add(t, value);
        }
    }
}

/* ---- DeepSpeed's lines --------------------------------------------------------------------------- */

typedef enum form {
    PLAIN, /* str(): strings without quotes */
    MODEL,
    OBJECT, /* as JSON */
    DTYPE,  /* torch.float16 */
    LOWER,  /* optimizers by DeepSpeed's own, lower-case names */
    MONITORS,
    ABOVE_0, /* whether the number is */
    NOT_IGNORE,
    IS_FAIL,
    WORLD,
    RANK
} form;

static const struct {
    const char *name, *path;
    form form;
} lines[] = {
    {"activation_checkpointing_config", "activation_checkpointing", OBJECT},
    {"aio_config", "aio", PLAIN},
    {"autotuning_config", "autotuning", OBJECT},
    {"bfloat16_config", "bf16", MODEL},
    {"buffer_dtype", "data_types.buffer_dtype", PLAIN},
    {"checkpoint_config", "checkpoint", PLAIN},
    {"checkpoint_parallel_write_pipeline", "checkpoint.parallel_write.pipeline_stage", PLAIN},
    {"checkpoint_tag_validation_enabled", "checkpoint.tag_validation", NOT_IGNORE},
    {"checkpoint_tag_validation_fail", "checkpoint.tag_validation", IS_FAIL},
    {"comms_config", "comms_logger", MODEL},
    {"communication_data_type", "communication_data_type", DTYPE},
    {"compile_config", "compile", MODEL},
    {"data_efficiency_config", "data_efficiency", PLAIN},
    {"data_efficiency_enabled", "data_efficiency.enabled", PLAIN},
    {"dataloader_drop_last", "dataloader_drop_last", PLAIN},
    {"datastates_config", "datastates_ckpt", PLAIN},
    {"disable_allgather", "disable_allgather", PLAIN},
    {"disable_python_gc", "disable_python_gc", PLAIN},
    {"dump_state", "dump_state", PLAIN},
    {"expert_parallel_config", "expert_parallel", PLAIN},
    {"float16_config", "fp16", MODEL},
    {"flops_profiler_config", "flops_profiler", OBJECT},
    {"global_rank", "", RANK},
    {"grad_accum_dtype", "data_types.grad_accum_dtype", PLAIN},
    {"gradient_accumulation_steps", "gradient_accumulation_steps", PLAIN},
    {"gradient_allreduce_op", "gradient_allreduce_op", PLAIN},
    {"gradient_clipping", "gradient_clipping", PLAIN},
    {"gradient_predivide_factor", "gradient_predivide_factor", PLAIN},
    {"hybrid_engine", "hybrid_engine", MODEL},
    {"keep_in_fp32_modules", "data_types.keep_in_fp32_modules", PLAIN},
    {"load_universal_checkpoint", "checkpoint.load_universal", PLAIN},
    {"log_level", "log_level", PLAIN},
    {"managed_gradient_accumulation", "managed_gradient_accumulation", PLAIN},
    {"memory_breakdown", "memory_breakdown", PLAIN},
    {"monitor_config", "", MONITORS},
    {"on_nan", "on_nan", PLAIN},
    {"optimizer_legacy_fusion", "optimizer.legacy_fusion", PLAIN},
    {"optimizer_name", "optimizer.type", LOWER},
    {"optimizer_params", "optimizer.params", PLAIN},
    {"param_dtype", "data_types.param_dtype", PLAIN},
    {"pipeline", "pipeline", PLAIN},
    {"prescale_gradients", "prescale_gradients", PLAIN},
    {"scheduler_name", "scheduler.type", PLAIN},
    {"scheduler_params", "scheduler.params", PLAIN},
    {"seq_parallel_communication_data_type", "seq_parallel_communication_data_type", DTYPE},
    {"steps_per_print", "steps_per_print", PLAIN},
    {"tensor_parallel_config", "tensor_parallel", MODEL},
    {"timers_config", "timers.throughput", MODEL},
    {"torch_autocast_dtype", "torch_autocast.dtype", DTYPE},
    {"torch_autocast_enabled", "torch_autocast.enabled", PLAIN},
    {"torch_autocast_lower_precision_safe_modules", "torch_autocast.lower_precision_safe_modules",
     PLAIN},
    {"train_batch_size", "train_batch_size", PLAIN},
    {"train_micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu", PLAIN},
    {"use_data_before_expert_parallel_", "use_data_before_expert_parallelism", PLAIN},
    {"use_node_local_storage", "checkpoint.use_node_local_storage", PLAIN},
    {"wall_clock_breakdown", "wall_clock_breakdown", PLAIN},
    {"weight_quantization_config", "weight_quantization", PLAIN},
    {"world_size", "", WORLD},
    {"zero_allow_untested_optimizer", "zero_allow_untested_optimizer", PLAIN},
    {"zero_config", "zero_optimization", MODEL},
    {"zero_enabled", "zero_optimization.stage", ABOVE_0},
    {"zero_force_ds_cpu_optimizer", "zero_force_ds_cpu_optimizer", PLAIN},
    {"zero_optimization_stage", "zero_optimization.stage", PLAIN},
};

/* str() of a Python bool. */
static const char *line_bool(bool x) { return x ? "True" : "False"; }

/* DeepSpeed prints the torch dtype of a name in the configuration. */
static void line_add_dtype(dsi_text *t, const json_t *value)
{
    static const char *const names[][2] = {{"fp32", "float32"},
                                           {"float", "float32"},
                                           {"fp16", "float16"},
                                           {"half", "float16"},
                                           {"bf16", "bfloat16"}};
    const char *s = json_string_value(value);
    for (size_t i = 0; s && i < sizeof names / sizeof *names; i++)
        if (!strcmp(s, names[i][0])) s = names[i][1];
    dsi_text_add(t, "%s%s", s ? "torch." : "", s ? s : "None");
}

/* DeepSpeed lowers the names that it knows itself; others are torch's classes. */
static void line_add_optimizer(dsi_text *t, const char *type)
{
    static const char *const own[] = {"adam", "adamw", "adagrad", "lamb", "lion"};
    for (size_t i = 0; type && i < sizeof own / sizeof *own; i++)
        if (!strcasecmp(type, own[i])) type = own[i];
    dsi_text_add(t, "%s", type ? type : "None");
}

/* One attribute there, four groups in the file. */
static void line_add_monitors(dsi_text *t, const json_t *tree)
{
    static const char *const groups[] = {"tensorboard", "comet", "wandb", "csv_monitor"};
    json_t *all = json_object();
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        json_object_set(all, groups[i], json_object_get(tree, groups[i]));
    pydantic_add(t, all, " ");
    json_decref(all);
}

/* One attribute's value in its form. */
static void line_add_value(dsi_text *t, const dsi_config *c, const json_t *value, form f)
{
    const char *s = json_string_value(value);
    switch (f) {
    case MODEL:
        pydantic_add(t, value, " ");
        break;
    case OBJECT:
        json_add(t, value, 0, true);
        break;
    case DTYPE:
        line_add_dtype(t, value);
        break;
    case LOWER:
        line_add_optimizer(t, s);
        break;
    case MONITORS:
        line_add_monitors(t, c->trees->resolved);
        break;
    case ABOVE_0:
        dsi_text_add(t, "%s", line_bool(json_integer_value(value) > 0));
        break;
    case NOT_IGNORE:
        dsi_text_add(t, "%s", line_bool(strcmp(s, "IGNORE") != 0));
        break;
    case IS_FAIL:
        dsi_text_add(t, "%s", line_bool(!strcmp(s, "FAIL")));
        break;
    case RANK:
        dsi_text_add(t, "0");
        break; /* others print nothing */
    case WORLD:
        dsi_text_add(t, "%d", c->world_size);
        break;
    default:
        if (s)
            dsi_text_add(t, "%s", s);
        else
            python_add(t, value);
    }
}

/* Warnings on rank 0, then with DS_LOG=info a line for each attribute, in
 * DeepSpeed's order and form, and the user's JSON. */
void dsi_config_print(const dsi_config *c)
{
    enum { COLUMN = 29 };
    const struct dsi_config_trees *trees = c->trees;
    if (dsi_log_on(DSI_REQUESTED)) /* that is on rank 0: the others would say the same */
        for (int i = 0; i < trees->warnings.n; i++)
            dsi_log(DSI_WARNING, "%s", trees->warnings.at[i]);
    if (!dsi_log_on(DSI_INFO)) return;
    dsi_log(DSI_INFO, "DeepSpeedEngine configuration:");
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        dsi_text value = {0};
        const json_t *given = dsi_config_tree_get(trees->given, lines[i].path);
        const json_t *v = dsi_config_tree_get(trees->resolved, lines[i].path);
        if (json_is_real(v) && given) v = given; /* an untyped 1.0 of the user is 1 there */
        int n = (int)strlen(lines[i].name), dots = n < COLUMN ? COLUMN - n : 0;
        line_add_value(&value, c, v, lines[i].form);
        dsi_log(DSI_INFO, "  %s %.*s %s", lines[i].name, dots, ".............................",
                value.s ? value.s : "");
        dsi_text_free(&value);
    }
    dsi_text json = {0};
    json_add(&json, trees->given, 0, true);
    dsi_log(DSI_INFO, "  json = %s", json.s);
    dsi_text_free(&json);
}

char *dsi_config_json(const dsi_config *c)
{
    dsi_text t = {0};
    json_add(&t, c->trees->resolved, 0, false);
    return t.s;
}
