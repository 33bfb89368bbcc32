/* tests/data/loader.c: the loader: same batches with any number of workers,
 * epochs, errors, kept batches, early stops, resuming.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "device/device.h"

#include <stdatomic.h>
#include <unistd.h>

#define WIDTH 5

/* Sample i: x [WIDTH] float is i, i + 0.5 .., y int64 is 7 i. */
typedef struct lines {
    int64_t n, bad, epoch; /* sample `bad` fails; -1: none */
    _Atomic int *gets;
    bool silent, slow;
} lines;

static int alive;

static int64_t lines_len(void *self) { return ((lines *)self)->n; }

static ds_status lines_get(void *self, int64_t i, void **field)
{
    lines *d = self;
    if (d->gets) atomic_fetch_add(d->gets, 1);
    if (d->slow) usleep((useconds_t)(i * 7919 % 5 * 100)); /* workers overtake each other */
    if (i == d->bad)
        return d->silent ? DS_EFORMAT : ds_fail(DS_EIO, "line %lld is torn", (long long)i);
    for (int k = 0; k < WIDTH; k++) ((float *)field[0])[k] = (float)i + 0.5f * (float)k;
    *(int64_t *)field[1] = 7 * i + 1000000 * d->epoch;
    return DS_OK;
}

static void lines_epoch(void *self, int64_t epoch) { ((lines *)self)->epoch = epoch; }

static void lines_free(void *self)
{
    (void)self;
    alive--;
}

static ds_dataset *lines_new(int64_t n)
{
    static const ds_dataset_type type = {"Lines", sizeof(lines), lines_len, lines_get, lines_free};
    ds_dataset *d = ds_dataset_new(
        &type, 2, (ds_field[]){{DS_F32, ds_shape(WIDTH), "line"}, {DS_I64, {0}, "label"}});
    *(lines *)ds_dataset_self(d) = (lines){.n = n, .bad = -1};
    alive++;
    return d;
}

static void check_batch(const ds_batch *b)
{
    CHECK(b->x == b->field[0] && b->y == b->field[1] && !b->field[2]);
    CHECK(ds_ndim(b->x) == 2 && ds_size(b->x, 0) == b->size && ds_size(b->x, 1) == WIDTH);
    CHECK(ds_ndim(b->y) == 1 && ds_size(b->y, 0) == b->size);
    const float *x = ds_data(b->x);
    const int64_t *y = ds_data(b->y);
    for (int64_t i = 0; i < b->size; i++) {
        CHECK_INT(y[i] % 1000000, 7 * b->index[i]);
        for (int k = 0; k < WIDTH; k++)
            CHECK(x[i * WIDTH + k] == (float)b->index[i] + 0.5f * (float)k);
    }
}

/* Reads one epoch; its indices go to order. Returns the number of batches. */
static int64_t read_epoch(ds_loader *l, int64_t *order)
{
    ds_batch b;
    int64_t batches = 0, n = 0;
    while (!ds_error() && ds_loader_next(l, &b)) {
        check_batch(&b);
        memcpy(order + n, b.index, (size_t)b.size * sizeof *order);
        n += b.size;
        batches++;
    }
    CHECK(!ds_error());
    CHECK(!b.x && !b.size);
    return batches;
}

static void batches_do_not_hang_on_workers(void **state)
{
    (void)state;
    enum { N = 103 };
    static const int workers[] = {0, 1, 2, 4, 7};
    static const int64_t sizes[] = {1, 4, 10, 103, 1000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int drop = 0; drop < 2; drop++) {
            int64_t want[2][N], got[N];
            for (size_t w = 0; w < sizeof workers / sizeof *workers; w++) {
                ds_dataset *d = lines_new(N);
                ((lines *)ds_dataset_self(d))->slow = sizes[s] == 10;
                ds_loader *l = ds_loader_new(d, sizes[s], .shuffle = true, .drop_last = drop,
                                             .workers = workers[w], .prefetch = w == 2 ? 1 : 0);
                ds_seed(5);
                for (int epoch = 0; epoch < 2; epoch++) {
                    CHECK_INT(ds_loader_epoch(l), epoch);
                    memset(got, -1, sizeof got);
                    CHECK_INT(read_epoch(l, got), ds_loader_len(l));
                    if (w == 0)
                        memcpy(want[epoch], got, sizeof got);
                    else
                        assert_memory_equal(got, want[epoch], sizeof got);
                }
                CHECK(sizes[s] == 1000 || memcmp(want[0], want[1], sizeof want[0]));
                ds_loader_free(l);
            }
        }
    CHECK_INT(alive, 0);
}

