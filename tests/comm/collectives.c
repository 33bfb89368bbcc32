/* tests/comm/collectives.c: every collective, dtype and size against plain
 * loops; the same under mpirun.
 * SPDX-License-Identifier: MIT */
#include "comm/comm.h"
#include "ranks.h"
#include "tensor/tensor.h"

#include <pthread.h>

static const int64_t sizes[] = {0, 1025, 3, 1, 1023, 1024, 40000};
enum { SIZES = sizeof sizes / sizeof *sizes, FEW_SIZES = 3 };

/* On an emulated GPU fewer: each waits for it. */
static int sizes_used(void) { return quick_gpu() ? FEW_SIZES : SIZES; }

/* Small whole numbers: sums are exact in every dtype. They repeat after PERIOD. */
enum { PERIOD = 11 };
static double value(int rank, int64_t i) { return (double)((rank * 5 + i * 3) % PERIOD) - 3; }

/* [n] of dtype; its elements are value(rank, first), ... */
static ds_tensor *filled(ds_dtype dtype, int64_t n, int rank, int64_t first)
{
    double *v = malloc((size_t)n * sizeof *v + 1);
    for (int64_t i = 0; i < n; i++) {
        v[i] = i < PERIOD ? value(rank, first + i) : v[i - PERIOD];
        if (dtype == DS_U8 || dtype == DS_BOOL) v[i] = fabs(v[i]);
    }
    ds_tensor *x = ds_from_data(DS_F64, ds_shape(n), v);
    free(v);
    return ds_cast(x, dtype);
}

static double element(ds_dtype dtype, int rank, int64_t i)
{
    double v = value(rank, i);
    if (dtype == DS_U8) return fabs(v);
    return dtype == DS_BOOL ? v != 0 : v;
}

static double reduced(ds_dtype dtype, ds_redop op, int ranks, int64_t i)
{
    double acc = element(dtype, 0, i);
    for (int r = 1; r < ranks; r++) {
        double v = element(dtype, r, i);
        if (op == DS_REDUCE_MAX)
            acc = fmax(acc, v);
        else if (op == DS_REDUCE_MIN)
            acc = fmin(acc, v);
        else
            acc += v;
    }
    return op == DS_REDUCE_AVG ? acc / ranks : acc;
}

static const double *doubles(ds_tensor *x) { return ds_data(ds_cast(x, DS_F64)); }

/* Whether n numbers are want[0], want[1], ... want[PERIOD - 1], want[0], ... to
 * tol */
static bool repeat(const double *got, int64_t n, const double *want, double tol)
{
    for (int64_t i = 0, k = 0; i < n; i++, k = k + 1 < PERIOD ? k + 1 : 0)
        if (!(fabs(got[i] - want[k]) <= tol)) return false;
    return true;
}

/* Whether n numbers are element(dtype, rank, first), ... */
static bool are_elements(const double *got, int64_t n, ds_dtype dtype, int rank, int64_t first)
{
    double want[PERIOD];
    for (int k = 0; k < PERIOD; k++) want[k] = element(dtype, rank, first + k);
    return repeat(got, n, want, 0);
}

/* Whether n numbers are reduced(dtype, op, ranks, first), ... to tol */
static bool are_reduced(const double *got, int64_t n, ds_dtype dtype, ds_redop op, int ranks,
                        int64_t first, double tol)
{
    double want[PERIOD];
    for (int k = 0; k < PERIOD; k++) want[k] = reduced(dtype, op, ranks, first + k);
    return repeat(got, n, want, tol);
}

/* ---- reductions --------------------------------------------------------------------------------------- */

static bool defined(ds_dtype dtype, ds_redop op)
{
    if (dtype == DS_BOOL) return op >= DS_REDUCE_MAX;
    return op != DS_REDUCE_AVG || dtype <= DS_BF16;
}

static double tolerance(ds_dtype dtype, ds_redop op)
{
    if (op != DS_REDUCE_AVG) return 0;
    return dtype == DS_F64 ? 1e-14 : dtype == DS_F32 ? 1e-6 : dtype == DS_F16 ? 5e-3 : 4e-2;
}

