/* tests/engine/timers.c: the engine's phases, throughput: rules and lines.
 * SPDX-License-Identifier: MIT */
#include "engine/timers.h"

#include "base/clock.h"
#include "caught.h"
#include "check.h"

#include <time.h>

static void nap(void) { nanosleep(&(struct timespec){0, 2000000}, NULL); }

static int lines(const char *s)
{
    int n = 0;
    for (; *s; s++) n += *s == '\n';
    return n;
}

/* ---- phases ------------------------------------------------------------------------------------------ */

static void times_add_up(void **state)
{
    (void)state;
    dsi_timers *t = dsi_timers_new();
    CHECK_CLOSE(dsi_phase_ms(t, DSI_FWD), 0, 0);
    for (int i = 0; i < 3; i++) {
        dsi_phase_start(t, DSI_FWD);
        nap();
        dsi_phase_stop(t, DSI_FWD);
    }
    double sum = dsi_phase_ms(t, DSI_FWD);
    CHECK(sum >= 6);
    dsi_phase_stop(t, DSI_FWD); /* not running */
    dsi_phase_stop(t, DSI_BWD); /* never started */
    CHECK_CLOSE(dsi_phase_ms(t, DSI_FWD), sum, 0);
    CHECK_CLOSE(dsi_phase_ms(t, DSI_BWD), 0, 0);
    dsi_timers_free(t);
}

static void a_second_start_begins_anew(void **state)
{
    (void)state;
    dsi_timers *t = dsi_timers_new();
    double begun = dsi_now();
    dsi_phase_start(t, DSI_FWD);
    nap();
    dsi_phase_start(t, DSI_FWD);
    dsi_phase_stop(t, DSI_FWD);
    CHECK(dsi_phase_ms(t, DSI_FWD) <= 1e3 * (dsi_now() - begun) - 2); /* without the nap */
    dsi_timers_free(t);
}

static void log_some(void)
{
    dsi_timers *t = dsi_timers_new();
    dsi_phase_start(t, DSI_STEP);
    dsi_phase_stop(t, DSI_STEP);
    dsi_phase_start(t, DSI_FWD);
    nap();
    dsi_phase_stop(t, DSI_FWD);
    dsi_phases_log_global(t);
    dsi_phases_log_global(t); /* all is 0 again */
    dsi_timers_free(t);
}

static void names_are_told_in_their_order(void **state)
{
    (void)state;
    const char *s = caught_of("error", log_some); /* asked for, so at every level */
    CHECK_INT(lines(s), 2);
    CHECK(strstr(s, "[INFO]"));
    CHECK(!strncmp(text_of_line(s, 0), "time (ms) | fwd: ", 17));
    CHECK(strstr(text_of_line(s, 0), " | step: ") && !strstr(s, "bwd"));
    assert_string_equal(text_of_line(s, 1), "time (ms) | fwd: 0.00 | step: 0.00");
}

static double global_fwd;

static void two_micro_steps(void)
{
    dsi_timers *t = dsi_timers_new();
    for (int micro = 0; micro < 2; micro++) {
        for (dsi_phase p = DSI_FWD; p < DSI_PHASES; p++) {
            dsi_phase_start(t, p);
            if (p == DSI_FWD) nap();
            dsi_phase_stop(t, p);
        }
        dsi_phases_log_micro(t);
    }
    global_fwd = dsi_phase_ms(t, DSI_FWD);
    dsi_phases_log_global(t);
    CHECK_CLOSE(dsi_phase_ms(t, DSI_FWD), 0, 0);
    CHECK_CLOSE(dsi_timer_logged_ms(t, "fwd"), global_fwd, 1e-9);
    CHECK(dsi_timer_logged_ms(t, "fwd_microstep") < global_fwd);
    CHECK_CLOSE(dsi_timer_logged_ms(t, "optimizer_step"), 0, 0);
    CHECK(isnan(dsi_timer_logged_ms(t, "speed")) && isnan(dsi_timer_logged_ms(NULL, "fwd")));
    dsi_timers_free(t);
}

/* The number after "name: ". */
static double ms_of(const char *line, const char *name)
{
    char key[64];
    snprintf(key, sizeof key, "| %s: ", name);
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : NAN;
}

static void phases_have_deepspeeds_names(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, two_micro_steps);
    static const char *const names[2][5] = {{"fwd_microstep", "bwd_microstep",
                                             "bwd_inner_microstep", "bwd_allreduce_microstep",
                                             "step_microstep"},
                                            {"fwd", "bwd", "bwd_inner", "bwd_allreduce", "step"}};
    double fwd[3];
    CHECK_INT(lines(s), 3);
    for (int line = 0; line < 3; line++) {
        char text[500], want[500] = "time (ms)", number[64];
        snprintf(text, sizeof text, "%s", text_of_line(s, line));
        for (int i = 0; i < 5; i++) {
            const char *name = names[line == 2][i];
            snprintf(number, sizeof number, " | %s: %.2f", name, ms_of(text, name));
            strcat(want, number);
        }
        assert_string_equal(text, want);
        fwd[line] = ms_of(text, names[line == 2][0]);
    }
    CHECK(fwd[0] >= 2 && fwd[1] >= 2);
    CHECK_CLOSE(fwd[2], fwd[0] + fwd[1], 0.02);
    CHECK_CLOSE(fwd[2], global_fwd, 0.006);
}

