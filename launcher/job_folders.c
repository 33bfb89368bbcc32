/* launcher/job_folders.c: temporary folders of a job, for Open MPI's files.
 * SPDX-License-Identifier: MIT */
#include "job_folders.h"

#include "base/text.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define OLD_TMPDIR    "DEEPSPEED_TMPDIR" /* "": it was not set */
#define SHARED_FOLDER "DEEPSPEED_SHARED"
#define PREFIX        "deepspeed-job."

static int folder_remove_entry(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st, (void)flag, (void)at;
    remove(path);
    return 0;
}

static void folder_remove(const char *path)
{
    nftw(path, folder_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* Removes the folders that ended jobs have left: they are of this user, and no
 * process holds their lock. */
static void folders_sweep(const char *parent)
{
    DIR *d = opendir(parent);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat st;
        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0) continue;
        int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0 && !fstat(fd, &st) && st.st_uid == geteuid() && !flock(fd, LOCK_EX | LOCK_NB)) {
            dsi_text path = dsi_text_of("%s/%s", parent, e->d_name);
            folder_remove(path.s);
            dsi_text_free(&path);
        }
        if (fd >= 0) close(fd);
    }
    if (d) closedir(d);
}

/* Leaves folder empty if it cannot be made. It has its name once it is locked;
 * the descriptor, which is returned (0: none), stays open in this process and
 * those it forks. */
static int folder_make(char *folder, size_t n, const char *parent)
{
    char hidden[4000];
    folders_sweep(parent);
    snprintf(hidden, sizeof hidden, "%s/.deepspeed.XXXXXX", parent);
    *folder = 0;
    if (!mkdtemp(hidden)) return 0;
    int fd = open(hidden, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(folder, n, "%s/" PREFIX "%s", parent, strrchr(hidden, '.') + 1);
    if (fd >= 0 && !flock(fd, LOCK_SH | LOCK_NB) && !rename(hidden, folder)) return fd;
    if (fd >= 0) close(fd);
    snprintf(folder, n, "%s", hidden);
    return 0;
}

static const char *temporary_folder(void)
{
    const char *tmp = getenv("TMPDIR");
    return tmp && *tmp ? tmp : "/tmp";
}

/* /tmp and /dev/shm are usually different file systems. Where the first cannot
 * be written, the second has all. */
void job_folders_make(job_folders *f)
{
    f->locks[0] = folder_make(f->session, sizeof f->session, temporary_folder());
    f->locks[1] = folder_make(f->shared, sizeof f->shared, "/dev/shm");
    if (!*f->session) memcpy(f->session, f->shared, sizeof f->session);
}

void job_folders_make_one(job_folders *f)
{
    f->locks[0] = folder_make(f->shared, sizeof f->shared, "/dev/shm");
    if (!*f->shared) f->locks[0] = folder_make(f->shared, sizeof f->shared, temporary_folder());
    memcpy(f->session, f->shared, sizeof f->session);
}

void job_folders_remove(const job_folders *f)
{
    if (*f->session) folder_remove(f->session);
    if (*f->shared) folder_remove(f->shared);
}

/* ---- environment --------------------------------------------------------------- */

/* Where ranks of this machine have their shared memory, unless the user says. */
static void set_shared_folder(const char *folder)
{
    setenv("OMPI_MCA_btl_vader_backing_directory", folder, 0); /* Open MPI 4 */
    setenv("OMPI_MCA_btl_sm_backing_directory", folder, 0);    /* 5 */
    setenv("OMPI_MCA_osc_sm_backing_directory", folder, 0);
}

void job_folders_export(const job_folders *f)
{
    const char *old = getenv("TMPDIR");
    if (*f->shared) setenv(SHARED_FOLDER, f->shared, 1);
    if (!*f->session) return;
    setenv(OLD_TMPDIR, old ? old : "", 1);
    setenv("TMPDIR", f->session, 1);
}

bool job_folders_are_exported(void) { return getenv(SHARED_FOLDER) != NULL; }

static void restore_tmpdir(void)
{
    const char *old = getenv(OLD_TMPDIR);
    if (!old) return;
    if (*old)
        setenv("TMPDIR", old, 1);
    else
        unsetenv("TMPDIR");
    unsetenv(OLD_TMPDIR);
}

void job_folders_import(void)
{
    const char *shared = getenv(SHARED_FOLDER);
    if (shared) {
        set_shared_folder(shared);
        unsetenv(SHARED_FOLDER);
    }
    restore_tmpdir();
}

void job_folders_unexport(job_folders *f)
{
    unsetenv(SHARED_FOLDER);
    restore_tmpdir();
    for (int i = 0; i < 2; i++)
        if (f->locks[i]) close(f->locks[i]);
    *f = (job_folders){0};
}
