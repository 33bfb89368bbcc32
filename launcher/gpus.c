/* launcher/gpus.c: see gpus.h.
 *
 * The driver numbers GPUs of one model by their PCI address, and so does this;
 * of several models the fastest is number 0, unless CUDA_DEVICE_ORDER is
 * PCI_BUS_ID.
 * SPDX-License-Identifier: MIT */
#include "gpus.h"

#include "base/list.h"
#include "base/text.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int gpus_count(const char *root)
{
    static const char prefix[] = "nvidia";
    int n = 0;
    dsi_text path = dsi_text_of("%s/dev", root);
    DIR *dev = opendir(path.s);
    for (struct dirent *e; dev && (e = readdir(dev));) {
        const char *number = e->d_name + sizeof prefix - 1;
        if (!strncmp(e->d_name, prefix, sizeof prefix - 1) && *number &&
            !number[strspn(number, "0123456789")])
            n++;
    }
    if (dev) closedir(dev);
    dsi_text_free(&path);
    return n;
}

typedef struct pci_gpu {
    unsigned address[4]; /* domain, bus, slot, function */
    int model, node;
} pci_gpu;

typedef struct pci_gpus {
    DSI_LIST(pci_gpu)
} pci_gpus;

/* A number that a file of a PCI device has, or `otherwise`. */
static int pci_number(const char *root, const char *device, const char *file, int otherwise)
{
    dsi_text path = dsi_text_of("%s/sys/bus/pci/devices/%s/%s", root, device, file);
    char line[32];
    FILE *f = fopen(path.s, "r");
    int n = f && fgets(line, sizeof line, f) ? (int)strtol(line, NULL, 0) : otherwise;
    if (f) fclose(f);
    dsi_text_free(&path);
    return n;
}

static int compare_addresses(const void *a, const void *b)
{
    const unsigned *x = ((const pci_gpu *)a)->address, *y = ((const pci_gpu *)b)->address;
    for (int i = 0; i < 4; i++)
        if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
    return 0;
}

/* Display and 3D controllers of NVIDIA, by address. */
static pci_gpus list_pci_gpus(const char *root)
{
    enum { NVIDIA = 0x10de, DISPLAY = 0x0300, CONTROLLER_3D = 0x0302 };
    pci_gpus all = {0};
    dsi_text path = dsi_text_of("%s/sys/bus/pci/devices", root);
    DIR *devices = opendir(path.s);
    for (struct dirent *e; devices && (e = readdir(devices));) {
        pci_gpu g;
        unsigned *a = g.address;
        if (sscanf(e->d_name, "%x:%x:%x.%x", &a[0], &a[1], &a[2], &a[3]) != 4) continue;
        int class = pci_number(root, e->d_name, "class", 0) >> 8;
        if (pci_number(root, e->d_name, "vendor", 0) != NVIDIA) continue;
        if (class != DISPLAY && class != CONTROLLER_3D) continue;
        g.model = pci_number(root, e->d_name, "device", 0);
        g.node = pci_number(root, e->d_name, "numa_node", -1);
        dsi_list_add(&all, g);
    }
    if (devices) closedir(devices);
    dsi_text_free(&path);
    if (all.n) qsort(all.at, (size_t)all.n, sizeof *all.at, compare_addresses);
    return all;
}

bool gpus_numa_nodes(const char *root, const int *gpu, int n, int *node)
{
    pci_gpus all = list_pci_gpus(root);
    const char *order = getenv("CUDA_DEVICE_ORDER");
    bool by_address = order && !strcmp(order, "PCI_BUS_ID");
    bool known = all.n && all.n == gpus_count(root);
    for (int i = 1; i < all.n; i++)
        known = known && (by_address || all.at[i].model == all.at[0].model);
    for (int i = 0; i < n && known; i++) {
        known = gpu[i] >= 0 && gpu[i] < all.n && all.at[gpu[i]].node >= 0;
        if (known) node[i] = all.at[gpu[i]].node;
    }
    dsi_list_free(&all);
    return known;
}
