/* launcher/runners/openmpi.c: Open MPI's mpirun: on this machine, over ssh,
 * over pdsh, or as Open MPI itself decides.
 *
 * Each argument was tried on one machine and on several; docs/launcher.md says
 * why it is there. mpirun quotes what ssh hands to a shell.
 * SPDX-License-Identifier: MIT */
#include "environment.h"
#include "program.h"
#include "runners.h"

enum {
    SSH_AT_ONCE = 128, /* Open MPI's own limit */
    FAN_OUT = 8        /* hosts that one host starts, where hosts reach each other */
};

#include "base/error.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *openmpi_find_program(void)
{
    static const char *const names[] = {"mpirun", "mpirun.openmpi", "orterun", NULL};
    return runner_first_on_path(names, false);
}

static bool uses_pdsh(const launch_plan *p) { return p->remote && !strcmp(p->launcher, "pdsh"); }

/* mpirun decides by itself how to reach other hosts (--launcher openmpi). */
static bool decides_itself(const launch_plan *p) { return !strcmp(p->launcher, "openmpi"); }

static ds_status openmpi_check_tools(const launch_plan *p)
{
    if (uses_pdsh(p) && !runner_is_installed("pdsh"))
        return dsi_fail(DS_EINVAL, NOT_INSTALLED("pdsh", "pdsh (or --launcher ssh)"));
    if (!p->remote || decides_itself(p) || runner_is_installed("ssh")) return DS_OK;
    return dsi_fail(DS_EINVAL, NOT_INSTALLED("ssh", "openssh-client"));
}

/* Is it Open MPI 5 or later, whose mpirun runs PRRTE's prterun? That is
 * installed beside mpirun, as orterun is beside that of version 4. */
static bool has_prrte(const launch_plan *p)
{
    char *found = program_on_path(p->runner_program), path[PATH_MAX] = "";
    char *slash = found && realpath(found, path) ? strrchr(path, '/') : NULL;
    dsi_free(found);
    if (!slash || slash + sizeof "/prterun" > path + sizeof path) return false;
    strcpy(slash, "/orterun");
    bool orte = access(path, X_OK) == 0;
    strcpy(slash, "/prterun");
    return !orte && access(path, X_OK) == 0;
}

/* ---- MCA parameters ---------------------------------------------------------- */

/* The user's value of an MCA parameter; NULL: none is set. mpirun refuses two
 * values of one. */
static const char *find_user_value(const launch_plan *p, const char *parameter)
{
    static const char *const prefixes[] = {"OMPI_MCA_", "PRTE_MCA_"};
    const char *value = NULL;
    for (int i = 0; i < 2; i++) {
        dsi_text name = dsi_text_of("%s%s", prefixes[i], parameter);
        if (!value) value = getenv(name.s);
        for (char **e = p->environment; e && *e; e++) /* .deepspeed_env */
            if (!strncmp(*e, name.s, name.n) && (*e)[name.n] == '=') value = *e + name.n + 1;
        dsi_text_free(&name);
    }
    for (char **a = p->launcher_args; a && *a && a[1]; a++)
        if (strstr(*a, "mca") && **a == '-' && !strcmp(a[1], parameter)) value = a[2] ? a[2] : "";
    return value;
}

static bool is_set_by_user(const launch_plan *p, const char *parameter)
{
    return find_user_value(p, parameter) != NULL;
}

static void add_mca(argv_list *argv, const launch_plan *p, const char *parameter, const char *value)
{
    if (is_set_by_user(p, parameter)) return;
    argv_add_words(argv, "--mca", parameter, value);
}

/* A parameter of mpirun and its daemons, by the name that ORTE has for it, the
 * runtime of Open MPI 4. PRRTE has others, and knows some of ORTE's. */
static void add_daemon_mca(argv_list *argv, const launch_plan *p, bool prrte, const char *parameter,
                           const char *value)
{
    static const char *const names[][2] = {{"plm_rsh_", "plm_ssh_"},
                                           {"orte_", "prte_"},
                                           {"oob_tcp_if_", "prte_if_"},
                                           {"if_base_do_not_resolve", "prte_do_not_resolve"}};
    if (!prrte) {
        add_mca(argv, p, parameter, value);
        return;
    }
    dsi_text name = dsi_text_of("%s", parameter);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i][0]);
        if (strncmp(parameter, names[i][0], n)) continue;
        dsi_text_free(&name);
        name = dsi_text_of("%s%s", names[i][1], parameter + n);
    }
    if (!is_set_by_user(p, parameter) && !is_set_by_user(p, name.s))
        argv_add_words(argv, "--prtemca", name.s, value);
    dsi_text_free(&name);
}

