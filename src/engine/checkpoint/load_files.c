/* engine/checkpoint/load_files.c: the files of a checkpoint of ours, as chunks
 * of parameters: Note [Chunks].
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/file.h"
#include "base/int.h"
#include "base/mapping.h"
#include "folder.h"

#include <string.h>

#define AT_A_TIME ((int64_t)2 << 20) /* elements of a file in memory at a time */

/* ---- files --------------------------------------------------------------------------------------------- */

/* A file is opened once, and stays in l until dsi_loaded_free. */
const ds_value *dsi_load_open_file(dsi_loaded *l, const char *name)
{
    char *path = dsi_path_in(l->folder, name);
    for (int i = 0; i < l->files.n; i++)
        if (!strcmp(l->files.at[i].path, path)) {
            dsi_free(path);
            return l->files.at[i].value;
        }
    ds_value *v = dsi_pth_open(path, l->partly);
    if (v)
        dsi_list_add(&l->files, (dsi_load_file){path, v});
    else
        dsi_free(path);
    return v;
}

bool dsi_load_has_file(const dsi_loaded *l, const char *name)
{
    char *path = dsi_path_in(l->folder, name);
    bool has = dsi_file_exists(path);
    dsi_free(path);
    return has;
}

const char *dsi_load_file_path(const dsi_loaded *l, const ds_value *file)
{
    for (int i = 0; i < l->files.n; i++)
        if (l->files.at[i].value == file) return l->files.at[i].path;
    return l->folder;
}

void dsi_loaded_free(dsi_loaded *l)
{
    for (int i = 0; i < l->params.n; i++) {
        dsi_load_param *p = l->params.at[i].value;
        dsi_list_free(p);
        dsi_free(p);
    }
    dsi_map_free(&l->params);
    dsi_map_free(&l->experts);
    for (int i = 0; i < l->files.n; i++) {
        dsi_free(l->files.at[i].path);
        ds_value_free(l->files.at[i].value);
    }
    dsi_list_free(&l->files);
}

/* ---- parameters and chunks ----------------------------------------------------------------------------- */

dsi_load_param *dsi_load_find_param(const dsi_loaded *l, const char *name)
{
    return dsi_map_get(&l->params, name);
}

/* Files of several ranks name the same parameter: its shape must be the same
 * in all. */
dsi_load_param *dsi_load_add_param(dsi_loaded *l, const char *name, ds_dims shape)
{
    dsi_load_param *p = dsi_load_find_param(l, name);
    if (p && !dsi_same_shape(p->shape, shape))
        return dsi_refuse("%s: %s is %s in one file, and %s in another", l->folder, name,
                          dsi_shape_text(p->shape), dsi_shape_text(shape));
    if (p) return p;
    p = dsi_alloc(sizeof *p);
    p->shape = shape;
    dsi_map_set(&l->params, name, p);
    return p;
}

int64_t dsi_load_count(const dsi_load_param *p, const char *kind, int64_t begin, int64_t end)
{
    int64_t n = 0;
    for (int i = 0; i < p->n; i++) {
        int64_t from = dsi_max(begin, p->at[i].begin), to = dsi_min(end, p->at[i].end);
        if (from < to && !strcmp(p->at[i].kind, kind)) n += to - from;
    }
    return n;
}

/* In blocks, so that a mapped file does not fill the memory: the next block
 * is requested, the last one dropped. */
ds_status dsi_load_copy_range(const ds_tensor *x, int64_t at, int64_t n, ds_tensor *to)
{
    const dsi_storage *s = x->storage;
    bool in_file = s && s->release == dsi_mapping_unref;
    size_t size = ds_dtype_size(x->dtype);
    ds_status status = DS_OK;
    for (int64_t done = 0, some; status == DS_OK && done < n; done += some) {
        some = n - done < AT_A_TIME ? n - done : AT_A_TIME;
        const char *from = s ? (const char *)s->p + (size_t)(x->offset + at + done) * size : NULL;
        if (in_file)
            dsi_mapping_prefetch(s->owner, from, (size_t)dsi_min(n - done, 2 * AT_A_TIME) * size);
        if (in_file) dsi_count_read((size_t)some * size);
        status = dsi_copy(dsi_flat_range(to, done, done + some),
                          dsi_flat_range(x, at + done, at + done + some));
        if (in_file) dsi_mapping_drop_pages(s->owner, from, (size_t)some * size);
    }
    return status;
}

