/* tests/launcher/rank_place.c: which rank of which world this process is.
 * SPDX-License-Identifier: MIT */
#include "rank_place.h"

#include "check.h"

/* {"w-0": [0, 1], "w-1": [2]} */
#define WORLD "eyJ3LTAiOiBbMCwgMV0sICJ3LTEiOiBbMl19"

static void reads(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "", "%%%%", "bm8", "e30=", "W10=", "eyJhIjogMX0=", "eyJhIjogWyJ4Il19"};
    ds_hosts w = {0};
    CHECK(hosts_decode(&w, WORLD));
    CHECK_INT(w.n, 2);
    CHECK_INT(hosts_count_slots(&w), 3);
    assert_string_equal(w.at[1].name, "w-1");
    CHECK_INT(w.at[1].slots[0], 2);
    hosts_free(&w);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (hosts_decode(&w, bad[i])) fail_msg("\"%s\" is taken", bad[i]);
        hosts_free(&w);
    }
}

typedef struct place_case {
    const char *name[3], *value[3];
    int node, rank; /* rank -1: refused */
    const char *why;
} place_case;

static const place_case cases[] = {
    {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
     {"2", "3", "0"},
     -1,
     2,
     ""},
    {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, {"1", "3", "1"}, -1, 1, ""},
    {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"}, {"0", "3", "0"}, -1, 0, ""},
    {{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
     {"1", "3", "1"},
     -1,
     1,
     ""},
    {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, {"0", "1", "0"}, 1, 2, ""}, /* of node 1 alone */
    {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
     {"0", "1", "0"},
     -1,
     -1,
     "rank 0 of 1, but 3 ranks are expected"},
    {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, {"2", "3", "1"}, -1, -1, "another order"},
    {{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"}, {"0", "1", "0"}, 9, -1, "--node_rank=9"},
    {{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"},
     {"0", "0", "0"},
     -1,
     -1,
     "the environment says"}};

static void finds(void **state)
{
    (void)state;
    ds_hosts w = {0};
    CHECK(hosts_decode(&w, WORLD));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const place_case *c = &cases[i];
        rank_place p = {.rank = -1};
        dsi_text why = {0};
        rank_place_forget();
        for (int k = 0; k < 3; k++) setenv(c->name[k], c->value[k], 1);
        bool found = rank_place_find(&w, c->node, &p, &why);
        for (int k = 0; k < 3; k++) unsetenv(c->name[k]);
        if (found != (c->rank >= 0) || (found && (p.rank != c->rank || p.node != c->rank / 2)) ||
            (!found && !strstr(why.s, c->why)))
            fail_msg("case %zu: rank %d, want %d: %s", i, p.rank, c->rank, why.s ? why.s : "");
        dsi_text_free(&why);
    }
    hosts_free(&w);
}

TEST_MAIN(cmocka_unit_test(reads), cmocka_unit_test(finds))
