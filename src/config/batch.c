/* config/batch.c: batch sizes, and rules between keys.
 *
 *     train_batch_size = train_micro_batch_size_per_gpu * gradient_accumulation_steps * ranks
 *
 * Two of the three keys give the third, by integer division; one of the first
 * two gives the others with one accumulation step. As in DeepSpeed the equation
 * is checked afterwards: a division with a remainder is an error, whose message
 * has the numbers and what would fit.
 *
 * Note [Fewer ranks]
 *
 * A job that the launcher has started again on fewer ranks keeps the total: the
 * three keys are worked out for the ranks of the whole job, DS_FULL_WORLD_SIZE,
 * and then divided among those that there are. The micro batch, which decides
 * how much memory a rank needs, is the largest that fits and is not larger than
 * before; accumulation takes the rest.
 *
 * Invariants: this runs after all values were resolved without an error. Fields
 * of dsi_config and the resolved tree are changed together.
 * SPDX-License-Identifier: MIT */
#include "reader.h"

#include "base/env.h"
#include "comm/comm.h"

#include <limits.h>
#include <string.h>

/* ---- batch --------------------------------------------------------------------------------------- */

/* In the order of the members of struct batch. */
static const char *const names[] = {"train_batch_size", "train_micro_batch_size_per_gpu",
                                    "gradient_accumulation_steps"};

typedef struct batch {
    int64_t train, micro, steps, ranks; /* 0: not given */
} batch;

/* DeepSpeed's order of divisions; the product is compared afterwards. */
static void batch_derive(batch *b)
{
    if (b->train && b->micro && b->steps) return;
    if (b->train && b->micro) {
        b->steps = b->train / b->micro / b->ranks;
    } else if (b->train) {
        if (!b->steps) b->steps = 1;
        b->micro = b->train / b->ranks / b->steps;
    } else {
        if (!b->steps) b->steps = 1;
        b->train = b->micro * b->steps * b->ranks;
    }
}

/* The multiples of `unit` on both sides of n: "4 or 8". */
static void batch_add_multiples(dsi_text *t, int64_t n, int64_t unit)
{
    int64_t below = unit > 0 ? n / unit * unit : 0;
    if (below) dsi_text_add(t, "%lld or ", (long long)below);
    dsi_text_add(t, "%lld", (long long)(below + unit));
}

/* Values that would fit, with one key changed: if all three are given, first
 * the one that DeepSpeed's documents say to leave out; else the total. */
static void batch_add_fixes(dsi_text *t, const batch *given)
{
    const batch *g = given;
    if (g->micro > 0 && g->steps > 0 && g->ranks > 0) {
        int64_t unit = g->micro * g->ranks, other = g->steps * g->ranks;
        if (g->train % unit == 0)
            dsi_text_add(t, "gradient_accumulation_steps %lld or ", (long long)(g->train / unit));
        else if (g->train % other == 0)
            dsi_text_add(t, "train_micro_batch_size_per_gpu %lld or ",
                         (long long)(g->train / other));
        dsi_text_add(t, "train_batch_size %lld fits", (long long)(unit * g->steps));
        return;
    }
    int64_t unit = g->ranks * (g->micro ? g->micro : g->steps ? g->steps : 1);
    dsi_text_add(t, "train_batch_size ");
    batch_add_multiples(t, g->train, unit);
    dsi_text_add(t, " fits");
}

/* The equation does not hold: its three numbers, which of them were derived,
 * and values that would fit. */
static void batch_add_mismatch(dsi_config_reader *r, const batch *b, const batch *given)
{
    dsi_text fixes = {0};
    batch_add_fixes(&fixes, given);
    const char *how[] = {given->train ? "" : ", derived", given->micro ? "" : ", derived",
                         given->steps ? "" : ", derived"};
    dsi_config_add_error(
        r, names[0], "%lld is not %lld (%s%s) * %lld (%s%s) * %lld (ranks) = %lld; %s",
        (long long)b->train, (long long)b->micro, names[1], how[1], (long long)b->steps, names[2],
        how[2], (long long)b->ranks, (long long)(b->micro * b->steps * b->ranks), fixes.s);
    dsi_text_free(&fixes);
}