/* Elements that no chunk has are left as they are: dsi_load_check has
 * counted them. */
ds_status dsi_load_copy_param(const dsi_load_param *p, const char *kind, int64_t begin, int64_t end,
                              ds_tensor *to)
{
    ds_status status = DS_OK;
    ds_scope *scope = ds_scope_open();
    for (int i = 0; status == DS_OK && i < p->n; i++) {
        const dsi_load_chunk *x = &p->at[i];
        int64_t a = dsi_max(begin, x->begin), b = dsi_min(end, x->end);
        if (a < b && !strcmp(x->kind, kind))
            status = dsi_load_copy_range(x->x, x->at + a - x->begin, b - a,
                                         dsi_flat_range(to, a - begin, b - begin));
    }
    ds_scope_close(scope);
    return status;
}

/* ---- values of a file ---------------------------------------------------------------------------------- */

const ds_tensor *dsi_load_read_tensor(const ds_value *v, const char *path)
{
    ds_tensor *x;
    if (ds_value_read_tensor(v, path, &x) != DS_OK) return NULL;
    return dsi_is_contiguous(x) ? x : ds_contiguous(ds_detach(x));
}

/* Sizes are checked against overflow of their product: the file is not
 * trusted. */
ds_status dsi_load_read_shape(const ds_value *v, ds_dims *shape)
{
    int64_t n = ds_value_len(v), elements = 1;
    ds_value_kind kind = ds_value_kind_of(v);
    *shape = (ds_dims){0};
    if ((kind != DS_VALUE_TUPLE && kind != DS_VALUE_LIST) || n > DS_MAX_DIMS)
        return dsi_fail(DS_EFORMAT, "a shape is %s: expected up to %d sizes", ds_value_class(v),
                        DS_MAX_DIMS);
    for (; shape->n < n; shape->n++) {
        int64_t d;
        if (ds_value_read_int(ds_value_at(v, shape->n), "", &d) != DS_OK) return ds_error_status();
        if (d < 0 || (d && elements > ((int64_t)1 << 48) / d))
            return dsi_fail(DS_EFORMAT, "a shape has a size of %lld", (long long)d);
        shape->d[shape->n] = d;
        elements *= d;
    }
    return DS_OK;
}

/* Ranges are checked against the parameter and the file's tensor: the file
 * is not trusted. */
ds_status dsi_load_add_chunks(dsi_load_param *p, const dsi_load_group *g, int64_t begin,
                              int64_t end, int64_t at)
{
    ds_status status = DS_OK;
    if (begin >= end) return DS_OK;
    for (int i = -2; status == DS_OK && i < ds_value_len(g->state); i++) {
        const ds_value *from = i == -2   ? g->weights
                               : i == -1 ? g->averages
                                         : ds_value_at(g->state, i);
        const char *kind = i == -2   ? DSI_LOAD_WEIGHTS
                           : i == -1 ? DSI_LOAD_AVERAGE
                                     : ds_value_text(ds_value_key_at(g->state, i));
        if (ds_value_kind_of(from) != DS_VALUE_TENSOR || !kind || !strcmp(kind, DSI_STATE_STEP) ||
            !strcmp(kind, DSI_STATE_MU_PRODUCT))
            continue;
        if (dsi_load_count(p, kind, begin, end) == end - begin) continue;
        const ds_tensor *x = dsi_load_read_tensor(from, "");
        if (!x) return ds_error_status();
        if (begin < 0 || end > dsi_numel(p->shape) || at < 0 ||
            at > dsi_numel(x->shape) - (end - begin))
            return dsi_fail(DS_EFORMAT,
                            "elements %lld to %lld of a parameter %s are not at index %lld of a "
                            "tensor %s of %s",
                            (long long)begin, (long long)end, dsi_shape_text(p->shape),
                            (long long)at, dsi_shape_text(x->shape), kind);
        dsi_list_add(p, (dsi_load_chunk){kind, begin, end, x, at});
    }
    return status;
}

