/* tests/engine/load_deepspeed.c: folders that DeepSpeed 0.19.8 saved on two
 * ranks of the CPU, loaded on 1 to 3 in every stage: weights and moments are
 * its own, to the bit.
 *
 * tests/golden/deepspeed/sSTAGE_w2_DTYPE: Linear(5, 7), ReLU, Linear(7, 3)
 * after three steps of Adam with WarmupLR; sSTAGE_wRANKS_moe: Linear(5, 4), a
 * layer of two experts, which two ranks share, Linear(4, 3); expected.pth has
 * what safe_get_full_fp32_param and safe_get_full_optimizer_state said. Those
 * of fp16 were made with is_fp16_supported saying yes, loss_scale_window 2 and,
 * in stages 2 and 3, two steps that overflowed at first.
 * uSTAGE_w2_DTYPE: universal checkpoints, which ds_to_universal.py made of such
 * folders (torch_adam, --inject_missing_state). All are also converted by ours.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "part.h"
#include "ranks.h"

#include "base/mem.h"
#include "engine/checkpoint/universal.h"
#include "engine/engine.h"
#include "optim/optim.h"

#include <unistd.h>

typedef struct Job {
    const char *dir, *dtype;
    int stage, ep_size; /* ep_size 0: without experts */
    bool universal;     /* the folder */
    int client;         /* values of the client state */
} Job;

static ds_module *expert(ds_module *parent, const char *name, void *arg)
{
    (void)arg;
    return ds_nn_linear(parent, name, 4, 4);
}

static ds_module *net(const Job *j)
{
    ds_seed(77);
    ds_module *m = ds_nn_sequential(NULL, "net");
    if (j->ep_size) {
        ds_nn_linear(m, "0", 5, 4);
        ds_nn_moe(m, "1", 4, expert, .num_experts = 2, .ep_size = j->ep_size);
        ds_nn_linear(m, "2", 4, 3);
        return m;
    }
    ds_nn_linear(m, "0", 5, 7);
    ds_nn_relu(m, "1");
    ds_nn_linear(m, "2", 7, 3);
    return m;
}

static ds_engine *engine_of(const Job *j)
{
    char text[700];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 12, \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": "
             "0.01}},"
             "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5, "
             "\"warmup_max_lr\": 0.01}},"
             "\"checkpoint\": {\"load_universal\": %s}, \"bf16\": {\"enabled\": %s},"
             "\"fp16\": {\"enabled\": %s, \"initial_scale_power\": 4, \"loss_scale_window\": 2},"
             "\"zero_optimization\": {\"stage\": %d, \"stage3_param_persistence_threshold\": 10}}",
             j->universal ? "true" : "false", strcmp(j->dtype, "bf16") ? "false" : "true",
             strcmp(j->dtype, "fp16") ? "false" : "true", j->stage);
    return ds_initialize(.model = net(j), .config = text);
}

static ds_status check_param(const ds_engine *e, const ds_state *want, int k)
{
    const dsi_flat *f = dsi_zero_flat(e->zero);
    const dsi_flat_param *p = &f->param[k];
    const dsi_optim_param *x = &e->optim->params[p->index];
    char m[100], v[100];
    const char *name = dsi_flat_path(f, e->model, k);
    if (p->begin == p->end) return DS_OK;
    snprintf(m, sizeof m, "%s.exp_avg", name);
    snprintf(v, sizeof v, "%s.exp_avg_sq", name);
    RANK_CHECK(is_part(want, name, p, x->p) && is_part(want, m, p, x->moment[0]) &&
               is_part(want, v, p, x->moment[1]));
    RANK_CHECK(x->step == 3 ||
               x->step == 4); /* stage 0 of bf16 counts an empty step at the start */
    return DS_OK;
}

/* The loss scale of DeepSpeed's object, or of its stage 0, continues from its
 * value. */
static ds_status check_scaler(const ds_engine *e, bool skipped)
{
    const dsi_scaler *s = &e->scaler;
    RANK_CHECK(s->scale == (skipped ? 131072 : 262144) && s->iter == (skipped ? 5 : 3));
    RANK_CHECK(s->last_overflow == (skipped ? 1 : -1) && s->hysteresis_left == 2);
    return DS_OK;
}

