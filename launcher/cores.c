/* launcher/cores.c: the processors that a rank runs on.
 *
 * Three short files of /sys have all that is needed. hwloc looks at caches and
 * devices too, which takes longer than the whole start of a rank. Memory needs
 * no binding: Linux puts a page on the node of the thread that first touches
 * it, and numactl -m, which DeepSpeed uses, is forbidden in many containers.
 * SPDX-License-Identifier: MIT */
#include "cores.h"

#include "gpus.h"

#include "base/mem.h"

#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 4096, CPUS = 8192 /* processors that a set can hold */ };

/* Reads a number and the blanks around it; -1: there is none. */
static int read_processor(const char **s)
{
    char *end;
    *s += strspn(*s, " \t");
    if (!isdigit((unsigned char)**s)) return -1;
    long n = strtol(*s, &end, 10);
    *s = end + strspn(end, " \t\n");
    return n < CPUS ? (int)n : -1;
}

bool cores_parse(const char *list, cores *c, dsi_text *why)
{
    const char *s = list;
    *c = (cores){0};
    do {
        int low = read_processor(&s), high = low;
        if (low >= 0 && *s == '-') s++, high = read_processor(&s);
        const char *wrong = low < 0 || high < 0 || (*s && *s != ',')
                                ? "is not a number or FIRST-LAST"
                            : high < low                     ? "ends before it begins"
                            : c->n && low <= c->at[c->n - 1] ? "is not above the one before"
                                                             : NULL;
        if (wrong) {
            dsi_text_add(why, "\"%s\": a part of it %s (0,2-5 are the processors 0, 2, 3, 4, 5)",
                         list, wrong);
            dsi_list_free(c);
            return false;
        }
        for (int cpu = low; cpu <= high; cpu++) dsi_list_add(c, cpu);
    } while (*s++ == ',');
    return true;
}

/* ---- the machine -------------------------------------------------------------------- */

static bool cores_read_file(const char *path, cores *c)
{
    char line[LINE];
    dsi_text why = {0};
    FILE *f = fopen(path, "r");
    bool good = f && fgets(line, sizeof line, f) && cores_parse(line, c, &why);
    dsi_text_free(&why);
    if (f) fclose(f);
    return good;
}

/* Is cpu the first one of its core that this process may use?
 * (Hyper-threading.) */
static bool is_first_of_core(const char *root, int cpu, const cpu_set_t *may)
{
    cores siblings;
    dsi_text path = dsi_text_of("%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
                                root, cpu);
    bool read = cores_read_file(path.s, &siblings);
    dsi_text_free(&path);
    if (!read) return true;
    int first = cpu;
    for (int i = siblings.n - 1; i >= 0; i--)
        if (CPU_ISSET_S((size_t)siblings.at[i], CPUS / 8, may)) first = siblings.at[i];
    dsi_list_free(&siblings);
    return first == cpu;
}

/* To be freed with dsi_free. */
static cpu_set_t *allowed_processors(void)
{
    cpu_set_t *set = dsi_alloc(CPUS / 8);
    if (sched_getaffinity(0, CPUS / 8, set)) CPU_SET_S(0, CPUS / 8, set);
    return set;
}

/* Adds those of the NUMA node that are in `may`, and removes them there. */
static void cores_add_node(cores *c, const cores *of_node, cpu_set_t *may, int **node, int *n_nodes)
{
    int before = c->n;
    for (int i = 0; i < of_node->n; i++) {
        int cpu = of_node->at[i];
        if (CPU_ISSET_S((size_t)cpu, CPUS / 8, may) && is_first_of_core("", cpu, may))
            dsi_list_add(c, cpu);
    }
    for (int i = 0; i < of_node->n; i++) CPU_CLR_S((size_t)of_node->at[i], CPUS / 8, may);
    if (c->n == before) return;
    *node = dsi_realloc(*node, (size_t)(*n_nodes + 1) * sizeof **node);
    (*node)[(*n_nodes)++] = c->n - before;
}

/* Walks /sys/devices/system/node. Processors that share a physical core
 * (hyper-threading) count once. */
void cores_of_machine(cores *c, int **node, int *n_nodes)
{
    cpu_set_t *may = allowed_processors();
    cores nodes = {0}, of_node = {0};
    *c = (cores){0};
    *node = NULL;
    *n_nodes = 0;
    cores_read_file("/sys/devices/system/node/online", &nodes);
    for (int k = 0; k < nodes.n; k++) {
        char path[100];
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", nodes.at[k]);
        if (!cores_read_file(path, &of_node)) continue; /* a node that has only memory */
        cores_add_node(c, &of_node, may, node, n_nodes);
        dsi_list_free(&of_node);
    }
    dsi_list_free(&nodes);
    /* those of no node: all of them, on a kernel without NUMA */
    for (int cpu = 0; cpu < CPUS; cpu++)
        if (CPU_ISSET_S((size_t)cpu, CPUS / 8, may)) dsi_list_add(&of_node, cpu);
    cores_add_node(c, &of_node, may, node, n_nodes);
    dsi_list_free(&of_node);
    dsi_free(may);
}