static void numbers_of_batches_are_right(void **state)
{
    (void)state;
    static const int64_t cases[][4] = {/* samples, batch, whole, with the short one */
                                       {10, 4, 2, 3},
                                       {12, 4, 3, 3},
                                       {3, 4, 0, 1},
                                       {1, 1, 1, 1}};
    int64_t order[16];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int drop = 0; drop < 2; drop++)
            for (int workers = 0; workers < 3; workers++) {
                ds_loader *l = ds_loader_new(lines_new(cases[k][0]), cases[k][1], .drop_last = drop,
                                             .workers = workers);
                CHECK_INT(ds_loader_len(l), cases[k][drop ? 2 : 3]);
                CHECK_INT(read_epoch(l, order), cases[k][drop ? 2 : 3]);
                CHECK_INT(read_epoch(l, order), cases[k][drop ? 2 : 3]);
                CHECK_INT(ds_loader_epoch(l), 2);
                ds_loader_free(l);
            }
}

/* A kept batch must not change when its slot is used again. */
static void kept_batches_stay(void **state)
{
    (void)state;
    enum { N = 60, B = 3 };
    for (int workers = 0; workers < 3; workers++) {
        ds_loader *l = ds_loader_new(lines_new(N), B, .workers = workers, .prefetch = 2);
        ds_tensor *x[2 * N / B], *row[2 * N / B];
        int n = 0;
        for (int epoch = 0; epoch < 2; epoch++) {
            ds_batch b;
            while (ds_loader_next(l, &b)) {
                x[n] = ds_keep(b.x);
                row[n++] = ds_keep(ds_select(b.x, 0, 1)); /* a view holds the memory as well */
            }
        }
        CHECK(!ds_error());
        CHECK_INT(n, 2 * N / B);
        ds_loader_free(l); /* and outlive the loader */
        for (int k = 0; k < n; k++) {
            const float *values = ds_data(x[k]), *one = ds_data(row[k]);
            for (int i = 0; i < B; i++) CHECK(values[i * WIDTH] == (float)(k % (N / B) * B + i));
            CHECK(one[1] == (float)(k % (N / B) * B + 1) + 0.5f);
            ds_drop(x[k]);
            ds_drop(row[k]);
        }
    }
}

/* A turn is a scope: nothing made in one is alive after the next call. */
static void turns_are_scopes(void **state)
{
    (void)state;
    ds_loader *l = ds_loader_new(lines_new(40), 4, .workers = 1);
    ds_batch b;
    int64_t before = 0, turns = 0;
    while (ds_loader_next(l, &b)) {
        if (!turns++) before = ds_live_tensors();
        CHECK_INT(ds_live_tensors(), before);
        for (int i = 0; i < 5; i++) ds_zeros(DS_F32, ds_shape(3));
    }
    CHECK_INT(turns, 10);
    CHECK_INT(ds_live_tensors(), before - 2);
    ds_loader_free(l);
}

/* Scopes around, inside and across turns, closed before their loader closes
 * them. */
static void scopes_of_others_are_left_alone(void **state)
{
    (void)state;
    ds_loader *a = ds_loader_new(lines_new(40), 4),
              *c = ds_loader_new(lines_new(40), 8, .workers = 1);
    ds_batch x, y;
    ds_scope *outer = ds_scope_open();
    CHECK(ds_loader_next(a, &x));
    CHECK(ds_loader_next(c, &y)); /* its turn is inside of a's */
    ds_scope_close(outer);        /* takes both turns along */
    ds_scope *fresh = ds_scope_open();
    ds_tensor *t = ds_full(DS_F32, ds_shape(2), 3);
    CHECK(ds_loader_next(a, &x)); /* must not close `fresh`, whatever memory its turn had */
    CHECK(ds_loader_next(c, &y));
    CHECK(ds_loader_next(a, &x)); /* closes c's turn as well */
    CHECK(ds_loader_next(c, &y));
    check_batch(&x);
    check_batch(&y);
    CHECK(((const float *)ds_data(t))[1] == 3);
    ds_loader_free(a);
    ds_loader_free(c);
    ds_scope_close(fresh);
    CHECK(!ds_error());
}

