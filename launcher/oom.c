/* launcher/oom.c: has the kernel killed a process for want of memory?
 *
 * /proc/self/cgroup names the control groups of this process, as paths in their
 * hierarchies, and /proc/self/mountinfo which part of a hierarchy is mounted
 * where. A container often sees a part only. Version 2 counts in memory.events,
 * version 1 in memory.oom_control, each for the group of the killed process. The
 * root group of version 2 has no such file; then the machine's count serves.
 * SPDX-License-Identifier: MIT */
#include "oom.h"

#include "base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number behind "oom_kill " in a file; -1: it is not there. */
static long oom_read_count(const char *path)
{
    char line[200];
    long n = -1;
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "oom_kill %ld", &n);
    if (f) fclose(f);
    return n;
}

/* Is "memory" one of the words between commas? */
static bool has_memory(const char *words)
{
    for (const char *s = words; (s = strstr(s, "memory")); s++)
        if ((s == words || s[-1] == ',') && (s[6] == ',' || s[6] == 0)) return true;
    return false;
}

/* The path of this process's group of memory, or, v2, of the one hierarchy that
 * version 2 has. */
static bool oom_find_group(const char *root, bool v2, char *path, size_t room)
{
    char name[4200], line[4300], words[256];
    int number, begin;
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *f = fopen(name, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        *words = 0;
        begin = 0;
        if (sscanf(line, "%d:%255[^:]:%n", &number, words, &begin) < 1) continue;
        if (!begin) sscanf(line, "%d::%n", &number, &begin);
        found = begin && (v2 ? number == 0 && !*words : has_memory(words));
        if (found) snprintf(path, room, "%s", line + begin);
    }
    if (f) fclose(f);
    return found;
}

/* The folder of the group: a line of mountinfo is "ID PARENT DEVICE ROOT POINT
 * OPTIONS... - TYPE SOURCE OPTIONS". */
static bool oom_find_folder(const char *root, bool v2, const char *group, dsi_text *folder)
{
    char name[4200], line[8400], part[4096], point[4096], type[64], options[2048];
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *f = fopen(name, "re");
    while (f && !found && fgets(line, sizeof line, f)) {
        const char *after = strstr(line, " - ");
        if (!after || sscanf(line, "%*s %*s %*s %4095s %4095s", part, point) != 2) continue;
        if (sscanf(after, " - %63s %*s %2047s", type, options) != 2) continue;
        found = v2 ? !strcmp(type, "cgroup2") : !strcmp(type, "cgroup") && has_memory(options);
        if (!found) continue;
        size_t n = strcmp(part, "/") ? strlen(part) : 0;
        bool below = !strncmp(group, part, n) && (!group[n] || group[n] == '/');
        /* a group above the mounted part is seen as its top */
        dsi_text_add(folder, "%s%s%s", root, point,
                     below && strcmp(group + n, "/") ? group + n : "");
    }
    if (f) fclose(f);
    return found;
}

/* -1: the group has no count. */
static long oom_count_in_group(const char *root, bool v2)
{
    char group[4300];
    dsi_text file = {0};
    long n = -1;
    if (oom_find_group(root, v2, group, sizeof group) && oom_find_folder(root, v2, group, &file)) {
        dsi_text_add(&file, "%s", v2 ? "/memory.events" : "/memory.oom_control");
        n = oom_read_count(file.s);
    }
    dsi_text_free(&file);
    return n;
}

long oom_count_kills(const char *root)
{
    char name[4200];
    long n = oom_count_in_group(root, false);
    if (n < 0) n = oom_count_in_group(root, true);
    if (n >= 0) return n;
    snprintf(name, sizeof name, "%s/proc/vmstat", root);
    n = oom_read_count(name);
    return n < 0 ? 0 : n;
}
