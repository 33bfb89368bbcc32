/* device/graph.h: a step that a device has recorded, and launches again as a
 * whole (CUDA graphs).
 *
 * Recording runs the step's host code. Twice it is only observed: the work is
 * done as usual, and what cannot be repeated is noted (dsi_graph_forbid). Then
 * it is captured: nothing is computed, the device keeps the work. A replay does
 * the captured work without the step's host code, so that whatever the host
 * decides or counts in a step is a hook, and whatever it hands to kernels and
 * changes from step to step is in a slot. A value that it would have read in
 * between is a result, which it reads after the launch.
 *
 * Invariants:
 * - A device handle records at most one graph at a time: d->recording.
 * - While it records, storage comes from the graph's pool (device.h), whose
 *   blocks stay its own as long as the graph lives: the addresses that were
 *   captured stay valid. Graphs of which at most one runs at a time may share a
 *   transient pool (pool.h) for memory that a capture takes and gives back.
 *   Storage in use after a capture is not in it: another graph would write to
 *   that (dsi_graph_collides).
 * - Hooks are called in the order in which they were added, which is the order
 *   of the host code that they stand for. `after` is called after the launch of
 *   a capture too: code that captures leaves to it what depends on results.
 *   `undo` is called in the opposite order, in place of `after`.
 * - A launch waits for the device if the graph has a result, and once.
 *
 * Note [Graph votes]: before each step that has had collectives, their ranks
 * vote on whether the step is recorded, replayed, or run by its function,
 * because NCCL's documentation wants all ranks of a collective to do the same:
 * to capture it, and to replay what they have captured together. Each rank
 * proposes what it can do by itself, which depends on the shapes of its inputs,
 * say (step_graph.c: Turn); all do the least of what was proposed, the minimum
 * of numbers. The voters are the ranks of a communicator, which comm/nccl.c
 * makes: the largest that the step's collectives have. If they have several,
 * one must have all ranks: else no vote would be one of all, and the step is
 * not recorded.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "device.h"

typedef struct dsi_graph dsi_graph;

/* A part of the step's host code, for replays. */
typedef struct dsi_graph_hook {
    bool (*holds)(void *arg);       /* what was captured is still valid; optional */
    bool (*agrees)(void *arg);      /* the same, asked of other ranks, which ask too: of all hooks,
                                       once those of all ranks hold; optional */
    void (*before)(void *arg);      /* of a replay: writes slots, draws random numbers; optional */
    ds_status (*after)(void *arg);  /* results are there; optional */
    void (*release)(void *arg);     /* the graph is freed or recorded again */
    ds_status (*queued)(void *arg); /* the work is queued; the host has not waited; optional */
    void (*undo)(void *arg);        /* the capture, or the launch, has failed, and nothing was done:
                                       the host's part of the step was not either; optional */
    bool (*give)(void *arg, const void *what); /* `what` is for work of this graph, which does it at
                                       its next launch: true. NULL: what was given before is not
                                       for that any more. Optional */
} dsi_graph_hook;

/* An empty graph of d; NULL if d has no graphs. transient_pool: the caller's,
 * freed after all of its graphs, or NULL. */
dsi_graph *dsi_graph_new(dsi_device *d, dsi_block_pool *transient_pool);
void dsi_graph_free(dsi_graph *g);

/* The step's host code runs between these two. Captured work is done by
 * dsi_graph_launch alone. dsi_graph_end without `keep` drops what was captured;
 * it may fail where the device refuses the graph. */
ds_status dsi_graph_begin(dsi_graph *g, bool capture);
ds_status dsi_graph_end(dsi_graph *g, bool keep);

/* The first reason why the step cannot be captured; NULL: none was found. */
const char *dsi_graph_why_not(const dsi_graph *g);

/* Whether memory of the transient pool is in use after a capture: it must be
 * launched at most once, and no other graph of the pool any more.
 * dsi_graph_part: without a transient pool from now on; for a graph without
 * work. */
bool dsi_graph_collides(const dsi_graph *g);
void dsi_graph_part(dsi_graph *g);
bool dsi_graph_holds(const dsi_graph *g); /* by its hooks */
bool dsi_graph_asks(const dsi_graph *g);  /* whether one of them has `agrees` */
bool dsi_graph_agrees(const dsi_graph *g);
/* Between these two, inputs of the next replay get their values: work that
 * makes them may be part of the graph (dsi_graph_give). */
void dsi_graph_feed(dsi_graph *g);
void dsi_graph_fed(dsi_graph *g);
ds_status dsi_graph_launch(dsi_graph *g); /* right after the capture: without `before` */
ds_status dsi_graph_replay(dsi_graph *g); /* `before`, launch, `after` */
void dsi_graph_reset(dsi_graph *g);       /* drops the work, its hooks and slots */
void dsi_graph_cancel(dsi_graph *g); /* drops the work: what was captured does not hold any more */

/* ---- Note [Graph votes] ----------------------------------------------------- */

