/* launcher/plan.c: from the options to what is to be started.
 *
 * An obstacle to a start (a missing program, a runner that is not installed) is
 * an error of a start. A dry run, which may be made on another machine, only
 * mentions it and shows what would be started.
 * SPDX-License-Identifier: MIT */
#include "plan.h"

#include "cores.h"
#include "environment.h"
#include "local_host.h"
#include "processes.h"
#include "program.h"
#include "reachable.h"

#include "base/error.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- deciding --------------------------------------------------------------- */

static ds_status plan_find_hosts(launch_plan *p)
{
    ds_hosts h = {0};
    dsi_text notices = {0};
    const char *ignored;
    const runner *requested = runner_find(p->o.launcher, &ignored);
    ds_status status = resources_find(&h, &p->origin, &notices, &p->o,
                                      requested ? requested->find_hosts : NULL);
    p->notices = notices.s ? notices.s : dsi_strdup("");
    p->hosts = h.at;
    p->n_hosts = h.n;
    p->world_size = hosts_count_slots(&h);
    return status;
}

/* Each rank reads the list; a mistake in it is reported once and before that. */
static ds_status check_core_list(const options *o)
{
    cores list;
    dsi_text why = {0};
    ds_status status = DS_OK;
    if (!o->bind_core_list) return DS_OK;
    if (!cores_parse(o->bind_core_list, &list, &why))
        status = dsi_fail(DS_EINVAL, "--bind_core_list: %s", why.s);
    dsi_text_free(&why);
    dsi_list_free(&list);
    return status;
}

static ds_status plan_split_launcher_args(launch_plan *p)
{
    argv_list list = {0};
    ds_status status = p->o.launcher_args ? argv_split(&list, "--launcher_args", p->o.launcher_args)
                                          : DS_OK;
    p->launcher_args = argv_detach(&list);
    return status;
}

static ds_status plan_collect_environment(launch_plan *p)
{
    argv_list list = {0};
    ds_status status = environment_collect(&list);
    p->environment = argv_detach(&list);
    return status;
}

/* In a dry run an obstacle to a start is printed and then ignored. */
static ds_status unless_dry_run(const launch_plan *p, ds_status status)
{
    if (status == DS_OK || !p->o.dry_run) return status;
    fprintf(stderr, "deepspeed: it would not start: %s\n", ds_error());
    ds_error_clear();
    return DS_OK;
}

/* The program must exist here, even if all ranks run elsewhere: a typing error
 * is found before anything is started. */
static ds_status plan_check_program(launch_plan *p)
{
    int status;
    char *path = program_find(p->o.program[0], &status);
    if (!path && !p->o.dry_run) p->exit_status = status;
    dsi_free(path);
    return path ? DS_OK : DS_EINVAL;
}

/* MASTER_ADDR as far as it is known before any host is asked. */
static char *plan_guess_master(const launch_plan *p)
{
    if (p->origin == HOSTS_LOCAL) return dsi_strdup("127.0.0.1");
    if (p->o.master_addr) return dsi_strdup(p->o.master_addr);
    if (p->origin == HOSTS_OF_JOB && p->n_hosts) return dsi_strdup(p->hosts[0].name);
    if (p->o.dry_run && p->n_hosts && p->origin != HOSTS_UNNAMED)
        return dsi_strdup(host_address(&p->hosts[0]));
    return NULL;
}

static void plan_compose(launch_plan *p);

/* Checks first what depends on the command line alone, then files, then what is
 * installed. */
static ds_status plan_make(launch_plan *p)
{
    char folder[PATH_MAX];
    p->deepspeed = local_host_program();
    p->folder = dsi_strdup(getcwd(folder, sizeof folder) ? folder : ".");
    p->join_agent = dsi_strdup(p->deepspeed);
    ds_status status = plan_split_launcher_args(p);
    if (status == DS_OK) status = check_core_list(&p->o);
    if (status == DS_OK) status = processes_check_grace();
    if (status == DS_OK) status = plan_find_hosts(p);
    if (status == DS_OK) status = plan_choose_runner(p);
    if (status == DS_OK) status = plan_collect_environment(p);
    if (status == DS_OK) status = unless_dry_run(p, plan_check_program(p));
    if (status == DS_OK) status = unless_dry_run(p, plan_find_program(p));
    if (status == DS_OK) status = unless_dry_run(p, plan_check_runner(p));
    if (status != DS_OK) return status;
    p->master_addr = plan_guess_master(p);
    p->full_size = p->world_size;
    plan_compose(p);
    return DS_OK;
}

