/* engine/checkpoint/load_deepspeed.c: what DeepSpeed itself saved
 * (tried with 0.19.8), as chunks of parameters.
 *
 *   stage 0        "optimizer" in the model file: torch.optim's state, a parameter after the other; with fp16 the state
 *                  of a flat tensor a group, or of lists of masters
 *   stages 1, 2    param_shapes lists the parameters of each group in their order; end to end, each with its alignment
 *   and bf16       behind it, they are the group's flat tensor, of which each rank's shard has the next part; the
 *                  padding at the end is left out of the weights alone
 *   experts        are a group of their own, cut among the ranks that have the same ones: partition_count says among
 *                  how many. Each rank numbers its experts from 0 there; in expp_rank_R files (stage 0) too
 *   stage 3        each parameter is divided by itself: rank r has elements r c .. (r + 1) c of it, c = ceil(n / ranks),
 *                  in sub-groups, end to end
 *
 * It names no random numbers and no place in the data; the step of a parameter
 * is that of its group.
 * Source: DeepSpeed's utils/zero_to_fp32.py and runtime/zero/, read for the format.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/int.h"

#include <stdlib.h>
#include <string.h>

/* ---- parameters in their order ------------------------------------------------------------------------- */

typedef struct Entry {
    dsi_load_param *p;
    int64_t n, padding;      /* elements; padding after them */
    const ds_value *weights; /* in the model's dtype; or NULL */
} Entry;

typedef struct Entries {
    DSI_LIST(Entry)
} Entries;

/* The experts of one rank: the part-th of `parts` equal sets of a layer's. */
typedef struct Share {
    int64_t part, parts;
} Share;

/* The number N in "..deepspeed_experts.N.rest", and its place in the name;
 * NULL: the name is no expert's. */
static const char *expert_parse_number(const char *name, int64_t *number)
{
    static const char list[] = "deepspeed_experts.";
    const char *at = strstr(name, list);
    if (at) *number = strtoll(at + sizeof list - 1, NULL, 10);
    return at ? at + sizeof list - 1 : NULL;
}

/* How many experts the layer of this name has. */
static int64_t expert_count_in_layer(const dsi_loaded *l, const char *name, const char *digits)
{
    int64_t all = 0, n;
    for (int i = 0; i < l->experts.n; i++) {
        const char *other = l->experts.at[i].name, *at = expert_parse_number(other, &n);
        if (at && at - other == digits - name && !strncmp(name, other, (size_t)(digits - name)) &&
            n >= all)
            all = n + 1;
    }
    return all;
}

/* The name within a rank -> the name within the layer. */
static void expert_global_name(const dsi_loaded *l, const char *name, Share s, dsi_text *to)
{
    int64_t number = 0;
    const char *digits = expert_parse_number(name, &number);
    if (digits && s.parts > 1)
        dsi_text_add(
            to, "%.*s%lld%s", (int)(digits - name), name,
            (long long)(number + expert_count_in_layer(l, name, digits) / s.parts * s.part),
            digits + strspn(digits, "0123456789"));
    else
        dsi_text_add(to, "%s", name);
}

/* Appends the parameter of that name to the group's, in the order of the
 * file. */
static ds_status entries_add(dsi_loaded *l, Entries *to, const char *name, const ds_value *shape,
                             int64_t padding, Share share)
{
    ds_dims dims;
    dsi_text full = {0};
    if (!name) return dsi_fail(DS_EFORMAT, "param_shapes has a key that is no name");
    if (dsi_load_read_shape(shape, &dims) != DS_OK) return ds_error_status();
    expert_global_name(l, name, share, &full);
    dsi_load_param *p = dsi_load_add_param(l, full.s, dims);
    dsi_text_free(&full);
    if (!p) return ds_error_status();
    dsi_list_add(to, (Entry){p, dsi_numel(dims), padding, NULL});
    return DS_OK;
}

