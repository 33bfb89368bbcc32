/* launcher/runners/mvapich.c: MVAPICH's mpiexec, which is a hydra too
 * (mpich.c).
 * SPDX-License-Identifier: MIT */
#include "program.h"
#include "runners.h"

#include <string.h>

/* The mpiexec beside mpiname, a program that no other MPI has. */
static char *mvapich_find_program(void)
{
    char *mpiname = program_on_path("mpiname"), *slash = mpiname ? strrchr(mpiname, '/') : NULL;
    dsi_text path = {0};
    if (slash) dsi_text_add(&path, "%.*s/mpiexec", (int)(slash - mpiname), mpiname);
    dsi_free(mpiname);
    return path.s;
}

/* DeepSpeed sets these for MVAPICH; affinity is left to --bind_cores_to_rank. */
static void mvapich_add_command(argv_list *argv, const launch_plan *p)
{
    static const char *const genv[] = {"MV2_SMP_USE_CMA",
                                       "0",
                                       "MV2_DEBUG_SHOW_BACKTRACE",
                                       "1",
                                       "MV2_SUPPORT_DL",
                                       "1",
                                       "MV2_ENABLE_AFFINITY",
                                       "0",
                                       NULL};
    runner_add_hydra(argv, p, p->remote ? genv : NULL);
}

const runner runner_mvapich = {
    .name = "mvapich",
    .launchers = (const char *const[]){"mvapich", NULL},
    .program = "mpiexec",
    .missing = "mpiname: there is no such program on PATH, so no MVAPICH "
               "(mvapich.cse.ohio-state.edu)",
    .variables = {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", NULL},
    .local = true,
    .over_ssh = true,
    .status_ignored = true,
    .files_per_rank = 5,
    .find_program = mvapich_find_program,
    .add_command = mvapich_add_command,
    .add_environment = runner_add_hydra_environment,
};
