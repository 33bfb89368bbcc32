/* launcher/runner.c: which engine starts the ranks, and which program that is on this machine.
 *
 * One rank needs none. Several on one machine: Open MPI's mpirun, else MPICH's hydra. Several hosts: mpirun with
 * ssh or pdsh as its agent, unless another one was asked for. Both MPIs call their programs mpirun and mpiexec, so what
 * the name leads to decides.
 * SPDX-License-Identifier: MIT */
#include "runner.h"

#include "program.h"

#include "base/error.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct Launcher {
    const char *name;
    engine several; /* for more than one host */
} Launcher;

static const Launcher launchers[] = {{"local", ENGINE_LOCAL},  {"ssh", ENGINE_OPENMPI},
                                     {"pdsh", ENGINE_OPENMPI}, {"openmpi", ENGINE_OPENMPI},
                                     {"mpich", ENGINE_MPICH},  {"mvapich", ENGINE_MVAPICH},
                                     {"slurm", ENGINE_SLURM}};
enum { LAUNCHERS = sizeof launchers / sizeof *launchers };

static const Launcher *find_launcher(const char *name)
{
    const char *names[LAUNCHERS];
    for (int i = 0; i < LAUNCHERS; i++) {
        if (!strcasecmp(name, launchers[i].name)) return &launchers[i];
        names[i] = launchers[i].name;
    }
    if (!strcasecmp(name, "impi"))
        return dsi_refuse("--launcher impi: Intel MPI is not known here; --launcher mpich runs the "
                          "mpiexec.hydra that PATH finds first");
    const char *near = dsi_nearest(name, names, LAUNCHERS);
    return dsi_refuse("--launcher %s: %s%s%s expected local, ssh, pdsh, openmpi, mpich, mvapich or "
                      "slurm",
                      name, near ? "did you mean " : "", near ? near : "",
                      near ? "?" : "it is unknown:");
}

/* srun places ranks by their number on a host. */
static ds_status check_slurm(const launch_plan *p)
{
    for (int i = 0; i < p->n_hosts; i++) {
        const ds_host *h = &p->hosts[i];
        for (int k = 0; k < h->n_slots; k++)
            if (h->slots[k] != k)
                return dsi_fail(DS_EINVAL,
                                "--launcher slurm: it chooses devices itself, so slot %d of "
                                "%s cannot be asked for; expected the first ones",
                                h->slots[k], h->name);
        if (h->n_slots != p->hosts[0].n_slots)
            return dsi_fail(DS_EINVAL,
                            "--launcher slurm: %s has %d slots and %s has %d; expected as "
                            "many on each host",
                            p->hosts[0].name, p->hosts[0].n_slots, h->name, h->n_slots);
    }
    return DS_OK;
}

/* The same command is typed on each node: which one is this, and where do they meet? */
static ds_status choose_nodes(launch_plan *p, const char *launcher)
{
    const options *o = &p->o;
    if (o->node_rank < 0 || o->node_rank >= p->n_hosts)
        return dsi_fail(DS_EINVAL,
                        "--node_rank %d: which of the %d nodes is this one? expected 0 to %d",
                        o->node_rank, p->n_hosts, p->n_hosts - 1);
    if (p->n_hosts == 1) return DS_OK; /* this machine */
    if (!strcmp(launcher, "mpich") || !strcmp(launcher, "mvapich") || !strcmp(launcher, "slurm"))
        return dsi_fail(DS_EINVAL,
                        "--launcher %s: nodes on which the command is typed are joined by "
                        "Open MPI",
                        launcher);
    if (!o->master_addr && p->from != FROM_HOSTFILE)
        return dsi_fail(DS_EINVAL,
                        "--master_addr: at which address of node 0 do the %d nodes meet?",
                        p->n_hosts);
    p->engine = ENGINE_NODES;
    return DS_OK;
}

ds_status engine_choose(launch_plan *p)
{
    const Launcher *l = p->o.launcher ? find_launcher(p->o.launcher) : &launchers[1];
    if (!l) return DS_EINVAL;
    if (l->several == ENGINE_SLURM) {
        ds_status status = check_slurm(p);
        if (status != DS_OK) return status;
    }
    bool slurms = p->from == FROM_SLURM || p->from == FROM_SRUN; /* never this machine */
    p->engine = p->world_size > 1 ? ENGINE_LOCAL : ENGINE_DIRECT;
    if (resources_per_node(&p->o, p->from == FROM_HOSTFILE)) return choose_nodes(p, l->name);
    if (p->o.node_rank > 0) /* ignored, each node would train alone */
        return dsi_fail(DS_EINVAL, "--node_rank %d: of how many nodes? give --nnodes",
                        p->o.node_rank);
    if (p->n_hosts < 2 && !p->o.force_multi && !slurms) return DS_OK;
    p->engine = l->several;
    if (l->several == ENGINE_LOCAL)
        return dsi_fail(DS_EINVAL,
                        "--launcher local: %d hosts are to be used; expected one (--include, "
                        "--num_nodes 1)",
                        p->n_hosts);
    return DS_OK;
}

/* ---- programs --------------------------------------------------------------------------------------------- */

/* Whether `program` of PATH is MPICH's, or of its family. NULL-safe; false too if it is not there. */
static bool is_hydra(const char *program)
{
    char *path = program_on_path(program), target[PATH_MAX] = "";
    const char *name = path && realpath(path, target) ? strrchr(target, '/') : NULL;
    bool hydra = name && (strstr(name, "hydra") || strstr(name, "mpich"));
    dsi_free(path);
    return hydra;
}

