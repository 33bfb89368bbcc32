/* engine/config_check.c: a configuration without training: what an engine would
 * make of it.
 *
 * Optimizer and schedule are made once, for a model without elements, because
 * only their constructors know their options: an error found here is one less
 * after an hour in a queue. The check leaves the thread as it was: a program
 * that checks its configuration first trains exactly as one that does not.
 * SPDX-License-Identifier: MIT */
#include <deepspeed/config.h>

#include "base/log.h"
#include "config/reader.h"
#include "engine.h"

ds_module *dsi_trial_model(void)
{
    ds_module *m = ds_nn_sequential(NULL, "model");
    ds_module_param(m, "weight", ds_empty(DS_F32, ds_shape(0)));
    return m;
}

/* Whether the optimizer and the schedule can be made: their options are known
 * to those who make them. A schedule for an optimizer of the program's is tried
 * with Adam. Their warnings are added to *warnings. */
static ds_status config_check_parts(const dsi_config *c, dsi_text *warnings)
{
    bool named = c->optimizer.type != NULL;
    if (!named && !c->scheduler.type) return DS_OK;
    ds_scope *scope = ds_scope_open();
    dsi_text prefix = dsi_text_of("config: %s: ", c->trees->name);
    dsi_log_collect(warnings, prefix.s);
    ds_module *any = dsi_trial_model();
    ds_optim *optim = ds_optim_by_name(any, named ? c->optimizer.type : "Adam",
                                       named ? c->optimizer.params : NULL);
    ds_schedule *schedule = optim && c->scheduler.type
                                ? ds_schedule_by_name(optim, c->scheduler.type, c->scheduler.params)
                                : NULL;
    bool good = optim && (schedule || !c->scheduler.type);
    ds_schedule_free(schedule);
    ds_optim_free(optim);
    ds_module_free(any);
    dsi_log_collect(NULL, NULL);
    dsi_text_free(&prefix);
    ds_scope_close(scope);
    return good ? DS_OK : dsi_config_fail_at(c, ds_error_status());
}

ds_status ds_config_check(const char *config, int world_size, char **resolved, char **warnings)
{
    return ds_config_check_auto(config, NULL, world_size, resolved, warnings);
}

/* Warnings are returned, not printed: deepspeed --check_config writes them
 * to stderr. */
ds_status ds_config_check_auto(const char *config, const ds_auto_values *auto_values,
                               int world_size, char **resolved, char **warnings)
{
    dsi_config *c = dsi_config_read_auto(config, auto_values, world_size);
    dsi_text lines = dsi_text_of("%s", "");
    if (c && config_check_parts(c, &lines) != DS_OK) {
        dsi_config_free(c);
        c = NULL;
    }
    if (resolved) *resolved = c ? dsi_config_json(c) : NULL;
    if (warnings) *warnings = NULL;
    if (!c) {
        dsi_text_free(&lines);
        return ds_error_status();
    }
    if (c->trees->filled.n)
        dsi_text_add(
            &lines,
            "config: %s: \"auto\" of %s: a program fills it (ds_lm, .auto_values); here it "
            "has the default of transformers' Trainer, or the value that was given\n",
            c->trees->name, c->trees->filled.s);
    for (int i = 0; i < c->trees->warnings.n; i++)
        dsi_text_add(&lines, "%s\n", c->trees->warnings.at[i]);
    if (warnings)
        *warnings = lines.s;
    else
        dsi_text_free(&lines);
    dsi_config_free(c);
    return DS_OK;
}
