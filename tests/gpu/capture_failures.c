/* tests/gpu/capture_failures.c: captures of an engine's micro steps that fail,
 * while the graphs of three kinds of them have memory in common, and launches that
 * do: the micro step is run again, and losses, norms and parameters are those of
 * a run without a failure; no memory is lost.
 * SPDX-License-Identifier: MIT */
#include "engine_run.h"

#include "device/device.h"

/* One that fails: of the driver ("cuGraphLaunch=2"), of the allocation number
 * `alloc`, or, if both are none, of a read on the host after `reads` of backward and
 * update. In update `at` instead of the one that is captured, if it is not 0. */
typedef struct Failure {
    const char *driver;
    int alloc, reads, at;
} Failure;

/* Updates, the one whose steps are captured; micro steps of each: 3 kinds. */
enum { UPDATES = 6, CAPTURED = 2, EACH = 3 };

static const char failing_config[] = ADAM FP16 CLIP(0.5);

/* Trains; the capture, or launch, of each kind in `kinds` fails once, and its micro step is
 * run again. Returns whether all of them did fail. */
static bool train_with_failures(Run *r, const Failure *f, unsigned kinds)
{
    bool failed = true;
    run_begin(r, true);
    for (int i = 0; i < UPDATES * EACH; i++) {
        bool capture = i / EACH == (f->at ? f->at : CAPTURED) && kinds >> i % EACH & 1;
        ds_scope *scope = ds_scope_open();
        if (capture && f->driver) setenv("FAKE_CUDA_FAIL", f->driver, 1);
        if (capture && f->alloc) dsi_cache_fail(f->alloc, false);
        r->plan.read_at = capture && !f->driver && !f->alloc ? r->calls + 1 : 0;
        r->plan.read_after = f->reads;
        if (capture) {
            failed = !run_step(r, i, 1) && ds_error() && failed;
            ds_error_clear();
            dsi_cache_fail(0, false);
            unsetenv("FAKE_CUDA_FAIL");
        }
        r->plan.read_at = 0;
        ds_scope_close(scope);
        if (!capture || failed) run_micro_step(r, i, NULL);
    }
    return failed;
}

/* The values of a run without a failure, and its memory. */
static bool failure_compare(const Run *good, const Failure *f, unsigned kinds)
{
    size_t before = ds_memory_allocated(gpu);
    int64_t tensors = ds_live_tensors();
    ds_scope *scope = ds_scope_open();
    Run r = {.plan = {.config = failing_config, .accumulate = EACH, .rows = MANY}};
    bool failed = train_with_failures(&r, f, kinds);
    char name[120];
    snprintf(name, sizeof name, "%s, allocation %d, after %d, kinds %u", f->driver ? f->driver : "",
             f->alloc, f->reads, kinds);
    if (failed) {
        for (int i = 0; i < UPDATES * EACH; i++)
            if (!same(r.seen[i].loss, good->seen[i].loss) ||
                !same(r.seen[i].norm, good->seen[i].norm) || r.seen[i].steps != good->seen[i].steps)
                fail_msg("%s: micro step %d: loss %.9g, norm %.9g, without a failure %.9g, %.9g",
                         name, i, r.seen[i].loss, r.seen[i].norm, good->seen[i].loss,
                         good->seen[i].norm);
        if (ds_step_graph_why_not(r.graph))
            fail_msg("%s: %s", name, ds_step_graph_why_not(r.graph));
        if (!ds_step_graph_replays(r.graph)) fail_msg("%s: it is not recorded again", name);
        values_add(ds_engine_module(r.e), &r.values, &r.bytes);
        CHECK(r.bytes == good->bytes && !memcmp(r.values, good->values, r.bytes));
    }
    run_end(&r);
    ds_scope_close(scope);
    CHECK_INT(ds_memory_allocated(gpu), before);
    CHECK_INT(ds_live_tensors(), tensors);
    return failed;
}

static void captures_fail(void **state)
{
    (void)state;
    const Failure failures[] = {{.driver = "cuStreamBeginCapture=2"},
                                {.driver = "cuGraphInstantiate=2"},
                                {.driver = "cuGraphLaunch=2"},
                                {.driver = "cuGraphLaunch=2", .at = CAPTURED + 1},
                                {.driver = "cuMemAlloc_v2=2"},
                                {.reads = 0},
                                {.reads = 1},
                                {.reads = 2}};
    Run good = {.plan = {.config = failing_config, .accumulate = EACH, .rows = MANY}};
    run_all(&good, true, UPDATES * EACH);
    CHECK(failure_compare(&good, &failures[0], 7));
    long used = emulator_count("fake_cuda_used");
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++)
        for (int all = quick() ? 1 : 0; all < 2; all++)
            if (!failure_compare(&good, &failures[i], all ? 7 : 1u << i % EACH))
                fail_msg("failure %zu did not", i);
    int alloc = 1;
    while (failure_compare(&good, &(Failure){.alloc = alloc}, 1u << alloc % EACH))
        alloc += quick() ? 8 : 2;
    printf("# allocations up to %d failed\n", alloc);
    CHECK(alloc > 8);
    CHECK(emulator_count("fake_cuda_used") <= used);
    run_end(&good);
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip || (skip = skip_without_gpus(1))) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(captures_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
