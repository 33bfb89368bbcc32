/* launcher/plan.c: from a command line to what is to be started.
 *
 * What stands in the way of a start (a program that is missing, an engine that is not installed) is an error of a
 * start and a note in a dry run, which may be made on another machine and shows what would be started all the same.
 * SPDX-License-Identifier: MIT */
#include "plan.h"

#include "cores.h"
#include "environment.h"
#include "local_host.h"
#include "processes.h"
#include "program.h"
#include "runner.h"

#include "base/error.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- deciding ---------------------------------------------------------------------------------------------- */

/* Hosts, slots and what DeepSpeed says of them. */
static ds_status find_hosts(launch_plan *p)
{
    ds_hosts h = {0};
    dsi_text said = {0};
    ds_status status = resources_find(&h, &p->from, &said, &p->o);
    p->said = said.s ? said.s : dsi_strdup("");
    p->hosts = h.at;
    p->n_hosts = h.n;
    for (int i = 0; i < p->n_hosts; i++) p->world_size += p->hosts[i].n_slots;
    return status;
}

/* Each rank will read the list; a mistake in it is told once, and before anything runs. */
static ds_status check_cores(const options *o)
{
    cores list;
    dsi_text why = {0};
    ds_status status = DS_OK;
    if (!o->bind_core_list) return DS_OK;
    if (!cores_parse(o->bind_core_list, &list, &why))
        status = dsi_fail(DS_EINVAL, "--bind_core_list: %s", why.s);
    dsi_text_free(&why);
    cores_free(&list);
    return status;
}

static ds_status split_launcher_args(launch_plan *p)
{
    words w = {0};
    ds_status status = p->o.launcher_args ? words_split(&w, "--launcher_args", p->o.launcher_args)
                                          : DS_OK;
    p->launcher_words = words_take(&w);
    return status;
}

static ds_status collect_environment(launch_plan *p)
{
    words w = {0};
    ds_status status = environment_collect(&w);
    p->environment = words_take(&w);
    return status;
}

/* A dry run goes on after it has told what a start would fail of. */
static ds_status unless_dry(const launch_plan *p, ds_status status)
{
    if (status == DS_OK || !p->o.dry_run) return status;
    fprintf(stderr, "deepspeed: it would not start: %s\n", ds_error());
    ds_error_clear();
    return DS_OK;
}

static ds_status look_for_program(launch_plan *p)
{
    int unfit;
    char *path = program_find(p->o.program[0], &unfit);
    if (!path && !p->o.dry_run) p->wrong = unfit;
    dsi_free(path);
    return path ? DS_OK : DS_EINVAL;
}

/* MASTER_ADDR as far as it can be told from here. */
static char *first_guess(const launch_plan *p)
{
    if (p->from == FROM_MACHINE) return dsi_strdup("127.0.0.1");
    if (p->o.master_addr) return dsi_strdup(p->o.master_addr);
    if (p->from == FROM_SLURM && p->n_hosts) return dsi_strdup(p->hosts[0].name);
    return NULL;
}

/* What depends on nothing but what was typed comes first, then files, then what is installed. */
static ds_status decide(launch_plan *p)
{
    char folder[PATH_MAX];
    p->self = here_self();
    p->folder = dsi_strdup(getcwd(folder, sizeof folder) ? folder : ".");
    p->agent = dsi_strdup(p->self);
    ds_status status = split_launcher_args(p);
    if (status == DS_OK) status = check_cores(&p->o);
    if (status == DS_OK) status = processes_check_grace();
    if (status == DS_OK) status = find_hosts(p);
    if (status == DS_OK) status = engine_choose(p);
    if (status == DS_OK) status = collect_environment(p);
    if (status == DS_OK) status = unless_dry(p, look_for_program(p));
    if (status == DS_OK) status = unless_dry(p, engine_look(p));
    if (status == DS_OK) status = unless_dry(p, engine_accepts(p));
    if (status != DS_OK) return status;
    p->master_addr = first_guess(p);
    if (p->o.dry_run && !p->master_addr && p->n_hosts && p->from != FROM_SRUN)
        p->master_addr = dsi_strdup(host_address(&p->hosts[0]));
    plan_compose(p);
    return DS_OK;
}

