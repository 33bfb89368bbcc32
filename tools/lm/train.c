/* tools/lm/train.c: ds_lm train and ds_lm eval.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "best.h"
#include "config/config.h"
#include "lm.h"
#include "paths.h"
#include "text/tokenizer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Train {
    LmOptions *o;
    ds_tokenizer *tokenizer;
    ds_engine *engine;
    ds_step_graph *graph; /* of train_step */
    bool masked;          /* some tokens of the data do not count in the loss */
    ds_dataset *held_out; /* until `eval` has it */
    ds_loader *eval;      /* NULL: no evaluation */
    LmPlan plan;
    double started, loss; /* of the steps since the last line */
    int64_t counted, first_step;
    Best best;               /* of --patience; its measure is the negative loss */
    bool stopped;            /* a signal has asked for that */
    ds_generate_opts sample; /* of --sample-interval */
} Train;

/* ---- data ---- */

/* The token that is written behind each document; NULL: none. */
static const char *end_token(const LmOptions *o, const ds_tokenizer *t)
{
    return o->end_token >= 0 ? ds_id_to_token(t, o->end_token) : NULL;
}

/* NULL, as after a failure, if file is NULL. from: the user's file, of which
 * `file` may be a packed copy. */
static ds_dataset *windows_of(const LmOptions *o, const char *file, const char *from)
{
    ds_dataset *d = file ? ds_token_dataset(file, o->context) : NULL;
    if (file && !d && strcmp(file, from) != 0)
        dsi_fail(ds_error_status(), "%s: %s", from, ds_error());
    return d;
}

/* Windows to train on; those to evaluate on, if there are any, go to
 * t->held_out. NULL after a failure. */
static ds_dataset *train_data(Train *t)
{
    const LmOptions *o = t->o;
    char path[4200];
    const char *end = end_token(o, t->tokenizer);
    snprintf(path, sizeof path, "%s/train.tokens", o->output);
    bool first = ds_comm_rank(NULL) == 0;
    const char *file = lm_tokens(o, t->tokenizer, o->data, (int)o->n_data, path, first, end);
    ds_dataset *all = windows_of(o, file, o->data[0]);
    if (!all) return NULL;
    t->masked = lm_tokens_masked(file);
    int64_t n = ds_dataset_len(all);
    if (o->eval_data) {
        snprintf(path, sizeof path, "%s/eval.tokens", o->output);
        file = lm_tokens(o, t->tokenizer, &o->eval_data, 1, path, first, end);
        t->held_out = windows_of(o, file, o->eval_data);
        return all;
    }
    int64_t held = (int64_t)((double)n * o->eval_split);
    if (held < 1 || held >= n) return all;
    t->held_out = ds_subset(windows_of(o, file, o->data[0]), n - held, held);
    return ds_subset(all, 0, n - held);
}

/* ---- evaluation ---- */

/* Adds up losses and labels of this rank's windows. All ranks have as many
 * batches, so that all gather the parameters of stage 3; the windows that a
 * loader repeats for that come last, and do not count. */
static ds_status eval_batches(ds_module *m, ds_loader *loader, double sum[2])
{
    ds_comm *world = ds_world();
    int64_t ranks = ds_comm_size(world), all = ds_dataset_len(ds_loader_dataset(loader));
    int64_t left = (all - ds_comm_rank(world) + ranks - 1) / ranks; /* of this rank */
    ds_batch b;
    ds_status status = DS_OK;
    while (status == DS_OK && ds_loader_next(loader, &b)) {
        int64_t rows = b.size < left ? b.size : left, n = lm_count_labels(b.y, rows);
        left -= rows;
        int64_t used = rows ? rows : 1;
        ds_tensor *loss = ds_call(m, ds_slice(b.x, 0, 0, used), ds_slice(b.y, 0, 0, used));
        if (!loss) status = ds_error_status();
        if (n) sum[0] += ds_item(loss) * (double)n, sum[1] += (double)n;
    }
    return ds_error() ? ds_error_status() : status;
}