/* ---- shards of ours: Note [Shards] --------------------------------------------------------------------- */

/* One parameter of a group: its elements are at index *at of each tensor of the
 * group. */
static ds_status shard_read_param(dsi_loaded *l, const ds_value *entry, const dsi_load_group *g,
                                  int64_t *at)
{
    const char *name;
    int64_t begin, end, step;
    ds_dims shape;
    ds_status status = ds_value_read_string(entry, "name", &name);
    if (status == DS_OK) status = dsi_load_read_shape(ds_value_get(entry, "shape"), &shape);
    if (status == DS_OK) status = ds_value_read_int(entry, "begin", &begin);
    if (status == DS_OK) status = ds_value_read_int(entry, "end", &end);
    if (status == DS_OK) status = ds_value_read_int(entry, DSI_STATE_STEP, &step);
    dsi_load_param *p = status == DS_OK ? dsi_load_add_param(l, name, shape) : NULL;
    if (!p) return ds_error_status();
    p->step = step > p->step ? step : p->step;
    status = dsi_load_add_chunks(p, g, begin, end, *at);
    *at += end - begin;
    return status;
}

/* Our deepspeed_c says which elements of which parameters a group has;
 * DeepSpeed's keys have the tensors. */
static ds_status shard_read(dsi_loaded *l, const ds_value *file)
{
    const ds_value *groups = ds_value_find(file, DSI_STATE_OWN "/groups"),
                   *o = ds_value_get(file, DSI_STATE_OPTIMIZER_STATE_DICT),
                   *weights = ds_value_get(o, DSI_STATE_FP32_PARTITION),
                   *states = ds_value_find(o, DSI_STATE_BASE_STATE "/" DSI_STATE_STATE),
                   *averages = ds_value_find(file, DSI_STATE_OWN "/averages");
    ds_status status = DS_OK;
    if (!groups || !weights || !states)
        return dsi_fail(DS_EFORMAT, "it is no shard of an optimizer's state");
    for (int64_t g = 0; status == DS_OK && g < ds_value_len(groups); g++) {
        const ds_value *group = ds_value_at(groups, g);
        dsi_load_group from = {ds_value_at(weights, g), ds_value_get_int(states, g),
                               ds_value_at(averages, g)};
        int64_t at = 0;
        for (int64_t i = 0; status == DS_OK && i < ds_value_len(group); i++)
            status = shard_read_param(l, ds_value_at(group, i), &from, &at);
    }
    return status;
}

ds_status dsi_load_fail_in(const dsi_loaded *l, const ds_value *file, ds_status status)
{
    return dsi_fail_in(dsi_load_file_path(l, file), status);
}

/* The i-th shard to open: in the order of distance from the middle of the
 * reader's shard. */
static int64_t shard_in_order(int64_t shards, const dsi_load_reader *who, int64_t i)
{
    int64_t twice = 2 * (int64_t)who->ranks, middle = (2 * (int64_t)who->rank + 1) * shards,
            first = middle / twice, low = first - 1, high = first + 1;
    if (!i) return first;
    for (bool up = 2 * (middle % twice) >= twice;; up = !up, i--) {
        bool take_high = low < 0 || (high < shards && up);
        if (i == 1) return take_high ? high : low;
        if (take_high)
            high++;
        else
            low--;
    }
}

