/* launcher/announce.c: DeepSpeed's lines of what is known before the start.
 *
 * They have the form of DeepSpeed's logger and go to stdout. DeepSpeed prints
 * all of them on each node; here a line that is the same on all nodes is
 * printed once, and others begin with the host's name, as pdsh would print
 * them.
 * SPDX-License-Identifier: MIT */
#include "argv.h"
#include "info.h"
#include "local_host.h"
#include "plan.h"

#include <stdio.h>
#include <string.h>

#define ANNOUNCE(host, ...) announce_line(host, __LINE__, __VA_ARGS__)
static void announce_line(const char *host, int line, const char *format, ...) DS_PRINTF(3, 4);

/* "worker-0: [2026-11-21 12:05:41,123] [INFO] [announce.c:30:plan_announce]
 * text" */
static void announce_line(const char *host, int line, const char *format, ...)
{
    va_list args;
    dsi_text t = {0};
    info_begin_at(&t, __FILE__, line, "plan_announce");
    va_start(args, format);
    dsi_text_add_args(&t, format, args);
    va_end(args);
    printf("%s%s%s\n", host ? host : "", host ? ": " : "", t.s);
    dsi_text_free(&t);
}

/* As Python prints a dict of lists: of slots, or with first >= 0 of ranks,
 * counted from first. */
static void add_dict(dsi_text *t, const launch_plan *p, int first)
{
    int rank = first;
    dsi_text_add(t, "{");
    for (int i = 0; i < p->n_hosts; i++) {
        dsi_text_add(t, "%s'%s': [", i ? ", " : "", p->hosts[i].name);
        for (int k = 0; k < p->hosts[i].n_slots; k++)
            dsi_text_add(t, "%s%d", k ? ", " : "", first < 0 ? p->hosts[i].slots[k] : rank++);
        dsi_text_add(t, "]");
    }
    dsi_text_add(t, "}");
}

static void announce_command(char *const *argv)
{
    dsi_text t = {0};
    for (; *argv; argv++) {
        if (t.n) dsi_text_add(&t, " ");
        text_add_shell(&t, *argv);
    }
    ANNOUNCE(NULL, "cmd = %s", t.s);
    dsi_text_free(&t);
}

/* The host of a line about one of several nodes. */
static const char *node_prefix(const launch_plan *p, int node)
{
    return p->n_hosts > 1 ? p->hosts[node].name : NULL;
}

/* Not where the user has hidden all GPUs: ranks leave the variable as it is
 * then. */
static void announce_devices(const launch_plan *p, int node)
{
    const ds_host *h = &p->hosts[node];
    dsi_text devices = {0};
    if (p->origin == HOSTS_LOCAL && local_host_gpus_hidden()) return;
    for (int k = 0; k < h->n_slots; k++) dsi_text_add(&devices, "%s%d", k ? "," : "", h->slots[k]);
    ANNOUNCE(node_prefix(p, node), "Setting CUDA_VISIBLE_DEVICES=%s", devices.s ? devices.s : "");
    dsi_text_free(&devices);
}

/* With several hosts only. */
static void announce_workers(const launch_plan *p)
{
    dsi_text names = {0};
    for (int i = 0; i < p->n_hosts; i++)
        dsi_text_add(&names, "%s%s", i ? "," : "", p->hosts[i].name);
    if (!p->o.master_addr && p->master_addr)
        ANNOUNCE(NULL, "Using IP address of %s for node %s", p->master_addr, p->hosts[0].name);
    ANNOUNCE(NULL, "Running on the following workers: %s", names.s);
    dsi_text_free(&names);
}

void plan_announce(const launch_plan *p)
{
    dsi_text slots = {0}, ranks = {0};
    if (options_silent(&p->o)) return;
    fputs(p->notices, stdout);
    if (p->n_hosts > 1) announce_workers(p);
    if (p->command) announce_command(p->command);
    add_dict(&slots, p, -1);
    add_dict(&ranks, p, 0);
    ANNOUNCE(NULL, "WORLD INFO DICT: %s", slots.s);
    for (int i = 0; i < p->n_hosts; i++)
        ANNOUNCE(node_prefix(p, i), "nnodes=%d, num_local_procs=%d, node_rank=%d", p->n_hosts,
                 p->hosts[i].n_slots, i);
    ANNOUNCE(NULL, "global_rank_mapping=defaultdict(<class 'list'>, %s)", ranks.s);
    ANNOUNCE(NULL, "dist_world_size=%d", p->world_size);
    for (int i = 0; i < p->n_hosts; i++) announce_devices(p, i);
    fflush(stdout);
    dsi_text_free(&slots);
    dsi_text_free(&ranks);
}
