/* launcher/resources.c: the hosts and slots that a command line asks for.
 *
 * The first that applies: a hostfile; the runner's own hosts (Slurm's); a
 * number of nodes that will join; this machine, with the devices of
 * CUDA_VISIBLE_DEVICES or with all its devices. --include, --exclude and the
 * counts are then applied to those.
 * SPDX-License-Identifier: MIT */
#include "resources.h"

#include "gpus.h"
#include "local_host.h"
#include "select.h"

#include "base/error.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static bool is_set(const char *text) { return text && *text; }

/* Without a hostfile there is one node, this machine, unless a number of nodes
 * was given. */
bool resources_per_node(const options *o, bool have_hostfile)
{
    if (!have_hostfile && options_nodes(o) < 2) return false;
    return o->no_ssh || o->nnodes > 1 || o->node_rank >= 0;
}

/* ---- this machine ------------------------------------------------------------ */

/* The largest number in a list of devices. */
static int largest_device(const char *list)
{
    long most = 0;
    for (const char *s = list; *s;) {
        char *end;
        long n = strtol(s, &end, 10);
        if (n > most) most = n;
        s = end == s ? s + 1 : end;
    }
    return most < MOST_SLOTS ? (int)most : MOST_SLOTS - 1;
}

/* As torch.distributed.launch: the slots are the first n devices of the list,
 * in its order. false: the list is shorter. */
static bool set_first_devices(ds_host *host, const char *list, int n)
{
    host_set_slots(host, n);
    for (int i = 0; i < n; i++) {
        char *end;
        long slot = strtol(list, &end, 10);
        if (end == list || slot < 0 || slot >= MOST_SLOTS) return false;
        host->slots[i] = (int)slot;
        list = *end == ',' ? end + 1 : end;
    }
    return true;
}

/* As in DeepSpeed, CUDA_VISIBLE_DEVICES is an --include unless an option
 * selects devices. known: the number of devices of this machine is known. */
static ds_status resources_of_visible(ds_hosts *h, dsi_text *notices, const options *o,
                                      const char *visible, bool known)
{
    if (o->nproc_per_node > 0 && options_ranks_per_node(o) == o->nproc_per_node) {
        if (!set_first_devices(&h->at[0], visible, o->nproc_per_node))
            host_set_slots(&h->at[0], o->nproc_per_node);
        return DS_OK;
    }
    dsi_text_add(notices, "Detected VISIBLE_DEVICES=%s", visible);
    if (is_set(o->include) || is_set(o->exclude) || o->num_nodes > 1 ||
        options_ranks_per_node(o) > 0) {
        dsi_text_add(notices, " but ignoring it because one or several of --include/--exclude/"
                              "--num_gpus/--num_nodes cl args were used. If you want to use "
                              "CUDA_VISIBLE_DEVICES don't pass any of these arguments to "
                              "deepspeed.\n");
        return DS_OK;
    }
    dsi_text include = dsi_text_of("localhost:%s", visible);
    dsi_text_add(notices, ": setting --include=%s\n", include.s);
    if (!known) host_set_slots(&h->at[0], largest_device(visible) + 1);
    ds_status status = select_hosts(h, include.s, NULL);
    if (status != DS_OK) dsi_fail(status, "CUDA_VISIBLE_DEVICES, as %s", ds_error());
    dsi_text_free(&include);
    return status;
}

/* One host, localhost, with all devices or those of CUDA_VISIBLE_DEVICES. */
static ds_status resources_of_machine(ds_hosts *h, dsi_text *notices, const options *o)
{
    bool known;
    int devices = local_host_devices(&known);
    if (devices < 0) return DS_EINVAL;
    if (!devices) return dsi_fail(DS_EINVAL, "no device: LOCAL_SIZE is 0");
    hosts_add(h, "localhost", strlen("localhost"), devices);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && !local_host_gpus_hidden()
               ? resources_of_visible(h, notices, o, visible, known)
               : DS_OK;
}

/* ---- nodes without names ----------------------------------------------------- */

/* Until a node has joined it counts as having the slots of this one. */
static ds_status resources_of_nodes(ds_hosts *h, dsi_text *notices, const options *o)
{
    ds_hosts here = {0};
    ds_status status = resources_of_machine(&here, notices, o);
    hosts_add_numbered(h, options_nodes(o), 0);
    for (int i = 0; i < h->n && status == DS_OK; i++) {
        host_set_slots(&h->at[i], here.at[0].n_slots);
        memcpy(h->at[i].slots, here.at[0].slots, (size_t)here.at[0].n_slots * sizeof(int));
    }
    hosts_free(&here);
    return status;
}

