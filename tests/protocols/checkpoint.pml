/* tests/protocols/checkpoint.pml: a model, for the model checker spin, of how a
 * checkpoint becomes visible, how ranks die, and how they are started again.
 *
 * Three ranks train SAVES steps and save after each, with keep_last 1. FAULTS
 * times, at any moment, one rank is killed, or the power fails: then each change
 * that was not synced is on the disk or is not, in any combination. The launcher
 * ends the other ranks, waits for their end, and starts all again. spin tries
 * all interleavings.
 *
 * Each label stands for a function:
 *
 *   begin      dsi_folder_begin      src/engine/checkpoint/folder.c
 *   write      dsi_save_write        src/engine/checkpoint/save_write.c, and dsi_file_commit
 *   sync       ds_comm_sync_status       src/comm/sync_status.c
 *   manifest   folder_write_manifest src/engine/checkpoint/folder.c, and folder_sync
 *   publish    dsi_folder_publish    src/engine/checkpoint/folder.c: folder_replace, folder_rename
 *   set_latest dsi_folder_set_latest src/engine/checkpoint/folder.c
 *   prune      dsi_folder_prune      src/engine/checkpoint/folder.c
 *   load       load_find_newest      src/engine/checkpoint/load.c, and dsi_load_verify
 *   end        job_begin_end, job_is_over launcher/job.c
 *   end        processes_end         launcher/processes.c
 *   again      restart_run           launcher/restart.c
 *
 * Checked: a load finds a whole checkpoint, which is not older than the newest
 * save that returned on any rank; latest names a whole one, for programs that
 * trust it; ranks of two attempts never run at the same
 * time; nothing waits for ever; after the last fault the training succeeds.
 * Compiled with -DMISTAKE=N one step is wrong, and spin finds that:
 *
 *   1  latest is renamed before the checkpoint has its name
 *   2  a rank's files are not synced
 *   3  rank 0 publishes without waiting for the other ranks
 *   4  the folder is not synced after the checkpoint was renamed, nor after latest was
 *   5  the ranks are started again before all have ended
 *   6  the old checkpoint is removed before latest names the new one
 *   7  a rank that waits for one that has died is not ended
 *
 * Left out: asynchronous saves (the same order, on a thread); file systems that
 * cannot exchange two names; a rank on a host that is cut off, which counts as
 * ended.
 * SPDX-License-Identifier: MIT */
#ifndef MISTAKE
#define MISTAKE 0
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define RANKS 3
#define SAVES 2
#define NONE  255
/* a folder for each time that a save begins: a fault repeats at most one */
#define FOLDERS (SAVES + FAULTS + 1)

/* ---- the disk: what processes see, and what survives a loss of power ---- */

typedef folder { /* its files have this state; rank r's are bit r */
    byte written, synced;
    bit named;                    /* the names of the files are synced */
    bit manifest, manifest_synced /* of all ranks */
};
folder disk[FOLDERS];
byte folders = 0;          /* that were made */
byte saving = NONE;        /* number of .saving-TAG's folder */
byte tag[SAVES + 1] = NONE, tag_synced[SAVES + 1] = NONE; /* numbers of the folders of steps */
byte latest = 0, latest_synced = 0;                       /* a step; 0: there is none */

#define ALL_RANKS 7
#define WHOLE(f)  ((f) != NONE && disk[f].written == ALL_RANKS && disk[f].manifest)

/* The entries of the folder that holds the checkpoints. */
inline sync_entries()
{
    i = 1;
    do
    :: i <= SAVES -> tag_synced[i] = tag[i]; i++
    :: else -> break
    od;
    latest_synced = latest
}

/* What a load takes: what latest names, then the others, newest first. */
inline find(step_found)
{
    step_found = 0;
    i = SAVES;
    do
    :: i > 0 && !step_found && WHOLE(tag[i]) -> step_found = i
    :: i > 0 && (step_found || !WHOLE(tag[i])) -> i--
    :: i == 0 -> break
    od;
    if
    :: latest && WHOLE(tag[latest]) -> step_found = latest
    :: else
    fi
}

/* What was not synced is there or not; then it does not change any more. A
 * folder that lacks the file of one rank is as good as one that lacks them all. */
inline lose_power()
{
    i = 0;
    do
    :: i < folders ->
        if
        :: disk[i].synced == ALL_RANKS && disk[i].named
        :: !(disk[i].synced == ALL_RANKS && disk[i].named) -> disk[i].written = disk[i].synced * disk[i].named
        :: !(disk[i].synced == ALL_RANKS && disk[i].named) -> skip
        fi;
        if
        :: disk[i].manifest_synced
        :: !disk[i].manifest_synced -> disk[i].manifest = 0
        :: !disk[i].manifest_synced -> skip
        fi;
        disk[i].synced = disk[i].written;
        disk[i].named = 1;
        disk[i].manifest_synced = disk[i].manifest;
        i++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= SAVES ->
        if
        :: tag[i] = tag_synced[i]
        :: tag_synced[i] = tag[i]
        fi;
        i++
    :: else -> break
    od;
    if
    :: latest = latest_synced
    :: latest_synced = latest
    fi
}

