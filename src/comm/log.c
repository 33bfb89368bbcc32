/* comm/log.c: how much ranks send, and how long it takes: DeepSpeed's
 * comms_logger.
 *
 * Names, columns and bandwidths are those of deepspeed/utils/comms_logging.py:
 * for p ranks, a message of S bytes and t seconds,
 *     all_reduce                    algorithm 2 S / t    bus S / t  2 (p-1) / p
 *     all_gather, reduce_scatter    algorithm p S / t    bus p S / t  (p-1) / p
 *     all_to_all                    algorithm S / t      bus S / t  (p-1) / p
 *     others                        both S / t
 * and means leave out a tenth at each end.
 *
 * Invariants: a log belongs to its communicator and is written by the rank's
 * own thread, when it has waited for a request. With a log each collective is
 * waited for when it starts, as DeepSpeed's does: times would otherwise contain
 * what the rank computes meanwhile. Volumes are counted without a log too.
 * Records of one operation are neighbours, ordered by size; ds_comm_log_summary
 * with stragglers takes it that all ranks have the same ones.
 * SPDX-License-Identifier: MIT */
#include "comm.h"

#include "base/error.h"
#include "base/list.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct record { /* of one operation and size */
    dsi_collective what;
    double bytes;
    struct {
        DSI_LIST(double)
    } seconds;
} record;

typedef struct dsi_comm_log {
    bool verbose;
    bool wanted[DSI_COLLECTIVES];
    struct {
        DSI_LIST(record)
    } records; /* by operation in the order of first use, then by size */
} dsi_comm_log;

/* ---- volume ------------------------------------------------------------------------------------------- */

/* Of ALL_TO_ALL_ROWS: the elements that leave this rank. */
static double elements_to_others(const dsi_request *r)
{
    int64_t n = 0;
    for (int q = 0; q < r->comm->size; q++)
        if (q != r->comm->rank) n += r->counts[q];
    return (double)n;
}

/* By this rank, by the formulas of dsi_comm_volume: what a ring would send,
 * whatever the backend does. */
static double request_bytes_sent(const dsi_request *r)
{
    double p = r->comm->size, n = (double)r->n, bytes = (double)ds_dtype_size(r->dtype);
    bool root = r->comm->rank == r->root;
    switch (r->what) {
    case DSI_ALL_REDUCE:
        return 2 * (p - 1) / p * n * bytes;
    case DSI_REDUCE:
    case DSI_BROADCAST:
        return (p - 1) / p * n * bytes;
    case DSI_GATHER:
        return root ? 0 : n * bytes;
    case DSI_SCATTER:
        return root ? (p - 1) * n * bytes : 0;
    case DSI_ALL_TO_ALL_ROWS:
        return elements_to_others(r) * bytes;
    case DSI_SEND:
        return n * bytes;
    case DSI_RECV:
    case DSI_BARRIER:
        return 0;
    default:
        return (p - 1) * n * bytes; /* n is a piece */
    }
}

double dsi_comm_volume(const ds_comm *c) { return c->sent; }

/* ---- records ------------------------------------------------------------------------------------------ */

/* The message's size as DeepSpeed has it: of what a rank gives, for all_gather
 * and reduce_scatter a piece. */
static double message_bytes(const dsi_request *r)
{
    double n = (double)r->n;
    if (r->what == DSI_ALL_TO_ALL) n *= r->comm->size;
    if (r->what == DSI_ALL_TO_ALL_ROWS)
        n = elements_to_others(r) + (double)r->counts[r->comm->rank];
    return n * (double)ds_dtype_size(r->dtype);
}

typedef struct bandwidth {
    double algorithm, bus; /* Gbit/s */
} bandwidth;

/* The factors of the head of this file. */
static bandwidth bandwidth_of(dsi_collective what, double bytes, double seconds, int ranks)
{
    double rate = seconds > 0 ? bytes / seconds * 8e-9 : 0, share = (ranks - 1.0) / ranks;
    switch (what) {
    case DSI_ALL_REDUCE:
        return (bandwidth){2 * rate, 2 * rate * share};
    case DSI_ALL_GATHER:
    case DSI_REDUCE_SCATTER:
        return (bandwidth){rate * ranks, rate * ranks * share};
    case DSI_ALL_TO_ALL:
    case DSI_ALL_TO_ALL_ROWS:
        return (bandwidth){rate, rate * share};
    default:
        return (bandwidth){rate, rate};
    }
}