/* Takes data. */
static ds_loader *eval_loader(ds_dataset *data, int64_t batch)
{
    ds_comm *world = ds_world();
    int ranks = ds_comm_size(world);
    ds_loader_opts o = {.batch_size = batch};
    if (ranks > 1) o.rank = ds_comm_rank(world), o.ranks = ranks;
    return ds_loader_new_with(data, o);
}

/* The mean loss over the loader's data, on all ranks together; NaN after a
 * failure. In stage 3 a rank that fails does so while others gather: they
 * learn of it by the engine, else here. */
static double eval_loss(ds_module *m, ds_loader *loader, int stage)
{
    double sum[2] = {0};
    bool training = ds_module_training(m), recording = ds_set_grad(false);
    ds_module_train(m, false);
    ds_status status = loader ? eval_batches(m, loader, sum) : ds_error_status();
    ds_module_train(m, training);
    ds_set_grad(recording);
    if (stage < 3) status = ds_comm_sync_status(NULL, status);
    if (status != DS_OK) return NAN;
    ds_scope *scope = ds_scope_open();
    ds_tensor *all = ds_from_data(DS_F64, ds_shape(2), sum);
    if (ds_all_reduce(NULL, all, DS_REDUCE_SUM) == DS_OK) memcpy(sum, ds_data(all), sizeof sum);
    ds_scope_close(scope);
    return sum[0] / sum[1];
}

/* ---- training ---- */

static bool is_vector(void *arg, const char *path, const ds_tensor *x)
{
    (void)arg, (void)path;
    return ds_ndim(x) < 2;
}

/* The configuration's optimizer; norms and biases do not decay. */
static ds_optim *make_optimizer(ds_module *model, void *arg)
{
    const LmPlan *p = arg;
    ds_optim *optim = ds_optim_by_name(model, p->optimizer, p->params);
    if (!optim || ds_optim_group_weight_decay(optim, 0) == 0) return optim;
    int from = -1; /* the group of all vectors: of Muon, AdamW's */
    for (int i = 0; i < ds_module_params(model); i++) {
        const char *path;
        ds_tensor *x = ds_module_param_at(model, i, &path);
        if (ds_ndim(x) < 2) from = ds_optim_group_of(optim, path);
    }
    if (from < 0) return optim;
    int group = ds_optim_split_group(optim, from, is_vector, NULL);
    ds_optim_set_group_weight_decay(optim, group, 0);
    return optim;
}

/* A line with the mean loss over the micro batches since the last one, of all
 * ranks. */
static ds_status print_step(Train *t, int64_t step)
{
    ds_scope *scope = ds_scope_open();
    ds_tensor *loss = ds_scalar(DS_F64, t->loss / (double)t->counted);
    ds_status status = ds_all_reduce(NULL, loss, DS_REDUCE_AVG);
    double mean = ds_item(loss);
    ds_scope_close(scope);
    t->loss = 0, t->counted = 0;
    if (status != DS_OK || ds_engine_global_rank(t->engine)) return status;
    double now = dsi_now() - t->started, done = (double)(step - t->first_step);
    int64_t tokens = t->plan.batch * t->plan.grad_accum * t->plan.ranks * t->o->context;
    double left = now / done * (double)(t->plan.steps - step);
    printf("step %lld/%lld  loss %.4f  lr %.3g  norm %.3g  %.0f tokens/s  left %d:%02d\n",
           (long long)step, (long long)t->plan.steps, mean, ds_engine_lr(t->engine),
           ds_engine_global_grad_norm(t->engine), done * (double)tokens / now, (int)left / 60,
           (int)left % 60);
    fflush(stdout);
    return DS_OK;
}

/* A copy of --tokenizer, a file or its folder, in the output, and of the
 * templates of chats. */