/* Of group g of param_shapes; g -1: of all groups. */
static ds_status entries_from_shapes(dsi_loaded *l, int64_t g, const ds_value *paddings,
                                     Share share, Entries *to)
{
    const ds_value *shapes = ds_value_get(l->model, DSI_STATE_PARAM_SHAPES);
    ds_status status = DS_OK;
    for (int64_t k = g < 0 ? 0 : g; status == DS_OK && k < (g < 0 ? ds_value_len(shapes) : g + 1);
         k++) {
        const ds_value *group = ds_value_at(shapes, k);
        for (int64_t i = 0; status == DS_OK && i < ds_value_len(group); i++) {
            const ds_value *padding = ds_value_at(ds_value_at(paddings, k), i);
            int64_t n = 0;
            if (padding) status = ds_value_read_int(padding, "", &n);
            if (status == DS_OK)
                status = entries_add(l, to, ds_value_text(ds_value_key_at(group, i)),
                                     ds_value_at(group, i), n, share);
        }
    }
    return status;
}

/* The step of a group is that of its parameters. */
static ds_status entries_set_step(const dsi_loaded *l, const ds_value *state, Entries *of)
{
    int64_t step = 0;
    ds_status status = DS_OK;
    if (!ds_value_len(state)) return DS_OK;
    status = ds_value_get(state, DSI_STATE_STEP) ? ds_value_read_int(state, DSI_STATE_STEP, &step)
                                                 : dsi_load_updates(l, &step);
    if (status != DS_OK) return status;
    for (int i = 0; i < of->n; i++)
        of->at[i].p->step = step > of->at[i].p->step ? step : of->at[i].p->step;
    return DS_OK;
}

/* ---- stages 1 and 2, bf16 ------------------------------------------------------------------------------ */

/* A shard has elements [from, from + n) of the flat tensor of a group. */
static ds_status entries_add_chunks(const Entries *of, const dsi_load_group *g, int64_t from,
                                    int64_t n)
{
    ds_status status = DS_OK;
    int64_t at = 0;
    for (int i = 0; status == DS_OK && i < of->n; i++) {
        const Entry *x = &of->at[i];
        int64_t begin = at > from ? at : from, end = at + x->n < from + n ? at + x->n : from + n;
        status = dsi_load_add_chunks(x->p, g, begin - at, end - at, begin - from);
        at += x->n + x->padding;
    }
    return status;
}

/* The set of experts that a rank's shard of a group has. */
static Share expert_share_of_rank(const ds_value *file, int64_t g, int64_t rank, int64_t shards)
{
    const ds_value *counts = ds_value_find(file, DSI_STATE_OPTIMIZER_STATE_DICT
                                           "/" DSI_STATE_PARTITION_COUNT),
                   *count = ds_value_kind_of(counts) == DS_VALUE_INT ? NULL
                                                                     : ds_value_at(counts, g);
    int64_t n = shards;
    if (ds_value_kind_of(count) == DS_VALUE_INT) (void)ds_value_read_int(count, "", &n);
    int64_t parts = n > 0 && n < shards && shards % n == 0 ? shards / n : 1;
    return (Share){rank % parts, parts};
}

/* Group g of each shard in turn; taken[g][part]: elements of the shards before. */
static ds_status flat_shard_read(dsi_loaded *l, const ds_value *file, int64_t rank, int64_t shards,
                                 int64_t *taken, int64_t groups)
{
    const ds_value *o = ds_value_get(file, DSI_STATE_OPTIMIZER_STATE_DICT),
                   *weights = ds_value_get(o, DSI_STATE_FP32_PARTITION),
                   *states = ds_value_find(o, DSI_STATE_BASE_STATE "/" DSI_STATE_STATE),
                   *paddings = ds_value_get(o, DSI_STATE_ALIGNMENT_PADDINGS);
    ds_status status = DS_OK;
    if (!weights || ds_value_len(weights) != groups)
        return dsi_fail(DS_EFORMAT,
                        "it has the weights of %lld groups of parameters: expected %lld",
                        (long long)ds_value_len(weights), (long long)groups);
    for (int64_t g = 0; status == DS_OK && g < groups; g++) {
        Entries of = {0};
        const dsi_load_group from = {.weights = ds_value_at(weights, g),
                                     .state = ds_value_get_int(states, g)};
        const ds_tensor *x = dsi_load_read_tensor(from.weights, "");
        if (!x) return ds_error_status();
        Share share = expert_share_of_rank(file, g, rank, shards);
        int64_t *before = &taken[g * shards + share.part];
        status = entries_from_shapes(l, g, paddings, share, &of);
        if (status == DS_OK) status = entries_set_step(l, from.state, &of);
        if (status == DS_OK) status = entries_add_chunks(&of, &from, *before, dsi_numel(x->shape));
        *before += dsi_numel(x->shape);
        dsi_list_free(&of);
    }
    return status;
}

