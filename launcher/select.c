/* launcher/select.c: --include, --exclude, and counts.
 *
 * The rules are DeepSpeed's (runner.py, parse_resource_filter): a host that is named without slots means all of
 * them, unless it is named with slots elsewhere in the same text; then it means those.
 * SPDX-License-Identifier: MIT */
#include "select.h"

#include "argv.h"

#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* What the text says of one host. */
typedef struct Choice {
    bool named;
    DSI_LIST(int) /* slots */
} Choice;

typedef struct Filter {
    const char *option; /* "--include", for messages */
    const char *text;
    const ds_hosts *hosts;
    Choice *choice; /* [hosts->n] */
} Filter;

/* text[0..n-1] as a whole number, blanks around it allowed. */
static bool read_int(const char *text, size_t n, int *x)
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

static bool has_slot(const ds_host *h, int slot)
{
    for (int i = 0; i < h->n_slots; i++)
        if (h->slots[i] == slot) return true;
    return false;
}

/* The slots after the colon: "0,2". */
static ds_status take_slots(Filter *f, const ds_host *host, const char *s, const char *end)
{
    Choice *c = &f->choice[host - f->hosts->at];
    for (;; s++) {
        const char *comma = memchr(s, ',', (size_t)(end - s));
        size_t n = (size_t)((comma ? comma : end) - s);
        int slot;
        if (!read_int(s, n, &slot))
            return dsi_fail(DS_EINVAL, "%s %s: \"%.*s\" is no number of a slot of %s", f->option,
                            f->text, (int)n, s, host->name);
        if (!has_slot(host, slot))
            return dsi_fail(DS_EINVAL, "%s %s: %s has no slot %d; it has %d slot%s", f->option,
                            f->text, host->name, slot, host->n_slots,
                            host->n_slots == 1 ? "" : "s");
        dsi_list_add(c, slot);
        if (!comma) return DS_OK;
        s = comma;
    }
}

/* NAME or NAME:SLOTS. */
static ds_status take_spec(Filter *f, const char *s, const char *end)
{
    const char *colon = memchr(s, ':', (size_t)(end - s));
    size_t n = (size_t)((colon ? colon : end) - s);
    const ds_host *host = hosts_find(f->hosts, s, n);
    if (!host)
        return dsi_fail(DS_EINVAL, "%s %s: there is no host \"%.*s\"", f->option, f->text, (int)n,
                        s);
    f->choice[host - f->hosts->at].named = true;
    return colon ? take_slots(f, host, colon + 1, end) : DS_OK;
}

static bool is_chosen(const Choice *c, int slot)
{
    for (int i = 0; i < c->n; i++)
        if (c->at[i] == slot) return true;
    return false;
}

static int ascending(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

/* Leaves the slots that are chosen (include), or not (exclude). */
static void keep_slots(ds_host *h, const Choice *c, bool include)
{
    int n = 0;
    if (!c->named && !include) return;
    for (int i = 0; c->named && i < h->n_slots; i++)
        if ((!c->n || is_chosen(c, h->slots[i])) == include) h->slots[n++] = h->slots[i];
    h->n_slots = n;
    if (n) qsort(h->slots, (size_t)n, sizeof *h->slots, ascending);
}

void select_some(ds_hosts *h)
{
    int n = 0;
    for (int i = 0; i < h->n; i++) {
        if (h->at[i].n_slots) {
            h->at[n++] = h->at[i];
            continue;
        }
        dsi_free(h->at[i].name);
        dsi_free(h->at[i].slots);
    }
    h->n = n;
}

ds_status select_hosts(ds_hosts *h, const char *include, const char *exclude)
{
    bool in = include && *include, out = exclude && *exclude;
    if (in && out)
        return dsi_fail(DS_EINVAL, "--include %s and --exclude %s: expected one of them", include,
                        exclude);
    if (!in && !out) return DS_OK;
    Filter f = {in ? "--include" : "--exclude", in ? include : exclude, h,
                dsi_alloc(((size_t)h->n + 1) * sizeof *f.choice)};
    ds_status status = DS_OK;
    for (const char *s = f.text; s && status == DS_OK;) {
        const char *at = strchr(s, '@'), *end = at ? at : s + strlen(s);
        /* user@host is one name, if that is what the hostfile says */
        const char *second = at ? at + 1 + strcspn(at + 1, "@:") : end;
        if (at && hosts_find(h, s, (size_t)(second - s))) {
            end = second + strcspn(second, "@");
            at = *end ? end : NULL;
        }
        status = take_spec(&f, s, end);
        s = at ? at + 1 : NULL;
    }
    for (int i = 0; i < h->n; i++) {
        if (status == DS_OK) keep_slots(&h->at[i], &f.choice[i], in);
        dsi_list_free(&f.choice[i]);
    }
    if (status == DS_OK) select_some(h);
    dsi_free(f.choice);
    return status;
}

void select_counts(ds_hosts *h, int num_nodes, int per_node)
{
    while (num_nodes > 0 && h->n > num_nodes) {
        h->n--;
        dsi_free(h->at[h->n].name);
        dsi_free(h->at[h->n].slots);
    }
    /* who has as many keeps them: the first of CUDA_VISIBLE_DEVICES need not be 0 */
    for (int i = 0; per_node > 0 && i < h->n; i++)
        if (h->at[i].n_slots != per_node) host_set_slots(&h->at[i], per_node);
}
