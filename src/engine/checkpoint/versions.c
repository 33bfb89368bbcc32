/* engine/checkpoint/versions.c: what hosts have, put together: Note [Node-local
 * storage] in hosts.h.
 * SPDX-License-Identifier: MIT */
#include "versions.h"

#include "base/error.h"
#include "base/file.h"
#include "comm/comm.h"
#include "comm/sync_status.h"
#include "folder.h"

#include <stdlib.h>
#include <string.h>

/* ---- the list ------------------------------------------------------------------------------------------ */

enum { IS_LATEST = 1, IS_OLD = 2 };

static void inventory_add(dsi_text *t, const char *dir, bool old, const char *latest)
{
    dsi_folders all = dsi_folder_list(dir, old);
    for (int i = 0; i < all.n; i++) {
        bool is_latest = !old && latest && !strcmp(latest, all.at[i].tag);
        if (all.at[i].serial) /* not damaged */
            dsi_text_add(t, "%d %lld %u %s\n", (is_latest ? IS_LATEST : 0) | (old ? IS_OLD : 0),
                         (long long)all.at[i].serial, all.at[i].sum, all.at[i].tag);
    }
    dsi_folders_free(&all);
}

/* A line for each version in the folder of this rank's host, from its first rank. */
static dsi_text inventory_of(const dsi_hosts *h)
{
    dsi_text t = {0};
    dsi_text_add(&t, "%s", "");
    if (!dsi_hosts_is_first(h)) return t;
    int before = dsi_error_count();
    char *latest = dsi_folder_latest(h->dir, DSI_LATEST);
    dsi_error_forget(before);
    inventory_add(&t, h->dir, false, latest);
    inventory_add(&t, h->dir, true, latest);
    dsi_free(latest);
    return t;
}

/* Takes the tag. */
static void versions_add(dsi_known_versions *all, const dsi_known_version *one)
{
    for (int i = 0; i < all->n; i++) {
        dsi_known_version *v = &all->at[i];
        if (v->serial != one->serial || v->sum != one->sum || strcmp(v->tag, one->tag) != 0)
            continue;
        v->latest |= one->latest;
        v->old |= one->old;
        dsi_free(one->tag);
        return;
    }
    dsi_list_add(all, *one);
}

/* Lines of inventory_add. */
static void versions_parse(dsi_known_versions *all, const char *text)
{
    for (const char *end; (end = strchr(text, '\n')); text = end + 1) {
        char *p;
        long flags = strtol(text, &p, 10);
        dsi_known_version v = {.latest = (flags & IS_LATEST) != 0, .old = (flags & IS_OLD) != 0};
        v.serial = strtoll(p, &p, 10);
        v.sum = (uint32_t)strtoul(p, &p, 10);
        v.tag = dsi_text_of("%.*s", (int)(end - p) - 1, p + 1).s;
        versions_add(all, &v);
    }
}

static int version_newer_first(const void *a, const void *b)
{
    const dsi_known_version *x = a, *y = b;
    if (x->serial != y->serial) return x->serial < y->serial ? 1 : -1;
    return x->sum != y->sum ? (x->sum < y->sum ? 1 : -1) : strcmp(x->tag, y->tag);
}

static int version_compare(const void *a, const void *b)
{
    const dsi_known_version *x = a, *y = b;
    if (x->latest != y->latest) return x->latest ? -1 : 1;
    return version_newer_first(a, b);
}

/* The newest `latest` of all hosts first: that of a host which was away is old. */
static void versions_sort(dsi_known_versions *all)
{
    for (int pass = 0; pass < 2 && all->n; pass++) {
        qsort(all->at, (size_t)all->n, sizeof *all->at, version_compare);
        for (int i = 1; i < all->n; i++) all->at[i].latest = false;
    }
}

ds_status dsi_versions_list(const dsi_hosts *h, dsi_known_versions *all)
{
    dsi_texts texts;
    *all = (dsi_known_versions){0};
    dsi_text mine = inventory_of(h);
    ds_status status = dsi_hosts_gather(h, mine.s, &texts);
    dsi_text_free(&mine);
    for (int r = 0; status == DS_OK && r < h->ranks; r++)
        versions_parse(all, texts.p + (size_t)r * texts.stride);
    dsi_free(texts.p);
    versions_sort(all);
    return status;
}

