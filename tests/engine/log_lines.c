/* tests/engine/log_lines.c: lines of progress and of memory.
 * SPDX-License-Identifier: MIT */
#include "engine/log_lines.h"
#include "engine/memory_report.h"

#include "base/log.h"
#include "caught.h"
#include "check.h"

/* ---- progress --------------------------------------------------------------------------------------- */

static void report_some(void)
{
    static const double lr[] = {0.001, 3e-7};
    static const dsi_log_momentum betas[] = {{DSI_LOG_LIST, {0.8, 0.999}},
                                             {DSI_LOG_LIST, {0.9, 0.95}}},
                                  tuple = {DSI_LOG_TUPLE, {0.9, 0.95}},
                                  momentum[] = {{DSI_LOG_FLOAT, {0.9}}, {DSI_LOG_FLOAT, {0}}},
                                  whole = {DSI_LOG_INT, {0}};
    dsi_log_progress(0, 0, 1, lr, betas);
    dsi_log_progress(10, 3, 2, lr, betas);
    dsi_log_progress(20, 3, 1, lr, &tuple);
    dsi_log_progress(30, 3, 2, lr, momentum);
    dsi_log_progress(40, 3, 1, lr, &whole);
}

static void progress_is_printed_as_python_does(void **state)
{
    (void)state;
    const char *s = caught_of(NULL, report_some);
    assert_string_equal(text_of_line(s, 0), "step=0, skipped=0, lr=[0.001], mom=[[0.8, 0.999]]");
    assert_string_equal(text_of_line(s, 1), "step=10, skipped=3, lr=[0.001, 3e-07], "
                                            "mom=[[0.8, 0.999], [0.9, 0.95]]");
    assert_string_equal(text_of_line(s, 2), "step=20, skipped=3, lr=[0.001], mom=[(0.9, 0.95)]");
    assert_string_equal(text_of_line(s, 3),
                        "step=30, skipped=3, lr=[0.001, 3e-07], mom=[0.9, 0.0]");
    assert_string_equal(text_of_line(s, 4), "step=40, skipped=3, lr=[0.001], mom=[0]");
}

/* One step of an engine with that optimizer. */
static const char *optimizer; /* JSON */

static void step_once(void)
{
    char config[300];
    ds_scope *scope = ds_scope_open();
    snprintf(config, sizeof config,
             "{\"train_batch_size\": 1, \"steps_per_print\": 1, \"optimizer\": {%s}}", optimizer);
    ds_engine *e = ds_initialize(.model = ds_nn_linear(NULL, "fc", 2, 2), .config = config);
    ds_engine_backward(e, ds_sum(ds_engine_forward(e, ds_ones(DS_F32, ds_shape(1, 2)))));
    ds_engine_step(e);
    ds_engine_free(e);
    ds_scope_close(scope);
}

/* DeepSpeed 0.19.8 prints the same for these configurations. */
static void momenta_have_pythons_types(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"'type': 'SGD'", "[0]"},
        {"'type': 'SGD', 'params': {'momentum': 0.5}", "[0.5]"},
        {"'type': 'RMSprop'", "[0]"},
        {"'type': 'Adagrad'", "[0.0]"},
        {"'type': 'Adam'", "[(0.9, 0.999)]"},
        {"'type': 'Adam', 'params': {'betas': [0.8, 0.9]}", "[[0.8, 0.9]]"},
        {"'type': 'Adam', 'params': {'betas': [0.8, 0.9], 'torch_adam': true}", "[(0.8, 0.9)]"},
        {"'type': 'Muon'", "[0.0, (0.9, 0.95)]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200], want[40];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        for (char *at = text; *at; at++)
            if (*at == '\'') *at = '"';
        optimizer = text;
        snprintf(want, sizeof want, "mom=%s", cases[i][1]);
        const char *line = text_of_line(caught_of("error", step_once), 0), *mom;
        CHECK(!ds_error());
        CHECK((mom = strstr(line, "mom=")));
        assert_string_equal(mom, want);
    }
}

/* ---- memory ----------------------------------------------------------------------------------------- */

static void report_with_tensors(void)
{
    ds_scope *scope = ds_scope_open();
    ds_zeros(DS_U8, ds_shape(64 << 20)); /* 0.06 GB */
    dsi_memory_report_log("Engine before forward");
    ds_scope_close(scope);
    dsi_memory_report_log("Engine after forward");
    dsi_memory_report_log("Engine before backward");
}

static void memory_lines_are_deepspeeds(void **state)
{
    (void)state;
    const char *s = caught_of("error", report_with_tensors);
    assert_string_equal(text_of_line(s, 0), "Engine before forward");
    assert_string_equal(text_of_line(s, 1),
                        "MA 0.06 GB         Max_MA 0.06 GB         CA 0.06 GB         "
                        "Max_CA 0 GB ");
    double used, percent;
    int n = 0;
    CHECK_INT(sscanf(text_of_line(s, 2), "CPU Virtual Memory:  used = %lf GB, percent = %lf%%%n",
                     &used, &percent, &n),
              2);
    CHECK_INT((int64_t)strlen(text_of_line(s, 2)), n);
    CHECK(used > 0 && percent > 0 && percent <= 100);
    assert_string_equal(text_of_line(s, 3), "Engine after forward");
    const char *after = text_of_line(s,
                                     4); /* the block is kept for the next step, if all is well */
    CHECK(!strncmp(after, "MA 0.0 GB         Max_MA 0.06 GB         CA 0.0", 46));
    CHECK(!strncmp(text_of_line(s, 7), "MA 0.0 GB         Max_MA 0.0 GB         CA 0.0", 45));
}

static void report_on_rank_1(void)
{
    dsi_log_set_rank(1);
    dsi_memory_report_log("Engine before forward");
    report_some();
}

static void other_ranks_are_quiet(void **state)
{
    (void)state;
    assert_string_equal(caught_of("debug", report_on_rank_1), "");
}

static void machine_memory_is_psutils(void **state)
{
    (void)state;
    dsi_machine_memory m;
    CHECK(dsi_machine_memory_parse("MemTotal:       1000 kB\nMemFree:         100 kB\n"
                                   "MemAvailable:    250 kB\nBuffers:          10 kB\n",
                                   &m));
    CHECK_CLOSE(m.used_bytes, 750 * 1024.0, 0);
    CHECK_CLOSE(m.percent, 75, 1e-12);
    /* old kernels say nothing of what is available; some containers more than
     * there is */
    CHECK(dsi_machine_memory_parse("MemTotal: 1000 kB\nMemFree: 100 kB\n", &m));
    CHECK_CLOSE(m.percent, 90, 1e-12);
    CHECK(
        dsi_machine_memory_parse("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 2000 kB", &m));
    CHECK_CLOSE(m.percent, 90, 1e-12);
    CHECK(!dsi_machine_memory_parse("", &m));
    CHECK(!dsi_machine_memory_parse("MemTotal: 1000 kB\n", &m));
    CHECK(!dsi_machine_memory_parse("SwapTotal: 1000 kB\nMemFree: 1 kB", &m));
}

TEST_MAIN(cmocka_unit_test(progress_is_printed_as_python_does),
          cmocka_unit_test(momenta_have_pythons_types),
          cmocka_unit_test(memory_lines_are_deepspeeds), cmocka_unit_test(other_ranks_are_quiet),
          cmocka_unit_test(machine_memory_is_psutils))
