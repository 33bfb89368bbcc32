/* launcher/hosts.c: hostfiles, and Slurm's lists of hosts.
 *
 * A line is what DeepSpeed accepts, ^(\S+)\s+slots=(\d+) without the blanks at
 * both ends. Refused here, though DeepSpeed accepts them: names that ssh would
 * take for an option, more slots than any host has.
 * SPDX-License-Identifier: MIT */
#include "hosts.h"

#include "argv.h"

#include "base/error.h"
#include "base/file.h"

#include <string.h>

void host_set_slots(ds_host *host, int n_slots)
{
    host->slots = dsi_realloc(host->slots, (size_t)(n_slots ? n_slots : 1) * sizeof(int));
    host->n_slots = n_slots;
    for (int i = 0; i < n_slots; i++) host->slots[i] = i;
}

void hosts_add(ds_hosts *h, const char *name, size_t length, int n_slots)
{
    ds_host host = {.name = dsi_text_of("%.*s", (int)length, name).s};
    host_set_slots(&host, n_slots);
    dsi_list_add(h, host);
}

void hosts_add_copy(ds_hosts *h, const ds_host *host)
{
    hosts_add(h, host->name, strlen(host->name), host->n_slots);
    memcpy(h->at[h->n - 1].slots, host->slots, (size_t)host->n_slots * sizeof *host->slots);
}

ds_host *hosts_find(const ds_hosts *h, const char *name, size_t length)
{
    for (int i = 0; i < h->n; i++)
        if (strlen(h->at[i].name) == length && !memcmp(h->at[i].name, name, length))
            return &h->at[i];
    return NULL;
}

void hosts_add_numbered(ds_hosts *h, int n, int n_slots)
{
    for (int i = 0; i < n; i++) {
        dsi_text name = dsi_text_of("node-%d", i);
        hosts_add(h, name.s, name.n, n_slots);
        dsi_text_free(&name);
    }
}

const char *host_address(const ds_host *h)
{
    const char *at = strrchr(h->name, '@');
    return at ? at + 1 : h->name;
}

int hosts_count_slots(const ds_hosts *h)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) n += h->at[i].n_slots;
    return n;
}

void host_free(ds_host *host)
{
    dsi_free(host->name);
    dsi_free(host->slots);
}

void hosts_free(ds_hosts *h)
{
    for (int i = 0; i < h->n; i++) host_free(&h->at[i]);
    dsi_list_free(h);
}

/* ---- a hostfile -------------------------------------------------------------- */

/* as Python's str.isspace */
static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 28 && c < 32); }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

typedef struct file_line {
    const char *path;
    int line;
} file_line;

/* "hosts:3: "worker-0 slots=x": expected ...". The line is quoted as JSON, so
 * that control characters in it are visible. */
static ds_status refuse_line(file_line at, const char *line, size_t n, const char *why)
{
    enum { SHOWN = 200 };
    char *copy = dsi_alloc(n + 1);
    memcpy(copy, line, n < SHOWN ? n : SHOWN);
    dsi_text t = {0};
    text_add_json(&t, copy);
    dsi_fail(DS_EINVAL, "%s:%d: %s: %s", at.path, at.line, t.s, why);
    dsi_text_free(&t);
    dsi_free(copy);
    return DS_EINVAL;
}

/* line[0..n-1] has no blanks at its ends and is neither empty nor a comment. */
static ds_status hosts_parse_line(ds_hosts *h, file_line at, const char *line, size_t n)
{
    static const char word[] = "slots=";
    const size_t word_length = sizeof word - 1;
    size_t name = 0, number;
    if (memchr(line, 0, n)) return refuse_line(at, line, n, "a zero byte");
    while (name < n && !is_blank(line[name])) name++;
    for (number = name; number < n && is_blank(line[number]);) number++;
    bool good = n - number > word_length && !memcmp(line + number, word, word_length);
    number += word_length;
    if (!good || !is_digit(line[number])) return refuse_line(at, line, n, "expected NAME slots=N");

    int64_t slots = 0;
    for (; number < n && is_digit(line[number]) && slots <= MOST_SLOTS; number++)
        slots = 10 * slots + (line[number] - '0');
    if (slots > MOST_SLOTS) return refuse_line(at, line, n, "more than 65536 slots");
    if (*line == '-') return refuse_line(at, line, n, "a name of a host that begins with -");
    if (hosts_find(h, line, name)) return refuse_line(at, line, n, "this host was named before");
    hosts_add(h, line, name, (int)slots);
    /* world_info is JSON */
    return dsi_is_utf8(line, name) ? DS_OK : refuse_line(at, line, n, "a name that is not UTF-8");
}

