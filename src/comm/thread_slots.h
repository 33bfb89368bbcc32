/* comm/thread_slots.h: the slots of groups of ranks that are threads. thread.c
 * says what they are for, and what guards them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm.h"

#include <pthread.h>
#include <stdatomic.h>

#define WHY_BYTES 1024

typedef struct slot {
    struct group *group;
    uint64_t number;
    int arrived, left; /* ranks */
    int users;         /* the helper's list, and the helper */
    int64_t pieces;
    _Atomic bool open, ended;
    _Atomic int64_t next, done; /* pieces */
    double *squares;            /* [pieces]; NULL: not wanted */
    struct slot *behind;        /* in the helper's list */
    dsi_request *of[];          /* [size] */
} slot;

/* A rank that has closed the group, and what it had begun: see ds_comm. */
typedef struct gone {
    bool is;
    uint64_t queued, *messages;
} gone;

typedef struct group {
    struct team *team;
    int refs; /* ranks that have not closed it, and slots that the helper has */
    int size;
    int *member;         /* [size] ranks of the team */
    int *called;         /* [size] ranks of the communicator: 0, 1, .. but in a pair */
    gone *gone;          /* [size] */
    struct group **pair; /* [size][size]: from one rank to another, as they are needed; or NULL */
    /* slots number oldest .. newest-1; slot k is `ring[k % room]`, NULL when
     * all ranks have left it */
    slot **ring;
    uint64_t oldest, newest, room;
} group;

/* All ranks of one ds_run_ranks. The mutex guards all that is not atomic, in
 * groups and slots too. */
typedef struct team {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a slot opened or ended, a rank went, the team failed */
    _Atomic int sleepers;
    int size;
    ds_device device;    /* that ranks begin on */
    bool *ended_ranks;   /* [size] ranks whose body has returned */
    bool *left_ranks;    /* [size] and that have waited for what they had begun */
    bool oversubscribed; /* more ranks than processors: a rank that spins slows the others */
    _Atomic bool failed;
    ds_status status; /* of the first failure */
    char why[WHY_BYTES];
    bool helper_wanted, helper_runs, quit;
    pthread_t helper;
    pthread_cond_t work;
    slot *first_work, *last_work;
} team;

/* A group for `size` ranks, whose members the caller fills in. */
group *dsi_group_new(team *t, int size);
void dsi_group_free(group *g); /* its pairs and slots too */

/* The next two with the team's mutex held. */
slot *dsi_slot_at(group *g, uint64_t number); /* made if it is not there */
void dsi_slot_release(slot *m);               /* frees m if no thread will use it again */
