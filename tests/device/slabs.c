/* tests/device/slabs.c: small blocks cut from slabs: none overlaps another,
 * what is given back is cut again, and a slab is returned with its last piece.
 * SPDX-License-Identifier: MIT */
#include "device/slabs.h"
#include "base/mem.h"
#include "check.h"

enum { SLAB = 1 << 20, MOST = SLAB / 8, PIECES = 400 };

static int slabs_taken[2], slabs_live[2]; /* [fixed] */
static bool is_full;

static void *slab_take(bool fixed, size_t bytes)
{
    CHECK_INT((int64_t)bytes, SLAB);
    if (is_full) return NULL;
    slabs_taken[fixed]++, slabs_live[fixed]++;
    return aligned_alloc(4096, bytes);
}

static void slab_give(bool fixed, void *p)
{
    slabs_live[fixed]--;
    free(p);
}

static void *alloc(dsi_device *d, size_t bytes) { return (void)d, slab_take(false, bytes); }
static void *alloc_fixed(dsi_device *d, size_t bytes) { return (void)d, slab_take(true, bytes); }
static void give(dsi_device *d, void *p) { (void)d, slab_give(false, p); }
static void give_fixed(dsi_device *d, void *p) { (void)d, slab_give(true, p); }

static const dsi_device_type type = {.slab_bytes = SLAB,
                                     .alloc = alloc,
                                     .free = give,
                                     .alloc_fixed = alloc_fixed,
                                     .free_fixed = give_fixed};
static dsi_device device = {.type = &type};

typedef struct Piece {
    unsigned char *p; /* each byte is `mark` */
    size_t bytes;
    unsigned char mark;
} Piece;

static void piece_join(dsi_slab **slabs, Piece *piece)
{
    for (size_t i = 0; i < piece->bytes; i++) CHECK(piece->p[i] == piece->mark);
    CHECK(dsi_slab_join(&device, slabs, piece->p, piece->bytes));
    piece->p = NULL;
}

/* Random pieces of both kinds, given back in a random order. */
static void pieces_do_not_overlap(void **state)
{
    (void)state;
    static Piece pieces[PIECES];
    dsi_slab *slabs = NULL;
    uint64_t random = 1;
    for (int turn = 0; turn < (quick() ? 2000 : 20000); turn++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        Piece *piece = &pieces[(random >> 33) % PIECES];
        if (piece->p) {
            piece_join(&slabs, piece);
            continue;
        }
        piece->bytes = (random >> 43) % 5 ? (random >> 47) % 3000 + 1 : (random >> 47) % MOST + 1;
        piece->mark = (unsigned char)turn;
        piece->p = dsi_slab_cut(&device, &slabs, turn % 2, piece->bytes);
        CHECK(piece->p && (uintptr_t)piece->p % 256 == 0);
        memset(piece->p, piece->mark, piece->bytes);
    }
    CHECK(slabs_live[0] > 1 && slabs_live[1] > 1);
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].p) piece_join(&slabs, &pieces[i]);
    CHECK(!slabs && !slabs_live[0] && !slabs_live[1]);
}

/* Gaps next to each other become one, whichever was first. */
static void a_slab_is_whole_again(void **state)
{
    (void)state;
    static const int orders[][8] = {
        {0, 1, 2, 3, 4, 5, 6, 7}, {7, 6, 5, 4, 3, 2, 1, 0}, {1, 3, 5, 7, 0, 2, 4, 6}};
    for (size_t k = 0; k < sizeof orders / sizeof *orders; k++) {
        dsi_slab *slabs = NULL;
        void *p[8];
        int before = slabs_taken[0];
        void *kept = dsi_slab_cut(&device, &slabs, false, 1);
        for (int i = 0; i < 7; i++) CHECK((p[i] = dsi_slab_cut(&device, &slabs, false, MOST)));
        CHECK((p[7] = dsi_slab_cut(&device, &slabs, false, MOST - 256)));
        CHECK_INT(slabs_taken[0] - before, 1);
        for (int i = 0; i < 8; i++)
            CHECK(dsi_slab_join(&device, &slabs, p[orders[k][i]],
                                orders[k][i] == 7 ? MOST - 256 : MOST));
        for (int i = 0; i < 7; i++) CHECK((p[i] = dsi_slab_cut(&device, &slabs, false, MOST)));
        CHECK_INT(slabs_taken[0] - before, 1);
        for (int i = 0; i < 7; i++) CHECK(dsi_slab_join(&device, &slabs, p[i], MOST));
        CHECK_INT(slabs_live[0], 1);
        CHECK(dsi_slab_join(&device, &slabs, kept, 1));
        CHECK_INT(slabs_live[0], 0);
    }
}

static void what_is_no_piece(void **state)
{
    (void)state;
    dsi_slab *slabs = NULL;
    char other[64];
    CHECK(!dsi_slab_cut(&device, &slabs, false, MOST + 1) && !slabs);
    is_full = true;
    CHECK(!dsi_slab_cut(&device, &slabs, false, 64) && !slabs);
    is_full = false;
    void *p = dsi_slab_cut(&device, &slabs, false, 64);
    CHECK(p && !dsi_slab_join(&device, &slabs, other, sizeof other));
    CHECK(dsi_slab_join(&device, &slabs, p, 64) && !slabs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_do_not_overlap),
                                       cmocka_unit_test(a_slab_is_whole_again),
                                       cmocka_unit_test(what_is_no_piece)};
    if (!DSI_SANITIZED) return cmocka_run_group_tests(tests, NULL, NULL);
    puts("skipped: with a sanitizer each block is the device's own");
    return 0;
}