static ds_status one_reduction(ds_dtype dtype, ds_redop op, int64_t n)
{
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c), root = size - 1;
    double tol = tolerance(dtype, op);

    ds_tensor *x = filled(dtype, n, rank, 0);
    RANK_CHECK(ds_all_reduce(c, x, op) == DS_OK);
    RANK_CHECK(are_reduced(doubles(x), n, dtype, op, size, 0, tol));

    x = filled(dtype, n, rank, 0);
    RANK_CHECK(ds_reduce_to(c, x, op, root) == DS_OK);
    const double *got = doubles(x);
    RANK_CHECK(rank == root ? are_reduced(got, n, dtype, op, size, 0, tol)
                            : are_elements(got, n, dtype, rank, 0));

    x = filled(dtype, n * size, rank, 0);
    ds_tensor *out = ds_empty(dtype, ds_shape(n));
    RANK_CHECK(ds_reduce_scatter(c, out, x, op) == DS_OK);
    RANK_CHECK(are_reduced(doubles(out), n, dtype, op, size, rank * n, tol));
    return DS_OK;
}

static ds_status reductions(void *arg)
{
    (void)arg;
    for (int dtype = 0; dtype < DS_DTYPES; dtype++)
        for (int op = DS_REDUCE_AVG; op <= DS_REDUCE_MIN; op++)
            for (int s = 0; s < sizes_used(); s++) {
                if (!defined((ds_dtype)dtype, (ds_redop)op)) continue;
                ds_scope *scope = ds_scope_open();
                ds_status status = one_reduction((ds_dtype)dtype, (ds_redop)op, sizes[s]);
                ds_scope_close(scope);
                if (status != DS_OK) return status;
            }
    return DS_OK;
}

/* ---- the squares of a sum, on the way ------------------------------------------------------------------ */

/* *all: the sum of squares over all ranks of a reduction of [n size] elements
 * of
 * dtype. */
static ds_status squares_of(ds_dtype dtype, int64_t n, bool scatter, double *all)
{
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    double mine = 0.25; /* they are added to what is there */
    ds_tensor *x = filled(dtype, n * size, rank, 0);
    dsi_view in = dsi_v(x), part = dsi_v(dsi_new(x, ds_shape(n)));
    dsi_request *r = scatter
                         ? dsi_reduce_scatter_start(c, x->device, in, part, DS_REDUCE_AVG, &mine)
                         : dsi_all_reduce_start(c, x->device, in, DS_REDUCE_AVG, &mine);
    RANK_CHECK(dsi_request_wait(r) == DS_OK);
    ds_tensor *sum = ds_scalar(DS_F64, mine - 0.25);
    RANK_CHECK(ds_all_reduce(c, sum, DS_REDUCE_SUM) == DS_OK);
    *all = ds_item(sum);
    return DS_OK;
}

static double plain_squares(ds_dtype dtype, int64_t n, int ranks)
{
    double *p = malloc((size_t)n * sizeof *p + 1), sum = 0;
    for (int64_t i = 0; i < n; i++)
        p[i] = i < PERIOD ? reduced(dtype, DS_REDUCE_AVG, ranks, i) : p[i - PERIOD];
    ds_tensor *x = ds_from_data(DS_F64, ds_shape(n), p);
    free(p);
    const double *rounded = doubles(ds_cast(x, dtype)); /* as everybody has it */
    for (int64_t i = 0; i < n; i++) sum += rounded[i] * rounded[i];
    return sum;
}

static ds_status squares(void *arg)
{
    (void)arg;
    int size = ds_comm_size(ds_world());
    for (int dtype = DS_F32; dtype <= DS_BF16; dtype++)
        for (int k = 0; k < 2 * sizes_used(); k++) {
            ds_scope *scope = ds_scope_open();
            int64_t n = sizes[k / 2];
            double got = NAN, want = plain_squares((ds_dtype)dtype, n * size, size);
            ds_status status = squares_of((ds_dtype)dtype, n, k % 2, &got);
            bool good = fabs(got - want) <= 1e-6 * want; /* a mean of three is rounded */
            ds_scope_close(scope);
            if (status != DS_OK) return status;
            RANK_CHECK(good);
        }
    return DS_OK;
}

