/* comm/launch.c: which world the launcher's environment describes. The only list of backends.
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include "base/error.h"

#include <stdlib.h>

/* The variable as a number; `other` if it is not set. */
static int number(const char *name, int other)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : other;
}

ds_status ds_init_distributed(void)
{
    if (ds_is_distributed()) return DS_OK;
    int size = number("WORLD_SIZE", 1);
    if (size > 1)
        return dsi_fail(DS_ECOMM,
                        "init_distributed: WORLD_SIZE is %d, but this process was not started by "
                        "mpirun or srun, so it cannot reach the other ranks",
                        size);
    dsi_set_world(dsi_comm_new(&dsi_comm_self, 0, 1, NULL));
    return DS_OK;
}

void ds_destroy_process_group(void) { dsi_set_world(NULL); }