/* ---- stage 3 ------------------------------------------------------------------------------------------- */

/* Rank r has elements [r c, (r + 1) c) of each parameter, c = ceil(n /
 * ranks), without the padding at the end of the last one. */
static ds_status stage3_shard_read(dsi_loaded *l, const ds_value *file, int64_t rank, int64_t ranks)
{
    const ds_value *o = ds_value_get(file, DSI_STATE_OPTIMIZER_STATE_DICT),
                   *weights = ds_value_get(o, DSI_STATE_FP32_FLAT_GROUPS),
                   *states = ds_value_find(o, DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_STATE);
    Entries of = {0};
    int64_t g = 0, at = 0;
    ds_status status = entries_from_shapes(l, -1, NULL, (Share){0, 1}, &of);
    for (int i = 0; status == DS_OK && i < of.n; i++) {
        const Entry *x = &of.at[i];
        int64_t share = (x->n + ranks - 1) / ranks, begin = rank * share, end = begin + share;
        const ds_tensor *flat = dsi_load_read_tensor(ds_value_at(weights, g), "");
        if (flat && at == dsi_numel(flat->shape) && g + 1 < ds_value_len(weights)) {
            flat = dsi_load_read_tensor(ds_value_at(weights, ++g), "");
            at = 0;
        }
        const dsi_load_group from = {.weights = ds_value_at(weights, g),
                                     .state = ds_value_get_int(states, g)};
        if (begin > x->n) begin = x->n;
        if (end > x->n) end = x->n;
        status = flat ? entries_set_step(l, from.state, &(Entries){.at = &of.at[i], .n = 1})
                      : ds_error_status();
        if (status == DS_OK) status = dsi_load_add_chunks(x->p, &from, begin, end, at);
        at += share;
    }
    dsi_list_free(&of);
    return status;
}

/* Elements [0, n) of a parameter that is not trained: rank after rank, the
 * model files have them. */
static ds_status frozen_read_param(dsi_loaded *l, const char *name, ds_dims shape)
{
    dsi_load_param *p = dsi_load_add_param(l, name, shape);
    int64_t n = dsi_numel(shape), has = 0;
    ds_status status = p ? DS_OK : ds_error_status();
    for (int64_t r = 0; status == DS_OK && has < n && r < l->ranks; r++) {
        dsi_text file = dsi_text_of(DSI_FILE_MODEL_RANK, (int)r);
        const ds_value *model = dsi_load_open_file(l, file.s),
                       *part = ds_value_get(ds_value_get(model, DSI_STATE_FROZEN_FRAGMENTS), name);
        const ds_tensor *x = model ? dsi_load_read_tensor(part, "") : NULL;
        dsi_text_free(&file);
        if (!x) return dsi_load_fail_in(l, model, ds_error_status());
        int64_t end = dsi_min(n, has + dsi_numel(x->shape));
        status = dsi_load_add_chunks(p, &(dsi_load_group){.weights = part}, has, end, 0);
        has = end;
    }
    if (status != DS_OK || has == n) return status;
    return dsi_fail(DS_EFORMAT, "%s: frozen parameter %s has %lld elements of %s", l->folder, name,
                    (long long)has, dsi_shape_text(shape));
}

static ds_status frozen_read(dsi_loaded *l)
{
    const ds_value *shapes = ds_value_get(l->model, DSI_STATE_FROZEN_SHAPES);
    ds_status status = DS_OK;
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(shapes); i++) {
        const char *name = ds_value_text(ds_value_key_at(shapes, i));
        ds_dims shape;
        status = dsi_load_read_shape(ds_value_at(shapes, i), &shape);
        if (status != DS_OK) return dsi_load_fail_in(l, l->model, status);
        if (name) status = frozen_read_param(l, name, shape);
    }
    return status;
}

#define MOST_SHARDS 1000000

/* ---- shards -------------------------------------------------------------------------------------------- */

