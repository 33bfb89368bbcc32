/* comm/nccl_open.c: libnccl.so.2, opened when it is first needed, and whether
 * all ranks can use it; how they vote.
 *
 * Invariants: `library` is written by library_open_once alone, and only read
 * after pthread_once has returned. It stays open until the process ends.
 * SPDX-License-Identifier: MIT */
#include "nccl.h"
#include "transfer.h"

#include "base/error.h"
#include "base/library.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OLDEST   21800                        /* ncclConfig_t as it is declared here */
#define BASE(v)  ((v) < 10000 ? 1000 : 10000) /* 2804 is 2.8.4, 21805 is 2.18.5 */
#define MAJOR(v) ((v) / BASE(v))
#define MINOR(v) ((v) % BASE(v) / 100)
#define PATCH(v) ((v) % 100)
#define PACKAGE  "libnccl2 of NVIDIA's repository, or set DS_NCCL=off"

#define NAME(ours, symbol, result, args) #symbol,
static const char *const names[] = {DSI_NCCL_FUNCTIONS(NAME)};
#define N_NAMES (int)(sizeof names / sizeof *names)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dsi_nccl_library library;

const char *dsi_nccl_result_name(ncclResult_t result)
{
#define ROW(name, value) [value] = "nccl" #name,
    static const char *const text[] = {DSI_NCCL_RESULTS(ROW)};
#undef ROW
    return (size_t)result < sizeof text / sizeof *text ? text[result] : "an unknown result";
}

/* dsi_library_open, whose message becomes the reason. */
static bool open_functions(const char *path, const char *const *name, int n, void *to)
{
    const char *const paths[] = {path, NULL};
    int before = dsi_error_count();
    if (dsi_library_open("NCCL", paths, PACKAGE, name, n, to)) return true;
    snprintf(library.why, sizeof library.why, "%s", dsi_error_latest());
    dsi_error_forget(before);
    return false;
}

/* The version is asked for alone: an older library may lack other names. */
static void library_open_once(void)
{
    static const char *const ask_name = "ncclGetVersion";
    const char *wish = getenv("DS_NCCL"), *path = "libnccl.so.2";
    ncclResult_t (*ask)(int *version);
    int version = 0;
    library.off = wish && !strcmp(wish, "off");
    library.required = wish && *wish && !library.off && strcmp(wish, "on") != 0;
    if (library.off) {
        snprintf(library.why, sizeof library.why, "DS_NCCL is off");
        return;
    }
    if (library.required) path = wish;
    if (library.required && !strchr(wish, '/')) {
        snprintf(library.why, sizeof library.why,
                 "DS_NCCL=%s: expected on, off, or the path of libnccl.so.2", wish);
        return;
    }
    if (!open_functions(path, &ask_name, 1, &ask)) return;
    ask(&version);
    if (version < OLDEST)
        snprintf(library.why, sizeof library.why,
                 "%s is NCCL %d.%d.%d, and 2.18 or newer is needed: install a newer package %s",
                 path, MAJOR(version), MINOR(version), PATCH(version), PACKAGE);
    else if (open_functions(path, names, N_NAMES, &library.f))
        library.version = version;
}

const dsi_nccl_library *dsi_nccl_open(void)
{
    pthread_once(&once, library_open_once);
    return &library;
}

/* ---- what the ranks have ------------------------------------------------------------------------------- */

enum { VERSION, REQUIRED, GPU, DIRECT, WORDS };

/* A number for the GPU behind d that no other GPU of the ranks' machines has. */
static ds_status gpu_identity(const dsi_device *d, int64_t *out)
{
    char text[320] = "";
    ds_status status = d->type->identify(d, text, 64);
    gethostname(text + strlen(text), sizeof text - strlen(text) - 1);
    *out = (int64_t)dsi_fnv1a_text(text);
    return status;
}

/* Why ranks p and q, p < q, cannot use NCCL together, if they
 * cannot, in *why. */