static void failures_come_with_their_batch(void **state)
{
    (void)state;
    for (int workers = 0; workers < 4; workers++)
        for (int silent = 0; silent < 2; silent++) {
            ds_dataset *d = lines_new(40);
            lines *self = ds_dataset_self(d);
            self->bad = 21;
            self->silent = silent;
            ds_loader *l = ds_loader_new(d, 4, .workers = workers);
            ds_batch b;
            int64_t n = 0;
            while (!ds_error() && ds_loader_next(l, &b)) n++;
            CHECK_INT(n, 5);
            CHECK_INT(ds_error_status(), silent ? DS_EFORMAT : DS_EIO);
            if (silent)
                CHECK_ERROR("loader: sample 21 of Lines: its get failed");
            else
                CHECK_ERROR("loader: sample 21 of Lines: line 21 is torn");
            /* after the failure is cleared, the loop continues after that
             * batch */
            CHECK(ds_loader_next(l, &b));
            CHECK_INT(b.index[0], 24);
            ds_loader_free(l);
        }
    CHECK_INT(alive, 0);
}

static void loops_end_at_a_failure(void **state)
{
    (void)state;
    ds_loader *l = ds_loader_new(lines_new(40), 4, .workers = 2);
    ds_batch b;
    int64_t n = 0;
    while (ds_loader_next(l, &b))
        if (++n == 3) ds_relu(NULL); /* any failure in the turn */
    CHECK_INT(n, 3);
    CHECK(!b.x);
    CHECK(ds_error());
    ds_error_clear();
    CHECK(ds_loader_next(l, &b)); /* and no batch was lost */
    CHECK_INT(b.index[0], 12);
    ds_loader_free(l);
}

static void epochs_can_be_left_early(void **state)
{
    (void)state;
    int64_t order[40], first[8];
    for (int workers = 0; workers < 3; workers++) {
        ds_dataset *d = lines_new(40);
        ds_dataset_on_epoch(d, lines_epoch);
        ds_loader *l = ds_loader_new(d, 4, .shuffle = true, .workers = workers);
        ds_batch b;
        ds_seed(3);
        for (int epoch = 0; epoch < 8; epoch++) {
            for (int k = 0; k < epoch; k++) {
                CHECK(ds_loader_next(l, &b));
                check_batch(&b);
                CHECK_INT(((const int64_t *)ds_data(b.y))[0], 7 * b.index[0] + 1000000 * epoch);
            }
            if (epoch && !workers) first[epoch] = b.index[0];
            if (epoch) CHECK_INT(b.index[0], first[epoch]);
            CHECK_INT(ds_loader_epoch(l), epoch);
            if (!epoch) ds_loader_next(l, &b);
            ds_loader_stop(l);
            CHECK_INT(ds_loader_epoch(l), epoch + 1);
            ds_loader_stop(l); /* nothing to leave */
            CHECK_INT(ds_loader_epoch(l), epoch + 1);
        }
        CHECK_INT(read_epoch(l, order), 10);
        CHECK(ds_loader_next(l, &b));
        ds_loader_free(l); /* in the middle of an epoch */
    }
    CHECK_INT(alive, 0);
}

static void positions_are_resumed(void **state)
{
    (void)state;
    enum { N = 43, B = 4, BATCHES = 11 };
    for (int workers = 0; workers < 3; workers++)
        for (int64_t at = 0; at <= BATCHES; at++)
            for (int shuffle = 0; shuffle < 2; shuffle++) {
                ds_dataset *d = lines_new(N), *e = lines_new(N);
                ds_dataset_on_epoch(d, lines_epoch);
                ds_dataset_on_epoch(e, lines_epoch);
                ds_loader *l = ds_loader_new(d, B, .shuffle = shuffle, .workers = workers);
                ds_loader *m = ds_loader_new(e, B, .shuffle = shuffle, .workers = 1);
                int64_t want[N], got[N], skipped[N];
                ds_batch b;
                ds_seed((uint64_t)at);
                read_epoch(l, skipped);
                for (int64_t k = 0; k < at; k++) CHECK(ds_loader_next(l, &b));
                ds_loader_position p = ds_loader_tell(l);
                CHECK(p.epoch == 1 && p.batch == at);
                memset(want, -1, sizeof want);
                memset(got, -1, sizeof got);
                read_epoch(l, want);

                CHECK(ds_loader_next(m, &b)); /* from within another epoch */
                CHECK_INT(ds_loader_seek(m, p), DS_OK);
                CHECK_INT(ds_loader_epoch(m), 1);
                read_epoch(m, got);
                assert_memory_equal(got, want, sizeof got);
                CHECK_INT(ds_loader_epoch(m), 2);
                ds_loader_free(l);
                ds_loader_free(m);
            }
}

