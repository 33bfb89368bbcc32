/* tools/selftest/cases_route.c: tokens to experts. The host has no such
 * kernels: loops in their place.
 * SPDX-License-Identifier: MIT */
#include "cases.h"

#include "base/philox.h"

enum { ROUTE_EXPERTS = 40 };

static int64_t route_best(const float *row, const int64_t *mine, int64_t j)
{
    int64_t at = -1;
    for (int64_t e = 0; e < ROUTE_EXPERTS; e++) {
        bool out = false;
        for (int64_t i = 0; i < j; i++) out |= mine[i] == e;
        if (!out && (at < 0 || row[e] > row[at])) at = e;
    }
    return at;
}

/* Whether route a of an expert stays rather than route b. */
static bool route_before(const dsi_route *c, const dsi_view *score, int64_t k, int64_t e, int64_t a,
                         int64_t b)
{
    const float *p = score->p;
    double x = p[a / k * ROUTE_EXPERTS + e], y = p[b / k * ROUTE_EXPERTS + e];
    if (c->random) { /* the lower word */
        x = -(double)dsi_philox_word(c->random->seed, c->random->offset, (uint64_t)(a / k));
        y = -(double)dsi_philox_word(c->random->seed, c->random->offset, (uint64_t)(b / k));
    }
    return x > y || (x == y && a < b);
}

static ds_status route_on_host(const dsi_route *c, dsi_view score, dsi_view expert, dsi_view place,
                               dsi_view slot, dsi_view counts)
{
    int64_t *to = expert.p, *at = place.p, *row = slot.p, *n = counts.p, k = expert.d[1],
            routes = expert.d[0] * k;
    for (int64_t i = 0; i < 3 * ROUTE_EXPERTS; i++) n[i] = 0;
    for (int64_t i = 0; i < routes; i++) {
        const float *scores = (const float *)score.p + i / k * ROUTE_EXPERTS;
        to[i] = route_best(scores, to + i / k * k, i % k);
        n[to[i]]++, n[ROUTE_EXPERTS + to[i]]++;
    }
    for (int64_t i = 0; i < routes; i++) {
        int64_t rank = 0, e = to[i];
        for (int64_t o = 0; o < routes; o++)
            rank += to[o] == e && route_before(c, &score, k, e, o, i);
        bool stays = rank < c->capacity;
        at[i] = stays ? n[2 * ROUTE_EXPERTS + e]++ : -1;
        row[i] = stays ? e * c->rows + at[i] : -1;
    }
    return DS_OK;
}

static ds_status route_of(Trial *t, int64_t k, dsi_drop drop)
{
    const dsi_philox random = {.seed = 2718281828, .offset = 3};
    int64_t tokens = BIG(t, 4096, 130), room = tokens * k / ROUTE_EXPERTS;
    dsi_route c = {.capacity = room,
                   .rows = room,
                   .drop = drop,
                   .random = drop == DSI_DROP_RANDOM ? &random : NULL};
    dsi_view score = trial_operand(t, DS_F32, DENSE, -1, 1, false, DIMS(tokens, ROUTE_EXPERTS)),
             expert = OUT_INDEX(t, DS_I64, tokens, k), place = OUT_INDEX(t, DS_I64, tokens, k),
             slot = OUT_INDEX(t, DS_I64, tokens, k),
             counts = OUT_INDEX(t, DS_I64, 3, ROUTE_EXPERTS);
    if (t->device->type->kind == DS_CPU)
        return route_on_host(&c, score, expert, place, slot, counts);
    return CALL_FUSION(t, route, &c, score, ABSENT, ABSENT, expert, place, slot, counts);
}
static ds_status route_random(Trial *t) { return route_of(t, 1, DSI_DROP_RANDOM); }
static ds_status route_least(Trial *t) { return route_of(t, 3, DSI_DROP_LEAST); }

static ds_status noise(Trial *t)
{
    const dsi_philox random = {.seed = 31415926535, .offset = 9};
    int64_t n = BIG(t, 1 << 20, 1001);
    dsi_view y = trial_operand(t, DS_F32, DENSE, 0, 0, true, DIMS(n));
    if (t->device->type->kind != DS_CPU)
        return CALL_FUSION(t, noise, &random, false, 0.99, 1.01, y);
    for (int64_t i = 0; i < n; i++) {
        uint32_t word = dsi_philox_word(random.seed, random.offset, (uint64_t)i);
        ((float *)y.p)[i] = 0.99F + (1.01F - 0.99F) * ((float)(word >> 8) * 0x1p-24F);
    }
    return DS_OK;
}

const SelfCase selftest_route[] = {{"route", "random tokens stay", route_random, 1, true},
                                   {"route", "the best tokens stay", route_least, 1, true},
                                   {"noise", "", noise, 1, true},
                                   {0}};