/* With several nodes and a number of ranks that is a multiple of theirs, the
 * smallest node decides the size of a share. */
bool cores_share(const cores *all, const int *node, int n_nodes, int r, int n, cores *share)
{
    int each = all->n / n, begin = each * r;
    *share = (cores){0};
    if (each < 1) return false;
    if (n_nodes > 1 && n % n_nodes == 0) { /* equal parts of each node */
        int ranks = n / n_nodes, mine = r / ranks, least = node[0];
        for (int k = 1; k < n_nodes; k++) least = node[k] < least ? node[k] : least;
        if (least / ranks >= 1) {
            each = least / ranks;
            begin = each * (r % ranks);
            for (int k = 0; k < mine; k++) begin += node[k];
        }
    }
    for (int i = 0; i < each; i++) dsi_list_add(share, all->at[begin + i]);
    return true;
}

bool cores_share_of_node(const char *root, const int *node, int r, int n, cores *share)
{
    cores of_node = {0};
    int before = 0, ranks = 0, kept = 0;
    *share = (cores){0};
    for (int i = 0; i < n; i++) {
        before += i < r && node[i] == node[r];
        ranks += node[i] == node[r];
    }
    dsi_text path = dsi_text_of("%s/sys/devices/system/node/node%d/cpulist", root, node[r]);
    if (cores_read_file(path.s, &of_node)) {
        cpu_set_t *may = allowed_processors();
        for (int i = 0; i < of_node.n; i++) {
            int cpu = of_node.at[i];
            if (CPU_ISSET_S((size_t)cpu, CPUS / 8, may) && is_first_of_core(root, cpu, may))
                of_node.at[kept++] = cpu;
        }
        dsi_free(may);
    }
    dsi_text_free(&path);
    int each = kept / ranks;
    for (int i = 0; i < each; i++) dsi_list_add(share, of_node.at[each * before + i]);
    dsi_list_free(&of_node);
    return each > 0;
}

/* Of the ranks that are near their GPUs: true if each of them has a core. All
 * ranks decide the same. */
static bool share_near_gpu(const int *gpu, int r, int n, cores *share)
{
    int *node = dsi_alloc((size_t)n * sizeof *node);
    cores one;
    bool near = gpu && gpus_numa_nodes("", gpu, n, node);
    for (int i = 0; i < n && near; i++) {
        near = cores_share_of_node("", node, i, n, &one);
        dsi_list_free(&one);
    }
    if (near) near = cores_share_of_node("", node, r, n, share);
    dsi_free(node);
    return near;
}

/* Equal parts of the list, or of the machine. */
static bool share_of_all(const char *list, int r, int n, cores *share, dsi_text *why)
{
    cores all;
    int *node = NULL, n_nodes = 0;
    if (list && !cores_parse(list, &all, why)) return false;
    if (!list) cores_of_machine(&all, &node, &n_nodes);
    bool good = cores_share(&all, node, n_nodes, r, n, share);
    if (!good)
        dsi_text_add(why, "--bind_cores_to_rank: %d cores for %d ranks: each needs one at least",
                     all.n, n);
    dsi_free(node);
    dsi_list_free(&all);
    return good;
}

/* Threads that the program starts later inherit the binding. */
bool cores_bind(const char *list, const int *gpu, int r, int n, dsi_text *why)
{
    cores share;
    char threads[20];
    bool near = !list && share_near_gpu(gpu, r, n, &share);
    if (!near && !share_of_all(list, r, n, &share, why)) return false;
    cpu_set_t *set = dsi_alloc(CPUS / 8);
    for (int i = 0; i < share.n; i++) CPU_SET_S((size_t)share.at[i], CPUS / 8, set);
    bool good = sched_setaffinity(0, CPUS / 8, set) == 0;
    if (!good)
        dsi_text_add(why, "--bind_cores_to_rank: processors %d to %d of this machine: %s",
                     share.at[0], share.at[share.n - 1], strerror(errno));
    snprintf(threads, sizeof threads, "%d", share.n);
    if (good) setenv("OMP_NUM_THREADS", threads, 1);
    dsi_free(set);
    dsi_list_free(&share);
    return good;
}
