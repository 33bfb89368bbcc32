/* launcher/processes.c: the processes that came from this one, as /proc shows them.
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
enum { TURNS = 200, TURN_US = 5000 };

typedef struct process {
    int pid, parent;
    bool below; /* the root */
} process;

typedef struct table {
    DSI_LIST(process)
} table;

void processes_adopt(void) { prctl(PR_SET_CHILD_SUBREAPER, 1); }

/* false: it is gone, or a zombie, which only its parent can help. */
static bool read_parent(const char *pid, int *parent)
{
    char path[300], text[512], state;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *after_name = strrchr(text, ')'); /* the name may have brackets and blanks */
    return after_name && sscanf(after_name + 1, " %c %d", &state, parent) == 2 && state != 'Z';
}

static table read_all(void)
{
    table t = {0};
    DIR *d = opendir("/proc");
    for (struct dirent *e; d && (e = readdir(d));) {
        int parent;
        if (isdigit((unsigned char)e->d_name[0]) && read_parent(e->d_name, &parent))
            dsi_list_add(&t, ((process){.pid = atoi(e->d_name), .parent = parent}));
    }
    if (d) closedir(d);
    return t;
}

/* One more generation; false: there was none. */
static bool spread(table *t, int root)
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

/* Whoever adopts has a child, if only a dead one, as long as there is anything below. */
static bool have_children(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

int processes_signal(int root, int signal)
{
    if (root == getpid() && !have_children()) return 0;
    table t = read_all();
    int n = 0;
    while (spread(&t, root)) continue;
    for (int i = 0; i < t.n; i++)
        if (t.at[i].below && kill(t.at[i].pid, signal) == 0) n++;
    dsi_list_free(&t);
    return n;
}

static const dsi_env grace = {"DS_GRACE", "seconds, from 0 to 3600", .most = 3600};

double processes_grace(void) { return dsi_env_number_or(&grace, GRACE_S); }

ds_status processes_check_grace(void) { return dsi_env_number(&grace, &(double){0}); }

void processes_end(void)
{
    for (int turn = 0; turn < TURNS; turn++) {
        bool any = processes_signal(getpid(), SIGKILL) > 0;
        while (waitpid(-1, NULL, WNOHANG) > 0) continue;
        if (!any && waitpid(-1, NULL, WNOHANG) <= 0) return;
        usleep(TURN_US);
    }
}
