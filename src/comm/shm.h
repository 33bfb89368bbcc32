/* comm/shm.h: collectives of processes of one host, through memory that they
 * share.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "transfer.h"

/* Makes and maps the memory. Collective over c, whose ranks are all on this
 * host and exchange messages for it, within the time limit of a collective.
 * NULL on all ranks where the system does not allow it, or a rank does not want
 * it: no failure. */
dsi_shm *dsi_shm_open(ds_comm *c, bool wanted);
void dsi_shm_close(dsi_shm *s); /* NULL is ignored; nothing is left in the system */

/* Whether r can be done here: not gather, scatter, rows, and messages. */
bool dsi_shm_takes(const dsi_request *r);
/* Appends t (t->shm is s), whose collective all ranks start in this order. */
void dsi_shm_add(dsi_transfer *t);
/* Does what can be done now for all transfers of t's memory, oldest first, and
 * sets `finished` or `wrong` in them. Copies some megabytes at most. True:
 * something was done. */
bool dsi_shm_advance(dsi_transfer *t);
/* Which rank s waits for now, for dsi_shm_sleep; false: none, or it has done
 * something meanwhile. The caller then must call dsi_shm_sleep, which may run
 * while another thread advances s: until that rank has done something, at most
 * `seconds`, below 1. */
typedef struct dsi_shm_nap {
    int rank;
    uint32_t changes;
} dsi_shm_nap;
bool dsi_shm_may_sleep(dsi_shm *s, dsi_shm_nap *nap);
void dsi_shm_sleep(dsi_shm *s, const dsi_shm_nap *nap, double seconds);

/* As dsi_transfer_probe and dsi_transfer_missing: t->wrong, if a rank that t
 * waits for has closed its world; "s 1, 3". */
void dsi_shm_probe(dsi_transfer *t);
void dsi_shm_missing(const dsi_transfer *t, dsi_text *ranks);
/* This rank is about to leave: for dsi_shm_probe of the others. */
void dsi_shm_leave(dsi_shm *s);