static void pair_compare(const int64_t *p, const int64_t *q, int at_p, int at_q, dsi_text *why)
{
    int a = (int)p[VERSION], b = (int)q[VERSION];
    if (a != b)
        dsi_text_add(why, "rank %d has NCCL %d.%d.%d, and rank %d %d.%d.%d", at_p, MAJOR(a),
                     MINOR(a), PATCH(a), at_q, MAJOR(b), MINOR(b), PATCH(b));
    else if (p[GPU] == q[GPU])
        dsi_text_add(why, "ranks %d and %d are on one GPU, and NCCL needs one a rank", at_p, at_q);
}

/* False, with the first reason in *why, if the ranks with these words cannot
 * use NCCL. */
static bool words_allow(const ds_comm *c, const int64_t (*words)[WORDS], dsi_text *why)
{
    for (int q = 0; q < c->size && !why->n; q++)
        if (!words[q][VERSION] && q == c->rank)
            dsi_text_add(why, "%s", library.why);
        else if (!words[q][VERSION])
            dsi_text_add(why, "rank %d has none", q);
    for (int q = 0; q < c->size; q++)
        for (int p = 0; p < q && !why->n; p++) pair_compare(words[p], words[q], p, q, why);
    return !why->n;
}

ds_status dsi_nccl_agree(ds_comm *c, const dsi_device *device, bool *on, bool *direct,
                         dsi_text *why)
{
    int64_t mine[WORDS] = {library.version, library.required && !library.version};
    mine[DIRECT] = c->type == &dsi_comm_mpi && dsi_mpi_takes_gpus();
    int64_t(*words)[WORDS] = dsi_alloc((size_t)c->size * sizeof *words);
    int without = -1;
    ds_status status = gpu_identity(device, &mine[GPU]);
    if (status == DS_OK)
        status = dsi_request_run(&(dsi_request){
            DSI_NUMBERS(c, DSI_ALL_GATHER, DS_I64, mine, words[0], WORDS), .internal = true});
    if (status != DS_OK) dsi_comm_abort(c, ds_error());
    *on = status == DS_OK && words_allow(c, (const int64_t(*)[WORDS])words, why);
    *direct = status == DS_OK && !*on;
    for (int q = c->size - 1; status == DS_OK && q >= 0; q--) {
        if (words[q][REQUIRED]) without = q;
        *direct = *direct && words[q][DIRECT];
    }
    if (without >= 0)
        status = mine[REQUIRED]
                     ? dsi_fail(DS_ECOMM, "%s", library.why)
                     : dsi_fail(DS_ECOMM, "rank %d cannot open the NCCL that DS_NCCL names",
                                without);
    dsi_free(words);
    return status;
}

void dsi_nccl_say(const ds_comm *c, bool on, bool direct, const char *why_not)
{
    int v = library.version;
    if (c->rank || c != ds_world()) return;
    if (on)
        dsi_log(DSI_INFO,
                "%d ranks exchange tensors on GPUs by NCCL %d.%d.%d, and those on the host by %s",
                c->size, MAJOR(v), MINOR(v), PATCH(v), c->type->name);
    else
        dsi_log(library.off ? DSI_INFO : DSI_WARNING,
                "%d ranks exchange tensors on GPUs by %s%s through pinned host memory, without "
                "NCCL: %s",
                c->size, c->type->name, direct ? ", which is CUDA-aware, and what they add up" : "",
                why_not);
}

/* ---- votes --------------------------------------------------------------------------------------------- */

static ds_status voters_reduce_min(dsi_graph_voters *v, int64_t *x, int n)
{
    return dsi_request_run(
        &(dsi_request){DSI_NUMBERS(v->comm, DSI_ALL_REDUCE, DS_I64, x, x, n), .op = DS_REDUCE_MIN,
                       .purpose = "whether all ranks replay a step", .internal = true});
}

static void voters_abort(dsi_graph_voters *v) { dsi_comm_abort(v->comm, ds_error()); }

dsi_graph_voters *dsi_nccl_voters_new(ds_comm *c)
{
    dsi_graph_voters *v = dsi_alloc(sizeof *v);
    *v = (dsi_graph_voters){.comm = c,
                            .has_all_ranks = c->size == ds_comm_size(NULL),
                            .size = c->size,
                            .users = 1,
                            .reduce_min = voters_reduce_min,
                            .abort = voters_abort};
    return v;
}