int plan_decide(launch_plan *p, const options *o)
{
    *p = (launch_plan){.o = *o, .exit_status = STATUS_WRONG};
    if (plan_make(p) == DS_OK) return 0;
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return p->exit_status;
}

/* ---- composing -------------------------------------------------------------- */

static void plan_compose_environment(launch_plan *p)
{
    argv_list environment = argv_attach(p->environment);
    if (p->master_addr) environment_set(&environment, "MASTER_ADDR", "%s", p->master_addr);
    environment_set(&environment, "MASTER_PORT", "%d", p->o.master_port);
    environment_set(&environment, "WORLD_SIZE", "%d", p->world_size);
    if (p->o.max_restarts) {
        environment_set(&environment, "TORCHELASTIC_RESTART_COUNT", "%d", p->restarts);
        environment_set(&environment, "TORCHELASTIC_MAX_RESTARTS", "%d", p->o.max_restarts);
        environment_set(&environment, "DS_FULL_WORLD_SIZE", "%d", p->full_size);
    }
    if (p->runner->add_environment) p->runner->add_environment(&environment, p);
    p->environment = argv_detach(&environment);
}

/* The command of a rank, which ends the runner's. */
static void add_rank_command(argv_list *argv, const launch_plan *p)
{
    const options *o = &p->o;
    argv_add_words(argv, p->deepspeed, "--rank_start");
    argv_add(argv, "--world_info=%s", p->world_info);
    if (p->master_addr) argv_add(argv, "--master_addr=%s", p->master_addr);
    argv_add(argv, "--master_port=%d", o->master_port);
    if (o->no_local_rank) argv_add(argv, "--no_local_rank");
    if (o->rank_log) argv_add(argv, "--enable_each_rank_log=%s", o->rank_log);
    if (o->bind_cores_to_rank) argv_add(argv, "--bind_cores_to_rank");
    if (o->bind_core_list) argv_add(argv, "--bind_core_list=%s", o->bind_core_list);
    if (p->remote) argv_add(argv, "--chdir=%s", p->folder);
    if (p->remote && o->num_gpus > 0) argv_add(argv, "--num_gpus=%d", o->num_gpus);
    if (o->quiet) argv_add(argv, "--quiet");
    argv_add(argv, "--log_level=%s", o->quiet ? "error" : o->log_level);
    argv_add(argv, "--");
    argv_add_all(argv, o->program);
}

static void plan_compose(launch_plan *p)
{
    p->world_size = hosts_count_slots(&(ds_hosts){.at = p->hosts, .n = p->n_hosts});
    dsi_free(p->world_info);
    p->world_info = hosts_encode(p->hosts, p->n_hosts);
    plan_compose_environment(p);
    argv_free(p->command);
    p->command = NULL;
    if (!p->world_size || (p->runner->joins && p->o.node_rank > 0)) return;
    argv_list argv = {0};
    if (p->runner->add_command) p->runner->add_command(&argv, p);
    add_rank_command(&argv, p);
    p->command = argv_detach(&argv);
}

/* Until it has joined, a node counts as having the slots of this one. */
void plan_set_joined(launch_plan *p, const ds_hosts *joined, int full_size, char *join_agent)
{
    ds_hosts old = {.at = p->hosts, .n = p->n_hosts};
    hosts_free(&old);
    dsi_free(p->join_agent);
    p->hosts = joined->at;
    p->n_hosts = joined->n;
    p->full_size = full_size;
    p->join_agent = join_agent;
    plan_compose(p);
}

void plan_free(launch_plan *p)
{
    ds_hosts h = {.at = p->hosts, .n = p->n_hosts};
    hosts_free(&h);
    argv_free(p->command);
    argv_free(p->environment);
    argv_free(p->launcher_args);
    char *const texts[] = {p->world_info, p->master_addr,    p->join_agent, p->deepspeed,
                           p->folder,     p->runner_program, p->notices};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) dsi_free(texts[i]);
    *p = (launch_plan){0};
}

