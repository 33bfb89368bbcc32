/* tests/gpu/emulator/stream.c: streams, events, graphs, and what is queued on
 * them.
 * SPDX-License-Identifier: MIT */
#include "fake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BRANCHES = 8 };

/* The work of the stream that begins a capture, branch 0, and of streams that
 * have joined it by waiting for its events. */
typedef struct Graph {
    fake_work *first, **last;
    long id;                                 /* of the capture, from 1 */
    int branches;                            /* so far */
    long given[BRANCHES], awaited[BRANCHES]; /* work of each; what another one has waited for */
    struct fake_stream *side[BRANCHES];      /* compiled: those that do it; [0]: the launch's */
    bool spoilt;
} Graph;

typedef struct fake_stream {
    char gpu; /* first: fake_is_ours */
    struct fake_stream *next;
    fake_work *first, **last;
    long submitted, done;
    Graph *graph; /* captures into it, as its branch */
    int branch;
    bool orphan; /* of a graph that has gone: freed when its work is done */
} fake_stream;

typedef struct Event {
    char gpu; /* first */
    fake_stream *stream;
    long until;
    long capture; /* in which it was recorded, on that branch; 0: none */
    int branch;
    int asked; /* how often since then, without being there */
} Event;

enum { MOST_ASKED = 50 }; /* then the host waits for the event, and work is done for it */
#define NAP_US       50
#define NAP_ASKED_US 200 /* whoever asks whether a collective has ended asks again at once */
#define NAP_LAZY_US  20000

static fake_stream *streams;
static long syncs, event_syncs, graph_launches, overlapped, copied_beside, captures;
static bool has_calls; /* so far */
static bool helper_runs;
static uint64_t drawn; /* for the streams' turns */
static _Thread_local long given;

long fake_cuda_syncs(void) { return syncs; }
long fake_cuda_event_syncs(void) { return event_syncs; }
long fake_cuda_graph_launches(void) { return graph_launches; }
long fake_cuda_overlapped(void) { return overlapped; }
long fake_cuda_copied_beside(void) { return copied_beside; }
long fake_cuda_given(void) { return given; }

/* FAKE_CUDA_LAZY: from NEWEST on streams take turns, from SEEDED on drawn ones. */
enum { NEWEST = 2, SEEDED = 3 };
static long laziness(void) { return fake_setting("FAKE_CUDA_LAZY", 0); }
static bool takes_turns(void) { return laziness() >= NEWEST; }

/* ---- queued work: with the lock held ---- */

static bool drain(fake_stream *s, long until);

/* Whether a collective has begun and not ended on another stream of the GPU. */
static bool call_is_open(const fake_stream *beside)
{
    for (const fake_stream *s = streams; s; s = s->next)
        if (s != beside && s->gpu == beside->gpu && s->first && s->first->called) return true;
    return false;
}

/* Whether another stream of the GPU has work that waits for nothing. */
static bool has_work_beside(const fake_stream *beside)
{
    for (const fake_stream *s = streams; s; s = s->next)
        if (s != beside && s->gpu == beside->gpu && s->first && s->first->kind != FAKE_WAIT)
            return true;
    return false;
}

static bool is_known(const fake_stream *s)
{
    const fake_stream *t = streams;
    while (t && t != s) t = t->next;
    return t;
}

/* False: it is not ready. */
static bool work_do(const fake_stream *s, fake_work *w)
{
    switch (w->kind) {
    case FAKE_COPY:
        copied_beside += has_work_beside(s);
        memmove(w->to, w->from, w->bytes);
        break;
    case FAKE_SET:
        memset(w->to, w->from ? *w->from : 0, w->bytes);
        break;
    case FAKE_FREE:
        fake_release(w->p);
        break;
    case FAKE_KERNEL:
        overlapped += call_is_open(s);
        fake_run_kernel(w, s->gpu);
        break;
    case FAKE_WAIT:
        if (!takes_turns()) return drain(w->other, w->until);
        return !is_known(w->other) || w->other->done >= w->until;
    case FAKE_CALL:
        w->called = true;
        return w->call(w->own ? w->own : w->arg);
    }
    return true;
}

/* The stream's first work. False: it is not ready, or there is none. */
static bool stream_step(fake_stream *s)
{
    fake_work *w = s->first;
    if (!w || !work_do(s, w)) return false;
    s->first = w->next;
    if (!s->first) s->last = &s->first;
    s->done++;
    free(w->own);
    free(w);
    return true;
}

