/* engine/memory_report.c: memory as lines of the log. The form is that of
 * see_memory_usage (deepspeed/runtime/utils.py); numbers are rounded as Python
 * rounds them.
 * SPDX-License-Identifier: MIT */
#include "memory_report.h"

#include "base/log.h"
#include "base/text.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB (1024.0 * 1024 * 1024)

/* The line "name:   123 kB" in bytes; -1 if there is none. */
static double meminfo_bytes(const char *meminfo, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = meminfo; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, n) && line[n] == ':') return 1024 * strtod(line + n + 1, NULL);
    }
    return -1;
}

/* psutil: used is total less available. */
bool dsi_machine_memory_parse(const char *meminfo, dsi_machine_memory *out)
{
    double total = meminfo_bytes(meminfo, "MemTotal"),
           left = meminfo_bytes(meminfo, "MemAvailable");
    if (left < 0 || left > total) left = meminfo_bytes(meminfo, "MemFree"); /* in some containers */
    if (total <= 0 || left < 0) return false;
    *out = (dsi_machine_memory){total - left, 100 * (total - left) / total};
    return true;
}

static void machine_memory_log(void)
{
    char meminfo[4096]; /* MemTotal, MemFree and MemAvailable are its first lines */
    dsi_machine_memory m;
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return;
    meminfo[fread(meminfo, 1, sizeof meminfo - 1, f)] = 0;
    fclose(f);
    if (!dsi_machine_memory_parse(meminfo, &m)) return;
    dsi_text t = dsi_text_of("CPU Virtual Memory:  used = ");
    dsi_text_add_rounded(&t, m.used_bytes / GB, 2);
    dsi_text_add(&t, " GB, percent = ");
    dsi_text_add_rounded(&t, m.percent, 1);
    dsi_log(DSI_REQUESTED, "%s%%", t.s);
    dsi_text_free(&t);
}

/* Peaks restart with each line, as torch's reset_peak_memory_stats does
 * there. */
void dsi_memory_report_log(const char *message)
{
    if (!dsi_log_on(DSI_REQUESTED)) return;
    dsi_cache_usage use = dsi_cache_use(dsi_device_current());
    dsi_log(DSI_REQUESTED, "%s", message);
    dsi_text t = dsi_text_of("MA ");
    dsi_text_add_rounded(&t, (double)use.live / GB, 2);
    dsi_text_add(&t, " GB         Max_MA ");
    dsi_text_add_rounded(&t, (double)use.peak_live / GB, 2);
    dsi_text_add(&t, " GB         CA ");
    dsi_text_add_rounded(&t, (double)use.held / GB, 2);
    dsi_log(DSI_REQUESTED, "%s GB         Max_CA %.0f GB ", t.s, rint((double)use.peak_held / GB));
    dsi_text_free(&t);
    machine_memory_log();
    dsi_cache_restart_peaks(dsi_device_current());
}
