/* device/device.c: the one list of devices; this thread's handles on them.
 *
 * A handle (kernels, stream, cache) is opened by a thread at its first use and closed at its end, so
 * that no lock is needed anywhere above.
 * SPDX-License-Identifier: MIT */
#include "device.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const dsi_device_type *const types[] = {&dsi_cpu};

#define N_TYPES     (int)(sizeof types / sizeof *types)
#define MAX_DEVICES 16 /* of a kind */

static _Thread_local dsi_device *opened[N_TYPES][MAX_DEVICES];
static _Thread_local ds_device current;

static int row_of(ds_device_kind kind)
{
    for (int t = 0; t < N_TYPES; t++)
        if (types[t]->kind == kind) return t;
    return -1;
}

static const char *kind_name(ds_device_kind kind) { return kind == DS_CPU ? "cpu" : "cuda"; }

static void close_devices(void)
{
    for (int t = 0; t < N_TYPES; t++)
        for (int i = 0; i < MAX_DEVICES; i++) {
            dsi_device *d = opened[t][i];
            if (!d) continue;
            dsi_cache_empty(d);
            if (d->type->close) d->type->close(d);
            dsi_free(d->cache);
            dsi_free(d);
            opened[t][i] = NULL;
        }
}

static dsi_device *open_device(int t, int index)
{
    dsi_device *d = dsi_alloc(sizeof *d);
    d->type = types[t];
    d->index = index;
    d->stream.device = d;
    if (d->type->open(d, index) != DS_OK) {
        dsi_free(d);
        return NULL;
    }
    dsi_at_thread_end(DSI_END_DEVICES, close_devices);
    return opened[t][index] = d;
}

dsi_device *dsi_device_get(ds_device which)
{
    int t = row_of(which.kind);
    if (t >= 0 && which.index >= 0 && which.index < MAX_DEVICES && opened[t][which.index])
        return opened[t][which.index];
    int count = ds_device_count(which.kind);
    if (t < 0 || which.index < 0 || which.index >= count || which.index >= MAX_DEVICES) {
        dsi_fail(DS_EDEVICE, "device %s:%d: this %s has %d %s device%s", kind_name(which.kind),
                 which.index, t < 0 ? "build" : "machine", count, kind_name(which.kind),
                 count == 1 ? "" : "s");
        return NULL;
    }
    return open_device(t, which.index);
}

dsi_device *dsi_device_current(void) { return dsi_device_get(current); }
ds_device dsi_device_id(const dsi_device *d) { return (ds_device){d->type->kind, d->index}; }

ds_status dsi_no_kernel(const dsi_device *d, const char *kernel)
{
    return dsi_fail(DS_EDEVICE, "%s: %s has no such kernel", kernel, d->type->name);
}

/* ---- public ----------------------------------------------------------------------------------------- */

ds_status ds_device_parse(const char *name, ds_device *out)
{
    ds_device_kind kind = DS_CPU;
    int index = 0;
    const char *rest = name;
    if (!name) return dsi_fail(DS_EINVAL, "device: the name is NULL");
    if (!strncmp(name, "cpu", 3)) {
        rest = name + 3;
    } else if (!strncmp(name, "cuda", 4)) {
        kind = DS_CUDA;
        rest = name + 4;
    } else {
        return dsi_fail(DS_EINVAL, "device \"%s\": expected cpu, cuda or cuda:N", name);
    }
    if (*rest) {
        char *end;
        long n = strtol(rest + 1, &end, 10);
        if (*rest != ':' || end == rest + 1 || *end || n < 0 || n >= MAX_DEVICES)
            return dsi_fail(DS_EINVAL, "device \"%s\": expected cpu, cuda or cuda:N", name);
        index = (int)n;
    }
    int count = ds_device_count(kind);
    if (index >= count)
        return dsi_fail(DS_EDEVICE, "device \"%s\": %s", name,
                        row_of(kind) < 0 ? "this build is without CUDA: use --device cpu"
                                         : "there is no such device here");
    *out = (ds_device){kind, index};
    return DS_OK;
}

const char *ds_device_name(ds_device device)
{
    static _Thread_local char text[32];
    if (device.kind == DS_CPU) return "cpu";
    snprintf(text, sizeof text, "%s:%d", kind_name(device.kind), device.index);
    return text;
}

int ds_device_count(ds_device_kind kind)
{
    int t = row_of(kind);
    return t < 0 ? 0 : types[t]->count();
}

ds_status ds_set_device(ds_device device)
{
    if (!dsi_device_get(device)) return ds_error_status();
    current = device;
    return DS_OK;
}

ds_device ds_current_device(void) { return current; }

size_t ds_memory_allocated(ds_device device)
{
    dsi_device *d = dsi_device_get(device);
    return d ? dsi_cache_live(d) : 0;
}

size_t ds_memory_peak(ds_device device)
{
    dsi_device *d = dsi_device_get(device);
    return d ? dsi_cache_peak(d) : 0;
}

void ds_memory_reset_peak(ds_device device)
{
    dsi_device *d = dsi_device_get(device);
    if (d) dsi_cache_reset_peak(d);
}