static bool is_there(const char *program)
{
    char *path = program_on_path(program);
    dsi_free(path);
    return path != NULL;
}

static const char *find_openmpi(void)
{
    if (is_there("mpirun") && !is_hydra("mpirun")) return "mpirun";
    return is_there("mpirun.openmpi") ? "mpirun.openmpi" : is_there("orterun") ? "orterun" : NULL;
}

static const char *find_mpich(void)
{
    static const char *const names[] = {"mpiexec.hydra", "mpiexec.mpich", "mpiexec", "mpirun"};
    for (int i = 0; i < 4; i++)
        if (is_hydra(names[i])) return names[i];
    return NULL;
}

/* commands[0] begins with what was found, or else, for a dry run, with its usual name. */
static ds_status start_with(launch_plan *p, const char *found, const char *usual,
                            const char *package)
{
    dsi_free(p->starter);
    p->starter = dsi_strdup(found ? found : usual);
    if (found) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "%s: there is no such program on PATH; Debian, Ubuntu: apt-get install %s",
                    usual, package);
}

/* MVAPICH's mpiexec stands beside its mpiname, which no other MPI has. */
static ds_status look_mvapich(launch_plan *p)
{
    char *mpiname = program_on_path("mpiname"), *slash = mpiname ? strrchr(mpiname, '/') : NULL;
    dsi_text path = {0};
    if (slash) dsi_text_add(&path, "%.*s/mpiexec", (int)(slash - mpiname), mpiname);
    dsi_free(p->starter);
    p->starter = slash ? path.s : dsi_strdup("mpiexec");
    dsi_free(mpiname);
    if (slash) return DS_OK;
    return dsi_fail(DS_EINVAL, "mpiname: there is no such program on PATH, so no MVAPICH "
                               "(mvapich.cse.ohio-state.edu)");
}

static bool asks(const launch_plan *p, const char *launcher)
{
    return p->o.launcher && !strcasecmp(p->o.launcher, launcher);
}

/* mpirun, and what it starts processes on other hosts with. */
static ds_status look_openmpi(launch_plan *p)
{
    ds_status status = start_with(p, find_openmpi(), "mpirun",
                                  "openmpi-bin (--launcher mpich: mpich)");
    if (status != DS_OK || p->engine != ENGINE_OPENMPI) return status;
    if (asks(p, "pdsh") && !is_there("pdsh"))
        return dsi_fail(DS_EINVAL,
                        "pdsh: there is no such program on PATH; Debian, Ubuntu: apt-get "
                        "install pdsh (or --launcher ssh)");
    if (asks(p, "openmpi") || is_there("ssh")) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "ssh: there is no such program on PATH; Debian, Ubuntu: apt-get install "
                    "openssh-client");
}

ds_status engine_look(launch_plan *p)
{
    p->hydra = false;
    switch (p->engine) {
    case ENGINE_DIRECT:
        return DS_OK;
    case ENGINE_LOCAL:
        p->hydra = asks(p, "mpich") || asks(p, "mvapich") ||
                   (!p->o.launcher && !find_openmpi() && find_mpich());
        if (asks(p, "mvapich")) return look_mvapich(p);
        return p->hydra ? start_with(p, find_mpich(), "mpiexec.hydra", "mpich") : look_openmpi(p);
    case ENGINE_MPICH:
        p->hydra = true;
        return start_with(p, find_mpich(), "mpiexec.hydra", "mpich");
    case ENGINE_MVAPICH:
        p->hydra = true;
        return look_mvapich(p);
    case ENGINE_SLURM:
        return start_with(p, is_there("srun") ? "srun" : NULL, "srun", "slurm-client");
    default:
        return look_openmpi(p);
    }
}

/* Words that make an engine write something into what its ranks write: from other machines that is how they tell
 * the launcher what goes on. */
static ds_status check_words(const launch_plan *p)
{
    static const char *const marks[] = {"--tag-output",      "-tag-output", "--timestamp-output",
                                        "-timestamp-output", "--xml",       "-xml",
                                        "-prepend-rank",     "--label",     "-l"};
    for (char **a = p->launcher_words; a && *a; a++)
        for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
            if (!strcmp(*a, marks[i]))
                return dsi_fail(
                    DS_EINVAL,
                    "--launcher_args: %s changes what ranks say, which the launcher reads; "
                    "--tag_output and --enable_each_rank_log do that here",
                    *a);
    return DS_OK;
}

/* Both MPIs split their lists of hosts at commas and colons; Open MPI looks names up as they are. */
ds_status engine_accepts(const launch_plan *p)
{
    ds_status status = p->engine > ENGINE_LOCAL ? check_words(p) : DS_OK;
    if (status != DS_OK) return status;
    bool listed = p->engine == ENGINE_OPENMPI || p->engine == ENGINE_MPICH ||
                  p->engine == ENGINE_MVAPICH;
    for (int i = 0; listed && i < p->n_hosts; i++)
        if (strpbrk(p->hosts[i].name, ",:@"))
            return dsi_fail(DS_EINVAL,
                            "%s: %s takes no name of a host with , : or @ in it; users and "
                            "ports belong into ~/.ssh/config (or --ssh_port)",
                            p->hosts[i].name, p->starter);
    if (p->world_size) return DS_OK;
    return dsi_fail(DS_EINVAL, "no slot is left to run on");
}
