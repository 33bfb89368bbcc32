/* parallel/worker.h: a thread that does one thing at a time for the thread that
 * made it.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>

typedef struct dsi_worker dsi_worker;

dsi_worker *dsi_worker_new(void); /* NULL with the message if there can be no thread */

/* The worker runs fn(arg), and dsi_worker_wait returns when it has; for each
 * start there is one wait. Between the two calls the memory that fn uses
 * belongs to the worker, otherwise to the caller. */
void dsi_worker_start(dsi_worker *w, void (*fn)(void *arg), void *arg);
void dsi_worker_wait(dsi_worker *w);

/* False in a fork of the process that made it: the thread did not come along,
 * and only dsi_worker_free may be
 * called. */
bool dsi_worker_has_thread(const dsi_worker *w);

void dsi_worker_free(dsi_worker *w); /* it waits; NULL passes */
