/* data/cifar10_obtain.c: CIFAR-10 for a folder that has none: from the network
 * or from the built-in sample.
 *
 * The steps, under a lock file in the folder: unpack the archive to
 * folder/.cifar-10-unpacked/cifar-10-batches-bin, check that folder as
 * ds_cifar10 checks every folder, rename it to folder/cifar-10-batches-bin.
 *
 * Invariants: the final name exists only as a whole, checked folder, whenever
 * the process is killed. A second process waits for the lock, and then finds
 * the folder. dsi_cifar10_download and dsi_cifar10_sample block.
 * SPDX-License-Identifier: MIT */
#include "cifar10_obtain.h"
#include "cifar10.h"
#include "extract.h"
#include "lock.h"

#include "base/error.h"
#include "base/file.h"
#include "base/library.h"
#include "base/mem.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define MD5           "c32a1d4ab5d03f1284b67883e8d87530"
#define ARCHIVE       "cifar-10-binary.tar.gz"
#define SAMPLE        "cifar10-sample.tar.xz"
#define SAMPLE_FOLDER "cifar-10-sample"
#define IDLE_S        600 /* seconds after which another process that writes nothing has stopped */

/* An empty variable counts as not set. */
const char *dsi_cifar10_url(const char *url)
{
    if (!url || !*url) url = getenv("DS_CIFAR10_URL");
    return url && *url ? url : DSI_CIFAR10_HOME;
}

/* Puts the md5 that the archive must have into *md5, NULL for any: that of the
 * home page's archive, or $DS_CIFAR10_MD5. */
static ds_status expected_md5(const char **md5)
{
    const char *s = getenv("DS_CIFAR10_MD5");
    *md5 = s && *s ? s : MD5;
    if (!strcasecmp(*md5, "any")) {
        *md5 = NULL;
        return DS_OK;
    }
    size_t n = 0;
    while (isxdigit((unsigned char)(*md5)[n])) n++;
    return n == 32 && !(*md5)[n]
               ? DS_OK
               : dsi_fail(DS_EINVAL,
                          "cifar10: DS_CIFAR10_MD5 is \"%s\", expected 32 hex digits or any", *md5);
}

/* ---- unpacking ---------------------------------------------------------------------------------------- */

/* Checks that both splits can be opened: sizes, structure and labels. */
static ds_status check_splits(const char *folder)
{
    dsi_cifar10 c;
    for (int split = DS_TRAIN; split <= DS_TEST; split++) {
        ds_status status = dsi_cifar10_open(&c, folder, DSI_CIFAR10_BIN, (ds_split)split);
        if (status != DS_OK) return status;
        dsi_cifar10_close(&c);
    }
    return DS_OK;
}

/* Unpacks archive to folder/cifar-10-batches-bin, which appears whole and
 * checked or not at all. The caller holds the lock. */
static ds_status archive_unpack(const char *archive, const char *folder)
{
    const char *name = dsi_cifar10_folder(DSI_CIFAR10_BIN);
    char *room = dsi_cifar10_path(folder, ".cifar-10-unpacked");
    char *from = dsi_cifar10_path(room, name), *to = dsi_cifar10_path(folder, name);

    dsi_remove_tree(room); /* of a process that was killed here */
    ds_status status = dsi_mkdirs(room);
    if (status == DS_OK) status = dsi_extract(archive, room, name);
    if (status == DS_OK && check_splits(room) != DS_OK) {
        status = ds_error_status(); /* its message names files that are removed now */
        dsi_fail(status, "cifar10: %s is not CIFAR-10: %s", archive, dsi_error_latest());
    }
    if (status == DS_OK && rename(from, to) != 0)
        status = dsi_fail(DS_EIO, "cifar10: %s: %s", to, strerror(errno));
    dsi_remove_tree(room);
    dsi_free(room);
    dsi_free(from);
    dsi_free(to);
    return status;
}

/* Makes the folder and takes its lock; blocks while another process has it. */
static ds_status cifar10_lock_folder(dsi_lock *lock, const char *folder, bool quiet)
{
    char *path = dsi_cifar10_path(folder, ".cifar-10.lock");
    dsi_text waiting = dsi_text_of("Another process is putting CIFAR-10 into %s: waiting for it",
                                   folder);
    ds_status status = dsi_mkdirs(folder);
    if (status == DS_OK) status = dsi_lock_take(lock, path, quiet ? NULL : waiting.s, IDLE_S);
    dsi_free(path);
    dsi_text_free(&waiting);
    return status;
}

/* ---- from the network ---------------------------------------------------------------------------------- */

/* torchvision's lines "Downloading ... to ..." and "Extracting ... to ...". */
static void print_progress_line(bool quiet, const char *what, const char *from, const char *to)
{
    if (quiet) return;
    printf("%s %s to %s\n", what, from, to);
    fflush(stdout);
}

