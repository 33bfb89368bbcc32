/* data/fetch.c: downloads by libcurl that continue after a broken connection.
 *
 * Bytes go to path.part. When the connection breaks, the next attempt, in this
 * run or a later one, asks for the rest ("Range: bytes=n-") under the condition
 * that the file is still the same one ("If-Range:" with the ETag or date of the
 * first answer, which path.part.from keeps beside the url). The status of the
 * answer decides: 206 appends, 200 starts from the first byte. Attempts
 * continue while they bring bytes; three in a row without a byte are a failure.
 * At the end the md5 is compared. If it is wrong after a resumed download, the
 * file is downloaded once more from its first byte.
 *
 * Invariants: one thread runs a transfer, and the caller holds the lock of its
 * folder. part holds the first `have` bytes of the file at url, provided that
 * the server still has the version that `mark` identifies; the file `from`
 * holds url and mark. path exists only as a whole file with the right md5.
 * dsi_fetch blocks until then, or until it fails.
 * Source: RFC 9110, 13.1.5 (If-Range) and 14 (ranges).
 * SPDX-License-Identifier: MIT */
#include "fetch.h"
#include "curl.h"
#include "progress.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define CONNECT_S  20L   /* to reach the server */
#define STALL_S    30L   /* at less than STALL_RATE */
#define STALL_RATE 1000L /* bytes a second */
#define IN_VAIN    3     /* attempts in a row without a byte more */
#define ATTEMPTS   20
#define FIRST_WAIT 0.25 /* seconds before another attempt in vain; doubles */
#define MAX_MARK   256
#define MOST_BYTES ((int64_t)4 << 30) /* of a file: a server may send without an end */

typedef struct transfer {
    const char *url;
    char *part, *from; /* path.part and path.part.from */
    bool quiet;
    const dsi_curl *lib;
    CURL *curl;
    int fd;
    int64_t have;         /* bytes of part */
    int64_t total;        /* of the file; 0: not known */
    bool resumed;         /* part holds bytes of several answers */
    char mark[MAX_MARK];  /* ETag or Last-Modified of what part holds, or "" */
    char fresh[MAX_MARK]; /* that of the answer that is coming in */
    int64_t range_at;     /* where the answer begins, by its Content-Range; -1: no such header */
    bool begun;           /* the body of the answer has been looked at */
    int disk_errno;       /* why writing stopped */
    bool odd_range;       /* the answer holds other bytes than were asked for */
    bool endless;         /* the file has more than MOST_BYTES */
    dsi_progress bar;
    char why[CURL_ERROR_SIZE];
} transfer;

/* ---- what part holds -------------------------------------------------------------------------------- */

/* path.part.from: the url on one line, the mark on the next. */
static void part_save_mark(const transfer *t)
{
    FILE *f = fopen(t->from, "we");
    if (!f) return; /* then the next run begins again */
    fprintf(f, "%s\n%s\n", t->url, t->mark);
    fclose(f);
}

/* Decides whether the download continues after the bytes in part: only if they
 * are of the same url and a mark or the md5 can detect another version.
 * Otherwise have is 0, and the first answer empties part. */
static void part_resume(transfer *t, bool has_md5)
{
    char mark[MAX_MARK + 1] = "", *url = NULL;
    size_t room = 0;
    FILE *f = fopen(t->from, "re");
    bool same = f && getline(&url, &room, f) > 0;
    if (same) {
        url[strcspn(url, "\n")] = 0;
        same = !strcmp(url, t->url) && fgets(mark, sizeof mark, f);
        mark[strcspn(mark, "\n")] = 0;
    }
    if (f) fclose(f);
    free(url);

    struct stat st;
    t->have = same && (*mark || has_md5) && fstat(t->fd, &st) == 0 ? st.st_size : 0;
    snprintf(t->mark, sizeof t->mark, "%.*s", MAX_MARK - 1, t->have ? mark : "");
    t->resumed = t->have > 0;
}