void dsi_versions_free(dsi_known_versions *all)
{
    for (int i = 0; i < all->n; i++) dsi_free(all->at[i].tag);
    dsi_list_free(all);
}

/* ---- one version ---------------------------------------------------------------------------------------- */

/* path, which it takes, if the manifest there is that one. */
static char *version_folder(char *path, const dsi_known_version *known)
{
    dsi_manifest m = {0};
    int before = dsi_error_count();
    char *manifest = dsi_path_in(path, DSI_MANIFEST);
    bool is = dsi_file_exists(manifest) && dsi_manifest_read(&m, manifest) == DS_OK &&
              m.serial == known->serial && m.sum == known->sum;
    dsi_error_forget(before);
    dsi_manifest_free(&m);
    dsi_free(manifest);
    if (is) return path;
    dsi_free(path);
    return NULL;
}

/* The manifest of the first rank that has it, on all of them. */
static ds_status version_read_list(const dsi_hosts *h, dsi_version *v)
{
    dsi_texts all;
    char *path = v->folder && dsi_hosts_is_first(h) ? dsi_path_in(v->folder, DSI_MANIFEST) : NULL;
    char *mine = path ? dsi_file_read_regular(path, NULL) : NULL;
    ds_status status = path && !mine ? ds_error_status() : DS_OK;
    if (dsi_hosts_gather(h, mine ? mine : "", &all) != DS_OK || !all.p) status = DS_ECOMM;
    const char *text = all.p;
    for (int r = 0; text && !*text && r + 1 < h->ranks; r++) text += all.stride;
    if (status == DS_OK) status = dsi_manifest_parse(&v->list, text, strlen(text), "a manifest");
    dsi_free(all.p);
    dsi_free(mine);
    dsi_free(path);
    return status;
}

/* A damaged file counts as none: another host may have it whole. */
static void version_verify(const dsi_hosts *h, const dsi_version *v, unsigned char *mine)
{
    int ranks = dsi_hosts_size(h, h->host[h->rank]), me = dsi_hosts_place(h, h->rank);
    int before = dsi_error_count();
    for (int i = 0; i < v->list.n && v->folder; i++)
        if (dsi_manifest_verifier(v->list.at[i].name, i, ranks) == me)
            mine[i] = dsi_manifest_verify_file(&v->list.at[i], v->folder) == DS_OK;
    dsi_error_forget(before);
}

/* The files that all ranks have verified, by host. */
static ds_status version_gather_has(const dsi_hosts *h, dsi_version *v)
{
    size_t n = (size_t)v->list.n;
    unsigned char *mine = dsi_alloc(n + 1), *all = dsi_alloc(n * (size_t)h->ranks + 1);
    v->has = dsi_alloc(n * (size_t)h->n + 1);
    version_verify(h, v, mine);
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(h->comm, DSI_ALL_GATHER, DS_U8, mine, all, (int64_t)n)});
    for (size_t r = 0; r < (size_t)h->ranks && status == DS_OK; r++)
        for (size_t i = 0; i < n; i++) v->has[(size_t)h->host[r] * n + i] |= all[r * n + i];
    dsi_free(mine);
    dsi_free(all);
    return status;
}

bool dsi_version_has(const dsi_version *v, int host, int file)
{
    return v->has[(size_t)host * (size_t)v->list.n + (size_t)file];
}

ds_status dsi_version_look(const dsi_hosts *h, const dsi_known_version *known, dsi_version *v)
{
    *v = (dsi_version){.missing = -1};
    v->folder = version_folder(dsi_path_in(h->dir, known->tag), known);
    v->is_old = !v->folder;
    if (v->is_old) v->folder = version_folder(dsi_folder_old(h->dir, known->tag), known);
    ds_status status = dsi_hosts_sync(h, version_read_list(h, v));
    if (status == DS_OK) status = version_gather_has(h, v);
    for (int i = 0; i < v->list.n && status == DS_OK; i++) {
        bool somewhere = false;
        for (int k = 0; k < h->n; k++) somewhere |= dsi_version_has(v, k, i);
        if (!somewhere) v->missing = i;
    }
    return status;
}

