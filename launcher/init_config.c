/* launcher/init_config.c: deepspeed --init_config: a ds_config.json with comments
 * for a number of ranks, a size of the model, a dtype and the memory of a rank.
 *
 * The text is made once for each ZeRO stage, from 0 on; the first whose estimate
 * (ds_estimate_memory) fits is written, after ds_config_check has accepted it.
 * Sources: learning rates by size: Brown et al. 2020, "Language Models are
 * Few-Shot Learners", table 2.1; betas, decay and clipping: its appendix B.
 * SPDX-License-Identifier: MIT */
#include "init_config.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <deepspeed.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_MICRO_BATCH 8

/* The options, with their defaults, and the choices made from them. */
typedef struct init_choice {
    const options *o;
    const char *dtype;
    int ranks, micro, steps; /* batch = ranks * micro * steps */
    int stage;
    bool nvme;         /* offload to files */
    int64_t peak[4];   /* bytes of a rank in each stage */
    int64_t peak_nvme; /* in stage 3 with offload; 0: not tried */
} init_choice;

/* ---- numbers --------------------------------------------------------------------- */

/* Of table 2.1; smaller models take 1e-3. */
static double init_rate(int64_t params)
{
    static const struct {
        double params, rate;
    } table[] = {{1e11, 0.6e-4}, {1e10, 1e-4},  {5e9, 1.2e-4}, {2e9, 1.6e-4},
                 {1e9, 2e-4},    {6e8, 2.5e-4}, {3e8, 3e-4},   {1e8, 6e-4}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((double)params >= table[i].params) return table[i].rate;
    return 1e-3;
}

/* The largest micro batch up to MOST_MICRO_BATCH that divides a rank's samples. */
static ds_status init_batches(init_choice *c)
{
    int batch = c->o->batch ? c->o->batch : MOST_MICRO_BATCH * c->ranks;
    if (batch % c->ranks)
        return ds_fail(DS_EINVAL, "deepspeed: --batch %d: expected a multiple of the %d ranks",
                       batch, c->ranks);
    int samples = batch / c->ranks;
    c->micro = samples < MOST_MICRO_BATCH ? samples : MOST_MICRO_BATCH;
    while (samples % c->micro) c->micro--;
    c->steps = samples / c->micro;
    return DS_OK;
}

static void add_gb(dsi_text *t, int64_t bytes)
{
    dsi_text_add(t, bytes < 1000000000 ? "%.0f MB" : "%.1f GB",
                 bytes < 1000000000 ? 1e-6 * (double)bytes : 1e-9 * (double)bytes);
}

/* ---- the text -------------------------------------------------------------------- */

static void add_head(const init_choice *c, dsi_text *t)
{
    dsi_text_add(t, "// %d rank%s, %s", c->ranks, c->ranks == 1 ? "" : "s", c->dtype);
    if (c->o->params) dsi_text_add(t, ", %lld parameters", (long long)c->o->params);
    if (c->o->memory) {
        dsi_text_add(t, ", ");
        add_gb(t, c->o->memory);
        dsi_text_add(t, " for each rank");
    }
    dsi_text_add(t,
                 "; written by deepspeed --init_config.\n"
                 "// Check a change: deepspeed --check_config FILE --world_size %d\n{\n",
                 c->ranks);
}

static void add_batches(const init_choice *c, dsi_text *t)
{
    dsi_text_add(t,
                 "  // Samples of an update, of all ranks: micro batch * accumulation steps * "
                 "ranks.\n"
                 "  \"train_batch_size\": %d,\n"
                 "  // Samples of a forward pass of one rank: less needs less memory.\n"
                 "  \"train_micro_batch_size_per_gpu\": %d,\n"
                 "  // Forward and backward passes before an update.\n"
                 "  \"gradient_accumulation_steps\": %d,\n\n",
                 c->ranks * c->micro * c->steps, c->micro, c->steps);
}

static void add_optimizer(const init_choice *c, dsi_text *t)
{
    double rate = init_rate(c->o->params);
    dsi_text_add(t, "  // docs/optimizers.md lists all optimizers, docs/schedules.md all "
                    "schedules.\n"
                    "  \"optimizer\": {\n    \"type\": \"AdamW\",\n    \"params\": {\"lr\": ");
    dsi_text_add_double(t, rate);
    dsi_text_add(t, ", \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}\n  },\n"
                    "  // Linear from 0 to the rate in warmup_num_steps updates, then constant.\n"
                    "  \"scheduler\": {\n    \"type\": \"WarmupLR\",\n    \"params\": "
                    "{\"warmup_min_lr\": 0, \"warmup_max_lr\": ");
    dsi_text_add_double(t, rate);
    dsi_text_add(t, ", \"warmup_num_steps\": 100, \"warmup_type\": \"linear\"}\n  },\n"
                    "  // Gradients of a larger norm are scaled down to it.\n"
                    "  \"gradient_clipping\": 1.0,\n\n");
}

static void add_dtype(const init_choice *c, dsi_text *t)
{
    if (!strcmp(c->dtype, "bf16"))
        dsi_text_add(t, "  // Weights and activations in bfloat16, updates in float32.\n"
                        "  \"bf16\": {\"enabled\": true},\n\n");
    else if (!strcmp(c->dtype, "fp16"))
        dsi_text_add(t, "  // Weights and activations in float16, updates in float32;\n"
                        "  // loss_scale 0: the scale of the loss follows the overflows.\n"
                        "  \"fp16\": {\"enabled\": true, \"loss_scale\": 0, "
                        "\"initial_scale_power\": 16, \"loss_scale_window\": 1000},\n\n");
    else
        dsi_text_add(t, "  // Everything in float32; {\"enabled\": true} halves weights and "
                        "activations.\n"
                        "  \"bf16\": {\"enabled\": false},\n\n");
}

/* The estimates of the stages that were tried. */
static void add_estimates(const init_choice *c, dsi_text *t)
{
    if (!c->o->params) return;
    dsi_text_add(t, "  // A rank needs (without activations%s): ",
                 c->o->activations ? " but those given" : "");
    for (int s = 0; s < 4; s++) {
        dsi_text_add(t, "%sstage %d ", s ? ", " : "", s);
        add_gb(t, c->peak[s]);
    }
    if (c->peak_nvme) {
        dsi_text_add(t, ",\n  // with offload to files ");
        add_gb(t, c->peak_nvme);
    }
    dsi_text_add(t, ".\n");
}

static void add_zero(const init_choice *c, dsi_text *t)
{
    dsi_text_add(t, "  // 0: every rank has all; divided among the ranks are in 1 the optimizer's "
                    "state,\n  // in 2 gradients too, in 3 parameters too.\n");
    add_estimates(c, t);
    dsi_text_add(t, "  \"zero_optimization\": {\n    \"stage\": %d", c->stage);
    if (c->stage >= 2)
        dsi_text_add(t, ",\n    // Elements that travel together: less needs less memory.\n"
                        "    \"reduce_bucket_size\": 50000000,\n"
                        "    \"allgather_bucket_size\": 50000000");
    if (c->stage == 3)
        dsi_text_add(t, ",\n    // Elements that are gathered ahead, and kept.\n"
                        "    \"stage3_prefetch_bucket_size\": 50000000,\n"
                        "    \"stage3_max_live_parameters\": 100000000,\n"
                        "    \"stage3_max_reuse_distance\": 100000000");
    if (c->nvme)
        dsi_text_add(t, ",\n    // Files on a fast local disk hold what is not in use.\n"
                        "    \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
                        "\"/tmp\"},\n"
                        "    \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}");
    dsi_text_add(t, "\n  },\n\n");
}

static dsi_text init_text(const init_choice *c)
{
    dsi_text t = {0};
    add_head(c, &t);
    add_batches(c, &t);
    add_optimizer(c, &t);
    add_dtype(c, &t);
    add_zero(c, &t);
    dsi_text_add(&t, "  // A line with the loss and the rate every N updates.\n"
                     "  \"steps_per_print\": 100,\n"
                     "  // true: a line with the times of forward, backward and step.\n"
                     "  \"wall_clock_breakdown\": false\n}\n");
    return t;
}

/* ---- the stage ------------------------------------------------------------------- */

static ds_status init_estimate(const init_choice *c, int64_t *peak)
{
    ds_memory_estimate m;
    dsi_text t = init_text(c);
    const ds_estimate_opts opts = {.config = t.s,
                                   .world_size = c->ranks,
                                   .params = c->o->params,
                                   .largest = c->o->largest,
                                   .activations = c->o->activations};
    ds_status status = ds_estimate_memory_with(&m, opts);
    *peak = m.peak;
    dsi_text_free(&t);
    return status;
}

/* The first stage that fits; without --memory 0 for one rank, 1 for several. */
static ds_status init_choose(init_choice *c)
{
    ds_status status = DS_OK;
    int chosen = c->o->memory ? -1 : c->ranks > 1;
    for (c->stage = 0; c->o->params && status == DS_OK && c->stage < 4; c->stage++) {
        status = init_estimate(c, &c->peak[c->stage]);
        if (chosen < 0 && c->peak[c->stage] <= c->o->memory) chosen = c->stage;
    }
    if (status == DS_OK && chosen < 0) {
        c->stage = chosen = 3;
        c->nvme = true;
        status = init_estimate(c, &c->peak_nvme);
    }
    c->stage = chosen;
    if (status != DS_OK || !c->nvme || c->peak_nvme <= c->o->memory) return status;
    return ds_fail(DS_EINVAL,
                   "deepspeed: --memory: a rank needs %lld bytes in stage 3, %lld with offload to "
                   "files, and has %lld: give more than %d ranks (--world_size)%s",
                   (long long)c->peak[3], (long long)c->peak_nvme, (long long)c->o->memory,
                   c->ranks, strcmp(c->dtype, "fp32") ? "" : ", or --dtype bf16");
}

/* ---- the file -------------------------------------------------------------------- */

/* FILE must not exist: a configuration is the work of its user. */
static ds_status init_write(const char *path, const dsi_text *t)
{
    if (!strcmp(path, "-")) {
        fputs(t->s, stdout);
        return DS_OK;
    }
    if (dsi_file_exists(path))
        return ds_fail(DS_EINVAL,
                       "deepspeed: --init_config %s: the file exists: remove it, or "
                       "name another one",
                       path);
    dsi_file *f = dsi_file_replace(path);
    dsi_file_write(f, t->s, t->n);
    return dsi_file_commit(f);
}

int init_config(const options *o)
{
    init_choice c = {.o = o, .dtype = o->dtype ? o->dtype : "bf16", .ranks = o->world_size};
    char *resolved = NULL, *warnings = NULL;
    ds_status status = init_batches(&c);
    if (status == DS_OK) status = init_choose(&c);
    dsi_text t = init_text(&c);
    if (status == DS_OK) status = ds_config_check(t.s, c.ranks, &resolved, &warnings);
    if (status == DS_OK) status = init_write(o->init_config, &t);
    dsi_text_free(&t);
    free(resolved);
    free(warnings);
    if (status == DS_OK) return EXIT_SUCCESS;
    fprintf(stderr, "%s\n", ds_error());
    return status == DS_EIO ? EXIT_FAILURE : STATUS_WRONG;
}
