/* tools/zero_to_fp32.c: the weights of a checkpoint in float32, in one file,
 * for programs that know nothing of ranks.
 *
 *     zero_to_fp32 CHECKPOINT_DIR OUT [-t TAG] [--max_shard_size 5GB] [--safe_serialization]
 *                  [--exclude_frozen_parameters] [-d]
 *
 * As DeepSpeed's script of that name, for checkpoints of ds_engine_save and of
 * DeepSpeed itself, of every stage. A weight is a set of chunks in mapped files
 * (Note [Chunks] in engine/checkpoint/load.h), which are put together while
 * they are written, a few MiB at a time: so it needs no memory for the model.
 * SPDX-License-Identifier: MIT */
#include "parse_options.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save_plan.h"
#include "engine/checkpoint/folder.h"
#include "engine/checkpoint/load_whole.h"
#include "tensor/tensor.h"

#include <deepspeed.h>

#include <argp.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_SHARD 5000000000 /* bytes */

typedef struct Options {
    const char *dir, *out, *tag;
    int64_t most; /* bytes of a shard */
    bool safe, no_frozen, debug;
} Options;

typedef struct Export {
    const Options *o;
    dsi_loaded l;
    ds_value *dict;
    dsi_load_sources sources;
    int trained, frozen; /* tensors */
    int64_t trained_elements, frozen_elements;
} Export;

/* ---- kinds of tensors ------------------------------------------------------------------------------------ */

static void say_tensor(const Export *e, const char *name, ds_dims shape)
{
    if (e->o->debug)
        printf("%s full shape: %s unpartitioned numel %" PRId64 "\n", name, dsi_shape_text(shape),
               dsi_numel(shape));
}

static ds_status add_trained(Export *e, const char *name, const dsi_load_param *p)
{
    int64_t n = dsi_numel(p->shape), has = dsi_load_count(p, DSI_LOAD_WEIGHTS, 0, n);
    if (has != n)
        return dsi_fail(DS_EFORMAT,
                        "%s: consumed %" PRId64 " numels out of %" PRId64
                        " of %s: a shard is missing, or of another checkpoint",
                        e->l.folder, has, n, name);
    e->trained++;
    e->trained_elements += n;
    say_tensor(e, name, p->shape);
    return ds_value_set(e->dict, name, dsi_load_param_value(&e->sources, p, DSI_LOAD_WEIGHTS));
}

/* Adds a tensor of the model as the checkpoint has it, floating point in
 * float32. */
static ds_status add_as_it_is(Export *e, const char *name, ds_value *v)
{
    ds_dtype dtype = dsi_value_dtype(v);
    say_tensor(e, name, dsi_value_shape(v));
    if (dtype != DS_F16 && dtype != DS_BF16 && dtype != DS_F64)
        return ds_value_set(e->dict, name, dsi_value_ref(v));
    ds_value *x = dsi_load_tensor_value(&e->sources, v);
    return x ? ds_value_set(e->dict, name, x) : ds_error_status();
}

/* v: a frozen parameter as the model file has it; p: of stage 3, from the files
 * of all ranks, else NULL. */
static ds_status add_frozen(Export *e, const char *name, const ds_value *v, const dsi_load_param *p)
{
    ds_dims shape = p ? p->shape : dsi_value_shape(v);
    ds_value *x = p ? dsi_load_param_value(&e->sources, p, DSI_LOAD_WEIGHTS)
                    : dsi_load_tensor_value(&e->sources, v);
    if (!x) return ds_error_status();
    e->frozen++;
    e->frozen_elements += dsi_numel(shape);
    say_tensor(e, name, shape);
    return ds_value_set(e->dict, name, x);
}

/* ---- the dict -------------------------------------------------------------------------------------------- */

static ds_status export_add_tensor(Export *e, const char *name, ds_value *v)
{
    const dsi_load_param *p = dsi_load_find_param(&e->l, name);
    const ds_value *frozen = ds_value_find(e->l.model, "frozen_param_shapes");
    if (ds_value_get(frozen, name)) return e->o->no_frozen ? DS_OK : add_frozen(e, name, v, p);
    if (p) return add_trained(e, name, p);
    if (ds_value_kind_of(v) != DS_VALUE_TENSOR) return DS_OK;
    if (!e->l.params.n && !dsi_load_is_buffer(&e->l, name)) {
        e->trained++;
        e->trained_elements += dsi_numel(dsi_value_shape(v));
    }
    return add_as_it_is(e, name, v);
}

/* Names that share a parameter: {alias: name}. */
static ds_status add_shared(Export *e, const ds_value *shared)
{
    ds_status status = DS_OK;
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(shared); i++) {
        const char *alias = ds_value_text(ds_value_key_at(shared, i)),
                   *name = ds_value_text(ds_value_at(shared, i));
        ds_value *v = name ? ds_value_get(e->dict, name) : NULL;
        if (alias && v) status = ds_value_set(e->dict, alias, dsi_value_ref(v));
    }
    return status;
}

