/* tests/comm/log.c: bytes sent by the formulas, and DeepSpeed's table of
 * collectives.
 * SPDX-License-Identifier: MIT */
#include "comm/comm.h"
#include "ranks.h"

#include <unistd.h>

static ds_status volumes(void *arg)
{
    (void)arg;
    ds_comm *c = ds_world();
    double p = ds_comm_size(c), before; /* which divides 24 */
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(24 * 7)), *half = ds_zeros(DS_BF16, ds_shape(24 * 7));
    ds_tensor *part = ds_zeros(DS_F32, ds_shape(24 * 7 / ds_comm_size(c)));
    const double S = 24 * 7 * 4;
#define SENDS(call, bytes) \
    before = dsi_comm_volume(c); \
    RANK_CHECK((call) == DS_OK); \
    RANK_CHECK(fabs(dsi_comm_volume(c) - before - (bytes)) < 1e-6)
    SENDS(ds_all_reduce(c, x, DS_REDUCE_SUM), 2 * (p - 1) / p * S);
    SENDS(ds_all_reduce(c, half, DS_REDUCE_SUM), (p - 1) / p * S);
    SENDS(ds_reduce_scatter(c, part, x, DS_REDUCE_SUM), (p - 1) / p * S);
    SENDS(ds_all_gather(c, x, part), (p - 1) / p * S);
    SENDS(ds_all_to_all(c, ds_like(x, 0), x), (p - 1) / p * S);
    SENDS(ds_broadcast(c, x, 0), (p - 1) / p * S);
    SENDS(ds_reduce_to(c, x, DS_REDUCE_MAX, 0), (p - 1) / p * S);
    SENDS(ds_gather_to(c, x, part, 0), ds_comm_rank(c) ? S / p : 0);
    SENDS(ds_scatter_from(c, part, x, 0), ds_comm_rank(c) ? 0 : (p - 1) / p * S);
    SENDS(ds_barrier(c), 0);
    return DS_OK;
}

static void bytes_are_counted(void **state)
{
    (void)state;
    TEST_RANKS(volumes, NULL);
}

static ds_status logged(void *arg)
{
    const char *ops[] = {"all_reduce", "broadcast"};
    bool all = *(bool *)arg;
    ds_comm *c = ds_world();
    RANK_CHECK(ds_comm_log_summary(c, false) == DS_ESTATE);
    ds_error_clear();
    ds_comm_log_start(c, all, all ? NULL : ops, 2);
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(1024)), *y = ds_zeros(DS_F32, ds_shape(384));
    for (int i = 0; i < 3; i++) RANK_CHECK(ds_all_reduce(c, x, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(ds_all_reduce(c, y, DS_REDUCE_SUM) == DS_OK);
    RANK_CHECK(ds_all_gather(c, ds_zeros(DS_F32, ds_shape(2, 384)), y) == DS_OK);
    RANK_CHECK(ds_broadcast(c, y, 0) == DS_OK && ds_barrier(c) == DS_OK);
    return ds_comm_log_summary(c, all);
}

/* The output of two ranks that run body; free() it. */
static char *printed(ds_status (*body)(void *arg), void *arg)
{
    FILE *file = tmpfile();
    fflush(stdout);
    int was = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    ds_status status = run_ranks(2, body, arg);
    fflush(stdout);
    dup2(was, STDOUT_FILENO);
    close(was);
    CHECK_INT(status, DS_OK);
    fseek(file, 0, SEEK_END);
    long n = ftell(file);
    rewind(file);
    char *text = calloc((size_t)n + 1, 1);
    CHECK_INT(fread(text, 1, (size_t)n, file), n);
    fclose(file);
    return text;
}

static void the_table_is_deepspeeds(void **state)
{
    (void)state;
    bool all = true;
    char *text = printed(logged, &all);
    CHECK(strstr(text,
                 "Comm. Op            Message Size        Count               Total Latency(ms)   "
                 "Avg Latency(ms)     tput_avg (Gbps)     busbw_avg (Gbps)    \n"
                 "all_reduce\n"
                 "                    1.5 KB              1                   "));
    CHECK(strstr(text, "\n                    4.0 KB              3                   "));
    CHECK(strstr(text, "\nall_gather_into_tensor\n                    1.5 KB              1  "));
    CHECK(strstr(text, "\nbarrier\n                    0B                  1  "));
    CHECK(strstr(text, "comm op: all_reduce | time (ms): "));
    CHECK(strstr(text, " | msg size: 4.0 KB | algbw (Gbps): "));
    CHECK(strstr(text,
                 "\n_______________________________\nBreakdown with straggler effect\n"
                 "-------------------------------\n"
                 "Comm. Op            Message Size        Count               Total comm lat(ms)  "
                 "Total straggler(ms) Avg comm lat(ms)    Avg straggler(ms)   \nall_reduce\n"));
    free(text);

    all = false;
    text = printed(logged, &all);
    CHECK(strstr(text, "\nbroadcast\n") && !strstr(text, "barrier") && !strstr(text, "all_gather"));
    CHECK(!strstr(text, "comm op:") && !strstr(text, "straggler"));
    free(text);
}

static ds_status two_messages(void *arg)
{
    const char *ops[] = {"isend", "recv", "all_gather_coalesced"};
    ds_comm *c = ds_world();
    ds_tensor *x = ds_zeros(DS_F32, ds_shape(1024)), *y = ds_zeros(DS_F32, ds_shape(1024));
    (void)arg;
    RANK_CHECK(ds_comm_log_start(c, false, ops, 3) == DS_OK);
    /* neither waits for the other before it receives */
    ds_message *m = ds_isend(c, x, 1 - ds_comm_rank(c));
    RANK_CHECK(ds_recv(c, y, 1 - ds_comm_rank(c)) == DS_OK && ds_message_wait(m) == DS_OK);
    return ds_comm_log_summary(c, false);
}

static void messages_and_unknown_names(void **state)
{
    const char *wrong[] = {"all_reduce", "allreduce"};
    (void)state;
    char *text = printed(two_messages, NULL);
    CHECK(strstr(text, "\nrecv\n                    4.0 KB              1  "));
    CHECK(strstr(text, "\nsend\n                    4.0 KB              1  "));
    free(text);
    CHECK_INT(ds_comm_log_start(NULL, false, wrong, 2), DS_EINVAL);
    CHECK_ERROR(
        "comm_log_start: there is no operation \"allreduce\" (did you mean \"all_reduce\"?): "
        "expected some of all_reduce, reduce, reduce_scatter_tensor, ");
}

TEST_MAIN(cmocka_unit_test(bytes_are_counted), cmocka_unit_test(the_table_is_deepspeeds),
          cmocka_unit_test(messages_and_unknown_names))
