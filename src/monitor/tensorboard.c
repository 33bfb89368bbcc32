/* monitor/tensorboard.c: event files that TensorBoard reads.
 *
 * A file is a row of records (tensorflow/core/lib/io/record_writer.h), numbers
 * little-endian:
 *
 *     uint64 length | uint32 masked crc32c of the 8 bytes before | data | uint32 masked crc32c of data
 *
 * where masked(c) = rotate_right(c, 15) + 0xa282ead8, as a check sum of check
 * sums is a weak one. Data is a message Event in protocol buffers' wire format:
 * fields of key (number * 8 + kind) and value.
 *
 *     Event    1 wall_time double | 2 step int64 | 3 file_version string | 5 summary Summary
 *     Summary  1 value Value (here: one)
 *     Value    1 tag string | 2 simple_value float
 *
 * The first event holds the version "brain.Event:2" and nothing else.
 *
 * Invariants: the file has `size` bytes, all of them whole records. event holds
 * the event that is being composed, and is empty between calls.
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "base/crc.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/text.h"
#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define BUFFER (64 << 10) /* bytes of records that are kept before they are written */

typedef struct Board {
    char *path;
    int fd;
    off_t size;     /* bytes in the file: whole records */
    dsi_text out;   /* records that are not in the file yet */
    dsi_text event; /* scratch */
} Board;

/* ---- protocol buffers -------------------------------------------------------------------------------- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 }; /* kinds */

/* The lowest `bytes` bytes of x, little-endian. */
static void put_fixed(dsi_text *t, uint64_t x, int bytes)
{
    unsigned char b[8];
    for (int i = 0; i < bytes; i++) b[i] = (unsigned char)(x >> 8 * i);
    dsi_text_add_bytes(t, b, (size_t)bytes);
}

static size_t varint_size(uint64_t x)
{
    size_t n = 1;
    while (x >>= 7) n++;
    return n;
}

/* Seven bits a byte, lowest first; the top bit says that more follow. */
static void put_varint(dsi_text *t, uint64_t x)
{
    unsigned char b[10];
    size_t n = 0;
    for (; x > 0x7f; x >>= 7) b[n++] = (unsigned char)(x | 0x80);
    b[n++] = (unsigned char)x;
    dsi_text_add_bytes(t, b, n);
}

/* A field's key: its number and how its value is encoded. */
static void put_key(dsi_text *t, int field, int kind)
{
    put_varint(t, (uint64_t)(field << 3 | kind));
}

static void put_double(dsi_text *t, int field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(t, field, FIXED64);
    put_fixed(t, bits, 8);
}

static void put_string(dsi_text *t, int field, const char *s, size_t n)
{
    put_key(t, field, BYTES);
    put_varint(t, n);
    dsi_text_add_bytes(t, s, n);
}

/* ---- records ------------------------------------------------------------------------------------------- */

/* The masked CRC-32C of the head of this file. */
static uint32_t record_crc(const void *data, size_t n)
{
    uint32_t c = dsi_crc32c(0, data, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* Appends the event to `out` as a record, and empties it. */
static void event_end(Board *b)
{
    size_t head = b->out.n;
    put_fixed(&b->out, b->event.n, 8);
    put_fixed(&b->out, record_crc(b->out.s + head, 8), 4);
    dsi_text_add_bytes(&b->out, b->event.s, b->event.n);
    put_fixed(&b->out, record_crc(b->event.s, b->event.n), 4);
    b->event.n = 0;
}

static ds_status board_flush(void *self)
{
    Board *b = self;
    ds_status s = dsi_monitor_append("tensorboard", b->path, b->fd, b->size, b->out.s, b->out.n);
    if (s == DS_OK) b->size += (off_t)b->out.n;
    b->out.n = 0;
    return s;
}

/* Composes an Event with one Value. Lengths of nested messages precede them, so
 * they are computed first. */
static ds_status board_write(void *self, const char *tag, double value, int64_t step)
{
    Board *b = self;
    float simple = (float)value;
    uint32_t bits;
    memcpy(&bits, &simple, sizeof bits);
    size_t n = strlen(tag), value_size = 1 + varint_size(n) + n + 1 + 4;
    put_double(&b->event, 1, dsi_wall_time());
    put_key(&b->event, 2, VARINT);
    put_varint(&b->event, (uint64_t)step);
    put_key(&b->event, 5, BYTES);
    put_varint(&b->event, 1 + varint_size(value_size) + value_size);
    put_key(&b->event, 1, BYTES);
    put_varint(&b->event, value_size);
    put_string(&b->event, 1, tag, n);
    put_key(&b->event, 2, FIXED32);
    put_fixed(&b->event, bits, 4);
    event_end(b);
    return b->out.n < BUFFER ? DS_OK : board_flush(b);
}

static void board_free(void *self)
{
    Board *b = self;
    close(b->fd);
    dsi_free(b->path);
    dsi_text_free(&b->out);
    dsi_text_free(&b->event);
}

/* ---- the file -------------------------------------------------------------------------------------------- */

/* Creates a file with TensorFlow's name,
 * events.out.tfevents.<seconds>.<host>.<pid>.<n>, n being the first number that
 * is free, and puts its path into *path. Returns the descriptor; -1 with the
 * message. */
static int board_open_file(const char *folder, dsi_text *path)
{
    char host[256] = "localhost";
    if (gethostname(host, sizeof host - 1)) strcpy(host, "localhost");
    for (int n = 0;; n++) {
        path->n = 0;
        dsi_text_add(path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", folder,
                     (long long)dsi_wall_time(), host, (long)getpid(), n);
        int fd = open(path->s, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (fd >= 0) return fd;
        if (errno == EEXIST) continue;
        dsi_fail(DS_EIO, "tensorboard: write %s: %s", path->s, strerror(errno));
        return -1;
    }
}

/* The version event is flushed at once, so that TensorBoard lists the run. */
ds_status ds_monitor_tensorboard(ds_monitor *m, const char *output_path, const char *job_name)
{
    static const ds_sink_type type = {"tensorboard", sizeof(Board), board_write, board_flush,
                                      board_free};
    if (!m) return dsi_null_argument("monitor_tensorboard");
    char *folder = dsi_monitor_folder("tensorboard", output_path, job_name);
    if (!folder) return ds_error_status();
    dsi_text path = {0};
    int fd = board_open_file(folder, &path);
    dsi_free(folder);
    if (fd < 0) {
        dsi_text_free(&path);
        return ds_error_status();
    }
    Board *b = ds_monitor_add(m, &type);
    b->path = path.s;
    b->fd = fd;
    put_double(&b->event, 1, dsi_wall_time());
    put_string(&b->event, 3, "brain.Event:2", 13);
    event_end(b);
    return ds_monitor_flush(m);
}
