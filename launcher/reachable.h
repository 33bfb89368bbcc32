/* launcher/reachable.h: whether the hosts can be reached by ssh, and the
 * address of the first.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "hosts.h"

typedef struct reach_request {
    const ds_host *hosts; /* [n_hosts] */
    int n_hosts;
    int ssh_port;          /* <= 0: ssh's own choice */
    const char *hostfile;  /* for messages */
    bool *answers;         /* [n_hosts] false: the host does not answer, which a line says;
                             NULL: that is a failure */
    int fan_out;           /* more hosts than that are asked as a tree; 0: all from here */
    const char *deepspeed; /* path of this program on all hosts, if fan_out */
    struct reach_queries
        *begun; /* of the same hosts by reachable_begin; NULL: they are asked now */
} reach_request;

/* Starts to ask the hosts, whose names must stay, and returns at once. The
 * answers are for reachable_check, which frees them, or for reachable_drop. */
struct reach_queries *reachable_begin(const reach_request *request);
void reachable_drop(struct reach_queries *begun);

/* Asks all hosts but this machine at the same time and waits for them, at most
 * 15 seconds, and as long for those that a tree has not reached. address: NULL,
 * or where the first host's address is stored (dsi_free) if it was asked and
 * named one. *signal: the signal that ended the wait, if one did. *tree: there
 * are more than fan_out hosts, and each that answers was reached by its parent
 * in the tree. Fails if a signal came, or a host does not answer and
 * request->answers is NULL. */
ds_status reachable_check(const reach_request *request, char **address, int *signal, bool *tree);

/* deepspeed --ask_hosts FAN_OUT PORT MILLISECONDS HOST...: an inner host of the
 * tree; prints "reached HOST" for each that was. Returns the exit status. */
int reachable_ask_hosts(int argc, char **argv);

/* The address of a host's name, as a number (dsi_free); NULL: none. */
char *reachable_resolve(const char *host);
