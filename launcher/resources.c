/* launcher/resources.c: which hosts and slots a command line asks for.
 *
 * A hostfile says it; or Slurm; or a number of nodes that will join; or else it is this machine, with the devices of
 * CUDA_VISIBLE_DEVICES or all that there are. --include, --exclude and the counts are applied to that.
 * SPDX-License-Identifier: MIT */
#include "resources.h"

#include "local_host.h"
#include "select.h"

#include "base/error.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static bool is_set(const char *text) { return text && *text; }

static int nodes_asked(const options *o) { return o->num_nodes > 0 ? o->num_nodes : o->nnodes; }

bool resources_per_node(const options *o, bool have_hostfile)
{
    if (o->no_ssh || o->nnodes > 1) return true;
    return o->node_rank >= 0 && (have_hostfile || o->num_nodes > 1);
}

/* ---- this machine ----------------------------------------------------------------------------------------- */

/* The largest number in a list of devices, so that all of them can be slots. */
static int largest(const char *list)
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

/* torch.distributed.launch: ranks run on the first devices of the list, in its order. false: it has fewer. */
static bool take_first(ds_host *host, const char *list, int n)
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

/* DeepSpeed's rule: CUDA_VISIBLE_DEVICES is an --include unless an option says what to use. */
static ds_status from_visible(ds_hosts *h, dsi_text *said, const options *o, const char *visible,
                              bool known)
{
    if (o->nproc_per_node > 0 && args_per_node(o) == o->nproc_per_node) {
        if (!take_first(&h->at[0], visible, o->nproc_per_node))
            host_set_slots(&h->at[0], o->nproc_per_node);
        return DS_OK;
    }
    dsi_text_add(said, "Detected VISIBLE_DEVICES=%s", visible);
    if (is_set(o->include) || is_set(o->exclude) || o->num_nodes > 1 || args_per_node(o) > 0) {
        dsi_text_add(said, " but ignoring it because one or several of --include/--exclude/"
                           "--num_gpus/--num_nodes cl args were used. If you want to use "
                           "CUDA_VISIBLE_DEVICES don't pass any of these arguments to "
                           "deepspeed.\n");
        return DS_OK;
    }
    dsi_text include = {0};
    dsi_text_add(&include, "localhost:%s", visible);
    dsi_text_add(said, ": setting --include=%s\n", include.s);
    if (!known) host_set_slots(&h->at[0], largest(visible) + 1);
    ds_status status = select_hosts(h, include.s, NULL);
    if (status != DS_OK) dsi_fail(status, "CUDA_VISIBLE_DEVICES, as %s", ds_error());
    dsi_text_free(&include);
    return status;
}

static ds_status from_machine(ds_hosts *h, dsi_text *said, const options *o)
{
    bool known;
    int devices = here_devices(&known);
    if (devices < 0) return DS_EINVAL;
    if (!devices) return dsi_fail(DS_EINVAL, "no device: LOCAL_SIZE is 0");
    hosts_add(h, "localhost", strlen("localhost"), devices);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && !here_gpus_hidden() ? from_visible(h, said, o, visible, known) : DS_OK;
}

/* ---- nodes without names ------------------------------------------------------------------------------------ */

static void add_nameless(ds_hosts *h, int nodes, int per_node)
{
    for (int i = 0; i < nodes; i++) {
        dsi_text name = {0};
        dsi_text_add(&name, "node-%d", i);
        hosts_add(h, name.s, name.n, per_node);
        dsi_text_free(&name);
    }
}

/* Each node has as many slots as this one, until it has said what it has. */
static ds_status from_nodes(ds_hosts *h, dsi_text *said, const options *o)
{
    ds_hosts here = {0};
    ds_status status = from_machine(&here, said, o);
    add_nameless(h, nodes_asked(o) > 0 ? nodes_asked(o) : 1, 0);
    for (int i = 0; i < h->n && status == DS_OK; i++) {
        host_set_slots(&h->at[i], here.at[0].n_slots);
        memcpy(h->at[i].slots, here.at[0].slots, (size_t)here.at[0].n_slots * sizeof(int));
    }
    hosts_free(&here);
    return status;
}

/* ---- Slurm -------------------------------------------------------------------------------------------------- */

