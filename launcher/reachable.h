/* launcher/reachable.h: can the hosts be reached by ssh, and what is the first
 * one's address?
 * SPDX-License-Identifier: MIT */
#pragma once

#include "hosts.h"

typedef struct reach_request {
    const ds_host *hosts; /* [n_hosts] */
    int n_hosts;
    int ssh_port;         /* <= 0: ssh's own choice */
    const char *hostfile; /* for messages */
    bool *answers;        /* [n_hosts] false: the host does not answer, which a line says;
                             NULL: that is a failure */
} reach_request;

/* Asks all hosts but this machine at the same time and waits for them, at most
 * 15 seconds. address: NULL, or where the first one's address is stored
 * (dsi_free) if it was asked and named one. *signal: the signal that ended the
 * wait, if one did. Fails if a signal came, or a host does not answer and
 * request->answers is NULL. */
ds_status reachable_check(const reach_request *request, char **address, int *signal);

/* What a host's name resolves to, as a number (dsi_free); NULL: nothing. */
char *reachable_resolve(const char *host);
