/* examples/common/misspelt.h: what an unknown option may have meant.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <argp.h>

/* Ends the program with status 2 at the first long option that argp does not
 * know, and names the nearest one in the spelling that the user chose: with
 * underscores or with hyphens. Of several ranks only rank 0 prints it. */
void misspelt_refuse(const struct argp *argp, int argc, char **argv);