/* Stops when this rank's shard is complete. */
static ds_status shards_read(dsi_loaded *l, int64_t shards, const dsi_load_reader *who)
{
    ds_status status = DS_OK;
    /* the folder of a host may lack those of other hosts' ranks */
    int64_t nearest = who->engine && shards ? shard_in_order(shards, who, 0) : 0;
    dsi_text bf16 = dsi_text_of(DSI_FILE_SHARD_BF16, (long long)nearest);
    bool is_bf16 = dsi_load_has_file(l, bf16.s);
    dsi_text_free(&bf16);
    for (int64_t i = 0; status == DS_OK && i < shards; i++) {
        if (who->engine && dsi_load_is_complete(l, who->engine, who->optimizer)) break;
        int64_t r = who->engine ? shard_in_order(shards, who, i) : i;
        dsi_text name = dsi_text_of(is_bf16 ? DSI_FILE_SHARD_BF16 : DSI_FILE_SHARD, (long long)r);
        const ds_value *file = dsi_load_open_file(l, name.s);
        dsi_text_free(&name);
        status = file ? dsi_load_fail_in(l, file, shard_read(l, file)) : ds_error_status();
    }
    return status;
}

/* ---- the state in one file ----------------------------------------------------------------------------- */

const ds_value *dsi_load_model_value(const dsi_loaded *l, const char *name)
{
    const ds_value *v = ds_value_get(ds_value_get(l->model, DSI_STATE_MODULE), name);
    return v ? v : dsi_map_get(&l->experts, name);
}

/* The weights of all parameters in a file's param_shapes, from the model file. */
static ds_status optimizer_read_weights(dsi_loaded *l, const ds_value *file)
{
    const ds_value *shapes = ds_value_get(file, DSI_STATE_PARAM_SHAPES);
    ds_status status = DS_OK;
    for (int64_t g = 0; status == DS_OK && g < ds_value_len(shapes); g++) {
        const ds_value *group = ds_value_at(shapes, g);
        for (int64_t i = 0; status == DS_OK && i < ds_value_len(group); i++) {
            const char *name = ds_value_text(ds_value_key_at(group, i));
            ds_dims shape;
            if (!name) return dsi_fail(DS_EFORMAT, "param_shapes has a key that is no name");
            if (dsi_load_read_shape(ds_value_at(group, i), &shape) != DS_OK)
                return ds_error_status();
            dsi_load_param *p = dsi_load_add_param(l, name, shape);
            const dsi_load_group from = {.weights = dsi_load_model_value(l, name)};
            status = p ? dsi_load_add_chunks(p, &from, 0, dsi_numel(shape), 0) : ds_error_status();
        }
    }
    return status;
}

/* fp16's float32 master weights, in the order of param_shapes. */
static ds_status optimizer_read_masters(dsi_loaded *l, const ds_value *file,
                                        const ds_value *masters)
{
    const ds_value *shapes = ds_value_get(file, DSI_STATE_PARAM_SHAPES);
    ds_status status = DS_OK;
    for (int64_t g = 0; status == DS_OK && g < ds_value_len(shapes); g++) {
        const ds_value *group = ds_value_at(shapes, g), *values = ds_value_at(masters, g);
        for (int64_t i = 0; status == DS_OK && i < ds_value_len(group); i++) {
            const char *name = ds_value_text(ds_value_key_at(group, i));
            ds_dims shape;
            if (!name || dsi_load_read_shape(ds_value_at(group, i), &shape) != DS_OK)
                return DS_EFORMAT;
            dsi_load_param *p = dsi_load_add_param(l, name, shape);
            const dsi_load_group from = {.weights = ds_value_at(values, i)};
            status = p ? dsi_load_add_chunks(p, &from, 0, dsi_numel(shape), 0) : ds_error_status();
        }
    }
    return status;
}

ds_status dsi_load_updates(const dsi_loaded *l, int64_t *updates)
{
    int64_t all = 0, skipped = 0;
    ds_status status = DS_OK;
    if (ds_value_get(l->model, DSI_STATE_GLOBAL_STEPS))
        status = ds_value_read_int(l->model, DSI_STATE_GLOBAL_STEPS, &all);
    if (status == DS_OK && ds_value_get(l->model, DSI_STATE_SKIPPED_STEPS))
        status = ds_value_read_int(l->model, DSI_STATE_SKIPPED_STEPS, &skipped);
    *updates = all > skipped ? all - skipped : 0;
    return status;
}