static ds_status save_tokenizer(const LmOptions *o)
{
    if (!o->tokenizer) return DS_OK;
    dsi_text from = {0}, to = dsi_text_of("%s/tokenizer.json", o->output);
    size_t n = 0;
    char *text = dsi_tokenizer_text(o->tokenizer, &from, &n);
    dsi_file *f = text ? dsi_file_replace(to.s) : NULL;
    if (f) dsi_file_write(f, text, n);
    ds_status status = f ? dsi_file_commit(f) : ds_error_status();
    dsi_free(text);
    dsi_text_free(&from), dsi_text_free(&to);
    char *folder = lm_chat_folder(o);
    if (status == DS_OK) status = dsi_file_copy_if_there(folder, o->output, "chat_template.jinja");
    if (status == DS_OK)
        status = dsi_file_copy_if_there(folder, o->output, "tokenizer_config.json");
    if (status == DS_OK)
        status = dsi_file_copy_all(folder, o->output, "additional_chat_templates", ".jinja");
    free(folder);
    return status;
}

static ds_status save_model(Train *t)
{
    LmOptions *o = t->o;
    ds_module *m = ds_engine_module(t->engine);
    ds_state *state = ds_engine_state(t->engine, false);
    if (!state) return ds_error_status();
    ds_status status = DS_OK;
    if (ds_engine_global_rank(t->engine) == 0) {
        status = o->lora_r ? ds_lora_save(m, o->output, state)
                           : ds_pretrained_save(m, o->output, .weights = state);
        if (status == DS_OK) status = save_tokenizer(o);
        if (status == DS_OK) printf("saved %s\n", o->output);
    }
    ds_state_free(state);
    return status == DS_OK ? ds_barrier(NULL) : status;
}

/* The loss on held-out data, the same on all ranks; with --patience the weights
 * of the smallest are kept. */
static ds_status evaluate(Train *t, int64_t step)
{
    double loss = eval_loss(ds_engine_module(t->engine), t->eval, t->plan.stage);
    if (ds_engine_global_rank(t->engine) == 0)
        printf("evaluation  loss %.4f  perplexity %.2f\n", loss, exp(loss));
    if (isfinite(loss))
        ds_monitor_write(ds_engine_monitor(t->engine), "Eval/loss", loss,
                         ds_engine_global_samples(t->engine));
    if (ds_error() || !t->best.patience || !best_add(&t->best, -loss, step))
        return ds_error() ? ds_error_status() : DS_OK;
    ds_state *state = ds_engine_state(t->engine, true);
    ds_status status = state ? best_keep(&t->best, state) : ds_error_status();
    ds_state_free(state);
    return status;
}

/* The best weights are those that are saved. */
static ds_status use_best(Train *t)
{
    if (!t->best.weights) return DS_OK;
    if (ds_engine_global_rank(t->engine) == 0)
        printf("the best of %lld evaluations was that of step %lld, loss %.4f: its weights are "
               "taken\n",
               (long long)t->best.count, (long long)t->best.at, -t->best.measure);
    return ds_engine_load_state(t->engine, t->best.weights);
}

static ds_status save_checkpoint(Train *t)
{
    ds_value *client = ds_value_dict();
    ds_status status = DS_OK;
    if (t->best.patience) status = ds_value_set(client, "best", best_value(&t->best));
    if (status == DS_OK) status = ds_engine_save(t->engine, t->o->save_dir, .client_state = client);
    ds_value_free(client);
    return status;
}

static ds_status load_checkpoint(Train *t)
{
    const LmOptions *o = t->o;
    ds_value *client = NULL;
    ds_status status = ds_engine_load(t->engine, o->resume ? o->save_dir : o->load_dir,
                                      .if_any = o->resume, .client_state = &client);
    if (status == DS_OK && o->patience) status = best_load(&t->best, ds_value_get(client, "best"));
    ds_value_free(client);
    return status;
}