/* ---- all of them ------------------------------------------------------------- */

static ds_status find_all(ds_hosts *h, host_origin *origin, dsi_text *notices, const options *o,
                          ds_status (*find_hosts)(ds_hosts *, host_origin *, const options *))
{
    const char *hostfile = o->hostfile ? o->hostfile : DEFAULT_HOSTFILE;
    *origin = HOSTS_OF_FILE;
    if (o->hostfile || dsi_file_exists(hostfile)) return hosts_read(h, hostfile);
    if (find_hosts) return find_hosts(h, origin, o);
    *origin = HOSTS_JOINING;
    if (resources_per_node(o, false)) return resources_of_nodes(h, notices, o);
    *origin = HOSTS_LOCAL;
    if (o->num_nodes > 1)
        return dsi_fail(DS_EINVAL,
                        "--num_nodes %d: there is no hostfile that names them; give --hostfile, or "
                        "--node_rank on each node",
                        o->num_nodes);
    return resources_of_machine(h, notices, o);
}

ds_status resources_check_gpus(const options *o, int gpus)
{
    if (!gpus || o->num_gpus <= gpus || getenv("LOCAL_SIZE")) return DS_OK;
    return dsi_fail(
        DS_EINVAL,
        "--num_gpus %d: this machine has %d GPU%s: expected at most %d; for ranks on the "
        "CPU --num_devs %d",
        o->num_gpus, gpus, gpus == 1 ? "" : "s", gpus, o->num_gpus);
}

/* More ranks than slots are allowed, as in DeepSpeed; on GPUs they are seldom
 * what was meant, so a notice mentions them. */
static void note_overuse(const ds_hosts *h, host_origin origin, dsi_text *notices, int per_node)
{
    bool known = true;
    if (origin == HOSTS_LOCAL) local_host_devices(&known);
    for (int i = 0; known && i < h->n && (origin == HOSTS_LOCAL || origin == HOSTS_OF_FILE); i++)
        if (h->at[i].n_slots < per_node) {
            dsi_text_add(notices, "%s has %d slot%s, on which %d ranks will run\n", h->at[i].name,
                         h->at[i].n_slots, h->at[i].n_slots == 1 ? "" : "s", per_node);
            return;
        }
}

/* DeepSpeed keeps a host with slots=0, and its address may become MASTER_ADDR
 * though no rank runs there. */
static void remove_empty(ds_hosts *h, dsi_text *notices)
{
    for (int i = 0; i < h->n; i++)
        if (!h->at[i].n_slots)
            dsi_text_add(notices, "%s has no slots (slots=0), and is left out\n", h->at[i].name);
    select_nonempty(h);
}

/* A job on fewer hosts than were asked for would only be slower. */
static ds_status check_node_count(const ds_hosts *h, host_origin origin, const options *o)
{
    const char *hostfile = o->hostfile ? o->hostfile : DEFAULT_HOSTFILE;
    if (options_nodes(o) <= h->n) return DS_OK;
    return dsi_fail(DS_EINVAL, "--%s %d: %s %s %d host%s",
                    o->num_nodes > 0 ? "num_nodes" : "nnodes", options_nodes(o),
                    origin == HOSTS_OF_FILE ? hostfile : "the job",
                    origin == HOSTS_OF_FILE ? "names" : "has", h->n, h->n == 1 ? "" : "s");
}

ds_status resources_find(ds_hosts *h, host_origin *origin, dsi_text *notices, const options *o,
                         ds_status (*find_hosts)(ds_hosts *, host_origin *, const options *))
{
    bool filtered = is_set(o->include) || is_set(o->exclude);
    if (filtered && (o->num_nodes >= 0 || options_ranks_per_node(o) >= 0))
        return dsi_fail(DS_EINVAL, "--include and --exclude select all: expected no --num_nodes, "
                                   "--num_gpus beside them");
    ds_status status = find_all(h, origin, notices, o, find_hosts);
    if (status == DS_OK) status = select_hosts(h, o->include, o->exclude);
    if (status != DS_OK) return status;
    /* with a number of ranks per host, all hosts get that number */
    if (options_ranks_per_node(o) <= 0) remove_empty(h, notices);
    status = *origin == HOSTS_LOCAL
                 ? resources_check_gpus(o, local_host_gpus_hidden() ? 0 : gpus_count(""))
                 : check_node_count(h, *origin, o);
    if (status != DS_OK) return status;
    select_counts(h, options_nodes(o), -1);
    note_overuse(h, *origin, notices, options_ranks_per_node(o));
    select_counts(h, -1, options_ranks_per_node(o));
    return DS_OK;
}