/* A sum beyond float16's range is inf there, and so are its squares. */
static ds_status squares_of_what_overflows(void *arg)
{
    (void)arg;
    int size = ds_comm_size(ds_world());
    double mine = 0;
    ds_tensor *x = ds_full(DS_F16, ds_shape(3000), 60000.0);
    dsi_request *r = dsi_all_reduce_start(ds_world(), x->device, dsi_v(x), DS_REDUCE_SUM, &mine);
    RANK_CHECK(dsi_request_wait(r) == DS_OK);
    ds_tensor *all = ds_scalar(DS_F64, mine);
    RANK_CHECK(ds_all_reduce(NULL, all, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(isinf(ds_item(all)) == (size > 1));
    return DS_OK;
}

/* ---- moves -------------------------------------------------------------------------------------------- */

static ds_status gathers(ds_dtype dtype, int64_t n)
{
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c), root = size / 2;
    ds_tensor *out = ds_empty(dtype, ds_shape(size, n)), *in = filled(dtype, n, rank, 0);
    RANK_CHECK(ds_all_gather(c, out, in) == DS_OK);
    const double *got = doubles(out);
    for (int r = 0; r < size; r++) RANK_CHECK(are_elements(got + r * n, n, dtype, r, 0));

    out = rank == root ? ds_empty(dtype, ds_shape(size, n)) : NULL;
    RANK_CHECK(ds_gather_to(c, out, in, root) == DS_OK);
    got = rank == root ? doubles(out) : NULL;
    for (int r = 0; got && r < size; r++) RANK_CHECK(are_elements(got + r * n, n, dtype, r, 0));

    in = rank == root ? filled(dtype, size * n, root, 0) : NULL;
    out = ds_empty(dtype, ds_shape(n));
    RANK_CHECK(ds_scatter_from(c, out, in, root) == DS_OK);
    RANK_CHECK(are_elements(doubles(out), n, dtype, root, rank * n));

    out = filled(dtype, n, rank, 0);
    RANK_CHECK(ds_broadcast(c, out, root) == DS_OK);
    RANK_CHECK(are_elements(doubles(out), n, dtype, root, 0));
    return DS_OK;
}

/* Rank a sends rows(a, b) rows of 3 to rank b. */
static int64_t rows(int a, int b, int64_t n) { return (a + 2 * b) % 3 * n; }

static ds_status exchanges(ds_dtype dtype, int64_t n)
{
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    ds_tensor *out = ds_empty(dtype, ds_shape(size * n)), *in = filled(dtype, size * n, rank, 0);
    RANK_CHECK(ds_all_to_all(c, out, in) == DS_OK);
    const double *got = doubles(out);
    for (int r = 0; r < size; r++) RANK_CHECK(are_elements(got + r * n, n, dtype, r, rank * n));

    int64_t sent[64], received[64], n_sent = 0, n_received = 0;
    for (int r = 0; r < size; r++) {
        n_sent += sent[r] = rows(rank, r, n);
        n_received += received[r] = rows(r, rank, n);
    }
    double *p = malloc((size_t)n_sent * 3 * sizeof *p + 1), *at = p;
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < 3 * sent[r]; i++) *at++ = value(rank * 8 + r, i);
    in = ds_cast(ds_from_data(DS_F64, ds_shape(n_sent, 3), p), DS_I32);
    free(p);
    out = ds_empty(DS_I32, ds_shape(n_received, 3));
    RANK_CHECK(ds_all_to_all_rows(c, out, received, in, sent) == DS_OK);
    got = doubles(out);
    for (int r = 0; r < size; r++)
        for (int64_t i = 0; i < 3 * received[r]; i++) RANK_CHECK(*got++ == value(r * 8 + rank, i));
    return DS_OK;
}

static ds_status moves(void *arg)
{
    (void)arg;
    for (int dtype = 0; dtype < DS_DTYPES; dtype++)
        for (int s = 0; s < sizes_used(); s++) {
            ds_scope *scope = ds_scope_open();
            ds_status status = gathers((ds_dtype)dtype, sizes[s]);
            if (status == DS_OK) status = exchanges((ds_dtype)dtype, sizes[s]);
            ds_scope_close(scope);
            if (status != DS_OK) return status;
        }
    return ds_barrier(NULL);
}

/* ---- layouts, requests, groups -------------------------------------------------------------------------- */

