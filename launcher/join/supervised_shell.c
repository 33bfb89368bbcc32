/* launcher/join/supervised_shell.c: a process that runs one shell command and
 * leaves nothing of it behind.
 *
 * The command is orted, with the ranks of this node below it. It gets folders
 * of its own for Open MPI's files: two nodes that are one machine would use the
 * same names otherwise, and ranks that are killed leave files there.
 *
 * Invariants: the supervising process is the subreaper of all below it, ends
 * them all before it exits, and then removes the folders. It never writes; it
 * ends when the shell does or when `hold` is closed, which the death of the
 * caller does too. It has no descriptor of the caller's but these two pipes:
 * the connection to node 0 must end with the caller. All signals are blocked in
 * it, and it has a process group of its own: signals are the caller's to
 * handle.
 * SPDX-License-Identifier: MIT */
#include "supervised_shell.h"
#include "older_libc.h"

#include "processes.h"
#include "signals.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child. */
static void shell_exec(const char *command, int out)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    signals_unblock();
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    dprintf(STDERR_FILENO, "/bin/sh: %s\n", strerror(errno));
    _exit(127);
}

/* Until the shell has ended (its status) or `hold` is closed. */
static int shell_wait(int shell, int hold)
{
    int status = 0, pid = 0;
    struct pollfd p[] = {{hold, POLLIN, 0}, {signals_open((int[]){SIGCHLD, 0}, NULL), POLLIN, 0}};
    for (;;) {
        poll(p, 2, -1);
        if (p[1].revents) signals_read(p[1].fd);
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == shell) return signals_exit_status(status);
        if (p[0].revents) break; /* nothing is ever written there */
    }
    return 128 + SIGKILL;
}

/* The supervising process. */
static void shell_supervise(const char *command, const job_folders *folders, int hold, int out)
{
    sigset_t all;
    int high = fcntl(out, F_DUPFD, 10);
    hold = dup2(fcntl(hold, F_DUPFD, 10), 3);
    out = dup2(high, 4);
    closefrom(5);
    fcntl(hold, F_SETFD, FD_CLOEXEC);
    fcntl(out, F_SETFD, FD_CLOEXEC);
    setpgid(0, 0);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    processes_adopt();
    job_folders_export(folders);
    int shell = fork();
    if (shell == 0) shell_exec(command, out);
    close(out);
    int status = shell < 0 ? 126 : shell_wait(shell, hold);
    processes_end();
    job_folders_remove(folders);
    _exit(status);
}

/* The write end of `hold` exists only in the caller, so that its death closes
 * it. */
bool supervised_shell_start(supervised_shell *s, const char *command, size_t n)
{
    int out[2], hold[2];
    *s = (supervised_shell){.process = -1, .out = -1, .hold = -1};
    if (pipe2(out, O_CLOEXEC)) return false;
    if (pipe2(hold, O_CLOEXEC)) {
        close(out[0]);
        close(out[1]);
        return false;
    }
    dsi_text line = {0};
    dsi_text_add_bytes(&line, command, n);
    job_folders_make_one(&s->folders);
    s->process = fork();
    if (s->process == 0) {
        close(hold[1]);
        close(out[0]);
        shell_supervise(line.s, &s->folders, hold[0], out[1]);
    }
    dsi_text_free(&line);
    close(out[1]);
    close(hold[0]);
    s->out = out[0];
    s->hold = hold[1];
    fcntl(s->out, F_SETFL, O_NONBLOCK);
    if (s->process < 0) supervised_shell_clean_up(s);
    return s->process > 0;
}

void supervised_shell_clean_up(supervised_shell *s)
{
    close(s->out);
    close(s->hold);
    job_folders_remove(&s->folders);
}
