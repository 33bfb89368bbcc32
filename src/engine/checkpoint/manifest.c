/* engine/checkpoint/manifest.c: the list of a checkpoint's files: written,
 * read, compared with the files.
 * SPDX-License-Identifier: MIT */
#include "manifest.h"

#include "base/crc.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mapping.h"
#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEAD        "deepspeed.c checkpoint 1\n"
#define MOST_FILES  (1 << 20)
#define MOST_NUMBER ((int64_t)1 << 60)

void dsi_manifest_add(dsi_manifest *m, const char *name, int64_t bytes, uint32_t crc)
{
    dsi_list_add(m, (dsi_manifest_file){dsi_strdup(name), bytes, crc});
}

void dsi_manifest_free(dsi_manifest *m)
{
    for (int i = 0; i < m->n; i++) dsi_free(m->at[i].name);
    dsi_list_free(m);
    *m = (dsi_manifest){0};
}

/* The last line has the check sum of all lines before it. */
dsi_text dsi_manifest_text(const dsi_manifest *m)
{
    dsi_text t = dsi_text_of(HEAD "serial %lld\nranks %lld\nstep %lld\n", (long long)m->serial,
                             (long long)m->ranks, (long long)m->step);
    for (int i = 0; i < m->n; i++)
        dsi_text_add(&t, "file %08x %lld %s\n", m->at[i].crc, (long long)m->at[i].bytes,
                     m->at[i].name);
    dsi_text_add(&t, "end %08x\n", dsi_crc32(0, t.s, t.n));
    return t;
}

static void manifest_write(const dsi_manifest *m, dsi_file *f)
{
    dsi_text t = dsi_manifest_text(m);
    dsi_file_write(f, t.s, t.n);
    dsi_text_free(&t);
}

ds_status dsi_manifest_write(const dsi_manifest *m, const char *path)
{
    dsi_file *f = dsi_file_create(path);
    manifest_write(m, f);
    return dsi_file_commit(f);
}

ds_status dsi_manifest_pass_on(const dsi_manifest *m, const char *path)
{
    dsi_file *f = dsi_file_replace(path);
    manifest_write(m, f);
    return dsi_file_commit_unsynced(f);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

typedef struct Reader {
    const char *p, *end, *begin;
} Reader;

/* Skips the word if the text continues with it. */
static bool manifest_read_word(Reader *r, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(r->end - r->p) < n || memcmp(r->p, text, n) != 0) return false;
    r->p += n;
    return true;
}

/* Decimal digits and the byte `after`; at most about MOST_NUMBER. */
static bool manifest_read_number(Reader *r, char after, int64_t *x)
{
    const char *from = r->p;
    for (*x = 0; r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
        if (*x > MOST_NUMBER / 10) return false;
        *x = *x * 10 + (*r->p - '0');
    }
    return r->p > from && r->p < r->end && *r->p++ == after;
}

static bool manifest_read_crc(Reader *r, char after, uint32_t *x)
{
    *x = 0;
    if (r->end - r->p < 9) return false;
    for (int i = 0; i < 8; i++, r->p++) {
        char c = *r->p;
        bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
        if (!digit && !letter) return false;
        *x = *x << 4 | (uint32_t)(digit ? c - '0' : c - 'a' + 10);
    }
    return *r->p++ == after;
}

/* A name within the folder: no slash, no dot in front, no blank. */
static bool file_name(Reader *r, char *to, size_t room)
{
    size_t n = 0;
    for (; r->p < r->end && *r->p != '\n'; r->p++) {
        char c = *r->p;
        bool good = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    c == '_' || c == '-' || (c == '.' && n > 0);
        if (!good || n + 1 >= room) return false;
        to[n++] = c;
    }
    to[n] = 0;
    return n > 0 && r->p++ < r->end;
}

/* Lines of files. file_name accepts no path: a manifest cannot name files
 * outside its folder. */