/* Whether a * b * c fits 64 bits; 0 counts as 1. */
static bool batch_product_fits(int64_t a, int64_t b, int64_t c)
{
    int64_t x;
    return !__builtin_mul_overflow(a ? a : 1, b ? b : 1, &x) &&
           !__builtin_mul_overflow(x, c ? c : 1, &x);
}

/* The first batch key that is "auto", or NULL. */
static const char *batch_find_auto(const json_t *given)
{
    for (int i = 0; i < 3; i++)
        if (dsi_config_is_auto(json_object_get(given, names[i]))) return names[i];
    return NULL;
}

/* Whether all three are known and their product is the total; 0 is never
 * right. */
static bool batch_holds(const batch *b)
{
    return b->train && b->train == b->micro * b->steps * b->ranks;
}

/* The variable counts only if these ranks are the launcher's: a program may
 * make engines of some of them. */
int dsi_config_full_world_size(int ranks)
{
    const dsi_env full = {"DS_FULL_WORLD_SIZE", "ranks of the whole job, from 1", .least = 1,
                          .most = INT_MAX, .whole = true},
                  mine = {"WORLD_SIZE", "ranks, from 1", .least = 1, .most = INT_MAX,
                          .whole = true};
    if (dsi_env_number_or(&mine, 0) != ranks) return ranks;
    return (int)dsi_env_number_or(&full, ranks);
}

/* Note [Fewer ranks]. b holds for b->ranks ranks. false: no division of the
 * total is even. */
static bool batch_divide(batch *b, int64_t ranks)
{
    int64_t each = b->train / ranks, micro = b->micro < each ? b->micro : each;
    if (b->train % ranks) return false;
    while (each % micro) micro--;
    *b = (batch){b->train, micro, each / micro, ranks};
    return true;
}

/* Works out all three keys. Fails after an error. */
static bool batch_resolve(dsi_config_reader *r, const batch *given, batch *b)
{
    batch whole = *given;
    whole.ranks = dsi_config_full_world_size((int)given->ranks);
    *b = *given;
    batch_derive(b);
    batch_derive(&whole);
    bool fewer = whole.ranks != given->ranks && batch_holds(&whole);
    if (fewer && batch_divide(&whole, given->ranks)) {
        *b = whole;
        return true;
    }
    if (fewer)
        dsi_config_add_error(r, names[0],
                             "%lld cannot be divided evenly among the %lld ranks that are left of "
                             "%lld: give deepspeed --min_ranks, or a size that fits",
                             (long long)whole.train, (long long)given->ranks,
                             (long long)whole.ranks);
    else if (!batch_holds(b))
        batch_add_mismatch(r, b, given);
    return !fewer && batch_holds(b);
}

/* train = micro * accumulation * ranks: any one or two of the three are
 * derived, and all are written back to the tree, which is printed and saved. */
void dsi_config_resolve_batch(dsi_config_reader *r)
{
    dsi_config *c = r->c;
    const batch given = {c->train_batch_size, c->train_micro_batch_size_per_gpu,
                         c->gradient_accumulation_steps, c->world_size};
    batch b;
    if (!given.train && !given.micro) {
        const char *key = batch_find_auto(c->trees->given);
        dsi_config_add_error(r, key,
                             "%strain_batch_size or train_micro_batch_size_per_gpu must be given",
                             key ? "\"auto\" cannot be worked out: " : "");
        return;
    }
    int64_t most = dsi_config_full_world_size(c->world_size);
    if (!batch_product_fits(given.micro, given.steps, most > given.ranks ? most : given.ranks) ||
        given.train > INT64_MAX / 2) {
        dsi_config_add_error(r, NULL, "the batch sizes are beyond 64 bits");
        return;
    }
    if (!batch_resolve(r, &given, &b)) return;
    c->train_batch_size = b.train;
    c->train_micro_batch_size_per_gpu = b.micro;
    c->gradient_accumulation_steps = b.steps;
    json_t *tree = c->trees->resolved;
    dsi_config_tree_set(tree, "train_batch_size", json_integer(b.train));
    dsi_config_tree_set(tree, "train_micro_batch_size_per_gpu", json_integer(b.micro));
    dsi_config_tree_set(tree, "gradient_accumulation_steps", json_integer(b.steps));
}

/* ---- rules between keys -------------------------------------------------------------------------- */

/* The scaler divides by the window, and a minimum of 0 would let the scale
 * vanish. Without a dynamic scale both are unused, so 0 passes, as in
 * DeepSpeed. */
