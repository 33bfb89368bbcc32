/* launcher/runners/direct.c: one rank on this machine, without MPI: it takes
 * the place of the launcher.
 * SPDX-License-Identifier: MIT */
#include "runners.h"

const runner runner_direct = {.name = "direct", .in_place = true};