static void wrong_positions_are_refused(void **state)
{
    (void)state;
    ds_loader *l = ds_loader_new(lines_new(10), 4);
    CHECK_INT(ds_loader_seek(l, (ds_loader_position){0, 4, 0}), DS_EINVAL);
    CHECK_ERROR("expected a batch of 0 to 3");
    CHECK_INT(ds_loader_seek(l, (ds_loader_position){0, -1, 0}), DS_EINVAL);
    CHECK_ERROR("batch -1");
    CHECK_INT(ds_loader_seek(l, (ds_loader_position){-1, 0, 0}), DS_EINVAL);
    CHECK_ERROR("epoch -1");
    ds_loader_free(l);
}

static void ranks_share_the_data_set(void **state)
{
    (void)state;
    enum { N = 23, RANKS = 4 };
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[N] = {0};
        int64_t total = 0;
        for (int rank = 0; rank < RANKS; rank++) {
            ds_loader *l = ds_loader_new(lines_new(N), 5, .rank = rank, .ranks = RANKS,
                                         .shuffle = true, .seed = 9, .workers = rank % 2);
            CHECK_INT(ds_loader_len(l), 2);
            ds_loader_set_epoch(l, epoch);
            CHECK_INT(ds_loader_epoch(l), epoch);
            ds_batch b;
            ds_seed((uint64_t)rank); /* does not matter */
            while (ds_loader_next(l, &b))
                for (int64_t i = 0; i < b.size; i++) seen[b.index[i]]++, total++;
            ds_loader_free(l);
        }
        CHECK_INT(total, 24);
        for (int i = 0; i < N; i++) CHECK(seen[i] >= 1 && seen[i] <= 2);
    }
}

/* A global batch has the same samples on any ranks, in micro batches that are
 * the same, too. */
static void global_batches_are_those_of_one_rank(void **state)
{
    (void)state;
    enum { N = 21, BATCH = 3, GLOBAL = 12 };
    for (int drop = 0; drop < 2; drop++) {
        int64_t want[2 * N], n = 0;
        for (int ranks = 1; ranks <= 4; ranks *= 2)
            for (int rank = 0; rank < ranks; rank++) {
                ds_loader *l = ds_loader_new(lines_new(N), BATCH, .rank = rank, .ranks = ranks,
                                             .shuffle = true, .seed = 9, .global_batch = GLOBAL,
                                             .drop_last = drop);
                CHECK_INT(ds_loader_len(l) * ranks, drop ? 4 : 8);
                ds_batch b;
                for (int64_t k = rank; ds_loader_next(l, &b); k += ranks)
                    for (int64_t i = 0; i < BATCH; i++) {
                        if (ranks == 1) want[n++] = b.index[i];
                        CHECK_INT(b.index[i], want[k * BATCH + i]);
                    }
                ds_loader_free(l);
            }
        CHECK_INT(n, drop ? 12 : 24);
    }
}

static void check_order(ds_loader *l, const int64_t *want, int64_t n)
{
    ds_batch b;
    int64_t at = 0;
    while (ds_loader_next(l, &b))
        for (int64_t i = 0; i < b.size; i++, at++) CHECK_INT(b.index[i], want[at]);
    CHECK_INT(at, n);
}

/* Orders of PyTorch's samplers, each with the generator that the loader seeds:
 * WeightedRandomSampler(weights, n, replacement, generator) and
 * RandomSampler(data, num_samples=11). */
