/* launcher/node_monitor.h: Open MPI's daemon on one host while it runs.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "wire.h"

/* The reports of a node monitor, in WIRE_NODE. */
typedef enum node_event_kind {
    NODE_UP,          /* it runs, and has started the daemon */
    NODE_UNCONNECTED, /* the daemon has no connection to mpirun: `text` is where that waits */
    NODE_LOST,        /* mpirun has lost the daemon on `host`; never sent */
    NODE_KILLED,      /* `process`, the daemon `text`, was killed by `signal` */
    NODE_CONNECTED    /* the daemon is connected to mpirun */
} node_event_kind;

typedef struct node_event {
    node_event_kind kind;
    int node; /* from 1, in the order of mpirun's other hosts */
    int process, signal;
    char host[256]; /* as it calls itself */
    char text[128];
} node_event;

/* false: it is none. */
bool node_event_read(node_event *e, const char *payload, size_t n);

/* deepspeed --node_monitor SECRET DAEMON ARGUMENTS...: what mpirun runs in
 * place of DAEMON, which this starts. Returns its exit status. */
int node_monitor_run(int argc, char **argv);