/* The optimizer's state in one file, the model's or that of an expert-parallel
 * rank. own: its deepspeed_c. */
static ds_status optimizer_read(dsi_loaded *l, const ds_value *file, const ds_value *own)
{
    const ds_value *optimizer = ds_value_get(file, DSI_STATE_OPTIMIZER),
                   *masters = ds_value_get(optimizer, DSI_STATE_FP32_GROUPS),
                   *dict = masters ? ds_value_get(optimizer, DSI_STATE_OPTIMIZER_STATE_DICT)
                                   : optimizer,
                   *states = ds_value_get(dict, DSI_STATE_STATE),
                   *names = ds_value_find(own, DSI_STATE_OPTIMIZER "/" DSI_STATE_PARAMS),
                   *averages = ds_value_find(own, DSI_STATE_EMA "/" DSI_STATE_AVERAGES);
    ds_status status = masters ? optimizer_read_masters(l, file, masters)
                               : optimizer_read_weights(l, file);
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(names); i++) {
        const char *name = ds_value_text(ds_value_at(names, i));
        dsi_load_param *p = name ? dsi_load_find_param(l, name) : NULL;
        dsi_load_group from = {.state = ds_value_get_int(states, i),
                               .averages = ds_value_get(averages, name)};
        if (!p) continue; /* it is not trained */
        if (from.state)
            status = ds_value_get(from.state, DSI_STATE_STEP)
                         ? ds_value_read_int(from.state, DSI_STATE_STEP, &p->step)
                         : dsi_load_updates(l, &p->step);
        if (status == DS_OK) status = dsi_load_add_chunks(p, &from, 0, dsi_numel(p->shape), 0);
    }
    return status;
}

/* Note [Expert files]: the state of all writers. */
static ds_status expert_optimizers_read(dsi_loaded *l)
{
    ds_status status = DS_OK;
    bool more = true;
    for (int r = 0; status == DS_OK && more; r++) {
        dsi_text name = dsi_text_of(DSI_FILE_EXPERT_OPTIM, (long long)r);
        more = dsi_load_has_file(l, name.s);
        const ds_value *file = more ? dsi_load_open_file(l, name.s) : NULL;
        dsi_text_free(&name);
        if (more && !file) status = ds_error_status();
        if (file)
            status = dsi_load_fail_in(l, file,
                                      optimizer_read(l, file, ds_value_get(file, DSI_STATE_OWN)));
    }
    return status;
}

/* ---- experts ------------------------------------------------------------------------------------------- */

/* Its tensors are found by name, like those of the model file. */
static ds_status expert_open(dsi_loaded *l, const char *name)
{
    const ds_value *file = dsi_load_open_file(l, name);
    if (!file) return ds_error_status();
    for (int64_t i = 0; i < ds_value_len(file); i++) {
        const char *key = ds_value_text(ds_value_key_at(file, i));
        if (!key || ds_value_kind_of(ds_value_at(file, i)) != DS_VALUE_TENSOR)
            return dsi_load_fail_in(l, file,
                                    dsi_fail(DS_EFORMAT, "it has other things than tensors"));
        dsi_map_set(&l->experts, key, (void *)(uintptr_t)ds_value_at(file, i));
    }
    return DS_OK;
}

