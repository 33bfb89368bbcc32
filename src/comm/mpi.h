/* comm/mpi.h: what an MPI library must give: messages. Its header is included
 * in mpi_plugin.c alone.
 *
 * MPI libraries differ in their types, so one file is compiled against each
 * (libdeepspeed_openmpi.so, libdeepspeed_mpich.so), and opened when a program
 * was started by that library's launcher. A plugin needs nothing of this
 * library, and a program that runs alone loads no MPI.
 * SPDX-License-Identifier: MIT */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dsi_mpi_place {
    void *comm; /* the library's communicator; NULL: this rank is in none */
    int rank, size, local_rank, local_size;
    int max_tag;
} dsi_mpi_place;

typedef int64_t dsi_mpi_message; /* holds a library's request */
struct dsi_request;

/* Functions return NULL, or what went wrong, in words that stay until the next
 * call. They are called by one thread at a time. */
typedef struct dsi_mpi {
    int version; /* DSI_MPI_VERSION */
    const char *(*init)(dsi_mpi_place *world);
    const char *(*split)(void *comm, int color, int key, dsi_mpi_place *part);
    void (*free)(void *comm);
    /* At most 2^31-1 bytes; tags up to max_tag of the world's place. */
    const char *(*send)(void *comm, const void *p, size_t bytes, int to, int tag,
                        dsi_mpi_message *m);
    const char *(*receive)(void *comm, void *p, size_t bytes, int from, int tag,
                           dsi_mpi_message *m);
    /* Begins the library's own form of a collective that dsi_mpi_does, which is
     * tested like a message. bytes: of r->n elements. */
    const char *(*collective)(void *comm, const struct dsi_request *r, size_t bytes,
                              dsi_mpi_message *m);
    /* received: how many bytes came, of a message that was to be received */
    const char *(*test)(dsi_mpi_message *m, bool *done, size_t *received);
    /* The first message of that rank, with any tag, that has come and that no
     * call is receiving: *tag, or -1. */
    const char *(*probe)(void *comm, int from, int *tag, size_t *bytes);
    /* After init: whether messages may be in a GPU's memory (CUDA-aware). */
    bool (*takes_gpus)(void);
    const char *(*finalize)(void);
    bool finalize_hangs; /* now and then, with ranks on several hosts */
    void (*abort)(int status);
} dsi_mpi;

#define DSI_MPI_VERSION 6
#define DSI_MPI_SYMBOL  "dsi_mpi_plugin"
