/* launcher/runner_commands.c: the command line of each engine.
 *
 * What stands in them was tried on one machine and on several (docs/launcher.md says why each word is there). Each ends
 * with the command of a rank, `deepspeed --rank_start ... -- PROGRAM ARGS`; no word goes through a shell here, and what
 * ssh hands to one on the other side is quoted by the MPIs.
 * SPDX-License-Identifier: MIT */
#include "environment.h"
#include "join/session.h"
#include "runner.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

const char *host_address(const ds_host *h)
{
    const char *at = strrchr(h->name, '@');
    return at ? at + 1 : h->name;
}

static bool asks(const launch_plan *p, const char *launcher)
{
    return p->o.launcher && !strcasecmp(p->o.launcher, launcher);
}

static bool is_remote(const launch_plan *p)
{
    return p->engine != ENGINE_DIRECT && p->engine != ENGINE_LOCAL;
}

/* ---- a rank ------------------------------------------------------------------------------------------------ */

static void add_rank(words *w, const launch_plan *p)
{
    const options *o = &p->o;
    words_add(w, "%s", p->self);
    words_add(w, "--rank_start");
    words_add(w, "--world_info=%s", p->world_info);
    if (p->master_addr) words_add(w, "--master_addr=%s", p->master_addr);
    words_add(w, "--master_port=%d", o->master_port);
    if (o->no_local_rank) words_add(w, "--no_local_rank");
    if (o->rank_log) words_add(w, "--enable_each_rank_log=%s", o->rank_log);
    if (o->bind_cores_to_rank) words_add(w, "--bind_cores_to_rank");
    if (o->bind_core_list) words_add(w, "--bind_core_list=%s", o->bind_core_list);
    if (is_remote(p)) words_add(w, "--chdir=%s", p->folder);
    if (o->quiet) words_add(w, "--quiet");
    words_add(w, "--log_level=%s", o->quiet ? "error" : o->log_level);
    words_add(w, "--");
    words_add_all(w, o->program);
}

/* ---- Open MPI ---------------------------------------------------------------------------------------------- */

static bool has_word(const launch_plan *p, const char *word)
{
    for (char **a = p->launcher_words; a && *a; a++)
        if (!strcmp(*a, word) || (!strncmp(*a, word, strlen(word)) && (*a)[strlen(word)] == '='))
            return true;
    return false;
}

/* Whether the user has set an MCA parameter: then ours is left out, as mpirun refuses two values. */
static bool is_set_by_user(const launch_plan *p, const char *parameter)
{
    dsi_text name = {0};
    dsi_text_add(&name, "OMPI_MCA_%s", parameter);
    bool set = getenv(name.s) != NULL;
    for (char **e = p->environment; e && *e; e++) /* .deepspeed_env */
        set = set || (!strncmp(*e, name.s, name.n) && (*e)[name.n] == '=');
    dsi_text_free(&name);
    for (char **a = p->launcher_words; a && *a && a[1]; a++)
        set = set || (strstr(*a, "mca") && **a == '-' && !strcmp(a[1], parameter));
    return set;
}

static void add_mca(words *w, const launch_plan *p, const char *parameter, const char *value)
{
    if (is_set_by_user(p, parameter)) return;
    words_add(w, "--mca");
    words_add(w, "%s", parameter);
    words_add(w, "%s", value);
}

/* How mpirun starts a process on another host. */
static void add_agent(words *w, const launch_plan *p)
{
    dsi_text ssh = {0};
    dsi_text_add(&ssh, "ssh -o BatchMode=yes");
    if (p->o.ssh_port > 0) dsi_text_add(&ssh, " -p %d", p->o.ssh_port);
    if (!asks(p, "openmpi")) add_mca(w, p, "plm", "rsh");
    if (p->engine == ENGINE_NODES)
        add_mca(w, p, "plm_rsh_agent", p->agent);
    else
        add_mca(w, p, "plm_rsh_agent", asks(p, "pdsh") ? "pdsh -S -N -R ssh -w" : ssh.s);
    add_mca(w, p, "plm_rsh_no_tree_spawn", "1"); /* hosts need not reach each other by ssh */
    if (p->engine == ENGINE_NODES) add_mca(w, p, "if_base_do_not_resolve", "1");
    if (p->engine == ENGINE_NODES && !has_word(p, "--leave-session-attached"))
        words_add(w, "--leave-session-attached"); /* orted stays a child of the node that joined */
    dsi_text_free(&ssh);
}

/* node0:2,node1:2. Nodes that have joined are known by numbers: what they call themselves may be a name of this
 * machine here, or of all of them. */
static void add_host_list(words *w, const launch_plan *p)
{
    dsi_text list = {0};
    for (int i = 0; i < p->n_hosts; i++) {
        const char *name = p->hosts[i].name;
        char numbered[NODE_NAME];
        if (p->engine == ENGINE_NODES) name = i ? node_name(numbered, i) : "localhost";
        if (p->hosts[i].n_slots)
            dsi_text_add(&list, "%s%s:%d", list.n ? "," : "", name, p->hosts[i].n_slots);
    }
    words_add(w, "%s", list.s ? list.s : "");
    dsi_text_free(&list);
}

/* Names of variables to forward: mpirun takes the values from its own environment. Its own parameters it
 * forwards by itself. */
static void add_exports(words *w, const launch_plan *p)
{
    static const char *const own[] = {"OMPI_MCA_", "PDSH_", "HYDRA_"};
    for (char **e = p->environment; e && *e; e++) {
        bool skip = false;
        for (int i = 0; i < 3; i++) skip = skip || !strncmp(*e, own[i], strlen(own[i]));
        if (skip) continue;
        words_add(w, "-x");
        words_add(w, "%.*s", (int)strcspn(*e, "="), *e);
    }
}

