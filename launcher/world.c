/* launcher/world.c: which rank of which world this process is.
 *
 *     Open MPI    OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
 *     Hydra       PMI_RANK, PMI_SIZE, MPI_LOCALRANKID
 *     MVAPICH     MV2_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, where PMI_* are missing
 *     Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID
 *     none        the only rank
 *
 * An engine that started another number of ranks, or put them elsewhere than the world says, would train
 * on other devices than was asked for: that is an error.
 * SPDX-License-Identifier: MIT */
#include "world.h"

#include "base/list.h"
#include "base/mem.h"
#include "base/text.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- world_info ------------------------------------------------------------------------------------------ */

/* Value of a letter of base64, both alphabets; -1: it is none. */
static int digit(char c)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(letters, c) : NULL;
    return at ? (int)(at - letters) : c == '-' ? 62 : c == '_' ? 63 : -1;
}

/* false: it is not base64. */
static bool decode(const char *s, dsi_text *out)
{
    uint32_t bits = 0;
    int have = 0;
    for (; digit(*s) >= 0; s++) {
        bits = bits << 6 | (uint32_t)digit(*s);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        dsi_text_add_bytes(out, &(char){(char)(bits >> have & 0xff)}, 1);
    }
    return s[strspn(s, "=")] == 0;
}

static bool read_node(world_node *n, const char *name, json_t *slots)
{
    if (!json_is_array(slots)) return false;
    *n = (world_node){.name = dsi_strdup(name),
                      .slots = dsi_alloc((json_array_size(slots) + 1) * sizeof *n->slots),
                      .n_slots = (int)json_array_size(slots)};
    for (int i = 0; i < n->n_slots; i++) {
        json_t *slot = json_array_get(slots, (size_t)i);
        if (!json_is_integer(slot)) return false;
        n->slots[i] = (int)json_integer_value(slot);
    }
    return true;
}

bool world_read(world *w, const char *world_info)
{
    dsi_text text = {0};
    json_t *info = decode(world_info, &text) && text.s ? json_loads(text.s, 0, NULL) : NULL, *slots;
    const char *name;
    bool good = json_is_object(info);
    dsi_text_free(&text);
    *w = (world){0};
    if (good) {
        w->nodes = dsi_alloc((json_object_size(info) + 1) * sizeof *w->nodes);
        json_object_foreach(info, name, slots)
        {
            world_node *n = &w->nodes[w->n_nodes++];
            good = read_node(n, name, slots) && good;
            w->size += n->n_slots;
        }
    }
    json_decref(info);
    if (good && w->size > 0) return true;
    fprintf(stderr,
            "deepspeed: --world_info=%s: expected base64 of {\"host\": [device, ...], ...}\n",
            world_info);
    return false;
}

void world_free(world *w)
{
    for (int i = 0; i < w->n_nodes; i++) {
        dsi_free(w->nodes[i].name);
        dsi_free(w->nodes[i].slots);
    }
    dsi_free(w->nodes);
    *w = (world){0};
}

place world_place(const world *w, int rank)
{
    place p = {.rank = rank, .local_rank = rank};
    while (p.node < w->n_nodes - 1 && p.local_rank >= w->nodes[p.node].n_slots)
        p.local_rank -= w->nodes[p.node++].n_slots;
    return p;
}

/* ---- what the engine says -------------------------------------------------------------------------------- */

typedef struct engine_names {
    const char *rank, *size, *local_rank;
} engine_names;

static const engine_names engines[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}};
enum { ENGINES = sizeof engines / sizeof *engines };

/* -1: it is not set, or no number. */
static int number(const char *name)
{
    const char *text = getenv(name);
    char *end;
    long n = text ? strtol(text, &end, 10) : -1;
    return text && *text && !*end && n >= 0 && n < INT32_MAX ? (int)n : -1;
}

void world_forget_engine(void)
{
    for (int i = 0; i < ENGINES; i++) {
        unsetenv(engines[i].rank);
        unsetenv(engines[i].size);
        unsetenv(engines[i].local_rank);
    }
    unsetenv("PMI_FD");
    unsetenv("PMIX_RANK");
}

bool world_find_me(const world *w, int node, place *p, dsi_text *why)
{
    int i = 0, expected = w->size, first = 0;
    while (i < ENGINES && (number(engines[i].rank) < 0 || number(engines[i].size) < 0)) i++;
    int rank = i < ENGINES ? number(engines[i].rank) : 0;
    int size = i < ENGINES ? number(engines[i].size) : 1;
    int local_rank = i < ENGINES ? number(engines[i].local_rank) : -1;
    if (node >= w->n_nodes) {
        dsi_text_add(why, "--node_rank=%d: there are %d nodes", node, w->n_nodes);
        return false;
    }
    if (node >= 0) {
        expected = w->nodes[node].n_slots;
        for (int k = 0; k < node; k++) first += w->nodes[k].n_slots;
    }
    if (size != expected || rank >= size) {
        dsi_text_add(
            why,
            "%s says rank %d of %d, but there are to be %d: the processes were not "
            "started by the engine that was meant to (srun: --mpi=pmix for Open MPI, --mpi=pmi2 "
            "for MPICH)",
            i < ENGINES ? engines[i].size : "the environment", rank, size, expected);
        return false;
    }
    *p = world_place(w, first + rank);
    if (local_rank >= 0 && local_rank != p->local_rank) {
        char here[256] = "?";
        gethostname(here, sizeof here - 1);
        dsi_text_add(why,
                     "%s says that rank %d is number %d on %s, but it is to be number %d on %s: "
                     "the engine dealt the ranks to hosts in another order",
                     engines[i].local_rank, p->rank, local_rank, here, p->local_rank,
                     w->nodes[p->node].name);
        return false;
    }
    return true;
}

/* No engine forwards these to other machines. */
#define TMPDIR_WAS "DEEPSPEED_TMPDIR" /* "": it was not set */
#define SHARED     "DEEPSPEED_SHARED"

void world_set_folders(const char *tmpdir, const char *shared)
{
    const char *was = getenv("TMPDIR");
    if (*shared) setenv(SHARED, shared, 1);
    if (!*tmpdir) return;
    setenv(TMPDIR_WAS, was ? was : "", 1);
    setenv("TMPDIR", tmpdir, 1);
}

void world_take_folders(void)
{
    const char *was = getenv(TMPDIR_WAS), *shared = getenv(SHARED);
    if (shared) {
        setenv("OMPI_MCA_btl_vader_backing_directory", shared, 0);
        setenv("OMPI_MCA_osc_sm_backing_directory", shared, 0);
        unsetenv(SHARED);
    }
    if (!was) return;
    if (*was)
        setenv("TMPDIR", was, 1);
    else
        unsetenv("TMPDIR");
    unsetenv(TMPDIR_WAS);
}