/* Downloads the archive to path unless a file with the right md5 is there. */
static dsi_fetched archive_download_unless_there(const char *path, const char *url, const char *md5,
                                                 bool quiet)
{
    char hex[33];
    bool right = dsi_file_exists(path);
    if (dsi_is_no_file(path)) {
        dsi_fail(DS_EIO, "cifar10: %s is not a regular file: remove it to have it fetched", path);
        return DSI_FETCH_LOCAL;
    }
    if (right && md5) {
        if (dsi_md5(path, hex) != DS_OK) return DSI_FETCH_LOCAL;
        right = !strcasecmp(hex, md5);
        if (!right && !quiet)
            printf("%s has the md5 %s, expected %s: it is damaged, or another file\n", path, hex,
                   md5);
    }
    if (right) return DSI_FETCHED;
    if (!strstr(url, "://")) {
        dsi_fail(DS_EINVAL,
                 "cifar10: the address \"%s\" does not begin with https://, http:// or file://",
                 url);
        return DSI_FETCH_LOCAL;
    }
    print_progress_line(quiet, "Downloading", url, path);
    return dsi_fetch(url, path, md5, quiet);
}

/* The folder is searched again under the lock: another process may have filled
 * it. */
dsi_fetched dsi_cifar10_download(const char *folder, const char *url, bool quiet)
{
    dsi_cifar10_layout layout;
    dsi_lock lock;
    const char *md5;
    if (expected_md5(&md5) != DS_OK) return DSI_FETCH_LOCAL;
    if (cifar10_lock_folder(&lock, folder, quiet) != DS_OK) return DSI_FETCH_LOCAL;

    dsi_fetched got = DSI_FETCH_LOCAL;
    char *path = dsi_cifar10_path(folder, ARCHIVE);
    if (dsi_cifar10_find(folder, &layout) == DS_OK) {
        got = DSI_FETCHED;
        if (layout == DSI_CIFAR10_NONE) {
            got = archive_download_unless_there(path, dsi_cifar10_url(url), md5, quiet);
            if (got == DSI_FETCHED) {
                print_progress_line(quiet, "Extracting", path, folder);
                if (archive_unpack(path, folder) != DS_OK) got = DSI_FETCH_LOCAL;
            }
        }
    }
    dsi_free(path);
    dsi_lock_drop(&lock);
    return got;
}

/* ---- from the sample ------------------------------------------------------------------------------------ */

/* Returns the path of `name`, for dsi_free: near this library or program, whose
 * tree may have been moved after the installation; in the build folder's link
 * to the source tree; where it was to be installed. NULL, without a message, if
 * it is in none. */
static char *sample_find_installed(const char *name)
{
    static const struct {
        bool near;
        const char *folder;
    } places[] = {{true, ""},
                  {true, "/assets"},
                  {true, "/../share/deepspeed"},
                  {true, "/../../share/deepspeed"},
                  {false, DSI_DATA_DIR}};
    char *own = dsi_own_folder();
    dsi_text path = {0};
    for (size_t k = 0; k < sizeof places / sizeof *places && !path.s; k++) {
        dsi_text_add(&path, "%s%s/%s", places[k].near && own ? own : "", places[k].folder, name);
        if (!dsi_file_exists(path.s)) dsi_text_free(&path);
    }
    free(own);
    return path.s;
}

/* Returns the path of the sample's archive, for dsi_free: $DS_CIFAR10_SAMPLE,
 * or where it was installed. NULL with the message. */
static char *sample_find_archive(void)
{
    const char *told = getenv("DS_CIFAR10_SAMPLE");
    if (told && *told)
        return dsi_file_exists(told) && !dsi_is_no_file(told)
                   ? dsi_strdup(told)
                   : dsi_refuse("cifar10: DS_CIFAR10_SAMPLE names %s, which is no file", told);
    char *path = sample_find_installed(SAMPLE);
    return path ? path
                : dsi_refuse("cifar10: the built-in sample is not installed: install the package "
                             "deepspeed-sample, or set DS_CIFAR10_SAMPLE to where " SAMPLE " is");
}

/* Unpacks the sample's archive into home, unless another process has done that
 * while this one waited for the lock. */
static ds_status sample_unpack(const char *home, bool quiet)
{
    dsi_cifar10_layout layout;
    dsi_lock lock;
    char *archive = sample_find_archive();
    ds_status status = archive ? cifar10_lock_folder(&lock, home, quiet) : DS_EINVAL;
    if (status == DS_OK) {
        status = dsi_cifar10_find(home, &layout);
        if (status == DS_OK && layout == DSI_CIFAR10_NONE) status = archive_unpack(archive, home);
        dsi_lock_drop(&lock);
    }
    dsi_free(archive);
    return status;
}

/* $DS_CIFAR10_SAMPLE names an archive; without it an unpacked sample is
 * preferred. */
char *dsi_cifar10_sample(const char *folder, bool quiet)
{
    dsi_cifar10_layout layout;
    char *home = dsi_cifar10_path(folder, SAMPLE_FOLDER);
    ds_status status = dsi_cifar10_find(home, &layout);
    if (status == DS_OK && layout == DSI_CIFAR10_NONE) {
        const char *told = getenv("DS_CIFAR10_SAMPLE");
        char *ready = told && *told ? NULL : sample_find_installed(SAMPLE_FOLDER);
        if (ready) {
            dsi_free(home);
            return ready;
        }
        status = sample_unpack(home, quiet);
    }
    if (status == DS_OK) return home;
    dsi_free(home);
    return NULL;
}
