/* monitor/csv.c: a file of comma-separated values for each tag.
 *
 * Folder, names and lines are those of DeepSpeed
 * (deepspeed/monitor/csv_monitor.py, which writes through Python's csv module:
 * lines end with CR LF, numbers are as repr prints them), but the header is
 * written once for a file and not once for a process.
 *
 * Invariants: a column is a tag with the lines that were not flushed yet. Its
 * file is open only during a flush: thousands of tags need no descriptors, and
 * a file that was moved away is started again.
 * SPDX-License-Identifier: MIT */
#include "base/crc.h"
#include "base/error.h"
#include "base/list.h"
#include "base/text.h"
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LONGEST_NAME 240 /* bytes of a file name before ".csv"; file systems take 255 in all */

typedef struct Column {
    char *tag, *path;
    dsi_text rows; /* not in the file yet */
} Column;

typedef struct Csv {
    char *folder;
    DSI_LIST(Column)
    int next; /* the column looked at first: tags come in the same order at each step */
} Csv;

/* Returns "folder/tag.csv", to be freed, with _ for / and space as DeepSpeed
 * does. The end of a long tag is replaced by its CRC-32C, so that names stay
 * distinct. */
static char *csv_path(const char *folder, const char *tag)
{
    size_t n = strlen(tag);
    dsi_text t = dsi_text_of("%s/", folder);
    size_t name = t.n;
    if (n <= LONGEST_NAME)
        dsi_text_add(&t, "%s.csv", tag);
    else
        dsi_text_add(&t, "%.*s-%08x.csv", LONGEST_NAME - 9, tag, (unsigned)dsi_crc32c(0, tag, n));
    for (char *s = t.s + name; *s; s++)
        if (*s == '/' || *s == ' ') *s = '_';
    return t.s;
}

/* Returns the tag's column, made if it is new; valid until the next column is
 * added. */
static Column *csv_column(Csv *c, const char *tag)
{
    for (int i = 0; i < c->n; i++) {
        int at = (c->next + i) % c->n;
        if (strcmp(c->at[at].tag, tag)) continue;
        c->next = at + 1;
        return &c->at[at];
    }
    dsi_list_add(c, (Column){.tag = dsi_strdup(tag), .path = csv_path(c->folder, tag)});
    c->next = c->n;
    return &c->at[c->n - 1];
}

/* Appends a line to the column's memory. Values in Python's repr. */
static ds_status csv_write(void *self, const char *tag, double value, int64_t step)
{
    dsi_text *rows = &csv_column(self, tag)->rows;
    dsi_text_add(rows, "%lld,", (long long)step);
    dsi_text_add_double(rows, value);
    dsi_text_add_bytes(rows, "\r\n", 2);
    return DS_OK;
}

/* Appends "step,<last part of the tag>", quoted as Python's csv module
 * quotes. */
static void csv_add_header(dsi_text *t, const char *tag)
{
    const char *slash = strrchr(tag, '/'), *name = slash ? slash + 1 : tag;
    bool quoted = strpbrk(name, ",\"\r\n") != NULL;
    dsi_text_add(t, "step,%s", quoted ? "\"" : "");
    for (; *name; name++) {
        if (*name == '"') dsi_text_add_bytes(t, name, 1);
        dsi_text_add_bytes(t, name, 1);
    }
    dsi_text_add(t, "%s\r\n", quoted ? "\"" : "");
}

/* Appends the column's lines to its file, with a header if the file is empty.
 * They are discarded if that fails: the sink is closed then. */
static ds_status csv_flush_column(Column *c)
{
    struct stat s = {0};
    int fd = open(c->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &s)) {
        int error = errno;
        if (fd >= 0) close(fd);
        return dsi_fail(DS_EIO, "csv_monitor: write %s: %s", c->path, strerror(error));
    }
    dsi_text all = {0};
    if (!s.st_size) csv_add_header(&all, c->tag);
    dsi_text_add_bytes(&all, c->rows.s, c->rows.n);
    ds_status status = dsi_monitor_append("csv_monitor", c->path, fd, s.st_size, all.s, all.n);
    dsi_text_free(&all);
    if (close(fd) && status == DS_OK)
        status = dsi_fail(DS_EIO, "csv_monitor: write %s: %s", c->path, strerror(errno));
    c->rows.n = 0;
    return status;
}

static ds_status csv_flush(void *self)
{
    Csv *c = self;
    for (int i = 0; i < c->n; i++)
        if (c->at[i].rows.n && csv_flush_column(&c->at[i]) != DS_OK) return ds_error_status();
    return DS_OK;
}

static void csv_free(void *self)
{
    Csv *c = self;
    for (int i = 0; i < c->n; i++) {
        dsi_free(c->at[i].tag);
        dsi_free(c->at[i].path);
        dsi_text_free(&c->at[i].rows);
    }
    dsi_list_free(c);
    dsi_free(c->folder);
}

ds_status ds_monitor_csv(ds_monitor *m, const char *output_path, const char *job_name)
{
    static const ds_sink_type type = {"csv_monitor", sizeof(Csv), csv_write, csv_flush, csv_free};
    if (!m) return dsi_null_argument("monitor_csv");
    char *folder = dsi_monitor_folder("csv_monitor", output_path, job_name);
    if (!folder) return ds_error_status();
    Csv *c = ds_monitor_add(m, &type);
    c->folder = folder;
    return DS_OK;
}
