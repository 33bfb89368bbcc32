/* monitor/monitor.c: passes (tag, value, step) on to sinks.
 *
 * Sinks keep values in memory, so that a step of some hundred microseconds can
 * afford them; they are flushed once a second, by a write, and when asked.
 *
 * Invariants: a monitor belongs to one thread. at[0 .. n-1] are the sinks that
 * work, in the order in which they were added; `added` counts those that have
 * failed too. A sink that fails is freed and removed at once. Functions block
 * as long as the sinks' files do.
 * SPDX-License-Identifier: MIT */
#include "monitor.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/list.h"
#include "base/text.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define FLUSH_SECONDS 1.0

typedef struct Sink {
    const ds_sink_type *type;
    void *self;
} Sink;

struct ds_monitor {
    DSI_LIST(Sink)
    double flushed; /* dsi_now() of it */
    int added;      /* sinks so far */
};

ds_monitor *ds_monitor_new(void)
{
    ds_monitor *m = dsi_alloc(sizeof *m);
    m->flushed = dsi_now();
    return m;
}

void *ds_monitor_add(ds_monitor *m, const ds_sink_type *type)
{
    if (!m || !type) return dsi_null_operand("monitor_add");
    if (!type->name || !type->write)
        return dsi_refuse("monitor_add: a sink needs a name and a write function");
    Sink s = {type, dsi_alloc(type->self_size ? type->self_size : 1)};
    dsi_list_add(m, s);
    m->added++;
    return s.self;
}

int ds_monitor_sinks(const ds_monitor *m) { return m ? m->added : 0; }

static void sink_free(Sink *s)
{
    if (s->type->free) s->type->free(s->self);
    dsi_free(s->self);
}

/* Frees and removes sink i, whose call returned `status`, and appends the
 * reason to *why. `before` is the count of failures before that call: a message
 * that the sink has set since then is the reason, and is forgotten. */
static void sink_close_failed(ds_monitor *m, int i, ds_status status, int before, dsi_text *why)
{
    const char *name = m->at[i].type->name;
    const char *message = dsi_error_count() > before ? dsi_error_latest() : NULL;
    dsi_text_add(why, "%s%s is closed: ", why->n ? "; " : "monitor: ", name);
    if (message)
        dsi_text_add(why, "%s", message);
    else
        dsi_text_add(why, "it returned %d", (int)status);
    dsi_error_forget(before);
    sink_free(&m->at[i]);
    memmove(&m->at[i], &m->at[i + 1], (size_t)(m->n - i - 1) * sizeof *m->at);
    m->n--;
}

/* Writes to all sinks, or flushes them: tag NULL. Those that fail are closed. */
static ds_status sinks_run(ds_monitor *m, const char *tag, double value, int64_t step)
{
    ds_status worst = DS_OK;
    dsi_text why = {0};
    for (int i = m->n - 1; i >= 0; i--) {
        const ds_sink_type *type = m->at[i].type;
        void *self = m->at[i].self;
        int before = dsi_error_count();
        ds_status status = tag           ? type->write(self, tag, value, step)
                           : type->flush ? type->flush(self)
                                         : DS_OK;
        if (status == DS_OK) continue;
        worst = status;
        sink_close_failed(m, i, status, before, &why);
    }
    if (worst != DS_OK) dsi_fail(worst, "%s", why.s);
    dsi_text_free(&why);
    return worst;
}

ds_status ds_monitor_flush(ds_monitor *m)
{
    if (!m) return dsi_null_argument("monitor_flush");
    ds_status status = sinks_run(m, NULL, 0, 0);
    m->flushed = dsi_now();
    return status;
}

ds_status ds_monitor_write(ds_monitor *m, const char *tag, double value, int64_t step)
{
    if (!m || !tag) return dsi_null_argument("monitor_write");
    if (!*tag) return dsi_fail(DS_EINVAL, "monitor_write: the tag is empty");
    if (!dsi_is_utf8(tag, strlen(tag))) /* readers of protocol buffers refuse it */
        return dsi_fail(DS_EINVAL, "monitor_write: tag \"%.100s\" is not UTF-8", tag);
    ds_status status = sinks_run(m, tag, value, step);
    bool waits = status != DS_OK || dsi_now() - m->flushed < FLUSH_SECONDS;
    return waits ? status : ds_monitor_flush(m);
}

void ds_monitor_free(ds_monitor *m)
{
    if (!m) return;
    ds_monitor_flush(m);
    /* Sinks that fail in the last flush are freed by it. */
    for (int i = 0; i < m->n; i++) sink_free(&m->at[i]);
    dsi_list_free(m);
    dsi_free(m);
}

/* ---- what sinks in files share ---------------------------------------------------------------------- */

char *dsi_monitor_folder(const char *who, const char *output_path, const char *job_name)
{
    dsi_text folder = {0};
    if (output_path && *output_path) dsi_text_add(&folder, "%s/", output_path);
    dsi_text_add(&folder, "%s", job_name ? job_name : "DeepSpeedJobName");
    if (!folder.n) dsi_text_add(&folder, ".");
    if (dsi_mkdirs(folder.s) != DS_OK) {
        dsi_fail_in(who, ds_error_status());
    } else if (access(folder.s, W_OK | X_OK)) {
        dsi_fail(DS_EIO, "%s: write to folder %s: %s", who, folder.s, strerror(errno));
    } else {
        return folder.s;
    }
    dsi_text_free(&folder);
    return NULL;
}

ds_status dsi_monitor_append(const char *who, const char *path, int fd, off_t size,
                             const void *data, size_t n)
{
    const char *p = data;
    while (n) {
        ssize_t put = write(fd, p, n);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) {
            int error = put ? errno : ENOSPC;
            /* half a line, or half a record, would spoil what comes after */
            if (ftruncate(fd, size)) error = errno;
            return dsi_fail(DS_EIO, "%s: write %s: %s", who, path, strerror(error));
        }
        p += put;
        n -= (size_t)put;
    }
    return DS_OK;
}