/* "4", or "4(x2)" where all nodes have as many; 0 if they have not ("4(x2),3"), or nothing is said. */
static ds_status slurm_number(const char *name, int *n)
{
    const char *text = getenv(name);
    char *end = NULL;
    long slots = text ? strtol(text, &end, 10) : 0;
    *n = 0;
    if (!text || !*text) return DS_OK;
    if (end == text || !strchr("(,", *end) || slots < 1 || slots > MOST_SLOTS)
        return dsi_fail(DS_EINVAL,
                        "%s=%s: expected how many tasks or GPUs a node has, as 4 or 4(x2)", name,
                        text);
    if (!strchr(text, ',')) *n = (int)slots;
    return DS_OK;
}

static ds_status from_slurm(ds_hosts *h, origin *from, const options *o)
{
    static const char *const names[] = {"SLURM_NTASKS_PER_NODE", "SLURM_GPUS_ON_NODE",
                                        "SLURM_TASKS_PER_NODE"};
    const char *list = getenv("SLURM_JOB_NODELIST");
    ds_status status = DS_OK;
    int slots = 0;
    *from = list ? FROM_SLURM : FROM_SRUN;
    for (size_t i = 0; list && !slots && status == DS_OK && i < sizeof names / sizeof *names; i++)
        status = slurm_number(names[i], &slots);
    if (status != DS_OK) return status;
    if (!slots) slots = 1;
    if (list) return hosts_expand(h, "SLURM_JOB_NODELIST", list, slots);
    add_nameless(h, nodes_asked(o) > 0 ? nodes_asked(o) : 1, slots);
    return DS_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------------- */

static ds_status find(ds_hosts *h, origin *from, dsi_text *said, const options *o)
{
    const char *hostfile = o->hostfile ? o->hostfile : DEFAULT_HOSTFILE;
    *from = FROM_HOSTFILE;
    if (o->hostfile || dsi_file_exists(hostfile)) {
        ds_status status = hosts_read(h, hostfile);
        if (status == DS_OK && o->nnodes > h->n)
            return dsi_fail(DS_EINVAL, "--nnodes %d: %s names %d host%s", o->nnodes, hostfile, h->n,
                            h->n == 1 ? "" : "s");
        return status;
    }
    if (o->launcher && !strcasecmp(o->launcher, "slurm")) return from_slurm(h, from, o);
    *from = FROM_NODES;
    if (resources_per_node(o, false)) return from_nodes(h, said, o);
    *from = FROM_MACHINE;
    if (o->num_nodes > 1)
        return dsi_fail(DS_EINVAL,
                        "--num_nodes %d: there is no hostfile that names them; give --hostfile, or "
                        "--node_rank on each node",
                        o->num_nodes);
    return from_machine(h, said, o);
}

/* More ranks than slots are what was asked for, as in DeepSpeed; on GPUs it is seldom what was meant. */
static void tell_overuse(const ds_hosts *h, origin from, dsi_text *said, int per_node)
{
    bool known = true;
    if (from == FROM_MACHINE) here_devices(&known);
    for (int i = 0; known && i < h->n && (from == FROM_MACHINE || from == FROM_HOSTFILE); i++)
        if (h->at[i].n_slots < per_node) {
            dsi_text_add(said, "%s has %d slot%s, on which %d ranks will run\n", h->at[i].name,
                         h->at[i].n_slots, h->at[i].n_slots == 1 ? "" : "s", per_node);
            return;
        }
}

/* DeepSpeed keeps a host with slots=0: its address may become MASTER_ADDR, though no rank is there to answer. Not
 * where a number of ranks a host is asked for, which hosts get whatever they have. */
static void leave_out_empty(ds_hosts *h, dsi_text *said)
{
    for (int i = 0; i < h->n; i++)
        if (!h->at[i].n_slots)
            dsi_text_add(said, "%s has no slots (slots=0), and is left out\n", h->at[i].name);
    select_some(h);
}

ds_status resources_find(ds_hosts *h, origin *from, dsi_text *said, const options *o)
{
    bool filtered = is_set(o->include) || is_set(o->exclude);
    if (filtered && (o->num_nodes >= 0 || args_per_node(o) >= 0))
        return dsi_fail(DS_EINVAL, "--include and --exclude say it all: expected no --num_nodes, "
                                   "--num_gpus beside them");
    ds_status status = find(h, from, said, o);
    if (status == DS_OK) status = select_hosts(h, o->include, o->exclude);
    if (status != DS_OK) return status;
    if (args_per_node(o) <= 0) leave_out_empty(h, said);
    select_counts(h, nodes_asked(o), -1);
    tell_overuse(h, *from, said, args_per_node(o));
    select_counts(h, -1, args_per_node(o));
    return DS_OK;
}