/* The ranks of a communicator, which vote. Counted: users are the communicator,
 * until it ends, and step graphs. */
typedef struct dsi_graph_voters {
    struct ds_comm *comm; /* borrowed; NULL: it has ended */
    bool has_all_ranks;   /* of the world */
    int size, users;      /* size: ranks */
    /* A collective of the hosts, which blocks: each of the n numbers becomes
     * the minimum of all ranks. */
    ds_status (*reduce_min)(struct dsi_graph_voters *v, int64_t *x, int n);
    /* This rank has failed, and others wait for it: they fail with its message. */
    void (*abort)(struct dsi_graph_voters *v);
} dsi_graph_voters;

/* Collectives of a step. A device's while its step runs, else NULL. */
typedef struct dsi_step_collectives {
    dsi_graph_voters *largest; /* borrowed; NULL: no collectives so far */
    bool separate_groups;      /* of ranks, and none of them has all ranks */
    int64_t queued;            /* how many, also of launched graphs */
} dsi_step_collectives;

/* For the step that d runs, if it does: it has a collective of the ranks v; n
 * collectives have been queued. */
void dsi_step_collectives_add(dsi_device *d, dsi_graph_voters *v);
void dsi_step_collectives_queued(dsi_device *d, int n);

/* The communicator ends, and gives back its count. */
void dsi_graph_voters_end(dsi_device *d, dsi_graph_voters *v);
dsi_graph_voters *dsi_graph_voters_ref(dsi_graph_voters *v);
void dsi_graph_voters_unref(dsi_graph_voters *v); /* NULL: nothing */

/* ---- for code that runs in a step ------------------------------------------- */

static inline bool dsi_graph_recording(const dsi_device *d) { return d && d->recording; }
bool dsi_graph_capturing(const dsi_device *d);
dsi_device *dsi_device_recording(void); /* one of this thread's that does; NULL: none */

/* The step does what a replay cannot repeat: `why`, for example "it reads a
 * value on the host". Noted if d is observed; a failure if d captures; nothing
 * otherwise. */
ds_status dsi_graph_forbid(dsi_device *d, const char *why);

/* The same for the device of this thread that records, if one does: the public
 * function ds_<call> sets a value of the host, another one at each step
 * maybe. */
void dsi_graph_forbid_call(const char *call);

/* Until it is set back, what d does while it is observed is not noted: a
 * capture does it in another way. Returns how it was. */
bool dsi_graph_note(dsi_device *d, bool on);

/* The step may add to gradients of earlier steps: its caller sees to it, by a
 * hook, that they are where they were. */
void dsi_graph_accumulate(dsi_device *d);
bool dsi_graph_accumulates(const dsi_device *d);

/* Only while d captures: adds a hook. arg is the graph's, until release. */
void dsi_graph_add_hook(dsi_device *d, const dsi_graph_hook *hook, void *arg);

/* Only while d captures: `bytes` of device memory whose values each launch
 * takes from *host, which hooks may write. NULL with the message. */
void *dsi_graph_slot(dsi_device *d, size_t bytes, void *host);

/* A seed that the step has drawn, and while d captures its slot, else NULL. A
 * part that is computed again has those of its first run: false if that was
 * not in this step. For a device that records. */
void dsi_graph_add_seed(dsi_device *d, uint64_t seed, const uint64_t *slot);
bool dsi_graph_find_seed(const dsi_device *d, uint64_t seed, const uint64_t **slot);

/* The same as a slot the other way: memory whose values each launch copies to
 * *host before `after`. */
void *dsi_graph_result(dsi_device *d, size_t bytes, void *host);
bool dsi_graph_has_results(const dsi_device *d); /* of the step that d captures */

/* A copy of the device's memory of the slot at `host`: work that changes its
 * slot is followed there, by its hook's `queued`, so that slots are not copied
 * before each launch. */
void *dsi_graph_slot_sent(const dsi_device *d, const void *host);

/* Whether a graph of d is fed, and takes `what` by a hook of this type: it is
 * not to be done now. */
bool dsi_graph_give(const dsi_device *d, const dsi_graph_hook *type, const void *what);

/* Whether p was allocated since the recording of d began. */
bool dsi_graph_allocated(const dsi_device *d, const void *p);

/* The scalars that optimizers take from device memory in this part of the step;
 * NULL: all by value. `uses` counts the kernels that took it. */
const dsi_step_scalars *dsi_graph_use_scalars(dsi_device *d);
void dsi_graph_set_scalars(dsi_device *d, const dsi_step_scalars *scalars);
int64_t dsi_graph_scalar_uses(const dsi_device *d);

/* The decision that the step that d captures makes on the device, for updates
 * that come after it; NULL: none, or no more. host: memory to which launches
 * copy it. */
typedef struct dsi_graph_decision {
    const dsi_step_result *device, *host;
} dsi_graph_decision;
dsi_graph_decision dsi_graph_decided(const dsi_device *d);
void dsi_graph_decide(dsi_device *d, dsi_graph_decision decision);
