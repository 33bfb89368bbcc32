/* launcher/supervisor.c: two processes, each of which cleans up if the other is
 * killed.
 *
 * The first is the one that the shell has started, and does nothing but wait.
 * The second starts the job and reads what its ranks report. Whichever is
 * killed, even by SIGKILL, the other ends the job and removes its files.
 *
 * Invariants: the first process stays in the terminal's foreground group, gets
 * each of the terminal's signals once, and stops and continues with it. The
 * second has its own group, so that the terminal does not signal it again. Both
 * are subreapers: a process whose parent dies becomes a child of the second,
 * and when that is killed, of the first. The signals passed on and SIGCHLD are
 * blocked in both from before the fork, so that none is lost.
 * SPDX-License-Identifier: MIT */
#include "supervisor.h"
#include "older_libc.h"

#include "processes.h"
#include "signals.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The second process. */
static int supervised_work(const supervised *s, int parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) return 1;
    /* a background group may write to the terminal whatever its settings */
    signal(SIGTTOU, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    return s->work(s->arg);
}

/* The second process was killed. */
static int supervisor_clean_up(const supervised *s, int worker, int signal)
{
    char host[256] = "this host";
    gethostname(host, sizeof host - 1);
    processes_end();
    if (s->clean_up) s->clean_up(s->arg);
    fprintf(stderr,
            "deepspeed: the launcher (process %d) on %s was killed by signal %d (SIG%s); all ranks "
            "are ended\n",
            worker, host, signal, sigabbrev_np(signal));
    return 128 + signal;
}

/* The worker's SIGCHLD arrives as a signal too, so waitpid is only called
 * after sigwaitinfo returns, and never blocks. */
int supervisor_run(supervised *s)
{
    sigset_t set, previous;
    signals_fill(&set, s->signals);
    if (s->ending) sigaddset(&set, SIGURG);
    /* a parent may have it ignored: no child could be waited for */
    signal(SIGCHLD, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN); /* a small ulimit -f: writing fails instead */
    processes_adopt();
    fflush(NULL);
    sigprocmask(SIG_BLOCK, &set, &previous);
    int self = getpid(), worker = fork(), status;
    if (worker == 0) {
        status = supervised_work(s, self);
        fflush(NULL);
        _exit(status);
    }
    if (worker < 0) {
        fprintf(stderr, "deepspeed: fork: %s\n", strerror(errno));
        return 1;
    }
    for (;;) {
        siginfo_t info;
        int signal = sigwaitinfo(&set, &info);
        if (signal == SIGURG) {
            s->ending(s->arg);
            continue;
        }
        if (signal > 0 && signal != SIGCHLD) kill(worker, signal);
        if (signal > 0 && signal != SIGCHLD && signal != SIGUSR1 && signal != SIGUSR2)
            s->ended_by = signal;
        if (waitpid(worker, &status, WNOHANG) == worker) break;
    }
    sigprocmask(SIG_SETMASK, &previous, NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status)
                             : supervisor_clean_up(s, worker, WTERMSIG(status));
}