/* Prints, evaluates, samples and saves after an update. */
static ds_status after_step(Train *t, int64_t step)
{
    LmOptions *o = t->o;
    bool first = ds_engine_global_rank(t->engine) == 0, last = step == t->plan.steps;
    ds_module *m = ds_engine_module(t->engine);
    if ((step % o->log_interval == 0 || last) && print_step(t, step) != DS_OK)
        return ds_error_status();
    if (t->eval && (last || (o->eval_interval && step % o->eval_interval == 0)) &&
        evaluate(t, step) != DS_OK)
        return ds_error_status();
    if (o->sample_interval && (last || step % o->sample_interval == 0) &&
        (first || t->plan.stage == 3)) {
        ds_generate_opts g = t->sample;
        g.seed += (uint64_t)step;
        if (first) printf("sample of step %lld: ", (long long)step);
        if (lm_sample(m, t->tokenizer, o, g) != DS_OK) return ds_error_status();
    }
    t->stopped = o->save_dir && ds_engine_should_stop(t->engine);
    if (o->save_dir && (last || t->stopped || (o->save_interval && step % o->save_interval == 0)))
        return save_checkpoint(t);
    return ds_error() ? ds_error_status() : DS_OK;
}

static bool more_steps(const Train *t, int64_t step)
{
    return step < t->plan.steps && !t->stopped && !best_is_over(&t->best);
}

/* Forward, backward and update of a micro batch, which a GPU launches as a
 * graph; returns the loss. */
static ds_tensor *train_step(void *self, ds_tensor *const *in, int n)
{
    Train *t = self;
    ds_tensor *given[] = {in[0], in[1], n > 2 ? in[2] : NULL};
    ds_tensor *loss = ds_engine_forward_n(t->engine, given, n);
    ds_engine_backward(t->engine, loss);
    ds_engine_step(t->engine);
    return loss;
}

/* Whether micro batches of an update may have different numbers of labels: the
 * last one of an epoch can have fewer windows. */
static bool labels_differ(const Train *t, int64_t parts)
{
    return parts > 1 && (t->masked || t->plan.windows % (t->plan.batch * t->plan.ranks) != 0);
}

/* The micro steps of an update; adds up the loss. */
static ds_status run_update(Train *t, LmUpdate *u)
{
    for (int64_t i = 0; i < u->n && !ds_error(); i++) {
        ds_tensor *in[3];
        int n = lm_update_batch(u, i, in);
        if (!n) break;
        ds_scope *scope = ds_scope_open();
        t->loss += ds_item(ds_step_graph_run(t->graph, in, n));
        t->counted++;
        ds_scope_close(scope);
    }
    return ds_error_status();
}

static ds_status train_loop(Train *t)
{
    ds_engine *e = t->engine;
    t->graph = ds_engine_step_graph_new(e, train_step, t);
    LmUpdate u;
    int64_t n = ds_engine_gradient_accumulation_steps(e);
    lm_update_begin(&u, ds_engine_loader(e), n, labels_differ(t, n * ds_comm_size(ds_world())));
    ds_status status = ds_error_status();
    t->started = dsi_now(), t->first_step = ds_engine_global_steps(e);
    int64_t step = t->first_step;
    while (status == DS_OK && more_steps(t, step)) {
        status = lm_update_next(&u);
        if (status == DS_OK) status = run_update(t, &u);
        step = ds_engine_global_steps(e);
        if (status == DS_OK) status = after_step(t, step);
    }
    lm_update_end(&u);
    return status == DS_OK ? use_best(t) : status;
}

/* Names of a list with commas, which point into *copy, to be freed with free().
 * Returns how many. */
static int names_split(const char *list, char **copy, const char **names)
{
    int n = 0;
    char *rest = NULL;
    *copy = list ? strdup(list) : NULL;
    for (char *name = *copy ? strtok_r(*copy, ",", &rest) : NULL; name && n < LM_NAMES;
         name = strtok_r(NULL, ",", &rest))
        names[n++] = name;
    return n;
}

static ds_status train_adapters(ds_module *m, const LmOptions *o)
{
    const char *targets[LM_NAMES], *saved[LM_NAMES];
    char *copy[2];
    int n = names_split(o->lora_targets, &copy[0], targets);
    int n_saved = names_split(o->modules_to_save, &copy[1], saved);
    ds_status status = ds_lora(m, .r = o->lora_r, .alpha = o->lora_alpha, .use_dora = o->use_dora,
                               .bias = o->lora_bias, .targets = n ? targets : NULL, .n_targets = n,
                               .ensure_weight_tying = o->ensure_weight_tying,
                               .modules_to_save = saved, .n_modules_to_save = n_saved);
    free(copy[0]), free(copy[1]);
    return status;
}

