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
 *   finish     dsi_folder_finish_exchanges               src/engine/checkpoint/folder.c
 *   recover    dsi_versions_recover, recover_folder      src/engine/checkpoint/versions.c
 *   recover    dsi_folder_restore_old                    src/engine/checkpoint/folder.c
 *   replace    dsi_version_complete  src/engine/checkpoint/version_complete.c
 *   replace    dsi_folder_make       src/engine/checkpoint/folder.c: folder_put_aside
 *   again      dsi_hosts_send        src/engine/checkpoint/hosts_send.c
 *   drop       recover_drop          src/engine/checkpoint/versions.c
 *   complete   versions_try          src/engine/checkpoint/load_local.c
 *   complete   dsi_version_look      src/engine/checkpoint/versions.c
 *   begin      dsi_folder_begin      src/engine/checkpoint/folder.c
 *   write      dsi_save_write        src/engine/checkpoint/save_write.c
 *   copy       local_copy            src/engine/checkpoint/save_local.c
 *   publish    dsi_folder_publish    src/engine/checkpoint/folder.c: folder_replace_keeping
 *   end        local_end             src/engine/checkpoint/save_local.c
 *   prune      local_prune           src/engine/checkpoint/save_local.c
 *   SYNCED     ds_comm_sync_status   src/comm/sync_status.c
 *
 * Checked: from the first save that returned on, some version is complete: each
 * host has its own files and those of the host before, or, after the loss of a
 * host, each file is somewhere. A load finds a version of which each file is on
 * some host, not older than the newest save that returned on any rank. A newest
 * version that is not whole stays on its hosts until the next save: hosts that are
 * away may have the rest. Nothing waits for ever; after the last fault the training succeeds. Compiled with
 * -DMISTAKE=N one step is wrong, and spin finds that:
 *
 *   1  no files are copied
 *   2  .old-TAG is removed before all hosts have published
 *   3  old checkpoints are removed before all hosts have published
 *   4  a load does not make the copies again
 *   5  recovery gives .old-TAG its name back, whole or not, even if the new version is whole
 *   6  recovery keeps the new version even if it is not whole
 *   7  recovery removes .old-TAG where the newest version has only that name
 *   8  recovery removes .old-TAG before all hosts have the files of the new version
 *   9  recovery removes the version that it replaces
 *  10  a version that is changing places with .old-TAG is removed after a kill
 *
 * A step between two collectives changes one folder at once, with the arrival at
 * the next collective; the last rank that arrives computes the result for all.
 *
 * The file system cannot exchange two names, which takes three renames then.
 * Left out: what is not synced when the power fails (checkpoint.pml), fewer hosts,
 * hosts that come back with their folders, damaged files.
 * SPDX-License-Identifier: MIT */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#if !defined FAULTS && MISTAKE && MISTAKE != 10
#define FAULTS 1
#elif !defined FAULTS
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
    byte between[SAVES];         /* and at DIR/.exchanging-TAG */
    byte latest;                 /* number of a tag, from 1 on; 0: there is none */
    byte files[VERSIONS]         /* of a version that is there: those of rank r are bit r */
};
folder host[HOSTS];
byte step_of[VERSIONS];
byte versions = 1;
bit one_tag; /* for all steps */

/* What host h is to have: the files of its rank and of the rank before. */
#define NEEDS(h) ((1 << (h)) | (1 << (((h) + 2) % HOSTS)))

#define SOMEWHERE(v)      (host[0].files[v] | host[1].files[v] | host[2].files[v])
#define WHOLE(v)          ((v) && SOMEWHERE(v) == ALL)
#define COMPLETE_ON(h, v) (host[h].files[v] == NEEDS(h))
#define COMPLETE(v)       (COMPLETE_ON(0, v) && COMPLETE_ON(1, v) && COMPLETE_ON(2, v))
#define NAMED(h, v)       (host[h].latest && host[h].tag[host[h].latest - 1] == (v))
#define LATEST(v)         (NAMED(0, v) || NAMED(1, v) || NAMED(2, v))
#define UNDER(h, v, t)    (host[h].tag[t] == (v) || host[h].old[t] == (v))
#define OF_TAG(v, t)      (UNDER(0, v, t) || UNDER(1, v, t) || UNDER(2, v, t))
#define TAG(step)         (one_tag -> 0 : (step) - 1)

