/* comm/mpi_plugin.c: messages of one MPI library; a shared object of its own
 * for each (see mpi.h).
 *
 * Invariants: communicators are in memory of their own, since MPI_Comm is an
 * int in MPICH and a pointer in Open MPI; plugin_free frees it. Texts of errors
 * are the thread's, valid until its next call. Nothing here blocks except init,
 * split, free, finalize and abort.
 * SPDX-License-Identifier: MIT */
#include "comm.h"
#include "mpi.h"

#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(dsi_mpi_message), "a request fits into a message");

#define RANKS_A_PROCESSOR 4 /* beyond which ranks that spin in MPI stop each other */

static _Thread_local char text[MPI_MAX_ERROR_STRING];

/* The first line: others are where in the library it was noticed. */
static const char *plugin_error(int error)
{
    int n;
    if (error == MPI_SUCCESS) return NULL;
    if (MPI_Error_string(error, text, &n) != MPI_SUCCESS) return "an error without a description";
    text[strcspn(text, "\n")] = 0;
    char *stack = strstr(text, ", error stack:");
    if (stack) *stack = 0;
    return text;
}

/* Takes a communicator of its own, whose errors are ours to report. */
static const char *plugin_fill_place(MPI_Comm comm, dsi_mpi_place *p)
{
    MPI_Comm *kept = malloc(sizeof *kept);
    if (!kept) return "no memory for a communicator";
    *kept = comm;
    p->comm = kept;
    int error = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (!error) error = MPI_Comm_rank(comm, &p->rank);
    if (!error) error = MPI_Comm_size(comm, &p->size);
    return plugin_error(error);
}

/* local_rank and local_size: among the ranks that share memory, which are those
 * of one host. */
static const char *plugin_split_hosts(MPI_Comm comm, dsi_mpi_place *p)
{
    MPI_Comm machine;
    int error = MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    if (!error) error = MPI_Comm_rank(machine, &p->local_rank);
    if (!error) error = MPI_Comm_size(machine, &p->local_size);
    if (!error) error = MPI_Comm_free(&machine);
    return plugin_error(error);
}

/* An error of a request, found by MPI_Test, belongs to no communicator:
 * MPI_COMM_SELF's handler has it since MPI 4, MPI_COMM_WORLD's before. They
 * would end this process before anybody has said why. */
static int plugin_return_errors(void)
{
    int error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return error ? error : MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

/* At least 32767. */
static int plugin_max_tag(void)
{
    int *most = NULL, set = 0;
    int error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &set);
    return !error && set && most ? *most : 32767;
}

/* With more ranks than processors Open MPI yields in each call that finds
 * nothing. On a busy machine that costs milliseconds a call; job_yield of mpi.c
 * does it here. But MPI_Init and MPI_Comm_split block in MPI: with many ranks on
 * each processor those that spin there leave no time to the rank that they wait
 * for (64 ranks on 2 cores: 21 s, with yields 3 s). A setting of the user
 * stays. */
static void choose_yields(void)
{
#ifdef OPEN_MPI
    const char *ranks = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    cpu_set_t allowed;
    long processors = sched_getaffinity(0, sizeof allowed, &allowed) ? sysconf(_SC_NPROCESSORS_ONLN)
                                                                     : CPU_COUNT(&allowed);
    bool crowded = ranks && strtol(ranks, NULL, 10) > RANKS_A_PROCESSOR * processors;
    setenv("OMPI_MCA_mpi_yield_when_idle", crowded ? "1" : "0", 0);
#endif
}

/* SERIALIZED is enough: calls come from two threads, never at the same time. A
 * communicator of its own keeps our messages apart from the program's. */
static const char *plugin_init(dsi_mpi_place *world)
{
    choose_yields();
    int level;
    MPI_Comm comm;
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (error) return plugin_error(error);
    if (level < MPI_THREAD_SERIALIZED) return "it cannot be called from more than one thread";
    error = plugin_return_errors();
    if (!error) error = MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (error) return plugin_error(error);
    const char *wrong = plugin_fill_place(comm, world);
    world->max_tag = plugin_max_tag();
    return wrong ? wrong : plugin_split_hosts(comm, world);
}

/* part->comm NULL: color was negative, and this rank is in no part. */
static const char *plugin_split(void *comm, int color, int key, dsi_mpi_place *part)
{
    MPI_Comm made;
    memset(part, 0, sizeof *part);
    int error = MPI_Comm_split(*(MPI_Comm *)comm, color < 0 ? MPI_UNDEFINED : color, key, &made);
    if (error) return plugin_error(error);
    if (made == MPI_COMM_NULL) return NULL;
    const char *wrong = plugin_fill_place(made, part);
    return wrong ? wrong : plugin_split_hosts(made, part);
}

static void plugin_free(void *comm)
{
    MPI_Comm_free(comm);
    free(comm);
}

/* Memory at p belongs to MPI until plugin_test says that the message is done.
 * bytes fits an int, which transfer.c sees to. The request is stored in *m. */
