/* tests/optim/list.c: docs/optimizers.md and docs/schedules.md say what
 * src/optim/list.h lists, and other documents name all of it.
 *
 * This program makes the text between two marks of each document from the
 * entries. It fails if they differ; scripts/config_docs rewrites them.
 * SPDX-License-Identifier: MIT */
#include "optim/list.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/option.h"
#include "optim/given.h"

#define BEGIN "<!-- list: scripts/config_docs writes it -->\n"
#define END   "<!-- end of list -->\n"

#define ADDRESS(id) &dsi_optim_##id,
static const dsi_optim_entry *const optimizers[] = {DSI_OPTIMIZERS(ADDRESS) NULL};

/* ---- what the documents say ------------------------------------------------------------------------------ */

/* "`lr` 0.001", "`T_max` required": a parameter and its default. */
static void add_param(dsi_text *t, const dsi_param *p)
{
    dsi_text_add(t, "`%s` ", p->name);
    if (p->required || p->otherwise) {
        dsi_text_add(t, "%s", p->required ? "required" : p->otherwise);
        return;
    }
    switch (p->kind) {
    case DSI_PARAM_PAIR:
        dsi_text_add(t, "[%g, %g]", p->value[0], p->value[1]);
        return;
    case DSI_PARAM_BOOL:
    case DSI_PARAM_NOT:
        dsi_text_add(t, p->value[0] != 0 ? "true" : "false");
        return;
    case DSI_PARAM_CHOICE:
        dsi_text_add(t, "\"%s\"", p->choices[0]);
        return;
    default:
        dsi_text_add(t, "%g", p->value[0]);
    }
}

static void add_params(dsi_text *t, const dsi_param *p)
{
    for (const char *before = ""; p->name; p++) {
        if (p->kind == DSI_PARAM_IGNORED) continue;
        dsi_text_add(t, "%s", before);
        add_param(t, p);
        before = ", ";
    }
}

static void add_optimizer(dsi_text *t, const dsi_optim_entry *e)
{
    dsi_text_add(t, "| `%s` | ", e->name);
    add_params(t, e->params);
    dsi_text_add(t, " | ");
    bool some = false;
    for (int k = 0; k < DS_OPTIM_MOMENTS; k++)
        if (e->type->moment[k]) {
            dsi_text_add(t, "%s`%s`", some ? ", " : "", e->type->moment[k]);
            some = true;
        }
    dsi_text_add(t, " | %s |\n", e->source);
    for (int k = 1; k >= 0 && e->torch_adam[k]; k--) {
        if (!k && e->torch_adam[0] == e->torch_adam[1]) break;
        dsi_text_add(t, "| `%s`, `torch_adam` true%s | ", e->name,
                     k ? "" : ", `adam_w_mode` false");
        add_params(t, e->torch_adam[k]);
        dsi_text_add(t, " | the same | torch.optim.%s |\n", k ? "AdamW" : "Adam");
    }
}

static void add_optimizers(dsi_text *t)
{
    const dsi_optim_entry *e;
    dsi_text_add(t, "| type | parameters and defaults | moments | source |\n|---|---|---|---|\n");
    for (int i = 0; (e = optimizers[i]); i++) add_optimizer(t, e);
}

static void add_parameters_once(dsi_text *t)
{
    const dsi_optim_entry *e;
    dsi_text seen = {0};
    dsi_text_add(t, "\n| parameter | what it does |\n|---|---|\n");
    dsi_text_add(&seen, " ");
    for (int i = 0; (e = optimizers[i]); i++)
        for (const dsi_param *p = e->params; p->name; p++) {
            char name[100];
            snprintf(name, sizeof name, " %s ", p->name);
            if (strstr(seen.s, name) || !p->help) continue;
            dsi_text_add(&seen, "%s", name);
            dsi_text_add(t, "| `%s` | %s |\n", p->name, p->help);
        }
    dsi_text_free(&seen);
}

static void add_optimizer_list(dsi_text *t)
{
    add_optimizers(t);
    add_parameters_once(t);
}

static void add_schedule(dsi_text *t, const dsi_schedule_entry *e)
{
    dsi_text_add(t, "\n### %s\n\n| parameter, default | what it does |\n|---|---|\n| rate | %s |\n",
                 e->type.name, e->formula);
    for (const dsi_param *p = e->params; p->name; p++) {
        dsi_text_add(t, "| ");
        add_param(t, p);
        dsi_text_add(t, " | %s |\n", p->help ? p->help : "");
    }
}

static void add_schedule_list(dsi_text *t)
{
    const dsi_schedule_entry *e;
    for (int torch = 0; torch < 2; torch++) {
        dsi_text_add(t, "%s## %s\n", torch ? "\n" : "",
                     torch ? "torch.optim.lr_scheduler's" : "DeepSpeed's");
        for (int i = 0; (e = dsi_schedule_entry_at(i)); i++)
            if (e->torch == torch) add_schedule(t, e);
    }
    dsi_text_add(t, "\n");
}

/* ---- the documents --------------------------------------------------------------------------------------- */

