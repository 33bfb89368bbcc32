/* base/trace.c: what each thread does when, in Chrome's trace event format.
 *
 * The format is a JSON array of events whose closing bracket may be missing
 * ("Trace Event Format", Google): phases B and E nest on a thread, b and e pair
 * by name and id, C is a number over time, M names a thread. A thread puts its
 * events into its own buffer, without locks, and writes them when the buffer is
 * full and when it ends; at exit the buffers of threads that still run are
 * written, and the bracket.
 *
 * Each write is a whole number of events, appended. A process that finds the
 * file in use by another one, as ranks under mpirun do, takes run.<pid>.json
 * instead; times are of the machine's one clock, so that the files of all ranks
 * can be joined.
 *
 * Invariants: a buffer is written by its thread alone; `lock` guards the file,
 * the list of buffers, and each write. Whether a trace is wanted is decided
 * once, before the first event.
 * SPDX-License-Identifier: MIT */
#include "trace.h"

#include "clock.h"
#include "log.h"
#include "mem.h"
#include "text.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define EVENTS 4096 /* of a buffer */

typedef struct Event {
    int64_t ns;
    uint64_t id;
    char phase;
    char name[79];
} Event;

typedef struct Buffer {
    struct Buffer *next;
    int n; /* events that another thread may read; atomic */
    int tid;
    Event at[EVENTS];
} Buffer;

int dsi_trace_state;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct {
    int fd; /* -1: nothing is written any more */
    pid_t pid;
    Buffer *buffers; /* of threads that have not ended */
} file;

static _Thread_local Buffer *mine;
static _Thread_local bool ended; /* this thread, as far as traces go */

/* ---- writing (under the lock) ------------------------------------------------------------------------ */

/* Letters of a name that JSON takes as they are; the others become '?'. */
static void trace_add_name(dsi_text *t, const char *name)
{
    for (; *name; name++) {
        bool plain = *name >= ' ' && *name < 0x7f && *name != '"' && *name != '\\';
        dsi_text_add_bytes(t, plain ? name : "?", 1);
    }
}

static void trace_add_event(dsi_text *t, const Event *e, int tid)
{
    dsi_text_add(t, ",\n{\"ph\":\"%c\",\"pid\":%ld,\"tid\":%d,\"ts\":%lld.%03d", e->phase,
                 (long)file.pid, tid, (long long)(e->ns / 1000), (int)(e->ns % 1000));
    if (e->phase != 'E') {
        dsi_text_add(t, ",\"name\":\"");
        if (e->phase == 'M') dsi_text_add(t, "thread_name\",\"args\":{\"name\":\"");
        trace_add_name(t, e->name);
        dsi_text_add(t, "\"%s", e->phase == 'M' ? "}" : "");
    }
    if (e->phase == 'b' || e->phase == 'e')
        dsi_text_add(t, ",\"cat\":\"request\",\"id\":\"0x%llx\"", (unsigned long long)e->id);
    dsi_text_add(t, "}");
}

static void trace_write_text(const char *s, size_t n)
{
    while (n && file.fd >= 0) {
        ssize_t put = write(file.fd, s, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            dsi_log(DSI_WARNING, "DS_TRACE: the trace ends here: %s", strerror(errno));
            close(file.fd);
            file.fd = -1;
            return;
        }
        s += put;
        n -= (size_t)put;
    }
}

static void trace_write_events(const Buffer *b)
{
    dsi_text t = {0};
    int n = __atomic_load_n(&b->n, __ATOMIC_ACQUIRE);
    if (getpid() != file.pid || file.fd < 0) return; /* a fork: the file is its parent's */
    for (int i = 0; i < n; i++) trace_add_event(&t, &b->at[i], b->tid);
    trace_write_text(t.s, t.n);
    dsi_text_free(&t);
}

/* ---- a thread's buffer -------------------------------------------------------------------------------- */