static bool manifest_read_files(Reader *r, dsi_manifest *m)
{
    char name[256];
    int64_t bytes;
    uint32_t crc;
    while (manifest_read_word(r, "file ")) {
        if (m->n == MOST_FILES || !manifest_read_crc(r, ' ', &crc) ||
            !manifest_read_number(r, ' ', &bytes) || !file_name(r, name, sizeof name))
            return false;
        dsi_manifest_add(m, name, bytes, crc);
    }
    return true;
}

static bool manifest_read_all(Reader *r, dsi_manifest *m)
{
    if (!manifest_read_word(r, HEAD)) return false;
    if (!manifest_read_word(r, "serial ") || !manifest_read_number(r, '\n', &m->serial))
        return false;
    if (!manifest_read_word(r, "ranks ") || !manifest_read_number(r, '\n', &m->ranks)) return false;
    if (!manifest_read_word(r, "step ") || !manifest_read_number(r, '\n', &m->step)) return false;
    if (!manifest_read_files(r, m)) return false;
    size_t n = (size_t)(r->p - r->begin);
    return manifest_read_word(r, "end ") && manifest_read_crc(r, '\n', &m->sum) && r->p == r->end &&
           m->sum == dsi_crc32(0, r->begin, n);
}

ds_status dsi_manifest_parse(dsi_manifest *m, const char *text, size_t n, const char *name)
{
    Reader r = {text, text + n, text};
    *m = (dsi_manifest){0};
    if (manifest_read_all(&r, m)) return DS_OK;
    dsi_manifest_free(m);
    return dsi_fail(DS_EFORMAT, "%s is damaged: at byte %lld it is no list of a checkpoint's files",
                    name, (long long)(r.p - r.begin));
}

ds_status dsi_manifest_read(dsi_manifest *m, const char *path)
{
    size_t n;
    *m = (dsi_manifest){0};
    char *text = dsi_file_read_regular(path, &n);
    ds_status status = text ? dsi_manifest_parse(m, text, n, path) : DS_EIO;
    dsi_free(text);
    return status;
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

/* Compares the size, then the CRC-32 of the whole file. */
static ds_status manifest_verify_open(const dsi_mapping *m, int fd, const char *path,
                                      const dsi_manifest_file *f)
{
    uint32_t crc;
    if ((int64_t)m->bytes != f->bytes)
        return dsi_fail(DS_EFORMAT, "%s has %lld bytes: %lld were written", path,
                        (long long)m->bytes, (long long)f->bytes);
    if (!dsi_mapping_sum(m, fd, 0, m->bytes, true, &crc))
        return dsi_fail(DS_EIO, "read %s: %s", path, errno ? strerror(errno) : "it became shorter");
    if (crc == f->crc) return DS_OK;
    return dsi_fail(DS_EFORMAT,
                    "%s is damaged: its check sum is %08x, that of what was written %08x", path,
                    crc, f->crc);
}

ds_status dsi_manifest_verify_file(const dsi_manifest_file *f, const char *folder)
{
    dsi_text path = {0};
    int fd;
    dsi_text_add(&path, "%s/%s", folder, f->name);
    dsi_mapping *m = dsi_mapping_open("read", path.s, &fd);
    ds_status status = m ? manifest_verify_open(m, fd, path.s, f) : ds_error_status();
    if (m) close(fd);
    dsi_mapping_unref(m);
    dsi_text_free(&path);
    return status;
}

int dsi_manifest_verifier(const char *name, int i, int ranks)
{
    const char *at = strstr(name, "pp_rank_"); /* zero_pp_rank_R_..., expp_rank_R_... */
    long rank = at                          ? strtol(at + 8, NULL, 10)
                : strncmp(name, "rank_", 5) ? i
                                            : strtol(name + 5, NULL, 10);
    return rank < 0 ? 0 : (int)(rank % ranks);
}

ds_status dsi_manifest_verify(const dsi_manifest *m, const char *folder, int rank, int ranks)
{
    for (int i = 0; i < m->n; i++)
        if (dsi_manifest_verifier(m->at[i].name, i, ranks) == rank &&
            dsi_manifest_verify_file(&m->at[i], folder) != DS_OK)
            return ds_error_status();
    return DS_OK;
}
