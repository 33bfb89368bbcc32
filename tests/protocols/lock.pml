/* tests/protocols/lock.pml: a model, for the model checker spin, of jobs that use
 * the same checkpoint folders.
 *
 * Two jobs have a rank on each of two hosts, and each host has a folder. A job saves,
 * loads, or loads where versions must be recovered before. One that is gone has left
 * .saving-TAG on some hosts, or none. FAULTS times, at any moment, a job is killed, and
 * its ranks end one after the other. spin tries all interleavings.
 *
 * Each label stands for a function:
 *
 *   recover    local_recover         src/engine/checkpoint/load_local.c
 *   load       local_find            src/engine/checkpoint/load_local.c
 *   try        local_lock            src/engine/checkpoint/load_local.c
 *   try        dsi_folder_try_lock                       src/engine/checkpoint/folder_lock.c
 *   look       dsi_folder_is_saved_to                    src/engine/checkpoint/folder_lock.c
 *   begin      dsi_folder_begin      src/engine/checkpoint/folder.c
 *   begin      dsi_folder_lock, dsi_folder_mark_saving   src/engine/checkpoint/folder_lock.c
 *   publish    dsi_folder_publish    src/engine/checkpoint/folder.c
 *   unlock     dsi_folder_unlock     src/engine/checkpoint/folder_lock.c
 *
 * Checked: a folder is changed by one job at a time, and read by none in that time;
 * no job removes what another one is saving; "another job is saving" is said only
 * beside a living save; nothing waits for ever. Compiled with -DMISTAKE=N one step
 * is wrong, and spin finds that:
 *
 *   1  a save is seen wherever there is .saving-TAG, also that of a killed one
 *   2  before a save, each rank waits for the lock of its host and keeps it
 *   3  a load that recovers shares its lock with others
 *   4  a save removes what killed ones left before it has the lock
 *   5  the lock ends before the checkpoint has its name
 *
 * A load beside a save waits for some time, here any; then it changes nothing. The
 * time limit of all waiting, DS_SAVE_TIMEOUT, is left out.
 * SPDX-License-Identifier: MIT */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define JOBS  2
#define HOSTS 2
#define GONE  (JOBS + 1)

/* ---- the folders of the hosts: job j is j + 1 there, and 0 is none ---- */

byte exclusive[HOSTS]; /* the job that has the lock alone */
byte shared[HOSTS];    /* the jobs that share it: job j is bit j */
byte saving[HOSTS];    /* the job that has made .saving-TAG */
byte marked[HOSTS];    /* the job that has locked that folder */

mtype = {WAITS, READS, RECOVERS, SAVES};
mtype at[JOBS * HOSTS]; /* of the rank of job j on host h: j * HOSTS + h */

#define ME    at[j * HOSTS + h]
#define OTHER at[(1 - j) * HOSTS + h]

/* Of another job, whose lock this rank has found. */
#if MISTAKE == 1
#define SAVED_TO (saving[h])
#else
#define SAVED_TO (saving[h] && marked[h])
#endif

/* A lock ends with its process at the latest; .saving-TAG does not. */
#define UNLOCK \
    exclusive[h] = (exclusive[h] == j + 1 -> 0 : exclusive[h]); \
    marked[h] = (marked[h] == j + 1 -> 0 : marked[h]); \
    shared[h] = shared[h] & (3 - (1 << j))

/* ---- ranks ---- */

mtype = {SAVE, LOAD, RECOVER};
mtype kind[JOBS];
byte alive[JOBS]; /* ranks whose process runs */
bit killed[JOBS];
byte faults = 0;

/* A collective: how many ranks have come; what one of them or more say. */
byte arrived[JOBS];
bit turn[JOBS], one_taken[JOBS], one_saved[JOBS];
bit missing[JOBS], late[JOBS]; /* its results */

/* A step of a rank, which a killed rank does not do; the first one after a
 * collective, which waits for all ranks. */
#define STEP(...) \
    atomic { \
        if \
        :: killed[j] -> goto dead \
        :: else -> __VA_ARGS__ \
        fi \
    }
#define SYNCED(...) \
    atomic { \
        if \
        :: killed[j] -> goto dead \
        :: !killed[j] && turn[j] != mine -> __VA_ARGS__ \
        fi \
    }
