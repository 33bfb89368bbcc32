/* comm/mpi_open.h: finds the plugin of an MPI library (see mpi.h).
 *
 * Invariants: what it returns is a const table inside of the plugin, valid
 * until the process ends. The version is compared, since a plugin may be left
 * over from another installation.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/shared.h"
#include "mpi.h"

/* name: "openmpi", "mpich". NULL with the message if there is none. It is never
 * closed: MPI libraries leave threads and exit handlers behind. */
DSI_SHARED const dsi_mpi *dsi_mpi_open(const char *name);