/* The number of shards: partition_count is a number, or one for each group. */
static int64_t ds_shards_count(const dsi_loaded *l, const ds_value *first)
{
    const ds_value *count = ds_value_find(first, DSI_STATE_OPTIMIZER_STATE_DICT
                                          "/" DSI_STATE_PARTITION_COUNT);
    int64_t most = 0, n = 0;
    int before = dsi_error_count();
    if (ds_value_kind_of(count) == DS_VALUE_INT && ds_value_read_int(count, "", &most) == DS_OK)
        return most;
    for (int64_t g = 0; g < ds_value_len(count); g++)
        if (ds_value_read_int(ds_value_at(count, g), "", &n) == DS_OK && n > most) most = n;
    dsi_error_forget(before);
    return most ? most : l->ranks;
}

/* Which form of name the folder has is found from the file of rank 0. */
static const ds_value *ds_shard_open(dsi_loaded *l, int64_t rank)
{
    static const char *const forms[] = {
        DSI_FILE_SHARD_BF16, DSI_FILE_SHARD,
        "zero_pp_rank_%lld_mp_rank_00optim_states.pt"}; /* an old one */
    dsi_text name = {0};
    for (int i = 0; i < 3; i++) {
        dsi_text_free(&name);
        dsi_text_add(&name, forms[i], (long long)0);
        if (!dsi_load_has_file(l, name.s) && i < 2) continue;
        dsi_text_free(&name);
        dsi_text_add(&name, forms[i], (long long)rank);
        break;
    }
    const ds_value *file = dsi_load_open_file(l, name.s);
    dsi_text_free(&name);
    return file;
}

/* Shards of stages 1 and 2 and of stage 3 are told apart by the key of their
 * weights. */
static ds_status ds_shards_read(dsi_loaded *l)
{
    const ds_value *file = ds_shard_open(l, 0);
    int64_t shards = file ? ds_shards_count(l, file) : 0,
            groups = ds_value_len(ds_value_get(l->model, DSI_STATE_PARAM_SHAPES));
    if (shards > MOST_SHARDS)
        return dsi_load_fail_in(
            l, file, dsi_fail(DS_EFORMAT, "it says that there are %lld shards", (long long)shards));
    int64_t *taken = dsi_alloc((size_t)(groups * shards) * sizeof *taken + 1);
    ds_status status = file ? DS_OK : ds_error_status();
    for (int64_t r = 0; status == DS_OK && r < shards; r++) {
        if (r && !(file = ds_shard_open(l, r))) {
            status = ds_error_status();
            break;
        }
        bool divided = ds_value_find(file, DSI_STATE_OPTIMIZER_STATE_DICT
                                     "/" DSI_STATE_FP32_FLAT_GROUPS) != NULL;
        status = dsi_load_fail_in(l, file,
                                  divided ? stage3_shard_read(l, file, r, shards)
                                          : flat_shard_read(l, file, r, shards, taken, groups));
    }
    dsi_free(taken);
    return status;
}

/* ---- stage 0 ------------------------------------------------------------------------------------------- */

bool dsi_load_is_buffer(const dsi_loaded *l, const char *name)
{
    const ds_value *names = ds_value_get(l->model, DSI_STATE_BUFFER_NAMES);
    for (int64_t i = 0; i < ds_value_len(names); i++) {
        const char *is = ds_value_text(ds_value_at(names, i));
        if (is && !strcmp(is, name)) return true;
    }
    return false;
}

/* A tied parameter has two names in the module, and the optimizer counts it
 * once, at the
 * first. */
static bool entries_have(const Entries *of, const ds_tensor *x)
{
    for (int i = 0; i < of->n; i++) {
        const ds_tensor *has = dsi_load_read_tensor(of->at[i].weights, "");
        if (has->storage == x->storage && has->offset == x->offset &&
            of->at[i].n == dsi_numel(x->shape))
            return true;
    }
    return false;
}

/* Parameters in the order of the module, which is the optimizer's where it has
 * one group. */
