/* optim/schedule.c: learning-rate schedules: the handle, and making one by
 * name.
 *
 * A schedule is a type with one function, which writes the values of step `it`
 * into the optimizer's groups.
 *
 * Invariants: these values depend on `it` alone, so `last` (DeepSpeed's
 * last_batch_iteration) is all that a checkpoint keeps. The optimizer is
 * borrowed and must live as long as the schedule; *self belongs to the
 * schedule. While `taken` an engine frees it, and ds_schedule_free refuses. The
 * families: schedule_warmup.c, schedule_cycle.c, schedule_torch.c.
 * SPDX-License-Identifier: MIT */
#include "schedule.h"

#include "base/text.h"
#include "device/graph.h"
#include "optim.h"

#include <string.h>

#define MAX_STEPS ((int64_t)1 << 40) /* no training is that long, and no sum here overflows */

struct ds_schedule {
    const ds_schedule_type *type;
    ds_optim *o; /* borrowed */
    int64_t last;
    void *self;
    bool taken; /* an engine frees it */
};

/* ---- the handle -------------------------------------------------------------------------------------- */

static const dsi_handle_kind schedule_kind = {"schedule", NULL, NULL, NULL};

/* The rates are not changed before the first ds_schedule_step or
 * ds_schedule_set_last. */
ds_schedule *ds_schedule_new(ds_optim *o, const ds_schedule_type *type)
{
    if (!type || !dsi_live(o, "schedule_new")) return dsi_null_operand("schedule_new");
    if (!type->apply)
        return dsi_refuse("schedule_new: the type %s has no apply",
                          type->name ? type->name : "(no name)");
    ds_schedule *s = dsi_alloc(sizeof *s);
    dsi_handle_call("schedule_new");
    dsi_handle_made(s, &schedule_kind);
    *s = (ds_schedule){type, o, -1, dsi_alloc(type->self_size ? type->self_size : 1), false};
    return s;
}

/* Frees a schedule, not its optimizer; refused while an engine owns it. */
void ds_schedule_free(ds_schedule *s)
{
    if (!dsi_live(s, "schedule_free")) return;
    if (s->taken) {
        dsi_fail(DS_ESTATE, "schedule_free: %s belongs to an engine, which frees it",
                 s->type->name);
        return;
    }
    bool quarantined = dsi_handle_freed_by(s, "ds_schedule_free");
    if (s->type->free) s->type->free(s->self);
    dsi_free(s->self);
    if (!quarantined) dsi_free(s);
}

void dsi_schedule_take(ds_schedule *s, bool taken)
{
    if (s) s->taken = taken;
}

void *ds_schedule_self(ds_schedule *s) { return s ? s->self : NULL; }

const char *ds_schedule_name(const ds_schedule *s) { return s ? s->type->name : NULL; }

int64_t ds_schedule_last(const ds_schedule *s) { return s ? s->last : -1; }

double ds_schedule_lr(const ds_schedule *s, int group)
{
    return s ? ds_optim_group_lr(s->o, group) : 0;
}

/* A step that is recorded notes the optimizer's setters, but a schedule's calls
 * of these are repeated by a hook. */
void dsi_schedule_advance(ds_schedule *s)
{
    dsi_device *recording = dsi_device_recording();
    bool noted = dsi_graph_note(recording, false);
    s->type->apply(s->self, s->o, ++s->last);
    dsi_graph_note(recording, noted);
}

static ds_status schedule_after(void *arg)
{
    dsi_schedule_advance(arg);
    return DS_OK;
}

static void schedule_release(void *arg) { (void)arg; }

/* Called after the optimizer's step: the first call is iteration 0. In a step
 * that is captured it comes after the launch, as at each replay. */
void ds_schedule_step(ds_schedule *s)
{
    static const dsi_graph_hook hook = {.after = schedule_after, .release = schedule_release};
    dsi_device *recording = dsi_device_recording();
    if (!s) return;
    if (s->taken) {
        dsi_fail(DS_ESTATE,
                 "schedule_step: %s belongs to an engine, whose ds_engine_step does that",
                 s->type->name);
        return;
    }
    if (recording) s->o->scheduled = recording->recordings;
    if (dsi_graph_capturing(recording))
        dsi_graph_add_hook(recording, &hook, s);
    else
        dsi_schedule_advance(s);
}

/* Also writes the values of that step into the groups: resuming sets the rates
 * at once. */
ds_status ds_schedule_set_last(ds_schedule *s, int64_t it)
{
    if (!s) return dsi_null_argument("schedule_set_last");
    if (it < -1 || it > MAX_STEPS)
        return dsi_fail(DS_EINVAL, "schedule_set_last: the step is %lld: expected -1 to 2^40",
                        (long long)it);
    s->last = it;
    s->type->apply(s->self, s->o, it);
    return DS_OK;
}

/* ---- state dicts --------------------------------------------------------------------------------------- */

