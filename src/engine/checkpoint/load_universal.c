/* engine/checkpoint/load_universal.c: universal checkpoints, which do not depend
 * on ranks and stages: what DeepSpeed's ds_to_universal.py and ours write, as
 * chunks of parameters.
 *
 *     DIR/latest_universal             the tag of the newest one
 *     DIR/TAG/zero/NAME/fp32.pt        a parameter: {"param": float32, ...}, or a tensor (stage 3: flat)
 *     DIR/TAG/zero/NAME/MOMENT.pt      exp_avg, exp_avg_sq, ... in the same form
 *     DIR/TAG/zero/NAME/step.pt        a number; stage 3: state/0/step of the next file is that of all
 *     DIR/TAG/zero/optimizer_state.pt  parameter groups, loss scale
 *     DIR/TAG/averages/NAME.pt         ours: averaged weights
 *     DIR/TAG/..._model_states.pt, rank_R_states.pt    as in other checkpoints
 *
 * Files of moments are opened only for parameters of which this rank has
 * elements. Names that the model does not train (buffers, frozen parameters) are
 * taken from here only if the model file does not have them whole.
 * Source: DeepSpeed 0.19.8, checkpoint/ds_to_universal.py,
 * checkpoint/universal_checkpoint.py and runtime/zero/stage3.py, read for the
 * format.
 * SPDX-License-Identifier: MIT */
#include "load.h"

#include "base/file.h"
#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX ".pt"

bool dsi_load_is_universal(const char *folder)
{
    char *zero = dsi_path_in(folder, DSI_FOLDER_UNIVERSAL);
    bool is = dsi_is_folder(zero);
    dsi_free(zero);
    return is;
}

/* ---- names in a folder --------------------------------------------------------------------------------- */

static int name_is_file(const struct dirent *d)
{
    size_t n = strlen(d->d_name), suffix = strlen(SUFFIX);
    return d->d_name[0] != '.' && n > suffix && !strcmp(d->d_name + n - suffix, SUFFIX);
}

static int name_is_param(const struct dirent *d) { return d->d_name[0] != '.' && !name_is_file(d); }

/* The names that `which` selects, sorted; none if the folder does not exist. */
static int names_list(const char *folder, int (*which)(const struct dirent *),
                      struct dirent ***names)
{
    int n = scandir(folder, names, which, alphasort);
    return n < 0 ? 0 : n;
}

static void names_free(struct dirent **names, int n)
{
    for (int i = 0; i < n; i++) free(names[i]);
    if (n) free((void *)names);
}

/* ---- a parameter --------------------------------------------------------------------------------------- */

/* {"param": x, ...}, or x itself. */
static ds_value *universal_tensor(const ds_value *file)
{
    ds_value *x = ds_value_kind_of(file) == DS_VALUE_DICT ? ds_value_get(file, DSI_STATE_PARAM)
                                                          : (ds_value *)(uintptr_t)file;
    if (ds_value_kind_of(x) == DS_VALUE_TENSOR) return x;
    return dsi_refuse("it has %s: expected a tensor, or a dict with \"" DSI_STATE_PARAM "\"",
                      ds_value_class(file));
}

static ds_status universal_step(const ds_value *v, int64_t *step)
{
    double x;
    if (ds_value_kind_of(v) == DS_VALUE_INT) return ds_value_read_int(v, "", step);
    if (ds_value_read_float(v, "", &x) != DS_OK) return ds_error_status();
    *step = x >= 0 && x < 0x1p53 ? (int64_t)x : 0;
    return DS_OK;
}

/* The shape that the model file names for a flat tensor; false: none. */
static bool universal_named_shape(const dsi_loaded *l, const char *name, ds_dims *shape)
{
    const ds_value *groups = ds_value_get(l->model, DSI_STATE_PARAM_SHAPES);
    for (int64_t g = 0; g < ds_value_len(groups); g++) {
        const ds_value *v = ds_value_get(ds_value_at(groups, g), name);
        if (v && dsi_load_read_shape(v, shape) == DS_OK) return true;
    }
    return false;
}

/* One file of a parameter: `kind` is the file's name without the suffix. */
static ds_status universal_file_read(dsi_loaded *l, const char *path, const char *kind,
                                     dsi_load_group *g, ds_value *state, int64_t *step)
{
    const ds_value *file = dsi_load_open_file(l, path);
    if (!file) return ds_error_status();
    if (!strcmp(kind, DSI_STATE_STEP)) return dsi_load_fail_in(l, file, universal_step(file, step));
    ds_value *x = universal_tensor(file);
    if (!x) return dsi_load_fail_in(l, file, ds_error_status());
    if (!strcmp(kind, DSI_LOAD_WEIGHTS))
        g->weights = x;
    else
        return ds_value_set(state, kind, dsi_value_ref(x));
    return DS_OK;
}

/* state: of the optimizer is read too. The kinds of chunks are keys of a dict
 * that l owns. */
static ds_status universal_files_read(dsi_loaded *l, const char *name, bool state,
                                      dsi_load_group *g, int64_t *step)
{
    dsi_text folder = dsi_text_of("%s/" DSI_FOLDER_UNIVERSAL "/%s", l->folder, name);
    struct dirent **files;
    int n = names_list(folder.s, name_is_file, &files);
    ds_value *moments = ds_value_dict();
    ds_status status = DS_OK;
    dsi_list_add(&l->files, (dsi_load_file){folder.s, moments});
    g->state = moments;
    for (int i = 0; status == DS_OK && i < n; i++) {
        dsi_text path = dsi_text_of(DSI_FOLDER_UNIVERSAL "/%s/%s", name, files[i]->d_name);
        files[i]->d_name[strlen(files[i]->d_name) - strlen(SUFFIX)] = 0;
        if (state || !strcmp(files[i]->d_name, DSI_LOAD_WEIGHTS))
            status = universal_file_read(l, path.s, files[i]->d_name, g, moments, step);
        dsi_text_free(&path);
    }
    names_free(files, n);
    return status;
}