static const char *plugin_send(void *comm, const void *p, size_t bytes, int to, int tag,
                               dsi_mpi_message *m)
{
    return plugin_error(
        MPI_Isend(p, (int)bytes, MPI_BYTE, to, tag, *(MPI_Comm *)comm, (MPI_Request *)(void *)m));
}

static const char *plugin_receive(void *comm, void *p, size_t bytes, int from, int tag,
                                  dsi_mpi_message *m)
{
    return plugin_error(
        MPI_Irecv(p, (int)bytes, MPI_BYTE, from, tag, *(MPI_Comm *)comm, (MPI_Request *)(void *)m));
}

static MPI_Datatype plugin_type(ds_dtype dtype)
{
    return dtype == DS_F32   ? MPI_FLOAT
           : dtype == DS_F64 ? MPI_DOUBLE
           : dtype == DS_I32 ? MPI_INT32_T
                             : MPI_INT64_T;
}

/* bytes: of n elements. */
static int plugin_begin(MPI_Comm c, const dsi_request *r, int bytes, MPI_Request *m)
{
    MPI_Datatype type = plugin_type(r->dtype);
    MPI_Op op = r->op == DS_REDUCE_MAX ? MPI_MAX : r->op == DS_REDUCE_MIN ? MPI_MIN : MPI_SUM;
    int n = (int)r->n;
    const void *place = (char *)r->out + (size_t)r->comm->rank * (size_t)bytes;
    switch (r->what) {
    case DSI_ALL_REDUCE:
        return MPI_Iallreduce(r->in == r->out ? MPI_IN_PLACE : r->in, r->out, n, type, op, c, m);
    case DSI_REDUCE:
        return MPI_Ireduce(r->comm->rank == r->root && r->in == r->out ? MPI_IN_PLACE : r->in,
                           r->out, n, type, op, r->root, c, m);
    case DSI_ALL_GATHER:
        return MPI_Iallgather(r->in == place ? MPI_IN_PLACE : r->in, bytes, MPI_BYTE, r->out, bytes,
                              MPI_BYTE, c, m);
    case DSI_BROADCAST:
        return MPI_Ibcast(r->out, bytes, MPI_BYTE, r->root, c, m);
    default:
        return MPI_Ibarrier(c, m);
    }
}

/* bytes fits an int, which collective_mpi.c sees to. */
static const char *plugin_collective(void *comm, const dsi_request *r, size_t bytes,
                                     dsi_mpi_message *m)
{
    return plugin_error(plugin_begin(*(MPI_Comm *)comm, r, (int)bytes, (MPI_Request *)(void *)m));
}

/* *received: bytes that came, once *done; of a collective nothing that counts. */
static const char *plugin_test(dsi_mpi_message *m, bool *done, size_t *received)
{
    int flag = 0, count = 0;
    MPI_Status status;
    int error = MPI_Test((MPI_Request *)(void *)m, &flag, &status);
    if (!error && flag) error = MPI_Get_count(&status, MPI_BYTE, &count);
    *done = flag;
    *received = (size_t)count;
    return plugin_error(error);
}

/* *tag -1: nothing has come from that rank. */
static const char *plugin_probe(void *comm, int from, int *tag, size_t *bytes)
{
    int flag = 0, count = 0;
    MPI_Status status;
    int error = MPI_Iprobe(from, MPI_ANY_TAG, *(MPI_Comm *)comm, &flag, &status);
    if (!error && flag) error = MPI_Get_count(&status, MPI_BYTE, &count);
    *tag = !error && flag ? status.MPI_TAG : -1;
    *bytes = (size_t)count;
    return plugin_error(error);
}

/* Asked by name: not every MPI that this may be compiled against has it, nor a
 * header that declares it. */
static bool plugin_takes_gpus(void)
{
    void *found = dlsym(RTLD_DEFAULT, "MPIX_Query_cuda_support");
    int (*query)(void);
    if (!found) return false;
    memcpy(&query, &found, sizeof query);
    return query() == 1;
}

/* MPICH's MPI_Finalize waits until UCX has flushed its connections, and then
 * for the other processes without serving theirs. A flush over TCP may take the
 * peer's answer: if that waits already, neither ends. 5 of 19 short trainings of
 * 4 ranks on two hosts did not (MPICH 4.0.2, UCX 1.13). */
static const char *plugin_finalize(void) { return plugin_error(MPI_Finalize()); }

static void plugin_abort(int status) { MPI_Abort(MPI_COMM_WORLD, status); }

extern const dsi_mpi dsi_mpi_plugin;
__attribute__((__visibility__("default"))) const dsi_mpi dsi_mpi_plugin = {
    .version = DSI_MPI_VERSION,
    .init = plugin_init,
    .split = plugin_split,
    .free = plugin_free,
    .send = plugin_send,
    .receive = plugin_receive,
    .collective = plugin_collective,
    .test = plugin_test,
    .probe = plugin_probe,
    .takes_gpus = plugin_takes_gpus,
    .finalize = plugin_finalize,
#ifdef MPICH
    .finalize_hangs = true,
#endif
    .abort = plugin_abort,
};
