/* engine/checkpoint/folder.c: Note [Whole checkpoints] of folder.h.
 * SPDX-License-Identifier: MIT */
#include "folder.h"

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SAVING     DSI_SAVING
#define LOADING    ".loading-"
#define OLD        ".old-"
#define EXCHANGING ".exchanging-"
#define REMOVING   ".removing-"

#define PROBE_S 600 /* after which no load needs a probe any more */

/* A failure of the system at path, with errno's text. */
static ds_status folder_io_error(const char *doing, const char *path)
{
    return dsi_fail(DS_EIO, "%s %s: %s", doing, path, strerror(errno));
}

/* ---- names --------------------------------------------------------------------------------------------- */

/* Refuses tags that are no name of a folder here: empty, hidden, with a slash
 * or a line's end, "latest" and the like. */
static ds_status tag_check(const char *tag)
{
    size_t n = strlen(tag);
    bool good = n > 0 && n <= DSI_MOST_TAG && tag[0] != '.' && strcmp(tag, DSI_LATEST) != 0 &&
                strcmp(tag, DSI_LATEST_UNIVERSAL) != 0;
    for (const char *c = tag; good && *c; c++) good = *c != '/' && (unsigned char)*c >= ' ';
    if (good) return DS_OK;
    return dsi_fail(DS_EINVAL,
                    "the tag is \"%.80s\": expected the name of a folder, of 1 to %d letters, "
                    "without a slash or "
                    "a dot in front, and not \"latest\"",
                    tag, DSI_MOST_TAG);
}

/* dir/MARKtag, without a second slash. */
static char *path_with_mark(const char *dir, const char *mark, const char *tag)
{
    dsi_text t = {0};
    size_t n = strlen(dir);
    dsi_text_add(&t, "%s%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", mark, tag);
    return t.s;
}

char *dsi_path_in(const char *folder, const char *name) { return path_with_mark(folder, "", name); }

char *dsi_folder_saving(const char *dir, const char *tag)
{
    return path_with_mark(dir, SAVING, tag);
}

char *dsi_folder_rank_manifest(const char *saving, int rank)
{
    return dsi_text_of("%s/" DSI_MANIFEST ".%d", saving, rank).s;
}

static bool name_has_prefix(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* ---- folders ------------------------------------------------------------------------------------------- */

/* Brings names that were made or changed in a folder to the disk. */
static ds_status folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* EINVAL: file systems that cannot */
    bool good = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    ds_status status = good ? DS_OK : folder_io_error("sync", path);
    if (fd >= 0) close(fd);
    return status;
}

static int folder_remove_entry(const char *path, const struct stat *s, int type, struct FTW *where)
{
    (void)s, (void)type, (void)where;
    return remove(path);
}

/* Removes a folder with all it contains; one that does not exist is no
 * failure. */
