/* tests/engine/local_hosts.h: hosts with checkpoint folders of their own. Hosts are
 * folders: ranks, which are threads, give the folder of their host. A host that
 * is lost is a folder that is removed.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "folder.h"
#include "run.h"

#include <errno.h>
#include <ftw.h>
#include <unistd.h>

#define MOST_RANKS 4
#define MOST_HOSTS 3

#define LOCAL "\"use_node_local_storage\": true"

/* ---- hosts --------------------------------------------------------------------------------------------- */

static char host_dir[MOST_HOSTS][200];

static inline void hosts_make(void)
{
    const char *dir = folder_make();
    for (int h = 0; h < MOST_HOSTS; h++)
        snprintf(host_dir[h], sizeof host_dir[h], "%s/host%d", dir, h);
}

static inline int remove_entry(const char *path, const struct stat *s, int type, struct FTW *where)
{
    (void)s, (void)type, (void)where;
    return remove(path);
}

static inline void host_lose(int h)
{
    if (nftw(host_dir[h], remove_entry, 8, FTW_DEPTH | FTW_PHYS) && errno != ENOENT)
        fail_msg("remove %s: %s", host_dir[h], strerror(errno));
}

static inline const char *host_path(int h, const char *name)
{
    static char path[700];
    snprintf(path, sizeof path, "%s/%s", host_dir[h], name);
    return path;
}

static inline bool host_has(int h, const char *name)
{
    return access(host_path(h, name), F_OK) == 0;
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

typedef struct Job {
    RunPlan plan;
    int host[MOST_RANKS]; /* of each rank */
    int steps;
    const char *tag;
    RunResult *result; /* of rank 0 */
} Job;

static inline const char *own_dir(const Job *j)
{
    return host_dir[j->host[ds_comm_rank(ds_world())]];
}

/* An engine to load into: its weights are others. */
static inline ds_engine *other_engine(const Job *j)
{
    RunPlan other = j->plan;
    other.seed = 55;
    return run_engine(&other);
}

static inline Job local_job(int stage, const char *more)
{
    return (Job){
        .plan = {.stage = stage, .accumulate = 1, .dtype = "bf16", .seed = 1, .more = more},
        .host = {0, 0, 1, 2},
        .steps = 3};
}

static inline void copy_folder(const char *from, const char *to)
{
    char command[1800];
    snprintf(command, sizeof command, "cp -r %s %s", from, to);
    CHECK(system(command) == 0);
}