#define ARRIVE \
    one_taken[j] = one_taken[j] || taken; \
    one_saved[j] = one_saved[j] || saved; \
    taken = 0; \
    saved = 0; \
    mine = turn[j]; \
    arrived[j]++; \
    if \
    :: arrived[j] == HOSTS -> \
        arrived[j] = 0; \
        missing[j] = one_taken[j]; \
        if \
        :: late[j] = 0 \
        :: one_saved[j] -> late[j] = 1 \
        fi; \
        one_taken[j] = 0; \
        one_saved[j] = 0; \
        turn[j] = 1 - turn[j] \
    :: else \
    fi

/* The lock of all hosts, then `then`; or it has waited long enough for a save. */
#define LOCK_ALL(alone, then) \
    do \
    :: \
        STEP( \
            if \
            :: !exclusive[h] && !((alone) && shared[h]) -> \
                exclusive[h] = ((alone) -> j + 1 : 0); \
                shared[h] = ((alone) -> shared[h] : shared[h] | (1 << j)) \
            :: else -> \
                taken = 1; \
                saved = SAVED_TO; \
                assert(!saved || OTHER == SAVES) \
            fi; \
            ARRIVE); \
        SYNCED( \
            if \
            :: !missing[j] -> then; break \
            :: missing[j] && late[j] -> UNLOCK; goto over \
            :: missing[j] && !late[j] -> UNLOCK \
            fi) \
    od

#define RECOVERY assert(OTHER == WAITS); ME = RECOVERS

proctype Rank(byte j, h)
{
    bit mine = 1, taken, saved;

    STEP(
        if
        :: kind[j] == LOAD -> goto load
        :: else
        fi);
recover:
#if MISTAKE == 2
    STEP(
        if
        :: !exclusive[h] && !shared[h] -> exclusive[h] = j + 1
        :: exclusive[h] && SAVED_TO -> goto over
        fi;
        ARRIVE);
    SYNCED(RECOVERY);
#elif MISTAKE == 3
    LOCK_ALL(0, RECOVERY);
#else
    LOCK_ALL(1, RECOVERY);
#endif
    STEP(ME = WAITS; UNLOCK; ARRIVE);
    SYNCED(
        if
        :: kind[j] == SAVE -> goto begin
        :: else
        fi);

load:
try:
look:
    LOCK_ALL(0, assert(OTHER == WAITS || OTHER == READS); ME = READS);
    goto over;

begin:
#if MISTAKE == 4
    STEP(assert(!saving[h] || OTHER != SAVES); saving[h] = 0);
#endif
    atomic {
        if
        :: killed[j] -> goto dead
        :: !killed[j] && !exclusive[h] && !shared[h] -> exclusive[h] = j + 1; ME = SAVES; assert(OTHER == WAITS)
        :: !killed[j] && exclusive[h] && SAVED_TO -> assert(OTHER == SAVES); taken = 1; ARRIVE; goto begun
        fi
    };
    STEP(assert(!saving[h] || OTHER != SAVES); saving[h] = j + 1);
    STEP(marked[h] = j + 1; ARRIVE);
begun:
    SYNCED(
        if
        :: missing[j] -> saving[h] = (saving[h] == j + 1 -> 0 : saving[h]); ME = WAITS; UNLOCK; goto over
        :: else
        fi);
#if MISTAKE == 5
    STEP(UNLOCK);
#endif
publish:
    STEP(assert(saving[h] == j + 1); saving[h] = 0);
unlock:
over:
dead:
    atomic { ME = WAITS; UNLOCK; alive[j]-- }
}

/* ---- jobs and faults ---- */

inline start(j)
{
    at[j * HOSTS] = WAITS;
    at[j * HOSTS + 1] = WAITS;
    alive[j] = HOSTS;
    run Rank(j, 0);
    run Rank(j, 1)
}


proctype Fault()
{
end: /* or none comes */
    do
    :: atomic { faults < FAULTS && alive[0] -> faults++; killed[0] = 1 }
    :: atomic { faults < FAULTS && alive[1] -> faults++; killed[1] = 1 }
    od
}

init
{
    atomic {
        if
        :: saving[0] = GONE; saving[1] = GONE
        :: saving[1] = GONE
        :: skip
        fi;
        if /* two loads do nothing that two recoveries do not */
        :: kind[0] = SAVE; kind[1] = SAVE
        :: kind[0] = SAVE; kind[1] = LOAD
        :: kind[0] = SAVE; kind[1] = RECOVER
        :: kind[0] = LOAD; kind[1] = RECOVER
        :: kind[0] = RECOVER; kind[1] = RECOVER
        fi;
        start(0);
        start(1);
        run Fault()
    }
}
