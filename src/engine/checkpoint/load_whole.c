/* engine/checkpoint/load_whole.c: tensors of a checkpoint as values to write.
 * SPDX-License-Identifier: MIT */
#include "load_whole.h"

#include "folder.h"

#include <glob.h>
#include <string.h>

/* ---- elements of a tensor ------------------------------------------------------------------------------ */

static ds_status parts_copy(const dsi_load_source *from, int64_t begin, int64_t end, ds_tensor *to)
{
    ds_status status = DS_OK;
    int64_t at = 0;
    for (int i = 0; status == DS_OK && i < from->parts.n; i++) {
        const ds_tensor *x = from->parts.at[i];
        int64_t n = dsi_numel(x->shape), a = begin > at ? begin : at,
                b = end < at + n ? end : at + n;
        if (a < b)
            status = dsi_load_copy_range(x, a - at, b - a,
                                         dsi_flat_range(to, a - begin, b - begin));
        at += n;
    }
    return status;
}

/* The source's elements from byte `offset` on; portions of the writer are whole
 * elements. */
static ds_status source_read(void *arg, int64_t offset, void *to, size_t bytes)
{
    const dsi_load_source *from = arg;
    int64_t size = (int64_t)sizeof(float), begin = offset / size, n = (int64_t)bytes / size;
    ds_scope *scope = ds_scope_open();
    ds_tensor *x = ds_empty(DS_F32, ds_shape(n));
    ds_status status = !x ? ds_error_status()
                       : from->param
                           ? dsi_load_copy_param(from->param, from->kind, begin, begin + n, x)
                           : parts_copy(from, begin, begin + n, x);
    if (status == DS_OK) memcpy(to, ds_data(x), bytes);
    ds_scope_close(scope);
    return status;
}

static dsi_load_source *source_new(dsi_load_sources *all)
{
    dsi_load_source *from = dsi_alloc(sizeof *from);
    dsi_list_add(all, from);
    return from;
}

static ds_value *source_value(dsi_load_source *from, ds_dims shape)
{
    return dsi_value_reader(DS_F32, shape.d, shape.n, source_read, from);
}

void dsi_load_sources_free(dsi_load_sources *all)
{
    for (int i = 0; i < all->n; i++) {
        dsi_list_free(&all->at[i]->parts);
        dsi_free(all->at[i]);
    }
    dsi_list_free(all);
}

/* ---- kinds of tensors ---------------------------------------------------------------------------------- */

ds_value *dsi_load_param_value(dsi_load_sources *all, const dsi_load_param *p, const char *kind)
{
    dsi_load_source *from = source_new(all);
    from->param = p;
    from->kind = kind;
    return source_value(from, p->shape);
}

ds_value *dsi_load_tensor_value(dsi_load_sources *all, const ds_value *x)
{
    const ds_tensor *t = dsi_load_read_tensor(x, "");
    if (!t) return NULL;
    dsi_load_source *from = source_new(all);
    dsi_list_add(&from->parts, t);
    return source_value(from, t->shape);
}

/* ---- what was found ------------------------------------------------------------------------------------ */

int64_t dsi_load_stage(const dsi_loaded *l)
{
    int64_t stage = 0;
    if (l->own) return ds_value_read_int(l->own, DSI_STATE_ZERO_STAGE, &stage) == DS_OK ? stage : 0;
    for (int i = 0; i < l->files.n; i++) {
        const ds_value *v = ds_value_find(l->files.at[i].value,
                                          DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_ZERO_STAGE);
        if (v && ds_value_read_int(v, "", &stage) == DS_OK) return stage;
    }
    return 0;
}

ds_status dsi_load_check_shards(const dsi_loaded *l)
{
    glob_t files = {0};
    int64_t expected = l->ranks, found = 0;
    if (l->own && ds_value_read_int(l->own, DSI_STATE_SHARDS, &expected) != DS_OK)
        return ds_error_status();
    char *pattern = dsi_path_in(l->folder, "*zero_pp_rank_*optim_states.pt");
    if (glob(pattern, 0, NULL, &files) == 0) {
        found = (int64_t)files.gl_pathc;
        globfree(&files);
    }
    dsi_free(pattern);
    if (found <= expected) return DS_OK;
    return dsi_fail(DS_EFORMAT,
                    "Expected %lld of '*_optim_states.pt' under '%s' but found %lld files. "
                    "Possibly due to an overwrite of an old checkpoint",
                    (long long)expected, l->folder, (long long)found);
}