static ds_status layouts(void *arg)
{
    (void)arg;
    int rank = ds_comm_rank(ds_world()), size = ds_comm_size(ds_world());
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(6, 4)), *t = ds_transpose(x, 0, 1);
    RANK_CHECK(!dsi_is_contiguous(t));
    RANK_CHECK(ds_copy(t, ds_full(DS_F32, ds_shape(1), rank + 1)) == DS_OK);
    RANK_CHECK(ds_all_reduce(NULL, t, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(ds_item(ds_mean(x)) == size * (size + 1) / 2);

    ds_tensor *scalar = ds_scalar(DS_F64, rank + 0.5); /* shape {} */
    RANK_CHECK(ds_broadcast(NULL, scalar, size - 1) == DS_OK);
    RANK_CHECK(ds_item(scalar) == size - 0.5);
    return DS_OK;
}

/* Begun in one order, waited for in another, while later ones are already on
 * their way. */
static ds_status requests(void *arg)
{
    (void)arg;
    enum { N = 40, EACH = 20000 };
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    ds_tensor *x[N];
    dsi_request *r[N];
    for (int i = 0; i < N; i++) {
        x[i] = filled(DS_F32, i % 2 ? EACH : 5, rank, i);
        r[i] = dsi_all_reduce_start(c, x[i]->device, dsi_v(x[i]), DS_REDUCE_SUM, NULL);
        RANK_CHECK(r[i]);
    }
    for (int k = 0; k < N; k++) {
        int i = (k * 7 + rank) % N; /* 7 and 40 have no common factor */
        RANK_CHECK(dsi_request_wait(r[i]) == DS_OK);
    }
    for (int i = 0; i < N; i++) {
        RANK_CHECK(are_reduced(doubles(x[i]), ds_numel(x[i]), DS_F32, DS_REDUCE_SUM, size, i, 0));
    }
    return DS_OK;
}

/* in at its own place inside of out, and out at its own place inside of in */
static ds_status in_place(void *arg)
{
    (void)arg;
    enum { N = 20000 };
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    ds_tensor *x = filled(DS_F32, (int64_t)N * size, rank, 0);
    dsi_view all = dsi_v(x), part = all;
    part.d[0] = N;
    part.p = (float *)all.p + (int64_t)rank * N;
    RANK_CHECK(dsi_request_wait(dsi_reduce_scatter_start(c, x->device, all, part, DS_REDUCE_SUM,
                                                         NULL)) == DS_OK);
    RANK_CHECK(dsi_request_wait(dsi_all_gather_start(c, x->device, part, all, NULL)) == DS_OK);
    RANK_CHECK(are_reduced(doubles(x), (int64_t)N * size, DS_F32, DS_REDUCE_SUM, size, 0, 0));
    return DS_OK;
}

static const int64_t lengths[] = {900, 50000, 1500000};

/* Random numbers of different sizes, whose sums depend on the order. They
 * repeat after a prime: what is out of place differs. */
static void draw(float *x, int64_t n, int rank)
{
    uint64_t seed = (uint64_t)rank + 1;
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = i < 8191 ? (float)((double)(int64_t)seed * 0x1p-63) : x[i - 8191];
    }
}

/* The sum over ranks of what they draw, in the order of ranks. The first rank
 * that asks computes it, for all. */
static const float *plain_sum(int k, int ranks)
{
    static float *sums[3];
    static int summed[3]; /* ranks */
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    int64_t n = lengths[k];
    pthread_mutex_lock(&one_at_a_time);
    if (!sums[k]) sums[k] = malloc((size_t)n * sizeof *sums[k]);
    if (summed[k] > ranks) summed[k] = 0;
    float *x = malloc((size_t)n * sizeof *x);
    for (; summed[k] < ranks; summed[k]++) {
        draw(x, n, summed[k]);
        for (int64_t i = 0; i < n; i++) sums[k][i] = summed[k] ? sums[k][i] + x[i] : x[i];
    }
    free(x);
    pthread_mutex_unlock(&one_at_a_time);
    return sums[k];
}

/* Sums are equal to the last bit for every backend, also of more elements than
 * are sent in one piece. MPI adds in an order of its own unless it is told not
 * to. */
static ds_status one_order(void *arg)
{
    (void)arg;
    ds_comm *c = ds_world();
    const char *kind = getenv("DS_COLLECTIVES");
    c->ordered = kind && !strcmp(kind, "mpi");
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    for (int k = 0; k < 3; k++) {
        int64_t n = lengths[k], each = n / size;
        const float *want = plain_sum(k, size);
        float *drawn = malloc((size_t)n * sizeof *drawn);
        draw(drawn, n, rank);
        ds_scope *scope = ds_scope_open();
        ds_tensor *x = ds_from_data(DS_F32, ds_shape(n), drawn),
                  *out = ds_empty(DS_F32, ds_shape(each));
        ds_tensor *y = ds_clone(x), *pieces = ds_slice(x, 0, 0, each * size);
        ds_status status = ds_reduce_scatter(c, out, pieces, DS_REDUCE_SUM);
        if (status == DS_OK) status = ds_all_reduce(c, x, DS_REDUCE_SUM);
        if (status == DS_OK) status = ds_reduce_to(c, y, DS_REDUCE_SUM, size - 1);
        bool same = status == DS_OK && !memcmp(ds_data(x), want, (size_t)n * sizeof *want) &&
                    !memcmp(ds_data(out), want + rank * each, (size_t)each * sizeof *want);
        if (rank == size - 1) same = same && !memcmp(ds_data(y), want, (size_t)n * sizeof *want);
        ds_scope_close(scope);
        free(drawn);
        RANK_CHECK(same);
    }
    c->ordered = false;
    return DS_OK;
}