/* ---- the command line -------------------------------------------------------- */

/* Do ranks outnumber the cores that they may use? Then they must not spin. */
static bool is_oversubscribed(int ranks)
{
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof cores, &cores) == 0 && CPU_COUNT(&cores) < ranks;
}

/* -H localhost:N: as many slots as ranks, or mpirun would refuse more ranks
 * than cores. */
static void add_local(argv_list *argv, const launch_plan *p, bool prrte)
{
    if (!prrte) add_mca(argv, p, "plm", "isolated"); /* does not look for ssh */
    if (is_oversubscribed(p->world_size)) add_mca(argv, p, "mpi_yield_when_idle", "1");
    argv_add(argv, "-H");
    argv_add(argv, "localhost:%d", p->world_size);
}

/* Each orted runs below a node monitor (node_monitor.h), and remains its child:
 * ssh stays connected. NODE_SECRET is replaced by the job's when it starts.
 * mpirun splits the agent at blanks and a shell of the host reads it again. */
static void add_node_monitor(argv_list *argv, const launch_plan *p, bool prrte)
{
    dsi_text agent = {0};
    if (!runner_has_argument(p, "--leave-session-attached"))
        argv_add(argv, "--leave-session-attached");
    if (p->n_hosts > SSH_AT_ONCE) {
        char n[20];
        snprintf(n, sizeof n, "%d", p->n_hosts);
        add_daemon_mca(argv, p, prrte, "plm_rsh_num_concurrent", n);
    }
    for (const char *c = p->deepspeed; *c; c++)
        dsi_text_add(&agent, strchr(" \t\"'\\$`&;()<>|*?[]#~", *c) ? "\\%c" : "%c", *c);
    dsi_text_add(&agent, " --node_monitor " NODE_SECRET " %s", prrte ? "prted" : "orted");
    if (!strstr(p->deepspeed, "  ")) add_daemon_mca(argv, p, prrte, "orte_launch_agent", agent.s);
    dsi_text_free(&agent);
}

/* Only over ssh, with the tree of Open MPI 4. */
static int openmpi_fan_out(const launch_plan *p)
{
    static const char *const own[] = {"plm", "plm_rsh_agent", "plm_rsh_no_tree_spawn", "routed"};
    const char *radix = find_user_value(p, "routed_radix");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (is_set_by_user(p, own[i])) return 0;
    if (!p->remote || decides_itself(p) || uses_pdsh(p) || has_prrte(p)) return 0;
    return radix ? atoi(radix) : FAN_OUT;
}

/* Which hosts start Open MPI's daemons: Note [Tree of hosts] in reachable.c. */
static void add_tree(argv_list *argv, const launch_plan *p, bool prrte)
{
    char radix[20];
    int fan_out = p->tree ? openmpi_fan_out(p) : 0;
    snprintf(radix, sizeof radix, "%d", fan_out);
    if (fan_out > 0)
        add_daemon_mca(argv, p, prrte, "routed_radix", radix);
    else
        add_daemon_mca(argv, p, prrte, "plm_rsh_no_tree_spawn", "1");
}

static void add_remote(argv_list *argv, const launch_plan *p, bool prrte,
                       const openmpi_remote *remote)
{
    char *hosts = runner_host_list(p, remote->name);
    if (!remote->choose_component) add_daemon_mca(argv, p, prrte, "plm", prrte ? "ssh" : "rsh");
    add_daemon_mca(argv, p, prrte, "plm_rsh_agent", remote->agent);
    add_tree(argv, p, prrte);
    if (remote->joined) add_daemon_mca(argv, p, prrte, "if_base_do_not_resolve", "1");
    add_node_monitor(argv, p, prrte);
    if (!is_set_by_user(p, "btl_tcp_if_include"))
        add_mca(argv, p, "btl_tcp_if_exclude", "lo,docker0,podman0,virbr0");
    if (!is_set_by_user(p, "oob_tcp_if_include") && !is_set_by_user(p, "prte_if_include"))
        add_daemon_mca(argv, p, prrte, "oob_tcp_if_exclude", "lo,docker0,podman0,virbr0");
    /* mpirun and orted notice a cut network within 20 s */
    add_daemon_mca(argv, p, prrte, "oob_tcp_keepalive_time", "10");
    add_daemon_mca(argv, p, prrte, "oob_tcp_keepalive_intvl", "3");
    add_daemon_mca(argv, p, prrte, "oob_tcp_keepalive_probes", "3");
    argv_add_words(argv, "-H", hosts);
    dsi_free(hosts);
}