static void rules_check_fp16(dsi_config_reader *r)
{
    const dsi_config *c = r->c;
    if (c->fp16.enabled && c->bf16.enabled)
        dsi_config_add_error(r, "fp16.enabled", "fp16 and bf16 cannot both be enabled");
    if (!c->fp16.enabled || c->fp16.loss_scale != 0) return;
    if (c->fp16.loss_scale_window < 1)
        dsi_config_add_error(r, "fp16.loss_scale_window",
                             "expected an integer of at least 1 with a dynamic scale, found %lld",
                             (long long)c->fp16.loss_scale_window);
    if (c->fp16.min_loss_scale < 1)
        dsi_config_add_error(r, "fp16.min_loss_scale",
                             "expected an integer of at least 1 with a dynamic scale, found %lld",
                             (long long)c->fp16.min_loss_scale);
}

static void rules_check_autocast(dsi_config_reader *r)
{
    const dsi_config *c = r->c;
    int dtype = c->torch_autocast.dtype;
    if (!c->torch_autocast.enabled || dtype == DSI_CONFIG_NO_DTYPE || dtype == DS_BF16) return;
    if (dtype == DS_F16 && c->fp16.enabled) return;
    dsi_config_add_error(r, "torch_autocast.dtype",
                         dtype == DS_F16 ? "float16 needs a scaled loss: expected bfloat16, or "
                                           "fp16 to be enabled beside it"
                                         : "expected bfloat16 or float16");
}

/* DeepSpeed refuses other mixes too, without ZeRO. */
static void rules_check_accumulation(dsi_config_reader *r)
{
    static const char *const type_name[] = {
        [DS_F32] = "float32", [DS_F16] = "float16", [DS_BF16] = "bfloat16"};
    const dsi_config *c = r->c;
    int given = c->data_types.grad_accum_dtype;
    int dtype = c->fp16.enabled ? DS_F16 : c->bf16.enabled ? DS_BF16 : DS_F32;
    if (given == DSI_CONFIG_NO_DTYPE || given == DS_F32 || given == dtype) return;
    dsi_config_add_error(
        r, "data_types.grad_accum_dtype", "expected float32%s for a model in %s, found %s",
        dtype == DS_F32 ? "" : " or the model's type", type_name[dtype], type_name[given]);
}

/* An empty path would be the root folder. */
static void rules_check_files(dsi_config_reader *r, const char *key, int device, const char *path)
{
    if (device == DSI_OFFLOAD_NVME && (!path || !*path))
        dsi_config_add_error(r, key,
                             "\"nvme\", but there is no nvme_path: name a folder on that disk");
}

/* overlap_comm has DeepSpeed's default by stage, which the table cannot
 * express: true in stage 3, else false. */
static void rules_check_zero(dsi_config_reader *r)
{
    dsi_config *c = r->c;
    json_t *tree = c->trees->resolved;
    if (json_is_null(dsi_config_tree_get(tree, "zero_optimization.overlap_comm"))) {
        c->zero.overlap_comm = c->zero.stage == 3;
        dsi_config_tree_set(tree, "zero_optimization.overlap_comm",
                            json_boolean(c->zero.overlap_comm));
    }
    if (c->gradient_sum && c->zero.stage == 3)
        dsi_config_add_error(r, "gradient_allreduce_op", "sum is not possible with ZeRO stage 3");
    json_t *ratio = dsi_config_tree_get(tree, "zero_optimization.offload_optimizer.ratio");
    if (ratio && json_number_value(ratio) < 1 && c->zero.stage != 3)
        dsi_config_add_error(r, "zero_optimization.offload_optimizer.ratio",
                             "below 1 needs ZeRO stage 3; this is stage %lld",
                             (long long)c->zero.stage);
    rules_check_files(r, "zero_optimization.offload_optimizer.device",
                      (int)c->zero.offload_optimizer.device, c->zero.offload_optimizer.nvme_path);
    rules_check_files(r, "zero_optimization.offload_param.device",
                      (int)c->zero.offload_param.device, c->zero.offload_param.nvme_path);
    if (c->zero.offload_param.device != DSI_OFFLOAD_NONE && c->zero.stage < 3)
        dsi_config_add_warning(r,
                               "\"zero_optimization.offload_param\" is for ZeRO stage 3: it "
                               "has no effect in stage %lld",
                               (long long)c->zero.stage);
    if (!c->zero.compute_grad_norm && (c->zero.stage < 1 || c->zero.stage > 2))
        dsi_config_add_error(r, "zero_optimization.compute_grad_norm",
                             "false needs ZeRO stage 1 or 2; this is stage %lld",
                             (long long)c->zero.stage);
}

