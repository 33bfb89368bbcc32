/* launcher/rank_place.c: which rank of the world this process is.
 *
 * A runner that started another number of ranks, or in another order than the
 * plan, would train on other devices than were requested: that is an error.
 * SPDX-License-Identifier: MIT */
#include "rank_place.h"

#include "runner.h"

#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* -1: the variable is not set, or not a number. */
static int read_count(const char *variable)
{
    const char *text = getenv(variable);
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    return text && *text && !*end && n >= 0 && n < INT32_MAX ? (int)n : -1;
}

/* The variables of the runner that started this process; NULL: none did. */
static const rank_variables *find_variables(void)
{
    for (const runner *const *r = runners; *r; r++) {
        const rank_variables *v = &(*r)->variables;
        if (v->rank && read_count(v->rank) >= 0 && read_count(v->size) >= 0) return v;
    }
    return NULL;
}

/* Otherwise ranks of the new job would take the launcher's own place for
 * theirs. */
void rank_place_forget(void)
{
    for (const runner *const *r = runners; *r; r++) {
        const rank_variables *v = &(*r)->variables;
        if (!v->rank) continue;
        unsetenv(v->rank);
        unsetenv(v->size);
        unsetenv(v->local_rank);
        if (v->other) unsetenv(v->other);
    }
}

char *rank_place_master(dsi_text *why)
{
    char *name = NULL;
    ds_status status = DS_OK;
    for (const runner *const *r = runners; *r && !name && status == DS_OK; r++)
        if ((*r)->find_master) status = (*r)->find_master(&name);
    if (status == DS_OK) return name ? name : dsi_strdup("127.0.0.1");
    dsi_text_add(why, "%s", ds_error());
    return NULL;
}

static rank_place rank_place_of(const ds_hosts *world, int rank)
{
    rank_place p = {.rank = rank, .local_rank = rank};
    while (p.node < world->n - 1 && p.local_rank >= world->at[p.node].n_slots)
        p.local_rank -= world->at[p.node++].n_slots;
    return p;
}

/* The local rank is compared too, as it selects the device. */
bool rank_place_find(const ds_hosts *world, int node, rank_place *p, dsi_text *why)
{
    const rank_variables *v = find_variables();
    int rank = v ? read_count(v->rank) : 0, size = v ? read_count(v->size) : 1;
    int local_rank = v ? read_count(v->local_rank) : -1, expected = hosts_count_slots(world),
        first = 0;
    if (node >= world->n) {
        dsi_text_add(why, "--node_rank=%d: there are %d nodes", node, world->n);
        return false;
    }
    if (node >= 0) {
        expected = world->at[node].n_slots;
        for (int k = 0; k < node; k++) first += world->at[k].n_slots;
    }
    if (size != expected || rank >= size) {
        dsi_text_add(why,
                     "%s says rank %d of %d, but %d ranks are expected: the processes were not "
                     "started by the intended runner (srun: --mpi=pmix for Open MPI, --mpi=pmi2 "
                     "for MPICH)",
                     v ? v->size : "the environment", rank, size, expected);
        return false;
    }
    *p = rank_place_of(world, first + rank);
    if (local_rank < 0 || local_rank == p->local_rank) return true;
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    dsi_text_add(why,
                 "%s says that rank %d is number %d on %s, but number %d on %s is expected: "
                 "the runner assigned the ranks to hosts in another order",
                 v->local_rank, p->rank, local_rank, host, p->local_rank, world->at[p->node].name);
    return false;
}