static void samples_are_drawn_as_pytorch_does(void **state)
{
    (void)state;
    static const int64_t with[] = {2, 7, 7, 4, 7, 4, 7, 3, 7, 2}, without[] = {4, 6, 2, 7, 1},
                         on_ranks[] = {3, 2, 7, 4, 7, 7, 3, 4},
                         repeated[] = {7, 0, 3, 1, 6, 2, 5, 4, 4, 6, 5};
    double weights[] = {0, 1, 2, 0.5, 4, 0, 0.25, 3};
    ds_seed(7);
    ds_loader *l = ds_loader_new(lines_new(8), 4, .weights = weights, .draws = 10),
              *other = ds_loader_new(lines_new(8), 2, .weights = weights, .draws = 5,
                                     .no_replacement = true, .workers = 2);
    CHECK_INT(ds_loader_len(l), 3);
    ds_loader_position begin = ds_loader_tell(l);
    check_order(l, with, 10);
    check_order(other, without, 5);
    CHECK_INT(ds_loader_seek(l, begin), DS_OK);
    check_order(l, with, 10);
    ds_loader_free(l);
    ds_loader_free(other);

    ds_seed(7);
    l = ds_loader_new(lines_new(8), 4, .shuffle = true, .draws = 11);
    check_order(l, repeated, 11);
    ds_loader_free(l);

    for (int rank = 0; rank < 2; rank++) {
        int64_t want[4];
        for (int i = 0; i < 4; i++) want[i] = on_ranks[2 * i + rank];
        l = ds_loader_new(lines_new(8), 3, .weights = weights, .rank = rank, .ranks = 2, .seed = 5);
        ds_loader_set_epoch(l, 2);
        memset(weights, 0, rank * sizeof weights); /* they were copied */
        check_order(l, want, 4);
        ds_loader_free(l);
    }
}

static void wrong_draws_are_refused(void **state)
{
    (void)state;
    const double weights[] = {1, 0, 2};
    CHECK(!ds_loader_new(lines_new(3), 1, .weights = weights, .shuffle = true));
    CHECK_ERROR("weights and shuffle: expected one of them");
    CHECK(!ds_loader_new(lines_new(3), 1, .draws = 2));
    CHECK_ERROR("draws is 2: expected 1 to 2147483647 with shuffle or weights, or 0");
    CHECK(!ds_loader_new(lines_new(3), 1, .draws = INT64_MAX, .shuffle = true));
    CHECK_ERROR("draws is 9223372036854775807");
    CHECK(!ds_loader_new(lines_new(3), 1, .no_replacement = true));
    CHECK_ERROR("no_replacement is for weights");
    CHECK(!ds_loader_new(lines_new(3), 1, .weights = weights, .no_replacement = true));
    CHECK_ERROR("2 weights are above 0: expected at least 3, the draws without replacement");
    CHECK(!ds_loader_new(lines_new(1), 1, .weights = weights + 1));
    CHECK_ERROR("0 weights are above 0: expected at least 1");
    CHECK(!ds_loader_new(lines_new(2), 1, .weights = (double[]){1, NAN}));
    CHECK_ERROR("weight 1 is nan: expected a finite one");
    CHECK_INT(alive, 0);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    CHECK(!ds_loader_new(lines_new(10), 0));
    CHECK_ERROR("loader of Lines: batch_size is 0");
    CHECK(!ds_loader_new(lines_new(10), -4));
    CHECK_ERROR("batch_size is -4");
    CHECK(!ds_loader_next(NULL, &(ds_batch){0}));
    CHECK_ERROR("loader_next: the loader is NULL: ds_engine_loader returns that for an engine");
    CHECK(!ds_loader_new(lines_new(10), 4, .workers = -1));
    CHECK_ERROR("-1 workers");
    CHECK(!ds_loader_new(lines_new(10), 4, .workers = 100000));
    CHECK_ERROR("100000 workers");
    CHECK(!ds_loader_new(lines_new(10), 4, .prefetch = -1));
    CHECK_ERROR("prefetch is -1");
    CHECK(!ds_loader_new(lines_new(10), 4, .rank = 2, .ranks = 2));
    CHECK_ERROR("no rank 2 of 2");
    CHECK(!ds_loader_new(lines_new(10), 4, .ranks = 2, .global_batch = 12));
    CHECK_ERROR("global_batch is 12: expected a multiple of batch_size times ranks, which is 8");
    CHECK(!ds_loader_new(lines_new(10), 4, .rank = 1));
    CHECK_ERROR("no rank 1 of 0");
    CHECK(!ds_loader_new(lines_new(0), 4));
    CHECK_ERROR("it has no samples");
    CHECK(!ds_loader_new(NULL, 4));
    CHECK_ERROR("NULL");
    CHECK_INT(alive, 0);
    ds_loader *l = ds_loader_new(lines_new(10), INT64_MAX, .workers = 1);
    int64_t order[10];
    CHECK_INT(read_epoch(l, order), 1);
    CHECK(!ds_loader_next(l, NULL));
    CHECK_ERROR("out is NULL");
    ds_loader_free(l);
}