static void use_updates(void)
{
    dsi_timers *t = dsi_timers_new();
    dsi_phases_log_update(t, 0, 1, 2, 3);
    dsi_phases_log_update(t, 2, 0.001, 0.0025, 0.25);
    dsi_phases_log_update(t, 3, 0.001, 0.0025, 0.25);
    dsi_phases_log_update(NULL, 1, 1, 2, 3);
    dsi_timers_free(t);
}

static void updates_have_deepspeeds_names(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, use_updates);
    CHECK_INT(lines(s), 2);
    assert_string_equal(text_of_line(s, 0), "time (ms) | optimizer_allgather: 1.00 | "
                                            "optimizer_gradients: 2.50 | optimizer_step: 250.00");
    assert_string_equal(text_of_line(s, 1), "time (ms) | optimizer_step: 250.00");
}

static void use_none(void)
{
    dsi_phase_start(NULL, DSI_FWD);
    dsi_phase_stop(NULL, DSI_FWD);
    dsi_phases_log_micro(NULL);
    dsi_phases_log_global(NULL);
    dsi_timers_free(NULL);
}

static void no_timers_say_nothing(void **state)
{
    (void)state;
    assert_string_equal(caught_of(NULL, use_none), "");
    CHECK_CLOSE(dsi_phase_ms(NULL, DSI_STEP), 0, 0);
}

/* ---- throughput ------------------------------------------------------------------------------------- */

static dsi_throughput throughput;

static void five_steps_of_two(void)
{
    for (int i = 0; i < 10; i++) {
        dsi_throughput_start(&throughput);
        nap();
        dsi_throughput_stop(&throughput, i % 2 == 1);
    }
}

static void throughput_starts_after_two_steps(void **state)
{
    (void)state;
    throughput = (dsi_throughput){.batch_size = 32, .steps_per_print = 1};
    const char *s = caught_of(NULL, five_steps_of_two);
    CHECK_INT(lines(s), 3); /* of steps 3, 4 and 5 */
    for (int i = 0; i < 3; i++) {
        char text[500], head[100];
        double average, current, live, peak;
        int n = 0;
        snprintf(text, sizeof text, "%s", text_of_line(s, i));
        snprintf(head, sizeof head,
                 "epoch=0/micro_step=%d/global_step=%d, RunningAvgSamplesPerSec=", 6 + 2 * i,
                 3 + i);
        CHECK(!strncmp(text, head, strlen(head)));
        CHECK_INT(sscanf(text + strlen(head),
                         "%lf, CurrSamplesPerSec=%lf, MemAllocated=%lfGB, MaxMemAllocated=%lfGB%n",
                         &average, &current, &live, &peak, &n),
                  4);
        CHECK_INT((int64_t)strlen(text + strlen(head)), n);
        CHECK(average > 0 && average <= 32 / 0.004 && current > 0 && current <= 32 / 0.004);
        if (i == 0) CHECK_CLOSE(current / average, 1, 1e-3);
    }
    CHECK_INT(throughput.global_step, 5);
    CHECK_INT(throughput.micro_step, 10);
    CHECK_CLOSE(dsi_throughput_average(&throughput), 32 / (throughput.total_seconds / 3), 1e-9);
}

static void throughput_prints_each_nth_step(void **state)
{
    (void)state;
    throughput = (dsi_throughput){.batch_size = 8, .steps_per_print = 4};
    const char *s = caught_of(NULL, five_steps_of_two);
    CHECK_INT(lines(s), 1);
    CHECK(!strncmp(text_of_line(s, 0), "epoch=0/micro_step=8/global_step=4, ", 36));
}

static void throughput_can_be_quiet(void **state)
{
    (void)state;
    throughput = (dsi_throughput){.batch_size = 8};
    assert_string_equal(caught_of(NULL, five_steps_of_two), "");
    CHECK(throughput.current > 0);
    throughput = (dsi_throughput){.batch_size = 8, .steps_per_print = 1, .off = true};
    assert_string_equal(caught_of(NULL, five_steps_of_two), "");
    CHECK_INT(throughput.global_step, 0);
    throughput = (dsi_throughput){.batch_size = 8, .steps_per_print = 1};
    dsi_throughput_stop(&throughput, true); /* without a start, as after evaluation */
    CHECK_INT(throughput.global_step, 0);
    CHECK_CLOSE(dsi_throughput_average(&throughput), 0, 0);
}

TEST_MAIN(cmocka_unit_test(times_add_up), cmocka_unit_test(a_second_start_begins_anew),
          cmocka_unit_test(names_are_told_in_their_order),
          cmocka_unit_test(updates_have_deepspeeds_names),
          cmocka_unit_test(phases_have_deepspeeds_names), cmocka_unit_test(no_timers_say_nothing),
          cmocka_unit_test(throughput_starts_after_two_steps),
          cmocka_unit_test(throughput_prints_each_nth_step),
          cmocka_unit_test(throughput_can_be_quiet))