/* From one step to the next. Values that no later step reads are 0 then. */
#define EACH_TAG(...) \
    t = 0; \
    do \
    :: t < SAVES -> __VA_ARGS__; t++ \
    :: else -> break \
    od; \
    t = 0; \
    v = 0

/* Sets `result` to the newest version that is `so`, unless it is set. */
#define NEWEST(result, so) \
    i = (result -> 0 : VERSIONS - 1); \
    do \
    :: i > 0 && (so) -> result = i; i = 0 \
    :: i > 0 && !(so) -> i-- \
    :: i == 0 -> break \
    od

/* Loaded: the newest whole version that a `latest` names, else the newest. */
byte found;
inline find()
{
    found = 0;
    NEWEST(found, LATEST(i) && WHOLE(i));
    NEWEST(found, WHOLE(i));
    assert(step_of[found] >= returned)
}

#define KEEP(h) kept[h] = (host[h].files[v] && !kept[h] -> v : kept[h])

/* Of each tag of which a host has .old-TAG: its newest whole version, which all hosts are to
 * have, else the newest one; and whether the newest is whole: then others are removed. */
byte chosen[SAVES];
bit whole[SAVES], newest[SAVES];
inline choose()
{
    EACH_TAG(
        if
        :: host[0].old[t] || host[1].old[t] || host[2].old[t] ->
            NEWEST(v, OF_TAG(i, t));
#if MISTAKE == 5
            i = 1;
            do
            :: i < v && host[0].old[t] != i && host[1].old[t] != i && host[2].old[t] != i -> i++
            :: else -> break
            od;
            chosen[t] = i;
            i = 0;
#elif MISTAKE != 6
            NEWEST(chosen[t], OF_TAG(i, t) && WHOLE(i));
#endif
            chosen[t] = (chosen[t] -> chosen[t] : v);
            whole[t] = WHOLE(chosen[t]);
#if MISTAKE == 5 || MISTAKE == 6
            newest[t] = 1;
#else
            newest[t] = whole[t] && chosen[t] == v;
            if
            :: !WHOLE(v) -> KEEP(0); KEEP(1); KEEP(2)
            :: else
            fi;
#endif
            v = 0
        :: else
        fi)
}

/* ---- ranks ---- */

bit alive[HOSTS], killed[HOSTS]; /* its program runs; it has got a signal */
bit good[HOSTS];                 /* it has ended with status 0 */
byte returned = 0;               /* the newest step whose save has returned on a rank */
byte arrived = 0;                /* ranks at the next collective */
bit turn = 0;                    /* of two, that of the collective */
byte faults = 0;
bit lost = 0; /* a host is, and no load has made its copies again */
byte kept[HOSTS]; /* a newest version, not whole, which is to stay there */

#define SAFE(v)   (COMPLETE(v) || (lost && WHOLE(v)))
#define KEPT(h)   (!kept[h] || host[h].files[kept[h]])
#define INVARIANT \
    (KEPT(0) && KEPT(1) && KEPT(2)) && \
    (!returned || SAFE(1) || SAFE(2) || SAFE(3) || SAFE(VERSIONS - 3) || \
     SAFE(VERSIONS - 2) || SAFE(VERSIONS - 1))

/* A step of rank r, which a killed rank does not do; the first one after a
 * collective, which waits for all ranks. */
#define STEP(...) \
    atomic { \
        if \
        :: killed[r] -> goto dead \
        :: else -> __VA_ARGS__; assert(INVARIANT) \
        fi \
    }
