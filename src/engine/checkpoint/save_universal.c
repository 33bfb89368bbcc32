/* engine/checkpoint/save_universal.c: a checkpoint as a universal one: a folder
 * for each parameter, whatever ranks and stage it was saved on
 * (load_universal.c lists the files).
 *
 * As DeepSpeed's ds_to_universal.py. Unlike the script's, the output loads in
 * DeepSpeed in each of the stages 1 to 3: parameters have their shape, and
 * optimizer_state.pt and the model file have the keys and names of all. Each
 * parameter is written once, out of mapped files, without a temporary folder.
 *
 * Note [Workers] A worker is a thread that is a rank (ds_run_ranks) and reads
 * the checkpoint for itself, because values belong to a thread. Worker r of n
 * writes parameters r, r + n, ...; worker 0 also everything else.
 *
 * Invariants: the output is written to .saving-TAG and renamed when it is
 * complete (folder.h); the input does not change.
 * SPDX-License-Identifier: MIT */
#include "load_whole.h"

#include "base/file.h"
#include "base/mapping.h"
#include "folder.h"
#include "universal.h"

#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Shared by all workers, and constant while they run. */
typedef struct Job {
    const dsi_universal_opts *o;
    char *dir, *tag, *saving; /* of the output: DIR/TAG, written to .saving-TAG */
} Job;

/* One worker. */
typedef struct Worker {
    const Job *job;
    dsi_loaded l;
    dsi_load_sources sources;
    int rank, ranks;
} Worker;