/* layer_L_expert_E_...: DeepSpeed keeps experts in files of their own, in the
 * dtype of the model. */
static ds_status export_add_experts(Export *e)
{
    glob_t files = {0};
    ds_status status = DS_OK;
    char *pattern = dsi_path_in(e->l.folder, "layer_*_expert_*_model_states.pt");
    bool found = glob(pattern, 0, NULL, &files) == 0;
    for (size_t i = 0; found && status == DS_OK && i < files.gl_pathc; i++) {
        const ds_value *v = dsi_load_open_file(&e->l, strrchr(files.gl_pathv[i], '/') + 1);
        if (!v) status = ds_error_status();
        for (int64_t k = 0; status == DS_OK && k < ds_value_len(v); k++) {
            const char *name = ds_value_text(ds_value_key_at(v, k));
            ds_value *x = ds_value_at(v, k);
            if (name && !ds_value_get(e->dict, name) && ds_value_kind_of(x) == DS_VALUE_TENSOR)
                status = add_as_it_is(e, name, x);
        }
    }
    if (found) globfree(&files);
    dsi_free(pattern);
    return status;
}

static ds_status export_make_dict(Export *e)
{
    const ds_value *module = ds_value_get(e->l.model, "module"),
                   *shared = ds_value_get(e->l.model, "shared_params");
    ds_status status = DS_OK;
    e->dict = ds_value_dict();
    for (int64_t i = 0; status == DS_OK && i < ds_value_len(module); i++) {
        const char *name = ds_value_text(ds_value_key_at(module, i));
        if (name && !ds_value_get(shared, name))
            status = export_add_tensor(e, name, ds_value_at(module, i));
    }
    for (int i = 0; status == DS_OK && i < e->l.params.n; i++)
        if (!ds_value_get(e->dict, e->l.params.at[i].name))
            status = add_trained(e, e->l.params.at[i].name, e->l.params.at[i].value);
    if (status == DS_OK) status = add_shared(e, shared);
    return status == DS_OK ? export_add_experts(e) : status;
}

/* ---- what was found -------------------------------------------------------------------------------------- */

static void say_what(const Export *e)
{
    const char *version = ds_value_text(ds_value_get(e->l.model, "ds_version"));
    if (version) printf("Parsing checkpoint created by deepspeed==%s\n", version);
    printf("Detected checkpoint of type zero stage %" PRId64 ", world_size: %" PRId64 "\n",
           dsi_load_stage(&e->l), e->l.ranks);
    if (!e->l.params.n)
        printf("There are no float32 masters in it: weights are those of the model\n");
}

static void say_counts(const Export *e)
{
    if (e->frozen)
        printf("Reconstructed Frozen fp32 state dict with %d params %" PRId64 " elements\n",
               e->frozen, e->frozen_elements);
    printf("Reconstructed %sfp32 state dict with %d params %" PRId64 " elements\n",
           dsi_load_stage(&e->l) == 3 ? "Trainable " : "", e->trained, e->trained_elements);
}

/* ---- files ----------------------------------------------------------------------------------------------- */

static bool is_file_name(const char *out)
{
    return dsi_is_pth(out) || dsi_ends_with(out, ".safetensors");
}

/* The checkpoint's folder, to be freed; NULL with the message. */
static char *find_tag_folder(const Options *o)
{
    if (!dsi_is_folder(o->dir)) return dsi_refuse("Directory '%s' doesn't exist", o->dir);
    char *latest = dsi_path_in(o->dir, "latest"),
         *model = dsi_path_in(o->dir, "mp_rank_00_model_states.pt"),
         *divided = dsi_path_in(o->dir, "zero_pp_rank_0_mp_rank_00_model_states.pt");
    bool named = o->tag || dsi_file_exists(latest),
         itself = dsi_file_exists(model) || dsi_file_exists(divided);
    char *tag = o->tag  ? dsi_strdup(o->tag)
                : named ? dsi_folder_latest(o->dir, DSI_LATEST)
                        : NULL,
         *folder = NULL;
    if (tag) folder = dsi_path_in(o->dir, tag);
    if (tag && !dsi_is_folder(folder)) {
        dsi_refuse("Directory '%s' doesn't exist", folder);
        dsi_free(folder);
        folder = NULL;
    }
    if (!named && itself) folder = dsi_strdup(o->dir);
    if (!named && !itself) dsi_refuse("Unable to find 'latest' file at %s", latest);
    dsi_free(tag), dsi_free(latest), dsi_free(model), dsi_free(divided);
    return folder;
}

static ds_status export_write(const Export *e)
{
    const Options *o = e->o;
    if (is_file_name(o->out)) return dsi_save_dict_sharded(e->dict, o->out, o->most);
    char *path = dsi_path_in(o->out, o->safe ? "model.safetensors" : "pytorch_model.bin");
    ds_status status = dsi_mkdirs(o->out);
    if (status == DS_OK) status = dsi_save_dict_sharded(e->dict, path, o->most);
    dsi_free(path);
    return status;
}

