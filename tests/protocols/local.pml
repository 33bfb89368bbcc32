/* tests/protocols/local.pml: a model, for the model checker spin, of checkpoints
 * that each host has in a folder of its own, with the files of the host before.
 *
 * Three hosts of one rank each train SAVES steps and save after each, under one
 * tag for all steps, or under a tag for each with keep_last 1. FAULTS times, at
 * any moment, one rank is killed, or a host is lost with all that its folder has.
 * Another host is lost only after a load has made the copies again. The launcher
 * ends the other ranks, waits for their end, and starts all again: a lost host
 * comes back empty. spin tries all interleavings.
 *
 * Each label stands for a function:
 *
 *   recover    dsi_versions_recover, recover_folder      src/engine/checkpoint/versions.c
 *   find       versions_try, dsi_version_look            src/engine/checkpoint/load_local.c
 *   complete   version_complete, dsi_folder_make         src/engine/checkpoint/load_local.c
 *   begin      dsi_folder_begin      src/engine/checkpoint/folder.c
 *   write      dsi_save_write        src/engine/checkpoint/save_write.c
 *   copy       local_copy            src/engine/checkpoint/save_local.c
 *   publish    dsi_folder_publish    src/engine/checkpoint/folder.c: folder_replace_keeping
 *   end        local_end             src/engine/checkpoint/save_local.c
 *   prune      local_prune           src/engine/checkpoint/save_local.c
 *   sync       ds_comm_sync_status   src/comm/sync_status.c
 *
 * Checked: a load finds a version of which each file is on some host, not older
 * than the newest save that returned on any rank; nothing waits for ever; after
 * the last fault the training succeeds. Compiled with -DMISTAKE=N one step is
 * wrong, and spin finds that:
 *
 *   1  no files are copied
 *   2  .old-TAG is removed before all hosts have published
 *   3  old checkpoints are removed before all hosts have published
 *   4  a load does not make the copies again (found with two faults)
 *   5  recovery gives .old-TAG its name back, whole or not, even if the new version is whole
 *   6  recovery keeps the new version even if it is not whole
 *   7  recovery removes .old-TAG where the newest version has only that name
 *
 * Left out: what is not synced when the power fails (checkpoint.pml), fewer hosts,
 * damaged files.
 * SPDX-License-Identifier: MIT */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#if MISTAKE == 4
#undef FAULTS
#define FAULTS 2
#endif
#define HOSTS 3
#define SAVES 2
/* a version for each time that a save begins, from 1 on; 0: none */
#define VERSIONS (SAVES + FAULTS + 2)
#define ALL      7

/* ---- the folders of the hosts ---- */

typedef folder {
    byte tag[SAVES], old[SAVES]; /* versions at DIR/TAG and DIR/.old-TAG */
    byte saving;                 /* and at .saving-TAG */
    byte latest;                 /* number of a tag, from 1 on; 0: there is none */
    byte files[VERSIONS]         /* those of rank r are bit r */
};
folder host[HOSTS];
byte step_of[VERSIONS];
byte versions = 1;
bit one_tag; /* for all steps */

/* The files of version v that are on hosts under its tag t. */
#define AT(h, v, t)  ((host[h].tag[t] == (v) || host[h].old[t] == (v)) * host[h].files[v])
#define WHOLE(v, t)  ((v) && (AT(0, v, t) | AT(1, v, t) | AT(2, v, t)) == ALL)
#define NAMED(h, v)  (host[h].latest && host[h].tag[host[h].latest - 1] == (v))
#define LATEST(v)    (NAMED(0, v) || NAMED(1, v) || NAMED(2, v))
#define TAG(step)    (one_tag -> 0 : (step) - 1)
#define TAG_OF(v)    TAG(step_of[v])

