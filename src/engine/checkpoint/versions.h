/* engine/checkpoint/versions.h: the checkpoints that hosts have in folders of
 * their own: Note [Node-local storage] in hosts.h.
 *
 * Invariants: lists and versions are the same on all ranks, except for
 * `folder`. The caller holds the locks of all folders. All functions but those
 * that free are collective.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "hosts.h"

/* A version that some host has, once. */
typedef struct dsi_known_version {
    char *tag;
    int64_t serial;
    uint32_t sum;     /* of its manifest: a host that was away may have the same serial */
    bool latest, old; /* a host's `latest` names it; a host has .old-TAG */
} dsi_known_version;

/* Those that `latest` names first, then by serial: the newest first. */
typedef struct dsi_known_versions {
    DSI_LIST(dsi_known_version)
} dsi_known_versions;

ds_status dsi_versions_list(const dsi_hosts *h, dsi_known_versions *all);
void dsi_versions_free(dsi_known_versions *all);

/* The files of a version that hosts have. */
typedef struct dsi_version {
    dsi_manifest list;
    char *folder;       /* of this host: DIR/TAG or DIR/.old-TAG; NULL: it has none */
    bool is_old;        /* it is DIR/.old-TAG, if there is one */
    unsigned char *has; /* [hosts][list.n]: the file is there, with its size and check sum */
    int missing;        /* a file that no host has; -1: it is whole */
} dsi_version;

/* Verifies the files of each host by the ranks of that host. */
ds_status dsi_version_look(const dsi_hosts *h, const dsi_known_version *known, dsi_version *v);
void dsi_version_free(dsi_version *v);
bool dsi_version_has(const dsi_version *v, int host, int file);

/* version_complete.c: brings to each host what it needs of a whole version: the
 * files of its ranks, and of those of the host before; all_files, or another number
 * of ranks: every file. */
ds_status dsi_version_complete(const dsi_hosts *h, const char *tag, bool all_files,
                               const dsi_version *v);
/* Whether each host has that at DIR/TAG. */
ds_status dsi_version_is_complete(const dsi_hosts *h, const dsi_version *v, bool all_files,
                                  bool *complete);

bool dsi_versions_have_old(const dsi_known_versions *all); /* of any tag: recovery is needed */
/* Finishes killed exchanges of names. Then gives each tag of which a host has .old-TAG to
 * its newest whole version, and completes that on all hosts; only then, if none is newer,
 * the others are removed. A newer one is .old-TAG: with hosts that are away it may be
 * whole. Sets h->recovered. */
ds_status dsi_versions_recover(dsi_hosts *h);