/* ---- ranks ---- */

bit alive[RANKS], killed[RANKS]; /* its program runs; it has got a signal */
bit good[RANKS];                 /* it has ended with status 0 */
byte returned = 0;               /* the newest step whose save has returned on a rank */
byte arrived = 0, turn = 0;      /* at the collective that comes next */
byte loaded = 0;                 /* rank 0's answer to load */
byte faults = 0;

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
            if :: arrived == RANKS -> arrived = 0; turn = 1 - turn :: else fi \
        fi \
    }; \
    atomic { if :: killed[r] -> goto dead :: turn != mine fi }

proctype Rank(byte r)
{
    byte step, mine, i;

load:
    DO(
        if
        :: r == 0 ->
            find(loaded);
            assert(loaded >= returned);
            assert(!latest || WHOLE(tag[latest]))
        :: else
        fi);
    SYNC;
    DO(step = loaded);

    do
    :: step == SAVES -> break
    :: step < SAVES ->
        step++;

begin:
        DO(
            if
            :: r == 0 && saving != NONE -> disk[saving].written = 0; disk[saving].manifest = 0
            :: else
            fi;
            if
            :: r == 0 -> assert(folders < FOLDERS); saving = folders; folders++
            :: else
            fi);
        SYNC;

write:
        DO(disk[saving].written = disk[saving].written | (1 << r));
#if MISTAKE != 2
        DO(disk[saving].synced = disk[saving].synced | (1 << r));
#endif
#if MISTAKE == 3
        if :: r != 0 -> SYNC :: else fi;
#else
sync:
        SYNC;
#endif
        if
        :: r == 0 ->
#if MISTAKE == 1
            DO(latest = step);
            DO(sync_entries());
#endif
manifest:
            DO(disk[saving].manifest = 1);
            DO(disk[saving].manifest_synced = 1; disk[saving].named = 1);
#if MISTAKE == 6
            DO(if :: step > 1 -> tag[step - 1] = NONE; tag_synced[step - 1] = NONE :: else fi);
#endif
publish:    /* the names of .saving-TAG and TAG are exchanged */
            DO(i = tag[step]; tag[step] = saving; saving = i);
#if MISTAKE != 4
            DO(sync_entries());
#endif
set_latest:
            DO(latest = step);
#if MISTAKE != 4
            DO(sync_entries());
#endif
prune:      /* keep_last 1; what was exchanged is removed too */
            DO(if :: step > 1 -> tag[step - 1] = NONE :: else fi;
                if
                :: saving != NONE -> disk[saving].written = 0; disk[saving].manifest = 0; saving = NONE
                :: else
                fi);
#if MISTAKE == 3
            SYNC
#endif
        :: else
        fi;
#if MISTAKE != 3
        SYNC;
#endif
        DO(if :: returned < step -> returned = step :: else fi)
    od;
    atomic { if :: killed[r] -> goto dead :: else -> good[r] = 1 fi };
dead:
    alive[r] = 0
}

/* ---- faults ---- */

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
            :: alive[victim] && !good[victim] -> /* the power fails */
                faults++;
                killed[0] = 1; killed[1] = 1; killed[2] = 1;
                lose_power()
            :: !(alive[victim] && !good[victim]) -> break
            fi
        }
    :: break
    od
}

/* ---- the launcher ---- */

#define ENDED  (!alive[0] && !alive[1] && !alive[2])
#define FAILED(r) (!alive[r] && !good[r])

active proctype Launcher()
{
    byte i, newest;
    atomic { run Fault() };
again:
    atomic {
        assert(ENDED);
        arrived = 0;
        turn = 0;
        i = 0;
        do
        :: i < RANKS -> alive[i] = 1; killed[i] = 0; good[i] = 0; i++
        :: else -> break
        od;
        run Rank(0);
        run Rank(1);
        run Rank(2)
    };
    if
    :: FAILED(0) || FAILED(1) || FAILED(2) ->
end:
        atomic {
#if MISTAKE != 7
            killed[0] = 1; killed[1] = 1; killed[2] = 1
#else
            skip
#endif
        };
#if MISTAKE != 5
        ENDED;
#endif
        /* a rank may have succeeded before another one was killed: it is started again too */
        goto again
    :: good[0] && good[1] && good[2] && ENDED ->
        atomic {
            find(newest);
            assert(newest == SAVES)
        }
    fi
}
