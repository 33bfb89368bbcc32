/* launcher/runner_process.c: the start of the runner, a child of the launcher.
 * SPDX-License-Identifier: MIT */
#include "runner_process.h"

#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* In the child. */
static void runner_exec(char **argv, int in, int out, int err)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGTTOU, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    signals_unblock();
    execvp(argv[0], argv);
    fprintf(stderr, "deepspeed: %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* Ranks of this machine get stdin themselves. A runner would be stopped if it
 * read a terminal in the background. */
static int runner_stdin(const job *j)
{
    bool real = !j->local && !isatty(STDIN_FILENO);
    return real ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open("/dev/null", O_RDONLY | O_CLOEXEC);
}

bool runner_process_start(runner_process *p, const job *j)
{
    int out[2], err[2], in = runner_stdin(j);
    if (in < 0 || pipe2(out, O_CLOEXEC) || pipe2(err, O_CLOEXEC)) return false;
    int process = fork();
    if (process == 0) runner_exec(j->command, in, out[1], err[1]);
    close(in);
    close(out[1]);
    close(err[1]);
    *p = (runner_process){.process = process, .out = out[0], .err = err[0]};
    memcpy(p->reader.secret, j->secret, sizeof j->secret);
    return process > 0;
}
