/* comm/thread_slots.h: the slots of groups of ranks that are threads. thread.c
 * says what they are for, and what guards them.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "comm.h"

#include <pthread.h>
#include <stdatomic.h>

#define WHY_BYTES 1024

/* One collective of a group, or one message of a pair. Freed when all ranks
 * have left it and users is 0 (dsi_slot_release). */
typedef struct slot {
    struct comm_group *group;
    uint64_t number;            /* of the group's collectives, from 0 on */
    int arrived, left;          /* ranks that have begun it; and whose wait has ended */
    int users;                  /* 1 while the helper has it, in its list or at work */
    int64_t pieces;             /* of work; set when it opens */
    _Atomic bool open, ended;   /* all ranks have begun it; all pieces are done */
    _Atomic int64_t next, done; /* the next piece to take; pieces that are done */
    double *squares;            /* [pieces], owned; NULL: not wanted */
    struct slot *next_work;     /* in the helper's list */
    dsi_request *of[];          /* [group->size], borrowed: requests by rank; NULL: not begun */
} slot;

/* Of a rank that has closed the group: what it had begun until then, as in
 * ds_comm. */
typedef struct departure {
    bool departed;      /* false: the rank has not closed it, and the rest is 0 */
    uint64_t queued;    /* collectives that NCCL carries */
    uint64_t *messages; /* [2 size], owned; NULL: none */
} departure;

/* State that the ranks of a communicator share. Counted by refs. */
typedef struct comm_group {
    struct rank_threads *threads; /* borrowed */
    int refs;                     /* ranks that have not closed it, and slots that the helper has */
    int size;                     /* ranks */
    int *world_rank;              /* [size] each rank's number in rank_threads */
    int *comm_rank;               /* [size] and in its communicator: 0, 1, .. except in a pair */
    departure *departure;         /* [size] */
    struct comm_group **pair; /* [size][size], owned: groups of two for messages from one rank to
                                 another, made when needed; NULL: none so far */
    /* slots number oldest .. newest-1; slot k is `ring[k % room]`, NULL when
     * all ranks have left it */
    slot **ring;
    uint64_t oldest, newest, room;
} comm_group;

/* The threads of one ds_run_ranks, one for each rank of its world, and their
 * helper. The mutex guards all that is not atomic, in groups and slots too. */
typedef struct rank_threads {
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* a slot opened or ended, a rank has ended, a rank has failed */
    _Atomic int sleepers;   /* threads that wait for `changed` */
    int size;               /* ranks */
    ds_device device;       /* that ranks begin on */
    bool *ended_ranks;      /* [size] ranks whose body has returned */
    bool *left_ranks;       /* [size] and that have waited for what they had begun */
    bool oversubscribed;    /* more ranks than processors: a rank that spins slows the others */
    _Atomic bool failed;
    ds_status status; /* of the first failure */
    char why[WHY_BYTES];
    bool helper_wanted, helper_runs, quit;
    pthread_t helper;
    pthread_cond_t work; /* the helper waits for it: first_work or quit is set */
    slot *first_work, *last_work;
} rank_threads;

/* A group of `size` ranks, whose world_rank the caller fills in. t is
 * borrowed. */
comm_group *dsi_comm_group_new(rank_threads *t, int size);
void dsi_comm_group_free(comm_group *g); /* its pairs and slots too */

/* The next two with the mutex of rank_threads held. */
slot *dsi_slot_at(comm_group *g, uint64_t number); /* made if it is not there */
void dsi_slot_release(slot *m);                    /* frees m if no thread will use it again */