/* Loaded: the newest whole version that a `latest` names, else the newest. */
byte found;
inline find_version()
{
    found = 0;
    i = VERSIONS - 1;
    do
    :: i > 0 && !found && i < versions && LATEST(i) && WHOLE(i, TAG_OF(i)) -> found = i
    :: i > 0 && !(!found && i < versions && LATEST(i) && WHOLE(i, TAG_OF(i))) -> i--
    :: i == 0 -> break
    od;
    i = (found -> 0 : VERSIONS - 1);
    do
    :: i > 0 && !found && i < versions && WHOLE(i, TAG_OF(i)) -> found = i
    :: i > 0 && !(!found && i < versions && WHOLE(i, TAG_OF(i))) -> i--
    :: i == 0 -> break
    od
}

/* What becomes of .old-TAG of tag t: the name belongs to the newest whole version, or
 * to the newest one; drop: that is the newest and whole, and others are removed. */
byte chosen[SAVES];
bit drop[SAVES];
inline decide(t)
{
    i = 0;
    do
    :: i < HOSTS ->
        if
        :: host[i].tag[t] > newest -> newest = host[i].tag[t]
        :: else
        fi;
        if
        :: host[i].old[t] > newest -> newest = host[i].old[t]
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = newest;
#if MISTAKE == 5
    i = 1;
    do
    :: i < newest && host[0].old[t] != i && host[1].old[t] != i && host[2].old[t] != i -> i++
    :: else -> break
    od;
#elif MISTAKE != 6
    do
    :: i > 0 && !WHOLE(i, t) -> i--
    :: else -> break
    od;
#endif
    chosen[t] = (i -> i : newest);
#if MISTAKE == 5 || MISTAKE == 6
    drop[t] = 1;
#else
    drop[t] = WHOLE(newest, t);
#endif
    newest = 0
}

/* ---- ranks ---- */

bit alive[HOSTS], killed[HOSTS]; /* its program runs; it has got a signal */
bit good[HOSTS];                 /* it has ended with status 0 */
byte returned = 0;               /* the newest step whose save has returned on a rank */
byte arrived = 0, turn = 0;      /* at the collective that comes next */
byte faults = 0;
bit lost = 0; /* a host is, and no load has made its copies again */

/* One step of rank r: a killed rank does none any more. */
#define DO(what) atomic { if :: killed[r] -> goto dead :: else -> what fi }

/* A collective: waits for all ranks. A turn is one of two. */
#define SYNC \
    atomic { \
        if \
        :: killed[r] -> goto dead \
        :: else -> \
            mine = turn; \
            arrived++; \
            if :: arrived == HOSTS -> arrived = 0; turn = 1 - turn :: else fi \
        fi \
    }; \
    atomic { if :: killed[r] -> goto dead :: turn != mine fi }