/* In stage 3 there may be no files: the weights are in the shards. */
static ds_status experts_open(dsi_loaded *l)
{
    const ds_value *layers = ds_value_get(l->model, DSI_STATE_NUM_EXPERTS);
    ds_status status = DS_OK;
    for (int64_t k = 0; status == DS_OK && k < ds_value_len(layers); k++) {
        int64_t n;
        status = dsi_load_fail_in(l, l->model, ds_value_read_int(ds_value_at(layers, k), "", &n));
        for (int64_t e = 0; status == DS_OK && e < n; e++) {
            dsi_text name = dsi_text_of(DSI_FILE_EXPERT, (long long)k, (long long)e);
            if (dsi_load_has_file(l, name.s)) status = expert_open(l, name.s);
            dsi_text_free(&name);
        }
    }
    return status;
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

/* The rank's file, or rank 0's for a rank that did not exist when it was saved. */
static const ds_value *folder_open_of_rank(dsi_loaded *l, const char *format, int rank)
{
    dsi_text mine = {0}, first = {0};
    dsi_text_add(&mine, format, rank);
    dsi_text_add(&first, format, 0);
    const ds_value *v = dsi_load_open_file(l, dsi_load_has_file(l, mine.s) ? mine.s : first.s);
    dsi_text_free(&mine);
    dsi_text_free(&first);
    return v;
}

/* A later format is refused: its keys may mean something else. */
static ds_status own_read_header(dsi_loaded *l, int64_t *shards)
{
    int64_t format;
    ds_status status = ds_value_read_int(l->own, DSI_STATE_FORMAT, &format);
    if (status == DS_OK && format > DSI_FORMAT)
        return dsi_fail(DS_EFORMAT,
                        "its format is %lld, of a later version of this library: this one knows %d",
                        (long long)format, DSI_FORMAT);
    if (status == DS_OK) status = ds_value_read_int(l->own, DSI_STATE_SHARDS, shards);
    if (status == DS_OK) status = ds_value_read_int(l->own, DSI_STATE_RANKS, &l->ranks);
    l->has_optimizer = ds_value_kind_of(ds_value_get(l->own, DSI_STATE_OPTIMIZER)) == DS_VALUE_DICT;
    return status;
}

/* The parts of a checkpoint of this library, by how its optimizer state is
 * divided. */
static ds_status own_read(dsi_loaded *l, const dsi_load_reader *who)
{
    int64_t shards = 0;
    ds_status status = dsi_load_fail_in(l, l->model, own_read_header(l, &shards));
    if (status != DS_OK) return status;
    l->rank = folder_open_of_rank(l, DSI_FILE_RANK, who->rank);
    if (!l->rank) return ds_error_status();
    if (shards) return shards_read(l, shards, who);
    if (!l->has_optimizer) return DS_OK;
    if (ds_value_get(l->model, DSI_STATE_NUM_EXPERTS)) return expert_optimizers_read(l);
    return dsi_load_fail_in(l, l->model, optimizer_read(l, l->model, l->own));
}

/* Of a checkpoint of ours it has the files of ranks too. */
static ds_status universal_read(dsi_loaded *l, const dsi_load_reader *who)
{
    int64_t shards;
    ds_status status = l->own ? dsi_load_fail_in(l, l->model, own_read_header(l, &shards)) : DS_OK;
    if (status == DS_OK && dsi_load_has_file(l, DSI_FILE_RANK_0)) {
        l->rank = folder_open_of_rank(l, DSI_FILE_RANK, who->rank);
        if (!l->rank) return ds_error_status();
    }
    return status == DS_OK ? dsi_load_universal(l, who) : status;
}

ds_status dsi_load_files(dsi_loaded *l, const char *folder, const dsi_load_reader *who)
{
    l->folder = folder;
    l->partly = who->engine != NULL;
    /* a universal checkpoint has both names; stage 3's have buffers of each rank */
    bool universal = dsi_load_is_universal(folder),
         divided = dsi_load_has_file(l, DSI_FILE_MODEL_RANK_0) &&
                   (universal || !dsi_load_has_file(l, DSI_FILE_MODEL));
    l->model = divided ? folder_open_of_rank(l, DSI_FILE_MODEL_RANK, who->rank)
                       : dsi_load_open_file(l, DSI_FILE_MODEL);
    if (!l->model) return ds_error_status();
    if (ds_value_kind_of(ds_value_get(l->model, DSI_STATE_MODULE)) != DS_VALUE_DICT)
        return dsi_load_fail_in(
            l, l->model,
            dsi_fail(DS_EFORMAT, "there is no \"module\" in it: it holds no states of a model"));
    l->own = ds_value_get(l->model, DSI_STATE_OWN);
    if (experts_open(l) != DS_OK) return ds_error_status();
    if (universal) return universal_read(l, who);
    return l->own ? own_read(l, who) : dsi_load_deepspeed(l, who->optimizer);
}