static ds_status universal_average_read(dsi_loaded *l, const char *name, dsi_load_group *g)
{
    dsi_text path = dsi_text_of(DSI_FOLDER_AVERAGES "/%s" SUFFIX, name);
    const ds_value *file = dsi_load_has_file(l, path.s) ? dsi_load_open_file(l, path.s) : NULL;
    dsi_text_free(&path);
    if (!file) return DS_OK;
    g->averages = universal_tensor(file);
    return g->averages ? DS_OK : dsi_load_fail_in(l, file, ds_error_status());
}

/* A parameter without a folder is none: dsi_load_check names it. */
static ds_status universal_param_read(dsi_loaded *l, const char *name, bool state)
{
    dsi_load_group g = {0};
    int64_t step = state ? l->universal_step : 0;
    ds_dims shape;
    ds_status status = universal_files_read(l, name, state, &g, &step);
    if (status == DS_OK && state) status = universal_average_read(l, name, &g);
    if (status != DS_OK || !g.weights) return status;
    const ds_tensor *x = dsi_load_read_tensor(g.weights, "");
    if (!x) return ds_error_status();
    if (x->shape.n != 1 || !universal_named_shape(l, name, &shape) ||
        dsi_numel(shape) != dsi_numel(x->shape))
        shape = x->shape;
    dsi_load_param *p = dsi_load_add_param(l, name, shape);
    if (!p) return ds_error_status();
    p->step = state && ds_value_len(g.state) ? step : 0;
    return dsi_load_add_chunks(p, &g, 0, dsi_numel(shape), 0);
}

/* ---- the folder ---------------------------------------------------------------------------------------- */

/* Whether the model file has it whole, as stages 0 to 2 save it. */
static bool universal_in_model_file(const dsi_loaded *l, const char *name, const ds_tensor *x)
{
    const ds_value *v = dsi_load_model_value(l, name);
    ds_tensor *saved;
    return ds_value_kind_of(v) == DS_VALUE_TENSOR && ds_value_read_tensor(v, "", &saved) == DS_OK &&
           dsi_same_shape(saved->shape, x->shape);
}

/* A name that the model file has must have a folder. */
static ds_status universal_check_found(const dsi_loaded *l, const char *name)
{
    if (dsi_load_find_param(l, name) || !dsi_load_model_value(l, name)) return DS_OK;
    return dsi_fail(DS_EFORMAT,
                    "%s/" DSI_FOLDER_UNIVERSAL "/%s/" DSI_LOAD_WEIGHTS SUFFIX
                    " is missing: the checkpoint was not copied whole",
                    l->folder, name);
}

/* All tensors of the model of the engine. */
static ds_status universal_params_of(dsi_loaded *l, const ds_engine *e, bool optimizer)
{
    const dsi_flat *f = e->zero ? dsi_zero_flat(e->zero) : NULL;
    ds_state *state = ds_module_state(e->model);
    ds_status status = DS_OK;
    for (int k = 0; f && status == DS_OK && k < f->n; k++) {
        const char *name = dsi_flat_path(f, e->model, k);
        status = universal_param_read(l, name, optimizer && f->param[k].begin < f->param[k].end);
        if (status == DS_OK) status = universal_check_found(l, name);
    }
    for (int i = 0; status == DS_OK && i < ds_state_len(state); i++) {
        const char *name = ds_state_name(state, i);
        if (!dsi_load_find_param(l, name) &&
            !universal_in_model_file(l, name, ds_state_at(state, i)))
            status = universal_param_read(l, name, false);
    }
    ds_state_free(state);
    return status;
}

/* All parameters that the folder has; buffers are in the model file. */
static ds_status universal_params_all(dsi_loaded *l)
{
    char *zero = dsi_path_in(l->folder, DSI_FOLDER_UNIVERSAL);
    struct dirent **names;
    int n = names_list(zero, name_is_param, &names);
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < n; i++)
        if (!dsi_load_is_buffer(l, names[i]->d_name))
            status = universal_param_read(l, names[i]->d_name, true);
    names_free(names, n);
    dsi_free(zero);
    return status;
}

ds_status dsi_load_universal(dsi_loaded *l, const dsi_load_reader *who)
{
    ds_status status = ds_value_read_int(l->model, DSI_STATE_DP_WORLD_SIZE, &l->ranks);
    if (status != DS_OK) return dsi_load_fail_in(l, l->model, status);
    l->has_optimizer = dsi_load_has_file(l, DSI_FILE_UNIVERSAL);
    if (l->has_optimizer && !(l->universal = dsi_load_open_file(l, DSI_FILE_UNIVERSAL)))
        return ds_error_status();
    const ds_value *step = ds_value_find(l->universal, DSI_STATE_OPTIMIZER_STATE_DICT
                                         "/" DSI_STATE_STATE "/0/" DSI_STATE_STEP);
    if (step) status = dsi_load_fail_in(l, l->universal, universal_step(step, &l->universal_step));
    if (status != DS_OK) return status;
    return who->engine ? universal_params_of(l, who->engine, who->optimizer && l->has_optimizer)
                       : universal_params_all(l);
}
