/* comm/launch.c: which world the launcher's environment describes. The only
 * list of backends.
 *
 *     Open MPI's mpirun      OMPI_COMM_WORLD_SIZE                  plugin openmpi
 *     srun --mpi=pmix        PMIX_RANK, SLURM_STEP_NUM_TASKS       plugin openmpi
 *     MPICH's mpiexec        PMI_RANK, PMI_SIZE                    plugin mpich
 *     srun --mpi=pmi2        PMI_RANK, SLURM_STEP_NUM_TASKS        plugin mpich
 *     none                   -                                     self: no MPI is loaded
 *
 * A launcher of the wrong kind gives many worlds of one rank each, all of which
 * would train and save the same: so the size that MPI found is compared with
 * what the environment says.
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include "base/env.h"
#include "base/error.h"

#include <stdlib.h>

/* The variable as a number of ranks; 0 if it is not set. */
static ds_status launch_ranks_from(const char *name, int *ranks)
{
    const dsi_env v = {name, "a number of ranks, from 1", .least = 1, .most = INT32_MAX,
                       .whole = true};
    double n = 0;
    ds_status status = dsi_env_number(&v, &n);
    *ranks = (int)n;
    return status;
}

/* How many ranks there should be by `*name`, the first variable that says so;
 * 0: none does. */
static ds_status launch_expected_size(const char **name, int *size)
{
    static const char *const names[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    ds_status status = DS_OK;
    *size = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !*size && status == DS_OK; i++) {
        *name = names[i];
        status = launch_ranks_from(names[i], size);
    }
    return status;
}

/* Whether the launcher itself says that it started a single rank. */
static ds_status launch_single_rank(bool *alone)
{
    int openmpi, mpich = 0;
    ds_status status = launch_ranks_from("OMPI_COMM_WORLD_SIZE", &openmpi);
    if (status == DS_OK) status = launch_ranks_from("PMI_SIZE", &mpich);
    *alone = openmpi == 1 || mpich == 1;
    return status;
}

/* Which MPI's launcher started this process: the plugin's name; NULL: none did.
 * PMIx is Open MPI's protocol, PMI-1 and PMI-2 are MPICH's. */
static const char *launcher_library(void)
{
    if (getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK")) return "openmpi";
    if (getenv("PMI_RANK") || getenv("PMI_FD")) return "mpich";
    return NULL;
}

bool dsi_launched_by_mpi(void) { return launcher_library() != NULL; }

/* Joins the job that a launcher started, once; without one the world stays one
 * rank. Which MPI it is, the launcher's environment says, not what is
 * installed. */
ds_status ds_init_distributed(void)
{
    if (ds_is_distributed()) return DS_OK;
    const char *library = launcher_library(), *name;
    int size;
    bool alone;
    ds_status status = launch_expected_size(&name, &size);
    if (status == DS_OK) status = launch_single_rank(&alone);
    if (status == DS_OK) status = dsi_comm_check_timeout();
    if (status != DS_OK) return dsi_fail(status, "init_distributed: %s", dsi_error_latest());
    if (!library && size > 1)
        return dsi_fail(
            DS_ECOMM,
            "init_distributed: %s is %d, but this process was not started by an MPI "
            "launcher: use mpirun -n %d PROGRAM, srun --mpi=pmix, or the deepspeed command",
            name, size, size);
    if (!library || alone) {
        if (size > 1)
            return dsi_fail(DS_ECOMM, "init_distributed: %s is %d, but the launcher started 1 rank",
                            name, size);
        dsi_set_world(dsi_comm_new(&dsi_comm_self, 0, 1, NULL));
        return DS_OK;
    }
    ds_comm *world = dsi_mpi_world(library);
    if (!world) return DS_ECOMM;
    if (size && size != world->size) {
        dsi_fail(
            DS_ECOMM,
            "init_distributed: %s is %d, but %s finds %d rank%s: it was not started by its own "
            "launcher (srun: --mpi=pmix for Open MPI, --mpi=pmi2 for MPICH), or its launcher "
            "cannot start ranks (Ubuntu 24.04's MPICH): use Open MPI",
            name, size, library, world->size, world->size == 1 ? "" : "s");
        dsi_comm_abort(world, ds_error());
    }
    dsi_set_world(world);
    return DS_OK;
}

void ds_destroy_process_group(void) { dsi_set_world(NULL); }