int plan_make(launch_plan *p, int argc, char **argv)
{
    options o;
    args_read(&o, argc, argv);
    return plan_decide(p, &o);
}

int plan_decide(launch_plan *p, const options *o)
{
    *p = (launch_plan){.o = *o, .wrong = STATUS_WRONG};
    if (decide(p) == DS_OK) return 0;
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return p->wrong;
}

/* ---- composing --------------------------------------------------------------------------------------------- */

static void free_commands(launch_plan *p)
{
    for (int i = 0; i < p->n_commands; i++) argv_free(p->commands[i]);
    dsi_free(p->commands);
    p->commands = NULL;
    p->n_commands = 0;
}

void plan_compose(launch_plan *p)
{
    p->world_size = 0;
    for (int i = 0; i < p->n_hosts; i++) p->world_size += p->hosts[i].n_slots;
    dsi_free(p->world_info);
    p->world_info = hosts_encode(p->hosts, p->n_hosts);

    words environment = words_give(p->environment);
    dsi_text port = {0}, size = {0};
    dsi_text_add(&port, "%d", p->o.master_port);
    dsi_text_add(&size, "%d", p->world_size);
    if (p->master_addr) environment_set(&environment, "MASTER_ADDR", p->master_addr);
    environment_set(&environment, "MASTER_PORT", port.s);
    environment_set(&environment, "WORLD_SIZE", size.s);
    engine_environment(p, &environment);
    p->environment = words_take(&environment);
    dsi_text_free(&port);
    dsi_text_free(&size);

    free_commands(p);
    if (!p->world_size || (p->engine == ENGINE_NODES && p->o.node_rank > 0)) return;
    p->commands = dsi_alloc(sizeof *p->commands);
    p->commands[p->n_commands++] = engine_command(p);
}

void plan_free(launch_plan *p)
{
    ds_hosts h = {.at = p->hosts, .n = p->n_hosts};
    hosts_free(&h);
    free_commands(p);
    argv_free(p->environment);
    argv_free(p->launcher_words);
    char *const texts[] = {p->world_info, p->master_addr, p->agent, p->self,
                           p->folder,     p->starter,     p->said};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) dsi_free(texts[i]);
    *p = (launch_plan){0};
}

/* ---- showing ----------------------------------------------------------------------------------------------- */

/* jansson would refuse bytes that are not UTF-8, which arguments and variables may hold: so by hand. */
static void add_commands(dsi_text *t, const launch_plan *p)
{
    for (int i = 0; i < p->n_commands; i++) {
        dsi_text_add(t, i ? ", [" : "[");
        for (char **a = p->commands[i]; *a; a++) {
            if (a > p->commands[i]) dsi_text_add(t, ", ");
            text_add_json(t, *a);
        }
        dsi_text_add(t, "]");
    }
}

static void add_environment(dsi_text *t, const launch_plan *p)
{
    for (char **e = p->environment; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        dsi_text name = {0};
        dsi_text_add(&name, "%.*s", (int)(equals - *e), *e);
        if (e > p->environment) dsi_text_add(t, ", ");
        text_add_json(t, name.s);
        dsi_text_add(t, ": ");
        text_add_json(t, equals + 1);
        dsi_text_free(&name);
    }
}

int plan_print(const launch_plan *p)
{
    dsi_text t = {0};
    char *resources = hosts_json(p->hosts, p->n_hosts);
    dsi_text_add(&t, "{\"resources\": %s,\n \"world_info\": \"%s\",\n \"commands\": [", resources,
                 p->world_info);
    add_commands(&t, p);
    dsi_text_add(&t, "],\n \"environment\": {");
    add_environment(&t, p);
    dsi_text_add(&t, "}}\n");
    bool bad = fwrite(t.s, 1, t.n, stdout) != t.n || fflush(stdout) != 0;
    if (bad) perror("deepspeed: stdout");
    dsi_text_free(&t);
    dsi_free(resources);
    return bad ? EXIT_FAILURE : EXIT_SUCCESS;
}
