/* launcher/job_folders.h: temporary folders of a job, for Open MPI's files.
 *
 * Open MPI puts its session files below TMPDIR and the shared memory of ranks
 * in /dev/shm, and leaves them behind when its processes are killed. A job gets
 * folders of its own for both, which are removed with it.
 *
 * Invariants: the process that made the folders removes them, after all
 * processes of the job have ended. It holds a lock on each, as do the processes
 * that it forks: a folder without one is left of a job whose launcher was
 * killed with all its processes, and the next job on the host removes it. The
 * variables that name them for mpirun or orted (job_folders_export) are for
 * this machine alone: no runner forwards them, and each rank takes them out of
 * its environment again.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

typedef struct job_folders {
    char session[4096], shared[4096]; /* "": none, Open MPI uses what it always does */
    int locks[2];                     /* their descriptors; 0: none */
} job_folders;

/* Makes them. */
void job_folders_make(job_folders *f);
/* Makes one folder for both, in shared memory if that can be used. */
void job_folders_make_one(job_folders *f);
void job_folders_remove(const job_folders *f);

/* Into the environment of mpirun or orted: TMPDIR (PMIx has no other name for
 * where its files go) and a variable that its ranks look for. */
void job_folders_export(const job_folders *f);
/* Takes it out of the environment again, and ends the locks. */
void job_folders_unexport(job_folders *f);
bool job_folders_are_exported(void); /* has a process above this one done that? */
/* In a rank: TMPDIR is again what it was before job_folders_export. */
void job_folders_import(void);