#define SYNCED(...) \
    atomic { \
        if \
        :: killed[r] -> goto dead \
        :: !killed[r] && turn != mine -> __VA_ARGS__; assert(INVARIANT) \
        fi \
    }

/* The end of a step: the rank comes to a collective, whose result is `all`. */
#define ARRIVE(all) \
    mine = turn; \
    arrived++; \
    if \
    :: arrived == HOSTS -> arrived = 0; all; turn = 1 - turn \
    :: else \
    fi

/* Removes host r's version at `name`, and its files if that was the only name. */
#define REMOVE(name) \
    v = host[r].name; \
    host[r].name = 0; \
    if \
    :: v && !UNDER(r, v, 0) && !UNDER(r, v, 1) -> host[r].files[v] = 0 \
    :: else \
    fi; \
    v = 0

#define PUT_ASIDE(t) REMOVE(old[t]); host[r].old[t] = host[r].tag[t]; host[r].tag[t] = 0

/* The last two renames by which the versions at DIR/TAG and .old-TAG change places. */
#define EXCHANGES (host[r].between[0] || host[r].between[1])
#define GIVE_NAME(t) \
    if \
    :: !host[r].tag[t] -> host[r].tag[t] = host[r].old[t]; host[r].old[t] = 0 \
    :: else \
    fi
#define GIVE_OLD_NAME(t) \
    if \
    :: host[r].between[t] -> REMOVE(old[t]); host[r].old[t] = host[r].between[t]; host[r].between[t] = 0 \
    :: else \
    fi

/* Receives the files of a version from hosts that have them. If one was lost, the
 * load fails on all ranks: here they wait for the end, which the loss brings. */
#define RECEIVE(version) \
    if \
    :: (SOMEWHERE(version) & NEEDS(r)) == NEEDS(r) -> host[r].files[version] = NEEDS(r) \
    :: else -> goto fails \
    fi

