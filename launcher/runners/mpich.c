/* launcher/runners/mpich.c: MPICH's mpiexec.hydra.
 *
 * It would forward the whole environment to other hosts (runner_add_hydra). Its
 * exit status is 0 after
 * some failures, and it dies of SIGPIPE now and then when all is well.
 * SPDX-License-Identifier: MIT */
#include "runners.h"

static char *mpich_find_program(void)
{
    static const char *const names[] = {"mpiexec.hydra", "mpiexec.mpich", "mpiexec", "mpirun",
                                        NULL};
    return runner_first_on_path(names, true);
}

static void mpich_add_command(argv_list *argv, const launch_plan *p)
{
    runner_add_hydra(argv, p, NULL);
}

const runner runner_mpich = {
    .name = "mpich",
    .launchers = (const char *const[]){"mpich", NULL},
    .program = "mpiexec.hydra",
    .missing = NOT_INSTALLED("mpiexec.hydra", "mpich"),
    .variables = {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_FD"},
    .local = true,
    .automatic = true,
    .over_ssh = true,
    .status_ignored = true,
    .files_per_rank = 5,
    .find_program = mpich_find_program,
    .add_command = mpich_add_command,
    .add_environment = runner_add_hydra_environment,
};