static void null_is_passed(void **state)
{
    (void)state;
    ds_batch b = {.size = 3};
    ds_loader_free(NULL);
    ds_loader_stop(NULL);
    ds_loader_set_epoch(NULL, 3);
    CHECK(!ds_loader_len(NULL) && !ds_loader_epoch(NULL) && !ds_loader_dataset(NULL));
    CHECK_INT(ds_loader_tell(NULL).batch, 0);
    CHECK(!ds_loader_next(NULL, &b));
    CHECK_INT(b.size, 0);
    CHECK_ERROR("NULL");
    CHECK(ds_loader_seek(NULL, (ds_loader_position){0}) != DS_OK);
    ds_error_clear();
}

/* No further ahead than was asked for. */
static void prefetch_is_bounded(void **state)
{
    (void)state;
    _Atomic int gets = 0;
    ds_dataset *d = lines_new(1000);
    ((lines *)ds_dataset_self(d))->gets = &gets;
    ds_loader *l = ds_loader_new(d, 10, .workers = 2, .prefetch = 3);
    ds_batch b;
    CHECK(ds_loader_next(l, &b));
    usleep(20000);
    CHECK(gets <= 10 * (3 + 1));
    ds_loader_free(l);
}

/* A failed allocation of storage ends the loop; nothing is lost or leaked, and
 * the loader continues after it. */
static void failed_memory_is_an_ordinary_failure(void **state)
{
    (void)state;
    dsi_device *cpu = dsi_device_get((ds_device){DS_CPU, 0});
    size_t before = dsi_cache_live(cpu);
    for (int workers = 0; workers < 2; workers++)
        for (int n = 1; n < 14; n++) {
            ds_loader *l = ds_loader_new(lines_new(40), 4, .workers = workers, .prefetch = 3);
            ds_tensor *kept[10] = {NULL};
            ds_batch b;
            int64_t k = 0, failures = 0;
            dsi_cache_fail(n, false);
            while (k < 10) {
                if (ds_loader_next(l, &b)) {
                    check_batch(&b);
                    CHECK_INT(b.index[0], 4 * k);
                    kept[k++] = ds_keep(b.x); /* so that each turn asks for memory */
                } else {
                    CHECK_INT(ds_error_status(), DS_ENOMEM);
                    ds_error_clear();
                    CHECK(++failures <= 1);
                }
            }
            dsi_cache_fail(0, false);
            CHECK(failures || n > 10);
            ds_loader_free(l);
            for (int i = 0; i < 10; i++) ds_drop(kept[i]);
            CHECK_INT((int64_t)dsi_cache_live(cpu), (int64_t)before);
        }
}

TEST_MAIN(cmocka_unit_test(samples_are_drawn_as_pytorch_does),
          cmocka_unit_test(wrong_draws_are_refused),
          cmocka_unit_test(failed_memory_is_an_ordinary_failure),
          cmocka_unit_test(batches_do_not_hang_on_workers),
          cmocka_unit_test(numbers_of_batches_are_right), cmocka_unit_test(kept_batches_stay),
          cmocka_unit_test(turns_are_scopes), cmocka_unit_test(scopes_of_others_are_left_alone),
          cmocka_unit_test(failures_come_with_their_batch),
          cmocka_unit_test(loops_end_at_a_failure), cmocka_unit_test(epochs_can_be_left_early),
          cmocka_unit_test(positions_are_resumed), cmocka_unit_test(wrong_positions_are_refused),
          cmocka_unit_test(ranks_share_the_data_set),
          cmocka_unit_test(global_batches_are_those_of_one_rank),
          cmocka_unit_test(wrong_options_are_refused), cmocka_unit_test(null_is_passed),
          cmocka_unit_test(prefetch_is_bounded))