/* False: its first work is not ready. */
static bool drain(fake_stream *s, long until)
{
    bool known = is_known(s); /* the stream may be gone, with its work done */
    while (known && s->first && s->done < until)
        if (!stream_step(s)) return false;
    return true;
}

/* One work of the newest stream that can go on, or of one that is drawn. False:
 * none is ready. */
static bool turn_take(void)
{
    fake_stream *first = streams, *s = first;
    int n = 0;
    if (laziness() >= SEEDED) {
        for (; s; s = s->next) n++;
        if (!drawn) drawn = (uint64_t)laziness();
        drawn = drawn * 6364136223846793005u + 1442695040888963407u;
        if (n) n = (int)((drawn >> 33) % (uint64_t)n);
        while (n--) first = first->next;
    }
    for (s = first; s; s = s->next)
        if (stream_step(s)) return true;
    for (s = streams; s != first; s = s->next)
        if (stream_step(s)) return true;
    return false;
}

/* Does what is ready on all streams; whether that was all of a GPU (-1: of all
 * GPUs). */
static bool drain_ready(int gpu)
{
    bool all = true;
    while (takes_turns() && turn_take()) continue;
    for (fake_stream *s = streams; s; s = s->next)
        all = drain(s, s->submitted) || (gpu >= 0 && s->gpu != gpu) ? all : false;
    return all;
}

/* Does the stream's work up to `until`, as far as it is ready; whether it has
 * ended. */
static bool advance(fake_stream *s, long until)
{
    if (!takes_turns()) return drain(s, until) || (drain_ready(-1), drain(s, until));
    while (is_known(s) && s->done < until)
        if (!turn_take()) return false;
    return true;
}

static void nap(unsigned us)
{
    fake_unlock();
    usleep(us);
    fake_lock();
}

static void wait_until(fake_stream *s, long until)
{
    while (!advance(s, until)) nap(NAP_US);
}

void fake_wait_for(CUstream stream)
{
    fake_stream *s = (fake_stream *)stream;
    wait_until(s, s->submitted);
}

void fake_drain(int gpu)
{
    while (!drain_ready(gpu)) nap(NAP_US);
}

/* Tries streams that are blocked, since a real GPU needs no call of its host. */
static void *helper_main(void *arg)
{
    (void)arg;
    fake_lock();
    do nap(laziness() ? NAP_LAZY_US : NAP_ASKED_US);
    while (!drain_ready(-1));
    helper_runs = false;
    fake_unlock();
    return NULL;
}

static void helper_start(void)
{
    pthread_t thread;
    if (helper_runs || pthread_create(&thread, NULL, helper_main, NULL)) return;
    pthread_detach(thread);
    helper_runs = true;
}

CUresult fake_cuda_submit_call(CUstream stream, const fake_call *type, void *arg)
{
    fake_lock();
    has_calls = true;
    if (((fake_stream *)stream)->graph) {
        void *kept = type->copy(arg, false);
        type->release(arg);
        arg = kept;
    }
    CUresult result = fake_submit(
        stream, (fake_work){.kind = FAKE_CALL, .call = type->call, .arg = arg, .again = type});
    helper_start();
    fake_unlock();
    return result;
}

CUresult fake_cuda_submit_copied_call(CUstream stream, bool (*call)(void *arg), const void *arg,
                                      size_t bytes)
{
    return fake_submit(stream, (fake_work){.kind = FAKE_CALL,
                                           .call = call,
                                           .own = memcpy(malloc(bytes), arg, bytes),
                                           .bytes = bytes});
}

CUresult fake_submit(CUstream stream, fake_work w)
{
    fake_stream *s = (fake_stream *)stream;
    NEED(fake_is_ours(stream), INVALID_HANDLE);
    given += w.kind <= FAKE_KERNEL && w.kind != FAKE_FREE;
    fake_lock();
    fake_work *queued = malloc(sizeof *queued), ***last = s->graph ? &s->graph->last : &s->last;
    *queued = w;
    queued->next = NULL;
    queued->branch = s->branch;
    **last = queued;
    *last = &queued->next;
    if (s->graph) {
        s->graph->given[s->branch]++;
    } else {
        s->submitted++;
        if (!laziness()) drain(s, s->submitted);
    }
    fake_unlock();
    return CUDA_SUCCESS;
}

/* ---- streams, events ---- */

static fake_stream *stream_new(void)
{
    fake_stream *s = calloc(1, sizeof *s);
    s->gpu = (char)fake_now();
    s->last = &s->first;
    fake_lock();
    s->next = streams;
    streams = s;
    fake_unlock();
    return s;
}