/* Whether ranks outnumber the cores that they may use: they must not spin while they wait. */
static bool is_crowded(int ranks)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < ranks;
}

static void add_mpirun(words *w, const launch_plan *p)
{
    words_add(w, "%s", p->starter);
    if (geteuid() == 0) words_add(w, "--allow-run-as-root");
    if (!has_word(p, "--bind-to")) { /* affinity is the rank's own affair */
        words_add(w, "--bind-to");
        words_add(w, "none");
    }
    if (!has_word(p, "--map-by")) { /* ranks are numbered host by host */
        words_add(w, "--map-by");
        words_add(w, "slot");
    }
    add_mca(w, p, "pml", "ob1"); /* names what is tried: saves 170 ms of each start */
    add_mca(w, p, "btl", "self,vader,tcp");
    add_mca(w, p, "osc", "pt2pt,sm");
    if (is_remote(p)) {
        add_agent(w, p);
        if (!is_set_by_user(p, "btl_tcp_if_include"))
            add_mca(w, p, "btl_tcp_if_exclude", "lo,docker0,podman0,virbr0");
        if (!is_set_by_user(p, "oob_tcp_if_include"))
            add_mca(w, p, "oob_tcp_if_exclude", "lo,docker0,podman0,virbr0");
        add_mca(w, p, "oob_tcp_keepalive_time", "10"); /* a cut network is noticed in 20 s, */
        add_mca(w, p, "oob_tcp_keepalive_intvl", "3"); /* by mpirun and by orted */
        add_mca(w, p, "oob_tcp_keepalive_probes", "3");
        words_add(w, "-H");
        add_host_list(w, p);
    } else {
        add_mca(w, p, "plm", "isolated"); /* no ssh is looked for */
        if (is_crowded(p->world_size)) add_mca(w, p, "mpi_yield_when_idle", "1");
        words_add(w, "-H");
        words_add(w, "localhost:%d", p->world_size);
    }
    words_add(w, "-np");
    words_add(w, "%d", p->world_size);
    words_add_all(w, p->launcher_words);
    if (is_remote(p)) add_exports(w, p);
}

/* ---- others ------------------------------------------------------------------------------------------------ */

/* A hydra forwards the whole environment. */
static void add_hydra(words *w, const launch_plan *p)
{
    static const char *const mvapich[] = {"MV2_SMP_USE_CMA", "0", "MV2_DEBUG_SHOW_BACKTRACE", "1",
                                          "MV2_SUPPORT_DL",  "1", "MV2_ENABLE_AFFINITY",      "0"};
    words_add(w, "%s", p->starter);
    if (!has_word(p, "-launcher")) {
        words_add(w, "-launcher");
        words_add(w, "%s", is_remote(p) ? "ssh" : "fork");
    }
    if (is_remote(p)) {
        words_add(w, "-hosts");
        add_host_list(w, p);
    }
    for (int i = 0; p->engine == ENGINE_MVAPICH && i < 8; i += 2) {
        words_add(w, "-genv");
        words_add(w, "%s", mvapich[i]);
        words_add(w, "%s", mvapich[i + 1]);
    }
    words_add(w, "-n");
    words_add(w, "%d", p->world_size);
    words_add_all(w, p->launcher_words);
}

/* srun chooses by count. Names are given where they are known: it would take any host otherwise. */
static void add_srun(words *w, const launch_plan *p)
{
    words_add(w, "%s", p->starter);
    words_add(w, "-K1");                                   /* one rank's failure ends the others */
    if (!has_word(p, "--mpi")) words_add(w, "--mpi=pmix"); /* as Open MPI wants it; MPICH: pmi2 */
    words_add(w, "-n");
    words_add(w, "%d", p->world_size);
    words_add(w, "--ntasks-per-node=%d", p->hosts[0].n_slots);
    if (!has_word(p, "--distribution")) words_add(w, "--distribution=block"); /* host by host */
    words_add(w, "--nodes");
    words_add(w, "%d", p->n_hosts);
    if (p->from != FROM_SRUN) {
        dsi_text names = {0};
        for (int i = 0; i < p->n_hosts; i++)
            dsi_text_add(&names, "%s%s", i ? "," : "", host_address(&p->hosts[i]));
        words_add(w, "--nodelist");
        words_add(w, "%s", names.s);
        dsi_text_free(&names);
    }
    if (p->o.num_gpus > 0) {
        words_add(w, "--gpus-per-node");
        words_add(w, "%d", p->o.num_gpus);
    }
    words_add_all(w, p->launcher_words);
    words_add(w, "--export=ALL");
}

char **engine_command(const launch_plan *p)
{
    words w = {0};
    if (p->engine == ENGINE_SLURM)
        add_srun(&w, p);
    else if (p->hydra)
        add_hydra(&w, p);
    else if (p->engine != ENGINE_DIRECT)
        add_mpirun(&w, p);
    add_rank(&w, p);
    return words_take(&w);
}

void engine_environment(const launch_plan *p, words *environment)
{
    dsi_text port = {0};
    dsi_text_add(&port, "-p %d", p->o.ssh_port);
    if (p->engine == ENGINE_OPENMPI && asks(p, "pdsh")) {
        environment_set(environment, "PDSH_RCMD_TYPE", "ssh");
        if (p->o.ssh_port > 0) environment_set(environment, "PDSH_SSH_ARGS_APPEND", port.s);
    }
    if (p->hydra && is_remote(p) && p->o.ssh_port > 0)
        environment_set(environment, "HYDRA_LAUNCHER_EXTRA_ARGS", port.s);
    dsi_text_free(&port);
}
