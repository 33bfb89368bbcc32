/* comm/transfer.h: a collective as messages between processes.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "base/list.h"
#include "comm.h"
#include "mpi.h"

#define DSI_FEW_RANKS  8 /* up to which each sends what is small to each */
#define DSI_SHUTDOWN_S 2 /* how long a rank that failed waits for the others at the end */
#define DSI_CAUSE_S    3 /* and how much longer for its message, which a busy machine may delay */

typedef struct dsi_message {
    dsi_mpi_message m;
    int rank, tag;
    bool receives, done;
    size_t bytes;
} dsi_message;

/* Memory that one transfer leaves to the next: fresh pages cost as much as the
 * sum that they are for. */
typedef struct dsi_buffer {
    void *p;
    size_t bytes;
} dsi_buffer;

typedef struct dsi_shm dsi_shm; /* comm/shm.h */

typedef struct dsi_transfer {
    dsi_request *r;
    dsi_shm *shm;          /* the memory that carries it, see shm.h; NULL: messages */
    bool by_mpi;           /* or as MPI's own collective, */
    dsi_mpi_message whole; /* which this is */
    bool gpu;              /* in and out are on r->device: messages of MPI alone */
    uint32_t first_segment, segments;
    struct dsi_transfer *next; /* of the same memory */
    const dsi_mpi *mpi;
    void *comm;
    int max_tag;
    dsi_buffer *kept;
    int phase;  /* of the segment */
    int64_t at; /* first element of the segment */
    struct {
        DSI_LIST(dsi_message)
    } messages; /* of this phase */
    dsi_buffer temp;
    char said[64];  /* DS_DEBUG=comm: the description that precedes a message */
    dsi_text wrong; /* why it cannot go on */
    bool finished;  /* or wrong */
    double left;    /* when a shutdown was seen of a rank that it waits for; 0: none was */
    struct dsi_transfer *after;
} dsi_transfer;

/* Progresses as far as is possible without blocking. True: something was done. */
bool dsi_transfer_advance(dsi_transfer *t);
/* Whether something else has come than what it waits for: another size, another
 * collective, a shutdown: then t->wrong. Costs more than to advance. */
void dsi_transfer_probe(dsi_transfer *t);
void dsi_transfer_free(dsi_transfer *t);

/* Whether the MPI of this process sends and receives a GPU's memory (mpi.c). */
bool dsi_mpi_takes_gpus(void);

bool dsi_transfer_is_shutdown(int tag);

/* MPI's own collectives (collective_mpi.c): whether it has one for r, the same
 * on all ranks; then, in place of the functions above: */
bool dsi_mpi_does(const dsi_request *r);
void dsi_mpi_begin(dsi_transfer *t);
bool dsi_mpi_advance(dsi_transfer *t);
void dsi_mpi_probe(dsi_transfer *t);

/* A rank that t waits for has begun to shut down: t->wrong after a while. It
 * ends the job itself within DSI_SHUTDOWN_S, with its message, if it has
 * failed. */
void dsi_transfer_await_cause(dsi_transfer *t, int rank);

/* "s 1, 3": the ranks from which messages are missing now; "" if none */
void dsi_transfer_missing(const dsi_transfer *t, dsi_text *ranks);
