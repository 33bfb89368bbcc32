/* launcher/runners/slurm.c: Slurm's srun, in a job or without one.
 *
 * srun chooses hosts and devices itself: the plan can ask for a number of each,
 * and for the hosts' names where they are known. In a job (salloc, sbatch) the
 * hosts are the job's; outside, their names are known only to the ranks.
 * SPDX-License-Identifier: MIT */
#include "runners.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* "4", or "4(x2)" where all nodes have the same number -> *n; 0 where they do
 * not ("4(x2),3") or the variable is not set. */
static ds_status slurm_read_count(const char *variable, int *n)
{
    const char *text = getenv(variable);
    char *end = NULL;
    long slots = text ? strtol(text, &end, 10) : 0;
    *n = 0;
    if (!text || !*text) return DS_OK;
    if (end == text || !strchr("(,", *end) || slots < 1 || slots > MOST_SLOTS)
        return dsi_fail(DS_EINVAL,
                        "%s=%s: expected how many tasks or GPUs a node has, as 4 or 4(x2)",
                        variable, text);
    if (!strchr(text, ',')) *n = (int)slots;
    return DS_OK;
}

/* Without --ntasks-per-node a job has as many ranks per host as GPUs, else as
 * tasks. */
static ds_status slurm_find_hosts(ds_hosts *h, host_origin *origin, const options *o)
{
    static const char *const counts[] = {"SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE",
                                         "SLURM_TASKS_PER_NODE"};
    const char *list = getenv("SLURM_JOB_NODELIST");
    ds_status status = DS_OK;
    int slots = 0;
    *origin = list ? HOSTS_OF_JOB : HOSTS_UNNAMED;
    for (size_t i = 0; list && !slots && status == DS_OK && i < sizeof counts / sizeof *counts; i++)
        status = slurm_read_count(counts[i], &slots);
    if (status != DS_OK) return status;
    if (!slots) slots = 1;
    if (list) return hosts_expand(h, "SLURM_JOB_NODELIST", list, slots);
    hosts_add_numbered(h, options_nodes(o) > 0 ? options_nodes(o) : 1, slots);
    return DS_OK;
}

/* The first node of the step, which has rank 0. */
static ds_status slurm_find_master(char **name)
{
    const char *list = getenv("SLURM_STEP_NODELIST");
    ds_hosts h = {0};
    *name = NULL;
    if (!list) return DS_OK;
    ds_status status = hosts_expand(&h, "SLURM_STEP_NODELIST", list, 1);
    if (status == DS_OK) *name = dsi_strdup(h.at[0].name);
    hosts_free(&h);
    return status;
}

/* srun takes a number of tasks per host, not a list of slots. */
static ds_status slurm_check_hosts(const launch_plan *p)
{
    for (int i = 0; i < p->n_hosts; i++) {
        const ds_host *h = &p->hosts[i];
        for (int k = 0; k < h->n_slots; k++)
            if (h->slots[k] != k)
                return dsi_fail(DS_EINVAL,
                                "--launcher slurm: Slurm chooses devices itself, so slot %d of "
                                "%s cannot be requested; expected the first slots",
                                h->slots[k], h->name);
        if (h->n_slots != p->hosts[0].n_slots)
            return dsi_fail(DS_EINVAL,
                            "--launcher slurm: %s has %d slots and %s has %d; expected the "
                            "same number on each host",
                            p->hosts[0].name, p->hosts[0].n_slots, h->name, h->n_slots);
    }
    return DS_OK;
}

static char *slurm_find_program(void)
{
    return runner_is_installed("srun") ? dsi_strdup("srun") : NULL;
}

/* The names of what ranks get; srun takes the values from its environment, and
 * adds its own SLURM_*. No shell of the user sets the others there. */
static void slurm_add_exports(argv_list *argv, const launch_plan *p)
{
    dsi_text names = {0};
    if (runner_has_argument(p, "--export")) return;
    dsi_text_add(&names, "--export=HOME,USER,LOGNAME,SHELL");
    for (char **e = p->environment; e && *e; e++)
        dsi_text_add(&names, ",%.*s", (int)strcspn(*e, "="), *e);
    argv_add(argv, "%s", names.s);
    dsi_text_free(&names);
}

static void slurm_add_command(argv_list *argv, const launch_plan *p)
{
    argv_add(argv, "%s", p->runner_program);
    argv_add(argv, "-K1"); /* the failure of one rank ends the others */
    /* as Open MPI wants it; MPICH: --launcher_args=--mpi=pmi2 */
    if (!runner_has_argument(p, "--mpi")) argv_add(argv, "--mpi=pmix");
    argv_add(argv, "-n");
    argv_add(argv, "%d", p->world_size);
    argv_add(argv, "--ntasks-per-node=%d", p->hosts[0].n_slots);
    /* ranks are numbered host by host */
    if (!runner_has_argument(p, "--distribution")) argv_add(argv, "--distribution=block");
    argv_add(argv, "--nodes");
    argv_add(argv, "%d", p->n_hosts);
    if (p->origin != HOSTS_UNNAMED) { /* srun would take any host otherwise */
        dsi_text names = {0};
        for (int i = 0; i < p->n_hosts; i++)
            dsi_text_add(&names, "%s%s", i ? "," : "", host_address(&p->hosts[i]));
        argv_add_words(argv, "--nodelist", names.s);
        dsi_text_free(&names);
    }
    if (p->o.num_gpus > 0) {
        argv_add(argv, "--gpus-per-node");
        argv_add(argv, "%d", p->o.num_gpus);
    }
    argv_add_all(argv, p->launcher_args);
    slurm_add_exports(argv, p);
}

const runner runner_slurm = {
    .name = "slurm",
    .launchers = (const char *const[]){"slurm", NULL},
    .program = "srun",
    .missing = NOT_INSTALLED("srun", "slurm-client"),
    .variables = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL},
    .find_program = slurm_find_program,
    .check_hosts = slurm_check_hosts,
    .find_hosts = slurm_find_hosts,
    .find_master = slurm_find_master,
    .add_command = slurm_add_command,
};
