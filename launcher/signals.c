/* launcher/signals.c: signals that are read from a descriptor.
 * SPDX-License-Identifier: MIT */
#include "signals.h"

#include <stddef.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

void signals_fill(sigset_t *set, const int *list)
{
    struct sigaction hangup;
    sigemptyset(set);
    for (; *list; list++) sigaddset(set, *list);
    if (!sigaction(SIGHUP, NULL, &hangup) && hangup.sa_handler == SIG_IGN) sigdelset(set, SIGHUP);
}

int signals_open(const int *list, sigset_t *previous)
{
    sigset_t set;
    signals_fill(&set, list);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &set, previous);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

int signals_read(int fd)
{
    struct signalfd_siginfo info;
    return read(fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}

void signals_close(int fd, const sigset_t *previous)
{
    close(fd);
    sigprocmask(SIG_SETMASK, previous, NULL);
}

void signals_unblock(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

int signals_exit_status(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