/* The optimizer and the schedule check their params, but not for "auto". */
static void rules_refuse_auto(dsi_config_reader *r, const char *group, const json_t *params)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)params, name, value)
    {
        if (!dsi_config_is_auto(value)) continue;
        dsi_text path = dsi_text_of("%s.params.%s", group, name);
        dsi_config_add_auto_error(r, path.s, "its default");
        dsi_text_free(&path);
    }
}

/* "optimizer" or "scheduler": params without a type are dropped, as in
 * DeepSpeed, with a warning. */
static void rules_check_named(dsi_config_reader *r, const char *group, dsi_config_named *named)
{
    dsi_text path = dsi_text_of("%s.params", group);
    json_t *params = dsi_config_tree_get(r->c->trees->resolved, path.s);
    if (!named->type && named->params) {
        dsi_config_add_warning(r, "\"%s.params\" has no effect without \"%s.type\"", group, group);
        dsi_free(named->params);
        named->params = NULL;
        dsi_config_tree_set(r->c->trees->resolved, path.s, json_null());
    } else {
        rules_refuse_auto(r, group, params);
    }
    dsi_text_free(&path);
}

/* "auto" and 1 are a model that is not divided. */
static void rules_check_pipeline(dsi_config_reader *r)
{
    json_t *stages = dsi_config_tree_get(r->c->trees->given, "pipeline.stages");
    if (json_is_number(stages) && json_number_value(stages) > 1)
        dsi_config_add_error(r, "pipeline.stages",
                             "there is no pipeline parallelism: expected 1 or \"auto\"");
}

/* comm knows the names of collectives, and suggests the nearest one. */
static void rules_check_prof_ops(dsi_config_reader *r)
{
    json_t *ops = dsi_config_tree_get(r->c->trees->resolved, "comms_logger.prof_ops"), *op;
    size_t i;
    json_array_foreach(ops, i, op)
    {
        dsi_text why = {0};
        const char *name = json_string_value(op);
        if (name && !dsi_comm_log_knows(name, &why))
            dsi_config_add_error(r, "comms_logger.prof_ops", "%s", why.s);
        dsi_text_free(&why);
    }
}

/* Runs only with values that are right by themselves. Some rules also set what
 * depends on another key. */
void dsi_config_check_rules(dsi_config_reader *r)
{
    dsi_config *c = r->c;
    json_t *tree = c->trees->resolved;
    rules_check_fp16(r);
    rules_check_autocast(r);
    rules_check_accumulation(r);
    rules_check_zero(r);
    rules_check_prof_ops(r);
    rules_check_pipeline(r);
    if (!c->managed_gradient_accumulation && c->zero.deterministic)
        dsi_config_add_error(r, "managed_gradient_accumulation",
                             "false needs another number of backwards in each step, but "
                             "zero_optimization.deterministic a fixed one");
    if (c->checkpoint.overhead_limit > 0 && !c->checkpoint.async)
        dsi_config_add_error(r, "checkpoint.overhead_limit", "needs \"async\": true beside it");
    if (c->checkpoint.use_node_local_storage && c->checkpoint.load_universal)
        dsi_config_add_error(r, "checkpoint.use_node_local_storage",
                             "a universal checkpoint is in one folder, which all hosts share: "
                             "leave \"load_universal\" out");
    rules_check_named(r, "optimizer", &c->optimizer);
    rules_check_named(r, "scheduler", &c->scheduler);
    if (dsi_config_tree_get(tree, "optimizer.params.max_grad_norm"))
        dsi_config_add_error(r, "optimizer.params.max_grad_norm", "use \"gradient_clipping\"");
    /* Like DeepSpeed's profiler, which turns its timers on. */
    if (c->flops_profiler.enabled) {
        c->wall_clock_breakdown = true;
        dsi_config_tree_set(tree, "wall_clock_breakdown", json_true());
    }
}