/* Lines end with \n, \r\n or \r. A byte order mark at the beginning is
 * skipped. */
ds_status hosts_parse(ds_hosts *h, const char *path, const char *text, size_t bytes)
{
    file_line at = {path, 0};
    const char *end = text + bytes;
    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3; /* byte order mark */
    while (text < end) {
        const char *next = text, *first = text, *last;
        while (next < end && *next != '\n' && *next != '\r') next++;
        last = next;
        if (next + 1 < end && next[0] == '\r' && next[1] == '\n') next++;
        text = next + 1;
        at.line++;
        while (first < last && is_blank(*first)) first++;
        while (first < last && is_blank(last[-1])) last--;
        if (first == last || *first == '#') continue;
        ds_status status = hosts_parse_line(h, at, first, (size_t)(last - first));
        if (status != DS_OK) return status;
    }
    if (h->n) return DS_OK;
    return dsi_fail(DS_EINVAL, "%s: no host is named; expected lines such as: worker-0 slots=4",
                    path);
}

ds_status hosts_read(ds_hosts *h, const char *path)
{
    size_t bytes;
    char *text = dsi_file_read(path, &bytes);
    if (!text) return dsi_fail(DS_EIO, "--hostfile: %s", ds_error());
    ds_status status = hosts_parse(h, path, text, bytes);
    dsi_free(text);
    return status;
}

/* ---- Slurm's lists ------------------------------------------------------------ */

enum { MOST_HOSTS = 1 << 20, MOST_BRACKETS = 4 };

static ds_status refuse_list(const char *variable, const char *list)
{
    return dsi_fail(DS_EINVAL, "%s=%s: expected names such as gpu[01-03,7],login", variable, list);
}

/* Reads a number, and how many digits it is written with: gpu01 is not gpu1. */
static bool read_digits(const char **s, int64_t *n, int *digits)
{
    *n = 0;
    for (*digits = 0; is_digit(**s); ++*s, ++*digits) {
        if (*digits == 9) return false;
        *n = 10 * *n + (**s - '0');
    }
    return *digits > 0;
}

/* Adds a host for each name that item[0..n-1] denotes, after prefix: the text
 * up to the first bracket, each number in the bracket, and the rest expanded in
 * the same way (at most MOST_BRACKETS deep). */
static bool expand_item(ds_hosts *h, const char *prefix, const char *item, size_t n, int n_slots,
                        int depth)
{
    const char *open = memchr(item, '[', n), *s = open;
    bool good = depth < MOST_BRACKETS && h->n < MOST_HOSTS;
    dsi_text name = dsi_text_of("%s%.*s", prefix, (int)(open ? open - item : (int64_t)n), item);
    const char *close = open ? memchr(open, ']', n - (size_t)(open - item)) : NULL;
    if (!open && good) hosts_add(h, name.s, name.n, n_slots);
    good = good && (!open || close);
    while (open && good && s != close) {
        int64_t first, last;
        int digits, ignored;
        s++;
        good = read_digits(&s, &first, &digits);
        last = first;
        if (good && *s == '-') {
            s++;
            good = read_digits(&s, &last, &ignored);
        }
        good = good && (*s == ',' || s == close) && last - first < MOST_HOSTS;
        for (; good && first <= last; first++) {
            dsi_text one = dsi_text_of("%s%0*lld", name.s, digits, (long long)first);
            good = expand_item(h, one.s, close + 1, n - (size_t)(close + 1 - item), n_slots,
                               depth + 1);
            dsi_text_free(&one);
        }
    }
    dsi_text_free(&name);
    return good;
}

/* Splits the list at commas outside of brackets. */
ds_status hosts_expand(ds_hosts *h, const char *variable, const char *list, int n_slots)
{
    for (const char *s = list; *s;) {
        size_t n = 0;
        for (int inside = 0; s[n] && (inside || s[n] != ','); n++)
            inside = s[n] == '[' || (inside && s[n] != ']');
        if (!n || *s == '-' || !expand_item(h, "", s, n, n_slots, 0))
            return refuse_list(variable, list);
        s += n + (s[n] == ',');
    }
    return h->n ? DS_OK : refuse_list(variable, list);
}