/* Empties part; false, with disk_errno set, if that fails. */
static bool part_restart(transfer *t)
{
    t->have = 0;
    t->resumed = false;
    t->mark[0] = 0;
    if (ftruncate(t->fd, 0) == 0) return true;
    t->disk_errno = errno;
    return false;
}

/* ---- one answer -------------------------------------------------------------------------------------- */

/* If the line of n bytes is the header `name` ("etag:"), copies its value
 * without white space, for MAX_MARK bytes at most, and returns true. */
static bool header_is(const char *line, size_t n, const char *name, char *value)
{
    size_t k = strlen(name);
    if (n <= k || strncasecmp(line, name, k)) return false;
    while (k < n && (line[k] == ' ' || line[k] == '\t')) k++;
    while (n > k && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' ')) n--;
    if (n - k >= MAX_MARK) return false;
    memcpy(value, line + k, n - k);
    value[n - k] = 0;
    return true;
}

/* libcurl calls it with each line of an answer's header. */
static size_t on_header(char *line, size_t one, size_t n, void *arg)
{
    transfer *t = arg;
    char value[MAX_MARK];
    n *= one;
    if (n > 5 && !strncmp(line, "HTTP/", 5)) { /* of a redirect, or the one that counts */
        t->fresh[0] = 0;
        t->range_at = -1;
    } else if (header_is(line, n, "etag:", value)) {
        if (value[0] == '"')
            memcpy(t->fresh, value, sizeof value); /* a weak one (W/) is no good here */
    } else if (header_is(line, n, "last-modified:", value)) {
        if (!*t->fresh) memcpy(t->fresh, value, sizeof value);
    } else if (header_is(line, n, "content-range:", value)) {
        long long at;
        t->range_at = sscanf(value, "bytes %lld-", &at) == 1 ? at : -1;
    }
    return n;
}

/* Prepares part for the answer's body: the rest of the file is appended, the
 * whole file replaces part. False, which ends the attempt, if the answer is
 * neither, or if part cannot be emptied. */
static bool body_start(transfer *t)
{
    long code = 0;
    curl_off_t length = -1;
    t->lib->easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    t->lib->easy_getinfo(t->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    t->begun = true;
    if (code == 206 && t->have > 0 && t->range_at == t->have) {
        t->resumed = true;
    } else if (code == 206) {
        t->odd_range = true;
        return false;
    } else {
        if (!part_restart(t)) return false;
        memcpy(t->mark, t->fresh, sizeof t->mark);
        part_save_mark(t);
    }
    t->total = length > 0 ? t->have + length : 0;
    t->endless = t->total > MOST_BYTES;
    if (t->endless) return false;
    dsi_progress_begin(&t->bar, t->have, t->quiet);
    return true;
}

/* libcurl calls it with each chunk of the body. A result that is not n ends the
 * attempt. */
static size_t on_body(char *data, size_t one, size_t n, void *arg)
{
    transfer *t = arg;
    n *= one;
    if (!t->begun && !body_start(t)) return 0;
    t->endless = (int64_t)n > MOST_BYTES - t->have;
    if (t->endless) return 0;
    for (size_t done = 0; done < n;) {
        ssize_t k = pwrite(t->fd, data + done, n - done, (off_t)t->have);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            t->disk_errno = k ? errno : ENOSPC;
            return 0;
        }
        done += (size_t)k;
        t->have += k;
    }
    dsi_progress_show(&t->bar, t->have, t->total);
    return n;
}

/* Opens libcurl and sets the options that all attempts have in common; false
 * with the message. */
