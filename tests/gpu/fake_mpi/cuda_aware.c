/* tests/gpu/fake_mpi/cuda_aware.c: makes an MPI CUDA-aware for the emulator's
 * GPUs (LD_PRELOAD): it says that it is, and sends and receives at the place
 * where their memory really is. Compiled without mpi.h, for every MPI: its types
 * are as wide as an address or an int, which are passed on as they come.
 *
 * FAKE_MPI_COUNT: a file to which each rank appends how many messages of a GPU's
 * memory it has sent and received.
 * SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((__visibility__("default")))

typedef int message(const void *p, int n, uintptr_t type, int rank, int tag, uintptr_t comm,
                    void *request);
typedef char *real_place(unsigned long long p, size_t bytes);

SHOWN int MPIX_Query_cuda_support(void);
SHOWN message MPI_Isend, MPI_Irecv;

static long count; /* of the one thread that calls MPI at a time */

/* The bytes of a GPU's memory; what is on the host as it is. */
static const void *place(const void *p, int n)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *f = driver ? dlsym(driver, "fake_cuda_real") : NULL;
    real_place *real;
    if (!f || !p) return p;
    memcpy(&real, &f, sizeof real);
    const char *there = real((unsigned long long)(uintptr_t)p, (size_t)n);
    count += there != NULL;
    return there ? there : p;
}

static int pass(const char *name, const void *p, int n, uintptr_t type, int rank, int tag,
                uintptr_t comm, void *request)
{
    void *f = dlsym(RTLD_DEFAULT, name);
    message *mpi;
    memcpy(&mpi, &f, sizeof mpi);
    return mpi(place(p, n), n, type, rank, tag, comm, request);
}

int MPIX_Query_cuda_support(void) { return 1; }

int MPI_Isend(const void *p, int n, uintptr_t type, int rank, int tag, uintptr_t comm,
              void *request)
{
    return pass("PMPI_Isend", p, n, type, rank, tag, comm, request);
}

int MPI_Irecv(const void *p, int n, uintptr_t type, int rank, int tag, uintptr_t comm,
              void *request)
{
    return pass("PMPI_Irecv", p, n, type, rank, tag, comm, request);
}

__attribute__((__destructor__)) static void note_count(void)
{
    const char *path = getenv("FAKE_MPI_COUNT");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "%ld\n", count);
    fclose(f);
}