/* ---- asking the hosts --------------------------------------------------------- */

/* The host that is left of a hostfile is this machine, as in DeepSpeed; a line
 * says so if it has another name. */
static void plan_stay_here(launch_plan *p)
{
    const char *name = p->hosts[0].name;
    if (!p->master_addr) p->master_addr = local_host_address();
    if (!options_silent(&p->o) && !local_host_is(name))
        fprintf(stderr,
                "deepspeed: the ranks of %s are started on this machine, as no other host is left; "
                "--force_multi starts them there\n",
                name);
}

static reach_request plan_reach_request(const launch_plan *p, const ds_host *hosts, int n)
{
    return (reach_request){.hosts = hosts,
                           .n_hosts = n,
                           .ssh_port = p->o.ssh_port,
                           .hostfile = p->o.hostfile ? p->o.hostfile : DEFAULT_HOSTFILE,
                           .fan_out = p->runner->fan_out ? p->runner->fan_out(p) : 0,
                           .deepspeed = p->deepspeed};
}

/* answers, begun: as in reach_request. */
static ds_status plan_ask_hosts(launch_plan *p, int n_hosts, bool wants_address, bool *answers,
                                struct reach_queries *begun)
{
    int signal = 0;
    bool tree = false;
    reach_request request = plan_reach_request(p, p->hosts, n_hosts);
    request.answers = answers;
    request.begun = begun;
    ds_status status = reachable_check(&request, wants_address ? &p->master_addr : NULL, &signal,
                                       &tree);
    if (n_hosts == p->n_hosts) p->tree = tree; /* all were asked */
    if (signal) p->exit_status = 128 + signal;
    return status;
}

/* Without --master_addr the first host is asked for its address; if it is this
 * machine or was not asked, its name is resolved here. check: ask all hosts
 * whether they answer. */
static ds_status plan_find_master(launch_plan *p, bool check)
{
    bool wanted = !p->master_addr && p->n_hosts && p->origin != HOSTS_UNNAMED;
    bool over_ssh = p->remote && p->runner->over_ssh;
    ds_status status = DS_OK;
    if (over_ssh && check) status = plan_ask_hosts(p, p->n_hosts, wanted, NULL, NULL);
    if (status != DS_OK || !wanted || p->master_addr) return status;

    const char *first = host_address(&p->hosts[0]);
    p->master_addr = local_host_is(first) ? local_host_address() : reachable_resolve(first);
    if (!p->master_addr && over_ssh && !check) status = plan_ask_hosts(p, 1, true, NULL, NULL);
    if (status == DS_OK && !p->master_addr)
        return dsi_fail(DS_ECOMM, "%s: its address cannot be found; give it as --master_addr",
                        first);
    return status;
}

int plan_reach(launch_plan *p)
{
    p->exit_status = EXIT_FAILURE;
    if (!p->remote && p->origin == HOSTS_OF_FILE) plan_stay_here(p);
    if (plan_find_master(p, !p->o.no_ssh_check) == DS_OK) {
        plan_compose(p);
        return 0;
    }
    fprintf(stderr, "deepspeed: %s\n", ds_error());
    return p->exit_status;
}

/* The plan's hosts become those of `all` that answer. */
static void plan_set_answering(launch_plan *p, const ds_hosts *all, const bool *answers)
{
    ds_hosts old = {.at = p->hosts, .n = p->n_hosts}, kept = {0};
    for (int i = 0; i < all->n; i++)
        if (answers[i]) hosts_add_copy(&kept, &all->at[i]);
    bool first_stays = kept.n && old.n && !strcmp(kept.at[0].name, old.at[0].name);
    if (!first_stays && !p->o.master_addr && p->origin != HOSTS_LOCAL) {
        dsi_free(p->master_addr);
        p->master_addr = NULL;
    }
    hosts_free(&old);
    p->hosts = kept.at;
    p->n_hosts = kept.n;
}

/* The address of the first host is asked for once it is known who answers. */
static bool plan_asks(const launch_plan *p)
{
    return p->remote && p->runner->over_ssh && !p->o.no_ssh_check;
}

struct reach_queries *plan_begin_asking(const launch_plan *p, const ds_hosts *all)
{
    reach_request request = plan_reach_request(p, all->at, all->n);
    return plan_asks(p) ? reachable_begin(&request) : NULL;
}

