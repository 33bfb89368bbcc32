/* launcher/hosts.c: hostfiles, and Slurm's lists of hosts.
 *
 * A line is what DeepSpeed takes for one, ^(\S+)\s+slots=(\d+) after blanks at both ends are gone. What it does not
 * see is refused here: names that ssh would take for an option, more slots than any host has.
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
    ds_host host = {.name = dsi_alloc(length + 1)};
    memcpy(host.name, name, length);
    host_set_slots(&host, n_slots);
    dsi_list_add(h, host);
}

ds_host *hosts_find(const ds_hosts *h, const char *name, size_t length)
{
    for (int i = 0; i < h->n; i++)
        if (strlen(h->at[i].name) == length && !memcmp(h->at[i].name, name, length))
            return &h->at[i];
    return NULL;
}

void hosts_free(ds_hosts *h)
{
    for (int i = 0; i < h->n; i++) {
        dsi_free(h->at[i].name);
        dsi_free(h->at[i].slots);
    }
    dsi_list_free(h);
}

/* ---- a hostfile ----------------------------------------------------------------------------------------- */

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 28 && c < 32); }

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

typedef struct Place {
    const char *path;
    int line;
} Place;

/* "hosts:3: worker-0 slots=x: expected ..." with the line in quotes, so that all in it can be seen. */
static ds_status refuse(Place at, const char *line, size_t n, const char *why)
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

/* One line without blanks at its ends, neither empty nor a comment. */
static ds_status parse_line(ds_hosts *h, Place at, const char *line, size_t n)
{
    static const char word[] = "slots=";
    const size_t word_length = sizeof word - 1;
    size_t name = 0, number;
    if (memchr(line, 0, n)) return refuse(at, line, n, "a zero byte");
    while (name < n && !is_blank(line[name])) name++;
    for (number = name; number < n && is_blank(line[number]);) number++;
    bool good = n - number > word_length && !memcmp(line + number, word, word_length);
    number += word_length;
    if (!good || !is_digit(line[number])) return refuse(at, line, n, "expected NAME slots=N");

    int64_t slots = 0;
    for (; number < n && is_digit(line[number]) && slots <= MOST_SLOTS; number++)
        slots = 10 * slots + (line[number] - '0');
    if (slots > MOST_SLOTS) return refuse(at, line, n, "more than 65536 slots");
    if (*line == '-') return refuse(at, line, n, "a name of a host that begins with -");
    if (hosts_find(h, line, name)) return refuse(at, line, n, "this host was named before");
    hosts_add(h, line, name, (int)slots);
    /* ranks are told in JSON */
    return text_is_utf8(h->at[h->n - 1].name) ? DS_OK
                                              : refuse(at, line, n, "a name that is not UTF-8");
}

ds_status hosts_parse(ds_hosts *h, const char *path, const char *text, size_t bytes)
{
    Place at = {path, 0};
    const char *end = text + bytes;
    if (bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) text += 3; /* an editor's mark of UTF-8 */
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
        ds_status status = parse_line(h, at, first, (size_t)(last - first));
        if (status != DS_OK) return status;
    }
    if (h->n) return DS_OK;
    return dsi_fail(DS_EINVAL, "%s: it names no host; expected lines such as: worker-0 slots=4",
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

/* ---- Slurm's lists --------------------------------------------------------------------------------------- */

enum { MOST_HOSTS = 1 << 20, MOST_BRACKETS = 4 };

static ds_status refuse_list(const char *variable, const char *list)
{
    return dsi_fail(DS_EINVAL, "%s=%s: expected names such as gpu[01-03,7],login", variable, list);
}

/* A number and how many digits it is written with. */
static bool read_number(const char **s, int64_t *n, int *digits)
{
    *n = 0;
    for (*digits = 0; is_digit(**s); ++*s, ++*digits) {
        if (*digits == 9) return false;
        *n = 10 * *n + (**s - '0');
    }
    return *digits > 0;
}

/* Adds prefix + each name that item[0..n-1] stands for: up to a bracket as it is, then each number of the
 * bracket, with what follows expanded in its turn. */
static bool expand_item(ds_hosts *h, const char *prefix, const char *item, size_t n, int n_slots,
                        int depth)
{
    const char *open = memchr(item, '[', n), *s = open;
    dsi_text name = {0};
    bool good = depth < MOST_BRACKETS && h->n < MOST_HOSTS;
    dsi_text_add(&name, "%s%.*s", prefix, (int)(open ? open - item : (int64_t)n), item);
    const char *close = open ? memchr(open, ']', n - (size_t)(open - item)) : NULL;
    if (!open && good) hosts_add(h, name.s, name.n, n_slots);
    good = good && (!open || close);
    while (open && good && s != close) {
        int64_t first, last;
        int digits, ignored;
        s++;
        good = read_number(&s, &first, &digits);
        last = first;
        if (good && *s == '-') {
            s++;
            good = read_number(&s, &last, &ignored);
        }
        good = good && (*s == ',' || s == close) && last - first < MOST_HOSTS;
        for (; good && first <= last; first++) {
            dsi_text one = {0};
            dsi_text_add(&one, "%s%0*lld", name.s, digits, (long long)first);
            good = expand_item(h, one.s, close + 1, n - (size_t)(close + 1 - item), n_slots,
                               depth + 1);
            dsi_text_free(&one);
        }
    }
    dsi_text_free(&name);
    return good;
}

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
