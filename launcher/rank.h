/* launcher/rank.h: the start of one rank.
 * SPDX-License-Identifier: MIT */
#pragma once

/* `deepspeed --rank_start OPTIONS -- PROGRAM ARGS...` (plan.h). The launcher
 * adds --link=socket:SECRET or --link=stderr:SECRET[:COLUMNS] (wire.h) and
 * --log_time=TEXT. Returns the status unless the process becomes the
 * program. */
int rank_start(int argc, char **argv);

/* The user's limit of open files, where the launcher has lowered it for the
 * runner; programs get the limit back, and not the variable. */
#define RANK_OPEN_FILES "DEEPSPEED_OPEN_FILES"

/* The same for the only rank, which no runner has started. */
int rank_start_alone(char **argv);