static void trace_end_thread(void)
{
    Buffer *b = mine;
    pthread_mutex_lock(&lock);
    trace_write_events(b);
    Buffer **at = &file.buffers;
    while (*at != b) at = &(*at)->next;
    *at = b->next;
    pthread_mutex_unlock(&lock);
    dsi_free(b);
    mine = NULL;
    ended = true;
}

static Buffer *trace_new_buffer(void)
{
    Buffer *b = dsi_alloc(sizeof *b);
    b->tid = (int)gettid();
    pthread_mutex_lock(&lock);
    b->next = file.buffers;
    file.buffers = b;
    pthread_mutex_unlock(&lock);
    dsi_at_thread_end(DSI_END_MEMORY, trace_end_thread);
    return b;
}

static void trace_flush(Buffer *b)
{
    pthread_mutex_lock(&lock);
    trace_write_events(b);
    __atomic_store_n(&b->n, 0, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
}

void dsi_trace_add(char phase, const char *name, uint64_t id)
{
    if (ended) return;
    if (!mine) mine = trace_new_buffer();
    if (mine->n == EVENTS) trace_flush(mine);
    Event *e = &mine->at[mine->n];
    e->ns = (int64_t)(1e9 * dsi_now());
    e->id = id;
    e->phase = phase;
    size_t length = strnlen(name, sizeof e->name - 1);
    memcpy(e->name, name, length);
    e->name[length] = 0;
    __atomic_store_n(&mine->n, mine->n + 1, __ATOMIC_RELEASE);
}

/* ---- the file -------------------------------------------------------------------------------------------- */

static void trace_end_process(void)
{
    pthread_mutex_lock(&lock);
    for (const Buffer *b = file.buffers; b; b = b->next) trace_write_events(b);
    if (getpid() == file.pid) trace_write_text("\n]\n", 3);
    file.fd = -1; /* closed by the system, which also lets its lock go */
    pthread_mutex_unlock(&lock);
}

/* The file of that name, locked and empty. -1: another process has it, or errno
 * says why not. */
static int trace_open_locked(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return -1;
    /* pipes and devices can neither be locked nor cut */
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(fd);
        errno = EWOULDBLOCK;
        return -1;
    }
    int cut = ftruncate(fd, 0);
    (void)cut;
    return fd;
}

/* run.json becomes run.<pid>.json */
static int trace_open_file(const char *path)
{
    const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
    dsi_text t = {0};
    if (!dot) dot = path + strlen(path);
    dsi_text_add(&t, "%.*s.%ld%s", (int)(dot - path), path, (long)getpid(), dot);
    int fd = trace_open_locked(t.s);
    dsi_text_free(&t);
    return fd;
}

static void trace_write_head(void)
{
    dsi_text t = dsi_text_of(
        "[\n{\"ph\":\"M\",\"pid\":%ld,\"name\":\"process_name\",\"args\":{\"name\":\"",
        (long)file.pid);
    trace_add_name(&t, program_invocation_short_name);
    dsi_text_add(&t, "\"}}");
    trace_write_text(t.s, t.n);
    dsi_text_free(&t);
}

static void trace_read_environment(void)
{
    const char *path = getenv("DS_TRACE");
    int state = DSI_TRACE_OFF;
    file.fd = -1;
    if (path && *path) {
        file.pid = getpid();
        file.fd = trace_open_locked(path);
        if (file.fd < 0 && errno == EWOULDBLOCK) file.fd = trace_open_file(path);
        if (file.fd < 0)
            dsi_log(DSI_WARNING, "DS_TRACE=%s: %s; there is no trace", path, strerror(errno));
    }
    if (file.fd >= 0) {
        trace_write_head();
        atexit(trace_end_process);
        state = DSI_TRACE_ON;
    }
    __atomic_store_n(&dsi_trace_state, state, __ATOMIC_RELEASE);
}

bool dsi_trace_look(void)
{
    pthread_once(&once, trace_read_environment);
    return __atomic_load_n(&dsi_trace_state, __ATOMIC_ACQUIRE) == DSI_TRACE_ON;
}
