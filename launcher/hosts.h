/* launcher/hosts.h: hosts, and the slots of each.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"

#include <deepspeed/types.h>

enum { MOST_SLOTS = 65536 }; /* of one host; more is taken for a mistake */

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
void hosts_add_copy(ds_hosts *h, const ds_host *host);
void host_set_slots(ds_host *host, int n_slots);                         /* 0 to n_slots-1 */
ds_host *hosts_find(const ds_hosts *h, const char *name, size_t length); /* NULL if absent */
/* n hosts whose names are not known: node-0, node-1, ... */
void hosts_add_numbered(ds_hosts *h, int n, int n_slots);
void host_free(ds_host *host);
void hosts_free(ds_hosts *h);
/* The name without user@: as an address. */
const char *host_address(const ds_host *h);

/* A hostfile: NAME slots=N on each line. The rest of the line after the number,
 * blank lines and lines that begin with # are ignored. Messages name file and
 * line. After a failure h holds the hosts read so far; the caller frees it. */
ds_status hosts_read(ds_hosts *h, const char *path);
ds_status hosts_parse(ds_hosts *h, const char *path, const char *text, size_t bytes);

/* Adds the hosts of a list in Slurm's short form, "gpu[01-03,7],login" or
 * "rack[0-1]n[1-2]", each with n_slots. variable: where it is from, for
 * messages. */
ds_status hosts_expand(ds_hosts *h, const char *variable, const char *list, int n_slots);

/* {"worker-0": [0, 1]} byte for byte as Python's json writes it (to be freed
 * with dsi_free), and base64url of that, which each rank gets as
 * --world_info. */
char *hosts_json(const ds_host *hosts, int n);
char *hosts_encode(const ds_host *hosts, int n);
/* Reads world_info, which names at least one slot, into h. false after one
 * message; the caller frees h in any case. */
bool hosts_decode(ds_hosts *h, const char *world_info);
int hosts_count_slots(const ds_hosts *h);
/* The slots become those of a JSON array (jansson). false: it is none of
 * integers. */
struct json_t;
bool host_read_slots(ds_host *host, const struct json_t *slots);
