/* launcher/join/supervised_shell.c: a process that runs one shell command and leaves nothing of it behind.
 *
 * The command is orted, with the ranks of this node below it. It gets a folder of its own for the files of Open
 * MPI: two nodes that are one machine would use the same names otherwise, and what ranks that were killed leave
 * there goes with it. The keeper ends when its caller closes a pipe, or dies, which closes it too.
 * SPDX-License-Identifier: MIT */
#include "session.h"

#include "processes.h"
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st, (void)flag, (void)at;
    remove(path);
    return 0;
}

static void make_folder(char *folder, size_t n)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, n, "/dev/shm/deepspeed.XXXXXX");
    if (mkdtemp(folder)) return;
    snprintf(folder, n, "%s/deepspeed.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) *folder = 0;
}

static void run_shell(const char *command, int out)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int in = open("/dev/null", O_RDONLY);
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    dprintf(STDERR_FILENO, "/bin/sh: %s\n", strerror(errno));
    _exit(127);
}

static int wait_for(int shell, int hold)
{
    sigset_t set;
    int status = 0, pid = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    struct pollfd p[] = {{hold, POLLIN, 0}, {signalfd(-1, &set, SFD_CLOEXEC), POLLIN, 0}};
    for (;;) {
        poll(p, 2, -1);
        struct signalfd_siginfo info;
        if (p[1].revents && read(p[1].fd, &info, sizeof info) < 0) break;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
            if (pid == shell)
                return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        if (p[0].revents) break; /* nothing is ever written there */
    }
    return 128 + SIGKILL;
}

static void keep(const char *command, const char *folder, int hold, int out)
{
    sigset_t all;
    /* the connection to node 0 ends with the caller, not with this */
    int high = fcntl(out, F_DUPFD, 10);
    hold = dup2(fcntl(hold, F_DUPFD, 10), 3);
    out = dup2(high, 4);
    closefrom(5);
    fcntl(hold, F_SETFD, FD_CLOEXEC);
    fcntl(out, F_SETFD, FD_CLOEXEC);
    setpgid(0, 0); /* the terminal's signals are the caller's */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    processes_adopt();
    world_set_folders(folder, folder);
    int shell = fork();
    if (shell == 0) run_shell(command, out);
    close(out);
    int status = shell < 0 ? 126 : wait_for(shell, hold);
    processes_end();
    if (*folder) nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    _exit(status);
}

bool keeper_start(keeper *k, const char *command, size_t n)
{
    int out[2], hold[2];
    *k = (keeper){-1, -1, -1, ""};
    if (pipe2(out, O_CLOEXEC)) return false;
    if (pipe2(hold, O_CLOEXEC)) {
        close(out[0]);
        close(out[1]);
        return false;
    }
    dsi_text line = {0};
    dsi_text_add_bytes(&line, command, n);
    make_folder(k->folder, sizeof k->folder);
    k->process = fork();
    if (k->process == 0) {
        close(hold[1]);
        close(out[0]);
        keep(line.s, k->folder, hold[0], out[1]);
    }
    dsi_text_free(&line);
    close(out[1]);
    close(hold[0]);
    k->out = out[0];
    k->hold = hold[1];
    fcntl(k->out, F_SETFL, O_NONBLOCK);
    if (k->process < 0) keeper_tidy(k);
    return k->process > 0;
}

void keeper_tidy(keeper *k)
{
    close(k->out);
    close(k->hold);
    if (*k->folder) nftw(k->folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