static ds_status folder_remove(const char *path)
{
    if (nftw(path, folder_remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT)
        return DS_OK;
    return folder_io_error("remove", path);
}

static ds_status folder_rename(const char *from, const char *to)
{
    return rename(from, to) == 0 ? DS_OK : folder_io_error("rename", from);
}

/* The tag of .old-TAG, and of one that is to have that name; NULL: it is neither. */
static const char *old_name_tag(const char *name)
{
    if (name_has_prefix(name, OLD)) return name + strlen(OLD);
    return name_has_prefix(name, EXCHANGING) ? name + strlen(EXCHANGING) : NULL;
}

/* Whether it has a manifest: other folders are never replaced or removed. */
static bool folder_is_checkpoint(const char *folder)
{
    char *manifest = dsi_path_in(folder, DSI_MANIFEST);
    bool is = dsi_file_exists(manifest);
    dsi_free(manifest);
    return is;
}

/* Calls fn for each name in dir; a folder that cannot be read has none. */
static ds_status folder_each_name(const char *dir,
                                  ds_status (*fn)(void *arg, const char *dir, const char *name),
                                  void *arg)
{
    ds_status status = DS_OK;
    DIR *d = opendir(dir);
    const struct dirent *entry;
    while (d && status == DS_OK && (entry = readdir(d))) status = fn(arg, dir, entry->d_name);
    if (d) closedir(d);
    return status;
}

/* ---- checkpoints in a folder --------------------------------------------------------------------------------------- */

typedef struct Listing {
    dsi_folders all;
    bool old;
} Listing;

static ds_status folder_list_add(void *arg, const char *dir, const char *name)
{
    Listing *l = arg;
    dsi_manifest m;
    const char *tag = l->old ? old_name_tag(name) : name[0] != '.' ? name : NULL;
    if (!tag) return DS_OK;
    char *folder = dsi_path_in(dir, name), *manifest = dsi_path_in(folder, DSI_MANIFEST);
    if (dsi_file_exists(manifest)) {
        /* a damaged one has no serial: it counts as the oldest */
        int before = dsi_error_count();
        bool good = dsi_manifest_read(&m, manifest) == DS_OK;
        dsi_error_forget(before);
        dsi_list_add(&l->all,
                     (struct dsi_folder_entry){dsi_strdup(tag), good ? m.serial : 0, m.sum});
        dsi_manifest_free(&m);
    }
    dsi_free(manifest);
    dsi_free(folder);
    return DS_OK;
}

/* By serial, from the newest on; damaged ones have 0 and come last. */
static int folder_newer_first(const void *a, const void *b)
{
    const struct dsi_folder_entry *x = a, *y = b;
    return x->serial < y->serial ? 1 : x->serial > y->serial ? -1 : strcmp(x->tag, y->tag);
}

/* Folders without a manifest are left out: those of DeepSpeed, and other
 * files. */
dsi_folders dsi_folder_list(const char *dir, bool old)
{
    Listing l = {.old = old};
    folder_each_name(dir, folder_list_add, &l);
    if (l.all.n) qsort(l.all.at, (size_t)l.all.n, sizeof *l.all.at, folder_newer_first);
    return l.all;
}

void dsi_folders_free(dsi_folders *f)
{
    for (int i = 0; i < f->n; i++) dsi_free(f->at[i].tag);
    dsi_list_free(f);
}

/* The tag becomes a path, so that it is checked like one of the program. */
char *dsi_latest_parse(const char *text, size_t n, const char *name)
{
    char tag[DSI_MOST_TAG + 1];
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) n--;
    if (n > DSI_MOST_TAG || memchr(text, 0, n))
        return dsi_refuse("%s is damaged: it is not the name of a checkpoint", name);
    memcpy(tag, text, n);
    tag[n] = 0;
    int before = dsi_error_count();
    if (tag_check(tag) == DS_OK) return dsi_strdup(tag);
    dsi_error_forget(before);
    return dsi_refuse("%s is damaged: it is not the name of a checkpoint", name);
}

char *dsi_folder_latest(const char *dir, const char *which)
{
    char *path = dsi_path_in(dir, which), *tag = NULL;
    size_t n;
    char *text = dsi_file_read_regular(path, &n);
    if (text) tag = dsi_latest_parse(text, n, path);
    dsi_free(text);
    dsi_free(path);
    return tag;
}

char *dsi_folder_old(const char *dir, const char *tag) { return path_with_mark(dir, OLD, tag); }

