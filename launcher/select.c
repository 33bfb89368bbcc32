/* launcher/select.c: --include, --exclude, and counts.
 *
 * The rules are DeepSpeed's (runner.py, parse_resource_filter): a host named
 * without slots means all its slots, unless the same text names it with slots
 * too; then it means those.
 * SPDX-License-Identifier: MIT */
#include "select.h"

#include "argv.h"

#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The filter's entry of one host. */
typedef struct host_filter {
    bool named;
    DSI_LIST(int) /* slots */
} host_filter;

typedef struct filter {
    const char *option; /* "--include", for messages */
    const char *text;
    const ds_hosts *hosts;
    host_filter *of_host; /* [hosts->n] */
} filter;

/* Reads text[0..n-1] as an integer; blanks around it are allowed. */
static bool read_slot(const char *text, size_t n, int *x)
{
    enum { LONGEST = 24 };
    char copy[LONGEST + 1] = {0}, *end;
    if (!n || n > LONGEST || memchr(text, 0, n)) return false;
    memcpy(copy, text, n);
    errno = 0;
    long value = strtol(copy, &end, 10);
    if (errno || end == copy || value < INT_MIN || value > INT_MAX) return false;
    *x = (int)value;
    return !end[strspn(end, " \t\n\r\v\f")];
}

static bool is_slot(const int *slots, int n, int slot)
{
    for (int i = 0; i < n; i++)
        if (slots[i] == slot) return true;
    return false;
}

/* s..end: the slots after the colon, "0,2". */
static ds_status filter_add_slots(filter *f, const ds_host *host, const char *s, const char *end)
{
    host_filter *c = &f->of_host[host - f->hosts->at];
    for (;; s++) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        size_t n = (size_t)((comma ? comma : end) - s);
        int slot;
        if (!read_slot(s, n, &slot))
            return dsi_fail(DS_EINVAL, "%s %s: \"%.*s\" is not a slot number of %s", f->option,
                            f->text, (int)n, s, host->name);
        if (!is_slot(host->slots, host->n_slots, slot))
            return dsi_fail(DS_EINVAL, "%s %s: %s has no slot %d; it has %d slot%s", f->option,
                            f->text, host->name, slot, host->n_slots,
                            host->n_slots == 1 ? "" : "s");
        dsi_list_add(c, slot);
        if (!comma) return DS_OK;
        s = comma;
    }
}

/* s..end: NAME or NAME:SLOTS. */
static ds_status filter_add_host(filter *f, const char *s, const char *end)
{
    const char *colon = memchr(s, ':', (size_t)(end - s));
    size_t n = (size_t)((colon ? colon : end) - s);
    const ds_host *host = hosts_find(f->hosts, s, n);
    if (!host)
        return dsi_fail(DS_EINVAL, "%s %s: there is no host \"%.*s\"", f->option, f->text, (int)n,
                        s);
    f->of_host[host - f->hosts->at].named = true;
    return colon ? filter_add_slots(f, host, colon + 1, end) : DS_OK;
}

static int compare_ints(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Keeps the slots that are named (include) or not named (exclude). */
static void host_keep_slots(ds_host *h, const host_filter *c, bool include)
{
    int n = 0;
    if (!c->named && !include) return;
    for (int i = 0; c->named && i < h->n_slots; i++)
        if ((!c->n || is_slot(c->at, c->n, h->slots[i])) == include) h->slots[n++] = h->slots[i];
    h->n_slots = n;
    if (n) qsort(h->slots, (size_t)n, sizeof *h->slots, compare_ints);
}

void select_nonempty(ds_hosts *h)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) {
        if (h->at[i].n_slots)
            h->at[n++] = h->at[i];
        else
            host_free(&h->at[i]);
    }
    h->n = n;
}

/* One filter text may name a host several times; its slots add up. */
ds_status select_hosts(ds_hosts *h, const char *include, const char *exclude)
{
    bool in = include && *include, out = exclude && *exclude;
    if (in && out)
        return dsi_fail(DS_EINVAL, "--include %s and --exclude %s: expected one of them", include,
                        exclude);
    if (!in && !out) return DS_OK;
    filter f = {in ? "--include" : "--exclude", in ? include : exclude, h,
                dsi_alloc(((size_t)h->n + 1) * sizeof *f.of_host)};
    ds_status status = DS_OK;
    for (const char *s = f.text; s && status == DS_OK;) {
        const char *at = strchr(s, '@'), *end = at ? at : s + strlen(s);
        /* user@host is one name if the hostfile has it */
        const char *second = at ? at + 1 + strcspn(at + 1, "@:") : end;
        if (at && hosts_find(h, s, (size_t)(second - s))) {
            end = second + strcspn(second, "@");
            at = *end ? end : NULL;
        }
        status = filter_add_host(&f, s, end);
        s = at ? at + 1 : NULL;
    }
    for (int i = 0; i < h->n; i++) {
        if (status == DS_OK) host_keep_slots(&h->at[i], &f.of_host[i], in);
        dsi_list_free(&f.of_host[i]);
    }
    if (status == DS_OK) select_nonempty(h);
    dsi_free(f.of_host);
    return status;
}

void select_counts(ds_hosts *h, int num_nodes, int per_node)
{
    while (num_nodes > 0 && h->n > num_nodes) host_free(&h->at[--h->n]);
    /* a host with that number keeps its slots: the first one of
     * CUDA_VISIBLE_DEVICES need not be 0 */
    for (int i = 0; per_node > 0 && i < h->n; i++)
        if (h->at[i].n_slots != per_node) host_set_slots(&h->at[i], per_node);
}
