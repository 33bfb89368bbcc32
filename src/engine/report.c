/* engine/report.c: lines of progress and of memory, in DeepSpeed's words.
 *
 * The forms are those of _report_progress (deepspeed/runtime/engine.py) and see_memory_usage
 * (deepspeed/runtime/utils.py); numbers are rounded and printed as Python does.
 * SPDX-License-Identifier: MIT */
#include "report.h"

#include "base/log.h"
#include "base/text.h"
#include "device/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GB (1024.0 * 1024 * 1024)

/* ---- progress --------------------------------------------------------------------------------------- */

static void add_list(dsi_text *t, const double *x, int n)
{
    for (int i = 0; i < n; i++) {
        if (i) dsi_text_add(t, ", ");
        dsi_text_add_double(t, x[i]);
    }
}

void dsi_report_progress(int64_t step, int64_t skipped, int groups, const double *lr,
                         const double *mom, int each, bool tuple)
{
    dsi_text t = {0};
    dsi_text_add(&t, "step=%lld, skipped=%lld, lr=[", (long long)step, (long long)skipped);
    add_list(&t, lr, groups);
    dsi_text_add(&t, "], mom=[");
    for (int g = 0; g < groups; g++) {
        dsi_text_add(&t, "%s%s", g ? ", " : "", each == 1 ? "" : tuple ? "(" : "[");
        add_list(&t, mom + g * each, each);
        dsi_text_add(&t, "%s", each == 1 ? "" : tuple ? ")" : "]");
    }
    dsi_log(DSI_REQUESTED, "%s]", t.s);
    dsi_text_free(&t);
}

/* ---- memory ----------------------------------------------------------------------------------------- */

/* The line "name:   123 kB" in bytes; -1 if there is none. */
static double bytes_of(const char *meminfo, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = meminfo; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, n) && line[n] == ':') return 1024 * strtod(line + n + 1, NULL);
    }
    return -1;
}

bool dsi_machine_memory_read(const char *meminfo, dsi_machine_memory *out)
{
    double total = bytes_of(meminfo, "MemTotal"), left = bytes_of(meminfo, "MemAvailable");
    if (left < 0 || left > total) left = bytes_of(meminfo, "MemFree"); /* containers can do that */
    if (total <= 0 || left < 0) return false;
    *out = (dsi_machine_memory){total - left, 100 * (total - left) / total};
    return true;
}

static void log_machine(void)
{
    char meminfo[4096]; /* the lines wanted are its first */
    dsi_machine_memory m;
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return;
    meminfo[fread(meminfo, 1, sizeof meminfo - 1, f)] = 0;
    fclose(f);
    if (!dsi_machine_memory_read(meminfo, &m)) return;
    dsi_text t = {0};
    dsi_text_add(&t, "CPU Virtual Memory:  used = ");
    dsi_text_add_rounded(&t, m.used_bytes / GB, 2);
    dsi_text_add(&t, " GB, percent = ");
    dsi_text_add_rounded(&t, m.percent, 1);
    dsi_log(DSI_REQUESTED, "%s%%", t.s);
    dsi_text_free(&t);
}

void dsi_report_memory(const char *message)
{
    if (!dsi_log_on(DSI_REQUESTED)) return;
    dsi_cache_usage use = dsi_cache_use(dsi_device_current());
    dsi_text t = {0};
    dsi_log(DSI_REQUESTED, "%s", message);
    dsi_text_add(&t, "MA ");
    dsi_text_add_rounded(&t, (double)use.live / GB, 2);
    dsi_text_add(&t, " GB         Max_MA ");
    dsi_text_add_rounded(&t, (double)use.peak_live / GB, 2);
    dsi_text_add(&t, " GB         CA ");
    dsi_text_add_rounded(&t, (double)use.held / GB, 2);
    dsi_log(DSI_REQUESTED, "%s GB         Max_CA %.0f GB ", t.s, rint((double)use.peak_held / GB));
    dsi_text_free(&t);
    log_machine();
    dsi_cache_restart_peaks(dsi_device_current());
}
