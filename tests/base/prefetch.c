/* tests/base/prefetch.c: each piece is done once, in its place, no further
 * ahead than there are places.
 * SPDX-License-Identifier: MIT */
#include "base/prefetch.h"
#include "check.h"

#include <stdatomic.h>
#include <unistd.h>

#define MOST 500

typedef struct record {
    int64_t place[MOST]; /* the piece there: plain memory, handed over by wait and release */
    _Atomic int times[MOST];
    _Atomic int64_t furthest;
    int places;
    bool slow;
} record;

static void fill(void *arg, int64_t i, int place)
{
    record *r = arg;
    if (r->slow) usleep((useconds_t)(i * 31 % 7 * 20));
    if (place != (int)(i % r->places)) return;
    r->place[place] = i;
    atomic_fetch_add(&r->times[i], 1);
    int64_t was = atomic_load(&r->furthest);
    while (was < i && !atomic_compare_exchange_weak(&r->furthest, &was, i)) {}
}

static void use(dsi_prefetch *p, record *r, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        dsi_prefetch_wait(p, i);
        CHECK_INT(r->place[i % r->places], i);
        CHECK(atomic_load(&r->furthest) < i + r->places);
        dsi_prefetch_release(p, i);
    }
}

static void pieces_are_done_once_and_in_order(void **state)
{
    (void)state;
    for (int workers = 1; workers <= 4; workers++)
        for (int places = 1; places <= 20; places += places < 4 ? 1 : 8)
            for (int slow = 0; slow < 2; slow++) {
                int64_t n = slow ? 40 : MOST;
                record *r = calloc(1, sizeof *r);
                r->places = places;
                r->slow = slow;
                dsi_prefetch *p = dsi_prefetch_new(workers, places, fill, r);
                dsi_prefetch_begin(p, 0, n);
                use(p, r, 0, n);
                for (int64_t i = 0; i < n; i++) CHECK_INT(r->times[i], 1);
                dsi_prefetch_free(p);
                free(r);
            }
}

/* Rounds of all lengths, also shorter than half of the places: no worker may be
 * left asleep. */
static void rounds_of_any_length_end(void **state)
{
    (void)state;
    static record r;
    r.places = 9;
    dsi_prefetch *p = dsi_prefetch_new(2, r.places, fill, &r);
    for (int64_t first = 0; first < 30; first += 7)
        for (int64_t n = 0; n < 40; n++) {
            r.furthest = -1;
            dsi_prefetch_begin(p, first, first + n);
            if (n % 5 == 0) usleep(200); /* workers fall asleep at different times */
            use(p, &r, first, first + n);
            dsi_prefetch_stop(p);
        }
    dsi_prefetch_free(p);
}

static void rounds_can_be_left(void **state)
{
    (void)state;
    static record r;
    r.places = 6;
    dsi_prefetch *p = dsi_prefetch_new(3, r.places, fill, &r);
    for (int64_t k = 0; k < 200; k++) {
        r.furthest = -1;
        dsi_prefetch_begin(p, k % 3, MOST);
        use(p, &r, k % 3, k % 3 + k % 11);
        dsi_prefetch_stop(p);
        int64_t reached = r.furthest; /* and no worker continues after the stop */
        if (k % 50 == 0) usleep(1000);
        CHECK_INT(r.furthest, reached);
    }
    dsi_prefetch_begin(p, 0, MOST);
    dsi_prefetch_free(p); /* in the middle of a round */
    dsi_prefetch_free(NULL);
}

TEST_MAIN(cmocka_unit_test(pieces_are_done_once_and_in_order),
          cmocka_unit_test(rounds_of_any_length_end), cmocka_unit_test(rounds_can_be_left))