/* A save that was killed between two renames left the folder as .old-TAG. */
char *dsi_folder_find(const char *dir, const char *tag)
{
    if (tag_check(tag) != DS_OK) return NULL;
    char *path = dsi_path_in(dir, tag), *old = path_with_mark(dir, OLD, tag);
    bool there = dsi_is_folder(path), was = !there && dsi_is_folder(old);
    dsi_free(was ? path : old);
    if (there || was) return was ? old : path;
    dsi_refuse("there is no folder %s", path);
    dsi_free(path);
    return NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

/* Whether name is FILE.tmp.PID-RANDOM of base/file.h, of a file of ours, and that process
 * is gone. This one has none while it begins a save. */
static bool temporary_is_dead(const char *name, bool in_checkpoint)
{
    static const char *const ours[] = {".pt.tmp.", DSI_LATEST ".tmp.",
                                       DSI_LATEST_UNIVERSAL ".tmp."};
    const char *pid = NULL;
    char *end;
    for (size_t i = !in_checkpoint; i < sizeof ours / sizeof *ours && !pid; i++) {
        pid = strstr(name, ours[i]);
        if (pid && i && pid != name) pid = NULL;
        if (pid) pid += strlen(ours[i]);
    }
    long n = pid ? strtol(pid, &end, 10) : 0;
    if (n <= 0 || (*end && *end != '-')) return false;
    return n == getpid() || (kill((pid_t)n, 0) && errno == ESRCH);
}

/* Another job looks for its probe within moments. */
static bool probe_is_dead(const char *dir, const char *name)
{
    struct stat s;
    char *path = name_has_prefix(name, DSI_PROBE) ? dsi_path_in(dir, name) : NULL;
    bool dead = path && stat(path, &s) == 0 && time(NULL) - s.st_mtime > PROBE_S;
    dsi_free(path);
    return dead;
}

static ds_status folder_sweep_temporary(void *arg, const char *dir, const char *name)
{
    (void)arg;
    if (!temporary_is_dead(name, true)) return DS_OK;
    char *path = dsi_path_in(dir, name);
    ds_status status = unlink(path) && errno != ENOENT ? folder_io_error("remove", path) : DS_OK;
    dsi_free(path);
    return status;
}

/* Of a checkpoint to which a load was bringing files when it was killed. */
static ds_status folder_sweep_checkpoint(void *arg, const char *dir, const char *name)
{
    if (name[0] == '.') return DS_OK;
    char *path = dsi_path_in(dir, name);
    ds_status status = folder_is_checkpoint(path)
                           ? folder_each_name(path, folder_sweep_temporary, arg)
                           : DS_OK;
    dsi_free(path);
    return status;
}

ds_status dsi_folder_sweep_checkpoints(const char *dir)
{
    return folder_each_name(dir, folder_sweep_checkpoint, NULL);
}

/* Removes what a killed save or load left; a checkpoint that it was replacing gets
 * its name back. keep_old (arg): others stay as they are. */
static ds_status folder_sweep_entry(void *arg, const char *dir, const char *name)
{
    const bool *keep_old = arg;
    bool dead = name_has_prefix(name, SAVING) || name_has_prefix(name, REMOVING) ||
                name_has_prefix(name, LOADING) || probe_is_dead(dir, name) ||
                temporary_is_dead(name, false);
    bool old = name_has_prefix(name, OLD);
    if (!dead && !old) return DS_OK;
    char *path = dsi_path_in(dir, name), *final = old ? dsi_path_in(dir, name + strlen(OLD)) : NULL;
    ds_status status = DS_OK;
    if (old && !dsi_is_folder(final))
        status = folder_rename(path, final);
    else if (!old || !*keep_old)
        status = folder_remove(path);
    dsi_free(path);
    dsi_free(final);
    return status;
}

/* A checkpoint of that tag becomes .old-TAG, where one may be that recovery kept. */
static ds_status folder_put_aside(const char *final, const char *old)
{
    ds_status status = folder_remove(old);
    return status == DS_OK ? folder_rename(final, old) : status;
}

/* The renames that are missing until DIR/TAG and .old-TAG have changed places. */
static ds_status exchange_finish(void *arg, const char *dir, const char *name)
{
    (void)arg;
    if (!name_has_prefix(name, EXCHANGING)) return DS_OK;
    const char *tag = old_name_tag(name);
    char *between = dsi_path_in(dir, name), *final = dsi_path_in(dir, tag),
         *old = dsi_folder_old(dir, tag);
    ds_status status = DS_OK;
    if (!dsi_is_folder(final) && dsi_is_folder(old)) status = folder_rename(old, final);
    if (status == DS_OK) status = folder_put_aside(between, old);
    dsi_free(between);
    dsi_free(final);
    dsi_free(old);
    return status;
}

ds_status dsi_folder_finish_exchanges(const char *dir)
{
    return folder_each_name(dir, exchange_finish, NULL);
}

/* The lock is taken before anything is removed, because hidden folders may
 * be another job's. */
ds_status dsi_folder_begin(const char *dir, const char *tag, bool keep_old, dsi_folder_locks *locks)
{
    *locks = DSI_UNLOCKED;
    ds_status status = tag_check(tag);
    if (status == DS_OK) status = dsi_mkdirs(dir);
    if (status == DS_OK) status = dsi_folder_lock(dir, &locks->dir);
    if (status == DS_OK) status = dsi_folder_finish_exchanges(dir);
    if (status == DS_OK) status = folder_each_name(dir, folder_sweep_entry, &keep_old);
    if (status != DS_OK) return status;
    char *final = dsi_path_in(dir, tag), *saving = dsi_folder_saving(dir, tag);
    if (dsi_file_exists(final) && !folder_is_checkpoint(final))
        status = dsi_fail(
            DS_EINVAL,
            "%s is there already and was not written by this library: choose another tag, or "
            "remove it",
            final);
    else if (mkdir(saving, 0777))
        status = folder_io_error("mkdir", final); /* the name that the user gave */
    else
        dsi_folder_mark_saving(saving, &locks->saving);
    dsi_free(final);
    dsi_free(saving);
    return status;
}

void dsi_folder_abandon(const char *dir, const char *tag)
{
    char *saving = dsi_folder_saving(dir, tag);
    /* the failure to report is the one before */
    (void)nftw(saving, folder_remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    dsi_free(saving);
}

/* Adds the files of rank r, and removes its manifest. */
static ds_status folder_merge_manifest(dsi_manifest *all, const char *saving, int r)
{
    dsi_manifest m;
    char *path = dsi_folder_rank_manifest(saving, r);
    ds_status status = dsi_manifest_read(&m, path);
    for (int i = 0; status == DS_OK && i < m.n; i++)
        dsi_manifest_add(all, m.at[i].name, m.at[i].bytes, m.at[i].crc);
    if (status == DS_OK && unlink(path)) status = folder_io_error("remove", path);
    dsi_manifest_free(&m);
    dsi_free(path);
    return status;
}

ds_status dsi_folder_merge_manifests(const char *dir, const char *tag, dsi_manifest *all)
{
    char *saving = dsi_folder_saving(dir, tag);
    ds_status status = DS_OK;
    for (int r = 1; status == DS_OK && r < all->ranks; r++)
        status = folder_merge_manifest(all, saving, r);
    dsi_free(saving);
    return status;
}

static ds_status folder_write_manifest(const char *saving, const dsi_manifest *all)
{
    char *path = dsi_path_in(saving, DSI_MANIFEST);
    ds_status status = dsi_manifest_write(all, path);
    if (status == DS_OK) status = folder_sync(saving);
    dsi_free(path);
    return status;
}

static ds_status folder_replace_keeping(const char *dir, const char *tag, const char *saving,
                                        const char *final)
{
    char *old = dsi_folder_old(dir, tag);
    ds_status status = folder_put_aside(final, old);
    if (status == DS_OK && (status = folder_rename(saving, final)) != DS_OK)
        (void)rename(old, final);
    if (status == DS_OK) status = folder_sync(dir);
    dsi_free(old);
    return status;
}

/* Replaces a checkpoint of the same tag: in one step where the file system can
 * exchange two names, else by way of .old-TAG. */
static ds_status folder_replace(const char *dir, const char *tag, const char *saving,
                                const char *final)
{
    if (renameat2(AT_FDCWD, saving, AT_FDCWD, final, RENAME_EXCHANGE) == 0)
        return folder_sync(dir) == DS_OK ? folder_remove(saving) : DS_EIO;
    if (errno != EINVAL && errno != ENOSYS) return folder_io_error("rename", saving);
    ds_status status = folder_replace_keeping(dir, tag, saving, final);
    return status == DS_OK ? dsi_folder_end_old(dir, tag) : status;
}

/* A checkpoint is renamed before it is removed, so that it is never visible
 * in part. */
static ds_status folder_remove_checkpoint(const char *dir, const char *name, const char *path)
{
    char *removing = path_with_mark(dir, REMOVING, name);
    ds_status status = folder_rename(path, removing);
    if (status == DS_OK) status = folder_remove(removing);
    dsi_free(removing);
    return status;
}

ds_status dsi_folder_end_old(const char *dir, const char *tag)
{
    char *old = dsi_folder_old(dir, tag);
    ds_status status = DS_OK;
    if (dsi_is_folder(old)) status = folder_remove(old);
    dsi_free(old);
    return status;
}

ds_status dsi_folder_end_all_old(const char *dir)
{
    dsi_folders all = dsi_folder_list(dir, true);
    ds_status status = DS_OK;
    for (int i = 0; i < all.n && status == DS_OK; i++)
        status = dsi_folder_end_old(dir, all.at[i].tag);
    dsi_folders_free(&all);
    return status;
}

ds_status dsi_folder_restore_old(const char *dir, const char *tag)
{
    char *old = dsi_folder_old(dir, tag), *final = dsi_path_in(dir, tag),
         *between = path_with_mark(dir, EXCHANGING, tag);
    ds_status status = DS_OK;
    bool there = dsi_is_folder(old), both = there && dsi_is_folder(final);
    if (there && !both) status = folder_rename(old, final);
    if (both && renameat2(AT_FDCWD, old, AT_FDCWD, final, RENAME_EXCHANGE)) {
        status = folder_rename(final, between);
        if (status == DS_OK) status = dsi_folder_finish_exchanges(dir);
    }
    if (there && status == DS_OK) status = folder_sync(dir);
    dsi_free(old);
    dsi_free(final);
    dsi_free(between);
    return status;
}

/* Whether DIR/TAG is the checkpoint of m: another job that loads may have made it. */
static bool folder_is_of(const char *final, const dsi_manifest *m)
{
    dsi_manifest has = {0};
    char *path = dsi_path_in(final, DSI_MANIFEST);
    int before = dsi_error_count();
    bool is = dsi_manifest_read(&has, path) == DS_OK && has.serial == m->serial &&
              has.sum == m->sum;
    dsi_error_forget(before);
    dsi_manifest_free(&has);
    dsi_free(path);
    return is;
}

ds_status dsi_folder_make(const char *dir, const char *tag, const dsi_manifest *m)
{
    char *loading = path_with_mark(dir, LOADING, tag), *final = dsi_path_in(dir, tag);
    char *made = dsi_temporary_name(loading), *old = dsi_folder_old(dir, tag);
    ds_status status = DS_OK;
    if (dsi_file_exists(final) && !folder_is_checkpoint(final))
        status = dsi_fail(DS_EINVAL, "%s is there and was not written by this library: remove it",
                          final);
    if (status == DS_OK) status = dsi_mkdirs(made);
    if (status == DS_OK) status = folder_write_manifest(made, m);
    if (status == DS_OK && dsi_is_folder(final) && !folder_is_of(final, m))
        status = folder_put_aside(final, old);
    if (status == DS_OK && rename(made, final) && !folder_is_of(final, m))
        status = folder_io_error("rename", made);
    if (status == DS_OK) status = folder_sync(dir);
    int before = dsi_error_count();
    if (dsi_is_folder(made) && folder_remove(made) != DS_OK) dsi_error_forget(before);
    dsi_free(loading);
    dsi_free(made);
    dsi_free(old);
    dsi_free(final);
    return status;
}

/* The name changes after the manifest and the folder are on the disk. */
ds_status dsi_folder_publish(const char *dir, const char *tag, const dsi_manifest *all,
                             bool keep_old)
{
    char *saving = dsi_folder_saving(dir, tag), *final = dsi_path_in(dir, tag);
    ds_status status = folder_write_manifest(saving, all);
    if (status == DS_OK && dsi_is_folder(final))
        status = keep_old ? folder_replace_keeping(dir, tag, saving, final)
                          : folder_replace(dir, tag, saving, final);
    else if (status == DS_OK && (status = folder_rename(saving, final)) == DS_OK)
        status = folder_sync(dir);
    dsi_free(saving);
    dsi_free(final);
    return status;
}

ds_status dsi_folder_publish_universal(const char *dir, const char *tag)
{
    char *saving = dsi_folder_saving(dir, tag), *final = dsi_path_in(dir, tag);
    ds_status status = folder_sync(saving);
    if (status == DS_OK) status = folder_rename(saving, final);
    if (status == DS_OK) status = folder_sync(dir);
    if (status == DS_OK) status = dsi_folder_set_latest(dir, DSI_LATEST_UNIVERSAL, tag);
    dsi_free(saving);
    dsi_free(final);
    return status;
}

ds_status dsi_folder_set_latest(const char *dir, const char *which, const char *tag)
{
    char *path = dsi_path_in(dir, which);
    dsi_file *f = dsi_file_replace(path);
    dsi_file_write(f, tag, strlen(tag));
    ds_status status = dsi_file_commit(f);
    dsi_free(path);
    return status;
}

int64_t dsi_folder_oldest_to_keep(const dsi_folders *before, int64_t keep, const char *tag)
{
    int64_t kept = 1; /* tag */
    if (keep == kept) return INT64_MAX;
    for (int i = 0; i < before->n; i++)
        if (strcmp(before->at[i].tag, tag) && ++kept == keep) return before->at[i].serial;
    return 0;
}

ds_status dsi_folder_prune(const char *dir, int64_t oldest, const char *tag,
                           const dsi_folders *before)
{
    int errors = dsi_error_count();
    char *latest = dsi_folder_latest(dir, DSI_LATEST);
    ds_status status = DS_OK;
    dsi_error_forget(errors);
    for (int i = 0; status == DS_OK && i < before->n; i++) {
        const char *name = before->at[i].tag;
        bool stays = before->at[i].serial >= oldest || !strcmp(name, tag) ||
                     (latest && !strcmp(name, latest));
        char *path = stays ? NULL : dsi_path_in(dir, name);
        if (path) status = folder_remove_checkpoint(dir, name, path);
        dsi_free(path);
    }
    dsi_free(latest);
    return status;
}