static void stream_free(fake_stream *s)
{
    fake_stream **at = &streams;
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    free(s);
}

/* Frees the streams of graphs that have gone, but those that still work. */
static void orphans_free(void)
{
    for (fake_stream *s = streams, *next; s; s = next) {
        next = s->next;
        if (s->orphan && !s->first) stream_free(s);
    }
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    MAY_FAIL();
    (void)flags;
    NEED(fake_now() >= 0, INVALID_CONTEXT);
    *stream = (CUstream)stream_new();
    fake_count(1);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    NEED(fake_is_ours(stream), INVALID_HANDLE);
    fake_lock();
    fake_wait_for(stream);
    stream_free((fake_stream *)stream);
    orphans_free();
    fake_unlock();
    fake_count(-1);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    MAY_FAIL();
    NEED(fake_is_ours(stream), INVALID_HANDLE);
    NEED(!fake_spoil_capture(stream), STREAM_CAPTURE_UNSUPPORTED);
    fake_lock();
    syncs++;
    fake_wait_for(stream);
    fake_unlock();
    return CUDA_SUCCESS;
}

/* A host that asks waits: with FAKE_CUDA_LAZY the work is done here too. */
CUresult cuStreamQuery(CUstream stream)
{
    MAY_FAIL();
    NEED(fake_is_ours(stream), INVALID_HANDLE);
    NEED(!fake_spoil_capture(stream), STREAM_CAPTURE_UNSUPPORTED);
    fake_stream *s = (fake_stream *)stream;
    fake_lock();
    bool done = advance(s, s->submitted);
    if (!done) nap(NAP_ASKED_US);
    fake_unlock();
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* The graph into which a stream captures now. */
static Graph *capture_find(long id)
{
    for (fake_stream *s = streams; s; s = s->next)
        if (s->graph && s->graph->id == id) return s->graph;
    return NULL;
}

/* A wait in a capture, which a stream of its own joins. */
static CUresult wait_captured(fake_stream *s, const Event *e)
{
    Graph *g = e->capture ? capture_find(e->capture) : NULL;
    if (!g && s->graph) s->graph->spoilt = true;
    if (!e->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    NEED(g && (!s->graph || s->graph == g), CAPTURED_EVENT);
    NEED(s->graph || g->branches < BRANCHES, STREAM_CAPTURE_UNSUPPORTED);
    if (!s->graph) s->branch = g->branches++;
    s->graph = g;
    if (s->branch == e->branch) return CUDA_SUCCESS;
    if (g->awaited[e->branch] < e->until) g->awaited[e->branch] = e->until;
    return fake_submit((CUstream)s,
                       (fake_work){.kind = FAKE_WAIT, .of = e->branch, .until = e->until});
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    MAY_FAIL();
    fake_stream *s = (fake_stream *)stream;
    Event *e = (Event *)event;
    NEED(e && !flags, INVALID_HANDLE);
    fake_lock();
    CUresult result = e->capture || s->graph ? wait_captured(s, e)
                                             : fake_submit(stream, (fake_work){.kind = FAKE_WAIT,
                                                                               .other = e->stream,
                                                                               .until = e->until});
    fake_unlock();
    return result;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    MAY_FAIL();
    (void)flags;
    NEED(fake_now() >= 0, INVALID_CONTEXT);
    Event *e = calloc(1, sizeof *e);
    e->gpu = (char)fake_now();
    *event = (CUevent)e;
    fake_count(1);
    return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    MAY_FAIL();
    NEED(fake_is_ours(event), INVALID_HANDLE);
    Event *e = (Event *)event;
    NEED(!e->capture, CAPTURED_EVENT);
    fake_lock();
    if (is_known(e->stream) && ++e->asked > MOST_ASKED) advance(e->stream, e->until);
    /* also if it was never recorded, or its stream is gone */
    bool done = !is_known(e->stream) || e->stream->done >= e->until;
    fake_unlock();
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    MAY_FAIL();
    NEED(fake_is_ours(event), INVALID_HANDLE);
    const Event *e = (const Event *)event;
    NEED(!e->capture, CAPTURED_EVENT);
    fake_lock();
    event_syncs++;
    if (e->stream) wait_until(e->stream, e->until);
    fake_unlock();
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    NEED(fake_is_ours(event) && fake_is_ours(stream), INVALID_HANDLE);
    Event *e = (Event *)event;
    fake_lock();
    fake_stream *s = e->stream = (fake_stream *)stream;
    e->capture = s->graph ? s->graph->id : 0;
    e->branch = s->branch;
    e->asked = 0;
    e->until = s->graph ? s->graph->given[s->branch] : s->submitted;
    fake_unlock();
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    NEED(fake_is_ours(event), INVALID_HANDLE);
    free(event);
    fake_count(-1);
    return CUDA_SUCCESS;
}

/* ---- graphs: the work of streams, in order; a compiled one is a copy ---- */

static Graph *graph_new(void)
{
    Graph *g = calloc(1, sizeof *g);
    g->last = &g->first;
    g->branches = 1;
    fake_count(1);
    return g;
}

static void graph_free(Graph *g)
{
    while (g->first) {
        fake_work *w = g->first;
        g->first = w->next;
        if (w->again) w->again->release(w->arg);
        free(w->own);
        free(w);
    }
    fake_lock();
    for (int b = 1; b < g->branches; b++)
        if (g->side[b]) g->side[b]->orphan = true;
    orphans_free();
    fake_unlock();
    free(g);
    fake_count(-1);
}

/* A copy of the work, to be done or to be kept, with memory of its own for what
 * it owns: the argument of a kernel or call, the value of a memset. */
static fake_work work_copy(const fake_work *w, bool queued)
{
    fake_work copy = *w;
    if (w->again) copy.arg = w->again->copy(w->arg, queued);
    size_t bytes = w->kind == FAKE_KERNEL ? fake_argument_bytes(w)
                   : w->kind == FAKE_CALL ? w->bytes
                                          : 1;
    if (w->own) copy.own = memcpy(malloc(bytes), w->own, bytes);
    if (w->own && w->from == w->own) copy.from = copy.own;
    return copy;
}

bool fake_spoil_capture(CUstream stream)
{
    Graph *g = ((fake_stream *)stream)->graph;
    if (g) g->spoilt = true;
    return g != NULL;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    MAY_FAIL();
    fake_stream *s = (fake_stream *)stream;
    NEED(fake_is_ours(stream), INVALID_HANDLE);
    NEED(!s->graph && mode == CU_STREAM_CAPTURE_MODE_RELAXED, ILLEGAL_STATE);
    fake_lock();
    s->graph = graph_new();
    s->graph->id = ++captures;
    fake_unlock();
    return CUDA_SUCCESS;
}

/* Streams that have joined must have been waited for. */
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    fake_stream *s = (fake_stream *)stream;
    Graph *g = s->graph;
    NEED(g && !s->branch, ILLEGAL_STATE);
    CUresult result = g->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    fake_lock();
    for (int b = 1; b < g->branches && !result; b++)
        if (g->awaited[b] < g->given[b]) result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    for (fake_stream *t = streams; t; t = t->next)
        if (t->graph == g) t->graph = NULL, t->branch = 0;
    fake_unlock();
    *graph = result ? NULL : (CUgraph)g;
    if (result) graph_free(g);
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *work, CUgraph graph, unsigned long long flags)
{
    MAY_FAIL();
    NEED(!flags, INVALID_VALUE);
    Graph *g = graph_new();
    for (const fake_work *w = ((Graph *)graph)->first; w; w = w->next) {
        fake_work *copy = malloc(sizeof *copy);
        *copy = work_copy(w, false);
        *g->last = copy;
        g->last = &copy->next;
    }
    g->branches = ((Graph *)graph)->branches;
    for (int b = 1; b < g->branches; b++) g->side[b] = stream_new();
    *work = (CUgraphExec)g;
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec work, CUstream stream)
{
    MAY_FAIL();
    NEED(fake_is_ours(stream) && !fake_spoil_capture(stream), INVALID_HANDLE);
    Graph *g = (Graph *)work;
    long before[BRANCHES]; /* what each branch had been given */
    CUresult result = CUDA_SUCCESS;
    fake_lock();
    graph_launches++;
    g->side[0] = (fake_stream *)stream;
    for (int b = 0; b < g->branches; b++) before[b] = g->side[b]->submitted;
    for (const fake_work *w = g->first; w && !result; w = w->next) {
        fake_work copy = work_copy(w, true);
        if (w->kind == FAKE_WAIT) {
            copy.other = g->side[w->of];
            copy.until += before[w->of];
        }
        result = fake_submit((CUstream)g->side[w->branch], copy);
    }
    g->side[0] = NULL;
    if (has_calls) helper_start();
    fake_unlock();
    return result;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    graph_free((Graph *)graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec work)
{
    graph_free((Graph *)work);
    return CUDA_SUCCESS;
}
