/* launcher/hosts.h: which hosts there are, and how many slots each has.
 * SPDX-License-Identifier: MIT */
#ifndef LAUNCHER_HOSTS_H
#define LAUNCHER_HOSTS_H

#include "base/list.h"

#include <deepspeed/types.h>

enum { MOST_SLOTS = 65536 }; /* on one host: more is a mistake */

typedef struct ds_host {
    char *name; /* as in the hostfile: worker-0, 10.0.0.1, user@worker-0 */
    int *slots; /* [n_slots] device numbers, in the order of local ranks */
    int n_slots;
} ds_host;

typedef struct ds_hosts {
    DSI_LIST(ds_host)
} ds_hosts;

/* Adds a host with the slots 0 to n_slots-1. */
void hosts_add(ds_hosts *h, const char *name, size_t length, int n_slots);
void host_set_slots(ds_host *host, int n_slots);                         /* 0 to n_slots-1 */
ds_host *hosts_find(const ds_hosts *h, const char *name, size_t length); /* NULL if absent */
void hosts_free(ds_hosts *h);

/* A hostfile: NAME slots=N on each line; what follows the number, blank lines and lines beginning with # are
 * nobody's business. Messages name file and line. What was read before stays in h, which the caller frees. */
ds_status hosts_read(ds_hosts *h, const char *path);
ds_status hosts_parse(ds_hosts *h, const char *path, const char *text, size_t bytes);

/* Slurm's short form of names, the value of that variable: "gpu[01-03,7],login", "rack[0-1]n[1-2]". Each gets
 * n_slots. */
ds_status hosts_expand(ds_hosts *h, const char *variable, const char *list, int n_slots);

/* What each rank is told: base64url of {"worker-0": [0, 1]}, letter for letter as Python's json writes it. */
char *hosts_json(const ds_host *hosts, int n);
char *hosts_encode(const ds_host *hosts, int n);

#endif
