/* launcher/plan_runner.c: the runner of a plan, and whether it can start the
 * job.
 *
 * One rank on this machine needs none. Several ranks there: Open MPI, or MPICH
 * where Open MPI is missing, unless --launcher says otherwise. Several hosts:
 * the runner of --launcher, by default Open MPI over ssh.
 * SPDX-License-Identifier: MIT */
#include "plan.h"

#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* ---- --launcher ------------------------------------------------------------ */

static ds_status refuse_launcher(const char *launcher)
{
    enum { MOST = 32 };
    const char *names[MOST];
    int n = 0;
    dsi_text list = {0};
    if (!strcasecmp(launcher, "impi"))
        return dsi_fail(DS_EINVAL, "--launcher impi: Intel MPI is not supported; --launcher mpich "
                                   "runs the first mpiexec.hydra on PATH");
    for (const runner *const *r = runners; *r; r++)
        for (const char *const *name = (*r)->launchers; name && *name && n < MOST; name++)
            names[n++] = *name;
    for (int i = 0; i < n; i++)
        dsi_text_add(&list, "%s%s", !i ? "" : i == n - 1 ? " or " : ", ", names[i]);
    const char *near = dsi_nearest(launcher, names, n);
    ds_status status = dsi_fail(DS_EINVAL, "--launcher %s: %s%s%s expected %s", launcher,
                                near ? "did you mean " : "", near ? near : "",
                                near ? "?" : "unknown launcher:", list.s);
    dsi_text_free(&list);
    return status;
}

/* ---- choosing -------------------------------------------------------------- */

static bool is_installed(const runner *r)
{
    char *program = r->find_program();
    dsi_free(program);
    return program != NULL;
}

/* For several ranks of this machine. The first of the list is the default,
 * installed or not: then its message names the package. */
static const runner *choose_local(const runner *requested, bool by_name)
{
    if (by_name && requested->local) return requested;
    for (const runner *const *r = runners; *r && !by_name; r++)
        if ((*r)->automatic && is_installed(*r)) return *r;
    return runners[0];
}

/* The same command is typed on each node. */
static ds_status choose_per_node(launch_plan *p, const runner *requested)
{
    const options *o = &p->o;
    if (o->node_rank < 0 || o->node_rank >= p->n_hosts)
        return dsi_fail(DS_EINVAL,
                        "--node_rank %d: which of the %d nodes is this one? expected 0 to %d",
                        o->node_rank, p->n_hosts, p->n_hosts - 1);
    if (p->n_hosts == 1) return DS_OK; /* this machine */
    if (!requested->per_node)
        return dsi_fail(DS_EINVAL,
                        "--launcher %s: nodes on which the command is typed are joined by "
                        "Open MPI",
                        p->launcher);
    if (!o->master_addr && p->origin != HOSTS_OF_FILE)
        return dsi_fail(DS_EINVAL,
                        "--master_addr: at which address of node 0 do the %d nodes meet?",
                        p->n_hosts);
    p->runner = requested->per_node;
    p->remote = true;
    return DS_OK;
}

/* One rank here, several ranks here, nodes that join, other hosts: in this
 * order. */
ds_status plan_choose_runner(launch_plan *p)
{
    const options *o = &p->o;
    const runner *requested = runner_find(o->launcher, &p->launcher);
    if (!requested) return refuse_launcher(o->launcher);
    ds_status status = requested->check_hosts ? requested->check_hosts(p) : DS_OK;
    if (status != DS_OK) return status;
    bool offered = p->origin == HOSTS_OF_JOB || p->origin == HOSTS_UNNAMED;
    p->runner = p->world_size > 1 ? choose_local(requested, o->launcher != NULL) : &runner_direct;
    if ((o->no_ssh && offered) || resources_per_node(o, p->origin == HOSTS_OF_FILE))
        return choose_per_node(p, requested);
    if (o->node_rank > 0) /* if it were ignored, each node would train alone */
        return dsi_fail(DS_EINVAL, "--node_rank %d: of how many nodes? give --nnodes",
                        o->node_rank);
    if (p->n_hosts < 2 && !o->force_multi && !offered) return DS_OK;
    if (!strcmp(p->launcher, "local"))
        return dsi_fail(DS_EINVAL,
                        "--launcher local: %d hosts are to be used; expected one (--include, "
                        "--num_nodes 1)",
                        p->n_hosts);
    p->runner = requested;
    p->remote = true;
    return DS_OK;
}

ds_status plan_find_program(launch_plan *p)
{
    const runner *r = p->runner;
    if (!r->find_program) return DS_OK;
    char *found = r->find_program();
    dsi_free(p->runner_program);
    p->runner_program = found ? found : dsi_strdup(r->program);
    if (!found) return dsi_fail(DS_EINVAL, "%s", r->missing);
    return r->check_tools ? r->check_tools(p) : DS_OK;
}

/* ---- checking -------------------------------------------------------------- */

/* Arguments that make a runner write something among what ranks print. Ranks on
 * other machines report to the launcher in their stderr (wire.h). */
static ds_status check_arguments(const launch_plan *p)
{
    static const char *const marks[] = {"--tag-output",      "-tag-output", "--timestamp-output",
                                        "-timestamp-output", "--xml",       "-xml",
                                        "-prepend-rank",     "--label",     "-l"};
    for (char **a = p->launcher_args; a && *a; a++)
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
            if (!strcmp(*a, marks[i]))
                return dsi_fail(
                    DS_EINVAL,
                    "--launcher_args: %s changes what ranks print, which the launcher reads; "
                    "use --tag_output or --enable_each_rank_log",
                    *a);
    return DS_OK;
}

/* Both MPIs split their lists of hosts at commas and colons, and Open MPI
 * resolves names as they are, with user@. */
ds_status plan_check_runner(const launch_plan *p)
{
    char folder[PATH_MAX];
    ds_status status = p->remote ? check_arguments(p) : DS_OK;
    if (status != DS_OK) return status;
    if ((p->remote || p->world_size > 1) && !getcwd(folder, sizeof folder))
        return dsi_fail(DS_EIO, "the working folder: %s: change to one that is there",
                        strerror(errno));
    for (int i = 0; p->remote && p->runner->over_ssh && i < p->n_hosts; i++)
        if (strpbrk(p->hosts[i].name, ",:@"))
            return dsi_fail(DS_EINVAL,
                            "%s: %s takes no host name with , : or @ in it; users and "
                            "ports belong in ~/.ssh/config (or --ssh_port)",
                            p->hosts[i].name, p->runner_program);
    if (p->world_size) return DS_OK;
    return dsi_fail(DS_EINVAL, "no slot is left to run on");
}