proctype Rank(byte r)
{
    byte step, mine, i, newest, t;

recover:
    DO(
        if
        :: r == 0 -> decide(0); decide(1)
        :: else
        fi);
    SYNC;
    DO(
        t = 0;
        do
        :: t < SAVES ->
            if
#if MISTAKE == 7
            :: host[r].old[t] && drop[t] -> host[r].old[t] = 0
            :: host[r].old[t] && !drop[t] && (!host[r].tag[t] || host[r].old[t] == chosen[t]) ->
#else
            :: host[r].old[t] && (!host[r].tag[t] || host[r].old[t] == chosen[t]) ->
#endif
                i = host[r].tag[t];
                host[r].tag[t] = host[r].old[t];
                host[r].old[t] = (drop[t] -> 0 : i)
#if MISTAKE != 7
            :: host[r].old[t] && host[r].tag[t] && host[r].old[t] != chosen[t] && drop[t] ->
                host[r].old[t] = 0
#endif
            :: else
            fi;
            t++
        :: else -> break
        od;
        t = 0;
        i = 0);
    SYNC;

find:
    DO(
        if
        :: r == 0 -> find_version(); assert(step_of[found] >= returned)
        :: else
        fi);
    SYNC;
    DO(step = step_of[found]; t = (found -> TAG_OF(found) : 0));
complete:
    DO(
        if
        :: found && host[r].tag[t] != found -> host[r].tag[t] = found; host[r].files[found] = 0
        :: else
        fi);
    SYNC;
    DO(
        if
        :: found ->
#if MISTAKE == 4
            host[r].files[found] = host[r].files[found] | (1 << r)
#else
            host[r].files[found] = host[r].files[found] | (1 << r) | (1 << ((r + 2) % HOSTS))
#endif
        :: else
        fi;
        t = 0);
    SYNC;
    DO(lost = 0);

    do
    :: step == SAVES -> break
    :: step < SAVES ->
        step++;

begin:
        DO(
            if
            :: r == 0 -> assert(versions < VERSIONS); step_of[versions] = step; versions++
            :: else
            fi);
        SYNC;
        DO(host[r].saving = versions - 1; host[r].files[versions - 1] = 0);
        SYNC;
write:
        DO(host[r].files[host[r].saving] = host[r].files[host[r].saving] | (1 << r));
        SYNC;
copy:
#if MISTAKE != 1
        DO(
            i = (r + 1) % HOSTS;
            host[i].files[host[r].saving] = host[i].files[host[r].saving] | (1 << r);
            i = 0);
#endif
sync:
        SYNC;
publish:    /* in two steps */
        DO(host[r].old[TAG(step)] = host[r].tag[TAG(step)]; host[r].tag[TAG(step)] = 0);
        DO(host[r].tag[TAG(step)] = host[r].saving; host[r].saving = 0);
#if MISTAKE != 2 && MISTAKE != 3
        SYNC;
#endif
#if MISTAKE != 3
end:
        DO(host[r].old[0] = 0; host[r].old[1] = 0);
#endif
        DO(host[r].latest = TAG(step) + 1);
#if MISTAKE != 3
        SYNC;
#endif
prune:
        DO(
            if
            :: !one_tag && step > 1 -> host[r].tag[step - 2] = 0
            :: else
            fi);
#if MISTAKE == 2 || MISTAKE == 3
        SYNC;
#endif
#if MISTAKE == 3
        DO(host[r].old[TAG(step)] = 0);
#endif
        DO(if :: returned < step -> returned = step :: else fi)
    od;
    atomic { if :: killed[r] -> goto dead :: else -> good[r] = 1 fi };
dead:
    alive[r] = 0
}

/* ---- faults ---- */

inline lose(h)
{
    host[h].tag[0] = 0; host[h].tag[1] = 0;
    host[h].old[0] = 0; host[h].old[1] = 0;
    host[h].saving = 0;
    host[h].latest = 0;
    i = 0;
    do
    :: i < VERSIONS -> host[h].files[i] = 0; i++
    :: else -> break
    od;
    i = 0
}

proctype Fault()
{
    byte i, victim;
    do
    :: faults < FAULTS ->
        atomic {
            if
            :: victim = 0
            :: victim = 1
            :: victim = 2
            fi;
            if
            :: alive[victim] && !good[victim] -> faults++; killed[victim] = 1
            :: alive[victim] && !good[victim] && !lost ->
                faults++;
                killed[victim] = 1;
                lost = 1;
                lose(victim)
            :: !(alive[victim] && !good[victim]) -> break
            fi
        }
    :: break
    od
}

/* ---- the launcher ---- */

#define ENDED     (!alive[0] && !alive[1] && !alive[2])
#define FAILED(r) (!alive[r] && !good[r])

active proctype Launcher()
{
    byte i;
    atomic {
        if
        :: one_tag = 0
        :: one_tag = 1
        fi;
        run Fault()
    };
again:
    atomic {
        assert(ENDED);
        arrived = 0;
        turn = 0;
        i = 0;
        do
        :: i < HOSTS -> alive[i] = 1; killed[i] = 0; good[i] = 0; i++
        :: else -> break
        od;
        run Rank(0);
        run Rank(1);
        run Rank(2)
    };
    if
    :: FAILED(0) || FAILED(1) || FAILED(2) ->
        atomic { killed[0] = 1; killed[1] = 1; killed[2] = 1 };
        ENDED;
        goto again
    :: good[0] && good[1] && good[2] && ENDED ->
        atomic { find_version(); assert(step_of[found] == SAVES) }
    fi
}