int plan_reach_some(launch_plan *p, const ds_hosts *all, struct reach_queries *begun)
{
    bool *answers = dsi_alloc((size_t)all->n * sizeof *answers);
    ds_status status = DS_OK;
    p->exit_status = EXIT_FAILURE;
    for (int i = 0; i < all->n; i++) answers[i] = true;
    plan_set_answering(p, all, answers);
    if (plan_asks(p))
        status = plan_ask_hosts(p, all->n, false, answers, begun);
    else
        reachable_drop(begun);
    if (status == DS_OK) plan_set_answering(p, all, answers);
    if (status == DS_OK) status = plan_find_master(p, false);
    dsi_free(answers);
    if (status != DS_OK) fprintf(stderr, "deepspeed: %s\n", ds_error());
    if (status != DS_OK) return p->exit_status;
    plan_compose(p);
    return 0;
}

/* ---- printing ----------------------------------------------------------------- */

/* Not by jansson, which refuses bytes that are not UTF-8; arguments and
 * variables may hold those. */
static void add_command_json(dsi_text *t, char *const *command)
{
    if (!command) return;
    dsi_text_add(t, "[");
    for (char *const *a = command; *a; a++) {
        if (a > command) dsi_text_add(t, ", ");
        text_add_json(t, *a);
    }
    dsi_text_add(t, "]");
}

static int at_least_one(int n) { return n > 0 ? n : 1; }

bool plan_has_enough(const launch_plan *p, int hosts, int ranks)
{
    return hosts >= at_least_one(p->o.min_nodes) && ranks >= at_least_one(p->o.min_ranks);
}

void plan_add_too_few(const launch_plan *p, const char *name, int hosts, int ranks, dsi_text *t)
{
    dsi_text_add(t,
                 "the job has %d %s%s with %d rank%s in all: --min_nodes %d, --min_ranks %d "
                 "cannot be reached",
                 hosts, name, hosts == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s",
                 at_least_one(p->o.min_nodes), at_least_one(p->o.min_ranks));
}

static void add_environment_json(dsi_text *t, char *const *environment)
{
    for (char *const *e = environment; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        dsi_text name = dsi_text_of("%.*s", (int)(equals - *e), *e);
        if (e > environment) dsi_text_add(t, ", ");
        text_add_json(t, name.s);
        dsi_text_add(t, ": ");
        text_add_json(t, equals + 1);
        dsi_text_free(&name);
    }
}

/* The length of a JSON element: up to its comma or the end of the line. */
static size_t json_element_length(const char *s)
{
    size_t n = 0;
    for (bool quoted = false; s[n] && s[n] != '\n' && (quoted || s[n] != ','); n++) {
        if (s[n] == '"') quoted = !quoted;
        if (s[n] == '\\') n++;
    }
    return n + (s[n] == ',');
}

/* The same JSON with new lines between elements, so that it fits a terminal of
 * 60 columns, except for elements that are longer. It has ASCII characters
 * only. */
static dsi_text wrap_json(const char *s)
{
    enum { WIDTH = 59 };
    dsi_text t = {0};
    for (size_t column = 0, n; *s; s += n) {
        n = *s == '\n' ? 1 : json_element_length(s);
        if (column && *s != '\n' && column + n > WIDTH) {
            dsi_text_add(&t, "\n ");
            column = 1;
        }
        dsi_text_add(&t, "%.*s", (int)n, s);
        column = *s == '\n' ? 0 : column + n;
    }
    return t;
}

int plan_print(const launch_plan *p)
{
    char *resources = hosts_json(p->hosts, p->n_hosts);
    dsi_text json = dsi_text_of("{\"resources\": %s,\n \"world_info\": \"%s\",\n \"commands\": [",
                                resources, p->world_info);
    add_command_json(&json, p->command);
    dsi_text_add(&json, "],\n \"environment\": {");
    add_environment_json(&json, p->environment);
    dsi_text_add(&json, "}}\n");
    dsi_text t = wrap_json(json.s);
    fwrite(t.s, 1, t.n, stdout);
    dsi_text_free(&t);
    dsi_text_free(&json);
    dsi_free(resources);
    return EXIT_SUCCESS;
}