proctype Rank(byte r)
{
    byte step, i, t, v;
    bit mine = 1;

#if MISTAKE == 10
    STEP(EACH_TAG(REMOVE(between[t])); ARRIVE(choose()));
#else
finish:
    STEP(
        if
        :: EXCHANGES -> EACH_TAG(GIVE_NAME(t))
        :: else -> ARRIVE(choose()); goto recover
        fi);
    STEP(EACH_TAG(GIVE_OLD_NAME(t)); ARRIVE(choose()));
#endif
recover:
    SYNCED(
        EACH_TAG(
            if
#if MISTAKE == 7
            :: host[r].old[t] && newest[t] -> REMOVE(old[t])
            :: !(host[r].old[t] && newest[t]) &&
               host[r].old[t] && (!host[r].tag[t] || host[r].old[t] == chosen[t]) ->
#else
            :: host[r].old[t] && (!host[r].tag[t] || host[r].old[t] == chosen[t]) ->
#endif
                host[r].between[t] = host[r].tag[t];
                host[r].tag[t] = 0;
                if
                :: !host[r].between[t] -> GIVE_NAME(t)
                :: else
                fi
            :: else
            fi;
#if MISTAKE == 5 || MISTAKE == 6 || MISTAKE == 8
            GIVE_NAME(t);
            GIVE_OLD_NAME(t);
            if
            :: newest[t] -> REMOVE(old[t])
            :: else
            fi
#endif
        );
        if
        :: EXCHANGES
        :: else -> ARRIVE(skip); goto replace
        fi);
    STEP(EACH_TAG(GIVE_NAME(t)));
    STEP(EACH_TAG(GIVE_OLD_NAME(t)); ARRIVE(skip));
replace:    /* in two steps */
    SYNCED(
        EACH_TAG(
            if
            :: whole[t] && host[r].tag[t] && host[r].tag[t] != chosen[t] ->
#if MISTAKE == 9
                REMOVE(tag[t])
#else
                PUT_ASIDE(t)
#endif
            :: else
            fi));
    STEP(
        EACH_TAG(
            if
            :: whole[t] && !host[r].tag[t] -> host[r].tag[t] = chosen[t]
            :: else
            fi);
        ARRIVE(skip));
again:
    SYNCED(
        EACH_TAG(
            if
            :: whole[t] -> RECEIVE(chosen[t])
            :: else
            fi);
        ARRIVE(skip));
drop:
    SYNCED(
        EACH_TAG(
            if
            :: newest[t] -> REMOVE(old[t])
            :: else
            fi);
        ARRIVE(find()));

complete:
    SYNCED(
        step = step_of[found];
        if
        :: found && host[r].tag[TAG(step)] != found ->
            PUT_ASIDE(TAG(step));
            host[r].tag[TAG(step)] = found
        :: else
        fi;
        ARRIVE(skip));
    SYNCED(
#if MISTAKE != 4
        if
        :: found -> RECEIVE(found)
        :: else
        fi;
#endif
        ARRIVE(lost = lost && (killed[0] || killed[1] || killed[2]); found = 0; EACH_TAG(chosen[t] = 0; whole[t] = 0; newest[t] = 0)));

    do
    :: step == SAVES -> break
    :: step < SAVES ->
        step++;
begin:
write:
copy:       /* to .saving-TAG, which others do not look at */
        SYNCED(
            ARRIVE(kept[0] = 0; kept[1] = 0; kept[2] = 0; assert(versions < VERSIONS); step_of[versions] = step; versions++));
publish:    /* in two steps */
        SYNCED(
            PUT_ASIDE(TAG(step)));
        STEP(
            host[r].tag[TAG(step)] = versions - 1;
#if MISTAKE == 1
            host[r].files[versions - 1] = (1 << r);
#else
            host[r].files[versions - 1] = NEEDS(r);
#endif
#if MISTAKE == 2
            REMOVE(old[TAG(step)]);
#elif MISTAKE == 3
            if
            :: !one_tag && step > 1 -> REMOVE(tag[step - 2])
            :: else
            fi;
#endif
            ARRIVE(skip));
end:
        SYNCED(EACH_TAG(REMOVE(old[t])));
        STEP(host[r].latest = TAG(step) + 1; ARRIVE(skip));
prune:
        SYNCED(
            if
            :: !one_tag && step > 1 -> REMOVE(tag[step - 2])
            :: else
            fi;
            returned = (returned < step -> step : returned);
            ARRIVE(skip))
    od;
    SYNCED(good[r] = 1);
    goto dead;
fails:
    killed[r];
dead:
    alive[r] = 0
}

/* ---- faults ---- */

inline lose(h)
{
    host[h].latest = 0;
    kept[h] = 0;
    i = 0;
    do
    :: i < SAVES -> host[h].tag[i] = 0; host[h].old[i] = 0; host[h].between[i] = 0; i++
    :: else -> break
    od;
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
            fi;
            assert(INVARIANT);
            victim = 0
        }
    :: break
    od
}

/* ---- the launcher ---- */

#define ENDED     (!alive[0] && !alive[1] && !alive[2])
#define FAILED(r) (!alive[r] && !good[r])

active proctype Launcher()
{
    byte i, t, v;
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
        found = 0;
        EACH_TAG(chosen[t] = 0; whole[t] = 0; newest[t] = 0);
        i = 0;
        do
        :: i < HOSTS -> alive[i] = 1; killed[i] = 0; good[i] = 0; i++
        :: else -> break
        od;
        i = 0;
        run Rank(0);
        run Rank(1);
        run Rank(2)
    };
    if
    :: FAILED(0) || FAILED(1) || FAILED(2) ->
        atomic { killed[0] = 1; killed[1] = 1; killed[2] = 1 };
        ENDED;
        goto again
    :: good[0] && good[1] && good[2] && ENDED -> atomic { find(); assert(step_of[found] == SAVES) }
    fi
}