/* Hundreds of requests of all sizes on two communicators, begun in one order
 * and finished in another on each rank, with a few under way at any time. */
enum { UNDER_WAY = 6 };
typedef struct flight {
    dsi_request *r;
    ds_tensor *x, *out;
    int what;
    int64_t i; /* x was filled from it */
} flight;

static dsi_request *take_off(flight *f, ds_comm *c, uint32_t random, int64_t i)
{
    int64_t n = random % 7 ? random % 3000 : random % 90000;
    f->what = (int)(random >> 20) % 3;
    f->i = i;
    f->x = ds_keep(filled(DS_F32, n, ds_comm_rank(c), i));
    f->out = ds_keep(ds_empty(DS_F32, ds_shape(f->what ? 0 : n * ds_comm_size(c))));
    if (f->what == 0)
        f->r = dsi_all_gather_start(c, f->x->device, dsi_v(f->x), dsi_v(f->out), NULL);
    if (f->what == 1)
        f->r = dsi_all_reduce_start(c, f->x->device, dsi_v(f->x), DS_REDUCE_SUM, NULL);
    if (f->what == 2) f->r = dsi_broadcast_start(c, f->x->device, dsi_v(f->x), ds_comm_size(c) - 1);
    return f->r;
}

static bool land(flight *f, int size)
{
    if (!f->r) return true;
    bool good = dsi_request_wait(f->r) == DS_OK;
    int64_t n = ds_numel(f->x);
    const float *got = ds_data(f->what ? f->x : f->out);
    for (int64_t k = 0; good && k < (f->what ? n : n * size); k++) {
        double want = f->what == 0   ? value((int)(k / n), f->i + k % n)
                      : f->what == 1 ? reduced(DS_F32, DS_REDUCE_SUM, size, f->i + k)
                                     : value(size - 1, f->i + k);
        good = got[k] == (float)want;
    }
    ds_drop(f->x);
    ds_drop(f->out);
    *f = (flight){0};
    return good;
}

static ds_status mixture(void *arg)
{
    (void)arg;
    ds_comm *two[2] = {ds_world(), ds_comm_split(NULL, 0, 0)};
    int rank = ds_comm_rank(two[0]), size = ds_comm_size(two[0]);
    flight f[UNDER_WAY] = {0};
    uint32_t common = 1, own = 77u + (uint32_t)rank;
    bool good = two[1] != NULL;
    for (int i = 0; good && i < (quick_gpu() ? 50 : 300); i++) {
        ds_scope *scope = ds_scope_open();
        common = common * 1664525u + 1013904223u; /* Knuth's, as in Numerical Recipes */
        own = own * 1664525u + 1013904223u;
        int k = i % UNDER_WAY, other = (int)(own >> 16) % UNDER_WAY;
        good = land(&f[other], size) && land(&f[k], size) &&
               take_off(&f[k], two[common >> 31], common >> 4, i);
        ds_scope_close(scope);
    }
    for (int k = 0; k < UNDER_WAY; k++) good = land(&f[k], size) && good;
    ds_comm_free(two[1]);
    RANK_CHECK(good);
    return DS_OK;
}

static ds_status groups(void *arg)
{
    (void)arg;
    ds_comm *c = ds_world();
    int rank = ds_comm_rank(c), size = ds_comm_size(c);
    ds_comm *even = ds_comm_split(c, rank % 2, -rank); /* backwards */
    RANK_CHECK(even && ds_comm_size(even) == (size + 1 - rank % 2) / 2);
    RANK_CHECK(ds_comm_rank(even) == (size - 1 - rank) / 2);
    ds_tensor *x = ds_scalar(DS_I64, rank);
    RANK_CHECK(ds_all_reduce(even, x, DS_REDUCE_SUM) == DS_OK);
    int64_t want = 0;
    for (int r = rank % 2; r < size; r += 2) want += r;
    RANK_CHECK(ds_item(x) == (double)want);

    ds_comm *first = ds_comm_split(c, rank ? -1 : 0, 0);
    RANK_CHECK(rank ? !first && !ds_error() : first && ds_comm_size(first) == 1);
    ds_comm *same = ds_comm_split(even, 3, 0);
    RANK_CHECK(same && ds_comm_rank(same) == ds_comm_rank(even));
    RANK_CHECK(ds_barrier(same) == DS_OK);
    ds_comm_free(same);
    ds_comm_free(first);
    ds_comm_free(even);
    return ds_barrier(c);
}