void dsi_version_free(dsi_version *v)
{
    dsi_manifest_free(&v->list);
    dsi_free(v->folder);
    dsi_free(v->has);
}

/* ---- recovery ------------------------------------------------------------------------------------------- */

/* The newest whole version of a tag, from its newest one at `first` on; if none is
 * whole, the newest one. */
static ds_status recover_choose(const dsi_hosts *h, const dsi_known_versions *all, int first,
                                int *chosen, dsi_version *v)
{
    const char *tag = all->at[first].tag;
    ds_status status = DS_OK;
    bool whole = false;
    for (int k = first; k < all->n && status == DS_OK && !whole; k++) {
        if (strcmp(all->at[k].tag, tag) != 0) continue;
        if (k > first) dsi_version_free(v);
        status = dsi_version_look(h, &all->at[k], v);
        whole = status == DS_OK && v->missing < 0;
        *chosen = k;
    }
    if (status != DS_OK || whole || *chosen == first) return status;
    dsi_version_free(v);
    *chosen = first;
    return dsi_version_look(h, &all->at[first], v);
}

/* On the first rank of a host: the chosen version gets its name; any does, if none has it. */
static ds_status recover_folder(const dsi_hosts *h, const char *tag, const dsi_version *v)
{
    char *final = dsi_path_in(h->dir, tag);
    bool restore = !dsi_is_folder(final) || (v->folder && v->is_old);
    dsi_free(final);
    return restore ? dsi_folder_restore_old(h->dir, tag) : DS_OK;
}

/* All hosts have what they need of the newest version. */
static ds_status recover_drop(const dsi_hosts *h, const char *tag)
{
    return dsi_hosts_sync(h, dsi_hosts_is_first(h) ? dsi_folder_end_old(h->dir, tag) : DS_OK);
}

/* Of a tag of which some host has .old-TAG. A version that is not whole may be so with
 * hosts that are away: it stays. */
static ds_status recover_tag(const dsi_hosts *h, const dsi_known_versions *all, int first)
{
    const char *tag = all->at[first].tag;
    dsi_version v = {0};
    int chosen = first;
    ds_status status = recover_choose(h, all, first, &chosen, &v);
    bool whole = status == DS_OK && v.missing < 0;
    if (status == DS_OK && dsi_hosts_is_first(h)) status = recover_folder(h, tag, &v);
    status = dsi_hosts_sync(h, status);
    if (status == DS_OK && whole) status = dsi_version_complete(h, tag, false, &v);
    if (status == DS_OK && whole && chosen == first) status = recover_drop(h, tag);
    dsi_version_free(&v);
    return status;
}

bool dsi_versions_have_old(const dsi_known_versions *all)
{
    for (int i = 0; i < all->n; i++)
        if (all->at[i].old) return true;
    return false;
}

ds_status dsi_versions_recover(dsi_hosts *h)
{
    dsi_known_versions all = {0};
    ds_status status = dsi_hosts_sync(h, dsi_hosts_is_first(h) ? dsi_folder_finish_exchanges(h->dir)
                                                               : DS_OK);
    if (status == DS_OK) status = dsi_versions_list(h, &all);
    if (all.n) qsort(all.at, (size_t)all.n, sizeof *all.at, version_newer_first);
    for (int i = 0; i < all.n && status == DS_OK; i++) {
        bool first = true, old = false; /* of the versions of that tag */
        for (int k = 0; k < all.n; k++) {
            if (strcmp(all.at[k].tag, all.at[i].tag) != 0) continue;
            first &= k >= i;
            old |= all.at[k].old;
        }
        if (first && old) status = recover_tag(h, &all, i);
    }
    dsi_versions_free(&all);
    h->recovered = status == DS_OK;
    return status;
}
