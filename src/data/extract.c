/* data/extract.c: unpacks an archive. libarchive, which is opened only here,
 * reads it; the files are written by this code.
 *
 * An archive that is not trusted may name any path. CIFAR-10 is one folder of a
 * few plain files: every entry that is something else is refused, so no path
 * has to be resolved and no link followed.
 * SPDX-License-Identifier: MIT */
#include "extract.h"

#include "base/error.h"
#include "base/library.h"
#include "base/mem.h"
#include "base/text.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 32
#define MAX_BYTES ((int64_t)32 << 20)
#define CHUNK     65536

/* The functions of libarchive that are used; each is archive_NAME. */
#define FUNCTIONS(X) \
    X(read_new) \
    X(read_support_filter_gzip) \
    X(read_support_filter_xz) \
    X(read_support_filter_zstd) \
    X(read_support_format_tar) \
    X(read_open_filename) \
    X(read_next_header) \
    X(read_data) \
    X(read_free) \
    X(error_string) \
    X(entry_pathname) \
    X(entry_hardlink) \
    X(entry_symlink) \
    X(entry_filetype) \
    X(entry_size)
#define MEMBER(name) __typeof__(&archive_##name) name;
#define NAME(name)   "archive_" #name,

typedef struct unpacker {
    struct {
        FUNCTIONS(MEMBER)
    } lib;
    struct archive *a;
    const char *path; /* of the archive */
} unpacker;

/* Opens libarchive; false with a message that names its package. */
static bool libarchive_open(unpacker *u)
{
    static const char *const names[] = {FUNCTIONS(NAME)};
    static const char *const sonames[] = {"libarchive.so.13", "libarchive.so", NULL};
    return dsi_library_open("extract", sonames, "libarchive13", names,
                            sizeof names / sizeof names[0], &u->lib);
}

/* Returns the file's name if path is a file directly inside folder `name`, ""
 * if it is that folder or ".", NULL if it is any other path. */
static const char *path_leaf(const char *path, const char *name)
{
    size_t n = strlen(name);
    while (path[0] == '.' && path[1] == '/') path += 2;
    if (!*path || !strcmp(path, ".")) return "";
    if (strncmp(path, name, n) || (path[n] && path[n] != '/')) return NULL;
    const char *leaf = path[n] ? path + n + 1 : "";
    return strchr(leaf, '/') || !strcmp(leaf, ".") || !strcmp(leaf, "..") ? NULL : leaf;
}

/* Checks that the entry is a plain file of folder `name`, or that folder, and
 * not too large. Puts the file's name, or "" for the folder, into *leaf. */
static ds_status check_entry_path(const unpacker *u, struct archive_entry *e, const char *name,
                                  const char **leaf)
{
    const char *archive = u->path;
    const char *path = u->lib.entry_pathname(e);
    *leaf = path ? path_leaf(path, name) : NULL;
    if (!*leaf)
        return dsi_fail(DS_EFORMAT, "extract: %s holds \"%s\", expected nothing but files in %s",
                        archive, path ? path : "?", name);
    bool link = u->lib.entry_hardlink(e) || u->lib.entry_symlink(e);
    mode_t kind = u->lib.entry_filetype(e);
    if (link || kind != (**leaf ? AE_IFREG : AE_IFDIR))
        return dsi_fail(DS_EFORMAT, "extract: %s: \"%s\" is a %s, expected a plain file", archive,
                        path,
                        link               ? "link"
                        : kind == AE_IFDIR ? "folder"
                        : kind == AE_IFREG ? "file in the folder's place"
                                           : "device or pipe");
    if (u->lib.entry_size(e) > MAX_BYTES)
        return dsi_fail(DS_EFORMAT, "extract: %s: \"%s\" has %lld bytes, expected at most %lld",
                        archive, path, (long long)u->lib.entry_size(e), (long long)MAX_BYTES);
    return DS_OK;
}