static bool open_curl(transfer *t)
{
    const dsi_curl *lib = t->lib = dsi_curl_open();
    if (!lib) return false;
    CURL *c = t->curl = lib->easy_init();
    if (!c) return dsi_refuse_with(DS_ENOMEM, "download: libcurl cannot be started");
#if LIBCURL_VERSION_NUM >= 0x075500
    lib->easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https,file");
    lib->easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
#else
    lib->easy_setopt(c, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS | CURLPROTO_FILE);
    lib->easy_setopt(c, CURLOPT_REDIR_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
    lib->easy_setopt(c, CURLOPT_URL, t->url);
    lib->easy_setopt(c, CURLOPT_USERAGENT, "deepspeed.c/" DS_VERSION);
    lib->easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    lib->easy_setopt(c, CURLOPT_MAXREDIRS, 10L);
    lib->easy_setopt(c, CURLOPT_FAILONERROR, 1L);
    lib->easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    lib->easy_setopt(c, CURLOPT_CONNECTTIMEOUT, CONNECT_S);
    lib->easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, STALL_RATE);
    lib->easy_setopt(c, CURLOPT_LOW_SPEED_TIME, STALL_S);
    lib->easy_setopt(c, CURLOPT_ERRORBUFFER, t->why);
    lib->easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    lib->easy_setopt(c, CURLOPT_HEADERDATA, t);
    lib->easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    lib->easy_setopt(c, CURLOPT_WRITEDATA, t);
    return true;
}

/* Runs the transfer with SIGPIPE blocked in this thread, and takes a SIGPIPE
 * that it caused off the queue: a write to a closed connection must not end the
 * program. libcurl's own remedy would change the handler of the process. */
static CURLcode perform_quietly(const transfer *t)
{
    sigset_t pipe, was, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &was);
    CURLcode code = t->lib->easy_perform(t->curl);
    while (!sigismember(&pending, SIGPIPE) && sigtimedwait(&pipe, NULL, &(struct timespec){0}) > 0)
        continue;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return code;
}

/* Makes one request for the bytes that part lacks, and appends them. */
static CURLcode transfer_attempt(transfer *t)
{
    struct curl_slist *headers = NULL;
    char range[32], condition[MAX_MARK + 16];
    snprintf(range, sizeof range, "%lld-", (long long)t->have);
    snprintf(condition, sizeof condition, "If-Range: %s", t->mark);
    bool rest = t->have > 0 && strncasecmp(t->url, "file:", 5);
    if (rest && *t->mark) headers = t->lib->slist_append(NULL, condition);
    /* not CURLOPT_RESUME_FROM, which takes an answer with the whole file for a
     * failure */
    t->lib->easy_setopt(t->curl, CURLOPT_RANGE, rest ? range : NULL);
    t->lib->easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers);

    t->begun = t->odd_range = t->endless = false;
    t->fresh[0] = t->why[0] = 0;
    t->range_at = -1;
    CURLcode code = perform_quietly(t);
    dsi_progress_end(&t->bar, t->have, t->total);
    t->lib->easy_setopt(t->curl, CURLOPT_HTTPHEADER, NULL);
    t->lib->slist_free_all(headers);
    if (code == CURLE_OK && !t->begun && !body_start(t))
        code = CURLE_WRITE_ERROR; /* an empty file */
    return code;
}

/* ---- several ----------------------------------------------------------------------------------------- */