/* Names of variables to forward; mpirun takes the values from its environment.
 * It forwards its own parameters by itself. */
static void add_exports(argv_list *argv, const launch_plan *p)
{
    static const char *const own[] = {"OMPI_MCA_", "PRTE_MCA_", "PDSH_", "HYDRA_"};
    for (char **e = p->environment; e && *e; e++) {
        bool skip = false;
        for (int i = 0; i < 4; i++) skip = skip || !strncmp(*e, own[i], strlen(own[i]));
        if (skip) continue;
        argv_add(argv, "-x");
        argv_add(argv, "%.*s", (int)strcspn(*e, "="), *e);
    }
}

/* remote: NULL if all ranks are on this machine. */
void openmpi_add_mpirun(argv_list *argv, const launch_plan *p, const openmpi_remote *remote)
{
    const bool prrte = has_prrte(p);
    argv_add(argv, "%s", p->runner_program);
    if (geteuid() == 0) argv_add(argv, "--allow-run-as-root");
    if (!runner_has_argument(p, "--bind-to")) { /* a rank binds itself (cores.h) */
        argv_add_words(argv, "--bind-to", "none");
    }
    if (!runner_has_argument(p, "--map-by")) { /* ranks are numbered host by host */
        argv_add_words(argv, "--map-by", "slot");
    }
    /* To name the components saves 170 ms of each start. */
    add_mca(argv, p, "pml", "ob1");
    if (prrte) { /* its tcp complains where it has no network */
        add_mca(argv, p, "btl", remote ? "self,sm,tcp" : "self,sm");
    } else {
        add_mca(argv, p, "btl", "self,vader,tcp");
        add_mca(argv, p, "osc", "pt2pt,sm");
    }
    if (remote)
        add_remote(argv, p, prrte, remote);
    else
        add_local(argv, p, prrte);
    argv_add(argv, "-np");
    argv_add(argv, "%d", p->world_size);
    argv_add_all(argv, p->launcher_args);
    if (remote) add_exports(argv, p);
}

static void openmpi_add_command(argv_list *argv, const launch_plan *p)
{
    dsi_text ssh = dsi_text_of("ssh -o BatchMode=yes");
    if (p->o.ssh_port > 0) dsi_text_add(&ssh, " -p %d", p->o.ssh_port);
    const openmpi_remote remote = {.agent = uses_pdsh(p) ? "pdsh -S -N -R ssh -w" : ssh.s,
                                   .choose_component = decides_itself(p)};
    openmpi_add_mpirun(argv, p, p->remote ? &remote : NULL);
    dsi_text_free(&ssh);
}

/* For pdsh, which mpirun runs with its own environment. */
static void openmpi_add_environment(argv_list *environment, const launch_plan *p)
{
    if (!uses_pdsh(p)) return;
    environment_set(environment, "PDSH_RCMD_TYPE", "ssh");
    if (p->o.ssh_port > 0)
        environment_set(environment, "PDSH_SSH_ARGS_APPEND", "-p %d", p->o.ssh_port);
}

const runner runner_openmpi = {
    .name = "openmpi",
    .launchers = (const char *const[]){"local", "ssh", "pdsh", "openmpi", NULL},
    .program = "mpirun",
    .missing = NOT_INSTALLED("mpirun", "openmpi-bin (--launcher mpich: mpich)"),
    .variables = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                  "PMIX_RANK"},
    .local = true,
    .automatic = true,
    .over_ssh = true,
    .job_folders = true,
    .files_per_rank = 5, /* mpirun hangs without them */
    .per_node = &runner_per_node,
    .find_program = openmpi_find_program,
    .check_tools = openmpi_check_tools,
    .fan_out = openmpi_fan_out,
    .add_command = openmpi_add_command,
    .add_environment = openmpi_add_environment,
};
