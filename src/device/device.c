/* device/device.c: the one list of devices; this thread's handles on them.
 *
 * A handle (kernels, stream, cache) is opened by a thread at its first use and
 * closed at its end, so that no lock is needed anywhere above.
 * SPDX-License-Identifier: MIT */
#include "graph.h"

#include "base/env.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/profile.h"
#include "base/thread.h"
#include "base/trace.h"
#include "observe.h"
#include "spans.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By kind. NULL: not in this build. */
static const dsi_device_type *const types[] = {
    [DS_CPU] = &dsi_cpu,
#ifdef DSI_HAVE_CUDA
    [DS_CUDA] = &dsi_cuda,
#else
    [DS_CUDA] = NULL,
#endif
};

#define KINDS       (int)(sizeof types / sizeof *types)
#define MAX_DEVICES 16 /* of a kind */

static _Thread_local dsi_device *opened[KINDS][MAX_DEVICES];
static _Thread_local ds_device current;
static _Thread_local const dsi_device_type *pretended; /* dsi_device_pretend */
static _Thread_local dsi_fusions_use fusions_use = DSI_FUSIONS_ON;
static _Thread_local int disabled_fusions; /* DSI_FUSE_... */

static const dsi_fusions no_fusions;

static const dsi_device_type *device_type(ds_device_kind kind)
{
    if (pretended && pretended->kind == kind) return pretended;
    return (unsigned)kind < KINDS ? types[kind] : NULL;
}

void dsi_device_pretend(const dsi_device_type *type) { pretended = type; }

static const char *kind_name(ds_device_kind kind) { return kind == DS_CPU ? "cpu" : "cuda"; }

static void close_devices(void)
{
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < MAX_DEVICES; i++) {
            dsi_device *d = opened[t][i];
            if (!d) continue;
            dsi_cache_empty(d);
            if (d->type->close) d->type->close(d);
            dsi_observe_free(d);
            dsi_free(d->cache);
            dsi_free(d);
            opened[t][i] = NULL;
        }
}

bool dsi_device_built(ds_device_kind kind) { return device_type(kind) != NULL; }

const char *dsi_device_why_none(ds_device_kind kind)
{
    const dsi_device_type *type = device_type(kind);
    if (type) return type->why_none ? type->why_none() : "";
    return "this build is without CUDA (DS_CUDA=OFF; docs/gpu.md): use the CPU";
}

/* There is such a device; else false, with the message. */
static bool is_there(ds_device which)
{
    const char *kind = kind_name(which.kind), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = ds_device_count(which.kind);
    if (count > MAX_DEVICES) count = MAX_DEVICES;
    if (which.index >= 0 && which.index < count) return true;
    if (!count)
        dsi_fail(DS_EDEVICE, "device %s:%d: %s", kind, which.index,
                 dsi_device_why_none(which.kind));
    else if (count == 1)
        dsi_fail(DS_EDEVICE, "device %s:%d: there is 1 %s device here, which has index 0%s%s", kind,
                 which.index, kind, visible && which.kind ? "; CUDA_VISIBLE_DEVICES is " : "",
                 visible && which.kind ? visible : "");
    else
        dsi_fail(DS_EDEVICE, "device %s:%d: there are %d %s devices here, %s:0 to %s:%d%s%s", kind,
                 which.index, count, kind, kind, kind, count - 1,
                 visible && which.kind ? "; CUDA_VISIBLE_DEVICES is " : "",
                 visible && which.kind ? visible : "");
    return false;
}

/* Sets the tables of kernels that ops call. */
static void choose_tables(dsi_device *d)
{
    bool used = d->own_fusions && fusions_use != DSI_FUSIONS_OFF;
    d->used_fusions = used ? d->own_fusions : &no_fusions;
    d->launch_fusions = fusions_use == DSI_FUSIONS_ON ? DSI_FUSE_ALL & ~disabled_fusions : 0;
    dsi_observe_device(d);
}

void dsi_devices_observe(void)
{
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < MAX_DEVICES; i++)
            if (opened[t][i]) choose_tables(opened[t][i]);
}

dsi_device *dsi_device_recording(void)
{
    for (int t = 0; t < KINDS; t++)
        for (int i = 0; i < MAX_DEVICES; i++)
            if (opened[t][i] && opened[t][i]->recording) return opened[t][i];
    return NULL;
}

void dsi_device_set_fusions(dsi_fusions_use use)
{
    fusions_use = use;
    dsi_devices_observe();
}

void dsi_device_disable_launch_fusions(int fusions)
{
    disabled_fusions = fusions;
    dsi_device_set_fusions(DSI_FUSIONS_ON);
}

#define FUSION_NAME(member, name) #name,
#define FUSION_SAID(member, name) " -" #name

