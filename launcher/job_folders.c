/* launcher/job_folders.c: temporary folders of a job, for Open MPI's files.
 * SPDX-License-Identifier: MIT */
#include "job_folders.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLD_TMPDIR    "DEEPSPEED_TMPDIR" /* "": it was not set */
#define SHARED_FOLDER "DEEPSPEED_SHARED"

/* Leaves folder empty if it cannot be made. */
static void folder_make(char *folder, size_t n, const char *parent)
{
    snprintf(folder, n, "%s/deepspeed.XXXXXX", parent);
    if (!mkdtemp(folder)) *folder = 0;
}

static const char *temporary_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    return tmp && *tmp ? tmp : "/tmp";
}

/* /tmp and /dev/shm are usually different file systems. */
void job_folders_make(job_folders *f)
{
    folder_make(f->session, sizeof f->session, temporary_folder());
    folder_make(f->shared, sizeof f->shared, "/dev/shm");
}

void job_folders_make_one(job_folders *f)
{
    folder_make(f->shared, sizeof f->shared, "/dev/shm");
    if (!*f->shared) folder_make(f->shared, sizeof f->shared, temporary_folder());
    memcpy(f->session, f->shared, sizeof f->session);
}

static int folder_remove_entry(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st, (void)flag, (void)at;
    remove(path);
    return 0;
}

void job_folders_remove(const job_folders *f)
{
    if (*f->session) nftw(f->session, folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    if (*f->shared) nftw(f->shared, folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- environment --------------------------------------------------------------- */

/* Where ranks of this machine have their shared memory, unless the user says. */
static void set_shared_folder(const char *folder)
{
    setenv("OMPI_MCA_btl_vader_backing_directory", folder, 0);
    setenv("OMPI_MCA_osc_sm_backing_directory", folder, 0);
}

/* mpirun passes its environment to ranks of this machine, so its own variables
 * suffice. */
void job_folders_export_local(const job_folders *f)
{
    if (*f->session) setenv("OMPI_MCA_orte_tmpdir_base", f->session, 0);
    if (*f->shared) set_shared_folder(f->shared);
}

void job_folders_export(const job_folders *f)
{
    const char *old = getenv("TMPDIR");
    if (*f->shared) setenv(SHARED_FOLDER, f->shared, 1);
    if (!*f->session) return;
    setenv(OLD_TMPDIR, old ? old : "", 1);
    setenv("TMPDIR", f->session, 1);
}

void job_folders_import(void)
{
    const char *old = getenv(OLD_TMPDIR), *shared = getenv(SHARED_FOLDER);
    if (shared) {
        set_shared_folder(shared);
        unsetenv(SHARED_FOLDER);
    }
    if (!old) return;
    if (*old)
        setenv("TMPDIR", old, 1);
    else
        unsetenv("TMPDIR");
    unsetenv(OLD_TMPDIR);
}