/* A line of progress for the caller. */
__attribute__((format(printf, 2, 3))) static void job_say(const Job *j, const char *format, ...)
{
    char line[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (j->o->say) j->o->say(line);
}

/* ---- files ----------------------------------------------------------------------------------------------- */

/* saving/FOLDER/NAME.pt; takes v. */
static ds_status write_file(const Worker *w, const char *folder, const char *name, ds_value *v)
{
    dsi_text path = dsi_text_of("%s/%s", w->job->saving, folder);
    ds_status status = v ? dsi_mkdirs(path.s) : ds_error_status();
    dsi_text_add(&path, "/%s.pt", name);
    if (status == DS_OK) status = dsi_pth_write(v, path.s, NULL);
    dsi_text_free(&path);
    ds_value_free(v);
    return status;
}

/* {"param": x, "cat_dim": 0}, as DeepSpeed loads it in every stage; takes x. */
static ds_status write_tensor(const Worker *w, const char *folder, const char *name, ds_value *x)
{
    ds_value *v = x ? ds_value_dict() : NULL;
    if (x && (ds_value_set(v, DSI_STATE_CAT_DIM, ds_value_int(0)) != DS_OK ||
              ds_value_set(v, DSI_STATE_PARAM, x) != DS_OK)) {
        ds_value_free(v);
        v = NULL;
    }
    return write_file(w, folder, name, v);
}

static ds_status copy_file(const char *from, const char *to)
{
    dsi_mapping *m = dsi_mapping_open("ds_to_universal", from, NULL);
    dsi_file *f = m ? dsi_file_create(to) : NULL;
    if (f) dsi_file_write(f, m->p, m->bytes);
    ds_status status = m ? dsi_file_commit(f) : ds_error_status();
    dsi_mapping_unref(m);
    return status;
}

/* ---- parameters ------------------------------------------------------------------------------------------ */

/* Each kind of chunks that p has, once. */
static bool kind_is_first(const dsi_load_param *p, int i)
{
    for (int k = 0; k < i; k++)
        if (!strcmp(p->at[k].kind, p->at[i].kind)) return false;
    return true;
}

/* 1: all elements; 0: some are missing, which is a failure or, with --no_strict,
 * a line. */
static int kind_is_whole(const Worker *w, const char *name, const dsi_load_param *p,
                         const char *kind)
{
    int64_t n = dsi_numel(p->shape), has = dsi_load_count(p, kind, 0, n);
    if (has == n) return 1;
    if (w->job->o->not_strict)
        job_say(w->job, "%s of %s has %lld of %lld elements: it is left out", kind, name,
                (long long)has, (long long)n);
    else
        dsi_fail(DS_EFORMAT,
                 "%s: %s of %s has %lld of %lld elements: a shard is missing, or of another "
                 "checkpoint: --no_strict leaves it out",
                 w->l.folder, kind, name, (long long)has, (long long)n);
    return 0;
}

static ds_status write_kind(Worker *w, const char *name, const dsi_load_param *p, const char *kind)
{
    bool average = !strcmp(kind, DSI_LOAD_AVERAGE);
    if (!kind_is_whole(w, name, p, kind)) return w->job->o->not_strict ? DS_OK : ds_error_status();
    dsi_text folder = dsi_text_of(average ? DSI_FOLDER_AVERAGES : DSI_FOLDER_UNIVERSAL "/%s", name);
    ds_status status = write_tensor(w, folder.s, average ? name : kind,
                                    dsi_load_param_value(&w->sources, p, kind));
    dsi_text_free(&folder);
    return status;
}

/* Whether steps are tensors, as torch.optim's Adam needs them, or ints, as
 * DeepSpeed's own needs them: as in the input; of ours as its configuration
 * chooses. */
static bool step_is_tensor(const dsi_loaded *l)
{
    static const char *const paths[] = {
        "", DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_BASE_STATE "/state/0/step",
        DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_OPTIMIZER_STATE_DICT "/state/0/step",
        DSI_STATE_OPTIMIZER "/state/0/step",
        DSI_STATE_OPTIMIZER "/" DSI_STATE_OPTIMIZER_STATE_DICT "/state/0/step"};
    const char *own = DSI_STATE_DS_CONFIG "/optimizer/params/torch_adam";
    bool chosen = false;
    if (l->own && ds_value_kind_of(ds_value_find(l->model, own)) == DS_VALUE_BOOL)
        return ds_value_read_bool(l->model, own, &chosen) == DS_OK && chosen;
    for (int i = 0; !l->own && i < l->files.n; i++)
        for (size_t k = 0; k < sizeof paths / sizeof *paths; k++) {
            bool itself = !*paths[k];
            if (itself && !dsi_ends_with(l->files.at[i].path, "/step.pt")) continue;
            if (ds_value_kind_of(ds_value_find(l->files.at[i].value, paths[k])) == DS_VALUE_TENSOR)
                return true;
        }
    return false;
}

static ds_value *step_value(const dsi_loaded *l, int64_t step)
{
    return step_is_tensor(l) ? ds_value_tensor(ds_scalar(DS_F32, (double)step))
                             : ds_value_int(step);
}

static ds_status write_param(Worker *w, const char *name, const dsi_load_param *p)
{
    ds_status status = DS_OK;
    bool moments = false;
    for (int i = 0; status == DS_OK && i < p->n; i++) {
        const char *kind = p->at[i].kind;
        if (!kind_is_first(p, i)) continue;
        moments = moments ||
                  (strcmp(kind, DSI_LOAD_WEIGHTS) != 0 && strcmp(kind, DSI_LOAD_AVERAGE) != 0);
        status = write_kind(w, name, p, kind);
    }
    dsi_text folder = dsi_text_of(DSI_FOLDER_UNIVERSAL "/%s", name);
    if (status == DS_OK && moments)
        status = write_file(w, folder.s, DSI_STATE_STEP, step_value(&w->l, p->step));
    dsi_text_free(&folder);
    return status;
}

/* Buffers and frozen parameters, which the script writes too; its readers take
 * them from the model file. */
static ds_status write_untrained(Worker *w, const char *name, const ds_value *x)
{
    if (dsi_load_find_param(&w->l, name) || ds_value_kind_of(x) != DS_VALUE_TENSOR) return DS_OK;
    ds_value *v = dsi_load_tensor_value(&w->sources, x);
    dsi_text folder = dsi_text_of(DSI_FOLDER_UNIVERSAL "/%s", name);
    ds_status status = write_tensor(w, folder.s, DSI_LOAD_WEIGHTS, v);
    dsi_text_free(&folder);
    return status;
}

/* Note [Workers]: its share of the parameters. */
static ds_status write_params(Worker *w)
{
    const ds_value *module = ds_value_get(w->l.model, DSI_STATE_MODULE);
    ds_status status = DS_OK;
    for (int i = w->rank; status == DS_OK && i < w->l.params.n; i += w->ranks)
        status = write_param(w, w->l.params.at[i].name, w->l.params.at[i].value);
    for (int64_t i = w->rank; status == DS_OK && i < ds_value_len(module); i += w->ranks) {
        const char *name = ds_value_text(ds_value_key_at(module, i));
        if (name) status = write_untrained(w, name, ds_value_at(module, i));
    }
    for (int i = w->rank; status == DS_OK && i < w->l.experts.n; i += w->ranks)
        status = write_untrained(w, w->l.experts.at[i].name, w->l.experts.at[i].value);
    return status;
}

/* ---- optimizer_state.pt ---------------------------------------------------------------------------------- */

/* The optimizer's own parameter groups, wherever the checkpoint has them. */
static const ds_value *find_groups(const dsi_loaded *l)
{
    static const char *const paths[] = {
        DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_BASE_STATE "/" DSI_STATE_PARAM_GROUPS,
        DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_OPTIMIZER_STATE_DICT
                                       "/" DSI_STATE_PARAM_GROUPS,
        DSI_STATE_OPTIMIZER "/" DSI_STATE_PARAM_GROUPS,
        DSI_STATE_OPTIMIZER "/" DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_PARAM_GROUPS};
    const ds_value *v = ds_value_find(l->own, DSI_STATE_OPTIMIZER "/" DSI_STATE_GROUPS);
    if (v) return v;
    if (l->universal) return ds_value_get(l->universal, DSI_STATE_PARAM_GROUPS);
    for (int i = 0; i < l->files.n; i++)
        for (size_t k = 0; k < sizeof paths / sizeof *paths; k++)
            if ((v = ds_value_find(l->files.at[i].value, paths[k]))) return v;
    return NULL;
}

/* Each group with one parameter, as a stage's flat tensor is to torch.optim. */
static ds_value *groups_value(const dsi_loaded *l)
{
    const ds_value *groups = find_groups(l);
    ds_value *all = ds_value_list();
    for (int64_t g = 0; g < ds_value_len(groups); g++) {
        const ds_value *from = ds_value_at(groups, g);
        ds_value *one = ds_value_dict(), *params = ds_value_list();
        bool good = ds_value_append(params, ds_value_int(g)) == DS_OK;
        for (int64_t i = 0; i < ds_value_len(from); i++) {
            const char *key = ds_value_text(ds_value_key_at(from, i));
            if (key && strcmp(key, DSI_STATE_PARAMS) != 0)
                good = ds_value_set(one, key, dsi_value_ref(ds_value_at(from, i))) == DS_OK && good;
        }
        good = ds_value_set(one, DSI_STATE_PARAMS, params) == DS_OK && good;
        if (ds_value_append(all, one) != DS_OK || !good) return NULL;
    }
    return all;
}

/* The loss scale continues: DeepSpeed's object as its attributes, ours under their
 * names. */
static ds_status scaler_put(const dsi_loaded *l, ds_value *to)
{
    static const char *const names[][2] = {{"scale", DSI_STATE_CUR_SCALE},
                                           {"iter", DSI_STATE_CUR_ITER},
                                           {"last_overflow", DSI_STATE_LAST_OVERFLOW_ITER},
                                           {"hysteresis_left", DSI_STATE_CUR_HYSTERESIS}};
    const ds_value *own = ds_value_get(l->own, DSI_STATE_LOSS_SCALER), *theirs = dsi_load_scaler(l);
    ds_status status = DS_OK;
    for (int i = 0; status == DS_OK && i < 4; i++) {
        ds_value *v = own ? ds_value_get(own, names[i][0]) : ds_value_get(theirs, names[i][1]);
        ds_value_kind kind = ds_value_kind_of(v);
        if (kind == DS_VALUE_INT || kind == DS_VALUE_FLOAT)
            status = ds_value_set(to, names[i][1], dsi_value_ref(v));
    }
    return status;
}

/* The step of all parameters for stage 3, which has no file of it. */
static int64_t most_steps(const dsi_loaded *l)
{
    int64_t most = 0;
    for (int i = 0; i < l->params.n; i++) {
        const dsi_load_param *p = l->params.at[i].value;
        most = p->step > most ? p->step : most;
    }
    return most;
}

/* optimizer_state_dict: {state: {0: {step}}, param_groups}, which stage 3
 * reads; takes groups. */
static ds_value *stage3_value(const dsi_loaded *l, ds_value *groups)
{
    ds_value *v = ds_value_dict(), *state = ds_value_dict(), *first = ds_value_dict();
    bool good = ds_value_set(first, DSI_STATE_STEP, step_value(l, most_steps(l))) == DS_OK;
    good = ds_value_set_int(state, 0, first) == DS_OK && good;
    good = ds_value_set(v, DSI_STATE_STATE, state) == DS_OK && good;
    return ds_value_set(v, DSI_STATE_PARAM_GROUPS, groups) == DS_OK && good ? v : NULL;
}

/* The gradient clipping that the shards name; NULL: none do. */
static const ds_value *find_clip(const dsi_loaded *l)
{
    const ds_value *v = NULL;
    for (int i = 0; !v && i < l->files.n; i++)
        v = ds_value_find(l->files.at[i].value,
                          DSI_STATE_OPTIMIZER_STATE_DICT "/" DSI_STATE_CLIP_GRAD);
    return v ? v : ds_value_get(l->universal, DSI_STATE_CLIP_GRAD);
}

static ds_status write_optimizer_state(const Worker *w)
{
    const dsi_loaded *l = &w->l;
    int64_t stage = dsi_load_stage(l);
    ds_value *v = ds_value_dict(), *groups = groups_value(l);
    const ds_value *clip = find_clip(l), *version = ds_value_get(l->model, DSI_STATE_DS_VERSION);
    ds_status status = groups ? ds_value_set(v, DSI_STATE_PARAM_GROUPS, dsi_value_ref(groups))
                              : ds_error_status();
    if (status == DS_OK)
        status = ds_value_set(v, DSI_STATE_OPTIMIZER_STATE_DICT, stage3_value(l, groups));
    if (status == DS_OK) status = ds_value_set(v, DSI_STATE_ZERO_STAGE, ds_value_int(stage));
    if (status == DS_OK) status = ds_value_set(v, DSI_STATE_OVERFLOW, ds_value_bool(false));
    if (status == DS_OK)
        status = ds_value_set(v, DSI_STATE_DS_VERSION,
                              version ? dsi_value_ref((ds_value *)(uintptr_t)version)
                                      : ds_value_string(DSI_DS_VERSION));
    if (status == DS_OK && clip)
        status = ds_value_set(v, DSI_STATE_CLIP_GRAD, dsi_value_ref((ds_value *)(uintptr_t)clip));
    if (status == DS_OK) status = scaler_put(l, v);
    if (status != DS_OK) {
        ds_value_free(v);
        return status;
    }
    return write_file(w, DSI_FOLDER_UNIVERSAL, "optimizer_state", v);
}

/* ---- files of the model and of ranks --------------------------------------------------------------------- */

/* The version of the form, where a program that reads it looks for it. */
static ds_status inject_info(const char *from, const char *to)
{
    ds_value *v = ds_value_load(from, .objects = true);
    if (!v) return ds_error_status();
    ds_value *info = ds_value_dict();
    ds_status status = ds_value_set(info, "universal_checkpoint_version", ds_value_float(0.4));
    if (ds_value_get(v, DSI_STATE_UNIVERSAL_INFO))
        ds_value_free(info);
    else if (status == DS_OK)
        status = ds_value_set(v, DSI_STATE_UNIVERSAL_INFO, info);
    if (status == DS_OK) status = dsi_pth_write(v, to, NULL);
    ds_value_free(v);
    return status;
}

static ds_status copy_files(const Worker *w, const char *pattern)
{
    glob_t files = {0};
    char *all = dsi_path_in(w->job->o->in, pattern);
    bool found = glob(all, 0, NULL, &files) == 0,
         inject = w->job->o->inject && strstr(pattern, "model_states");
    ds_status status = DS_OK;
    for (size_t i = 0; found && status == DS_OK && i < files.gl_pathc; i++) {
        char *to = dsi_path_in(w->job->saving, strrchr(files.gl_pathv[i], '/') + 1);
        status = inject ? inject_info(files.gl_pathv[i], to) : copy_file(files.gl_pathv[i], to);
        dsi_free(to);
    }
    if (found) globfree(&files);
    dsi_free(all);
    return status;
}

/* Stages 0 to 2 look for one name, stage 3 for the other: a second name of the
 * same file. */
static ds_status add_second_name(const Worker *w)
{
    char *one = dsi_path_in(w->job->saving, DSI_FILE_MODEL),
         *other = dsi_path_in(w->job->saving, DSI_FILE_MODEL_RANK_0);
    bool has = dsi_file_exists(one);
    ds_status status = DS_OK;
    if (link(has ? one : other, has ? other : one) != 0)
        status = copy_file(has ? one : other, has ? other : one);
    dsi_free(one), dsi_free(other);
    return status;
}

static ds_status write_rest(const Worker *w)
{
    job_say(w->job, "*** 3. Saving common optimizer states");
    ds_status status = write_optimizer_state(w);
    if (status == DS_OK) status = copy_files(w, "mp_rank_*_model_states.pt");
    if (status == DS_OK) status = copy_files(w, "zero_pp_rank_*_model_states.pt");
    if (status == DS_OK) status = copy_files(w, "rank_*_states.pt");
    return status == DS_OK ? add_second_name(w) : status;
}

/* ---- the job --------------------------------------------------------------------------------------------- */

static ds_status verify_body(void *arg)
{
    const Job *j = arg;
    ds_comm *c = ds_world();
    return dsi_load_verify(j->o->in, ds_comm_rank(c), ds_comm_size(c));
}

/* Files that only tensor- and pipeline-parallel runs write, and patterns that
 * change elements. */
static ds_status check_supported(const dsi_loaded *l)
{
    const ds_value *info = ds_value_get(l->model, DSI_STATE_UNIVERSAL_INFO);
    glob_t files = {0};
    char *tensor = dsi_path_in(l->folder, "*mp_rank_01*_states.pt"),
         *pipeline = dsi_path_in(l->folder, "layer_*-model_*states.pt");
    bool found = glob(tensor, 0, NULL, &files) == 0 || glob(pipeline, 0, NULL, &files) == 0;
    ds_status status = DS_OK;
    if (found)
        status = dsi_fail(DS_EINVAL,
                          "%s is of a tensor- or pipeline-parallel run, which is not supported: "
                          "DeepSpeed's ds_to_universal.py converts it, and the result loads here",
                          files.gl_pathv[0]);
    else if (ds_value_len(ds_value_get(info, "vocabulary_parameter_patterns")))
        status = dsi_fail(DS_EINVAL,
                          "%s has padded vocabularies (vocabulary_parameter_patterns), which are "
                          "not supported: DeepSpeed's ds_to_universal.py converts it",
                          l->folder);
    if (found) globfree(&files);
    dsi_free(tensor), dsi_free(pipeline);
    if (status != DS_OK || l->has_optimizer) return status;
    return dsi_fail(DS_EINVAL,
                    "%s has no state of an optimizer, of which a universal checkpoint is made: "
                    "zero_to_fp32 writes weights alone",
                    l->folder);
}

static ds_status write_body(void *arg)
{
    const dsi_load_reader reader = {.ranks = 1, .optimizer = true};
    ds_comm *c = ds_world();
    Worker w = {.job = arg, .rank = ds_comm_rank(c), .ranks = ds_comm_size(c)};
    ds_scope *scope = ds_scope_open();
    ds_status status = dsi_load_files(&w.l, w.job->o->in, &reader);
    if (status == DS_OK) status = check_supported(&w.l);
    if (status == DS_OK && !w.l.universal) status = dsi_load_check_shards(&w.l);
    if (status == DS_OK) status = write_params(&w);
    if (status == DS_OK && !w.rank) status = write_rest(&w);
    ds_scope_close(scope);
    dsi_load_sources_free(&w.sources);
    dsi_loaded_free(&w.l);
    return status;
}

static ds_status convert_into(Job *j)
{
    dsi_folder_locks locks;
    job_say(j, "*** 2. Merging slices .....");
    ds_status status = dsi_folder_begin(j->dir, j->tag, false, &locks);
    bool begun = status == DS_OK;
    if (begun) status = ds_run_ranks(j->o->writers, write_body, j);
    if (status == DS_OK) status = dsi_folder_publish_universal(j->dir, j->tag);
    if (begun && status != DS_OK) dsi_folder_abandon(j->dir, j->tag);
    dsi_folder_unlock(&locks);
    return status;
}

/* The folder around the checkpoints is a likely mistake for one of them. */
static ds_status check_input(const char *in)
{
    if (!dsi_is_folder(in)) return dsi_fail(DS_EIO, "Directory '%s' doesn't exist", in);
    char *latest = dsi_path_in(in, DSI_LATEST);
    char *tag = dsi_file_exists(latest) ? dsi_folder_latest(in, DSI_LATEST) : NULL;
    dsi_free(latest);
    ds_error_clear(); /* a damaged `latest` hints at nothing */
    if (!tag) return DS_OK;
    ds_status status = dsi_fail(DS_EINVAL,
                                "%s is a folder of checkpoints, expected one of them: the newest "
                                "is %s/%s",
                                in, in, tag);
    dsi_free(tag);
    return status;
}

ds_status dsi_universal_convert(const dsi_universal_opts *o)
{
    const char *slash = strrchr(o->out, '/');
    Job j = {.o = o};
    if (check_input(o->in) != DS_OK) return ds_error_status();
    if (dsi_file_exists(o->out))
        return dsi_fail(DS_EINVAL, "%s is there already: remove it, or name another folder",
                        o->out);
    job_say(&j, "*** 1. Verifying the checkpoint");
    ds_status status = ds_run_ranks(o->verifiers, verify_body, &j);
    if (status != DS_OK) return status;
    j.dir = slash ? dsi_text_of("%.*s", slash == o->out ? 1 : (int)(slash - o->out), o->out).s
                  : dsi_strdup(".");
    j.tag = dsi_strdup(slash ? slash + 1 : o->out);
    j.saving = dsi_folder_saving(j.dir, j.tag);
    status = convert_into(&j);
    dsi_free(j.dir), dsi_free(j.tag), dsi_free(j.saving);
    return status;
}
