/* launcher/rank.h: the start of one rank.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_RANK_H
#define LAUNCHER_RANK_H

/* `deepspeed --rank_start OPTIONS -- PROGRAM ARGS...` (plan.h): the status, if it does not become the program. Of
 * the launcher itself: --link=socket:SECRET or --link=stderr:SECRET[:COLUMNS] (wire.h), --log_time=TEXT. */
int rank_start(int argc, char **argv);

/* The same of the only rank: no engine has started it. */
int rank_start_alone(char **argv);

#endif
