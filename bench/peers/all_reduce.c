/* bench/peers/all_reduce.c: MPI_Allreduce of float32 by the MPI library alone;
 * bench/peer_comm.py compiles it with each mpicc.
 *
 *     mpirun -n 2 all_reduce BYTES ...      "BYTES median least", microseconds, of each
 * SPDX-License-Identifier: MIT */
#include "../median.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static void measure(size_t bytes, int rank)
{
    int n = (int)(bytes / sizeof(float)), repeats = bytes < 1 << 20 ? 500 : 15;
    float *x = malloc(bytes);
    double *took = malloc((size_t)repeats * sizeof *took);
    memset(x, 0, bytes);
    for (int i = -3; i < repeats; i++) {
        double begun = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= 0) took[i] = MPI_Wtime() - begun;
    }
    double middle = median(took, repeats);
    if (!rank) printf("%zu %.1f %.1f\n", bytes, middle * 1e6, took[0] * 1e6);
    free(x);
    free(took);
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < argc; i++) measure(strtoul(argv[i], NULL, 10), rank);
    MPI_Finalize();
    return 0;
}