static ds_status entries_from_module(dsi_loaded *l, Entries *to)
{
    const ds_value *module = ds_value_get(l->model, DSI_STATE_MODULE);
    for (int64_t i = 0; i < ds_value_len(module); i++) {
        const char *name = ds_value_text(ds_value_key_at(module, i));
        if (!name || ds_value_kind_of(ds_value_at(module, i)) != DS_VALUE_TENSOR ||
            dsi_load_is_buffer(l, name))
            continue;
        const ds_tensor *x = dsi_load_read_tensor(ds_value_at(module, i), "");
        if (x && entries_have(to, x)) continue;
        dsi_load_param *p = x ? dsi_load_add_param(l, name, x->shape) : NULL;
        if (!p) return ds_error_status();
        dsi_list_add(to, (Entry){p, dsi_numel(x->shape), 0, ds_value_at(module, i)});
    }
    return DS_OK;
}

/* The parameters of a rank's experts, a second group: by layer and number, like
 * their files. */
static ds_status entries_from_experts(dsi_loaded *l, Share share, Entries *to)
{
    for (int i = 0; i < l->experts.n; i++) {
        const ds_value *v = l->experts.at[i].value;
        const char *name = l->experts.at[i].name;
        int64_t number = 0;
        const char *digits = expert_parse_number(name, &number);
        int64_t all = digits ? expert_count_in_layer(l, name, digits) : 0;
        if (!all || number * share.parts / all != share.part) continue;
        const ds_tensor *x = dsi_load_read_tensor(v, "");
        dsi_load_param *p = x ? dsi_load_add_param(l, l->experts.at[i].name, x->shape) : NULL;
        if (!p) return ds_error_status();
        dsi_list_add(to, (Entry){p, dsi_numel(x->shape), 0, v});
    }
    return DS_OK;
}

/* {0: {"step", "exp_avg"}, 1: ...}: a parameter each; its weights: masters (a
 * list), or the module's. */
static ds_status entries_read_states(const dsi_loaded *l, const Entries *of, const ds_value *states,
                                     const ds_value *masters)
{
    ds_status status = DS_OK;
    int64_t most = 0, step = 0;
    bool counted = false;
    for (int i = 0; status == DS_OK && i < of->n; i++) {
        const ds_value *state = ds_value_get_int(states, i);
        const dsi_load_group from = {
            .weights = masters ? ds_value_at(masters, i) : of->at[i].weights, .state = state};
        status = dsi_load_add_chunks(of->at[i].p, &from, 0, of->at[i].n, 0);
        if (status == DS_OK && ds_value_get(state, DSI_STATE_STEP)) {
            status = ds_value_read_int(state, DSI_STATE_STEP, &step);
            counted = true;
        }
        most = step > most ? step : most;
    }
    if (status == DS_OK && !counted) status = dsi_load_updates(l, &most);
    /* DeepSpeed's fused Adam counts only at the last parameter of a group. */
    for (int i = 0; i < of->n; i++)
        if (ds_value_get_int(states, i)) of->at[i].p->step = most;
    return status;
}

/* Masters end to end, as FP16_Optimizer has them: the optimizer's one parameter
 * of the group. */
static ds_status fp16_read_flat(const dsi_loaded *l, Entries *of, const ds_value *states,
                                const ds_value *flat)
{
    const dsi_load_group from = {.weights = flat, .state = ds_value_get_int(states, 0)};
    const ds_tensor *x = dsi_load_read_tensor(flat, "");
    if (!x || entries_set_step(l, from.state, of) != DS_OK) return ds_error_status();
    return entries_add_chunks(of, &from, 0, dsi_numel(x->shape));
}

/* An optimizer that was made without the frozen parameters counts on without
 * them, and the file does not say which they are. */
static ds_status trained_check(const Entries *of, const ds_value *groups)
{
    int64_t n = ds_value_len(ds_value_get(ds_value_at(groups, 0), DSI_STATE_PARAMS));
    if (!n || n == of->n) return DS_OK;
    return dsi_fail(DS_EFORMAT,
                    "its optimizer has %lld parameter%s, its module %d, and the file does not say "
                    "which were frozen: load it with .no_optimizer",
                    (long long)n, n == 1 ? "" : "s", of->n);
}

/* The file does not say which parameters are in which group, so that only
 * one group can be read. */