static ds_status archive_read_failed(const unpacker *u)
{
    const char *why = u->lib.error_string(u->a);
    return dsi_fail(DS_EFORMAT,
                    "extract: %s cannot be unpacked: %s; remove it to have it fetched again",
                    u->path, why ? why : "damaged");
}

/* Writes the data of the current entry to path, which must not exist. The file
 * is not synced, which takes seconds on a busy disk: dsi_cifar10_open checks
 * the files' sizes, and the archive is still there. */
static ds_status archive_write_file(const unpacker *u, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) return dsi_fail(DS_EIO, "extract: %s: %s", path, strerror(errno));

    char *chunk = dsi_alloc(CHUNK);
    ds_status status = DS_OK;
    la_ssize_t n = 0;
    while (status == DS_OK && (n = u->lib.read_data(u->a, chunk, CHUNK)) > 0)
        for (la_ssize_t done = 0, k; done < n && status == DS_OK; done += k) {
            k = write(fd, chunk + done, (size_t)(n - done));
            if (k < 0 && errno != EINTR)
                status = dsi_fail(DS_EIO, "extract: %s: %s", path, strerror(errno));
            if (k < 0) k = 0;
        }
    if (n < 0) status = archive_read_failed(u);
    if (close(fd) != 0 && status == DS_OK)
        status = dsi_fail(DS_EIO, "extract: %s: %s", path, strerror(errno));
    dsi_free(chunk);
    return status;
}

/* Writes the entry to into/name, made if needed, and counts it in *files. */
static ds_status extract_entry(const unpacker *u, struct archive_entry *e, const char *into,
                               const char *name, int *files)
{
    const char *leaf;
    ds_status status = check_entry_path(u, e, name, &leaf);
    if (status != DS_OK || !*leaf) return status;
    if (++*files > MAX_FILES)
        return dsi_fail(DS_EFORMAT, "extract: %s holds more than %d files", u->path, MAX_FILES);

    dsi_text path = dsi_text_of("%s/%s", into, name);
    if (mkdir(path.s, 0777) != 0 && errno != EEXIST)
        status = dsi_fail(DS_EIO, "extract: %s: %s", path.s, strerror(errno));
    dsi_text_add(&path, "/%s", leaf);
    if (status == DS_OK) status = archive_write_file(u, path.s);
    dsi_text_free(&path);
    return status;
}

/* Unpacks all entries of the open archive; fails if it has no file. */
static ds_status extract_all(const unpacker *u, const char *into, const char *name)
{
    ds_status status = DS_OK;
    struct archive_entry *e;
    int files = 0, got;
    while (status == DS_OK && (got = u->lib.read_next_header(u->a, &e)) != ARCHIVE_EOF)
        status = got < ARCHIVE_WARN ? archive_read_failed(u)
                                    : extract_entry(u, e, into, name, &files);
    if (status == DS_OK && !files)
        status = dsi_fail(DS_EFORMAT, "extract: %s holds no %s", u->path, name);
    return status;
}

/* Filters recognise the compression by its first bytes, not by the file's
 * name. */
ds_status dsi_extract(const char *archive, const char *into, const char *name)
{
    unpacker u = {.path = archive};
    if (!libarchive_open(&u)) return DS_EIO;
    struct archive *a = u.a = u.lib.read_new();
    if (!a) return dsi_fail(DS_ENOMEM, "extract: no memory to unpack %s", archive);
    u.lib.read_support_filter_gzip(a);
    u.lib.read_support_filter_xz(a);
    u.lib.read_support_filter_zstd(a);
    u.lib.read_support_format_tar(a);
    ds_status status = u.lib.read_open_filename(a, archive, CHUNK) == ARCHIVE_OK
                           ? extract_all(&u, into, name)
                           : archive_read_failed(&u);
    u.lib.read_free(a);
    return status;
}

/* For nftw: removes a file or an empty folder. Another process may be
 * faster. */
static int remove_file(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path) && errno != ENOENT ? -1 : 0;
}

void dsi_remove_tree(const char *path) { nftw(path, remove_file, 16, FTW_DEPTH | FTW_PHYS); }
