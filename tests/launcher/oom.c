/* tests/launcher/oom.c: the kernel's count of processes killed for want of
 * memory, in stand-ins for /proc and /sys/fs/cgroup of several systems.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include "oom.h"

#include "base/file.h"

/* Writes a file below the stand-in, with its folders. */
static void put(const char *path, const char *text)
{
    char name[1000];
    snprintf(name, sizeof name, "%s", folder_path(path));
    char *slash = strrchr(name, '/');
    *slash = 0;
    CHECK_INT(dsi_mkdirs(name), DS_OK);
    *slash = '/';
    FILE *f = fopen(name, "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

#define V1_MOUNT \
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n" \
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
#define V1_EVENTS "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"
#define V2_EVENTS "low 0\nhigh 0\nmax 3\noom 9\noom_kill 5\noom_group_kill 0\n"

static const struct {
    const char *name, *group, *mounts, *file, *text;
    long count;
} cases[] = {
    {"v1, below the mounted top", "4:memory:/batch/job\n0::/\n",
     V1_MOUNT "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
     "sys/fs/cgroup/memory/batch/job/memory.oom_control", V1_EVENTS, 7},
    {"v1, in a container that sees its part", "4:cpu,memory:/docker/abc\n",
     V1_MOUNT "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,cpu,memory\n",
     "sys/fs/cgroup/memory/memory.oom_control", V1_EVENTS, 7},
    {"v1, a group below the part", "4:memory:/docker/abc/x\n",
     "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
     "sys/fs/cgroup/memory/x/memory.oom_control", V1_EVENTS, 7},
    {"v2, in a namespace", "0::/\n", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
     "sys/fs/cgroup/memory.events", V2_EVENTS, 5},
    {"v2, without one", "0::/system.slice/slurmd.service/job_7/step_0\n",
     "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n",
     "sys/fs/cgroup/system.slice/slurmd.service/job_7/step_0/memory.events", V2_EVENTS, 5},
    {"v2 beside v1 without memory", "1:cpu:/x\n0::/user.slice\n",
     V1_MOUNT "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
     "sys/fs/cgroup/unified/user.slice/memory.events", V2_EVENTS, 5},
    {"the root group: the machine's count", "0::/\n",
     "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "proc/vmstat",
     "pgfault 12\noom_kill 3\nnuma_hit 4\n", 3},
    {"nothing can be read", "", "", "proc/version", "Linux\n", 0}};

static void systems(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_make();
        put("proc/self/cgroup", cases[i].group);
        put("proc/self/mountinfo", cases[i].mounts);
        put(cases[i].file, cases[i].text);
        char root[1000];
        snprintf(root, sizeof root, "%s", folder_path(""));
        long n = oom_count_kills(root);
        if (n != cases[i].count) fail_msg("%s: %ld, want %ld", cases[i].name, n, cases[i].count);
        folder_remove();
    }
    CHECK(oom_count_kills("") >= 0);
}

TEST_MAIN(cmocka_unit_test(systems))