/* Disables the one whose name is the n characters at s; false: there is none. */
static bool launch_fusion_disable(const char *s, size_t n)
{
    static const char *const names[] = {DSI_LAUNCH_FUSIONS(FUSION_NAME)};
    for (int i = 0; i < DSI_N_LAUNCH_FUSIONS; i++)
        if (strlen(names[i]) == n && !strncmp(s, names[i], n)) {
            disabled_fusions |= 1 << i;
            return true;
        }
    return false;
}

/* Of "-relu,-pair". */
static ds_status launch_fusions_read(const char *said)
{
    for (const char *s = said; *s; s += *s == ',') {
        size_t n = strcspn(s, ",");
        if (*s != '-' || !launch_fusion_disable(s + 1, n - 1))
            return dsi_fail(DS_EINVAL,
                            "DS_FUSIONS=%s: expected on, alone, off, or some of" DSI_LAUNCH_FUSIONS(
                                FUSION_SAID) ", separated by commas",
                            said);
        s += n;
    }
    return DS_OK;
}

/* Of the environment, before the first device of a thread opens. */
static ds_status read_fusions(void)
{
    static const char *const words[] = {
        [DSI_FUSIONS_OFF] = "off", [DSI_FUSIONS_ON] = "on", [DSI_FUSIONS_ALONE] = "alone", NULL};
    const char *said = getenv("DS_FUSIONS");
    int use = (int)fusions_use;
    if (said && *said == '-') return launch_fusions_read(said);
    ds_status status = dsi_env_word("DS_FUSIONS", words, &use);
    fusions_use = (dsi_fusions_use)use;
    return status;
}

static dsi_device *open_device(ds_device which)
{
    dsi_device *d = dsi_alloc(sizeof *d);
    d->type = device_type(which.kind);
    d->index = which.index;
    d->stream.device = d;
    if (read_fusions() != DS_OK || d->type->open(d, which.index) != DS_OK) {
        dsi_free(d);
        return NULL;
    }
    d->own_kernels = d->kernels;
    if (dsi_trace_on()) dsi_observed = true;
    choose_tables(d);
    dsi_at_thread_end(DSI_END_DEVICES, close_devices);
    return opened[which.kind][which.index] = d;
}

dsi_device *dsi_device_get(ds_device which)
{
    bool in_table = (unsigned)which.kind < KINDS && (unsigned)which.index < MAX_DEVICES;
    if (in_table && opened[which.kind][which.index]) return opened[which.kind][which.index];
    return is_there(which) ? open_device(which) : NULL;
}

dsi_device *dsi_device_current(void) { return dsi_device_get(current); }
ds_device dsi_device_id(const dsi_device *d) { return (ds_device){d->type->kind, d->index}; }

ds_status dsi_device_describe(ds_device which, char *text, size_t room)
{
    if (!is_there(which)) return ds_error_status();
    const dsi_device_type *type = device_type(which.kind);
    if (type->describe) return type->describe(which.index, text, room);
    snprintf(text, room, "%s", type->name);
    return DS_OK;
}

ds_status dsi_no_kernel(const dsi_device *d, ds_dtype dtype, const char *kernel)
{
    return dsi_fail(DS_EDEVICE, "%s: no %s kernel for %s: compute it on the CPU", kernel,
                    d->type->name, ds_dtype_name(dtype));
}

/* ---- faults --------------------------------------------------------------------------------------- */

static ds_status device_check(dsi_device *d, bool all)
{
#define FAULT_TEXT(constant, op, what, noun) [DSI_FAULT_##constant] = {#op, what, noun},
    static const struct {
        const char *op, *what, *noun;
    } texts[DSI_N_FAULTS] = {DSI_FAULT_OPS(FAULT_TEXT)};
#undef FAULT_TEXT
    dsi_fault f = {0};
    char place[64];
    if (!d->type->take_fault || dsi_graph_capturing(d)) return DS_OK;
    ds_status status = d->type->take_fault(&d->stream, all, &f);
    if (status != DS_OK || f.op <= DSI_NO_FAULT || f.op >= DSI_N_FAULTS) return status;
    if (f.place[1] < 0)
        snprintf(place, sizeof place, "%lld", (long long)f.place[0]);
    else
        snprintf(place, sizeof place, "[%lld, %lld]", (long long)f.place[0], (long long)f.place[1]);
    return dsi_fail(DS_EINVAL, "%s: %s %lld at %s%s is outside 0..%lld", texts[f.op].op,
                    texts[f.op].what, (long long)f.value, texts[f.op].noun, place,
                    (long long)f.classes - 1);
}

ds_status dsi_device_check(dsi_device *d) { return device_check(d, true); }

ds_status dsi_device_check_faults(dsi_device *d) { return device_check(d, false); }

/* ---- names ------------------------------------------------------------------------------------------ */

#define NAME(constant, name, ...) [DSI_##constant] = #name,
const char *dsi_unary_name(dsi_unary_op op)
{
    static const char *const names[] = {DSI_UNARY_OPS(NAME)};
    return names[op];
}