/* "4.0 KB" */
static const char *size_text(double bytes, char text[32])
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB"};
    int u = 0;
    if (bytes == 0) return "0B";
    for (; bytes >= 1024 && u < 5; u++) bytes /= 1024;
    int n = snprintf(text, 24, "%.2f", bytes);
    if (text[n - 1] == '0') text[--n] = 0;
    snprintf(text + n, 8, " %s", units[u]);
    return text;
}

/* Finds the record of this operation and size, or inserts it in its place; the
 * pointer is valid until the next one is inserted. */
static record *record_of(dsi_comm_log *log, dsi_collective what, double bytes)
{
    int at = 0, last = -1; /* of the same operation */
    for (int i = 0; i < log->records.n; i++) {
        record *k = &log->records.at[i];
        if (dsi_comm_names[k->what] != dsi_comm_names[what] &&
            strcmp(dsi_comm_names[k->what], dsi_comm_names[what]) != 0)
            continue;
        if (k->bytes == bytes) return k;
        last = i;
        if (k->bytes < bytes)
            at = i + 1;
        else if (at == 0)
            at = i;
    }
    if (last < 0) at = log->records.n;
    dsi_list_add(&log->records, (record){0});
    record *k = &log->records.at[at];
    memmove(k + 1, k, (size_t)(log->records.n - 1 - at) * sizeof *k);
    *k = (record){.what = what, .bytes = bytes};
    return k;
}

/* Counts the volume always; times only while logging is on and the operation
 * was asked for. */
void dsi_comm_log_add(dsi_request *r)
{
    ds_comm *c = r->comm;
    c->sent += request_bytes_sent(r);
    if (!c->log || !c->log->wanted[r->what]) return;
    double seconds = r->ended - r->begun, bytes = message_bytes(r);
    record *k = record_of(c->log, r->what, bytes);
    dsi_list_add(&k->seconds, seconds);
    if (!c->log->verbose) return;
    char size[32];
    bandwidth b = bandwidth_of(r->what, bytes, seconds, c->size);
    dsi_log(
        DSI_REQUESTED,
        "comm op: %s | time (ms): %.2f | msg size: %s | algbw (Gbps): %.2f | busbw (Gbps): %.2f",
        dsi_comm_names[r->what], seconds * 1e3, size_text(bytes, size), b.algorithm, b.bus);
}

/* ops NULL: all. Starting again forgets what was recorded. */
ds_status ds_comm_log_start(ds_comm *c, bool verbose, const char *const *ops, int n_ops)
{
    dsi_text why = {0};
    if (!c) c = ds_world();
    for (int i = 0; ops && i < n_ops; i++)
        if (!dsi_comm_log_knows(ops[i], &why)) {
            dsi_fail(DS_EINVAL, "comm_log_start: %s", why.s);
            dsi_text_free(&why);
            return DS_EINVAL;
        }
    dsi_comm_log_free(c->log);
    c->log = dsi_alloc(sizeof *c->log);
    c->log->verbose = verbose;
    for (int what = 0; what < DSI_COLLECTIVES; what++) {
        c->log->wanted[what] = !ops;
        for (int i = 0; ops && i < n_ops; i++)
            if (dsi_comm_is_called((dsi_collective)what, ops[i])) c->log->wanted[what] = true;
    }
    return DS_OK;
}