static void compare(const char *path, void (*add)(dsi_text *t))
{
    char *is = dsi_file_read(path, NULL);
    CHECK(is != NULL);
    char *begin = strstr(is, BEGIN), *end = strstr(is, END);
    CHECK(begin && end && begin < end);
    dsi_text should = {0};
    dsi_text_add_bytes(&should, is, (size_t)(begin - is) + strlen(BEGIN));
    dsi_text_add(&should, "\n");
    add(&should);
    dsi_text_add(&should, "%s", end);
    if (getenv("DS_RENEW")) {
        dsi_file *f = dsi_file_replace(path);
        CHECK(f != NULL);
        dsi_file_write(f, should.s, should.n);
        CHECK_INT(dsi_file_commit(f), DS_OK);
    } else if (strcmp(is, should.s) != 0) {
        fail_msg("%s is not what src/optim/list.h lists; renew it: scripts/config_docs", path);
    }
    dsi_text_free(&should);
    dsi_free(is);
}

static void documents_have_the_list(void **state)
{
    (void)state;
    compare(DS_SOURCE_DIR "/docs/optimizers.md", add_optimizer_list);
    compare(DS_SOURCE_DIR "/docs/schedules.md", add_schedule_list);
}

/* torch.optim's optimizers are named in full where users of PyTorch look. */
static void other_documents_name_them(void **state)
{
    (void)state;
    static const char *const documents[] = {"/docs/from-pytorch.md", "/docs/checkpoints.md"};
    for (size_t k = 0; k < sizeof documents / sizeof *documents; k++) {
        char path[300];
        const dsi_optim_entry *e;
        snprintf(path, sizeof path, "%s%s", DS_SOURCE_DIR, documents[k]);
        char *text = dsi_file_read(path, NULL);
        CHECK(text != NULL);
        for (int i = 0; (e = optimizers[i]); i++) {
            bool torch = !strncmp(e->source, "torch.optim.", 12) || e->torch_adam[0];
            if (torch && !strstr(text, e->name)) fail_msg("%s has no %s", documents[k], e->name);
        }
        dsi_free(text);
    }
}

/* ---- the entries ----------------------------------------------------------------------------------------- */

/* Every entry makes what it is called, also with each number at its default. */
static void entries_make_their_types(void **state)
{
    (void)state;
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F32);
    const dsi_optim_entry *e;
    for (int i = 0; (e = optimizers[i]); i++) {
        ds_optim *o = ds_optim_by_name(m, e->name, NULL);
        CHECK(o && (!strcasecmp(ds_optim_name(o), e->name) || !strcmp(e->name, "Adam")));
        const dsi_schedule_entry *s;
        for (int k = 0; (s = dsi_schedule_entry_at(k)); k++) {
            dsi_text params = {0};
            dsi_text_add(&params, "{");
            for (const dsi_param *p = s->params; p->name; p++)
                if (p->required)
                    dsi_text_add(&params, "%s\"%s\": %s", params.n > 1 ? ", " : "", p->name,
                                 p->kind == DSI_PARAM_INTEGERS ? "[9]" : "9");
            dsi_text_add(&params, "}");
            ds_schedule *made = ds_schedule_by_name(o, s->type.name, params.s);
            CHECK(made && !strcmp(ds_schedule_name(made), s->type.name));
            ds_schedule_step(made);
            CHECK(ds_optim_lr(o) >= 0);
            ds_schedule_free(made);
            dsi_text_free(&params);
        }
        ds_optim_free(o);
    }
    ds_module_free(m);
    ds_scope_close(scope);
}

/* ---- zero ------------------------------------------------------------------------------------------------ */

static void zero_is_requested(void **state)
{
    (void)state;
    CHECK(dsi_option(0, 3) == 3 && dsi_option(-0.0, 3) == 3);
    CHECK(dsi_option(DS_ZERO, 3) == 0 && !signbit(dsi_option(DS_ZERO, 3)));
    CHECK(dsi_option(2, 3) == 2 && dsi_option(1e-300, 3) == 1e-300);
    CHECK(isnormal(DS_ZERO)); /* no processor flushes it to 0 */
    ds_scope *scope = ds_scope_open();
    ds_module *m = given_new(DS_F64);
    double betas[2];
    ds_optim *o = ds_optim_adam(m, DS_ZERO, .beta1 = DS_ZERO, .eps = DS_ZERO);
    CHECK(o && ds_optim_lr(o) == 0 && ds_optim_group_betas(o, 0, betas));
    CHECK(betas[0] == 0 && betas[1] == 0.999);
    ds_optim_free(o);
    o = ds_optim_lion(m, 0.1, .beta2 = DS_ZERO);
    CHECK(o && ds_optim_group_betas(o, 0, betas) && betas[0] == 0.9 && betas[1] == 0);
    ds_optim_free(o);
    ds_module_free(m);
    ds_scope_close(scope);
}

TEST_MAIN(cmocka_unit_test(documents_have_the_list), cmocka_unit_test(other_documents_name_them),
          cmocka_unit_test(entries_make_their_types), cmocka_unit_test(zero_is_requested))