/* ---- what is refused, without waiting for anybody -------------------------------------------------------- */

static bool refused(ds_status status, const char *part)
{
    bool so = status == DS_EINVAL && ds_error() && strstr(ds_error(), part);
    if (so) ds_error_clear();
    return so;
}

static ds_status refusals(void *arg)
{
    (void)arg;
    RANK_CHECK((int)DS_REDUCE_SUM == (int)DS_SUM && (int)DS_REDUCE_AVG == (int)DS_MEAN);
    ds_comm *c = ds_world();
    int size = ds_comm_size(c);
    ds_tensor *f = ds_zeros(DS_F32, ds_shape(size)), *b = ds_zeros(DS_BOOL, ds_shape(size));
    ds_tensor *more = ds_zeros(DS_F32, ds_shape(size + 1)), *i = ds_zeros(DS_I32, ds_shape(size));
    RANK_CHECK(refused(ds_all_reduce(c, b, DS_REDUCE_SUM), "a sum of bool is not defined"));
    RANK_CHECK(refused(ds_all_reduce(c, i, DS_REDUCE_AVG), "an average of int32 is not defined"));
    RANK_CHECK(refused(ds_all_reduce(c, f, (ds_redop)9), "there is no operation 9"));
    RANK_CHECK(refused(ds_all_reduce(c, NULL, DS_REDUCE_SUM), "all_reduce: an operand is NULL"));
    RANK_CHECK(refused(ds_broadcast(c, f, size), "ranks are 0 to"));
    RANK_CHECK(refused(ds_broadcast(c, f, -1), "root is -1"));
    RANK_CHECK(refused(ds_all_gather(c, more, f), "so out must have"));
    RANK_CHECK(refused(ds_all_gather(c, i, ds_zeros(DS_F32, ds_shape(1))), "but out is int32"));
    RANK_CHECK(refused(ds_reduce_scatter(c, f, more, DS_REDUCE_SUM),
                       size == 1 ? "so out must" : "pieces"));
    RANK_CHECK(refused(ds_all_to_all(c, more, f), "so out must have"));
    if (size > 1) RANK_CHECK(refused(ds_all_to_all(c, more, more), "equal pieces"));
    int64_t good[64] = {size}, bad[64] = {size + 1}, negative[64] = {-1, size + 1};
    RANK_CHECK(refused(ds_all_to_all_rows(c, f, bad, f, good), "out_rows are"));
    RANK_CHECK(refused(ds_all_to_all_rows(c, f, good, f, bad), "in_rows are"));
    RANK_CHECK(refused(ds_all_to_all_rows(c, f, good, f, negative), "in_rows[0] is -1"));
    int64_t own[64] = {0}, less[64] = {0};
    own[ds_comm_rank(c)] = size, less[ds_comm_rank(c)] = size + 1;
    RANK_CHECK(refused(ds_all_to_all_rows(c, f, own, more, less), "elements to itself, but"));
    return ds_barrier(c); /* all ranks are still in step */
}

#define EACH_RANK(name) \
    static void test_##name(void **state) \
    { \
        (void)state; \
        TEST_RANKS(name, NULL); \
    }
EACH_RANK(reductions)
EACH_RANK(squares)
EACH_RANK(squares_of_what_overflows)
EACH_RANK(moves)
EACH_RANK(layouts)
EACH_RANK(requests)
EACH_RANK(in_place)
EACH_RANK(one_order)
EACH_RANK(mixture)
EACH_RANK(groups)
EACH_RANK(refusals)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reductions),
                                       cmocka_unit_test(test_squares),
                                       cmocka_unit_test(test_squares_of_what_overflows),
                                       cmocka_unit_test(test_moves),
                                       cmocka_unit_test(test_layouts),
                                       cmocka_unit_test(test_requests),
                                       cmocka_unit_test(test_in_place),
                                       cmocka_unit_test(test_one_order),
                                       cmocka_unit_test(test_mixture),
                                       cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_refusals)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_destroy_process_group();
    return failed;
}
