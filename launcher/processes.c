/* launcher/processes.c: the descendants of this process, as /proc shows them.
 *
 * Invariants: the table is a snapshot; a process that forks meanwhile may be
 * missed, so processes_end takes snapshots until one is empty. Descendants are
 * only complete in a subreaper. Zombies are left to their parents.
 * SPDX-License-Identifier: MIT */
#include "processes.h"

#include "base/env.h"
#include "base/list.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define GRACE_S 5.0
enum { ROUNDS = 200, ROUND_US = 5000 };

typedef struct process {
    int pid, parent;
    bool below; /* it is a descendant of the root */
} process;

typedef struct process_table {
    DSI_LIST(process)
} process_table;

void processes_adopt(void) { prctl(PR_SET_CHILD_SUBREAPER, 1); }

/* false: the process is gone or a zombie. */
static bool process_read_parent(const char *pid, int *parent)
{
    char path[300], text[512], state;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *after_name = strrchr(text, ')'); /* the name may have ) and blanks */
    return after_name && sscanf(after_name + 1, " %c %d", &state, parent) == 2 && state != 'Z';
}

static process_table processes_read(void)
{
    process_table t = {0};
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        int parent;
        if (isdigit((unsigned char)e->d_name[0]) && process_read_parent(e->d_name, &parent))
            dsi_list_add(&t, ((process){.pid = atoi(e->d_name), .parent = parent}));
    }
    if (d) closedir(d);
    return t;
}

/* Marks one more generation as descendants; false: there was none. */
static bool processes_mark(process_table *t, int root)
{
    bool found = false;
    for (int i = 0; i < t->n; i++) {
        process *p = &t->at[i];
        bool below = p->parent == root;
        for (int k = 0; k < t->n && !below; k++)
            below = t->at[k].below && t->at[k].pid == p->parent;
        found = found || (below && !p->below);
        p->below = p->below || below;
    }
    return found;
}

/* A subreaper has a child, if only a zombie, as long as it has descendants. */
static bool has_children(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

/* Without children a subreaper has no descendants, which saves reading /proc. */
int processes_signal(int root, int signal)
{
    if (root == getpid() && !has_children()) return 0;
    process_table t = processes_read();
    int n = 0;
    while (processes_mark(&t, root)) continue;
    for (int i = 0; i < t.n; i++)
        if (t.at[i].below && kill(t.at[i].pid, signal) == 0) n++;
    dsi_list_free(&t);
    return n;
}

static const dsi_env grace = {"DS_GRACE", "seconds, from 0 to 3600", .most = 3600};

double processes_grace(void) { return dsi_env_number_or(&grace, GRACE_S); }

ds_status processes_check_grace(void) { return dsi_env_number(&grace, &(double){0}); }

/* Killed processes may have forked just before: repeated until no descendant
 * is left. */
void processes_end(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        bool any = processes_signal(getpid(), SIGKILL) > 0;
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        if (!any && waitpid(-1, NULL, WNOHANG) <= 0) return;
        usleep(ROUND_US);
    }
}