const char *dsi_unary_dx_name(dsi_unary_op op)
{
#define NAME_DX(constant, name, ...) [DSI_##constant] = #name "_dx",
    static const char *const names[] = {DSI_UNARY_OPS(NAME_DX)};
#undef NAME_DX
    return names[op];
}

const char *dsi_binary_name(dsi_binary_op op)
{
    static const char *const names[] = {DSI_BINARY_OPS(NAME)};
    return names[op];
}

const char *dsi_compare_name(dsi_compare_op op)
{
    static const char *const names[] = {DSI_COMPARE_OPS(NAME)};
    return names[op];
}

const char *dsi_reduce_name(dsi_reduce_op op)
{
    static const char *const names[] = {DSI_REDUCE_OPS(NAME)};
    return names[op];
}

const char *dsi_rule_name(dsi_rule rule)
{
    static const char *const names[] = {DSI_OPTIMIZER_RULES(NAME)};
    return names[rule];
}
#undef NAME

static bool is_half(ds_dtype dtype) { return dtype == DS_F16 || dtype == DS_BF16; }

ds_status dsi_spans_check(const char *device, dsi_rule rule, int n, const dsi_span *x)
{
    const char *name = dsi_rule_name(rule);
    for (int i = 0; i < n; i++) {
        const char *dtype = ds_dtype_name(x[i].dtype);
        bool split = x[i].dtype == DS_BF16 && x[i].rest, master = x[i].dtype == DS_F32 || split;
        if (x[i].dtype > DS_BF16)
            return dsi_fail(DS_EINVAL, "%s: no %s kernel for %s", name, device, dtype);
        bool narrow = is_half(x[i].g_dtype) || x[i].g_dtype == DS_F32;
        if (x[i].g_dtype != x[i].dtype && !(master && narrow))
            return dsi_fail(DS_EINVAL, "%s: no %s kernel for %s with a gradient of %s", name,
                            device, dtype, ds_dtype_name(x[i].g_dtype));
        if (x[i].rest && !split)
            return dsi_fail(DS_EINVAL, "%s: no %s kernel for %s with a rest", name, device, dtype);
        if (x[i].low && (split || !(master && is_half(x[i].low_dtype))))
            return dsi_fail(DS_EINVAL, "%s: no %s kernel for %s with a copy of %s", name, device,
                            dtype, ds_dtype_name(x[i].low_dtype));
    }
    return DS_OK;
}

/* ---- public ----------------------------------------------------------------------------------------- */

/* The rank on its machine, as launchers say it: deepspeed, torchrun; Open MPI;
 * MPICH and Intel MPI; Slurm. */
static ds_status local_rank(int *rank)
{
    static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "MPI_LOCALRANKID", "SLURM_LOCALID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const dsi_env v = {names[i], "a rank's number on its machine, from 0", .most = INT32_MAX,
                           .whole = true};
        double n = -1;
        ds_status status = dsi_env_number(&v, &n);
        *rank = (int)n;
        if (status != DS_OK) return dsi_fail(status, "device cuda: %s", dsi_error_latest());
        if (n >= 0) return DS_OK;
    }
    *rank = 0;
    return DS_OK;
}

/* "cuda": each rank of a machine has one of its own. */
static ds_status device_of_rank(ds_device *out)
{
    int rank, count = ds_device_count(DS_CUDA);
    ds_status status = local_rank(&rank);
    if (status != DS_OK) return status;
    *out = (ds_device){DS_CUDA, rank};
    if (count && rank >= count)
        return dsi_fail(DS_EDEVICE,
                        "device cuda: local rank %d has no GPU of its own, there %s %d here: start "
                        "at most %d rank%s on this machine (deepspeed --num_gpus %d), or name a "
                        "device, as cuda:0",
                        rank, count == 1 ? "is" : "are", count, count, count == 1 ? "" : "s",
                        count);
    return is_there(*out) ? DS_OK : ds_error_status();
}

ds_status ds_device_parse(const char *name, ds_device *out)
{
    ds_device_kind kind = DS_CPU;
    int index = 0;
    const char *rest = name;
    if (!name) return dsi_fail(DS_EINVAL, "device: the name is NULL");
    if (!strcmp(name, "cuda")) return device_of_rank(out);
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
        if (*rest != ':' || end == rest + 1 || *end || n < 0 || n > INT_MAX)
            return dsi_fail(DS_EINVAL, "device \"%s\": expected cpu, cuda or cuda:N", name);
        index = (int)n;
    }
    *out = (ds_device){kind, index};
    return is_there(*out) ? DS_OK : ds_error_status();
}

const char *ds_device_name(ds_device device)
{
    static _Thread_local char ring[2][32]; /* one message may name two */
    static _Thread_local int next;
    if (device.kind == DS_CPU) return "cpu";
    char *text = ring[next = !next];
    snprintf(text, sizeof ring[0], "%s:%d", kind_name(device.kind), device.index);
    return text;
}

int ds_device_count(ds_device_kind kind)
{
    const dsi_device_type *type = device_type(kind);
    return type ? type->count() : 0;
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