/* The HTTP status of the last answer; 0 if none came. */
static long response_code(const transfer *t)
{
    long code = 0;
    t->lib->easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

/* Tells whether another attempt may succeed after this failure. */
static bool transfer_may_retry(const transfer *t, CURLcode code)
{
    switch (code) {
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    case CURLE_OPERATION_TIMEDOUT:
        return t->begun; /* stalled; a server that was never reached is not waited for again */
    case CURLE_HTTP_RETURNED_ERROR:
        return response_code(t) >= 500 || response_code(t) == 429;
    default:
        return false;
    }
}

/* Fails with one line about the last attempt; returns whose failure it is. */
static dsi_fetched transfer_report(const transfer *t, CURLcode code)
{
    const char *why = *t->why ? t->why : t->lib->easy_strerror(code);
    long long have = t->have;
    if (t->disk_errno) {
        dsi_fail(DS_EIO, "download: %s: %s after %lld bytes: make room or choose another folder",
                 t->part, strerror(t->disk_errno), have);
        return DSI_FETCH_LOCAL;
    }
    if (code == CURLE_HTTP_RETURNED_ERROR) {
        dsi_fail(DS_EIO,
                 "download: %s: the server answers %ld, expected 200: is the address right?",
                 t->url, response_code(t));
        return DSI_FETCH_ANSWER;
    }
    if (t->odd_range) {
        dsi_fail(
            DS_EIO,
            "download: %s: the server answers with bytes from %lld on, expected those from %lld",
            t->url, (long long)t->range_at, have);
        return DSI_FETCH_ANSWER;
    }
    if (t->endless) {
        dsi_fail(DS_EIO, "download: %s: the file has more than %lld bytes: is the address right?",
                 t->url, (long long)MOST_BYTES);
        return DSI_FETCH_ANSWER;
    }
    if (code == CURLE_FILE_COULDNT_READ_FILE || code == CURLE_UNSUPPORTED_PROTOCOL ||
        code == CURLE_URL_MALFORMAT || code == CURLE_TOO_MANY_REDIRECTS ||
        code == CURLE_WRITE_ERROR || code == CURLE_PEER_FAILED_VERIFICATION) {
        dsi_fail(DS_EIO, "download: %s: %s", t->url, why);
        return DSI_FETCH_ANSWER;
    }
    if (t->begun && t->total > t->have)
        dsi_fail(DS_EIO,
                 "download: %s breaks off, at last after %lld of %lld bytes: %s; what came is "
                 "kept, and the "
                 "next run continues from there",
                 t->url, have, (long long)t->total, why);
    else
        dsi_fail(DS_EIO, "download: %s: %s", t->url, why);
    return DSI_FETCH_NETWORK;
}

static void transfer_wait(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) continue;
}

/* Brings the whole file into part, in several attempts if connections break.
 * Failures without progress are followed by a pause that doubles. */
static dsi_fetched transfer_all(transfer *t)
{
    int64_t most = t->have;
    CURLcode code = CURLE_OK;
    if (t->have && !t->quiet)
        fprintf(stderr, "Going on with %s at %.1f MB\n", t->part, (double)t->have / 1e6);
    for (int n = 1, in_vain = 0; n <= ATTEMPTS; n++) {
        code = transfer_attempt(t);
        if (code == CURLE_OK) return DSI_FETCHED;
        if (t->disk_errno || (t->endless && part_restart(t))) break;
        if (code == CURLE_HTTP_RETURNED_ERROR && response_code(t) == 416) {
            if (!part_restart(t)) break; /* part is longer than the file: it was another one */
            continue;
        }
        in_vain = t->have > most ? 0 : in_vain + 1;
        if (t->have > most) most = t->have;
        if (!transfer_may_retry(t, code) || in_vain >= IN_VAIN) break;
        if (!t->quiet)
            fprintf(stderr, "The connection broke off at %.1f MB (%s): trying again\n",
                    (double)t->have / 1e6, *t->why ? t->why : t->lib->easy_strerror(code));
        if (in_vain) transfer_wait(FIRST_WAIT * (1 << in_vain));
    }
    return transfer_report(t, code);
}

/* ---- md5, and the download as a whole --------------------------------------------------------------- */