static const dsi_schedule_entry *schedule_find_entry(const char *name)
{
    const dsi_schedule_entry *e = NULL;
    for (int i = 0; name && (e = dsi_schedule_entry_at(i)) && strcmp(e->type.name, name) != 0;) i++;
    return e;
}

/* torch's epoch 0 is that of the first rates, DeepSpeed's iteration -1. */
ds_value *ds_schedule_state_dict(const ds_schedule *s)
{
    if (!s) return dsi_null_operand("schedule_state_dict");
    ds_value *dict = ds_value_dict();
    const dsi_schedule_entry *e = schedule_find_entry(s->type->name);
    if (!e || !e->torch) {
        ds_value_set(dict, "last_batch_iteration", ds_value_int(s->last));
        return dict;
    }
    ds_value *rates = ds_value_list();
    for (int g = 0; g < ds_optim_groups(s->o); g++)
        ds_value_append(rates, ds_value_float(ds_optim_group_lr(s->o, g)));
    ds_value_set(dict, "last_epoch", ds_value_int(s->last + 1));
    ds_value_set(dict, "_step_count", ds_value_int(s->last + 2));
    ds_value_set(dict, "_last_lr", rates);
    return dict;
}

/* torch's dict counts epochs from 0, DeepSpeed's iterations from -1; which one
 * it is, its keys say. */
ds_status ds_schedule_load_state_dict(ds_schedule *s, const ds_value *state_dict)
{
    int64_t last = -1;
    if (!s || !state_dict) return dsi_null_argument("schedule_load_state_dict");
    bool torch = !ds_value_get(state_dict, "last_batch_iteration");
    ds_status status = ds_value_read_int(state_dict, torch ? "last_epoch" : "last_batch_iteration",
                                         &last);
    if (status != DS_OK) return status;
    return ds_schedule_set_last(s, torch ? last - 1 : last);
}

/* ---- by name ----------------------------------------------------------------------------------------- */

#define ADDRESS(id) &dsi_schedule_##id,
static const dsi_schedule_entry *const schedules[] = {DSI_SCHEDULES(ADDRESS) NULL};
enum { SCHEDULES = sizeof schedules / sizeof *schedules - 1 };

const dsi_schedule_entry *dsi_schedule_entry_at(int i)
{
    return i < SCHEDULES ? schedules[i] : NULL;
}

/* [groups], to be freed by the schedule. */
double *dsi_schedule_base_lr(const ds_optim *o)
{
    int n = ds_optim_groups(o);
    double *lr = dsi_alloc((size_t)n * sizeof *lr);
    for (int g = 0; g < n; g++) lr[g] = ds_optim_group_lr(o, g);
    return lr;
}

/* Those of torch.optim.lr_scheduler that a configuration cannot name: they need
 * a function, another schedule or the loss, or are rare. */
static bool schedule_is_torch_only(const char *type)
{
    static const char *const names[] = {"LambdaLR",
                                        "MultiplicativeLR",
                                        "SequentialLR",
                                        "ChainedScheduler",
                                        "CosineAnnealingWarmRestarts",
                                        "CyclicLR",
                                        "OneCycleLR",
                                        "ReduceLROnPlateau"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(type, names[i])) return true;
    return false;
}

/* As optim_refuse_name: a schedule of torch that is not offered by name, a
 * probable misspelling, or all names. */
static ds_schedule *schedule_refuse_name(const char *type)
{
    const char *names[SCHEDULES];
    dsi_text all = {0};
    for (int i = 0; i < SCHEDULES; i++) {
        names[i] = schedules[i]->type.name;
        dsi_text_add(&all, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = dsi_nearest(type, names, SCHEDULES);
    if (schedule_is_torch_only(type))
        dsi_refuse("scheduler.type: %s of torch.optim.lr_scheduler is not offered by name: make a "
                   "ds_schedule_type, or take one of %s",
                   type, all.s);
    else if (near)
        dsi_refuse("scheduler.type is \"%.80s\": did you mean \"%s\"?", type, near);
    else
        dsi_refuse("scheduler.type is \"%.80s\": expected one of %s", type, all.s);
    dsi_text_free(&all);
    return NULL;
}

/* last_batch_iteration -1 sets the first rates; another one, which a program
 * gives that resumes a training, leaves the optimizer's. */
ds_schedule *ds_schedule_by_name(ds_optim *o, const char *type, const char *params_json)
{
    if (!o || !type) return dsi_null_operand("schedule_by_name");
    const dsi_schedule_entry *e = schedule_find_entry(type);
    if (!e) return schedule_refuse_name(type);
    ds_schedule *s = ds_schedule_new(o, &e->type);
    double *lr = dsi_schedule_base_lr(o);
    const dsi_params_from from = {"scheduler.params", type, ds_optim_groups(o), lr};
    ds_status status = dsi_params_read(&from, params_json, e->params, s->self);
    dsi_free(lr);
    if (status != DS_OK) {
        ds_schedule_free(s);
        return NULL;
    }
    s->last = e->begin(s->self, o);
    if (s->last == -1) s->type->apply(s->self, o, -1);
    return s;
}