/* Where the model file has the optimizer too, weights can do without it: it may
 * have groups of parameters that nothing names. */
static ds_status export_load(Export *e, const char *folder)
{
    dsi_load_reader reader = {.ranks = 1, .optimizer = true};
    ds_status status = dsi_load_verify(folder, 0, 1);
    if (status != DS_OK) return status;
    status = dsi_load_files(&e->l, folder, &reader);
    bool whole = ds_value_kind_of(ds_value_get(e->l.model, "optimizer")) == DS_VALUE_DICT;
    if (status == DS_OK || e->l.own || !whole) return status;
    ds_error_clear();
    dsi_loaded_free(&e->l);
    e->l = (dsi_loaded){0};
    reader.optimizer = false;
    return dsi_load_files(&e->l, folder, &reader);
}

static ds_status export_folder(Export *e, const char *folder)
{
    printf("Processing zero checkpoint '%s'\n", folder);
    fflush(stdout);
    ds_status status = export_load(e, folder);
    if (status == DS_OK) status = dsi_load_check_shards(&e->l);
    if (status != DS_OK) return status;
    say_what(e);
    status = export_make_dict(e);
    if (status == DS_OK) say_counts(e);
    return status == DS_OK ? export_write(e) : status;
}

static ds_status run_export(const Options *o)
{
    Export e = {.o = o};
    char *folder = find_tag_folder(o);
    if (!folder) return ds_error_status();
    ds_scope *scope = ds_scope_open();
    ds_status status = export_folder(&e, folder);
    ds_value_free(e.dict);
    dsi_load_sources_free(&e.sources);
    dsi_loaded_free(&e.l);
    ds_scope_close(scope);
    dsi_free(folder);
    return status;
}

/* ---- options --------------------------------------------------------------------------------------------- */

/* "5GB" -> 5000000000, "1MiB" -> 1048576; 0: neither. */
static int64_t parse_bytes(const char *text)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},       {"KB", 1e3},      {"MB", 1e6},         {"GB", 1e9},    {"TB", 1e12},
                 {"KIB", 1024}, {"MIB", 1048576}, {"GIB", 1073741824}, {"TIB", 0x1p40}};
    char *end;
    double x = strtod(text, &end);
    for (size_t i = 0; end != text && i < sizeof units / sizeof *units; i++)
        if (!strcasecmp(end, units[i].unit) && x * units[i].bytes >= 1 &&
            x * units[i].bytes < 0x1p62)
            return (int64_t)(x * units[i].bytes);
    return 0;
}

enum { MAX_SHARD = 256, SAFE, NO_FROZEN };

static error_t export_parse_option(int key, char *arg, struct argp_state *state)
{
    Options *o = state->input;
    switch (key) {
    case MAX_SHARD:
        o->most = parse_bytes(arg);
        if (!o->most)
            argp_error(state, "--max_shard_size %s: expected a size such as 5GB or 200MB", arg);
        return 0;
    case SAFE:
        o->safe = true;
        return 0;
    case NO_FROZEN:
        o->no_frozen = true;
        return 0;
    case 't':
        o->tag = arg;
        return 0;
    case 'd':
        o->debug = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0) o->dir = arg;
        if (state->arg_num == 1) o->out = arg;
        if (state->arg_num > 1) argp_error(state, "\"%s\": expected two arguments", arg);
        return 0;
    case ARGP_KEY_END:
        if (!o->out) argp_error(state, "expected CHECKPOINT_DIR and OUT");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"tag", 't', "TAG", 0, "The checkpoint of this name, not the one that `latest` names", 0},
        {"max_shard_size", MAX_SHARD, "SIZE", 0, "Of a file, e.g. 200MB; more make several (5GB)",
         0},
        {"safe_serialization", SAFE, NULL, 0, "Write model.safetensors, not pytorch_model.bin", 0},
        {"exclude_frozen_parameters", NO_FROZEN, NULL, 0, "Only what was trained", 0},
        {"debug", 'd', NULL, 0, "Say each tensor", 0},
        {0}};
    const struct argp argp = {
        options,
        export_parse_option,
        "CHECKPOINT_DIR OUT",
        "Puts the float32 weights of a checkpoint together, of deepspeed.c or DeepSpeed, any stage "
        "and number of "
        "ranks.\vOUT is a folder, or a file if it ends in .pth, .pt, .bin or .safetensors.",
        NULL,
        NULL,
        NULL};
    Options o = {.most = DEFAULT_SHARD};
    argp_program_version = "zero_to_fp32 (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, 0, &o)) return 2;
    if (run_export(&o) == DS_OK) return EXIT_SUCCESS;
    fflush(stdout);
    ds_perror("zero_to_fp32");
    return EXIT_FAILURE;
}