static ds_module *train_model(const LmOptions *o, const LmPlan *p, const char *config)
{
    bool folder = dsi_is_folder(o->model);
    ds_seed((uint64_t)o->seed);
    ds_module *m = ds_pretrained_load(o->model, .no_weights = !folder, .config = config);
    if (m && (o->checkpointing || p->checkpointing)) ds_lm_set_checkpointing(m, true);
    if (m && o->lora_r && train_adapters(m, o) != DS_OK) {
        ds_module_free(m);
        return NULL;
    }
    return m;
}

/* Work that a rank does alone: options, folders, the tokenizer. */
static ds_status train_prepare(Train *t)
{
    LmOptions *o = t->o;
    if (o->resume && !o->save_dir) return dsi_fail(DS_EINVAL, "--resume needs --save-dir DIR");
    if (o->resume && o->load_dir)
        return dsi_fail(DS_EINVAL, "--resume and --load-dir: from which folder? give only one");
    if (!o->lora_r && (o->use_dora || o->lora_bias || o->lora_targets || o->modules_to_save ||
                       o->ensure_weight_tying))
        return dsi_fail(DS_EINVAL, "train: options of adapters need --lora-r N");
    if (path_make_folder("output", o->output) != DS_OK ||
        path_make_folder("save-dir", o->save_dir) != DS_OK ||
        (o->demo && lm_demo_prepare(o) != DS_OK))
        return ds_error_status();
    if (lm_read_model(o) != DS_OK) return ds_error_status();
    t->tokenizer = lm_tokenizer_load(o);
    return t->tokenizer ? DS_OK : ds_error_status();
}

/* The model, and the configuration that it was made for, to be freed with
 * free(); NULL after a failure. */
static ds_module *train_build(Train *t, char **config)
{
    const LmOptions *o = t->o;
    *config = lm_config(&t->plan);
    if (*config && o->patience && (!t->held_out || !o->eval_interval))
        return dsi_refuse("train: --patience needs evaluations: give --eval-interval N%s",
                          t->held_out ? "" : ", and --eval-data or --eval-split");
    ds_module *m = *config ? train_model(o, &t->plan, *config) : NULL;
    if (m && o->sample_interval && lm_generation(o, m, &t->sample) != DS_OK) {
        ds_module_free(m);
        return NULL;
    }
    if (m && ds_comm_rank(ds_world()) == 0)
        printf("%s: %.2f million parameters, %lld windows of %lld tokens, %lld steps of %lld "
               "windows\n",
               ds_lm_info_of(m).architecture, (double)ds_module_numel(m) / 1e6,
               (long long)t->plan.windows, (long long)o->context, (long long)t->plan.steps,
               (long long)(t->plan.batch * t->plan.grad_accum * t->plan.ranks));
    return m;
}

/* Ranks come together after each part, so that a failure of one is one of all,
 * and is said once. */
static ds_status train_start(Train *t)
{
    LmOptions *o = t->o;
    ds_status status = ds_comm_sync_status(NULL, train_prepare(t));
    if (status != DS_OK) return status;
    ds_dataset *data = train_data(t);
    status = ds_error_status(); /* packing may have failed: on all ranks */
    if (!ds_error_is_collective()) status = ds_comm_sync_status(NULL, status);
    t->best.patience = o->patience;
    t->plan = (LmPlan){.o = o,
                       .windows = ds_dataset_len(data),
                       .ranks = dsi_config_full_world_size(ds_comm_size(ds_world()))};
    char *config = NULL;
    ds_module *m = status == DS_OK ? train_build(t, &config) : NULL;
    if (status == DS_OK) status = ds_comm_sync_status(NULL, m ? DS_OK : ds_error_status());
    if (status == DS_OK) {
        if (t->held_out) t->eval = eval_loader(t->held_out, t->plan.batch);
        t->held_out = NULL;
        t->engine = ds_initialize(.model = m, .training_data = data, .config = config,
                                  .make_optimizer = t->plan.optimizer ? make_optimizer : NULL,
                                  .arg = &t->plan, .seed = (uint64_t)o->seed);
        status = t->engine ? DS_OK : ds_error_status();
    } else {
        ds_module_free(m);
        ds_dataset_free(data), ds_dataset_free(t->held_out);
    }
    free(config);
    return status == DS_OK && (o->load_dir || o->resume) ? load_checkpoint(t) : status;
}

