/* launcher/rank.h: the start of one rank.
 * SPDX-License-Identifier: MIT */
#pragma once

/* `deepspeed --rank_start OPTIONS -- PROGRAM ARGS...` (plan.h). The launcher
 * adds --link=socket:SECRET or --link=stderr:SECRET[:COLUMNS] (wire.h) and
 * --log_time=TEXT. Returns the status unless the process becomes the
 * program. */
int rank_start(int argc, char **argv);

/* The same for the only rank, which no runner has started. */
int rank_start_alone(char **argv);
