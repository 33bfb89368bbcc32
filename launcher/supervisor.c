/* launcher/supervisor.c: two processes that tidy up after each other.
 *
 * The shell knows the first one, which does nothing but wait: it stands in the terminal's foreground group, gets its
 * signals once each, and stops and goes on with it. The second starts and watches the job. Whichever is killed, by
 * SIGKILL too, the other ends the job and removes its files.
 * SPDX-License-Identifier: MIT */
#include "supervisor.h"

#include "processes.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Those to pass on, and SIGCHLD; not SIGHUP where it is ignored (nohup). */
static sigset_t watch_signals(const guarded *g)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (int s = 1; s < 31; s++) {
        struct sigaction now;
        bool unwanted = s == SIGHUP && !sigaction(s, NULL, &now) && now.sa_handler == SIG_IGN;
        if (g->signals >> s & 1 && !unwanted) sigaddset(&set, s);
    }
    return set;
}

static int work_alone(const guarded *g, int parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) return 1;
    /* a background group may write to the terminal whatever its settings */
    signal(SIGTTOU, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    return g->work(g->arg);
}

static int after_death(const guarded *g, int signal)
{
    processes_end();
    if (g->tidy) g->tidy(g->arg);
    fprintf(stderr,
            "deepspeed: the launcher was killed by signal %d (SIG%s); all ranks are ended\n",
            signal, sigabbrev_np(signal));
    return 128 + signal;
}

int guard_run(const guarded *g)
{
    sigset_t set = watch_signals(g), was;
    /* whoever started us may have ignored it, and children would vanish */
    signal(SIGCHLD, SIG_DFL);
    processes_adopt();
    fflush(NULL);
    sigprocmask(SIG_BLOCK, &set, &was);
    int self = getpid(), worker = fork(), status;
    if (worker == 0) {
        status = work_alone(g, self);
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
        if (signal > 0 && signal != SIGCHLD) kill(worker, signal);
        if (waitpid(worker, &status, WNOHANG) == worker) break;
    }
    sigprocmask(SIG_SETMASK, &was, NULL);
    return WIFEXITED(status) ? WEXITSTATUS(status) : after_death(g, WTERMSIG(status));
}