int lm_train(LmOptions *o)
{
    Train t = {.o = o};
    ds_status status = o->save_dir ? ds_stop_on_signal(SIGUSR1) : DS_OK;
    if (status == DS_OK) status = train_start(&t);
    if (status == DS_OK) status = train_loop(&t);
    if (status == DS_OK && !o->no_save && !t.stopped) status = save_model(&t);
    best_free(&t.best);
    ds_loader_free(t.eval);
    ds_step_graph_free(t.graph);
    ds_engine_free(t.engine);
    ds_tokenizer_free(t.tokenizer);
    free(t.plan.optimizer), free(t.plan.params);
    bool failed = status != DS_OK || ds_error();
    return failed ? 1 : t.stopped ? DS_EXIT_REQUEUE : 0;
}

/* The file of tokens has the same name on all nodes; the first rank of each
 * writes it, in place of what a killed run may have left. */
static ds_status eval_path(char *path, size_t room)
{
    int64_t number = getpid();
    ds_scope *scope = ds_scope_open();
    ds_tensor *first = ds_from_data(DS_I64, ds_shape(1), &number);
    ds_status status = ds_broadcast(NULL, first, 0);
    if (status == DS_OK) number = (int64_t)ds_item(first);
    ds_scope_close(scope);
    snprintf(path, room, "/tmp/ds_lm.%lld.tokens", (long long)number);
    if (ds_comm_local_rank(NULL) == 0) remove(path);
    return status;
}

/* The windows of --data; NULL after a failure, which all ranks have. */
static ds_dataset *eval_data(const LmOptions *o, ds_tokenizer *t)
{
    char path[64];
    if (eval_path(path, sizeof path) != DS_OK) return NULL;
    bool first = ds_comm_local_rank(NULL) == 0;
    const char *file = lm_tokens(o, t, o->data, (int)o->n_data, path, first, end_token(o, t));
    ds_dataset *data = windows_of(o, file, o->data[0]);
    ds_status status = ds_error_status();
    if (!ds_error_is_collective()) status = ds_comm_sync_status(NULL, status);
    if (first) remove(path); /* it is mapped */
    if (status == DS_OK) return data;
    ds_dataset_free(data);
    return NULL;
}

static ds_status eval_print(const LmOptions *o, ds_module *m, ds_dataset *data)
{
    int64_t n = ds_dataset_len(data);
    ds_loader *loader = eval_loader(data, o->batch ? o->batch : 8);
    double loss = eval_loss(m, loader, 0);
    ds_loader_free(loader);
    if (isnan(loss) && !ds_error())
        ds_comm_sync_status(NULL, dsi_fail(DS_EINVAL,
                                           "eval: the loss is nan: the model's weights are not "
                                           "finite"));
    if (!ds_error() && ds_comm_rank(NULL) == 0)
        printf("loss %.4f  perplexity %.2f  over %lld windows of %lld tokens\n", loss, exp(loss),
               (long long)n, (long long)o->context);
    return ds_error_status();
}

int lm_eval(LmOptions *o)
{
    ds_tokenizer *t = lm_read_model(o) == DS_OK ? lm_tokenizer_load(o) : NULL;
    ds_module *m = t ? ds_pretrained_load(o->model, .dtype = o->bf16 ? DS_BF16 : DS_F32) : NULL;
    ds_status status = ds_comm_sync_status(NULL, m ? lm_adapter(m, o) : ds_error_status());
    ds_dataset *data = status == DS_OK ? eval_data(o, t) : NULL;
    if (data) eval_print(o, m, data);
    ds_module_free(m);
    ds_tokenizer_free(t);
    return ds_error() != NULL;
}
