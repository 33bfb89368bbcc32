/* tests/launcher/gpus.c: GPUs of machines that are folders: how many there are,
 * their NUMA nodes, and the cores of their ranks.
 * SPDX-License-Identifier: MIT */
#include "gpus.h"

#include "check.h"
#include "cores.h"
#include "folder.h"
#include "resources.h"

#include <sched.h>
#include <sys/stat.h>

/* Writes root/PATH and makes its folders. */
static void put(const char *root, const char *path, const char *text)
{
    char full[600];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *s = strchr(full + strlen(root) + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        mkdir(full, 0755);
        *s = '/';
    }
    FILE *f = fopen(full, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void put_pci(const char *root, const char *address, const char *vendor, const char *class,
                    const char *model, const char *node)
{
    const char *const file[] = {"vendor", "class", "device", "numa_node"};
    const char *const text[] = {vendor, class, model, node};
    for (int i = 0; i < 4; i++) {
        char path[200];
        snprintf(path, sizeof path, "sys/bus/pci/devices/%s/%s", address, file[i]);
        put(root, path, text[i]);
    }
}

/* Four GPUs on two nodes, whose order of addresses is not that of the nodes;
 * also a bridge, a sound device of NVIDIA's and a display of another maker. */
static const char *machine_of_four(void)
{
    const char *root = folder_make();
    for (int i = 0; i < 4; i++) {
        static const char *const device[] = {"dev/nvidia0", "dev/nvidia1", "dev/nvidia2",
                                             "dev/nvidia3"};
        put(root, device[i], "");
    }
    put(root, "dev/nvidiactl", "");
    put(root, "dev/nvidia-uvm", "");
    put_pci(root, "0000:c1:00.0", "0x10de\n", "0x030200\n", "0x2330\n", "0\n");
    put_pci(root, "0000:17:00.0", "0x10de\n", "0x030200\n", "0x2330\n", "1\n");
    put_pci(root, "0000:3d:00.0", "0x10de\n", "0x030000\n", "0x2330\n", "1\n");
    put_pci(root, "0001:02:00.0", "0x10de\n", "0x030200\n", "0x2330\n", "0\n");
    put_pci(root, "0000:3d:00.1", "0x10de\n", "0x040300\n", "0x22ba\n", "1\n");
    put_pci(root, "0000:05:00.0", "0x1a03\n", "0x030000\n", "0x2000\n", "0\n");
    put_pci(root, "0000:00:00.0", "0x8086\n", "0x060000\n", "0x09a2\n", "0\n");
    return root;
}

static void counts(void **state)
{
    (void)state;
    const char *root = machine_of_four();
    CHECK_INT(gpus_count(root), 4);
    folder_remove();
    root = folder_make();
    CHECK_INT(gpus_count(root), 0); /* without /dev */
    int gpu = 0, node;
    CHECK(!gpus_numa_nodes(root, &gpu, 1, &node));
    folder_remove();
}

static void nodes(void **state)
{
    (void)state;
    unsetenv("CUDA_DEVICE_ORDER");
    const char *root = machine_of_four();
    int gpu[] = {3, 0, 1, 2}, node[4];
    CHECK(gpus_numa_nodes(root, gpu, 4, node));
    CHECK_INT(node[0], 0), CHECK_INT(node[1], 1), CHECK_INT(node[2], 1), CHECK_INT(node[3], 0);
    int none = 4;
    CHECK(!gpus_numa_nodes(root, &none, 1, node));

    /* two models: by address only if the driver numbers them so */
    put_pci(root, "0000:c1:00.0", "0x10de\n", "0x030200\n", "0x20b0\n", "0\n");
    CHECK(!gpus_numa_nodes(root, gpu, 4, node));
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    CHECK(gpus_numa_nodes(root, gpu, 4, node));
    unsetenv("CUDA_DEVICE_ORDER");
    put_pci(root, "0000:c1:00.0", "0x10de\n", "0x030200\n", "0x2330\n", "-1\n");
    CHECK(!gpus_numa_nodes(root, gpu, 4, node)); /* a machine without NUMA */
    CHECK(gpus_numa_nodes(root, gpu, 3, node));
    put(root, "dev/nvidia4", ""); /* one more than the addresses */
    CHECK(!gpus_numa_nodes(root, gpu, 3, node));
    folder_remove();
}

/* Two nodes with a processor each that this process may use. */
static void cores_near_gpus(void **state)
{
    (void)state;
    cores all, share;
    int *counts, n_nodes, node[] = {1, 0, 1};
    char one[20], two[20];
    cores_of_machine(&all, &counts, &n_nodes);
    if (all.n < 2) skip();
    const char *root = machine_of_four();
    snprintf(one, sizeof one, "%d\n", all.at[0]);
    snprintf(two, sizeof two, "%d-%d\n", all.at[1], all.at[1] + 1000); /* more than it may use */
    put(root, "sys/devices/system/node/node0/cpulist", one);
    put(root, "sys/devices/system/node/node1/cpulist", two);
    CHECK(cores_share_of_node(root, node, 1, 2, &share));
    CHECK_INT(share.n, 1);
    CHECK_INT(share.at[0], all.at[0]);
    dsi_list_free(&share);
    CHECK(cores_share_of_node(root, node, 0, 2, &share));
    CHECK(share.n >= 1 && share.at[0] == all.at[1]);
    dsi_list_free(&share);

    /* two ranks near one processor: none for either */
    snprintf(two, sizeof two, "%d\n", all.at[1]);
    put(root, "sys/devices/system/node/node1/cpulist", two);
    CHECK(!cores_share_of_node(root, node, 2, 3, &share));
    node[0] = 7;
    CHECK(!cores_share_of_node(root, node, 0, 3, &share)); /* no such node */
    folder_remove();
    dsi_list_free(&all);
    free(counts);
}

static void too_many_ranks(void **state)
{
    (void)state;
    unsetenv("LOCAL_SIZE");
    options o = {.num_gpus = 3};
    CHECK_INT(resources_check_gpus(&o, 0), DS_OK);
    CHECK_INT(resources_check_gpus(&o, 3), DS_OK);
    CHECK_INT(resources_check_gpus(&o, 2), DS_EINVAL);
    CHECK_ERROR("--num_gpus 3: this machine has 2 GPUs: expected at most 2; for ranks on the CPU "
                "--num_devs 3");
    setenv("LOCAL_SIZE", "8", 1);
    CHECK_INT(resources_check_gpus(&o, 2), DS_OK);
    unsetenv("LOCAL_SIZE");
    o = (options){.num_gpus = -1, .num_devs = 3};
    CHECK_INT(resources_check_gpus(&o, 2), DS_OK);
}

TEST_MAIN(cmocka_unit_test(counts), cmocka_unit_test(nodes), cmocka_unit_test(cores_near_gpus),
          cmocka_unit_test(too_many_ranks))