/* Reads in chunks; a read that a signal interrupts is repeated. */
ds_status dsi_md5(const char *path, char hex[33])
{
    enum { CHUNK = 1 << 18 };
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    hex[0] = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? DS_OK : dsi_fail(DS_EIO, "md5: %s: %s", path, strerror(errno));

    void *chunk = dsi_alloc(CHUNK);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_md5(), NULL);
    ssize_t got = 0;
    while (ok && ((got = read(fd, chunk, CHUNK)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) ok = EVP_DigestUpdate(md, chunk, (size_t)got);
    ok = ok && got == 0 && EVP_DigestFinal_ex(md, sum, &n) && n == 16;
    for (unsigned i = 0; ok && i < n; i++) snprintf(hex + 2 * i, 3, "%02x", sum[i]);
    ds_status status = ok ? DS_OK
                          : dsi_fail(DS_EIO, "md5: %s: %s", path,
                                     got < 0 ? strerror(errno) : "libcrypto has no md5");
    EVP_MD_CTX_free(md);
    dsi_free(chunk);
    close(fd);
    return status;
}

/* Compares part's md5 with md5 (NULL: any) and empties part if it differs.
 * *again: part holds bytes of several answers, so a fresh download may help. */
static dsi_fetched transfer_check_md5(transfer *t, const char *md5, bool *again)
{
    char hex[33];
    *again = false;
    if (!md5) return DSI_FETCHED;
    if (dsi_md5(t->part, hex) != DS_OK) return DSI_FETCH_LOCAL;
    if (!strcasecmp(hex, md5)) return DSI_FETCHED;
    dsi_fail(DS_EFORMAT,
             "download: %s gives %lld bytes with md5 %s, expected %s: it is damaged, or "
             "another file, whose md5 DS_CIFAR10_MD5 must name",
             t->url, (long long)t->have, hex, md5);
    *again = t->resumed;
    if (!part_restart(t)) return DSI_FETCH_LOCAL;
    return DSI_FETCH_ANSWER;
}

/* Renames part to path after its bytes are on the disk. */
static dsi_fetched part_publish(const transfer *t, const char *path)
{
    if ((fsync(t->fd) == 0 || errno == EINVAL) && rename(t->part, path) == 0) {
        unlink(t->from);
        return DSI_FETCHED;
    }
    dsi_fail(DS_EIO, "download: %s: %s", path, strerror(errno));
    return DSI_FETCH_LOCAL;
}

/* All paths are of files, or of none yet: to open something else could wait for
 * ever. */
static bool paths_are_files(const transfer *t)
{
    static const char scheme[] = "file://";
    bool local = !strncasecmp(t->url, scheme, sizeof scheme - 1);
    const char *paths[] = {t->part, t->from, local ? t->url + sizeof scheme - 1 : t->part};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (dsi_is_no_file(paths[i]))
            return dsi_refuse_with(DS_EIO, "download: %s: expected a regular file", paths[i]);
    return true;
}

/* The part file is kept after a failure, unless it is empty. */
dsi_fetched dsi_fetch(const char *url, const char *path, const char *md5, bool quiet)
{
    dsi_text part = dsi_text_of("%s.part", path), from = dsi_text_of("%s.part.from", path);
    bool again = false;
    int before = dsi_error_count();
    transfer t = {.url = url, .part = part.s, .from = from.s, .quiet = quiet};
    dsi_fetched got = DSI_FETCH_LOCAL;

    bool files = paths_are_files(&t);
    t.fd = files ? open(t.part, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (files && t.fd < 0) {
        dsi_fail(DS_EIO, "download: %s: %s", t.part, strerror(errno));
    } else if (files && open_curl(&t)) {
        part_resume(&t, md5 != NULL);
        got = transfer_all(&t);
        if (got == DSI_FETCHED) got = transfer_check_md5(&t, md5, &again);
        if (again) {
            dsi_error_forget(before);
            got = transfer_all(&t);
            if (got == DSI_FETCHED) got = transfer_check_md5(&t, md5, &again);
        }
        if (got == DSI_FETCHED) got = part_publish(&t, path);
        if (got != DSI_FETCHED && !t.have) unlink(t.part), unlink(t.from);
    }
    if (t.curl) t.lib->easy_cleanup(t.curl);
    if (t.fd >= 0) close(t.fd);
    dsi_text_free(&part);
    dsi_text_free(&from);
    return got;
}