void dsi_comm_log_free(dsi_comm_log *log)
{
    if (!log) return;
    for (int i = 0; i < log->records.n; i++) dsi_list_free(&log->records.at[i].seconds);
    dsi_list_free(&log->records);
    dsi_free(log);
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Without a tenth of the values at each end. Sorts them. */
static double log_trimmed_mean(double *x, int n)
{
    int cut = n / 10;
    double sum = 0;
    qsort(x, (size_t)n, sizeof *x, compare_doubles);
    for (int i = cut; i < n - cut; i++) sum += x[i];
    return n ? sum / (n - 2 * cut) : 0;
}

static double log_total(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum;
}

/* A row of DeepSpeed's table: size, count, total and mean latency in ms, both
 * bandwidths in Gbit/s. */
static void log_add_row(dsi_text *t, const record *k, int ranks)
{
    int n = k->seconds.n;
    double *x = dsi_alloc(3 * (size_t)n * sizeof *x), *algorithm = x + n, *bus = algorithm + n;
    for (int i = 0; i < n; i++) {
        x[i] = k->seconds.at[i];
        bandwidth b = bandwidth_of(k->what, k->bytes, x[i], ranks);
        algorithm[i] = b.algorithm;
        bus[i] = b.bus;
    }
    char size[32];
    dsi_text_add(t, "%-20s%-20s%-20d%-20.2f%-20.2f%-20.2f%-20.2f\n", "", size_text(k->bytes, size),
                 n, log_total(x, n) * 1e3, log_trimmed_mean(x, n) * 1e3,
                 log_trimmed_mean(algorithm, n), log_trimmed_mean(bus, n));
    dsi_free(x);
}

/* The fastest rank's time is the collective's own; what others took beyond it,
 * they waited. */
static ds_status log_add_straggler_row(dsi_text *t, ds_comm *c, const record *k)
{
    int n = k->seconds.n;
    double *own = dsi_alloc(2 * (size_t)n * sizeof *own), *lost = own + n;
    memcpy(own, k->seconds.at, (size_t)n * sizeof *own);
    ds_status status = dsi_request_run(
        &(dsi_request){DSI_NUMBERS(c, DSI_ALL_REDUCE, DS_F64, own, own, n), .op = DS_REDUCE_MIN,
                       .internal = true});
    for (int i = 0; i < n; i++) lost[i] = k->seconds.at[i] - own[i];
    char size[32];
    dsi_text_add(t, "%-20s%-20s%-20d%-20.2f%-20.2f%-20.2f%-20.2f\n", "", size_text(k->bytes, size),
                 n, log_total(own, n) * 1e3, log_total(lost, n) * 1e3,
                 log_trimmed_mean(own, n) * 1e3, log_trimmed_mean(lost, n) * 1e3);
    dsi_free(own);
    return status;
}

/* An operation's name is printed once, above the rows of its sizes. */
static void log_add_name(dsi_text *t, const dsi_comm_log *log, int i)
{
    const char *name = dsi_comm_names[log->records.at[i].what];
    if (!i || strcmp(name, dsi_comm_names[log->records.at[i - 1].what]) != 0)
        dsi_text_add(t, "%s\n", name);
}

/* Collective with show_straggler, since times are compared over the ranks; rank
 * 0 prints. DeepSpeed's columns, which tools parse. */
ds_status ds_comm_log_summary(ds_comm *c, bool show_straggler)
{
    if (!c) c = ds_world();
    const dsi_comm_log *log = c->log;
    if (!log)
        return dsi_fail(DS_ESTATE, "comm_log_summary: nothing was noted; configure comms_logger");
    dsi_text t = dsi_text_of("%-20s%-20s%-20s%-20s%-20s%-20s%-20s\n", "Comm. Op", "Message Size",
                             "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)",
                             "busbw_avg (Gbps)");
    for (int i = 0; i < log->records.n; i++) {
        log_add_name(&t, log, i);
        log_add_row(&t, &log->records.at[i], c->size);
    }
    ds_status status = DS_OK;
    if (show_straggler)
        dsi_text_add(&t,
                     "_______________________________\nBreakdown with straggler effect\n"
                     "-------------------------------\n%-20s%-20s%-20s%-20s%-20s%-20s%-20s\n",
                     "Comm. Op", "Message Size", "Count", "Total comm lat(ms)",
                     "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)");
    for (int i = 0; show_straggler && status == DS_OK && i < log->records.n; i++) {
        log_add_name(&t, log, i);
        status = log_add_straggler_row(&t, c, &log->records.at[i]);
    }
    if (status == DS_OK && !c->rank) fputs(t.s, stdout);
    dsi_text_free(&t);
    return status;
}
