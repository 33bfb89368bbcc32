/* tests/launcher/cores.c: lists of processors, and each rank's share.
 * SPDX-License-Identifier: MIT */
#include "cores.h"

#include "check.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

static void lists(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "a",   "1,",    ",1", "3-1",
                                      "1-2-3", "2,1", "0-2,2", "-1", "99999"};
    cores c;
    dsi_text why = {0};
    CHECK(cores_parse("0,2-4, 6", &c, &why));
    CHECK_INT(c.n, 5);
    CHECK_INT(c.at[3], 4);
    CHECK_INT(c.at[4], 6);
    dsi_list_free(&c);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        why.n = 0;
        if (cores_parse(bad[i], &c, &why)) fail_msg("\"%s\" is taken", bad[i]);
        CHECK(why.n > 0);
    }
    dsi_text_free(&why);
}

/* first and number of the share of rank r of n */
static void check_share(int all, int n_nodes, const int *node, int r, int n, int first, int number)
{
    cores every = {0}, share;
    every.at = calloc((size_t)all + 1, sizeof *every.at);
    for (; every.n < all; every.n++) every.at[every.n] = every.n;
    CHECK(cores_share(&every, node, n_nodes, r, n, &share) == (number > 0));
    CHECK_INT(share.n, number);
    if (number) CHECK_INT(share.at[0], first);
    dsi_list_free(&share);
    free(every.at);
}

static void shares(void **state)
{
    (void)state;
    const int one[] = {8}, two[] = {4, 4}, uneven[] = {6, 2};
    check_share(8, 1, one, 0, 3, 0, 2);
    check_share(8, 1, one, 2, 3, 4, 2);
    check_share(8, 0, NULL, 1, 2, 4, 4); /* a list */
    check_share(8, 2, two, 3, 4, 6, 2);
    check_share(8, 2, two, 1, 2, 4, 4);
    check_share(8, 2, uneven, 1, 2, 6, 2); /* rank 1 stays on the small node */
    check_share(8, 2, uneven, 0, 2, 0, 2);
    check_share(8, 2, two, 1, 3, 2, 2); /* cannot be dealt by nodes */
    check_share(2, 1, one, 0, 3, 0, 0);
}

/* The cores of the machine are those that this process may use. */
static void machine(void **state)
{
    (void)state;
    cores c;
    int *node, n_nodes, sum = 0;
    cpu_set_t set;
    cores_of_machine(&c, &node, &n_nodes);
    CHECK(c.n >= 1 && n_nodes >= 1);
    for (int k = 0; k < n_nodes; k++) sum += node[k];
    CHECK_INT(sum, c.n);
    CHECK_INT(sched_getaffinity(0, sizeof set, &set), 0);
    for (int i = 0; i < c.n; i++) CHECK(CPU_ISSET((size_t)c.at[i], &set));
    dsi_list_free(&c);
    free(node);
}

static int bind_here(void)
{
    cpu_set_t set;
    dsi_text why = {0};
    cores c;
    int *node, n_nodes;
    cores_of_machine(&c, &node, &n_nodes);
    bool good = cores_bind(NULL, NULL, c.n - 1, c.n, &why) &&
                !sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) == 1 &&
                CPU_ISSET((size_t)c.at[c.n - 1], &set) && !strcmp(getenv("OMP_NUM_THREADS"), "1");
    good = good && !cores_bind(NULL, NULL, 0, 2, &why) && strstr(why.s, "each needs one");
    why.n = 0;
    good = good && !cores_bind("8000", NULL, 0, 1, &why) && strstr(why.s, "8000");
    dsi_list_free(&c);
    free(node);
    dsi_text_free(&why);
    return good ? 0 : 1;
}

static void binding(void **state)
{
    (void)state;
    int status, child = fork();
    if (child == 0) _exit(bind_here());
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(WEXITSTATUS(status), 0);
}

TEST_MAIN(cmocka_unit_test(lists), cmocka_unit_test(shares), cmocka_unit_test(machine),
          cmocka_unit_test(binding))