static ds_status load(void *arg)
{
    const Job *j = arg;
    char path[600];
    const char *note;
    ds_value *client = NULL;
    ds_engine *e = engine_of(j);
    RANK_CHECK(e && ds_engine_load(e, j->dir, .client_state = &client) == DS_OK);
    RANK_CHECK(ds_value_read_string(client, "note", &note) == DS_OK && !strcmp(note, "client"));
    RANK_CHECK(ds_value_len(client) == j->client);
    RANK_CHECK(ds_engine_global_steps(e) - ds_engine_skipped_steps(e) == 3);
    RANK_CHECK(fabs(ds_engine_lr(e) - 0.006826061944859854) < 1e-12);
    snprintf(path, sizeof path, "%s/expected.pth", j->dir);
    ds_state *want = ds_load(path);
    ds_status status = want ? DS_OK : ds_error_status();
    if (status == DS_OK && !strcmp(j->dtype, "fp16"))
        status = check_scaler(e, ds_engine_skipped_steps(e) > 0);
    for (int k = 0; status == DS_OK && k < dsi_zero_flat(e->zero)->n; k++)
        status = check_param(e, want, k);
    ds_state_free(want);
    ds_value_free(client);
    ds_engine_free(e);
    return status;
}

/* In all stages on 1 to 3 ranks. */
static void load_everywhere(const char *dir, const char *name, bool universal)
{
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            if (universal && DSI_SANITIZED && (stage + ranks) % 2) continue;
            Job j = {
                dir,       strstr(name, "bf16") ? "bf16" : strstr(name, "fp16") ? "fp16" : "fp32",
                stage,     !strstr(name, "moe") ? 0 : ranks % 2 ? 1 : 2,
                universal, *name == 'u' ? 1 : 2};
            if (run_ranks(ranks, load, &j) != DS_OK)
                fail_msg("%s%s in stage %d on %d ranks: %s", name, universal ? " (universal)" : "",
                         stage, ranks, ds_error());
        }
}

/* The folder that DeepSpeed wrote, and a universal checkpoint made of it. */
static void folder(const char *name)
{
    char dir[500], in[600], want[600];
    snprintf(dir, sizeof dir, DS_GOLDEN "/deepspeed/%s", name);
    load_everywhere(dir, name, *name == 'u');
    snprintf(in, sizeof in, "%s/global_step%s", dir,
             *name == 'u'           ? "3_universal"
             : strstr(name, "fp16") ? strstr(name, "s0") ? "3" : "5"
                                    : "3");
    snprintf(want, sizeof want, "%s/expected.pth", dir);
    const char *made = folder_make();
    const dsi_universal_opts o = {
        .in = in, .out = folder_path("new"), .verifiers = 2, .writers = 3};
    if (dsi_universal_convert(&o) != DS_OK) fail_msg("%s: %s", in, ds_error());
    if (symlink(want, folder_path("expected.pth"))) fail_msg("symlink: %s", want);
    load_everywhere(made, name, true);
    folder_remove();
}

static void stage_0(void **state) { (void)state, folder("s0_w2_fp32"); }
static void stage_0_bf16(void **state) { (void)state, folder("s0_w2_bf16"); }
static void stage_1(void **state) { (void)state, folder("s1_w2_fp32"); }
static void stage_2_bf16(void **state) { (void)state, folder("s2_w2_bf16"); }
static void stage_3(void **state) { (void)state, folder("s3_w2_fp32"); }

/* Of DeepSpeed's script: of stages 1 and 2 with a step.pt, of stage 3 without,
 * and flat. */
static void universal(void **state)
{
    (void)state;
    folder("u1_w2_bf16");
    folder("u2_w2_fp32");
    folder("u3_w2_fp32");
}

static void loss_scale(void **state)
{
    (void)state;
    folder("s0_w2_fp16");
    folder("s2_w2_fp16");
    folder("s3_w2_fp16");
}

static void experts(void **state)
{
    (void)state;
    folder("s0_w1_moe");
    folder("s0_w2_moe");
    folder("s1_w2_moe");
}

int main(void)
{
    if (!access("/dev/shm", W_OK))
        setenv("TMPDIR", "/dev/shm", 0); /* it does not wait for a disk */
    const struct CMUnitTest tests[] = {cmocka_unit_test(stage_0),    cmocka_unit_test(stage_0_bf16),
                                       cmocka_unit_test(stage_1),    cmocka_unit_test(stage_2_bf16),
                                       cmocka_unit_test(stage_3),    cmocka_unit_test(experts),
                                       cmocka_unit_test(loss_scale), cmocka_unit_test(universal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