static ds_status ds_optimizer_read(dsi_loaded *l, const ds_value *optimizer)
{
    const ds_value *flat = ds_value_get(optimizer, DSI_STATE_FP32_GROUPS_FLAT),
                   *each = ds_value_get(optimizer, DSI_STATE_FP32_GROUPS),
                   *base = flat || each ? ds_value_get(optimizer, DSI_STATE_OPTIMIZER_STATE_DICT)
                                        : optimizer,
                   *states = ds_value_get(base, DSI_STATE_STATE);
    int64_t groups = ds_value_len(ds_value_get(base, DSI_STATE_PARAM_GROUPS));
    Entries of = {0};
    if (groups > 1)
        return dsi_fail(DS_EFORMAT,
                        "its optimizer has %lld groups of parameters, and the file does not say "
                        "which are in which: "
                        "load it with .no_optimizer",
                        (long long)groups);
    ds_status status = entries_from_module(l, &of);
    if (status == DS_OK && !flat)
        status = trained_check(&of, ds_value_get(base, DSI_STATE_PARAM_GROUPS));
    if (status == DS_OK && flat)
        status = fp16_read_flat(l, &of, states, ds_value_at(flat, 0));
    else if (status == DS_OK)
        status = entries_read_states(l, &of, states, ds_value_at(each, 0));
    dsi_list_free(&of);
    return status;
}

/* With experts: two groups, the second one of experts, and a file for each rank
 * that has some of them. */
static ds_status expert_rank_read(dsi_loaded *l, const ds_value *optimizer, int64_t rank,
                                  int64_t *parts)
{
    const ds_value *groups = ds_value_get(optimizer, DSI_STATE_PARAM_GROUPS);
    int64_t n = ds_value_len(ds_value_get(ds_value_at(groups, 1), DSI_STATE_PARAMS));
    Entries of = {0};
    if (ds_value_len(groups) != 2 || n < 1 || l->experts.n % n)
        return dsi_fail(DS_EFORMAT,
                        "its optimizer has %lld groups of parameters, %lld in the second one, "
                        "for %d tensors of experts: expected one group of them: load it with "
                        ".no_optimizer",
                        (long long)ds_value_len(groups), (long long)n, l->experts.n);
    *parts = l->experts.n / n;
    ds_status status = entries_from_module(l, &of);
    if (status == DS_OK) status = entries_from_experts(l, (Share){rank, *parts}, &of);
    if (status == DS_OK)
        status = entries_read_states(l, &of, ds_value_get(optimizer, DSI_STATE_STATE), NULL);
    dsi_list_free(&of);
    return status;
}

/* The first file gives the number of ranks: each has an equal set of the
 * experts. */
static ds_status expert_ranks_read(dsi_loaded *l)
{
    ds_status status = DS_OK;
    int64_t parts = 1;
    for (int64_t r = 0; status == DS_OK && r < parts; r++) {
        dsi_text name = dsi_text_of(DSI_FILE_EXPERT_OPTIM, (long long)r);
        const ds_value *file = dsi_load_open_file(l, name.s);
        dsi_text_free(&name);
        status = file ? dsi_load_fail_in(
                            l, file,
                            expert_rank_read(l, ds_value_get(file, DSI_STATE_OPTIMIZER), r, &parts))
                      : ds_error_status();
    }
    return status;
}

/* ---- all of it ----------------------------------------------------------------------------------------- */

ds_status dsi_load_deepspeed(dsi_loaded *l, bool optimizer)
{
    const ds_value *whole = ds_value_get(l->model, DSI_STATE_OPTIMIZER);
    ds_status status = ds_value_read_int(l->model, DSI_STATE_DP_WORLD_SIZE, &l->ranks);
    bool each = ds_value_kind_of(whole) == DS_VALUE_DICT;
    bool shards = ds_value_kind_of(ds_value_get(l->model, DSI_STATE_PARAM_SHAPES)) == DS_VALUE_LIST;
    bool divided = !dsi_load_has_file(l, DSI_FILE_MODEL);
    l->has_optimizer = each || shards;
    if (status != DS_OK || (!optimizer && !divided)) return dsi_load_fail_in(l, l->model, status);
    if (each && l->experts.n) return expert_ranks_read(l);
    if (each) return dsi_load_fail_in(l, l->model, ds_optimizer_read(l, whole));
    if (shards) status = ds_shards_read(l);
    return status == DS_OK && divided ? frozen_read(l) : status;
}
